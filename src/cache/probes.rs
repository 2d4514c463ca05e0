//! Pages of blocks that are left out of the page cache, so that a read of the block is a request.
//!
//! 1. If the planner has to see the read of a slice, one of its pages is left out when it is pushed. It is the
//!    first page that no other slice has. Its bytes stay here. If a slice shares all of its pages, its read is not
//!    seen. In another large file, the first page is left out of each block but the first one, if the block is
//!    pushed before it is read. So the planner sees how far a reader is in the file.
//! 2. The read finds all pages but that one, and the kernel asks for it. It is answered from here. From then on the
//!    kernel has it.
//! 3. If the planner has to see the read of a slice that lies in the page cache, a page is read from there and kept
//!    here. Then the kernel drops it.
//!
//! The pages are charged to their blocks, as if the kernel had them. If there are too many, blocks are pushed whole.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

use crate::catalog::{Located, NodeId};
use crate::ids::{BlockId, FileId};
use crate::page_size::page_bytes;
use crate::plan::Layout;
use crate::sync::Mutex;

/// Bytes of pages that are left out at most. A page of a block that is no slice is left out only as long as all of them
/// have half of that, since the planner relies on those of slices.
const BYTES_MAX: u64 = 64 << 20;
const OF_BLOCKS_MAX: u64 = BYTES_MAX / 2;

struct Probe {
    node: NodeId,
    /// The page's bytes, counted from the start of the file.
    range: Range<u64>,
    bytes: Arc<[u8]>,
}

#[derive(Default)]
struct State {
    probes: HashMap<BlockId, Probe>,
    /// Slices that are pushed whole.
    untracked: HashSet<BlockId>,
}

#[derive(Default)]
pub(super) struct Probes(Mutex<State>);

impl Probes {
    /// The reads of a slice need not be seen, or have to be seen.
    pub(super) fn set_untracked(&self, block: BlockId, untracked: bool) {
        let mut state = self.0.lock();
        if untracked {
            state.untracked.insert(block);
        } else {
            state.untracked.remove(&block);
        }
    }

    pub(super) fn is_untracked(&self, block: BlockId) -> bool {
        self.0.lock().untracked.contains(&block)
    }

    /// Keeps a page of a block, whose `bytes` begin at this offset of the file. Returns whether there is room for it.
    pub(super) fn keep(
        &self,
        (block, is_slice): (BlockId, bool),
        node: NodeId,
        offset: u64,
        bytes: &[u8],
    ) -> bool {
        let mut state = self.0.lock();
        state.probes.remove(&block);
        let most = if is_slice { BYTES_MAX } else { OF_BLOCKS_MAX };
        let has_room = (state.probes.len() as u64 + 1) * page_bytes() <= most;
        if has_room {
            let range = offset..offset + bytes.len() as u64;
            state.probes.insert(block, Probe { node, range, bytes: bytes.into() });
        }
        has_room
    }

    /// Takes the bytes that a read of a version asks for, if they are those that were left out. The kernel has the
    /// page from then on. `None` if it asks for others.
    pub(super) fn take(
        &self,
        block: BlockId,
        node: NodeId,
        asked: &Range<u64>,
    ) -> Option<Arc<[u8]>> {
        let mut state = self.0.lock();
        let probe = state.probes.get(&block).filter(|probe| probe.node == node)?;
        if asked.start > probe.range.start || asked.end < probe.range.end {
            return None;
        }
        let probe = state.probes.remove(&block)?;
        (probe.range == *asked).then_some(probe.bytes)
    }

    /// The page that was left out of a block of this version: its range in the file, and its bytes.
    pub(super) fn left_out(&self, block: BlockId, node: NodeId) -> Option<(Range<u64>, Arc<[u8]>)> {
        let state = self.0.lock();
        let probe = state.probes.get(&block).filter(|probe| probe.node == node)?;
        Some((probe.range.clone(), Arc::clone(&probe.bytes)))
    }

    pub(super) fn forget(&self, block: BlockId) {
        self.0.lock().probes.remove(&block);
    }

    /// Files are other versions now, or have other blocks than in this layout.
    pub(super) fn forget_files(&self, files: &[FileId], layout: &Layout) {
        let mut state = self.0.lock();
        for block in files.iter().flat_map(|file| layout.blocks_of(*file)) {
            state.untracked.remove(&block);
        }
        let files: HashSet<FileId> = files.iter().copied().collect();
        let is_of_them = |probe: &Probe| probe.node.file().is_none_or(|file| files.contains(&file));
        state.probes.retain(|_, probe| !is_of_them(probe));
    }
}

/// The page that is left out of a block: its bytes, counted from the start of the part of the block that is put
/// into the page cache.
pub(super) fn page_of(layout: &Layout, block: BlockId, part: &Located) -> Option<Range<usize>> {
    let start = layout.range(block).0 + layout.probe_in(block)?;
    let start = start.checked_sub(part.offset)? as usize;
    let end = (start + page_bytes() as usize).min(part.length);
    (start < end).then_some(start..end)
}

/// The longer part of a block beside the page that was left out. `None` if the block has no other page.
pub(super) fn beside(at: Located, left_out: Option<Range<u64>>) -> Option<Located> {
    let Some(left_out) = left_out else { return Some(at) };
    let end = at.offset + at.length as u64;
    let before = left_out.start.saturating_sub(at.offset) as usize;
    let after = end.saturating_sub(left_out.end) as usize;
    let beside = match before > after {
        true => Located { length: before, ..at },
        false => Located { offset: left_out.end, length: after, ..at },
    };
    (beside.length > 0).then_some(beside)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_given_once_to_who_reads_it_alone() {
        let (probes, block, node) = (Probes::default(), BlockId(0), NodeId::new(FileId(0), 1));
        let page = 4096..8192;
        let keep = || assert!(probes.keep((block, true), node, 4096, &[5; 4096]));
        let is_there = || probes.left_out(block, node).is_some_and(|(range, _)| range == page);
        keep();
        assert!(is_there() && probes.left_out(block, NodeId::new(FileId(0), 2)).is_none());
        for (of, asked) in [(node, 4096..8191), (NodeId::new(FileId(0), 2), page.clone())] {
            assert!(probes.take(block, of, &asked).is_none() && is_there(), "{asked:?}");
        }
        assert!(probes.take(block, node, &page).is_some_and(|bytes| bytes[..] == [5; 4096]));
        assert!(probes.take(block, node, &page).is_none());
        keep();
        assert!(probes.take(block, node, &(0..8192)).is_none(), "more pages are missing");
        assert!(!is_there(), "the kernel gets it with the others");
        keep();
        probes.forget_files(&[FileId(0)], &Layout::new([8192]));
        assert!(!is_there());
    }

    #[test]
    fn there_is_room_for_some_pages() {
        let (probes, node) = (Probes::default(), NodeId::new(FileId(0), 1));
        let most = (BYTES_MAX / page_bytes()) as u32;
        let keep = |block: u32| probes.keep((BlockId(block), true), node, 0, &[5]);
        let keep_whole = |block: u32| probes.keep((BlockId(block), false), node, 0, &[5]);
        assert!((0..most / 2).all(keep_whole) && !keep_whole(most));
        assert!((most / 2..most).all(keep) && !keep(most) && keep(0));
        probes.forget(BlockId(7));
        assert!(keep(most));
    }

    #[test]
    fn slices_are_tracked_until_they_are_not() {
        let probes = Probes::default();
        assert!(!probes.is_untracked(BlockId(7)));
        probes.set_untracked(BlockId(7), true);
        assert!(probes.is_untracked(BlockId(7)) && !probes.is_untracked(BlockId(8)));
        probes.set_untracked(BlockId(7), false);
        assert!(!probes.is_untracked(BlockId(7)));
    }
}
