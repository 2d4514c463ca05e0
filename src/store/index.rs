//! The index in memory: where the samples are, and in which files.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::lend::{LENDABLE_MAX, Lent};
use super::log::{Entries, Key, Location};
use super::segments::Files;
use crate::disk::Blob;

#[derive(Default)]
pub(super) struct Index {
    pub(super) entries: Entries,
    pub(super) files: Files,
    /// Large files that are complete and were compared.
    lent: HashMap<u32, Arc<Lent>>,
    /// Large files of which all blocks were compared with their checksums, and none was removed since.
    compared: HashSet<u32>,
}

impl Index {
    pub(super) fn new(entries: Entries, files: Files) -> Self {
        Index { entries, files, ..Index::default() }
    }

    pub(super) fn find(&self, key: Key) -> Option<(Location, Arc<dyn Blob>)> {
        let at = self.entries.get(&key)?;
        Some((*at, Arc::clone(self.files.get(&at.segment)?)))
    }

    /// Removes samples. A large file that loses a block is not lent any more.
    pub(super) fn take(&mut self, keys: &[Key]) -> Vec<(Key, Location)> {
        let gone = keys.iter().filter_map(|key| Some((*key, self.entries.remove(key)?)));
        let gone: Vec<(Key, Location)> = gone.collect();
        for (_, at) in &gone {
            self.lent.remove(&at.segment);
            self.compared.remove(&at.segment);
        }
        gone
    }

    /// The number of the file that holds all these blocks, if it is a single file.
    pub(super) fn holder_of_all(&self, blocks: &[Key]) -> Option<u32> {
        let mut holders = blocks.iter().map(|key| Some(self.entries.get(key)?.segment));
        let first = holders.next()??;
        holders.all(|holder| holder == Some(first)).then_some(first)
    }

    /// The large file with this first block, if it can be lent.
    pub(super) fn lent(&self, first: Key) -> Option<Arc<Lent>> {
        self.lent.get(&self.entries.get(&first)?.segment).cloned()
    }

    pub(super) fn is_compared(&self, holder: u32) -> bool {
        self.compared.contains(&holder)
    }

    pub(super) fn lend(&mut self, holder: u32, lent: Arc<Lent>) {
        if self.lent.len() >= LENDABLE_MAX
            && let Some(other) = self.lent.keys().next().copied()
        {
            self.lent.remove(&other);
        }
        self.lent.insert(holder, lent);
        self.compared.insert(holder);
    }

    /// Ends all lending, but keeps which files were compared.
    #[cfg(test)]
    pub(super) fn end_lending(&mut self) {
        self.lent.clear();
    }
}
