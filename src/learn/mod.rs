//! In which order a loader reads that nobody has told about.
//!
//! Training jobs shuffle with generators of which there are few: `torch` permutes with one of
//! 2^32 seeds. So a handful of opens says which permutation it is, if it is one of these, and all
//! opens to come are known. In the order in which it happens:
//!
//! 1. Opens come in as [`Observation`]s. Those of one process are a *group*, and of these, those
//!    that go through one dataset are a *loader*. What each of its *readers* opens is kept apart
//!    (`attempt`): a loader's worker goes forward through its batches, whatever the others do. So do
//!    threads that are made for each batch, taken one after the other (`readers`).
//! 2. What is opened is compared with orders that cost nothing (`suspect`): what somebody told
//!    (`told`), one sample after the other, the epoch before, what follows from its seed, what other
//!    loaders read.
//! 3. If none of them explains it, searches are asked for (`ladder`, `search`, [`crack`]): what has
//!    the seed that was told, popular seeds of torch and of other libraries (`libraries`), then all
//!    of torch. The shell runs them; what they find comes back as observations. A whole epoch shows
//!    which samples the loader has, where these are a part of the dataset (`parts`).
//! 4. An order is believed when the opens are likelier in it than in none by more bits than it
//!    takes to tell all orders tried apart, and 20 more (`evidence`).
//! 5. From then on the loader is followed in it (`follow`), told about by
//!    [`Decision::Committed`], and as soon as two epochs show how one follows from the other
//!    (`origin`), with its next epoch. An order that is not read any more is withdrawn. What is
//!    believed can be told to another job (`sampler`).
//!
//! Everything here is values: no file, clock, thread or lock. One [`Learner::apply`] takes a
//! microsecond as a rule and some 50 milliseconds a million samples where an epoch begins, so it
//! is best called from a thread of its own.

mod attempt;
pub mod crack;
mod event;
mod evidence;
mod follow;
mod history;
mod indexes;
mod journal;
mod ladder;
mod leads;
mod libraries;
mod loader;
mod origin;
mod parts;
mod past;
mod readers;
mod sampler;
mod search;
mod sequence;
mod share;
mod shared;
mod suspect;
mod telling;
#[cfg(test)]
mod tests;
mod told;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

pub use event::{Belief, Decision, Known, LoaderId, Observation, Rung, SearchId, Settings, Why};
pub use history::{Epoch, Record, Samples, samples};
pub use journal::{BYTES_MAX as JOURNAL_BYTES_MAX, Journal};
pub use search::{Finding, Search};

use crate::order::samplers::Sampler;
use crate::order::{Order, OrderSpec, SampleTable};
use indexes::Index;
use loader::Loader;
use readers::Readers;
use shared::{Open, Shared};
use told::Told;

/// How many of a task's latest opens are remembered: a second one is of the same read.
const RECENT: usize = 4;

/// How many opens show which part of a dataset a loader reads.
const SEEN: usize = 64;

/// How many tasks and loaders are told apart; those seen last stay. Of loaders whose process
/// has ended fewer do: what is remembered of each may be large.
const TASKS_MAX: usize = 4096;
const LOADERS_MAX: usize = 64;
const ENDED_MAX: usize = 8;

/// A way to number the samples of a dataset, as one that a loader may use: see
/// [`crate::order::index`].
#[derive(Clone, Debug)]
pub struct Candidate {
    /// What it is called in `status`: `imagefolder below train`.
    pub name: String,
    /// By position, the sample.
    pub samples: Arc<[u32]>,
    /// How it is told, as the order that goes through it one after the other; none where that cannot
    /// be.
    pub spec: Option<OrderSpec>,
}

/// Finds out the orders of all loaders of one source.
#[derive(Debug)]
pub struct Learner {
    shared: Shared,
    loaders: BTreeMap<LoaderId, Loader>,
    groups: BTreeMap<u64, Vec<LoaderId>>,
    tasks: BTreeMap<u32, Task>,
    readers: Readers,
    next_loader: u32,
    opens: u64,
    /// See [`take_border`](Self::take_border).
    border: bool,
}

#[derive(Debug)]
struct Task {
    process: u64,
    group: u64,
    /// The reader that it is or goes on for.
    reader: u32,
    /// The number of its latest open, counted over all.
    seen: u64,
    /// Its latest opens, and whether they are known to have read.
    recent: [Option<(u32, bool)>; RECENT],
}

impl Learner {
    /// A learner for loaders that number their samples in one of these ways. It pays to give all
    /// that are plausible: each index order, of the whole source and of each part of it that may be
    /// a dataset. Those that are the same are taken once. `samples` says what the numbers stand for.
    pub fn new(settings: Settings, candidates: Vec<Candidate>, samples: SampleTable) -> Self {
        let shared = Shared::new(settings, candidates, samples);
        Learner {
            shared,
            loaders: BTreeMap::new(),
            groups: BTreeMap::new(),
            tasks: BTreeMap::new(),
            readers: Readers::default(),
            next_loader: 0,
            opens: 0,
            border: false,
        }
    }

    /// Takes one observation and appends what follows from it to `out`.
    pub fn apply(&mut self, observation: Observation, out: &mut Vec<Decision>) {
        let next = self.shared.indexes.next_number();
        match observation {
            Observation::Opened { at_ms, task, process, group, sample, exact } => {
                if let Some(reader) = self.reads(task, (process, group), sample, exact) {
                    self.opened(group, Open { at_ms, reader, sample, exact }, out);
                }
            }
            Observation::Left { task } => self.left(task),
            Observation::Exited { process } => self.exited(process),
            Observation::Ended { group } => self.end(group, out),
            Observation::Found { search, findings } => self.found(search, &findings, out),
            Observation::Searched { search } => {
                if let Some(running) = self.shared.searches.remove(&search)
                    && let Some(loader) = self.loaders.get_mut(&running.loader)
                {
                    loader.exhausted(&running);
                    loader.seek(&mut self.shared, out);
                }
            }
            Observation::Spent { group } => self.spend(group, out),
            Observation::Speed { seeds_per_second } => {
                self.shared.settings.seeds_per_second = seeds_per_second.max(1);
            }
            Observation::Cached { all } => self.shared.cached = all,
        }
        if self.shared.indexes.next_number() > next {
            self.forget_numberings();
        }
    }

    /// What is believed of each loader at this moment, but for those whose process has ended.
    pub fn beliefs(&self) -> impl Iterator<Item = Belief> + '_ {
        let reading = self.loaders.values().filter(|loader| !loader.ended);
        reading.map(|loader| loader.belief(&self.shared))
    }

    /// The order of a loader, from where its reader is now; none while it is not followed. Costs
    /// two epochs of the dataset.
    pub fn known(&self, loader: LoaderId) -> Option<Known> {
        self.loaders.get(&loader).filter(|loader| !loader.ended)?.known(&self.shared)
    }

    /// What a loader opened last.
    pub fn latest(&self, loader: LoaderId) -> Option<u32> {
        self.loaders.get(&loader)?.latest
    }

    /// The smallest part of the dataset that has all samples of a loader, as an order would be told it.
    /// The samples are those of this epoch and the last. None if they are too few to say so.
    pub fn within(&self, loader: LoaderId) -> Option<&OrderSpec> {
        let loader = self.loaders.get(&loader)?;
        let (last, log) = (loader.history.last_seen(), loader.attempt.log());
        let step = (last.len() + log.len()) / SEEN;
        let has_all = |index: &&Index| {
            let mut some = last.iter().chain(log).step_by(step.max(1));
            some.all(|sample| index.sequence.place(*sample).is_some())
        };
        let indexes = self.shared.indexes.values().filter(|_| step > 0).filter(has_all);
        indexes.min_by_key(|index| index.sequence.len())?.spec.as_deref()
    }

    /// Whether a loader is still remembered.
    pub fn has(&self, loader: LoaderId) -> bool {
        self.loaders.contains_key(&loader)
    }

    /// What is remembered of each loader that reads.
    pub fn records(&self) -> impl Iterator<Item = Record> + '_ {
        self.loaders.values().filter_map(|loader| loader.record(&self.shared))
    }

    /// The numberings in whose orders loaders are followed: these go on with them where the dataset
    /// has other files by now.
    pub fn in_use(&self) -> Vec<Candidate> {
        let followed = self.loaders.values().filter_map(|loader| loader.follow.as_ref()?.index);
        let indexes: BTreeSet<usize> = followed.collect();
        let candidate = |index: usize| {
            let Index { name, sequence, spec, .. } = self.shared.indexes[index].clone();
            let (samples, spec) = (Arc::clone(sequence.samples()), spec.as_deref().cloned());
            Candidate { name, samples, spec }
        };
        indexes.into_iter().map(candidate).collect()
    }

    /// From here on loaders may read as these did.
    pub fn recall(&mut self, journal: Journal) {
        self.shared.journal = journal;
        self.shared.changed();
    }

    /// A loader may number its samples in this way, too. For those that read what is in it, and are
    /// not followed, seeds are searched from the beginning.
    pub fn consider(&mut self, candidate: Candidate, out: &mut Vec<Decision>) {
        let next = self.shared.indexes.next_number();
        if let Some(index) = self.shared.indexes.add(candidate).filter(|index| *index >= next) {
            self.shared.changed();
            self.seek_anew(index, out);
        }
    }

    /// Somebody has told an order of these samples: loaders may be reading it, or one that is much
    /// like it. `spec` is what was told, where that is known.
    pub fn tell(&mut self, order: &Order, spec: Option<&OrderSpec>, out: &mut Vec<Decision>) {
        let told = match order.drawn_by() {
            // A sample that is drawn again has several places in an epoch, and here each has one. The
            // planner follows such an order by itself.
            Some((sampler, _)) if sampler.weights().is_some() || sampler.draws_anew() => None,
            Some((sampler, samples)) => {
                let spec = spec.map(|spec| spec.with_sampler(Sampler::SEQUENTIAL));
                let (name, samples) = ("the told".to_owned(), Arc::clone(samples));
                let index = self.shared.indexes.add_told(Candidate { name, samples, spec });
                index.map(|index| Told::Drawn { sampler: sampler.clone(), index })
            }
            None => {
                let epochs = 0..order.epochs_listed().unwrap_or(0);
                Some(told::lists(epochs.map(|epoch| order.epoch(epoch)).collect()))
            }
        };
        let Some(told) = told.filter(|told| !self.shared.told.contains(told)) else { return };
        let index = told.index();
        self.shared.tell(told);
        self.forget_numberings();
        index.into_iter().for_each(|index| self.seek_anew(index, out));
    }

    fn seek_anew(&mut self, index: usize, out: &mut Vec<Decision>) {
        for loader in self.loaders.values_mut() {
            loader.seek_anew(index, &mut self.shared, out);
        }
    }

    /// Forgets numberings in which nobody reads, but for the latest.
    fn forget_numberings(&mut self) {
        let loaders = self.loaders.values().flat_map(Loader::indexes);
        let used: BTreeSet<usize> = loaders.chain(self.shared.used()).collect();
        if self.shared.indexes.forget(&used) {
            self.shared.changed();
        }
    }

    /// Whether a loader has read at the end or the beginning of an epoch since this was asked last: an order
    /// may become known, or end, with the next open.
    pub fn take_border(&mut self) -> bool {
        std::mem::take(&mut self.border)
    }

    /// A number that changes when there is more to be [remembered](Self::records) of some loader
    /// than an open.
    pub fn news(&self) -> u64 {
        self.shared.news
    }

    /// A task of a process opens a sample. Gives the reader that it is, unless it is another sign of the
    /// same open.
    fn reads(
        &mut self,
        number: u32,
        (process, group): (u64, u64),
        sample: u32,
        exact: bool,
    ) -> Option<u32> {
        self.opens += 1;
        let is_other = |task: &Task| (task.process, task.group) != (process, group);
        if self.tasks.get(&number).is_some_and(is_other) {
            // The kernel has given the number to another task.
            self.left(number);
        }
        let (known, seen) = (self.tasks.len(), self.opens);
        let task = self.tasks.entry(number).or_insert_with(|| {
            let reader = self.readers.begin(process, group);
            Task { process, group, reader, seen, recent: [None; RECENT] }
        });
        task.seen = seen;
        let again = task.recent.iter_mut().flatten().find(|recent| recent.0 == sample);
        if let Some((_, was_exact)) = again {
            if exact && !std::mem::replace(was_exact, true) {
                self.prove(group, sample);
            }
            return None;
        }
        task.recent.rotate_right(1);
        task.recent[0] = Some((sample, exact));
        let reader = task.reader;
        if known == TASKS_MAX && self.tasks.len() > TASKS_MAX {
            self.forget_a_task(number);
        }
        Some(reader)
    }

    fn opened(&mut self, group: u64, open: Open, out: &mut Vec<Decision>) {
        let loaders = self.loaders.len();
        let ids = self.groups.entry(group).or_default();
        for id in ids.iter() {
            let Some(loader) = self.loaders.get_mut(id) else { continue };
            if loader.follows(&open) {
                loader.narrow(&mut self.shared, out);
                self.border |= loader.is_at_border();
                return;
            }
        }
        let has =
            |id: &&LoaderId| self.loaders.get(id).is_some_and(|loader| loader.has(open.sample));
        let id = ids.iter().find(has).copied();
        let id = id.unwrap_or_else(|| {
            let id = LoaderId(self.next_loader);
            self.next_loader += 1;
            ids.push(id);
            self.loaders.insert(id, Loader::new(id, group));
            id
        });
        if self.loaders.len() > loaders {
            self.forget_loaders(id, out);
        }
        if let Some(loader) = self.loaders.get_mut(&id) {
            loader.wonder(&open, &mut self.shared, out);
            self.border |= loader.is_at_border();
        }
    }

    /// What was taken for a look has turned out to be a read.
    fn prove(&mut self, group: u64, sample: u32) {
        for id in self.groups.get(&group).into_iter().flatten() {
            if let Some(loader) = self.loaders.get_mut(id) {
                loader.attempt.prove(sample);
            }
        }
    }

    fn left(&mut self, task: u32) {
        if let Some(Task { process, reader, .. }) = self.tasks.remove(&task) {
            self.readers.pause(process, reader);
        }
    }

    fn exited(&mut self, process: u64) {
        let Some((group, readers)) = self.readers.end(process) else { return };
        self.tasks.retain(|_, task| task.process != process);
        for id in self.groups.get(&group).into_iter().flatten() {
            if let Some(loader) = self.loaders.get_mut(id) {
                readers.iter().for_each(|reader| loader.leave(*reader));
                self.shared.news += 1;
            }
        }
    }

    fn found(&mut self, search: SearchId, findings: &[Finding], out: &mut Vec<Decision>) {
        let Some(running) = self.shared.searches.remove(&search) else { return };
        let Some(loader) = self.loaders.get_mut(&running.loader) else { return };
        let ended = loader.find(&running, findings, &mut self.shared, out);
        if !ended {
            self.shared.searches.insert(search, running);
        } else if loader.seeking.running.take_if(|id| *id == search).is_some() {
            out.push(Decision::SearchOver { id: search });
        }
    }

    fn forget_a_task(&mut self, but: u32) {
        let others = self.tasks.iter().filter(|(task, _)| **task != but);
        let Some((&task, &Task { process, .. })) = others.min_by_key(|(_, task)| task.seen) else {
            return;
        };
        self.left(task);
        if self.tasks.values().all(|task| task.process != process) {
            self.exited(process);
        }
    }

    /// Forgets a loader where there are too many, or too many whose process has ended: one that is
    /// not followed before one that is, then one whose tasks have ended, then that with the fewest
    /// opens.
    fn forget_loaders(&mut self, but: LoaderId, out: &mut Vec<Decision>) {
        let alive: BTreeSet<u64> = self.tasks.values().map(|task| task.group).collect();
        let others = self.loaders.values().filter(|loader| loader.id != but);
        let ended = others.clone().filter(|loader| loader.ended).count();
        if self.loaders.len() <= LOADERS_MAX && ended <= ENDED_MAX {
            return;
        }
        let worth = |loader: &&Loader| {
            let followed = loader.follow.is_some() && !loader.ended;
            (followed, alive.contains(&loader.group), loader.opens())
        };
        let Some(id) = others.min_by_key(worth).map(|loader| loader.id) else { return };
        self.forget(id, out);
    }

    /// A process has ended. What its loaders read is remembered, and others' orders may follow from
    /// it; but nobody reads for them any more.
    fn end(&mut self, group: u64, out: &mut Vec<Decision>) {
        self.tasks.retain(|_, task| task.group != group);
        self.readers.end_group(group);
        self.shared.spent.remove(&group);
        for id in self.groups.remove(&group).unwrap_or_default() {
            self.stop(id, out);
            if let Some(loader) = self.loaders.get_mut(&id) {
                loader.ended = true;
                self.shared.news += 1;
            }
        }
    }

    /// Nothing is searched any more for the loaders of a process.
    fn spend(&mut self, group: u64, out: &mut Vec<Decision>) {
        self.shared.spent.insert(group);
        for id in self.groups.get(&group).cloned().unwrap_or_default() {
            self.end_searches(id, out);
        }
    }

    /// Ends all that is done for a loader.
    fn stop(&mut self, id: LoaderId, out: &mut Vec<Decision>) {
        let Some(loader) = self.loaders.get(&id) else { return };
        if loader.follow.is_some() && !loader.ended {
            out.push(Decision::Withdrawn { loader: id, why: Why::Gone });
        }
        self.end_searches(id, out);
    }

    fn end_searches(&mut self, id: LoaderId, out: &mut Vec<Decision>) {
        if let Some(loader) = self.loaders.get_mut(&id) {
            loader.seeking.running = None;
        }
        let of_it: Vec<SearchId> = self
            .shared
            .searches
            .iter()
            .filter(|(_, search)| search.loader == id)
            .map(|(id, _)| *id)
            .collect();
        for id in of_it {
            self.shared.searches.remove(&id);
            out.push(Decision::SearchOver { id });
        }
    }

    fn forget(&mut self, id: LoaderId, out: &mut Vec<Decision>) {
        self.stop(id, out);
        let Some(loader) = self.loaders.remove(&id) else { return };
        if let Some(ids) = self.groups.get_mut(&loader.group) {
            ids.retain(|other| *other != id);
            if ids.is_empty() {
                self.groups.remove(&loader.group);
            }
        }
    }
}
