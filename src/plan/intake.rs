//! Has blocks that other nodes have given to this node copied to the tier that is their home.
//!
//! 1. Given blocks wait in a queue, until the tier has taken those before them.
//! 2. The tier copies a block ([`Action::Take`]) if it has room, or if a block that it keeps for this node alone gives way.
//!    Else the block stays where it is.

use std::collections::{BTreeSet, VecDeque};

use super::event::Action;
use super::ledger::Ledger;
use super::staging::Stager;
use crate::ids::BlockId;

/// Blocks that are copied at once: they wait in memory to be written.
const COPYING_MAX: usize = 32;

#[derive(Default)]
pub(super) struct Intake {
    queue: VecDeque<BlockId>,
    /// The blocks in the queue.
    queued: BTreeSet<BlockId>,
    copying: BTreeSet<BlockId>,
}

impl Intake {
    /// A copy of the block has been made, or cannot be made.
    pub(super) fn copied(&mut self, block: BlockId) {
        self.copying.remove(&block);
    }

    pub(super) fn given(&mut self, blocks: &[BlockId], ledger: &Ledger) {
        for &block in blocks.iter().filter(|block| ledger.layout.has(**block)) {
            if self.queued.insert(block) {
                self.queue.push_back(block);
            }
        }
    }

    /// Copies given blocks as long as more may wait to be written.
    pub(super) fn copy(&mut self, stager: &mut Stager, actions: &mut Vec<Action>) {
        let Stager { ledger, forecast, .. } = stager;
        while self.copying.len() < COPYING_MAX
            && let Some(&block) = self.queue.front()
        {
            // Its file may have left it behind, or another node is its home by now.
            let is_missed = match ledger.layout.has(block) {
                true => ledger.is_missed_at_home(block),
                false => Some(false),
            };
            let Some(is_missed) = is_missed else { return };
            self.queue.pop_front();
            self.queued.remove(&block);
            let take = |block, tier| Action::Take { block, tier };
            if is_missed && ledger.copy_below(block, take, forecast, actions) {
                self.copying.insert(block);
            }
        }
    }
}
