//! The dataset as a tree of files, which every connection of an engine serves. It knows no FUSE.
//!
//! 1. Answers come from the catalog. If the last check of a name is too old, a thread checks it at the
//!    source, and that thread replies.
//! 2. Reads go to the cache block by block.
//! 3. The planner is told what readers do. If opens are requests, it hears opens and closes. If not, it hears
//!    lookups, reads that find no pages, and the ioctl by which Python asks whether a file is a terminal.
//! 4. How long the kernel may open a file without asking comes from the planner (`plan/visibility`) and from two
//!    rules here (`may_open_without_lookup`).

mod join;
mod metadata;
mod reading;
mod rights;
#[cfg(test)]
mod tests;
pub(crate) mod waiting;

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use metadata::{LastSpace, MetadataKey, Questions, Space};
use nix::errno::Errno;

use crate::cache::{Cache, Cause, Inbox};
use crate::catalog::{Attr, Catalog, Changes, FOR_EVER, Listed, NodeId, Served};
use crate::ids::FileId;
use crate::plan::Event;
use crate::process::is_ending;
use crate::source::{KeyedPool, Kind, Source, Urgency, is_certain};
use crate::store::PassthroughFile;
use reading::PendingRead;
pub use rights::{Access, Rights};
use waiting::{Pending, Reply, WaitingRequests};

pub type ReadReply = Box<dyn FnOnce(Result<&[u8], Errno>) + Send>;

/// The directory in the root where the control files are mounted. It is found by name and never listed, so
/// that no loader takes it for a class.
pub const CONTROL_NAME: &str = ".belady";

/// The directory in the root where the views of rehearsal buffers are mounted, if there are any. It is
/// listed only if the configuration says so. A directory of this name in the dataset hides it.
pub const VIEWS_NAME: &str = "rehearsal";

/// The nodes of these directories. No row and version give these numbers.
const CONTROL_NODE: NodeId = NodeId(u64::MAX - 1);
const VIEWS_NODE: NodeId = NodeId(u64::MAX - 2);

/// Bytes of the longest name of control files, of views, and of a source that does not say. The kernel
/// passes longer names on.
pub const NAME_MAX: usize = 255;

/// Threads that read from the first connection's pages for further connections.
const PEEK_THREADS: usize = 4;

/// A read that takes longer is held up: a page may be locked as long as the source takes.
const PEEK_PATIENCE: Duration = Duration::from_secs(1);

/// How often a name is checked until its size is known.
const NAME_CHECKS: usize = 2;

/// How long a request waits for a hanging cache disk at least: its answer may need no disk.
const DISK_PATIENCE: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug)]
pub struct NotFound {
    pub errno: Errno,
    /// What the name stood for by the source's last answer. None if the source is certain that there is
    /// nothing, if it has never answered, and for a file with several names.
    pub known: Option<Attr>,
}

impl From<Errno> for NotFound {
    fn from(errno: Errno) -> Self {
        NotFound { errno, known: None }
    }
}

type OnChanges = Arc<dyn Fn(Changes) + Send + Sync>;

/// What the kernel may be told of a name: no guess of a size.
fn sized(attr: Attr) -> Result<Attr, Errno> {
    if attr.stat.is_sized { Ok(attr) } else { Err(Errno::EIO) }
}

/// The read-only tree of one source, as one connection shows it.
pub struct Dataset {
    source: Arc<dyn Source>,
    catalog: Arc<Catalog>,
    cache: Arc<Cache>,
    inbox: Arc<Inbox>,
    questions: Arc<Questions>,
    pub(crate) waiting: Arc<WaitingRequests>,
    space: Arc<LastSpace>,
    /// Threads of a further connection that read bytes from the first connection's pages. None for the
    /// first connection.
    peek_pool: Option<KeyedPool<NodeId>>,
    /// Whether opens are requests. If not, other requests show where a reader is.
    opens_are_requests: AtomicBool,
    /// Whether there is a directory for views, and whether it is listed.
    views: AtomicBool,
    lists_views: AtomicBool,
    /// Bytes of the longest name that the source can have.
    name_max: usize,
    on_changes: OnChanges,
}

impl Dataset {
    /// The tree of a catalog for the first connection, whose page cache is the RAM tier. `on_changes` gets
    /// the changes that checks at the source find.
    pub fn new(
        catalog: Arc<Catalog>,
        cache: Arc<Cache>,
        inbox: Arc<Inbox>,
        on_changes: OnChanges,
        opens_are_requests: bool,
    ) -> Arc<Self> {
        let source = Arc::clone(cache.source());
        let name_max = source.space().map_or(0, |space| space[6]) as usize;
        let name_max = if name_max == 0 { NAME_MAX } else { name_max };
        let waiting = WaitingRequests::new(Arc::clone(cache.alarm()), Arc::clone(cache.waits()));
        let waiting = Arc::new(waiting);
        let (views, lists_views) = (AtomicBool::new(false), AtomicBool::new(false));
        Arc::new(Dataset {
            source,
            catalog,
            cache,
            inbox,
            questions: Arc::new(Questions::new(&waiting)),
            waiting,
            space: Arc::default(),
            peek_pool: None,
            opens_are_requests: AtomicBool::new(opens_are_requests),
            views,
            lists_views,
            name_max,
            on_changes,
        })
    }

    /// The same tree for a further connection: each open is a request, no pages are kept, and nothing is
    /// mounted inside.
    pub fn further(&self) -> Arc<Self> {
        Arc::new(Dataset {
            source: Arc::clone(&self.source),
            catalog: Arc::clone(&self.catalog),
            cache: Arc::clone(&self.cache),
            inbox: Arc::clone(&self.inbox),
            questions: Arc::clone(&self.questions),
            waiting: Arc::clone(&self.waiting),
            space: Arc::clone(&self.space),
            peek_pool: Some(KeyedPool::new("belady-peek", PEEK_PATIENCE, 0, PEEK_THREADS, || ())),
            opens_are_requests: AtomicBool::new(true),
            views: AtomicBool::new(false),
            lists_views: AtomicBool::new(false),
            name_max: self.name_max,
            on_changes: Arc::clone(&self.on_changes),
        })
    }

    /// Whether the connection keeps pages. Only the first connection does: its pages are the RAM tier.
    pub fn keeps_pages(&self) -> bool {
        self.peek_pool.is_none()
    }

    pub fn catalog(&self) -> &Arc<Catalog> {
        &self.catalog
    }

    pub fn connection_ended(&self) {
        self.cache.alarm().ring();
    }

    pub fn opens_are_requests(&self) -> bool {
        self.opens_are_requests.load(Ordering::Relaxed)
    }

    /// Notes that the kernel sends every open.
    pub fn set_opens_are_requests(&self) {
        self.opens_are_requests.store(true, Ordering::Relaxed);
    }

    /// Shows a directory in the root for views to be mounted on, listed or not. Returns false if the
    /// dataset has a directory of that name.
    pub fn show_views(&self, listed: bool) -> bool {
        let found = self.catalog.lookup(NodeId::ROOT, OsStr::new(VIEWS_NAME), true);
        let free = matches!(found, None | Some(Err(Errno::ENOENT)));
        self.views.store(free, Ordering::Relaxed);
        self.lists_views.store(free && listed, Ordering::Relaxed);
        free
    }

    /// Tells the planner that a reader has opened a file or is about to: it asks for the file, or something
    /// about it.
    pub fn tell_seen(&self, node: NodeId, task: Option<u32>) {
        if let (Some(task), Some(file)) = (task, self.file_without_open_requests(node)) {
            self.inbox.put(Event::Seen { task, file }, None);
        }
    }

    /// Tells the planner that a reader reads a file that it has opened before.
    fn tell_touched(&self, file: FileId, task: u32) {
        if !self.opens_are_requests() {
            self.inbox.put(Event::Touched { task, file }, None);
        }
    }

    /// The file of a node if its opens are no requests.
    fn file_without_open_requests(&self, node: NodeId) -> Option<FileId> {
        if self.opens_are_requests() {
            return None;
        }
        self.catalog.served(node).ok().map(|served| served.file)
    }

    /// Whether a file may be opened without a lookup. If opens are requests, each file may: its open is seen.
    /// Else its open need not be seen, or its read will be a request, and the file has one name: of several names
    /// not all could be taken back.
    pub fn may_open_without_lookup(&self, attr: &Attr) -> bool {
        !self.is_tracked(attr.node) && (self.opens_are_requests() || self.has_one_name(attr))
    }

    /// Whether each open of a file is to be seen by a lookup, whatever names it has.
    pub fn is_tracked(&self, node: NodeId) -> bool {
        let flags = self.cache.page_cache().file_flags();
        let untracked = |file| flags.untracked.has(file) || !flags.fetched.has(file);
        !self.opens_are_requests() && !node.file().is_some_and(untracked)
    }

    /// Whether a file has no other name in the tree, however many links it has.
    pub fn has_one_name(&self, attr: &Attr) -> bool {
        attr.stat.links < 2 || attr.node.file().is_some_and(|file| self.catalog.has_one_name(file))
    }

    pub fn entry_valid(&self, attr: &Attr) -> Duration {
        let tracked = attr.stat.kind == Kind::File && !self.may_open_without_lookup(attr);
        if tracked { Duration::ZERO } else { attr.valid }
    }

    /// How long the kernel may believe the attributes. Those of one version of a file never change.
    pub fn attr_valid(attr: &Attr) -> Duration {
        if attr.stat.kind == Kind::File { FOR_EVER } else { attr.valid }
    }

    pub fn report(&self, changes: Changes) {
        if !changes.is_empty() {
            (self.on_changes)(changes);
        }
    }

    /// Reports the changes of a check, if it succeeded.
    fn report_changes(&self, outcome: Result<Changes, Errno>) -> Result<(), Errno> {
        outcome.map(|changes| self.report(changes))
    }

    /// Looks a name up for a task. Without a task, one of our own threads asks, and gets what is known.
    pub fn lookup(
        self: &Arc<Self>,
        parent: NodeId,
        name: &OsStr,
        task: Option<u32>,
        reply: impl FnOnce(Result<Attr, NotFound>) + Send + 'static,
    ) {
        if name.len() > self.name_max {
            return reply(Err(Errno::ENAMETOOLONG.into()));
        }
        if matches!(parent, CONTROL_NODE | VIEWS_NODE) {
            // Nothing is mounted there.
            return reply(Err(Errno::ENOENT.into()));
        }
        if parent == NodeId::ROOT && name == CONTROL_NAME {
            return reply(self.attr(CONTROL_NODE).map_err(NotFound::from));
        }
        if parent == NodeId::ROOT && name == VIEWS_NAME && self.views.load(Ordering::Relaxed) {
            return reply(self.attr(VIEWS_NODE).map_err(NotFound::from));
        }
        if let Some(result) = self.catalog.lookup(parent, name, task.is_none()) {
            let result = result.and_then(sized);
            self.tell_looked_up(&result, task);
            return reply(result.map_err(NotFound::from));
        }
        let name = name.to_os_string();
        let answer = |answer: Result<_, Errno>| reply(answer.unwrap_or_else(|e| Err(e.into())));
        let cause = |answer: &Result<Result<Attr, NotFound>, Errno>| match answer {
            Ok(found) => Cause::Name.unless_failed(&found.map_err(|not_found| not_found.errno)),
            Err(_) => Cause::Error,
        };
        let (dataset, key) = (Arc::clone(self), MetadataKey::of_name(parent, &name));
        self.questions.ask_for(cause, key, task, answer, move || {
            let checked = dataset.refresh_name(parent, &name);
            let known = || {
                let known = dataset.catalog.lookup(parent, &name, true);
                known.unwrap_or(Err(Errno::EIO)).and_then(sized)
            };
            if let Some(errno) = checked.err().filter(|errno| !is_certain(*errno)) {
                // Another name of the same file may be known to be unchanged, while this one is not.
                let is_only = |attr: &Attr| !dataset.catalog.is_shared(attr.node);
                return Ok(Err(NotFound { errno, known: known().ok().filter(is_only) }));
            }
            let result = checked.and_then(|()| known());
            dataset.tell_looked_up(&result, task);
            Ok(result.map_err(NotFound::from))
        });
    }

    /// Checks a name at the source, and finds out its size. Blocks.
    fn refresh_name(&self, parent: NodeId, name: &OsStr) -> Result<(), Errno> {
        for _ in 0..NAME_CHECKS {
            if let Some(node) = self.catalog.without_size(parent, name) {
                self.cache.find_size(node);
            }
            self.report_changes(self.catalog.refresh(parent, name))?;
            // A name that was not known before is found by a listing, which may tell no size.
            if self.catalog.without_size(parent, name).is_none() {
                break;
            }
        }
        Ok(())
    }

    /// A lookup of a regular file shows its reader. The planner is told before the reply, after which the
    /// reader goes on.
    fn tell_looked_up(&self, result: &Result<Attr, Errno>, task: Option<u32>) {
        if let Ok(attr) = result
            && attr.stat.kind == Kind::File
            && !self.opens_are_requests()
            && let (Some(task), Some(file)) = (task, attr.node.file())
        {
            self.inbox.put(Event::Seen { task, file }, None);
        }
    }

    /// Attributes of a node. Those of a directory, and of a file if it is `in_doubt`, are checked if they
    /// are older than the period.
    pub fn getattr(
        self: &Arc<Self>,
        node: NodeId,
        task: Option<u32>,
        in_doubt: bool,
        reply: impl FnOnce(Result<Attr, Errno>) + Send + 'static,
    ) {
        match self.attr(node) {
            Ok(attr) if attr.stat.kind == Kind::Directory && attr.valid.is_zero() => {
                if task.is_none() {
                    return reply(Ok(attr));
                }
                if node == NodeId::ROOT {
                    return self.getattr_root(task, reply);
                }
                let dataset = Arc::clone(self);
                self.questions.ask(MetadataKey::Directory(node), task, reply, move || {
                    dataset.report_changes(dataset.catalog.refresh_directory(node))?;
                    dataset.attr(node)
                });
            }
            Ok(attr) if in_doubt && attr.valid.is_zero() && task.is_some() => {
                self.check_name(node, task, reply);
            }
            // An open file may have become another version, whose bytes it gives.
            result => reply(result.or_else(|_| self.catalog.served_attr(node))),
        }
    }

    /// Attributes of a node, as known.
    ///
    /// # Errors
    /// `ESTALE` for a past version.
    pub fn attr(&self, node: NodeId) -> Result<Attr, Errno> {
        let mode = match node {
            CONTROL_NODE => 0o500,
            VIEWS_NODE => 0o555,
            _ => return self.catalog.getattr(node),
        };
        let mut attr = self.catalog.getattr(NodeId::ROOT)?;
        attr.node = node;
        attr.stat.mode = mode;
        attr.stat.uid = nix::unistd::geteuid().as_raw();
        attr.stat.gid = nix::unistd::getegid().as_raw();
        Ok(attr)
    }

    /// # Errors
    /// `ESTALE` for a past version.
    pub fn parent(&self, node: NodeId) -> Result<NodeId, Errno> {
        match node {
            CONTROL_NODE | VIEWS_NODE => Ok(NodeId::ROOT),
            _ => self.catalog.parent(node),
        }
    }

    /// Lists a directory for a task, sorted by name. Without a task, one of our own threads asks, and gets
    /// what is known.
    pub fn list(
        self: &Arc<Self>,
        node: NodeId,
        task: Option<u32>,
        reply: impl FnOnce(Result<Vec<Listed>, Errno>) + Send + 'static,
    ) {
        if matches!(node, CONTROL_NODE | VIEWS_NODE) {
            return reply(Ok(Vec::new()));
        }
        if let Some(result) = self.catalog.list(node, task.is_none()) {
            return reply(result.map(|listed| self.as_listed(node, listed)));
        }
        let dataset = Arc::clone(self);
        self.questions.ask(MetadataKey::Directory(node), task, reply, move || {
            dataset.report_changes(dataset.catalog.refresh_directory(node))?;
            let listed = dataset.catalog.list(node, true).unwrap_or(Err(Errno::EIO))?;
            Ok(dataset.as_listed(node, listed))
        });
    }

    /// A directory as readers see it: without what is found by name alone, and with the directory of the views if that
    /// is listed.
    fn as_listed(&self, node: NodeId, mut listed: Vec<Listed>) -> Vec<Listed> {
        if node != NodeId::ROOT {
            return listed;
        }
        if let Some(name) = self.source.unlisted() {
            listed.retain(|entry| entry.name != name);
        }
        if self.lists_views.load(Ordering::Relaxed)
            && let Ok(attr) = self.attr(VIEWS_NODE)
        {
            let place =
                listed.partition_point(|entry| entry.name.as_os_str() < OsStr::new(VIEWS_NAME));
            listed.insert(place, Listed { name: VIEWS_NAME.into(), attr, sure: true });
        }
        listed
    }

    /// Tells the planner that a task opens a file.
    ///
    /// # Errors
    /// `ESTALE` for a past version, even if the present one may turn out to be the same: the kernel then
    /// looks the name up again, and opens the present one.
    pub fn open(&self, node: NodeId, task: u32) -> Result<(), Errno> {
        let Served { node: present, file, .. } = self.catalog.served(node)?;
        if present != node && !self.catalog.unproved(present).is_empty() {
            return Err(Errno::ESTALE);
        }
        self.inbox.put(Event::Opened { task, file }, None);
        Ok(())
    }

    /// Reads a byte range, cut at the file's end. A further connection gets the bytes that are in the first
    /// connection's pages. All other bytes are a miss.
    pub fn read(
        self: &Arc<Self>,
        node: NodeId,
        task: u32,
        offset: u64,
        size: u32,
        reply: ReadReply,
    ) {
        PendingRead::start(self, node, task, offset, size, reply);
    }

    /// Whether readers of a node get the pages that they ask for instead of whole blocks.
    fn is_in_parts(&self, node: NodeId) -> bool {
        let in_parts = |file| self.cache.page_cache().file_flags().in_parts.has(file);
        // On a further connection the kernel keeps no answered bytes.
        self.keeps_pages() && node.file().is_some_and(in_parts)
    }

    /// A large file that the kernel can read by itself. Never blocks.
    pub fn passthrough_file(&self, node: NodeId) -> Option<Arc<PassthroughFile>> {
        self.cache.passthrough_file(node)
    }

    /// Tells the planner that the kernel reads a file by itself, and has forgotten the file's pages.
    pub fn tell_passed_through(&self, node: NodeId) {
        if let Some(file) = node.file() {
            self.inbox.put(Event::PassedThrough { file }, None);
        }
    }

    /// Tells the planner that a file which [`open`](Self::open) opened is closed.
    pub fn close(&self, node: NodeId) {
        // The row stays the same, whatever its present version.
        if let Some(file) = node.file() {
            self.inbox.put(Event::Closed { file }, None);
        }
    }

    /// Ends the wait of requests whose task is being killed, and of requests about the mount itself that
    /// the source does not answer. Must be called each [`TICK`](crate::disk::TICK).
    pub fn tick(&self) {
        self.waiting.tick(Instant::now(), is_ending);
    }

    /// How many requests wait at this moment, and how long the first of them has waited.
    pub fn waiting_now(&self) -> (usize, Duration) {
        self.waiting.under_way()
    }

    /// Whether no request waits.
    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty()
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
        self.waiting.enter_until(Some(task), reply, Cause::Disk, hangs, || Err(Errno::EIO))
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
    fn getattr_root(
        self: &Arc<Self>,
        task: Option<u32>,
        reply: impl FnOnce(Result<Attr, Errno>) + Send + 'static,
    ) {
        let (dataset, known) = (Arc::clone(self), Arc::clone(self));
        let from_memory = move || known.attr(NodeId::ROOT);
        let key = MetadataKey::Directory(NodeId::ROOT);
        self.questions.ask_briefly(key, task, reply, from_memory, move || {
            let _ = dataset.report_changes(dataset.catalog.refresh_directory(NodeId::ROOT));
            dataset.attr(NodeId::ROOT)
        });
    }

    /// Space of the source's filesystem. If the source hangs, this is its last answer.
    pub fn space(
        self: &Arc<Self>,
        task: Option<u32>,
        reply: impl FnOnce(Result<Space, Errno>) + Send + 'static,
    ) {
        let (dataset, last) = (Arc::clone(self), Arc::clone(&self.space));
        let from_memory = move || Ok(last.get());
        self.questions.ask_briefly(MetadataKey::Space, task, reply, from_memory, move || {
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
        let dataset = Arc::clone(self);
        self.questions.ask(self.key_of(node), task, reply, move || {
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
        let (dataset, name) = (Arc::clone(self), name.to_os_string());
        self.questions.ask(self.key_of(node), task, reply, move || {
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
        let dataset = Arc::clone(self);
        self.questions.ask(self.key_of(node), task, reply, move || {
            dataset.source.list_xattrs(&dataset.path(node)?)
        });
    }

    /// Path of a node at the source.
    ///
    /// # Errors
    /// `ESTALE` for a past version, `ENOTSUP` for a node that is not at the source.
    fn path(&self, node: NodeId) -> Result<PathBuf, Errno> {
        match node {
            CONTROL_NODE | VIEWS_NODE => Err(Errno::ENOTSUP),
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
        self.questions.threads.submit(urgency, self.key_of(node), move || {
            // Another check may have been made while this one waited.
            let is_due = urgency == Urgency::Demand || dataset.catalog.is_check_due(node);
            then(if is_due { dataset.check_now(node) } else { Ok(()) });
        });
    }

    /// Attributes of a file, whose name is first checked at the source.
    fn check_name(
        self: &Arc<Self>,
        node: NodeId,
        task: Option<u32>,
        reply: impl FnOnce(Result<Attr, Errno>) + Send + 'static,
    ) {
        let dataset = Arc::clone(self);
        self.questions.ask(self.key_of(node), task, reply, move || {
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
