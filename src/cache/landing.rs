//! How a flight ends: its bytes reach readers, tiers and the page cache, or an error reaches readers.
//!
//! A read of several blocks holds the pages of all of them locked until the last one is here, and a push
//! of the first would wait for that. So it is made when those who waited for the block have let go of its
//! bytes. A read that comes later, while the block is being pushed, may still hold that up.

use std::ops::{Deref, Range};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use nix::errno::Errno;

use super::flight::{Fetching, Flight, Key};
use super::memory::Arrival;
use super::on_drop::FailOnDrop;
use super::{Cache, ReadFailure};
use crate::catalog::{Handed, Located, NodeId, Received};
use crate::disk::Buffer;
use crate::ids::{BLOCK_BYTES, BlockId, PageRange};
use crate::plan::{Event, Place};
use crate::source::Urgency;

/// Bytes of a block as one of its readers gets them.
pub struct Landed {
    bytes: Arc<Buffer>,
    /// Where in the block the first of `bytes` is.
    at: u64,
    /// Which of `bytes` the reader has asked for.
    asked: Range<usize>,
    /// Made when the last reader has let go of it.
    _push: Option<Arc<Push>>,
}

impl From<Arc<Buffer>> for Landed {
    fn from(bytes: Arc<Buffer>) -> Self {
        let asked = 0..bytes.len();
        Landed { bytes, at: 0, asked, _push: None }
    }
}

impl Landed {
    /// What a reader has asked for, counted from the start of the block.
    ///
    /// # Errors
    /// `EIO` if that is not there.
    pub fn cut(self, asked: &Range<u64>) -> Result<Self, ReadFailure> {
        let start = asked.start.checked_sub(self.at).map(|start| start as usize);
        let asked = start.map(|start| start..start + (asked.end - asked.start) as usize);
        match asked.filter(|asked| asked.end <= self.bytes.len()) {
            Some(asked) => Ok(Landed { asked, ..self }),
            None => Err(ReadFailure::Errno(Errno::EIO)),
        }
    }
}

impl Deref for Landed {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[self.asked.clone()]
    }
}

/// A push that is to be made: when it is dropped, by a thread that may wait for it.
struct Push(Option<Pushing>);

struct Pushing {
    cache: Arc<Cache>,
    block: BlockId,
    located: Located,
    bytes: Arc<Buffer>,
    from: Place,
    /// Whether they are surely those of the version.
    is_settled: bool,
}

impl Push {
    /// Makes it. Blocks.
    fn now(mut self) {
        if let Some(pushing) = self.0.take() {
            pushing.push();
        }
    }
}

impl Drop for Push {
    fn drop(&mut self) {
        let Some(pushing) = self.0.take() else { return };
        let cache = Arc::clone(&pushing.cache);
        let key = Key::whole(pushing.block, pushing.located.node);
        if cache.memory.is_short() {
            // A push may wait for a reader, and that reader for memory.
            return cache.fail(key, ReadFailure::Errno(Errno::ENOMEM));
        }
        let flight = FailOnDrop::new(&cache, key);
        cache.push_pool.submit(Urgency::Prefetch, move || {
            let _flight = flight.taken();
            pushing.push();
        });
    }
}

impl Pushing {
    fn push(self) {
        self.cache.push(&self);
    }
}

impl Cache {
    /// The bytes of a flight are here. A read of the source that brought them began at this tick.
    pub(super) fn arrived(
        self: &Arc<Self>,
        key: Key,
        located: Located,
        bytes: Buffer,
        from: Place,
        urgency: Urgency,
        began: Option<u32>,
    ) {
        let (bytes, Key { block, node, pages }) = (Arc::new(bytes), key);
        let is_file = located.offset == 0 && (located.length as u64) < BLOCK_BYTES;
        let whole = pages.is_none() && is_file;
        let handed = Handed { block, pages, bytes: &bytes };
        let received = self.catalog.receive(node, &handed, began);
        if received == Received::TooLate {
            return self.fail(key, ReadFailure::PastVersion);
        }
        let is_settled = received == Received::Settled;
        let Some(fetching) = self.take_off(key, &bytes) else { return };
        let at = pages.map_or(0, PageRange::offset);
        let push = fetching.to_ram.then(|| {
            let (cache, bytes) = (Arc::clone(self), Arc::clone(&bytes));
            Arc::new(Push(Some(Pushing { cache, block, located, bytes, from, is_settled })))
        });
        for waiter in fetching.waiters {
            waiter(Ok(Landed { at, _push: push.clone(), ..Landed::from(Arc::clone(&bytes)) }));
        }
        if let (Some(local), Some(placed)) = (&self.local, fetching.placed) {
            let arrival = is_settled.then(|| self.memory.arrival_to_store(node, &bytes));
            local.put(block, arrival, placed);
        }
        if whole
            && urgency == Urgency::Prefetch
            && let Some(push) = push.and_then(Arc::into_inner)
        {
            push.now();
        }
    }

    /// Puts a block into the page cache and ends its flight. Blocks.
    fn push(&self, pushing: &Pushing) {
        let Pushing { block, ref located, ref bytes, from, is_settled, .. } = *pushing;
        let pushed = match self.pages.get() {
            Some(pages) => pages.store(located, bytes),
            None => Err(Errno::ENOTCONN),
        };
        self.lock().remove(&Key::whole(block, located.node));
        match pushed {
            Ok(()) => {
                self.checked.note(block, Instant::now());
                // What comes from the store is not written to it.
                let new = self.local.is_some() && from == Place::Source && is_settled;
                let arrival = new.then(|| self.memory.arrival(located.node, bytes)).flatten();
                self.tell(located.node, Event::Arrived { block, from }, arrival);
            }
            Err(errno) => {
                tracing::debug!(?block, %errno, "the kernel did not take a block");
                self.traffic.push_errors.fetch_add(1, Ordering::Relaxed);
                self.tell(located.node, Event::Failed { block }, None);
            }
        }
    }

    /// Tells the planner how a flight ended, unless its version of the file is past: then the
    /// planner is told, or will be, that nothing of the file is left.
    pub(super) fn tell(&self, node: NodeId, event: Event, arrival: Option<Arrival>) {
        if self.catalog.is_present(node) {
            self.inbox.put(event, arrival);
        }
    }

    pub(super) fn fail(&self, key: Key, why: ReadFailure) {
        let before = self.lock().remove(&key);
        let Some(Flight::Fetching(fetching)) = before else {
            return self.tell(key.node, Event::Failed { block: key.block }, None);
        };
        self.failed(key, fetching, why);
    }

    /// What waited for a flight that has ended gets an error.
    pub(super) fn failed(&self, key: Key, fetching: Fetching, why: ReadFailure) {
        if fetching.to_ram {
            self.tell(key.node, Event::Failed { block: key.block }, None);
        }
        if let ReadFailure::Errno(_) = why {
            let readers = fetching.waiters.len() as u64;
            self.traffic.read_errors.fetch_add(readers, Ordering::Relaxed);
        }
        for waiter in fetching.waiters {
            waiter(Err(why));
        }
    }
}
