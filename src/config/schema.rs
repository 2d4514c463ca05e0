//! The configuration as written: one struct for each section, one field for each key.
//!
//! Fields hold what was written, including `"auto"`. Checks against other keys or the host are done by
//! [`Config::resolve`](super::Config::resolve).

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::units::{BufferSize, Bytes, Period, Size};
use crate::buffer::{Classes, Policy};

/// A configuration as written. The default is that of a mount without any file.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Config {
    pub source: SourceConfig,
    pub cache: CacheConfig,
    pub prefetch: PrefetchConfig,
    pub order: OrderConfig,
    /// Default: none.
    pub rehearsal: BTreeMap<String, RehearsalConfig>,
    pub mount: MountConfig,
    pub log: LogConfig,
    /// Default: none.
    #[serde(rename = "stream")]
    pub streams: Vec<StreamConfig>,
}

/// `[source]`: how the source directory is scanned and checked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct SourceConfig {
    /// Whether files may change during the mount. Default: `revalidate`.
    pub consistency: Consistency,
    /// After this time a name is checked at the source again. Default: 60 s.
    pub revalidate: Period,
    /// Directories listed at once during the scan at mount. Default: 16.
    pub scan_threads: u32,
}

/// `[cache]`: how much is kept, where, and by which policy.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct CacheConfig {
    /// Kernel page cache and buffers; a share is of the memory limit. Default: auto.
    pub ram: Size,
    /// Directory of the disk tier; empty: no disk tier. Default: empty.
    pub dir: PathBuf,
    /// Bytes of the disk tier; a share is of the free space. Default: auto.
    pub disk: Size,
    /// Space left free on the filesystem of `dir`; a share is of its size. Default: 5%.
    pub min_free: Size,
    /// Files that can still be made on the filesystem of `dir`. Default: 1024.
    pub min_free_inodes: u64,
    /// From this size on a file is a file of its own in `dir`, not packed. Default: 64 MiB.
    pub large_file: Bytes,
    /// The source is also asked for a read that the disk has not answered for this long. Default: 1s.
    pub slow_after: Period,
    /// What is kept when not everything fits. Default: auto.
    pub policy: PolicyKind,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct PrefetchConfig {
    /// Whether anything is read ahead. Default: true.
    pub enabled: bool,
    /// Fetches from the source at once. Default: 32.
    pub inflight: u32,
    /// Bytes staged ahead and not kept; a share is of `cache.ram`. Default: auto.
    pub window: Size,
    /// When reading ahead begins. Default: `mount`.
    pub start: Start,
}

/// `[order]`: finding out orders that were not told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct OrderConfig {
    /// Whether orders are found out from what is read. Default: auto.
    pub learn: Learn,
    /// Threads that search for seeds; 0 for an eighth of the processors. Default: 0.
    pub learn_threads: u32,
    /// How far these threads give way to all others: their nice value. While processors are busy, they also
    /// pause this many times as long as they compute. Default: 19.
    pub learn_nice: u32,
    /// Processor time that searches may take for the loaders of one process; 0 for no limit. Default: 1 h.
    pub learn_time: Period,
}

/// `[rehearsal.NAME]`: one rehearsal buffer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct RehearsalConfig {
    /// How much it holds. It must be set, unless there is `latent`.
    pub size: BufferSize,
    /// Which samples are kept. Default: `class-balanced`.
    pub policy: Policy,
    /// The seed of all random choices. Default: 0.
    pub seed: u32,
    /// How the class of a sample is known. Default: `directory`.
    pub classes: Classes,
    /// The directory of the dataset whose samples are offered; empty for all. Default: empty.
    pub root: PathBuf,
    /// The share of the samples read that is offered, 0 to 1. Default: 1.
    pub offer_rate: f64,
    /// This many draws in a row are all different. Default: 64.
    pub distance: u32,
    /// Names in `slots/` and in each of its classes, 0 to 10000. Default: 64.
    pub slots: u32,
    /// Samples of the task in `mix/` for each `replay` samples of the buffer. Default: 56.
    pub batch: u32,
    /// See `batch`. Default: 7.
    pub replay: u32,
    /// Bytes of a code in `latent/`; 0 if there is no `latent/`. Default: 0.
    pub latent: u32,
}

/// `[mount]`: how the filesystem appears on the host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct MountConfig {
    /// Whether other users may use the mount. Default: false.
    pub allow_other: bool,
    /// Mount for others although rights that the mount cannot check are lost. Default: false.
    pub force_allow_other: bool,
    /// How samples reach their readers. Default: auto.
    pub mode: Mode,
    /// Where `.belady/` is served. Default: auto.
    pub control: Control,
    /// Where the views of rehearsal buffers are served. Default: auto.
    pub rehearsal: Control,
    /// Whether `rehearsal/` is listed among the dataset's directories. Default: false.
    pub list_rehearsal: bool,
    /// Threads that answer the kernel. Default: 2.
    pub threads: u32,
    /// Further mount options for the kernel. Default: none.
    pub options: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct LogConfig {
    /// A `tracing` filter directive. Default: `info`.
    pub level: String,
    /// The log file; empty: stderr, or beside the control socket in the background.
    pub file: PathBuf,
}

/// `[[stream]]`: one reader of the dataset whose order is told beforehand.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct StreamConfig {
    /// The stream's name in status and on the command line.
    pub name: String,
    /// The order, as text of the form `kind:key=value,...`. It is not parsed here.
    pub order: String,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Consistency {
    /// Files may change: names are checked at the source again after a while.
    #[default]
    Revalidate,
    /// Files do not change: nothing is asked twice.
    Immutable,
}

/// Which blocks stay when a tier is full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PolicyKind {
    /// The best policy for what is known of each stream's order.
    #[default]
    Auto,
    /// Keep what is read soonest. Needs known orders.
    Belady,
    /// Drop what was not used for longest.
    Lru,
    /// Keep what came first and never replace it.
    Minio,
    /// Drop what this epoch has read already.
    UnreadFirst,
    None,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Start {
    /// As soon as the filesystem is mounted.
    #[default]
    Mount,
    /// When a reader opens the first file.
    FirstOpen,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Learn {
    /// Orders are found out. If need be, all seeds are searched.
    #[default]
    Auto,
    /// Orders are found out, but only popular seeds are tried.
    NoCrack,
    Off,
}

/// How samples reach their readers, from the fewest requests to the most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// The first mode below that the kernel offers.
    #[default]
    Auto,
    /// Pages are pushed ahead of the read, and files are opened without a request.
    Push,
    /// Pages are pushed ahead of the read; each open and close is a request.
    KeepCache,
    /// Nothing is pushed: each first read of a page is a request.
    Plain,
    /// Like `keep-cache`, but the kernel reads large files in the cache directory by itself. `auto` never
    /// chooses it: what the kernel reads is not compared with checksums.
    Passthrough,
}

/// Where something is served beside the dataset.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub enum Control {
    /// `"auto"`: inside the mount if belady runs as root, else nowhere.
    #[default]
    Auto,
    /// `"off"`: nowhere.
    Off,
    /// Mounted on this directory of the host.
    Dir(PathBuf),
}

impl From<String> for Control {
    fn from(text: String) -> Control {
        match text.as_str() {
            "auto" => Control::Auto,
            "off" => Control::Off,
            _ => Control::Dir(PathBuf::from(text)),
        }
    }
}

impl From<Control> for String {
    fn from(control: Control) -> String {
        control.to_string()
    }
}

impl fmt::Display for Control {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Control::Auto => f.write_str("auto"),
            Control::Off => f.write_str("off"),
            Control::Dir(dir) => dir.display().fmt(f),
        }
    }
}

impl Default for SourceConfig {
    fn default() -> Self {
        SourceConfig {
            consistency: Consistency::Revalidate,
            revalidate: Period(Duration::from_secs(60)),
            scan_threads: 16,
        }
    }
}

impl Default for CacheConfig {
    fn default() -> Self {
        CacheConfig {
            ram: Size::Auto,
            dir: PathBuf::new(),
            disk: Size::Auto,
            min_free: Size::Percent(5.0),
            min_free_inodes: 1024,
            large_file: Bytes(64 << 20),
            slow_after: Period(Duration::from_secs(1)),
            policy: PolicyKind::Auto,
        }
    }
}

impl Default for PrefetchConfig {
    fn default() -> Self {
        PrefetchConfig { enabled: true, inflight: 32, window: Size::Auto, start: Start::Mount }
    }
}

impl Default for OrderConfig {
    fn default() -> Self {
        OrderConfig {
            learn: Learn::default(),
            learn_threads: 0,
            learn_nice: 19,
            learn_time: Period(Duration::from_secs(3600)),
        }
    }
}

impl Default for MountConfig {
    fn default() -> Self {
        MountConfig {
            allow_other: false,
            force_allow_other: false,
            mode: Mode::Auto,
            control: Control::Auto,
            rehearsal: Control::Auto,
            list_rehearsal: false,
            threads: 2,
            options: Vec::new(),
        }
    }
}

impl Default for RehearsalConfig {
    fn default() -> Self {
        RehearsalConfig {
            size: BufferSize::default(),
            policy: Policy::default(),
            seed: 0,
            classes: Classes::default(),
            root: PathBuf::new(),
            offer_rate: 1.0,
            distance: 64,
            slots: 64,
            batch: 56,
            replay: 7,
            latent: 0,
        }
    }
}

impl Default for LogConfig {
    fn default() -> Self {
        LogConfig { level: "info".to_owned(), file: PathBuf::new() }
    }
}
