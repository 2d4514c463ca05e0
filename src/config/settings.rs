//! The settings that belady runs with: plain numbers. Only what the planner alone can know is left to decide.

use std::path::PathBuf;
use std::time::Duration;

use super::join::{Join, OwnAddress};
use super::schema::{LogConfig, Manners, MountConfig, PolicyKind, Start, StreamConfig, View};
use crate::buffer::{Classes, Rules};
use crate::derive::Recipe;
use crate::error::Error;
use crate::tls::Tls;

/// What was found on the host. It is detected elsewhere, and made up in tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Host {
    /// Bytes that belady and its page cache may use at most: the smaller of RAM and cgroup limit.
    pub memory_limit: u64,
    /// Bytes of memory that are available without taking memory from others.
    pub memory_available: u64,
    /// Processors that belady may run on.
    pub cores: u32,
    /// Bytes free and bytes in all on the filesystem of `cache.dir`. `None` if there is no `cache.dir`, or it
    /// cannot be examined.
    ///
    /// A cache there counts as free. Otherwise each mount would get a smaller disk tier than the one before.
    pub cache_free: Option<(u64, u64)>,
    /// Whether the filesystem of `cache.dir` is in memory.
    pub cache_in_memory: bool,
    /// Whether the disk of `cache.dir` does not answer, so that nothing is known of it.
    pub cache_hangs: bool,
    /// Bytes that the cache of the source already holds there.
    pub cache_held: u64,
    /// Bytes that the rehearsal buffers of the source already take there; they count as used.
    pub buffers_held: u64,
}

/// A configuration with every choice made and every relation checked. Fields without a comment are keys of
/// the same name. A section in which nothing is left to choose stays as it was written.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    pub source: SourceSettings,
    pub cache: CacheSettings,
    pub prefetch: PrefetchSettings,
    /// Finding out orders that were not told; `None` if it is off.
    pub learn: Option<LearnSettings>,
    /// This node in a cluster; `None` if there is none.
    pub cluster: Option<ClusterSettings>,
    /// Rehearsal buffers, sorted by name.
    pub rehearsal: Vec<RehearsalSettings>,
    /// What is `auto` here depends on the kernel and on the user who mounts. No option is empty or holds a comma.
    pub mount: MountConfig,
    /// Its level is a filter directive that `tracing` accepts.
    pub log: LogConfig,
    /// Readers whose order is told beforehand. Names are unique; orders are not parsed yet.
    pub streams: Vec<StreamConfig>,
    /// Samples that are made from samples. Their names are unique.
    pub derived: Vec<Recipe>,
    /// One line for each choice that belady made, for the log at mount.
    pub decisions: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceSettings {
    pub view: View,
    /// An absolute path, or empty.
    pub credentials: PathBuf,
    /// After this time a name is checked again; `None` if files never change.
    pub revalidate: Option<Duration>,
    pub scan_threads: u32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterSettings {
    /// It is not off.
    pub join: Join,
    /// Bytes of this node's shard; 0 if it has none. They are not a part of `ram_bytes` any more.
    pub ram_bytes: u64,
    /// Bytes of servers that others administer, for all nodes together; `None`: as much as these have.
    pub servers_bytes: Option<u64>,
    /// An absolute path.
    pub secret: PathBuf,
    /// An absolute path, or empty.
    pub login: PathBuf,
    /// The files with which connections are encrypted; `None`: they are not.
    pub tls: Option<Tls>,
    /// After this time without a read a sample leaves servers that others administer.
    pub expires: Duration,
    pub address: OwnAddress,
    pub group: String,
    /// Bytes a second that all nodes together ask the source for.
    pub source_rate: Option<u64>,
    /// Whether the cache disk holds samples for all nodes, too.
    pub disk: bool,
    /// Whether orders say what each node holds.
    pub follow: bool,
    /// An absolute path, or empty.
    pub server: PathBuf,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheSettings {
    /// Bytes of page cache and buffers. They fit the memory limit, and may be 0.
    pub ram_bytes: u64,
    /// Bytes that are configured. `ram_bytes` may grow to them when the limit is raised.
    pub ram_configured_bytes: u64,
    /// `None` if there is only RAM.
    pub disk: Option<DiskSettings>,
    /// Why there is no disk tier although one is configured, if its disk does not answer.
    pub disk_fault: Option<Error>,
    pub policy: PolicyKind,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskSettings {
    /// An absolute path.
    pub dir: PathBuf,
    /// Bytes it may hold: at least a block, unless a store or buffers exist there already.
    pub bytes: u64,
    /// Bytes that are configured. `bytes` may grow to them when others leave the space.
    pub configured_bytes: u64,
    /// Bytes that rehearsal buffers may hold there, including what they hold already.
    pub buffers_bytes: u64,
    /// Bytes to leave free on the filesystem.
    pub min_free_bytes: u64,
    /// Files that others must still be able to create there.
    pub min_free_inodes: u64,
    /// Whether what it holds takes memory, for example on a tmpfs.
    pub in_memory: bool,
    /// From this size on a file is not packed with others; more than one block.
    pub large_file_bytes: u64,
    /// How long a reader waits for the disk alone.
    pub slow_after: Duration,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PrefetchSettings {
    pub enabled: bool,
    pub inflight: u32,
    /// Bytes a second, not 0; `None` without limit.
    pub rate: Option<u64>,
    pub manners: Manners,
    /// Bytes staged ahead and not kept, at most `ram_bytes`; `None` if the planner derives it.
    pub window_bytes: Option<u64>,
    /// The most bytes of one request for samples that lie beside each other in a large file or an archive.
    pub request_bytes: u64,
    pub start: Start,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LearnSettings {
    pub crack: bool,
    /// Threads that search, 1 to 256.
    pub threads: u32,
    pub nice: u32,
    /// Processor time that the threads may take for the loaders of one process.
    pub time: Duration,
}

/// One rehearsal buffer. Its name has letters, digits, `-` and `_`. `batch` is not 0.
#[derive(Clone, Debug, PartialEq)]
pub struct RehearsalSettings {
    pub name: String,
    /// Which samples are kept, how many, and the seed. The capacity may be 0 if there are codes.
    pub rules: Rules,
    pub classes: Classes,
    /// The directory of the dataset whose samples are offered, relative; empty for all.
    pub root: PathBuf,
    pub offer_rate: f64,
    pub distance: usize,
    pub slots: u32,
    /// Whether the nodes of a cluster draw from their buffers of this name as from one.
    pub shared: bool,
    pub batch: u32,
    pub replay: u32,
    pub latent: u32,
}
