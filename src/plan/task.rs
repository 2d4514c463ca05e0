//! Decides whether a task reads for a stream.
//!
//! A loader's worker goes through its order, within a batch from one position to the next, or in small
//! strides if there are several workers. An indexer, a checksum or a copy jumps about. So a task is trusted
//! if its last steps went a little forward. From then on its opens, earlier ones included, count as reads of
//! the order.

use super::readers::DUE;
use crate::ids::{BlockId, StreamId};

/// The longest step that counts as going forward, in positions: enough for 64 workers with batches of one.
const STEP_MAX: u64 = 64;

/// The longest step if most positions between are unseen, or twice the workers if these are more. Among few
/// seen opens, a task that jumps about makes longer steps forward by chance.
const UNSEEN_STEP_MAX: u64 = 8;
const UNSEEN_STEP_EACH: u64 = 2;

/// Most positions of a step are unseen if it has more positions than this for each seen one.
const UNSEEN_FROM: u64 = 4;

/// The last steps that are judged (a bit each), and how many of them must go forward.
const STEPS: u32 = 0b1111;
const FORWARD_MIN: u32 = 2;

/// Most positions that a task can have read unseen: as many as may be staged ahead of it.
const RUN_MAX: u64 = 256;

/// A walk goes on at most this many blocks at a time (blocks are numbered by directory and name). A task
/// walks from `WALK_MIN` such steps on; the count ends at `WALK_MAX`.
const WALK_STEP_MAX: u32 = 8;
const WALK_MIN: u32 = 4;
const WALK_MAX: u32 = 16;

/// A task also walks if this many opens in a row went to later files: most of a walk may be unseen. A
/// shuffled order hardly ever has as many in a row.
const RISES_MIN: u32 = 8;
const RISES_MAX: u32 = 16;

const PENDING_MAX: usize = 8;
const UNCOUNTED_MAX: usize = 64;

/// An open that does not count as a read of an order.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stray {
    pub(super) block: BlockId,
    /// The stream that expects the block from a task that is not trusted yet. Other streams are not concerned.
    pub(super) expected: Option<StreamId>,
}

impl Stray {
    pub(super) fn concerns(&self, id: StreamId) -> bool {
        self.expected.is_none_or(|stream| stream == id)
    }
}

#[derive(Clone, Debug, Default)]
pub(super) struct Task {
    /// The stream that it was last seen to read for.
    pub(super) stream: Option<StreamId>,
    recent: [Option<BlockId>; 4],
    opened: u32,
    last: Option<u64>,
    /// Its last steps, a bit each: 1 if the step went forward.
    steps: u32,
    /// Counts opens of files shortly after the last one; halved by any other open.
    walk: u32,
    /// Counts opens of files later than the last one; halved by any other open.
    rises: u32,
    /// Its last open, if that is a stray of which no read is known.
    pub(super) stray: Option<Stray>,
    pending: Vec<u64>,
    /// Blocks of the large file that it opened last, which it has read and which do not count yet.
    pub(super) uncounted: Vec<BlockId>,
}

impl Task {
    /// Whether it has opened too few files to be judged by itself.
    pub(super) fn is_new(&self) -> bool {
        self.opened <= FORWARD_MIN
    }

    /// Notes an open. Returns whether one of the last four opens had the same block.
    pub(super) fn note_open(&mut self, block: BlockId) -> bool {
        self.opened = self.opened.saturating_add(1);
        self.uncounted.clear();
        let again = self.recent.contains(&Some(block));
        let step = self.recent[0].and_then(|before| block.0.checked_sub(before.0));
        self.walk = match step {
            Some(0) => self.walk,
            Some(1..=WALK_STEP_MAX) => WALK_MAX.min(self.walk + 1),
            _ => self.walk / 2,
        };
        self.rises = match step {
            Some(0) => self.rises,
            Some(_) => RISES_MAX.min(self.rises + 1),
            None => self.rises / 2,
        };
        self.recent.rotate_right(1);
        self.recent[0] = Some(block);
        again
    }

    /// Whether the task goes through directories in the order of names, as `find` and `du` do.
    pub(super) fn is_walking(&self) -> bool {
        self.walk >= WALK_MIN || self.rises >= RISES_MIN
    }

    /// Its last position in the stream.
    pub(super) fn place(&self, stream: StreamId) -> Option<u64> {
        self.last.filter(|_| self.stream == Some(stream))
    }

    pub(super) fn is_near(&self, stream: StreamId, position: u64) -> bool {
        self.place(stream).is_some_and(|last| (last + 1..last + u64::from(DUE)).contains(&position))
    }

    /// The task opened the file that a stream of `length` positions has at `position`, counted over all
    /// epochs. Returns the positions that now count as read: none while the task is not trusted. A step is judged by how
    /// many files it skips, if they have as many `blocks` as this one. `distance` is the length of a step in positions
    /// whose opens are seen.
    pub(super) fn note_open_at(
        &mut self,
        stream: StreamId,
        position: u64,
        (length, workers): (u32, u32),
        blocks: u64,
        distance: impl Fn(u64, u64) -> u64,
    ) -> Vec<u64> {
        if self.stream != Some(stream) {
            self.stream = Some(stream);
            (self.last, self.steps) = (None, 0);
            self.pending.clear();
        }
        if self.last == Some(position) {
            // A second open of the sample before the task is trusted.
            return Vec::new();
        }
        // In a small dataset a long step is no evidence.
        let step_max = (u64::from(length) / blocks / 64).clamp(4, STEP_MAX) * blocks;
        let ahead = self.last.filter(|&last| last < position);
        let step = ahead.map(|last| distance(last, position));
        let forward = ahead.zip(step).is_some_and(|(last, step)| {
            let unseen_max = UNSEEN_STEP_MAX.max(UNSEEN_STEP_EACH * u64::from(workers));
            let unseen = position - last > UNSEEN_FROM * step;
            (1..=if unseen { step_max.min(unseen_max) } else { step_max }).contains(&step)
        });
        self.steps = self.steps << 1 | u32::from(forward);
        self.last = Some(position);
        if !forward {
            self.pending.clear();
        } else if self.pending.len() == PENDING_MAX {
            self.pending.remove(0);
        }
        self.pending.push(position);
        // A walk makes small steps forward by chance, but hardly ever to the very next position.
        let walks = self.is_walking() && step != Some(1);
        let forward_min = if walks { STEPS.count_ones() } else { FORWARD_MIN };
        if (self.steps & STEPS).count_ones() >= forward_min {
            std::mem::take(&mut self.pending)
        } else {
            Vec::new()
        }
    }

    /// A read of a large file's block, at `position` in the stream, was seen. Returns the positions that
    /// the task has read since it was last seen: all up to there, if they are at most `RUN_MAX`. A task that was
    /// never seen started at `low`, the lowest position not yet read.
    pub(super) fn reads(
        &mut self,
        stream: StreamId,
        position: u64,
        low: u64,
    ) -> std::ops::RangeInclusive<u64> {
        let last = self.place(stream);
        let from = last.map_or(low, |last| last + 1);
        let near = from <= position && position - from <= RUN_MAX;
        let from = if near { from } else { position };
        if last.is_none_or(|last| position > last) {
            (self.stream, self.last) = (Some(stream), Some(position));
        }
        from..=position
    }

    /// The task has read a block of a large file, and left out blocks before it, or is not trusted yet.
    pub(super) fn note_uncounted(&mut self, block: BlockId) {
        if self.uncounted.len() < UNCOUNTED_MAX {
            self.uncounted.push(block);
        }
    }

    /// The task opened a file that no stream expects.
    pub(super) fn strays(&mut self) {
        self.steps <<= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STREAM: StreamId = StreamId(0);
    const STEP: fn(u64, u64) -> u64 = |from, to| to - from;

    #[test]
    fn a_worker_is_trusted_after_two_steps_and_through_its_batches() {
        let mut task = Task::default();
        assert!(task.note_open_at(STREAM, 64, (5000, 1), 1, STEP).is_empty());
        assert!(task.note_open_at(STREAM, 65, (5000, 1), 1, STEP).is_empty());
        assert_eq!(task.note_open_at(STREAM, 66, (5000, 1), 1, STEP), [64, 65, 66]);
        assert_eq!(task.note_open_at(STREAM, 67, (5000, 1), 1, STEP), [67]);
        assert_eq!(task.note_open_at(STREAM, 1024, (5000, 1), 1, STEP), [1024], "the next batch");
        assert_eq!(task.note_open_at(STREAM, 1025, (5000, 1), 1, STEP), [1025]);
    }

    #[test]
    fn strides_of_many_workers_are_steps() {
        let mut task = Task::default();
        let read: Vec<u64> = (0..10)
            .flat_map(|k| task.note_open_at(STREAM, 3 + 16 * k, (50_000, 1), 1, STEP))
            .collect();
        assert_eq!(read, (0..10).map(|k| 3 + 16 * k).collect::<Vec<_>>());
    }

    #[test]
    fn what_was_opened_before_a_jump_is_not_counted_after_it() {
        let mut task = Task::default();
        let read: Vec<u64> = [900, 800, 700, 10, 11, 12]
            .iter()
            .flat_map(|&p| task.note_open_at(STREAM, p, (5000, 1), 1, STEP))
            .collect();
        assert_eq!(read, [10, 11, 12]);
    }

    #[test]
    fn one_who_jumps_about_is_never_trusted() {
        let mut task = Task::default();
        let jumps = (0..1000u64).map(|k| k * 7919 % 5000);
        let read: usize = jumps
            .map(|position| task.note_open_at(STREAM, position, (5000, 1), 1, STEP).len())
            .sum();
        assert_eq!(read, 0);
    }

    #[test]
    fn a_walk_through_directories_is_known_as_one() {
        let mut task = Task::default();
        let files = (0..20u32).map(|directory| (19 - directory) * 100);
        let walking: Vec<bool> = files
            .flat_map(|first| first..first + 30)
            .map(|block| {
                task.note_open(BlockId(block));
                task.is_walking()
            })
            .collect();
        assert_eq!(walking.iter().filter(|&&walking| !walking).count(), 4);
        for block in [900, 7, 401, 35, 36, 1000] {
            task.note_open(BlockId(block));
        }
        assert!(!task.is_walking());
    }

    #[test]
    fn a_second_open_is_noticed() {
        let mut task = Task::default();
        assert!(!task.note_open(BlockId(1)));
        assert!(!task.note_open(BlockId(2)));
        assert!(task.note_open(BlockId(1)));
        for block in 3..7 {
            assert!(!task.note_open(BlockId(block)));
        }
        assert!(!task.note_open(BlockId(1)), "long ago");
    }
}
