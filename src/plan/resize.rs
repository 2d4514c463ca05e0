//! A tier that may hold more or less from now on, or a window that has been widened.
//!
//! 1. The window takes its part first, as at the start.
//! 2. What is kept goes by the policy, as if a block that is read at this moment came in; then
//!    whatever is left, where the policy names nothing (it keeps what came first, say).
//! 3. What is staged goes too, farthest read first, as long as RAM is over its capacity.
//!
//! What is on its way or being read cannot go now. It is charged as staged instead, and its
//! arrival or its close settles it.

use super::Planner;
use super::event::Action;
use super::policy::NextUse;
use super::residency::RAM;
use crate::ids::BlockId;

impl Planner {
    pub(super) fn resized(&mut self, tier: usize, capacity: u64, actions: &mut Vec<Action>) {
        let Some(resized) = self.settings.tiers.get_mut(tier) else { return };
        resized.capacity = capacity;
        self.size_tiers();
        self.fit_kept(tier, actions);
        if tier == RAM {
            self.unstage(actions);
        }
    }

    /// A read was where an order had it. `late`: it found nothing, which a wider window might have helped.
    pub(super) fn foreseen(&mut self, late: bool, actions: &mut Vec<Action>) {
        let before = self.window.bytes();
        self.window.read(late);
        if self.window.bytes() > before {
            self.fit_kept(RAM, actions);
        }
    }

    /// Gives up what a tier keeps beyond its capacity, of which the window has its part.
    pub(super) fn fit_kept(&mut self, tier: usize, actions: &mut Vec<Action>) {
        let capacity = self.settings.tiers[tier].capacity;
        let window = if tier == RAM { self.window.bytes() } else { 0 };
        let over = |planner: &Self| planner.residency.kept[tier] + window > capacity;
        while over(self)
            && let Some(victim) = self.policies[tier].victim(NextUse::At(0))
        {
            self.give_up(victim, tier, actions);
        }
        for block in self.blocks().rev() {
            if !over(self) {
                break;
            }
            let kept = self.residency.is_in(block, tier)
                || tier == RAM && self.residency.is_fetching(block);
            if kept && !(tier == RAM && self.residency.is_staged(block)) {
                self.give_up(block, tier, actions);
            }
        }
    }

    pub(super) fn give_up(&mut self, block: BlockId, tier: usize, actions: &mut Vec<Action>) {
        self.policies[tier].remove(block);
        if tier != RAM {
            self.residency.displace(block, tier, self.layout.stored_bytes(block));
            actions.push(Action::Displace { block, tier });
        } else if self.can_go(block) {
            self.drop_unread(block, actions);
        } else {
            self.residency.unkeep(block, self.layout.pages_bytes(block));
            self.regear(self.layout.file_of(block), actions);
        }
    }

    fn unstage(&mut self, actions: &mut Vec<Action>) {
        let capacity = self.settings.tiers[RAM].capacity;
        let over =
            |planner: &Self| planner.residency.kept[RAM] + planner.residency.staged > capacity;
        if !over(self) {
            return;
        }
        let mut staged: Vec<(u64, BlockId)> = self
            .blocks()
            .filter(|&block| self.residency.is_staged(block) && self.can_go(block))
            .map(|block| {
                let uses = self.streams.iter().flatten();
                let soonest = uses.filter_map(|stream| stream.next_use(block, false)).min();
                (soonest.map_or(u64::MAX, |(ticks, _)| ticks), block)
            })
            .collect();
        staged.sort_unstable();
        while over(self)
            && let Some((_, block)) = staged.pop()
        {
            self.drop_unread(block, actions);
        }
    }

    /// Drops a block that is still to be read: it is staged again when its turn comes.
    fn drop_unread(&mut self, block: BlockId, actions: &mut Vec<Action>) {
        self.drop_pages(block, actions);
        for stream in self.streams.iter_mut().flatten() {
            stream.unstage(block);
        }
    }

    /// Whether a block is in RAM and nobody is reading it at this moment; of a large file that is
    /// open, another block may be read.
    pub(super) fn can_go(&self, block: BlockId) -> bool {
        let file = self.layout.file_of(block);
        let read = self.readers.has_open(file) && self.layout.blocks_of(file).len() < 2;
        self.residency.is_in(block, RAM) && !self.residency.is_fetching(block) && !read
    }

    fn blocks(&self) -> impl DoubleEndedIterator<Item = BlockId> + use<> {
        (0..self.layout.blocks() as u32).map(BlockId)
    }
}
