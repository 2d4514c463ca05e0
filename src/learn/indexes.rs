//! The ways in which loaders may number the samples of a dataset.
//!
//! Those of the dataset itself stay. What comes from told orders and from what loaders read comes with
//! each job, and is forgotten again: a mount may see thousands of jobs, each with a list of its own.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::Candidate;
use super::origin::{Generators, Origin};
use super::sequence::Sequence;
use crate::order::OrderSpec;
use crate::order::samplers::Sampler;

/// How many numberings of what loaders have read are kept, the latest, while nobody reads in them.
const PARTS_MAX: usize = 32;

/// A way to number the samples of a dataset: see [`crate::order::index`].
#[derive(Clone, Debug)]
pub(super) struct Index {
    pub(super) name: String,
    pub(super) sequence: Arc<Sequence>,
    /// See [`Candidate::spec`].
    pub(super) spec: Option<Arc<OrderSpec>>,
    /// Of what it is a part, if it is one that a loader has read.
    pub(super) part: Option<Part>,
    /// Whether it stays though nobody uses it.
    stays: bool,
}

/// A part of another numbering.
#[derive(Clone, Debug)]
pub(super) struct Part {
    /// How many samples that has.
    pub(super) of: u32,
    /// The list of these that was split, if one was.
    pub(super) list: Option<Arc<Sampler>>,
}

impl Index {
    /// Takes up a numbering; none of which nothing can be learnt.
    fn new(Candidate { name, samples, spec }: Candidate, part: Option<Part>) -> Option<Self> {
        let sequence = Arc::new(Sequence::new(samples));
        let spec = spec.map(Arc::new);
        (sequence.len() >= 2).then_some(Index { name, sequence, spec, part, stays: false })
    }

    /// The samples of an origin's epoch over it; `None` where that is no sampler's.
    pub(super) fn epoch(&self, origin: &Origin, generators: &Generators) -> Option<Arc<[u32]>> {
        let samples = self.sequence.samples();
        if *origin == Origin::Sequential {
            return Some(Arc::clone(samples));
        }
        let positions = origin.positions(self.sequence.len(), generators)?;
        Some(positions.into_iter().map(|at| samples[at as usize]).collect())
    }
}

/// All numberings, each by a number that no other one ever has.
#[derive(Debug, Default)]
pub(super) struct Indexes {
    all: BTreeMap<usize, Index>,
    next: usize,
}

impl Indexes {
    /// The numberings of a dataset, those with the fewest samples first.
    pub(super) fn new(candidates: Vec<Candidate>) -> Self {
        let mut indexes = Indexes::default();
        candidates.into_iter().for_each(|candidate| _ = indexes.add(candidate));
        let mut all: Vec<Index> = indexes.all.into_values().collect();
        all.sort_by_key(|index| index.sequence.len());
        Indexes { next: all.len(), all: (0..).zip(all).collect() }
    }

    /// Takes in a numbering of the dataset, behind the others, if it is another one; gives its number.
    /// None for one of which nothing can be learnt.
    pub(super) fn add(&mut self, candidate: Candidate) -> Option<usize> {
        let number = self.add_told(candidate)?;
        self.all.get_mut(&number)?.stays = true;
        Some(number)
    }

    /// The same of one that somebody told: it stays as long as it is used.
    pub(super) fn add_told(&mut self, candidate: Candidate) -> Option<usize> {
        if let Some(number) = self.number_of(&candidate.samples) {
            let known = self.all.get_mut(&number)?;
            known.spec = known.spec.take().or(candidate.spec.map(Arc::new));
            return Some(number);
        }
        Some(self.insert(Index::new(candidate, None)?))
    }

    /// Takes in a numbering of a part of another one. Says whether it is new.
    pub(super) fn derive(&mut self, candidate: Candidate, part: Part) -> bool {
        let known = self.number_of(&candidate.samples);
        let new = known.is_none().then(|| Index::new(candidate, Some(part))).flatten();
        new.map(|index| self.insert(index)).is_some()
    }

    fn insert(&mut self, index: Index) -> usize {
        let number = self.next;
        self.all.insert(number, index);
        self.next += 1;
        number
    }

    fn number_of(&self, samples: &[u32]) -> Option<usize> {
        let mut all = self.iter();
        all.find(|(_, index)| **index.sequence.samples() == *samples).map(|(number, _)| number)
    }

    /// Forgets those that are not `used` and do not stay: all that were told, and the oldest that come
    /// from what loaders have read. Says whether there are any.
    pub(super) fn forget(&mut self, used: &BTreeSet<usize>) -> bool {
        let unused = |(number, index): &(usize, &Index)| !index.stays && !used.contains(number);
        let unused = self.iter().filter(unused);
        let (parts, told): (Vec<_>, Vec<_>) = unused.partition(|(_, index)| index.part.is_some());
        let old = &parts[..parts.len().saturating_sub(PARTS_MAX)];
        let gone: BTreeSet<usize> = told.iter().chain(old).map(|(number, _)| *number).collect();
        self.all.retain(|number, _| !gone.contains(number));
        !gone.is_empty()
    }

    /// The number of the next one that comes.
    pub(super) fn next_number(&self) -> usize {
        self.next
    }

    /// The numbering of this number, if it has not been forgotten.
    pub(super) fn get(&self, number: usize) -> Option<&Index> {
        self.all.get(&number)
    }

    /// All, with their numbers.
    pub(super) fn iter(&self) -> impl Iterator<Item = (usize, &Index)> {
        self.all.iter().map(|(number, index)| (*number, index))
    }

    pub(super) fn values(&self) -> impl Iterator<Item = &Index> {
        self.all.values()
    }
}

impl std::ops::Index<usize> for Indexes {
    type Output = Index;

    /// A numbering that is used.
    fn index(&self, number: usize) -> &Index {
        &self.all[&number]
    }
}
