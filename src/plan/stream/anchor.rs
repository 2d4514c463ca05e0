//! Opens that the order does not explain, and what is concluded from them: that the job has started
//! an epoch, or that it reads something else.

use super::{Stream, expand};
use crate::ids::BlockId;
use crate::plan::epoch::{HEAD, Head};
use crate::plan::layout::Layout;
use crate::plan::visibility::Sight;

/// How many opens in a row may be strays before a stream's order is given up.
const STRAYS_MAX: u32 = 64;

/// How many strays of somebody else weigh as much as one of a stream's own reader.
const STRAY_WEIGHT: u32 = 16;

/// How many strays are remembered to look for another start: at least, for each worker, at most.
const STRAYS_KEPT: (usize, usize, usize) = (16, 4, 64);

/// An open that the order does not explain.
pub(super) struct Stray {
    pub(super) block: BlockId,
    /// Whether it had been read before in the epoch that is the current one.
    pub(super) again: bool,
}

impl Stream {
    /// The block is in the order, but its open is no read of a position that is due. Says whether
    /// the stream is anchored anew.
    pub(in crate::plan) fn stray(&mut self, block: BlockId, sight: Sight<'_>) -> bool {
        self.strayed += 1;
        if self.strays.iter().all(|stray| stray.block != block) {
            let due = self.current.next(block).or_else(|| self.current.assumed(block));
            self.strays.push_back(Stray { block, again: due.is_none() });
            let (least, each, most) = STRAYS_KEPT;
            if self.strays.len() > (each * self.workers as usize).clamp(least, most) {
                self.strays.pop_front();
            }
        }
        self.anchor(sight)
    }

    /// So many opens before this one were where the order has them: it shows only when their task
    /// is trusted.
    pub(in crate::plan) fn explain(&mut self, opens: usize) {
        self.strayed = self.strayed.saturating_sub(opens as u64);
    }

    /// A stray was a read for sure. Says whether the order is given up.
    /// `walking`: its task goes through directories.
    pub(in crate::plan) fn mistrust(&mut self, task: u32, walking: bool) -> bool {
        // Who reads on the side says little about those who read for the stream.
        let reads = self.runners.is_empty() || self.runners.iter().any(|r| r.task == task);
        self.astray += if reads && !walking { STRAY_WEIGHT } else { 1 };
        // Each worker strays until it is trusted.
        let diverged = self.astray >= STRAY_WEIGHT * (STRAYS_MAX + 3 * self.workers);
        let changed = diverged && !self.diverged;
        self.diverged |= diverged;
        changed
    }

    /// Looks for an epoch that starts as the strays do: the next one, the first, this one.
    fn anchor(&mut self, sight: Sight<'_>) -> bool {
        let pairs_wanted = if self.current.len() >= HEAD as u32 { 3 } else { 6 };
        if self.strays.len() <= pairs_wanted {
            return false;
        }
        let starts_as = |head: &Head| {
            let at = |stray: &Stray| head.position(stray.block);
            let positions: Vec<u32> = self.strays.iter().filter_map(at).collect();
            // Each by the same or another worker, but never before the one that it follows.
            let followed =
                |(nth, position): (usize, &u32)| positions[nth + 1..].contains(&(position + 1));
            positions.iter().enumerate().filter(|&pair| followed(pair)).count() >= pairs_wanted
        };
        let now = starts_as(self.current.head());
        // Where epochs are alike, reads of this one are no start of another.
        // So are reads by tasks that are not trusted yet.
        let again = self.strays.iter().filter(|stray| stray.again).count();
        if now && !self.diverged && 2 * again <= self.strays.len() {
            return false;
        } else if starts_as(self.next.head()) {
            // What is staged for it stays.
            self.roll(sight);
        } else if self.number > 0 && starts_as(&self.first_head) {
            self.start_at(0, sight.layout);
        } else if now {
            self.start_at(self.number, sight.layout);
        } else {
            return false;
        }
        (self.astray, self.diverged) = (0, false);
        for Stray { block, .. } in std::mem::take(&mut self.strays) {
            if let Some(position) = self.current.next(block) {
                self.current.reach(position);
            }
        }
        true
    }

    fn start_at(&mut self, number: u32, layout: &Layout) {
        // Positions of before must not be taken for those of now.
        self.base += u64::from(self.current.len()) + u64::from(self.next.len());
        self.number = number;
        self.epochs = self.order.epochs(number);
        self.current = expand(&self.order, &mut self.epochs, layout);
        self.next = expand(&self.order, &mut self.epochs, layout);
        self.restart();
        self.cursors = (0, 0);
    }
}
