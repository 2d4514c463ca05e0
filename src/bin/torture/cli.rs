//! The command line.

use std::path::PathBuf;

use clap::{Parser, Subcommand};

use crate::plan::Kind;

/// Reads through belady while faults are injected, and judges every byte, error and wait.
///
/// Everything random follows from the seed: `--seed S --scenario N` repeats a scenario. The exit code is 0 if
/// nothing was wrong: no wrong byte, no error or wait without a fault that explains it, and no daemon killed
/// for want of memory. Needs root, and belady and slowpfs beside it.
#[derive(Debug, Parser)]
#[command(name = "torture", version)]
pub(crate) struct Cli {
    /// The role of a child process.
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
    /// Minutes in which scenarios begin.
    #[arg(long, value_name = "N", default_value_t = 60.0, value_parser = positive)]
    pub(crate) minutes: f64,
    /// Seed of all random choices. Default: another one each time.
    #[arg(long, value_name = "S")]
    pub(crate) seed: Option<u64>,
    /// Run only this scenario.
    #[arg(long, value_name = "N")]
    pub(crate) scenario: Option<u64>,
    /// Run only scenarios of this kind.
    #[arg(long, value_enum)]
    pub(crate) kind: Option<Kind>,
    /// An operation that takes longer hangs, unless a fault explains it.
    #[arg(long, value_name = "SECONDS", default_value_t = 5.0, value_parser = positive)]
    pub(crate) hang: f64,
    /// Go on until there were this many cycles of mount and umount.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) cycles: u64,
    /// Go on until the daemon was killed this often in push mode.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) kills: u64,
    /// Print the counts as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

impl Cli {
    /// Checks that the run can end: cycles and kills come only from scenarios of their kind.
    ///
    /// # Errors
    /// Which option to leave out, in a sentence.
    pub(crate) fn check(&self) -> Result<(), String> {
        let wanted = [("cycles", self.cycles, Kind::Cycles), ("kills", self.kills, Kind::Kills)];
        for (name, number, kind) in wanted {
            if number > 0 && self.kind.is_some_and(|only| only != kind) {
                return Err(format!(
                    "--{name} needs scenarios of that kind: leave out --kind, or give --kind {name}"
                ));
            }
        }
        Ok(())
    }
}

/// Roles of child processes.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Maps the files whose paths it reads from standard input.
    #[command(hide = true)]
    Mapper,
    /// Reads the files below a directory until it is killed.
    #[command(hide = true)]
    Victim {
        /// The directory.
        root: PathBuf,
        /// The seed of its order.
        seed: u64,
    },
}

/// A time above 0.
fn positive(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(number) if number > 0.0 && number < 1e6 => Ok(number),
        _ => Err("a number above 0 is needed".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory as _, Parser as _};

    use super::*;

    #[test]
    fn command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_run_that_cannot_end_is_refused() {
        let is_accepted = |words: &str| {
            let words = ["torture"].into_iter().chain(words.split_whitespace());
            Cli::try_parse_from(words).expect("it is parsed").check().is_ok()
        };
        assert!(is_accepted("--cycles 5 --kills 5"));
        assert!(is_accepted("--kind cycles --cycles 5"));
        assert!(is_accepted("--kind faults"));
        assert!(!is_accepted("--kind cycles --kills 5"));
        assert!(!is_accepted("--kind kills --cycles 5"));
        assert!(!is_accepted("--kind faults --kills 5"));
    }
}
