//! Policies, which choose the block that a full tier evicts.
//!
//! A policy knows only kept blocks; blocks that are staged for one read never reach it. Its answer `None`
//! means that the incoming block is worth less than all kept ones.

use std::collections::BTreeSet;

use lru::LruCache;

use crate::ids::BlockId;

/// When a block is read next; later sorts higher.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum NextUse {
    /// A tick of the planner, or an epoch if no more is known.
    At(u64),
    /// No known order reads it again.
    Never,
}

pub(super) trait Policy: Send {
    /// The block is kept, or was read again.
    fn touch(&mut self, block: BlockId, next: NextUse);
    /// The block to evict for one that is read at `incoming`, if a kept block is worth less.
    fn victim(&self, incoming: NextUse) -> Option<BlockId>;
    /// The block is no longer kept.
    fn remove(&mut self, block: BlockId);
}

/// Bélády's rule (1966): evicts the block whose next use is farthest in the future, and only for a block
/// that is needed sooner.
///
/// With ticks it is the optimum for known orders. With epochs it is *unread first*: a block that this epoch
/// has read is expected in the next one, so it goes before all unread blocks, and never for another read
/// one. For one stream that reads everything once an epoch, this keeps a fixed share without churn, and
/// still evicts blocks that no order reads any more.
#[derive(Debug, Default)]
pub(super) struct Belady {
    by_use: BTreeSet<(NextUse, BlockId)>,
    uses: Vec<Option<NextUse>>,
}

impl Policy for Belady {
    fn touch(&mut self, block: BlockId, next: NextUse) {
        self.remove(block);
        if self.uses.len() <= block.index() {
            self.uses.resize(block.index() + 1, None);
        }
        self.uses[block.index()] = Some(next);
        self.by_use.insert((next, block));
    }

    fn victim(&self, incoming: NextUse) -> Option<BlockId> {
        let (next, block) = *self.by_use.last()?;
        (next > incoming).then_some(block)
    }

    fn remove(&mut self, block: BlockId) {
        if let Some(next) = self.uses.get_mut(block.index()).and_then(Option::take) {
            self.by_use.remove(&(next, block));
        }
    }
}

/// Evicts the block that was read longest ago, for any incoming block.
pub(super) struct Lru(LruCache<BlockId, ()>);

impl Default for Lru {
    fn default() -> Self {
        Lru(LruCache::unbounded())
    }
}

impl Policy for Lru {
    fn touch(&mut self, block: BlockId, _next: NextUse) {
        self.0.put(block, ());
    }

    fn victim(&self, _incoming: NextUse) -> Option<BlockId> {
        self.0.peek_lru().map(|(block, ())| *block)
    }

    fn remove(&mut self, block: BlockId) {
        self.0.pop(&block);
    }
}

/// MinIO (CoorDL, VLDB 2021): keeps the blocks that came first and evicts nothing.
#[derive(Debug, Default)]
pub(super) struct Minio;

impl Policy for Minio {
    fn touch(&mut self, _block: BlockId, _next: NextUse) {}

    fn victim(&self, _incoming: NextUse) -> Option<BlockId> {
        None
    }

    fn remove(&mut self, _block: BlockId) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn belady_evicts_the_farthest_and_only_for_a_nearer_one() {
        let mut policy = Belady::default();
        policy.touch(BlockId(1), NextUse::At(10));
        policy.touch(BlockId(2), NextUse::At(30));
        policy.touch(BlockId(3), NextUse::At(20));
        assert_eq!(policy.victim(NextUse::At(25)), Some(BlockId(2)));
        assert_eq!(policy.victim(NextUse::At(30)), None);
        policy.touch(BlockId(2), NextUse::At(5));
        assert_eq!(policy.victim(NextUse::At(15)), Some(BlockId(3)));
        policy.touch(BlockId(1), NextUse::Never);
        assert_eq!(policy.victim(NextUse::At(1 << 60)), Some(BlockId(1)));
        policy.remove(BlockId(1));
        policy.remove(BlockId(1));
        assert_eq!(policy.victim(NextUse::At(1)), Some(BlockId(3)));
    }

    #[test]
    fn lru_evicts_the_longest_unread() {
        let mut policy = Lru::default();
        for block in [1, 2, 3, 1] {
            policy.touch(BlockId(block), NextUse::Never);
        }
        assert_eq!(policy.victim(NextUse::Never), Some(BlockId(2)));
        policy.remove(BlockId(2));
        assert_eq!(policy.victim(NextUse::Never), Some(BlockId(3)));
    }
}
