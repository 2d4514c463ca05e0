//! The loaders that a learner knows, and the streams by which the planner follows them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{LoaderStatus, Streams, learnt_stream};
use crate::cache::Inbox;
use crate::ids::StreamId;
use crate::learn::{Belief, Known, LoaderId};
use crate::plan::{Event, Published};
use crate::process::program;

/// How long a loader may read nothing and be followed. It may read a large file meanwhile, or wait
/// for a validation.
pub(super) const IDLE_MAX: Duration = Duration::from_secs(600);

/// How often the planner is told at most of a reader that it has lost.
const TOLD_AGAIN_EVERY: Duration = Duration::from_secs(10);

/// The loaders that a learner knows.
pub(super) struct Loaders {
    pub(super) all: BTreeMap<LoaderId, LoaderState>,
    inbox: Arc<Inbox>,
    streams: Streams,
}

/// What is kept for a loader beside what the learner knows.
pub(super) struct LoaderState {
    /// The stream that its orders are given to.
    pub(super) stream: Option<StreamId>,
    pub(super) followed: bool,
    /// Whether its order has files of one that was told, and is read as told.
    pub(super) gives_way: bool,
    /// Since when it has been followed, or not.
    since: Instant,
    /// When the planner was told its order last.
    pub(super) told_at: Instant,
    /// Processor time that its searches took.
    pub(super) cpu: Duration,
    /// How often it read something else than the order that it was followed in.
    pub(super) diverged: u32,
    /// The name of its program, which is known as long as that runs.
    pub(super) program: String,
}

impl Default for LoaderState {
    fn default() -> Self {
        let (stream, followed, gives_way, since) = (None, false, false, Instant::now());
        let (told_at, cpu, diverged, program) = (since, Duration::ZERO, 0, String::new());
        LoaderState { stream, followed, gives_way, since, told_at, cpu, diverged, program }
    }
}

impl LoaderState {
    fn turn(&mut self, followed: bool) {
        if self.followed != followed {
            (self.followed, self.since) = (followed, Instant::now());
        }
    }

    pub(super) fn status(
        &mut self,
        belief: Belief,
        reads_told: bool,
        searching: bool,
    ) -> LoaderStatus {
        if self.program.is_empty() {
            self.program = program(belief.group);
        }
        LoaderStatus {
            loader: belief.loader.0,
            process: belief.group,
            program: self.program.clone(),
            epoch: belief.epoch,
            belief: belief.text,
            spec: belief.spec.map(|spec| spec.to_string()),
            spec_epoch: belief.spec_epoch,
            length: belief.length,
            followed: self.followed,
            reads_told,
            since_s: self.since.elapsed().as_secs(),
            bits: belief.bits,
            needed: belief.needed,
            known_after: belief.known_after,
            epochs_foreseen: belief.foreseen,
            searching,
            search_cpu_s: self.cpu.as_secs_f64(),
            diverged: self.diverged,
            progress: None,
            stream: self.stream.filter(|_| self.followed),
        }
    }
}

impl Loaders {
    pub(super) fn new(inbox: Arc<Inbox>, streams: Streams) -> Self {
        Loaders { all: BTreeMap::new(), inbox, streams }
    }

    pub(super) fn state(&mut self, loader: LoaderId) -> &mut LoaderState {
        self.all.entry(loader).or_default()
    }

    /// Has the planner follow a loader in its order, unless that gives way to an order that was told: as long
    /// as that is read as told, no second stream fetches the same.
    pub(super) fn follow(&mut self, known: Known, gives_way: bool) {
        self.state(known.loader).gives_way = gives_way;
        if gives_way {
            return self.withdraw(known.loader);
        }
        let words = known.order.describe().to_owned();
        tracing::info!(loader = known.loader.0, process = known.group, words, "order learnt");
        let taken: Vec<StreamId> = self.all.values().filter_map(|loader| loader.stream).collect();
        let loader = self.all.entry(known.loader).or_default();
        loader.stream = loader.stream.or_else(|| learnt_stream(&self.streams, &taken));
        let Some(stream) = loader.stream else { return };
        loader.turn(true);
        loader.told_at = Instant::now();
        let order = Arc::new(known.order);
        self.inbox.put(Event::Continued { stream, order }, None);
    }

    pub(super) fn withdraw(&mut self, loader: LoaderId) {
        let Some(loader) = self.all.get_mut(&loader) else { return };
        let followed = loader.followed;
        loader.turn(false);
        if let Some(stream) = loader.stream.filter(|_| followed) {
            self.inbox.put(Event::Withdrawn { stream }, None);
        }
    }

    /// Forgets all loaders.
    pub(super) fn clear(&mut self) {
        let followed = self.all.iter().filter(|(_, loader)| loader.followed);
        let followed: Vec<LoaderId> = followed.map(|(id, _)| *id).collect();
        followed.into_iter().for_each(|id| self.withdraw(id));
        self.all.clear();
    }

    /// Ends following a loader that `read` last a long time ago. Says whether the planner has lost a loader
    /// that reads, and is to be told of it again.
    pub(super) fn check(&mut self, id: LoaderId, read: Instant, published: &Published) -> bool {
        let Some(loader) = self.all.get_mut(&id) else { return false };
        let idle = read.elapsed() > IDLE_MAX;
        if idle && loader.followed {
            self.withdraw(id);
            return false;
        }
        let progress = loader.stream.and_then(|stream| published.progress(stream));
        let lost = !loader.followed || progress.is_some_and(|progress| !progress.following);
        let may_be_told = read > loader.told_at && loader.told_at.elapsed() > TOLD_AGAIN_EVERY;
        let is_due = lost && !idle && !loader.gives_way && may_be_told;
        if is_due {
            loader.told_at = Instant::now();
        }
        is_due
    }
}
