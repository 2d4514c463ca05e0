//! Opens the local store of a source when an engine starts.

use std::sync::Arc;

use super::STORE_TIER;
use crate::config::{DiskSettings, Settings, hanging_disk_error};
use crate::disk::{Directory, unless_it_hangs};
use crate::error::{Error, ErrorKind, Result};
use crate::store::directory::{self, Owner, StoreDir};
use crate::store::{Limits, Store, fresh_secret};

pub(super) struct OpenedStore {
    /// The store's directory. No other daemon uses it as long as this is held.
    pub(super) store_dir: Option<StoreDir>,
    /// The store, with its tier.
    pub(super) store: Option<(usize, Arc<Store>)>,
    /// A warning if the cache directory was on another disk before.
    pub(super) moved: Option<String>,
    /// The cache disk's error, if that is why there is no store.
    pub(super) fault: Option<Error>,
}

/// Opens the store of a source, if the settings have one. If its disk fails, hangs or has no room, it is
/// removed from the settings, and the engine goes on without a store: a job is better without a cache than
/// not started at all.
///
/// # Errors
/// If the cache directory cannot be used, and [`ErrorKind::Busy`] if the store is in use. With rehearsal
/// buffers, an error of the disk as well.
pub(super) fn open(settings: &mut Settings, owner: &Owner) -> Result<OpenedStore> {
    let none = OpenedStore {
        store_dir: None,
        store: None,
        moved: None,
        fault: settings.cache.disk_fault.clone(),
    };
    let Some(disk) = &settings.cache.disk else { return Ok(none) };
    match open_unless_hanging(disk, owner) {
        Ok((store_dir, store, moved)) => {
            let store = Some((STORE_TIER, Arc::new(store)));
            Ok(OpenedStore { store_dir: Some(store_dir), store, moved, fault: None })
        }
        // The samples of rehearsal buffers may exist nowhere else, so buffers do not go on without their
        // disk.
        Err(error) if error.kind() == ErrorKind::Disk && settings.rehearsal.is_empty() => {
            tracing::warn!(%error, "going on without a local store");
            settings.cache.disk = None;
            Ok(OpenedStore { fault: Some(error), ..none })
        }
        Err(error) => Err(error),
    }
}

/// Runs [`open_store`] on a thread of its own. If the disk hangs, the thread is left behind, and the result
/// is an error.
fn open_unless_hanging(
    disk: &DiskSettings,
    owner: &Owner,
) -> Result<(StoreDir, Store, Option<String>)> {
    let (settings, owner) = (disk.clone(), owner.clone());
    unless_it_hangs(move || open_store(&settings, &owner))
        .map_err(|error| Error::new(ErrorKind::Internal, format!("thread: {error}")))?
        .unwrap_or_else(|| Err(hanging_disk_error(&disk.dir)))
}

fn open_store(disk: &DiskSettings, owner: &Owner) -> Result<(StoreDir, Store, Option<String>)> {
    let store_dir = directory::claim(&disk.dir, owner)?;
    let limits = Limits {
        large_bytes: disk.large_file_bytes,
        min_free_files: disk.min_free_inodes,
        ..Limits::new(disk.configured_bytes, disk.min_free_bytes)
    };
    let opened = Directory::open(store_dir.path(), true)
        .and_then(|directory| Store::open(Arc::new(directory), limits, fresh_secret()));
    let store = opened.map_err(|error| directory::cannot(&disk.dir, &error))?;
    store.resize(disk.bytes);
    let moved = directory::note_disk(&disk.dir);
    moved.iter().for_each(|moved| tracing::warn!("{moved}"));
    Ok((store_dir, store, moved))
}
