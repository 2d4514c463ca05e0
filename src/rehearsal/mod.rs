//! Rehearsal buffers of a mount: the thread that owns them, and what it is told.
//!
//! 1. The planner's thread passes on each file when it is first read (`offers`), with the bytes that
//!    were fetched for it. It never waits; what the owner is too far behind for (`notes`) is offered
//!    when it is read again.
//! 2. The owner (`owner`) has the bytes of what may be kept fetched where they are not at hand
//!    (`queue`). Each buffer decides in the order of the offers (`held`), and writes what it keeps to
//!    its journal, with the bytes.
//! 3. What a trainer appends to the codes of a buffer is theirs (`latent`), whatever the buffer holds.
//! 4. Views and commands ask the owner; their answers follow, and no request thread waits. What takes
//!    long and needs no owner, copies (`export`) and features (`features`), whoever asks does.
//! 5. What a buffer holds is shown as files ([`views`]): epochs, mixes, sleep sets, slots and streams. The
//!    numbers that a stream's samples have been given are remembered (`bindings`), and what a trainer
//!    makes of samples is kept beside them (`codes`).
//! 6. Samples that slots and streams show next are read ahead of their opens (`ahead`).
//!
//! The rules by which samples are kept and drawn are [`buffer`](crate::buffer)'s.

mod ahead;
mod answers;
mod bindings;
mod codes;
mod displays;
mod doubts;
mod export;
mod features;
mod held;
mod latent;
mod notes;
mod numbered;
mod offers;
mod owner;
mod queue;
mod record;
mod scores;
mod streams;
#[cfg(test)]
mod tests;
pub mod views;

use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::buffer::{Classes, Labels, SleepSet};
use crate::cache::Cache;
use crate::catalog::NodeId;
use crate::config::{DiskSettings, RehearsalSettings, hangs};
use crate::disk::{Directory, Disk, STOP_PATIENCE, ends, unless_it_hangs};
use crate::error::{Error, ErrorKind, Result};
use crate::input::{self, Limits};
use crate::sync::Mutex;
use ahead::Ahead;
pub use bindings::Bindings;
pub use codes::{CodeFile, CodeStore, Shelf};
use held::Held;
use latent::Latent;
use notes::{Arriving, Note, Notes};
pub(crate) use numbered::Numbered;
pub(crate) use offers::Offers;
use owner::{Around, Owner, Place};
use queue::Queue;
use views::{BufferView, Views};

/// Files at most whose bytes could not be had, until the planner's thread has heard of them.
const FAILED_MAX: usize = 1 << 14;

/// How long a command waits for the owner.
const PATIENCE: Duration = Duration::from_secs(60);

/// What a command asks of the owner.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "kebab-case")]
pub enum Question {
    /// How full the buffers are, by class and by task.
    Stats,
    /// What a buffer holds.
    List { buffer: String },
    /// What is known of a sample.
    Show {
        /// The buffer's name.
        buffer: String,
        /// Its path within the dataset, or that of a file of a view.
        path: String,
    },
    /// Copy what a buffer holds to a directory that is not there yet.
    Export {
        /// The buffer's name.
        buffer: String,
        #[serde(with = "crate::paths")]
        directory: PathBuf,
    },
    /// Take what the trainer says of samples.
    Score {
        /// The buffer's name.
        buffer: String,
        /// Lines `path score`, or `path feature feature ...`.
        lines: String,
        /// Whether lines are features.
        features: bool,
    },
    /// Offer files to a buffer.
    Offer {
        buffer: String,
        /// Paths within the dataset, one a line.
        paths: String,
    },
    /// What is offered from now on is of this task.
    Task {
        /// The buffer's name.
        buffer: String,
        /// The task's number.
        task: u32,
        /// Its files and directories within the dataset, one a line; none: all that is offered.
        files: String,
    },
    /// The draws of an epoch from what is held now.
    Draw {
        /// The buffer's name.
        buffer: String,
        epoch: u64,
        count: u64,
    },
    /// Choose a sleep set from what is held now.
    Sleep {
        /// The buffer's name.
        buffer: String,
        set: SleepSet,
    },
}

/// A buffer that is to be opened, and where it lies.
pub(crate) struct Opening {
    pub(crate) settings: RehearsalSettings,
    pub(crate) directory: PathBuf,
    /// The directory of its codes, if it has any.
    pub(crate) latent: Option<PathBuf>,
    /// Bytes of a file of labels for which there is memory.
    pub(crate) memory: usize,
}

/// The owner's thread, from outside.
pub(crate) struct Rehearsal {
    notes: Notes,
    cache: Arc<Cache>,
    closed: Arc<AtomicBool>,
    views: Arc<Views>,
    /// For the one that tells of what was read.
    failed: Mutex<Option<Receiver<NodeId>>>,
    /// Where the dataset is seen at: trainers know their samples by absolute paths.
    points: Arc<Mutex<Vec<PathBuf>>>,
    /// Why nobody sees the views, where that is so.
    hidden: Arc<OnceLock<String>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Rehearsal {
    /// Opens the buffers, and starts their thread. It ends by [`stop`](Self::stop).
    ///
    /// # Errors
    /// Where a buffer or the labels of one cannot be read, or no thread be had.
    pub(crate) fn start(
        buffers: Vec<Opening>,
        cache: &Arc<Cache>,
        disk: &DiskSettings,
    ) -> Result<Self> {
        let places = open_all(buffers, cache, disk)?;
        let (notes, arriving) = notes::notes();
        let closed = Arc::new(AtomicBool::new(false));
        let buffers = places.iter().map(view).collect();
        let views = Views::new(buffers, notes.clone(), Ahead::new());
        let (points, hidden) = <(Arc<Mutex<Vec<PathBuf>>>, Arc<OnceLock<String>>)>::default();
        let (failing, failed) = sync_channel(FAILED_MAX);
        let around = Around {
            cache: Arc::clone(cache),
            views: Arc::clone(&views),
            notes: notes.clone(),
            failed: failing,
            points: Arc::clone(&points),
            hidden: Arc::clone(&hidden),
            buffers_bytes: disk.buffers_bytes,
        };
        let owner = Owner::new(places, around);
        let thread = run(owner, arriving, &closed)?;
        let failed = Mutex::new(Some(failed));
        Ok(Rehearsal {
            notes,
            cache: Arc::clone(cache),
            closed,
            views,
            failed,
            points,
            hidden,
            thread: Mutex::new(Some(thread)),
        })
    }

    /// What tells the owner of files that were read; there is one.
    pub(crate) fn offers(&self) -> Option<Offers> {
        let failed = self.failed.lock().take()?;
        Some(Offers::new(self.notes.clone(), Arc::clone(&self.cache), failed))
    }

    /// The dataset is seen at these places: paths below them are its own.
    pub(crate) fn see_at(&self, points: Vec<PathBuf>) {
        *self.points.lock() = points;
    }

    /// Nobody sees the views in this mount, for this reason. The first one counts.
    pub(crate) fn hide(&self, why: &str) {
        let doubt = format!(
            "no views: {why}; set mount.rehearsal to a directory of yours, and they are there"
        );
        if self.hidden.set(doubt).is_ok() {
            self.hidden.get().into_iter().for_each(|doubt| tracing::warn!("rehearsal: {doubt}"));
        }
    }

    /// The views of the buffers.
    pub(crate) fn views(&self) -> &Arc<Views> {
        &self.views
    }

    /// Asks the owner. Waits for the answer.
    ///
    /// # Errors
    /// What is wrong with the question, and `Timeout` where the owner is busy for very long.
    pub(crate) fn ask(&self, question: Question) -> Result<Value> {
        if let Question::Export { buffer, directory } = &question {
            // It may take long, and the owner has other things to do.
            return self.export(buffer, directory);
        }
        if let Question::Score { buffer, lines, features: true } = question {
            return self.feed(buffer, lines);
        }
        let answer = self.owner(|owner| {
            owner.decide();
            owner.answer(question)
        });
        // It may have come a moment after who asked had given up.
        self.views.lapse();
        answer?
    }

    /// Has the owner do something. Waits for what comes of it.
    ///
    /// # Errors
    /// `Timeout` where the owner is busy for very long.
    fn owner<T: Send + 'static>(
        &self,
        what: impl FnOnce(&mut Owner) -> T + Send + 'static,
    ) -> Result<T> {
        let views = Arc::clone(&self.views);
        let (ask, answered) = answering(what, move || lapse_beside(views));
        let ask = Box::new(ask);
        let ended = |_| Error::new(ErrorKind::Busy, "the mount is ending");
        self.notes.send(Note::Asked { ask }).map_err(ended)?;
        answered.recv_timeout(PATIENCE).map_err(|_| {
            Error::new(ErrorKind::Timeout, "the owner of the rehearsal buffers does not answer")
        })
    }

    /// Ends the thread; what was decided is written. Says whether it has ended.
    pub(crate) fn stop(&self) -> bool {
        self.closed.store(true, Ordering::Relaxed);
        // It may have ended by itself.
        let _ = self.notes.send(Note::Wake);
        ends(self.thread.lock().take(), STOP_PATIENCE, "what was offered last")
    }
}

/// What the owner is asked to do, and where what comes of it arrives. Where nobody waits for that any
/// more, `alone` follows.
fn answering<Of, T>(
    what: impl FnOnce(&mut Of) -> T,
    alone: impl FnOnce(),
) -> (impl FnOnce(&mut Of), Receiver<T>) {
    let (answer, answered) = sync_channel(1);
    let ask = move |of: &mut Of| {
        if answer.send(what(of)).is_err() {
            alone();
        }
    };
    (ask, answered)
}

/// Has names lapse without who asked for what they stand for now: the owner must not wait for that.
fn lapse_beside(views: Arc<Views>) {
    let lapse = move || views.lapse();
    if let Err(error) = std::thread::Builder::new().name("belady-lapse".into()).spawn(lapse) {
        tracing::warn!(%error, "names of views lapse with the next command");
    }
}

fn run(owner: Owner, notes: Arriving, closed: &Arc<AtomicBool>) -> Result<JoinHandle<()>> {
    let closed = Arc::clone(closed);
    let run = move || owner.run(&notes, &closed);
    std::thread::Builder::new().name("belady-rehearse".into()).spawn(run).map_err(|error| {
        Error::new(ErrorKind::Internal, format!("cannot start a thread: {error}"))
            .hint("raise the limit on processes (`ulimit -u`)")
    })
}

/// The labels that classes of a buffer are known by.
fn labels(opening: &Opening) -> Result<Labels> {
    let Classes::Labels(file) = &opening.settings.classes else { return Ok(Labels::default()) };
    let text = input::read(file, &Limits::LABELS.for_daemon(opening.memory));
    let parsed =
        text.and_then(|text| Labels::parse(&text).map_err(|error| error.context(file.display())));
    parsed.map_err(|error| error.context(format!("rehearsal.{}", opening.settings.name)))
}

/// Opens buffers and their codes, unless their disk hangs. What they ask of it later is seen by who
/// looks at the store's calls.
fn open_all(buffers: Vec<Opening>, cache: &Cache, disk: &DiskSettings) -> Result<Vec<Place>> {
    let (min_free, store) = (disk.min_free_bytes, cache.store().cloned());
    // Files of labels are anywhere.
    let labels = buffers.iter().map(labels).collect::<Result<Vec<Labels>>>()?;
    let open_all = move || -> Result<Vec<Place>> {
        let watched = |directory: Directory| -> Arc<dyn Disk> {
            let directory = Arc::new(directory);
            match &store {
                Some(store) => store.beside(directory),
                None => directory,
            }
        };
        let all = buffers.into_iter().zip(labels);
        all.map(|(buffer, labels)| open(buffer, labels, &watched, min_free)).collect()
    };
    unless_it_hangs(open_all)
        .map_err(|error| Error::new(ErrorKind::Internal, format!("thread: {error}")))?
        .unwrap_or_else(|| Err(hangs(&disk.dir)))
}

/// Opens a buffer and its codes.
fn open(
    opening: Opening,
    labels: Labels,
    watched: &dyn Fn(Directory) -> Arc<dyn Disk>,
    min_free: u64,
) -> Result<Place> {
    let Opening { settings, directory, latent, .. } = opening;
    let name = format!("rehearsal.{}", settings.name);
    let cannot = |directory: &Path, error: std::io::Error| {
        let message = format!("{name}: {}: {error}", directory.display());
        Error::new(ErrorKind::Cache, message)
            .hint("move the directory away to begin what is in it anew")
    };
    let disk = |directory: &Path| Directory::open(directory, false).map(watched);
    let codes = latent.map(|directory| {
        let codes = disk(&directory);
        let codes = codes.and_then(|disk| CodeStore::open(disk, settings.latent, min_free));
        codes.map(Latent::new).map_err(|error| cannot(&directory, error))
    });
    let codes = codes.transpose()?;
    let held = disk(&directory).and_then(|disk| Held::open(settings, labels, disk, min_free));
    let held = held.map_err(|error| cannot(&directory, error))?;
    Ok(Place { held, latent: codes, queue: Queue::default(), fits: Cell::default() })
}

/// A buffer as it is served.
fn view(place: &Place) -> BufferView {
    let settings = &place.held.settings;
    BufferView {
        name: settings.name.clone(),
        seed: settings.rules.seed,
        distance: settings.distance,
        slots: settings.slots,
        changes: Arc::clone(&place.held.changes),
        drawn: place.held.drawn(),
        latent: place.latent.as_ref().map(|latent| Arc::clone(latent.shelf())),
    }
}
