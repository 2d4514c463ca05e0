//! One read: which version of its file it gets, and where its bytes come from.
//!
//! A reader that has seen nothing of a version that is past gets the present one instead. So a file that
//! turns out to have changed is read again, unless other bytes of the past version were handed out.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use nix::errno::Errno;

use super::join::Join;
use super::waiting::Pending;
use super::{Dataset, ReadReply};
use crate::cache::{Landed, ReadFailure};
use crate::catalog::NodeId;
use crate::ids::{BLOCK_BYTES, FileId};
use crate::source::Urgency;

/// How often a read begins anew because its file has changed meanwhile.
const RETRIES: u32 = 3;

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
        self.sighted(node, Some(task));
        let reply = self.waiting.enter(Some(task), reply, |reply| reply(Err(Errno::EINTR)));
        self.begin(Reader { node, task, offset, size, retries: RETRIES, reply });
    }

    fn begin(self: &Arc<Self>, reader: Reader) {
        let (node, file, length) = match self.catalog.served(reader.node) {
            Ok(found) => found,
            Err(errno) => return reader.answer(Err(errno)),
        };
        let end = reader.offset.saturating_add(u64::from(reader.size)).min(length);
        let part = Part { node, file, range: reader.offset..end };
        if part.range.is_empty() {
            return reader.answer(Ok(&[]));
        }
        match &self.peeks {
            Some(peeks) if self.cache.may_peek(node, file, &part.range) => {
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

    /// A task reads bytes that the kernel has no pages of.
    fn missed(self: &Arc<Self>, part: Part, reader: Reader) {
        let Part { node, file, range } = part;
        let blocks = self.catalog.layout().blocks_in(file, range.start, range.end - range.start);
        let within = (range.start % BLOCK_BYTES) as usize;
        let (wanted, task) = ((range.end - range.start) as usize, reader.task);
        let dataset = Arc::clone(self);
        let done = move |result: Result<&[u8], ReadFailure>| {
            let part = result.and_then(|bytes| slice(bytes, within, wanted));
            dataset.came(node, part, reader);
        };
        let mut blocks = blocks.enumerate();
        if blocks.len() == 1
            && let Some((_, block)) = blocks.next()
        {
            let waiter = move |result: Result<Landed, ReadFailure>| match result {
                Ok(bytes) => done(Ok(&bytes)),
                Err(why) => done(Err(why)),
            };
            return self.cache.read(block, node, task, Box::new(waiter));
        }
        let join = Arc::new(Join::new(blocks.len(), Box::new(done)));
        for (index, block) in blocks {
            let join = Arc::clone(&join);
            self.cache.read(block, node, task, Box::new(move |result| join.take(index, result)));
        }
    }

    /// A read has got its bytes, which are a node's, or begins anew.
    fn came(self: &Arc<Self>, node: NodeId, result: Result<&[u8], ReadFailure>, reader: Reader) {
        match result {
            // They have turned out to be others than those that its reader may have read before.
            Ok(_) if node != reader.node && self.catalog.served(reader.node).is_err() => {
                self.cache.traffic().read_errors.fetch_add(1, Ordering::Relaxed);
                reader.answer(Err(Errno::ESTALE));
            }
            Ok(bytes) => reader.answer(Ok(bytes)),
            Err(ReadFailure::Errno(errno)) => reader.answer(Err(errno)),
            Err(ReadFailure::PastVersion) if reader.retries > 0 => {
                self.begin(Reader { retries: reader.retries - 1, ..reader });
            }
            Err(ReadFailure::PastVersion) => {
                self.cache.traffic().read_errors.fetch_add(1, Ordering::Relaxed);
                reader.answer(Err(Errno::ESTALE));
            }
        }
    }
}

fn slice(bytes: &[u8], from: usize, length: usize) -> Result<&[u8], ReadFailure> {
    bytes.get(from..from + length).ok_or(ReadFailure::Errno(Errno::EIO))
}
