//! Opens that an order does not explain, and what follows from them: the job has started an epoch, or it
//! reads something else.

use std::collections::VecDeque;

use super::epochs::Epochs;
use crate::ids::BlockId;
use crate::plan::epoch::{HEAD, Head};

/// How many opens in a row may be strays before a stream's order is given up, and how many more for each
/// worker: each strays until it is trusted.
const STRAYS_MAX: u32 = 64;
const STRAYS_MAX_EACH: u32 = 3;

/// How many strays of other tasks weigh as much as one of a stream's own reader.
const STRAY_WEIGHT: u32 = 16;

/// How many strays are remembered to look for another start: at least, for each worker, at most.
const KEPT_MIN: usize = 16;
const KEPT_EACH: usize = 4;
const KEPT_MAX: usize = 64;

/// An open that the order does not explain.
struct Stray {
    block: BlockId,
    /// Whether the current epoch had read the block before.
    again: bool,
}

/// The epoch that strays show to have started.
pub(super) enum Start {
    Next,
    First,
    Current,
}

#[derive(Default)]
pub(super) struct Strays {
    recent: VecDeque<Stray>,
    /// The weight of the strays that were reads, since the last open that the order explained.
    weight: u32,
    /// Whether the order is given up.
    pub(super) diverged: bool,
}

impl Strays {
    pub(super) fn note(&mut self, block: BlockId, again: bool, workers: u32) {
        if self.recent.iter().any(|stray| stray.block == block) {
            return;
        }
        self.recent.push_back(Stray { block, again });
        if self.recent.len() > (KEPT_EACH * workers as usize).clamp(KEPT_MIN, KEPT_MAX) {
            self.recent.pop_front();
        }
    }

    /// A stray was a read. `own`: its task may be one of the stream's readers. Says whether the order is
    /// given up by it.
    pub(super) fn weigh(&mut self, own: bool, workers: u32) -> bool {
        self.weight += if own { STRAY_WEIGHT } else { 1 };
        let diverged = self.weight >= STRAY_WEIGHT * (STRAYS_MAX + STRAYS_MAX_EACH * workers);
        let changed = diverged && !self.diverged;
        self.diverged |= diverged;
        changed
    }

    /// A stray turns out to be where the order has it: its task is trusted now.
    pub(super) fn explained(&mut self, block: Option<BlockId>) {
        self.recent.retain(|stray| Some(stray.block) != block);
    }

    /// An open is where the order has it: strays before it do not count against the order.
    pub(super) fn forgive(&mut self) {
        self.weight = 0;
    }

    /// Another epoch has begun, which has read nothing yet.
    pub(super) fn restart(&mut self) {
        self.recent.iter_mut().for_each(|stray| stray.again = false);
    }

    /// Looks for an epoch that starts as the strays do: the next one, the first, the current one.
    pub(super) fn start(&self, epochs: &Epochs) -> Option<Start> {
        let pairs_min = if epochs.current.len() >= HEAD as u32 { 3 } else { 6 };
        if self.recent.len() <= pairs_min {
            return None;
        }
        let current = self.pairs(epochs.current.head()) >= pairs_min;
        // If epochs are alike, reads of the current one start no other. The same holds for reads by tasks
        // that are not trusted yet.
        let again = self.recent.iter().filter(|stray| stray.again).count();
        if current && !self.diverged && 2 * again <= self.recent.len() {
            None
        } else if self.pairs(epochs.next.head()) >= pairs_min {
            Some(Start::Next)
        } else if epochs.number > 0 && self.pairs(&epochs.first_head) >= pairs_min {
            Some(Start::First)
        } else {
            current.then_some(Start::Current)
        }
    }

    /// How many strays are followed by the next position of an epoch's head: at once or later, by the same
    /// or another worker.
    fn pairs(&self, head: &Head) -> usize {
        let positions = self.recent.iter().filter_map(|stray| head.position(stray.block));
        let positions: Vec<u32> = positions.collect();
        let followed =
            |(nth, position): &(usize, &u32)| positions[nth + 1..].contains(&(*position + 1));
        positions.iter().enumerate().filter(followed).count()
    }

    /// The order is followed again. Gives the blocks of the strays, which its start explains.
    pub(super) fn resolve(&mut self) -> impl Iterator<Item = BlockId> + use<> {
        (self.weight, self.diverged) = (0, false);
        std::mem::take(&mut self.recent).into_iter().map(|stray| stray.block)
    }
}
