//! A directory of a mounted filesystem as a source.
//!
//! All paths are reached beneath one directory descriptor, which is opened before anything is mounted.
//! `openat2` is called with `RESOLVE_BENEATH` and `RESOLVE_NO_SYMLINKS`. So neither a link in the tree nor
//! our own mount over the same path can lead elsewhere. `file_reader` describes how bytes are read.

use std::collections::HashMap;
use std::ffi::{CString, OsStr, OsString};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::dir::{Dir, Type};
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, OpenHow, ResolveFlag, openat2};
use nix::libc;
use nix::sys::stat::{FileStat, Mode, SFlag, fstat, fstatat};
use nix::sys::statvfs::fstatvfs;

use super::file_reader::FileReader;
use super::image;
use super::{Fingerprint, KeyedPool, Kind, ReadRequest, Source, Stat, Urgency};
use crate::error::{Error, ErrorKind, Result as UserResult};

/// Threads that serve only waiting readers.
const RESERVED_THREADS: usize = 16;

/// A read that takes longer is held up: another read gets its slot.
const READ_PATIENCE: Duration = Duration::from_secs(1);

/// Limits of reads under way, including held-up ones: in all and of one file. One file may have more than
/// one held-up read, since a source may be slow without hanging.
const READS_MAX: usize = 1024;
const READS_OF_FILE_MAX: usize = 64;

/// Names of a directory that are reported at a time.
const PART: usize = 64;

pub struct PosixSource {
    root: Arc<OwnedFd>,
    /// The key is a file: it is a file that hangs.
    pool: KeyedPool<Arc<Path>>,
    reader: Arc<FileReader>,
}

impl PosixSource {
    /// Opens the directory. At most `inflight` prefetches run at once.
    pub fn open(directory: &Path, inflight: usize) -> UserResult<Self> {
        let flags = OFlag::O_DIRECTORY | OFlag::O_RDONLY | OFlag::O_CLOEXEC;
        let root = nix::fcntl::open(directory, flags, Mode::empty()).map_err(|errno| {
            let error = Error::new(
                ErrorKind::Source,
                format!("cannot open the source {}: {}", directory.display(), errno.desc()),
            );
            match errno {
                Errno::ENOENT => error.hint("is the parallel filesystem mounted on this node?"),
                Errno::ENOTDIR => {
                    error.hint("SOURCE must be a directory, or with `--as files` an archive")
                }
                Errno::ENOTCONN => error.hint(
                    "a dead FUSE mount is in the way; remove it with `belady umount --force`",
                ),
                _ => error,
            }
        })?;
        let root = Arc::new(root);
        let pool =
            KeyedPool::new("belady-source", READ_PATIENCE, inflight, RESERVED_THREADS, || ());
        let pool = pool.with_limits(READS_MAX, READS_OF_FILE_MAX);
        let reader = Arc::new(FileReader::new(Arc::clone(&root)));
        Ok(PosixSource { root, pool, reader })
    }

    pub fn root(&self) -> BorrowedFd<'_> {
        self.root.as_fd()
    }
}

/// Opens a path beneath the root, without following any link.
pub(super) fn open_beneath(
    root: BorrowedFd<'_>,
    path: &Path,
    flags: OFlag,
) -> Result<OwnedFd, Errno> {
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    let how = OpenHow::new()
        .flags(flags | OFlag::O_CLOEXEC | OFlag::O_NOFOLLOW)
        .resolve(ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_SYMLINKS);
    openat2(root, path, how)
}

pub(super) fn fingerprint(stat: &FileStat) -> Fingerprint {
    convert(stat).fingerprint()
}

fn nanoseconds(seconds: i64, nanoseconds: i64) -> i64 {
    seconds.saturating_mul(1_000_000_000).saturating_add(nanoseconds)
}

fn convert(stat: &FileStat) -> Stat {
    let kind = match SFlag::from_bits_truncate(stat.st_mode & libc::S_IFMT) {
        SFlag::S_IFDIR => Kind::Directory,
        SFlag::S_IFLNK => Kind::Symlink,
        SFlag::S_IFIFO => Kind::Fifo,
        SFlag::S_IFSOCK => Kind::Socket,
        SFlag::S_IFCHR => Kind::CharDevice,
        SFlag::S_IFBLK => Kind::BlockDevice,
        _ => Kind::File,
    };
    Stat {
        kind,
        mode: (stat.st_mode & 0o7777) as u16,
        links: stat.st_nlink as u32,
        uid: stat.st_uid,
        gid: stat.st_gid,
        rdev: stat.st_rdev as u32,
        size: stat.st_size as u64,
        is_sized: true,
        version_has_size: true,
        blocks: stat.st_blocks as u64,
        atime_ns: nanoseconds(stat.st_atime, stat.st_atime_nsec),
        mtime_ns: nanoseconds(stat.st_mtime, stat.st_mtime_nsec),
        ctime_ns: nanoseconds(stat.st_ctime, stat.st_ctime_nsec),
        identity: (stat.st_dev, stat.st_ino),
    }
}

fn kind_of(listed: Type) -> Kind {
    match listed {
        Type::Directory => Kind::Directory,
        Type::Symlink => Kind::Symlink,
        Type::Fifo => Kind::Fifo,
        Type::Socket => Kind::Socket,
        Type::CharacterDevice => Kind::CharDevice,
        Type::BlockDevice => Kind::BlockDevice,
        Type::File => Kind::File,
    }
}

impl Source for PosixSource {
    /// The filesystem's own number, if it has a lasting one, and the directory's inode. For a filesystem
    /// image, the image's own identity replaces the number: there the number is the device's.
    fn lasting_identity(&self) -> u128 {
        let (device, inode) = fstat(&self.root).map_or((0, 0), |stat| (stat.st_dev, stat.st_ino));
        let number = match image::is_image(&self.root) {
            true => image::identity(&image::device(device)),
            false => fstatvfs(&self.root).map_or(0, |space| space.filesystem_id()),
        };
        u128::from(number) << 64 | u128::from(inode)
    }

    fn list_in_parts(
        &self,
        directory: &Path,
        each: &mut dyn FnMut(&[OsString]),
    ) -> Result<(), Errno> {
        let fd = open_beneath(self.root(), directory, OFlag::O_DIRECTORY | OFlag::O_RDONLY)?;
        let mut names = Vec::with_capacity(PART);
        for entry in Dir::from_fd(fd)?.iter() {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if name != b"." && name != b".." {
                names.push(OsString::from_vec(name.to_vec()));
            }
            if names.len() == PART {
                each(&names);
                names.clear();
            }
        }
        if !names.is_empty() {
            each(&names);
        }
        Ok(())
    }

    fn stat(&self, path: &Path) -> Result<Stat, Errno> {
        let fd = open_beneath(self.root(), path, OFlag::O_PATH)?;
        Ok(convert(&fstat(fd)?))
    }

    fn stat_anew(&self, path: &Path) -> Result<Stat, Errno> {
        let fd = open_beneath(self.root(), path, OFlag::O_PATH)?;
        let flags = rustix::fs::AtFlags::EMPTY_PATH
            | rustix::fs::AtFlags::from_bits_retain(libc::AT_STATX_FORCE_SYNC as u32);
        // The call only refreshes what the client remembers. Its result is not used: it has device numbers
        // in another form.
        match rustix::fs::statx(&fd, c"", flags, rustix::fs::StatxFlags::BASIC_STATS) {
            // A container may forbid the call.
            Ok(_) | Err(rustix::io::Errno::PERM | rustix::io::Errno::NOSYS) => {}
            Err(errno) => return Err(Errno::from_raw(errno.raw_os_error())),
        }
        Ok(convert(&fstat(&fd)?))
    }

    fn stat_all(&self, directory: &Path, names: &[OsString]) -> Vec<Result<Stat, Errno>> {
        let flags = OFlag::O_DIRECTORY | OFlag::O_PATH;
        let fd = match open_beneath(self.root(), directory, flags) {
            Ok(fd) => fd,
            Err(errno) => return vec![Err(errno); names.len()],
        };
        let stat = |name: &OsString| {
            fstatat(&fd, name.as_os_str(), AtFlags::AT_SYMLINK_NOFOLLOW).map(|stat| convert(&stat))
        };
        names.iter().map(stat).collect()
    }

    fn listed_kinds(&self, directory: &Path) -> HashMap<OsString, Kind> {
        let flags = OFlag::O_DIRECTORY | OFlag::O_RDONLY;
        let opened = open_beneath(self.root(), directory, flags).and_then(Dir::from_fd);
        let Ok(mut opened) = opened else { return HashMap::new() };
        let kind = |entry: nix::dir::Entry| {
            let name = OsString::from_vec(entry.file_name().to_bytes().to_vec());
            Some((name, kind_of(entry.file_type()?)))
        };
        opened.iter().map_while(Result::ok).filter_map(kind).collect()
    }

    fn read_link(&self, path: &Path) -> Result<OsString, Errno> {
        let fd = open_beneath(self.root(), path, OFlag::O_PATH)?;
        nix::fcntl::readlinkat(fd, "")
    }

    fn list_xattrs(&self, path: &Path) -> Result<Vec<u8>, Errno> {
        let (_fd, path) = self.proc_path(path)?;
        growing(|buffer| {
            let (data, length) = (buffer.as_mut_ptr().cast(), buffer.len());
            // SAFETY: the path ends in a NUL and the buffer is valid for its length.
            unsafe { libc::listxattr(path.as_ptr(), data, length) }
        })
    }

    fn xattr(&self, path: &Path, name: &OsStr) -> Result<Vec<u8>, Errno> {
        let (_fd, path) = self.proc_path(path)?;
        let name = CString::new(name.as_bytes()).map_err(|_| Errno::EINVAL)?;
        growing(|buffer| {
            let (data, length) = (buffer.as_mut_ptr().cast(), buffer.len());
            // SAFETY: path and name end in a NUL and the buffer is valid for its length.
            unsafe { libc::getxattr(path.as_ptr(), name.as_ptr(), data, length) }
        })
    }

    fn space(&self) -> Result<[u64; 7], Errno> {
        let space = fstatvfs(&self.root)?;
        Ok([
            space.blocks(),
            space.blocks_free(),
            space.blocks_available(),
            space.files(),
            space.files_free(),
            space.fragment_size(),
            space.name_max(),
        ])
    }

    fn close_idle(&self) {
        let idle = self.reader.take_idle(Instant::now());
        if !idle.is_empty() {
            // Closing a file may wait for its filesystem.
            self.pool.submit(Urgency::Prefetch, Path::new("").into(), move || drop(idle));
        }
    }

    fn read(&self, requests: Vec<ReadRequest>) {
        for request in requests {
            let (reader, path) = (Arc::clone(&self.reader), Arc::clone(&request.path));
            self.pool.submit(request.urgency, path, move || {
                match reader.read(&request) {
                    Ok((bytes, pages)) => {
                        // The pages of a whole file are dropped before its delivery, which may take long:
                        // it pushes the file into our own mount.
                        let pages = request.is_part().then_some(pages);
                        (request.deliver)(Ok(bytes));
                        drop(pages);
                    }
                    Err(error) => (request.deliver)(Err(error)),
                }
            });
        }
    }
}

impl PosixSource {
    /// A path to a file that is opened with `O_PATH`, for calls that take no descriptor. So FIFOs and
    /// devices are not touched.
    fn proc_path(&self, path: &Path) -> Result<(OwnedFd, CString), Errno> {
        let fd = open_beneath(self.root(), path, OFlag::O_PATH)?;
        let link = CString::new(format!("/proc/self/fd/{}", fd.as_raw_fd()));
        Ok((fd, link.map_err(|_| Errno::EINVAL)?))
    }
}

/// Calls with a larger buffer until the answer fits.
fn growing(call: impl Fn(&mut [u8]) -> isize) -> Result<Vec<u8>, Errno> {
    let mut buffer = vec![0; 256];
    loop {
        match Errno::result(call(&mut buffer)) {
            Ok(length) => {
                buffer.truncate(length as usize);
                return Ok(buffer);
            }
            Err(Errno::ERANGE) if buffer.len() < 1 << 20 => buffer.resize(buffer.len() * 4, 0),
            Err(errno) => return Err(errno),
        }
    }
}
