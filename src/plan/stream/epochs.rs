//! The two epochs of an order that a stream looks at: the current one, and the next.
//!
//! A position counts from the start of its epoch. An absolute position counts over all epochs that the
//! stream has held, so that it never stands for two reads.

use std::sync::Arc;

use crate::ids::BlockId;
use crate::order::{EpochIter, Order};
use crate::plan::epoch::{Epoch, Head};
use crate::plan::layout::Layout;

/// A position, and in which of the two epochs it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Position {
    Current(u32),
    Next(u32),
}

pub(super) struct Epochs {
    pub(super) order: Arc<Order>,
    /// The epochs after the next one.
    later: EpochIter,
    /// Number of the current epoch.
    pub(super) number: u32,
    pub(super) current: Epoch,
    pub(super) next: Epoch,
    /// The start of epoch 0.
    pub(super) first_head: Head,
    /// Positions of all epochs before the current one.
    base: u64,
}

impl Epochs {
    pub(super) fn new(order: Arc<Order>, layout: &Layout) -> Self {
        let mut later = order.epochs(0);
        let current = expand(&order, &mut later, layout);
        let next = expand(&order, &mut later, layout);
        let first_head = current.head().clone();
        Epochs { order, later, number: 0, current, next, first_head, base: 0 }
    }

    /// Makes the next epoch the current one.
    pub(super) fn go_on(&mut self, layout: &Layout) {
        self.number += 1;
        self.base += u64::from(self.current.len());
        let next = expand(&self.order, &mut self.later, layout);
        self.current = std::mem::replace(&mut self.next, next);
    }

    /// Makes the epoch of a number the current one, with nothing of it read.
    pub(super) fn start_at(&mut self, number: u32, layout: &Layout) {
        // No absolute position of before may stand for one of the new epochs.
        self.base += u64::from(self.current.len()) + u64::from(self.next.len());
        self.number = number;
        self.later = self.order.epochs(number);
        self.current = expand(&self.order, &mut self.later, layout);
        self.next = expand(&self.order, &mut self.later, layout);
    }

    /// Files have other blocks in `layout` than `before`. Samples that were read stay read. Returns where each
    /// sample of the current epoch began, and where it begins now.
    pub(super) fn lay_out(&mut self, before: &Layout, layout: &Layout) -> Vec<(u32, u32)> {
        let mut all = self.order.epochs(self.number);
        let mut ids = || all.next().unwrap_or_default();
        let samples =
            |id: &u32| (blocks_of(&self.order, *id, before), blocks_of(&self.order, *id, layout));
        // No absolute position of before may stand for one of the new epochs.
        self.base += u64::from(self.current.len()) + u64::from(self.next.len());
        let (current, starts) = self.current.laid_out(ids().iter().map(samples));
        self.current = current;
        self.next = self.next.laid_out(ids().iter().map(samples)).0;
        starts
    }

    pub(super) fn absolute(&self, position: Position) -> u64 {
        self.base
            + match position {
                Position::Current(position) => u64::from(position),
                Position::Next(position) => u64::from(self.current.len()) + u64::from(position),
            }
    }

    /// The position in the current or the next epoch, if it is one of theirs.
    pub(super) fn position(&self, absolute: u64) -> Option<Position> {
        let position = absolute.checked_sub(self.base)?;
        let Some(in_next) = position.checked_sub(u64::from(self.current.len())) else {
            return Some(Position::Current(position as u32));
        };
        (in_next < u64::from(self.next.len())).then_some(Position::Next(in_next as u32))
    }

    pub(super) fn block_at(&self, position: Position) -> Option<BlockId> {
        match position {
            Position::Current(position) => self.current.block_at(position),
            Position::Next(position) => self.next.block_at(position),
        }
    }

    /// The block at a position that counts from the start of the current epoch, also past its end.
    pub(super) fn block_from_start(&self, position: u32) -> Option<BlockId> {
        match position.checked_sub(self.current.len()) {
            None => self.current.block_at(position),
            Some(position) => self.next.block_at(position),
        }
    }

    pub(super) fn contains(&self, block: BlockId) -> bool {
        self.current.contains(block) || self.next.contains(block)
    }

    /// Positions of the current epoch from the lowest that was not reached.
    pub(super) fn left(&self) -> u32 {
        self.current.len() - self.current.low()
    }
}

fn expand(order: &Order, later: &mut EpochIter, layout: &Layout) -> Epoch {
    let ids = later.next().unwrap_or_default();
    let mut blocks = Vec::with_capacity(ids.len());
    for id in ids.iter() {
        blocks.extend(blocks_of(order, *id, layout).map(|block| block.0));
    }
    Epoch::new(blocks)
}

/// The blocks of a sample.
fn blocks_of(
    order: &Order,
    id: u32,
    layout: &Layout,
) -> impl ExactSizeIterator<Item = BlockId> + use<> {
    let sample = order.samples().get(id);
    layout.blocks_in(sample.file, sample.offset, sample.length.unwrap_or(u64::MAX))
}
