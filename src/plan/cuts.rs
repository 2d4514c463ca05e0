//! Cuts a large file where its samples begin and end.
//!
//! 1. The *cover* of a sample is the pages that it lies in. A cover that lies in another one is left out.
//! 2. Each cover becomes a block, or several if it is longer than [`BLOCK_BYTES`]. Samples that follow each other
//!    share a page, and so do their blocks. So a sample lies in one block.
//! 3. If two covers share more than a page, the second one begins where the first one ends.
//! 4. The bytes between covers get blocks, too. So each byte of the file is in a block.
//!
//! Blocks begin one after the other, and end one after the other.

use std::ops::Range;

use crate::ids::BLOCK_BYTES;

/// The most blocks of a file that is cut.
const BLOCKS_MAX: usize = 1 << 22;

/// The blocks of a file that is cut.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Cuts {
    /// By block, its first page and the page after its last one.
    starts: Box<[u32]>,
    ends: Box<[u32]>,
    /// The pages of the samples, sorted. None of them lies in another one.
    covers: Box<[Range<u32>]>,
    page_bytes: u64,
}

impl Cuts {
    /// Cuts a file of `size` bytes along samples, and along those of earlier cuts. `None` if it has no sample, or too
    /// many.
    pub(super) fn along(
        samples: impl IntoIterator<Item = Range<u64>>,
        size: u64,
        page_bytes: u64,
        earlier: Option<&Cuts>,
    ) -> Option<Self> {
        let pages = u32::try_from(size.div_ceil(page_bytes)).ok()?;
        let cover = |sample: Range<u64>| {
            let end = sample.end.min(size).div_ceil(page_bytes) as u32;
            ((sample.start / page_bytes).min(u64::from(end)) as u32)..end
        };
        let known = earlier.into_iter().flat_map(|cuts| cuts.covers.iter().cloned());
        let samples = samples.into_iter().filter(|sample| !sample.is_empty());
        let covers: Vec<Range<u32>> = samples.map(cover).chain(known).collect();
        let covers = outermost(covers);
        if covers.is_empty() || covers.len() > BLOCKS_MAX {
            return None;
        }
        let most = (BLOCK_BYTES / page_bytes) as u32;
        let mut blocks = Vec::<Range<u32>>::new();
        let split = |pages: Range<u32>| {
            let end = pages.end;
            let piece = move |start: u32| start..start.saturating_add(most).min(end);
            pages.step_by(most as usize).map(piece)
        };
        let mut covered = 0;
        for cover in &covers {
            blocks.extend(split(covered..cover.start));
            let begins_later = blocks.last().is_none_or(|last| last.start < cover.start);
            let shares_a_page = cover.start + 1 == covered && begins_later;
            let start = if shares_a_page { cover.start } else { cover.start.max(covered) };
            blocks.extend(split(start..cover.end));
            covered = cover.end;
        }
        blocks.extend(split(covered..pages));
        let starts = blocks.iter().map(|block| block.start).collect();
        let ends = blocks.iter().map(|block| block.end).collect();
        let is_bounded = blocks.len() <= BLOCKS_MAX;
        let cuts = Cuts { starts, ends, covers: covers.into(), page_bytes };
        is_bounded.then_some(cuts)
    }

    pub(super) fn blocks(&self) -> u32 {
        self.starts.len() as u32
    }

    /// Offset and length in bytes of the nth block of a file of `size` bytes.
    pub(super) fn range(&self, nth: u32, size: u64) -> (u64, u64) {
        let at = |page: u32| (u64::from(page) * self.page_bytes).min(size);
        let (start, end) = (at(self.starts[nth as usize]), at(self.ends[nth as usize]));
        (start, end - start)
    }

    /// The fewest blocks that hold a byte range, which is not empty. If the range lies in a page that two blocks share,
    /// it is the second block.
    pub(super) fn blocks_in(&self, bytes: &Range<u64>) -> Range<u32> {
        let (page, end) = (bytes.start / self.page_bytes, bytes.end.div_ceil(self.page_bytes));
        let begun = self.starts.partition_point(|start| u64::from(*start) <= page) as u32;
        let last = self.ends.partition_point(|last| u64::from(*last) < end) as u32;
        let first = begun.saturating_sub(1);
        first..last.clamp(first, self.blocks() - 1) + 1
    }

    /// How many pages the nth block has, and how many of them the blocks before and after it have as well.
    pub(super) fn pages(&self, nth: u32) -> (u32, [u32; 2]) {
        let nth = nth as usize;
        let before = nth.checked_sub(1).map_or(0, |before| self.ends[before]);
        let (start, end) = (self.starts[nth], self.ends[nth]);
        let after = self.starts.get(nth + 1).map_or(end, |after| *after);
        (end - start, [before.saturating_sub(start), end.saturating_sub(after)])
    }
}

/// Sorts covers, and leaves out those that lie in others.
fn outermost(mut covers: Vec<Range<u32>>) -> Vec<Range<u32>> {
    covers.sort_unstable_by_key(|cover| (cover.start, std::cmp::Reverse(cover.end)));
    let mut end = 0;
    covers.retain(|cover| {
        let is_outer = cover.end > end && !cover.is_empty();
        end = end.max(cover.end);
        is_outer
    });
    covers
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PAGE: u64 = 4096;

    fn blocks(cuts: &Cuts, size: u64) -> Vec<Range<u64>> {
        let range = |nth| cuts.range(nth, size);
        (0..cuts.blocks()).map(range).map(|(start, length)| start..start + length).collect()
    }

    #[test]
    fn a_sample_is_a_block_and_shares_a_page_with_the_next_one() {
        let samples = (0..10).map(|nth| nth * 99_000..(nth + 1) * 99_000);
        let cuts = Cuts::along(samples.clone(), 990_000, PAGE, None).unwrap();
        assert_eq!(cuts.blocks(), 10);
        for (nth, sample) in (0..).zip(samples) {
            assert_eq!(cuts.blocks_in(&sample), nth..nth + 1);
        }
        // The second sample begins in page 24 and ends in page 48.
        assert_eq!(blocks(&cuts, 990_000)[1], 24 * PAGE..49 * PAGE);
        assert_eq!((cuts.pages(0), cuts.pages(1)), ((25, [0, 1]), (25, [1, 1])));
        assert_eq!(cuts.blocks_in(&(98_400..99_500)), 1..2, "a page of both");
        assert_eq!(cuts.blocks_in(&(50_000..150_000)), 0..2);
    }

    #[test]
    fn what_lies_between_samples_is_in_blocks_of_at_most_a_mebibyte() {
        let size = 5 * BLOCK_BYTES + 7;
        let sample = 2 * BLOCK_BYTES..3 * BLOCK_BYTES + 1;
        let cuts = Cuts::along(Some(sample), size, PAGE, None).unwrap();
        let lengths: Vec<u64> = blocks(&cuts, size).iter().map(|it| it.end - it.start).collect();
        let full = BLOCK_BYTES;
        assert_eq!(lengths, [full, full, full, PAGE, full, full - PAGE + 7]);
    }

    #[test]
    fn tiny_samples_of_a_page_are_one_block() {
        let samples = (0..100).map(|nth| nth * 100..(nth + 1) * 100);
        let cuts = Cuts::along(samples, 10_000, PAGE, None).unwrap();
        assert_eq!(blocks(&cuts, 10_000), [0..2 * PAGE, PAGE..10_000]);
    }

    #[test]
    fn earlier_cuts_stay() {
        let cuts = Cuts::along(Some(0..PAGE), 10 * PAGE, PAGE, None).unwrap();
        let more = Cuts::along(Some(5 * PAGE..6 * PAGE), 10 * PAGE, PAGE, Some(&cuts)).unwrap();
        let pages: Vec<u64> = blocks(&more, 10 * PAGE).iter().map(|it| it.start / PAGE).collect();
        assert_eq!(pages, [0, 1, 5, 6]);
        assert_eq!(Cuts::along(Some(0..PAGE), 10 * PAGE, PAGE, Some(&more)), Some(more.clone()));
        assert_eq!(
            Cuts::along(Some(7..7), 10 * PAGE, PAGE, None),
            None,
            "there is nothing to read"
        );
    }

    proptest! {
        #[test]
        fn every_byte_is_in_a_block_and_no_block_is_needless(
            size in 1_u64..3_000_000,
            ranges in prop::collection::vec((0_u64..3_000_000, 1_u64..1_500_000), 1..40),
            asked in (0_u64..3_000_000, 1_u64..400_000),
            page in prop::sample::select(vec![4096_u64, 65_536]),
        ) {
            let samples: Vec<_> = ranges.iter().map(|(from, long)| *from..from + long).collect();
            let Some(cuts) = Cuts::along(samples.clone(), size, page, None) else {
                prop_assert!(samples.iter().all(|sample| sample.start >= size));
                return Ok(());
            };
            let blocks = blocks(&cuts, size);
            prop_assert_eq!(blocks[0].start, 0);
            prop_assert_eq!(blocks[blocks.len() - 1].end, size);
            for pair in blocks.windows(2) {
                prop_assert!(pair[0].start < pair[1].start && pair[0].end < pair[1].end);
                prop_assert!(pair[0].end >= pair[1].start);
                prop_assert!(pair[0].end <= pair[1].start + page, "they share a page at most");
            }
            for (nth, block) in (0..).zip(&blocks) {
                prop_assert!(!block.is_empty() && block.end - block.start <= BLOCK_BYTES);
                let (pages, shared) = cuts.pages(nth);
                prop_assert_eq!(u64::from(pages), (block.end - block.start).div_ceil(page));
                let neighbours = [nth.checked_sub(1), Some(nth + 1)];
                let shares = neighbours.map(|other| {
                    let other = other.and_then(|other| blocks.get(other as usize));
                    other.map_or(0, |it| it.end.min(block.end).saturating_sub(it.start.max(block.start)))
                });
                prop_assert_eq!(shared.map(u64::from), shares.map(|bytes| bytes.div_ceil(page)));
            }
            let asked = asked.0.min(size - 1)..(asked.0 + asked.1).min(size).max(asked.0.min(size - 1) + 1);
            let found = cuts.blocks_in(&asked);
            let held = blocks[found.start as usize].start..blocks[found.end as usize - 1].end;
            prop_assert!(held.start <= asked.start && held.end >= asked.end, "{:?} {:?}", held, asked);
            if found.len() > 1 {
                let (first, last) = (&blocks[found.start as usize + 1], &blocks[found.end as usize - 2]);
                prop_assert!(first.start > asked.start && last.end < asked.end, "fewer would do");
            }
            prop_assert_eq!(Cuts::along(samples, size, page, Some(&cuts)), Some(cuts.clone()));
        }
    }
}
