//! A directory of a local disk: its operations, its health, and files that survive a crash.
//!
//! 1. A [`Disk`] is a directory of files, and a [`Blob`] is one of its files. [`Directory`] is the real
//!    one. The store and the rehearsal buffers write to such directories.
//! 2. `health` counts errors and checks the free space. A disk that fails or is full is not used for a
//!    while.
//! 3. `hangs` notes each call until it is answered, and so detects a disk that hangs.
//! 4. [`journal`] is an append-only log. [`AtomicFile`] is a file that is replaced as a whole.
//!
//! The other [`Disk`] is the model of the tests, which knows what a crash may leave. Both promise the same,
//! and no more: written bytes can be read at once, and survive a crash if they were synced. A name survives
//! a crash if the names were synced.

mod alarm;
mod atomic_file;
mod ending;
mod hangs;
mod health;
pub mod journal;
mod pages;
mod spare;
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
pub use ending::{STOP_PATIENCE, wait_for_end};
#[cfg(test)]
pub(crate) use hangs::HANGS_AFTER;
pub(crate) use hangs::ticks_in;
pub use hangs::{DiskWatch, StallDetector, TICK, unless_it_hangs};
pub(crate) use health::{Health, has_no_room};
pub use pages::Buffer;
pub use spare::memory_for;
pub use state::DiskState;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// Bytes that we may still write.
    pub bytes: u64,
    /// Bytes of the whole disk. 0 if our directory on it was deleted.
    pub total: u64,
    /// Files that may still be created. None if the filesystem does not count them.
    pub files: Option<u64>,
}

/// How a file is written and read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// Whole pages at page boundaries, past the page cache if possible.
    Pages,
    /// Any bytes, small and often.
    Log,
}

/// A directory of files. All calls block.
pub trait Disk: Send + Sync {
    /// The files, with their lengths in bytes.
    fn names(&self) -> Result<Vec<(String, u64)>>;

    fn create(&self, name: &str, how: Use) -> Result<Arc<dyn Blob>>;

    fn open(&self, name: &str, how: Use) -> Result<Arc<dyn Blob>>;

    /// Renames a file, and replaces a file that has the new name.
    fn rename(&self, from: &str, to: &str) -> Result<()>;

    /// Cuts a file to a length, and opens it so that the kernel can read it by itself (passthrough).
    fn open_passthrough(&self, name: &str, length: u64) -> Result<OwnedFd>;

    /// Deletes a file. It can still be used where it is open.
    fn remove(&self, name: &str) -> Result<()>;

    /// Makes the names durable.
    fn sync_names(&self) -> Result<()>;

    fn space(&self) -> Result<Space>;
}

/// One file of a [`Disk`]. All calls block.
pub trait Blob: Send + Sync {
    /// Fills `bytes` from an offset. Gives `UnexpectedEof` if the file lacks a page or more of them. A
    /// smaller rest is filled with zeros.
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> Result<()>;

    /// Fills `bytes` from an offset if all of them are in memory, and returns whether they are. Never waits
    /// for the disk.
    fn peek_at(&self, _bytes: &mut [u8], _offset: u64) -> bool {
        false
    }

    /// Loads bytes into the page cache if the disk uses it, for the next read.
    fn warm(&self, offset: u64, length: u64) -> Result<()> {
        self.read_at(&mut vec![0; length as usize], offset)
    }

    /// Writes at an offset, which may be past the end.
    fn write_at(&self, bytes: &[u8], offset: u64) -> Result<()>;

    fn cut(&self, length: u64) -> Result<()>;

    /// Gives the space of whole pages back. They then read as zeros, or as before.
    fn punch(&self, offset: u64, length: u64) -> Result<()>;

    /// Makes what was written durable.
    fn sync(&self) -> Result<()>;
}

/// A directory of a local filesystem.
///
/// Pages are written and read past the page cache (`O_DIRECT`). A second copy there, beside the pages of
/// our own mount, would take memory that samples need. Filesystems without `O_DIRECT` are used through the
/// page cache, which is told to drop the pages.
///
/// The directory is held open, and all work is done beneath it. If another directory takes its place, that
/// one is not touched.
pub struct Directory {
    directory: OwnedFd,
    direct: bool,
}

impl Directory {
    /// Opens a directory. With `direct`, pages go past the page cache if possible.
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
        Ok(Arc::new(LocalFile { file, direct, drop_pages: how == Use::Pages && !direct }))
    }
}

const OWNER_ONLY: Mode = Mode::S_IRUSR.union(Mode::S_IWUSR);

/// The file of the test page. If a kill leaves it, the next test removes it.
const PROBE: &str = "probe";

/// Writes a test page: some filesystems refuse only the write.
fn takes_direct(directory: &OwnedFd) -> bool {
    let remove = || unlinkat(directory, PROBE, UnlinkatFlags::NoRemoveDir);
    let _ = remove();
    let flags = OFlag::O_RDWR | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_CLOEXEC | OFlag::O_DIRECT;
    let opened = fcntl::openat(directory, PROBE, flags, OWNER_ONLY).map_err(Error::from);
    let mut page = Buffer::pages(PAGE_BYTES as usize);
    let tried = opened.and_then(|file| File::from(file).write_all_at(page.pages_mut(), 0));
    // It may exist even if it could not be opened.
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
                // The process that uses the store deletes files.
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

    fn open_passthrough(&self, name: &str, length: u64) -> Result<OwnedFd> {
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
        // A deleted directory can hold nothing any more.
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

/// What the kernel reads ahead at once on request, on any disk.
const AHEAD_BYTES: usize = 128 << 10;

struct LocalFile {
    file: File,
    /// Whether it is read and written past the page cache.
    direct: bool,
    /// Whether pages of it in the page cache are of no use.
    drop_pages: bool,
}

impl LocalFile {
    fn drop_pages(&self, offset: u64, length: usize) {
        if self.drop_pages {
            // Dirty pages stay until they are written. The next read of them drops them.
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
            // Past the page cache, a read cannot continue from there: it is the end.
            if !read.is_multiple_of(PAGE_BYTES as usize) && self.direct {
                break;
            }
        }
        if bytes.len() - read >= PAGE_BYTES as usize {
            return Err(Error::from(ErrorKind::UnexpectedEof));
        }
        bytes[read..].fill(0);
        self.drop_pages(offset, bytes.len());
        Ok(())
    }

    fn peek_at(&self, bytes: &mut [u8], offset: u64) -> bool {
        if self.direct {
            return false;
        }
        let length = bytes.len();
        let mut parts = [IoSliceMut::new(bytes)];
        // Filesystems that cannot promise not to wait refuse this.
        let read = preadv2(&self.file, &mut parts, offset, ReadWriteFlags::NOWAIT);
        read.is_ok_and(|count| count == length)
    }

    /// Requests all pieces before it waits for any, and copies only the last byte of each.
    fn warm(&self, offset: u64, length: u64) -> Result<()> {
        let pieces = (offset..offset + length).step_by(AHEAD_BYTES);
        let end_of = |from: u64| (from + AHEAD_BYTES as u64).min(offset + length);
        for from in pieces.clone() {
            let (at, bytes) = (from.cast_signed(), (end_of(from) - from).cast_signed());
            // If the request fails, the piece is read below.
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
        self.drop_pages(offset, bytes.len());
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
