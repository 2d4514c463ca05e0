//! What all loaders share.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::candidate::Sought;
use super::event::{Decision, LoaderId, SearchId, Settings};
use super::history::Read;
use super::indexes::{Index, Indexes, Numbering, Part};
use super::journal::Journal;
use super::origin::{EpochOrder, Generators, Origin};
use super::reading::Reading;
use super::search::Search;
use super::told_orders::ToldOrder;
use crate::order::SampleTable;
use crate::track::Sequence;

/// Of how many loaders the orders are remembered.
const OTHERS_MAX: usize = 16;

/// How many told orders are remembered: one for each rank of a large node.
const TOLD_MAX: usize = 16;

/// One in so many samples of an epoch may not have been seen.
const UNSEEN_PART: usize = 50;

#[derive(Debug)]
pub(super) struct Shared {
    pub(super) settings: Settings,
    pub(super) indexes: Indexes,
    pub(super) samples: SampleTable,
    pub(super) generators: Generators,
    pub(super) searches: Searches,
    /// The orders of loaders, those understood last at the end.
    pub(super) others: Vec<Other>,
    /// Counts the changes to what hypotheses follow from.
    pub(super) version: u32,
    /// What loaders of earlier learners read.
    pub(super) journal: Journal,
    /// The latest at the end.
    pub(super) told_orders: Vec<ToldOrder>,
    /// Counts the changes that are worth remembering.
    pub(super) news: u64,
    /// What follows from the observation so far.
    pub(super) decisions: Vec<Decision>,
}

/// The searches of all loaders.
#[derive(Debug, Default)]
pub(super) struct Searches {
    pub(super) running: BTreeMap<SearchId, Running>,
    next: u32,
    /// Whether everything is cached.
    pub(super) cached: bool,
    /// The processes for which nothing is searched any more.
    pub(super) spent: BTreeSet<u64>,
}

/// A search under way.
#[derive(Debug)]
pub(super) struct Running {
    pub(super) loader: LoaderId,
    pub(super) purpose: Purpose,
}

/// What a search is to find.
#[derive(Debug)]
pub(super) enum Purpose {
    /// The order of an epoch.
    Epoch(Sought),
    /// The default generator that the seed of this epoch comes from.
    Default { epoch: u32 },
    /// How one of these numberings was split, of which the loader has read a part.
    Split { wholes: Vec<usize> },
}

/// What a loader reads, and what it read first.
#[derive(Debug)]
pub(super) struct Other {
    pub(super) loader: LoaderId,
    pub(super) first: (Option<usize>, Origin),
    pub(super) now: EpochOrder,
    pub(super) sequence: Arc<Sequence>,
}

impl Shared {
    pub(super) fn new(
        settings: Settings,
        numberings: Vec<Numbering>,
        samples: SampleTable,
    ) -> Self {
        Shared {
            settings,
            indexes: Indexes::new(numberings),
            samples,
            generators: Generators::default(),
            searches: Searches::default(),
            others: Vec::new(),
            version: 0,
            journal: Journal::default(),
            told_orders: Vec::new(),
            news: 0,
            decisions: Vec::new(),
        }
    }

    /// Hypotheses may follow from something new.
    pub(super) fn changed(&mut self) {
        self.version = self.version.wrapping_add(1);
    }

    /// Adds a numbering of a part of another one. Says whether it is new.
    pub(super) fn add_part(&mut self, numbering: Numbering, part: Part) -> bool {
        let new = self.indexes.add_part(numbering, part);
        if new {
            self.changed();
        }
        new
    }

    /// The numberings of told orders, and of those that loaders read.
    pub(super) fn used(&self) -> impl Iterator<Item = usize> {
        let of_told = self.told_orders.iter().filter_map(ToldOrder::index);
        let others = self.others.iter().flat_map(|other| [other.first.0, other.now.index]);
        of_told.chain(others.flatten())
    }

    pub(super) fn add_told_order(&mut self, order: ToldOrder) {
        self.told_orders.push(order);
        if self.told_orders.len() > TOLD_MAX {
            self.told_orders.remove(0);
        }
        self.changed();
    }

    /// A loader's order has become known.
    pub(super) fn note_order(
        &mut self,
        loader: LoaderId,
        now: EpochOrder,
        sequence: Arc<Sequence>,
    ) {
        let known = self.others.extract_if(.., |known| known.loader == loader).next();
        let first = known.map_or_else(|| (now.index, now.origin.clone()), |known| known.first);
        self.others.push(Other { loader, first, now, sequence });
        if self.others.len() > OTHERS_MAX {
            self.others.remove(0);
        }
        self.changed();
    }

    /// Whether a search may begin for a process.
    pub(super) fn may_search_for(&self, group: u64) -> bool {
        !self.searches.cached && !self.searches.spent.contains(&group)
    }

    pub(super) fn begin_search(
        &mut self,
        reading: &Reading,
        search: Search,
        purpose: Purpose,
    ) -> SearchId {
        let (loader, group) = (reading.loader, reading.group);
        let id = SearchId(self.searches.next);
        self.searches.next += 1;
        self.searches.running.insert(id, Running { loader, purpose });
        let search = Arc::new(search);
        self.decisions.push(Decision::SearchWanted { id, loader, group, search });
        id
    }

    pub(super) fn end_search(&mut self, id: SearchId) {
        self.searches.running.remove(&id);
        self.decisions.push(Decision::SearchOver { id });
    }

    /// Ends all searches for a loader.
    pub(super) fn end_searches(&mut self, loader: LoaderId) {
        let running = self.searches.running.iter();
        let of_it = running.filter(|(_, running)| running.loader == loader);
        let of_it: Vec<SearchId> = of_it.map(|(id, _)| *id).collect();
        of_it.into_iter().for_each(|id| self.end_search(id));
    }

    /// The epoch of an origin over an index.
    pub(super) fn sequence_of(&self, index: usize, origin: &Origin) -> Option<Arc<Sequence>> {
        let index = self.indexes.get(index)?;
        if *origin == Origin::Sequential {
            return Some(Arc::clone(&index.sequence));
        }
        Some(Arc::new(Sequence::new(index.epoch(origin, &self.generators)?)))
    }

    /// Whether samples are about all of some numbering: an epoch of these is at its end.
    pub(super) fn has_whole(&self, read: &Read) -> bool {
        let Read::Seen(samples) = read else { return true };
        let is_whole = |index: &Index| {
            let (read, all) = (samples.len(), index.sequence.len() as usize);
            read <= all && all - read <= all / UNSEEN_PART && index.has_all(samples.iter())
        };
        self.indexes.values().any(is_whole)
    }
}
