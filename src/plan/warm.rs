//! Brings the blocks that a warm-up asks for, and gives up blocks on demand.
//!
//! 1. Wanted blocks wait in a queue. Fetches for readers and streams go first.
//! 2. A tier below RAM takes a block ([`Action::Load`]) if it has room, or if its policy evicts another one.
//!    RAM keeps a block that no tier below takes, if it has room.
//! 3. A block without room in any tier is refused and not fetched: see [`Warming::standing`].

use std::collections::{BTreeSet, VecDeque};

use super::event::Action;
use super::ledger::Ledger;
use super::residency::RAM;
use super::staging::Stager;
use crate::ids::BlockId;

/// Where a block is, as a warm-up reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    Ram,
    /// In this tier below RAM.
    Tier(usize),
    /// Being fetched or stored, or in the queue.
    Coming,
    /// Wanted, but no tier had room for it.
    Refused,
    Away,
}

/// Blocks loaded at once: they wait in memory to be written.
const LOADING_MAX: usize = 32;

#[derive(Default)]
pub(super) struct Warming {
    queue: VecDeque<BlockId>,
    /// The blocks in the queue that are still wanted.
    queued: BTreeSet<BlockId>,
    loading: BTreeSet<BlockId>,
    refused: BTreeSet<BlockId>,
}

impl Warming {
    pub(super) fn loaded(&mut self, block: BlockId) {
        self.loading.remove(&block);
    }

    pub(super) fn standing(&self, block: BlockId, ledger: &Ledger) -> Standing {
        if !ledger.layout.has(block) {
            return Standing::Away;
        }
        let residency = &ledger.residency;
        let coming = residency.is_fetching(block) || residency.is_placing(block);
        if let Some(tier) = residency.place(block) {
            Standing::Tier(tier)
        } else if residency.is_in(block, RAM) && !residency.is_staged(block) {
            // Even while a copy is written to the disk.
            Standing::Ram
        } else if coming || self.queued.contains(&block) {
            Standing::Coming
        } else if self.refused.contains(&block) {
            Standing::Refused
        } else {
            Standing::Away
        }
    }

    pub(super) fn wanted(&mut self, blocks: &[BlockId], ledger: &Ledger) {
        for &block in blocks.iter().filter(|block| ledger.layout.has(**block)) {
            self.refused.remove(&block);
            if self.queued.insert(block) {
                self.queue.push_back(block);
            }
        }
    }

    pub(super) fn unwanted(
        &mut self,
        blocks: &[BlockId],
        stager: &mut Stager,
        actions: &mut Vec<Action>,
    ) {
        for &block in blocks {
            if !stager.ledger.layout.has(block) {
                continue;
            }
            self.queued.remove(&block);
            for tier in stager.ledger.tiers_below() {
                if stager.ledger.residency.is_in(block, tier) {
                    stager.give_up(block, tier, actions);
                }
            }
            if stager.ledger.can_go(block) {
                stager.give_up(block, RAM, actions);
            }
        }
    }

    /// Brings wanted blocks as long as further fetches may begin.
    pub(super) fn bring(&mut self, stager: &mut Stager, actions: &mut Vec<Action>) {
        while self.loading.len() < LOADING_MAX.min(stager.ledger.fetches_left() as usize)
            && stager.ledger.may_fetch_more()
            && let Some(block) = self.queue.pop_front()
        {
            // The block may be unwanted, left behind by its file, or here in the meantime.
            let is_wanted = self.queued.remove(&block) && stager.ledger.layout.has(block);
            if is_wanted && self.standing(block, &stager.ledger) == Standing::Away {
                let has_room =
                    stager.ledger.may_fetch(block) && self.bring_one(block, stager, actions);
                if !has_room {
                    // Its pages are being dropped at this moment.
                    self.queued.insert(block);
                    return self.queue.push_front(block);
                }
            }
        }
    }

    /// Brings a block, or refuses it. Returns false if it has to wait.
    fn bring_one(
        &mut self,
        block: BlockId,
        stager: &mut Stager,
        actions: &mut Vec<Action>,
    ) -> bool {
        let Stager { ledger, forecast, .. } = stager;
        let load = |block, tier| Action::Load { block, tier };
        if ledger.copy_below(block, load, forecast, actions) {
            self.loading.insert(block);
        } else if !ledger.can_be_kept(block, forecast) {
            self.refused.insert(block);
        } else if ledger.residency.is_in(block, RAM) {
            // It is staged, and would go after its read.
            ledger.keep(block);
            ledger.touch_closed(block, forecast);
        } else {
            return stager.try_stage(block, actions);
        }
        true
    }
}
