//! `belady order merge` and `belady order cut`: make order files of order files.

use std::borrow::Cow;
use std::io::Write;
use std::ops::Range;
use std::path::PathBuf;
use std::str::FromStr;

use clap::ValueEnum;

use super::output::Target;
use super::{say, say_json};
use crate::error::{Error, ErrorKind, Result};
use crate::input::{self, Limits};
use crate::order::file::edit::{OrderFile, RankShare, as_text, concatenate, interleave};

/// What the files are parts of.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum By {
    /// Each is a rank's part of the same epochs: they take turns
    Ranks,
    /// Each has epochs of its own: they follow one another
    Epochs,
}

#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Merge {
    /// The order files; of ranks, in the order of the ranks
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// What the files are parts of
    #[arg(long)]
    by: By,
    /// Samples in a row that are one rank's: 1 for torch's DistributedSampler, the batch size if ranks take
    /// whole batches
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    batch: u64,
    /// Leave out samples that the epoch has already, such as those that pad ranks to the same number
    #[arg(long)]
    once: bool,
    #[command(flatten)]
    target: Target,
    /// Print JSON: what the file has
    #[arg(long, requires = "output")]
    json: bool,
}

#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Cut {
    /// The order file
    file: PathBuf,
    /// Which epochs, by their numbers: `3`, `2..5` without 5, `2..`
    #[arg(long, value_name = "RANGE", default_value = "..")]
    epochs: Span,
    /// Which samples of each epoch, by their places from 0: `1000..`
    #[arg(long, value_name = "RANGE", default_value = "..")]
    samples: Span,
    /// The rank whose part is wanted, of `--world`
    #[arg(long, requires = "world")]
    rank: Option<u64>,
    /// Number of ranks
    #[arg(long, requires = "rank")]
    world: Option<u64>,
    /// Samples in a row that are one rank's
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    batch: u64,
    #[command(flatten)]
    target: Target,
    /// Print JSON: what the file has
    #[arg(long, requires = "output")]
    json: bool,
}

/// A half-open range of whole numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Span(Range<u64>);

impl FromStr for Span {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let number = |word: &str, left_out: u64| {
            let given = (!word.is_empty()).then(|| word.parse());
            given.unwrap_or(Ok(left_out)).map_err(|_| format!("'{word}' is no whole number"))
        };
        let range = match text.split_once("..") {
            Some((from, to)) => number(from, 0)?..number(to, u64::MAX)?,
            None => {
                let only: u64 = text.parse().map_err(|_| format!("'{text}' is no whole number"))?;
                only..only.saturating_add(1)
            }
        };
        if range.is_empty() {
            return Err("there is nothing in this range; it ends before its second number".into());
        }
        Ok(Span(range))
    }
}

pub(super) fn merge(args: &Merge) -> Result<()> {
    let bytes: Vec<Vec<u8>> =
        args.files.iter().map(|file| input::read(file, &Limits::ORDER)).collect::<Result<_>>()?;
    let mut texts = Vec::new();
    for (file, bytes) in args.files.iter().zip(&bytes) {
        texts.push(as_text(bytes).map_err(|error| error.context(file.display()))?);
    }
    let mut files = Vec::new();
    for (file, text) in args.files.iter().zip(&texts) {
        files.push(OrderFile::read(text).map_err(|error| error.context(file.display()))?);
    }
    write(&args.target, args.json, |sink| match args.by {
        By::Ranks => interleave(&files, args.batch, args.once, &mut |line| sink.put(line)),
        By::Epochs => concatenate(&files, &mut |line| sink.put(line)),
    })
}

pub(super) fn cut(args: &Cut) -> Result<()> {
    let share = match (args.rank, args.world) {
        (Some(rank), Some(world)) if rank < world => RankShare { rank, world, batch: args.batch },
        (Some(rank), Some(world)) => {
            let message = format!("there is no rank {rank} of {world}: ranks count from 0");
            return Err(Error::new(ErrorKind::Usage, message));
        }
        _ => RankShare::WHOLE,
    };
    let bytes = input::read(&args.file, &Limits::ORDER)?;
    let about = |error: Error| error.context(args.file.display());
    let text: Cow<'_, [u8]> = as_text(&bytes).map_err(about)?;
    let file = OrderFile::read(&text).map_err(about)?;
    let (epochs, samples) = (args.epochs.0.clone(), args.samples.0.clone());
    write(&args.target, args.json, |sink| {
        file.cut(epochs, samples, share, &mut |line| sink.put(line)).map_err(about)
    })
}

/// Takes the lines of an order file and counts them.
struct Sink<'o> {
    out: &'o mut dyn Write,
    failed: Option<std::io::Error>,
    /// The number of each epoch, and its number of samples.
    epochs: Vec<(String, u64)>,
}

impl Sink<'_> {
    fn put(&mut self, line: &[u8]) {
        if let Some(number) = line.strip_prefix(b"# epoch ") {
            self.epochs.push((String::from_utf8_lossy(number).into_owned(), 0));
        } else if let Some((_, samples)) = self.epochs.last_mut() {
            *samples += 1;
        }
        if self.failed.is_none() {
            let written = self.out.write_all(line).and_then(|()| self.out.write_all(b"\n"));
            self.failed = written.err();
        }
    }
}

/// Writes an order file, and says what is in it.
fn write(
    target: &Target,
    json: bool,
    edit: impl FnOnce(&mut Sink<'_>) -> Result<()>,
) -> Result<()> {
    let epochs = target.fill(|out| {
        let mut sink = Sink { out, failed: None, epochs: Vec::new() };
        edit(&mut sink)?;
        match sink.failed {
            Some(error) => Err(target.cannot_write(&error)),
            None => Ok(sink.epochs),
        }
    })?;
    let Some(file) = target.file() else { return Ok(()) };
    if json {
        let number = |text: &String| text.parse::<u64>().unwrap_or_default();
        let epoch = |(epoch, samples): &(String, u64)| serde_json::json!({ "epoch": number(epoch), "samples": samples });
        let epochs: Vec<_> = epochs.iter().map(epoch).collect();
        say_json(&serde_json::json!({ "file": file, "epochs": epochs }));
    } else {
        say(format!("wrote {}", file.display()));
        epochs.iter().for_each(|(epoch, samples)| say(format!("  epoch {epoch}: {samples}")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_half_open() {
        let span = |text: &str| text.parse::<Span>().map(|span| span.0);
        assert_eq!(span("3"), Ok(3..4));
        assert_eq!(span("2..5"), Ok(2..5));
        assert_eq!((span(".."), span("7..")), (Ok(0..u64::MAX), Ok(7..u64::MAX)));
        for wrong in ["", "5..2", "5..5", "-1", "a..b", "1-2"] {
            assert!(span(wrong).is_err(), "{wrong}");
        }
    }
}
