//! What a machine offers, judged: can belady mount and run here, and what would make it better.
//!
//! Others look ([`Findings`] are what they saw); here it is decided what that means. [`judge`]
//! gives a row for each thing that matters: whether it is there, what was found, and the fix.

mod filesystem;
mod judge;
mod system;
#[cfg(test)]
mod tests;

pub use filesystem::Filesystem;
pub use judge::{Row, Verdict, judge, missing};
pub use system::{Deadlock, System, hazards};

/// Everything that was found. An `Err` says in words what stood in the way.
#[derive(Clone, Debug)]
pub struct Findings {
    /// Whether the user is root.
    pub root: bool,
    /// Whether `/dev/fuse` can be opened.
    pub device: Result<(), String>,
    /// The program that mounts for users other than root, if there is one.
    pub fusermount: Option<Fusermount>,
    /// Whether `/etc/fuse.conf` lets users mount for others.
    pub user_allow_other: bool,
    /// What a throwaway mount showed.
    pub mount: Result<Kernel, String>,
    /// Whether openat2(2) works, without which the source is not reached.
    pub openat2: Result<(), String>,
    /// Whether cachestat(2) works.
    pub cachestat: Result<(), String>,
    /// Whether the user can end a connection of a daemon that was killed.
    pub can_abort: bool,
    /// Files that a process may have open.
    pub open_files: u64,
    /// Processes and threads that the user may have.
    pub processes: u64,
    /// For how many nanoseconds an idle processor of this virtual machine waits for work before it
    /// is given up; none where that is not the machine's own business.
    pub halt_poll_ns: Option<u64>,
    /// Where the kernel takes pages back that were not touched for a while, though memory is free: what
    /// switches that off.
    pub reclaim: Option<String>,
    /// The kernel, and what it may do to a mount.
    pub system: System,
    pub memory: Memory,
    /// The directory of control sockets.
    pub runtime: Result<String, String>,
    /// The source, if one was named.
    pub source: Option<Result<Directory, String>>,
    /// The cache directory, if one was named.
    pub cache: Option<Result<Directory, String>>,
}

/// `fusermount3`.
#[derive(Clone, Debug)]
pub struct Fusermount {
    pub path: String,
    /// Its version, as it says itself.
    pub version: String,
    /// Whether it is setuid root, without which it mounts nothing.
    pub setuid: bool,
}

/// What the kernel's FUSE can do.
#[derive(Clone, Debug)]
pub struct Kernel {
    /// Version of the protocol.
    pub abi: (u32, u32),
    /// Listings that bring attributes along.
    pub readdirplus: bool,
    /// Lookups in one directory at the same time.
    pub parallel_dirops: bool,
    /// Requests of a mebibyte.
    pub max_pages: bool,
    /// Opens without a request.
    pub no_open: bool,
    /// Whether pushed bytes were read back from the page cache.
    pub store: Result<(), String>,
    /// Whether a name can be let expire without being dropped.
    pub expire: Result<(), String>,
    /// Whether reads may go to a file of another filesystem past the daemon.
    pub passthrough: Result<(), String>,
}

/// Memory and the budget that would result from it, in bytes.
#[derive(Clone, Debug)]
pub struct Memory {
    /// The least limit: the machine's memory or a cgroup's.
    pub limit: u64,
    /// What can be had without pushing others out.
    pub available: u64,
    /// The RAM budget at this moment.
    pub budget: u64,
    /// How that was decided.
    pub because: String,
}

/// The source or the cache directory.
#[derive(Clone, Debug)]
pub struct Directory {
    pub path: String,
    pub filesystem: Filesystem,
    /// Whether the user may write there.
    pub writable: bool,
    /// Whether files can be read past the page cache; none where there was no file to try.
    pub direct: Option<bool>,
    /// Bytes a second of sequential reading, none where there was nothing to read.
    pub read: Option<u64>,
    /// Bytes a second of sequential writing; the source is never written to.
    pub write: Option<u64>,
}
