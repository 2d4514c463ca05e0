//! Stores as whoever looks into a cache directory finds them.
//!
//! What stands where ours are made, is ours and bears such a name is a store, also where the file of its
//! owner is missing: somebody has deleted it, or a kill came before it was made.

use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};

use super::trash::is_own;
use super::{OWNER, Owner, STORES, VERSION, cannot, check, lock_directory, read_owner};
use crate::disk::hold;
use crate::error::Result;

/// A store as it is found.
#[derive(Clone, Debug)]
pub struct Found {
    /// The name of its directory.
    pub name: String,
    pub path: PathBuf,
    /// Whose it is, if that can be read.
    pub owner: Option<Owner>,
    /// When it was used last, if that can be told.
    pub used: Option<SystemTime>,
    /// Whether a process uses it.
    pub in_use: bool,
    /// Bytes that its files take on the disk.
    pub disk_bytes: u64,
}

/// The stores in a cache directory, sorted by name.
///
/// # Errors
/// Where the cache directory cannot be used.
pub fn stores(cache: &Path) -> Result<Vec<Found>> {
    check(cache)?;
    let stores = cache.join(format!("{STORES}{VERSION}"));
    let entries = match fs::read_dir(&stores) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(cannot(cache, &error)),
    };
    let mut found: Vec<Found> = entries
        .flatten()
        .map(|entry| (entry.file_name().to_string_lossy().into_owned(), entry.path()))
        .filter(|(name, path)| is_name(name) && is_own(path))
        .map(|(name, path)| Found {
            name,
            owner: File::open(path.join(OWNER)).ok().and_then(read_owner),
            used: last_use(&path).ok(),
            in_use: is_locked(&path),
            disk_bytes: disk_bytes(&path),
            path,
        })
        .collect();
    found.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(found)
}

/// Whether a store can have this name.
fn is_name(name: &str) -> bool {
    name.len() == 16 && name.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

fn last_use(store: &Path) -> std::io::Result<SystemTime> {
    fs::metadata(store.join(OWNER)).or_else(|_| fs::metadata(store))?.modified()
}

/// Bytes that the files of a store take on the disk.
pub fn disk_bytes(store: &Path) -> u64 {
    let entries = fs::read_dir(store).into_iter().flatten().flatten();
    entries.filter_map(|entry| Some(entry.metadata().ok()?.blocks() * 512)).sum()
}

/// Whether somebody has locked a store: the file of its owner, or the directory, which stays locked
/// where that file is deleted.
pub(super) fn is_locked(store: &Path) -> bool {
    let is_held = |locked: Option<Errno>| locked == Some(Errno::EWOULDBLOCK);
    let owner = File::open(store.join(OWNER)).ok();
    let lock = |file| Flock::lock(file, FlockArg::LockSharedNonblock).err().map(|(_, errno)| errno);
    let stays = |directory: &OwnedFd| lock_directory(directory, FlockArg::LockSharedNonblock).err();
    is_held(owner.and_then(lock)) || is_held(hold(store).ok().and_then(|held| stays(&held)))
}
