//! The blocks of one read that spans several.
//!
//! As long as it waits for one of them, it holds on to the others: the kernel has locked its pages, and
//! a push of them would wait for the read.

use super::reading::Done;
use crate::cache::{Landed, ReadFailure};
use crate::sync::Mutex;

/// What a read of several blocks has so far.
pub(super) struct Join(Mutex<Parts>);

struct Parts {
    blocks: Vec<Option<Landed>>,
    /// None once it is answered.
    reply: Option<Done>,
}

impl Join {
    /// A read of so many blocks, whose bytes are answered one block after the other.
    pub(super) fn new(blocks: usize, reply: Done) -> Self {
        let blocks = (0..blocks).map(|_| None).collect();
        Join(Mutex::new(Parts { blocks, reply: Some(reply) }))
    }

    /// Takes one block; the last one, or the first error, sends the reply.
    pub(super) fn take(&self, index: usize, result: Result<Landed, ReadFailure>) {
        let mut parts = self.0.lock();
        if parts.reply.is_none() {
            // Answered already: what nobody waits for is let go of.
            return drop((parts, result));
        }
        let failure = match result {
            Err(why) => Some(why),
            Ok(bytes) => {
                parts.blocks[index] = Some(bytes);
                if parts.blocks.iter().any(Option::is_none) {
                    return;
                }
                None
            }
        };
        let (blocks, reply) = (std::mem::take(&mut parts.blocks), parts.reply.take());
        drop(parts);
        let Some(reply) = reply else { return };
        match failure {
            Some(why) => reply(Err(why)),
            None => {
                let whole = blocks.iter().flatten().flat_map(|block| block.iter().copied());
                reply(Ok(&whole.collect::<Vec<u8>>()));
            }
        }
        // Only now, when the reader's pages are free, the blocks may be pushed.
        drop(blocks);
    }
}
