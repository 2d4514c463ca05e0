//! The configuration as written: one struct for each section, one field for each key.
//!
//! A key is declared once, with its help, its type and its default. Fields hold what was written, including
//! `"auto"`. Checks against other keys or the host are done by [`resolve`](fn@super::resolve).

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::join::Join;
use super::keys::Key;
use super::units::{BufferSize, Bytes, Period, Size};
use crate::buffer::{Classes, Policy};

/// Declares sections as structs, and lists their keys. The comment of a key is its help for people, in lines of
/// at most 96 characters.
macro_rules! sections {
    ($(#[doc = $all:literal])+ $visible:vis const $list:ident; $(
        $(#[doc = $doc:literal])* [$section:ident] $name:ident {
            $($(#[doc = $help:literal])+ $key:ident: $type:ty = $default:expr,)+
        }
    )+) => {
        $(#[doc = $all])+
        $visible const $list: &[Key] = &[$($(
            Key { section: stringify!($section), field: stringify!($key), help: &[$($help),+] },
        )+)+];

        $(
            $(#[doc = $doc])*
            #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
            #[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
            pub struct $name { $($(#[doc = $help])+ pub $key: $type,)+ }

            impl Default for $name {
                fn default() -> Self {
                    $name { $($key: $default,)+ }
                }
            }
        )+
    };
}

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
    pub cluster: ClusterConfig,
    pub mount: MountConfig,
    pub log: LogConfig,
    /// Default: none.
    #[serde(rename = "stream")]
    pub streams: Vec<StreamConfig>,
    /// Default: none.
    pub derived: Vec<DerivedConfig>,
}

sections! {
    /// Every key outside `[rehearsal.NAME]`, `[[stream]]` and `[[derived]]`, in the order in which they are shown.
    pub const KEYS;

    /// How the source is read, scanned and checked.
    [source] SourceConfig {
        /// "directory": the files of the source as they are. "files": the files in its tar and zip
        /// files, as if all of them had been extracted.
        view: View = View::Directory,
        /// A file of lines such as AWS_ACCESS_KEY_ID = ..., an absolute path, which only its owner may
        /// read; empty: the environment says how a store is asked.
        credentials: PathBuf = PathBuf::new(),
        /// Of cassandra://: the table that is listed. Each row of it is a file.
        rows: String = String::new(),
        /// Of cassandra://: the path of a row, with names of columns of that table in braces, such as
        /// "{split}/{label}/{id}.JPEG".
        path: String = String::new(),
        /// Of cassandra://: the table and the column of the bytes, such as "data_train.data". The table
        /// has the same key as that of rows.
        data: String = String::new(),
        /// Of cassandra://: the column of the table of rows that has the number of bytes; empty: a row
        /// is read to find out its size, and rows are immutable.
        size: String = String::new(),
        /// "revalidate": files may change during the mount and are checked again after a while.
        /// "immutable": they never change; nothing is asked twice.
        consistency: Consistency = Consistency::Revalidate,
        /// After this time a name is checked at the source again.
        revalidate: Period = Period(Duration::from_secs(60)),
        /// The most threads of a scan, 1 to 256. belady finds how many the source serves best. The check
        /// of a saved catalog usually has at most a quarter of them.
        scan_threads: u32 = 128,
    }

    /// How much is kept, where, and by which policy.
    [cache] CacheConfig {
        /// Kernel page cache and buffers: "16GiB", "25%" of the memory limit, or "auto": 25% of
        /// the memory limit, but no more than half of the memory that is available.
        ram: Size = Size::Auto,
        /// Local directory of the disk tier, an absolute path; empty: no disk tier.
        dir: PathBuf = PathBuf::new(),
        /// Disk tier: "900GiB", "80%" of the free space, or "auto": all but min-free.
        disk: Size = Size::Auto,
        /// Space left free on the filesystem of dir: "50GiB", or "5%" of its size.
        min_free: Size = Size::Percent(5.0),
        /// Files that others can still create there. Use 0 if the filesystem has few in all.
        min_free_inodes: u64 = 1024,
        /// Files from this size on are files of their own in dir; smaller ones are packed together.
        large_file: Bytes = Bytes(64 << 20),
        /// If dir has not answered a reader after this time, the source is asked as well.
        slow_after: Period = Period(Duration::from_secs(1)),
        /// Which samples stay when not all fit: "belady", "lru", "minio", "unread-first", "none",
        /// or "auto": the best one for what is known of the readers' order.
        policy: PolicyKind = PolicyKind::Auto,
    }

    [prefetch] PrefetchConfig {
        /// Whether anything is read ahead of the readers.
        enabled: bool = true,
        /// The most fetches from the source at once, 1 to 1024. belady finds how many of them the
        /// source serves best.
        inflight: u32 = 1024,
        /// The most bytes a second that are asked of the source, such as "200MB"; 0: without limit.
        /// Reads that a job waits for are always made, and count.
        rate: Bytes = Bytes(0),
        /// "polite": the source is shared, and belady gives way to its other users. "fair": belady
        /// takes as much as the source gives. "auto": polite at a filesystem, fair elsewhere.
        /// "off": always as many fetches as inflight allows.
        manners: Manners = Manners::Auto,
        /// Staged ahead of the readers and not kept: "64MiB", "10%" of cache.ram, or "auto".
        window: Size = Size::Auto,
        /// The most bytes of one request to the source, up to 64MiB. Samples that lie beside each other in
        /// a large file or an archive are read together, if an order has them and RAM keeps them. 0: each
        /// by itself.
        request: Bytes = Bytes(8 << 20),
        /// Reading ahead begins at "mount" or at the "first-open" of a file.
        start: Start = Start::Mount,
    }

    /// Finding out orders that were not told.
    [order] OrderConfig {
        /// Whether orders that nobody tells are found out from the opens: "auto", "no-crack" (only
        /// popular seeds are tried, not all 2^32), or "off".
        learn: Learn = Learn::Auto,
        /// Threads that search for seeds, 0 to 256; 0: one for eight processors.
        learn_threads: u32 = 0,
        /// The nice value of these threads, 0 to 19. The kernel compares nice values only within a
        /// session or control group. So a search that has to wait for a processor also pauses, for
        /// this multiple of the time that it computes. Use less if no processor is ever idle.
        learn_nice: u32 = 19,
        /// Processor time that these threads may take for the loaders of one process, over all of its
        /// epochs. Then no search is made for this process any more. "0s": without limit.
        learn_time: Period = Period(Duration::from_secs(3600)),
    }

    /// Nodes that work together.
    [cluster] ClusterConfig {
        /// The nodes of the cluster: "hosts:A,B:PORT,...", or "dns:NAME:PORT" for all addresses of a name,
        /// or "slurm" for the nodes of a Slurm job; empty: no cluster. Each node lists all of them, itself,
        /// too. The port is 7100 if none is written, and the next one is used as well. Or else
        /// "redis://A,B:PORT,...": existing servers, in place of shards of the nodes.
        join: Join = Join::Off,
        /// Memory of this node's shard, a part of cache.ram: "16GiB", "25%" of cache.ram, or "auto":
        /// half of it. With existing servers: memory of all servers for all nodes, or "auto": all that
        /// they have.
        ram: Size = Size::Auto,
        /// Whether cache.dir holds samples for all nodes, too, if the shards of all nodes cannot hold all.
        disk: bool = true,
        /// A file that all nodes see, an absolute path. The first node puts a secret in it. Who can read
        /// the file can read the samples of the cluster.
        secret: PathBuf = PathBuf::new(),
        /// With existing servers: a file with a line USER:PASSWORD or :PASSWORD, an absolute path; empty:
        /// no login.
        login: PathBuf = PathBuf::new(),
        /// With existing servers: after this time without a read a sample leaves them.
        expires: Period = Period(Duration::from_secs(24 * 3600)),
        /// Where the other nodes reach this one: "IP" or "IP:PORT". If it is empty, belady finds which
        /// address of the cluster this machine has.
        address: String = String::new(),
        /// The rack of this node, or another name that near nodes share.
        group: String = String::new(),
        /// The most bytes a second that all nodes together ask the source for, such as "1GB"; 0: without
        /// limit. Reads that a job waits for are always made, and count.
        source_rate: Bytes = Bytes(0),
        /// Whether orders say what each node holds: samples move to the nodes that read them next. If
        /// several jobs read more than the nodes can hold, these hold what is read soonest.
        follow: bool = true,
        /// A file of the certificates that are trusted, in PEM, an absolute path. If it is set, all
        /// connections between nodes are encrypted (TLS): then all nodes set the next two keys as well.
        /// With existing servers, "rediss://" in cluster.join asks for TLS.
        tls_ca: PathBuf = PathBuf::new(),
        /// The certificate of this node. It has the node's name or address, as cluster.join writes it.
        tls_cert: PathBuf = PathBuf::new(),
        /// The key of that certificate.
        tls_key: PathBuf = PathBuf::new(),
        /// The server program, an absolute path; empty: valkey-server or redis-server on the PATH.
        server: PathBuf = PathBuf::new(),
    }

    /// How the filesystem appears on the host.
    [mount] MountConfig {
        /// Let other users use the mount.
        allow_other: bool = false,
        /// Let other users use it although the rights of parent directories and the ACLs of the
        /// source are not checked.
        force_allow_other: bool = false,
        /// How samples reach readers. In "push", pages come ahead of the read. An open is no request.
        /// In "keep-cache", pages come ahead of the read. Each open is a request. In "plain", nothing is
        /// pushed or read ahead. With "auto", belady takes the first of these that the kernel offers.
        /// In "passthrough", the kernel itself reads large files of cache.dir, unchecked; the rest is as
        /// in keep-cache.
        mode: Mode = Mode::Auto,
        /// Where .belady/ is served: "auto" (inside the mount, as root), "off", or a directory.
        control: Control = Control::Auto,
        /// Where rehearsal/ is served: "auto" (inside the mount, as root), "off", or a directory.
        rehearsal: Control = Control::Auto,
        /// Whether rehearsal/ is listed among the dataset's own directories. It is always found by name.
        list_rehearsal: bool = false,
        /// Threads that answer the kernel, 1 to 64.
        threads: u32 = 2,
        /// Further mount options for the kernel, such as ["noatime"].
        options: Vec<String> = Vec::new(),
    }

    [log] LogConfig {
        /// A filter such as "info" or "info,belady::plan=debug".
        level: String = "info".to_owned(),
        /// Log file, an absolute path; empty: stderr in the foreground, else a file beside the
        /// control socket.
        file: PathBuf = PathBuf::new(),
    }
}

sections! {
    /// The keys of one rehearsal buffer.
    pub(super) const REHEARSAL_KEYS;

    /// `[rehearsal.NAME]`: one rehearsal buffer.
    [rehearsal] RehearsalConfig {
        /// How much is kept: 5000 samples, or "2GiB" of encoded files.
        size: BufferSize = BufferSize::default(),
        /// Which samples are kept: "reservoir", "class-balanced", "ring", "gdumb", "random-replace",
        /// "uniform-balanced", "largest-class", or, by scores or features that the trainer reports,
        /// "herding", "max-loss", "min-margin", "min-replay", "prototypical", "mir".
        policy: Policy = Policy::default(),
        /// The seed of all random choices: the same seed and samples give the same buffer.
        seed: u32 = 0,
        /// How the class of a sample is known: "directory" (the one that it is in), a pattern such as
        /// "train/{class}/*.jpg", or the absolute path of a file of lines path,class.
        classes: Classes = Classes::default(),
        /// The directory of the dataset whose samples are offered; empty: all of it.
        root: PathBuf = PathBuf::new(),
        /// The share of the samples read that is offered, 0 to 1; 0: only by command.
        offer_rate: f64 = 1.0,
        /// How many draws in a row are all different.
        distance: u32 = 64,
        /// Names in slots/ and in each of its classes, 0 to 10000.
        slots: u32 = 64,
        /// Whether the nodes of a cluster draw from their buffers of this name as from one.
        shared: bool = true,
        /// mix/ has `replay` samples of the buffer for this number of samples of the task, 1 or more.
        batch: u32 = 56,
        /// See `batch`. Samples of the task itself are not drawn.
        replay: u32 = 7,
        /// Bytes of a code in latent/, where a trainer keeps the codes that its network computes of
        /// samples, 1 to 1048576; 0: there is no latent/. A buffer of codes alone needs no size.
        latent: u32 = 0,
    }
}

sections! {
    /// The keys of one stream.
    pub(super) const STREAM_KEYS;

    /// `[[stream]]`: one reader of the dataset whose order is told beforehand.
    [stream] StreamConfig {
        /// The stream's name in status and on the command line.
        name: String = String::new(),
        /// The order, as text of the form `kind:key=value,...`. It is not parsed here.
        order: String = String::new(),
    }
}

sections! {
    /// The keys of derived samples.
    pub(super) const DERIVED_KEYS;

    /// `[[derived]]`: samples that are made from samples, each once for all jobs and epochs.
    [derived] DerivedConfig {
        /// They are in the directory .derived/NAME of the mount, which is found by name and not listed.
        name: String = String::new(),
        /// belady makes a link to that directory at this path, and removes it with the mount.
        at: PathBuf = PathBuf::new(),
        /// A pattern of the files that they are made of, such as "train/**/*.JPEG". If it is empty, they
        /// are made of all JPEG and PNG images.
        from: String = String::new(),
        /// The pixels of the shorter side afterwards; 0: as many as before.
        resize: u32 = 0,
        /// The side of the square in the middle that is left, in pixels; 0: all is left.
        crop: u32 = 0,
        /// "jpeg", "png", or "npy": an array of NumPy, uint8 of the shape (height, width, 3), whose file
        /// has the name of the image and .npy.
        format: DerivedFormat = DerivedFormat::Jpeg,
        /// The quality of a JPEG, 1 to 100.
        quality: u32 = 90,
        /// A shell command that makes a sample instead. It reads a file from its standard input and
        /// writes the sample to its standard output. It can neither change files nor use the network.
        command: String = String::new(),
        /// The name of a sample that a command makes is that of its original with this after it, such as
        /// ".wav".
        suffix: String = String::new(),
        /// How long the command may take for a sample, from "1s" to "1h".
        time_limit: Period = Period(Duration::from_secs(60)),
        /// The memory of each process of the command, and that of its temporary files, from "64MiB" to
        /// "1TiB".
        memory_limit: Bytes = Bytes(2 << 30),
        /// The size of a sample that a command makes, from "1B" to "256MiB".
        output_limit: Bytes = Bytes(64 << 20),
    }
}

/// The form of derived samples.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DerivedFormat {
    #[default]
    Jpeg,
    Png,
    Npy,
}

/// What of a source is shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum View {
    /// Its files.
    #[default]
    Directory,
    /// The files in its archives, and its other files.
    Files,
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

/// How belady shares a source with others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Manners {
    /// Polite at a filesystem, fair at any other source.
    #[default]
    Auto,
    /// Fetches stand back if requests queue at the source, whoever sent them.
    Polite,
    /// As many fetches as bring the most bytes a second.
    Fair,
    /// A fixed number of fetches.
    Off,
}

impl Manners {
    /// What they are at a filesystem, or at another source.
    pub fn at(self, is_filesystem: bool) -> Self {
        match self {
            Manners::Auto if is_filesystem => Manners::Polite,
            Manners::Auto => Manners::Fair,
            set => set,
        }
    }

    /// Whether others go first.
    pub fn are_polite(self) -> bool {
        matches!(self, Manners::Auto | Manners::Polite)
    }
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
