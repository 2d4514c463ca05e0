//! Converts our types to those of the protocol.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{Errno, FileAttr, FileType, INodeNo};

use crate::catalog::Attr;
use crate::source::Kind;

pub(super) fn errno(errno: nix::errno::Errno) -> Errno {
    Errno::from_i32(errno as i32)
}

pub(super) fn file_type(kind: Kind) -> FileType {
    match kind {
        Kind::File => FileType::RegularFile,
        Kind::Directory => FileType::Directory,
        Kind::Symlink => FileType::Symlink,
        Kind::Fifo => FileType::NamedPipe,
        Kind::Socket => FileType::Socket,
        Kind::CharDevice => FileType::CharDevice,
        Kind::BlockDevice => FileType::BlockDevice,
    }
}

fn time(nanoseconds: i64) -> SystemTime {
    let distance = Duration::from_nanos(nanoseconds.unsigned_abs());
    if nanoseconds < 0 { UNIX_EPOCH - distance } else { UNIX_EPOCH + distance }
}

pub(super) fn attr(attr: &Attr) -> FileAttr {
    let stat = &attr.stat;
    FileAttr {
        ino: INodeNo(attr.node.0),
        size: stat.size,
        blocks: stat.blocks,
        atime: time(stat.atime_ns),
        mtime: time(stat.mtime_ns),
        ctime: time(stat.ctime_ns),
        crtime: UNIX_EPOCH,
        kind: file_type(stat.kind),
        perm: stat.mode,
        nlink: stat.links,
        uid: stat.uid,
        gid: stat.gid,
        rdev: stat.rdev,
        blksize: 4096,
        flags: 0,
    }
}
