//! The report for people.

use std::fmt::Write;

use super::judged::{Judged, Report};
use crate::config::Bytes;
use crate::stall::{Epoch, Finding, Gains, Kind, Meters, Model, Parts};
use crate::whatif::Prediction;

/// Waits of a cause that are shorter than this share of the workers' time are left out.
const CAUSE_MIN: f64 = 0.001;

/// How many times longer than it runs a worker has to wait for a processor until there are too few of them.
const STARVED: f64 = 1.0;

/// The report for people.
pub(in crate::cli) fn text(report: &Report) -> String {
    let mut out = String::new();
    if !report.source.is_empty() {
        let _ = writeln!(out, "{} at {}", report.source, report.mountpoints.join(", "));
    }
    if report.epochs.is_empty() {
        let _ = writeln!(out, "  no loader was seen that has read for a second and more");
    }
    if report.has_strangers {
        let _ = writeln!(
            out,
            "  note: some readers are in another container, so their processes cannot be seen; \
             run belady in the same one"
        );
    }
    if report.short_epochs > 0 {
        let plural = if report.short_epochs == 1 { "" } else { "s" };
        let _ = writeln!(
            out,
            "  note: {} epoch{plural} took less than a second, which is too short for a report",
            report.short_epochs
        );
    }
    let mut last = None;
    for Judged { epoch, finding, later_s, what_if } in &report.epochs {
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

fn workers(epoch: &Epoch) -> String {
    let plural = if epoch.workers == 1 { "" } else { "s" };
    match epoch.kind {
        Kind::Workers => format!("{} worker{plural}", epoch.workers),
        Kind::Threads => format!("{} thread{plural} that read", epoch.workers),
        Kind::Itself => "which reads itself".to_owned(),
    }
}

pub(super) fn seconds(seconds: f64) -> String {
    match seconds {
        _ if seconds >= 100.0 => format!("{seconds:.0} s"),
        _ if seconds >= 1.0 => format!("{seconds:.1} s"),
        _ if seconds >= 0.001 => format!("{:.0} ms", seconds * 1e3),
        _ => format!("{:.0} us", seconds * 1e6),
    }
}

pub(super) fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

/// Which epoch it is, who reads, and how much so far.
pub(super) fn title(epoch: &Epoch) -> String {
    let still = if epoch.is_over { "" } else { " so far" };
    let read = epoch.read_bytes.map(|bytes| format!(", {} read", Bytes(bytes).human()));
    format!(
        "epoch {}, {}: {}{still}{}",
        epoch.number,
        workers(epoch),
        seconds(epoch.seconds),
        read.unwrap_or_default(),
    )
}

pub(super) fn verdict(finding: &Finding) -> &'static str {
    finding.bottleneck.map_or("no verdict", |bottleneck| bottleneck.words())
}

fn render(out: &mut String, epoch: &Epoch, finding: &Finding) {
    let _ = writeln!(out, "  {}: {}", title(epoch), verdict(finding));
    render_trainer(out, finding);
    render_parts(out, &finding.parts, epoch);
    render_causes(out, epoch);
    render_derived(out, epoch);
    render_gains(out, epoch, finding);
    for note in &finding.notes {
        let _ = writeln!(out, "    note     {note}");
    }
}

fn render_trainer(out: &mut String, finding: &Finding) {
    let Some(wait) = finding.trainer_wait else { return };
    let _ = writeln!(out, "    trainer  waits for data {} of the time", percent(wait));
    if let Some(Model { batches, step_s, preparation_s, fetch_s, .. }) = finding.model {
        let (preparation, fetch, step) =
            (seconds(preparation_s), seconds(fetch_s), seconds(step_s));
        let _ = writeln!(
            out,
            "    batches  about {batches}: {preparation} to prepare one, {fetch} for its files, {step} \
             for its step"
        );
    }
}

pub(super) fn named(parts: &Parts) -> [(&'static str, f64); 6] {
    let Parts { fetch, processor, queued, no_work, elsewhere, unknown } = *parts;
    [
        ("fetch", fetch),
        ("processor", processor),
        ("waiting for a processor", queued),
        ("no work", no_work),
        ("elsewhere", elsewhere),
        ("unknown", unknown),
    ]
}

fn render_parts(out: &mut String, parts: &Parts, epoch: &Epoch) {
    let parts = named(parts);
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

/// Samples that the mount has made. Their readers count the wait for them as a wait for files.
fn render_derived(out: &mut String, epoch: &Epoch) {
    let Meters { made, making_s, .. } = &epoch.mount;
    if *made > 0 {
        let each = seconds(making_s / *made as f64);
        let _ = writeln!(out, "    derived  {made} samples were made meanwhile, {each} each");
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
