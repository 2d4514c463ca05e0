//! Asks the source for metadata, on threads that may wait for it.
//!
//! A question that hangs marks its name as hanging. If several names in a directory hang, the directory
//! counts as hanging. Further questions about that place wait without a thread, so that questions about
//! other places go on.

use std::ffi::{OsStr, OsString};
use std::hash::{BuildHasher as _, BuildHasherDefault, DefaultHasher, Hash};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;

use super::Dataset;
use super::waiting::{Pending, Reply, reply_interrupted};
use crate::catalog::{Attr, NodeId};
use crate::process::is_ending;
use crate::source::{self, KeyedPool, Urgency};
use crate::sync::Mutex;

/// Questions at once for which no reader waits, and further ones for which a reader waits. Without belady
/// each reader would ask for itself.
const QUESTIONS: usize = 16;
const RESERVED: usize = 64;

/// A question that takes longer is held up: a question about another name gets its slot.
const PATIENCE: Duration = Duration::from_secs(1);

/// Questions at once, including those that are held up.
const QUESTIONS_MAX: usize = 4096;

/// How long a question about the mount itself may wait: programs that look at all mounts ask it.
const BRIEF_PATIENCE: Duration = Duration::from_millis(200);

/// How long a request waits for a hanging cache disk at least: its answer may need no disk.
const DISK_PATIENCE: Duration = Duration::from_secs(1);

/// How long a notification about a directory waits for a moment without requests about it.
const GAP: Duration = Duration::from_millis(20);

/// The shortest and the longest pause between two checks for that moment.
const PAUSE_MIN: Duration = Duration::from_millis(1);
const PAUSE_MAX: Duration = Duration::from_millis(50);

/// What a question is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MetadataKey {
    Directory(NodeId),
    /// A name in a directory, by its hash.
    Name(NodeId, u64),
    Space,
}

impl MetadataKey {
    /// A name in a directory, or a node that has no name any more.
    pub(super) fn of_name(directory: NodeId, name: impl Hash) -> Self {
        let hashes = BuildHasherDefault::<DefaultHasher>::default();
        MetadataKey::Name(directory, hashes.hash_one(name))
    }

    fn directory(self) -> Option<NodeId> {
        match self {
            MetadataKey::Directory(directory) | MetadataKey::Name(directory, _) => Some(directory),
            MetadataKey::Space => None,
        }
    }
}

impl source::JobKey for MetadataKey {
    fn is_near(&self, other: &Self) -> bool {
        self.directory() == other.directory()
    }
}

pub(super) type MetadataPool = KeyedPool<MetadataKey>;

/// Blocks, free, available, files, free files, block size and longest name of a filesystem.
pub(super) type Space = [u64; 7];

/// The answer before the source was asked.
const UNKNOWN_SPACE: Space = [0, 0, 0, 0, 0, 4096, 255];

/// The source's last answer.
#[derive(Default)]
pub(super) struct LastSpace(Mutex<Option<Space>>);

impl LastSpace {
    fn get(&self) -> Space {
        let known = *self.0.lock();
        known.unwrap_or(UNKNOWN_SPACE)
    }

    fn set(&self, space: Space) {
        *self.0.lock() = Some(space);
    }
}

pub(super) fn metadata_pool() -> Arc<MetadataPool> {
    let threads = KeyedPool::new("belady-meta", PATIENCE, QUESTIONS, RESERVED, || ());
    Arc::new(threads.with_limits(QUESTIONS_MAX, 1))
}

/// Asks a question for a request, unless the request is answered already.
fn answer<T>(
    dataset: &Dataset,
    pending: &Pending<Reply<T>>,
    question: impl FnOnce(&Dataset) -> Result<T, Errno>,
) {
    if !pending.is_unanswered() {
        return;
    }
    let answer = question(dataset);
    if let Some(reply) = pending.take() {
        reply(answer);
    }
}

impl Dataset {
    /// Ends the wait of requests whose task is being killed, and of requests about the mount itself that
    /// the source does not answer. Must be called each [`TICK`](crate::disk::TICK).
    pub fn tick(&self) {
        self.waiting.tick(Instant::now(), is_ending);
    }

    /// Whether no request waits.
    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Asks a question for a task, which gets the answer unless it is killed before.
    pub(super) fn ask<T: 'static>(
        self: &Arc<Self>,
        key: MetadataKey,
        task: Option<u32>,
        reply: impl FnOnce(Result<T, Errno>) + Send + 'static,
        question: impl FnOnce(&Dataset) -> Result<T, Errno> + Send + 'static,
    ) {
        let reply: Reply<T> = Box::new(reply);
        let pending = self.waiting.enter(task, key.directory(), reply, reply_interrupted);
        self.ask_for(key, pending, question);
    }

    /// Waits until the requests about a directory that wait for the source now are answered. Call it before
    /// the kernel is notified about a name there.
    ///
    /// A reader may have the directory locked until its request is answered. The notification waits for the
    /// lock, and meanwhile the kernel lets no other reader into the directory.
    pub fn wait_for_requests(&self, directory: NodeId) {
        let began = Instant::now();
        let mut pause = PAUSE_MIN;
        while self.waiting.has_request(directory, began)
            || began.elapsed() < GAP && self.waiting.has_request(directory, Instant::now())
        {
            thread::sleep(pause);
            pause = (2 * pause).min(PAUSE_MAX);
        }
    }

    fn ask_for<T: 'static>(
        self: &Arc<Self>,
        key: MetadataKey,
        pending: Arc<Pending<Reply<T>>>,
        question: impl FnOnce(&Dataset) -> Result<T, Errno> + Send + 'static,
    ) {
        let dataset = Arc::clone(self);
        self.metadata.submit(Urgency::Demand, key, move || answer(&dataset, &pending, question));
    }

    /// Asks a question for a request that may only wait briefly. If its place hangs, it is answered from
    /// memory at once: questions without a waiting request would pile up there.
    fn ask_briefly_for<T: 'static>(
        self: &Arc<Self>,
        key: MetadataKey,
        pending: Arc<Pending<Reply<T>>>,
        question: impl FnOnce(&Dataset) -> Result<T, Errno> + Send + 'static,
    ) {
        let dataset = Arc::clone(self);
        self.metadata.try_submit(Urgency::Demand, key, move |admitted| match admitted {
            Ok(()) => answer(&dataset, &pending, question),
            Err(_) => pending.answer_late(),
        });
    }

    /// Asks a question about a directory. If the source takes longer than [`BRIEF_PATIENCE`], the answer comes from
    /// memory.
    pub(super) fn ask_briefly<T: 'static>(
        self: &Arc<Self>,
        directory: NodeId,
        reply: impl FnOnce(Result<T, Errno>) + Send + 'static,
        from_memory: impl Fn() -> Result<T, Errno> + Send + Sync + 'static,
        question: impl FnOnce(&Dataset) -> Result<T, Errno> + Send + 'static,
    ) {
        let pending =
            self.waiting.enter_briefly(None, Box::new(reply), BRIEF_PATIENCE, from_memory);
        self.ask_briefly_for(MetadataKey::Directory(directory), pending, question);
    }

    /// Notes a task's request that waits for the cache disk, or for a thread that may wait for it. If the
    /// disk hangs, the request gets `EIO`.
    pub(crate) fn await_disk<T: 'static>(
        &self,
        task: u32,
        reply: Reply<T>,
    ) -> Arc<Pending<Reply<T>>> {
        let (cache, patience) = (Arc::clone(&self.cache), Instant::now() + DISK_PATIENCE);
        let hangs = move |now| now >= patience && cache.store().is_some_and(|s| s.hangs());
        self.waiting.enter_until(Some(task), reply, hangs, || Err(Errno::EIO))
    }

    /// Whether the cache disk answers no reads.
    pub(crate) fn disk_hangs(&self) -> bool {
        self.cache.store().is_some_and(|store| store.reads_hang())
    }

    /// The key of a question about a node: its name in its directory, so that questions by name and by node
    /// have the same key.
    fn key_of(&self, node: NodeId) -> MetadataKey {
        let parent = self.catalog.parent(node).unwrap_or(NodeId::ROOT);
        let path = self.catalog.path(node).ok();
        match path.as_deref().and_then(Path::file_name) {
            Some(name) => MetadataKey::of_name(parent, name),
            None => MetadataKey::of_name(parent, node),
        }
    }

    /// Attributes of the root, whose last check is too old. If the source hangs or fails, the answer comes
    /// from memory after a short wait: else the mount point would look dead.
    pub(super) fn getattr_root(
        self: &Arc<Self>,
        task: Option<u32>,
        reply: impl FnOnce(Result<Attr, Errno>) + Send + 'static,
    ) {
        let dataset = Arc::clone(self);
        let from_memory = move || dataset.attr(NodeId::ROOT);
        let pending =
            self.waiting.enter_briefly(task, Box::new(reply), BRIEF_PATIENCE, from_memory);
        self.ask_briefly_for(MetadataKey::Directory(NodeId::ROOT), pending, |dataset| {
            let _ = dataset.report_changes(dataset.catalog.refresh_directory(NodeId::ROOT));
            dataset.attr(NodeId::ROOT)
        });
    }

    /// Space of the source's filesystem. If the source hangs, this is its last answer.
    pub fn space(
        self: &Arc<Self>,
        task: Option<u32>,
        reply: impl FnOnce(Result<[u64; 7], Errno>) + Send + 'static,
    ) {
        let last = Arc::clone(&self.space);
        let from_memory = move || Ok(last.get());
        let pending =
            self.waiting.enter_briefly(task, Box::new(reply), BRIEF_PATIENCE, from_memory);
        self.ask_briefly_for(MetadataKey::Space, pending, |dataset| {
            let space = dataset.source.space()?;
            dataset.space.set(space);
            Ok(space)
        });
    }

    pub fn read_link(
        self: &Arc<Self>,
        node: NodeId,
        task: Option<u32>,
        reply: impl FnOnce(Result<OsString, Errno>) + Send + 'static,
    ) {
        self.ask(self.key_of(node), task, reply, move |dataset| {
            dataset.source.read_link(&dataset.catalog.path(node)?)
        });
    }

    pub fn xattr(
        self: &Arc<Self>,
        node: NodeId,
        name: &OsStr,
        task: Option<u32>,
        reply: impl FnOnce(Result<Vec<u8>, Errno>) + Send + 'static,
    ) {
        let name = name.to_os_string();
        self.ask(self.key_of(node), task, reply, move |dataset| {
            dataset.source.xattr(&dataset.path(node)?, &name)
        });
    }

    /// Names of the extended attributes, each ended by a NUL.
    pub fn list_xattrs(
        self: &Arc<Self>,
        node: NodeId,
        task: Option<u32>,
        reply: impl FnOnce(Result<Vec<u8>, Errno>) + Send + 'static,
    ) {
        self.ask(self.key_of(node), task, reply, move |dataset| {
            dataset.source.list_xattrs(&dataset.path(node)?)
        });
    }

    /// Path of a node at the source.
    ///
    /// # Errors
    /// `ESTALE` for a past version, `ENOTSUP` for a node that is not at the source.
    fn path(&self, node: NodeId) -> Result<PathBuf, Errno> {
        match node {
            super::CONTROL_NODE | super::VIEWS_NODE => Err(Errno::ENOTSUP),
            _ => self.catalog.path(node),
        }
    }

    /// Checks a file at the source, and then calls `then` with the result. A check with `Urgency::Prefetch`
    /// is made only if it is due.
    pub fn check(
        self: &Arc<Self>,
        node: NodeId,
        urgency: Urgency,
        then: impl FnOnce(Result<(), Errno>) + Send + 'static,
    ) {
        let dataset = Arc::clone(self);
        self.metadata.submit(urgency, self.key_of(node), move || {
            // Another check may have been made while this one waited.
            let is_due = urgency == Urgency::Demand || dataset.catalog.is_check_due(node);
            then(if is_due { dataset.check_now(node) } else { Ok(()) });
        });
    }

    /// Attributes of a file, whose name is first checked at the source.
    pub(super) fn check_name(
        self: &Arc<Self>,
        node: NodeId,
        task: Option<u32>,
        reply: impl FnOnce(Result<Attr, Errno>) + Send + 'static,
    ) {
        self.ask(self.key_of(node), task, reply, move |dataset| {
            dataset.check_now(node)?;
            dataset.attr(node).or_else(|_| dataset.catalog.served_attr(node))
        });
    }

    /// Checks the name of a node. A past version needs no check.
    fn check_now(&self, node: NodeId) -> Result<(), Errno> {
        let Ok(path) = self.catalog.path(node) else { return Ok(()) };
        let (Some(name), Ok(parent)) = (path.file_name(), self.catalog.parent(node)) else {
            return Ok(());
        };
        self.report_changes(self.catalog.refresh(parent, name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::{Cache, Inbox};
    use crate::catalog::Catalog;
    use crate::source::{PosixSource, Source};

    #[test]
    fn a_name_has_one_key_whether_it_is_asked_for_by_name_or_by_number() {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir(root.path().join("d")).unwrap();
        for name in ["a", "b"] {
            std::fs::write(root.path().join("d").join(name), name).unwrap();
        }
        let source: Arc<dyn Source> = Arc::new(PosixSource::open(root.path(), 1).unwrap());
        let catalog = Arc::new(Catalog::scan(Arc::clone(&source), 1, None).unwrap());
        let inbox = Arc::new(Inbox::new(1));
        let cache = Cache::new(source, Arc::clone(&catalog), Arc::clone(&inbox), None);
        let find = |parent, name: &str| {
            catalog.lookup(parent, OsStr::new(name), true).unwrap().unwrap().node
        };
        let d = find(NodeId::ROOT, "d");
        let [a, b] = ["a", "b"].map(|name| find(d, name));
        let dataset = Dataset::new(Arc::clone(&catalog), cache, inbox, Arc::new(|_| ()), false);
        assert_eq!(dataset.key_of(a), MetadataKey::of_name(d, OsStr::new("a")));
        assert_eq!(dataset.key_of(d), MetadataKey::of_name(NodeId::ROOT, OsStr::new("d")));
        assert!(dataset.key_of(a) != dataset.key_of(b));
    }
}
