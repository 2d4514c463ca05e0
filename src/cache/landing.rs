//! How the bytes of a block reach its readers, and then the page cache.
//!
//! A read of several blocks holds the pages of all of them locked until the last block is here. A push of
//! the first block would wait for that. So a block is pushed when all its readers have let go of its
//! bytes. A read that comes later, while the block is being pushed, may still delay the push.

use std::ops::{Deref, Range};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use nix::errno::Errno;

use super::flights::FlightKey;
use super::on_drop::FailOnDrop;
use super::{Cache, Cause, PUSH, ReadFailure, Span};
use crate::catalog::Located;
use crate::disk::Buffer;
use crate::ids::{BlockId, PageRange};
use crate::plan::{Event, Place};
use crate::source::Urgency;

/// Bytes of a block as one of its readers gets them.
pub struct Landed {
    bytes: Arc<Buffer>,
    /// Where in the block the first of `bytes` is.
    at: u64,
    /// Which of `bytes` the reader has asked for.
    asked: Range<usize>,
    /// Why its reader has waited.
    cause: Cause,
    /// Made when the last reader has let go of it.
    _push: Option<Arc<Push>>,
}

impl From<Arc<Buffer>> for Landed {
    /// Bytes that were here already: a block that is being pushed, or a page that was left out.
    fn from(bytes: Arc<Buffer>) -> Self {
        Landed::pushed(bytes, None)
    }
}

impl Landed {
    pub(super) fn new(bytes: Arc<Buffer>, at: u64, push: Option<Arc<Push>>) -> Self {
        let asked = 0..bytes.len();
        Landed { bytes, at, asked, cause: Cause::Late, _push: push }
    }

    /// A block that was here already, and is being pushed: all of its pages, or these.
    pub(super) fn pushed(bytes: Arc<Buffer>, pages: Option<PageRange>) -> Self {
        Landed::new(bytes, pages.map_or(0, PageRange::offset), None)
    }

    /// The same for a reader that has waited for this cause.
    pub fn after(self, cause: Cause) -> Self {
        Landed { cause, ..self }
    }

    /// Why its reader has waited.
    pub fn cause(&self) -> Cause {
        self.cause
    }

    /// The bytes that a reader has asked for, counted from the start of the block.
    ///
    /// # Errors
    /// `EIO` if they are not there.
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

/// A push of a block. It is made when this is dropped, by a thread that may wait for it.
pub(super) struct Push(pub(super) Option<PushJob>);

pub(super) struct PushJob {
    pub(super) cache: Arc<Cache>,
    pub(super) block: BlockId,
    pub(super) located: Located,
    pub(super) bytes: Arc<Buffer>,
    pub(super) from: Place,
    /// Whether the bytes are surely those of the version.
    pub(super) is_settled: bool,
    /// Whether readers have waited for them.
    pub(super) is_read: bool,
}

impl Push {
    /// Makes the push. Blocks.
    pub(super) fn now(mut self) {
        if let Some(job) = self.0.take() {
            job.run();
        }
    }
}

impl Drop for Push {
    fn drop(&mut self) {
        let Some(job) = self.0.take() else { return };
        let cache = Arc::clone(&job.cache);
        let key = job.key();
        if cache.memory.is_short() {
            // A push may wait for a reader, and that reader for memory.
            return cache.fail(key, ReadFailure::Errno(Errno::ENOMEM));
        }
        let failing = FailOnDrop::new(&cache, key);
        cache.page_cache.push_pool.submit(Urgency::Prefetch, move || {
            let _failing = failing.taken();
            job.run();
        });
    }
}

impl PushJob {
    fn key(&self) -> FlightKey {
        FlightKey::whole(self.block, self.located.node)
    }

    /// Puts the block into the page cache and ends its flight. Blocks.
    fn run(self) {
        let Cache { catalog, inbox, memory, store_tier, .. } = &*self.cache;
        let (block, from, node) = (self.block, self.from, self.located.node);
        let began = Instant::now();
        let pushed = self.cache.page_cache.store(block, &self.located, &self.bytes, self.is_read);
        let took = began.elapsed();
        self.cache.traffic.pushes.note(took);
        self.cache.traffic.spans.note(|| Span {
            what: PUSH,
            path: Some(Arc::clone(&self.located.path)),
            task: 0,
            bytes: self.bytes.len() as u64,
            began,
            took,
        });
        self.cache.flights.end(&self.key());
        let (event, arrival) = match pushed {
            Ok(()) => {
                // A block that comes from the store is not written to it again.
                let is_stored = matches!(from, Place::Tier(_));
                let is_new = !is_stored && self.is_settled && store_tier.is_some();
                let arrival = is_new.then(|| memory.arrival(node, &self.bytes)).flatten();
                (Event::Arrived { block, from, bytes: self.bytes.len() as u64 }, arrival)
            }
            Err(errno) => {
                tracing::debug!(?block, %errno, "the kernel did not take a block");
                // A block that its file has left behind was not pushed.
                let refused = u64::from(catalog.layout().has(block));
                self.cache.traffic.push_errors.fetch_add(refused, Ordering::Relaxed);
                (Event::Failed { block }, None)
            }
        };
        inbox.put_if_present(catalog, node, event, arrival);
    }
}
