//! Attributes as FUSE wants them.

use std::time::{Duration, SystemTime};

use fuser::{FileAttr, FileType, INodeNo};
use nix::sys::stat::{FileStat, SFlag, major, minor};

/// The attributes of `stat` under inode number `ino`, times in whole seconds if they are `coarse`.
pub(crate) fn from_stat(ino: u64, stat: &FileStat, coarse: bool) -> FileAttr {
    let time = |seconds, nanos| time(seconds, if coarse { 0 } else { nanos });
    FileAttr {
        ino: INodeNo(ino),
        size: stat.st_size.max(0) as u64,
        blocks: stat.st_blocks.max(0) as u64,
        atime: time(stat.st_atime, stat.st_atime_nsec),
        mtime: time(stat.st_mtime, stat.st_mtime_nsec),
        ctime: time(stat.st_ctime, stat.st_ctime_nsec),
        crtime: SystemTime::UNIX_EPOCH,
        kind: kind(stat.st_mode),
        perm: (stat.st_mode & 0o7777) as u16,
        nlink: u32::try_from(stat.st_nlink).unwrap_or(u32::MAX),
        uid: stat.st_uid,
        gid: stat.st_gid,
        rdev: kernel_rdev(stat.st_rdev),
        blksize: u32::try_from(stat.st_blksize).unwrap_or(4096),
        flags: 0,
    }
}

/// The attributes of a virtual file or directory. root owns it, and all users can read it.
pub(crate) fn synthetic(ino: u64, kind: FileType) -> FileAttr {
    let (perm, nlink) = if kind == FileType::Directory { (0o555, 2) } else { (0o444, 1) };
    let now = SystemTime::now();
    FileAttr {
        ino: INodeNo(ino),
        size: 0,
        blocks: 0,
        atime: now,
        mtime: now,
        ctime: now,
        crtime: SystemTime::UNIX_EPOCH,
        kind,
        perm,
        nlink,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 4096,
        flags: 0,
    }
}

/// The kind of file in a mode.
pub(crate) fn kind(mode: u32) -> FileType {
    match SFlag::from_bits_truncate(mode & SFlag::S_IFMT.bits()) {
        SFlag::S_IFDIR => FileType::Directory,
        SFlag::S_IFLNK => FileType::Symlink,
        SFlag::S_IFIFO => FileType::NamedPipe,
        SFlag::S_IFSOCK => FileType::Socket,
        SFlag::S_IFCHR => FileType::CharDevice,
        SFlag::S_IFBLK => FileType::BlockDevice,
        _ => FileType::RegularFile,
    }
}

/// A time of a file. Times before 1970 are negative.
fn time(seconds: i64, nanos: i64) -> SystemTime {
    let whole = Duration::from_secs(seconds.unsigned_abs());
    let base = if seconds >= 0 {
        SystemTime::UNIX_EPOCH.checked_add(whole)
    } else {
        SystemTime::UNIX_EPOCH.checked_sub(whole)
    };
    base.and_then(|base| base.checked_add(Duration::from_nanos(nanos.max(0) as u64)))
        .unwrap_or(SystemTime::UNIX_EPOCH)
}

/// A device number in the 32 bits of the protocol.
fn kernel_rdev(rdev: u64) -> u32 {
    let (major, minor) = (major(rdev), minor(rdev));
    ((minor & 0xff) | (major << 8) | ((minor & !0xff) << 12)) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_before_1970_are_kept() {
        let half = time(-1, 500_000_000);
        let before = SystemTime::UNIX_EPOCH.duration_since(half).expect("it is before");
        assert_eq!(before, Duration::from_millis(500));
    }
}
