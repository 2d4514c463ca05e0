//! The learner: its tasks, loaders and what they share.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::event::{Belief, Decision, Known, LoaderId, Observation, SearchId, Settings, Why};
use super::history::Record;
use super::indexes::{Index, Numbering};
use super::journal::Journal;
use super::loader::Loader;
use super::reading::Open;
use super::report::{belief, known};
use super::search::Finding;
use super::shared::Shared;
use super::tasks::{Ended, Sign, Tasks};
use super::told_orders::ToldOrder;
use crate::order::{Order, OrderSpec, SampleTable};

/// How many opens show which part of a dataset a loader reads.
const SEEN: usize = 64;

/// How many loaders are kept, and how many whose process has ended: what is remembered may be large.
const LOADERS_MAX: usize = 64;
const ENDED_MAX: usize = 8;

/// Finds out the orders of all loaders of one source.
#[derive(Debug)]
pub struct Learner {
    pub(super) shared: Shared,
    tasks: Tasks,
    pub(super) loaders: BTreeMap<LoaderId, Loader>,
    /// The loaders by the process that they read for.
    groups: BTreeMap<u64, Vec<LoaderId>>,
    next_loader: u32,
    /// See [`take_border`](Self::take_border).
    border: bool,
}

impl Learner {
    /// A learner for loaders that number their samples in one of these ways: each index order of the whole
    /// source, and of each part that may be a dataset. `samples` says what the numbers stand for.
    pub fn new(settings: Settings, numberings: Vec<Numbering>, samples: SampleTable) -> Self {
        Learner {
            shared: Shared::new(settings, numberings, samples),
            tasks: Tasks::default(),
            loaders: BTreeMap::new(),
            groups: BTreeMap::new(),
            next_loader: 0,
            border: false,
        }
    }

    /// Takes one observation and appends what follows from it to `out`.
    pub fn apply(&mut self, observation: Observation, out: &mut Vec<Decision>) {
        let next = self.shared.indexes.next;
        match observation {
            Observation::Opened { at_ms, task, process, group, sample, exact } => {
                match self.tasks.open(task, (process, group), sample, exact) {
                    Sign::Open { reader } => {
                        let ended = self.tasks.bound(task);
                        self.leave(ended);
                        self.open(group, &Open { at_ms, reader, sample, exact });
                    }
                    Sign::Read => self.prove(group, sample),
                    Sign::Known => {}
                }
            }
            Observation::Left { task } => self.tasks.leave(task),
            Observation::Exited { process } => {
                let ended = self.tasks.end_process(process);
                self.leave(ended);
            }
            Observation::Ended { group } => self.end(group),
            Observation::Found { search, findings } => self.found(search, &findings),
            Observation::Searched { search } => {
                if let Some(running) = self.shared.searches.running.remove(&search)
                    && let Some(loader) = self.loaders.get_mut(&running.loader)
                {
                    loader.stages.note_failure(&running);
                    loader.search(&mut self.shared);
                }
            }
            Observation::Spent { group } => self.spend(group),
            Observation::Speed { seeds_per_second } => {
                self.shared.settings.seeds_per_second = seeds_per_second.max(1);
            }
            Observation::Cached { all } => self.shared.searches.cached = all,
        }
        if self.shared.indexes.next > next {
            self.forget_numberings();
        }
        out.append(&mut self.shared.decisions);
    }

    /// What is believed of each loader whose process has not ended.
    pub fn beliefs(&self) -> impl Iterator<Item = Belief> + '_ {
        let reading = self.loaders.values().filter(|loader| !loader.ended);
        reading.map(|loader| belief(loader, &self.shared))
    }

    /// The order of a loader that is followed, from the place of its reader on. Costs two epochs of the dataset.
    pub fn known(&self, loader: LoaderId) -> Option<Known> {
        known(self.loaders.get(&loader).filter(|loader| !loader.ended)?, &self.shared)
    }

    /// The sample that a loader opened last.
    pub fn latest(&self, loader: LoaderId) -> Option<u32> {
        self.loaders.get(&loader)?.reading.latest.map(|open| open.sample)
    }

    /// The smallest part of the dataset, as an order of it would be told, that has all samples of a loader in
    /// this epoch and the last. None if these samples are too few.
    pub fn within(&self, loader: LoaderId) -> Option<&OrderSpec> {
        let loader = self.loaders.get(&loader)?;
        let (last, log) = (loader.past.history.last_seen(), loader.reading.attempt.log());
        let step = (last.len() + log.len()) / SEEN;
        let has_all = |index: &&Index| index.has_all(last.iter().chain(log).step_by(step.max(1)));
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

    /// The numberings in whose orders loaders are followed. They go on with these if the files change.
    pub fn in_use(&self) -> Vec<Numbering> {
        let followed = self.loaders.values().filter_map(|loader| loader.follow.as_ref()?.index);
        let indexes: BTreeSet<usize> = followed.collect();
        let numbering = |index: usize| {
            let Index { name, sequence, spec, .. } = self.shared.indexes[index].clone();
            let (samples, spec) = (Arc::clone(sequence.items()), spec.as_deref().cloned());
            Numbering { name, samples, spec }
        };
        indexes.into_iter().map(numbering).collect()
    }

    /// From here on hypotheses follow from this journal.
    pub fn recall(&mut self, journal: Journal) {
        self.shared.journal = journal;
        self.shared.changed();
    }

    /// Loaders may number their samples in this way, too. If they are not followed, searches begin again.
    pub fn consider(&mut self, numbering: Numbering, out: &mut Vec<Decision>) {
        let next = self.shared.indexes.next;
        if let Some(index) = self.shared.indexes.add(numbering).filter(|index| *index >= next) {
            self.shared.changed();
            self.search_in(index);
            out.append(&mut self.shared.decisions);
        }
    }

    /// An order of these samples was told, with this `spec` if that is known. Loaders may read it, or one
    /// that is much like it.
    pub fn tell(&mut self, order: &Order, spec: Option<&OrderSpec>, out: &mut Vec<Decision>) {
        let order = ToldOrder::new(order, spec, &mut self.shared.indexes);
        let is_new = |order: &ToldOrder| !self.shared.told_orders.contains(order);
        let Some(order) = order.filter(is_new) else { return };
        let index = order.index();
        self.shared.add_told_order(order);
        self.forget_numberings();
        index.into_iter().for_each(|index| self.search_in(index));
        out.append(&mut self.shared.decisions);
    }

    fn search_in(&mut self, index: usize) {
        for loader in self.loaders.values_mut() {
            loader.search_in(index, &mut self.shared);
        }
    }

    /// Forgets numberings that no loader reads in, except the latest.
    fn forget_numberings(&mut self) {
        let loaders = self.loaders.values().flat_map(Loader::indexes);
        let used: BTreeSet<usize> = loaders.chain(self.shared.used()).collect();
        if self.shared.indexes.forget(&used) {
            self.shared.changed();
        }
    }

    /// Whether a loader has read at the end or the beginning of an epoch since this was last asked. The next
    /// open may then change its order.
    pub fn take_border(&mut self) -> bool {
        std::mem::take(&mut self.border)
    }

    /// A number that changes with what is [remembered](Self::records) of loaders, but not with each open.
    pub fn news(&self) -> u64 {
        self.shared.news
    }

    /// Gives an open to the loader that is followed and has it next, else to the first that may have it, else
    /// to a new one.
    fn open(&mut self, group: u64, open: &Open) {
        let ids = self.groups.entry(group).or_default();
        for id in ids.iter() {
            let Some(loader) = self.loaders.get_mut(id) else { continue };
            if loader.take_next(open) {
                loader.narrow(&mut self.shared);
                self.border |= loader.is_at_border();
                return;
            }
        }
        let may_have = |id: &&LoaderId| {
            self.loaders.get(id).is_some_and(|loader| loader.past.may_have(open.sample))
        };
        let known = ids.iter().find(may_have).copied();
        let id = known.unwrap_or_else(|| {
            let id = LoaderId(self.next_loader);
            self.next_loader += 1;
            ids.push(id);
            self.loaders.insert(id, Loader::new(id, group));
            id
        });
        if known.is_none() {
            self.bound_loaders(id);
        }
        if let Some(loader) = self.loaders.get_mut(&id) {
            loader.take_unexplained(open, &mut self.shared);
            self.border |= loader.is_at_border();
        }
    }

    /// An open that may have been only a look has turned out to be a read.
    fn prove(&mut self, group: u64, sample: u32) {
        for id in self.groups.get(&group).into_iter().flatten() {
            if let Some(loader) = self.loaders.get_mut(id) {
                loader.reading.attempt.prove(sample);
            }
        }
    }

    /// A process has ended with its readers.
    fn leave(&mut self, ended: Option<Ended>) {
        let Some((group, readers)) = ended else { return };
        for id in self.groups.get(&group).into_iter().flatten() {
            if let Some(loader) = self.loaders.get_mut(id) {
                readers.iter().for_each(|reader| loader.leave(*reader));
                self.shared.news += 1;
            }
        }
    }

    fn found(&mut self, search: SearchId, findings: &[Finding]) {
        let Some(running) = self.shared.searches.running.remove(&search) else { return };
        let Some(loader) = self.loaders.get_mut(&running.loader) else { return };
        let ended = loader.take_findings(&running, findings, &mut self.shared);
        if !ended {
            self.shared.searches.running.insert(search, running);
        } else if loader.stages.running.take_if(|id| *id == search).is_some() {
            self.shared.decisions.push(Decision::SearchOver { id: search });
        }
    }

    /// Forgets a loader if there are too many, except one. A loader that is not followed goes before one that
    /// is, then one whose tasks have ended, then that with the fewest opens.
    fn bound_loaders(&mut self, but: LoaderId) {
        let alive = self.tasks.groups();
        let others = self.loaders.iter().filter(|(id, _)| **id != but);
        let ended = others.clone().filter(|(_, loader)| loader.ended).count();
        if self.loaders.len() <= LOADERS_MAX && ended <= ENDED_MAX {
            return;
        }
        let worth = |(_, loader): &(&LoaderId, &Loader)| {
            let followed = loader.follow.is_some() && !loader.ended;
            (followed, alive.contains(&loader.reading.group), loader.opens())
        };
        let Some(id) = others.min_by_key(worth).map(|(id, _)| *id) else { return };
        self.stop(id);
        let Some(loader) = self.loaders.remove(&id) else { return };
        if let Some(ids) = self.groups.get_mut(&loader.reading.group) {
            ids.retain(|other| *other != id);
            if ids.is_empty() {
                self.groups.remove(&loader.reading.group);
            }
        }
    }

    /// A process has ended. What its loaders read is remembered, and other orders may follow from it.
    fn end(&mut self, group: u64) {
        self.tasks.end_group(group);
        self.shared.searches.spent.remove(&group);
        for id in self.groups.remove(&group).unwrap_or_default() {
            self.stop(id);
            if let Some(loader) = self.loaders.get_mut(&id) {
                loader.ended = true;
                self.shared.news += 1;
            }
        }
    }

    /// Nothing is searched any more for the loaders of a process.
    fn spend(&mut self, group: u64) {
        self.shared.searches.spent.insert(group);
        for id in self.groups.get(&group).cloned().unwrap_or_default() {
            self.end_searches(id);
        }
    }

    /// Ends all that is done for a loader.
    fn stop(&mut self, id: LoaderId) {
        let Some(loader) = self.loaders.get(&id) else { return };
        if loader.follow.is_some() && !loader.ended {
            self.shared.decisions.push(Decision::Withdrawn { loader: id, why: Why::Gone });
        }
        self.end_searches(id);
    }

    fn end_searches(&mut self, id: LoaderId) {
        if let Some(loader) = self.loaders.get_mut(&id) {
            loader.stages.running = None;
        }
        self.shared.end_searches(id);
    }
}
