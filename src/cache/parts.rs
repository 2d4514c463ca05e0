//! Pages of a block that is not fetched whole, because its file is read at random.
//!
//! The planner says which files are read in parts. Of these a reader gets the pages that it asks for
//! from the source, and no push follows: the kernel keeps what it is answered. A block that is on its way,
//! or in the local store, is read whole all the same.

use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::flight::{Fetching, Flight, Key};
use super::{Cache, ReadFailure, Waiter};
use crate::catalog::{Located, NodeId};
use crate::ids::{BlockId, PageRange};
use crate::plan::Event;

impl Cache {
    /// A reader wants pages of a block of a file that is read in parts. Else as
    /// [`read`](Self::read).
    pub fn read_pages(
        self: &Arc<Self>,
        block: BlockId,
        pages: PageRange,
        node: NodeId,
        task: u32,
        waiter: Waiter,
    ) {
        let key = Key { block, node, pages: Some(pages) };
        let whole = self.catalog.locate(block).filter(|at| at.node == node);
        let Some(whole) = whole else { return waiter(Err(ReadFailure::PastVersion)) };
        let is_stored = self.local.as_ref().is_some_and(|local| local.claim_read(&whole));
        let Some(located) = part_of(whole, pages) else {
            return waiter(Err(ReadFailure::PastVersion));
        };
        let mut flights = self.lock();
        if is_stored || flights.contains_key(&Key::whole(block, node)) {
            drop(flights);
            return self.read(block, node, task, waiter);
        }
        self.traffic.reads.fetch_add(1, Ordering::Relaxed);
        let is_new = match flights.entry(key) {
            Entry::Vacant(slot) => {
                slot.insert(Flight::Fetching(Fetching::for_reader_alone(waiter)));
                true
            }
            Entry::Occupied(mut flight) => {
                if let Flight::Fetching(fetching) = flight.get_mut() {
                    fetching.waiters.push(waiter);
                }
                false
            }
        };
        drop(flights);
        if is_new {
            self.begin_fetch(node.file());
            self.fetch_pages(key, located);
            // Of its arrival the planner hears nothing: the reader need not wait until it has been woken.
            self.inbox.put(Event::Part { block, task, pages }, None);
        }
    }

    /// Where pages of a block are at the source, or all of it.
    pub(super) fn locate(&self, block: BlockId, pages: Option<PageRange>) -> Option<Located> {
        let whole = self.catalog.locate(block)?;
        match pages {
            Some(pages) => part_of(whole, pages),
            None => Some(whole),
        }
    }
}

/// Where pages of a block are; none past its end.
fn part_of(whole: Located, pages: PageRange) -> Option<Located> {
    let left = whole.length.checked_sub(pages.offset() as usize)?;
    let length = left.min(pages.bytes() as usize);
    Some(Located { offset: whole.offset + pages.offset(), length, ..whole })
}
