//! Rehearsal buffers of a mount: they keep samples of earlier tasks, and show them again as files.
//!
//! One thread, the *owner*, decides everything about the buffers. Other threads send it notes (`notes`).
//!
//! 1. The planner's thread tells the owner when a file is first read (`offers`), with the bytes that were
//!    fetched. It never waits. If the owner is too far behind, the file is offered at its next read.
//! 2. The owner (`owner`) fetches missing bytes of files that may be kept (`queue`). Each buffer decides in
//!    the order of the offers (`held`), and writes the samples that it keeps to its journal.
//! 3. Views and commands ask the owner, and no request thread waits for its answer. Copying samples
//!    (`export`) and making scores of features (`features`) take long, so the asking thread does them.
//! 4. Held samples are shown as files ([`views`]): epochs, mixes, sleep sets, slots and streams. The ordinals
//!    of a stream's samples are remembered on the disk (`bindings`).
//! 5. Samples that slots and streams show next are read before they are opened (`ahead`).
//! 6. A trainer may keep codes beside a buffer: what its network made of samples (`codes`, `latent`). They do
//!    not depend on the samples that the buffer holds.
//!
//! The rules by which samples are kept and drawn are in [`buffer`](crate::buffer).

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

/// How many files with unreadable bytes may wait until the planner's thread hears of them.
const FAILED_MAX: usize = 1 << 14;

/// How long a command waits for the owner.
const PATIENCE: Duration = Duration::from_secs(60);

/// A command's question. `buffer` is the name of a buffer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "kebab-case")]
pub enum Question {
    /// How full the buffers are.
    Stats,
    /// The samples that a buffer holds.
    List { buffer: String },
    /// What is known of one sample.
    Show {
        buffer: String,
        /// A path within the dataset, or of a file of a view.
        path: String,
    },
    /// Copy the samples of a buffer to a new directory.
    Export {
        buffer: String,
        #[serde(with = "crate::paths")]
        directory: PathBuf,
    },
    /// Take scores or features of samples.
    Score {
        buffer: String,
        /// Lines `path score`, or `path feature feature ...`.
        lines: String,
        features: bool,
    },
    Offer {
        buffer: String,
        /// Paths within the dataset, one a line.
        paths: String,
    },
    /// Begin a task, to which all later offers belong.
    Task {
        buffer: String,
        task: u32,
        /// Its files and directories within the dataset, one a line. None: all offered files.
        files: String,
    },
    /// The draws of an epoch from the samples that are held.
    Draw {
        buffer: String,
        epoch: u64,
        /// How many of the first draws.
        count: u64,
    },
    /// Choose a sleep set from the samples that are held.
    Sleep {
        buffer: String,
        /// How many samples, and by which rule.
        set: SleepSet,
    },
}

/// A buffer that is to be opened.
pub(crate) struct Opening {
    pub(crate) settings: RehearsalSettings,
    pub(crate) directory: PathBuf,
    /// The directory of its codes, if it has any.
    pub(crate) latent: Option<PathBuf>,
    /// The limit for a file of labels, by the memory that there is.
    pub(crate) memory: usize,
}

/// The rehearsal buffers as other threads see them.
pub(crate) struct Rehearsal {
    notes: Notes,
    cache: Arc<Cache>,
    closed: Arc<AtomicBool>,
    views: Arc<Views>,
    /// Receives files whose bytes could not be read, for [`Rehearsal::offers`].
    failed: Mutex<Option<Receiver<NodeId>>>,
    /// Where the dataset is seen: trainers know samples by absolute paths below these places.
    points: Arc<Mutex<Vec<PathBuf>>>,
    /// Why there are no views to be seen, if that is so.
    hidden: Arc<OnceLock<String>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Rehearsal {
    /// Opens the buffers and starts the owner's thread, which [`stop`](Self::stop) ends.
    ///
    /// # Errors
    /// If a buffer or a file of labels cannot be read, or if no thread can be started.
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

    /// The observer that tells the owner of files that were read. Only the first call gives one.
    pub(crate) fn offers(&self) -> Option<Offers> {
        let failed = self.failed.lock().take()?;
        Some(Offers::new(self.notes.clone(), Arc::clone(&self.cache), failed))
    }

    /// Says where the dataset is seen.
    pub(crate) fn see_at(&self, points: Vec<PathBuf>) {
        *self.points.lock() = points;
    }

    /// Says why the views cannot be seen in this mount. Only the first call counts.
    pub(crate) fn hide(&self, why: &str) {
        let doubt = format!(
            "no views: {why}; set mount.rehearsal to a directory of yours, and they are there"
        );
        if self.hidden.set(doubt).is_ok() {
            self.hidden.get().into_iter().for_each(|doubt| tracing::warn!("rehearsal: {doubt}"));
        }
    }

    pub(crate) fn views(&self) -> &Arc<Views> {
        &self.views
    }

    /// Asks the owner, and waits for the answer.
    ///
    /// # Errors
    /// Those of the question, and `Timeout` if the owner does not answer for a minute.
    pub(crate) fn ask(&self, question: Question) -> Result<Value> {
        if let Question::Export { buffer, directory } = &question {
            // It takes long, so the owner must not do it.
            return self.export(buffer, directory);
        }
        if let Question::Score { buffer, lines, features: true } = question {
            return self.feed(buffer, lines);
        }
        let answer = self.owner(|owner| {
            owner.decide();
            owner.answer(question)
        });
        // Also after a timeout: the owner may have answered a moment later.
        self.views.lapse();
        answer?
    }

    /// Has the owner do something, and waits for the result.
    ///
    /// # Errors
    /// `Timeout` if the owner does not answer for a minute.
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

    /// Ends the owner's thread after it has written everything. Returns whether it has ended.
    pub(crate) fn stop(&self) -> bool {
        self.closed.store(true, Ordering::Relaxed);
        let _ = self.notes.send(Note::Wake);
        ends(self.thread.lock().take(), STOP_PATIENCE, "what was offered last")
    }
}

/// Gives a call for the owner, and the receiver of its result. If the receiver is gone by then, the call ends
/// with `alone`.
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

/// Has a new thread look up changed names of views again. The asking thread is gone, and the owner must not
/// wait for lookups.
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

/// The labels of a buffer's classes, if a file gives them.
fn labels(opening: &Opening) -> Result<Labels> {
    let Classes::Labels(file) = &opening.settings.classes else { return Ok(Labels::default()) };
    let text = input::read(file, &Limits::LABELS.for_daemon(opening.memory));
    let parsed =
        text.and_then(|text| Labels::parse(&text).map_err(|error| error.context(file.display())));
    parsed.map_err(|error| error.context(format!("rehearsal.{}", opening.settings.name)))
}

/// Opens all buffers and their codes. It is an error if their disk hangs. Later calls of the disk are watched
/// together with the store's.
fn open_all(buffers: Vec<Opening>, cache: &Cache, disk: &DiskSettings) -> Result<Vec<Place>> {
    let (min_free, store) = (disk.min_free_bytes, cache.store().cloned());
    // Files of labels may be on any disk, so they are not read under the watch for the cache disk.
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

/// The buffer as views serve it.
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
