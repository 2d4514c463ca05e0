//! What is to go from a cache directory.
//!
//! It is renamed to trash first and deleted by a thread of its own, so that no mount waits for it; a
//! thread that did not come to its end is made good by the next one. Stores of older formats that
//! nobody has locked go the same way; newer ones stay. A name alone does not make a directory ours.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::found::is_locked;
use super::{Home, STORES, TAG, TAG_NAME, VERSION, cannot, check, disk_bytes};
use crate::disk::unguessable;
use crate::error::Result;

const TRASH: &str = "belady-trash-";

/// Moves a store, which nobody can be using, out of the way.
pub fn discard(cache: &Path, home: Home) -> Result<()> {
    throw_away(cache, home.path()).map_err(|error| cannot(cache, &error))
}

/// Nothing is made for it, which a full disk would refuse.
fn throw_away(cache: &Path, directory: &Path) -> std::io::Result<()> {
    // A name that nobody has; if somebody had it, no more than an empty directory would be replaced.
    fs::rename(directory, cache.join(format!("{TRASH}{:016x}", unguessable())))
}

/// Whether this is a directory, and made by this user.
pub(super) fn is_own(directory: &Path) -> bool {
    let me = nix::unistd::geteuid().as_raw();
    fs::symlink_metadata(directory).is_ok_and(|found| found.is_dir() && found.uid() == me)
}

/// Whether this is where stores of an older format are.
fn is_older(directory: &Path) -> bool {
    let name = directory.file_name().and_then(|name| name.to_str());
    let older = (0..VERSION).any(|version| name == Some(&*format!("{STORES}{version}")));
    older
        && is_own(directory)
        && fs::read(directory.join(TAG_NAME)).is_ok_and(|tag| tag == TAG.as_bytes())
}

/// Throws away what older formats have left, unless somebody uses it.
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
        if let Err(error) = throw_away(cache, &directory) {
            tracing::warn!(path = %directory.display(), %error, "an old store was not removed");
        }
    }
}

/// Deletes what was thrown away. Does not wait for it.
pub(super) fn empty_trash(cache: &Path) {
    let cache = cache.to_path_buf();
    let thread = std::thread::Builder::new().name("belady-trash".into());
    // Without a thread it stays until the next mount.
    let _ = thread.spawn(move || clear(&cache));
}

/// Deletes what was thrown away, and says how many bytes that gave. Blocks.
fn clear(cache: &Path) -> u64 {
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

/// Throws older formats away and deletes all trash. Blocks.
///
/// # Errors
/// Where the cache directory cannot be used.
pub fn reclaim(cache: &Path) -> Result<u64> {
    check(cache)?;
    discard_older(cache);
    Ok(clear(cache))
}
