//! The tasks that read a stream's current epoch: where each stands, and how far they are apart.

use crate::track::{Reader, Readers};

/// How many runners are told apart. A runner beyond them takes the place of the hindmost: its blocks are
/// staged in plain order.
const RUNNERS_MAX: usize = 64;

/// A reader is believed at least this many positions past the lowest open one: more than 8 workers with
/// two batches of 256 each run ahead.
pub(super) const SPAN_MIN: u32 = 4096;

/// How many reads of each worker have to be seen until all workers are taken to be known. Of untracked
/// files only probes are seen, so many more may have been read.
const SEEN_MIN: u64 = 32;

/// How many reads of a runner have to be seen until its distance from the others counts. A task that goes
/// through the files by name is taken for a reader of the order for some reads.
const SPREAD_MIN: u32 = 16;

/// Blocks of a lane that are looked at.
const LEFT_MAX: u32 = 64;

/// The widest spread that is believed.
const SPREAD_MAX: u32 = 1 << 14;

/// What is known of a task that reads the epoch.
#[derive(Clone, Copy, Debug)]
pub(super) struct Runner {
    /// Up to where blocks have been staged ahead of it.
    pub(super) staged_to: u32,
    /// The position after its lane.
    pub(super) lane_end: u32,
    /// How many of its reads were seen.
    seen: u32,
}

#[derive(Debug, Default)]
pub(super) struct Runners {
    /// By task.
    pub(super) readers: Readers<Runner>,
    /// The most runners that one epoch had.
    pub(super) workers: u32,
    /// How far apart they have been at most, in positions.
    pub(super) spread: u32,
    /// Past the last position of the current epoch that was seen to be read.
    pub(super) foremost: u32,
}

impl Runners {
    /// A task is seen at a position, in a lane that ends there. Gives the position where it was seen before.
    pub(super) fn step(&mut self, task: u32, position: u32, lane_end: u32) -> Option<u32> {
        if let Some(Reader { last, note, .. }) = self.readers.get_mut(task) {
            // Within a batch the runner goes on; at the next one it starts again behind it.
            note.staged_to = note.staged_to.max(position + 1);
            note.seen += 1;
            note.lane_end = lane_end;
            let before = std::mem::replace(last, position);
            self.note_spread(position);
            return Some(before);
        }
        let note = Runner { staged_to: position + 1, lane_end, seen: 1 };
        if self.readers.all().len() == RUNNERS_MAX {
            self.readers.remove_hindmost();
        }
        self.readers.add(Reader { number: task, last: position, note });
        self.workers = self.workers.max(self.readers.all().len() as u32);
        None
    }

    /// A runner is at a position: how far it is from the hindmost.
    fn note_spread(&mut self, position: u32) {
        let hindmost = self.readers.hindmost(|runner| runner.seen >= SPREAD_MIN);
        let spread = position.saturating_sub(hindmost.unwrap_or(position)).min(SPREAD_MAX);
        self.spread = self.spread.max(spread);
    }

    /// How many blocks each worker has left in its lane, fewest first, as far as its reads of them are seen, which
    /// `is_seen` says of a position. A worker that was not seen has none.
    pub(super) fn left_in_lanes(&self, is_seen: impl Fn(u32) -> bool) -> Vec<u32> {
        let all = self.readers.all();
        let unseen = (self.workers as usize).saturating_sub(all.len());
        let left = all.iter().map(|it| {
            let left = it.last + 1..it.note.lane_end.min(it.last + 1 + LEFT_MAX);
            left.filter(|position| is_seen(*position)).count() as u32
        });
        let mut left: Vec<u32> = std::iter::repeat_n(0, unseen).chain(left).collect();
        left.sort_unstable();
        left
    }

    /// Another epoch begins: none of its runners is known.
    pub(super) fn restart(&mut self) {
        self.readers.clear();
        self.foremost = 0;
    }

    /// How far past the lowest open position a read is still believed. A position that lies open half as
    /// far behind a reader is given up: tasks of one job have not been seen to run further ahead of
    /// each other.
    pub(super) fn span(&self) -> u32 {
        SPAN_MIN.max(4 * self.spread)
    }

    /// How many positions past the foremost runner, and from an epoch's start, probes are tracked. Workers
    /// that are far apart have read fewer until the next probe shows them. If all probes were tracked, a
    /// task that goes through the files by name would seem to go forward in the order.
    pub(super) fn outlook(&self) -> u32 {
        SPAN_MIN.max(2 * self.spread)
    }

    /// The position of the hindmost runner, if all workers are known. `seen`: the stream's reads that
    /// were seen.
    pub(super) fn hindmost(&self, seen: u64) -> Option<u32> {
        let all = self.readers.all().len() as u32 >= self.workers
            && seen >= SEEN_MIN * (u64::from(self.workers) + 1);
        self.readers.hindmost(|_| all)
    }
}
