//! The kernel's page cache, which is the RAM tier: blocks are put there, looked at and dropped.
//!
//! The pages of the first connection are in charge. Before it is mounted, blocks are fetched and not kept.

use std::ffi::{OsStr, OsString};
use std::ops::Range;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use nix::errno::Errno;

use super::checks::Checks;
use super::file_flags::FileFlags;
use super::flights::part_of;
use super::on_drop::NotifyOnDrop;
use super::{Inbox, Recheck};
use crate::catalog::{Catalog, Located, NodeId};
use crate::ids::{BlockId, FileId, PageRange};
use crate::plan::Event;
use crate::source::{KeyedPool, Pool, Urgency};

/// Threads that push blocks.
pub(super) const PUSH_THREADS: usize = 4;

/// How long it may take to expire a name, which is a matter of microseconds.
const EXPIRE_PATIENCE: Duration = Duration::from_secs(2);

/// The kernel's page cache of one connection.
pub trait Pages: Send + Sync + 'static {
    /// Bytes of a file will be put there soon.
    fn expect(&self, at: &Located);

    /// Puts the bytes there. Blocks.
    ///
    /// # Errors
    /// The kernel's, `ENOENT` if it does not know the file.
    fn store(&self, at: &Located, bytes: &[u8]) -> Result<(), Errno>;

    /// Whether what is stored stays. Otherwise each read is a request.
    fn are_kept(&self) -> bool {
        true
    }

    /// Looks whether every page is there. If so, the kernel has looked the name up again if it could
    /// not believe it any more.
    fn check(&self, at: Located, reply: CheckReply);

    /// Has the kernel look the name up again if it cannot believe it any more.
    fn renew(&self, at: Located);

    /// Reads bytes if every page of them is there. Blocks.
    ///
    /// # Errors
    /// If a page is not there, or if the pages are of another version.
    fn read(&self, at: &Located) -> Result<Vec<u8>, Errno>;

    /// Makes the kernel look a file's name up at its next open. Its pages stay. Blocks.
    fn expire(&self, node: NodeId, parent: NodeId, name: &OsStr);

    /// Drops the pages. Then `done` is called, or dropped if that panicked.
    fn discard(&self, at: Located, done: Box<dyn FnOnce() + Send>);
}

/// Takes whether pages are there; none if the kernel cannot tell.
pub type CheckReply = Box<dyn FnOnce(Option<bool>) + Send>;

/// The page cache, with the times of its checks and the flags of files.
pub struct PageCache {
    catalog: Arc<Catalog>,
    inbox: Arc<Inbox>,
    connection: OnceLock<(Arc<dyn Pages>, Recheck)>,
    checks: Checks,
    file_flags: FileFlags,
    expire_pool: KeyedPool<NodeId>,
    pub(super) push_pool: Pool,
}

impl PageCache {
    pub(super) fn new(catalog: &Arc<Catalog>, inbox: &Arc<Inbox>) -> Self {
        PageCache {
            catalog: Arc::clone(catalog),
            inbox: Arc::clone(inbox),
            connection: OnceLock::new(),
            checks: Checks::default(),
            file_flags: FileFlags::default(),
            expire_pool: KeyedPool::new("belady-expire", EXPIRE_PATIENCE, 1, 0, || ()),
            push_pool: Pool::new("belady-push", PUSH_THREADS, 0),
        }
    }

    /// Connects the page cache, once it is mounted. `recheck` looks at a file again at the source; it must
    /// not block.
    pub fn connect(&self, pages: Arc<dyn Pages>, recheck: Recheck) {
        // A second connection of the same source leaves the first one's pages in charge.
        let _ = self.connection.set((pages, recheck));
    }

    pub(super) fn pages(&self) -> Option<&Arc<dyn Pages>> {
        self.connection.get().map(|(pages, _)| pages)
    }

    pub(super) fn recheck(&self) -> Option<&Recheck> {
        self.connection.get().map(|(_, recheck)| recheck)
    }

    /// The flags of all files.
    pub fn file_flags(&self) -> &FileFlags {
        &self.file_flags
    }

    /// Lets a file be opened without a request, or has each of its opens seen.
    pub fn set_untracked(self: &Arc<Self>, file: FileId, untracked: bool) {
        self.file_flags.untracked.set(file, untracked);
        if !untracked && let Some((node, parent, name)) = self.catalog.name(file) {
            self.expire(node, parent, name);
        }
    }

    /// The first bytes of a file are fetched for RAM. From now on its opens are to be seen, since there
    /// may be pages of it.
    pub(super) fn begin_fetch(self: &Arc<Self>, at: &Located) {
        if let Some(file) = at.node.file().filter(|file| self.file_flags.note_fetch(*file))
            && !self.file_flags.untracked.has(file)
            && let Some(name) = at.path.file_name()
        {
            self.expire(at.node, at.parent, name.to_os_string());
        }
    }

    /// Has the kernel look a file up at its next open, unless it is untracked by then.
    fn expire(self: &Arc<Self>, node: NodeId, parent: NodeId, name: OsString) {
        let cache = Arc::clone(self);
        self.expire_pool.submit(Urgency::Prefetch, parent, move || {
            let is_untracked = node.file().is_some_and(|it| cache.file_flags.untracked.has(it));
            if let Some(pages) = cache.pages().filter(|_| !is_untracked) {
                pages.expire(node, parent, &name);
            }
        });
    }

    /// Puts a block there. Blocks.
    pub(super) fn store(&self, block: BlockId, at: &Located, bytes: &[u8]) -> Result<(), Errno> {
        let pages = self.pages().ok_or(Errno::ENOTCONN)?;
        pages.store(at, bytes)?;
        if pages.are_kept() {
            self.checks.note(block, Instant::now());
        }
        Ok(())
    }

    /// Looks `now` whether a block that will be read soon is still as it should be: its version, if the
    /// last look at the source was long ago, and its pages. Sets right each that is not. The kernel hears of
    /// the version last, so that the reader need not ask.
    pub fn check(self: &Arc<Self>, block: BlockId, now: Instant) {
        let Some(located) = self.catalog.locate(block) else { return };
        let look = self.checks.is_due(block, now) && self.checks.take_look(now);
        if self.catalog.is_check_due(located.node)
            && let Some(recheck) = self.recheck()
        {
            let cache = Arc::clone(self);
            let checked = move |_| cache.look(block, look.then_some(now));
            return recheck(located.node, Urgency::Prefetch, Box::new(checked));
        }
        if look {
            self.look(block, Some(now));
        }
    }

    /// Renews the kernel's entry of a block's file. If `at` has a time, also looks whether the block's
    /// pages are there, and notes the look with that time.
    fn look(self: &Arc<Self>, block: BlockId, at: Option<Instant>) {
        let Some(located) = self.catalog.locate(block) else { return };
        let Some(pages) = self.pages() else { return };
        let Some(now) = at else { return pages.renew(located) };
        let (cache, node) = (Arc::clone(self), located.node);
        let reply = move |whole| match whole {
            Some(false) => {
                cache.inbox.put_if_present(&cache.catalog, node, Event::Lost { block }, None);
            }
            // If the kernel cannot tell, it is of no use to ask again soon.
            Some(true) | None => cache.checks.note(block, now),
        };
        pages.check(located, Box::new(reply));
    }

    /// Whether the kernel has taken the pages of a block back, since a read finds none and the block is not on its way:
    /// they were there, and belady has not dropped them.
    pub(super) fn has_lost(&self, block: BlockId) -> bool {
        self.checks.forget(block)
    }

    /// Files are other versions now: the pages of the ones before count for nothing.
    pub fn forget_files(&self, files: &[FileId]) {
        let layout = self.catalog.layout();
        for block in files.iter().flat_map(|file| layout.blocks_of(*file)) {
            self.checks.forget(block);
        }
    }

    /// Drops a block's pages, or part of them, and tells the planner when that is done.
    pub fn drop_pages(&self, block: BlockId, part: Option<PageRange>) {
        let dropped = NotifyOnDrop::new(&self.inbox, Event::Dropped { block });
        self.checks.forget(block);
        let at = self.catalog.locate(block).and_then(|whole| part_of(whole, part));
        if let (Some(pages), Some(at)) = (self.pages(), at) {
            pages.discard(at, Box::new(move || drop(dropped)));
        }
    }

    /// Bytes of a version of a file, if all of them are there: for readers that have no pages of their own.
    /// Blocks, as long as another read of the same pages takes.
    pub fn peek(&self, node: NodeId, range: &Range<u64>) -> Option<Vec<u8>> {
        let (file, _) = self.catalog.file(node).ok()?;
        let length = range.end.checked_sub(range.start)?;
        let block = self.catalog.layout().blocks_in(file, range.start, length).next()?;
        let located = self.catalog.locate(block).filter(|located| located.node == node)?;
        let at = Located { offset: range.start, length: length as usize, ..located };
        self.pages()?.read(&at).ok()
    }
}
