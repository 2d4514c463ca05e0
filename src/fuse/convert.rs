//! Converts our types to those of the protocol.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{Errno, FileAttr, FileType, INodeNo};
use nix::unistd::{getegid, geteuid};

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
        blocks: stat.blocks,
        mtime: time(stat.mtime_ns),
        ctime: time(stat.ctime_ns),
        crtime: UNIX_EPOCH,
        nlink: stat.links,
        rdev: stat.rdev,
        ..owned_attr(
            attr.node.0,
            (file_type(stat.kind), stat.mode),
            stat.size,
            time(stat.atime_ns),
            (stat.uid, stat.gid),
        )
    }
}

/// Attributes of a node that belongs to the daemon's user.
pub(super) fn daemon_attr(
    node: u64,
    kind: FileType,
    perm: u16,
    size: u64,
    time: SystemTime,
) -> FileAttr {
    owned_attr(node, (kind, perm), size, time, (geteuid().as_raw(), getegid().as_raw()))
}

/// Attributes of a node with one name, all of whose times are the same.
fn owned_attr(
    node: u64,
    (kind, perm): (FileType, u16),
    size: u64,
    time: SystemTime,
    (uid, gid): (u32, u32),
) -> FileAttr {
    FileAttr {
        ino: INodeNo(node),
        size,
        blocks: size.div_ceil(512),
        atime: time,
        mtime: time,
        ctime: time,
        crtime: time,
        kind,
        perm,
        nlink: 1,
        uid,
        gid,
        rdev: 0,
        blksize: 4096,
        flags: 0,
    }
}
