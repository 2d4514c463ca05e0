//! The mount point: what is there, and clearing away what is dead.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;

use nix::errno::Errno;
use nix::mount::{MntFlags, umount2};

use crate::control::{self, MountDirectory, Request};
use crate::error::{Error, ErrorKind, Result};

/// Whether a mount is there whose daemon has died.
pub fn is_dead(mountpoint: &Path) -> bool {
    let errno = fs::metadata(mountpoint).err().and_then(|error| error.raw_os_error());
    errno == Some(Errno::ENOTCONN as i32) || errno == Some(Errno::ECONNABORTED as i32)
}

/// Gets a mount point ready: clears a dead mount away.
///
/// # Errors
/// Where there is no directory, a mount of ours serves there already, or files would be hidden
/// that are not the source's own.
pub fn prepare(source: &Path, mountpoint: &Path) -> Result<()> {
    while is_dead(mountpoint) {
        clear(mountpoint)?;
    }
    let at = mountpoint.display();
    let refuse = |kind, what: &str| Error::new(kind, format!("the mount point {at} {what}"));
    let found = fs::metadata(mountpoint).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => {
            refuse(ErrorKind::Mount, "does not exist").hint(format!("make it: mkdir -p {at}"))
        }
        _ => refuse(ErrorKind::Mount, &format!("cannot be used: {error}")),
    })?;
    if !found.is_dir() {
        return Err(refuse(ErrorKind::Mount, "is not a directory"));
    }
    let socket = MountDirectory::of(mountpoint).socket();
    if socket.exists() && control::call(&socket, &Request::Status).is_ok() {
        return Err(refuse(ErrorKind::Busy, "is in use by another belady")
            .hint(format!("`belady status {at}` shows it, `belady umount {at}` ends it")));
    }
    let same = fs::metadata(source).is_ok_and(|s| (s.dev(), s.ino()) == (found.dev(), found.ino()));
    let empty = fs::read_dir(mountpoint).map(|mut entries| entries.next().is_none());
    if !same && !empty.unwrap_or(true) {
        return Err(refuse(ErrorKind::Mount, "is not empty")
            .hint("what is in it would be hidden; use an empty directory, or the source itself"));
    }
    Ok(())
}

/// Takes a mount away whoever uses it: its files are cut off, the mount point is free at once.
///
/// # Errors
/// Where that is not permitted.
pub fn clear(mountpoint: &Path) -> Result<()> {
    match umount2(mountpoint, MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW) {
        Ok(()) | Err(Errno::EINVAL | Errno::ENOENT) => Ok(()),
        Err(Errno::EPERM) => {
            let status = Command::new("fusermount3").args(["-uzq", "--"]).arg(mountpoint).status();
            if status.is_ok_and(|status| status.success()) {
                return Ok(());
            }
            Err(Error::new(ErrorKind::Mount, format!("cannot unmount {}", mountpoint.display()))
                .hint("it belongs to another user; ask them, or root"))
        }
        Err(errno) => Err(Error::new(
            ErrorKind::Mount,
            format!("cannot unmount {}: {}", mountpoint.display(), errno.desc()),
        )),
    }
}
