//! Finds out orders that were not told: the thread that owns the learner of `crate::learn`.
//!
//! 1. The planner's thread passes on opens by an `OpenObserver`. The observer never waits: opens are dropped if
//!    the learner's thread is too far behind.
//! 2. The learner's `thread` finds the process that each task reads for (`groups`) and does what the learner
//!    decides. It begins and ends `searches`, and gives the planner the orders of `loaders`, each as a stream.
//! 3. An order that was told (`told_orders`) has precedence over a learnt one. As long as it is read as told,
//!    nothing is searched for the loaders that read files of it, and the planner gets no other order for them. But
//!    the learner hears their opens, so that it knows the first epoch if the order turns out to be wrong.
//! 4. What loaders have read is kept in the `journal`, with the local store from mount to mount.
//! 5. A loader that reads nothing for long is not followed until it reads again. If the planner has lost a
//!    loader that still reads, the planner is told the loader's order again.
//! 6. If files came or went, a new learner with new `numberings` takes over as soon as no search runs. The
//!    numbers of files do not change.

mod groups;
mod journal;
mod journal_file;
mod lists;
mod loaders;
mod numberings;
mod searches;
mod streams;
mod thread;
mod told_orders;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::cache::{Arrival, Inbox, Observer};
use crate::catalog::Catalog;
use crate::config::LearnSettings;
use crate::disk::{AtomicFile, STOP_PATIENCE, wait_for_end};
use crate::error::{Error, ErrorKind, Result};
use crate::ids::StreamId;
use crate::learn::{Record, SearchId};
use crate::order::{Order, OrderSpec};
use crate::plan::{Event, Published, StreamStatus};
use crate::source::Source;
use crate::sync::Mutex;
use searches::Slice;
pub(crate) use streams::{LEARNT, StreamInfo, Streams, learnt_stream, stream};
use thread::LearnerThread;

/// How many notes wait for the learner's thread at most.
const NOTES_MAX: usize = 1 << 14;

/// How long an answer of the thread is waited for. It may compare hypotheses for a second.
const PATIENCE: Duration = Duration::from_secs(60);

/// What a loader read, and the name of its program.
pub(crate) type Named = (Record, String);

/// What the learner's thread is told.
enum Note {
    /// Something was opened, this many milliseconds after the start.
    Heard(u64, Event),
    Received {
        stream: StreamId,
        order: Arc<Order>,
    },
    /// An order that a loader on another node reads.
    Suggested {
        order: Arc<Order>,
        spec: OrderSpec,
    },
    /// A stream has no order any more.
    Withdrawn {
        stream: StreamId,
    },
    Slice(Slice),
    /// All slices of a search were gone through.
    Searched {
        generation: u32,
        search: SearchId,
    },
    /// The content of a list that a loader has read.
    Listed {
        path: String,
        text: Vec<u8>,
    },
    /// Asks what loaders have read.
    Records(SyncSender<Vec<Named>>),
    /// The thread is to end.
    Wake,
}

/// A loader, as `status` shows it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct LoaderStatus {
    pub loader: u32,
    /// The process that it reads for.
    pub process: u64,
    /// The name of its program.
    pub program: String,
    /// Number of its current epoch, from 0 for the first that was seen.
    pub epoch: u32,
    /// What is believed of its order, and why, in words.
    pub belief: String,
    /// The order as it would be told, if it can be.
    pub spec: Option<String>,
    /// The epoch of that order that it reads, from 0, and how many samples of it.
    pub spec_epoch: u32,
    pub length: u32,
    /// Whether it is followed in an order that was learnt.
    pub followed: bool,
    /// Whether it reads files of an order that was told, and is read as told.
    pub reads_told: bool,
    /// For how many seconds that has been so.
    pub since_s: u64,
    /// Bits of evidence for the order; 0 if none is believed.
    pub bits: f64,
    /// Bits that are asked for.
    pub needed: f64,
    /// How many opens had been seen when the order of an epoch became known, the last that did.
    pub known_after: Option<u32>,
    /// How many epochs have begun in the very order that had been foreseen for them.
    pub epochs_foreseen: u32,
    /// Whether seeds are being searched.
    pub searching: bool,
    /// Processor seconds that searches have taken.
    pub search_cpu_s: f64,
    /// How often it read something else than the order that it was followed in.
    pub diverged: u32,
    /// While it is followed, the place of its reader, from where the order of its epoch became known, and
    /// how many of its opens were foreseen.
    pub progress: Option<StreamStatus>,
    #[serde(skip)]
    stream: Option<StreamId>,
}

/// What the learner's thread works with.
pub(crate) struct Surroundings {
    pub(crate) source: Arc<dyn Source>,
    pub(crate) catalog: Arc<Catalog>,
    pub(crate) inbox: Arc<Inbox>,
    pub(crate) streams: Streams,
    pub(crate) published: Arc<Mutex<Published>>,
    /// The file of the journal, if there is a local store.
    pub(crate) journal: Option<AtomicFile>,
}

impl Surroundings {
    pub(crate) fn new(
        catalog: &Arc<Catalog>,
        source: &Arc<dyn Source>,
        inbox: &Arc<Inbox>,
        streams: &Streams,
        published: &Arc<Mutex<Published>>,
        journal: Option<AtomicFile>,
    ) -> Self {
        Surroundings {
            source: Arc::clone(source),
            catalog: Arc::clone(catalog),
            inbox: Arc::clone(inbox),
            streams: Arc::clone(streams),
            published: Arc::clone(published),
            journal,
        }
    }
}

/// What the thread has published.
#[derive(Default)]
struct Status {
    loaders: Vec<LoaderStatus>,
    /// By stream whose order is not read as told, what would be right.
    fixes: BTreeMap<StreamId, String>,
    journal: Option<String>,
}

/// The learner's thread, from outside.
pub(crate) struct Learning {
    notes: SyncSender<Note>,
    closed: Arc<AtomicBool>,
    started: Instant,
    status: Arc<Mutex<Status>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Learning {
    /// Starts the thread. It ends by [`stop`](Self::stop).
    ///
    /// # Errors
    /// If no thread can be started.
    pub(crate) fn start(settings: LearnSettings, around: Surroundings) -> Result<Self> {
        let (notes, received) = sync_channel(NOTES_MAX);
        let closed = Arc::new(AtomicBool::new(false));
        let (started, status) = (Instant::now(), Arc::new(Mutex::default()));
        let (to, shown) = (notes.clone(), Arc::clone(&status));
        let learner = LearnerThread::new(settings, around, to, shown, started);
        let is_closed = Arc::clone(&closed);
        let run = move || learner.run(&received, &is_closed);
        let thread = std::thread::Builder::new().name("belady-learn".into()).spawn(run);
        let thread = thread.map_err(|error| {
            Error::new(ErrorKind::Internal, format!("cannot start a thread: {error}"))
                .hint("raise the limit on processes (`ulimit -u`)")
        })?;
        let thread = Mutex::new(Some(thread));
        Ok(Learning { notes, closed, started, status, thread })
    }

    pub(crate) fn observer(&self) -> OpenObserver {
        OpenObserver { notes: self.notes.clone(), started: self.started }
    }

    pub(crate) fn received(&self, stream: StreamId, order: &Arc<Order>) {
        // Waits if the thread is far behind. It may have ended.
        let _ = self.notes.send(Note::Received { stream, order: Arc::clone(order) });
    }

    /// A loader on another node reads this order. Others of the same job may read other parts of it.
    pub(crate) fn suggest(&self, order: Order, spec: OrderSpec) {
        // If the thread is far behind, it has enough to do.
        let _ = self.notes.try_send(Note::Suggested { order: Arc::new(order), spec });
    }

    /// A stream has no order any more.
    pub(crate) fn withdrawn(&self, stream: StreamId) {
        let _ = self.notes.send(Note::Withdrawn { stream });
    }

    /// What is known of each loader; `progress` gives the places of streams.
    pub(crate) fn loaders(
        &self,
        progress: impl Fn(StreamId) -> Option<StreamStatus>,
    ) -> Vec<LoaderStatus> {
        let mut loaders = self.status.lock().loaders.clone();
        for loader in &mut loaders {
            loader.progress = loader.stream.and_then(&progress);
        }
        loaders
    }

    /// What would be right in place of the order that a stream was told, in words, if that is known.
    pub(crate) fn fix(&self, stream: StreamId) -> Option<String> {
        self.status.lock().fixes.get(&stream).cloned()
    }

    /// What was found in the journal of earlier mounts, in words.
    pub(crate) fn journal(&self) -> Option<String> {
        self.status.lock().journal.clone()
    }

    /// What is remembered of each loader that has read, with the name of its program.
    ///
    /// # Errors
    /// If the thread is busy for too long, or has ended.
    pub(crate) fn records(&self) -> Result<Vec<Named>> {
        let (answer, records) = sync_channel(1);
        // If it cannot be sent, no answer comes.
        let _ = self.notes.send(Note::Records(answer));
        let late = |_| Error::new(ErrorKind::Timeout, "the learner's thread does not answer");
        records.recv_timeout(PATIENCE).map_err(late)
    }

    /// Ends the thread and all searches. Says whether it has ended.
    pub(crate) fn stop(&self) -> bool {
        self.closed.store(true, Ordering::Relaxed);
        // If the channel is full, the thread wakes anyway.
        let _ = self.notes.try_send(Note::Wake);
        wait_for_end(self.thread.lock().take(), STOP_PATIENCE, "what was learnt last")
    }
}

/// Passes opens on to the learner's thread.
pub(crate) struct OpenObserver {
    notes: SyncSender<Note>,
    started: Instant,
}

impl Observer for OpenObserver {
    fn observe(&mut self, event: &Event, _arrival: Option<&Arrival>, _says: &mut Vec<Event>) {
        let heard = match *event {
            // It may be the only sign that the file was opened.
            Event::Touched { task, file } => Event::Seen { task, file },
            Event::Seen { .. }
            | Event::Opened { .. }
            | Event::Missed { .. }
            | Event::Part { .. } => event.clone(),
            _ => return,
        };
        let at_ms = self.started.elapsed().as_millis() as u64;
        // If there is no room, the open is not learnt from.
        let _ = self.notes.try_send(Note::Heard(at_ms, heard));
    }
}
