//! What all loaders share.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::Candidate;
use super::event::{SearchId, Settings};
use super::history::Read;
use super::journal::Journal;
use super::ladder::Running;
use super::origin::Generators;
use super::sequence::{Index, Part, Sequence};
use super::suspect::Other;
use super::told::Told;
use crate::order::SampleTable;

/// Of how many loaders the orders are remembered.
const OTHERS_MAX: usize = 16;

/// How many numberings come from what loaders have read.
const DERIVED_MAX: usize = 32;
/// How many told orders are remembered: one for each rank of a large node.
const TOLD_MAX: usize = 16;

/// One in so many samples of an epoch may not have been seen.
const UNSEEN_PART: usize = 50;

/// An open, as loaders see it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Open {
    pub(super) at_ms: u64,
    pub(super) task: u32,
    pub(super) sample: u32,
    pub(super) exact: bool,
}

/// What all loaders share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) settings: Settings,
    pub(super) indexes: Vec<Index>,
    pub(super) samples: SampleTable,
    pub(super) generators: Generators,
    pub(super) searches: BTreeMap<SearchId, Running>,
    pub(super) next_search: u32,
    /// What is known of loaders, those understood last at the end.
    pub(super) others: Vec<Other>,
    /// Counts the changes to them.
    pub(super) version: u32,
    /// Whether everything is cached.
    pub(super) cached: bool,
    /// The processes for which nothing is searched any more.
    pub(super) spent: BTreeSet<u64>,
    /// What earlier loaders read.
    pub(super) journal: Journal,
    /// Orders that somebody told, the latest at the end.
    pub(super) told: Vec<Told>,
    /// Counts what has become worth to be remembered.
    pub(super) news: u64,
}

impl Shared {
    pub(super) fn new(
        settings: Settings,
        candidates: Vec<Candidate>,
        samples: SampleTable,
    ) -> Self {
        let mut shared = Shared {
            settings,
            indexes: Vec::new(),
            samples,
            generators: Generators::default(),
            searches: BTreeMap::new(),
            next_search: 0,
            others: Vec::new(),
            version: 0,
            cached: false,
            spent: BTreeSet::new(),
            journal: Journal::default(),
            told: Vec::new(),
            news: 0,
        };
        candidates.into_iter().for_each(|candidate| _ = shared.add(candidate));
        shared.indexes.sort_by_key(|index| index.sequence.len());
        shared
    }

    /// Takes a numbering in, behind the others, if it is another one; gives its place. None for one of
    /// which nothing can be learnt.
    pub(super) fn add(&mut self, Candidate { name, samples, spec }: Candidate) -> Option<usize> {
        let spec = spec.map(Arc::new);
        if let Some(known) = self.place_of(&samples) {
            self.indexes[known].spec = self.indexes[known].spec.take().or(spec);
            return Some(known);
        }
        if samples.len() < 2 {
            return None;
        }
        let sequence = Arc::new(Sequence::new(samples));
        self.indexes.push(Index { name, sequence, spec, part: None });
        Some(self.indexes.len() - 1)
    }

    /// Takes in a numbering of a part of another one, as long as there are few. Says whether it is new.
    pub(super) fn derive(
        &mut self,
        Candidate { name, samples, spec }: Candidate,
        part: Part,
    ) -> bool {
        let derived = self.indexes.iter().filter(|index| index.part.is_some());
        if derived.count() >= DERIVED_MAX || samples.len() < 2 || self.place_of(&samples).is_some()
        {
            return false;
        }
        let sequence = Arc::new(Sequence::new(samples));
        let spec = spec.map(Arc::new);
        self.indexes.push(Index { name, sequence, spec, part: Some(part) });
        self.version = self.version.wrapping_add(1);
        true
    }

    fn place_of(&self, samples: &[u32]) -> Option<usize> {
        self.indexes.iter().position(|index| **index.sequence.samples() == *samples)
    }

    /// Somebody has told an order.
    pub(super) fn tell(&mut self, told: Told) {
        self.told.push(told);
        if self.told.len() > TOLD_MAX {
            self.told.remove(0);
        }
    }

    /// Whether samples are about all of some numbering: an epoch of these is at its end.
    pub(super) fn has_whole(&self, read: &Read) -> bool {
        let Read::Seen(samples) = read else { return true };
        let is_whole = |Index { sequence, .. }: &Index| {
            let (read, all) = (samples.len(), sequence.len() as usize);
            let has = |sample: &u32| sequence.place(*sample).is_some();
            read <= all && all - read <= all / UNSEEN_PART && samples.iter().all(has)
        };
        self.indexes.iter().any(is_whole)
    }

    /// A loader's order has become known.
    pub(super) fn note(&mut self, other: Other) {
        self.others.retain(|known| known.loader != other.loader);
        self.others.push(other);
        if self.others.len() > OTHERS_MAX {
            self.others.remove(0);
        }
        self.version = self.version.wrapping_add(1);
    }
}
