//! Samples and their ids.

use crate::ids::FileId;

/// What a job reads at once: a file, or a byte range of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Sample {
    pub file: FileId,
    /// Where the sample begins, in bytes from the file's start.
    pub offset: u64,
    /// Its length in bytes. `None` is the whole file, whatever its length.
    pub length: Option<u64>,
}

impl Sample {
    pub fn whole(file: FileId) -> Self {
        Sample { file, offset: 0, length: None }
    }
}

/// A byte range of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FileRange {
    pub file: FileId,
    pub offset: u64,
    /// In bytes.
    pub length: u64,
}

/// What the sample ids of an order stand for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SampleTable {
    /// Every sample is a whole file, and its id is the file's.
    Files,
    /// A sample's id is its row here; no two rows of samples are equal. A whole file is the range of its size. There
    /// may be rows that no order has: parts of files that are read between samples, such as an index.
    Ranges(Vec<FileRange>),
}

impl SampleTable {
    /// The sample that `id` stands for.
    ///
    /// # Panics
    /// When `id` is not of this table.
    pub fn get(&self, id: u32) -> Sample {
        match self {
            SampleTable::Files => Sample::whole(FileId(id)),
            SampleTable::Ranges(ranges) => {
                let FileRange { file, offset, length } = ranges[id as usize];
                Sample { file, offset, length: Some(length) }
            }
        }
    }
}

/// A set of sample ids: one bit for each id up to the largest.
#[derive(Clone, Debug, Default)]
pub(super) struct IdSet {
    words: Vec<u64>,
}

impl IdSet {
    /// Adds an id; false if it was there already.
    pub(super) fn insert(&mut self, id: u32) -> bool {
        let (word, bit) = (id as usize / 64, 1 << (id % 64));
        if word >= self.words.len() {
            self.words.resize(word + 1, 0);
        }
        let fresh = self.words[word] & bit == 0;
        self.words[word] |= bit;
        fresh
    }

    /// Removes all `ids`, at a cost that depends only on their number.
    pub(super) fn remove_all(&mut self, ids: &[u32]) {
        for &id in ids {
            if let Some(word) = self.words.get_mut(id as usize / 64) {
                *word &= !(1 << (id % 64));
            }
        }
    }
}

/// Whether each list has every id at most once.
pub(super) fn are_unique<'l>(lists: impl IntoIterator<Item = &'l [u32]>) -> bool {
    let mut seen = IdSet::default();
    lists.into_iter().all(|ids| {
        let unique = ids.iter().all(|&id| seen.insert(id));
        seen.remove_all(ids);
        unique
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_mean_files_or_rows() {
        assert_eq!(SampleTable::Files.get(7), Sample::whole(FileId(7)));
        let range = FileRange { file: FileId(3), offset: 10, length: 20 };
        let expected = Sample { file: FileId(3), offset: 10, length: Some(20) };
        assert_eq!(SampleTable::Ranges(vec![range]).get(0), expected);
    }

    #[test]
    fn a_set_knows_and_forgets() {
        let mut set = IdSet::default();
        assert!(set.insert(64) && set.insert(3) && !set.insert(64));
        set.remove_all(&[64, 9999]);
        assert!(set.insert(64) && !set.insert(3));
    }

    #[test]
    fn lists_are_unique_each_by_itself() {
        assert!(are_unique([[5, 1].as_slice(), &[], &[1, 5]]));
        assert!(!are_unique([[5, 1].as_slice(), &[1, 5, 1]]));
    }
}
