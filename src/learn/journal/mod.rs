//! What loaders read in earlier epochs and runs, offered to those that read now.
//!
//! A job that is started again reads in the same order as a rule, or in one that follows from it:
//! with the same seed, with the next one, or where it left off. An order that nobody can compute,
//! but that was drawn once and written down, is the same again, too. Both are remembered: of orders
//! that can be made, where they come from; of others the samples. What is offered costs nothing to
//! try, and has to earn its evidence as everything else.

mod format;

use std::ops::Range;
use std::sync::Arc;

use super::event::{LoaderId, Rung};
use super::history::{Epoch, Read, Record};
use super::indexes::Indexes;
use super::origin::{Generators, Law, Lists, Origin};
use super::suspect::Suspect;
pub use format::BYTES_MAX;

/// How many runs are remembered, the latest; how many origins and epochs of each; and how many
/// samples in all, at 4 bytes each.
const RUNS_MAX: usize = 32;
const MADE_MAX: usize = 32;
const LISTS_MAX: usize = 8;
const SAMPLES_MAX: usize = 1 << 24;

/// A recorded epoch this short says nothing.
const LIST_MIN: usize = 16;

/// How many seeds are tried of a run whose seeds count up.
const COUNTED_MAX: u32 = 64;

/// More outputs of a generator than this are not skipped for a guess.
const SKIP_MAX: u64 = 1 << 26;

/// How many epochs of other samplers than torch's permutations are tried, the latest runs' first: each
/// costs a whole epoch.
const SAMPLERS_MAX: usize = 4;

/// What earlier loaders read, the latest at the end. Cheap to clone.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Journal {
    pub(super) runs: Vec<Run>,
}

/// What one loader read.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Run {
    /// Where its epochs came from, the first one's origin first.
    pub(super) made: Vec<Made>,
    /// Its epochs, where that is not known.
    pub(super) lists: Lists,
    /// The loader, if it is one of this learner's.
    pub(super) loader: Option<LoaderId>,
}

/// Where an epoch came from.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Made {
    /// Name of the index, and the number of its samples.
    pub(super) index: String,
    pub(super) n: u32,
    pub(super) origin: Origin,
    pub(super) law: Law,
}

impl Journal {
    /// Number of runs.
    pub fn len(&self) -> usize {
        self.runs.len()
    }

    /// Whether nothing is remembered.
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// Adds what a loader read; with `partial` also what it has read of an epoch that is not over.
    /// It takes the place of a run that was the same.
    pub fn add(&mut self, record: &Record, partial: bool) {
        let Some(run) = Run::of(record, partial) else { return };
        self.runs.retain(|known| !known.is_as(&run));
        self.runs.push(run);
        self.bound();
    }

    /// Forgets which loaders the runs are of: from here on others have their numbers.
    pub fn detach(&mut self) {
        self.runs.iter_mut().for_each(|run| run.loader = None);
    }

    /// With other numbers for the samples; `number` gives none for those that are gone. Lists of
    /// which then less than half is left are forgotten.
    pub fn renumbered(mut self, number: impl Fn(u32) -> Option<u32>) -> Self {
        for run in &mut self.runs {
            let renumber = |list: &Arc<[u32]>| {
                let left: Arc<[u32]> = list.iter().filter_map(|&sample| number(sample)).collect();
                (2 * left.len() >= list.len()).then_some(left)
            };
            run.lists.all = run.lists.all.iter().filter_map(renumber).collect();
        }
        self.bound();
        self
    }

    /// Drops what is too much, the oldest first, and runs of which nothing is left.
    pub(super) fn bound(&mut self) {
        let mut left = SAMPLES_MAX;
        for run in self.runs.iter_mut().rev() {
            let fitting = run.lists.all.iter().take_while(|list| {
                let rest = left.checked_sub(list.len());
                left = rest.unwrap_or(0);
                rest.is_some()
            });
            let fitting: Vec<Arc<[u32]>> = fitting.cloned().collect();
            if fitting.len() < run.lists.all.len() {
                run.lists = Lists { all: fitting.into(), ..Lists::default() };
            }
        }
        self.runs.retain(|run| !run.made.is_empty() || !run.lists.all.is_empty());
        self.runs.drain(..self.runs.len().saturating_sub(RUNS_MAX));
    }

    /// What a loader may be reading, if it reads on or anew as one before: as long as nothing of it
    /// is understood also what can be made.
    pub(super) fn suspects(
        &self,
        loader: LoaderId,
        understood: bool,
        indexes: &Indexes,
        head: impl Fn(usize, Origin, Law) -> Option<Suspect>,
    ) -> Vec<Suspect> {
        let mut suspects = Vec::new();
        let mut samplers = 0;
        let runs = self.runs.iter().rev().filter(|run| run.loader != Some(loader));
        for run in runs {
            for (at, list) in run.lists.all.iter().enumerate() {
                let origin = Origin::Listed { lists: run.lists.clone(), at: at as u32 };
                suspects.push(Suspect::listed(origin, list));
            }
            for (made, origin, law) in if understood { Vec::new() } else { run.origins() } {
                // Where the dataset has other files by now, in both numberings.
                let numberings = indexes.iter().filter(|(_, index)| index.name == made.index);
                for (at, index) in numberings {
                    if let Origin::Sampler { sampler, epoch } = &origin {
                        let n = index.sequence.len();
                        let may_be = || sampler.draws_before(n, *epoch) <= SKIP_MAX;
                        if samplers == SAMPLERS_MAX || sampler.check(n).is_err() || !may_be() {
                            continue;
                        }
                        samplers += 1;
                    }
                    let lasts = index.sequence.len() == made.n || law.is_lasting();
                    let law = if lasts { law.clone() } else { Law::Unknown };
                    suspects.extend(head(at, origin.clone(), law).map(|mut known| {
                        known.rung = Rung::Replayed;
                        known
                    }));
                }
            }
        }
        suspects
    }
}

impl Run {
    fn of(record: &Record, partial: bool) -> Option<Run> {
        let made: Vec<(u32, Made)> = record.epochs.iter().filter_map(made).collect();
        if made.is_empty() {
            let epochs = record.epochs.iter().filter(|epoch| epoch.is_over() || partial);
            let mut lists: Vec<Arc<[u32]>> = Vec::new();
            let mut is_cut = false;
            let generators = Generators::default();
            for epoch in epochs {
                let list = match &epoch.read {
                    Read::Seen(list) => Arc::clone(list),
                    // The next run does not know its numbering from the beginning.
                    Read::Made { index, .. } if index.part.is_some() => epoch.samples(&generators),
                    Read::Made { .. } => continue,
                };
                if list.len() >= LIST_MIN && !lists.contains(&list) && lists.len() < LISTS_MAX {
                    lists.push(list);
                    is_cut = epoch.is_cut;
                }
            }
            let lists = Lists { all: lists.into(), is_cut, is_told: false };
            let run = Run { made: Vec::new(), lists, loader: Some(record.loader) };
            return (!run.lists.all.is_empty()).then_some(run);
        }
        let (number, last) = made.last()?;
        let mut kept: Vec<Made> = Vec::new();
        // Its first epochs may have gone by before its order was known.
        let first = last.origin.back(&last.law, last.n, *number);
        kept.extend(first.map(|(origin, law)| Made { origin, law, ..last.clone() }));
        let known = last.law != Law::Unknown;
        let middle = made.iter().take(if known { 1 } else { MADE_MAX });
        for (_, made) in middle.chain(made.last()) {
            if kept.iter().all(|kept| kept.origin != made.origin) {
                kept.push(made.clone());
            }
        }
        Some(Run { made: kept, lists: Lists::default(), loader: Some(record.loader) })
    }

    /// Whether another run read the same from its beginning.
    fn is_as(&self, other: &Run) -> bool {
        if other.loader.is_some() && self.loader == other.loader {
            return true;
        }
        let made =
            |run: &Run| run.made.first().map(|made| (made.index.clone(), made.origin.clone()));
        match (made(self), made(other)) {
            (Some(own), Some(others)) => own == others,
            (None, None) => self.lists.all.first() == other.lists.all.first(),
            _ => false,
        }
    }

    /// The origins that an epoch of this run, or of one that follows it, may have.
    fn origins(&self) -> Vec<(&Made, Origin, Law)> {
        let mut found: Vec<(&Made, Origin, Law)> = Vec::new();
        let mut add = |made, origin: Origin, law| {
            let skips = match origin {
                Origin::Draw { skip, .. } => skip,
                _ => 0,
            };
            if skips <= SKIP_MAX && found.iter().all(|(_, known, _)| *known != origin) {
                found.push((made, origin, law));
            }
        };
        for made in &self.made {
            add(made, made.origin.clone(), made.law.clone());
        }
        if let Some(last) = self.made.last()
            && let Some((origin, law)) = last.origin.after(&last.law, last.n)
        {
            add(last, origin, law);
        }
        // With the next seed, and in any epoch of one whose seeds count up.
        if let Some(made) = self.made.first()
            && let Origin::Draw { seed, skip } = made.origin
        {
            for seed in self.seeds(seed) {
                let law = if made.law.is_of_seed() { made.law.clone() } else { Law::Unknown };
                add(made, Origin::Draw { seed, skip }, law);
            }
        }
        found
    }

    fn seeds(&self, first: u32) -> Range<u32> {
        let last = self.made.last().filter(|made| made.law == Law::Counting);
        let Some(Origin::Draw { seed, .. }) = last.map(|made| &made.origin) else {
            return first..first.saturating_add(2);
        };
        let last = (*seed).clamp(first, first.saturating_add(COUNTED_MAX));
        first.saturating_sub(2)..last.saturating_add(2)
    }
}

/// Where an epoch came from, if a sampler drew it.
fn made(epoch: &Epoch) -> Option<(u32, Made)> {
    match &epoch.read {
        Read::Made { index, origin, law, .. } if origin.is_drawn() && index.part.is_none() => {
            let (index, n) = (index.name.clone(), index.sequence.len());
            let made = Made { index, n, origin: (**origin).clone(), law: law.clone() };
            Some((epoch.number, made))
        }
        _ => None,
    }
}
