//! The control files of an engine: what they show, and what writing to them does.

use std::collections::BTreeMap;
use std::fmt::{Display, Write};
use std::sync::{Arc, Weak};

use super::orders::Orders;
use super::{Engine, SourceStatus, Status};
use crate::cache::Latencies;
use crate::fuse::{ControlFile, Render};
use crate::learning::LoaderStatus;
use crate::plan::StreamStatus;

/// Name of the stream that follows an order written to the control file.
const STREAM: &str = "default";

/// The most bytes of a sampler's spec. A longer text is a list.
const SPEC_MAX: usize = 4096;

pub(super) fn control_files(engine: &Arc<Engine>) -> Vec<ControlFile> {
    let render = |what: fn(&Engine) -> Vec<u8>| -> Render {
        let engine: Weak<Engine> = Arc::downgrade(engine);
        Box::new(move || engine.upgrade().map(|engine| what(&engine)).unwrap_or_default())
    };
    let engine = Arc::downgrade(engine);
    let accept = move |written: &[u8]| {
        let engine = engine.upgrade().ok_or(())?;
        let taken = take_order(&engine.orders, written);
        taken.map(|_| ()).map_err(|error| tracing::warn!(%error, "an order was refused"))
    };
    let read_only = |name, what| ControlFile { name, render: render(what), accept: None };
    vec![
        read_only("status.json", |engine| {
            let mut text = serde_json::to_vec_pretty(&engine.status()).unwrap_or_default();
            text.push(b'\n');
            text
        }),
        read_only("stats", |engine| prometheus(&engine.status()).into_bytes()),
        read_only("config", |engine| engine.rendered.clone().into_bytes()),
        ControlFile {
            name: "order",
            render: render(|engine| orders(engine).into_bytes()),
            accept: Some(Box::new(accept)),
        },
    ]
}

/// The orders as they were given, one a line.
fn orders(engine: &Engine) -> String {
    let orders = engine.status().orders.into_iter();
    orders.filter_map(|order| Some(format!("{}={}\n", order.stream, order.spec?))).collect()
}

/// Takes what was written as a sampler's spec, or else as the text of an order file.
fn take_order(orders: &Orders, written: &[u8]) -> crate::error::Result<String> {
    let line = std::str::from_utf8(written).ok().map(str::trim);
    match line.filter(|line| written.len() <= SPEC_MAX && !line.contains('\n')) {
        Some(line) if crate::order::OrderSpec::is_spec(line) => orders.set(STREAM, line),
        _ => orders.set_list(STREAM, written),
    }
}

/// The status in Prometheus' text format. Totals are raw counts, from which the reader makes rates.
fn prometheus(status: &Status) -> String {
    let mut out = String::new();
    let mut metric = |name: &str, kind: &str, help: &str, rows: &[(&str, u64)]| {
        put(&mut out, (name, kind, help), rows);
    };
    let disk = status.disk.as_ref();
    let opens = [
        ("{found=\"ready\"}", status.counters.hits),
        ("{found=\"on_the_way\"}", status.counters.late),
        ("{found=\"cold\"}", status.counters.cold),
    ];
    metric("opens_total", "counter", "Opens of files, by where their first block was.", &opens);
    let fetched = [
        ("{from=\"source\"}", status.counters.source_bytes),
        ("{from=\"disk\"}", status.counters.tier_bytes),
        ("{from=\"cluster\"}", status.counters.member_bytes),
    ];
    metric("fetched_bytes_total", "counter", "Bytes brought into RAM.", &fetched);
    let fetches = [
        ("{urgency=\"prefetch\"}", status.counters.prefetched),
        ("{urgency=\"demand\"}", status.counters.demanded),
    ];
    metric("fetches_total", "counter", "Blocks fetched.", &fetches);
    let one = |value| [("", value)];
    metric(
        "lost_total",
        "counter",
        "Blocks that the kernel took back.",
        &one(status.counters.lost),
    );
    metric(
        "restored_total",
        "counter",
        "Blocks that the kernel took back and that were there again before their read.",
        &one(status.counters.restored),
    );
    let help = "Bytes fetched ahead from the source and dropped before they were read.";
    metric("wasted_bytes_total", "counter", help, &one(status.counters.wasted_bytes));
    metric("failed_total", "counter", "Fetches that failed.", &one(status.counters.failed));
    metric("dropped_total", "counter", "Blocks dropped from RAM.", &one(status.counters.dropped));
    metric("placed_total", "counter", "Blocks written to disk.", &one(status.counters.placed));
    metric("reads_total", "counter", "Reads that the kernel sent.", &one(status.reads));
    metric("read_errors_total", "counter", "Reads that failed.", &one(status.read_errors));
    metric("store_errors_total", "counter", "Records found damaged.", &one(status.store_errors));
    metric("changed_files_total", "counter", "Files found changed.", &one(status.changed_files));
    let kept = [
        ("{tier=\"ram\"}", status.ram.kept),
        ("{tier=\"disk\"}", disk.map_or(0, |disk| disk.kept)),
    ];
    metric("kept_bytes", "gauge", "Bytes that stay in a tier.", &kept);
    if let Some(cluster) = &status.cluster {
        let traffic = &cluster.traffic;
        let (members, known) = cluster.counts();
        let counts = [("{state=\"member\"}", members as u64), ("{state=\"known\"}", known as u64)];
        match cluster.nodes {
            None => metric("cluster_nodes", "gauge", "Nodes of the cluster.", &counts),
            Some(nodes) => {
                metric("cluster_servers", "gauge", "Existing servers that nodes use.", &counts);
                let nodes = [("{state=\"member\"}", nodes.count)];
                metric("cluster_nodes", "gauge", "Nodes of the cluster.", &nodes);
            }
        }
        let asked = [
            ("{found=\"here\"}", traffic.found_here),
            ("{found=\"at_another\"}", traffic.found),
            ("{found=\"missing\"}", traffic.missing),
            ("{found=\"leased\"}", traffic.waited),
            ("{found=\"silent\"}", traffic.silent),
            ("{found=\"damaged\"}", traffic.damaged),
        ];
        metric("cluster_asked_total", "counter", "Questions for blocks, by what came.", &asked);
        let help = "Blocks for which the source was asked as well, since a node was late.";
        metric("cluster_passed_over_total", "counter", help, &one(traffic.passed_over));
        let given = [("{taken=\"yes\"}", traffic.given), ("{taken=\"no\"}", traffic.refused)];
        metric("cluster_given_total", "counter", "Blocks given to nodes.", &given);
        let moved = one(traffic.moved);
        let from_disks = one(traffic.from_disks);
        let help = "Questions to nodes for a block on their disks.";
        metric("cluster_from_disks_total", "counter", help, &from_disks);
        metric(
            "cluster_moved_total",
            "counter",
            "Blocks that left a shard for their next reader.",
            &moved,
        );
        metric("cluster_answer_p99_us", "gauge", "Time of an answer.", &one(traffic.p99_us));
    }
    let budget = [
        ("{tier=\"ram\"}", status.ram.budget),
        ("{tier=\"disk\"}", disk.map_or(0, |disk| disk.budget)),
    ];
    metric("budget_bytes", "gauge", "Bytes that a tier may hold.", &budget);
    let configured = one(status.ram.configured);
    metric("ram_configured_bytes", "gauge", "The RAM budget where memory allows.", &configured);
    metric("staged_bytes", "gauge", "Bytes staged for coming reads.", &one(status.staged));
    metric("fetching", "gauge", "Fetches under way.", &one(u64::from(status.fetching)));
    metric("known_nodes", "gauge", "Nodes that the kernel knows.", &one(status.known_nodes));
    metric("files", "gauge", "Files of the dataset.", &one(status.files));
    metric("uptime_seconds", "gauge", "Seconds since the mount.", &one(status.uptime_s));
    put_source_times(&mut out, &status.source_times);
    put_waits(&mut out, status);
    put_orders(&mut out, status);
    out
}

/// Writes a metric: its name, kind and help, and its value for each set of labels.
fn put(out: &mut String, what: (&str, &str, &str), rows: &[(impl Display, impl Display)]) {
    let (name, kind, help) = what;
    let _ = writeln!(out, "# HELP belady_{name} {help}\n# TYPE belady_{name} {kind}");
    for (labels, value) in rows {
        let _ = writeln!(out, "belady_{name}{labels} {value}");
    }
}

fn put_source_times(out: &mut String, times: &SourceStatus) {
    let help = "Reads of the source under way.";
    put(out, ("source_reads_in_flight", "gauge", help), &[("", times.in_flight)]);
    let help = "Reads of the source under way beyond which nothing is fetched ahead.";
    put(out, ("source_reads_limit", "gauge", help), &[("", times.limit)]);
    let help = "Calls for names and attributes under way beyond which the catalog makes no more.";
    let limits =
        [("{operation=\"list\"}", times.list_limit), ("{operation=\"stat\"}", times.stat_limit)];
    put(out, ("source_metadata_limit", "gauge", help), &limits);
    let help = "Bytes a second that the source has given of late, when it had enough to do.";
    put(out, ("source_bytes_per_second", "gauge", help), &[("", times.rate)]);
    let help = "Seconds that requests to the source took.";
    put_latencies(out, ("source_request_seconds", help), "operation", &times.operations);
}

/// Writes times as a summary, with a label, and the longest of each.
fn put_latencies(
    out: &mut String,
    (name, help): (&str, &str),
    label: &str,
    all: &BTreeMap<String, Latencies>,
) {
    let seconds = |us: u64| us as f64 / 1e6;
    let _ = writeln!(out, "# HELP belady_{name} {help}\n# TYPE belady_{name} summary");
    for (value, times) in all {
        let quantiles = [
            ("0.5", times.p50_us),
            ("0.9", times.p90_us),
            ("0.99", times.p99_us),
            ("0.999", times.p999_us),
            ("1", times.max_us),
        ];
        let labels = format!("{label}=\"{value}\"");
        for (quantile, us) in quantiles {
            let quantile = format!("quantile=\"{quantile}\"");
            let _ = writeln!(out, "belady_{name}{{{labels},{quantile}}} {}", seconds(us));
        }
        let _ = writeln!(out, "belady_{name}_sum{{{labels}}} {}", seconds(times.total_us));
        let _ = writeln!(out, "belady_{name}_count{{{labels}}} {}", times.count);
    }
}

/// Writes how long readers, the cache disk and the kernel have taken, and how far ahead of the readers RAM is.
fn put_waits(out: &mut String, status: &Status) {
    let help = "Seconds that readers have waited for answers, by cause.";
    put_latencies(out, ("reader_wait_seconds", help), "cause", &status.waits);
    let help = "Requests of readers that wait at this moment.";
    put(out, ("readers_waiting", "gauge", help), &[("", status.waiting)]);
    let moves = [("disk_read", status.disk_reads), ("push", status.pushes)];
    let moves = moves.map(|(name, times)| (name.to_owned(), times)).into();
    let help =
        "Seconds that reading a block from the cache disk, and pushing one to the kernel, took.";
    put_latencies(out, ("block_move_seconds", help), "move", &moves);
    let Some(lead) = &status.lead else { return };
    let help = "Reads to come that are staged, of all orders that are followed.";
    put(out, ("lead_samples", "gauge", help), &[("", lead.samples)]);
    let seconds = lead.seconds.map(|seconds| ("", seconds));
    let help = "Seconds until the first reader would reach what is not staged.";
    put(out, ("lead_seconds", "gauge", help), seconds.as_slice());
    let help = "Bytes a second of the source that readers of orders use.";
    put(out, ("needed_bytes_per_second", "gauge", help), &[("", lead.need)]);
}

fn put_orders(out: &mut String, status: &Status) {
    let of_told_orders = status.orders.iter().map(|order| {
        let labels = format!("{{stream=\"{}\"}}", order.stream.escape_default());
        (labels, (!order.progress.is_empty()).then_some(&order.progress))
    });
    let label = |loader: &LoaderStatus| {
        format!("{{loader=\"{}\",process=\"{}\"}}", loader.loader, loader.process)
    };
    let of_loaders = status.loaders.iter();
    let of_loaders = of_loaders.map(|loader| (label(loader), loader.progress.as_ref()));
    let all: Vec<(String, Option<&StreamStatus>)> = of_told_orders.chain(of_loaders).collect();
    let follows = |progress: &StreamStatus| u64::from(progress.following);
    let followed = all.iter().map(|(labels, progress)| (labels, progress.map_or(0, follows)));
    let help = "Whether the reader is followed in an order; 0 also where it has left it.";
    put(out, ("order_followed", "gauge", help), &followed.collect::<Vec<_>>());
    let mut metric = |name, kind, help, value: fn(&StreamStatus) -> u64| {
        let row = |(labels, progress): &(String, Option<&StreamStatus>)| {
            Some((labels.clone(), value((*progress)?)))
        };
        put(out, (name, kind, help), &all.iter().filter_map(row).collect::<Vec<_>>());
    };
    let help = "Number of the reader's epoch in the order that is followed.";
    metric("order_epoch", "gauge", help, |progress| progress.epoch.into());
    let help = "Lowest position of the epoch that has not been read.";
    metric("order_position", "gauge", help, |progress| progress.position.into());
    let help = "Positions of the epoch.";
    metric("order_length", "gauge", help, |progress| progress.length.into());
    let help = "Reads to come that are staged.";
    metric("order_ahead", "gauge", help, |progress| progress.ahead);
    let help = "Opens that were where the order has them.";
    metric("order_opens_predicted_total", "counter", help, |progress| progress.opens_predicted);
    let help = "Opens that were where the order has them and were seen.";
    metric("order_opens_seen_total", "counter", help, |progress| progress.opens_seen);
    let help = "Opens of the order's samples that were not.";
    metric("order_opens_strayed", "gauge", help, |progress| progress.opens_strayed);
    let mut metric = |name, kind, help, value: fn(&LoaderStatus) -> f64| {
        let row = |loader: &LoaderStatus| (label(loader), value(loader));
        put(out, (name, kind, help), &status.loaders.iter().map(row).collect::<Vec<_>>());
    };
    let help = "Bits of evidence for the order that was found out; 0 where none is believed.";
    metric("learn_evidence_bits", "gauge", help, |loader| loader.bits);
    let help = "Bits of evidence that are asked for.";
    metric("learn_evidence_needed_bits", "gauge", help, |loader| loader.needed);
    let help = "How often an order that was found out had to be withdrawn: another one was read.";
    metric("learn_diverged_total", "counter", help, |loader| loader.diverged.into());
    let help = "Processor time that searches for seeds have taken.";
    metric("learn_search_seconds_total", "counter", help, |loader| loader.search_cpu_s);
}
