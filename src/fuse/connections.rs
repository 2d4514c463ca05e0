//! The kernel's list of FUSE connections, by which one is ended from outside.
//!
//! Aborting a connection sets every task free that waits in it: readers, our own threads, and a push
//! that waits for pages which a reader's request has locked. It needs no path to the mount, which a
//! lazy unmount takes away. Root reaches the list by a mount of its own that is never attached
//! anywhere; another user needs it mounted at its usual place.

use std::fs::File;
use std::io::{Result, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::{Mode, OFlags, openat};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};

use super::table::is_mounted;

/// Where the list is mounted, if it is.
const LIST: &str = "/sys/fs/fuse/connections";

/// Aborts the connection whose device has this minor number. Says whether that could be asked for.
pub(super) fn abort(minor: u64) -> bool {
    let abort = list().and_then(|list| open(&list, minor, "abort", OFlags::WRONLY));
    abort.and_then(|mut file| file.write_all(b"1")).is_ok()
}

/// What ends one connection. It does nothing to a later connection whose device gets the same number:
/// the kernel parts these files from a connection that it forgets.
#[derive(Debug)]
pub struct Switch {
    abort: File,
    /// How many requests wait, in one line.
    waiting: File,
}

impl Switch {
    /// That of the connection whose device has this minor number now.
    pub(super) fn of(minor: u64) -> Option<Self> {
        let list = list().ok()?;
        let abort = open(&list, minor, "abort", OFlags::WRONLY).ok()?;
        Some(Switch { abort, waiting: open(&list, minor, "waiting", OFlags::RDONLY).ok()? })
    }

    /// One whose files are these.
    #[cfg(test)]
    pub fn of_files(abort: &Path, waiting: &Path) -> Result<Self> {
        Ok(Switch {
            abort: File::options().write(true).open(abort)?,
            waiting: File::open(waiting)?,
        })
    }

    /// Whether there is no such connection any more.
    pub fn is_gone(&self) -> bool {
        matches!(self.waiting.read_at(&mut [0; 32], 0), Ok(0))
    }

    /// Aborts the connection. Says whether that could be asked for.
    pub fn abort(&self) -> bool {
        (&self.abort).write_all(b"1").is_ok()
    }
}

/// The root of the list: of a mount of our own, or of the one at its usual place.
fn list() -> Result<OwnedFd> {
    own_list().or_else(|_| File::open(LIST).map(OwnedFd::from))
}

fn open(list: &OwnedFd, minor: u64, name: &str, access: OFlags) -> Result<File> {
    let path = format!("{minor}/{name}");
    Ok(openat(list, path, access | OFlags::CLOEXEC, Mode::empty())?.into())
}

/// Whether this user can abort connections of his own: as root, or by the list at its usual place.
pub fn can_abort() -> bool {
    own_list().is_ok() || is_mounted(Path::new(LIST))
}

/// The root of the list, mounted nowhere. Only root may have it.
fn own_list() -> Result<OwnedFd> {
    let filesystem = fsopen("fusectl", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(&filesystem)?;
    let flags = FsMountFlags::FSMOUNT_CLOEXEC;
    Ok(fsmount(&filesystem, flags, MountAttrFlags::empty())?)
}
