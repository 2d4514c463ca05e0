//! Lists the stores in a cache directory, for commands.
//!
//! A directory is a store if it is in the right place, belongs to this user and has a store's name. Its
//! owner file may be missing: it was deleted, or the daemon was killed before it made the file.

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

#[derive(Clone, Debug)]
pub struct StoreInfo {
    /// The name of its directory.
    pub name: String,
    pub path: PathBuf,
    /// Whose it is, if that can be read.
    pub owner: Option<Owner>,
    /// When it was used last, if that is known.
    pub used: Option<SystemTime>,
    pub in_use: bool,
    pub disk_bytes: u64,
}

/// The stores in a cache directory, sorted by name.
///
/// # Errors
/// If the cache directory cannot be used.
pub fn stores(cache: &Path) -> Result<Vec<StoreInfo>> {
    check(cache)?;
    let stores = cache.join(format!("{STORES}{VERSION}"));
    let entries = match fs::read_dir(&stores) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(cannot(cache, &error)),
    };
    let mut found: Vec<StoreInfo> = entries
        .flatten()
        .map(|entry| (entry.file_name().to_string_lossy().into_owned(), entry.path()))
        .filter(|(name, path)| is_name(name) && is_own(path))
        .map(|(name, path)| StoreInfo {
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

fn is_name(name: &str) -> bool {
    name.len() == 16 && name.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

fn last_use(store: &Path) -> std::io::Result<SystemTime> {
    fs::metadata(store.join(OWNER)).or_else(|_| fs::metadata(store))?.modified()
}

pub fn disk_bytes(store: &Path) -> u64 {
    let entries = fs::read_dir(store).into_iter().flatten().flatten();
    entries.filter_map(|entry| Some(entry.metadata().ok()?.blocks() * 512)).sum()
}

/// Whether a process has locked a store: the owner file, or the directory, which stays locked if that file
/// is deleted.
pub(super) fn is_locked(store: &Path) -> bool {
    let is_held = |locked: Option<Errno>| locked == Some(Errno::EWOULDBLOCK);
    let owner = File::open(store.join(OWNER)).ok();
    let lock = |file| Flock::lock(file, FlockArg::LockSharedNonblock).err().map(|(_, errno)| errno);
    let lock_dir =
        |directory: &OwnedFd| lock_directory(directory, FlockArg::LockSharedNonblock).err();
    is_held(owner.and_then(lock)) || is_held(hold(store).ok().and_then(|held| lock_dir(&held)))
}
