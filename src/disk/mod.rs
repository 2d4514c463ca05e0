//! A directory of a local disk: what its users ask of it, and what becomes of it.
//!
//! 1. A [`Disk`] is a directory of files, a [`Blob`] one of them; [`Directory`] is the real one. The store
//!    and the buffers of rehearsal write to such directories.
//! 2. `health` counts errors and looks at the free space: a disk that fails or is full is left alone for a
//!    while.
//! 3. `calls` notes each call until it is answered, and so knows a disk that hangs.
//! 4. [`journal`] is a log that is only appended to; [`AtomicFile`] is a file that is replaced as a whole.
//!
//! The other disk is the model of the tests, which knows what a crash may leave of what was
//! written. Both promise the same, and no more: what was written is there for later reads at once,
//! and after a crash if it was synced. A name is there after a crash if the names were synced.

mod alarm;
mod atomic_file;
mod calls;
mod ending;
mod health;
pub mod journal;
mod pages;
mod state;
#[cfg(test)]
pub(crate) mod tests;

use std::fs::File;
use std::io::{Error, ErrorKind, IoSliceMut, Result};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{self, AtFlags, FallocateFlags, OFlag, PosixFadviseAdvice, fallocate};
use nix::libc;
use nix::sys::stat::{Mode, fstat, fstatat};
use nix::sys::statvfs::fstatvfs;
use nix::unistd::{UnlinkatFlags, fsync, ftruncate, unlinkat};
use rustix::io::{ReadWriteFlags, preadv2};

use crate::ids::PAGE_BYTES;
pub use alarm::Alarm;
pub use atomic_file::{AtomicFile, hold, unguessable};
#[cfg(test)]
pub(crate) use calls::HANGS_AFTER;
pub(crate) use calls::looks_in;
pub use calls::{LOOK_EVERY, Standstill, Watch, unless_it_hangs};
pub use ending::{STOP_PATIENCE, ends};
pub(crate) use health::{Health, has_no_room};
pub use pages::Buffer;
pub use state::DiskState;

/// What a disk has left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// Bytes that we may still write.
    pub bytes: u64,
    /// Bytes of the whole disk; 0 where our place on it is gone for good.
    pub total: u64,
    /// Files that may still be made; none where the filesystem does not count them.
    pub files: Option<u64>,
}

/// How a file is written and read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// Whole pages at page boundaries, past the page cache where that is possible.
    Pages,
    /// Any bytes, small and often.
    Log,
}

/// A directory of files. All calls block.
pub trait Disk: Send + Sync {
    /// The files that there are, with their lengths in bytes.
    fn names(&self) -> Result<Vec<(String, u64)>>;

    /// Makes a new file.
    fn create(&self, name: &str, how: Use) -> Result<Arc<dyn Blob>>;

    /// Opens a file.
    fn open(&self, name: &str, how: Use) -> Result<Arc<dyn Blob>>;

    /// Gives a file another name, over what has that name.
    fn rename(&self, from: &str, to: &str) -> Result<()>;

    /// Cuts a file to a length and opens it for others, who read it by themselves.
    fn lend(&self, name: &str, length: u64) -> Result<OwnedFd>;

    /// Deletes a file; those who have it open can go on.
    fn remove(&self, name: &str) -> Result<()>;

    /// Makes the names last.
    fn sync_names(&self) -> Result<()>;

    /// What is left.
    fn space(&self) -> Result<Space>;
}

/// One file of a [`Disk`]. All calls block.
pub trait Blob: Send + Sync {
    /// Fills `bytes` from an offset; `UnexpectedEof` where the file ends before. What its last page
    /// does not have is zeros.
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> Result<()>;

    /// Fills `bytes` from an offset if all of them are in memory, and says whether they are. Never waits
    /// for the disk.
    fn peek_at(&self, _bytes: &mut [u8], _offset: u64) -> bool {
        false
    }

    /// Has bytes in memory, where the disk keeps some there, for whoever reads them next.
    fn warm(&self, offset: u64, length: u64) -> Result<()> {
        self.read_at(&mut vec![0; length as usize], offset)
    }

    /// Writes at an offset, past the end perhaps.
    fn write_at(&self, bytes: &[u8], offset: u64) -> Result<()>;

    /// Ends the file here.
    fn cut(&self, length: u64) -> Result<()>;

    /// Gives the space of whole pages back; they read as zeros, or as they were.
    fn punch(&self, offset: u64, length: u64) -> Result<()>;

    /// Makes what was written last.
    fn sync(&self) -> Result<()>;
}

/// A directory of a local filesystem.
///
/// Pages are written and read past the page cache (`O_DIRECT`): a second copy there, beside the
/// pages of our own mount, would count against the memory that samples need. Filesystems that
/// cannot do so are used by way of the page cache, which is told to forget.
///
/// The directory is held open, and everything is done beneath it: where somebody puts another one in
/// its place, that one is left alone.
pub struct Directory {
    directory: OwnedFd,
    direct: bool,
}

impl Directory {
    /// The directory; `direct` is whether to go past the page cache where that is possible.
    pub fn open(path: &Path, direct: bool) -> Result<Self> {
        let flags = OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let directory = fcntl::open(path, flags, Mode::empty())?;
        Ok(Directory { direct: direct && takes_direct(&directory), directory })
    }

    /// Whether pages go past the page cache.
    pub fn is_direct(&self) -> bool {
        self.direct
    }

    fn file(&self, name: &str, how: Use, flags: OFlag) -> Result<Arc<dyn Blob>> {
        let direct = how == Use::Pages && self.direct;
        let flags = flags | OFlag::O_RDWR | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let flags = if direct { flags | OFlag::O_DIRECT } else { flags };
        let file = File::from(fcntl::openat(&self.directory, name, flags, OWNER_ONLY)?);
        Ok(Arc::new(LocalFile { file, direct, forget: how == Use::Pages && !direct }))
    }
}

/// The rights of a new file.
const OWNER_ONLY: Mode = Mode::S_IRUSR.union(Mode::S_IWUSR);

/// The page that is tried; what a kill has left of it goes at the next try.
const PROBE: &str = "probe";

/// Tries a page; some filesystems refuse only the write.
fn takes_direct(directory: &OwnedFd) -> bool {
    let remove = || unlinkat(directory, PROBE, UnlinkatFlags::NoRemoveDir);
    let _ = remove();
    let flags = OFlag::O_RDWR | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_CLOEXEC | OFlag::O_DIRECT;
    let opened = fcntl::openat(directory, PROBE, flags, OWNER_ONLY).map_err(Error::from);
    let mut page = Buffer::pages(PAGE_BYTES as usize);
    let tried = opened.and_then(|file| File::from(file).write_all_at(page.pages_mut(), 0));
    // It may be there also where it could not be opened.
    let _ = remove();
    !tried.is_err_and(|error| error.raw_os_error() == Some(libc::EINVAL))
}

impl Disk for Directory {
    fn names(&self) -> Result<Vec<(String, u64)>> {
        let mut names = Vec::new();
        let flags = OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        for entry in Dir::openat(&self.directory, ".", flags, Mode::empty())?.iter() {
            let entry = entry?;
            let flags = AtFlags::AT_SYMLINK_NOFOLLOW;
            let found = match fstatat(&self.directory, entry.file_name(), flags) {
                // Whoever has the store in use deletes files.
                Err(Errno::ENOENT) => continue,
                found => found?,
            };
            let is_file = found.st_mode & libc::S_IFMT == libc::S_IFREG;
            if let (Ok(name), true) = (entry.file_name().to_str(), is_file) {
                names.push((name.to_owned(), found.st_size as u64));
            }
        }
        Ok(names)
    }

    fn create(&self, name: &str, how: Use) -> Result<Arc<dyn Blob>> {
        self.file(name, how, OFlag::O_CREAT | OFlag::O_EXCL)
    }

    fn open(&self, name: &str, how: Use) -> Result<Arc<dyn Blob>> {
        self.file(name, how, OFlag::empty())
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        Ok(fcntl::renameat(&self.directory, from, &self.directory, to)?)
    }

    fn lend(&self, name: &str, length: u64) -> Result<OwnedFd> {
        let flags = OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let writable = fcntl::openat(&self.directory, name, flags | OFlag::O_RDWR, OWNER_ONLY)?;
        if fstat(&writable)?.st_size.cast_unsigned() < length {
            return Err(Error::from(ErrorKind::UnexpectedEof));
        }
        ftruncate(&writable, length.cast_signed())?;
        Ok(fcntl::openat(&self.directory, name, flags, Mode::empty())?)
    }

    fn remove(&self, name: &str) -> Result<()> {
        Ok(unlinkat(&self.directory, name, UnlinkatFlags::NoRemoveDir)?)
    }

    fn sync_names(&self) -> Result<()> {
        Ok(fsync(&self.directory)?)
    }

    fn space(&self) -> Result<Space> {
        // A directory that has been deleted can hold nothing any more.
        if fstat(&self.directory)?.st_nlink == 0 {
            return Ok(Space { bytes: 0, total: 0, files: None });
        }
        let space = fstatvfs(&self.directory)?;
        Ok(Space {
            bytes: space.blocks_available() * space.fragment_size(),
            total: space.blocks() * space.fragment_size(),
            files: (space.files() > 0).then(|| space.files_available()),
        })
    }
}

/// What the kernel reads ahead at once, where it is asked to, on any disk.
const AHEAD_BYTES: usize = 128 << 10;

struct LocalFile {
    file: File,
    /// Whether it is read and written past the page cache.
    direct: bool,
    /// Whether what the page cache holds of it is of no use.
    forget: bool,
}

impl LocalFile {
    fn forget(&self, offset: u64, length: usize) {
        if self.forget {
            // Dirty pages stay until they are written; the next read of them drops them.
            let advice = PosixFadviseAdvice::POSIX_FADV_DONTNEED;
            let _ = fcntl::posix_fadvise(&self.file, offset as i64, length as i64, advice);
        }
    }
}

impl Blob for LocalFile {
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> Result<()> {
        let mut read = 0;
        while read < bytes.len() {
            match self.file.read_at(&mut bytes[read..], offset + read as u64) {
                Ok(0) => break,
                Ok(count) => read += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
            // Past the page cache nothing can be read from there on: it is the end.
            if !read.is_multiple_of(PAGE_BYTES as usize) && self.direct {
                break;
            }
        }
        if bytes.len() - read >= PAGE_BYTES as usize {
            return Err(Error::from(ErrorKind::UnexpectedEof));
        }
        bytes[read..].fill(0);
        self.forget(offset, bytes.len());
        Ok(())
    }

    fn peek_at(&self, bytes: &mut [u8], offset: u64) -> bool {
        if self.direct {
            return false;
        }
        let length = bytes.len();
        let mut parts = [IoSliceMut::new(bytes)];
        // Refused by filesystems that cannot promise not to wait.
        let read = preadv2(&self.file, &mut parts, offset, ReadWriteFlags::NOWAIT);
        read.is_ok_and(|count| count == length)
    }

    /// All are asked for before any is waited for, and only the last of each piece is copied.
    fn warm(&self, offset: u64, length: u64) -> Result<()> {
        let pieces = (offset..offset + length).step_by(AHEAD_BYTES);
        let end_of = |from: u64| (from + AHEAD_BYTES as u64).min(offset + length);
        for from in pieces.clone() {
            let (at, bytes) = (from.cast_signed(), (end_of(from) - from).cast_signed());
            // Where it cannot be asked for, it is read below.
            let _ = fcntl::posix_fadvise(
                &self.file,
                at,
                bytes,
                PosixFadviseAdvice::POSIX_FADV_WILLNEED,
            );
        }
        pieces.into_iter().try_for_each(|from| self.file.read_exact_at(&mut [0], end_of(from) - 1))
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> Result<()> {
        self.file.write_all_at(bytes, offset)?;
        self.forget(offset, bytes.len());
        Ok(())
    }

    fn cut(&self, length: u64) -> Result<()> {
        self.file.set_len(length)
    }

    fn punch(&self, offset: u64, length: u64) -> Result<()> {
        let punch = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
        Ok(fallocate(&self.file, punch, offset as i64, length as i64)?)
    }

    fn sync(&self) -> Result<()> {
        self.file.sync_data()
    }
}
