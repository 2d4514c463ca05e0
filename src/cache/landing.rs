//! How a flight ends: its bytes reach readers, tiers and the page cache, or an error reaches readers.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use nix::errno::Errno;

use super::backlog::Arrival;
use super::buffer::Buffer;
use super::care::InCare;
use super::flight::{Fetching, Flight};
use super::{Cache, Key};
use crate::catalog::{Located, NodeId};
use crate::ids::{BLOCK_BYTES, BlockId};
use crate::plan::{Event, Place};
use crate::source::Urgency;

impl Cache {
    /// The bytes of a flight are here.
    pub(super) fn arrived(
        self: &Arc<Self>,
        block: BlockId,
        located: Located,
        bytes: Buffer,
        from: Place,
        urgency: Urgency,
    ) {
        let bytes = Arc::new(bytes);
        let key = (block, located.node);
        let Some(fetching) = self.take_off(key, &bytes) else { return };
        for waiter in fetching.waiters {
            waiter(Ok(Arc::clone(&bytes)));
        }
        if let (Some(local), Some(placed)) = (&self.local, fetching.placed) {
            let settled = self.catalog.is_settled(located.node);
            let arrival = settled.then(|| self.backlog.arrival(located.node, &bytes)).flatten();
            local.put(block, arrival, placed);
        }
        if !fetching.to_ram {
            return;
        }
        let whole = located.offset == 0 && (located.length as u64) < BLOCK_BYTES;
        if whole && urgency == Urgency::Prefetch {
            return self.push(block, &located, bytes, from);
        }
        let (cache, flight) = (Arc::clone(self), InCare::new(self, key));
        self.push_pool.submit(Urgency::Prefetch, move || {
            let _flight = flight.taken();
            cache.push(block, &located, bytes, from);
        });
    }

    /// Puts a block into the page cache and ends its flight. Blocks.
    fn push(&self, block: BlockId, located: &Located, bytes: Arc<Buffer>, from: Place) {
        let pushed = match self.pages.get() {
            Some(pages) => pages.store(located, &bytes),
            None => Err(Errno::ENOTCONN),
        };
        self.lock().remove(&(block, located.node));
        match pushed {
            Ok(()) => {
                self.checked.note(block, Instant::now());
                // What comes from the store is not written to it.
                let settled = || self.catalog.is_settled(located.node);
                let new = self.local.is_some() && from == Place::Source && settled();
                let arrival = new.then(|| self.backlog.arrival(located.node, &bytes)).flatten();
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
        if self.catalog.getattr(node).is_ok() {
            self.inbox.put(event, arrival);
        }
    }

    pub(super) fn fail(&self, key: Key, errno: Errno) {
        let before = self.lock().remove(&key);
        let Some(Flight::Fetching(fetching)) = before else {
            return self.tell(key.1, Event::Failed { block: key.0 }, None);
        };
        self.failed(key, fetching, errno);
    }

    /// What waited for a flight that has ended gets an error.
    pub(super) fn failed(&self, key: Key, fetching: Fetching, errno: Errno) {
        if fetching.to_ram {
            self.tell(key.1, Event::Failed { block: key.0 }, None);
        }
        self.traffic.read_errors.fetch_add(fetching.waiters.len() as u64, Ordering::Relaxed);
        for waiter in fetching.waiters {
            waiter(Err(errno));
        }
    }
}
