//! The legs of a flight: from the local store, from the source, or from both.
//!
//! A block that the store has is read there. Where a reader has waited for that for long, or the disk
//! hangs, the source is asked as well, and whoever has the bytes first ends the flight. What the other
//! one says later counts for nothing: legs know which flight is theirs.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use nix::errno::Errno;

use super::care::InCare;
use super::flight::{Fetching, Flight, Key};
use super::{Cache, Charge, ReadFailure};
use crate::catalog::Located;
use crate::disk::Buffer;
use crate::ids::{BlockId, PageRange};
use crate::plan::{Event, Place};
use crate::source::{ReadError, ReadRequest, Urgency};

/// What is asked for, and for which flight.
#[derive(Clone)]
pub(super) struct Leg {
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

impl Leg {
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
    store: Option<(Leg, u64)>,
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
    fn is_of(&self, leg: &Leg) -> bool {
        self.route.number == leg.flight
    }
}

impl Cache {
    /// Has a block brought, for which there is a flight.
    pub(super) fn fetch(self: &Arc<Self>, block: BlockId, located: Located, urgency: Urgency) {
        let local = self.local.as_ref().filter(|local| local.contains(&located));
        if local.is_none()
            && let Some(local) = self.local.as_ref().filter(|local| !local.holds(&located))
        {
            // What the planner took for stored would never be stored again.
            self.inbox.put(Event::NotHere { block, tier: local.tier }, None);
        }
        let flight = self.departures.fetch_add(1, Ordering::Relaxed);
        let leg = Leg { block, pages: None, located, urgency, flight, doubts: 0 };
        // A late leg of the flight before may have ended this one.
        let mut flights = self.lock();
        let Some(Flight::Fetching(fetching)) = flights.get_mut(&leg.key()) else { return };
        let store = local.map(|_| (leg.clone(), 0));
        fetching.route = Route { number: flight, asked: store.is_none(), store, refused: None };
        drop(flights);
        match local {
            Some(_) => self.fetch_from_store(leg),
            None => self.fetch_from_source(leg),
        }
    }

    /// Has pages of a block brought from the source, for which there is a flight.
    pub(super) fn fetch_pages(self: &Arc<Self>, key: Key, located: Located) {
        let flight = self.departures.fetch_add(1, Ordering::Relaxed);
        let Key { block, pages, .. } = key;
        let leg = Leg { block, pages, located, urgency: Urgency::Demand, flight, doubts: 0 };
        let mut flights = self.lock();
        let Some(Flight::Fetching(fetching)) = flights.get_mut(&key) else { return };
        fetching.route = Route { number: flight, asked: true, store: None, refused: None };
        drop(flights);
        self.fetch_from_source(leg);
    }

    /// Whether the flight of a leg is still under way.
    fn is_awaited(&self, leg: &Leg) -> bool {
        let flights = self.lock();
        matches!(flights.get(&leg.key()), Some(Flight::Fetching(fetching)) if fetching.is_of(leg))
    }

    /// Has the memory charged that a leg takes, and then the leg begin.
    fn charge(self: &Arc<Self>, leg: Leg, begin: fn(&Arc<Self>, Leg, InCare, Charge)) {
        let (cache, flight) = (Arc::clone(self), InCare::new(self, leg.key()));
        let (number, urgency, bytes) = (leg.flight, leg.urgency, leg.located.length);
        let key = leg.key();
        let begun = self.memory.admit(number, urgency, bytes, move |charge| {
            begin(&cache, leg, flight, charge);
        });
        // Who joined the flight before the leg came to wait could not have it go first.
        let waits = |flight: &Flight| {
            matches!(flight, Flight::Fetching(fetching)
                if fetching.route.number == number && !fetching.waiters.is_empty())
        };
        if !begun && self.lock().get(&key).is_some_and(waits) {
            self.memory.promote(number);
        }
    }

    fn fetch_from_store(self: &Arc<Self>, leg: Leg) {
        self.charge(leg, |cache, leg, flight, charge| {
            let on = Arc::clone(cache);
            cache.store_pool.submit(leg.urgency, move || {
                let (cache, _flight) = (on, flight.taken());
                // The source may have been faster while others waited for the disk.
                let Some(local) = cache.local.as_ref().filter(|_| cache.is_awaited(&leg)) else {
                    return;
                };
                match local.get(&cache, leg.block, &leg.located) {
                    Some(bytes) => {
                        let (bytes, from) =
                            (bytes.holding(charge.fetched()), Place::Tier(local.tier));
                        let (key, urgency) = (leg.key(), leg.urgency);
                        cache.arrived(key, leg.located, bytes, from, urgency, None);
                    }
                    None => {
                        drop(charge);
                        cache.not_here(leg, local.tier);
                    }
                }
            });
        });
    }

    /// The store does not have what it should have.
    fn not_here(self: &Arc<Self>, leg: Leg, tier: usize) {
        self.lost(leg.block, tier);
        let refused = {
            let mut flights = self.lock();
            let Some(Flight::Fetching(fetching)) = flights.get_mut(&leg.key()) else { return };
            if !fetching.is_of(&leg) {
                return;
            }
            fetching.route.store = None;
            let asked = std::mem::replace(&mut fetching.route.asked, true);
            asked.then_some(fetching.route.refused)
        };
        match refused {
            None => self.fetch_from_source(leg),
            Some(None) => {}
            Some(Some(why)) => self.refused(&leg, why),
        }
    }

    /// The local store has lost a block, which the planner thinks is there.
    pub(super) fn lost(&self, block: BlockId, tier: usize) {
        self.traffic.store_errors.fetch_add(1, Ordering::Relaxed);
        self.inbox.put(Event::NotHere { block, tier }, None);
    }

    fn fetch_from_source(self: &Arc<Self>, leg: Leg) {
        self.charge(leg, Cache::read_source);
    }

    fn read_source(self: &Arc<Self>, leg: Leg, flight: InCare, charge: Charge) {
        if !self.is_awaited(&leg) {
            // The store was faster while this waited for memory.
            return drop(flight.taken());
        }
        let cache = Arc::clone(self);
        // The source may look right now, and take its time to deliver.
        let asked = self.catalog.now();
        let request = ReadRequest {
            path: Arc::clone(&leg.located.path),
            fingerprint: leg.located.fingerprint,
            exact: self.catalog.is_revalidated(),
            offset: leg.located.offset,
            length: leg.located.length,
            urgency: leg.urgency,
            deliver: Box::new(move |result| {
                let _flight = flight.taken();
                match result {
                    Ok(bytes) => {
                        let bytes = Buffer::from(bytes).holding(charge.fetched());
                        let (from, urgency) = (Place::Source, leg.urgency);
                        let (key, began) = (leg.key(), Some(asked));
                        cache.arrived(key, leg.located, bytes, from, urgency, began);
                    }
                    // The file may be there by another of its names.
                    Err(ReadError::Source(Errno::ENOENT))
                        if cache.catalog.is_shared(leg.located.node) =>
                    {
                        cache.changed(leg);
                    }
                    Err(ReadError::Source(errno)) => {
                        cache.refused(&leg, ReadFailure::Errno(errno));
                    }
                    Err(ReadError::Changed) => cache.changed(leg),
                }
            }),
        };
        self.source.read(vec![request]);
    }

    /// The file seems to be another version than the catalog thinks, which looks at it again.
    fn changed(self: &Arc<Self>, leg: Leg) {
        let Some(recheck) = self.recheck.get() else {
            return self.refused(&leg, ReadFailure::PastVersion);
        };
        let (cache, flight) = (Arc::clone(self), InCare::new(self, leg.key()));
        let node = leg.located.node;
        let rechecked = move |outcome: Result<(), Errno>| {
            let _flight = flight.taken();
            match outcome {
                Ok(()) => cache.rechecked(leg),
                Err(errno) => cache.refused(&leg, ReadFailure::Errno(errno)),
            }
        };
        recheck(node, Urgency::Demand, Box::new(rechecked));
    }

    /// The catalog has looked at a file of which the source had another version: if that is none, the
    /// source is asked for the bytes again.
    fn rechecked(self: &Arc<Self>, leg: Leg) {
        if !self.is_awaited(&leg) {
            return;
        }
        let located = self.locate(leg.block, leg.pages);
        let Some(located) = located.filter(|at| at.node == leg.located.node) else {
            self.traffic.changed.fetch_add(1, Ordering::Relaxed);
            return self.refused(&leg, ReadFailure::PastVersion);
        };
        let doubts = leg.doubts + 1;
        if doubts < DOUBTS_MAX {
            return self.fetch_from_source(Leg { located, doubts, ..leg });
        }
        tracing::warn!(
            "the source gives {:?} another size with the old modification time, or another version that \
             is not there when asked again; belady takes that for an error of the source and answers \
             EIO. If the file has changed, `touch` it at the source",
            located.path
        );
        self.refused(&leg, ReadFailure::Errno(Errno::EIO));
    }

    /// The source does not give the bytes. The store may, unless its disk hangs.
    fn refused(&self, leg: &Leg, why: ReadFailure) {
        let hangs = self.local.as_ref().is_some_and(|local| local.store.reads_hang());
        let ended = {
            let mut flights = self.lock();
            let Some(Flight::Fetching(fetching)) = flights.get_mut(&leg.key()) else { return };
            if !fetching.is_of(leg) {
                return;
            }
            if fetching.route.store.is_some() && !hangs {
                fetching.route.refused = Some(why);
                return;
            }
            flights.remove(&leg.key())
        };
        if let Some(Flight::Fetching(fetching)) = ended {
            self.failed(leg.key(), fetching, why);
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
            let Some((leg, looks)) = &mut route.store else { continue };
            *looks += 1;
            let waits = !waiters.is_empty();
            let is_late = hangs || waits && *looks > patience;
            if is_late && !std::mem::replace(&mut route.asked, true) {
                let urgency = if waits { Urgency::Demand } else { Urgency::Prefetch };
                late.push(Leg { urgency, ..leg.clone() });
            } else if let Some(why) = route.refused.filter(|_| hangs) {
                failed.push((leg.clone(), why));
            }
        }
        late.into_iter().for_each(|leg| self.fetch_from_source(leg));
        failed.iter().for_each(|(leg, why)| self.refused(leg, *why));
        if hangs {
            self.rescue_wholes();
        }
    }
}
