//! One bit for each file, which threads set and clear without waiting for each other.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::ids::FileId;
use crate::sync::RwLock;

/// A bit for each file.
#[derive(Debug, Default)]
pub struct Bits(RwLock<Vec<AtomicU64>>);

impl Bits {
    /// Whether the bit of a file is set.
    pub fn has(&self, file: FileId) -> bool {
        let words = self.0.read();
        let word = words.get(file.index() / 64).map_or(0, |word| word.load(Ordering::Acquire));
        word >> (file.index() % 64) & 1 == 1
    }

    /// Sets or clears a bit, and says what it was.
    pub fn set(&self, file: FileId, on: bool) -> bool {
        let (nth, bit) = (file.index() / 64, 1 << (file.index() % 64));
        let mut words = self.0.read();
        if nth >= words.len() {
            drop(words);
            let mut all = self.0.write();
            let length = all.len().max((nth + 1).next_power_of_two());
            all.resize_with(length, AtomicU64::default);
            drop(all);
            words = self.0.read();
        }
        let before = match on {
            true => words[nth].fetch_or(bit, Ordering::AcqRel),
            false => words[nth].fetch_and(!bit, Ordering::AcqRel),
        };
        before & bit != 0
    }
}
