//! Orders that nobody tells, found out: the thread that owns the learner of `crate::learn`.
//!
//! 1. The planner's thread passes on what it hears of opens, by a `LearnObserver`: it never waits, and what
//!    the learner's thread is too far behind for is dropped.
//! 2. The thread says for which process each task reads (`groups`), has the learner think, and
//!    does what that decides: it begins and ends `searches`, and gives the planner the orders of
//!    loaders, each as a stream of its own.
//! 3. A received order goes before a learnt one, and is the first that the learner suspects. As long
//!    as it is read as it was told, nothing is searched for its readers, and the planner is given no
//!    other order for them; but the learner hears all of them. So it knows their first epoch when
//!    the order turns out to be wrong, and then goes on in its place.
//! 4. What loaders have read is kept in the `journal`, with the local store from mount to mount.
//! 5. Who reads nothing for long is followed no more until it does; and where the planner has lost
//!    a reader that the learner follows, it is told again where that is.
//! 6. It begins anew where the dataset has other files than when the `candidates` were made, and
//!    nobody is followed or searched for: the files that there were keep their numbers.

mod groups;
mod journal;
mod lists;
mod numberings;
mod saved;
mod searches;
mod streams;
mod thread;

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
use crate::learn::{Finding, LoaderId, Record, SearchId};
use crate::order::Order;
use crate::plan::{Event, Published, StreamStatus};
use crate::source::Source;
use crate::sync::Mutex;
pub(crate) use streams::{LEARNT, StreamInfo, Streams, learnt_stream, stream};
use thread::Owner;

/// How many notes wait for the learner's thread at most.
const NOTES_MAX: usize = 1 << 14;

/// How long is waited for what the thread knows; a search for suspects takes a second at most.
const PATIENCE: Duration = Duration::from_secs(60);

/// What a loader read, and the name of its program.
pub(crate) type Named = (Record, String);

/// What the learner's thread is told.
enum Note {
    /// Something was opened, at so many milliseconds since the start.
    Heard(u64, Event),
    Received {
        stream: StreamId,
        order: Arc<Order>,
    },
    /// A stream has no order any more.
    Withdrawn {
        stream: StreamId,
    },
    /// A slice of a search was gone through.
    Slice {
        generation: u32,
        search: SearchId,
        loader: LoaderId,
        /// The process that it reads for.
        group: u64,
        findings: Vec<Finding>,
        cpu: Duration,
        /// Seeds a second on this thread, where all seeds are searched.
        speed: Option<f64>,
    },
    /// All slices of a search were.
    Searched {
        generation: u32,
        search: SearchId,
    },
    /// What stands in a list that a loader has read.
    Listed {
        path: String,
        text: Vec<u8>,
    },
    /// What loaders have read is asked for.
    Records(SyncSender<Vec<Named>>),
    /// There is something to look at: the end.
    Wake,
}

/// A loader of whose order nobody told.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct LoaderStatus {
    pub loader: u32,
    /// The process that it reads for.
    pub process: u64,
    /// The name of that process's program.
    pub program: String,
    /// Number of its current epoch, from 0 for the first that was seen.
    pub epoch: u32,
    /// What is believed of its order, and why, in words.
    pub belief: String,
    /// The order as it would be told, if it is known and can be.
    pub spec: Option<String>,
    /// Whether it is followed in an order that was learnt.
    pub followed: bool,
    /// Whether it reads files of an order that was told, and is read as told.
    pub reads_told: bool,
    /// For how many seconds that has been so.
    pub since_s: u64,
    /// Bits of evidence for the order; 0 where none is believed.
    pub bits: f64,
    /// Bits that are asked for.
    pub needed: f64,
    /// Opens of the epoch that had been seen when its order became known, of the last epoch for
    /// which it did.
    pub known_after: Option<u32>,
    /// How many epochs have begun in the very order that had been foretold for them.
    pub epochs_foreseen: u32,
    /// Whether seeds are being searched.
    pub searching: bool,
    /// Processor seconds that searches have taken.
    pub search_cpu_s: f64,
    /// How often it read something else than the order that it was followed in.
    pub diverged: u32,
    /// Where its reader stands, counted from where the order of its epoch became known, and how
    /// many of its opens were foreseen since it is followed. None while it is not.
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
    /// Where the journal is kept, if there is a local store.
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

/// What the thread last said of itself.
#[derive(Default)]
struct Told {
    loaders: Vec<LoaderStatus>,
    /// By stream whose order is not read as it was told, what would be right.
    fixes: BTreeMap<StreamId, String>,
    /// What was found in the journal.
    journal: Option<String>,
}

/// The learner's thread, from outside.
pub(crate) struct Learning {
    notes: SyncSender<Note>,
    closed: Arc<AtomicBool>,
    started: Instant,
    told: Arc<Mutex<Told>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Learning {
    /// Starts the thread. It ends by [`stop`](Self::stop).
    ///
    /// # Errors
    /// Where no thread can be had.
    pub(crate) fn start(settings: LearnSettings, around: Surroundings) -> Result<Self> {
        let (notes, received) = sync_channel(NOTES_MAX);
        let closed = Arc::new(AtomicBool::new(false));
        let (started, told) = (Instant::now(), Arc::new(Mutex::default()));
        let owner = Owner::new(settings, around, notes.clone(), Arc::clone(&told), started);
        let is_closed = Arc::clone(&closed);
        let run = move || owner.run(&received, &is_closed);
        let thread = std::thread::Builder::new().name("belady-learn".into()).spawn(run);
        let thread = thread.map_err(|error| {
            Error::new(ErrorKind::Internal, format!("cannot start a thread: {error}"))
                .hint("raise the limit on processes (`ulimit -u`)")
        })?;
        let thread = Mutex::new(Some(thread));
        Ok(Learning { notes, closed, started, told, thread })
    }

    /// What tells the thread of opens.
    pub(crate) fn observer(&self) -> LearnObserver {
        LearnObserver { notes: self.notes.clone(), started: self.started }
    }

    pub(crate) fn received(&self, stream: StreamId, order: &Arc<Order>) {
        // Waits where the thread is far behind. It may have ended.
        let _ = self.notes.send(Note::Received { stream, order: Arc::clone(order) });
    }

    /// A stream has no order any more.
    pub(crate) fn withdrawn(&self, stream: StreamId) {
        let _ = self.notes.send(Note::Withdrawn { stream });
    }

    /// What is known of each loader; where streams stand is said by `progress`.
    pub(crate) fn loaders(
        &self,
        progress: impl Fn(StreamId) -> Option<StreamStatus>,
    ) -> Vec<LoaderStatus> {
        let mut loaders = self.told.lock().loaders.clone();
        for loader in &mut loaders {
            loader.progress = loader.stream.and_then(&progress);
        }
        loaders
    }

    /// What would be right in place of the order that a stream was told, in words, where that is known.
    pub(crate) fn fix(&self, stream: StreamId) -> Option<String> {
        self.told.lock().fixes.get(&stream).cloned()
    }

    /// What was found in the journal of earlier mounts, in words; none where there was none.
    pub(crate) fn journal(&self) -> Option<String> {
        self.told.lock().journal.clone()
    }

    /// What is remembered of each loader that has read, with the name of its program.
    ///
    /// # Errors
    /// Where the thread is busy for too long, or has ended.
    pub(crate) fn records(&self) -> Result<Vec<Named>> {
        let (answer, records) = sync_channel(1);
        // If it cannot be sent, nothing comes back.
        let _ = self.notes.send(Note::Records(answer));
        let late = |_| Error::new(ErrorKind::Timeout, "the learner's thread does not answer");
        records.recv_timeout(PATIENCE).map_err(late)
    }

    /// Ends the thread and all searches. Says whether it has ended.
    pub(crate) fn stop(&self) -> bool {
        self.closed.store(true, Ordering::Relaxed);
        // Where it is full, the thread has something to wake up for.
        let _ = self.notes.try_send(Note::Wake);
        wait_for_end(self.thread.lock().take(), STOP_PATIENCE, "what was learnt last")
    }
}

/// Tells the learner's thread of opens.
pub(crate) struct LearnObserver {
    notes: SyncSender<Note>,
    started: Instant,
}

impl Observer for LearnObserver {
    /// Passes on what is an open, or looks like one.
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
        // What there is no room for is not learnt from.
        let _ = self.notes.try_send(Note::Heard(at_ms, heard));
    }
}
