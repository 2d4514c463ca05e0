//! Where the bytes come from. That is a directory on a parallel filesystem, a bucket of an object store, a Redis
//! database, rows of Cassandra, or files on a web server. The archives in one of these can be shown as directories, and
//! samples can be made of its samples.
//!
//! A [`Source`] lists directories, gives the attributes of a name, and reads byte ranges. Any number of
//! reads run at once and complete in any order. Each read is checked against the [`Fingerprint`] in the
//! catalog: bytes of another version are never handed out as this version.

mod address;
mod archive;
mod calls;
mod cql;
#[cfg(test)]
#[path = "../../tests/cql_server/mod.rs"]
pub mod cql_server;
mod derived;
mod file_reader;
mod http;
mod image;
mod keyed;
mod keyed_pool;
mod location;
mod object;
mod open_files;
mod opening;
mod pool;
mod posix;
mod prompt;
mod redis;
mod remote;
mod rights;
#[cfg(test)]
pub(crate) mod stub;
#[cfg(test)]
mod tests;
mod tree;

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::sync::Arc;

pub use calls::{Calls, HELD_UP, UnderWay};
pub use derived::{DERIVED, DerivedStatus, Failure, with_derived};
pub use image::is_in_image;
pub use keyed_pool::{JobKey, KeyedPool};
pub use location::Location;
use nix::errno::Errno;
pub use opening::{Opening, lasting_identity};
pub use pool::{Pool, Urgency};
pub use posix::PosixSource;
pub use prompt::is_prompt;
pub use remote::SourceFailures;
pub use rights::{Rights, User};
use serde::{Deserialize, Serialize};

use crate::ids::BLOCK_BYTES;

/// Identity of one version of a file: device, inode, size, modification time and change time. Equal
/// fingerprints mean equal content.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fingerprint(pub [u8; 40]);

impl Fingerprint {
    /// The part that stays the same at each mount of the source and each start of the machine. The device
    /// is left out: a network filesystem gets a new device number each time.
    pub fn lasting(&self) -> &[u8] {
        &self.0[8..]
    }

    pub fn size(&self) -> u64 {
        let mut size = [0; 8];
        size.copy_from_slice(&self.0[16..24]);
        u64::from_le_bytes(size)
    }

    /// The same without the size, which is not always known.
    pub fn without_size(mut self) -> Self {
        self.0[16..24].fill(0);
        self
    }

    /// Whether both are of one inode and have one size.
    fn is_file_of(&self, other: &Fingerprint) -> bool {
        self.0[..24] == other.0[..24]
    }

    /// Whether both have the same content: at most their change times differ. A rename, other rights or a
    /// set attribute change that time, too.
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

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Kind {
    File,
    Directory,
    Symlink,
    /// Shown but never opened, as the following kinds.
    Fifo,
    Socket,
    CharDevice,
    BlockDevice,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    pub kind: Kind,
    /// Permission bits, with setuid, setgid and sticky.
    pub mode: u16,
    pub links: u32,
    pub uid: u32,
    pub gid: u32,
    /// The device number, if it is a device.
    pub rdev: u32,
    pub size: u64,
    /// Whether the file has this size. If not, the size is a guess, and readers are not told of it.
    pub is_sized: bool,
    /// Whether its version is told from others by the size, too. If not, it is known before the size is.
    pub version_has_size: bool,
    /// Blocks of 512 bytes.
    pub blocks: u64,
    /// Times of last access, modification and change in nanoseconds since 1970.
    pub atime_ns: i64,
    pub mtime_ns: i64,
    pub ctime_ns: i64,
    /// Device and inode, whatever the version. Hard links share them.
    pub identity: (u64, u64),
}

impl Stat {
    pub fn fingerprint(&self) -> Fingerprint {
        let (device, inode) = self.identity;
        let fields = [device, inode, self.size, self.mtime_ns as u64, self.ctime_ns as u64];
        let mut bytes = [0; 40];
        for (slot, field) in bytes.chunks_exact_mut(8).zip(fields) {
            slot.copy_from_slice(&field.to_le_bytes());
        }
        Fingerprint(bytes)
    }

    /// The version by which copies are named.
    pub fn copied_version(&self) -> Fingerprint {
        copied_version(self.fingerprint(), self.is_sized, self.version_has_size)
    }

    /// The version as it is known before the size is, if the size does not tell versions apart.
    pub fn first_version(&self) -> Fingerprint {
        copied_version(self.fingerprint(), false, self.version_has_size)
    }

    /// The same, of a file that turns out to have this size.
    pub fn with_size(self, size: u64) -> Self {
        Stat { size, is_sized: true, blocks: size.div_ceil(512), ..self }
    }

    /// The same, with the size of `known` if that is the same version, and this one has none.
    pub fn sized_as(self, known: &Stat) -> Self {
        let Stat { size, is_sized, blocks, .. } = *known;
        let sized = Stat { size, is_sized, blocks, ..self };
        let is_same = sized.fingerprint() == known.fingerprint();
        if !self.is_sized && is_same { sized } else { self }
    }
}

/// The version by which copies of a file are named. If the size does not tell versions apart, copies of a file that is
/// shorter than a block are named without it, so that they can be found before it is known. Without the size, blocks of
/// a larger file would not be known to belong together.
pub fn copied_version(version: Fingerprint, is_sized: bool, has_size: bool) -> Fingerprint {
    let needs_size = has_size || is_sized && version.size() >= BLOCK_BYTES;
    if needs_size { version } else { version.without_size() }
}

/// Whether an error says for certain that a name is gone, or that we may not look at it. Any other error
/// may pass, and must not make samples vanish.
pub fn is_certain(errno: Errno) -> bool {
    matches!(errno, Errno::ENOENT | Errno::ENOTDIR | Errno::EACCES | Errno::EPERM)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadError {
    Source(Errno),
    /// The file has another version than the requested one.
    Changed,
}

/// Takes exactly the requested bytes, or the error. It is called on a thread that may block.
pub type Deliver = Box<dyn FnOnce(Result<Vec<u8>, ReadError>) + Send>;

pub struct ReadRequest {
    pub path: Arc<Path>,
    pub fingerprint: Fingerprint,
    /// Whether the fingerprint has the size of the version. If not, all bytes of the file are delivered, or
    /// [`ReadError::Changed`] if its size has to be asked for first.
    pub is_sized: bool,
    /// Whether a different change time alone makes it another version. If not, files never change.
    pub exact: bool,
    pub offset: u64,
    /// Number of bytes. The version has at least `offset + length`.
    pub length: usize,
    /// Reads that readers wait for go before prefetches. The source itself bounds how many run at once.
    pub urgency: Urgency,
    pub deliver: Deliver,
}

impl ReadRequest {
    pub fn is_part(&self) -> bool {
        self.is_sized && (self.length as u64) < self.fingerprint.size()
    }
}

/// A store of files by path that belady reads and never writes.
///
/// All methods except [`read`](Source::read) and [`close_idle`](Source::close_idle) may block. They are called on
/// threads that may wait.
///
/// - The empty path is the root. It has attributes like any directory.
/// - A directory whose fingerprint has not changed is not listed again. So its times must change if names come or
///   go.
/// - The inodes of names are the same at each mount, the root's too.
/// - Two versions of a file must differ in inode, size or modification time. If only the change time differs, the
///   content is taken for the same.
/// - A read compares the fingerprint of the file before and after, and delivers [`ReadError::Changed`] if it is
///   not the requested one. If files never change, which a request says by not being `exact`, before is enough.
/// - A delivery may block: it may push the bytes into a mount.
/// - A source may not know how large a file is before it is read. [`stat_all`](Source::stat_all) then gives a size
///   that is a guess. [`stat`](Source::stat) reads the file to find it out.
pub trait Source: Send + Sync + 'static {
    /// A number that tells this source from other sources, the same at each mount. With 0, only the path tells
    /// whether a saved catalog and a store belong to the source.
    fn lasting_identity(&self) -> u128;

    /// A number that tells the tree that is shown of this source from other ones of it. A saved catalog is of one tree.
    fn tree_identity(&self) -> u128 {
        self.lasting_identity()
    }

    /// Whether a second request for some bytes may be answered sooner if the first one is late. Not so at a filesystem:
    /// another thread would be late, too.
    fn is_hedged(&self) -> bool {
        false
    }

    /// How often it has said that it is asked too much, and was asked again. Never waits for the source.
    fn overloads(&self) -> u64 {
        0
    }

    /// Requests that it did not answer as it should; `None` if there was none, or if it is a directory of this machine.
    /// Never waits for the source.
    fn failures(&self) -> Option<SourceFailures> {
        None
    }

    /// Tells people what they should change at the source; `None`: nothing. May wait for the source.
    fn advice(&self) -> Option<String> {
        None
    }

    /// Whether the sizes of files are known before they are read.
    fn tells_sizes(&self) -> bool {
        true
    }

    /// The name of a directory in the root that readers find by its name alone: no listing for readers has it.
    fn unlisted(&self) -> Option<&'static str> {
        None
    }

    /// What was made of its samples since the mount.
    fn derived(&self) -> Vec<DerivedStatus> {
        Vec::new()
    }

    /// Whether [`stat_all`](Source::stat_all) asks for one name after the other. If it does, some of the names are
    /// answered sooner than all.
    fn asks_one_by_one(&self) -> bool {
        true
    }

    /// Lists the names in a directory, in any order, a part at a time. Many filesystems have the attributes
    /// of a part at hand if they are asked for before the next part.
    fn list_in_parts(
        &self,
        directory: &Path,
        each: &mut dyn FnMut(&[OsString]),
    ) -> Result<(), Errno>;

    /// Attributes of a path. A link is not followed.
    fn stat(&self, path: &Path) -> Result<Stat, Errno>;

    /// As [`stat`](Source::stat), but answered by the filesystem's servers, not from its client's memory on
    /// this machine.
    fn stat_anew(&self, path: &Path) -> Result<Stat, Errno> {
        self.stat(path)
    }

    /// Attributes of several names in one directory. A missing name gives an error for that name.
    fn stat_all(&self, directory: &Path, names: &[OsString]) -> Vec<Result<Stat, Errno>> {
        names.iter().map(|name| self.stat(&directory.join(name))).collect()
    }

    /// The kinds of the names in a directory, as far as its listing tells. They serve for names whose
    /// `stat` fails.
    fn listed_kinds(&self, _directory: &Path) -> HashMap<OsString, Kind> {
        HashMap::new()
    }

    fn read_link(&self, path: &Path) -> Result<OsString, Errno>;

    /// Names of a path's extended attributes, each ended by a NUL.
    fn list_xattrs(&self, path: &Path) -> Result<Vec<u8>, Errno>;

    fn xattr(&self, path: &Path, name: &OsStr) -> Result<Vec<u8>, Errno>;

    /// Space of the filesystem: blocks, free, available, files, free files, block size, longest name.
    fn space(&self) -> Result<[u64; 7], Errno>;

    /// Tells for each name in a directory whether its file lies right behind the file of the name before it, so that one
    /// request can bring both. `None` if all files lie by themselves. Never waits for the source.
    fn lie_behind(&self, _directory: &Path, _names: &[OsString]) -> Option<Vec<bool>> {
        None
    }

    /// Closes files that have not been read for a while. Called about every second. Never blocks.
    fn close_idle(&self) {}

    /// All bytes of a version of a file have come from elsewhere. It may give them to who asks for them next. Never blocks.
    fn keep(&self, _path: &Path, _version: Fingerprint, _bytes: Vec<u8>) {}

    /// Starts to read ranges. They complete in any order, each by its own delivery. Ranges that lie one behind the other
    /// may come with one request.
    fn read(&self, requests: Vec<ReadRequest>);
}
