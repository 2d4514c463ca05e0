//! `belady rehearse`: the rehearsal buffers of a mount.

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use serde_json::Value;

use super::{say, say_data, say_json, warn};
use crate::buffer::{Chooser, SleepSet};
use crate::config::Bytes;
use crate::control::{self, Request};
use crate::error::{Error, ErrorKind, Result};
use crate::input::{self, Limits};
use crate::mount::absolute;
use crate::rehearsal::Question;

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
    let answer = ask(mountpoint, question)?;
    if json {
        say_json(&answer);
    } else {
        say_answer(verb, &answer);
    }
    match verb {
        Verb::Export { .. } => refusal(&answer, ErrorKind::Cache, "not copied"),
        Verb::Offer { .. } | Verb::Score { .. } => refusal(&answer, ErrorKind::Usage, "not taken"),
        _ => Ok(()),
    }
}

fn say_answer(verb: &Verb, answer: &Value) {
    let each = || answer.as_array().into_iter().flatten();
    match verb {
        Verb::Stats { .. } => each().for_each(say_stats),
        Verb::Ls { .. } => {
            say(format!(
                "{:<16} {:>4} {:>8} {:>7} {:>10}  path",
                "class", "task", "age", "replays", "score"
            ));
            each().for_each(say_member);
        }
        Verb::Show { .. } => say_member(answer),
        Verb::Export { .. } => say(format!("{} samples", answer["copied"])),
        Verb::Offer { .. } => {
            say(format!("{} offered; decided one by one, as their bytes come", answer["offered"]));
        }
        Verb::Score { .. } => say(format!("{} taken{}", answer["taken"], not_held_note(answer))),
        Verb::Task { .. } => {}
        Verb::Draw { .. } => say_paths(answer),
        Verb::Sleep { .. } => {
            warn(answer["view"].as_str().unwrap_or_default());
            say_paths(&answer["samples"]);
        }
    }
}

fn ask(mountpoint: &Path, question: Question) -> Result<Value> {
    control::ask(&absolute(mountpoint), &Request::Rehearse(question))
}

fn text(file: Option<&Path>) -> Result<String> {
    match file {
        Some(path) => input::read_text(path, &Limits::NUMBERS),
        None => input::read_stdin_text(&Limits::NUMBERS),
    }
}

/// Says how many lines were about samples that are not held, if any.
fn not_held_note(answer: &Value) -> String {
    let count = answer["passed"].as_u64().filter(|count| *count > 0);
    count.map_or(String::new(), |count| format!(", {count} of samples that are not held"))
}

/// Returns an error for what was refused, after all else was done.
fn refusal(answer: &Value, kind: ErrorKind, what: &str) -> Result<()> {
    let count = answer["refused"].as_u64().unwrap_or(0);
    if count == 0 {
        return Ok(());
    }
    let why = answer["why"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let mut message = format!("{count} {what}:");
    why.for_each(|why| message.push_str(&format!("\n  {why}")));
    Err(Error::new(kind, message))
}

fn say_paths(paths: &Value) {
    let paths: Vec<&str> =
        paths.as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    if !paths.is_empty() {
        say_data(&paths.join("\n"));
    }
}

fn say_stats(stats: &Value) {
    let word = |key: &str| stats[key].as_str().unwrap_or_default().to_owned();
    let number = |key: &str| stats[key].as_u64().unwrap_or(0);
    let capacity = &stats["capacity"];
    let room = match (capacity["samples"].as_u64(), capacity["bytes"].as_u64()) {
        (Some(samples), _) => format!("{samples} samples"),
        (_, bytes) => Bytes(bytes.unwrap_or(0)).human(),
    };
    say(format!("{} ({}, room for {room})", word("name"), word("policy")));
    for doubt in stats["doubts"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        say(format!("  warning: {doubt}"));
    }
    let bytes = Bytes(number("bytes")).human();
    say(format!(
        "  holds {} samples, {bytes}, of {} offered; shown again {} times",
        number("samples"),
        number("offered"),
        number("replays"),
    ));
    if let (Some(median), Some(most)) = (stats["age_median"].as_u64(), stats["age_max"].as_u64()) {
        say(format!("  age in offers: median {median}, oldest {most}"));
    }
    let [taken, passed, refused] = ["scored", "passed", "refused"].map(number);
    say(format!("  scores: {taken} taken, {passed} of samples not held, {refused} refused"));
    for why in stats["why"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        say(format!("    {why}"));
    }
    let missed = |key: &str| stats["missed"][key].as_u64().unwrap_or(0);
    let (reads, openings) = (missed("reads"), missed("openings"));
    if reads + openings > 0 {
        say(format!(
            "  missed in a rush, of all buffers: {reads} reads, offered when they are read again; \
             {openings} openings, not counted as shown"
        ));
    }
    let latent = &stats["latent"];
    if let (Some(codes), Some(each)) = (latent["codes"].as_u64(), latent["bytes_each"].as_u64()) {
        let disk = Bytes(latent["bytes_on_disk"].as_u64().unwrap_or(0)).human();
        say(format!("  latent: {codes} codes of {each} bytes, {disk} on the disk"));
        say(format!("  appended: {} codes, {} refused", latent["appended"], latent["refused"]));
        for why in latent["why"].as_array().into_iter().flatten().filter_map(Value::as_str) {
            say(format!("    {why}"));
        }
    }
    for (what, counts) in [("class", &stats["classes"]), ("task", &stats["tasks"])] {
        for (name, count) in counts.as_object().into_iter().flatten() {
            say(format!("  {what} {name:<24} {count:>8}"));
        }
    }
}

fn say_member(member: &Value) {
    let word = |key: &str| member[key].as_str().unwrap_or_default();
    let score = member["score"].as_f64().map_or("-".to_owned(), |score| format!("{score:.4}"));
    say(format!(
        "{:<16} {:>4} {:>8} {:>7} {score:>10}  {}",
        word("class"),
        member["task"],
        member["age"],
        member["replays"],
        word("path"),
    ));
}
