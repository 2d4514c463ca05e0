//! When a journal may grow, and when it is rewritten: as long as others do not need the space of its
//! disk; and where most of it is dead, and there is room for what is alive.
//!
//! The local store gives space back before less than seven eighths of what has to stay free is free.
//! A journal grows until that is three quarters, since what it keeps may be nowhere else; and one that
//! may not grow any more may be rewritten, until a quarter is left: that gives more back than it takes,
//! but for what views still show of the one before.

use std::io::{Error, ErrorKind, Result};
use std::time::{Duration, Instant};

use super::Journal;
use crate::disk::Health;

/// Bytes of a journal beyond twice what is alive, before it is rewritten.
const DEAD_BYTES: u64 = 64 << 20;

/// How long a journal without room is left alone before it is looked again how much of it is dead.
const LOOK_EVERY: Duration = Duration::from_secs(30);

/// How long a journal may become before it is looked how much of it is dead, and whether its disk has
/// room for more.
pub struct Wear {
    /// Bytes of the disk that are left to others.
    min_free: u64,
    length_max: u64,
    /// How long the journal was when it was rewritten last, and when that was tried last.
    rewritten: u64,
    tried: u64,
    health: Health,
    /// How long the journal was when it was last asked for room.
    length: Option<u64>,
    /// Since when the journal has had no room, or has been looked at for want of it.
    without: Option<Instant>,
    /// When it was rewritten last for what its disk has lost.
    mended: Option<Instant>,
}

impl Wear {
    /// Of a journal of which so many bytes are alive.
    pub fn new(live: u64, min_free: u64) -> Wear {
        let health = Health::new(min_free - min_free / 4, 0);
        let (rewritten, tried, length, without, mended) = Default::default();
        let length_max = 2 * live + DEAD_BYTES;
        Wear { min_free, length_max, rewritten, tried, health, length, without, mended }
    }

    /// Looks whether a journal may grow by so many bytes: it may not if others need the space of its disk.
    pub fn check_room(&mut self, journal: &Journal, bytes: u64) -> bool {
        let length = journal.length();
        let added = length.saturating_sub(self.length.replace(length).unwrap_or(length));
        let has_room = self.health.has_room(&*journal.disk, bytes.saturating_add(added));
        if has_room {
            self.without = None;
        } else if self.without.is_none_or(|since| since.elapsed() >= LOOK_EVERY) {
            self.without = Some(Instant::now());
            // One that cannot be rewritten as it is will not be a moment later.
            if self.tried < length {
                self.length_max = 0;
            }
        }
        has_room
    }

    /// Claims the rewriting of a journal of which the disk has lost something. Whether that is due.
    pub fn claim_mending(&mut self) -> bool {
        let due = self.mended.is_none_or(|since| since.elapsed() >= LOOK_EVERY);
        if due {
            self.mended = Some(Instant::now());
        }
        due
    }

    /// Whether it is time to [look](Self::look).
    pub fn is_due(&self, journal: &Journal) -> bool {
        journal.length() > self.length_max
    }

    /// Whether a journal of which so many bytes are alive is to be rewritten now. Where that is not
    /// [done](Self::rewritten), it is looked again when as much has been added, or half a minute later
    /// where it has no room.
    ///
    /// # Errors
    /// The disk's, and `StorageFull` where it has no room for what is alive.
    pub fn look(&mut self, journal: &Journal, live: u64) -> Result<bool> {
        let length = journal.length();
        // Records of small samples are more than the samples.
        let live = live.max(self.rewritten);
        let is_short = self.without.is_some() && length.saturating_sub(live) > live / 4;
        if length <= 2 * live + DEAD_BYTES && !is_short {
            self.length_max = 2 * live + DEAD_BYTES;
            return Ok(false);
        }
        (self.length_max, self.tried) = (length + DEAD_BYTES, length);
        if live > journal.space()?.bytes.saturating_sub(self.min_free / 4) {
            return Err(Error::from(ErrorKind::StorageFull));
        }
        Ok(true)
    }

    /// The journal has been rewritten: all of it is alive.
    pub fn rewritten(&mut self, journal: &Journal) {
        self.rewritten = journal.length();
        (self.tried, self.length) = (0, None);
        self.health = Health::new(self.min_free - self.min_free / 4, 0);
        self.length_max = 2 * self.rewritten + DEAD_BYTES;
    }
}
