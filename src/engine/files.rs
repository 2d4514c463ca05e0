//! The control files of an engine: what is in them, and what writing to them does.

use std::fmt::Write;
use std::sync::{Arc, Weak};

use super::{Engine, Status};
use crate::fuse::{ControlFile, Render};

/// Name of the stream that an order written to the control file is for.
const STREAM: &str = "default";

/// Bytes of an order that is a sampler's spec and not a list.
const SPEC_MAX: usize = 4096;

impl Engine {
    /// The files: `status.json`, `stats`, `config` and `order`.
    pub(super) fn control_files(self: &Arc<Self>) -> Vec<ControlFile> {
        let render = |what: fn(&Engine) -> Vec<u8>| -> Render {
            let engine: Weak<Engine> = Arc::downgrade(self);
            Box::new(move || engine.upgrade().map(|engine| what(&engine)).unwrap_or_default())
        };
        let engine = Arc::downgrade(self);
        let accept = move |written: &[u8]| {
            let engine = engine.upgrade().ok_or(())?;
            let taken = engine.take_order(written);
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
                render: render(|engine| engine.orders().into_bytes()),
                accept: Some(Box::new(accept)),
            },
        ]
    }

    /// The orders as they were given, one a line.
    fn orders(&self) -> String {
        let orders = self.status().orders.into_iter();
        orders.filter_map(|order| Some(format!("{}={}\n", order.stream, order.spec?))).collect()
    }

    /// Takes a sampler's spec, or else the text of an order file.
    fn take_order(&self, written: &[u8]) -> crate::error::Result<String> {
        let line = std::str::from_utf8(written).ok().map(str::trim);
        match line.filter(|line| written.len() <= SPEC_MAX && !line.contains('\n')) {
            Some(line) if crate::order::OrderSpec::is_named(line) => self.set_order(STREAM, line),
            _ => self.set_order_list(STREAM, written),
        }
    }
}

/// The status in Prometheus' text format. Totals are raw, for the reader to make rates of.
fn prometheus(status: &Status) -> String {
    let mut out = String::new();
    let mut metric = |name: &str, kind: &str, help: &str, rows: &[(&str, u64)]| {
        let _ = writeln!(out, "# HELP belady_{name} {help}\n# TYPE belady_{name} {kind}");
        for (labels, value) in rows {
            let _ = writeln!(out, "belady_{name}{labels} {value}");
        }
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
    out
}
