//! What a store turns out to have lost.

use std::collections::BTreeMap;

use super::log::{Key, Location};
use super::writer::Writer;

/// What the disk has lost of a store, as its opening shows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Losses {
    /// Where the samples were that are left out: what their records lead to is gone, cut, or of others.
    pub samples: Vec<String>,
    /// Records of the index that cannot be read.
    pub records: u64,
    /// Indexes that cannot be read, with an older one in their place.
    pub indexes: Vec<String>,
    /// Segments that cannot be opened at this moment, and how many samples are in each. Nothing is lost.
    pub closed: Vec<(String, u64)>,
}

impl Losses {
    /// Whether something is lost.
    pub fn is_some(&self) -> bool {
        !self.samples.is_empty() || self.records > 0 || !self.indexes.is_empty()
    }

    /// The losses of a store that was opened, beside samples whose records lead nowhere.
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
