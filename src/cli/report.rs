//! `belady report`: why a training job is slow.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::{say, say_json};
use crate::config::{Bytes, Size};
use crate::control::{self, Request};
use crate::engine::Profile;
use crate::error::{Error, ErrorKind, Result};
use crate::input::{self, Limits};
use crate::mount::absolute;
use crate::profiler::Seen;
use crate::stall::{Epoch, Finding, Gains, Kind, Model, Parts};
use crate::whatif::{Change, Job, Prediction, Setup};

/// Waits of a cause that are shorter than this share of the workers' time are left out.
const CAUSE_MIN: f64 = 0.001;

/// A process without workers that waits for files for less than this share is left out beside loaders with workers.
const FETCH_MIN: f64 = 0.1;

/// If workers wait for a processor for a larger share, more of them are of no use.
const QUEUED_MIN: f64 = 0.1;

/// How many times longer than it runs a worker has to wait for a processor until there are too few of them.
const STARVED: f64 = 1.0;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Where it is mounted; all mounts if left out
    mountpoint: Option<PathBuf>,
    /// Tell only of so many of the latest epochs of each loader
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    epochs: Option<u32>,
    /// Tell how long an epoch would take with this, as ram=50%,workers=8; may be given several times
    #[arg(long, value_name = "CHANGES")]
    what_if: Vec<String>,
    /// Tell of the mount that has ended last, or of the last one at MOUNTPOINT
    #[arg(long)]
    last: bool,
    /// Print JSON: an object for one mount, a list for all
    #[arg(long)]
    json: bool,
}

/// A profile with what follows from it.
#[derive(Serialize, Deserialize)]
pub(super) struct Report {
    source: String,
    mountpoints: Vec<String>,
    setup: Option<Setup>,
    has_strangers: bool,
    cpu_s: f64,
    epochs: Vec<Judged>,
}

/// An epoch and what follows from it.
#[derive(Serialize, Deserialize)]
struct Judged {
    #[serde(flatten)]
    epoch: Epoch,
    #[serde(flatten)]
    finding: Finding,
    /// How many seconds a later epoch would take, and if something were different. Only of the last epoch of a trainer.
    #[serde(default)]
    later_s: Option<f64>,
    #[serde(default)]
    what_if: Vec<Prediction>,
}

impl Judged {
    fn of(epoch: Epoch) -> Self {
        Judged { finding: Finding::of(&epoch), epoch, later_s: None, what_if: Vec::new() }
    }

    /// The job in virtual time, if it gives the epoch back.
    fn job(&self, setup: &Setup) -> Option<Job> {
        let model = self.finding.model.as_ref().filter(|_| self.finding.gains.is_some())?;
        Job::of(setup, &self.epoch, model)
    }

    /// The changes that may be of interest to anybody.
    fn usual_changes(&self, setup: &Setup) -> Vec<Vec<Change>> {
        let twice = Change::Workers(self.epoch.workers.saturating_mul(2));
        let mut changes = Vec::new();
        let has_room = |share: u64| setup.ram_bytes >= setup.bytes / 100 * share;
        let shares = [50, 100].into_iter().filter(|share| !has_room(*share));
        changes.extend(shares.map(|share| vec![Change::Ram(Size::Percent(share as f64))]));
        if !setup.order_is_known {
            changes.push(vec![Change::OrderTold]);
        }
        if self.finding.parts.queued < QUEUED_MIN {
            changes.push(vec![twice]);
        }
        changes.extend([vec![Change::Latency(0.5)], vec![Change::Link(2.0)]]);
        changes
    }

    fn predict(&mut self, setup: &Setup, wanted: &[Vec<Change>]) {
        let Some(job) = self.job(setup) else {
            if !wanted.is_empty() {
                self.finding.notes.push(
                    "there is no prediction: the epoch goes on, or others have read at the mount \
                     meanwhile, or a simulation of it does not take as long as it took"
                        .to_owned(),
                );
            }
            return;
        };
        let usual;
        let changes = match wanted {
            [] => {
                usual = self.usual_changes(setup);
                &usual
            }
            wanted => wanted,
        };
        self.later_s = Some(job.predict(&[]).seconds);
        self.what_if = changes.iter().map(|changes| job.predict(changes)).collect();
    }
}

impl Report {
    pub(super) fn of(profile: Profile) -> Self {
        let Profile { source, mountpoints, setup, seen } = profile;
        let Seen { epochs, has_strangers, cpu_s } = seen;
        let mut epochs: Vec<Judged> = epochs.into_iter().map(Judged::of).collect();
        // Beside loaders with workers, processes that wait for no file are launchers and helpers.
        let has_workers = epochs.iter().any(|judged| judged.epoch.kind == Kind::Workers);
        epochs.retain(|Judged { epoch, finding, .. }| {
            epoch.kind == Kind::Workers || !has_workers || finding.parts.fetch >= FETCH_MIN
        });
        Report { source, mountpoints, setup, has_strangers, cpu_s, epochs }
    }

    /// Says how long a later epoch of each trainer would take with these changes, or with the usual ones. What is told follows
    /// from its last whole epoch.
    pub(super) fn predict(&mut self, wanted: &[Vec<Change>]) {
        let Some(setup) = &self.setup else { return };
        let of_workers = self.epochs.iter().filter(|judged| judged.epoch.kind == Kind::Workers);
        let trainers: BTreeSet<u32> = of_workers.map(|judged| judged.epoch.trainer).collect();
        for trainer in trainers {
            let is_of = |judged: &Judged| {
                judged.epoch.kind == Kind::Workers && judged.epoch.trainer == trainer
            };
            let whole =
                |judged: &Judged| is_of(judged) && judged.epoch.is_over && judged.epoch.is_whole;
            let last = self.epochs.iter().rposition(whole);
            let last = last.or_else(|| self.epochs.iter().rposition(is_of));
            last.into_iter().for_each(|last| self.epochs[last].predict(setup, wanted));
        }
    }

    /// Keeps so many of the latest epochs of each trainer.
    fn keep(&mut self, count: u32) {
        let mut kept: Vec<Judged> = Vec::new();
        for judged in self.epochs.drain(..).rev() {
            let trainer = judged.epoch.trainer;
            if kept.iter().filter(|other| other.epoch.trainer == trainer).count() < count as usize {
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
            let _ = writeln!(out, "  no loader was seen that has read for a second and more");
        }
        if self.has_strangers {
            let _ = writeln!(
                out,
                "  note: some readers are in another container, so their processes cannot be seen; \
                 run belady in the same one"
            );
        }
        let mut last = None;
        for Judged { epoch, finding, later_s, what_if } in &self.epochs {
            if last.replace(epoch.trainer) != Some(epoch.trainer) {
                let _ = writeln!(out, "  {} (pid {})", epoch.program, epoch.trainer);
            }
            render(&mut out, epoch, finding);
            if let Some(later) = later_s {
                let _ = writeln!(
                    out,
                    "    what if  nothing changes: a later epoch takes {}",
                    seconds(*later)
                );
            }
            for Prediction { what, seconds: would } in what_if {
                let change = would / later_s.unwrap_or(epoch.seconds) - 1.0;
                let _ = writeln!(
                    out,
                    "    what if  {what}: {} ({:+.0} %)",
                    seconds(*would),
                    change * 100.0
                );
            }
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
        "  epoch {}, {}: {}{still}{}: {verdict}",
        epoch.number,
        workers(epoch),
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
            "; about {batches} batches: a step takes {}; a worker takes {} to prepare a batch, and \
             waits {} for its files",
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
        ("waiting for a processor", queued),
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
    let mut causes: Vec<(&String, &f64)> = epoch.mount.causes.iter().collect();
    causes.retain(|(_, seconds)| **seconds > CAUSE_MIN * epoch.workers_s);
    causes.sort_by(|a, b| b.1.total_cmp(a.1));
    if !causes.is_empty() {
        let words: Vec<String> =
            causes.iter().map(|(cause, waited)| format!("{cause} {}", seconds(**waited))).collect();
        let _ =
            writeln!(out, "    mount    all its readers waited meanwhile: {}", words.join(", "));
    }
}

fn render_gains(out: &mut String, epoch: &Epoch, finding: &Finding) {
    let Parts { processor, queued, elsewhere, .. } = finding.parts;
    if let (Some(Gains { fetch, processor, gpu }), Some(_)) = (&finding.gains, &finding.model) {
        let _ = writeln!(
            out,
            "    shorter  by {} if files took no time, by {} if preparation did, by {} if steps did",
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
            "    note     workers wait longer for a processor than they run: there are too few processors"
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
    let changes = parsed(&args.what_if)?;
    let mountpoint = args.mountpoint.as_deref().map(absolute);
    let mut reports = match (&mountpoint, args.last) {
        (_, true) => vec![Report::of(control::kept_profile(mountpoint.as_deref())?)],
        (Some(mountpoint), false) => vec![ask(mountpoint)?],
        (None, false) => all()?,
    };
    if let Some(count) = args.epochs {
        reports.iter_mut().for_each(|report| report.keep(count));
    }
    reports.iter_mut().for_each(|report| report.predict(&changes));
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

/// The changes of `--what-if`.
pub(super) fn parsed(what_if: &[String]) -> Result<Vec<Vec<Change>>> {
    what_if.iter().map(|text| Change::parse_all(text)).collect()
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

/// Simulates what a written report tells of.
pub(super) fn repeat(path: &Path, what_if: &[String], json: bool) -> Result<()> {
    let changes = parsed(what_if)?;
    let refuse = |error: &dyn std::fmt::Display| {
        Error::new(ErrorKind::Usage, format!("{}: {error}", path.display()))
            .hint("give the JSON of `belady report` or of `belady run --report`")
    };
    let text = input::read(path, &Limits::REPORT)?;
    let one = |text: &[u8]| serde_json::from_slice(text).map(|report| vec![report]);
    let mut reports: Vec<Report> =
        serde_json::from_slice(&text).or_else(|_| one(&text)).map_err(|error| refuse(&error))?;
    reports.iter_mut().for_each(|report| report.predict(&changes));
    if json {
        say_json(&reports);
    } else {
        reports.iter().for_each(|report| say(report.text().trim_end()));
    }
    Ok(())
}
