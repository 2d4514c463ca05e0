//! Deletes stores from a cache directory.
//!
//! A directory is first renamed to trash and then deleted by a thread of its own, so that no mount waits
//! for it. If the thread does not finish, that of the next mount does. Stores of older formats that no
//! process has locked are deleted in the same way; newer ones stay. A directory is not ours by its name
//! alone.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::list::is_locked;
use super::{STORES, StoreDir, TAG, TAG_NAME, VERSION, cannot, check, disk_bytes};
use crate::disk::unguessable;
use crate::error::Result;

const TRASH: &str = "belady-trash-";

/// Moves a store to the trash. The caller holds it, so no other process uses it.
pub fn discard(cache: &Path, store_dir: StoreDir) -> Result<()> {
    move_to_trash(cache, store_dir.path()).map_err(|error| cannot(cache, &error))
}

/// Renames a directory to trash. It creates nothing, since a full disk would refuse that.
fn move_to_trash(cache: &Path, directory: &Path) -> std::io::Result<()> {
    // The random name should be free. If not, at most an empty directory would be replaced.
    fs::rename(directory, cache.join(format!("{TRASH}{:016x}", unguessable())))
}

/// Whether this is a directory that belongs to this user.
pub(super) fn is_own(directory: &Path) -> bool {
    let me = nix::unistd::geteuid().as_raw();
    fs::symlink_metadata(directory).is_ok_and(|found| found.is_dir() && found.uid() == me)
}

/// Whether this directory holds stores of an older format.
fn is_older(directory: &Path) -> bool {
    let name = directory.file_name().and_then(|name| name.to_str());
    let older = (0..VERSION).any(|version| name == Some(&*format!("{STORES}{version}")));
    older
        && is_own(directory)
        && fs::read(directory.join(TAG_NAME)).is_ok_and(|tag| tag == TAG.as_bytes())
}

/// Moves stores of older formats to the trash, unless a process uses one.
pub(super) fn discard_older(cache: &Path) {
    for entry in fs::read_dir(cache).into_iter().flatten().flatten() {
        let directory = entry.path();
        if !is_older(&directory) {
            continue;
        }
        let stores = fs::read_dir(&directory).into_iter().flatten().flatten();
        if stores.map(|store| store.path()).any(|store| is_locked(&store)) {
            continue;
        }
        if let Err(error) = move_to_trash(cache, &directory) {
            tracing::warn!(path = %directory.display(), %error, "an old store was not removed");
        }
    }
}

/// Starts to delete the trash, without waiting for the end.
pub(super) fn empty_trash(cache: &Path) {
    let cache = cache.to_path_buf();
    let thread = std::thread::Builder::new().name("belady-trash".into());
    // Without a thread the trash stays until the next mount.
    let _ = thread.spawn(move || delete_trash(&cache));
}

/// Deletes the trash. Returns how many bytes that freed. Blocks.
fn delete_trash(cache: &Path) -> u64 {
    let mut bytes = 0;
    for entry in fs::read_dir(cache).into_iter().flatten().flatten() {
        let trash = entry.path();
        if !entry.file_name().as_bytes().starts_with(TRASH.as_bytes()) || !is_own(&trash) {
            continue;
        }
        bytes += disk_bytes(&trash);
        match fs::remove_dir_all(&trash) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                tracing::warn!(path = %trash.display(), %error, "trash was not deleted");
            }
            _ => {}
        }
    }
    bytes
}

/// Deletes stores of older formats and all trash. Returns how many bytes that freed. Blocks.
///
/// # Errors
/// If the cache directory cannot be used.
pub fn reclaim(cache: &Path) -> Result<u64> {
    check(cache)?;
    discard_older(cache);
    Ok(delete_trash(cache))
}
