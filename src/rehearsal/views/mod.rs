//! The views of rehearsal buffers: samples that a buffer holds, as directories of plain files.
//!
//! ```text
//! NAME/                   one buffer
//!     epoch-K/CLASS/FILE  what it held when epoch K of a told order began, or when it was first
//!                         looked at; it stays like that
//!     mix-K/CLASS/FILE    the samples of the task, as links into the dataset, and draws of epoch K;
//!                         another directory for each task
//!     mix/CLASS/FILE      the same for all epochs of the task
//!     sleep-N/CLASS/FILE  a sleep set that a command chose
//!     slots/CLASS/NNNN    names behind which each opening finds a fresh sample
//!     slots/NNNN          the same, of any class
//!     stream/K/NNNNNN     what it held when it was first looked at; an ordinal gets the next ready
//!                         sample when it is looked up
//!     scores              takes lines `path score`
//!     latent/ID           a code that a trainer made of a sample
//!     latent/all          all codes, in the order of latent/ids
//!     latent/append       takes codes
//! ```
//!
//! A request that needs the owner is answered when the owner has answered, and no thread waits for that.
//! Requests that need the disk are done by threads that may wait (`waits`). Nothing here knows FUSE.

mod damage;
mod display;
mod kept;
mod latent;
mod names;
mod place;
mod slots;
mod streams;
#[cfg(test)]
mod tests;
mod waits;

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use nix::errno::Errno;

use super::ahead::Ahead;
use super::notes::{Note, Notes};
use crate::catalog::FOR_EVER;
use crate::disk::journal::Pinned;
use crate::fs::{Access, Rights};
use crate::source::Pool;
use crate::sync::Mutex;
use display::STREAMS;
pub use display::{Content, Display, Exhibit, Sample, View};
use kept::State;
pub use latent::Appended;
use place::Place;
pub use place::ROOT;
pub use slots::BufferView;
use slots::{Dealt, Slots};
pub use waits::Awaited;

/// Takes a display, unless it could not be made.
pub type Made = Box<dyn FnOnce(Option<Display>) + Send>;

/// Takes the error, if lines were refused.
pub type Scored = Box<dyn FnOnce(Option<Errno>) + Send>;

/// Has a name in the directory of this node looked up again. May block.
pub type Lapse = Arc<dyn Fn(u64, &str) + Send + Sync>;

pub type Synced = Box<dyn FnOnce(Result<(), Errno>) + Send>;

/// Samples that a stream shows next, or the slots of a buffer or class.
pub struct Upcoming {
    /// The number of the stream or slots. It is unique.
    pub by: u64,
    /// The soonest first.
    pub next: Vec<Arc<Sample>>,
}

/// A node, as the kernel is told of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    pub node: u64,
    pub kind: EntryKind,
    /// Whether the name leads to it for longer than one lookup.
    pub lasting: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryKind {
    Directory,
    /// A sample: its size, and who may read it.
    File(u64, Access),
    /// A link: the length of its target.
    Link(u64),
    /// A file of codes: its size.
    Codes(u64),
    /// The file that takes scores.
    Scores,
    Append,
}

pub struct Views {
    buffers: Vec<BufferView>,
    state: Mutex<State>,
    slots: Mutex<Slots>,
    codes: Mutex<latent::Files>,
    /// Where links lead: the dataset, with a slash at its end.
    dataset: OnceLock<String>,
    lapse: Mutex<Option<Lapse>>,
    /// Asks the source who may read a sample.
    rights: OnceLock<Rights>,
    /// Threads that wait for the disk.
    threads: Pool,
    notes: Notes,
    ahead: Ahead,
}

fn scores(buffer: usize) -> Entry {
    Entry { node: Place::Scores(buffer).node(), kind: EntryKind::Scores, lasting: true }
}

fn directory(place: Place) -> Entry {
    Entry { node: place.node(), kind: EntryKind::Directory, lasting: true }
}

fn sample(node: u64, sample: &Sample, lasting: bool) -> Entry {
    let size = u64::from(sample.pinned.length());
    Entry { node, kind: EntryKind::File(size, sample.access), lasting }
}

impl Views {
    /// The views of these buffers. The owner receives `notes`, and samples that come next are read `ahead`.
    pub(super) fn new(buffers: Vec<BufferView>, notes: Notes, ahead: Ahead) -> Arc<Views> {
        let slots = Mutex::new(Slots::new(&buffers));
        let (state, codes, dataset, lapse, rights) = Default::default();
        let threads = Pool::new("belady-view", 0, waits::THREADS);
        Arc::new(Views {
            buffers,
            state,
            slots,
            codes,
            dataset,
            lapse,
            rights,
            threads,
            notes,
            ahead,
        })
    }

    /// Tells the owner. If it has ended, there is no answer.
    fn tell(&self, note: Note) {
        let _ = self.notes.send(note);
    }

    /// Sets where links lead: a directory, relative to a file of a display, or absolute. The first call
    /// counts.
    pub fn lead_to(&self, dataset: String) {
        let _ = self.dataset.set(dataset);
    }

    /// Has samples read only by users whom the source permits it. The first call counts.
    pub fn obey(&self, rights: Rights) {
        let _ = self.rights.set(rights);
    }

    /// Calls `then` with the present state of a node, and how long it may be believed: who may read a sample
    /// follows the source.
    pub fn told(&self, entry: Entry, then: impl FnOnce(Entry, Duration) + Send + 'static) {
        let (EntryKind::File(size, kept), Some(rights)) = (entry.kind, self.rights.get()) else {
            return then(entry, FOR_EVER);
        };
        let with = move |access| Entry { kind: EntryKind::File(size, access), ..entry };
        match self.label(entry.node) {
            Ok((_, path)) => rights.now(path, kept, move |access, valid| then(with(access), valid)),
            // Its display was given up.
            Err(_) => then(with(Access::default()), Duration::ZERO),
        }
    }

    /// The number of the buffer that has this name.
    pub fn place(&self, name: &str) -> Option<usize> {
        self.buffers.iter().position(|buffer| buffer.name == name)
    }

    pub fn forget(&self, node: u64, lookups: u64) {
        match Place::of(node) {
            // A dealt node is looked up only once.
            Some(Place::Dealt(node)) => self.slots.lock().forget(node),
            Some(Place::Codes(node)) => self.codes.lock().forget(node, lookups),
            _ => {}
        }
    }

    /// The entry of a node.
    ///
    /// # Errors
    /// `ESTALE` if its display was given up.
    pub fn entry(&self, node: u64) -> Result<Entry, Errno> {
        let place = Place::of(node).ok_or(Errno::ENOENT)?;
        match place {
            Place::Display(slot) | Place::Class(slot, _) => drop(self.display(slot)?),
            Place::File(slot, class, file) => {
                return self
                    .exhibit(slot, class, file)
                    .map(|(_, _, found)| self.shows(node, &found));
            }
            Place::Dealt(_) => return self.dealt(node, |dealt| sample(node, &dealt.sample, false)),
            Place::Scores(buffer) => return Ok(scores(buffer)),
            Place::Append(buffer) => return Ok(latent::append(buffer)),
            Place::Codes(node) => return self.code_entry(node),
            Place::Root
            | Place::Buffer(_)
            | Place::Slots(_)
            | Place::SlotClass(..)
            | Place::Streams(_)
            | Place::Latent(_) => {}
        }
        Ok(directory(place))
    }

    fn shows(&self, node: u64, exhibit: &Exhibit) -> Entry {
        match &exhibit.content {
            Content::Held(held) => sample(node, held, true),
            Content::Link(path) => {
                let length = self.dataset.get().map_or(0, String::len) + path.len();
                Entry { node, kind: EntryKind::Link(length as u64), lasting: true }
            }
        }
    }

    fn dealt<T>(&self, node: u64, of: impl FnOnce(&Dealt) -> T) -> Result<T, Errno> {
        self.slots.lock().get(node).map(of).ok_or(Errno::ESTALE)
    }

    fn exhibit(
        &self,
        slot: usize,
        class: usize,
        file: usize,
    ) -> Result<(usize, String, Exhibit), Errno> {
        let display = self.display(slot)?;
        let buffer = self.state.lock().slots.get(slot).map(|slot| slot.buffer);
        let (label, files) = display.classes.get(class).ok_or(Errno::ENOENT)?;
        let exhibit = files.get(file).ok_or(Errno::ENOENT)?;
        Ok((buffer.ok_or(Errno::ENOENT)?, label.clone(), exhibit.clone()))
    }

    /// The bytes of a file for a reader that opens it. The owner is told.
    ///
    /// # Errors
    /// `ESTALE` if its display was given up or its slot's sample was dealt to another reader, `EISDIR` for a
    /// directory.
    pub fn open(&self, node: u64) -> Result<Pinned, Errno> {
        let (buffer, sample) = match Place::of(node) {
            Some(Place::File(slot, class, file)) => {
                let (buffer, _, exhibit) = self.exhibit(slot, class, file)?;
                (buffer, exhibit.sample().cloned().ok_or(Errno::ELOOP)?)
            }
            Some(Place::Dealt(node)) => {
                let taken = self.slots.lock().take(node);
                let (buffer, sample, upcoming) = taken.ok_or(Errno::ESTALE)?;
                upcoming.iter().for_each(|upcoming| self.ahead.read(upcoming));
                (buffer, sample)
            }
            _ => return Err(Errno::EISDIR),
        };
        self.notes.try_send(Note::Shown { buffer, sample: sample.id });
        Ok(sample.pinned.clone())
    }

    /// The class of a file, and its path within the dataset.
    pub fn label(&self, node: u64) -> Result<(String, String), Errno> {
        match Place::of(node) {
            Some(Place::File(slot, class, file)) => {
                self.exhibit(slot, class, file).map(|(_, label, exhibit)| {
                    let source = match exhibit.content {
                        Content::Held(sample) => sample.source.clone(),
                        Content::Link(path) => path,
                    };
                    (label, source)
                })
            }
            Some(Place::Dealt(_)) => {
                self.dealt(node, |dealt| (dealt.label.clone(), dealt.sample.source.clone()))
            }
            _ => Err(Errno::EISDIR),
        }
    }

    /// Has the owner take lines `path score` for this file's buffer, and then calls `done`.
    pub fn score(&self, node: u64, lines: Vec<u8>, done: Scored) {
        match Place::of(node) {
            Some(Place::Scores(buffer)) => self.tell(Note::Scored { buffer, lines, done }),
            _ => done(Some(Errno::EBADF)),
        }
    }

    /// Has the scores and codes of this file's buffer synced, and then calls `done`.
    pub fn sync(&self, node: u64, done: Synced) {
        match Place::of(node) {
            Some(Place::Scores(buffer) | Place::Append(buffer)) => {
                self.tell(Note::Sync { buffer, done });
            }
            _ => done(Err(Errno::EBADF)),
        }
    }

    /// The target of a link.
    ///
    /// # Errors
    /// `EINVAL` if the node is no link, and as of [`Views::open`].
    pub fn read_link(&self, node: u64) -> Result<String, Errno> {
        let Some(Place::File(slot, class, file)) = Place::of(node) else {
            return Err(Errno::EINVAL);
        };
        match self.exhibit(slot, class, file)?.2.content {
            Content::Link(path) => {
                Ok(format!("{}{path}", self.dataset.get().map_or("", String::as_str)))
            }
            Content::Held(_) => Err(Errno::EINVAL),
        }
    }
}
