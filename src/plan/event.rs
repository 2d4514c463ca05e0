//! The planner's language: what it is told, what it says, what it counts.

use std::sync::Arc;

use serde::Serialize;

use super::layout::Layout;
use crate::config::PolicyKind;
use crate::ids::{BlockId, FileId, PageRange, StreamId};
use crate::order::Order;

/// One tier of the cache, from the fastest to the slowest; the first is RAM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tier {
    /// Bytes it may hold.
    pub capacity: u64,
    /// Microseconds that a block takes from it; 0 for RAM, and where nobody knows.
    pub block_us: u64,
}

/// What the planner is told once.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The tiers, RAM first. A tier below may fail, vanish or not have what it should: the shell
    /// then reads the source and says so with an event.
    pub tiers: Vec<Tier>,
    /// Microseconds that a block takes from the source; none where nobody knows. A tier from which it
    /// takes no less is of no use: nothing is put there or fetched from there.
    pub source_us: Option<u64>,
    pub policy: PolicyKind,
    /// Whether anything is fetched before it is asked for.
    pub prefetch: bool,
    /// Fetches under way at once.
    pub inflight_max: u32,
    /// Bytes staged ahead and not kept; none: as many as it takes.
    pub window_bytes: Option<u64>,
    /// Whether prefetching waits for the first open.
    pub start_at_open: bool,
    /// Whether files are opened without a request, so that the planner chooses which of these
    /// opens it sees, by [`Action::Untrack`] and [`Action::Track`].
    pub may_untrack: bool,
    /// Whether each file is withheld from the start: its opens are to be seen until it is
    /// [released](Event::Released).
    pub withheld: bool,
}

/// Where a block is fetched from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    Source,
    /// A tier below RAM.
    Tier(usize),
}

/// What happened.
#[derive(Clone, Debug)]
pub enum Event {
    /// A stream's order is known.
    Ordered { stream: StreamId, order: Arc<Order> },
    /// More is known of the order that a stream reads: it goes on in this one, which begins where
    /// the reader is. What was counted of it stays.
    Continued {
        stream: StreamId,
        /// What is to come of its order.
        order: Arc<Order>,
    },
    /// A stream's order is withdrawn.
    Withdrawn { stream: StreamId },
    /// A task opened a file to read it.
    Opened {
        /// Thread id of the reader.
        task: u32,
        file: FileId,
    },
    /// A task was seen at a file: it looks it up, or asks something of it. It opens it, as far as
    /// can be seen, and is done with the file where it was seen before.
    Seen {
        /// Thread id of the reader.
        task: u32,
        file: FileId,
    },
    /// A task reads pages of a file that the kernel does not have. Who maps files opens them long before.
    Touched {
        /// Thread id of the reader.
        task: u32,
        file: FileId,
    },
    /// A task that was [seen](Event::Seen) has ended.
    Left { task: u32 },
    /// A read found no pages; the shell has begun a fetch, or joined one.
    Missed {
        block: BlockId,
        /// Thread id of the reader.
        task: u32,
    },
    /// A read joined a fetch that was under way. Of a small file the planner knows it by the open.
    Joined {
        block: BlockId,
        /// Thread id of the reader.
        task: u32,
    },
    /// A read found that pages are not in RAM, of a block that is read in parts. They are being brought
    /// to the reader, and the kernel keeps them.
    Part {
        block: BlockId,
        /// Thread id of the reader.
        task: u32,
        pages: PageRange,
    },
    /// A handle of a file was closed.
    Closed { file: FileId },
    /// A fetch has ended and the block's pages are in RAM.
    Arrived {
        block: BlockId,
        /// Where its bytes came from.
        from: Place,
    },
    /// A fetch has ended without bytes.
    Failed { block: BlockId },
    /// A check found that pages of a block are gone.
    Lost { block: BlockId },
    /// The pages of a block have been dropped.
    Dropped { block: BlockId },
    /// A copy has been written to a tier below RAM, or could not be.
    Placed {
        block: BlockId,
        tier: usize,
        /// Whether the copy is there.
        done: bool,
    },
    /// A tier has held blocks since before the start.
    Found {
        tier: usize,
        /// The blocks, each once.
        blocks: Vec<BlockId>,
    },
    /// A tier does not have what it should.
    NotHere { block: BlockId, tier: usize },
    /// The kernel reads a file from a tier below RAM by itself, as long as all of it is there, and
    /// has forgotten the pages that RAM had of it.
    Lent { file: FileId },
    /// People want blocks here before anybody reads them.
    Wanted {
        /// The blocks, soonest use first.
        blocks: Vec<BlockId>,
    },
    /// People want blocks gone that nobody reads at this moment.
    Unwanted { blocks: Vec<BlockId> },
    /// A file's opens are to be seen, whatever its orders say, until it is released.
    Withheld { file: FileId },
    /// Nobody has to see a file's opens any more but the planner itself.
    Released { file: FileId },
    /// A tier may hold more or less from now on.
    Resized {
        tier: usize,
        /// Bytes it may hold.
        capacity: u64,
    },
    /// Files were added or changed. What is cached of the changed ones is void.
    Changed {
        /// The layout with the new files and sizes.
        layout: Arc<Layout>,
        /// The files that changed.
        files: Vec<FileId>,
    },
}

impl Event {
    /// The block that it is about, if it is about one.
    pub(super) fn block(&self) -> Option<BlockId> {
        match *self {
            Event::Missed { block, .. }
            | Event::Joined { block, .. }
            | Event::Part { block, .. }
            | Event::Arrived { block, .. }
            | Event::Failed { block }
            | Event::Lost { block }
            | Event::Dropped { block }
            | Event::Placed { block, .. }
            | Event::NotHere { block, .. } => Some(block),
            _ => None,
        }
    }
}

/// What the shell is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Bring a block into RAM.
    Fetch { block: BlockId, from: Place },
    /// Look whether a block that is read soon is still as it should be: its pages there
    /// ([`Event::Lost`] if not), its file the version that it was at the source.
    Check { block: BlockId },
    /// The readers of an order that was told have begun this epoch of it: of the longest such order,
    /// where there are several.
    Began {
        /// The epoch, from 1.
        epoch: u32,
    },
    /// Let a file be opened without asking, until [`Action::Track`].
    Untrack { file: FileId },
    /// See each open of a file.
    Track { file: FileId },
    /// Bring readers of a large file the pages that they ask for, and no whole blocks; or whole blocks
    /// again.
    InParts {
        file: FileId,
        /// Whether it is read in parts.
        on: bool,
    },
    /// Drop a block's pages.
    Drop { block: BlockId },
    /// Drop pages of a block that came in parts.
    DropParts { block: BlockId, pages: PageRange },
    /// Write a copy of a block that has just arrived to a tier below RAM.
    Place { block: BlockId, tier: usize },
    /// Bring a copy of a block from the source to a tier below RAM, and leave RAM alone. Ends with
    /// [`Event::Placed`].
    Load { block: BlockId, tier: usize },
    /// Give up a block's copy in a tier below RAM.
    Displace { block: BlockId, tier: usize },
}

/// What has been decided and seen so far; all are totals since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counters {
    /// Opens of files that have content.
    pub opens: u64,
    /// Opens whose first block was in RAM.
    pub hits: u64,
    /// Opens whose first block was on its way.
    pub late: u64,
    /// Opens whose first block nobody had asked for.
    pub cold: u64,
    /// Blocks fetched ahead of their read.
    pub prefetched: u64,
    /// Blocks fetched because a read waited.
    pub demanded: u64,
    /// Reads of parts of large files that found nothing.
    pub parts: u64,
    /// Blocks whose pages the kernel had taken back before they were read.
    pub lost: u64,
    /// Blocks whose loss a check found in time to fetch them again before they were read.
    pub restored: u64,
    pub failed: u64,
    /// Blocks dropped or evicted from RAM.
    pub dropped: u64,
    /// Blocks written to tiers below RAM.
    pub placed: u64,
    /// Bytes that came from the source.
    pub source_bytes: u64,
    /// Bytes of the blocks that the kernel took back and that were fetched again.
    pub refetched_bytes: u64,
    /// Bytes that came from tiers below RAM.
    pub tier_bytes: u64,
    /// Bytes that came from the source ahead of a read that did not come while they were there:
    /// what wrong guesses and orders that were left have cost.
    pub wasted_bytes: u64,
}

/// Bytes that are charged.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Accounts {
    /// Kept bytes by tier, RAM first.
    pub kept: Vec<u64>,
    /// Bytes staged in RAM for the coming reads.
    pub staged: u64,
    /// Bytes of parts of blocks.
    pub parts: u64,
    pub dropping: u64,
    /// Bytes of the window.
    pub window: u64,
    pub fetching: u32,
}
