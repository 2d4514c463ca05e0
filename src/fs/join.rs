//! Joins the blocks of one read that spans several.
//!
//! While it waits for a block, it holds the other blocks: the kernel has locked the read's pages, and a
//! push of them would wait for the read.

use super::reading::ReadDone;
use crate::cache::{Cause, Landed, ReadFailure};
use crate::sync::Mutex;

pub(super) struct Join(Mutex<JoinState>);

struct JoinState {
    blocks: Vec<Option<Landed>>,
    /// Why the read has waited for the last of them.
    cause: Cause,
    /// None once it is answered.
    reply: Option<ReadDone>,
}

impl Join {
    /// Waits for `blocks` blocks, and replies with their bytes one after the other.
    pub(super) fn new(blocks: usize, reply: ReadDone) -> Self {
        let blocks = (0..blocks).map(|_| None).collect();
        Join(Mutex::new(JoinState { blocks, cause: Cause::Ready, reply: Some(reply) }))
    }

    /// Takes one block. The last block or the first error sends the reply.
    pub(super) fn take(&self, index: usize, result: Result<Landed, ReadFailure>) {
        let mut parts = self.0.lock();
        if parts.reply.is_none() {
            // Answered already, so the block is dropped.
            return drop((parts, result));
        }
        let failure = match result {
            Err(why) => Some(why),
            Ok(bytes) => {
                parts.cause = bytes.cause();
                parts.blocks[index] = Some(bytes);
                if parts.blocks.iter().any(Option::is_none) {
                    return;
                }
                None
            }
        };
        let (blocks, reply) = (std::mem::take(&mut parts.blocks), parts.reply.take());
        let cause = parts.cause;
        drop(parts);
        let Some(reply) = reply else { return };
        match failure {
            Some(why) => reply(Err(why)),
            None => {
                let whole = blocks.iter().flatten().flat_map(|block| block.iter().copied());
                reply(Ok((&whole.collect::<Vec<u8>>(), cause)));
            }
        }
        // The blocks may be pushed only now, when the reader's pages are unlocked.
        drop(blocks);
    }
}
