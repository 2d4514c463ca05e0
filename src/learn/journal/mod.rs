//! What loaders read in earlier epochs and runs, as hypotheses about loaders that read now.
//!
//! A job that is started again reads, as a rule, in the same order or in one that follows from it: with the
//! next seed, or from where it left off. An order that was drawn once and written down is the same again,
//! too. So the journal has the origin of an order that a sampler can draw again, and the samples of others.

mod format;

use std::ops::Range;
use std::sync::Arc;

use super::event::{Basis, LoaderId};
use super::history::{Epoch, Read, Record};
use super::hypothesis::{Facts, Hypothesis};
use super::origin::{Generators, Law, Lists, Origin};
pub use format::BYTES_MAX;

/// How many runs are remembered, how many origins and lists of each, and how many samples in all, at 4 bytes.
const RUNS_MAX: usize = 32;
const MADE_MAX: usize = 32;
const LISTS_MAX: usize = 8;
const SAMPLES_MAX: usize = 1 << 24;

/// A recorded epoch this short says nothing.
const LIST_MIN: usize = 16;

/// How many seeds of a run whose seeds count up are tried.
const COUNTED_MAX: u32 = 64;

/// The most outputs of a generator that are skipped for a hypothesis.
const SKIP_MAX: u64 = 1 << 26;

/// How many epochs of other samplers than torch's permutations are tried. Each costs a whole epoch.
const SAMPLERS_MAX: usize = 4;

/// What earlier loaders read, the latest at the end. Cheap to clone.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Journal {
    pub(super) runs: Vec<Run>,
}

/// What one loader read.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Run {
    /// The origins of its epochs, that of the first epoch first.
    pub(super) made: Vec<Made>,
    /// Its epochs, if no sampler can draw them again.
    pub(super) lists: Lists,
    /// The loader, if it is one of this learner.
    pub(super) loader: Option<LoaderId>,
}

/// The origin of an epoch.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Made {
    /// The name of the index, and the number of its samples.
    pub(super) index: String,
    pub(super) n: u32,
    pub(super) origin: Origin,
    pub(super) law: Law,
}

impl Journal {
    pub fn len(&self) -> usize {
        self.runs.len()
    }

    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// The journal as bytes. `numbering` shows whether the numbers of samples still mean the same.
    pub fn encode(&self, numbering: u128) -> Vec<u8> {
        format::encode(self, numbering)
    }

    /// The journal that these bytes are, and its `numbering`.
    ///
    /// # Errors
    /// What is wrong with the bytes, in words.
    pub fn decode(bytes: &[u8]) -> Result<(Journal, u128), String> {
        format::decode(bytes)
    }

    /// Adds what a loader read, with `partial` also of an epoch that is not over, and drops the same run.
    pub fn add(&mut self, record: &Record, partial: bool) {
        let Some(run) = Run::of(record, partial) else { return };
        self.runs.retain(|known| !known.is_as(&run));
        self.runs.push(run);
        self.bound();
    }

    /// Forgets which loaders the runs are of: the next learner gives their numbers to other loaders.
    pub fn detach(&mut self) {
        self.runs.iter_mut().for_each(|run| run.loader = None);
    }

    /// With other numbers for the samples; `number` gives none for samples that are gone. A list that loses more
    /// than half of its samples is forgotten.
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

    /// Drops what is too much, the oldest first, and empty runs.
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

    /// That a loader goes on as a run did, or begins again. What samplers draw is tried only until an epoch of
    /// the loader is understood.
    pub(super) fn hypotheses(&self, facts: &Facts<'_>) -> Vec<Hypothesis> {
        let (mut all, mut samplers) = (Vec::new(), 0);
        for run in self.runs.iter().rev().filter(|run| run.loader != Some(facts.loader)) {
            let lists = 0..run.lists.all.len() as u32;
            let listed = |at| Hypothesis::listed(&run.lists, at, Basis::Replayed);
            all.extend(lists.filter_map(listed));
            if facts.past.understood.is_some() {
                continue;
            }
            for (made, origin, law) in run.origins() {
                // If the dataset has other files than then, there are two numberings of the name.
                let indexes = facts.shared.indexes.iter();
                for (at, index) in indexes.filter(|(_, index)| index.name == made.index) {
                    let n = index.sequence.len();
                    if let Origin::Sampler { sampler, epoch } = &origin {
                        let may_be = || sampler.draws_before(n, *epoch) <= SKIP_MAX;
                        if samplers == SAMPLERS_MAX || sampler.check(n).is_err() || !may_be() {
                            continue;
                        }
                        samplers += 1;
                    }
                    let lasts = n == made.n || law.is_lasting();
                    let law = if lasts { law.clone() } else { Law::Unknown };
                    all.extend(facts.known(at, (origin.clone(), law), Basis::Replayed));
                }
            }
        }
        all
    }
}

impl Run {
    fn of(record: &Record, partial: bool) -> Option<Run> {
        let made: Vec<(u32, Made)> = record.epochs.iter().filter_map(made).collect();
        if made.is_empty() {
            let epochs = record.epochs.iter().filter(|epoch| epoch.is_over || partial);
            let mut lists: Vec<Arc<[u32]>> = Vec::new();
            let mut is_cut = false;
            let generators = Generators::default();
            for epoch in epochs {
                let list = match &epoch.read {
                    Read::Seen(list) => Arc::clone(list),
                    // The next run does not know this numbering at its beginning.
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
        // The first epochs may have been over before the order was known.
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

    /// Whether another run is of the same loader, or began the same.
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

    /// The origins that an epoch of this run, or of the next one, may have.
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
        // With the next seed, or in any epoch if the seeds count up.
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

/// The origin of an epoch, if a sampler drew it.
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
