//! The status that an engine reports, and that commands read. A daemon and a command of different versions
//! understand each other: a field that is not known is ignored, one that is missing has its default, and what
//! has a name is text.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::flow::LeadStatus;
use super::{Engine, STORE_TIER};
use crate::cache::{Cause, Latencies, Operation, SourceTimes};
use crate::fuse::KNOWN_BYTES;
use crate::learning::LoaderStatus;
use crate::limiter::MetadataLimits;
use crate::peers::ClusterStatus;
use crate::plan::{Counters, RAM, StreamStatus};
use crate::source::{DerivedStatus, SourceFailures};

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct RamStatus {
    /// Bytes it may hold at this moment.
    pub budget: u64,
    /// Bytes it may hold if memory allows.
    pub configured: u64,
    /// Why the budget is less than that, if it is.
    pub reduced: Option<String>,
    /// Bytes that stay in it.
    pub kept: u64,
    /// Bytes in the daemon's memory, on their way to readers, the page cache and the cache disk.
    pub moving: u64,
    /// The most that `moving` may be.
    pub moving_budget: u64,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct TierStatus {
    pub budget: u64,
    /// Bytes it may hold if others leave the space.
    pub configured: u64,
    pub reduced: Option<String>,
    /// Bytes that are to stay in it.
    pub kept: u64,
    /// Bytes that lie there, in whole pages. Bytes that are to stay are written in the background.
    pub stored: u64,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct OrderStatus {
    pub stream: String,
    /// The order as it was given.
    pub spec: Option<String>,
    /// Why the last order given was refused.
    pub refused: Option<String>,
    /// The right order, in words, if the reader does not read this one and the right one is known.
    pub fix: Option<String>,
    /// Empty if no order is followed.
    #[serde(flatten, skip_serializing_if = "StreamStatus::is_empty")]
    pub progress: StreamStatus,
}

/// How the source answers.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct SourceStatus {
    /// Reads under way.
    pub in_flight: u32,
    /// Reads under way beyond which nothing is fetched ahead.
    pub limit: u32,
    /// Directories that are listed at once, and calls for attributes under way, beyond which the catalog asks for no
    /// more.
    pub list_limit: u32,
    pub stat_limit: u32,
    /// Whether `prefetch.rate` lets nothing be fetched ahead at this moment.
    pub is_paused: bool,
    /// Bytes a second that the source has given of late, when it had enough to do.
    pub rate: u64,
    /// Bytes staged ahead with which a read as slow as one in a thousand is in time.
    pub lead_bytes: u64,
    /// Reads for which the source was asked a second time, because its answer was late.
    pub asked_again: u64,
    /// How long its answers took, by what it was asked for.
    pub operations: BTreeMap<String, Latencies>,
}

impl SourceStatus {
    fn of(times: &SourceTimes) -> Self {
        let (limits, rate) = times.limits();
        let MetadataLimits { lists, stats } = times.metadata_limits();
        let operation =
            |operation: Operation| (operation.name().to_owned(), times.latencies(operation));
        SourceStatus {
            in_flight: times.in_flight(),
            limit: limits.fetches,
            list_limit: lists,
            stat_limit: stats,
            is_paused: times.is_paused(),
            rate: rate as u64,
            lead_bytes: limits.lead_bytes,
            asked_again: times.asked_again(),
            operations: Operation::ALL.into_iter().map(operation).collect(),
        }
    }
}

/// The state of an engine. Totals count since the mount. `requests` and `reads` are those of the kernel.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Status {
    pub version: String,
    pub pid: u32,
    pub source: String,
    pub mountpoints: Vec<String>,
    pub uptime_s: u64,
    pub mode: String,
    pub consistency: String,
    pub policy: String,
    /// Where the catalog comes from: a scan (`scanning`, `scanned`), or an earlier mount (`checking`,
    /// `checked`).
    pub catalog: String,
    pub files: u64,
    pub bytes: u64,
    pub ram: RamStatus,
    pub disk: Option<TierStatus>,
    /// State of the local store: `normal`, or what is wrong.
    pub disk_state: Option<String>,
    /// A warning if the cache directory was on another disk before.
    pub disk_moved: Option<String>,
    /// Bytes staged in RAM for coming reads, and the most that may be staged.
    pub staged: u64,
    pub window: u64,
    pub parts_bytes: u64,
    pub fetching: u32,
    pub source_times: SourceStatus,
    /// How long the cache disk took for a block, and the kernel to take one into its page cache.
    pub disk_reads: Latencies,
    pub pushes: Latencies,
    /// How long readers have waited for answers, by cause.
    pub waits: BTreeMap<String, Latencies>,
    /// Requests that wait at this moment, and microseconds that the first of them has waited.
    pub waiting: u64,
    pub waiting_longest_us: u64,
    /// How far ahead of the readers RAM is; `None` if no order is followed.
    pub lead: Option<LeadStatus>,
    /// Nodes that the kernel knows, and what they cost in bytes.
    pub known_nodes: u64,
    pub known_bytes: u64,
    /// Files that the kernel opens without a request.
    #[serde(rename = "trusted_files")]
    pub untracked_files: u64,
    pub orders: Vec<OrderStatus>,
    /// Loaders whose orders were not told.
    pub loaders: Vec<LoaderStatus>,
    /// The journal of learned orders at the start, in words; `None` if there was none.
    pub journal: Option<String>,
    /// Counts of what the planner decided and saw.
    #[serde(flatten)]
    pub counters: Counters,
    pub requests: BTreeMap<String, u64>,
    pub reads: u64,
    /// Reads that were answered from the bytes of a push under way.
    pub reads_from_push: u64,
    pub push_errors: u64,
    /// Notifications that the kernel has made wait for longer than a second.
    pub stuck_notifications: u64,
    pub read_errors: u64,
    /// Damaged records found in the local store.
    pub store_errors: u64,
    /// Files found changed at the source when they were read.
    pub changed_files: u64,
    /// Settings that belady chose by itself at the mount, in words.
    pub decisions: Vec<String>,
    /// This node in its cluster; `None` if there is none.
    pub cluster: Option<ClusterStatus>,
    /// What was made of samples since the mount.
    pub derived: Vec<DerivedStatus>,
    /// Requests to a store that were not answered as they should; `None` if all were, or if the source is a directory.
    pub source_failures: Option<SourceFailures>,
}

impl Status {
    pub(super) fn of(engine: &Engine) -> Status {
        let Engine { core, serving, .. } = engine;
        let published = engine.published.lock().clone();
        let (known, traffic) = (serving.known_nodes(), core.cache.traffic());
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let (files, bytes) = core.catalog.totals();
        let kept = |tier: usize| published.accounts.kept.get(tier).copied().unwrap_or_default();
        let progress = |stream| published.progress(stream).cloned();
        let wait = |cause: Cause| (cause.name().to_owned(), core.cache.waits().latencies(cause));
        let (waiting, longest) = core.dataset.waiting_now();
        let learning = engine.wings.learning.as_ref();
        let fault = engine.store_note.fault_state();
        Status {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            source: core.source_path.display().to_string(),
            mountpoints: serving.points().iter().map(|path| path.display().to_string()).collect(),
            uptime_s: engine.started.elapsed().as_secs(),
            mode: engine.mode().to_owned(),
            consistency: engine.consistency(),
            policy: name(published.policy),
            catalog: name(core.catalog.state()),
            files,
            bytes,
            ram: engine.budgets.ram_status(kept(RAM)),
            disk: engine.budgets.disk_status(kept(STORE_TIER)),
            disk_state: core.cache.disk_state().or(fault).map(name),
            disk_moved: engine.store_note.moved.clone(),
            staged: published.accounts.staged,
            window: published.accounts.window,
            parts_bytes: published.accounts.parts,
            fetching: published.accounts.fetching,
            source_times: SourceStatus::of(&engine.times),
            disk_reads: traffic.disk_reads.latencies(),
            pushes: traffic.pushes.latencies(),
            waits: Cause::ALL.into_iter().map(wait).collect(),
            waiting: waiting as u64,
            waiting_longest_us: longest.as_micros() as u64,
            lead: engine.flow.lock().lead(&published, Instant::now()),
            known_nodes: known,
            known_bytes: known * KNOWN_BYTES,
            untracked_files: published.untracked,
            orders: engine.orders.statuses(&published),
            loaders: learning.map_or_else(Vec::new, |learning| learning.loaders(progress)),
            journal: learning.and_then(|learning| learning.journal()),
            counters: published.counters,
            requests: serving
                .requests()
                .into_iter()
                .map(|(kind, n)| (kind.to_owned(), n))
                .collect(),
            reads: count(&traffic.reads),
            reads_from_push: count(&traffic.reads_from_push),
            push_errors: count(&traffic.push_errors),
            stuck_notifications: serving.stuck_notifications() as u64,
            read_errors: count(&traffic.read_errors),
            store_errors: count(&traffic.store_errors),
            changed_files: count(&traffic.changed),
            decisions: core.settings.decisions.clone(),
            cluster: engine.shards.get().map(|shards| shards.status()),
            derived: core.cache.source().derived(),
            source_failures: core.cache.source().failures(),
        }
    }
}

/// The name of a value, as JSON has it.
fn name(value: impl Serialize) -> String {
    serde_json::to_value(value).ok().as_ref().and_then(Value::as_str).unwrap_or_default().to_owned()
}
