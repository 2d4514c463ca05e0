//! The configuration as written: one struct a section, one field a key.
//!
//! Fields hold what was written, `"auto"` included; nothing is checked against other keys or the
//! host here. See [`Config::resolve`](super::Config::resolve) for that.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::units::{BufferSize, Bytes, Period, Size};
use crate::buffer::{Classes, Policy};

/// A configuration as written; the default is a mount without any file.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Config {
    /// `[source]`: the directory that is served.
    pub source: SourceConfig,
    /// `[cache]`: memory and local disk.
    pub cache: CacheConfig,
    /// `[prefetch]`: reading ahead.
    pub prefetch: PrefetchConfig,
    /// `[order]`: what is done where nobody tells an order.
    pub order: OrderConfig,
    /// `[rehearsal.NAME]`: buffers of samples that are shown again. Default: none.
    pub rehearsal: BTreeMap<String, RehearsalConfig>,
    /// `[mount]`: the kernel's side.
    pub mount: MountConfig,
    /// `[log]`: what is logged and where.
    pub log: LogConfig,
    /// `[[stream]]`: readers whose order is known beforehand. Default: none.
    #[serde(rename = "stream")]
    pub streams: Vec<StreamConfig>,
}

/// `[source]`: how far the source directory is trusted to stay as it is.
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
    /// From this size on a file is one file in `dir` too, not packed. Default: 64 MiB.
    pub large_file: Bytes,
    /// A read that the disk has not answered for so long is asked of the source too. Default: 1s.
    pub slow_after: Period,
    /// What is kept when not everything fits. Default: auto.
    pub policy: PolicyKind,
}

/// `[prefetch]`: reading ahead of the readers.
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

/// `[order]`: finding out the orders that nobody tells.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct OrderConfig {
    /// Whether orders are found out from what is read. Default: auto.
    pub learn: Learn,
    /// Threads that search for seeds; 0: an eighth of the processors. Default: 0.
    pub learn_threads: u32,
    /// How far these threads stand back behind all others: the nice value, and how many times as
    /// long as they compute they pause where processors are busy. Default: 19.
    pub learn_nice: u32,
    /// Processor time that searches may take for the loaders of one process; 0: any. Default: 1 h.
    pub learn_time: Period,
}

/// `[rehearsal.NAME]`: one buffer of samples that are shown again.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct RehearsalConfig {
    /// How much it holds. There is no default, but for none where there is `latent`.
    pub size: BufferSize,
    /// Who is kept. Default: `class-balanced`.
    pub policy: Policy,
    /// Where all chance comes from. Default: 0.
    pub seed: u32,
    /// How the class of a sample is known. Default: `directory`.
    pub classes: Classes,
    /// The directory of the dataset of which samples are offered; empty: all. Default: empty.
    pub root: PathBuf,
    /// The share of what is read that is offered, 0 to 1. Default: 1.
    pub offer_rate: f64,
    /// Draws that follow each other and are all different. Default: 64.
    pub distance: u32,
    /// Names in `slots/` and in each of its classes, 0 to 10000. Default: 64.
    pub slots: u32,
    /// In `mix/` there are `replay` samples of the buffer for so many of the task. Default: 56.
    pub batch: u32,
    /// See `batch`. Default: 7.
    pub replay: u32,
    /// Bytes of a code in `latent/`, which is there where this is not 0. Default: 0.
    pub latent: u32,
}

/// `[mount]`: how the filesystem appears on the host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct MountConfig {
    /// Whether other users may use the mount. Default: false.
    pub allow_other: bool,
    /// Mount for others although rights that the mount cannot check would be lost. Default: false.
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

/// `[log]`: what is logged and where.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct LogConfig {
    /// A `tracing` filter directive. Default: `info`.
    pub level: String,
    /// The log file; empty: stderr, or beside the control socket in the background.
    pub file: PathBuf,
}

/// `[[stream]]`: one reader of the dataset whose order is known beforehand.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct StreamConfig {
    /// The stream's name in status and on the command line.
    pub name: String,
    /// The order, as text of the form `kind:key=value,...`; not looked into here.
    pub order: String,
}

/// Whether files of the source may change during the mount.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Consistency {
    /// They may: names are checked at the source again after a while.
    #[default]
    Revalidate,
    /// They do not: nothing is ever asked twice.
    Immutable,
}

/// Which blocks stay when a tier is full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PolicyKind {
    /// The best for what is known of each stream's order.
    #[default]
    Auto,
    /// Keep what is read soonest; needs known orders.
    Belady,
    /// Drop what was not used for longest.
    Lru,
    /// Keep what came first and never replace it.
    Minio,
    /// Drop what this epoch has read already.
    UnreadFirst,
    /// Keep nothing beyond the window.
    None,
}

/// When reading ahead begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Start {
    /// As soon as the filesystem is mounted.
    #[default]
    Mount,
    /// When a reader opens the first file.
    FirstOpen,
}

/// Whether orders are found out from what is read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Learn {
    /// They are; if need be, all seeds are searched for one.
    #[default]
    Auto,
    /// They are, as far as popular seeds give them.
    NoCrack,
    Off,
}

/// How samples reach their readers, from the fewest requests to the most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// The first of those below that the kernel offers.
    #[default]
    Auto,
    /// Pages are pushed ahead of the read, and files are opened without a request.
    Push,
    /// Pages are pushed ahead of the read; each open and close is a request.
    KeepCache,
    /// Nothing is pushed: each first read of a page is a request.
    Plain,
    /// As `keep-cache`, and the kernel reads large files in the cache directory by itself. Never
    /// chosen by `auto`: what is read so is not compared with its checksums any more.
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
    /// A directory of the host on which they are mounted.
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
