//! What a store has lost.

use std::collections::BTreeMap;

use super::log::{Key, Location};
use super::writer::Writer;

/// What the disk has lost of a store, as found when it is opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Losses {
    /// Former places of the samples that are left out. Their records lead to bytes that are gone, cut off,
    /// or of other samples.
    pub samples: Vec<String>,
    /// Records of the index that cannot be read.
    pub records: u64,
    /// Indexes that cannot be read, if an older one is used instead.
    pub indexes: Vec<String>,
    /// Segments that cannot be opened now, and the number of samples in each. They are not lost.
    pub closed: Vec<(String, u64)>,
}

impl Losses {
    pub fn is_some(&self) -> bool {
        !self.samples.is_empty() || self.records > 0 || !self.indexes.is_empty()
    }

    /// The losses of an opened store. `lost` are the samples whose records lead nowhere.
    pub(super) fn of(writer: &Writer, lost: &[(Key, Location)]) -> Self {
        let mut closed: BTreeMap<String, u64> = BTreeMap::new();
        for at in writer.closed.values() {
            *closed.entry(writer.segments.name(at.segment)).or_default() += 1;
        }
        Losses {
            samples: lost.iter().map(|(_, at)| writer.segments.describe(at)).collect(),
            records: writer.log.torn_records,
            indexes: writer.log.skipped.clone(),
            closed: closed.into_iter().collect(),
        }
    }
}
