//! Answers one read: which version of its file it gets, and where its bytes come from.
//!
//! If the file of a node has changed, the read gets the present version, unless different bytes of the past
//! version were handed out. To know that, the blocks that were handed out are first fetched and compared.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use nix::errno::Errno;

use super::join::Join;
use super::waiting::Pending;
use super::{Dataset, ReadReply};
use crate::cache::{Landed, ReadFailure, Waiter};
use crate::catalog::{NodeId, Served};
use crate::disk::Buffer;
use crate::ids::{BlockId, FileId, PageRange};
use crate::plan::Layout;
use crate::source::Urgency;

/// How often a read starts again because its file has changed meanwhile.
pub(super) const RETRIES: u32 = 3;

/// Blocks that one read fetches at once to compare them. There is always memory for this number.
const PROVED_AT_ONCE: usize = 4;

/// Takes the bytes of a read, or why there are none.
pub(super) type ReadDone = Box<dyn FnOnce(Result<&[u8], ReadFailure>) + Send>;

struct PendingRead {
    /// The node as the kernel has it.
    node: NodeId,
    task: u32,
    offset: u64,
    size: u32,
    /// How often it may still start again.
    retries: u32,
    reply: Arc<Pending<ReadReply>>,
}

impl PendingRead {
    fn answer(self, result: Result<&[u8], Errno>) {
        if let Some(reply) = self.reply.take() {
            reply(result);
        }
    }
}

struct VersionRange {
    node: NodeId,
    file: FileId,
    layout: Arc<Layout>,
    range: Range<u64>,
}

impl Dataset {
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
        let served = self.catalog.served(node);
        served.iter().for_each(|served| self.tell_touched(served.file, task));
        let reply = self.waiting.enter(Some(task), None, reply, |reply| reply(Err(Errno::EINTR)));
        self.serve(served, PendingRead { node, task, offset, size, retries: RETRIES, reply });
    }

    fn restart(self: &Arc<Self>, read: PendingRead) {
        self.serve(self.catalog.served(read.node), read);
    }

    /// Gets a reader the bytes of a version.
    fn serve(self: &Arc<Self>, served: Result<Served, Errno>, read: PendingRead) {
        let Served { node, file, size, layout } = match served {
            Ok(served) => served,
            Err(errno) => return read.answer(Err(errno)),
        };
        let end = read.offset.saturating_add(u64::from(read.size)).min(size);
        let wanted = VersionRange { node, file, layout, range: read.offset..end };
        if wanted.range.is_empty() {
            return read.answer(Ok(&[]));
        }
        let is_past = node != read.node;
        let unproved = if is_past { self.catalog.unproved(node) } else { Vec::new() };
        // Bytes that are in pages prove nothing.
        let is_proved = unproved.is_empty();
        let unproved = self.unproved_elsewhere(&wanted, unproved);
        if !unproved.is_empty() {
            return self.prove(node, unproved, read);
        }
        match &self.peek_pool {
            Some(peeks) if is_proved && self.cache.may_peek(node, file, &wanted.range) => {
                let dataset = Arc::clone(self);
                peeks.submit(Urgency::Demand, node, move || {
                    match dataset.cache.page_cache().peek(node, &wanted.range) {
                        Some(bytes) => dataset.finish(node, Ok(&bytes), read),
                        None => dataset.read_uncached(wanted, read),
                    }
                });
            }
            _ => self.read_uncached(wanted, read),
        }
    }

    /// The blocks that earlier versions may have shown, without those that this read fetches in any case.
    /// The fetch of a block shows whether it is the same.
    fn unproved_elsewhere(
        &self,
        wanted: &VersionRange,
        mut unproved: Vec<BlockId>,
    ) -> Vec<BlockId> {
        if !self.is_in_parts(wanted.node) {
            let length = wanted.range.end - wanted.range.start;
            let asked = wanted.layout.blocks_in(wanted.file, wanted.range.start, length);
            unproved.retain(|block| asked.clone().all(|read| read != *block));
        }
        unproved
    }

    /// Fetches some of these blocks, and starts the read again when it is known whether they are the same.
    fn prove(self: &Arc<Self>, node: NodeId, mut blocks: Vec<BlockId>, read: PendingRead) {
        if !read.reply.is_unanswered() {
            return;
        }
        blocks.truncate(PROVED_AT_ONCE);
        let dataset = Arc::clone(self);
        let done = move |result: Result<&[u8], ReadFailure>| match result {
            Ok(_) => dataset.restart(read),
            Err(_) => dataset.finish(node, result, read),
        };
        let join = Arc::new(Join::new(blocks.len(), Box::new(done)));
        for (index, block) in blocks.into_iter().enumerate() {
            let join = Arc::clone(&join);
            let waiter = move |result: Result<Landed, ReadFailure>| {
                // The bytes are not needed.
                let none = |_| Landed::from(Arc::new(Buffer::from(Vec::new())));
                join.take(index, result.map(none));
            };
            self.cache.bring(block, node, Box::new(waiter));
        }
    }

    /// Reads bytes of which the kernel has no pages.
    fn read_uncached(self: &Arc<Self>, wanted: VersionRange, read: PendingRead) {
        let VersionRange { node, file, layout, range } = wanted;
        let asked: Vec<(BlockId, Range<u64>)> = layout
            .blocks_in(file, range.start, range.end - range.start)
            .map(|block| {
                let (offset, length) = layout.range(block);
                let start = range.start.saturating_sub(offset);
                (block, start..range.end.saturating_sub(offset).min(length))
            })
            .collect();
        let task = read.task;
        let dataset = Arc::clone(self);
        let done = move |result: Result<&[u8], ReadFailure>| dataset.finish(node, result, read);
        if let [(block, asked)] = asked.as_slice() {
            let waiter = move |result: Result<Landed, ReadFailure>| match result {
                Ok(bytes) => done(Ok(&bytes)),
                Err(why) => done(Err(why)),
            };
            return self.read_block(*block, asked.clone(), node, task, waiter);
        }
        let join = Arc::new(Join::new(asked.len(), Box::new(done)));
        for (index, (block, asked)) in asked.into_iter().enumerate() {
            let join = Arc::clone(&join);
            let waiter = move |result| join.take(index, result);
            self.read_block(block, asked, node, task, waiter);
        }
    }

    /// Reads bytes of one block. The range counts from the block's start.
    fn read_block(
        &self,
        block: BlockId,
        asked: Range<u64>,
        node: NodeId,
        task: u32,
        waiter: impl FnOnce(Result<Landed, ReadFailure>) + Send + 'static,
    ) {
        let pages = PageRange::covering(&asked);
        let waiter: Waiter = Box::new(move |result: Result<Landed, ReadFailure>| {
            waiter(result.and_then(|bytes| bytes.cut(&asked)));
        });
        match self.is_in_parts(node) {
            true => self.cache.read_pages(block, pages, node, task, waiter),
            false => self.cache.read(block, node, task, waiter),
        }
    }

    /// Whether readers of a node get the pages that they ask for instead of whole blocks.
    fn is_in_parts(&self, node: NodeId) -> bool {
        // On a further connection the kernel keeps no answered bytes.
        self.peek_pool.is_none()
            && node
                .file()
                .is_some_and(|file| self.cache.page_cache().file_flags().in_parts.has(file))
    }

    /// Ends a read that has got bytes of `node`, or starts it again.
    fn finish(
        self: &Arc<Self>,
        node: NodeId,
        result: Result<&[u8], ReadFailure>,
        read: PendingRead,
    ) {
        let is_past = node != read.node;
        match result {
            // They differ from bytes that the reader may have read before.
            Ok(_) if is_past && self.catalog.served(read.node).is_err() => self.answer_stale(read),
            // The file has changed again, or has been read in parts meanwhile.
            Ok(_) if is_past && !self.catalog.unproved(node).is_empty() => self.retry(read),
            Ok(bytes) => read.answer(Ok(bytes)),
            Err(ReadFailure::Errno(errno)) => read.answer(Err(errno)),
            Err(ReadFailure::PastVersion) => self.retry(read),
        }
    }

    fn retry(self: &Arc<Self>, read: PendingRead) {
        match read.retries.checked_sub(1) {
            Some(retries) => self.restart(PendingRead { retries, ..read }),
            None => self.answer_stale(read),
        }
    }

    fn answer_stale(&self, read: PendingRead) {
        self.cache.traffic().read_errors.fetch_add(1, Ordering::Relaxed);
        read.answer(Err(Errno::ESTALE));
    }
}
