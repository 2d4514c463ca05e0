//! What all loaders share.

use std::collections::{BTreeMap, BTreeSet};

use super::Candidate;
use super::event::{SearchId, Settings};
use super::history::Read;
use super::indexes::{Index, Indexes, Part};
use super::journal::Journal;
use super::ladder::Running;
use super::origin::Generators;
use super::suspect::Other;
use super::told::Told;
use crate::order::SampleTable;

/// Of how many loaders the orders are remembered.
const OTHERS_MAX: usize = 16;

/// How many told orders are remembered: one for each rank of a large node.
const TOLD_MAX: usize = 16;

/// One in so many samples of an epoch may not have been seen.
const UNSEEN_PART: usize = 50;

/// An open, as loaders see it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Open {
    pub(super) at_ms: u64,
    /// Who opened it, by the number that [`Readers`](super::readers::Readers) gives.
    pub(super) reader: u32,
    pub(super) sample: u32,
    pub(super) exact: bool,
}

/// What all loaders share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) settings: Settings,
    pub(super) indexes: Indexes,
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
        Shared {
            settings,
            indexes: Indexes::new(candidates),
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
        }
    }

    /// There is something new to compare loaders with.
    pub(super) fn changed(&mut self) {
        self.version = self.version.wrapping_add(1);
    }

    /// Takes in a numbering of a part of another one. Says whether it is new.
    pub(super) fn derive(&mut self, candidate: Candidate, part: Part) -> bool {
        let new = self.indexes.derive(candidate, part);
        if new {
            self.changed();
        }
        new
    }

    /// The numberings of orders that are told, and of those that loaders read.
    pub(super) fn used(&self) -> impl Iterator<Item = usize> {
        let told = self.told.iter().filter_map(Told::index);
        let others = self.others.iter().flat_map(|other| [other.first.0, other.now.0]);
        told.chain(others.flatten())
    }

    /// Somebody has told an order.
    pub(super) fn tell(&mut self, told: Told) {
        self.told.push(told);
        if self.told.len() > TOLD_MAX {
            self.told.remove(0);
        }
        self.changed();
    }

    /// Whether samples are about all of some numbering: an epoch of these is at its end.
    pub(super) fn has_whole(&self, read: &Read) -> bool {
        let Read::Seen(samples) = read else { return true };
        let is_whole = |Index { sequence, .. }: &Index| {
            let (read, all) = (samples.len(), sequence.len() as usize);
            let has = |sample: &u32| sequence.place(*sample).is_some();
            read <= all && all - read <= all / UNSEEN_PART && samples.iter().all(has)
        };
        self.indexes.values().any(is_whole)
    }

    /// A loader's order has become known.
    pub(super) fn note(&mut self, other: Other) {
        self.others.retain(|known| known.loader != other.loader);
        self.others.push(other);
        if self.others.len() > OTHERS_MAX {
            self.others.remove(0);
        }
        self.changed();
    }
}
