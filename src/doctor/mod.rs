//! Judges what a machine offers: whether belady can mount and run here, and what would make it better.
//!
//! Other rooms look, and [`Findings`] are what they saw. [`judge`] gives a row for each thing that matters:
//! whether it is there, what was found, and the fix.

mod filesystem;
mod judge;
mod system;
#[cfg(test)]
mod tests;

use crate::error::Error;
pub use filesystem::Filesystem;
pub use judge::{Row, Verdict, judge, missing};
pub use system::{Deadlock, System, hazards};

/// Everything that was found. An `Err` says what stood in the way.
#[derive(Clone, Debug)]
pub struct Findings {
    pub root: bool,
    /// Whether `/dev/fuse` can be opened.
    pub device: Result<(), String>,
    /// The program that mounts for users other than root, if there is one.
    pub fusermount: Option<Fusermount>,
    /// Whether `/etc/fuse.conf` lets users mount for other users.
    pub user_allow_other: bool,
    /// What a trial mount showed.
    pub mount: Result<Kernel, String>,
    /// Whether `belady run` can mount for its command alone.
    pub namespace: Result<(), String>,
    /// Whether a command that makes derived samples can be confined.
    pub commands: Result<(), String>,
    /// Whether openat2(2) works. Without it the source cannot be reached safely.
    pub openat2: Result<(), String>,
    /// Whether cachestat(2) works.
    pub cachestat: Result<(), String>,
    /// Whether the user can end the connection of a killed daemon.
    pub can_abort: bool,
    /// How many files a process may have open.
    pub open_files: u64,
    /// How many processes and threads the user may have.
    pub processes: u64,
    /// For how many nanoseconds idle processors of this virtual machine wait for work before they halt. None
    /// if the machine does not decide that.
    pub halt_poll_ns: Option<u64>,
    /// If the kernel reclaims pages that were not touched for a while, though memory is free: what switches
    /// that off.
    pub reclaim: Option<String>,
    pub system: System,
    pub memory: MemoryFindings,
    /// The directory of control sockets.
    pub runtime: Result<String, String>,
    /// The source, if one was named.
    pub source: Option<Result<SourceFindings, Error>>,
    /// The cache directory, if one was named.
    pub cache: Option<Result<DirectoryFindings, String>>,
    /// What a shard of a cluster needs, if that was asked for.
    pub cluster: Option<ClusterFindings>,
}

/// What a node of a cluster needs. It runs a server program, and other nodes have to reach it.
#[derive(Clone, Debug)]
pub struct ClusterFindings {
    /// Path and version of the server program.
    pub program: Result<String, String>,
    /// What two shards on this machine showed, if there is a program.
    pub trial: Option<Result<TrialFindings, String>>,
    /// The machine's addresses, with their interfaces, without those that only the machine itself reaches.
    pub addresses: Vec<String>,
}

/// Two shards on this machine that met.
#[derive(Clone, Copy, Debug)]
pub struct TrialFindings {
    /// After how many milliseconds both took samples.
    pub met_ms: f64,
    /// The median time of reading a sample of 110 kB from the other shard, in microseconds.
    pub read_us: f64,
}

#[derive(Clone, Debug)]
pub struct Fusermount {
    pub path: String,
    pub version: String,
    /// Whether it is setuid root. Without that it mounts nothing.
    pub setuid: bool,
}

/// The features of the kernel's FUSE.
#[derive(Clone, Debug)]
pub struct Kernel {
    /// The version of the protocol.
    pub abi: (u32, u32),
    /// Listings bring attributes along.
    pub readdirplus: bool,
    /// Lookups in one directory can run at the same time.
    pub parallel_dirops: bool,
    /// Requests can have a mebibyte.
    pub max_pages: bool,
    /// Files can be opened without a request.
    pub no_open: bool,
    /// Whether pushed bytes were read back from the page cache.
    pub store: Result<(), String>,
    /// Whether a name can expire without being dropped.
    pub expire: Result<(), String>,
    /// Whether reads of a file on another filesystem can bypass the daemon.
    pub passthrough: Result<(), String>,
}

/// Memory, and the RAM budget that follows from it, in bytes.
#[derive(Clone, Debug)]
pub struct MemoryFindings {
    /// The least limit, of the machine's memory or of a cgroup.
    pub limit: u64,
    /// What can be had without pushing other programs out.
    pub available: u64,
    pub budget: u64,
    /// How the budget was decided.
    pub because: String,
}

/// What was found of a source.
#[derive(Clone, Debug)]
pub enum SourceFindings {
    Directory(DirectoryFindings),
    Store(StoreFindings),
}

impl SourceFindings {
    /// Bytes a second that one reader gets. None if there was nothing to read.
    pub fn read(&self) -> Option<u64> {
        match self {
            SourceFindings::Directory(directory) => directory.read,
            SourceFindings::Store(store) => store.read,
        }
    }
}

/// A bucket of an object store, a database, a web server, or archives.
#[derive(Clone, Debug)]
pub struct StoreFindings {
    pub name: String,
    /// The shortest time that a read took, in milliseconds. None if there was nothing to read.
    pub answer_ms: Option<f64>,
    /// Bytes a second that one reader gets.
    pub read: Option<u64>,
    /// What to change at the store.
    pub advice: Option<String>,
}

/// The source or the cache directory.
#[derive(Clone, Debug)]
pub struct DirectoryFindings {
    pub path: String,
    pub filesystem: Filesystem,
    pub writable: bool,
    /// Whether files can be read past the page cache. None if there was no file.
    pub direct: Option<bool>,
    /// Bytes a second of sequential reading. None if there was nothing to read.
    pub read: Option<u64>,
    /// Bytes a second of sequential writing. None for the source, which is never written to.
    pub write: Option<u64>,
}
