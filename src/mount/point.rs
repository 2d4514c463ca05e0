//! The mount point: its checks, and how dead mounts are cleared away.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use crate::control::{self, MountDirectory, MountNote, Request};
use crate::error::{Error, ErrorKind, Result};
use crate::fuse::{
    abort_any, abort_mount_of, is_aborted, is_belady_mount, is_mount_of, is_mounted,
    path_on_device, unmount,
};
use crate::process::has_ended;
use crate::source::Location;

/// How often, and at which interval, a daemon without mounts is asked whether it has ended.
const END_CHECKS: u32 = 100;
const END_CHECK_PAUSE: Duration = Duration::from_millis(50);

/// Whether a mount is there whose daemon has died. `noted` is its note.
pub fn is_dead(mountpoint: &Path, noted: Option<&MountNote>) -> bool {
    // What is left of a killed daemon may answer nothing, and still keep the mount.
    let killed = noted.is_some_and(|noted| has_ended(noted.pid));
    killed && is_noted(mountpoint, noted) || is_aborted(mountpoint)
}

/// Cuts the noted mount off if its daemon was killed, so that nothing there can hang. Returns whether it was
/// killed. A daemon is asked nothing before this.
pub fn cut_off_killed(mountpoint: &Path, noted: Option<&MountNote>) -> bool {
    let Some(killed) = noted.filter(|noted| has_ended(noted.pid)) else { return false };
    abort_mount_of(mountpoint, &killed.source, killed.device.as_deref());
    true
}

/// Cuts a mount off, whatever its daemon does: the noted one, or another user's.
pub fn cut_off_by_force(mountpoint: &Path, noted: Option<&MountNote>) {
    match noted {
        Some(noted) => abort_mount_of(mountpoint, &noted.source, noted.device.as_deref()),
        None if is_belady_mount(mountpoint) => abort_any(mountpoint),
        None => {}
    }
}

/// Whether the mount at a path is the noted one.
pub fn is_noted(mountpoint: &Path, noted: Option<&MountNote>) -> bool {
    noted.is_some_and(|noted| is_mount_of(mountpoint, &noted.source, noted.device.as_deref()))
}

/// Takes away what is left of a mount: the noted one, a dead one, or by `force` another user's. Other mounts
/// at the path stay.
///
/// # Errors
/// If there is only another mount, or if it is not permitted.
pub fn take_away(mountpoint: &Path, noted: Option<&MountNote>, force: bool) -> Result<()> {
    // `is_dead` comes last: it may wait for a daemon that answers nothing.
    let by_force = || force && noted.is_none() && is_belady_mount(mountpoint);
    if is_noted(mountpoint, noted) || by_force() || is_dead(mountpoint, noted) {
        return unmount(mountpoint, true);
    }
    if noted.is_some() || !is_mounted(mountpoint) {
        return Ok(());
    }
    let what = format!("what is mounted at {} is not known to belady", mountpoint.display());
    Err(Error::new(ErrorKind::Mount, what)
        .hint("`belady status` lists what is; `umount` takes away whatever is mounted last"))
}

/// Gets a mount point ready: clears dead mounts away, and checks it.
///
/// # Errors
/// If other users can write to the directory of the sockets, there is no such mount point, or a mount of ours
/// serves there. Also if the source would contain itself, or files would be hidden that are not the source's.
pub fn prepare(source: &Location, mountpoint: &Path) -> Result<()> {
    let at = mountpoint.display();
    let refuse = |kind, what: &str| Error::new(kind, format!("the mount point {at} {what}"));
    control::create_runtime()?;
    let directory = MountDirectory::of(mountpoint);
    let (socket, noted) = (directory.socket(), directory.read_note());
    if cut_off_killed(mountpoint, noted.as_ref()) {
        // It may lead to another mount of the source, whose daemon would answer for this one.
        directory.clear();
    }
    let mut checks = END_CHECKS;
    while socket.exists() {
        let busy = |what: &str| refuse(ErrorKind::Busy, what);
        match control::call(&socket, &Request::Status) {
            Err(error) if error.kind() == ErrorKind::Timeout && is_mounted(mountpoint) => {
                return Err(busy(&format!("is in use by another belady: {error}")));
            }
            Err(_) => break,
            // It may have been unmounted from outside, and its daemon not noticed yet.
            Ok(_) if is_mounted(mountpoint) || checks == 0 => {
                return Err(busy("is in use by another belady")
                    .hint(format!("`belady status {at}` shows it, `belady umount {at}` ends it")));
            }
            Ok(_) => {}
        }
        checks -= 1;
        thread::sleep(END_CHECK_PAUSE);
    }
    while is_dead(mountpoint, noted.as_ref()) {
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
    let same = source.identity() == Some((found.dev(), found.ino()));
    if !same && source.path().is_some_and(|source| is_inside(mountpoint, source)) {
        return Err(refuse(ErrorKind::Mount, "is inside the source, which would contain itself")
            .hint("use an empty directory outside of it, or the source itself"));
    }
    let empty = fs::read_dir(mountpoint).map(|mut entries| entries.next().is_none());
    if !same && !empty.unwrap_or(true) {
        return Err(refuse(ErrorKind::Mount, "is not empty")
            .hint("what is in it would be hidden; use an empty directory, or the source itself"));
    }
    Ok(())
}

/// Makes sure that the cache directory is apart from the source and the mount point, by whatever paths.
///
/// # Errors
/// [`ErrorKind::Config`] if one contains another.
pub fn check_apart(cache: &Path, source: &Location, mountpoint: &Path) -> Result<()> {
    check_outside(cache, source)?;
    check_directories_apart(cache, "the mount point", mountpoint)
}

/// Makes sure that the cache directory is apart from the source.
///
/// # Errors
/// [`ErrorKind::Config`] if one contains the other.
pub fn check_outside(cache: &Path, source: &Location) -> Result<()> {
    let outside = |source| check_directories_apart(cache, "the source", source);
    source.path().map_or(Ok(()), outside)
}

/// Makes sure that the cache directory is apart from another directory.
///
/// # Errors
/// [`ErrorKind::Config`] if one contains the other.
pub(super) fn check_directories_apart(cache: &Path, what: &str, path: &Path) -> Result<()> {
    if !is_inside(cache, path) && !is_inside(path, cache) {
        return Ok(());
    }
    let message = format!("cache.dir {} overlaps {what}", cache.display());
    Err(Error::new(ErrorKind::Config, message).hint("put it on a local disk, outside of both"))
}

/// Whether a file or a mount at `path` shows inside `directory`. With bind mounts one tree is at several
/// places, and a mount at one of them propagates to all of them.
pub(super) fn is_inside(path: &Path, directory: &Path) -> bool {
    let (path, directory) = (resolved(path), resolved(directory));
    let by_another_mount = || {
        let ((device, place), (same, around)) =
            path_on_device(&path).zip(path_on_device(&directory))?;
        Some(device == same && place.starts_with(around))
    };
    path.starts_with(&directory)
        || holds(&directory, &path)
        || by_another_mount().unwrap_or_default()
}

/// A path with links resolved, as far as it exists.
fn resolved(path: &Path) -> PathBuf {
    let real = |ancestor: &Path| {
        let rest = path.strip_prefix(ancestor).ok()?;
        // `components` leaves out a slash at the end, which the mount table does not have.
        Some(fs::canonicalize(ancestor).ok()?.join(rest).components().collect())
    };
    path.ancestors().find_map(real).unwrap_or_else(|| path.to_path_buf())
}

/// Whether a directory is above another one, perhaps by bind mounts.
fn holds(directory: &Path, other: &Path) -> bool {
    let identity = |path: &Path| fs::metadata(path).ok().map(|found| (found.dev(), found.ino()));
    let Some(wanted) = identity(directory) else { return false };
    other.ancestors().any(|ancestor| identity(ancestor) == Some(wanted))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cache_is_found_inside_and_around_also_behind_links() {
        let top = tempfile::tempdir().unwrap();
        let at = |name: &str| top.path().join(name);
        fs::create_dir_all(at("source/deep")).unwrap();
        fs::create_dir(at("mount")).unwrap();
        std::os::unix::fs::symlink(at("source"), at("link")).unwrap();
        let source = Location::Path(at("source"));
        let apart = |cache: &str| check_apart(&at(cache), &source, &at("mount")).is_ok();
        assert!(apart("cache/new") && apart("mount2"));
        for overlapping in ["source", "source/new", "link/deep/new", "mount/x", "."] {
            assert!(!apart(overlapping), "{overlapping}");
        }
    }
}
