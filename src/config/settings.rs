//! What belady runs with: plain numbers, nothing left to decide but what only the planner knows.

use std::path::PathBuf;
use std::time::Duration;

use super::schema::{Control, Mode, PolicyKind, Start, StreamConfig};
use crate::buffer::{Classes, Rules};
use crate::error::Error;

/// What was found on the host; detected elsewhere, invented in tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Host {
    /// Bytes that belady and its page cache may use at most: the lesser of RAM and cgroup limit.
    pub memory_limit: u64,
    /// Bytes of memory that can be had without pushing others out.
    pub memory_available: u64,
    /// Processors that belady may run on.
    pub cores: u32,
    /// Bytes free and bytes in all on the filesystem of `cache.dir`.
    ///
    /// What a cache there already holds counts as free, else each mount would get a smaller disk
    /// tier than the one before. `None`: there is no `cache.dir`, or it cannot be examined.
    pub cache_free: Option<(u64, u64)>,
    /// Whether the filesystem of `cache.dir` is in memory.
    pub cache_in_memory: bool,
    /// Whether the disk of `cache.dir` does not answer, so that nothing is known of it.
    pub cache_hangs: bool,
    /// Bytes of it that the cache of the source already holds.
    pub cache_held: u64,
    /// Bytes that the rehearsal buffers of the source already take there; they count as used.
    pub buffers_held: u64,
}

/// A configuration with every choice made and every relation checked.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// The directory that is served.
    pub source: SourceSettings,
    /// Memory and local disk.
    pub cache: CacheSettings,
    pub prefetch: PrefetchSettings,
    /// Finding out orders that nobody tells; `None`: it is not done.
    pub learn: Option<LearnSettings>,
    /// Buffers of samples that are shown again, sorted by name.
    pub rehearsal: Vec<RehearsalSettings>,
    /// The kernel's side.
    pub mount: MountSettings,
    /// What is logged and where.
    pub log: LogSettings,
    /// Readers whose order is known beforehand; names are unique, orders not yet parsed.
    pub streams: Vec<StreamConfig>,
    /// One line for each choice that belady made, for the log at mount.
    pub decisions: Vec<String>,
}

/// How far the source is trusted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceSettings {
    /// After this time a name is checked again; `None`: files never change.
    pub revalidate: Option<Duration>,
    /// Directories listed at once during the scan, 1 to 256.
    pub scan_threads: u32,
}

/// How much is kept, where, and by which policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheSettings {
    /// Bytes of page cache and buffers; fits the memory limit, may be 0.
    pub ram_bytes: u64,
    /// Bytes that it would be if they fitted: what it may grow to when the limit is raised.
    pub ram_configured_bytes: u64,
    /// The disk tier; `None`: RAM only.
    pub disk: Option<DiskSettings>,
    /// Why there is no disk tier though one is configured, if its disk does not answer.
    pub disk_fault: Option<Error>,
    pub policy: PolicyKind,
}

/// The disk tier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskSettings {
    /// Its directory; an absolute path.
    pub dir: PathBuf,
    /// Bytes it may hold; at least a block.
    pub bytes: u64,
    /// Bytes that it would hold if they fitted: what it may grow to when others leave the space.
    pub configured_bytes: u64,
    /// Bytes that rehearsal buffers may hold there, what they hold already included.
    pub buffers_bytes: u64,
    /// Bytes to leave free on the filesystem, whoever uses the rest.
    pub min_free_bytes: u64,
    /// Files that others must still be able to make there.
    pub min_free_inodes: u64,
    /// Whether what it holds takes memory: its filesystem is a tmpfs, for example.
    pub in_memory: bool,
    /// Bytes from which on a file is not packed with others; more than one block.
    pub large_file_bytes: u64,
    /// How long a reader waits for it alone.
    pub slow_after: Duration,
}

/// Reading ahead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PrefetchSettings {
    /// Whether anything is read ahead.
    pub enabled: bool,
    /// Fetches from the source at once, 1 to 1024.
    pub inflight: u32,
    /// Bytes staged ahead and not kept, at most `ram_bytes`; `None`: the planner derives it.
    pub window_bytes: Option<u64>,
    /// When reading ahead begins.
    pub start: Start,
}

/// Finding out orders.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LearnSettings {
    /// Whether all seeds may be searched, not popular ones alone.
    pub crack: bool,
    /// Threads that search, 1 to 256.
    pub threads: u32,
    /// Their nice value, 0 to 19.
    pub nice: u32,
    /// Processor time that they may take for the loaders of one process.
    pub time: Duration,
}

/// One buffer of samples that are shown again.
#[derive(Clone, Debug, PartialEq)]
pub struct RehearsalSettings {
    /// Its name: letters, digits, `-` and `_`.
    pub name: String,
    /// Who is kept, how much, and by which chance; the capacity may be 0 where there are codes.
    pub rules: Rules,
    /// How the class of a sample is known.
    pub classes: Classes,
    /// The directory of the dataset of which samples are offered; empty: all. Relative.
    pub root: PathBuf,
    /// The share of what is read that is offered, 0 to 1.
    pub offer_rate: f64,
    /// Draws that follow each other and are all different.
    pub distance: usize,
    /// Names in `slots/` and in each of its classes.
    pub slots: u32,
    /// Samples of the task for which there are `replay` of the buffer in `mix/`; not 0.
    pub batch: u32,
    /// Samples of the buffer in `mix/` for each `batch` of the task.
    pub replay: u32,
    /// Bytes of a code in `latent/`; 0: there is none.
    pub latent: u32,
}

/// The kernel's side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountSettings {
    /// Whether other users may use the mount.
    pub allow_other: bool,
    /// Mount for others although some rights cannot be checked; only with `allow_other`.
    pub force_allow_other: bool,
    /// How samples reach their readers; [`Mode::Auto`] stays, as it depends on the kernel.
    pub mode: Mode,
    /// Where `.belady/` is served; [`Control::Auto`] stays, as it depends on who mounts.
    pub control: Control,
    /// Where the views of rehearsal buffers are served; as `control`.
    pub rehearsal: Control,
    /// Whether their directory is listed among the dataset's.
    pub list_rehearsal: bool,
    /// Threads that answer the kernel, 1 to 64.
    pub threads: u32,
    /// Further mount options; none is empty or holds a comma.
    pub options: Vec<String>,
}

/// What is logged and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogSettings {
    /// A filter directive that `tracing` accepts.
    pub level: String,
    /// The log file; `None`: stderr, or beside the control socket in the background.
    pub file: Option<PathBuf>,
}
