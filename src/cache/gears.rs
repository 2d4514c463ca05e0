//! Which files the kernel may open without asking, as the planner says.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{PoisonError, RwLock};

use crate::ids::FileId;

/// A bit for each file, set in the trust gear.
#[derive(Default)]
pub struct Gears(RwLock<Vec<AtomicU64>>);

impl Gears {
    /// Whether a file is in the trust gear.
    pub fn is_trusted(&self, file: FileId) -> bool {
        let words = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let word = words.get(file.index() / 64).map_or(0, |word| word.load(Ordering::Acquire));
        word >> (file.index() % 64) & 1 == 1
    }

    pub(super) fn set(&self, file: FileId, trusted: bool) {
        let (nth, bit) = (file.index() / 64, 1 << (file.index() % 64));
        let mut words = self.0.read().unwrap_or_else(PoisonError::into_inner);
        if nth >= words.len() {
            drop(words);
            let mut all = self.0.write().unwrap_or_else(PoisonError::into_inner);
            let length = all.len().max((nth + 1).next_power_of_two());
            all.resize_with(length, AtomicU64::default);
            drop(all);
            words = self.0.read().unwrap_or_else(PoisonError::into_inner);
        }
        match trusted {
            true => words[nth].fetch_or(bit, Ordering::Release),
            false => words[nth].fetch_and(!bit, Ordering::Release),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_watched_until_it_is_trusted() {
        let gears = Gears::default();
        assert!(!gears.is_trusted(FileId(70)));
        gears.set(FileId(70), true);
        assert!(gears.is_trusted(FileId(70)) && !gears.is_trusted(FileId(6)));
        gears.set(FileId(70), false);
        assert!(!gears.is_trusted(FileId(70)));
    }
}
