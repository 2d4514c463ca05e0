//! The table of flights: the blocks on their way, and the readers and tiers that wait for each.
//!
//! At most one flight brings a block of a version. Each has a number. So an attempt to get its bytes can
//! tell whether its own flight is still under way, or has ended and given way to another one.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::time::Instant;

use super::on_drop::NotifyOnDrop;
use super::sharing::Gift;
use super::{Cause, ReadFailure, Waiter};
use crate::catalog::{Catalog, Located, NodeId};
use crate::disk::Buffer;
use crate::ids::{BlockId, PageRange};
use crate::sync::{Mutex, MutexGuard};

/// The bytes that a flight brings: a block of one version of its file, or some of its pages. Bytes of two versions
/// never meet.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct FlightKey {
    pub(super) block: BlockId,
    pub(super) node: NodeId,
    /// None: all pages of the block.
    pub(super) pages: Option<PageRange>,
}

impl FlightKey {
    pub(super) fn whole(block: BlockId, node: NodeId) -> Self {
        FlightKey { block, node, pages: None }
    }

    /// Where the bytes are at the source; none if the version is past.
    pub(super) fn locate(&self, catalog: &Catalog) -> Option<Located> {
        let whole = catalog.locate(self.block).filter(|at| at.node == self.node)?;
        part_of(whole, self.pages)
    }
}

/// Where pages of a block are, or all of it; none past its end.
pub(super) fn part_of(whole: Located, pages: Option<PageRange>) -> Option<Located> {
    let Some(pages) = pages else { return Some(whole) };
    let left = whole.length.checked_sub(pages.offset() as usize)?;
    let length = left.min(pages.bytes() as usize);
    Some(Located { offset: whole.offset + pages.offset(), length, ..whole })
}

enum Flight {
    /// Nothing has arrived yet.
    Fetching(Box<Fetching>),
    /// The bytes are here and being pushed: of all pages of the block, or of these.
    Pushing(Arc<Buffer>, Option<PageRange>),
}

impl Flight {
    /// Whether it brings these pages of its block.
    fn brings(&self, asked: PageRange) -> bool {
        let pages = match self {
            Flight::Fetching(fetching) => fetching.pages,
            Flight::Pushing(_, pages) => *pages,
        };
        pages.is_none_or(|pages| pages.has(asked))
    }
}

/// The readers and tiers that wait for the bytes of a flight, and the places that are asked for them.
#[derive(Default)]
pub(super) struct Fetching {
    /// Which flight it is.
    pub(super) number: u64,
    /// The pages that a flight of a whole block brings, if they are not all: slices beside it have the others.
    pub(super) pages: Option<PageRange>,
    pub(super) waiters: Vec<Waiter>,
    /// Whether the bytes go to RAM.
    pub(super) to_ram: bool,
    /// Why readers wait for the bytes.
    pub(super) cause: Cause,
    /// Tells the planner of the copy in the local store that it wants.
    pub(super) placed: Option<NotifyOnDrop>,
    /// If the store is asked: the block, and the number of looks since.
    pub(super) store: Option<(Located, u64)>,
    /// Since when members of the cluster are asked.
    pub(super) members: Option<Instant>,
    /// Whether the last answer of a member was that another member makes the sample.
    pub(super) is_being_made: bool,
    /// The gift to members of the cluster, which is made when the bytes are here.
    pub(super) gift: Gift,
    /// Whether the source is asked.
    pub(super) asks_source: bool,
    /// When the source was asked, and how many of its answers are still to come.
    pub(super) asked: Option<Instant>,
    pub(super) unanswered: u32,
    /// Whether it was asked a second time.
    pub(super) is_hedged: bool,
    /// The source's error, as long as the store or a member may still have the bytes.
    pub(super) refused: Option<ReadFailure>,
}

impl Fetching {
    pub(super) fn add_waiter(&mut self, waiter: Waiter) {
        self.waiters.push(waiter);
    }
}

/// The outcome of a wish for a block.
pub(super) enum Join<W> {
    /// A flight of this number has begun for it. Its bytes are to be asked for.
    Begun(u64),
    /// A flight was under way. Whether its bytes go to RAM by this wish only.
    Joined { number: u64, turns_to_ram: bool },
    /// The bytes are here, of all pages or of these: the wish is given back.
    Pushing(Arc<Buffer>, Option<PageRange>, W),
}

#[derive(Default)]
struct Table {
    flights: HashMap<FlightKey, Flight>,
    /// The number of the last flight that has begun: the first one is 1.
    begun: u64,
}

impl Table {
    fn join<W>(
        &mut self,
        key: FlightKey,
        (to_ram, cause): (bool, Cause),
        wish: W,
        add: fn(&mut Fetching, W),
    ) -> Join<W> {
        match self.flights.entry(key) {
            Entry::Vacant(slot) => {
                self.begun += 1;
                let number = self.begun;
                let fetching =
                    Fetching { number, to_ram, cause, asks_source: true, ..Fetching::default() };
                let mut fetching = Box::new(fetching);
                add(&mut fetching, wish);
                slot.insert(Flight::Fetching(fetching));
                Join::Begun(number)
            }
            Entry::Occupied(flight) => match flight.into_mut() {
                Flight::Fetching(fetching) => {
                    add(fetching, wish);
                    let turns_to_ram = to_ram && !std::mem::replace(&mut fetching.to_ram, true);
                    Join::Joined { number: fetching.number, turns_to_ram }
                }
                Flight::Pushing(bytes, pages) => Join::Pushing(Arc::clone(bytes), *pages, wish),
            },
        }
    }
}

/// The table.
#[derive(Default)]
pub(super) struct Flights(Mutex<Table>);

impl Flights {
    fn lock(&self) -> MutexGuard<'_, Table> {
        self.0.lock()
    }

    /// Adds a wish to the flight of a block. A flight begins if there is none. `how`: whether the wish is for RAM, and
    /// why readers wait if a flight begins with it.
    pub(super) fn join<W>(
        &self,
        key: FlightKey,
        how: (bool, Cause),
        wish: W,
        add: fn(&mut Fetching, W),
    ) -> Join<W> {
        self.lock().join(key, how, wish, add)
    }

    /// Has a reader of these pages wait for a block, which goes to RAM. If a flight brings others of its pages, the
    /// waiter is given back.
    pub(super) fn join_reader(
        &self,
        key: FlightKey,
        asked: PageRange,
        waiter: Waiter,
    ) -> Result<Join<Waiter>, Waiter> {
        let mut table = self.lock();
        if table.flights.get(&key).is_some_and(|flight| !flight.brings(asked)) {
            return Err(waiter);
        }
        Ok(table.join(key, (true, Cause::Cold), waiter, Fetching::add_waiter))
    }

    /// Has a reader wait for pages of a block. They are not pushed: the kernel keeps the answer.
    /// If a flight brings the block with these pages, the waiter is given back.
    pub(super) fn join_pages(
        &self,
        key: FlightKey,
        waiter: Waiter,
    ) -> Result<Join<Waiter>, Waiter> {
        let mut table = self.lock();
        let whole = table.flights.get(&FlightKey::whole(key.block, key.node));
        if whole.is_some_and(|flight| key.pages.is_none_or(|pages| flight.brings(pages))) {
            return Err(waiter);
        }
        Ok(table.join(key, (false, Cause::Cold), waiter, Fetching::add_waiter))
    }

    /// Applies `change` to the flight of this number, if its bytes have not arrived yet.
    pub(super) fn with<T>(
        &self,
        key: &FlightKey,
        number: u64,
        change: impl FnOnce(&mut Fetching) -> T,
    ) -> Option<T> {
        match self.lock().flights.get_mut(key) {
            Some(Flight::Fetching(fetching)) if fetching.number == number => Some(change(fetching)),
            _ => None,
        }
    }

    pub(super) fn for_each(&self, mut change: impl FnMut(&FlightKey, &mut Fetching)) {
        for (key, flight) in &mut self.lock().flights {
            if let Flight::Fetching(fetching) = flight {
                change(key, fetching);
            }
        }
    }

    /// Ends a flight for which no reader and no tier waits.
    pub(super) fn end_unread(&self, key: &FlightKey, number: u64) -> Option<Fetching> {
        let mut table = self.lock();
        let Some(Flight::Fetching(fetching)) = table.flights.get_mut(key) else { return None };
        let is_read = !fetching.waiters.is_empty() || fetching.placed.is_some();
        if is_read || fetching.number != number {
            return None;
        }
        let fetching = std::mem::take(&mut **fetching);
        table.flights.remove(key);
        Some(fetching)
    }

    /// Whether a flight of a whole block brings these pages of it.
    pub(super) fn brings(&self, block: BlockId, node: NodeId, pages: PageRange) -> bool {
        let table = self.lock();
        let flight = table.flights.get(&FlightKey::whole(block, node));
        flight.is_some_and(|flight| flight.brings(pages))
    }

    /// Whether a flight brings a whole block.
    pub(super) fn has(&self, node: NodeId, mut blocks: impl Iterator<Item = BlockId>) -> bool {
        let table = self.lock();
        blocks.any(|block| table.flights.contains_key(&FlightKey::whole(block, node)))
    }

    /// The bytes of a flight are here, of all pages or of these: takes all that waits for them. The flight goes on as a
    /// push if they go to RAM.
    pub(super) fn take_waiting(
        &self,
        key: FlightKey,
        bytes: &Arc<Buffer>,
        pages: Option<PageRange>,
    ) -> Option<Fetching> {
        let mut table = self.lock();
        let Some(Flight::Fetching(fetching)) = table.flights.get_mut(&key) else { return None };
        // A late answer of an earlier flight may lack pages that this one is to bring.
        if pages != key.pages && pages != fetching.pages {
            return None;
        }
        let fetching = std::mem::take(&mut **fetching);
        if fetching.to_ram {
            table.flights.insert(key, Flight::Pushing(Arc::clone(bytes), pages));
        } else {
            table.flights.remove(&key);
        }
        Some(fetching)
    }

    /// The source does not give the bytes of a flight. Ends it, unless another answer may still bring them.
    pub(super) fn refuse(
        &self,
        key: &FlightKey,
        number: u64,
        why: ReadFailure,
        store_hangs: bool,
    ) -> Option<Fetching> {
        let mut table = self.lock();
        let Some(Flight::Fetching(fetching)) = table.flights.get_mut(key) else { return None };
        // Whatever comes of a version that is past is of no use.
        let may_come = fetching.unanswered > 0 && why != ReadFailure::PastVersion;
        if fetching.number != number || may_come {
            return None;
        }
        let members_may = fetching.members.is_some() && why != ReadFailure::PastVersion;
        if fetching.store.is_some() && !store_hangs || members_may {
            fetching.refused = Some(why);
            return None;
        }
        let fetching = std::mem::take(&mut **fetching);
        table.flights.remove(key);
        Some(fetching)
    }

    /// Whether a member of the cluster is waited for that makes the sample.
    pub(super) fn is_being_made(&self, key: &FlightKey) -> bool {
        let table = self.lock();
        matches!(table.flights.get(key), Some(Flight::Fetching(it)) if it.is_being_made)
    }

    /// Ends a flight. Gives all that waits for it, unless its bytes have arrived.
    pub(super) fn end(&self, key: &FlightKey) -> Option<Fetching> {
        match self.lock().flights.remove(key)? {
            Flight::Fetching(fetching) => Some(*fetching),
            Flight::Pushing(..) => None,
        }
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.lock().flights.is_empty()
    }
}
