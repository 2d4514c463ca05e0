//! `belady status`.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::warmup::understood;
use super::{say, say_json};
use crate::cache::Latencies;
use crate::config::Bytes;
use crate::control::{self, MountDirectory, Request};
use crate::engine::{LeadStatus, OrderStatus, SourceStatus, Status};
use crate::error::Result;
use crate::learning::LoaderStatus;
use crate::mount::absolute;
use crate::plan::{Counters, StreamStatus};
use crate::source::{DerivedStatus, Failure, SourceFailures};

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

/// Shows one mount, or all. `of` takes the part of the status that is printed as JSON, and `render` makes text
/// for people.
pub(super) fn show(
    mountpoint: Option<&Path>,
    json: bool,
    of: fn(Value) -> Value,
    render: fn(&Status) -> String,
) -> Result<()> {
    let ask = |mountpoint: &Path| control::ask(mountpoint, &Request::Status).map(of);
    let text = |status: Value| understood(status).map(|status| render(&status));
    if let Some(mountpoint) = mountpoint {
        let status = ask(&absolute(mountpoint))?;
        if json {
            say_json(&status);
        } else {
            say(text(status)?.trim_end());
        }
        return Ok(());
    }
    let ask =
        |directory: &MountDirectory| control::call(&directory.socket(), &Request::Status).map(of);
    let mounts: Vec<(PathBuf, Result<Value>)> = control::all_mounts()?
        .into_iter()
        .map(|(directory, note)| (note.mountpoint, ask(&directory)))
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
            // One daemon of another version must not hide the others.
            Ok(status) => match text(status) {
                Ok(text) => say(text),
                Err(error) => say(format!("{}: {error}", mountpoint.display())),
            },
            Err(_) => say(format!(
                "{at}: its daemon is dead; `belady umount --force {at}` clears it",
                at = mountpoint.display()
            )),
        }
    }
    Ok(())
}

fn human(bytes: u64) -> String {
    Bytes(bytes).human()
}

fn render(status: &Status) -> String {
    let mut out = String::new();
    render_mount(&mut out, status);
    let (files, bytes) = (status.files, human(status.bytes));
    let still = match status.catalog.as_str() {
        "scanning" => " so far; the source is being scanned (scanning)",
        "checking" => ", as an earlier mount saw them; being checked (checking)",
        _ => "",
    };
    let _ = writeln!(out, "  data     {files} files, {bytes}{still}");
    render_kernel(&mut out, status);
    render_names(&mut out, &status.source_times);
    render_source(&mut out, status);
    render_failures(&mut out, status);
    render_tiers(&mut out, status);
    render_counters(&mut out, &status.counters, status.parts_bytes);
    render_moves(&mut out, status);
    render_waits(&mut out, status);
    if let Some(lead) = lead(status) {
        let _ = writeln!(out, "  lead     {lead}");
    }
    render_orders(&mut out, status);
    if let Some(cluster) = &status.cluster {
        let _ = writeln!(out, "  cluster  {}", super::cluster::line(cluster));
    }
    status.derived.iter().for_each(|derived| render_derived(&mut out, derived));
    out
}

/// What was made of samples, and of which files nothing could be made.
fn render_derived(out: &mut String, derived: &DerivedStatus) {
    let DerivedStatus { name, made, bytes, seconds, failed, failures, .. } = derived;
    let _ = write!(out, "  derived  {name}: {made} made, {}", human(*bytes));
    if *made > 0 {
        let _ = write!(out, ", {:.1} ms each", seconds * 1e3 / *made as f64);
    }
    let _ = writeln!(out, "; {failed} failed");
    for Failure { path, reason } in failures {
        let _ = writeln!(out, "           {path}: {reason}");
    }
}

/// The mode, the requests of the kernel, and how long names may be believed.
fn render_kernel(out: &mut String, status: &Status) {
    let _ = write!(out, "  mode     {}", status.mode);
    if status.mode == "push" {
        let _ = write!(out, ", {} files opened without a request", status.untracked_files);
    }
    let _ = writeln!(out, "; {}", status.consistency);
    let requests = status.requests.iter().filter(|(_, count)| **count > 0);
    let words: Vec<String> = requests.map(|(kind, count)| format!("{count} {kind}")).collect();
    let words = if words.is_empty() { "none".to_owned() } else { words.join(", ") };
    let _ = writeln!(out, "  requests {words}");
    let stuck = status.stuck_notifications;
    if stuck > 0 {
        let _ = writeln!(
            out,
            "           {stuck} notifications wait in the kernel, for readers perhaps"
        );
    }
}

/// How the source answers about names and attributes.
fn render_names(out: &mut String, times: &SourceStatus) {
    let count = |operation: &str| times.operations.get(operation).map_or(0, |found| found.count);
    let (lists, stats) = (count("list"), count("stat"));
    // A daemon of an earlier version tells no limits.
    if lists + stats > 0 && times.list_limit > 0 {
        let _ = writeln!(
            out,
            "  names    {lists} listings of the source, {stats} names asked for; up to {} and {} at \
             once",
            times.list_limit, times.stat_limit,
        );
    }
}

/// How the source answers reads, and what limits the fetches.
fn render_source(out: &mut String, status: &Status) {
    let times = &status.source_times;
    let Some(reads) = times.operations.get("read").filter(|reads| reads.count > 0) else { return };
    let ms = |us: u64| us as f64 / 1e3;
    let _ = writeln!(
        out,
        "  reads    {} of the source, {} under way; half within {:.1} ms, 99.9 % within {:.1} ms",
        reads.count,
        times.in_flight,
        ms(reads.p50_us),
        ms(reads.p999_us),
    );
    let _ = writeln!(
        out,
        "           up to {} ahead at once ({}/s), {} staged of a lead of {}; limited by {}",
        times.limit,
        human(times.rate),
        human(status.staged),
        human(times.lead_bytes),
        limited_by(status),
    );
}

/// What a store refuses, or does not answer.
fn render_failures(out: &mut String, status: &Status) {
    let Some(SourceFailures { count, last_s, key, reason }) = &status.source_failures else {
        return;
    };
    let requests = if *count == 1 { "request" } else { "requests" };
    let _ = writeln!(
        out,
        "           {count} {requests} failed, the last one {last_s} s ago: {key:?}: {}",
        reason.replace(char::is_control, " "),
    );
}

/// What keeps more from being fetched ahead.
pub(super) fn limited_by(status: &Status) -> &'static str {
    let times = &status.source_times;
    match () {
        () if times.is_paused => "prefetch.rate",
        () if times.in_flight * 10 >= times.limit * 9 => "the source: more would only queue there",
        () if status.staged * 10 >= status.window * 9 => "the window: readers are slower",
        () => "nothing",
    }
}

fn render_tiers(out: &mut String, status: &Status) {
    let Status { ram, disk, .. } = status;
    let _ = writeln!(
        out,
        "  ram      {} kept of {}, {} of {} staged ahead; policy {}",
        human(ram.kept),
        human(ram.budget),
        human(status.staged),
        human(status.window),
        status.policy,
    );
    render_reduced(out, ram.configured, ram.reduced.as_deref());
    let state = status.disk_state.as_deref();
    if let Some(disk) = disk {
        let _ = writeln!(
            out,
            "  disk     {} kept of {}, {} stored; {}",
            human(disk.kept),
            human(disk.budget),
            human(disk.stored),
            state.unwrap_or_default(),
        );
        render_reduced(out, disk.configured, disk.reduced.as_deref());
        if let Some(moved) = &status.disk_moved {
            let _ = writeln!(out, "           warning: {moved}");
        }
    } else if let Some(state) = state {
        let _ = writeln!(out, "  disk     {state}");
    }
}

/// Why the budget of a tier is less than configured, if it is.
fn render_reduced(out: &mut String, configured: u64, reduced: Option<&str>) {
    if let Some(reduced) = reduced {
        let configured = human(configured);
        let _ = writeln!(out, "           less than the {configured} configured: {reduced}");
    }
}

fn render_counters(out: &mut String, counters: &Counters, parts_bytes: u64) {
    let Counters { opens, parts, .. } = *counters;
    let share = |opened: u64| 100.0 * opened as f64 / opens.max(1) as f64;
    let _ = writeln!(
        out,
        "  opens    {opens}: {:.1} % ready, {:.1} % on the way, {:.1} % cold",
        share(counters.hits),
        share(counters.late),
        share(counters.cold),
    );
    if parts > 0 {
        let bytes = human(parts_bytes);
        let _ = writeln!(
            out,
            "  parts    {parts} reads of large files found nothing and were fetched alone; {bytes} \
             in RAM"
        );
    }
    let _ = writeln!(
        out,
        "  source   {} read, {} blocks ahead and {} on demand; {} from disk, {} from nodes of the cluster",
        human(counters.source_bytes),
        counters.prefetched,
        counters.demanded,
        human(counters.tier_bytes),
        human(counters.member_bytes),
    );
    let _ = writeln!(
        out,
        "  lost     {} blocks taken back by the kernel and missed, {} fetched again in time; {} \
         fetches failed",
        counters.lost, counters.restored, counters.failed,
    );
}

/// How long readers have waited, and why.
fn render_waits(out: &mut String, status: &Status) {
    let mut title = "waits";
    for (cause, waits) in status.waits.iter().filter(|(_, waits)| waits.count > 0) {
        let _ = writeln!(
            out,
            "  {title:<8} {cause}: {}, {} in all; {}",
            waits.count,
            time(waits.total_us),
            spread(waits),
        );
        title = "";
    }
    if status.waiting > 0 {
        let longest = time(status.waiting_longest_us);
        let _ = writeln!(out, "  {title:<8} {} wait now, the first for {longest}", status.waiting);
    }
}

/// How long reads of the cache disk and pushes to the kernel took.
fn render_moves(out: &mut String, status: &Status) {
    let mut title = "blocks";
    for (words, times) in [("from disk", status.disk_reads), ("pushed", status.pushes)] {
        if times.count > 0 {
            let _ = writeln!(out, "  {title:<8} {} {words}; {}", times.count, spread(&times));
            title = "";
        }
    }
}

fn spread(times: &Latencies) -> String {
    let [half, most, longest] = [times.p50_us, times.p99_us, times.max_us].map(time);
    format!("half within {half}, 99 % within {most}, the longest {longest}")
}

pub(super) fn time(us: u64) -> String {
    match us {
        1_000_000.. => format!("{:.1} s", us as f64 / 1e6),
        1_000.. => format!("{:.1} ms", us as f64 / 1e3),
        _ => format!("{us} us"),
    }
}

/// How far ahead of the readers RAM is, and whether the source keeps up with them, in words.
pub(super) fn lead(status: &Status) -> Option<String> {
    let lead = status.lead.as_ref()?;
    let ahead = match lead.seconds {
        Some(seconds) => format!("{seconds:.1} s, {} samples", lead.samples),
        None => format!("{} samples; the pace is not known", lead.samples),
    };
    Some(match keeps_up(lead, status.staged) {
        Some(words) => {
            let (need, gives) = (human(lead.need), human(status.source_times.rate));
            format!("{ahead}; readers need {need}/s, the source gives {gives}/s: {words}")
        }
        None => ahead,
    })
}

/// Whether the source keeps up with the readers, in words. `None` if nobody reads.
fn keeps_up(lead: &LeadStatus, staged: u64) -> Option<String> {
    let seconds = lead.seconds?;
    Some(match lead.growth {
        _ if lead.is_full => "all that may be staged is staged".into(),
        _ if lead.waits && seconds < 1.0 => "readers wait for it".into(),
        0.. => "it keeps up".into(),
        shrinking => {
            let left = staged as f64 / shrinking.unsigned_abs() as f64;
            format!("it does not keep up, and readers will wait in {left:.0} s")
        }
    })
}

fn render_mount(out: &mut String, Status { source, mountpoints, pid, .. }: &Status) {
    let _ = writeln!(out, "{source} at {} (pid {pid})", mountpoints.join(", "));
}

/// The words at the end of a run: where samples were found, and how long readers waited.
pub(super) fn summary(status: &Status) -> String {
    let mut out = String::new();
    render_mount(&mut out, status);
    render_counters(&mut out, &status.counters, status.parts_bytes);
    render_waits(&mut out, status);
    out
}

/// The part of the status that is about orders.
pub(super) fn orders_of(mut status: Value) -> Value {
    let kept = ["source", "mountpoints", "pid", "orders", "loaders", "journal"];
    if let Some(status) = status.as_object_mut() {
        status.retain(|key, _| kept.contains(&key.as_str()));
    }
    status
}

pub(super) fn orders_for_people(status: &Status) -> String {
    let mut out = String::new();
    render_mount(&mut out, status);
    render_orders(&mut out, status);
    out
}

fn render_orders(out: &mut String, Status { orders, loaders, journal, .. }: &Status) {
    if orders.is_empty() && loaders.is_empty() {
        let _ = writeln!(
            out,
            "  order    unknown: what is read is kept, and what is still unread fetched"
        );
    }
    orders.iter().for_each(|order| render_order(out, order));
    let others = loaders.iter().filter(|loader| !loader.reads_told);
    others.for_each(|loader| render_loader(out, loader));
    if let Some(journal) = journal {
        let _ = writeln!(out, "  journal  {journal}");
    }
}

fn progress(order: &StreamStatus) -> String {
    let state = if order.following {
        format!("{} ahead", order.ahead)
    } else {
        "DIVERGED: what is read is not what the order says; caching without it".into()
    };
    format!(
        "{} of {}, {state}; {} opens predicted, {} of them seen, {} not predicted",
        order.position, order.length, order.opens_predicted, order.opens_seen, order.opens_strayed,
    )
}

/// A loader whose order was not told.
fn render_loader(out: &mut String, loader: &LoaderStatus) {
    let LoaderStatus { program, process, belief, epoch, since_s, .. } = loader;
    let _ = writeln!(out, "  loader   {program} (pid {process}): {belief}");
    let state = if loader.followed { "followed" } else { "unknown" };
    let _ = write!(out, "           epoch {epoch}, {state} for {since_s} s");
    if let Some(order) = &loader.progress {
        let _ = write!(out, ", {}", progress(order));
    }
    if let (Some(opens), true) = (loader.known_after, loader.followed) {
        let _ = write!(out, "; known since open {opens} of the epoch");
    }
    if loader.search_cpu_s > 0.0 {
        let _ = write!(out, "; {:.1} s of processor time for searches", loader.search_cpu_s);
    }
    out.push('\n');
    if let Some(spec) = &loader.spec {
        let _ = writeln!(out, "           the same, told: {spec}");
    }
}

fn render_order(
    out: &mut String,
    OrderStatus { stream, refused, fix, progress, .. }: &OrderStatus,
) {
    if !progress.is_empty() {
        let (words, epoch) = (&progress.order, progress.epoch);
        let at = self::progress(progress);
        let _ = writeln!(out, "  order    {stream}: {words}\n           epoch {epoch}, {at}");
    }
    if let Some(fix) = fix {
        let _ = writeln!(out, "           {fix}");
    }
    if let Some(refused) = refused {
        let _ = writeln!(out, "  order    {stream}: REFUSED: {refused}");
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_status_of_another_version_is_understood() {
        let order = json!({ "stream": "a", "refused": "no such file", "new": 1 });
        let loader = json!({ "program": "python", "progress": { "length": 5 } });
        let status =
            json!({ "pid": 7, "new": {}, "orders": [order], "loaders": [loader], "hits": 1 });
        let status: Status = understood(status).unwrap();
        let text = orders_for_people(&status);
        assert!(text.contains("  order    a: REFUSED: no such file\n  loader   python (pid 0)"));
        assert!(text.contains("0 of 5") && !text.contains("order    a: \n"), "{text}");
        assert!(render(&status).contains("100.0 % ready"));
    }

    #[test]
    fn waits_are_shown_by_cause_if_there_were_any() {
        let cold = json!({ "count": 2, "total_us": 2_400_000, "p50_us": 900, "max_us": 1_200_000 });
        let waits = json!({ "cold": cold, "late": {} });
        let status = json!({ "waits": waits, "waiting": 1, "waiting_longest_us": 34_000_000 });
        let text = render(&understood(status).unwrap());
        let expected = "  waits    cold: 2, 2.4 s in all; half within 900 us, 99 % within 0 us, the \
                        longest 1.2 s\n           1 wait now, the first for 34.0 s\n";
        assert!(text.contains(expected), "{text}");
        assert!(!text.contains("lead"), "{text}");
    }

    #[test]
    fn the_source_is_said_to_keep_up_or_not() {
        let lead = |seconds, growth, waits, is_full| {
            let lead = LeadStatus { seconds, growth, waits, is_full, ..LeadStatus::default() };
            keeps_up(&lead, 5_000)
        };
        assert_eq!(lead(None, 0, true, false), None);
        assert_eq!(lead(Some(3.0), -9, false, true).unwrap(), "all that may be staged is staged");
        assert_eq!(lead(Some(0.1), -9, true, false).unwrap(), "readers wait for it");
        assert_eq!(lead(Some(9.0), 9, true, false).unwrap(), "it keeps up");
        let left = lead(Some(9.0), -500, false, false).unwrap();
        assert_eq!(left, "it does not keep up, and readers will wait in 10 s");
    }

    #[test]
    fn what_limits_the_fetches_is_told() {
        let limited = |staged, in_flight, is_paused| {
            let times = SourceStatus { limit: 10, in_flight, is_paused, ..SourceStatus::default() };
            limited_by(&Status { source_times: times, staged, window: 100, ..Status::default() })
        };
        assert_eq!(limited(95, 10, true), "prefetch.rate");
        assert_eq!(limited(95, 9, false), "the source: more would only queue there");
        assert_eq!(limited(95, 8, false), "the window: readers are slower");
        assert_eq!(limited(50, 8, false), "nothing");
    }

    #[test]
    fn what_a_store_refuses_is_shown() {
        let shown = |failures| render(&Status { source_failures: failures, ..Status::default() });
        assert!(!shown(None).contains("failed, the last"));
        let (key, reason) = ("id 7".to_owned(), "unconfigured table data_train".to_owned());
        let text = shown(Some(SourceFailures { count: 3, last_s: 12, key, reason }));
        let expected = "           3 requests failed, the last one 12 s ago: \"id 7\": unconfigured table data_train\n";
        assert!(text.contains(expected), "{text}");
    }
}
