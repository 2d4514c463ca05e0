//! Rehearsal buffers of a mount: they keep samples of earlier tasks, and show them again as files.
//!
//! One thread, the *buffer thread*, owns what is kept. Other threads send it notes (`notes`). Slots and streams
//! choose in [`views`] which of the kept samples is shown.
//!
//! 1. A file that is first read is *offered* to each buffer that takes it: the planner's thread sends a note
//!    (`read_observer`), with the bytes if they are at hand. It never waits. If the buffer thread is too far
//!    behind, the file is offered at its next read.
//! 2. Each buffer decides about its offers in their order (`open_buffer`). It writes a record of each offer to
//!    its journal, with the bytes if the sample may be kept (`journaled`). Missing bytes are fetched before
//!    (`queue`).
//! 3. Views and commands ask the buffer thread, and no request thread waits for its answer. Copying samples
//!    (`export`) and making scores of features (`features`) take long, so the command's thread does them.
//! 4. Kept samples are shown as files ([`views`]): epochs, mixes, sleep sets, slots and streams. A stream
//!    numbers its samples. These numbers, the *ordinals*, are stored on the disk (`bindings`).
//! 5. Samples that slots and streams show next are read before they are opened (`read_ahead`).
//! 6. In a cluster, views show what the buffers of all nodes keep (`joint`).
//! 7. A trainer may keep codes beside a buffer: what its network made of samples (`codes`, `buffer_codes`).
//!    A code stays when its sample leaves the buffer.
//!
//! The rules by which samples are kept and drawn are in [`buffer`](crate::buffer).

mod answers;
mod bindings;
mod buffer_codes;
mod buffer_thread;
mod codes;
mod export;
mod features;
mod joint;
mod journaled;
mod notes;
mod open_buffer;
mod paths;
mod queue;
mod read_ahead;
mod read_observer;
mod record;
mod reports;
mod scores;
mod snapshots;
#[cfg(test)]
mod tests;
mod view_listing;
pub mod views;

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::buffer::SleepSet;
use crate::cache::Cache;
use crate::catalog::NodeId;
use crate::config::DiskSettings;
use crate::disk::{STOP_PATIENCE, wait_for_end};
use crate::error::{Error, ErrorKind, Result};
use crate::fs::VIEWS_NAME;
use crate::peers::Wants;
use crate::sync::Mutex;
use answers::buffer_named;
pub use bindings::Bindings;
use buffer_thread::BufferThread;
pub use codes::{CodeFile, CodeReader, CodeStore};
use features::KnownFeatures;
use joint::JointBuffers;
pub use joint::RemoteSample;
use notes::{Note, NoteReceiver, Notes};
pub(crate) use open_buffer::BufferToOpen;
use open_buffer::OpenBuffer;
use paths::Paths;
pub(crate) use read_observer::ReadObserver;
pub use reports::{
    BufferReport, CodeReport, ExportReport, JointReport, MissedNotes, OfferReport, Refusals,
    SampleReport, SleepReport,
};
pub use scores::ScoreCounts;
pub(crate) use view_listing::ViewListing;
use views::{View, Views};

/// How many files with unreadable bytes may wait until the planner's thread hears of them.
const FAILED_MAX: usize = 1 << 14;

/// How long a command waits for the buffer thread.
const PATIENCE: Duration = Duration::from_secs(60);

/// A command's question. `buffer` is the name of a buffer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "kebab-case")]
pub enum Question {
    /// How full the buffers are.
    Stats,
    /// The samples that a buffer holds.
    List { buffer: String },
    /// What is known of one sample. Its path is within the dataset, or of a file of a view.
    Show { buffer: String, path: String },
    /// Copy the samples of a buffer to a new directory.
    Export {
        buffer: String,
        #[serde(with = "crate::paths")]
        directory: PathBuf,
    },
    /// Take scores or features of samples: lines `path score`, or `path feature feature ...`.
    Score { buffer: String, lines: String, features: bool },
    /// Offer files: paths within the dataset, one a line.
    Offer { buffer: String, paths: String },
    /// Begin a task, to which all later offers belong. Its files and directories are paths within the
    /// dataset, one a line. None: all offered files.
    Task { buffer: String, task: u32, files: String },
    /// The first draws of an epoch from the samples that are held.
    Draw { buffer: String, epoch: u64, count: u64 },
    /// Choose a sleep set from the samples that are held.
    Sleep { buffer: String, set: SleepSet },
}

/// The rehearsal buffers as other threads see them.
pub(crate) struct Rehearsal {
    notes: Notes,
    cache: Arc<Cache>,
    closed: Arc<AtomicBool>,
    views: Arc<Views>,
    /// Receives files whose bytes could not be read, for [`Rehearsal::read_observer`].
    failed: Mutex<Option<Receiver<NodeId>>>,
    /// Where the dataset is seen: trainers know samples by absolute paths below these places.
    dataset_roots: Arc<Mutex<Vec<PathBuf>>>,
    /// Why there are no views to be seen, if that is so.
    hidden: Arc<OnceLock<String>>,
    /// The names of the buffers, by number. `None` if a buffer is not shared with other nodes.
    shared: Vec<Option<Arc<str>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Rehearsal {
    /// Opens the buffers and starts the buffer thread, which [`stop`](Self::stop) ends.
    ///
    /// # Errors
    /// If a buffer or a file of labels cannot be read, or if no thread can be started.
    pub(crate) fn start(
        buffers: Vec<BufferToOpen>,
        cache: &Arc<Cache>,
        disk: &DiskSettings,
    ) -> Result<Self> {
        let buffers = OpenBuffer::open_all(buffers, cache, disk)?;
        let (notes, receiver) = notes::notes();
        let shared = buffers.iter().map(OpenBuffer::shared_name).collect();
        let closed = Arc::new(AtomicBool::new(false));
        let views = Views::new(buffers.iter().map(OpenBuffer::served).collect(), notes.clone());
        let dataset_roots = Arc::<Mutex<Vec<PathBuf>>>::default();
        let hidden = Arc::<OnceLock<String>>::default();
        let (failing, failed) = sync_channel(FAILED_MAX);
        let paths = Paths {
            cache: Arc::clone(cache),
            views: Arc::clone(&views),
            dataset_roots: Arc::clone(&dataset_roots),
        };
        let state = BufferThread {
            buffers,
            paths,
            notes: notes.clone(),
            failed: failing,
            hidden: Arc::clone(&hidden),
            buffers_bytes: disk.buffers_bytes,
            sleep_sets_made: 0,
        };
        Ok(Rehearsal {
            notes,
            cache: Arc::clone(cache),
            closed: Arc::clone(&closed),
            views,
            failed: Mutex::new(Some(failed)),
            dataset_roots,
            hidden,
            shared,
            thread: Mutex::new(Some(run(state, receiver, closed)?)),
        })
    }

    /// The observer that tells the buffer thread of files that were read. Only the first call gives one.
    pub(crate) fn read_observer(&self) -> Option<ReadObserver> {
        let failed = self.failed.lock().take()?;
        Some(ReadObserver::new(self.notes.clone(), Arc::clone(&self.cache), failed))
    }

    pub(crate) fn set_dataset_roots(&self, roots: Vec<PathBuf>) {
        *self.dataset_roots.lock() = roots;
    }

    /// Says why the views cannot be seen in this mount. Only the first call counts.
    pub(crate) fn hide(&self, why: &str) {
        let warning = format!(
            "no views: {why}; set mount.rehearsal to a directory of yours, and they are there"
        );
        if self.hidden.set(warning.clone()).is_ok() {
            tracing::warn!("rehearsal: {warning}");
        }
    }

    /// Shows the samples that all nodes of a cluster keep. Only the first call counts.
    pub(crate) fn join(&self, wants: &Arc<dyn Wants>) {
        let joint = JointBuffers::new(self.shared.clone(), self.notes.clone(), &self.cache, wants);
        self.views.join(joint);
    }

    pub(crate) fn views(&self) -> &Arc<Views> {
        &self.views
    }

    /// Asks the buffer thread, and waits for the answer.
    ///
    /// # Errors
    /// Those of the question, and `Timeout` if the buffer thread does not answer for a minute.
    pub(crate) fn ask(&self, question: Question) -> Result<Value> {
        match question {
            // These take long, so the buffer thread must not do them.
            Question::Export { buffer, directory } => {
                export::export(&self.views, &self.notes, &buffer, &directory)
            }
            Question::Score { buffer, lines, features: true } => self.take_features(buffer, lines),
            Question::Draw { buffer, epoch, count } if self.joint(&buffer).is_some() => {
                self.draw_of_all(&buffer, epoch, count)
            }
            question => {
                let answer = self.ask_thread(|thread| {
                    thread.decide();
                    answers::answer(thread, question)
                });
                // Also after a timeout: the buffer thread may have answered a moment later.
                self.views.snapshots.invalidate_names();
                answer?
            }
        }
    }

    /// The buffers of all nodes, and the number of the one with this name, if it is shared.
    fn joint(&self, buffer: &str) -> Option<(&Arc<JointBuffers>, usize)> {
        let number = self.views.buffer(buffer)?;
        Some((self.views.joint(number)?, number))
    }

    /// The first draws of an epoch from the samples of all nodes. Blocks.
    fn draw_of_all(&self, buffer: &str, epoch: u64, count: u64) -> Result<Value> {
        answers::check_bound("--count", count)?;
        let (joint, number) = self.joint(buffer).ok_or_else(ending)?;
        joint.draw(number, epoch, count).map_err(|_| ending())
    }

    /// Takes scores that are made of lines `path feature feature ...`. If a feature is not finite, or has
    /// another dimension than the first, no line is taken. Blocks, perhaps for long.
    fn take_features(&self, buffer: String, lines: String) -> Result<Value> {
        let name = buffer.clone();
        let known = self.ask_thread(move |thread| {
            thread.decide();
            KnownFeatures::read(buffer_named(&mut thread.buffers, &name)?, &thread.paths, &lines)
        })??;
        let scores = known.scores()?;
        self.ask_thread(move |thread| {
            let buffer = buffer_named(&mut thread.buffers, &buffer)?.writable()?;
            for (sample, score) in scores {
                // A sample that has left the buffer needs no score.
                let _ = buffer.score(sample, score);
            }
            Ok(json!(known.counts))
        })?
    }

    /// The files of the view at a path below the mount point. Makes the view if it is not made yet. None if
    /// the path names no view. Waits for the buffer thread.
    pub(crate) fn view_listing(&self, root: &str) -> Option<ViewListing> {
        let root = root.trim_start_matches("./").trim_matches('/');
        let (name, view) = root.strip_prefix(VIEWS_NAME)?.strip_prefix('/')?.split_once('/')?;
        let (buffer, view) = (self.views.buffer(name)?, View::parse(view)?);
        let make = || {
            let made = view_listing::make_view(&self.views, buffer, view)?;
            made.recv_timeout(PATIENCE).ok()
        };
        let snapshot = self.views.snapshots.of_view(buffer, view).or_else(make)?;
        Some(ViewListing::new(root, &snapshot))
    }

    /// Has the buffer thread do something, and waits for the result.
    ///
    /// # Errors
    /// `Timeout` if the buffer thread does not answer for a minute.
    fn ask_thread<T: Send + 'static>(
        &self,
        what: impl FnOnce(&mut BufferThread) -> T + Send + 'static,
    ) -> Result<T> {
        let views = Arc::clone(&self.views);
        let (ask, answered) = answering(what, move || invalidate_beside(views));
        self.notes.send(Note::Ask { ask: Box::new(ask) }).map_err(|_| ending())?;
        answered.recv_timeout(PATIENCE).map_err(|_| {
            Error::new(ErrorKind::Timeout, "the owner of the rehearsal buffers does not answer")
        })
    }

    /// Ends the buffer thread after it has written everything. Returns whether it has ended.
    pub(crate) fn stop(&self) -> bool {
        self.closed.store(true, Ordering::Relaxed);
        let _ = self.notes.send(Note::Wake);
        wait_for_end(self.thread.lock().take(), STOP_PATIENCE, "what was offered last")
    }
}

fn ending() -> Error {
    Error::new(ErrorKind::Busy, "the mount is ending")
}

/// Gives a call for the buffer thread, and the receiver of its result. If the receiver is dropped by then,
/// the call ends with `alone`.
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

/// Has a new thread look up changed names of views again. The asking thread has given up, and the buffer
/// thread must not wait for lookups.
fn invalidate_beside(views: Arc<Views>) {
    let invalidate = move || views.snapshots.invalidate_names();
    if let Err(error) = std::thread::Builder::new().name("belady-lapse".into()).spawn(invalidate) {
        tracing::warn!(%error, "names of views lapse with the next command");
    }
}

fn run(
    state: BufferThread,
    notes: NoteReceiver,
    closed: Arc<AtomicBool>,
) -> Result<JoinHandle<()>> {
    let run = move || state.run(&notes, &closed);
    std::thread::Builder::new().name("belady-rehearse".into()).spawn(run).map_err(|error| {
        Error::new(ErrorKind::Internal, format!("cannot start a thread: {error}"))
            .hint("raise the limit on processes (`ulimit -u`)")
    })
}
