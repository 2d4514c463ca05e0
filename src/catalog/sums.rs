//! A checksum for each file, which threads set without waiting for each other.

use std::sync::PoisonError;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::ids::FileId;
use crate::sync::RwLock;

/// The CRC-32C of the bytes of each file that were handed out last: four bytes a file, up to the last
/// file that has one.
#[derive(Debug, Default)]
pub(super) struct Sums(RwLock<Vec<AtomicU32>>);

impl Sums {
    /// The checksum of a file; 0 if it was never set.
    pub(super) fn get(&self, file: FileId) -> u32 {
        let sums = self.0.read().unwrap_or_else(PoisonError::into_inner);
        sums.get(file.index()).map_or(0, |sum| sum.load(Ordering::Acquire))
    }

    /// Sets the checksum of a file.
    pub(super) fn set(&self, file: FileId, sum: u32) {
        let sums = self.0.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(slot) = sums.get(file.index()) {
            return slot.store(sum, Ordering::Release);
        }
        drop(sums);
        let mut sums = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let length = sums.len().max((file.index() + 1).next_power_of_two());
        sums.resize_with(length, AtomicU32::default);
        sums[file.index()].store(sum, Ordering::Release);
    }
}
