//! When a journal may grow, and when it is rewritten: as long as others do not need the space of its
//! disk; and where most of it is dead, and there is room for what is alive.

use std::io::{Error, ErrorKind, Result};

use super::super::store::health::Health;
use super::Journal;

/// Bytes of a journal beyond twice what is alive, before it is rewritten.
const DEAD_BYTES: u64 = 64 << 20;

/// How long a journal may become before it is looked how much of it is dead, and whether its disk has
/// room for more.
pub struct Wear {
    /// Bytes of the disk that are left to others.
    min_free: u64,
    length_max: u64,
    health: Health,
    /// How long the journal was when it was last asked for room.
    length: Option<u64>,
}

impl Wear {
    /// Of a journal of which so many bytes are alive.
    pub fn new(live: u64, min_free: u64) -> Wear {
        let health = Health::new(min_free, 0);
        Wear { min_free, length_max: 2 * live + DEAD_BYTES, health, length: None }
    }

    /// Whether a journal may grow by so many bytes: not where others need the space of its disk.
    pub fn has_room(&mut self, journal: &Journal, bytes: u64) -> bool {
        let length = journal.length();
        let added = length.saturating_sub(self.length.replace(length).unwrap_or(length));
        self.health.has_room(&*journal.disk, bytes.saturating_add(added))
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
            self.length_max = 2 * live + DEAD_BYTES;
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
        self.length_max = 2 * journal.length() + DEAD_BYTES;
    }
}
