//! Aborts a FUSE connection from outside, through the kernel's list of connections.
//!
//! Aborting a connection frees every task that waits in it: readers, our own threads, and a push that waits
//! for pages which a reader's request has locked. It needs no path to the mount, which a lazy unmount takes
//! away. Root reaches the list through a mount of its own that is attached nowhere. Another user needs the
//! list mounted at its usual place.

use std::fs::File;
use std::io::{Result, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::{Mode, OFlags, openat};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};

use super::table::is_mounted;

/// The usual place of the list.
const LIST: &str = "/sys/fs/fuse/connections";

/// Aborts the connection whose device has this minor number. Returns whether the kernel took the request.
pub(super) fn abort(minor: u64) -> bool {
    let abort = list().and_then(|list| open(&list, minor, "abort", OFlags::WRONLY));
    abort.and_then(|mut file| file.write_all(b"1")).is_ok()
}

/// The files that abort one connection. They have no effect on a later connection whose device gets the same
/// number: the kernel detaches these files from a connection that it forgets.
#[derive(Debug)]
pub struct AbortHandle {
    abort: File,
    /// The number of waiting requests, in one line.
    waiting: File,
}

impl AbortHandle {
    /// The files of the connection whose device has this minor number now.
    pub(super) fn of(minor: u64) -> Option<Self> {
        let list = list().ok()?;
        let abort = open(&list, minor, "abort", OFlags::WRONLY).ok()?;
        Some(AbortHandle { abort, waiting: open(&list, minor, "waiting", OFlags::RDONLY).ok()? })
    }

    #[cfg(test)]
    pub fn of_files(abort: &Path, waiting: &Path) -> Result<Self> {
        Ok(AbortHandle {
            abort: File::options().write(true).open(abort)?,
            waiting: File::open(waiting)?,
        })
    }

    pub fn is_ended(&self) -> bool {
        matches!(self.waiting.read_at(&mut [0; 32], 0), Ok(0))
    }

    /// Aborts the connection. Returns whether the kernel took the request.
    pub fn abort(&self) -> bool {
        (&self.abort).write_all(b"1").is_ok()
    }
}

/// The root of the list: of our own mount, or of the mount at the usual place.
fn list() -> Result<OwnedFd> {
    own_list().or_else(|_| File::open(LIST).map(OwnedFd::from))
}

fn open(list: &OwnedFd, minor: u64, name: &str, access: OFlags) -> Result<File> {
    let path = format!("{minor}/{name}");
    Ok(openat(list, path, access | OFlags::CLOEXEC, Mode::empty())?.into())
}

/// Whether this user can abort their own connections: as root, or through the list at its usual place.
pub fn can_abort() -> bool {
    own_list().is_ok() || is_mounted(Path::new(LIST))
}

/// The root of the list, in a mount that is attached nowhere. Only root may create it.
fn own_list() -> Result<OwnedFd> {
    let filesystem = fsopen("fusectl", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(&filesystem)?;
    let flags = FsMountFlags::FSMOUNT_CLOEXEC;
    Ok(fsmount(&filesystem, flags, MountAttrFlags::empty())?)
}
