//! The attempts of a flight to get its block: from the store, from members of a cluster, from the source.
//!
//! A block that the store has is read there. Else the members of the cluster that may have it are asked, one after the
//! other, and then the source. If a reader has waited for long, or the disk hangs, the source is asked as well. The
//! attempt that has the bytes first ends the flight. The other one is ignored: an attempt knows the number of its
//! flight. So it is if the source is asked a second time, because its answer is late (`Cache::hedge`).

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use nix::errno::Errno;

use super::flights::{Fetching, FlightKey, part_of};
use super::landing::{Landed, Push, PushJob};
use super::on_drop::FailOnDrop;
use super::sharing::{Gift, Wanted};
use super::{Cache, Charge, ReadFailure};
use crate::catalog::{Handed, Located, Received};
use crate::cluster::{Lack, Search, Step};
use crate::disk::Buffer;
use crate::ids::{BLOCK_BYTES, PageRange};
use crate::peers::{Answer, COPY_MOST};
use crate::plan::{Event, Place};
use crate::source::{ReadError, ReadRequest, Urgency};

/// How often the source is asked for bytes if it says each time that they are of another version, but does
/// not name one when it is asked for the version itself.
const DOUBTS_MAX: u32 = 3;

/// One request to the store or the source for the bytes of a flight.
pub(super) struct Attempt {
    cache: Arc<Cache>,
    pub(super) key: FlightKey,
    pub(super) flight: u64,
    pub(super) located: Located,
    /// Which pages of the block `located` has; `None`: all.
    pages: Option<PageRange>,
    urgency: Urgency,
    /// Whether others arrive right behind it, which must not wait until it is pushed.
    pub(super) is_of_run: bool,
    /// How often the source was asked and had another version.
    doubts: u32,
}

impl Attempt {
    pub(super) fn new(
        cache: &Arc<Cache>,
        key: FlightKey,
        flight: u64,
        located: Located,
        urgency: Urgency,
    ) -> Self {
        let (cache, pages) = (Arc::clone(cache), key.pages);
        Attempt { cache, key, flight, located, pages, urgency, is_of_run: false, doubts: 0 }
    }

    /// Has only these pages of the block brought, unless somebody waits for it by now.
    pub(super) fn trimmed(self, pages: PageRange) -> Self {
        let trim = |fetching: &mut Fetching| {
            let may_trim = fetching.waiters.is_empty() && fetching.placed.is_none();
            fetching.pages = may_trim.then_some(pages);
            may_trim
        };
        let part = part_of(self.located.clone(), Some(pages));
        let is_trimmed = || self.cache.flights.with(&self.key, self.flight, trim) == Some(true);
        match part.filter(|_| is_trimmed()) {
            Some(located) => Attempt { located, pages: Some(pages), ..self },
            None => self,
        }
    }

    /// Has a block brought from the store if it is there, else from the source.
    pub(super) fn begin(self) {
        let Cache { store_tier, flights, inbox, .. } = &*self.cache;
        let tier = store_tier.as_ref().filter(|_| self.located.may_have_copies());
        let Some(tier) = tier else { return self.ask_members() };
        if tier.claim_read(&self.located) {
            let asked = flights.with(&self.key, self.flight, |fetching| {
                fetching.store = Some((self.located.clone(), 0));
                fetching.asks_source = false;
            });
            // A late attempt of an earlier flight may have ended this one.
            if asked.is_some() {
                self.ask_store();
            }
            return;
        }
        if !tier.holds(&self.located) {
            // A block that the planner takes for stored would never be stored again.
            inbox.put(Event::NotHere { block: self.key.block, tier: tier.number }, None);
        }
        self.ask_members();
    }

    /// Whether the flight is still under way.
    fn is_awaited(&self) -> bool {
        self.cache.flights.with(&self.key, self.flight, |_| ()).is_some()
    }

    /// Has the memory charged that the attempt takes, and then `begin` called.
    fn charge(self, begin: impl FnOnce(Attempt, FailOnDrop, Charge) + Send + 'static) {
        let (cache, key, flight) = (Arc::clone(&self.cache), self.key, self.flight);
        let (urgency, bytes) = (self.urgency, self.located.length);
        let failing = FailOnDrop::new(&cache, key);
        let begun = cache.memory.admit(flight..=flight, urgency, bytes, move |charge| {
            begin(self, failing, charge);
        });
        // A reader that joined the flight before the attempt came to wait could not promote it.
        let has_readers = || cache.flights.with(&key, flight, |it| !it.waiters.is_empty());
        if !begun && has_readers() == Some(true) {
            cache.memory.promote(flight);
        }
    }

    fn ask_store(self) {
        self.charge(|attempt, failing, charge| {
            let cache = Arc::clone(&attempt.cache);
            let Some(tier) = &cache.store_tier else { return };
            tier.readers.submit(attempt.urgency, move || {
                let _failing = failing.taken();
                // The source may have been faster while this waited for the disk.
                let tier = attempt.cache.store_tier.as_ref().filter(|_| attempt.is_awaited());
                let Some(tier) = tier.map(Arc::clone) else { return };
                match tier.get(attempt.key.block, &attempt.located) {
                    Some(bytes) => {
                        attempt.copied(bytes.holding(charge.fetched()), Place::Tier(tier.number));
                    }
                    None => {
                        drop(charge);
                        attempt.not_stored();
                    }
                }
            });
        });
    }

    /// The store does not have the bytes.
    fn not_stored(self) {
        self.ask_source_instead(|fetching| fetching.store = None);
    }

    /// Asks the source in place of one that does not have the bytes, unless it was asked already.
    fn ask_source_instead(self, of: fn(&mut Fetching)) {
        let before = self.cache.flights.with(&self.key, self.flight, |fetching| {
            of(fetching);
            (std::mem::replace(&mut fetching.asks_source, true), fetching.refused)
        });
        match before {
            Some((false, _)) => self.ask_source(),
            Some((true, Some(why))) => self.refused(why),
            Some((true, None)) | None => {}
        }
    }

    /// Has a block brought from a member of the cluster, if one may have it, else from the source.
    fn ask_members(self) {
        let Attempt { cache, key, located, urgency, .. } = &self;
        let sharing = cache.sharing.get();
        let search = sharing.and_then(|sharing| sharing.search(key.block, located, *urgency));
        let Some((mut search, wanted)) = search else { return self.ask_source() };
        let asked = cache.flights.with(key, self.flight, |fetching| {
            fetching.members = Some(Instant::now());
            fetching.asks_source = false;
        });
        // A late attempt of an earlier flight may have ended this one.
        if asked.is_some() {
            self.charge(move |attempt, failing, charge| {
                let step = search.begin();
                attempt.search(search, wanted, step, (failing, charge));
            });
        }
    }

    /// Takes a step of a search.
    fn search(self, mut search: Search, wanted: Wanted, step: Step, held: (FailOnDrop, Charge)) {
        let cache = Arc::clone(&self.cache);
        let (sharing, Step::AskMember(question)) = (cache.sharing.get(), step) else {
            drop(held.1);
            held.0.taken();
            return self.not_at_members();
        };
        let Some(sharing) = sharing else { return };
        sharing.ask(question, &wanted, self.urgency, move |answer| {
            let (failing, charge) = held;
            match answer {
                Answer::Found(bytes) => {
                    let _failing = failing.taken();
                    let left = search.found();
                    self.note_gift(&search, left);
                    if !self.located.may_have(bytes.len()) {
                        return self.has_larger_file(bytes);
                    }
                    self.copied(Buffer::from(bytes).holding(charge.fetched()), Place::Member);
                }
                // The source was faster.
                Answer::Lacks(_) if !self.is_awaited() => drop(failing.taken()),
                Answer::Lacks(lack) => {
                    let step = search.lacks(lack);
                    // The source may be faster than those that are still asked.
                    self.note_gift(&search, None);
                    self.note_made(lack == Lack::Leased);
                    self.search(search, wanted, step, (failing, charge));
                }
            }
        });
    }

    fn note_gift(&self, search: &Search, left: Option<u64>) {
        let gift = Gift { to: search.lacking().to_vec(), left };
        self.cache.flights.with(&self.key, self.flight, |fetching| fetching.gift = gift);
    }

    /// Notes whether another member has the lease of a sample that has to be made. Then the source is no faster: it would
    /// make the sample once more. The search has a patience of its own.
    fn note_made(&self, is_leased: bool) {
        let is_made = is_leased && !self.located.version_has_size;
        let note = |fetching: &mut Fetching| fetching.is_being_made = is_made;
        self.cache.flights.with(&self.key, self.flight, note);
    }

    /// No member has the bytes.
    fn not_at_members(self) {
        self.ask_source_instead(|fetching| {
            (fetching.members, fetching.is_being_made) = (None, false);
        });
    }

    pub(super) fn ask_source(self) {
        self.charge(Attempt::read_source);
    }

    fn read_source(self, failing: FailOnDrop, charge: Charge) {
        let cache = Arc::clone(&self.cache);
        if !self.note_asked() {
            // Another answer was faster while this waited for memory.
            return drop(failing.taken());
        }
        // The source may look right now, and take its time to deliver.
        let asked = cache.catalog.now();
        let request = ReadRequest {
            path: Arc::clone(&self.located.path),
            fingerprint: self.located.fingerprint,
            is_sized: self.located.is_sized,
            exact: cache.catalog.is_revalidated(),
            offset: self.located.offset,
            length: self.located.length,
            urgency: self.urgency,
            deliver: Box::new(move |result| {
                let _failing = failing.taken();
                self.answered(result, charge, asked);
            }),
        };
        cache.source.read(vec![request]);
    }

    /// The source has answered a read that began at the tick `asked`.
    fn answered(self, result: Result<Vec<u8>, ReadError>, charge: Charge, asked: u32) {
        match result {
            Ok(bytes) if !self.located.is_sized => self.sized(bytes, charge, asked),
            Ok(bytes) => {
                self.count_answer();
                let bytes = Buffer::from(bytes).holding(charge.fetched());
                self.arrived(bytes, Place::Source, Some(asked));
            }
            // The file may be there by another of its names.
            Err(ReadError::Source(Errno::ENOENT))
                if self.cache.catalog.is_shared(self.located.node) =>
            {
                self.changed();
            }
            Err(ReadError::Source(errno)) => {
                self.count_answer();
                self.refused(ReadFailure::Errno(errno));
            }
            Err(ReadError::Changed) => self.changed(),
        }
    }

    /// The source is asked from now on. Says whether the flight is still under way.
    pub(super) fn note_asked(&self) -> bool {
        let asked = self.cache.flights.with(&self.key, self.flight, |fetching| {
            if fetching.unanswered == 0 {
                fetching.asked = Some(Instant::now());
            }
            fetching.unanswered += 1;
        });
        asked.is_some()
    }

    /// Ends the flight with an error if nobody waits for it. Says whether it has ended.
    pub(super) fn end_unread(&self, why: ReadFailure) -> bool {
        let ended = self.cache.flights.end_unread(&self.key, self.flight);
        let is_over = ended.is_some() || !self.is_awaited();
        ended.into_iter().for_each(|fetching| self.cache.failed(self.key, fetching, why));
        is_over
    }

    /// Nothing more comes of this request to the source.
    pub(super) fn count_answer(&self) {
        self.cache.flights.with(&self.key, self.flight, |fetching| fetching.unanswered -= 1);
    }

    /// A member has given all bytes of a file, which has more of them than was expected. The source keeps the bytes for a
    /// moment. So it has the blocks of the file for those who ask next.
    fn has_larger_file(mut self, bytes: Vec<u8>) {
        self.give_file(&bytes);
        let (size, version) = (bytes.len() as u64, self.located.fingerprint);
        self.cache.source.keep(&self.located.path, version, bytes);
        self.take_size(size);
        if self.is_awaited() {
            self.cache.fail(self.key, ReadFailure::PastVersion);
        }
    }

    /// Gives all bytes of a file to members that lack it, if it has a block or more, and its size was not known. So they know
    /// the size with the bytes. A smaller file is its only block, which is given when it has arrived. If nothing is given,
    /// others may make the file.
    fn give_file(&self, bytes: &[u8]) {
        let Attempt { cache, key, located, .. } = self;
        if located.version_has_size || (bytes.len() as u64) < BLOCK_BYTES {
            return;
        }
        let take = |fetching: &mut Fetching| std::mem::take(&mut fetching.gift);
        let gift = cache.flights.with(key, self.flight, take);
        let Some((gift, sharing)) = gift.zip(cache.sharing.get()) else { return };
        let may_give = bytes.len() as u64 <= COPY_MOST
            && sharing.gives_files()
            && cache.catalog.is_settled(located.node);
        let copy = (may_give && !gift.is_empty()).then(|| Arc::new(Buffer::from(bytes.to_vec())));
        match copy.and_then(|copy| cache.memory.arrival(located.node, &copy)) {
            Some(arrival) => sharing.give(key.block, &gift, located, &arrival),
            None => sharing.give_up(&gift, located),
        }
    }

    /// All bytes of a file are here whose size was not known before.
    fn sized(mut self, mut bytes: Vec<u8>, charge: Charge, asked: u32) {
        self.count_answer();
        self.give_file(&bytes);
        if !self.take_size(bytes.len() as u64) {
            return self.refused(ReadFailure::PastVersion);
        }
        bytes.drain(..self.located.offset as usize);
        bytes.truncate(self.located.length);
        bytes.shrink_to_fit();
        let bytes = Buffer::from(bytes).holding(charge.fetched());
        self.arrived(bytes, Place::Source, Some(asked));
    }

    /// A copy of the block is here. If the size of the file was not known before, it is one of the whole file.
    fn copied(mut self, bytes: Buffer, from: Place) {
        if self.located.is_sized || self.take_size(bytes.len() as u64) {
            self.arrived(bytes, from, None);
        } else if self.is_awaited() {
            // The file has another size by now, so these are not its bytes.
            self.cache.fail(self.key, ReadFailure::PastVersion);
        }
    }

    /// Takes the size of a file, which was not known before. Says whether the block still is one of it: the file may have
    /// more blocks than was guessed, or none.
    fn take_size(&mut self, size: u64) -> bool {
        let (cache, node) = (&self.cache, self.located.node);
        if let Some(file) = node.file().filter(|_| cache.catalog.set_size(node, size)) {
            let event = Event::Changed { layout: cache.catalog.layout(), files: vec![file] };
            cache.inbox.put(event, None);
        }
        let located = self.key.locate(&cache.catalog).filter(|at| at.fingerprint.size() == size);
        located.map(|located| self.located = located).is_some()
    }

    /// The file seems to be another version than the catalog thinks: the catalog looks at it again.
    fn changed(self) {
        let cache = Arc::clone(&self.cache);
        let Some(recheck) = cache.page_cache.recheck() else {
            self.count_answer();
            return self.refused(ReadFailure::PastVersion);
        };
        let (failing, node) = (FailOnDrop::new(&cache, self.key), self.located.node);
        let rechecked = move |outcome: Result<(), Errno>| {
            let _failing = failing.taken();
            self.count_answer();
            match outcome {
                Ok(()) => self.rechecked(),
                Err(errno) => self.refused(ReadFailure::Errno(errno)),
            }
        };
        recheck(node, Urgency::Demand, Box::new(rechecked));
    }

    /// The catalog has looked at the file again. If it is no other version, the source is asked again.
    fn rechecked(self) {
        if !self.is_awaited() {
            return;
        }
        let Some(located) = self.key.locate(&self.cache.catalog) else {
            self.cache.traffic.changed.fetch_add(1, Ordering::Relaxed);
            return self.refused(ReadFailure::PastVersion);
        };
        let doubts = self.doubts + 1;
        if doubts < DOUBTS_MAX {
            let pages = self.key.pages;
            return Attempt { located, pages, doubts, ..self }.ask_source();
        }
        tracing::warn!(
            "the source gives {:?} another size with the old modification time, or another version that \
             is not there when asked again; belady takes that for an error of the source and answers \
             EIO. If the file has changed, `touch` it at the source",
            located.path
        );
        self.refused(ReadFailure::Errno(Errno::EIO));
    }

    /// The source does not give the bytes. The store may, unless its disk hangs.
    pub(super) fn refused(&self, why: ReadFailure) {
        let cache = &self.cache;
        let hangs = cache.store().is_some_and(|store| store.reads_hang());
        if let Some(fetching) = cache.flights.refuse(&self.key, self.flight, why, hangs) {
            // Other nodes may wait until this one has made the sample: they need not wait longer.
            if let Some(sharing) = cache.sharing.get().filter(|_| !self.located.version_has_size) {
                sharing.give_up(&fetching.gift, &self.located);
            }
            cache.failed(self.key, fetching, why);
        }
    }

    /// The bytes are here: answers the readers, has a copy stored that the planner wants, and then has the
    /// block pushed. `began` is the tick at which the source was asked for them.
    pub(super) fn arrived(self, bytes: Buffer, from: Place, began: Option<u32>) {
        let Attempt { cache, key, located, pages, urgency, is_of_run, .. } = self;
        let (bytes, FlightKey { block, node, .. }) = (Arc::new(bytes), key);
        let is_file = located.length as u64 == located.fingerprint.size();
        let is_small = is_file && located.length < BLOCK_BYTES as usize;
        let handed = Handed { block, pages, bytes: &bytes };
        let received = cache.catalog.receive(node, &handed, began);
        if received == Received::TooLate {
            return cache.fail(key, ReadFailure::PastVersion);
        }
        let is_settled = received == Received::Settled;
        if pages.is_none() && matches!(from, Place::Tier(_)) {
            // No member was asked for it.
            cache.move_on(block);
        }
        let Some(fetching) = cache.flights.take_waiting(key, &bytes, pages) else { return };
        let at = pages.map_or(0, PageRange::offset);
        let is_read = !fetching.waiters.is_empty();
        let push = fetching.to_ram.then(|| {
            let (cache, bytes) = (Arc::clone(&cache), Arc::clone(&bytes));
            let located = located.clone();
            let job = PushJob { cache, block, located, bytes, from, is_settled, is_read };
            Arc::new(Push(Some(job)))
        });
        for waiter in fetching.waiters {
            let landed = Landed::new(Arc::clone(&bytes), at, push.clone());
            waiter(Ok(landed.after(fetching.cause)));
        }
        if let Some(sharing) = cache.sharing.get().filter(|_| is_settled && pages.is_none())
            && !fetching.gift.is_empty()
            && let Some(arrival) = cache.memory.arrival(node, &bytes)
        {
            sharing.give(block, &fetching.gift, &located, &arrival);
        }
        let placed = fetching.placed.filter(|_| pages.is_none());
        if let (Some(tier), Some(placed)) = (&cache.store_tier, placed) {
            let arrival = is_settled.then(|| cache.memory.arrival_to_store(node, &bytes));
            tier.put(block, arrival, placed);
        }
        if pages.is_none()
            && is_small
            && !is_of_run
            && urgency == Urgency::Prefetch
            && let Some(push) = push.and_then(Arc::into_inner)
        {
            push.now();
        }
    }
}
