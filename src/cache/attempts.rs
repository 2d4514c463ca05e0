//! The attempts of a flight to get its block: from the store, from the source, or from both.
//!
//! A block that the store has is read there. If a reader has waited for that for long, or the disk hangs,
//! the source is asked as well. The attempt that has the bytes first ends the flight. The other one is
//! ignored: an attempt knows the number of its flight.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use nix::errno::Errno;

use super::flight::{Fetching, Flight, Key};
use super::on_drop::FailOnDrop;
use super::{Cache, Charge, ReadFailure};
use crate::catalog::Located;
use crate::disk::Buffer;
use crate::ids::{BlockId, PageRange};
use crate::plan::{Event, Place};
use crate::source::{ReadError, ReadRequest, Urgency};

/// What is asked for, and for which flight.
#[derive(Clone)]
pub(super) struct Attempt {
    block: BlockId,
    /// Which pages of it; none: all of them.
    pages: Option<PageRange>,
    located: Located,
    urgency: Urgency,
    flight: u64,
    /// How often the source was asked and had another version.
    doubts: u32,
}

/// How often the source is asked for bytes that it has of another version, which it does not name
/// when it is asked for the version itself.
const DOUBTS_MAX: u32 = 3;

impl Attempt {
    fn key(&self) -> Key {
        Key { block: self.block, node: self.located.node, pages: self.pages }
    }
}

/// Where the bytes of a flight are asked for.
#[derive(Default)]
pub(super) struct Route {
    /// Which flight it is.
    number: u64,
    /// What the store is asked for, and how many looks have found it so.
    store: Option<(Attempt, u64)>,
    /// Whether the source is asked.
    asked: bool,
    /// What the source said, as long as the store may have the bytes all the same.
    refused: Option<ReadFailure>,
}

impl Route {
    /// Which flight it is.
    pub(super) fn number(&self) -> u64 {
        self.number
    }
}

impl Fetching {
    fn is_of(&self, attempt: &Attempt) -> bool {
        self.route.number == attempt.flight
    }
}

impl Cache {
    /// Has a block brought, for which there is a flight.
    pub(super) fn fetch(self: &Arc<Self>, block: BlockId, located: Located, urgency: Urgency) {
        let local = self.local.as_ref().filter(|local| local.claim_read(&located));
        if local.is_none()
            && let Some(local) = self.local.as_ref().filter(|local| !local.holds(&located))
        {
            // What the planner took for stored would never be stored again.
            self.inbox.put(Event::NotHere { block, tier: local.tier }, None);
        }
        let flight = self.flights_begun.fetch_add(1, Ordering::Relaxed);
        let attempt = Attempt { block, pages: None, located, urgency, flight, doubts: 0 };
        // A late attempt of the flight before may have ended this one.
        let mut flights = self.lock();
        let Some(Flight::Fetching(fetching)) = flights.get_mut(&attempt.key()) else { return };
        let store = local.map(|_| (attempt.clone(), 0));
        fetching.route = Route { number: flight, asked: store.is_none(), store, refused: None };
        drop(flights);
        match local {
            Some(_) => self.fetch_from_store(attempt),
            None => self.fetch_from_source(attempt),
        }
    }

    /// Has pages of a block brought from the source, for which there is a flight.
    pub(super) fn fetch_pages(self: &Arc<Self>, key: Key, located: Located) {
        let flight = self.flights_begun.fetch_add(1, Ordering::Relaxed);
        let Key { block, pages, .. } = key;
        let attempt =
            Attempt { block, pages, located, urgency: Urgency::Demand, flight, doubts: 0 };
        let mut flights = self.lock();
        let Some(Flight::Fetching(fetching)) = flights.get_mut(&key) else { return };
        fetching.route = Route { number: flight, asked: true, store: None, refused: None };
        drop(flights);
        self.fetch_from_source(attempt);
    }

    /// Whether the flight of a attempt is still under way.
    fn is_awaited(&self, attempt: &Attempt) -> bool {
        let flights = self.lock();
        matches!(flights.get(&attempt.key()), Some(Flight::Fetching(fetching)) if fetching.is_of(attempt))
    }

    /// Has the memory charged that a attempt takes, and then the attempt begin.
    fn charge(
        self: &Arc<Self>,
        attempt: Attempt,
        begin: fn(&Arc<Self>, Attempt, FailOnDrop, Charge),
    ) {
        let (cache, flight) = (Arc::clone(self), FailOnDrop::new(self, attempt.key()));
        let (number, urgency, bytes) = (attempt.flight, attempt.urgency, attempt.located.length);
        let key = attempt.key();
        let begun = self.memory.admit(number, urgency, bytes, move |charge| {
            begin(&cache, attempt, flight, charge);
        });
        // Who joined the flight before the attempt came to wait could not have it go first.
        let waits = |flight: &Flight| {
            matches!(flight, Flight::Fetching(fetching)
                if fetching.route.number == number && !fetching.waiters.is_empty())
        };
        if !begun && self.lock().get(&key).is_some_and(waits) {
            self.memory.promote(number);
        }
    }

    fn fetch_from_store(self: &Arc<Self>, attempt: Attempt) {
        self.charge(attempt, |cache, attempt, flight, charge| {
            let on = Arc::clone(cache);
            cache.store_pool.submit(attempt.urgency, move || {
                let (cache, _flight) = (on, flight.taken());
                // The source may have been faster while others waited for the disk.
                let Some(local) = cache.local.as_ref().filter(|_| cache.is_awaited(&attempt))
                else {
                    return;
                };
                match local.get(&cache, attempt.block, &attempt.located) {
                    Some(bytes) => {
                        let (bytes, from) =
                            (bytes.holding(charge.fetched()), Place::Tier(local.tier));
                        let (key, urgency) = (attempt.key(), attempt.urgency);
                        cache.arrived(key, attempt.located, bytes, from, urgency, None);
                    }
                    None => {
                        drop(charge);
                        cache.not_here(attempt, local.tier);
                    }
                }
            });
        });
    }

    /// The store does not have what it should have.
    fn not_here(self: &Arc<Self>, attempt: Attempt, tier: usize) {
        self.lost(attempt.block, tier);
        let refused = {
            let mut flights = self.lock();
            let Some(Flight::Fetching(fetching)) = flights.get_mut(&attempt.key()) else { return };
            if !fetching.is_of(&attempt) {
                return;
            }
            fetching.route.store = None;
            let asked = std::mem::replace(&mut fetching.route.asked, true);
            asked.then_some(fetching.route.refused)
        };
        match refused {
            None => self.fetch_from_source(attempt),
            Some(None) => {}
            Some(Some(why)) => self.refused(&attempt, why),
        }
    }

    /// The local store has lost a block, which the planner thinks is there.
    pub(super) fn lost(&self, block: BlockId, tier: usize) {
        self.traffic.store_errors.fetch_add(1, Ordering::Relaxed);
        self.inbox.put(Event::NotHere { block, tier }, None);
    }

    fn fetch_from_source(self: &Arc<Self>, attempt: Attempt) {
        self.charge(attempt, Cache::read_source);
    }

    fn read_source(self: &Arc<Self>, attempt: Attempt, flight: FailOnDrop, charge: Charge) {
        if !self.is_awaited(&attempt) {
            // The store was faster while this waited for memory.
            return drop(flight.taken());
        }
        let cache = Arc::clone(self);
        // The source may look right now, and take its time to deliver.
        let asked = self.catalog.now();
        let request = ReadRequest {
            path: Arc::clone(&attempt.located.path),
            fingerprint: attempt.located.fingerprint,
            exact: self.catalog.is_revalidated(),
            offset: attempt.located.offset,
            length: attempt.located.length,
            urgency: attempt.urgency,
            deliver: Box::new(move |result| {
                let _flight = flight.taken();
                match result {
                    Ok(bytes) => {
                        let bytes = Buffer::from(bytes).holding(charge.fetched());
                        let (from, urgency) = (Place::Source, attempt.urgency);
                        let (key, began) = (attempt.key(), Some(asked));
                        cache.arrived(key, attempt.located, bytes, from, urgency, began);
                    }
                    // The file may be there by another of its names.
                    Err(ReadError::Source(Errno::ENOENT))
                        if cache.catalog.is_shared(attempt.located.node) =>
                    {
                        cache.changed(attempt);
                    }
                    Err(ReadError::Source(errno)) => {
                        cache.refused(&attempt, ReadFailure::Errno(errno));
                    }
                    Err(ReadError::Changed) => cache.changed(attempt),
                }
            }),
        };
        self.source.read(vec![request]);
    }

    /// The file seems to be another version than the catalog thinks, which looks at it again.
    fn changed(self: &Arc<Self>, attempt: Attempt) {
        let Some(recheck) = self.recheck.get() else {
            return self.refused(&attempt, ReadFailure::PastVersion);
        };
        let (cache, flight) = (Arc::clone(self), FailOnDrop::new(self, attempt.key()));
        let node = attempt.located.node;
        let rechecked = move |outcome: Result<(), Errno>| {
            let _flight = flight.taken();
            match outcome {
                Ok(()) => cache.rechecked(attempt),
                Err(errno) => cache.refused(&attempt, ReadFailure::Errno(errno)),
            }
        };
        recheck(node, Urgency::Demand, Box::new(rechecked));
    }

    /// The catalog has looked at a file of which the source had another version: if that is none, the
    /// source is asked for the bytes again.
    fn rechecked(self: &Arc<Self>, attempt: Attempt) {
        if !self.is_awaited(&attempt) {
            return;
        }
        let located = self.locate(attempt.block, attempt.pages);
        let Some(located) = located.filter(|at| at.node == attempt.located.node) else {
            self.traffic.changed.fetch_add(1, Ordering::Relaxed);
            return self.refused(&attempt, ReadFailure::PastVersion);
        };
        let doubts = attempt.doubts + 1;
        if doubts < DOUBTS_MAX {
            return self.fetch_from_source(Attempt { located, doubts, ..attempt });
        }
        tracing::warn!(
            "the source gives {:?} another size with the old modification time, or another version that \
             is not there when asked again; belady takes that for an error of the source and answers \
             EIO. If the file has changed, `touch` it at the source",
            located.path
        );
        self.refused(&attempt, ReadFailure::Errno(Errno::EIO));
    }

    /// The source does not give the bytes. The store may, unless its disk hangs.
    fn refused(&self, attempt: &Attempt, why: ReadFailure) {
        let hangs = self.local.as_ref().is_some_and(|local| local.store.reads_hang());
        let ended = {
            let mut flights = self.lock();
            let Some(Flight::Fetching(fetching)) = flights.get_mut(&attempt.key()) else { return };
            if !fetching.is_of(attempt) {
                return;
            }
            if fetching.route.store.is_some() && !hangs {
                fetching.route.refused = Some(why);
                return;
            }
            flights.remove(&attempt.key())
        };
        if let Some(Flight::Fetching(fetching)) = ended {
            self.failed(attempt.key(), fetching, why);
        }
    }

    /// Asks the source for what readers have waited for at more than `patience` looks, and for all
    /// that waits for a disk that hangs; what waits to be stored there is let go of. Never blocks; to
    /// be called each [`LOOK_EVERY`](crate::disk::LOOK_EVERY).
    pub fn rescue(self: &Arc<Self>, patience: u64) {
        let Some(local) = &self.local else { return };
        local.store.look();
        local.give_up_hanging();
        let hangs = local.store.reads_hang();
        let (mut late, mut failed) = (Vec::new(), Vec::new());
        for flight in self.lock().values_mut() {
            let Flight::Fetching(Fetching { waiters, route, .. }) = flight else { continue };
            let Some((attempt, looks)) = &mut route.store else { continue };
            *looks += 1;
            let waits = !waiters.is_empty();
            let is_late = hangs || waits && *looks > patience;
            if is_late && !std::mem::replace(&mut route.asked, true) {
                let urgency = if waits { Urgency::Demand } else { Urgency::Prefetch };
                late.push(Attempt { urgency, ..attempt.clone() });
            } else if let Some(why) = route.refused.filter(|_| hangs) {
                failed.push((attempt.clone(), why));
            }
        }
        late.into_iter().for_each(|attempt| self.fetch_from_source(attempt));
        failed.iter().for_each(|(attempt, why)| self.refused(attempt, *why));
        if hangs {
            self.rescue_wholes();
        }
    }
}
