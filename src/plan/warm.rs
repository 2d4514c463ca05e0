//! Blocks that people want here before anybody reads them, and blocks that they want gone.
//!
//! 1. What is wanted waits in a queue. Whatever a reader waits for and what streams read ahead goes
//!    first.
//! 2. A tier below RAM takes a block where it has room, or its policy gives up another one in
//!    favour of it: [`Action::Load`] brings it there and leaves RAM alone. What no tier takes RAM
//!    keeps, if it has room.
//! 3. What has no place anywhere is refused and not fetched: see [`Warming::standing`].

use std::collections::{BTreeSet, VecDeque};

use super::event::Action;
use super::ledger::Ledger;
use super::residency::RAM;
use super::staging::Stager;
use crate::ids::BlockId;

/// Where a block is, for those who want it here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    Ram,
    /// It is in this tier below RAM.
    Tier(usize),
    /// It is on its way, or waits for its turn.
    Coming,
    /// It was wanted, and there was no room for it.
    Refused,
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
    loading: BTreeSet<BlockId>,
    refused: BTreeSet<BlockId>,
}

impl Warming {
    /// A load has ended, or is of no use any more.
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
            // Also while a copy of it is written to the disk.
            Standing::Ram
        } else if coming || self.queued.contains(&block) {
            Standing::Coming
        } else if self.refused.contains(&block) {
            Standing::Refused
        } else {
            Standing::Away
        }
    }

    /// People want blocks here.
    pub(super) fn wanted(&mut self, blocks: &[BlockId], ledger: &Ledger) {
        for &block in blocks.iter().filter(|block| ledger.layout.has(**block)) {
            self.refused.remove(&block);
            if self.queued.insert(block) {
                self.queue.push_back(block);
            }
        }
    }

    /// People want blocks gone.
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

    /// Brings what is wanted, as far as the fetches under way leave room for more.
    pub(super) fn bring(&mut self, stager: &mut Stager, actions: &mut Vec<Action>) {
        while self.loading.len() < LOADING_MAX.min(stager.ledger.fetches_left() as usize)
            && stager.ledger.may_fetch_more()
            && let Some(block) = self.queue.pop_front()
        {
            // Not wanted any more, left behind by its file, or here in the meantime.
            let is_wanted = self.queued.remove(&block) && stager.ledger.layout.has(block);
            if is_wanted && self.standing(block, &stager.ledger) == Standing::Away {
                let has_room = self.bring_one(block, stager, actions);
                if !has_room {
                    // Its pages are being dropped at this moment.
                    self.queued.insert(block);
                    return self.queue.push_front(block);
                }
            }
        }
    }

    /// Brings a block, or refuses it. False if it has to wait for room.
    fn bring_one(
        &mut self,
        block: BlockId,
        stager: &mut Stager,
        actions: &mut Vec<Action>,
    ) -> bool {
        let Stager { ledger, forecast, .. } = stager;
        if ledger.load(block, forecast, actions) {
            self.loading.insert(block);
        } else if !ledger.can_be_kept(block, forecast) {
            self.refused.insert(block);
        } else if ledger.residency.is_in(block, RAM) {
            // Staged for a read, after which it would go.
            ledger.keep(block);
            ledger.touch_closed(block, forecast);
        } else {
            return stager.try_stage(block, actions);
        }
        true
    }
}
