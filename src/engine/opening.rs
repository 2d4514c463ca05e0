//! The local store of a source, opened at the start of an engine.

use std::sync::Arc;

use super::STORE_TIER;
use crate::config::{DiskSettings, Settings, hangs};
use crate::disk::{Directory, unless_it_hangs};
use crate::error::{Error, ErrorKind, Result};
use crate::store::home::{self, Home, Owner};
use crate::store::{Limits, Store, fresh_secret};

/// The local store of a source, if there is one.
pub(super) struct Opened {
    /// It is ours alone as long as this is held.
    pub(super) home: Option<Home>,
    /// The store, with its tier.
    pub(super) store: Option<(usize, Arc<Store>)>,
    /// What is wrong, in words, if the cache directory was on another disk before.
    pub(super) moved: Option<String>,
    /// What its disk said where there is none for that reason.
    pub(super) fault: Option<Error>,
}

/// Opens the store of a source, if the settings have one; where its disk fails, hangs or has no room
/// they have none any more, for a job does without a cache rather than not at all.
///
/// # Errors
/// Where the cache directory cannot be used, and [`ErrorKind::Busy`] where the store is in use.
pub(super) fn open(settings: &mut Settings, owner: &Owner) -> Result<Opened> {
    let none =
        Opened { home: None, store: None, moved: None, fault: settings.cache.disk_fault.clone() };
    let Some(disk) = &settings.cache.disk else { return Ok(none) };
    match answered(disk, owner) {
        Ok((home, store, moved)) => {
            let store = Some((STORE_TIER, Arc::new(store)));
            Ok(Opened { home: Some(home), store, moved, fault: None })
        }
        // What buffers hold may be nowhere else.
        Err(error) if error.kind() == ErrorKind::Disk && settings.rehearsal.is_empty() => {
            tracing::warn!(%error, "going on without a local store");
            settings.cache.disk = None;
            Ok(Opened { fault: Some(error), ..none })
        }
        Err(error) => Err(error),
    }
}

/// As [`open_store`]; where the disk hangs, which it is left to by itself, that is its error.
fn answered(disk: &DiskSettings, owner: &Owner) -> Result<(Home, Store, Option<String>)> {
    let (settings, owner) = (disk.clone(), owner.clone());
    unless_it_hangs(move || open_store(&settings, &owner))
        .map_err(|error| Error::new(ErrorKind::Internal, format!("thread: {error}")))?
        .unwrap_or_else(|| Err(hangs(&disk.dir)))
}

fn open_store(disk: &DiskSettings, owner: &Owner) -> Result<(Home, Store, Option<String>)> {
    let home = home::claim(&disk.dir, owner)?;
    let limits = Limits {
        large_bytes: disk.large_file_bytes,
        min_free_files: disk.min_free_inodes,
        ..Limits::new(disk.configured_bytes, disk.min_free_bytes)
    };
    let opened = Directory::open(home.path(), true)
        .and_then(|directory| Store::open(Arc::new(directory), limits, fresh_secret()));
    let store = opened.map_err(|error| home::cannot(&disk.dir, &error))?;
    store.resize(disk.bytes);
    let moved = home::moved(&disk.dir);
    moved.iter().for_each(|moved| tracing::warn!("{moved}"));
    Ok((home, store, moved))
}
