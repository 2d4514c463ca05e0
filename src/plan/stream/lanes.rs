//! Which files the workers of a loader open next, if each of them reads several large files in a row.
//!
//! A *lane* is the files that a worker reads in a row, such as those of a batch. Then the worker takes the first lane
//! that no worker has begun. So the workers read at places of the order that are far apart.
//!
//! 1. If a worker does not go on where it was, it begins a lane. Workers begin lanes in the order of their files, so
//!    the files from the foremost start to this one are those of a lane. The length that most of the last starts
//!    give counts.
//! 2. From that follows where the next lanes start. The worker with the fewest blocks left in its lane takes the first
//!    of them, the next worker the second, and so on.
//! 3. The blocks of a lane are read one after the other. So it is known how soon each of them is read, if all workers
//!    are as fast.
//!
//! If files have one block, lanes are short in bytes, and are not looked for.

use std::collections::VecDeque;
use std::ops::Range;

use crate::plan::epoch::Epoch;
use crate::plan::layout::Layout;

/// Lengths of lanes that are remembered.
const LENGTHS: usize = 16;

/// The most files of a lane.
const FILES_MAX: u32 = 256;

/// Positions at the start of an epoch by which the files are judged.
const JUDGED: u32 = 256;

#[derive(Debug, Default)]
pub(super) struct Lanes {
    /// Whether files have several blocks.
    pub(super) are_wide: bool,
    /// Files of the last lanes.
    lengths: VecDeque<u32>,
    /// Where the foremost lane starts that a worker has begun.
    foremost: Option<u32>,
    /// The same without lanes that follow the one before: where one ends and the next one begins is not known for sure.
    jumped_to: Option<u32>,
    /// The lanes of the current epoch that workers take next, and the first ones of the next epoch.
    pub(super) coming: Vec<Range<u32>>,
    pub(super) of_next: Vec<Range<u32>>,
}

impl Lanes {
    /// An epoch begins, with so many workers.
    pub(super) fn restart(&mut self, current: &Epoch, next: &Epoch, layout: &Layout, workers: u32) {
        let files = files_between(current, layout, 0..JUDGED.min(current.len()));
        let are_wide = |files| files > 0 && 2 * files <= JUDGED.min(current.len());
        self.are_wide = files.is_some_and(are_wide);
        (self.foremost, self.jumped_to) = (None, None);
        self.coming = self.lanes_from(0, current, layout, workers);
        self.of_next = self.lanes_from(0, next, layout, workers);
    }

    /// Takes over the lengths of lanes of the same loader.
    pub(super) fn know(&mut self, before: &Lanes) {
        self.lengths.clone_from(&before.lengths);
    }

    /// A worker is at a position, and was seen before at `last`, in a lane that ends at `end`. Returns the end of its
    /// lane. `workers`: how many there are.
    pub(super) fn step(
        &mut self,
        position: u32,
        before: Option<(u32, u32)>,
        (epoch, layout): (&Epoch, &Layout),
        workers: u32,
    ) -> u32 {
        if !self.are_wide {
            return position + 1;
        }
        let is_start = epoch.block_at(position).is_some_and(|block| layout.nth_of(block) == 0);
        let is_within = |(last, end): (u32, u32)| (last..end).contains(&position);
        let goes_on = |(_, end): (u32, u32)| position == end;
        if let Some((_, end)) = before.filter(|it| is_within(*it) || !is_start) {
            return end.max(position + 1);
        }
        if !before.is_some_and(goes_on) {
            self.note_jump(position, epoch, layout);
        } else if self.length().is_none() {
            return skip(epoch, layout, position, 1);
        }
        self.foremost = self.foremost.max(Some(position));
        let length = self.length().unwrap_or(1);
        let next = skip(epoch, layout, self.foremost.unwrap_or(position), length);
        self.coming = self.lanes_from(next, epoch, layout, workers);
        skip(epoch, layout, position, length)
    }

    fn note_jump(&mut self, position: u32, epoch: &Epoch, layout: &Layout) {
        if let Some(foremost) = self.jumped_to.filter(|foremost| *foremost < position)
            && let Some(files) = files_between(epoch, layout, foremost..position)
        {
            if self.lengths.len() == LENGTHS {
                self.lengths.pop_front();
            }
            self.lengths.push_back(files);
        }
        self.jumped_to = self.jumped_to.max(Some(position));
    }

    /// Files of a lane, as most of the last lanes have them.
    fn length(&self) -> Option<u32> {
        let count = |length: &u32| self.lengths.iter().filter(|it| *it == length).count();
        self.lengths.iter().max_by_key(|length| (count(length), **length)).copied()
    }

    /// One lane for each worker, from a position on.
    fn lanes_from(
        &self,
        position: u32,
        epoch: &Epoch,
        layout: &Layout,
        workers: u32,
    ) -> Vec<Range<u32>> {
        let Some(length) = self.length().filter(|_| self.are_wide) else { return Vec::new() };
        let mut start = position;
        let lane = |_| {
            let lane = start..skip(epoch, layout, start, length);
            start = lane.end;
            lane
        };
        (0..workers).map(lane).take_while(|lane| !lane.is_empty()).collect()
    }
}

/// The position after so many files, of which the first one starts at a position.
fn skip(epoch: &Epoch, layout: &Layout, from: u32, files: u32) -> u32 {
    let blocks = |block| layout.blocks_of(layout.unit_of(block)).len() as u32;
    (0..files).fold(from, |position, _| position + epoch.block_at(position).map_or(0, blocks))
}

/// How many files start at these positions. `None` if they are too many.
fn files_between(epoch: &Epoch, layout: &Layout, positions: Range<u32>) -> Option<u32> {
    let (mut files, mut position) = (0, positions.start);
    while position < positions.end {
        position = skip(epoch, layout, position, 1);
        files += 1;
        if files > FILES_MAX || epoch.block_at(position).is_none() && position < positions.end {
            return None;
        }
    }
    Some(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Files of these numbers of blocks, in this order.
    fn files(blocks: impl IntoIterator<Item = u64>) -> (Epoch, Layout) {
        let layout = Layout::new(blocks.into_iter().map(|blocks| blocks << 20));
        (Epoch::new((0..layout.blocks() as u32).collect()), layout)
    }

    #[test]
    fn who_ends_a_batch_takes_the_first_one_that_nobody_has_begun() {
        let (epoch, layout) = files([2; 16]);
        let mut lanes = Lanes::default();
        lanes.restart(&epoch, &epoch, &layout, 2);
        assert!(lanes.are_wide && lanes.coming.is_empty());
        let mut step = |position, before| lanes.step(position, before, (&epoch, &layout), 2);
        assert_eq!(step(0, None), 2, "nothing is known yet");
        assert_eq!(step(4, None), 8, "a batch has two files");
        assert_eq!(step(5, Some((4, 8))), 8);
        assert_eq!(step(6, Some((5, 8))), 8);
        assert_eq!(step(8, Some((3, 4))), 12, "the next batch");
        assert_eq!(lanes.coming, [12..16, 16..20]);
        lanes.restart(&epoch, &epoch, &layout, 2);
        assert_eq!((lanes.coming, lanes.of_next), (vec![0..4, 4..8], vec![0..4, 4..8]));
    }

    #[test]
    fn one_worker_goes_on_and_on() {
        let (epoch, layout) = files([3, 5, 2, 4]);
        let mut lanes = Lanes::default();
        lanes.restart(&epoch, &epoch, &layout, 1);
        let mut end = 0;
        for position in 0..epoch.len() {
            let before = position.checked_sub(1).map(|last| (last, end));
            end = lanes.step(position, before, (&epoch, &layout), 1);
        }
        assert_eq!((end, lanes.length()), (14, None));
        assert!(lanes.coming.is_empty());
    }

    #[test]
    fn files_of_other_sizes_are_counted_as_files() {
        let (epoch, layout) = files([3, 5, 2, 4, 6, 2]);
        let mut lanes = Lanes::default();
        lanes.restart(&epoch, &epoch, &layout, 2);
        lanes.step(0, None, (&epoch, &layout), 2);
        assert_eq!(lanes.step(3, None, (&epoch, &layout), 2), 8, "one file");
        assert_eq!(lanes.coming, [8..10, 10..14]);
        let (epoch, layout) = files([1; 300]);
        lanes.restart(&epoch, &epoch, &layout, 2);
        assert!(!lanes.are_wide);
        assert_eq!(lanes.step(40, None, (&epoch, &layout), 2), 41);
    }
}
