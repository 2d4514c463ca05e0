//! Finds the blocks that one request to the source brings together.
//!
//! A source needs as long to begin a small read as a large one. So the samples that lie beside each other in a large
//! file, or as files in an archive, are read together, if RAM has room for all the data, or a tier below it. Else samples
//! side by side would stay in RAM together, and not far from each other. Then more of the samples that are read from the
//! source have no neighbour in RAM with which they share a page.
//!
//! A run begins with the block that is read soonest. It grows over the blocks after it, and then over those before
//! it. It has at most the bytes that the setting allows, and at most an eighth of the bytes that RAM keeps already.
//! So the first reads of a job wait for little that is read much later.

use std::ops::Range;

use crate::ids::BlockId;

/// A run has at most this part of the bytes that RAM keeps: an eighth.
const KEPT_PART: u64 = 8;

/// The most bytes of a run if a request may have `request` bytes, and RAM keeps `kept` bytes.
pub(super) fn most_bytes(request: u64, kept: u64) -> u64 {
    request.min(kept / KEPT_PART)
}

/// The run around a block: at most so many bytes. `is_behind` says whether a block lies right behind the one before it
/// in number, `bytes_of` how many bytes a block has, and `may_join` whether it may be taken beside so many bytes of
/// others.
pub(super) fn around(
    block: BlockId,
    most: u64,
    is_behind: impl Fn(BlockId) -> bool,
    bytes_of: impl Fn(BlockId) -> u64,
    may_join: impl Fn(BlockId, u64) -> bool,
) -> Range<u32> {
    let mut run = block.0..block.0 + 1;
    let mut bytes = bytes_of(block);
    let mut joins = |next: u32| {
        let own = bytes_of(BlockId(next));
        let joins = bytes + own <= most && may_join(BlockId(next), bytes);
        bytes += if joins { own } else { 0 };
        joins
    };
    while is_behind(BlockId(run.end)) && joins(run.end) {
        run.end += 1;
    }
    while is_behind(BlockId(run.start)) && joins(run.start - 1) {
        run.start -= 1;
    }
    run
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(block: u32, most: u64, here: &[u32]) -> Range<u32> {
        let may_join = |block: BlockId, beside: u64| !here.contains(&block.0) && beside < 1000;
        let is_behind = |block: BlockId| (11..20).contains(&block.0);
        around(BlockId(block), most, is_behind, |_| 100, may_join)
    }

    #[test]
    fn a_run_has_what_lies_beside_a_block() {
        assert_eq!(run(14, 99, &[]), 14..15, "the block itself is taken in any case");
        assert_eq!(run(14, 300, &[]), 14..17);
        assert_eq!(run(14, 10_000, &[17, 12]), 13..17);
        assert_eq!(run(14, 10_000, &[]), 10..20);
        assert_eq!(run(18, 500, &[]), 15..20, "what is after it comes first");
    }

    #[test]
    fn runs_are_short_at_first() {
        assert_eq!(
            [0, 8 << 10, 1 << 30].map(|kept| most_bytes(8 << 20, kept)),
            [0, 1 << 10, 8 << 20]
        );
    }
}
