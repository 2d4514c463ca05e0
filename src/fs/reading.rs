//! One read: which version of its file it gets, and where its bytes come from.
//!
//! A reader that has seen nothing of a version that is past gets the present one instead. So a file that
//! turns out to have changed is read again, unless other bytes of the past version were handed out. To know
//! that, the blocks that were handed out are brought first.

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

/// How often a read begins anew because its file has changed meanwhile.
pub(super) const RETRIES: u32 = 3;

/// Blocks that one read has brought at once to know whether they are the same: for so many there is memory
/// at any time.
const PROVED_AT_ONCE: usize = 4;

/// Takes the bytes of a read, or why there are none.
pub(super) type Done = Box<dyn FnOnce(Result<&[u8], ReadFailure>) + Send>;

/// A reader and what it wants.
struct Reader {
    /// The node as the kernel has it.
    node: NodeId,
    task: u32,
    offset: u64,
    size: u32,
    /// How often it may yet begin anew.
    retries: u32,
    reply: Arc<Pending<ReadReply>>,
}

impl Reader {
    fn answer(self, result: Result<&[u8], Errno>) {
        if let Some(reply) = self.reply.take() {
            reply(result);
        }
    }
}

/// The bytes that a read is to get.
struct Part {
    node: NodeId,
    file: FileId,
    layout: Arc<Layout>,
    range: Range<u64>,
}

impl Dataset {
    /// A task reads a byte range, cut at the file's end. By a further connection it gets what lies in
    /// the pages of the first one; what does not is missed like any other bytes.
    pub fn read(
        self: &Arc<Self>,
        node: NodeId,
        task: u32,
        offset: u64,
        size: u32,
        reply: ReadReply,
    ) {
        let served = self.catalog.served(node);
        served.iter().for_each(|served| self.touched(served.file, task));
        let reply = self.waiting.enter(Some(task), None, reply, |reply| reply(Err(Errno::EINTR)));
        self.serve(served, Reader { node, task, offset, size, retries: RETRIES, reply });
    }

    fn begin(self: &Arc<Self>, reader: Reader) {
        self.serve(self.catalog.served(reader.node), reader);
    }

    /// Has a reader get the bytes of a version.
    fn serve(self: &Arc<Self>, served: Result<Served, Errno>, reader: Reader) {
        let Served { node, file, size, layout } = match served {
            Ok(served) => served,
            Err(errno) => return reader.answer(Err(errno)),
        };
        let end = reader.offset.saturating_add(u64::from(reader.size)).min(size);
        let part = Part { node, file, layout, range: reader.offset..end };
        if part.range.is_empty() {
            return reader.answer(Ok(&[]));
        }
        let is_past = node != reader.node;
        let unproved = if is_past { self.catalog.unproved(node) } else { Vec::new() };
        // Pages that lie there prove nothing.
        let is_proved = unproved.is_empty();
        let beside = self.beside(&part, unproved);
        if !beside.is_empty() {
            return self.prove(node, beside, reader);
        }
        match &self.peeks {
            Some(peeks) if is_proved && self.cache.may_peek(node, file, &part.range) => {
                let dataset = Arc::clone(self);
                peeks.submit(Urgency::Demand, node, move || {
                    match dataset.cache.peek(node, &part.range) {
                        Some(bytes) => dataset.came(node, Ok(&bytes), reader),
                        None => dataset.missed(part, reader),
                    }
                });
            }
            _ => self.missed(part, reader),
        }
    }

    /// Of the blocks that a node of an earlier version may have shown, those that are not read now in any
    /// case: when these come, it is known whether they are the same.
    fn beside(&self, part: &Part, mut unproved: Vec<BlockId>) -> Vec<BlockId> {
        if !self.is_in_parts(part.node) {
            let length = part.range.end - part.range.start;
            let asked = part.layout.blocks_in(part.file, part.range.start, length);
            unproved.retain(|block| asked.clone().all(|read| read != *block));
        }
        unproved
    }

    /// Has some of these blocks brought, and lets the read begin anew when it is known whether they are
    /// the same.
    fn prove(self: &Arc<Self>, node: NodeId, mut blocks: Vec<BlockId>, reader: Reader) {
        if !reader.reply.waits() {
            return;
        }
        blocks.truncate(PROVED_AT_ONCE);
        let dataset = Arc::clone(self);
        let done = move |result: Result<&[u8], ReadFailure>| match result {
            Ok(_) => dataset.begin(reader),
            Err(_) => dataset.came(node, result, reader),
        };
        let join = Arc::new(Join::new(blocks.len(), Box::new(done)));
        for (index, block) in blocks.into_iter().enumerate() {
            let join = Arc::clone(&join);
            let waiter = move |result: Result<Landed, ReadFailure>| {
                // Nobody needs the bytes.
                let none = |_| Landed::from(Arc::new(Buffer::from(Vec::new())));
                join.take(index, result.map(none));
            };
            self.cache.bring(block, node, Box::new(waiter));
        }
    }

    /// A task reads bytes that the kernel has no pages of.
    fn missed(self: &Arc<Self>, part: Part, reader: Reader) {
        let Part { node, file, layout, range } = part;
        let asked: Vec<(BlockId, Range<u64>)> = layout
            .blocks_in(file, range.start, range.end - range.start)
            .map(|block| {
                let (offset, length) = layout.range(block);
                let start = range.start.saturating_sub(offset);
                (block, start..range.end.saturating_sub(offset).min(length))
            })
            .collect();
        let task = reader.task;
        let dataset = Arc::clone(self);
        let done = move |result: Result<&[u8], ReadFailure>| dataset.came(node, result, reader);
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

    /// A task reads bytes of one block, counted from its start.
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

    /// Whether readers of a node get the pages that they ask for, and no whole blocks.
    fn is_in_parts(&self, node: NodeId) -> bool {
        // By a further connection the kernel keeps nothing of what it is answered.
        self.peeks.is_none()
            && node.file().is_some_and(|file| self.cache.file_flags().is_in_parts(file))
    }

    /// A read has got its bytes, which are a node's, or begins anew.
    fn came(self: &Arc<Self>, node: NodeId, result: Result<&[u8], ReadFailure>, reader: Reader) {
        let is_past = node != reader.node;
        match result {
            // They have turned out to be others than those that its reader may have read before.
            Ok(_) if is_past && self.catalog.served(reader.node).is_err() => self.stale(reader),
            // The file has changed once more, or is read in parts since then.
            Ok(_) if is_past && !self.catalog.unproved(node).is_empty() => self.again(reader),
            Ok(bytes) => reader.answer(Ok(bytes)),
            Err(ReadFailure::Errno(errno)) => reader.answer(Err(errno)),
            Err(ReadFailure::PastVersion) => self.again(reader),
        }
    }

    fn again(self: &Arc<Self>, reader: Reader) {
        match reader.retries.checked_sub(1) {
            Some(retries) => self.begin(Reader { retries, ..reader }),
            None => self.stale(reader),
        }
    }

    fn stale(&self, reader: Reader) {
        self.cache.traffic().read_errors.fetch_add(1, Ordering::Relaxed);
        reader.answer(Err(Errno::ESTALE));
    }
}
