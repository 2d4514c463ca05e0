//! The ways in which loaders may number the samples of a dataset.
//!
//! Those of the dataset itself stay. Those of told orders and of what loaders read are forgotten again, as a
//! mount may see thousands of jobs, each with a list of its own.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::origin::{EpochOrder, Generators, Law, Origin};
use crate::order::OrderSpec;
use crate::order::samplers::Sampler;
use crate::track::Sequence;

/// How many unused numberings of what loaders have read are kept, the latest.
const PARTS_MAX: usize = 32;

/// A way to number the samples of a dataset: see [`crate::order::index`].
#[derive(Clone, Debug)]
pub struct Numbering {
    /// Its name in `status`: `imagefolder below train`.
    pub name: String,
    /// By position, the sample.
    pub samples: Arc<[u32]>,
    /// The order that reads the samples by their positions, if it can be told.
    pub spec: Option<OrderSpec>,
}

/// A numbering with the position of each sample.
#[derive(Clone, Debug)]
pub(super) struct Index {
    pub(super) name: String,
    pub(super) sequence: Arc<Sequence>,
    /// See [`Numbering::spec`].
    pub(super) spec: Option<Arc<OrderSpec>>,
    /// Set if it is a part of another numbering that a loader has read.
    pub(super) part: Option<Part>,
    /// Whether it is kept even if unused.
    stays: bool,
}

#[derive(Clone, Debug)]
pub(super) struct Part {
    /// How many samples the other numbering has.
    pub(super) of: u32,
    /// The shuffled list of these samples that was split, if one was.
    pub(super) list: Option<Arc<Sampler>>,
}

impl Index {
    /// `None` if nothing can be learnt of the numbering.
    fn new(Numbering { name, samples, spec }: Numbering, part: Option<Part>) -> Option<Self> {
        let sequence = Arc::new(Sequence::new(samples));
        let spec = spec.map(Arc::new);
        (sequence.len() >= 2).then_some(Index { name, sequence, spec, part, stays: false })
    }

    /// Whether it has three quarters of these samples.
    pub(super) fn has_most(&self, samples: &[u32]) -> bool {
        let has = |sample: &&u32| self.sequence.place(**sample).is_some();
        4 * samples.iter().filter(has).count() >= 3 * samples.len()
    }

    pub(super) fn has_all<'s>(&self, mut samples: impl Iterator<Item = &'s u32>) -> bool {
        samples.all(|sample| self.sequence.place(*sample).is_some())
    }

    /// The samples of an origin's epoch over it; `None` if no sampler draws that epoch.
    pub(super) fn epoch(&self, origin: &Origin, generators: &Generators) -> Option<Arc<[u32]>> {
        let samples = self.sequence.items();
        if *origin == Origin::Sequential {
            return Some(Arc::clone(samples));
        }
        let positions = origin.positions(self.sequence.len(), generators)?;
        Some(positions.into_iter().map(|at| samples[at as usize]).collect())
    }
}

/// All numberings, each under a number that is never used twice.
#[derive(Debug, Default)]
pub(super) struct Indexes {
    all: BTreeMap<usize, Index>,
    /// The number of the next new one.
    pub(super) next: usize,
}

impl Indexes {
    /// The numberings of a dataset, those with the fewest samples first.
    pub(super) fn new(numberings: Vec<Numbering>) -> Self {
        let mut indexes = Indexes::default();
        numberings.into_iter().for_each(|numbering| _ = indexes.add(numbering));
        let mut all: Vec<Index> = indexes.all.into_values().collect();
        all.sort_by_key(|index| index.sequence.len());
        Indexes { next: all.len(), all: (0..).zip(all).collect() }
    }

    /// Adds a numbering of the dataset, unless it is known. Gives its number; `None` if it is of no use.
    pub(super) fn add(&mut self, numbering: Numbering) -> Option<usize> {
        let number = self.add_temporary(numbering)?;
        self.all.get_mut(&number)?.stays = true;
        Some(number)
    }

    /// The same for the numbering of a told order, which stays as long as it is used.
    pub(super) fn add_temporary(&mut self, numbering: Numbering) -> Option<usize> {
        if let Some(number) = self.number_of(&numbering.samples) {
            let known = self.all.get_mut(&number)?;
            known.spec = known.spec.take().or(numbering.spec.map(Arc::new));
            return Some(number);
        }
        Some(self.insert(Index::new(numbering, None)?))
    }

    /// Adds a numbering of a part of another one. Says whether it is new.
    pub(super) fn add_part(&mut self, numbering: Numbering, part: Part) -> bool {
        let known = self.number_of(&numbering.samples);
        let new = known.is_none().then(|| Index::new(numbering, Some(part))).flatten();
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
        all.find(|(_, index)| **index.sequence.items() == *samples).map(|(number, _)| number)
    }

    /// Forgets numberings that are neither `used` nor stay: all told ones, and the oldest parts. Says whether
    /// there are any.
    pub(super) fn forget(&mut self, used: &BTreeSet<usize>) -> bool {
        let unused = |(number, index): &(usize, &Index)| !index.stays && !used.contains(number);
        let unused = self.iter().filter(unused);
        let (parts, temporary): (Vec<_>, Vec<_>) =
            unused.partition(|(_, index)| index.part.is_some());
        let old = &parts[..parts.len().saturating_sub(PARTS_MAX)];
        let gone: BTreeSet<usize> =
            temporary.iter().chain(old).map(|(number, _)| *number).collect();
        self.all.retain(|number, _| !gone.contains(number));
        !gone.is_empty()
    }

    pub(super) fn get(&self, number: usize) -> Option<&Index> {
        self.all.get(&number)
    }

    /// How many samples a numbering that is used has; 0 for an order without one.
    pub(super) fn len_of(&self, number: Option<usize>) -> u32 {
        number.map_or(0, |number| self[number].sequence.len())
    }

    /// Orders that differ from this one in two samples only, while its law is unknown: over a numbering with two
    /// samples fewer, two outputs of the generator later, or with two more, two outputs earlier. A loader that
    /// has its own generator begins its epochs at the first of these two outputs.
    pub(super) fn twins(&self, order: &EpochOrder) -> Vec<EpochOrder> {
        let EpochOrder { index: Some(number), ref origin, law: Law::Unknown } = *order else {
            return Vec::new();
        };
        let Origin::Draw { seed, skip } = *origin else { return Vec::new() };
        let n = u64::from(self[number].sequence.len());
        let twin = |(other, of): (usize, &Index)| {
            let len = u64::from(of.sequence.len());
            let origin = Origin::Draw { seed, skip: (n + skip).checked_sub(len)? };
            let law = (n.abs_diff(len) == 2).then_some(Law::Unknown)?;
            Some(EpochOrder { index: Some(other), origin, law })
        };
        self.iter().filter_map(twin).collect()
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
