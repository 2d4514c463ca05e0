//! The views of rehearsal buffers: what was kept, as directories of plain files.
//!
//! ```text
//! NAME/                   one buffer
//!     epoch-K/            what it held when epoch K was first looked at; it stays like that
//!         CLASS/FILE
//! ```
//!
//! An epoch is frozen by the owner of the buffers, whose answer is not waited for: the reply follows
//! it. Nodes are numbers made of the place of an epoch, a class and a file in it, so nothing has to
//! be remembered for the kernel. Nothing here knows FUSE.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nix::errno::Errno;
use serde::{Deserialize, Serialize};

use crate::cache::Pinned;
use crate::rehearsal::SampleId;

/// Who may read a sample at the source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Access {
    /// Permission bits.
    pub mode: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
}

/// A sample in an epoch.
#[derive(Clone, Debug)]
pub struct Exhibit {
    /// The name of its file.
    pub name: String,
    /// Its number in the buffer.
    pub sample: SampleId,
    /// Its path within the dataset.
    pub source: String,
    /// Who may read it.
    pub access: Access,
    /// Its bytes.
    pub pinned: Pinned,
}

/// What a buffer held at the beginning of an epoch: classes and their samples, sorted by name.
#[derive(Clone, Debug, Default)]
pub struct Epoch {
    /// The classes with what was held of them.
    pub classes: Vec<(String, Vec<Exhibit>)>,
}

/// Takes the epoch that was frozen; none where that failed.
pub type Frozen = Box<dyn FnOnce(Option<Epoch>) + Send>;

/// Freezes an epoch of a buffer, by the buffer's place among the names.
pub type Freeze = Box<dyn Fn(usize, Frozen) + Send + Sync>;

/// Told of each sample that was opened, or that is damaged: the buffer's place, and the sample.
pub type Shown = Box<dyn Fn(usize, SampleId) + Send + Sync>;

/// Epochs of a buffer that are kept; of older ones files that are open can still be read.
const EPOCHS_MAX: usize = 8;

/// An epoch that was frozen.
struct Slot {
    buffer: usize,
    number: u64,
    /// None once it is over.
    epoch: Option<Arc<Epoch>>,
}

#[derive(Default)]
struct State {
    slots: Vec<Slot>,
    /// By buffer and number.
    places: HashMap<(usize, u64), usize>,
}

/// What a node stands for.
enum Place {
    Root,
    Buffer(usize),
    Epoch(usize),
    Class(usize, usize),
    File(usize, usize, usize),
}

/// The node of the root.
pub const ROOT: u64 = 1;

/// Bits of a node that say which file of a class it is, and which class.
const FILE_BITS: u32 = 24;
const CLASS_BITS: u32 = 20;

impl Place {
    fn node(&self) -> u64 {
        let of = |slot: usize, class: usize, file: usize| {
            (slot as u64 + 1) << (CLASS_BITS + FILE_BITS)
                | (class as u64) << FILE_BITS
                | file as u64
        };
        match *self {
            Place::Root => ROOT,
            Place::Buffer(buffer) => buffer as u64 + ROOT + 1,
            Place::Epoch(slot) => of(slot, 0, 0),
            Place::Class(slot, class) => of(slot, class + 1, 0),
            Place::File(slot, class, file) => of(slot, class + 1, file + 1),
        }
    }

    fn of(node: u64) -> Option<Place> {
        let slot = (node >> (CLASS_BITS + FILE_BITS)) as usize;
        let class = (node >> FILE_BITS) as usize & ((1 << CLASS_BITS) - 1);
        let file = node as usize & ((1 << FILE_BITS) - 1);
        match (slot, class, file) {
            (0, 0, 1) => Some(Place::Root),
            (0, 0, 2..) => Some(Place::Buffer(file - 2)),
            (0, ..) => None,
            (_, 0, _) => Some(Place::Epoch(slot - 1)),
            (_, _, 0) => Some(Place::Class(slot - 1, class - 1)),
            _ => Some(Place::File(slot - 1, class - 1, file - 1)),
        }
    }
}

/// A node, as it is told of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its number.
    pub node: u64,
    /// None: it is a directory.
    pub file: Option<FileEntry>,
}

/// A file, as it is told of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileEntry {
    /// Its bytes.
    pub size: u64,
    /// Who may read it.
    pub access: Access,
}

/// The views of all buffers.
pub struct Views {
    names: Vec<String>,
    state: Mutex<State>,
    freeze: Freeze,
    shown: Shown,
    damaged: Shown,
}

fn directory(place: &Place) -> Entry {
    Entry { node: place.node(), file: None }
}

impl Views {
    /// The views of buffers of these names.
    pub fn new(names: Vec<String>, freeze: Freeze, shown: Shown, damaged: Shown) -> Arc<Views> {
        Arc::new(Views { names, state: Mutex::default(), freeze, shown, damaged })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn epoch(&self, slot: usize) -> Result<Arc<Epoch>, Errno> {
        let state = self.state();
        let slot = state.slots.get(slot).ok_or(Errno::ENOENT)?;
        slot.epoch.clone().ok_or(Errno::ESTALE)
    }

    /// Looks a name up.
    pub fn lookup(
        self: &Arc<Self>,
        parent: u64,
        name: &OsStr,
        reply: impl FnOnce(Result<Entry, Errno>) + Send + 'static,
    ) {
        let Some(name) = name.to_str() else { return reply(Err(Errno::ENOENT)) };
        let Some(Place::Buffer(buffer)) = Place::of(parent) else {
            return reply(self.lookup_known(parent, name));
        };
        // One way of writing a number only: each epoch has one name.
        let number = name.strip_prefix("epoch-").and_then(|text| text.parse::<u64>().ok());
        let Some(number) = number.filter(|number| name == format!("epoch-{number}")) else {
            return reply(Err(Errno::ENOENT));
        };
        if buffer >= self.names.len() {
            return reply(Err(Errno::ENOENT));
        }
        if let Some(slot) = self.state().places.get(&(buffer, number)) {
            return reply(Ok(directory(&Place::Epoch(*slot))));
        }
        let views = Arc::clone(self);
        (self.freeze)(
            buffer,
            Box::new(move |frozen| {
                let slot = frozen.map(|epoch| views.keep(buffer, number, epoch));
                reply(slot.map(|slot| directory(&Place::Epoch(slot))).ok_or(Errno::EIO));
            }),
        );
    }

    /// Keeps an epoch, unless another thread was first, and says its place.
    fn keep(&self, buffer: usize, number: u64, epoch: Epoch) -> usize {
        let mut state = self.state();
        let State { slots, places } = &mut *state;
        let slot = *places.entry((buffer, number)).or_insert(slots.len());
        if slot == slots.len() {
            slots.push(Slot { buffer, number, epoch: Some(Arc::new(epoch)) });
        }
        let own = |slot: &Slot| slot.buffer == buffer && slot.epoch.is_some();
        while slots.iter().filter(|slot| own(slot)).count() > EPOCHS_MAX {
            let Some(oldest) = slots.iter_mut().find(|slot| own(slot)) else { break };
            oldest.epoch = None;
            places.remove(&(buffer, oldest.number));
        }
        slot
    }

    fn lookup_known(&self, parent: u64, name: &str) -> Result<Entry, Errno> {
        let place = match Place::of(parent).ok_or(Errno::ENOENT)? {
            Place::Root => self.names.iter().position(|known| known == name).map(Place::Buffer),
            Place::Epoch(slot) => {
                let epoch = self.epoch(slot)?;
                let found = epoch.classes.binary_search_by(|(class, _)| class.as_str().cmp(name));
                found.ok().map(|class| Place::Class(slot, class))
            }
            Place::Class(slot, class) => {
                let epoch = self.epoch(slot)?;
                let (_, files) = epoch.classes.get(class).ok_or(Errno::ENOENT)?;
                let found = files.binary_search_by(|file| file.name.as_str().cmp(name));
                found.ok().map(|file| Place::File(slot, class, file))
            }
            Place::Buffer(_) | Place::File(..) => None,
        };
        self.entry(place.ok_or(Errno::ENOENT)?.node())
    }

    /// A node.
    ///
    /// # Errors
    /// `ESTALE` for one of an epoch that is over.
    pub fn entry(&self, node: u64) -> Result<Entry, Errno> {
        let place = Place::of(node).ok_or(Errno::ENOENT)?;
        match place {
            Place::Epoch(slot) | Place::Class(slot, _) => drop(self.epoch(slot)?),
            Place::File(..) => return self.exhibit(node).map(|found| file(node, &found.2)),
            Place::Root | Place::Buffer(_) => {}
        }
        Ok(directory(&place))
    }

    /// What is in a directory.
    ///
    /// # Errors
    /// `ESTALE` for one of an epoch that is over, `ENOTDIR` for a file.
    pub fn list(&self, node: u64) -> Result<Vec<(String, Entry)>, Errno> {
        let entry = |name: &String, place: Place| (name.clone(), directory(&place));
        Ok(match Place::of(node).ok_or(Errno::ENOENT)? {
            Place::Root => {
                let names = self.names.iter().enumerate();
                names.map(|(at, name)| entry(name, Place::Buffer(at))).collect()
            }
            Place::Buffer(buffer) => {
                let state = self.state();
                let own = state.places.iter().filter(|((of, _), _)| *of == buffer);
                own.map(|((_, number), slot)| {
                    entry(&format!("epoch-{number}"), Place::Epoch(*slot))
                })
                .collect()
            }
            Place::Epoch(slot) => {
                let epoch = self.epoch(slot)?;
                let classes = epoch.classes.iter().enumerate();
                classes.map(|(at, (name, _))| entry(name, Place::Class(slot, at))).collect()
            }
            Place::Class(slot, class) => {
                let epoch = self.epoch(slot)?;
                let (_, files) = epoch.classes.get(class).ok_or(Errno::ENOENT)?;
                let files = files.iter().enumerate();
                files
                    .map(|(at, exhibit)| {
                        let node = Place::File(slot, class, at).node();
                        (exhibit.name.clone(), file(node, exhibit))
                    })
                    .collect()
            }
            Place::File(..) => return Err(Errno::ENOTDIR),
        })
    }

    fn exhibit(&self, node: u64) -> Result<(usize, String, Exhibit), Errno> {
        let Some(Place::File(slot, class, file)) = Place::of(node) else {
            return Err(Errno::EISDIR);
        };
        let epoch = self.epoch(slot)?;
        let buffer = self.state().slots.get(slot).map(|slot| slot.buffer).ok_or(Errno::ENOENT)?;
        let (class, files) = epoch.classes.get(class).ok_or(Errno::ENOENT)?;
        let exhibit = files.get(file).ok_or(Errno::ENOENT)?;
        Ok((buffer, class.clone(), exhibit.clone()))
    }

    /// Where the bytes of a file are that a reader opens; the owner is told of the reader.
    ///
    /// # Errors
    /// `ESTALE` for one of an epoch that is over, `EISDIR` for a directory.
    pub fn open(&self, node: u64) -> Result<Pinned, Errno> {
        let (buffer, _, exhibit) = self.exhibit(node)?;
        (self.shown)(buffer, exhibit.sample);
        Ok(exhibit.pinned)
    }

    /// The bytes of a file are not what was written: the owner is told.
    pub fn damaged(&self, node: u64) {
        if let Ok((buffer, _, exhibit)) = self.exhibit(node) {
            (self.damaged)(buffer, exhibit.sample);
        }
    }

    /// The class of a file, and its path within the dataset.
    ///
    /// # Errors
    /// As of [`Views::open`].
    pub fn label(&self, node: u64) -> Result<(String, String), Errno> {
        self.exhibit(node).map(|(_, class, exhibit)| (class, exhibit.source))
    }
}

fn file(node: u64, exhibit: &Exhibit) -> Entry {
    let size = u64::from(exhibit.pinned.length());
    Entry { node, file: Some(FileEntry { size, access: exhibit.access }) }
}
