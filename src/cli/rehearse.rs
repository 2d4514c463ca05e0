//! `belady rehearse`: the rehearsal buffers of a mount.

use std::borrow::Borrow;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use serde_json::Value;

use super::warmup::understood;
use super::{say, say_data, say_json, warn};
use crate::buffer::{Capacity, Chooser, SleepSet};
use crate::config::Bytes;
use crate::control::{self, Request};
use crate::error::{Error, ErrorKind, Result};
use crate::input::{self, Limits};
use crate::mount::absolute;
use crate::rehearsal::{
    BufferReport, ExportReport, JointReport, MissedNotes, OfferReport, Question, Refusals,
    SampleReport, ScoreCounts, SleepReport,
};

/// A buffer of a mount.
#[derive(Debug, Args)]
pub(super) struct BufferArgs {
    /// Where the dataset is mounted
    mountpoint: PathBuf,
    /// The buffer's name
    buffer: String,
}

#[derive(Debug, Subcommand)]
pub(super) enum Verb {
    /// Show how full the buffers are, by class and by task
    Stats {
        /// Where the dataset is mounted
        mountpoint: PathBuf,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// List what a buffer holds: class, task, age in offers, replays, score, path
    Ls {
        #[command(flatten)]
        which: BufferArgs,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Show what is known of one sample
    Show {
        #[command(flatten)]
        which: BufferArgs,
        /// Its path within the dataset, or that of a file of a view
        path: String,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Copy what a buffer holds, as CLASS/FILE, to a new directory
    Export {
        #[command(flatten)]
        which: BufferArgs,
        /// The directory; it must not be there yet
        directory: PathBuf,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Offer files to a buffer: paths within the dataset, one a line
    Offer {
        #[command(flatten)]
        which: BufferArgs,
        /// The list; standard input if left out
        list: Option<PathBuf>,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Tell a buffer what the trainer found out: lines `path score`
    Score {
        #[command(flatten)]
        which: BufferArgs,
        /// The lines; standard input if left out
        lines: Option<PathBuf>,
        /// Lines are `path feature feature ...`, of all samples of each class that is among them;
        /// those that are not held count for the mean of their class
        #[arg(long)]
        features: bool,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Begin a task: samples that are offered from now on belong to it
    Task {
        #[command(flatten)]
        which: BufferArgs,
        /// The task's number
        task: u32,
        /// A list of its files and directories within the dataset, `-` for standard input; all that
        /// is offered if left out
        files: Option<PathBuf>,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Print the draws of an epoch from what a buffer holds, in their order
    Draw {
        #[command(flatten)]
        which: BufferArgs,
        /// The epoch
        #[arg(long, default_value_t = 0)]
        epoch: u64,
        /// How many
        #[arg(long, default_value_t = 64)]
        count: u64,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Choose a sleep set: samples to be learnt from again, shown as sleep-N/, printed in their order
    Sleep {
        #[command(flatten)]
        which: BufferArgs,
        /// How many samples
        #[arg(long)]
        budget: u64,
        /// How they are chosen: uniform, uniform-balanced, prototypical, min-margin, max-loss,
        /// min-replay, mir, herding
        #[arg(long, default_value = "uniform-balanced", value_parser = chooser)]
        policy: Chooser,
        /// This many samples in a row are all different; 0: all
        #[arg(long, default_value_t = 0)]
        batch: u64,
        /// The seed of all random choices
        #[arg(long, default_value_t = 0)]
        seed: u64,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

fn chooser(text: &str) -> std::result::Result<Chooser, String> {
    serde_json::from_value(Value::from(text)).map_err(|error| error.to_string())
}

/// The mount, the question to it, and whether the answer is to be JSON.
fn question(verb: &Verb) -> Result<(&Path, Question, bool)> {
    let buffer = |which: &BufferArgs| which.buffer.clone();
    let (which, question, json) = match verb {
        Verb::Stats { mountpoint, json } => return Ok((mountpoint, Question::Stats, *json)),
        Verb::Ls { which, json } => (which, Question::List { buffer: buffer(which) }, json),
        Verb::Show { which, path, json } => {
            (which, Question::Show { buffer: buffer(which), path: path.clone() }, json)
        }
        Verb::Export { which, directory, json } => {
            let directory = absolute(directory);
            (which, Question::Export { buffer: buffer(which), directory }, json)
        }
        Verb::Offer { which, list, json } => {
            let paths = text(list.as_deref())?;
            (which, Question::Offer { buffer: buffer(which), paths }, json)
        }
        Verb::Score { which, lines, features, json } => {
            let (lines, features) = (text(lines.as_deref())?, *features);
            (which, Question::Score { buffer: buffer(which), lines, features }, json)
        }
        Verb::Task { which, task, files, json } => {
            let list = files.as_deref().map(|path| text((path != Path::new("-")).then_some(path)));
            let files = list.transpose()?.unwrap_or_default();
            (which, Question::Task { buffer: buffer(which), task: *task, files }, json)
        }
        Verb::Draw { which, epoch, count, json } => {
            let (epoch, count) = (*epoch, *count);
            (which, Question::Draw { buffer: buffer(which), epoch, count }, json)
        }
        Verb::Sleep { which, budget, policy, batch, seed, json } => {
            let set = SleepSet { chooser: *policy, budget: *budget, batch: *batch, seed: *seed };
            (which, Question::Sleep { buffer: buffer(which), set }, json)
        }
    };
    Ok((&which.mountpoint, question, *json))
}

pub(super) fn run(verb: &Verb) -> Result<()> {
    let (mountpoint, question, json) = question(verb)?;
    let answer = control::ask(&absolute(mountpoint), &Request::Rehearse(question))?;
    let (kind, what) = match verb {
        Verb::Export { .. } => (ErrorKind::Cache, "not copied"),
        _ => (ErrorKind::Usage, "not taken"),
    };
    let refusals = match verb {
        Verb::Export { .. } | Verb::Offer { .. } | Verb::Score { .. } => {
            understood(answer.clone())?
        }
        _ => Refusals::default(),
    };
    if json {
        say_json(&answer);
    } else {
        say_answer(verb, answer)?;
    }
    refusal(&refusals, kind, what)
}

fn say_answer(verb: &Verb, answer: Value) -> Result<()> {
    match verb {
        Verb::Stats { .. } => understood::<Vec<BufferReport>>(answer)?.iter().for_each(say_stats),
        Verb::Ls { .. } => {
            let samples: Vec<SampleReport> = understood(answer)?;
            say(format!(
                "{:<16} {:>4} {:>8} {:>7} {:>10}  path",
                "class", "task", "age", "replays", "score"
            ));
            samples.iter().for_each(say_sample);
        }
        Verb::Show { .. } => say_sample(&understood(answer)?),
        Verb::Export { .. } => {
            let ExportReport { copied, .. } = understood(answer)?;
            say(format!("{copied} samples"));
        }
        Verb::Offer { .. } => {
            let OfferReport { offered, .. } = understood(answer)?;
            say(format!("{offered} offered; decided one by one, as their bytes come"));
        }
        Verb::Score { .. } => {
            let ScoreCounts { taken, passed, .. } = understood(answer)?;
            let not_held = match passed {
                0 => String::new(),
                _ => format!(", {passed} of samples that are not held"),
            };
            say(format!("{taken} taken{not_held}"));
        }
        Verb::Task { .. } => {}
        Verb::Draw { .. } => say_paths(&understood::<Vec<String>>(answer)?),
        Verb::Sleep { .. } => {
            let SleepReport { view, samples } = understood(answer)?;
            warn(view);
            say_paths(&samples);
        }
    }
    Ok(())
}

fn text(file: Option<&Path>) -> Result<String> {
    match file {
        Some(path) => input::read_text(path, &Limits::NUMBERS),
        None => input::read_stdin_text(&Limits::NUMBERS),
    }
}

/// Returns an error for what was refused, after all else was done.
fn refusal(refusals: &Refusals, kind: ErrorKind, what: &str) -> Result<()> {
    if refusals.count == 0 {
        return Ok(());
    }
    let mut message = format!("{} {what}:", refusals.count);
    refusals.why.iter().for_each(|why| message.push_str(&format!("\n  {why}")));
    Err(Error::new(kind, message))
}

fn say_paths(paths: &[impl Borrow<str>]) {
    if !paths.is_empty() {
        say_data(&paths.join("\n"));
    }
}

fn say_stats(stats: &BufferReport) {
    let room = match stats.capacity {
        Some(Capacity::Samples(samples)) => format!("{samples} samples"),
        Some(Capacity::Bytes(bytes)) => Bytes(bytes).human(),
        None => Bytes(0).human(),
    };
    say(format!("{} ({}, room for {room})", stats.name, stats.policy));
    stats.doubts.iter().for_each(|doubt| say(format!("  warning: {doubt}")));
    let BufferReport { samples, offered, replays, scored, passed, ref refused, .. } = *stats;
    let bytes = Bytes(stats.bytes).human();
    say(format!(
        "  holds {samples} samples, {bytes}, of {offered} offered; shown again {replays} times"
    ));
    if let (Some(median), Some(most)) = (stats.age_median, stats.age_max) {
        say(format!("  age in offers: median {median}, oldest {most}"));
    }
    let count = refused.count;
    say(format!("  scores: {scored} taken, {passed} of samples not held, {count} refused"));
    refused.why.iter().for_each(|why| say(format!("    {why}")));
    let MissedNotes { reads, openings } = stats.missed;
    if reads + openings > 0 {
        say(format!(
            "  missed in a rush, of all buffers: {reads} reads, offered when they are read again; \
             {openings} openings, not counted as shown"
        ));
    }
    if let Some(joint) = &stats.joint {
        let JointReport { nodes, samples, read, read_from_source } = joint;
        say(format!(
            "  shared with other nodes: {samples} samples at {nodes} nodes; read from others: {read}, \
             from the source in their place: {read_from_source}"
        ));
    }
    if let Some(latent) = &stats.latent {
        let (codes, each) = (latent.codes, latent.bytes_each);
        let disk = Bytes(latent.bytes_on_disk).human();
        say(format!("  latent: {codes} codes of {each} bytes, {disk} on the disk"));
        say(format!("  appended: {} codes, {} refused", latent.appended, latent.refused.count));
        latent.refused.why.iter().for_each(|why| say(format!("    {why}")));
    }
    for (class, count) in &stats.classes {
        say(format!("  class {class:<24} {count:>8}"));
    }
    for (task, count) in &stats.tasks {
        say(format!("  task {task:<25} {count:>8}"));
    }
}

fn say_sample(sample: &SampleReport) {
    let SampleReport { path, class, task, age, replays, score, .. } = sample;
    let score = score.map_or("-".to_owned(), |score| format!("{score:.4}"));
    say(format!("{class:<16} {task:>4} {age:>8} {replays:>7} {score:>10}  {path}"));
}
