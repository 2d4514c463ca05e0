//! A report as one file for a browser: no script, nothing from elsewhere, drawings within.
//!
//! 1. The text of the report comes first.
//! 2. Of each trainer, one epoch is drawn: the last whole one, from which predictions follow, or else the latest one.
//! 3. A table has all epochs, and another one what the mount is set to.

mod charts;
mod svg;

use std::collections::BTreeSet;
use std::fmt::Write;

use super::judged::{Judged, Report, told_epoch};
use super::text::{percent, seconds, text, verdict};
use crate::config::Bytes;
use svg::escaped;

/// Epochs of the table: the latest ones.
const EPOCHS_MAX: usize = 200;

/// Trainers whose epochs are drawn.
const DRAWN_MAX: usize = 8;

const STYLE: &str = "\
body{font:15px/1.5 system-ui,sans-serif;max-width:900px;margin:2em auto;padding:0 1em;color:#1a1c1f;background:#fff}\
h1{font-size:1.4em}h2{font-size:1.15em;margin-top:2em}h3{font-size:1em;margin:1.5em 0 .3em}\
pre{background:#f3f4f6;padding:1em;white-space:pre-wrap;font-size:12px;line-height:1.4}\
table{border-collapse:collapse;font-size:13px}th,td{text-align:right;padding:.15em .7em;border-bottom:1px solid #ddd}\
th:first-child,td:first-child{text-align:left}\
svg{width:100%;height:auto;font-size:11px}svg text{fill:#333}\
.line{fill:none;stroke-width:2}.grid{stroke:#ccc;stroke-width:.5}\
.fetch{fill:#c2410c}.processor{fill:#15803d}.queued{fill:#ca8a04}.idle{fill:#cbd5e1}.elsewhere{fill:#7e22ce}\
.unknown{fill:#64748b}.step{fill:#1d4ed8}.cap{fill:#0f172a}\
.fetch-line{stroke:#c2410c}.processor-line{stroke:#15803d}.queued-line{stroke:#ca8a04}.lead{fill:#0891b2}.lead-line{stroke:#0891b2}\
.elsewhere-line{stroke:#7e22ce}.unknown-line{stroke:#64748b}.step-line{stroke:#1d4ed8}\
.cap-line{stroke:#0f172a;stroke-dasharray:6 4}\
@media(prefers-color-scheme:dark){body{color:#e5e7eb;background:#16181d}pre{background:#22252c}svg text{fill:#d1d5db}\
th,td{border-color:#3a3f4a}.grid{stroke:#444}.idle{fill:#475569}.cap{fill:#e5e7eb}.cap-line{stroke:#e5e7eb}}";

/// The page of these reports.
pub(super) fn page(reports: &[Report]) -> String {
    let mut out = String::from(
        "<!DOCTYPE html>\n<html xmlns=\"http://www.w3.org/1999/xhtml\" lang=\"en\">\n<head>\n\
         <meta charset=\"utf-8\"/>\n<title>belady report</title>\n",
    );
    let _ = writeln!(out, "<style>{}</style>\n</head>\n<body>", escaped(STYLE));
    out += "<h1>Why is my training slow?</h1>\n";
    if reports.is_empty() {
        out += "<p>Nothing is mounted.</p>\n";
    }
    for report in reports {
        add_report(&mut out, report);
    }
    let _ = writeln!(
        out,
        "<p>Made by belady {}. docs/slow-training.md tells how it is measured.</p>\n</body>\n</html>",
        env!("CARGO_PKG_VERSION")
    );
    out
}

fn add_report(out: &mut String, report: &Report) {
    let name = if report.source.is_empty() { "No mount" } else { &report.source };
    let _ = writeln!(out, "<h2>{}</h2>", escaped(name));
    let _ = writeln!(out, "<pre>{}</pre>", escaped(text(report).trim_end()));
    let epochs = &report.epochs;
    let trainers: BTreeSet<u32> = epochs.iter().map(|judged| judged.epoch.trainer).collect();
    for trainer in trainers.into_iter().take(DRAWN_MAX) {
        if let Some(nth) = told_epoch(epochs, trainer) {
            add_epoch(out, report, nth);
        }
    }
    if let Some(chart) = charts::waits(&report.waits) {
        let _ = writeln!(out, "<h3>How long readers of the mount waited, by cause</h3>\n{chart}");
    }
    add_table(out, epochs);
    add_setup(out, report);
}

fn add_epoch(out: &mut String, report: &Report, nth: usize) {
    let judged = &report.epochs[nth];
    let epoch = &judged.epoch;
    let _ = writeln!(
        out,
        "<h2>{} (pid {}), epoch {}: {}</h2>",
        escaped(&epoch.program),
        epoch.trainer,
        epoch.number,
        verdict(&judged.finding)
    );
    let _ = writeln!(out, "<h3>The epoch by part, measured and by the model</h3>");
    *out += &charts::by_part(judged);
    let curve = report.by_ram(nth);
    let drawn = [
        ("What each worker did", charts::lanes(epoch)),
        ("Where the bytes came from, and the lead", charts::bytes(epoch)),
        ("The time of a later epoch, by RAM", charts::by_ram(&curve, judged)),
    ];
    for (title, chart) in drawn {
        if let Some(chart) = chart {
            let _ = writeln!(out, "<h3>{title}</h3>\n{chart}");
        }
    }
}

fn add_table(out: &mut String, epochs: &[Judged]) {
    if epochs.is_empty() {
        return;
    }
    *out += "<h3>All epochs</h3>\n<table>\n<tr><th>loader</th><th>epoch</th><th>workers</th><th>time</th>\
             <th>read</th><th>trainer waits</th><th>fetch</th><th>verdict</th></tr>\n";
    let first = epochs.len().saturating_sub(EPOCHS_MAX);
    for Judged { epoch, finding, .. } in &epochs[first..] {
        let or_none = |text: Option<String>| text.unwrap_or_else(|| "not known".to_owned());
        let _ = writeln!(
            out,
            "<tr><td>{} (pid {})</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td>\
             <td>{}</td><td>{}</td></tr>",
            escaped(&epoch.program),
            epoch.trainer,
            epoch.number,
            epoch.workers,
            seconds(epoch.seconds),
            or_none(epoch.read_bytes.map(|bytes| Bytes(bytes).human())),
            or_none(finding.trainer_wait.map(percent)),
            percent(finding.parts.fetch),
            verdict(finding),
        );
    }
    *out += "</table>\n";
    if first > 0 {
        let _ = writeln!(out, "<p>{first} earlier epochs are left out.</p>");
    }
}

/// What the mount is set to.
fn add_setup(out: &mut String, report: &Report) {
    let Some(setup) = &report.setup else { return };
    let yes = |is: bool| if is { "yes" } else { "no" }.to_owned();
    let human = |bytes: u64| Bytes(bytes).human();
    let rows = [
        ("files", setup.files.to_string()),
        ("bytes", human(setup.bytes)),
        ("RAM", human(setup.ram_bytes)),
        ("cache disk", human(setup.disk_bytes)),
        ("samples are read ahead", yes(setup.prefetch)),
        ("an order is followed", yes(setup.order_is_known)),
        ("reads at the source at once", setup.reads_at_once.to_string()),
        ("processors", setup.processors.to_string()),
    ];
    *out += "<h3>The mount</h3>\n<table>\n";
    for (name, value) in rows {
        let _ = writeln!(out, "<tr><td>{name}</td><td>{value}</td></tr>");
    }
    *out += "</table>\n";
}

#[cfg(test)]
mod tests;
