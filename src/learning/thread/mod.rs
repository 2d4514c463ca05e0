//! The learner's thread itself.

mod telling;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender};
use std::time::{Duration, Instant};

use super::groups::{Groups, Task};
use super::journal::{Kept, PathOrder};
use super::lists::Lists;
use super::numberings::candidates;
use super::searches::Searches;
use super::{NOTES_MAX, Note, Surroundings, Told};
use crate::catalog::with_listing;
use crate::config::LearnSettings;
use crate::ids::{FileId, StreamId};
use crate::learn::{
    Decision, Finding, Known, Learner, LoaderId, Numbering, Observation, Search, SearchId,
    Settings, Why,
};
use crate::learning::learnt_stream;
use crate::order::{Listing, Order, OrderSpec, SampleTable};
use crate::plan::{Event, Layout, RAM};
use crate::sync::Mutex;

/// How often is looked what has changed around: while something happens, and else, at first and at last.
const LOOK_EVERY: Duration = Duration::from_millis(200);
const IDLE_LOOK_EVERY: Duration = Duration::from_secs(2);
const IDLE_LOOK_MAX: Duration = Duration::from_secs(8);

/// So much of what is heard while files are still being found is kept.
const EARLY_MAX: usize = 1 << 18;

/// How long notes gather until they are taken: who leaves one while nobody waits wakes nobody. It is not as
/// long where an epoch ends or begins: what is opened meanwhile is not foreseen.
const GATHER: Duration = Duration::from_millis(20);
const GATHER_SHORTLY: Duration = Duration::from_millis(2);

/// How long a loader may read nothing and be followed. It may read a large file meanwhile, or wait
/// for a validation.
const IDLE_MAX: Duration = Duration::from_secs(600);

/// How often the planner is told at most of a reader that it has lost.
const TOLD_AGAIN_EVERY: Duration = Duration::from_secs(10);

/// How long a learner stays at least while files come, and how many times as long as it took to
/// make.
const STAYS: Duration = Duration::from_secs(10);
const STAYS_TIMES: u32 = 20;

/// Over how many slices the speed of searches is smoothed.
const SPEEDS: f64 = 32.0;

/// Owner of the learner and of everything that follows from it.
pub(super) struct Owner {
    settings: LearnSettings,
    around: Surroundings,
    searches: Searches,
    told: Arc<Mutex<Told>>,
    kept: Kept,
    /// Up to which news of the learner is kept.
    heard: u64,
    groups: Groups,
    layout: Arc<Layout>,
    /// The names that the learner knows, as the catalog counts them.
    names: u64,
    /// Numberings of before that loaders go on with.
    before: Vec<Numbering>,
    lists: Lists,
    notes: SyncSender<Note>,
    /// From when on observations count their milliseconds.
    started: Instant,
    received: Vec<Received>,
    held: Vec<Held>,
    /// None until something is read.
    learner: Option<Learner>,
    generation: u32,
    /// When the learner was made, and how long that took.
    made: Instant,
    took: Duration,
    /// How fast seeds are searched, once some have been.
    seeds_per_second: Option<f64>,
    loaders: BTreeMap<LoaderId, Loader>,
    /// Processor time that searches took, by the process that they were for.
    spent: BTreeMap<u64, Spent>,
    decisions: Vec<Decision>,
}

/// Processor time that searches for a process took.
#[derive(Clone, Copy, Default)]
struct Spent {
    all: Duration,
    /// Of that, what it took before searches were to begin without pauses again.
    before: Duration,
}

impl Spent {
    /// What it took since searches were to begin without pauses.
    fn since(self) -> Duration {
        self.all - self.before
    }
}

/// A stream that was told its order.
struct Received {
    stream: StreamId,
    order: Arc<Order>,
    /// By file, whether it is in the order.
    files: Vec<bool>,
    followed: bool,
}

impl Received {
    /// Whether a file is in the order.
    fn has(&self, file: u32) -> bool {
        self.files.get(file as usize).is_some_and(|has| *has)
    }
}

/// A search that waits until what was told turns out to be wrong.
struct Held {
    id: SearchId,
    loader: LoaderId,
    group: u64,
    search: Arc<Search>,
}

/// What is kept for a loader beside what the learner knows.
struct Loader {
    /// The stream that its orders are given to.
    stream: Option<StreamId>,
    followed: bool,
    /// Whether its order is over files of one that was told, and is read.
    told_of: bool,
    /// Since when it has been followed, or not.
    since: Instant,
    /// When its order was told last.
    told: Instant,
    cpu: Duration,
    /// How often it read something else than the order that it was followed in.
    diverged: u32,
    /// The name of its program, which is known as long as that runs.
    program: String,
}

impl Default for Loader {
    fn default() -> Self {
        let (stream, followed, since) = (None, false, Instant::now());
        let (cpu, program) = (Duration::ZERO, String::new());
        Loader { stream, followed, told_of: false, since, told: since, cpu, diverged: 0, program }
    }
}

impl Loader {
    fn turn(&mut self, followed: bool) {
        if self.followed != followed {
            (self.followed, self.since) = (followed, Instant::now());
        }
    }
}

impl Owner {
    pub(super) fn new(
        settings: LearnSettings,
        around: Surroundings,
        notes: SyncSender<Note>,
        told: Arc<Mutex<Told>>,
        started: Instant,
    ) -> Self {
        let kept = Kept::open(around.journal.clone());
        told.lock().journal = kept.words();
        Owner {
            settings,
            searches: Searches::new(&settings, notes.clone()),
            notes,
            lists: Lists::default(),
            told,
            kept,
            heard: 0,
            groups: Groups::default(),
            layout: around.catalog.layout(),
            names: around.catalog.names(),
            before: Vec::new(),
            around,
            started,
            received: Vec::new(),
            held: Vec::new(),
            learner: None,
            generation: 0,
            made: Instant::now(),
            took: Duration::ZERO,
            seeds_per_second: None,
            loaders: BTreeMap::new(),
            spent: BTreeMap::new(),
            decisions: Vec::new(),
        }
    }

    /// Takes notes until `closed`.
    pub(super) fn run(mut self, notes: &Receiver<Note>, closed: &AtomicBool) {
        self.await_files(notes, closed);
        let (mut due, mut looked, mut pause) = (Instant::now(), Instant::now(), IDLE_LOOK_EVERY);
        while !closed.load(Ordering::Relaxed) {
            match notes.recv_timeout(due.saturating_duration_since(Instant::now())) {
                Ok(note) => {
                    // Who has left before it was heard is to have left before.
                    if looked.elapsed() > IDLE_LOOK_EVERY {
                        self.look();
                        looked = Instant::now();
                    }
                    pause = IDLE_LOOK_EVERY;
                    for note in std::iter::once(note).chain(notes.try_iter().take(NOTES_MAX)) {
                        self.take(note);
                    }
                    let shortly = self.learner.as_mut().is_some_and(Learner::take_border);
                    std::thread::sleep(if shortly { GATHER_SHORTLY } else { GATHER });
                    due = due.min(Instant::now() + LOOK_EVERY);
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            if Instant::now() >= due {
                self.look();
                looked = Instant::now();
                due = looked + pause;
                pause = (2 * pause).min(IDLE_LOOK_MAX);
            }
        }
        // What was seen last belongs to it, too.
        notes.try_iter().take(NOTES_MAX).for_each(|note| self.take(note));
        self.remember(true);
        self.kept.finish();
    }

    /// What is heard while files are still being found is kept, and taken when all are known: which
    /// orders there may be follows from them.
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
        (self.layout, self.names) = (self.around.catalog.layout(), self.around.catalog.names());
        early.into_iter().for_each(|note| self.take(note));
    }

    fn take(&mut self, note: Note) {
        match note {
            Note::Heard(at_ms, Event::Opened { task, file }) => {
                self.opened(at_ms, task, file.0, true);
            }
            Note::Heard(at_ms, Event::Seen { task, file }) => {
                self.opened(at_ms, task, file.0, false);
            }
            Note::Heard(at_ms, Event::Missed { block, task } | Event::Part { block, task, .. })
                if block.index() < self.layout.blocks() =>
            {
                self.opened(at_ms, task, self.layout.file_of(block).0, true);
            }
            Note::Received { stream, order } => self.receive(stream, order),
            Note::Withdrawn { stream } => {
                self.received.retain(|known| known.stream != stream);
                self.rearrange();
            }
            Note::Slice { generation, search, loader, group, findings, cpu, speed } => {
                if generation == self.generation {
                    self.loaders.entry(loader).or_default().cpu += cpu;
                    self.measure(speed);
                    if findings.iter().any(Finding::is_split) {
                        // The sides of the split are searched next. A popular seed is likely to give their
                        // orders, so that search begins without pauses again.
                        let spent = self.spent.entry(group).or_default();
                        spent.before = spent.all;
                    }
                    if !findings.is_empty() {
                        self.observe(Observation::Found { search, findings });
                    }
                }
                self.spend(group, cpu);
            }
            Note::Searched { generation, search } if generation == self.generation => {
                self.searches.end(search);
                self.observe(Observation::Searched { search });
            }
            Note::Listed { path, text } => self.listed(&path, &text),
            Note::Records(answer) => {
                let records = self.learner.iter().flat_map(Learner::records);
                let named = records.map(|record| {
                    let loader = self.loaders.get(&record.loader);
                    (record, loader.map_or_else(String::new, |loader| loader.program.clone()))
                });
                // Who asked may have gone.
                let _ = answer.try_send(named.collect());
            }
            Note::Heard(..) | Note::Searched { .. } | Note::Wake => {}
        }
    }

    /// A search for loaders of a process took so much more of a processor.
    fn spend(&mut self, group: u64, cpu: Duration) {
        let spent = &mut self.spent.entry(group).or_default().all;
        *spent += cpu;
        if *spent >= self.settings.time && *spent - cpu < self.settings.time {
            tracing::info!(process = group, ?spent, "order.learn-time is used up");
            self.observe(Observation::Spent { group });
        }
    }

    /// A slice of all seeds has been searched at this speed, on one of the threads.
    fn measure(&mut self, speed: Option<f64>) {
        let Some(speed) = speed else { return };
        let speed = speed * f64::from(self.settings.threads);
        let known = self.seeds_per_second.get_or_insert(speed);
        *known += (speed - *known) / SPEEDS;
        let seeds_per_second = *known as u64;
        self.observe(Observation::Speed { seeds_per_second });
    }

    /// A task opened a file, or looked at it. Own threads have no number here.
    fn opened(&mut self, at_ms: u64, task: u32, sample: u32, exact: bool) {
        if task == 0 {
            return;
        }
        let known = self.groups.processes();
        if let Some(Task { own: process, group }) = self.groups.of(task) {
            if self.groups.processes() > known {
                // The workers of the next loader come when those of the one before have ended.
                self.see_who_has_gone();
            }
            self.observe(Observation::Opened { at_ms, task, process, group, sample, exact });
        }
        // What is in the page cache is read without being asked for.
        let Owner { around, layout, notes, .. } = self;
        self.lists.read(FileId(sample), around, layout, notes);
    }

    /// The learner hears of tasks and processes that have ended.
    fn see_who_has_gone(&mut self) {
        let gone = self.groups.take_gone();
        if self.learner.is_none() {
            return;
        }
        gone.tasks.into_iter().for_each(|task| self.observe(Observation::Left { task }));
        let exited = |process| Observation::Exited { process };
        gone.processes.into_iter().map(exited).for_each(|observation| self.observe(observation));
    }

    /// A list of files was read: by its order a loader may number its samples.
    fn listed(&mut self, path: &str, text: &[u8]) {
        let take = |listing: &Listing<'_>| self.lists.take(path, text, listing.clone());
        let candidate = with_listing(&self.around.catalog, &[], None, take);
        crate::catalog::give_back();
        let Some(candidate) = candidate else { return };
        tracing::info!(path, samples = candidate.samples.len(), "a list of samples is read");
        if let Some(learner) = &mut self.learner {
            learner.consider(candidate, &mut self.decisions);
            self.heed();
        }
    }

    /// Whether a stream that was told its order, and reads it, may read the file.
    fn is_told(&self, file: u32) -> bool {
        self.received.iter().any(|known| known.followed && known.has(file))
    }

    fn observe(&mut self, observation: Observation) {
        if self.learner.is_none() {
            self.learner = Some(self.make_learner());
        }
        let Some(learner) = &mut self.learner else { return };
        learner.apply(observation, &mut self.decisions);
        self.heed();
    }

    /// A learner for the files that there are now.
    fn make_learner(&mut self) -> Learner {
        let began = Instant::now();
        (self.layout, self.names) = (self.around.catalog.layout(), self.around.catalog.names());
        let lists = &mut self.lists;
        let found = |listing: &Listing<'_>| {
            lists.look(listing);
            (candidates(listing), PathOrder::of(listing))
        };
        let (mut candidates, numbering) = with_listing(&self.around.catalog, &[], None, found);
        candidates.append(&mut self.before);
        candidates.extend_from_slice(self.lists.found());
        let guess = Settings::default().seeds_per_second * u64::from(self.settings.threads);
        let seeds_per_second = self.seeds_per_second.map_or(guess, |speed| speed as u64);
        let settings =
            Settings { crack: self.settings.crack, seeds_per_second, ..Settings::default() };
        let mut learner = Learner::new(settings, candidates, SampleTable::Files);
        crate::catalog::give_back();
        self.kept.number(numbering);
        learner.recall(self.kept.journal());
        let received = std::mem::take(&mut self.received);
        received.iter().for_each(|received| self.tell_of(received, &mut learner));
        self.received = received;
        let spent = self.spent.iter().filter(|(_, spent)| spent.all >= self.settings.time);
        for (&group, _) in spent {
            learner.apply(Observation::Spent { group }, &mut self.decisions);
        }
        self.heard = learner.news();
        (self.made, self.took) = (Instant::now(), began.elapsed());
        learner
    }

    /// Does what the learner has decided.
    fn heed(&mut self) {
        for decision in std::mem::take(&mut self.decisions) {
            match decision {
                Decision::SearchWanted { id, loader, group, search } => {
                    self.held.push(Held { id, loader, group, search });
                    self.search();
                }
                Decision::SearchOver { id } => {
                    self.held.retain(|held| held.id != id);
                    self.searches.end(id);
                }
                Decision::Committed(known) | Decision::EpochBegan(known) => self.follow(known),
                Decision::Withdrawn { loader, why } => {
                    tracing::info!(loader = loader.0, ?why, "learnt order withdrawn");
                    if let (Why::Diverged, Some(loader)) = (why, self.loaders.get_mut(&loader)) {
                        loader.diverged += 1;
                    }
                    self.withdraw(loader);
                }
            }
        }
    }

    /// Begins the searches that are wanted, but for loaders that read what was told as it was told.
    fn search(&mut self) {
        for held in std::mem::take(&mut self.held) {
            if self.reads_told(held.loader) {
                self.held.push(held);
                continue;
            }
            let Held { id, loader, group, search } = held;
            tracing::debug!(?id, ?loader, units = search.units(), "search begins");
            let spent = self.spent.get(&group).copied().unwrap_or_default();
            self.searches.begin(self.generation, id, (loader, group), search, spent.since());
        }
    }

    /// Whether a loader reads files of an order that was told, and is read as it was told.
    fn reads_told(&self, loader: LoaderId) -> bool {
        let latest = self.learner.as_ref().and_then(|learner| learner.latest(loader));
        latest.is_some_and(|sample| self.is_told(sample))
    }

    /// Has the planner follow a loader in its order, unless somebody has told it of these files: as long
    /// as they are read as told, no second stream fetches the same.
    fn follow(&mut self, known: Known) {
        let told_of = known.order.ids().any(|sample| self.is_told(sample));
        self.loaders.entry(known.loader).or_default().told_of = told_of;
        if told_of {
            return self.withdraw(known.loader);
        }
        let words = known.order.describe().to_owned();
        tracing::info!(loader = known.loader.0, process = known.group, words, "order learnt");
        let taken: Vec<StreamId> = self.loaders.values().filter_map(|l| l.stream).collect();
        let loader = self.loaders.entry(known.loader).or_default();
        if loader.stream.is_none() {
            loader.stream = learnt_stream(&self.around.streams, &taken);
        }
        let Some(stream) = loader.stream else { return };
        loader.turn(true);
        loader.told = Instant::now();
        let order = Arc::new(known.order);
        self.around.inbox.put(Event::Continued { stream, order }, None);
    }

    fn withdraw(&mut self, loader: LoaderId) {
        let Some(loader) = self.loaders.get_mut(&loader) else { return };
        let followed = loader.followed;
        loader.turn(false);
        if let Some(stream) = loader.stream.filter(|_| followed) {
            self.around.inbox.put(Event::Withdrawn { stream }, None);
        }
    }

    /// What is told, and read as told, goes before what was learnt; what is not gives way to it.
    fn rearrange(&mut self) {
        self.search();
        for belief in self.beliefs() {
            let known = self.learner.as_ref().and_then(|learner| learner.known(belief.loader));
            let Some(known) = known else { continue };
            let told_of = known.order.ids().any(|sample| self.is_told(sample));
            let loader = self.loaders.entry(belief.loader).or_default();
            if loader.followed == told_of || loader.told_of != told_of {
                self.follow(known);
            }
        }
    }

    /// A stream is told its order.
    fn receive(&mut self, stream: StreamId, order: Arc<Order>) {
        let mut files = vec![false; self.layout.files()];
        for id in order.ids() {
            let file = order.samples().get(id).file;
            if let Some(has) = files.get_mut(file.index()) {
                *has = true;
            }
        }
        self.received.retain(|known| known.stream != stream);
        let received = Received { stream, order, files, followed: true };
        if let Some(mut learner) = self.learner.take() {
            self.tell_of(&received, &mut learner);
            self.learner = Some(learner);
        }
        self.received.push(received);
        self.heed();
        self.rearrange();
    }

    /// Has a learner suspect loaders of reading what a stream was told.
    fn tell_of(&mut self, received: &Received, learner: &mut Learner) {
        let order = &received.order;
        let files = self.layout.files() as u32;
        let of_files = matches!(order.samples(), SampleTable::Files);
        if !of_files || order.ids().any(|file| file >= files) {
            return;
        }
        let spec = self.spec_of(received.stream);
        learner.tell(order, spec.as_ref(), &mut self.decisions);
    }

    /// What a stream was told.
    fn spec_of(&self, stream: StreamId) -> Option<OrderSpec> {
        let streams = self.around.streams.lock();
        streams.get(stream.index())?.spec.as_ref()?.parse().ok()
    }

    /// Keeps what loaders have read; with `partial` also of epochs that are not over.
    fn remember(&mut self, partial: bool) {
        let Some(learner) = &mut self.learner else { return };
        self.heard = learner.news();
        self.kept.add(learner.records(), partial);
        learner.recall(self.kept.journal());
        self.kept.write();
    }

    /// Forgets everything that was learnt, but for what is kept.
    fn begin_anew(&mut self) {
        self.remember(true);
        self.kept.detach();
        self.before = self.learner.as_ref().map(Learner::in_use).unwrap_or_default();
        self.searches.end_all();
        self.held.clear();
        let followed: Vec<LoaderId> =
            self.loaders.iter().filter(|(_, loader)| loader.followed).map(|(id, _)| *id).collect();
        followed.into_iter().for_each(|id| self.withdraw(id));
        self.loaders.clear();
        self.learner = None;
        self.generation += 1;
    }

    /// Looks what has changed around, and says what is known.
    fn look(&mut self) {
        let published = self.around.published.lock().clone();
        let mut turned = false;
        for received in &mut self.received {
            let progress = published.progress(received.stream);
            let followed = progress.is_none_or(|progress| progress.following);
            turned |= std::mem::replace(&mut received.followed, followed) != followed;
        }
        match turned {
            true => self.rearrange(),
            false => self.search(),
        }
        self.layout = self.around.catalog.layout();
        let stays = STAYS.max(self.took * STAYS_TIMES);
        let others = self.learner.is_some() && self.around.catalog.names() != self.names;
        // Who is followed is so again in a moment; a search would begin at its beginning.
        if others && !self.searches.run() && self.made.elapsed() > stays {
            tracing::info!(files = self.layout.files(), "other files: learning begins anew");
            self.begin_anew();
        }
        self.see_who_has_gone();
        if self.learner.is_some() {
            self.end_groups();
            self.tell_again(&published);
            let kept = published.accounts.kept.get(RAM).copied().unwrap_or_default();
            let all = kept >= self.layout.pages_bytes_of_all();
            self.observe(Observation::Cached { all });
        }
        let has_news = self.learner.as_ref().is_some_and(|learner| learner.news() != self.heard);
        self.kept.note_end();
        match self.kept.is_due() {
            true if has_news => self.remember(false),
            true if self.kept.is_behind() => self.kept.write(),
            _ => {}
        }
        self.tell();
    }
}

#[cfg(test)]
mod tests;
