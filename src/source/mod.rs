//! Where the bytes come from: the directory on the parallel filesystem.
//!
//! A [`Source`] lists directories, tells what a name is, and reads byte ranges, any number at once
//! and completing in any order. What it reads it checks against the [`Fingerprint`] that the
//! catalog has: bytes of another version of the file are never handed out under this one's name.

mod held;
mod image;
#[cfg(test)]
pub(crate) mod instead;
mod keyed_pool;
mod pool;
mod posix;
mod reading;

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::sync::Arc;

pub use keyed_pool::{KeyedPool, Place};
use nix::errno::Errno;
pub use pool::{Pool, Urgency};
pub use posix::PosixSource;
use serde::{Deserialize, Serialize};

/// Identity of one version of a file: device, inode, size, modification and change time. Equal
/// bytes, equal content.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fingerprint(pub [u8; 40]);

impl Fingerprint {
    /// What stays the same over mounts of the source and starts of the machine: all but the
    /// device, whose number a network filesystem is given anew each time.
    pub fn lasting(&self) -> &[u8] {
        &self.0[8..]
    }

    /// Bytes of the file.
    pub fn size(&self) -> u64 {
        let mut size = [0; 8];
        size.copy_from_slice(&self.0[16..24]);
        u64::from_le_bytes(size)
    }

    /// Whether these are one content: at most the time of the last change differs, which a new name,
    /// other rights or an attribute set as well.
    pub fn is_content_of(&self, other: &Fingerprint) -> bool {
        self.0[..32] == other.0[..32]
    }
}

impl std::fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Fingerprint(")?;
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))?;
        f.write_str(")")
    }
}

/// What kind of thing a name stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Kind {
    File,
    Directory,
    Symlink,
    /// A FIFO, shown but never opened.
    Fifo,
    /// A socket, shown but never opened.
    Socket,
    /// A character device, shown but never opened.
    CharDevice,
    /// A block device, shown but never opened.
    BlockDevice,
}

/// What `stat` tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    /// The kind of the thing.
    pub kind: Kind,
    /// Permission bits, with setuid, setgid and sticky.
    pub mode: u16,
    /// Number of hard links.
    pub links: u32,
    pub uid: u32,
    pub gid: u32,
    /// Device number of a device.
    pub rdev: u32,
    pub size: u64,
    /// Blocks of 512 bytes.
    pub blocks: u64,
    /// Times of last access, modification and change in nanoseconds since 1970.
    pub atime_ns: i64,
    pub mtime_ns: i64,
    pub ctime_ns: i64,
    /// Device and inode, whatever the version: hard links share them.
    pub identity: (u64, u64),
}

impl Stat {
    /// Identity of this version.
    pub fn fingerprint(&self) -> Fingerprint {
        let (device, inode) = self.identity;
        let fields = [device, inode, self.size, self.mtime_ns as u64, self.ctime_ns as u64];
        let mut bytes = [0; 40];
        for (slot, field) in bytes.chunks_exact_mut(8).zip(fields) {
            slot.copy_from_slice(&field.to_le_bytes());
        }
        Fingerprint(bytes)
    }
}

/// Why a read gave no bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadError {
    /// The source's own error.
    Source(Errno),
    /// The file is another version than the one asked for.
    Changed,
}

/// Takes the bytes of a read, exactly as many as were asked for, or the error. It is called on a
/// thread that may block.
pub type Deliver = Box<dyn FnOnce(Result<Vec<u8>, ReadError>) + Send>;

/// One byte range to read.
pub struct ReadRequest {
    /// Path below the source's root.
    pub path: Arc<Path>,
    pub fingerprint: Fingerprint,
    /// Whether another time of the last change alone makes it another version.
    pub exact: bool,
    pub offset: u64,
    /// Number of bytes; the version has at least `offset + length`.
    pub length: usize,
    pub urgency: Urgency,
    pub deliver: Deliver,
}

impl ReadRequest {
    /// Whether the file has more than what is asked for.
    pub fn is_part(&self) -> bool {
        (self.length as u64) < self.fingerprint.size()
    }
}

/// A store of files by path that belady reads and never writes.
///
/// All methods but [`read`](Source::read) and [`look`](Source::look) may block. They are called on threads
/// that may wait.
pub trait Source: Send + Sync + 'static {
    /// What tells this source from others, the same at each mount of it; 0 where nothing does.
    fn lasting_identity(&self) -> u128 {
        0
    }

    /// Names in a directory, in any order, some at a time as the source tells of them. Many a
    /// filesystem has what they are at hand for who asks before the next.
    fn list_in_parts(
        &self,
        directory: &Path,
        each: &mut dyn FnMut(&[OsString]),
    ) -> Result<(), Errno>;

    /// What a path is; a link is not followed.
    fn stat(&self, path: &Path) -> Result<Stat, Errno>;

    /// As [`stat`](Source::stat), by the word of the filesystem's servers: what its client on this
    /// machine remembers does not count.
    fn stat_anew(&self, path: &Path) -> Result<Stat, Errno> {
        self.stat(path)
    }

    /// What several names of one directory are. A name that is gone is an error of its own.
    fn stat_all(&self, directory: &Path, names: &[OsString]) -> Vec<Result<Stat, Errno>> {
        names.iter().map(|name| self.stat(&directory.join(name))).collect()
    }

    /// What the names of a directory are as far as its listing tells, for those that cannot be asked
    /// themselves.
    fn listed_kinds(&self, _directory: &Path) -> HashMap<OsString, Kind> {
        HashMap::new()
    }

    /// Where a link points.
    fn read_link(&self, path: &Path) -> Result<OsString, Errno>;

    /// Names of a path's extended attributes, each ended by a NUL.
    fn list_xattrs(&self, path: &Path) -> Result<Vec<u8>, Errno>;

    /// One extended attribute.
    fn xattr(&self, path: &Path, name: &OsStr) -> Result<Vec<u8>, Errno>;

    /// Space of the filesystem: blocks, free, available, files, free files, block size, longest
    /// name.
    fn space(&self) -> Result<[u64; 7], Errno>;

    /// Lets go of what has not been read for a while. To be called every second or so; never blocks.
    fn look(&self) {}

    /// Starts to read ranges, which complete in any order, each by its own delivery.
    fn read(&self, requests: Vec<ReadRequest>);
}
