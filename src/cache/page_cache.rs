//! The kernel's page cache, which is the RAM tier: blocks are put there, looked at and dropped.
//!
//! The pages of the first connection are in charge. Before it is mounted, blocks are fetched and not kept.

use std::ffi::{OsStr, OsString};
use std::ops::Range;
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use nix::errno::Errno;

use super::checks::Checks;
use super::file_flags::FileFlags;
use super::flights::part_of;
use super::on_drop::NotifyOnDrop;
use super::probes::{self, Probes};
use super::{Inbox, Recheck};
use crate::catalog::{Catalog, Located, NodeId};
use crate::ids::{BlockId, FileId, PageRange};
use crate::plan::{Event, Layout};
use crate::source::{KeyedPool, Pool, Urgency};

/// Threads that push blocks.
pub(super) const PUSH_THREADS: usize = 4;

/// Slices of which a page is to be taken out, at most.
const LEAVING_MAX: usize = 4096;

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

    /// Has the kernel read what is asked for, and little past it, of files that are opened from now on. By default it
    /// takes a read of pages that lie after others for the continuation of a sequential one, and reads far on.
    fn limit_read_ahead(&self) {}

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
    pub(super) probes: Probes,
    /// Takes pages out of slices. As many jobs are to be done as there are clones of `leaving`.
    leave_pool: Pool,
    leaving: Arc<()>,
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
            probes: Probes::default(),
            leave_pool: Pool::new("belady-leave-out", 1, 0),
            leaving: Arc::default(),
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

    /// Whether pages are pushed, and stay.
    pub fn keeps_pages(&self) -> bool {
        self.pages().is_some_and(|pages| pages.are_kept())
    }

    /// Ranges of files are read in a mixed order from now on.
    pub fn expect_random_reads(&self) {
        if let Some(pages) = self.pages() {
            pages.limit_read_ahead();
        }
    }

    /// Lets a file be opened without a request, or has each of its opens seen. If it is a slice, its reads are seen
    /// or not.
    pub fn set_untracked(self: &Arc<Self>, file: FileId, untracked: bool) {
        if let Some(block) = file.as_slice() {
            self.probes.set_untracked(block, untracked);
            if !untracked {
                self.leave_out(block);
            }
            return;
        }
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

    /// Puts a block there. `is_read`: a reader has got its bytes, so the kernel may have all of its pages. Blocks.
    pub(super) fn store(
        &self,
        block: BlockId,
        at: &Located,
        bytes: &[u8],
        is_read: bool,
    ) -> Result<(), Errno> {
        let (pages, layout) = (self.pages().ok_or(Errno::ENOTCONN)?, self.catalog.layout());
        let page = probes::page_of(&layout, block, at);
        let may_be_seen = !is_read && pages.are_kept();
        let page = page.filter(|_| may_be_seen && !self.probes.is_untracked(block));
        let is_left_out = |page: &Range<usize>| {
            let offset = at.offset + page.start as u64;
            let is_slice = layout.unit_of(block).as_slice().is_some();
            self.probes.keep((block, is_slice), at.node, offset, &bytes[page.clone()])
        };
        match page.filter(is_left_out) {
            Some(page) => self.store_without(block, page, (at, bytes), pages)?,
            None => {
                if layout.probe_in(block).is_some() {
                    self.probes.forget(block);
                }
                pages.store(at, bytes)?;
            }
        }
        // Its file may have left it behind meanwhile.
        if !self.catalog.layout().has(block) {
            self.probes.forget(block);
            pages.discard(at.clone(), Box::new(|| ()));
            return Err(Errno::ESTALE);
        }
        if pages.are_kept() {
            self.checks.note(block, Instant::now());
        }
        Ok(())
    }

    /// Puts a block there and leaves a page out. Blocks.
    fn store_without(
        &self,
        block: BlockId,
        page: Range<usize>,
        (at, bytes): (&Located, &[u8]),
        pages: &Arc<dyn Pages>,
    ) -> Result<(), Errno> {
        let stored = [0..page.start, page.end..bytes.len()].into_iter().try_for_each(|part| {
            let (offset, length) = (at.offset + part.start as u64, part.len());
            let part_at = Located { offset, length, ..at.clone() };
            if part.is_empty() { Ok(()) } else { pages.store(&part_at, &bytes[part]) }
        });
        stored.inspect_err(|_| self.probes.forget(block))
    }

    /// The read of a slice has to be seen that lies in the page cache: a page of it is taken out.
    fn leave_out(self: &Arc<Self>, block: BlockId) {
        // It may have been dropped. If there are too many, some reads are not seen.
        if !self.checks.is_noted(block) || Arc::strong_count(&self.leaving) > LEAVING_MAX {
            return;
        }
        let (cache, under_way) = (Arc::clone(self), Arc::clone(&self.leaving));
        self.leave_pool.submit(Urgency::Prefetch, move || {
            let _under_way = under_way;
            cache.leave_out_now(block);
        });
    }

    /// The same on a thread that may wait.
    fn leave_out_now(&self, block: BlockId) {
        let Some(at) = self.catalog.locate(block) else { return };
        let is_whole =
            self.checks.is_noted(block) && self.probes.left_out(block, at.node).is_none();
        let layout = self.catalog.layout();
        let page = probes::page_of(&layout, block, &at).filter(|_| is_whole);
        let (Some(page), Some(pages)) = (page, self.pages()) else { return };
        let offset = at.offset + page.start as u64;
        let at = Located { offset, length: page.len(), ..at };
        if let Ok(bytes) = pages.read(&at)
            && self.probes.keep((block, true), at.node, offset, &bytes)
        {
            pages.discard(at, Box::new(|| ()));
        }
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
        let left_out = self.probes.left_out(block, node).map(|(range, _)| range);
        if let Some(beside) = probes::beside(located, left_out) {
            pages.check(beside, Box::new(reply));
        }
    }

    /// Whether the kernel has taken the pages of a block back, since a read finds none and the block is not on its way:
    /// they were there, and belady has not dropped them.
    pub(super) fn has_lost(&self, block: BlockId) -> bool {
        self.checks.forget(block)
    }

    /// Files are other versions now, or have other blocks than in this layout. The pages of before count for nothing.
    pub fn forget_files(&self, files: &[FileId], layout: &Layout) {
        self.probes.forget_files(files, layout);
        for block in files.iter().flat_map(|file| layout.blocks_of(*file)) {
            self.checks.forget(block);
        }
    }

    /// Drops a block's pages, or part of them, and tells the planner when that is done.
    pub fn drop_pages(&self, block: BlockId, part: Option<PageRange>) {
        let dropped = NotifyOnDrop::new(&self.inbox, Event::Dropped { block });
        self.checks.forget(block);
        self.probes.forget(block);
        let at = self.catalog.locate(block).and_then(|whole| part_of(whole, part));
        if let (Some(pages), Some(at)) = (self.pages(), at) {
            pages.discard(at, Box::new(move || drop(dropped)));
        }
    }

    /// Drops all pages of files whose blocks are others now, as far as that takes no longer than `patience`. Blocks.
    pub fn drop_files(&self, files: &[FileId], patience: Duration) {
        let Some(pages) = self.pages() else { return };
        let layout = self.catalog.layout();
        let (done, ended) = sync_channel(files.len());
        for file in files {
            let block = layout.blocks_of(*file).next();
            let Some(at) = block.and_then(|block| self.catalog.locate(block)) else { continue };
            let (length, done) = (at.fingerprint.size() as usize, done.clone());
            let tell = move || {
                // Nobody waits any more if it took too long.
                let _ = done.send(());
            };
            pages.discard(Located { offset: 0, length, ..at }, Box::new(tell));
        }
        drop(done);
        let until = Instant::now() + patience;
        // It is over if all of them are done, or dropped.
        while ended.recv_timeout(until.saturating_duration_since(Instant::now())).is_ok() {}
    }

    /// Bytes of a version of a file, if all of them are there: for readers that have no pages of their own.
    /// Blocks, as long as another read of the same pages takes.
    pub fn peek(&self, node: NodeId, range: &Range<u64>) -> Option<Vec<u8>> {
        let (file, _) = self.catalog.file(node).ok()?;
        let (layout, length) = (self.catalog.layout(), range.end.checked_sub(range.start)?);
        let blocks = layout.blocks_in(file, range.start, length);
        let first = blocks.clone().next()?;
        let located = self.catalog.locate(first).filter(|located| located.node == node)?;
        let read = |part: Range<u64>| {
            let length = part.end.saturating_sub(part.start) as usize;
            let at = Located { offset: part.start, length, ..located.clone() };
            if length == 0 { Some(Vec::new()) } else { self.pages()?.read(&at).ok() }
        };
        // Pages that were left out are not there.
        let (mut bytes, mut from) = (Vec::new(), range.start);
        let probed = blocks.filter(|block| layout.probe_in(*block).is_some());
        for (left_out, page) in probed.filter_map(|it| self.probes.left_out(it, node)) {
            let taken = from.max(left_out.start)..range.end.min(left_out.end);
            if taken.is_empty() {
                continue;
            }
            bytes.extend(read(from..taken.start)?);
            let begin = (taken.start - left_out.start) as usize;
            bytes.extend_from_slice(&page[begin..begin + (taken.end - taken.start) as usize]);
            from = taken.end;
        }
        bytes.extend(read(from..range.end)?);
        Some(bytes)
    }
}
