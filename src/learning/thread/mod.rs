//! The thread that owns the learner and all that follows from it.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender};
use std::time::{Duration, Instant};

use super::groups::Groups;
use super::journal::{PathOrder, SavedJournal};
use super::lists::Lists;
use super::loaders::Loaders;
use super::numberings::numberings;
use super::searches::{Searches, Slice, Wanted};
use super::told_orders::ToldOrders;
use super::{NOTES_MAX, Note, Status, Surroundings};
use crate::catalog::with_listing;
use crate::config::LearnSettings;
use crate::ids::{FileId, StreamId};
use crate::learn::{Belief, Decision, Finding, Known, Learner, Numbering, Observation, Why};
use crate::order::{Listing, Order, OrderSpec, SampleTable};
use crate::plan::{Event, Layout, Published, RAM};
use crate::process::{Task, runs};
use crate::sync::Mutex;

/// How often the thread follows up what has changed around it: while notes come, at first while none come,
/// and at last.
const UPDATE_EVERY: Duration = Duration::from_millis(200);
const IDLE_UPDATE_EVERY: Duration = Duration::from_secs(2);
const IDLE_UPDATE_MAX: Duration = Duration::from_secs(8);

/// How many notes are kept while files are still being found.
const EARLY_MAX: usize = 1 << 18;

/// How long notes gather until they are taken, so that a note wakes the thread seldom. It is shorter where an
/// epoch ends or begins, as opens are not foreseen meanwhile.
const GATHER: Duration = Duration::from_millis(20);
const GATHER_SHORTLY: Duration = Duration::from_millis(2);

/// How long a learner stays at least while files come, and how many times as long as it took to
/// make.
const STAYS: Duration = Duration::from_secs(10);
const STAYS_TIMES: u32 = 20;

/// The thread that owns the learner and all that follows from it.
pub(super) struct LearnerThread {
    around: Surroundings,
    status: Arc<Mutex<Status>>,
    journal: SavedJournal,
    searches: Searches,
    groups: Groups,
    layout: Arc<Layout>,
    lists: Lists,
    notes: SyncSender<Note>,
    /// Numberings of the learner before, in which loaders are followed.
    numberings_before: Vec<Numbering>,
    told_orders: ToldOrders,
    loaders: Loaders,
    /// None until something is read.
    current: Option<Current>,
    decisions: Vec<Decision>,
    /// From when on observations count their milliseconds.
    started: Instant,
}

/// The learner for the files that there are.
struct Current {
    learner: Learner,
    /// The version of the names that it knows.
    names_version: u64,
    /// When it was made, and how long that took.
    made: Instant,
    took: Duration,
    /// Up to which of its news the journal has them.
    kept: u64,
}

impl LearnerThread {
    pub(super) fn new(
        settings: LearnSettings,
        around: Surroundings,
        notes: SyncSender<Note>,
        status: Arc<Mutex<Status>>,
        started: Instant,
    ) -> Self {
        let journal = SavedJournal::open(around.journal.clone());
        status.lock().journal = journal.words.clone();
        LearnerThread {
            status,
            journal,
            searches: Searches::new(settings, notes.clone()),
            groups: Groups::default(),
            layout: around.catalog.layout(),
            lists: Lists::default(),
            notes,
            numberings_before: Vec::new(),
            told_orders: ToldOrders::new(Arc::clone(&around.streams)),
            loaders: Loaders::new(Arc::clone(&around.inbox), Arc::clone(&around.streams)),
            around,
            current: None,
            decisions: Vec::new(),
            started,
        }
    }

    /// Takes notes until `closed`.
    pub(super) fn run(mut self, notes: &Receiver<Note>, closed: &AtomicBool) {
        self.await_files(notes, closed);
        let (mut due, mut updated, mut pause) = (Instant::now(), Instant::now(), IDLE_UPDATE_EVERY);
        while !closed.load(Ordering::Relaxed) {
            match notes.recv_timeout(due.saturating_duration_since(Instant::now())) {
                Ok(note) => {
                    // Tasks that ended before the note have to be known to have ended.
                    if updated.elapsed() > IDLE_UPDATE_EVERY {
                        self.update();
                        updated = Instant::now();
                    }
                    pause = IDLE_UPDATE_EVERY;
                    for note in std::iter::once(note).chain(notes.try_iter().take(NOTES_MAX)) {
                        self.take(note);
                    }
                    let current = self.current.as_mut();
                    let shortly = current.is_some_and(|current| current.learner.take_border());
                    std::thread::sleep(if shortly { GATHER_SHORTLY } else { GATHER });
                    due = due.min(Instant::now() + UPDATE_EVERY);
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            if Instant::now() >= due {
                self.update();
                updated = Instant::now();
                due = updated + pause;
                pause = (2 * pause).min(IDLE_UPDATE_MAX);
            }
        }
        // The last opens belong to the journal, too.
        notes.try_iter().take(NOTES_MAX).for_each(|note| self.take(note));
        self.remember(true);
        self.journal.finish();
    }

    /// Keeps the opens that are heard while files are still being found, and takes them when all files are
    /// known: the numberings follow from the files.
    fn await_files(&mut self, notes: &Receiver<Note>, closed: &AtomicBool) {
        let mut early = Vec::new();
        while !self.around.catalog.await_scan(GATHER, |scan| scan.is_whole).is_whole
            && !closed.load(Ordering::Relaxed)
        {
            for note in notes.try_iter().take(NOTES_MAX) {
                match note {
                    Note::Heard(..) if early.len() < EARLY_MAX => early.push(note),
                    Note::Heard(..) => {}
                    other => self.take(other),
                }
            }
        }
        self.layout = self.around.catalog.layout();
        early.into_iter().for_each(|note| self.take(note));
    }

    fn take(&mut self, note: Note) {
        match note {
            Note::Heard(at_ms, Event::Opened { task, file }) => {
                self.take_open(at_ms, task, file, true);
            }
            Note::Heard(at_ms, Event::Seen { task, file }) => {
                self.take_open(at_ms, task, file, false);
            }
            Note::Heard(at_ms, Event::Missed { block, task } | Event::Part { block, task, .. })
                if block.index() < self.layout.blocks() =>
            {
                self.take_open(at_ms, task, self.layout.file_of(block), true);
            }
            Note::Received { stream, order } => self.receive(stream, order),
            Note::Suggested { order, spec } => self.take_suggestion(&order, &spec),
            Note::Withdrawn { stream } => {
                self.told_orders.remove(stream);
                self.follow_by_told_orders();
            }
            Note::Slice(slice) => self.take_slice(slice),
            Note::Searched { generation, search } if generation == self.searches.generation => {
                self.searches.end(search);
                self.observe(Observation::Searched { search });
            }
            Note::Listed { path, text } => self.take_list(&path, &text),
            Note::Records(answer) => {
                let records = self.learner().into_iter().flat_map(Learner::records);
                let named = records.map(|record| {
                    let loader = self.loaders.all.get(&record.loader);
                    (record, loader.map_or_else(String::new, |loader| loader.program.clone()))
                });
                // The asking thread may have given up.
                let _ = answer.try_send(named.collect());
            }
            Note::Heard(..) | Note::Searched { .. } | Note::Wake => {}
        }
    }

    /// A task opened a file, or looked at it. The daemon's own threads have the number 0.
    fn take_open(&mut self, at_ms: u64, task: u32, file: FileId, exact: bool) {
        if task == 0 {
            return;
        }
        let known = self.groups.processes.len();
        if let Some(Task { own: process, group }) = self.groups.of(task) {
            if self.groups.processes.len() > known {
                // The workers of the next loader come when those of the one before have ended.
                self.note_ended();
            }
            let sample = file.0;
            self.observe(Observation::Opened { at_ms, task, process, group, sample, exact });
        }
        // Pages that the kernel has cached are read without a request, so any sign of a list counts.
        self.lists.read(file, &self.around, &self.layout, &self.notes);
    }

    fn take_slice(&mut self, slice: Slice) {
        let Slice { generation, search, loader, group, findings, cpu, speed } = slice;
        if generation == self.searches.generation {
            self.loaders.state(loader).cpu += cpu;
            if let Some(speed) = speed {
                let seeds_per_second = self.searches.measure(speed);
                self.observe(Observation::Speed { seeds_per_second });
            }
            if findings.iter().any(|finding| matches!(finding, Finding::Split { .. })) {
                // A popular seed is likely to give the orders of both sides.
                self.searches.begin_without_pauses(group);
            }
            if !findings.is_empty() {
                self.observe(Observation::Found { search, findings });
            }
        }
        if let Some(spent) = self.searches.spend(group, cpu) {
            tracing::info!(process = group, ?spent, "order.learn-time is used up");
            self.observe(Observation::Spent { group });
        }
    }

    /// A list of files was read: a loader may number its samples by it.
    fn take_list(&mut self, path: &str, text: &[u8]) {
        let add = |listing: &Listing<'_>| self.lists.add(path, text, listing.clone());
        let numbering = with_listing(&self.around.catalog, &[], None, add);
        crate::catalog::give_back();
        let Some(numbering) = numbering else { return };
        tracing::info!(path, samples = numbering.samples.len(), "a list of samples is read");
        if let Some(current) = &mut self.current {
            current.learner.consider(numbering, &mut self.decisions);
            self.carry_out();
        }
    }

    /// A stream is told its order.
    fn receive(&mut self, stream: StreamId, order: Arc<Order>) {
        self.told_orders.add(stream, order, self.layout.files());
        if let Some(current) = &mut self.current {
            let (files, learner) = (self.layout.files(), &mut current.learner);
            self.told_orders.tell(Some(stream), files, learner, &mut self.decisions);
        }
        self.carry_out();
        self.follow_by_told_orders();
    }

    /// The learner hears of tasks and processes that have ended.
    fn note_ended(&mut self) {
        let ended = self.groups.take_ended();
        if self.current.is_none() {
            return;
        }
        ended.tasks.into_iter().for_each(|task| self.observe(Observation::Left { task }));
        let exited = |process| Observation::Exited { process };
        ended.processes.into_iter().map(exited).for_each(|exited| self.observe(exited));
    }

    fn take_suggestion(&mut self, order: &Order, spec: &OrderSpec) {
        if self.current.is_none() {
            self.current = Some(self.make_learner());
        }
        let Some(current) = &mut self.current else { return };
        current.learner.tell(order, Some(spec), &mut self.decisions);
        self.carry_out();
    }

    fn observe(&mut self, observation: Observation) {
        if self.current.is_none() {
            self.current = Some(self.make_learner());
        }
        let Some(current) = &mut self.current else { return };
        current.learner.apply(observation, &mut self.decisions);
        self.carry_out();
    }

    /// A learner for the files that there are now.
    fn make_learner(&mut self) -> Current {
        let began = Instant::now();
        let catalog = &self.around.catalog;
        self.layout = catalog.layout();
        let (names_version, lists) = (catalog.names_version(), &mut self.lists);
        let found = |listing: &Listing<'_>| {
            lists.find(listing);
            (numberings(listing), PathOrder::of(listing))
        };
        let (mut numberings, paths) = with_listing(catalog, &[], None, found);
        numberings.append(&mut self.numberings_before);
        numberings.extend_from_slice(&self.lists.numberings);
        let mut learner = Learner::new(self.searches.settings(), numberings, SampleTable::Files);
        crate::catalog::give_back();
        self.journal.renumber(paths);
        learner.recall(self.journal.content.clone());
        self.told_orders.tell(None, self.layout.files(), &mut learner, &mut self.decisions);
        for group in self.searches.used_up() {
            learner.apply(Observation::Spent { group }, &mut self.decisions);
        }
        let kept = learner.news();
        Current { learner, names_version, made: Instant::now(), took: began.elapsed(), kept }
    }

    fn learner(&self) -> Option<&Learner> {
        self.current.as_ref().map(|current| &current.learner)
    }

    /// Does what the learner has decided.
    fn carry_out(&mut self) {
        for decision in std::mem::take(&mut self.decisions) {
            match decision {
                Decision::SearchWanted { id, loader, group, search } => {
                    self.searches.waiting.push(Wanted { id, loader, group, search });
                    self.begin_searches();
                }
                Decision::SearchOver { id } => self.searches.end(id),
                Decision::Committed(known) | Decision::EpochBegan(known) => self.follow(known),
                Decision::Withdrawn { loader, why } => {
                    tracing::info!(loader = loader.0, ?why, "learnt order withdrawn");
                    if let (Why::Diverged, Some(state)) = (why, self.loaders.all.get_mut(&loader)) {
                        state.diverged += 1;
                    }
                    self.loaders.withdraw(loader);
                }
            }
        }
    }

    /// Begins the searches that are wanted, except for loaders that read an order as it was told.
    fn begin_searches(&mut self) {
        let learner = self.current.as_ref().map(|current| &current.learner);
        self.searches.begin_waiting(|loader| self.told_orders.are_read_by(loader, learner));
    }

    fn follow(&mut self, known: Known) {
        let gives_way = known.order.ids().any(|file| self.told_orders.have(file));
        self.loaders.follow(known, gives_way);
    }

    /// An order that is told, and read as told, goes before a learnt one. One that is not gives way to it.
    fn follow_by_told_orders(&mut self) {
        self.begin_searches();
        for belief in self.beliefs() {
            let known = self.learner().and_then(|learner| learner.known(belief.loader));
            let Some(known) = known else { continue };
            let gives_way = known.order.ids().any(|file| self.told_orders.have(file));
            let state = self.loaders.state(belief.loader);
            if state.followed == gives_way || state.gives_way != gives_way {
                self.loaders.follow(known, gives_way);
            }
        }
    }

    fn beliefs(&self) -> Vec<Belief> {
        self.learner().into_iter().flat_map(Learner::beliefs).collect()
    }

    /// Keeps what loaders have read, with `partial` also of epochs that are not over.
    fn remember(&mut self, partial: bool) {
        let Some(Current { learner, kept, .. }) = &mut self.current else { return };
        *kept = learner.news();
        self.journal.add(learner.records(), partial);
        learner.recall(self.journal.content.clone());
        self.journal.write();
    }

    /// Forgets everything that was learnt, except the journal.
    fn begin_anew(&mut self) {
        self.remember(true);
        self.journal.content.detach();
        self.numberings_before = self.learner().map(Learner::in_use).unwrap_or_default();
        self.searches.end_all();
        self.searches.generation += 1;
        self.loaders.clear();
        self.current = None;
    }

    /// Follows up what has changed around, and publishes what is known.
    fn update(&mut self) {
        let published = self.around.published.lock().clone();
        match self.told_orders.update(&published) {
            true => self.follow_by_told_orders(),
            false => self.begin_searches(),
        }
        self.layout = self.around.catalog.layout();
        // Loaders that are followed are so again in a moment. A search would begin at its beginning.
        if self.is_outdated() && !self.searches.are_running() {
            tracing::info!(files = self.layout.files(), "other files: learning begins anew");
            self.begin_anew();
        }
        self.note_ended();
        if self.current.is_some() {
            self.end_groups();
            self.follow_again(&published);
            let kept = published.accounts.kept.get(RAM).copied().unwrap_or_default();
            let all = kept >= self.layout.pages_bytes_of_all();
            self.observe(Observation::Cached { all });
        }
        self.journal.note_end();
        let current = self.current.as_ref();
        let has_news = current.is_some_and(|current| current.learner.news() != current.kept);
        match self.journal.is_due() {
            true if has_news => self.remember(false),
            true if self.journal.is_behind => self.journal.write(),
            _ => {}
        }
        self.publish();
    }

    /// Whether the dataset has other files than the learner knows, which has served its time.
    fn is_outdated(&self) -> bool {
        self.current.as_ref().is_some_and(|current| {
            let stays = STAYS.max(current.took * STAYS_TIMES);
            self.around.catalog.names_version() != current.names_version
                && current.made.elapsed() > stays
        })
    }

    /// Does nothing more for loaders of processes that have ended.
    fn end_groups(&mut self) {
        let beliefs = self.beliefs();
        let groups = beliefs.iter().map(|belief| belief.group);
        let groups: BTreeSet<u64> = groups.chain(self.searches.spent.keys().copied()).collect();
        for group in groups.into_iter().filter(|group| !runs(*group)) {
            self.observe(Observation::Ended { group });
            self.searches.spent.remove(&group);
        }
    }

    /// Lets the planner forget loaders that have long read nothing, and follow loaders again that read and
    /// that it does not follow.
    fn follow_again(&mut self, published: &Published) {
        for belief in self.beliefs() {
            let read = self.started + Duration::from_millis(belief.last_ms);
            if self.loaders.check(belief.loader, read, published) {
                let known = self.learner().and_then(|learner| learner.known(belief.loader));
                known.into_iter().for_each(|known| self.follow(known));
            }
        }
    }

    /// Publishes what is known of each loader. Loaders that the learner has forgotten are forgotten.
    fn publish(&mut self) {
        let (beliefs, learner) = (self.beliefs(), self.current.as_ref().map(|c| &c.learner));
        self.loaders.all.retain(|id, _| learner.is_some_and(|learner| learner.has(*id)));
        let fixes = self.told_orders.fixes(learner, &beliefs);
        let status = |belief: Belief| {
            let reads_told = self.told_orders.are_read_by(belief.loader, learner);
            let searching = self.searches.are_running_for(belief.loader);
            self.loaders.state(belief.loader).status(belief, reads_told, searching)
        };
        let loaders = beliefs.into_iter().map(status).collect();
        *self.status.lock() = Status { loaders, fixes, journal: self.journal.words.clone() };
    }
}

#[cfg(test)]
mod tests;
