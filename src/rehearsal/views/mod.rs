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
//! A request that needs the buffer thread is answered when that has answered, and no thread waits for it.
//! Requests that need the disk are done by threads that may wait (`waiting`). Nothing here knows FUSE.

mod code_files;
mod kept_snapshots;
mod node;
mod sample_bytes;
mod sample_stream;
mod slots;
mod snapshot;
#[cfg(test)]
mod tests;
mod waiting;

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use nix::errno::Errno;

use super::CodeReader;
use super::joint::JointBuffers;
use super::notes::{Note, Notes};
use super::read_ahead::ReadAhead;
use crate::catalog::FOR_EVER;
use crate::fs::{Access, NAME_MAX, VIEWS_NAME};
use crate::sync::Mutex;
use code_files::CodeFiles;
use kept_snapshots::KeptSnapshots;
use node::Node;
pub use node::{FILES_MAX, ROOT};
pub use sample_bytes::SampleBytes;
use slots::{BufferSlots, ClassOrAny, ReservedSample, Slots};
use snapshot::STREAMS;
pub use snapshot::{Content, KeptSample, Snapshot, SnapshotFile, View};
use waiting::WaitingRequests;

/// Takes a snapshot, or why it cannot be made.
pub type SnapshotReply = Box<dyn FnOnce(Result<Snapshot, Errno>) + Send>;

/// Takes the error, if lines were refused.
pub type ScoreReply = Box<dyn FnOnce(Option<Errno>) + Send>;

/// Takes the result of an append: how many codes.
pub type AppendReply = Box<dyn FnOnce(Result<usize, Errno>) + Send>;

pub type SyncReply = Box<dyn FnOnce(Result<(), Errno>) + Send>;

/// Has a name in the directory of this node looked up again. May block.
pub type InvalidateName = Arc<dyn Fn(u64, &str) + Send + Sync>;

type EntryReply = Box<dyn FnOnce(Result<Entry, Errno>) + Send>;

/// Names in the directory of a buffer that are not views.
const FIXED: [&str; 4] = ["slots", "stream", "scores", "latent"];

/// A buffer as views serve it.
#[derive(Clone)]
pub struct ServedBuffer {
    pub name: String,
    /// The seed of the random order of slots and streams.
    pub seed: u64,
    /// How far the buffer was when the mount began, so that each mount shows slots in another order.
    pub progress: u64,
    /// How many openings in a row find different samples.
    pub distance: usize,
    /// How many slots the buffer has, and each of its classes.
    pub slots: u32,
    /// Counts the changes of the samples that it shows.
    pub changes: Arc<AtomicU64>,
    /// Its codes, if it has any.
    pub codes: Option<Arc<CodeReader>>,
}

/// Samples that are shown next.
pub struct Upcoming {
    /// The node of the stream, or of the slots of a buffer or class.
    pub directory: u64,
    /// The soonest first.
    pub next: Vec<Arc<KeptSample>>,
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
    /// The file that takes codes.
    Append,
}

fn lasting(node: Node, kind: EntryKind) -> Entry {
    Entry { node: node.number(), kind, lasting: true }
}

fn directory(node: Node) -> Entry {
    lasting(node, EntryKind::Directory)
}

fn sample(node: u64, sample: &KeptSample, lasting: bool) -> Entry {
    let size = u64::from(sample.bytes.length());
    Entry { node, kind: EntryKind::File(size, sample.access), lasting }
}

pub struct Views {
    buffers: Vec<ServedBuffer>,
    pub snapshots: KeptSnapshots,
    slots: Mutex<Slots>,
    pub codes: CodeFiles,
    pub waiting: WaitingRequests,
    /// What the targets of links begin with: the dataset, with a slash at its end.
    link_prefix: OnceLock<String>,
    notes: Notes,
    ahead: Arc<ReadAhead>,
    /// Set if there is a cluster.
    joint: OnceLock<Arc<JointBuffers>>,
}

impl Views {
    /// The views of these buffers. The buffer thread receives `notes`.
    pub(super) fn new(buffers: Vec<ServedBuffer>, notes: Notes) -> Arc<Views> {
        let ahead = Arc::new(ReadAhead::new());
        Arc::new(Views {
            snapshots: KeptSnapshots::new(&buffers, Arc::clone(&ahead)),
            slots: Mutex::new(Slots::new(&buffers)),
            codes: CodeFiles::new(&buffers),
            waiting: WaitingRequests::new(),
            link_prefix: OnceLock::new(),
            buffers,
            notes,
            ahead,
            joint: OnceLock::new(),
        })
    }

    /// Tells the buffer thread. If it has ended, there is no answer.
    fn tell(&self, note: Note) {
        let _ = self.notes.send(note);
    }

    /// Has views show the samples of all nodes. The first call counts.
    pub(super) fn join(&self, joint: Arc<JointBuffers>) {
        let _ = self.joint.set(joint);
    }

    /// The buffers of all nodes, if this one is shared and there are other nodes.
    pub(super) fn joint(&self, buffer: usize) -> Option<&Arc<JointBuffers>> {
        self.joint.get().filter(|joint| joint.shares(buffer))
    }

    /// Has a view made. `made` is called by the buffer thread, or dropped.
    pub(super) fn make(&self, buffer: usize, view: View, made: SnapshotReply) {
        match self.joint(buffer).filter(|_| view.shows_all_nodes()) {
            Some(joint) => joint.make(buffer, view, made),
            None => self.tell(Note::Make { buffer, view, made }),
        }
    }

    /// Sets where links lead: a directory, relative to a file of a snapshot, or absolute. The first call
    /// counts.
    pub fn set_link_prefix(&self, dataset: String) {
        let _ = self.link_prefix.set(dataset);
    }

    /// The number of the buffer that has this name.
    pub fn buffer(&self, name: &str) -> Option<usize> {
        self.buffers.iter().position(|buffer| buffer.name == name)
    }

    /// Calls `then` with the present state of a node, and how long it may be believed: who may read a sample
    /// follows the source.
    pub fn with_present_rights(
        &self,
        entry: Entry,
        then: impl FnOnce(Entry, Duration) + Send + 'static,
    ) {
        let (EntryKind::File(size, kept), Some(rights)) = (entry.kind, self.waiting.rights.get())
        else {
            return then(entry, FOR_EVER);
        };
        let with = move |access| Entry { kind: EntryKind::File(size, access), ..entry };
        match self.label(entry.node) {
            Ok((_, path)) => {
                rights.current(path, kept, move |access, valid| then(with(access), valid))
            }
            // Its snapshot was given up.
            Err(_) => then(with(Access::default()), Duration::ZERO),
        }
    }

    pub fn forget(&self, node: u64, lookups: u64) {
        match Node::parse(node) {
            // A reserved node is looked up only once.
            Some(Node::Reserved(node)) => self.slots.lock().forget(node),
            Some(Node::Codes(node)) => self.codes.forget(node, lookups),
            _ => {}
        }
    }

    /// The entry of a node.
    ///
    /// # Errors
    /// `ESTALE` if its snapshot was given up.
    pub fn entry(&self, node: u64) -> Result<Entry, Errno> {
        let parsed = Node::parse(node).ok_or(Errno::ENOENT)?;
        match parsed {
            Node::Snapshot(id) | Node::Class(id, _) => drop(self.snapshots.get(id)?),
            Node::File(id, class, file) => {
                let (_, _, found) = self.file(id, class, file)?;
                return Ok(self.file_entry(node, &found));
            }
            Node::Reserved(_) => {
                return self.reserved(node, |reserved| sample(node, &reserved.sample, false));
            }
            Node::Scores(_) => return Ok(lasting(parsed, EntryKind::Scores)),
            Node::Append(_) => return Ok(lasting(parsed, EntryKind::Append)),
            Node::Codes(node) => return self.codes.entry(node),
            Node::Root
            | Node::Buffer(_)
            | Node::Slots(_)
            | Node::SlotClass(..)
            | Node::Streams(_)
            | Node::Latent(_) => {}
        }
        Ok(directory(parsed))
    }

    fn file_entry(&self, node: u64, file: &SnapshotFile) -> Entry {
        match &file.content {
            Content::Sample(held) => sample(node, held, true),
            Content::Link(path) => {
                let length = self.link_prefix.get().map_or(0, String::len) + path.len();
                Entry { node, kind: EntryKind::Link(length as u64), lasting: true }
            }
        }
    }

    fn reserved<T>(&self, node: u64, of: impl FnOnce(&ReservedSample) -> T) -> Result<T, Errno> {
        self.slots.lock().get(node).map(of).ok_or(Errno::ESTALE)
    }

    /// The buffer, class and file of a file's node.
    fn file(
        &self,
        id: usize,
        class: usize,
        file: usize,
    ) -> Result<(usize, String, SnapshotFile), Errno> {
        let (buffer, snapshot) = self.snapshots.get(id)?;
        let (label, files) = snapshot.classes.get(class).ok_or(Errno::ENOENT)?;
        let file = files.get(file).ok_or(Errno::ENOENT)?;
        Ok((buffer, label.clone(), file.clone()))
    }

    /// The bytes of a file for a reader that opens it. The buffer thread is told.
    ///
    /// # Errors
    /// `ESTALE` if its snapshot was given up or its slot's sample was reserved for another reader, `EISDIR`
    /// for a directory.
    pub fn open(&self, node: u64) -> Result<SampleBytes, Errno> {
        let (buffer, sample) = match Node::parse(node) {
            Some(Node::File(id, class, file)) => {
                let (buffer, _, file) = self.file(id, class, file)?;
                (buffer, file.sample().cloned().ok_or(Errno::ELOOP)?)
            }
            Some(Node::Reserved(node)) => {
                let taken = self.slots.lock().take(node);
                let (buffer, sample, upcoming) = taken.ok_or(Errno::ESTALE)?;
                upcoming.iter().for_each(|upcoming| self.ahead.read(upcoming));
                (buffer, sample)
            }
            _ => return Err(Errno::EISDIR),
        };
        match &sample.bytes {
            SampleBytes::Pinned(_) => {
                self.notes.try_send(Note::Shown { buffer, sample: sample.id });
            }
            SampleBytes::Remote(remote) => remote.note_shown(),
        }
        Ok(sample.bytes.clone())
    }

    /// The buffer, class and content of a file.
    fn content(&self, node: u64) -> Result<(usize, String, Content), Errno> {
        match Node::parse(node) {
            Some(Node::File(id, class, file)) => self
                .file(id, class, file)
                .map(|(buffer, label, file)| (buffer, label, file.content)),
            Some(Node::Reserved(node)) => self.reserved(node, |reserved| {
                let content = Content::Sample(Arc::clone(&reserved.sample));
                (reserved.buffer, reserved.label.clone(), content)
            }),
            _ => Err(Errno::EISDIR),
        }
    }

    /// Tells the buffer thread that a file's bytes are damaged.
    pub fn damaged(&self, node: u64) {
        if let Ok((buffer, _, Content::Sample(sample))) = self.content(node)
            && !sample.bytes.are_remote()
        {
            self.notes.try_send(Note::Damaged { buffer, sample: sample.id });
        }
    }

    /// The class of a file, and its path within the dataset.
    pub fn label(&self, node: u64) -> Result<(String, String), Errno> {
        let (_, label, content) = self.content(node)?;
        Ok(match content {
            Content::Sample(sample) => (label, sample.source.clone()),
            Content::Link(path) => (label, path),
        })
    }

    /// The target of a link.
    ///
    /// # Errors
    /// `EINVAL` if the node is no link, and as of [`Views::open`].
    pub fn read_link(&self, node: u64) -> Result<String, Errno> {
        let Some(Node::File(id, class, file)) = Node::parse(node) else {
            return Err(Errno::EINVAL);
        };
        match self.file(id, class, file)?.2.content {
            Content::Link(path) => {
                Ok(format!("{}{path}", self.link_prefix.get().map_or("", String::as_str)))
            }
            Content::Sample(_) => Err(Errno::EINVAL),
        }
    }

    /// Has the buffer thread take lines `path score` for this file's buffer.
    pub fn score(&self, node: u64, lines: Vec<u8>, done: ScoreReply) {
        match Node::parse(node) {
            Some(Node::Scores(buffer)) => self.tell(Note::Scored { buffer, lines, done }),
            _ => done(Some(Errno::EBADF)),
        }
    }

    /// Has codes appended to this file's buffer.
    pub fn append(&self, node: u64, bytes: Vec<u8>, done: AppendReply) {
        match Node::parse(node) {
            Some(Node::Append(buffer)) => self.tell(Note::Appended { buffer, bytes, done }),
            _ => done(Err(Errno::EBADF)),
        }
    }

    /// Has the scores and codes of this file's buffer synced.
    pub fn sync(&self, node: u64, done: SyncReply) {
        match Node::parse(node) {
            Some(Node::Scores(buffer) | Node::Append(buffer)) => {
                self.tell(Note::Sync { buffer, done });
            }
            _ => done(Err(Errno::EBADF)),
        }
    }

    /// Looks up a name for a process. The kernel knows the node until it [forgets](Self::forget) it.
    pub fn lookup(
        self: &Arc<Self>,
        parent: u64,
        name: &OsStr,
        pid: u32,
        reply: impl FnOnce(Result<Entry, Errno>) + Send + 'static,
    ) {
        if name.len() > NAME_MAX {
            return reply(Err(Errno::ENAMETOOLONG));
        }
        let Some(name) = name.to_str() else { return reply(Err(Errno::ENOENT)) };
        match Node::parse(parent) {
            Some(Node::Buffer(buffer)) if !FIXED.contains(&name) => {
                self.lookup_view(buffer, View::parse(name), pid, Box::new(reply));
            }
            Some(Node::Streams(buffer)) => {
                let view = View::parse(&format!("{STREAMS}{name}"));
                self.lookup_view(buffer, view, pid, Box::new(reply));
            }
            Some(Node::Slots(buffer)) => {
                self.lookup_slot((buffer, None), name, pid, Box::new(reply));
            }
            Some(Node::SlotClass(buffer, class)) => {
                self.lookup_slot((buffer, Some(class)), name, pid, Box::new(reply));
            }
            // The binding of an ordinal is written before the answer.
            Some(node @ Node::Snapshot(id)) if self.snapshots.stream(id).is_some() => {
                let (views, name) = (Arc::clone(self), name.to_owned());
                self.waiting.on_disk(pid, reply, move || views.lookup_known(node, &name));
            }
            Some(node) => reply(self.lookup_known(node, name)),
            None => reply(Err(Errno::ENOENT)),
        }
    }

    fn lookup_view(
        self: &Arc<Self>,
        buffer: usize,
        view: Option<View>,
        pid: u32,
        reply: EntryReply,
    ) {
        let Some(view) = view.filter(|_| buffer < self.buffers.len()) else {
            return reply(Err(Errno::ENOENT));
        };
        let entry = |id| directory(Node::Snapshot(id));
        if let Some(id) = self.snapshots.look_up(buffer, view) {
            return reply(Ok(entry(id)));
        }
        if matches!(view, View::Sleep(_)) {
            return reply(Err(Errno::ENOENT));
        }
        let (views, reply) = (Arc::clone(self), self.waiting.reply(pid, reply));
        let made = move |snapshot: Result<Snapshot, Errno>| {
            let id = snapshot.and_then(|snapshot| views.snapshots.keep(buffer, view, snapshot));
            reply.answer(id.map(entry));
        };
        self.make(buffer, view, Box::new(made));
    }

    fn lookup_slot(
        self: &Arc<Self>,
        (buffer, class): (usize, ClassOrAny),
        name: &str,
        pid: u32,
        reply: EntryReply,
    ) {
        if let Some(entry) = self.slot(buffer, class, name) {
            // No request waits for this.
            let may_change = self.joint(buffer).is_some();
            let claim = |of: &mut BufferSlots| of.claim_renewal(may_change);
            if self.slots.lock().buffers.get_mut(buffer).is_some_and(claim) {
                self.renew(buffer, |_| ());
            }
            return reply(Ok(entry));
        }
        // Nobody tells this node when the buffers of others change.
        let is_shared = self.joint(buffer).is_some();
        let is_current = |of: &BufferSlots| match is_shared {
            true => of.is_young(Instant::now()),
            false => of.is_current(),
        };
        if self.slots.lock().buffers.get(buffer).is_none_or(is_current) {
            return reply(Err(Errno::ENOENT));
        }
        let (name, reply) = (name.to_owned(), self.waiting.reply(pid, reply));
        self.renew(buffer, move |views| {
            reply.answer(views.slot(buffer, class, &name).ok_or(Errno::ENOENT));
        });
    }

    /// Has slots use the samples that a buffer holds now, and then calls `then`.
    fn renew(self: &Arc<Self>, buffer: usize, then: impl FnOnce(&Arc<Self>) + Send + 'static) {
        let changes = self.buffers.get(buffer).map(|served| served.changes.load(Ordering::Acquire));
        let (views, joint) = (Arc::clone(self), self.joint(buffer));
        let node = joint.map(|joint| joint.own_number());
        let made = move |held: Result<Snapshot, Errno>| {
            if let Some(slots) = views.slots.lock().buffers.get_mut(buffer) {
                node.into_iter().for_each(|node| slots.begin_at(node));
                slots.renew(changes, held.ok().as_ref());
            }
            then(&views);
        };
        match joint {
            Some(joint) => joint.all(buffer, Box::new(made)),
            None => self.tell(Note::Show { buffer, shown: Box::new(made) }),
        }
    }

    fn slot(&self, buffer: usize, class: ClassOrAny, name: &str) -> Option<Entry> {
        let mut slots = self.slots.lock();
        let own = slots.buffers.get(buffer)?;
        if class.is_none()
            && let Some(class) = own.class(name)
        {
            return Some(directory(Node::SlotClass(buffer, class)));
        }
        if !own.has(name) {
            return None;
        }
        let (node, reserved) = slots.reserve(buffer, class, Instant::now())?;
        let entry = sample(node, &reserved.sample, false);
        let upcoming = slots.buffers.get_mut(buffer).and_then(|own| own.first_upcoming(class));
        drop(slots);
        upcoming.iter().for_each(|upcoming| self.ahead.read(upcoming));
        Some(entry)
    }

    fn lookup_known(&self, parent: Node, name: &str) -> Result<Entry, Errno> {
        let node = match parent {
            Node::Root => self.buffer(name).map(Node::Buffer),
            Node::Buffer(buffer) => match name {
                "scores" => Some(Node::Scores(buffer)),
                "stream" => Some(Node::Streams(buffer)),
                "latent" => self.codes.directory(buffer),
                _ => Some(Node::Slots(buffer)),
            },
            Node::Latent(buffer) => return self.codes.lookup(buffer, name),
            Node::Snapshot(id) => {
                if let Some(stream) = self.snapshots.stream(id) {
                    let (file, is_new) = stream.lookup(id, name)?;
                    if is_new {
                        self.snapshots.read_ahead_of_stream(id);
                    }
                    return self.entry(file.number());
                }
                let (_, snapshot) = self.snapshots.get(id)?;
                let classes = &snapshot.classes;
                let found = classes.binary_search_by(|(class, _)| class.as_str().cmp(name));
                found.ok().map(|class| Node::Class(id, class))
            }
            Node::Class(id, class) => {
                let (_, snapshot) = self.snapshots.get(id)?;
                let (_, files) = snapshot.classes.get(class).ok_or(Errno::ENOENT)?;
                let found = files.binary_search_by(|file| file.name.as_str().cmp(name));
                found.ok().map(|file| Node::File(id, class, file))
            }
            _ => None,
        };
        self.entry(node.ok_or(Errno::ENOENT)?.number())
    }

    pub fn list(
        self: &Arc<Self>,
        node: u64,
        pid: u32,
        reply: impl FnOnce(Result<Vec<(String, Entry)>, Errno>) + Send + 'static,
    ) {
        match Node::parse(node) {
            // A listing shows the present classes.
            Some(Node::Slots(buffer)) => {
                let reply = self.waiting.reply(pid, reply);
                self.renew(buffer, move |views| reply.answer(Ok(views.list_slots(buffer, None))));
            }
            Some(Node::SlotClass(buffer, class)) => {
                reply(Ok(self.list_slots(buffer, Some(class))));
            }
            Some(node) => reply(self.list_known(node)),
            None => reply(Err(Errno::ENOENT)),
        }
    }

    /// The names of slots. A sample is reserved when one is looked up.
    fn list_slots(&self, buffer: usize, class: ClassOrAny) -> Vec<(String, Entry)> {
        let mut slots = self.slots.lock();
        let Some(own) = slots.buffers.get_mut(buffer) else { return Vec::new() };
        let kind = EntryKind::File(0, Access::default());
        let unknown = Entry { node: node::FIRST_RESERVED, kind, lasting: false };
        let mut listed: BTreeMap<String, Entry> =
            own.names(class).map(|name| (name, unknown)).collect();
        // If samples have no extension, a class may have the name of a slot, and goes first.
        if class.is_none() {
            let entry = |class| directory(Node::SlotClass(buffer, class));
            listed.extend(own.classes().map(|(name, class)| (name.clone(), entry(class))));
        }
        listed.into_iter().collect()
    }

    fn list_known(&self, node: Node) -> Result<Vec<(String, Entry)>, Errno> {
        let entry = |name: &str, node: Node| (name.to_owned(), directory(node));
        Ok(match node {
            Node::Root => {
                let buffers = self.buffers.iter().enumerate();
                buffers.map(|(at, buffer)| entry(&buffer.name, Node::Buffer(at))).collect()
            }
            Node::Buffer(buffer) => {
                let views = self.snapshots.names(buffer).into_iter();
                let views = views.filter(|(name, _)| !name.starts_with(STREAMS));
                let views = views.map(|(name, id)| entry(&name, Node::Snapshot(id)));
                let directories =
                    [entry("slots", Node::Slots(buffer)), entry("stream", Node::Streams(buffer))];
                let latent = self.codes.directory(buffer).map(|node| entry("latent", node));
                let scores = lasting(Node::Scores(buffer), EntryKind::Scores);
                views
                    .chain(directories)
                    .chain(latent)
                    .chain([("scores".to_owned(), scores)])
                    .collect()
            }
            Node::Latent(buffer) => CodeFiles::list(buffer),
            Node::Streams(buffer) => {
                let names = self.snapshots.names(buffer);
                let epoch = |(name, id): &(String, usize)| {
                    Some(entry(name.strip_prefix(STREAMS)?, Node::Snapshot(*id)))
                };
                names.iter().filter_map(epoch).collect()
            }
            Node::Snapshot(id) => {
                if let Some(stream) = self.snapshots.stream(id) {
                    return Ok(stream.list(id));
                }
                let (_, snapshot) = self.snapshots.get(id)?;
                let classes = snapshot.classes.iter().enumerate();
                classes.map(|(at, (name, _))| entry(name, Node::Class(id, at))).collect()
            }
            Node::Class(id, class) => {
                let (_, snapshot) = self.snapshots.get(id)?;
                let (_, files) = snapshot.classes.get(class).ok_or(Errno::ENOENT)?;
                let entry = |(at, file): (usize, &SnapshotFile)| {
                    let node = Node::File(id, class, at).number();
                    (file.name.clone(), self.file_entry(node, file))
                };
                files.iter().enumerate().map(entry).collect()
            }
            _ => return Err(Errno::ENOTDIR),
        })
    }

    /// The buffer in a path of a view's file: if there is one of this name, or if it is below `rehearsal`.
    pub fn buffer_of<'a>(&self, path: &'a str) -> Option<&'a str> {
        let mut parts = path.rsplitn(4, '/').skip(1);
        let (above, top, before) = (parts.next()?, parts.next()?, parts.next()?);
        View::parse(top).or_else(|| View::parse(&format!("{top}/{above}")))?;
        let mut before = before.rsplit('/').filter(|part| !part.is_empty() && *part != ".");
        let name = before.next()?;
        let is_one = self.buffer(name).is_some() || before.next() == Some(VIEWS_NAME);
        is_one.then_some(name)
    }

    /// The path within the dataset of a view's file, which ends in `VIEW/CLASS/FILE` or `stream/K/ORDINAL`.
    pub fn source(&self, buffer: usize, path: &str) -> Option<String> {
        let mut parts = path.rsplitn(4, '/');
        let (file, above, top) = (parts.next()?, parts.next()?, parts.next()?);
        let node = if let Some(view) = View::parse(&format!("{top}/{above}")) {
            let id = self.snapshots.id(buffer, view)?;
            self.snapshots.stream(id)?.find(id, file)?.number()
        } else {
            let view = Node::Snapshot(self.snapshots.id(buffer, View::parse(top)?)?);
            let class = self.lookup_known(view, above).ok()?;
            self.lookup_known(Node::parse(class.node)?, file).ok()?.node
        };
        self.label(node).ok().map(|(_, source)| source)
    }
}
