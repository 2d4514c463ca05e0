//! When a journal is rewritten: where most of it is dead, and its disk has room for what is alive.

use std::io::{Error, ErrorKind, Result};

use super::Journal;

/// Bytes of a journal beyond twice what is alive, before it is rewritten.
const DEAD_BYTES: u64 = 64 << 20;

/// How long a journal may become before it is looked how much of it is dead.
pub struct Wear {
    /// Bytes of the disk that are left to others.
    min_free: u64,
    length_max: u64,
}

impl Wear {
    /// Of a journal of which so many bytes are alive.
    pub fn new(live: u64, min_free: u64) -> Wear {
        Wear { min_free, length_max: 2 * live + DEAD_BYTES }
    }

    /// Whether it is time to [look](Self::look).
    pub fn is_due(&self, journal: &Journal) -> bool {
        journal.length() > self.length_max
    }

    /// Whether a journal of which so many bytes are alive is to be rewritten now. Where that is not
    /// [done](Self::rewritten), it is looked again when as much has been added.
    ///
    /// # Errors
    /// The disk's, and `StorageFull` where it has no room for what is alive.
    pub fn look(&mut self, journal: &Journal, live: u64) -> Result<bool> {
        if journal.length() <= 2 * live + DEAD_BYTES {
            *self = Wear::new(live, self.min_free);
            return Ok(false);
        }
        self.length_max = journal.length() + DEAD_BYTES;
        if live > journal.space()?.bytes.saturating_sub(self.min_free) {
            return Err(Error::from(ErrorKind::StorageFull));
        }
        Ok(true)
    }

    /// The journal has been rewritten: all of it is alive.
    pub fn rewritten(&mut self, journal: &Journal) {
        *self = Wear::new(journal.length(), self.min_free);
    }
}
