//! The mount point: what is there, and clearing away what is dead.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use nix::errno::Errno;
use nix::sys::statvfs::statvfs;

use crate::control::{self, MountDirectory, Request};
use crate::error::{Error, ErrorKind, Result};
use crate::fuse::unmount;

/// Whether a mount is there whose daemon has died.
pub fn is_dead(mountpoint: &Path) -> bool {
    // Attributes may be answered from the kernel's memory; this is asked of the daemon.
    matches!(statvfs(mountpoint), Err(Errno::ENOTCONN | Errno::ECONNABORTED))
}

/// Gets a mount point ready: clears a dead mount away.
///
/// # Errors
/// Where there is no directory, a mount of ours serves there already, or files would be hidden
/// that are not the source's own.
pub fn prepare(source: &Path, mountpoint: &Path) -> Result<()> {
    let at = mountpoint.display();
    let refuse = |kind, what: &str| Error::new(kind, format!("the mount point {at} {what}"));
    let socket = MountDirectory::of(mountpoint).socket();
    if socket.exists() && control::call(&socket, &Request::Status).is_ok() {
        return Err(refuse(ErrorKind::Busy, "is in use by another belady")
            .hint(format!("`belady status {at}` shows it, `belady umount {at}` ends it")));
    }
    while is_dead(mountpoint) {
        unmount(mountpoint, true)?;
    }
    let found = fs::metadata(mountpoint).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => {
            refuse(ErrorKind::Mount, "does not exist").hint(format!("make it: mkdir -p {at}"))
        }
        _ => refuse(ErrorKind::Mount, &format!("cannot be used: {error}")),
    })?;
    if !found.is_dir() {
        return Err(refuse(ErrorKind::Mount, "is not a directory"));
    }
    let same = fs::metadata(source).is_ok_and(|s| (s.dev(), s.ino()) == (found.dev(), found.ino()));
    let empty = fs::read_dir(mountpoint).map(|mut entries| entries.next().is_none());
    if !same && !empty.unwrap_or(true) {
        return Err(refuse(ErrorKind::Mount, "is not empty")
            .hint("what is in it would be hidden; use an empty directory, or the source itself"));
    }
    Ok(())
}
