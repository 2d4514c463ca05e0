//! Records where each block is, and the bytes that it costs.

use std::collections::BTreeMap;

use crate::ids::BlockId;

/// The RAM tier: pages in the kernel's page cache. Reads are served from it alone; blocks are fetched into
/// it from the other tiers and the source.
pub const RAM: usize = 0;

const FETCHING: u8 = 1;
const STAGED: u8 = 2;
const DROPPING: u8 = 4;
const UNREAD: u8 = 8;
/// With [`FETCHING`]: the bytes come from the source.
const FROM_SOURCE: u8 = 16;
/// The block has its home in a tier below RAM.
const HOMED: u8 = 32;
/// With [`FETCHING`]: the bytes come with the request for another block.
const WITH_ANOTHER: u8 = 64;

/// The place that a block is asked of.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Asked {
    Source,
    /// A tier below RAM.
    Below,
    /// The source, with the request for another block.
    WithAnother,
}

#[derive(Clone, Copy, Debug, Default)]
struct State {
    /// Bit t: the block is in tier t.
    tiers: u8,
    flags: u8,
}

/// The tier below RAM that is the home of blocks.
#[derive(Clone, Copy, Debug)]
struct Home {
    tier: usize,
    /// Bytes of all blocks that have their home there, and of those that it keeps.
    all: u64,
    kept: u64,
}

/// The state of each block and the bytes of each account.
///
/// In RAM a block is charged from the start of its fetch until its pages are dropped, either as
/// *kept* (it stays) or as *staged* (it goes after its read). Blocks whose drop is under way are charged as
/// *dropping*.
#[derive(Debug)]
pub(super) struct Residency {
    blocks: Vec<State>,
    /// Kept bytes by tier.
    pub(super) kept: Vec<u64>,
    pub(super) staged: u64,
    pub(super) dropping: u64,
    /// Blocks that are being fetched.
    pub(super) fetching: u32,
    /// The requests for these blocks, and those of them to the source.
    pub(super) requests: u32,
    pub(super) requests_to_source: u32,
    /// The blocks that are being written to a tier below RAM.
    placing: BTreeMap<BlockId, usize>,
    pub(super) placing_bytes: u64,
    home: Option<Home>,
}

impl Residency {
    pub(super) fn new(blocks: usize, tiers: usize) -> Self {
        Residency {
            blocks: vec![State::default(); blocks],
            kept: vec![0; tiers],
            staged: 0,
            dropping: 0,
            fetching: 0,
            requests: 0,
            requests_to_source: 0,
            placing: BTreeMap::new(),
            placing_bytes: 0,
            home: None,
        }
    }

    pub(super) fn grow(&mut self, blocks: usize) {
        if blocks > self.blocks.len() {
            self.blocks.resize(blocks, State::default());
        }
    }

    fn has(&self, block: BlockId, flag: u8) -> bool {
        self.blocks[block.index()].flags & flag != 0
    }

    fn put(&mut self, block: BlockId, flag: u8, on: bool) {
        let flags = &mut self.blocks[block.index()].flags;
        *flags = if on { *flags | flag } else { *flags & !flag };
    }

    pub(super) fn is_in(&self, block: BlockId, tier: usize) -> bool {
        self.blocks[block.index()].tiers >> tier & 1 == 1
    }

    pub(super) fn is_fetching(&self, block: BlockId) -> bool {
        self.has(block, FETCHING)
    }

    pub(super) fn is_staged(&self, block: BlockId) -> bool {
        self.has(block, STAGED)
    }

    pub(super) fn is_dropping(&self, block: BlockId) -> bool {
        self.has(block, DROPPING)
    }

    /// Whether RAM has the block to keep it, and not for one read.
    pub(super) fn is_kept(&self, block: BlockId) -> bool {
        self.is_in(block, RAM) && !self.is_staged(block)
    }

    /// Whether the block was fetched from the source ahead, and its read has not come.
    pub(super) fn is_unread(&self, block: BlockId) -> bool {
        self.has(block, UNREAD)
    }

    pub(super) fn mark_unread(&mut self, block: BlockId, unread: bool) {
        self.put(block, UNREAD, unread);
    }

    pub(super) fn is_placing(&self, block: BlockId) -> bool {
        self.placing.contains_key(&block)
    }

    /// The fastest tier below RAM that holds the block.
    pub(super) fn place(&self, block: BlockId) -> Option<usize> {
        (RAM + 1..self.kept.len()).find(|&tier| self.is_in(block, tier))
    }

    pub(super) fn start_fetch(&mut self, block: BlockId, staged: bool, asked: Asked) {
        self.put(block, STAGED, staged);
        self.begin_fetch(block, asked);
    }

    /// Pages that are charged were found gone. They are fetched again.
    pub(super) fn restart_fetch(&mut self, block: BlockId, asked: Asked) {
        self.blocks[block.index()].tiers &= !1;
        self.begin_fetch(block, asked);
    }

    pub(super) fn finish_fetch(&mut self, block: BlockId) {
        self.end_fetch(block);
        self.blocks[block.index()].tiers |= 1;
    }

    fn begin_fetch(&mut self, block: BlockId, asked: Asked) {
        self.put(block, FETCHING, true);
        self.put(block, FROM_SOURCE, asked == Asked::Source);
        self.put(block, WITH_ANOTHER, asked == Asked::WithAnother);
        self.fetching += 1;
        self.requests += u32::from(asked != Asked::WithAnother);
        self.requests_to_source += u32::from(asked == Asked::Source);
    }

    fn end_fetch(&mut self, block: BlockId) {
        self.fetching -= 1;
        self.requests -= u32::from(!self.has(block, WITH_ANOTHER));
        self.requests_to_source -= u32::from(self.has(block, FROM_SOURCE));
        self.put(block, FETCHING | FROM_SOURCE | WITH_ANOTHER, false);
    }

    /// The block leaves RAM, or its fetch failed.
    pub(super) fn forget(&mut self, block: BlockId) {
        if self.is_fetching(block) {
            self.end_fetch(block);
        }
        self.put(block, STAGED, false);
        self.blocks[block.index()].tiers &= !1;
    }

    /// The block leaves RAM. Its pages have so many bytes.
    pub(super) fn start_drop(&mut self, block: BlockId, bytes: u64) {
        self.forget(block);
        // A block may be fetched and dropped again while a drop of it is under way.
        if !self.is_dropping(block) {
            self.put(block, DROPPING, true);
            self.dropping += bytes;
        }
    }

    /// A block in RAM, or on its way there, is charged with so many bytes more.
    pub(super) fn charge_more(&mut self, block: BlockId, bytes: u64) {
        *self.account_of(block) += bytes;
    }

    /// The same with so many bytes fewer.
    pub(super) fn charge_less(&mut self, block: BlockId, bytes: u64) {
        *self.account_of(block) -= bytes;
    }

    fn account_of(&mut self, block: BlockId) -> &mut u64 {
        if self.is_staged(block) { &mut self.staged } else { &mut self.kept[RAM] }
    }

    pub(super) fn finish_drop(&mut self, block: BlockId, bytes: u64) {
        if self.is_dropping(block) {
            self.put(block, DROPPING, false);
            self.dropping -= bytes;
        }
    }

    pub(super) fn keep(&mut self, block: BlockId) {
        self.put(block, STAGED, false);
    }

    /// A kept block is only staged from this moment on.
    pub(super) fn unkeep(&mut self, block: BlockId) {
        self.put(block, STAGED, true);
    }

    /// Only these blocks have their home in a tier from now on. Each has so many bytes there.
    pub(super) fn set_home(
        &mut self,
        tier: usize,
        blocks: &[BlockId],
        bytes: impl Fn(BlockId) -> u64,
    ) {
        self.blocks.iter_mut().for_each(|state| state.flags &= !HOMED);
        blocks.iter().for_each(|block| self.put(*block, HOMED, true));
        let is_kept =
            |block: &BlockId| self.is_in(*block, tier) || self.placing.get(block) == Some(&tier);
        let all = blocks.iter().map(|block| bytes(*block)).sum();
        let kept = blocks.iter().filter(|block| is_kept(block)).map(|block| bytes(*block)).sum();
        self.home = (!blocks.is_empty()).then_some(Home { tier, all, kept });
    }

    /// Whether a tier is the home of any block.
    pub(super) fn is_home(&self, tier: usize) -> bool {
        self.home.is_some_and(|home| home.tier == tier)
    }

    /// Whether a tier is the home of a block.
    pub(super) fn has_home_in(&self, block: BlockId, tier: usize) -> bool {
        self.is_home(tier) && self.has(block, HOMED)
    }

    /// Whether a tier below RAM is the home of a block.
    pub(super) fn has_home(&self, block: BlockId) -> bool {
        self.has(block, HOMED)
    }

    /// Bytes of the blocks whose home a tier is, and that it does not keep yet.
    pub(super) fn expected(&self, tier: usize) -> u64 {
        let home = self.home.filter(|home| home.tier == tier);
        home.map_or(0, |home| home.all.saturating_sub(home.kept))
    }

    fn charge(&mut self, block: BlockId, tier: usize, bytes: u64) {
        self.kept[tier] += bytes;
        if self.has_home_in(block, tier)
            && let Some(home) = &mut self.home
        {
            home.kept += bytes;
        }
    }

    fn discharge(&mut self, block: BlockId, tier: usize, bytes: u64) {
        self.kept[tier] = self.kept[tier].saturating_sub(bytes);
        if self.has_home_in(block, tier)
            && let Some(home) = &mut self.home
        {
            home.kept = home.kept.saturating_sub(bytes);
        }
    }

    pub(super) fn start_place(&mut self, block: BlockId, tier: usize, bytes: u64) {
        self.placing.insert(block, tier);
        self.charge(block, tier, bytes);
        self.placing_bytes += bytes;
    }

    /// The copy is there (`done`), could not be made, or is no longer needed.
    pub(super) fn finish_place(&mut self, block: BlockId, bytes: u64, done: bool) {
        let Some(tier) = self.placing.remove(&block) else { return };
        self.placing_bytes = self.placing_bytes.saturating_sub(bytes);
        if done {
            self.blocks[block.index()].tiers |= 1 << tier;
        } else {
            self.discharge(block, tier, bytes);
        }
    }

    pub(super) fn displace(&mut self, block: BlockId, tier: usize, bytes: u64) {
        if self.is_in(block, tier) {
            self.blocks[block.index()].tiers &= !(1 << tier);
            self.discharge(block, tier, bytes);
        }
    }

    pub(super) fn kept_in(&self, tier: usize) -> impl Iterator<Item = BlockId> + '_ {
        (0..self.blocks.len() as u32).map(BlockId).filter(move |&block| {
            self.is_in(block, tier) && !(tier == RAM && self.is_staged(block))
        })
    }
}
