//! Reads samples that slots and streams show next before readers open them.
//!
//! 1. Each time that one of their samples is opened, slots and streams say which samples come next.
//! 2. Those that were not asked for yet are read from the cache disk into the page cache. The reader finds
//!    them there, and compares their checksums.
//! 3. At most [`BYTES_MAX`] are read ahead. If there are more, the slots or stream that asked longest ago are
//!    forgotten. Their pages stay until the kernel takes them back.

use std::num::NonZeroUsize;
use std::sync::Arc;

use lru::LruCache;

use crate::buffer::SampleId;
use crate::rehearsal::views::Upcoming;
use crate::source::{Pool, Urgency};
use crate::sync::Mutex;

const READERS: usize = 2;

/// How many bytes are read ahead.
const BYTES_MAX: u64 = 32 << 20;

/// How many of them may be for one stream, or for the slots of one class.
const BYTES_OF_ONE_MAX: u64 = BYTES_MAX / 4;

/// How many streams and sets of slots are remembered.
const DIRECTORIES_MAX: NonZeroUsize = NonZeroUsize::new(1 << 10).expect("more than none");

pub(super) struct ReadAhead {
    asked: Mutex<AskedSamples>,
    readers: Pool,
}

impl ReadAhead {
    pub(super) fn new() -> Self {
        let readers = Pool::new("belady-ahead", READERS, 0);
        ReadAhead { asked: Mutex::new(AskedSamples::default()), readers }
    }

    /// Reads the upcoming samples that were not asked for before. Never waits for the disk.
    pub(super) fn read(&self, upcoming: &Upcoming) {
        let next = upcoming.next.iter();
        let next = next.map(|sample| (sample.id, u64::from(sample.bytes.length())));
        let new = self.asked.lock().take(upcoming.directory, next);
        for sample in upcoming.next.iter().filter(|sample| new.contains(&sample.id)) {
            let sample = Arc::downgrade(sample);
            // Its reader gets the error.
            self.readers.submit(Urgency::Prefetch, move || {
                sample.upgrade().map(|sample| sample.bytes.warm());
            });
        }
    }

    /// Forgets a stream that has ended.
    pub(super) fn forget(&self, directory: u64) {
        self.asked.lock().forget(directory);
    }
}

/// Samples that were asked for, by stream or slots.
struct AskedSamples {
    by_directory: LruCache<u64, Vec<(SampleId, u64)>>,
    bytes: u64,
}

impl Default for AskedSamples {
    fn default() -> Self {
        AskedSamples { by_directory: LruCache::new(DIRECTORIES_MAX), bytes: 0 }
    }
}

impl AskedSamples {
    /// Takes upcoming samples with their sizes, the soonest first. Returns those that are to be read.
    fn take(
        &mut self,
        directory: u64,
        next: impl Iterator<Item = (SampleId, u64)>,
    ) -> Vec<SampleId> {
        let before = self.forget(directory);
        let mut sum = 0;
        let next = next.take_while(|(_, bytes)| {
            sum += bytes;
            sum <= BYTES_OF_ONE_MAX
        });
        let next: Vec<_> = next.collect();
        let new = next.iter().filter(|sample| !before.contains(sample));
        let new = new.map(|(sample, _)| *sample).collect();
        self.bytes += bytes_of(&next);
        if let Some((_, oldest)) = self.by_directory.push(directory, next) {
            self.bytes -= bytes_of(&oldest);
        }
        while self.bytes > BYTES_MAX
            && let Some((_, oldest)) = self.by_directory.pop_lru()
        {
            self.bytes -= bytes_of(&oldest);
        }
        new
    }

    fn forget(&mut self, directory: u64) -> Vec<(SampleId, u64)> {
        let before = self.by_directory.pop(&directory).unwrap_or_default();
        self.bytes -= bytes_of(&before);
        before
    }
}

fn bytes_of(samples: &[(SampleId, u64)]) -> u64 {
    samples.iter().map(|(_, bytes)| bytes).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Samples of these numbers, of `bytes` bytes each.
    fn of(bytes: u64, samples: std::ops::Range<u32>) -> impl Iterator<Item = (SampleId, u64)> {
        samples.map(move |sample| (SampleId(sample), bytes))
    }

    fn ids(samples: std::ops::Range<u32>) -> Vec<SampleId> {
        samples.map(SampleId).collect()
    }

    #[test]
    fn each_sample_is_read_once_while_it_is_shown_next() {
        let mut asked = AskedSamples::default();
        assert_eq!(asked.take(1, of(10, 0..4)), ids(0..4));
        assert_eq!(asked.take(1, of(10, 1..6)), ids(4..6));
        assert_eq!(asked.take(2, of(10, 5..6)), ids(5..6), "another one shows it");
        assert_eq!(asked.take(1, of(10, 0..1)), ids(0..1), "it comes once more");
        assert_eq!(asked.bytes, 20);
        asked.forget(1);
        asked.forget(2);
        assert_eq!(asked.bytes, 0);
    }

    #[test]
    fn a_directory_has_its_part_of_all_bytes() {
        let mut asked = AskedSamples::default();
        assert_eq!(asked.take(0, of(BYTES_OF_ONE_MAX / 4, 0..9)), ids(0..4));
        assert_eq!(asked.take(0, of(BYTES_OF_ONE_MAX + 1, 9..12)), ids(0..0), "it never fits");
        for by in 0..8 {
            asked.take(by, of(BYTES_OF_ONE_MAX / 4, 0..9));
            assert!(asked.bytes <= BYTES_MAX);
        }
        assert_eq!(asked.take(7, of(BYTES_OF_ONE_MAX / 4, 0..9)), ids(0..0), "it is remembered");
        assert_eq!(asked.take(0, of(BYTES_OF_ONE_MAX / 4, 0..9)), ids(0..4), "it was the oldest");
    }

    #[test]
    fn only_some_directories_are_remembered() {
        let mut asked = AskedSamples::default();
        (0..2 * DIRECTORIES_MAX.get() as u64).for_each(|by| _ = asked.take(by, of(1, 0..2)));
        assert_eq!(asked.bytes, 2 * DIRECTORIES_MAX.get() as u64);
    }
}
