//! Reads what a store has without taking it into use: another process may use it, and nothing is changed.

use std::collections::HashSet;
use std::io::Result;

use super::log::{self, Entries, Key};
use super::{bytes_on_disk, is_lost, large};
use crate::disk::Disk;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreCounts {
    /// Samples, or blocks of them.
    pub samples: u64,
    /// Their bytes, in whole pages.
    pub bytes: u64,
    /// Large files that have some of the samples.
    pub large_files: u64,
}

/// The names of a store's files, and the entries of its index.
fn read_index(disk: &dyn Disk) -> Result<(Vec<(String, u64)>, Entries)> {
    let try_look = || {
        let names = disk.names()?;
        let entries = log::replay(disk, &names)?.map(|found| found.entries).unwrap_or_default();
        Ok((names, entries))
    };
    match try_look() {
        // The index was replaced by another one meanwhile.
        Err(error) if is_lost(&error) => try_look(),
        found => found,
    }
}

/// The keys in the index of a store, or in a copy of an index alone.
pub fn recorded_keys(disk: &dyn Disk) -> Result<Vec<Key>> {
    Ok(read_index(disk)?.1.into_keys().collect())
}

/// What a store has, by its index.
pub fn count(disk: &dyn Disk) -> Result<StoreCounts> {
    let (names, entries) = read_index(disk)?;
    let files: HashSet<u32> = entries.values().map(|at| at.segment).collect();
    let large = names.iter().filter_map(|(name, _)| large::parse(name));
    Ok(StoreCounts {
        samples: entries.len() as u64,
        bytes: entries.values().map(|at| bytes_on_disk(at.length as usize)).sum(),
        large_files: large.filter(|(id, _)| files.contains(id)).count() as u64,
    })
}
