//! What is searched for an order that nothing known explains.
//!
//! What somebody may have meant who told an order comes first. The smallest seeds follow, then those
//! that torch's default generator draws first, and then the samplers of other libraries. After more
//! small seeds come small ones of an epoch that did not begin where it was first seen, then all seeds.
//! The last are popular ones of generators that had drawn epochs before the first that was seen.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::attempt::Reader;
use super::crack::Target;
use super::event::{Decision, SearchId};
use super::indexes::Index;
use super::loader::Loader;
use super::origin::{Law, Origin};
use super::search::{Search, View};
use super::shared::Shared;

/// Readers that are looked at: the newest.
const READERS: usize = 8;

/// The first elements that are compared.
const ELEMENTS: usize = 4;

/// Ranks that a popular seed is tried for, in a loader's own generator too, where there is one.
const RANKS: u32 = 64;
const RANKS_OWN: u32 = 4;

/// The most targets of a search of all seeds: what costs next to nothing.
const TARGETS_MAX: usize = 64;

const PLACES_MAX: usize = 4;

/// Searches of all seeds that may find nothing, and epochs that may go by without any search
/// having found something.
const FAILED_MAX: u32 = 2;
const SERIALS_MAX: u32 = 8;

/// The smallest seeds are below.
const SMALLEST: u64 = 1 << 12;

/// For how many epochs of a loader the first seeds of default generators and samplers of other
/// libraries are tried.
const LIBRARIES_MAX: u32 = 4;

/// For how many of them epochs are tried that come later in their streams; and for how many what
/// somebody may have meant who told an order.
const LATER_MAX: u32 = 2;
const TOLD_MAX: u32 = 4;

/// Samples drawn by a search for an epoch's middle.
const DRAWN_MAX: u64 = 1 << 28;

/// What has been searched for the epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Stage {
    #[default]
    Start,
    /// What somebody may have meant who told an order.
    Told,
    /// The smallest seeds, at the epoch's beginning.
    Smallest,
    /// The first that torch's default generator draws, at the epoch's beginning.
    Drawn,
    /// Samplers of other libraries than torch.
    Library,
    /// Small seeds, at the epoch's beginning.
    Popular,
    /// Popular seeds, anywhere in the epoch.
    Anywhere,
    All,
    /// Popular seeds of generators that have drawn epochs before.
    Later,
    /// There is nothing more to be searched.
    Done,
}

/// What has been searched for a loader.
#[derive(Debug, Default)]
pub(super) struct Seeking {
    /// The number of the attempt to understand an epoch.
    pub(super) serial: u32,
    pub(super) stage: Stage,
    /// The search under way for the epoch.
    pub(super) running: Option<SearchId>,
    /// Searches of all seeds that found nothing.
    pub(super) failed: u32,
    /// Whether some search for an epoch's order has found nothing.
    pub(super) sought: bool,
    /// Whether the default generator was searched for.
    asked_default: bool,
    /// Searches for what somebody may have meant who told an order.
    told: u32,
    /// Searches for samplers of other libraries.
    libraries: u32,
}

impl Seeking {
    /// Another epoch begins, or the same one anew: all stages are to come.
    pub(super) fn begin_attempt(&mut self) {
        self.serial += 1;
        self.stage = Stage::Start;
    }

    /// There is something new to be searched: what was tried counts no more.
    fn start_over(&mut self) {
        (self.stage, self.told, self.libraries, self.failed) = (Stage::Start, 0, 0, 0);
    }

    /// Goes on to the next stage.
    fn next_stage(&mut self, is_understood: bool, may_crack: bool) {
        self.stage = match self.stage {
            _ if self.serial > SERIALS_MAX && !is_understood => Stage::Done,
            Stage::Start => Stage::Told,
            Stage::Told => Stage::Smallest,
            Stage::Smallest => Stage::Drawn,
            Stage::Drawn => Stage::Library,
            Stage::Library => Stage::Popular,
            Stage::Popular => Stage::Anywhere,
            Stage::Anywhere if may_crack => Stage::All,
            Stage::Anywhere | Stage::All => Stage::Later,
            Stage::Later | Stage::Done => Stage::Done,
        };
    }
}

/// A search under way.
#[derive(Debug)]
pub(super) struct Running {
    pub(super) loader: super::event::LoaderId,
    /// The attempt and the epoch that it is for.
    pub(super) serial: u32,
    pub(super) epoch: u32,
    pub(super) purpose: Purpose,
}

#[derive(Debug)]
pub(super) enum Purpose {
    /// The seed of an epoch.
    Epoch {
        stage: Stage,
        /// By target: the index and the outputs skipped.
        keys: Vec<(usize, u64)>,
        /// The logarithm of how many orders are tried.
        hypotheses: f64,
        /// What had been opened, and how many samples in all.
        readers: Vec<Vec<u32>>,
        read: u32,
    },
    /// The default generator that an epoch's seed comes from.
    Default,
    /// How a list was split of which the loader has read a part: one of these numberings.
    Split { wholes: Vec<usize> },
}

impl Loader {
    /// Asks for the next search, if one is due.
    pub(super) fn seek(&mut self, shared: &mut Shared, out: &mut Vec<Decision>) {
        self.leave_old_search(shared, out);
        let quiet = self.follow.is_some() || self.seeking.running.is_some() || shared.cached;
        if quiet || shared.spent.contains(&self.group) || !self.reads() || !self.attempt.is_ripe() {
            return;
        }
        while self.seeking.stage != Stage::Done {
            let may_crack = self.seeking.stage == Stage::Anywhere && self.may_crack(shared);
            self.seeking.next_stage(self.past.is_some(), may_crack);
            let Some((search, keys)) = self.next_search(shared) else { continue };
            let orders = search.orders_a_unit() * keys.len() as u64;
            let hypotheses = (search.units() as f64 * orders as f64).log2();
            let purpose = Purpose::Epoch {
                stage: self.seeking.stage,
                keys,
                hypotheses,
                readers: self.attempt.samples().map(<[u32]>::to_vec).collect(),
                read: self.attempt.log().len() as u32,
            };
            self.seeking.running = Some(self.want((search, purpose), self.epoch(), shared, out));
            return;
        }
    }

    /// There is something new about a numbering: what it may have is searched through from the
    /// beginning.
    pub(super) fn seek_anew(&mut self, index: usize, shared: &mut Shared, out: &mut Vec<Decision>) {
        let Some(new) = shared.indexes.get(index) else { return };
        let log = self.attempt.log();
        let known = log.iter().filter(|sample| new.sequence.place(**sample).is_some()).count();
        if self.follow.is_some() || self.ended || 4 * known < 3 * log.len() {
            return;
        }
        self.search_again(shared, out);
    }

    /// Searches from the beginning.
    pub(super) fn search_again(&mut self, shared: &mut Shared, out: &mut Vec<Decision>) {
        if let Some(id) = self.seeking.running.take() {
            shared.searches.remove(&id);
            out.push(Decision::SearchOver { id });
        }
        self.seeking.start_over();
        self.seek(shared, out);
    }

    /// The search of the stage, and by target the index and the outputs skipped.
    fn next_search(&mut self, shared: &Shared) -> Option<(Search, Vec<(usize, u64)>)> {
        match self.seeking.stage {
            Stage::Done => None,
            Stage::Drawn | Stage::Library
                if self.seeking.libraries >= LIBRARIES_MAX || self.is_understood() =>
            {
                None
            }
            Stage::Told if self.seeking.told >= TOLD_MAX || shared.told.is_empty() => None,
            Stage::Later if self.seeking.libraries > LATER_MAX || self.is_understood() => None,
            Stage::Told | Stage::Library | Stage::Later => {
                let (views, keys) = self.views(shared);
                if views.is_empty() {
                    return None;
                }
                // Who lists the files first looks at all of them, which is no epoch of a sampler.
                let epochs = BTreeSet::from([0, self.epoch().saturating_sub(1), self.epoch()]);
                let search = match self.seeking.stage {
                    Stage::Told => {
                        self.seeking.told += 1;
                        Search::told(&shared.told, epochs, views)?
                    }
                    Stage::Later => Search::later(&shared.told, views),
                    _ => {
                        self.seeking.libraries += 1;
                        Search::library(views, epochs.into_iter().collect())
                    }
                };
                Some((search, keys))
            }
            _ => {
                let (targets, keys) = self.targets(self.places(shared), shared);
                (!targets.is_empty()).then(|| (self.search(targets, shared), keys))
            }
        }
    }

    /// Whether it is known which sampler the loader has. One epoch as it was read before says nothing
    /// about that.
    fn is_understood(&self) -> bool {
        self.past.as_ref().is_some_and(|past| past.origin.is_drawn())
    }

    /// What was opened, in the numbers of each index that has most of it.
    fn views(&self, shared: &Shared) -> (Vec<View>, Vec<(usize, u64)>) {
        let (mut views, mut keys) = (Vec::new(), Vec::new());
        for (at, index) in shared.indexes.iter() {
            let place = |sample: &u32| index.sequence.place(*sample);
            let log = self.attempt.log();
            if 4 * log.iter().filter_map(place).count() < 3 * log.len() {
                continue;
            }
            let positions = |samples: &[u32]| {
                samples.iter().map(|sample| place(sample).unwrap_or(u32::MAX)).collect()
            };
            let readers = self.attempt.samples().map(positions).collect();
            views.push(View { n: index.sequence.len(), readers });
            keys.push((at, 0));
        }
        (views, keys)
    }

    /// Ends the search for an epoch that is over. That of all seeds takes longer than many epochs,
    /// and goes on if none has been understood yet: the first one may tell of all that follow.
    fn leave_old_search(&mut self, shared: &mut Shared, out: &mut Vec<Decision>) {
        let known = self.past.is_some();
        let old = |id: &mut SearchId| {
            let Some(running) = shared.searches.get(id) else { return false };
            let all = matches!(running.purpose, Purpose::Epoch { stage: Stage::All, .. });
            running.serial != self.seeking.serial && (known || !all)
        };
        if let Some(id) = self.seeking.running.take_if(old) {
            shared.searches.remove(&id);
            out.push(Decision::SearchOver { id });
        }
    }

    /// Asks for the default generator of the last seed that was understood, once.
    pub(super) fn ask_default(&mut self, shared: &mut Shared, out: &mut Vec<Decision>) {
        let Some(past) = self.past.as_ref().filter(|past| past.law == Law::Unknown) else { return };
        let Origin::Draw { seed, skip: 0 } = past.origin else { return };
        let past_epoch = past.epoch;
        let small = u64::from(seed) < shared.settings.small_seeds;
        if self.seeking.asked_default || small || shared.spent.contains(&self.group) {
            return;
        }
        self.seeking.asked_default = true;
        let search = Search::output(seed, shared.settings.default_outputs);
        self.want((search, Purpose::Default), past_epoch, shared, out);
    }

    pub(super) fn want(
        &self,
        (search, purpose): (Search, Purpose),
        epoch: u32,
        shared: &mut Shared,
        out: &mut Vec<Decision>,
    ) -> SearchId {
        let id = SearchId(shared.next_search);
        shared.next_search += 1;
        let (loader, serial, group) = (self.id, self.seeking.serial, self.group);
        shared.searches.insert(id, Running { loader, serial, epoch, purpose });
        out.push(Decision::SearchWanted { id, loader, group, search: Arc::new(search) });
        id
    }

    /// A search has ended without having found the order.
    pub(super) fn exhausted(&mut self, running: &Running) {
        if let Purpose::Epoch { stage, .. } = running.purpose {
            self.seeking.running = None;
            self.seeking.sought = true;
            self.seeking.failed += u32::from(stage == Stage::All);
        }
    }

    /// Whether all seeds are worth a search: what is left of the epoch takes longer, or the first
    /// one understood may tell of all that follow.
    fn may_crack(&self, shared: &Shared) -> bool {
        let settings = &shared.settings;
        if !settings.crack || self.seeking.failed >= FAILED_MAX {
            return false;
        }
        let log = self.attempt.log();
        let has_most = |index: &&Index| {
            let known = log.iter().filter(|sample| index.sequence.place(**sample).is_some());
            4 * known.count() >= 3 * log.len()
        };
        // The smallest is the likeliest to be what is read.
        let samples = shared.indexes.values().filter(has_most).map(|index| index.sequence.len());
        let left = samples.min().unwrap_or(0).saturating_sub(log.len() as u32);
        let expected = (1 << 31) * 1_000 / settings.seeds_per_second.max(1);
        self.past.is_none() || self.attempt.milliseconds(left) > expected
    }

    /// At how many places a reader is tried in a search of all seeds: one as a rule, some more
    /// where they cost nothing, as its first opens may not have been seen.
    fn places(&self, shared: &Shared) -> u32 {
        let readers = self.targets(1, shared).0.len().max(1);
        (TARGETS_MAX / readers).clamp(1, PLACES_MAX) as u32
    }

    /// What the stage looks for, and by target the index and the outputs skipped.
    fn targets(&self, most: u32, shared: &Shared) -> (Vec<Target>, Vec<(usize, u64)>) {
        let (mut targets, mut keys) = (Vec::new(), Vec::new());
        let newest: Vec<&Reader> = self.attempt.readers().iter().rev().take(READERS).collect();
        // The default generator draws seeds for generators that then draw nothing else.
        let skips: &[u32] = if self.seeking.stage == Stage::Drawn { &[0] } else { &[0, 2] };
        // There may be too many targets: what has all that is read comes first, and of that what a list
        // that was split shows to be read.
        let is_split = |index: &Index| index.part.as_ref().is_some_and(|part| part.list.is_some());
        let lacked = |index: &Index| {
            let samples = newest.iter().flat_map(|reader| &reader.samples);
            samples.filter(|sample| index.sequence.place(**sample).is_none()).count()
        };
        let mut indexes: Vec<(usize, &Index)> = shared.indexes.iter().collect();
        indexes.sort_by_cached_key(|(_, index)| (lacked(index), !is_split(index)));
        for &skip in skips {
            for &(at, index) in &indexes {
                let n = index.sequence.len();
                let places = match (self.seeking.stage, skip) {
                    (Stage::Smallest | Stage::Popular, 0) => RANKS.min(n / 8).max(1),
                    (Stage::Smallest | Stage::Popular, _) => RANKS_OWN.min(n / 8).max(1),
                    (Stage::All, _) if n < shared.settings.crack_from => 0,
                    // In small datasets much fits by chance.
                    (Stage::Drawn, _) if n < shared.settings.crack_from => 1,
                    (Stage::All | Stage::Drawn, _) => most,
                    _ => 1,
                };
                for reader in &newest {
                    let Some(elements) = elements(reader, |sample| index.sequence.place(sample))
                    else {
                        continue;
                    };
                    let reach = match self.seeking.stage {
                        Stage::Smallest | Stage::Popular => (n / 8).min(3 * RANKS),
                        Stage::Anywhere => (n / 32).clamp(8, RANKS),
                        _ => 8,
                    };
                    targets.extend((0..places).map(|place| Target {
                        n,
                        skip,
                        place,
                        elements: elements.clone(),
                        reach,
                    }));
                    keys.extend((0..places).map(|_| (at, u64::from(skip))));
                }
            }
        }
        if self.seeking.stage == Stage::All {
            targets.truncate(TARGETS_MAX);
            keys.truncate(TARGETS_MAX);
        }
        (targets, keys)
    }

    fn search(&self, targets: Vec<Target>, shared: &Shared) -> Search {
        let least = targets.iter().map(|target| u64::from(target.n)).min().unwrap_or(1);
        let count = targets.len() as u64;
        match self.seeking.stage {
            Stage::All => Search::beginning(targets, 1 << 32),
            Stage::Smallest => Search::beginning(targets, SMALLEST),
            Stage::Drawn => Search::drawn(targets, &shared.told),
            Stage::Anywhere => {
                let drawn: u64 = targets.iter().map(|target| u64::from(target.n)).sum();
                Search::anywhere(targets, (DRAWN_MAX / drawn.max(1)).clamp(64, 1 << 12))
            }
            // In small datasets much fits by chance and has to be looked at more closely.
            _ => {
                let seeds = (1 << 16) * least / count.max(1);
                Search::beginning(targets, seeds.clamp(1 << 10, shared.settings.small_seeds))
            }
        }
    }
}

/// A reader's first opens as positions of an index that has most of them.
fn elements(reader: &Reader, place: impl Fn(u32) -> Option<u32>) -> Option<Vec<u32>> {
    let known = reader.samples.iter().filter(|sample| place(**sample).is_some()).count();
    let first = reader.samples.iter().take(ELEMENTS);
    let elements: Vec<u32> = first.filter_map(|&sample| place(sample)).collect();
    (4 * known >= 3 * reader.samples.len() && elements.len() >= 3).then_some(elements)
}
