//! The planner's events, actions, settings and counters.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::layout::Layout;
use crate::config::PolicyKind;
use crate::ids::{BlockId, FileId, PageRange, StreamId};
use crate::limiter::FetchLimits;
use crate::order::Order;

/// One tier of the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tier {
    /// Bytes it may hold.
    pub capacity: u64,
    /// Microseconds to fetch a block from it; 0 for RAM, and if unknown.
    pub block_us: u64,
}

/// What the planner is told once, at the start.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The tiers, RAM first, then from fast to slow. A tier below RAM may fail, vanish or lack a block that
    /// it should have: the shell then reads the source and sends an event.
    pub tiers: Vec<Tier>,
    /// The same for the source; `None` if unknown. A tier below RAM that is no faster is not used.
    pub source_us: Option<u64>,
    pub policy: PolicyKind,
    /// Whether blocks are fetched before a read asks for them.
    pub prefetch: bool,
    /// Most fetches under way at once, until [`Event::Limited`] says how many the source serves best.
    pub inflight_max: u32,
    /// Bytes of the window; `None`: the planner chooses.
    pub window_bytes: Option<u64>,
    /// The most bytes of one request for blocks that lie beside each other.
    pub request_bytes: u64,
    /// Whether prefetching waits for the first open.
    pub start_at_open: bool,
    /// Whether the planner chooses which opens it sees ([`Action::Untrack`], [`Action::Track`]).
    pub may_untrack: bool,
    /// Whether each file is [withheld](Event::Withheld) from the start.
    pub withheld: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    Source,
    /// A tier below RAM.
    Tier(usize),
    /// A member of the cluster, in place of the source. The planner does not ask for that.
    Member,
}

/// What happened.
#[derive(Clone, Debug)]
pub enum Event {
    /// A stream's order is known.
    Ordered { stream: StreamId, order: Arc<Order> },
    /// More is known of a stream's order. The stream keeps its counts and goes on in this order, which begins
    /// where its reader is.
    Continued {
        stream: StreamId,
        /// The part that is still to be read.
        order: Arc<Order>,
    },
    /// A stream has no order any more.
    Withdrawn { stream: StreamId },
    /// A task opened a file to read it.
    Opened {
        /// Thread id of the reader.
        task: u32,
        file: FileId,
    },
    /// A task looked a file up, or sent another request for it. It seems to open the file, and to be done with
    /// the file where it was seen before.
    Seen {
        /// Thread id of the reader.
        task: u32,
        file: FileId,
    },
    /// A task reads pages of a file that the kernel lacks. If it maps files, it opened the file long before.
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
    /// A read joined a fetch that was under way. For a small file the open tells the planner the same.
    Joined {
        block: BlockId,
        /// Thread id of the reader.
        task: u32,
    },
    /// A task reads the page that was left out of a block of a large file. The other pages are there.
    Probed {
        block: BlockId,
        /// Thread id of the reader.
        task: u32,
    },
    /// A read of a block that is read in parts found pages missing. The shell fetches these pages, and the
    /// kernel keeps them.
    Part {
        block: BlockId,
        /// Thread id of the reader.
        task: u32,
        pages: PageRange,
    },
    /// A handle of a file was closed.
    Closed { file: FileId },
    /// A fetch has ended, and the block's pages are in RAM.
    Arrived {
        block: BlockId,
        /// Where its bytes came from.
        from: Place,
        /// How many bytes came.
        bytes: u64,
    },
    /// A fetch has ended without bytes.
    Failed { block: BlockId },
    /// A check found that pages of a block are gone.
    Lost { block: BlockId },
    /// The pages of a block have been dropped.
    Dropped { block: BlockId },
    /// The write of a copy to a tier below RAM has ended.
    Placed {
        block: BlockId,
        tier: usize,
        /// Whether the copy is there.
        done: bool,
    },
    /// A tier held these blocks before the start.
    Found {
        tier: usize,
        /// The blocks, each once.
        blocks: Vec<BlockId>,
    },
    /// A tier lacks a block that it should have.
    NotHere { block: BlockId, tier: usize },
    /// The kernel reads a file from a tier below RAM by itself, as long as all of it is there. Its pages in RAM
    /// are gone.
    PassedThrough { file: FileId },
    /// From now on these blocks have their home in a tier below RAM, and no others: the tier keeps them for other nodes
    /// of the cluster, too.
    Homed { tier: usize, blocks: Vec<BlockId> },
    /// Other nodes have given blocks to this node, and the tier that is their home may copy them.
    Given { blocks: Vec<BlockId> },
    /// A warm-up asks for blocks before they are read.
    Wanted {
        /// The blocks, soonest use first.
        blocks: Vec<BlockId>,
    },
    /// Blocks are to be given up. RAM keeps a block that is being read.
    Unwanted { blocks: Vec<BlockId> },
    /// All opens of a file have to be seen, whatever orders say, until it is released.
    Withheld { file: FileId },
    /// The file is no longer withheld.
    Released { file: FileId },
    /// A tier's capacity has changed.
    Resized {
        tier: usize,
        /// Bytes it may hold.
        capacity: u64,
    },
    /// The source was timed.
    Limited(FetchLimits),
    /// Files were added or changed. The cached blocks of changed files are void.
    Changed {
        layout: Arc<Layout>,
        /// The files that changed.
        files: Vec<FileId>,
    },
}

impl Event {
    /// The block of the event, if it names one.
    pub(super) fn block(&self) -> Option<BlockId> {
        match *self {
            Event::Missed { block, .. }
            | Event::Joined { block, .. }
            | Event::Probed { block, .. }
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

/// What the shell has to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Bring a block into RAM.
    Fetch {
        block: BlockId,
        from: Place,
        /// The pages that are fetched, if slices beside it have the others in RAM.
        pages: Option<PageRange>,
    },
    /// Bring blocks into RAM that lie one after the other at the source, from this one on, with one request.
    FetchRun { first: BlockId, count: u32 },
    /// Check a block that is read soon: whether its pages are still in RAM ([`Event::Lost`] if not), and its
    /// file has the same version at the source.
    Check { block: BlockId },
    /// The readers of the longest order that was told have begun this epoch.
    Began {
        /// The epoch, from 1.
        epoch: u32,
    },
    /// Let the kernel open a file without a request. If it is a slice, push all of its pages.
    Untrack { file: FileId },
    /// See each open of a file. If it is a slice, leave a page out ([`Event::Probed`]).
    Track { file: FileId },
    /// Bring readers of a large file only the pages that they ask for, or whole blocks again.
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
    /// Copy a block from the source to a tier below RAM, and not to RAM. Ends with [`Event::Placed`].
    Load { block: BlockId, tier: usize },
    /// Copy a block that other nodes have [given](Event::Given) to a tier below RAM. Ends with [`Event::Placed`].
    Take { block: BlockId, tier: usize },
    /// Give up a block's copy in a tier below RAM.
    Displace { block: BlockId, tier: usize },
}

/// Totals since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Counters {
    /// Opens of files that have content.
    pub opens: u64,
    /// Opens whose first block was in RAM.
    pub hits: u64,
    /// Opens whose first block was being fetched.
    pub late: u64,
    /// Opens whose first block was neither in RAM nor being fetched.
    pub cold: u64,
    /// Blocks fetched ahead of their read.
    pub prefetched: u64,
    /// Blocks fetched because a read waited.
    pub demanded: u64,
    /// Reads of parts of large files that found no pages.
    pub parts: u64,
    /// Blocks whose pages the kernel took back before they were read.
    pub lost: u64,
    /// Blocks that a check found lost, in time to fetch them again before their read.
    pub restored: u64,
    pub failed: u64,
    /// Blocks dropped or evicted from RAM.
    pub dropped: u64,
    /// Blocks written to tiers below RAM.
    pub placed: u64,
    pub source_bytes: u64,
    /// Bytes that came from members of the cluster.
    pub member_bytes: u64,
    /// Bytes fetched again because the kernel had taken the pages back.
    pub refetched_bytes: u64,
    pub tier_bytes: u64,
    /// Bytes fetched from the source ahead and dropped unread: the cost of wrong guesses and of orders that
    /// were left.
    pub wasted_bytes: u64,
}

/// Bytes that are charged.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Accounts {
    /// Kept bytes by tier, RAM first.
    pub kept: Vec<u64>,
    /// Bytes in RAM that are staged for one read.
    pub staged: u64,
    /// Bytes of blocks that are read in parts.
    pub parts: u64,
    pub dropping: u64,
    pub window: u64,
    pub fetching: u32,
}
