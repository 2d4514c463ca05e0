//! The kernel's list of FUSE connections, by which one is ended from outside.
//!
//! Aborting a connection sets every task free that waits in it: readers, our own threads, and a push
//! that waits for pages which a reader's request has locked. It needs no path to the mount, which a
//! lazy unmount takes away. Root reaches the list by a mount of its own that is never attached
//! anywhere; another user needs it mounted at its usual place.

use std::fs::File;
use std::io::{Result, Write};
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{Mode, OFlags, openat};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};

use super::table::is_mounted;

/// Where the list is mounted, if it is.
const LIST: &str = "/sys/fs/fuse/connections";

/// Aborts the connection whose device has this minor number. Says whether that could be asked for.
pub(super) fn abort(minor: u64) -> bool {
    let open = || match own_list() {
        Ok(list) => {
            let file = format!("{minor}/abort");
            Ok(openat(list, file, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?.into())
        }
        Err(_) => File::options().write(true).open(format!("{LIST}/{minor}/abort")),
    };
    open().and_then(|mut file: File| file.write_all(b"1")).is_ok()
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
