//! Access orders.

use std::sync::Arc;

use crate::ids::FileId;

/// A sample: a file or a byte range of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// The file.
    pub file: FileId,
    /// First byte.
    pub offset: u64,
    /// Bytes; the whole file where there is none.
    pub length: Option<u64>,
}

/// Samples by id.
#[derive(Clone, Debug)]
pub enum SampleTable {
    /// The id is the file's number.
    Files,
}

impl SampleTable {
    /// The sample of an id.
    pub fn get(&self, id: u32) -> Sample {
        Sample { file: FileId(id), offset: 0, length: None }
    }
}

/// One stream's access order over all epochs.
#[derive(Clone, Debug)]
pub struct Order {
    epochs: Vec<Arc<[u32]>>,
}

impl Order {
    /// Listed.
    pub fn listed(epochs: Vec<Arc<[u32]>>) -> Self {
        Order { epochs }
    }
    /// Epoch k.
    pub fn epoch(&self, k: u32) -> Arc<[u32]> {
        self.epochs[k as usize % self.epochs.len()].clone()
    }
    /// Samples.
    pub fn samples(&self) -> &SampleTable {
        &SampleTable::Files
    }
    /// Whether each sample occurs at most once an epoch.
    pub fn is_permutation(&self) -> bool {
        true
    }
    /// In words.
    pub fn describe(&self) -> String {
        String::new()
    }
}
