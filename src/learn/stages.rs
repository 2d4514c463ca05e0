//! The stages of searching for an order that no hypothesis explains.
//!
//! They are in the order of [`Stage`], from what costs little or is likely on. All seeds come late.

use std::collections::BTreeSet;

use super::attempt::{Attempt, Reader};
use super::candidate::Sought;
use super::crack::Target;
use super::event::SearchId;
use super::indexes::Index;
use super::origin::{EpochOrder, Law, Origin};
use super::past::Past;
use super::reading::Reading;
use super::search::{Search, View};
use super::shared::{Purpose, Running, Searches, Shared};

/// How many readers are looked at, the newest.
const READERS: usize = 8;

/// How many of a reader's first opens are compared.
const ELEMENTS: usize = 4;

/// Ranks that a popular seed is tried for; fewer of them if the loader may have its own generator.
const RANKS: u32 = 64;
const RANKS_OWN: u32 = 4;

/// The most targets of a search of all seeds: so many cost next to nothing.
const TARGETS_MAX: usize = 64;

/// The most places of a reader in a search of all seeds.
const PLACES_MAX: usize = 4;

/// How many searches of all seeds may find nothing, and for how many attempts all searches may.
const FAILED_MAX: u32 = 2;
const ATTEMPTS_MAX: u32 = 8;

/// The smallest seeds are below.
const SMALLEST: u64 = 1 << 12;

/// For how many epochs [`Stage::Drawn`] and [`Stage::Library`] come, [`Stage::Later`], and [`Stage::Told`].
const LIBRARIES_MAX: u32 = 4;

const LATER_MAX: u32 = 2;
const TOLD_MAX: u32 = 4;

/// Samples drawn by a search for an epoch's middle.
const DRAWN_MAX: u64 = 1 << 28;

/// By target or view of a search, the index and the number of outputs that are skipped.
type Keys = Vec<(usize, u64)>;

/// What is searched for the order of an epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Stage {
    #[default]
    Start,
    /// Samplers that may have been meant by told orders.
    Told,
    /// The smallest seeds, at the epoch's beginning.
    Smallest,
    /// The first seeds that torch's default generator draws, at the epoch's beginning.
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
    Done,
}

/// How far the search for a loader's orders has come.
#[derive(Debug, Default)]
pub(super) struct Stages {
    /// The number of the attempt to understand an epoch.
    pub(super) attempt: u32,
    stage: Stage,
    /// The search under way for the epoch.
    pub(super) running: Option<SearchId>,
    /// How many searches of all seeds found nothing since an order was found.
    failed: u32,
    /// Whether some search for an epoch's order has found nothing.
    found_nothing: bool,
    /// Whether the default generator was searched for.
    asked_default: bool,
    /// How often [`Stage::Told`] and [`Stage::Library`] were searched.
    told_searches: u32,
    libraries_searched: u32,
}

impl Stages {
    pub(super) fn begin_attempt(&mut self) {
        self.attempt += 1;
        self.stage = Stage::Start;
    }

    /// There is something new to search through: earlier searches do not count.
    pub(super) fn start_over(&mut self, shared: &mut Shared) {
        self.end(shared);
        (self.stage, self.failed) = (Stage::Start, 0);
        (self.told_searches, self.libraries_searched) = (0, 0);
    }

    /// The order is found.
    pub(super) fn finish(&mut self, shared: &mut Shared) {
        self.failed = 0;
        self.end(shared);
    }

    fn end(&mut self, shared: &mut Shared) {
        if let Some(id) = self.running.take() {
            shared.end_search(id);
        }
    }

    /// Ends the search for an attempt that is over. A search of all seeds, which takes longer than many epochs,
    /// goes on until an epoch is understood: the first that is may show all that follow.
    pub(super) fn end_old(&mut self, is_understood: bool, shared: &mut Shared) {
        let Some(running) = self.running.and_then(|id| shared.searches.running.get(&id)) else {
            return;
        };
        let Purpose::Epoch(sought) = &running.purpose else { return };
        let may_go_on = sought.stage == Stage::All && !is_understood;
        if sought.attempt != self.attempt && !may_go_on {
            self.end(shared);
        }
    }

    /// A search has ended without having found the order.
    pub(super) fn note_failure(&mut self, running: &Running) {
        if let Purpose::Epoch(sought) = &running.purpose {
            self.running = None;
            self.found_nothing = true;
            self.failed += u32::from(sought.stage == Stage::All);
        }
    }

    /// Asks for the next search, unless one is under way.
    pub(super) fn search(&mut self, reading: &Reading, past: &Past, shared: &mut Shared) {
        if self.running.is_some() || !shared.may_search_for(reading.group) {
            return;
        }
        while self.stage != Stage::Done {
            self.advance(reading, past, shared);
            let Some((search, keys)) = self.next_search(reading, past, shared) else {
                continue;
            };
            let orders = search.orders_a_unit() * keys.len() as u64;
            let sought = Sought {
                stage: self.stage,
                attempt: self.attempt,
                epoch: reading.epoch,
                keys,
                tried: (search.units() as f64 * orders as f64).log2(),
                readers: reading.attempt.samples().map(<[u32]>::to_vec).collect(),
                read: reading.attempt.log().len() as u32,
            };
            self.running = Some(shared.begin_search(reading, search, Purpose::Epoch(sought)));
            return;
        }
    }

    fn advance(&mut self, reading: &Reading, past: &Past, shared: &Shared) {
        self.stage = match self.stage {
            _ if self.attempt > ATTEMPTS_MAX && past.understood.is_none() => Stage::Done,
            Stage::Start => Stage::Told,
            Stage::Told => Stage::Smallest,
            Stage::Smallest => Stage::Drawn,
            Stage::Drawn => Stage::Library,
            Stage::Library => Stage::Popular,
            Stage::Popular => Stage::Anywhere,
            Stage::Anywhere if self.may_search_all(reading, past, shared) => Stage::All,
            Stage::Anywhere | Stage::All => Stage::Later,
            Stage::Later | Stage::Done => Stage::Done,
        };
    }

    /// Whether all seeds are worth a search: no epoch is understood yet, or the rest of this one takes longer.
    fn may_search_all(&self, reading: &Reading, past: &Past, shared: &Shared) -> bool {
        let settings = &shared.settings;
        if !settings.crack || self.failed >= FAILED_MAX {
            return false;
        }
        let log = reading.attempt.log();
        // The smallest is the likeliest to be what is read.
        let with_most = shared.indexes.values().filter(|index| index.has_most(log));
        let samples = with_most.map(|index| index.sequence.len()).min().unwrap_or(0);
        let left = samples.saturating_sub(log.len() as u32);
        let expected = (1 << 31) * 1_000 / settings.seeds_per_second.max(1);
        past.understood.is_none() || reading.attempt.milliseconds(left) > expected
    }

    /// The search of the stage, if there is any.
    fn next_search(
        &mut self,
        reading: &Reading,
        past: &Past,
        shared: &Shared,
    ) -> Option<(Search, Keys)> {
        // An order of arrival does not show the sampler.
        let past = past.understood.as_ref();
        let is_drawn = past.is_some_and(|past| past.order.origin.is_drawn());
        let is_over = match self.stage {
            Stage::Done => true,
            Stage::Told => self.told_searches >= TOLD_MAX || shared.told_orders.is_empty(),
            Stage::Drawn | Stage::Library => is_drawn || self.libraries_searched >= LIBRARIES_MAX,
            Stage::Later => is_drawn || self.libraries_searched > LATER_MAX,
            _ => false,
        };
        match self.stage {
            _ if is_over => None,
            Stage::Told | Stage::Library | Stage::Later => self.next_for_samplers(reading, shared),
            stage => {
                let (targets, keys) = targets(stage, &reading.attempt, shared);
                (!targets.is_empty()).then(|| (search_for(stage, targets, shared), keys))
            }
        }
    }

    fn next_for_samplers(&mut self, reading: &Reading, shared: &Shared) -> Option<(Search, Keys)> {
        let (views, keys) = views(&reading.attempt, shared);
        if views.is_empty() {
            return None;
        }
        // A job that lists the files first looks at all of them, which is no epoch of a sampler.
        let epoch = reading.epoch;
        let epochs = BTreeSet::from([0, epoch.saturating_sub(1), epoch]);
        let search = match self.stage {
            Stage::Told => {
                self.told_searches += 1;
                Search::meant_by(&shared.told_orders, epochs, views)?
            }
            Stage::Later => Search::later(&shared.told_orders, views),
            _ => {
                self.libraries_searched += 1;
                Search::library(views, epochs.into_iter().collect())
            }
        };
        Some((search, keys))
    }

    /// Asks once for the default generator of the last seed that was understood.
    pub(super) fn ask_default(&mut self, reading: &Reading, past: &Past, shared: &mut Shared) {
        let Some(past) = &past.understood else { return };
        let EpochOrder { origin: Origin::Draw { seed, skip: 0 }, law: Law::Unknown, .. } =
            past.order
        else {
            return;
        };
        let small = u64::from(seed) < shared.settings.small_seeds;
        if self.asked_default || small || shared.searches.spent.contains(&reading.group) {
            return;
        }
        self.asked_default = true;
        let search = Search::output(seed, shared.settings.default_outputs);
        shared.begin_search(reading, search, Purpose::Default { epoch: past.epoch });
    }

    /// What is, or was, searched for the order of the epoch, in words.
    pub(super) fn describe(&self, group: u64, searches: &Searches) -> &'static str {
        let running = self.running.and_then(|id| searches.running.get(&id));
        let stage = running.map(|running| match &running.purpose {
            Purpose::Epoch(sought) => sought.stage,
            _ => Stage::Start,
        });
        match stage {
            Some(Stage::All) => "; all seeds are being searched",
            Some(Stage::Told) => "; what has the seed of the order that was told is being searched",
            Some(_) => "; popular seeds are being searched",
            None if searches.spent.contains(&group) => {
                "; nothing more is searched, order.learn-time is used up"
            }
            None if self.stage == Stage::Done && self.found_nothing => {
                "; its sampler has no known order: no seed was found that gives it"
            }
            None if self.stage == Stage::Done => "; it reads no dataset that a seed could be of",
            None => "",
        }
    }
}

/// The opens in the numbers of each index that has most of them.
fn views(attempt: &Attempt, shared: &Shared) -> (Vec<View>, Keys) {
    let with_most = shared.indexes.iter().filter(|(_, index)| index.has_most(attempt.log()));
    let view = |(at, index): (usize, &Index)| {
        let place = |sample: &u32| index.sequence.place(*sample).unwrap_or(u32::MAX);
        let readers = attempt.samples().map(|samples| samples.iter().map(place).collect());
        (View { n: index.sequence.len(), readers: readers.collect() }, (at, 0))
    };
    with_most.map(view).unzip()
}

/// What the stage looks for.
fn targets(stage: Stage, attempt: &Attempt, shared: &Shared) -> (Vec<Target>, Keys) {
    let newest: Vec<&Reader> = attempt.readers().iter().rev().take(READERS).collect();
    // The default generator draws seeds for generators that then draw nothing else.
    let skips: &[u32] = if stage == Stage::Drawn { &[0] } else { &[0, 2] };
    let indexes = likeliest_first(&newest, shared);
    let is_large = |n: u32| n >= shared.settings.crack_from;
    let mut begun: Vec<(usize, Target)> = Vec::new();
    for (skip, (at, index)) in skips.iter().flat_map(|skip| indexes.iter().map(|i| (*skip, *i))) {
        let n = index.sequence.len();
        let reach = match stage {
            Stage::Smallest | Stage::Popular => (n / 8).min(3 * RANKS),
            Stage::Anywhere => (n / 32).clamp(8, RANKS),
            _ => 8,
        };
        let elements = newest.iter().filter_map(|reader| elements(reader, index));
        let elements = elements.filter(|_| stage != Stage::All || is_large(n));
        begun.extend(elements.map(|elements| (at, Target { n, skip, place: 0, elements, reach })));
    }
    // More places than one are tried if they cost nothing, as the first opens may not have been seen.
    let most = (TARGETS_MAX / begun.len().max(1)).clamp(1, PLACES_MAX) as u32;
    let places = |n: u32, skip: u32| match (stage, skip) {
        (Stage::Smallest | Stage::Popular, 0) => RANKS.min(n / 8).max(1),
        (Stage::Smallest | Stage::Popular, _) => RANKS_OWN.min(n / 8).max(1),
        // In small datasets much fits by chance.
        (Stage::All | Stage::Drawn, _) if is_large(n) => most,
        _ => 1,
    };
    let targets = begun.iter().flat_map(|(at, target)| {
        let places = 0..places(target.n, target.skip);
        let key = (*at, u64::from(target.skip));
        places.map(move |place| (Target { place, ..target.clone() }, key))
    });
    targets.take(if stage == Stage::All { TARGETS_MAX } else { usize::MAX }).unzip()
}

/// There may be too many targets, so indexes that have all opened samples come first, and of these the sides
/// of split lists.
fn likeliest_first<'s>(readers: &[&Reader], shared: &'s Shared) -> Vec<(usize, &'s Index)> {
    let is_split = |index: &Index| index.part.as_ref().is_some_and(|part| part.list.is_some());
    let lacked = |index: &Index| {
        let samples = readers.iter().flat_map(|reader| &reader.samples);
        samples.filter(|sample| index.sequence.place(**sample).is_none()).count()
    };
    let mut indexes: Vec<(usize, &Index)> = shared.indexes.iter().collect();
    indexes.sort_by_cached_key(|(_, index)| (lacked(index), !is_split(index)));
    indexes
}

fn search_for(stage: Stage, targets: Vec<Target>, shared: &Shared) -> Search {
    let least = targets.iter().map(|target| u64::from(target.n)).min().unwrap_or(1);
    let count = targets.len() as u64;
    match stage {
        Stage::All => Search::beginning(targets, 1 << 32),
        Stage::Smallest => Search::beginning(targets, SMALLEST),
        Stage::Drawn => Search::drawn(targets, &shared.told_orders),
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

/// A reader's first opens as positions of an index, if that has most of them.
fn elements(reader: &Reader, index: &Index) -> Option<Vec<u32>> {
    let first = reader.samples.iter().take(ELEMENTS);
    let elements: Vec<u32> = first.filter_map(|sample| index.sequence.place(*sample)).collect();
    (index.has_most(&reader.samples) && elements.len() >= 3).then_some(elements)
}
