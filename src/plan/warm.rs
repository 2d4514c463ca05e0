//! Blocks that people want here before anybody reads them, and blocks that they want gone.
//!
//! 1. What is wanted waits in a queue. Whatever a reader waits for and what streams read ahead goes
//!    first.
//! 2. A tier below RAM takes a block where it has room, or its policy gives up another one in
//!    favour of it: [`Action::Load`] brings it there and leaves RAM alone. What no tier takes RAM
//!    keeps, if it has room.
//! 3. What has no place anywhere is refused and not fetched: see [`Planner::standing`].

use std::collections::{BTreeSet, VecDeque};

use super::Planner;
use super::event::Action;
use super::residency::RAM;
use crate::ids::BlockId;

/// Where a block is, for those who want it here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// RAM keeps it.
    Ram,
    /// It is in this tier below RAM.
    Tier(usize),
    /// It is on its way, or waits for its turn.
    Coming,
    /// It was wanted, and there was no room for it.
    Refused,
    /// None of these.
    Away,
}

/// Blocks loaded at once: what arrives waits in memory to be written.
const LOADING_MAX: usize = 32;

/// What is wanted and not yet here.
#[derive(Default)]
pub(super) struct Warming {
    queue: VecDeque<BlockId>,
    /// What is in the queue and still wanted.
    queued: BTreeSet<BlockId>,
    /// Blocks being loaded.
    loading: BTreeSet<BlockId>,
    refused: BTreeSet<BlockId>,
}

impl Warming {
    /// A load has ended, or is of no use any more.
    pub(super) fn loaded(&mut self, block: BlockId) {
        self.loading.remove(&block);
    }
}

impl Planner {
    /// Where a block is.
    pub fn standing(&self, block: BlockId) -> Standing {
        if !self.layout.has(block) {
            return Standing::Away;
        }
        let coming = self.residency.is_fetching(block) || self.residency.is_placing(block);
        if let Some(tier) = self.residency.place(block) {
            Standing::Tier(tier)
        } else if self.residency.is_in(block, RAM) && !self.residency.is_staged(block) {
            // Also while a copy of it is written to the disk.
            Standing::Ram
        } else if coming || self.warming.queued.contains(&block) {
            Standing::Coming
        } else if self.warming.refused.contains(&block) {
            Standing::Refused
        } else {
            Standing::Away
        }
    }

    pub(super) fn wanted(&mut self, blocks: &[BlockId]) {
        for &block in blocks.iter().filter(|block| self.layout.has(**block)) {
            self.warming.refused.remove(&block);
            if self.warming.queued.insert(block) {
                self.warming.queue.push_back(block);
            }
        }
    }

    pub(super) fn unwanted(&mut self, blocks: &[BlockId], actions: &mut Vec<Action>) {
        for &block in blocks {
            if !self.layout.has(block) {
                continue;
            }
            self.warming.queued.remove(&block);
            for tier in RAM + 1..self.settings.tiers.len() {
                if self.residency.is_in(block, tier) {
                    self.give_up(block, tier, actions);
                }
            }
            if self.can_go(block) {
                self.give_up(block, RAM, actions);
            }
        }
    }

    /// Brings what is wanted, as far as the fetches under way leave room for more.
    pub(super) fn warm(&mut self, actions: &mut Vec<Action>) {
        let most = self.settings.inflight_max as usize;
        while self.residency.fetching as usize + self.warming.loading.len() < most
            && self.may_fetch_more()
            && self.warming.loading.len() < LOADING_MAX
            && let Some(block) = self.warming.queue.pop_front()
        {
            // Not wanted any more, left behind by its file, or here in the meantime.
            if !self.warming.queued.remove(&block)
                || !self.layout.has(block)
                || self.standing(block) != Standing::Away
            {
                continue;
            }
            let next = self.next_use(block, false);
            if let Some(tier) = self.room_below(block, next, actions) {
                self.residency.start_place(block, tier, self.layout.stored_bytes(block));
                self.warming.loading.insert(block);
                actions.push(Action::Load { block, tier });
            } else if !self.can_be_kept(block) {
                self.warming.refused.insert(block);
            } else if self.residency.is_in(block, RAM) {
                // Staged for a read, after which it would go.
                self.residency.keep(block, self.layout.pages_bytes(block));
                if !self.readers.has_open(self.layout.file_of(block)) {
                    self.touch(block);
                }
                self.regear(self.layout.file_of(block), actions);
            } else if !self.try_stage(block, actions) {
                // Its pages are being dropped at this moment.
                self.warming.queued.insert(block);
                return self.warming.queue.push_front(block);
            }
        }
    }
}
