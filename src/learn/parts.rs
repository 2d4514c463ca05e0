//! Which samples a loader has, if they are not all samples of any numbering.
//!
//! A script leaves some files out of its list, or splits the list at random to train on one part and validate
//! with the other. A whole epoch shows which samples the loader has. In the order of each numbering they are
//! another numbering. If a popular seed shuffles the list so that they lie side by side, both sides in that
//! order are numberings, too. The beginning of an epoch shows a side that is a usual share of the list.

use std::ops::Range;
use std::sync::Arc;

use super::attempt::Attempt;
use super::indexes::{Index, Indexes, Numbering, Part};
use super::origin::{Law, Origin};
use super::reading::Reading;
use super::search::{Finding, Search, View};
use super::shared::{Purpose, Shared};
use crate::order::samplers::Sampler;
use crate::order::samplers::torch::randperm_outputs;
use crate::track::Sequence;

/// How many epochs of a loader are looked at.
const EPOCHS_MAX: u32 = 2;

/// An epoch this short does not show the samples of a loader.
const READ_MIN: usize = 16;

/// How many samples may be read twice in such an epoch, and one of so many others.
const TWICE: usize = 24;
const TWICE_PART: usize = 50;

/// If no more than one sample in so many is left out, it may just not have been seen, or be of a last batch
/// that is not read. Then two epochs have to leave out the same. A split shows earlier.
const LACKED_PART: u32 = 8;
const SPLIT_PART: u32 = 50;

/// After how many opens of an epoch one side of a split is searched for. Larger sides need more opens.
const SIDES_AFTER: [usize; 3] = [128, 256, 512];

/// How many epochs may have been drawn before it is known how the list was split.
const DRAWN_MAX: u64 = 4;

/// Over how many numberings, of as many samples, those of a loader are numbered.
const ORDERS_MAX: usize = 4;

/// What was asked about the samples that a loader has.
#[derive(Debug, Default)]
pub(super) struct Parts {
    /// For how many epochs it was asked.
    epochs: u32,
    /// After how many opens of the attempt a side of a split was searched for last.
    side_at: usize,
}

impl Parts {
    pub(super) fn begin_attempt(&mut self) {
        self.side_at = 0;
    }

    /// A whole epoch in an unknown order is over, after the epoch `before`. Asks which samples it had, or if
    /// loaders were read in turn, which samples each of them had.
    pub(super) fn consider_epoch(
        &mut self,
        over: &Attempt,
        before: Option<&Sequence>,
        reading: &Reading,
        shared: &mut Shared,
    ) {
        let read = over.log();
        let twice = (over.opens() as usize).saturating_sub(read.len());
        if twice > TWICE + read.len() / TWICE_PART {
            return;
        }
        match over.turns().as_slice() {
            [_] => self.consider_samples(read, before, reading, shared),
            turns => {
                turns.iter().for_each(|t| self.consider_samples(t, None, reading, shared));
            }
        }
    }

    fn consider_samples(
        &mut self,
        read: &[u32],
        before: Option<&Sequence>,
        reading: &Reading,
        shared: &mut Shared,
    ) {
        if self.epochs >= EPOCHS_MAX || read.len() < READ_MIN {
            return;
        }
        let wholes = wholes(read, &shared.indexes);
        let Some(n) = wholes.first().map(|&at| shared.indexes[at].sequence.len()) else { return };
        self.epochs += 1;
        let lacked = n - read.len() as u32;
        let same = before.is_some_and(|before| {
            before.len() as usize == read.len() && read.iter().all(|s| before.place(*s).is_some())
        });
        if lacked > n / LACKED_PART || same {
            let read = Sequence::new(read);
            for &at in &wholes {
                let part = Part { of: n, list: None };
                shared.add_part(read_of(&shared.indexes[at], &read), part);
            }
        }
        if lacked > n / SPLIT_PART {
            ask_split(read, wholes, false, reading, shared);
        }
    }

    /// Asks whether the opens are of one side of a split, if it is time.
    pub(super) fn consider_side(&mut self, reading: &Reading, shared: &mut Shared) {
        let read = reading.attempt.log();
        let is_due = SIDES_AFTER.contains(&read.len()) && self.side_at != read.len();
        if !is_due || reading.epoch >= EPOCHS_MAX {
            return;
        }
        self.side_at = read.len();
        let wholes = wholes(read, &shared.indexes);
        if !wholes.is_empty() {
            ask_split(read, wholes, true, reading, shared);
        }
    }
}

/// Asks how a list was split of which this was read: all of a part, or its beginning.
fn ask_split(
    read: &[u32],
    wholes: Vec<usize>,
    is_beginning: bool,
    reading: &Reading,
    shared: &mut Shared,
) {
    if !shared.may_search_for(reading.group) {
        return;
    }
    let view = |&at: &usize| {
        let sequence = &shared.indexes[at].sequence;
        let read = read.iter().filter_map(|sample| sequence.place(*sample)).collect();
        View { n: sequence.len(), readers: vec![read] }
    };
    let search = Search::split(wholes.iter().map(view).collect(), is_beginning);
    shared.begin_search(reading, search, Purpose::Split { wholes });
}

/// Adds the numberings of both sides of a split that a search has found. Says whether one of them is new.
pub(super) fn add_sides(finding: &Finding, wholes: &[usize], shared: &mut Shared) -> bool {
    let Finding::Split { list, view, part } = finding else { return false };
    let index = wholes.get(*view as usize).and_then(|&at| shared.indexes.get(at));
    let Some(index) = index else { return false };
    let n = index.sequence.len();
    let Some(positions) = list.epochs(n).next() else { return false };
    let samples = index.sequence.items();
    let side = |of: Range<u32>| Numbering {
        name: format!("{} split by {list} at {}", index.name, of.start),
        samples: of.map(|at| samples[positions[at as usize] as usize]).collect(),
        spec: None,
    };
    let sides = [0..part.start, part.end..n, part.clone()].map(side);
    let part = Part { of: n, list: Some(Arc::new(list.clone())) };
    let new = sides.into_iter().map(|side| shared.add_part(side, part.clone()));
    new.fold(false, |any, new| any | new)
}

/// The epochs of a part of a list that torch's default generator has split, if the same generator
/// then draws the epochs of both sides, or only of this one.
pub(super) fn drawn_after_split(index: &Index) -> Vec<(Origin, Law)> {
    let Some(Part { of, list: Some(list) }) = &index.part else { return Vec::new() };
    let Sampler::TorchDistributed(list) = &**list else { return Vec::new() };
    let (len, seed) = (index.sequence.len(), list.seed as u32);
    let [split, own, theirs] = [*of, len, of.saturating_sub(len)].map(randperm_outputs);
    // A loader draws a seed for its workers before its samples: two outputs.
    let firsts = [split + 2, split + 2 + theirs + 2];
    let all = firsts.into_iter().flat_map(|first| [theirs + 4, 2].map(|gap| (first, gap)));
    let epochs = all.flat_map(|(first, gap)| (0..DRAWN_MAX).map(move |k| (first, gap, k)));
    let drawn = epochs.map(|(first, gap, k)| {
        let skip = first + k * (own + gap);
        (Origin::Draw { seed, skip }, Law::Continued { gap })
    });
    drawn.collect()
}

/// The smallest numberings that have all of these samples, and others.
fn wholes(read: &[u32], indexes: &Indexes) -> Vec<usize> {
    let has_more =
        |index: &Index| index.sequence.len() as usize > read.len() && index.has_all(read.iter());
    let all = indexes.iter().filter(|(_, index)| index.part.is_none() && has_more(index));
    let all: Vec<(usize, &Index)> = all.collect();
    let least = all.iter().map(|(_, index)| index.sequence.len()).min();
    let smallest = all.iter().filter(|(_, index)| Some(index.sequence.len()) == least);
    smallest.map(|(at, _)| *at).take(ORDERS_MAX).collect()
}

/// The samples that were read, in the order of a numbering.
fn read_of(index: &Index, read: &Sequence) -> Numbering {
    let samples = index.sequence.items().iter().copied();
    let samples = samples.filter(|sample| read.place(*sample).is_some()).collect();
    Numbering { name: format!("partial {}", index.name), samples, spec: None }
}
