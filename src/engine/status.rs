//! What an engine tells of itself.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use serde::Serialize;

use super::Engine;
use crate::catalog::CatalogState;
use crate::config::Bytes;
use crate::fuse::KNOWN_BYTES;
use crate::ids::StreamId;
use crate::learning::{Learning, LoaderStatus, StreamInfo};
use crate::plan::{Counters, PolicyKind, Published, RAM, StreamStatus};

/// The RAM tier.
#[derive(Clone, Debug, Serialize)]
pub struct RamStatus {
    /// Bytes it may hold at this moment.
    pub budget: u64,
    /// Bytes it may hold where memory allows.
    pub configured: u64,
    /// Why the budget is less than that; none where it is not.
    pub reduced: Option<String>,
    /// Bytes that stay in it.
    pub kept: u64,
    /// Bytes in the memory of the daemon, on their way to readers, the page cache and the cache disk.
    pub moving: u64,
    /// Bytes that may be.
    pub moving_budget: u64,
}

/// A tier below RAM.
#[derive(Clone, Debug, Serialize)]
pub struct TierStatus {
    /// Bytes it may hold at this moment.
    pub budget: u64,
    /// Bytes it may hold where others leave the space.
    pub configured: u64,
    /// Why the budget is less than that; none where it is not.
    pub reduced: Option<String>,
    /// Bytes that are to stay in it.
    pub kept: u64,
    /// Bytes that lie there, in whole pages: what is to stay is written in the background.
    pub stored: u64,
}

/// One stream and its order.
#[derive(Clone, Debug, Serialize)]
pub struct OrderStatus {
    /// The stream's name.
    pub stream: String,
    /// The order as it was given.
    pub spec: Option<String>,
    /// Why the last order given was refused.
    pub refused: Option<String>,
    /// What would be right, in words, where the order is not what is read and that is known.
    pub fix: Option<String>,
    /// Where the reader stands.
    #[serde(flatten)]
    pub progress: Option<StreamStatus>,
}

/// The state of an engine. Totals count since the mount.
#[derive(Clone, Debug, Serialize)]
pub struct Status {
    /// Version of belady.
    pub version: &'static str,
    /// The daemon's process.
    pub pid: u32,
    /// The directory served.
    pub source: String,
    /// Where it is mounted.
    pub mountpoints: Vec<String>,
    /// Seconds since the mount.
    pub uptime_s: u64,
    /// How samples reach their readers.
    pub mode: &'static str,
    /// How the truth of names and versions is kept.
    pub consistency: String,
    /// The policy in force.
    pub policy: PolicyKind,
    /// Where the catalog comes from: a scan (`scanning`, `scanned`), or an earlier mount (`checking`,
    /// `checked`).
    pub catalog: CatalogState,
    /// Regular files.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    /// The page cache.
    pub ram: RamStatus,
    /// The local store.
    pub disk: Option<TierStatus>,
    /// State of the local store: `normal`, or what is wrong.
    pub disk_state: Option<String>,
    /// What is wrong if the cache directory was on another disk before.
    pub disk_moved: Option<String>,
    /// Bytes staged in RAM for coming reads, and the most that may be.
    pub staged: u64,
    /// See `staged`.
    pub window: u64,
    /// Bytes in RAM of files that are read in parts.
    pub parts_bytes: u64,
    /// Fetches under way.
    pub fetching: u32,
    /// Nodes that the kernel knows, and what they cost in bytes.
    pub known_nodes: u64,
    /// See `known_nodes`.
    pub known_bytes: u64,
    /// Files that are opened without a request.
    pub trusted_files: u64,
    /// Streams and their orders.
    pub orders: Vec<OrderStatus>,
    /// Loaders of whose orders nobody told.
    pub loaders: Vec<LoaderStatus>,
    /// What was found in the journal of what earlier mounts learnt; none where there was none.
    pub journal: Option<String>,
    /// What was decided and seen.
    #[serde(flatten)]
    pub counters: Counters,
    /// Requests that the kernel sent, by kind.
    pub requests: BTreeMap<&'static str, u64>,
    /// Reads that the kernel sent.
    pub reads: u64,
    /// Of these, reads answered from the bytes of a push under way.
    pub reads_from_push: u64,
    /// Pushes that the kernel refused.
    pub push_errors: u64,
    /// Notifications that the kernel makes wait at this moment, for longer than a second.
    pub stuck_notifications: u64,
    /// Reads that ended in an error.
    pub read_errors: u64,
    /// Records of the local store found damaged.
    pub store_errors: u64,
    /// Files found changed at the source when they were read.
    pub changed_files: u64,
    /// What belady chose by itself at mount.
    pub decisions: Vec<String>,
}

impl Engine {
    /// What the engine tells of itself at this moment.
    pub fn status(&self) -> Status {
        let published = self.published.lock().clone();
        let budget = self.budget.lock().clone();
        // All look at the connections themselves.
        let (known, mode, points) = (self.known_nodes(), self.mode(), self.points());
        let stuck_notifications = self.stuck_notifications() as u64;
        let connections = self.connections.lock();
        let traffic = self.cache.traffic();
        let mut requests = BTreeMap::new();
        for (kind, count) in connections.iter().flat_map(|c| c.requests().by_kind()) {
            *requests.entry(kind).or_default() += count;
        }
        let (files, bytes) = self.catalog.totals();
        let kept = |tier: usize| published.accounts.kept.get(tier).copied().unwrap_or_default();
        Status {
            version: env!("CARGO_PKG_VERSION"),
            pid: std::process::id(),
            source: self.source_path.display().to_string(),
            mountpoints: points.iter().map(|path| path.display().to_string()).collect(),
            uptime_s: self.started.elapsed().as_secs(),
            mode,
            consistency: self.consistency(),
            policy: published.policy,
            catalog: self.catalog.state(),
            files,
            bytes,
            ram: RamStatus {
                budget: budget.present(),
                configured: budget.configured(),
                reduced: budget.reduced().map(str::to_owned),
                kept: kept(RAM),
                moving: self.cache.memory().used() as u64,
                moving_budget: self.cache.memory().capacity() as u64,
            },
            disk: self.disk_status(kept(super::STORE_TIER)),
            disk_state: self.cache.disk_state().or(self.disk_fault()).map(str::to_owned),
            disk_moved: self.disk_moved.clone(),
            staged: published.accounts.staged,
            window: published.accounts.window,
            parts_bytes: published.accounts.parts,
            fetching: published.accounts.fetching,
            known_nodes: known,
            known_bytes: known * KNOWN_BYTES,
            trusted_files: published.trusted,
            orders: self.order_statuses(&published),
            loaders: self.loaders(&published),
            journal: self.learning.as_ref().and_then(Learning::journal),
            counters: published.counters,
            requests,
            reads: traffic.reads.load(Ordering::Relaxed),
            reads_from_push: traffic.reads_from_push.load(Ordering::Relaxed),
            push_errors: traffic.push_errors.load(Ordering::Relaxed),
            stuck_notifications,
            read_errors: traffic.read_errors.load(Ordering::Relaxed),
            store_errors: traffic.store_errors.load(Ordering::Relaxed),
            changed_files: traffic.changed.load(Ordering::Relaxed),
            decisions: self.settings.decisions.clone(),
        }
    }

    /// The streams that are told their orders.
    fn order_statuses(&self, published: &Published) -> Vec<OrderStatus> {
        let streams = self.streams.lock().clone();
        let given = streams.iter().enumerate().filter(|(_, stream)| !stream.is_learnt());
        let status = |(index, stream): (usize, &StreamInfo)| OrderStatus {
            stream: stream.name.clone(),
            spec: stream.spec.clone(),
            refused: stream.refused.clone(),
            fix: self.learning.as_ref().and_then(|learning| learning.fix(StreamId(index as u16))),
            progress: published.progress(StreamId(index as u16)).cloned(),
        };
        given.map(status).collect()
    }

    /// The local store, if there is one, which keeps so many bytes.
    fn disk_status(&self, kept: u64) -> Option<TierStatus> {
        let budget = self.disk.as_ref()?.budget();
        let stored = self.cache.store()?.used();
        Some(TierStatus {
            budget: budget.present(),
            configured: budget.configured(),
            reduced: budget.reduced().map(str::to_owned),
            kept,
            stored,
        })
    }

    /// The loaders of whose orders nobody told.
    fn loaders(&self, published: &Published) -> Vec<LoaderStatus> {
        let progress = |stream| published.progress(stream).cloned();
        self.learning.as_ref().map_or_else(Vec::new, |learning| learning.loaders(progress))
    }

    /// The state of a local store that there is not.
    fn disk_fault(&self) -> Option<&'static str> {
        let words = "down: the cache disk failed, hung or had no room at the mount; none is used";
        self.disk_fault.as_ref().map(|_| words)
    }

    /// What the local store has held since earlier mounts, in words, or why there is none; none
    /// where none is wanted.
    pub fn found_again(&self) -> Option<String> {
        if let Some(fault) = &self.disk_fault {
            return Some(format!("warning: {}; going on without it", fault.message()));
        }
        let (samples, bytes) = self.cache.store()?.totals();
        Some(format!("cache.dir: {samples} samples, {}, from earlier mounts", Bytes(bytes).human()))
    }

    /// A warning if the cache directory was on another disk before.
    pub fn moved_disk(&self) -> Option<String> {
        self.disk_moved.as_ref().map(|moved| format!("warning: {moved}"))
    }

    /// How fresh what is served is, in words.
    pub fn consistency(&self) -> String {
        match self.settings.source.revalidate {
            None => {
                let mut words = String::from("immutable: the source is taken never to change");
                let changed = self.cache.traffic().changed.load(Ordering::Relaxed);
                if changed > 0 {
                    words += &format!(
                        "; warning: {changed} files were found changed when they were read: use \
                         source.consistency = \"revalidate\""
                    );
                }
                words
            }
            Some(period) => format!(
                "revalidate: a change at the source shows within {} s",
                period.as_secs_f64()
            ),
        }
    }
}
