//! System calls on the source directory.
//!
//! All paths are relative to a descriptor of the source that was opened before the mount. So a filesystem
//! mounted over its own source still reaches what is below.

use std::ffi::{CString, OsStr, OsString};
use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use fuser::{Errno, FileType};
use nix::dir::{Dir, Type};
use nix::fcntl::{AtFlags, OFlag, open, openat, readlinkat};
use nix::libc;
use nix::sys::stat::{FileStat, Mode, fstat, fstatat};
use nix::sys::statvfs::{Statvfs, fstatvfs};
use rustix::buffer::spare_capacity;
use rustix::io::{pread, retry_on_intr};

use super::attr;

/// The error of a system call as FUSE answers it.
fn errno(error: nix::errno::Errno) -> Errno {
    Errno::from_i32(error as i32)
}

/// An entry of a directory.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) name: OsString,
    /// The number of its inode in the source.
    pub(crate) ino: u64,
    /// Its kind, as far as the directory tells.
    pub(crate) kind: FileType,
}

/// The directory that is passed through.
#[derive(Debug)]
pub(crate) struct Source {
    root: OwnedFd,
}

impl Source {
    pub(crate) fn open(path: &Path) -> nix::Result<Self> {
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        Ok(Self { root: open(path, flags, Mode::empty())? })
    }

    /// The attributes of `path`. A symbolic link is not followed.
    pub(crate) fn stat(&self, path: &Path) -> Result<FileStat, Errno> {
        fstatat(&self.root, below(path), AtFlags::AT_SYMLINK_NOFOLLOW).map_err(errno)
    }

    /// Opens a file, with its attributes at that moment.
    pub(crate) fn open_file(&self, path: &Path) -> Result<(File, FileStat), Errno> {
        let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK;
        let fd = openat(&self.root, below(path), flags, Mode::empty()).map_err(errno)?;
        let stat = fstat(&fd).map_err(errno)?;
        Ok((File::from(fd), stat))
    }

    pub(crate) fn readlink(&self, path: &Path) -> Result<OsString, Errno> {
        readlinkat(&self.root, below(path)).map_err(errno)
    }

    /// The entries of a directory in the order of their names, with `.` and `..` first.
    pub(crate) fn list(&self, path: &Path) -> Result<Vec<Entry>, Errno> {
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let mut dir = Dir::openat(&self.root, below(path), flags, Mode::empty()).map_err(errno)?;
        let mut entries = Vec::new();
        for entry in dir.iter() {
            let entry = entry.map_err(errno)?;
            let name = OsStr::from_bytes(entry.file_name().to_bytes()).to_owned();
            let kind = match entry.file_type().and_then(kind) {
                Some(kind) => kind,
                // Some filesystems tell the kind only by a stat.
                None => attr::kind(self.stat(&path.join(&name))?.st_mode),
            };
            entries.push(Entry { name, ino: entry.ino(), kind });
        }
        entries.sort_by(|a, b| rank(&a.name).cmp(&rank(&b.name)).then_with(|| a.name.cmp(&b.name)));
        Ok(entries)
    }

    /// The state of the source's filesystem.
    pub(crate) fn statfs(&self) -> Result<Statvfs, Errno> {
        fstatvfs(&self.root).map_err(errno)
    }

    /// An extended attribute of `path`, or its size if `size` is zero.
    pub(crate) fn getxattr(&self, path: &Path, name: &OsStr, size: u32) -> Result<Xattr, Errno> {
        let name = CString::new(name.as_bytes()).map_err(|_| Errno::EINVAL)?;
        self.xattr(path, size, |path, buffer, len| {
            // SAFETY: both strings end in a zero byte, and `buffer` has room for `len` bytes.
            unsafe { libc::lgetxattr(path.as_ptr(), name.as_ptr(), buffer.cast(), len) }
        })
    }

    /// The names of the extended attributes of `path`, or their size if `size` is zero.
    pub(crate) fn listxattr(&self, path: &Path, size: u32) -> Result<Xattr, Errno> {
        self.xattr(path, size, |path, buffer, len| {
            // SAFETY: `path` ends in a zero byte, and `buffer` has room for `len` bytes.
            unsafe { libc::llistxattr(path.as_ptr(), buffer.cast(), len) }
        })
    }

    /// Calls `call` with a path, a buffer and its length, as both xattr calls need.
    fn xattr(
        &self,
        path: &Path,
        size: u32,
        call: impl Fn(&CString, *mut u8, usize) -> isize,
    ) -> Result<Xattr, Errno> {
        // There is no lgetxattrat: the descriptor of the source is reached through /proc.
        let mut absolute = format!("/proc/self/fd/{}/", self.root.as_raw_fd()).into_bytes();
        absolute.extend_from_slice(below(path).as_os_str().as_bytes());
        let absolute = CString::new(absolute).map_err(|_| Errno::EINVAL)?;
        // No attribute is larger than 64 KiB, whatever room the caller has.
        let mut buffer = vec![0; size.min(1 << 16) as usize];
        let length = call(&absolute, buffer.as_mut_ptr(), buffer.len());
        let Ok(length) = usize::try_from(length) else {
            return Err(errno(nix::errno::Errno::last()));
        };
        if size == 0 {
            return Ok(Xattr::Size(u32::try_from(length).unwrap_or(u32::MAX)));
        }
        buffer.truncate(length);
        Ok(Xattr::Data(buffer))
    }
}

/// The answer to a request for extended attributes.
#[derive(Debug)]
pub(crate) enum Xattr {
    /// The room that is needed, in bytes.
    Size(u32),
    /// The value or the names.
    Data(Vec<u8>),
}

/// Reads up to `size` bytes at `offset`. Fewer only at the end of the file.
pub(crate) fn read(file: &File, offset: u64, size: u32) -> Result<Vec<u8>, Errno> {
    let size = size as usize;
    let mut data = Vec::with_capacity(size);
    while data.len() < size {
        let at = offset + data.len() as u64;
        let read = retry_on_intr(|| pread(file, spare_capacity(&mut data), at));
        if read.map_err(std::io::Error::from)? == 0 {
            break;
        }
    }
    data.truncate(size);
    Ok(data)
}

/// A path for a call relative to the source: the empty path is the source itself.
fn below(path: &Path) -> &Path {
    if path.as_os_str().is_empty() { Path::new(".") } else { path }
}

/// Sorts names for a listing: `.`, then `..`, then the rest.
fn rank(name: &OsStr) -> u8 {
    match name.as_bytes() {
        b"." => 0,
        b".." => 1,
        _ => 2,
    }
}

/// The kind of file that a directory tells.
fn kind(kind: Type) -> Option<FileType> {
    Some(match kind {
        Type::Directory => FileType::Directory,
        Type::Symlink => FileType::Symlink,
        Type::Fifo => FileType::NamedPipe,
        Type::Socket => FileType::Socket,
        Type::CharacterDevice => FileType::CharDevice,
        Type::BlockDevice => FileType::BlockDevice,
        Type::File => FileType::RegularFile,
    })
}
