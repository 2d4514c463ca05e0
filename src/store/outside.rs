//! Reads what a store has without using it: another process may use it, and nothing is changed.

use std::collections::HashSet;
use std::io::Result;

use super::log::{self, Entries, Key};
use super::{is_gone, large, stored};
use crate::disk::Disk;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// Samples, or blocks of them.
    pub samples: u64,
    /// Their bytes, in whole pages.
    pub bytes: u64,
    /// Large files that have some of the samples.
    pub large_files: u64,
}

/// The names of a store's files, and the entries of its index.
fn look(disk: &dyn Disk) -> Result<(Vec<(String, u64)>, Entries)> {
    let try_look = || {
        let names = disk.names()?;
        let entries = log::replay(disk, &names)?.map(|found| found.entries).unwrap_or_default();
        Ok((names, entries))
    };
    match try_look() {
        // The index was replaced by another one meanwhile.
        Err(error) if is_gone(&error) => try_look(),
        found => found,
    }
}

/// The keys in the index of a store, or in a copy of an index alone.
pub fn recorded(disk: &dyn Disk) -> Result<Vec<Key>> {
    Ok(look(disk)?.1.into_keys().collect())
}

/// What a store has, by its index.
pub fn count(disk: &dyn Disk) -> Result<Count> {
    let (names, entries) = look(disk)?;
    let holders: HashSet<u32> = entries.values().map(|at| at.segment).collect();
    let large = names.iter().filter_map(|(name, _)| large::parse(name));
    Ok(Count {
        samples: entries.len() as u64,
        bytes: entries.values().map(|at| stored(at.length as usize)).sum(),
        large_files: large.filter(|(id, _)| holders.contains(id)).count() as u64,
    })
}
