//! The index in memory: where the samples are, and in which files.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::log::{Entries, Key, Location};
use super::passthrough::{PASSTHROUGH_MAX, PassthroughFile};
use super::segments::Files;
use crate::disk::Blob;

#[derive(Default)]
pub(super) struct Index {
    pub(super) entries: Entries,
    pub(super) files: Files,
    /// Large files that are complete and were compared, for the kernel to read.
    passthrough: HashMap<u32, Arc<PassthroughFile>>,
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

    /// Removes samples. The kernel may no longer open a large file that loses a block.
    pub(super) fn remove(&mut self, keys: &[Key]) -> Vec<(Key, Location)> {
        let removed = keys.iter().filter_map(|key| Some((*key, self.entries.remove(key)?)));
        let removed: Vec<(Key, Location)> = removed.collect();
        for (_, at) in &removed {
            self.passthrough.remove(&at.segment);
            self.compared.remove(&at.segment);
        }
        removed
    }

    /// The number of the file that holds all these blocks, if it is a single file.
    pub(super) fn file_of_all(&self, blocks: &[Key]) -> Option<u32> {
        let mut files = blocks.iter().map(|key| Some(self.entries.get(key)?.segment));
        let first = files.next()??;
        files.all(|file| file == Some(first)).then_some(first)
    }

    /// The large file with this first block, if the kernel can read it.
    pub(super) fn passthrough_file(&self, first: Key) -> Option<Arc<PassthroughFile>> {
        self.passthrough.get(&self.entries.get(&first)?.segment).cloned()
    }

    pub(super) fn is_compared(&self, file: u32) -> bool {
        self.compared.contains(&file)
    }

    pub(super) fn add_passthrough(&mut self, file: u32, opened: Arc<PassthroughFile>) {
        if self.passthrough.len() >= PASSTHROUGH_MAX
            && let Some(other) = self.passthrough.keys().next().copied()
        {
            self.passthrough.remove(&other);
        }
        self.passthrough.insert(file, opened);
        self.compared.insert(file);
    }

    /// As if all these files had been replaced by others. Which files were compared is kept.
    #[cfg(test)]
    pub(super) fn clear_passthrough(&mut self) {
        self.passthrough.clear();
    }
}
