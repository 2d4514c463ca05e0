//! `belady status`.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::{say, say_json};
use crate::config::Bytes;
use crate::control::{self, Request};
use crate::error::Result;
use crate::mount::absolute;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Where it is mounted; all mounts if left out
    mountpoint: Option<PathBuf>,
    /// Print JSON: an object for one mount, a list for all
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> Result<()> {
    show(args.mountpoint.as_deref(), args.json, |status| status, render)
}

/// Shows one mount, or all. `of` takes a part of the status, and `render` makes text of it.
pub(super) fn show(
    mountpoint: Option<&Path>,
    json: bool,
    of: fn(Value) -> Value,
    render: fn(&Value) -> String,
) -> Result<()> {
    let ask = |mountpoint: &Path| control::ask(mountpoint, &Request::Status).map(of);
    if let Some(mountpoint) = mountpoint {
        let status = ask(&absolute(mountpoint))?;
        if json {
            say_json(&status);
        } else {
            say(render(&status).trim_end());
        }
        return Ok(());
    }
    let mounts: Vec<(PathBuf, Result<Value>)> = control::mount_notes()?
        .into_iter()
        .map(|note| (note.mountpoint.clone(), ask(&note.mountpoint)))
        .collect();
    if json {
        say_json(&mounts.iter().filter_map(|(_, status)| status.as_ref().ok()).collect::<Vec<_>>());
        return Ok(());
    }
    if mounts.is_empty() {
        say("nothing is mounted");
    }
    for (mountpoint, status) in mounts {
        match status {
            Ok(status) => say(render(&status)),
            Err(_) => say(format!(
                "{at}: its daemon is dead; `belady umount --force {at}` clears it",
                at = mountpoint.display()
            )),
        }
    }
    Ok(())
}

fn number(status: &Value, key: &str) -> u64 {
    status.pointer(key).and_then(Value::as_u64).unwrap_or_default()
}

fn text<'a>(status: &'a Value, key: &str) -> &'a str {
    status.pointer(key).and_then(Value::as_str).unwrap_or_default()
}

fn human(status: &Value, key: &str) -> String {
    Bytes(number(status, key)).human()
}

fn render(status: &Value) -> String {
    let mut out = String::new();
    render_mount(&mut out, status);
    let (files, bytes) = (number(status, "/files"), human(status, "/bytes"));
    let still = match text(status, "/catalog") {
        "scanning" => " so far; the source is being scanned (scanning)",
        "checking" => ", as an earlier mount saw them; being checked (checking)",
        _ => "",
    };
    let _ = writeln!(out, "  data     {files} files, {bytes}{still}");
    render_kernel(&mut out, status);
    let _ = writeln!(
        out,
        "  ram      {} kept of {}, {} of {} staged ahead; policy {}",
        human(status, "/ram/kept"),
        human(status, "/ram/budget"),
        human(status, "/staged"),
        human(status, "/window"),
        text(status, "/policy"),
    );
    render_reduced(&mut out, status, "ram");
    if status["disk"].is_object() {
        let _ = writeln!(
            out,
            "  disk     {} kept of {}, {} stored; {}",
            human(status, "/disk/kept"),
            human(status, "/disk/budget"),
            human(status, "/disk/stored"),
            text(status, "/disk_state"),
        );
        render_reduced(&mut out, status, "disk");
        if status["disk_moved"].is_string() {
            let _ = writeln!(out, "           warning: {}", text(status, "/disk_moved"));
        }
    } else if status["disk_state"].is_string() {
        let _ = writeln!(out, "  disk     {}", text(status, "/disk_state"));
    }
    let opens = number(status, "/opens");
    let share = |key| 100.0 * number(status, key) as f64 / opens.max(1) as f64;
    let _ = writeln!(
        out,
        "  opens    {opens}: {:.1} % ready, {:.1} % on the way, {:.1} % cold",
        share("/hits"),
        share("/late"),
        share("/cold"),
    );
    render_parts(&mut out, status);
    let _ = writeln!(
        out,
        "  source   {} read, {} blocks ahead and {} on demand; {} from disk",
        human(status, "/source_bytes"),
        number(status, "/prefetched"),
        number(status, "/demanded"),
        human(status, "/tier_bytes"),
    );
    let _ = writeln!(
        out,
        "  lost     {} blocks taken back by the kernel and missed, {} fetched again in time; {} \
         fetches failed",
        number(status, "/lost"),
        number(status, "/restored"),
        number(status, "/failed"),
    );
    render_orders(&mut out, status);
    out
}

/// Large files that are fetched by pages and not by blocks.
fn render_parts(out: &mut String, status: &Value) {
    let (parts, bytes) = (number(status, "/parts"), human(status, "/parts_bytes"));
    if parts > 0 {
        let _ = writeln!(
            out,
            "  parts    {parts} reads of large files found nothing and were fetched alone; {bytes} \
             in RAM"
        );
    }
}

/// The mode, the requests of the kernel, and how long names may be believed.
fn render_kernel(out: &mut String, status: &Value) {
    let (mode, trusted) = (text(status, "/mode"), number(status, "/trusted_files"));
    let _ = write!(out, "  mode     {mode}");
    if mode == "push" {
        let _ = write!(out, ", {trusted} files opened without a request");
    }
    let _ = writeln!(out, "; {}", text(status, "/consistency"));
    let requests = status["requests"].as_object().into_iter().flatten();
    let counted = requests.filter_map(|(kind, count)| Some((kind, count.as_u64()?)));
    let words: Vec<String> = counted
        .filter(|(_, count)| *count > 0)
        .map(|(kind, count)| format!("{count} {kind}"))
        .collect();
    let words = if words.is_empty() { "none".to_owned() } else { words.join(", ") };
    let _ = writeln!(out, "  requests {words}");
    let stuck = number(status, "/stuck_notifications");
    if stuck > 0 {
        let _ = writeln!(
            out,
            "           {stuck} notifications wait in the kernel, for readers perhaps"
        );
    }
}

/// Why the budget of a tier is less than configured, if it is.
fn render_reduced(out: &mut String, status: &Value, tier: &str) {
    if let Some(reduced) = status[tier]["reduced"].as_str() {
        let configured = human(status, &format!("/{tier}/configured"));
        let _ = writeln!(out, "           less than the {configured} configured: {reduced}");
    }
}

fn render_mount(out: &mut String, status: &Value) {
    let at: Vec<&str> = list(status, "mountpoints").iter().filter_map(Value::as_str).collect();
    let (source, pid) = (text(status, "/source"), number(status, "/pid"));
    let _ = writeln!(out, "{source} at {} (pid {pid})", at.join(", "));
}

/// The part of the status that is about orders.
pub(super) fn orders_of(mut status: Value) -> Value {
    let kept = ["source", "mountpoints", "pid", "orders", "loaders", "journal"];
    if let Some(status) = status.as_object_mut() {
        status.retain(|key, _| kept.contains(&key.as_str()));
    }
    status
}

pub(super) fn orders_for_people(status: &Value) -> String {
    let mut out = String::new();
    render_mount(&mut out, status);
    render_orders(&mut out, status);
    out
}

fn list<'a>(status: &'a Value, key: &str) -> &'a [Value] {
    status[key].as_array().map_or(&[][..], Vec::as_slice)
}

fn render_orders(out: &mut String, status: &Value) {
    let (orders, loaders) = (list(status, "orders"), list(status, "loaders"));
    if orders.is_empty() && loaders.is_empty() {
        let _ = writeln!(
            out,
            "  order    unknown: what is read is kept, and what is still unread fetched"
        );
    }
    orders.iter().for_each(|order| render_order(out, order));
    let others = loaders.iter().filter(|loader| loader["reads_told"] != Value::Bool(true));
    others.for_each(|loader| render_loader(out, loader));
    if let Some(journal) = status["journal"].as_str() {
        let _ = writeln!(out, "  journal  {journal}");
    }
}

fn progress(order: &Value) -> String {
    let state = if order["following"] == Value::Bool(true) {
        format!("{} ahead", number(order, "/ahead"))
    } else {
        "DIVERGED: what is read is not what the order says; caching without it".into()
    };
    format!(
        "{} of {}, {state}; {} opens predicted, {} of them seen, {} not predicted",
        number(order, "/position"),
        number(order, "/length"),
        number(order, "/opens_predicted"),
        number(order, "/opens_seen"),
        number(order, "/opens_strayed"),
    )
}

/// A loader whose order was not told.
fn render_loader(out: &mut String, loader: &Value) {
    let (program, process) = (text(loader, "/program"), number(loader, "/process"));
    let _ = writeln!(out, "  loader   {program} (pid {process}): {}", text(loader, "/belief"));
    let state = if loader["followed"] == Value::Bool(true) { "followed" } else { "unknown" };
    let since = number(loader, "/since_s");
    let _ = write!(out, "           epoch {}, {state} for {since} s", number(loader, "/epoch"));
    if loader["progress"].is_object() {
        let _ = write!(out, ", {}", progress(&loader["progress"]));
    }
    if let (Some(opens), true) = (loader["known_after"].as_u64(), loader["followed"] == true) {
        let _ = write!(out, "; known since open {opens} of the epoch");
    }
    let seconds = loader["search_cpu_s"].as_f64().unwrap_or_default();
    if seconds > 0.0 {
        let _ = write!(out, "; {seconds:.1} s of processor time for searches");
    }
    out.push('\n');
    if let Some(spec) = loader["spec"].as_str() {
        let _ = writeln!(out, "           the same, told: {spec}");
    }
}

fn render_order(out: &mut String, order: &Value) {
    let name = text(order, "/stream");
    if order["order"].is_string() {
        let _ = writeln!(
            out,
            "  order    {name}: {}\n           epoch {}, {}",
            text(order, "/order"),
            number(order, "/epoch"),
            progress(order),
        );
    }
    if let Some(fix) = order["fix"].as_str() {
        let _ = writeln!(out, "           {fix}");
    }
    if let Some(refused) = order["refused"].as_str() {
        let _ = writeln!(out, "  order    {name}: REFUSED: {refused}");
    }
}
