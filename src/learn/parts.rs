//! Which samples a loader has, where these are not all of any numbering.
//!
//! A script leaves some files out of its list, or splits the list at random in what it trains on and
//! what it validates with. A whole epoch shows which samples the loader has. In the order of each
//! numbering they are another numbering. If a popular seed shuffles the list so that they lie side by
//! side, this order of them is a numbering, too, and so is that of the other side. If a side is one of the
//! usual shares of the list, the beginning of an epoch is enough to tell.

use std::ops::Range;
use std::sync::Arc;

use super::Candidate;
use super::attempt::Attempt;
use super::event::Decision;
use super::indexes::{Index, Indexes, Part};
use super::ladder::Purpose;
use super::loader::Loader;
use super::origin::{Law, Origin};
use super::search::{Finding, Search, View};
use super::sequence::Sequence;
use super::shared::Shared;
use crate::order::samplers::Sampler;
use crate::order::samplers::torch::randperm_draws;

/// For how many epochs of a loader it is asked which samples they have.
const PARTS_MAX: u32 = 2;

/// An epoch this short says nothing of that.
const READ_MIN: usize = 16;

/// How many samples may be read twice in such an epoch, and one of so many others.
const TWICE: usize = 24;
const TWICE_PART: usize = 50;

/// Where one of so many is left out, or fewer, they may just not have been seen, or are a last batch
/// that is not read: two epochs have to leave out the same. A split shows by itself, if it leaves out
/// more than a few.
const LACKED_PART: u32 = 8;
const SPLIT_PART: u32 = 50;

/// After so many opens of an epoch it is asked whether they are of one side of a split. The larger a side
/// is, the more of its opens it takes to tell.
const SIDES_AFTER: [usize; 3] = [128, 256, 512];

/// Epochs that may have been drawn before it is known how the list was split.
const EPOCHS: u64 = 4;

/// In how many orders, of as many samples, those of a loader are numbered.
const ORDERS_MAX: usize = 4;

/// What was asked about the samples that a loader has.
#[derive(Debug, Default)]
pub(super) struct PartsAsked {
    /// Epochs for which it was asked which samples they had.
    epochs: u32,
    /// After how many opens it was asked last of which side of a split they are.
    side_at: usize,
}

impl PartsAsked {
    /// Another epoch begins.
    pub(super) fn begin_attempt(&mut self) {
        self.side_at = 0;
    }
}

impl Loader {
    /// A whole epoch is over that was in no known order, after `before`: asks which samples it had, or
    /// which each of the loaders had that were read in turn.
    pub(super) fn consider_parts(
        &mut self,
        over: &Attempt,
        before: Option<&Sequence>,
        shared: &mut Shared,
        out: &mut Vec<Decision>,
    ) {
        let read = over.log();
        let twice = (over.opens() as usize).saturating_sub(read.len());
        if self.past.is_some() || twice > TWICE + read.len() / TWICE_PART {
            return;
        }
        match over.turns().as_slice() {
            [_] => self.consider_part(read, before, shared, out),
            turns => {
                turns.iter().for_each(|turn| self.consider_part(turn, None, shared, out));
            }
        }
    }

    fn consider_part(
        &mut self,
        read: &[u32],
        before: Option<&Sequence>,
        shared: &mut Shared,
        out: &mut Vec<Decision>,
    ) {
        if self.parts_asked.epochs >= PARTS_MAX || read.len() < READ_MIN {
            return;
        }
        let wholes = wholes(read, &shared.indexes);
        let Some(n) = wholes.first().map(|&at| shared.indexes[at].sequence.len()) else { return };
        self.parts_asked.epochs += 1;
        let lacked = n - read.len() as u32;
        let same = before.is_some_and(|before| {
            before.len() as usize == read.len() && read.iter().all(|s| before.place(*s).is_some())
        });
        if lacked > n / LACKED_PART || same {
            let read = Arc::new(Sequence::new(read.into()));
            for &at in &wholes {
                shared.derive(kept(&shared.indexes[at], &read), Part { of: n, list: None });
            }
        }
        if lacked > n / SPLIT_PART {
            self.ask_split(read, wholes, false, shared, out);
        }
    }

    /// Another open is known: after some, it is asked whether they are of one side of a list that was split.
    pub(super) fn consider_side(&mut self, shared: &mut Shared, out: &mut Vec<Decision>) {
        let read = self.attempt.log();
        let is_due = SIDES_AFTER.contains(&read.len()) && self.parts_asked.side_at != read.len();
        let is_open = self.follow.is_none() && self.past.is_none() && self.epoch() < PARTS_MAX;
        if !is_due || !is_open || !self.reads() {
            return;
        }
        let (read, wholes) = (read.to_vec(), wholes(read, &shared.indexes));
        self.parts_asked.side_at = read.len();
        if !wholes.is_empty() {
            self.ask_split(&read, wholes, true, shared, out);
        }
    }

    /// Asks how a list was split of which this was read, all of a part or its beginning.
    fn ask_split(
        &self,
        read: &[u32],
        wholes: Vec<usize>,
        is_beginning: bool,
        shared: &mut Shared,
        out: &mut Vec<Decision>,
    ) {
        if shared.cached || shared.spent.contains(&self.group) {
            return;
        }
        let view = |&at: &usize| {
            let sequence = &shared.indexes[at].sequence;
            let read = read.iter().filter_map(|sample| sequence.place(*sample)).collect();
            View { n: sequence.len(), readers: vec![read] }
        };
        let search = Search::split(wholes.iter().map(view).collect(), is_beginning);
        self.want((search, Purpose::Split { wholes }), self.epoch(), shared, out);
    }

    /// Takes what a search for a split has found: the numberings of both of its sides.
    pub(super) fn split(
        &mut self,
        wholes: &[usize],
        findings: &[Finding],
        shared: &mut Shared,
        out: &mut Vec<Decision>,
    ) {
        for finding in findings {
            let Finding::Split { list, view, part } = finding else { continue };
            let Some(index) = wholes.get(*view as usize).and_then(|&at| shared.indexes.get(at))
            else {
                continue;
            };
            let n = index.sequence.len();
            let Some(positions) = list.epochs(n, 0).next() else { continue };
            let samples = index.sequence.samples();
            let side = |of: Range<u32>| Candidate {
                name: format!("{} split by {list} at {}", index.name, of.start),
                samples: of.map(|at| samples[positions[at as usize] as usize]).collect(),
                spec: None,
            };
            let sides = [0..part.start, part.end..n, part.clone()].map(side);
            let part = Part { of: n, list: Some(Arc::new(list.clone())) };
            let new = sides.into_iter().map(|side| shared.derive(side, part.clone()));
            if new.fold(false, |any, new| any | new) {
                self.search_again(shared, out);
            }
        }
    }
}

impl Index {
    /// The epochs of a part of a list that torch's default generator has split, if the same generator
    /// then draws the epochs of both sides, or only of this one.
    pub(super) fn drawn_after_split(&self) -> Vec<(Origin, Law)> {
        let Some(Part { of, list: Some(list) }) = &self.part else { return Vec::new() };
        let Sampler::TorchDistributed(list) = &**list else { return Vec::new() };
        let (len, seed) = (self.sequence.len(), list.seed as u32);
        let [split, own, theirs] = [*of, len, of.saturating_sub(len)].map(randperm_draws);
        // A loader draws a seed for its workers before its samples: two outputs.
        let firsts = [split + 2, split + 2 + theirs + 2];
        let all = firsts.into_iter().flat_map(|first| [theirs + 4, 2].map(|gap| (first, gap)));
        let epochs = all.flat_map(|(first, gap)| (0..EPOCHS).map(move |k| (first, gap, k)));
        let drawn = epochs.map(|(first, gap, k)| {
            let skip = first + k * (own + gap);
            (Origin::Draw { seed, skip }, Law::Continued { gap })
        });
        drawn.collect()
    }
}

/// The smallest numberings that have all of these samples, and others.
fn wholes(read: &[u32], indexes: &Indexes) -> Vec<usize> {
    let has_more = |index: &Index| {
        let sequence = &index.sequence;
        sequence.len() as usize > read.len() && read.iter().all(|s| sequence.place(*s).is_some())
    };
    let all = indexes.iter().filter(|(_, index)| index.part.is_none() && has_more(index));
    let all: Vec<(usize, &Index)> = all.collect();
    let least = all.iter().map(|(_, index)| index.sequence.len()).min();
    let smallest = all.iter().filter(|(_, index)| Some(index.sequence.len()) == least);
    smallest.map(|(at, _)| *at).take(ORDERS_MAX).collect()
}

/// The samples that were read, in the order of a numbering.
fn kept(index: &Index, read: &Arc<Sequence>) -> Candidate {
    let samples = index.sequence.samples().iter().copied();
    let samples = samples.filter(|sample| read.place(*sample).is_some()).collect();
    Candidate { name: format!("partial {}", index.name), samples, spec: None }
}
