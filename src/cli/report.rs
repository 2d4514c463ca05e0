//! `belady report`: why a training job is slow.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::{say, say_json};
use crate::config::Bytes;
use crate::control::{self, Request};
use crate::engine::Profile;
use crate::error::{Error, ErrorKind, Result};
use crate::mount::absolute;
use crate::profiler::Seen;
use crate::stall::{Epoch, Finding, Gains, Kind, Model, Parts};

/// Waits of a cause that are shorter than this share of the workers' time are left out.
const CAUSE_MIN: f64 = 0.001;

/// How many times longer than it runs a worker has to wait for a processor until there are too few of them.
const STARVED: f64 = 1.0;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Where it is mounted; all mounts if left out
    mountpoint: Option<PathBuf>,
    /// Tell only of so many of the latest epochs of each loader
    #[arg(long, value_name = "N")]
    epochs: Option<usize>,
    /// Tell of the mount that has ended last, or of the last one at MOUNTPOINT
    #[arg(long)]
    last: bool,
    /// Print JSON: an object for one mount, a list for all
    #[arg(long)]
    json: bool,
}

/// A profile with what follows from it.
#[derive(Serialize)]
pub(super) struct Report {
    source: String,
    mountpoints: Vec<String>,
    has_strangers: bool,
    cpu_s: f64,
    epochs: Vec<Judged>,
}

/// An epoch and what follows from it.
#[derive(Serialize)]
struct Judged {
    #[serde(flatten)]
    epoch: Epoch,
    #[serde(flatten)]
    finding: Finding,
}

impl Report {
    pub(super) fn of(profile: Profile) -> Self {
        let Profile { source, mountpoints, seen } = profile;
        let Seen { epochs, has_strangers, cpu_s } = seen;
        let judge = |epoch: Epoch| Judged { finding: Finding::of(&epoch), epoch };
        let epochs = epochs.into_iter().map(judge).collect();
        Report { source, mountpoints, has_strangers, cpu_s, epochs }
    }

    /// Keeps so many of the latest epochs of each trainer.
    fn keep(&mut self, count: usize) {
        let mut kept: Vec<Judged> = Vec::new();
        for judged in self.epochs.drain(..).rev() {
            let trainer = judged.epoch.trainer;
            if kept.iter().filter(|other| other.epoch.trainer == trainer).count() < count {
                kept.push(judged);
            }
        }
        kept.reverse();
        self.epochs = kept;
    }

    /// The report for people.
    pub(super) fn text(&self) -> String {
        let mut out = String::new();
        if !self.source.is_empty() {
            let _ = writeln!(out, "{} at {}", self.source, self.mountpoints.join(", "));
        }
        if self.epochs.is_empty() {
            let _ = writeln!(out, "  nobody was seen reading for long enough");
        }
        if self.has_strangers {
            let _ = writeln!(
                out,
                "  note: some readers are in another container, so their processes cannot be seen; \
                 run belady in the same one"
            );
        }
        let mut last = None;
        for Judged { epoch, finding } in &self.epochs {
            if last.replace(epoch.trainer) != Some(epoch.trainer) {
                let who = workers(epoch);
                let _ = writeln!(out, "  {} (pid {}), {who}", epoch.program, epoch.trainer);
            }
            render(&mut out, epoch, finding);
        }
        out
    }
}

fn workers(epoch: &Epoch) -> String {
    let plural = if epoch.workers == 1 { "" } else { "s" };
    match epoch.kind {
        Kind::Workers => format!("{} worker{plural}", epoch.workers),
        Kind::Threads => format!("{} thread{plural} that read", epoch.workers),
        Kind::Itself => "which reads itself".to_owned(),
    }
}

fn seconds(seconds: f64) -> String {
    match seconds {
        _ if seconds >= 100.0 => format!("{seconds:.0} s"),
        _ if seconds >= 1.0 => format!("{seconds:.1} s"),
        _ if seconds >= 0.001 => format!("{:.0} ms", seconds * 1e3),
        _ => format!("{:.0} us", seconds * 1e6),
    }
}

fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

fn render(out: &mut String, epoch: &Epoch, finding: &Finding) {
    let still = if epoch.is_over { "" } else { " so far" };
    let verdict = finding.bottleneck.map_or("no verdict", |bottleneck| bottleneck.words());
    let read = epoch.read_bytes.map(|bytes| format!(", {} read", Bytes(bytes).human()));
    let _ = writeln!(
        out,
        "  epoch {}: {}{still}{}: {verdict}",
        epoch.number,
        seconds(epoch.seconds),
        read.unwrap_or_default(),
    );
    render_trainer(out, finding);
    render_parts(out, &finding.parts, epoch);
    render_causes(out, epoch);
    render_gains(out, epoch, finding);
    for note in &finding.notes {
        let _ = writeln!(out, "    note     {note}");
    }
}

fn render_trainer(out: &mut String, finding: &Finding) {
    let Some(wait) = finding.trainer_wait else { return };
    let _ = write!(out, "    trainer  waits for data {} of the time", percent(wait));
    if let Some(Model { batches, step_s, preparation_s, fetch_s, .. }) = finding.model {
        let _ = write!(
            out,
            "; {batches} batches: a step takes {}; a worker takes {} to prepare a batch and waits {} \
             for files",
            seconds(step_s),
            seconds(preparation_s),
            seconds(fetch_s)
        );
    }
    let _ = writeln!(out);
}

fn render_parts(out: &mut String, parts: &Parts, epoch: &Epoch) {
    let Parts { fetch, processor, queued, no_work, elsewhere, unknown } = *parts;
    let parts = [
        ("fetch", fetch),
        ("processor", processor),
        ("queued for one", queued),
        ("no work", no_work),
        ("elsewhere", elsewhere),
        ("unknown", unknown),
    ];
    let shown = parts.iter().filter(|(name, share)| *name != "unknown" || *share > 0.0);
    let words: Vec<String> =
        shown.map(|(name, share)| format!("{name} {}", percent(*share))).collect();
    let whose = if epoch.kind == Kind::Itself { "its time " } else { "workers  " };
    let _ = writeln!(out, "    {whose}{}", words.join(", "));
}

fn render_causes(out: &mut String, epoch: &Epoch) {
    let mut causes: Vec<(&String, &f64)> = epoch.causes.iter().collect();
    causes.retain(|(_, seconds)| **seconds > CAUSE_MIN * epoch.workers_s);
    causes.sort_by(|a, b| b.1.total_cmp(a.1));
    if !causes.is_empty() {
        let words: Vec<String> =
            causes.iter().map(|(cause, waited)| format!("{cause} {}", seconds(**waited))).collect();
        let _ = writeln!(out, "    waits    {}", words.join(", "));
    }
}

fn render_gains(out: &mut String, epoch: &Epoch, finding: &Finding) {
    let Parts { processor, queued, elsewhere, .. } = finding.parts;
    if let (Some(Gains { fetch, processor, gpu }), Some(_)) = (&finding.gains, &finding.model) {
        let _ = writeln!(
            out,
            "    saved    {} if files took no time, {} if preparation did, {} if steps did",
            percent(*fetch),
            percent(*processor),
            percent(*gpu)
        );
    }
    if let Some(cap) = finding.cap_s {
        let _ = writeln!(out, "    cap      no storage brings it below {}", seconds(cap));
    }
    if epoch.kind == Kind::Workers && queued > STARVED * processor && queued > 0.2 {
        let _ = writeln!(
            out,
            "    note     workers wait longer for a processor than they run: they have too few"
        );
    }
    if epoch.kind == Kind::Workers && elsewhere > processor + queued && elsewhere > 0.2 {
        let _ = writeln!(
            out,
            "    note     workers sleep for {} of the time, neither for a file nor for a processor: \
             a timer, a lock, the network or another device",
            percent(elsewhere)
        );
    }
}

/// Asks the daemon of a mount for its report.
pub(super) fn ask(mountpoint: &Path) -> Result<Report> {
    understood(control::ask(mountpoint, &Request::Report)?)
}

fn understood(answer: serde_json::Value) -> Result<Report> {
    let profile = serde_json::from_value(answer);
    profile.map(Report::of).map_err(|error| {
        Error::new(ErrorKind::Mount, format!("the daemon's answer is not understood: {error}"))
    })
}

pub(super) fn run(args: &Args) -> Result<()> {
    let mountpoint = args.mountpoint.as_deref().map(absolute);
    let mut reports = match (&mountpoint, args.last) {
        (_, true) => vec![Report::of(control::kept_profile(mountpoint.as_deref())?)],
        (Some(mountpoint), false) => vec![ask(mountpoint)?],
        (None, false) => all()?,
    };
    if let Some(count) = args.epochs {
        reports.iter_mut().for_each(|report| report.keep(count));
    }
    if !args.json {
        if reports.is_empty() {
            say("nothing is mounted; `belady report --last` tells of the mount that ended last");
        }
        reports.iter().for_each(|report| say(report.text().trim_end()));
    } else if args.mountpoint.is_some() || args.last {
        reports.iter().for_each(say_json);
    } else {
        say_json(&reports);
    }
    Ok(())
}

/// The reports of all mounts. A daemon that is dead has none.
fn all() -> Result<Vec<Report>> {
    let mut reports = Vec::new();
    for (directory, note) in control::all_mounts()? {
        match control::call(&directory.socket(), &Request::Report).and_then(understood) {
            Ok(report) => reports.push(report),
            Err(error) => super::warn(format!("{}: {error}", note.mountpoint.display())),
        }
    }
    Ok(reports)
}
