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
use crate::cache::{Cause, Landed, ReadFailure, Waiter};
use crate::catalog::{NodeId, Served};
use crate::disk::Buffer;
use crate::ids::{BlockId, FileId, PageRange};
use crate::plan::Layout;
use crate::source::Urgency;

/// How often a read starts again because its file has changed meanwhile.
pub(super) const RETRIES: u32 = 3;

/// Blocks that one read fetches at once to compare them. There is always memory for this number.
const PROVED_AT_ONCE: usize = 4;

/// Takes the bytes of a read and why it has waited for them, or why there are none.
pub(super) type ReadDone = Box<dyn FnOnce(Result<(&[u8], Cause), ReadFailure>) + Send>;

/// A read that is not answered yet.
pub(super) struct PendingRead {
    dataset: Arc<Dataset>,
    /// The node as the kernel has it.
    node: NodeId,
    task: u32,
    offset: u64,
    size: u32,
    /// How often it may still start again.
    retries: u32,
    reply: Arc<Pending<ReadReply>>,
}

/// A byte range of one version of a file.
struct VersionRange {
    node: NodeId,
    file: FileId,
    layout: Arc<Layout>,
    range: Range<u64>,
}

impl PendingRead {
    /// See [`Dataset::read`].
    pub(super) fn start(
        dataset: &Arc<Dataset>,
        node: NodeId,
        task: u32,
        offset: u64,
        size: u32,
        reply: ReadReply,
    ) {
        let served = dataset.catalog.served(node);
        served.iter().for_each(|served| dataset.tell_touched(served.file, task));
        let interrupt = |reply: ReadReply| reply(Err(Errno::EINTR));
        let reply = dataset.waiting.enter(Some(task), None, reply, interrupt);
        let dataset = Arc::clone(dataset);
        PendingRead { dataset, node, task, offset, size, retries: RETRIES, reply }.serve(served);
    }

    fn restart(self) {
        let served = self.dataset.catalog.served(self.node);
        self.serve(served);
    }

    /// Gets the reader the bytes of a version.
    fn serve(self, served: Result<Served, Errno>) {
        let Served { node, file, size, layout } = match served {
            Ok(served) => served,
            Err(errno) => return self.answer(Err(errno), Cause::Error),
        };
        let end = self.offset.saturating_add(u64::from(self.size)).min(size);
        let wanted = VersionRange { node, file, layout, range: self.offset..end };
        if wanted.range.is_empty() {
            return self.answer(Ok(&[]), Cause::Ready);
        }
        let dataset = Arc::clone(&self.dataset);
        let is_past = node != self.node;
        let unproved = if is_past { dataset.catalog.unproved(node) } else { Vec::new() };
        // Bytes that are in pages prove nothing.
        let is_proved = unproved.is_empty();
        let unproved = self.unproved_elsewhere(&wanted, unproved);
        if !unproved.is_empty() {
            return self.prove(node, unproved);
        }
        // Only the first connection's pages show reads.
        let is_first = dataset.peek_pool.is_none() && is_proved && !is_past;
        let probe = |it: &VersionRange| {
            dataset.cache.take_probe(node, it.file, &it.layout, &it.range, self.task)
        };
        if let Some(bytes) = Some(&wanted).filter(|_| is_first).and_then(probe) {
            return self.answer(Ok(&bytes), Cause::Ready);
        }
        match &dataset.peek_pool {
            Some(peeks) if is_proved && dataset.cache.may_peek(node, file, &wanted.range) => {
                peeks.submit(Urgency::Demand, node, move || {
                    let peeked = self.dataset.cache.page_cache().peek(node, &wanted.range);
                    match peeked {
                        Some(bytes) => self.finish(node, Ok((&bytes, Cause::Ready))),
                        None => self.read_uncached(wanted, false),
                    }
                });
            }
            _ => self.read_uncached(wanted, is_first),
        }
    }

    /// The blocks that earlier versions may have shown, without those that this read fetches in any case.
    /// The fetch of a block shows whether it is the same.
    fn unproved_elsewhere(
        &self,
        wanted: &VersionRange,
        mut unproved: Vec<BlockId>,
    ) -> Vec<BlockId> {
        if !self.dataset.is_in_parts(wanted.node) {
            let length = wanted.range.end - wanted.range.start;
            let asked = wanted.layout.blocks_in(wanted.file, wanted.range.start, length);
            unproved.retain(|block| asked.clone().all(|read| read != *block));
        }
        unproved
    }

    /// Fetches some of these blocks, and starts the read again when it is known whether they are the same.
    fn prove(self, node: NodeId, mut blocks: Vec<BlockId>) {
        if !self.reply.is_unanswered() {
            return;
        }
        blocks.truncate(PROVED_AT_ONCE);
        let dataset = Arc::clone(&self.dataset);
        let done = move |result: Result<(&[u8], Cause), ReadFailure>| match result {
            Ok(_) => self.restart(),
            Err(_) => self.finish(node, result),
        };
        let join = Arc::new(Join::new(blocks.len(), Box::new(done)));
        for (index, block) in blocks.into_iter().enumerate() {
            let join = Arc::clone(&join);
            let waiter = move |result: Result<Landed, ReadFailure>| {
                // The bytes are not needed.
                let none = |_| Landed::from(Arc::new(Buffer::from(Vec::new())));
                join.take(index, result.map(none));
            };
            dataset.cache.bring(block, node, Box::new(waiter));
        }
    }

    /// Reads bytes of which the kernel has no pages. `may_be_probes`: pages of blocks that were left out may be among
    /// them.
    fn read_uncached(self, wanted: VersionRange, may_be_probes: bool) {
        let VersionRange { node, file, layout, range } = wanted;
        let mut asked = layout.pieces(file, &range);
        // A page that slices share may be the last one of a slice whose other pages are on their way.
        if let [(block, bytes)] = asked.as_mut_slice()
            && let Some(before) = layout.also_in(*block, &range)
        {
            let offset = layout.range(before).0;
            let there = range.start - offset..range.end - offset;
            if self.dataset.cache.brings(before, node, PageRange::covering(&there)) {
                (*block, *bytes) = (before, there);
            }
        }
        let (dataset, task) = (Arc::clone(&self.dataset), self.task);
        let done = move |result: Result<(&[u8], Cause), ReadFailure>| self.finish(node, result);
        if let [(block, asked)] = asked.as_slice() {
            let waiter = move |result: Result<Landed, ReadFailure>| match result {
                Ok(bytes) => done(Ok((&bytes, bytes.cause()))),
                Err(why) => done(Err(why)),
            };
            return read_block(&dataset, *block, asked.clone(), node, task, waiter);
        }
        let join = Arc::new(Join::new(asked.len(), Box::new(done)));
        for (index, (block, asked)) in asked.into_iter().enumerate() {
            let join = Arc::clone(&join);
            let start = layout.range(block).0;
            let in_file = start + asked.start..start + asked.end;
            let probe = || dataset.cache.take_probe(node, file, &layout, &in_file, task);
            if let Some(bytes) = may_be_probes.then(probe).flatten() {
                let bytes = Landed::from(Arc::new(Buffer::from(bytes.to_vec())));
                join.take(index, Ok(bytes.after(Cause::Ready)));
                continue;
            }
            let waiter = move |result| join.take(index, result);
            read_block(&dataset, block, asked, node, task, waiter);
        }
    }

    /// Ends the read, which has got bytes of `node`, or starts it again.
    fn finish(self, node: NodeId, result: Result<(&[u8], Cause), ReadFailure>) {
        let (catalog, is_past) = (&self.dataset.catalog, node != self.node);
        match result {
            // They differ from bytes that the reader may have read before.
            Ok(_) if is_past && catalog.served(self.node).is_err() => self.answer_stale(),
            // The file has changed again, or has been read in parts meanwhile.
            Ok(_) if is_past && !catalog.unproved(node).is_empty() => self.retry(),
            Ok((bytes, cause)) => self.answer(Ok(bytes), cause),
            Err(ReadFailure::Errno(errno)) => self.answer(Err(errno), Cause::Error),
            Err(ReadFailure::PastVersion) => self.retry(),
        }
    }

    fn retry(self) {
        match self.retries.checked_sub(1) {
            Some(retries) => PendingRead { retries, ..self }.restart(),
            None => self.answer_stale(),
        }
    }

    fn answer_stale(self) {
        self.dataset.cache.traffic().read_errors.fetch_add(1, Ordering::Relaxed);
        self.answer(Err(Errno::ESTALE), Cause::Error);
    }

    fn answer(self, result: Result<&[u8], Errno>, cause: Cause) {
        if let Some(reply) = self.reply.take(cause) {
            reply(result);
        }
    }
}

/// Reads bytes of one block. The range counts from the block's start.
fn read_block(
    dataset: &Dataset,
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
    match dataset.is_in_parts(node) {
        true => dataset.cache.read_pages(block, pages, node, task, waiter),
        false => dataset.cache.read(block, pages, node, task, waiter),
    }
}
