//! Bytes on their way: from the source or the local store, to readers and into the page cache.
//!
//! One block is fetched by at most one *flight* at a time:
//!
//! 1. A read that the kernel could not answer from its pages, or the planner's prefetch, starts a
//!    flight. Further reads of the block join it. A reader waits for its own block only.
//! 2. The bytes come from the local store if it has all of them, else from a member of the cluster that has them
//!    (`sharing`), else from the source. If a reader has waited for the store's disk for `cache.slow-after`, or for a
//!    member longer than usual, the source is asked as well, and the first answer counts. A source over a network is
//!    asked a second time if its answer is late ([`Cache::hedge`]).
//! 3. The waiting readers are answered **first**. Then the block is pushed into the kernel's page cache. A
//!    push waits for pages that a read in flight has locked, and that read may wait for another block. So the
//!    threads that bring blocks push only prefetched files of one block. Other threads push all other
//!    blocks (`landing`).
//! 4. The flight ends and the planner hears of it.
//!
//! If a file is read at random, the planner says that it is read in parts. Its readers then get only the pages
//! that they ask for, from the source. Nothing is pushed, because the kernel keeps what it was answered. A block
//! that is on its way, or in the local store, is read whole all the same.
//!
//! Blocks that lie beside each other may come with one request (`runs`). A slice of a large file may come without the
//! pages that slices beside it have in RAM ([`Cache::prefetch`]). A reader of such a page then gets it by a request
//! of its own.
//!
//! A job that panics fails its flight with `EIO`.
//!
//! No lock is held across I/O, a reply or a push. A cache failure costs a fetch from the source,
//! never an error to a reader. A source error reaches the reader as it is.

mod attempts;
mod checks;
mod file_flags;
mod flights;
mod inbox;
mod jobs;
mod landing;
mod memory;
mod observer;
mod on_drop;
mod page_cache;
mod probes;
mod runs;
mod sharing;
mod spans;
mod store_tier;
mod stored_blocks;
#[cfg(test)]
mod tests;
mod timed_source;
mod timings;
mod waits;
mod whole_file;

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use nix::errno::Errno;

use crate::catalog::{Catalog, Located, NodeId};
use crate::cluster::{Homes, Worth};
use crate::disk::{Alarm, Buffer, DiskState};
use crate::ids::{BlockId, FileId, PageRange};
use crate::peers::{Key, Membership, Shards};
use crate::plan::{Event, Layout};
use crate::source::{Source, Urgency};
use crate::store::{PassthroughFile, Store};
use attempts::Attempt;
pub use file_flags::FileFlags;
use flights::{Fetching, FlightKey, Flights, Join};
pub use inbox::{Inbox, Message, Question};
pub use landing::Landed;
pub use memory::{Arrival, Charge, Memory};
pub use observer::Observer;
use on_drop::NotifyOnDrop;
pub use page_cache::{CheckReply, PageCache, Pages};
use runs::Run;
use sharing::Sharing;
pub use sharing::{Lending, Lent};
pub use spans::{DISK_READ, PUSH, READ_AHEAD, Span, Spans};
use store_tier::StoreTier;
pub use timed_source::{Operation, SourceTimes, TimedSource};
pub use timings::{Latencies, Timings};
pub use waits::{Cause, Waits};
pub use whole_file::{Taken, read_whole};

/// Why a read got no bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadFailure {
    /// An error, of the source mostly.
    Errno(Errno),
    /// The file is another version than the node that was read: the catalog knows what the node gives now.
    PastVersion,
}

/// Takes a block's bytes, or why there are none. Lets go of the bytes when its reader is answered.
pub type Waiter = Box<dyn FnOnce(Result<Landed, ReadFailure>) + Send>;

/// Takes whether a file could be looked at again at the source.
pub type Rechecked = Box<dyn FnOnce(Result<(), Errno>) + Send>;

/// Has a file looked at again at the source, without waiting for it.
pub type Recheck = Box<dyn Fn(NodeId, Urgency, Rechecked) + Send + Sync>;

/// Bytes and reads that went through the daemon since the start.
#[derive(Default)]
pub struct Traffic {
    /// Reads that the kernel sent because it had no pages.
    pub reads: AtomicU64,
    /// Of these, reads answered from the bytes of a push under way.
    pub reads_from_push: AtomicU64,
    /// Reads that ended in an error.
    pub read_errors: AtomicU64,
    /// Records of the local store that were damaged or could not be read.
    pub store_errors: AtomicU64,
    /// Files found to be another version when they were read.
    pub changed: AtomicU64,
    /// Pushes that the kernel refused.
    pub push_errors: AtomicU64,
    /// How long the disk of the local store took for a block, and the kernel for a push.
    pub disk_reads: Timings,
    pub pushes: Timings,
    /// The same, of each block, while somebody traces.
    pub spans: Spans,
}

/// How long a lookup waits for a copy that tells the size of its file, unless another node makes it.
const COPY_PATIENCE: Duration = Duration::from_millis(500);

/// The mover of bytes of one source.
pub struct Cache {
    source: Arc<dyn Source>,
    catalog: Arc<Catalog>,
    inbox: Arc<Inbox>,
    flights: Flights,
    page_cache: Arc<PageCache>,
    store_tier: Option<Arc<StoreTier>>,
    /// Set if there is a cluster.
    sharing: OnceLock<Arc<Sharing>>,
    memory: Memory,
    traffic: Arc<Traffic>,
    waits: Arc<Waits>,
    alarm: Arc<Alarm>,
}

impl Cache {
    /// A cache of the files of a source, which the catalog names. It tells `inbox` what happens. The
    /// store, if there is one, is the tier of this number.
    pub fn new(
        source: Arc<dyn Source>,
        catalog: Arc<Catalog>,
        inbox: Arc<Inbox>,
        store: Option<(usize, Arc<Store>)>,
    ) -> Arc<Self> {
        Memory::keep_nothing_back();
        let (alarm, traffic) = (Arc::<Alarm>::default(), Arc::<Traffic>::default());
        let store_tier = store.map(|(number, store)| {
            store.set_alarm(&alarm);
            Arc::new(StoreTier::new(number, store, &catalog, &inbox, &traffic))
        });
        Arc::new(Cache {
            source,
            flights: Flights::default(),
            page_cache: Arc::new(PageCache::new(&catalog, &inbox)),
            store_tier,
            sharing: OnceLock::new(),
            memory: Memory::default(),
            traffic,
            waits: Arc::default(),
            alarm,
            catalog,
            inbox,
        })
    }

    /// Where the bytes come from.
    pub fn source(&self) -> &Arc<dyn Source> {
        &self.source
    }

    /// Rings when something begins that may come to hang.
    pub fn alarm(&self) -> &Arc<Alarm> {
        &self.alarm
    }

    /// Lets the thread behind the [alarm](Self::alarm) rest: the alarm rings from now on. Says whether it
    /// may, since no fetch is under way and the disk of the local store is not called.
    pub fn rest(&self) -> bool {
        self.alarm.rest();
        self.memory.rests() && self.store().is_none_or(|store| !store.is_called())
    }

    /// The catalog of the files that are cached.
    pub fn catalog(&self) -> &Catalog {
        &self.catalog
    }

    /// Totals since the start.
    pub fn traffic(&self) -> &Traffic {
        &self.traffic
    }

    /// How long readers have waited.
    pub fn waits(&self) -> &Arc<Waits> {
        &self.waits
    }

    /// The kernel's page cache.
    pub fn page_cache(&self) -> &Arc<PageCache> {
        &self.page_cache
    }

    /// The account of the memory that bytes on their way take.
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Blocks come from these shards, too, as soon as [homes](Self::set_homes) are known.
    pub fn share(&self, shards: Arc<dyn Shards>) {
        // There is one cluster.
        let _ = self.sharing.set(Arc::new(Sharing::new(shards)));
    }

    /// Sets which members have which blocks; `None` if nobody has any.
    pub fn set_homes(&self, placed: Option<(Arc<Membership>, Arc<Homes>)>) {
        self.sharing.get().into_iter().for_each(|sharing| sharing.set_homes(placed.clone()));
    }

    /// From now on members are given only what is worth it; `None`: all that they lack.
    pub fn set_worth(&self, worth: Option<Worth>) {
        self.sharing.get().into_iter().for_each(|sharing| sharing.set_worth(worth.clone()));
    }

    /// A block that RAM or the store has is read soon. If it moves on with that read in the cluster, it does so now.
    pub fn move_on(&self, block: BlockId) {
        let Some(sharing) = self.sharing.get() else { return };
        if let Some(located) = self.catalog.locate(block) {
            sharing.move_on(block, &located, &self.memory);
        }
    }

    /// Whether the local store has a block as the catalog knows it.
    pub fn stores(&self, block: BlockId) -> bool {
        let located = self.catalog.locate(block);
        located.zip(self.store_tier.as_ref()).is_some_and(|(located, tier)| tier.holds(&located))
    }

    /// Puts a block that the local store has into this node's own shard, for other members of the cluster. Never
    /// blocks.
    pub fn lend(self: &Arc<Self>, block: BlockId, key: Key, lending: Lending) {
        let (Some(tier), Some(located)) = (&self.store_tier, self.catalog.locate(block)) else {
            return lending.end(Lent::Missing);
        };
        if !tier.claim_read(&located) {
            return lending.end(match tier.holds(&located) {
                true => Lent::Refused,
                false => Lent::Missing,
            });
        }
        let cache = Arc::clone(self);
        // Somebody may wait for it.
        tier.readers.submit(Urgency::Demand, move || {
            let Some((sharing, tier)) = cache.sharing.get().zip(cache.store_tier.as_ref()) else {
                return;
            };
            match tier.get(block, &located) {
                Some(bytes) => sharing.lend(key, &located, bytes, &cache.memory, lending),
                None => lending.end(Lent::Missing),
            }
        });
    }

    /// Copies a block that is in this node's own shard to the local store, and tells the planner. Never blocks.
    pub fn take(self: &Arc<Self>, block: BlockId, tier: usize) {
        let placed = NotifyOnDrop::new(&self.inbox, Event::Placed { block, tier, done: false });
        let (Some(sharing), Some(located)) = (self.sharing.get(), self.catalog.locate(block))
        else {
            return;
        };
        let cache = Arc::clone(self);
        sharing.ask_own(&located.clone(), move |bytes| {
            let (node, bytes) = (located.node, Arc::new(Buffer::from(bytes)));
            if let Some(store_tier) = cache.store_tier.as_ref()
                && cache.catalog.is_settled(node)
            {
                let arrival = cache.memory.arrival(node, &bytes);
                store_tier.put(block, arrival, placed);
            }
        });
    }

    /// Sets how many microseconds the source takes at most, but for one read in a hundred, and how many more it takes to make
    /// a sample.
    pub fn set_source_wait(&self, us: u64, making_us: u64) {
        self.sharing.get().into_iter().for_each(|sharing| sharing.set_source_wait(us, making_us));
    }

    /// The local store, if there is one.
    pub fn store(&self) -> Option<&Arc<Store>> {
        self.store_tier.as_ref().map(|tier| &tier.store)
    }

    /// The state of the disk of the local store, if there is one.
    pub fn disk_state(&self) -> Option<DiskState> {
        self.store().map(|store| store.state())
    }

    /// Tells the planner which blocks the local store holds already. Gives up samples that are of no file any
    /// more, if `all_known`: an earlier mount's catalog may not have the last files that it stored. Goes
    /// through the whole catalog.
    pub fn adopt(&self, all_known: bool) {
        self.store_tier.iter().for_each(|tier| tier.adopt(all_known));
    }

    /// As [`adopt`](Self::adopt), once all is known that the source told, without waiting.
    pub fn adopt_again(&self) {
        self.store_tier.iter().for_each(StoreTier::adopt_again);
    }

    /// Has stored samples synced that have waited for a few seconds. To be called once a
    /// second. Blocks.
    pub fn sync_old(&self) {
        self.store_tier.iter().for_each(StoreTier::sync_old);
    }

    /// Writes all queued samples to the local store, and syncs them. Says whether the store
    /// is left then. Blocks.
    pub fn close(&self) -> bool {
        self.store_tier.as_ref().is_none_or(StoreTier::close)
    }

    /// A large file that lies in the local store as it is at the source, for the kernel to read by
    /// itself. Never blocks.
    pub fn passthrough_file(&self, node: NodeId) -> Option<Arc<PassthroughFile>> {
        // The kernel may read the bytes of this version from then on.
        self.store_tier.as_ref()?.passthrough_file(node).filter(|_| self.catalog.hand_out_any(node))
    }

    /// A reader wants pages of a block that the kernel lacks. The block is brought whole. Never blocks: the waiter is
    /// called at once if the bytes are at hand, else by the thread that brings them.
    pub fn read(
        self: &Arc<Self>,
        block: BlockId,
        asked: PageRange,
        node: NodeId,
        task: u32,
        waiter: Waiter,
    ) {
        let key = FlightKey::whole(block, node);
        let joined = match self.flights.join_reader(key, asked, waiter) {
            Ok(joined) => joined,
            Err(waiter) => return self.read_beside(block, asked, node, task, waiter),
        };
        self.traffic.reads.fetch_add(1, Ordering::Relaxed);
        match joined {
            Join::Pushing(bytes, pages, waiter) => {
                self.traffic.reads_from_push.fetch_add(1, Ordering::Relaxed);
                self.inbox.put(Event::Joined { block, task }, None);
                waiter(Ok(Landed::pushed(bytes, pages)));
            }
            Join::Joined { number, turns_to_ram } => {
                if turns_to_ram && let Some(located) = key.locate(&self.catalog) {
                    self.page_cache.begin_fetch(&located);
                }
                self.memory.promote(number);
                let missed = Event::Missed { block, task };
                let joined = Event::Joined { block, task };
                self.inbox.put(if turns_to_ram { missed } else { joined }, None);
            }
            Join::Begun(number) => {
                let Some(located) = key.locate(&self.catalog) else {
                    return self.fail(key, ReadFailure::PastVersion);
                };
                if self.page_cache.has_lost(block) {
                    self.flights.with(&key, number, |fetching| fetching.cause = Cause::Lost);
                }
                self.page_cache.begin_fetch(&located);
                self.inbox.put(Event::Missed { block, task }, None);
                Attempt::new(self, key, number, located, Urgency::Demand).begin();
            }
        }
    }

    /// A reader wants pages of a slice that is on its way without them: the slices beside it had them in RAM, and the
    /// kernel has taken them back. They come by themselves.
    fn read_beside(
        self: &Arc<Self>,
        block: BlockId,
        asked: PageRange,
        node: NodeId,
        task: u32,
        waiter: Waiter,
    ) {
        let key = FlightKey { block, node, pages: Some(asked) };
        match self.flights.join_pages(key, waiter) {
            Ok(Join::Begun(number)) => match key.locate(&self.catalog) {
                Some(at) => {
                    Attempt::new(self, key, number, at, Urgency::Demand).ask_source();
                }
                None => return self.fail(key, ReadFailure::PastVersion),
            },
            Ok(Join::Joined { .. } | Join::Pushing(..)) => {}
            // Another flight of the block has begun meanwhile, and brings them.
            Err(waiter) => return self.read(block, asked, node, task, waiter),
        }
        self.traffic.reads.fetch_add(1, Ordering::Relaxed);
        self.inbox.put(Event::Joined { block, task }, None);
    }

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
        let whole = FlightKey::whole(block, node).locate(&self.catalog);
        let Some(whole) = whole else { return waiter(Err(ReadFailure::PastVersion)) };
        let is_stored = self.store_tier.as_ref().is_some_and(|tier| tier.claim_read(&whole));
        let Some(located) = flights::part_of(whole, Some(pages)) else {
            return waiter(Err(ReadFailure::PastVersion));
        };
        let key = FlightKey { block, node, pages: Some(pages) };
        let joined = if is_stored { Err(waiter) } else { self.flights.join_pages(key, waiter) };
        let joined = match joined {
            Ok(joined) => joined,
            Err(waiter) => return self.read(block, pages, node, task, waiter),
        };
        self.traffic.reads.fetch_add(1, Ordering::Relaxed);
        if let Join::Begun(number) = joined {
            self.page_cache.begin_fetch(&located);
            Attempt::new(self, key, number, located, Urgency::Demand).ask_source();
            // The planner hears nothing of the arrival: the reader need not wait until it has been woken.
            self.inbox.put(Event::Part { block, task, pages }, None);
        }
    }

    /// A reader asks for bytes of a file. If they are a page that was left out of a block, they are taken. Then the
    /// planner hears that the reader has come to the block. Never blocks.
    pub fn take_probe(
        &self,
        node: NodeId,
        file: FileId,
        layout: &Layout,
        asked: &Range<u64>,
        task: u32,
    ) -> Option<Arc<[u8]>> {
        let block = layout.blocks_in(file, asked.start, asked.end - asked.start).next()?;
        layout.probe_in(block)?;
        let bytes = self.page_cache.probes.take(block, node, asked)?;
        self.traffic.reads.fetch_add(1, Ordering::Relaxed);
        self.inbox.put(Event::Probed { block, task }, None);
        Some(bytes)
    }

    /// Has a block brought to know its bytes, which no reader needs. They go nowhere, and the planner does
    /// not hear of it. Never blocks.
    pub fn bring(self: &Arc<Self>, block: BlockId, node: NodeId, waiter: Waiter) {
        let key = FlightKey::whole(block, node);
        match self.flights.join(key, (false, Cause::Cold), waiter, Fetching::add_waiter) {
            Join::Pushing(bytes, pages, waiter) => waiter(Ok(Landed::pushed(bytes, pages))),
            Join::Joined { number, .. } => self.memory.promote(number),
            Join::Begun(number) => match key.locate(&self.catalog) {
                Some(at) => Attempt::new(self, key, number, at, Urgency::Demand).begin(),
                None => self.fail(key, ReadFailure::PastVersion),
            },
        }
    }

    /// Finds out the size of a version of a file, if it is not known, and a copy may be nearer than the source. Waits for a
    /// moment only: the caller holds up further questions about the file, and the copy may turn out to need one.
    pub fn find_size(self: &Arc<Self>, node: NodeId) {
        let Ok((file, _)) = self.catalog.file(node) else { return };
        let first = self.catalog.layout().blocks_of(file).next();
        let is_it = |at: &Located| at.node == node && !at.is_sized && at.may_have_copies();
        let Some((block, at)) =
            first.and_then(|block| Some((block, self.catalog.locate(block).filter(is_it)?)))
        else {
            return;
        };
        let may_share = || self.sharing.get().is_some_and(|it| it.may_have(block, &at));
        if self.store_tier.as_ref().is_some_and(|tier| tier.holds(&at)) || may_share() {
            let (brought, is_over) = mpsc::channel();
            self.bring(block, node, Box::new(move |_| _ = brought.send(())));
            // The source is asked otherwise. If nobody sends any more, it is over, too.
            let waits_on = || self.flights.is_being_made(&FlightKey::whole(block, node));
            while is_over.recv_timeout(COPY_PATIENCE) == Err(RecvTimeoutError::Timeout)
                && waits_on()
            {}
        }
    }

    /// Whether these pages of a block of a version are on their way. Never blocks.
    pub fn brings(&self, block: BlockId, node: NodeId, pages: PageRange) -> bool {
        self.flights.brings(block, node, pages)
    }

    /// Whether these bytes of a version of a file may lie in the page cache. None do if nothing of the file
    /// was ever fetched. Bytes that are on their way are to be waited for. Never blocks.
    pub fn may_peek(&self, node: NodeId, file: FileId, range: &Range<u64>) -> bool {
        let length = range.end.saturating_sub(range.start);
        let blocks = self.catalog.layout().blocks_in(file, range.start, length);
        self.page_cache.pages().is_some()
            && self.page_cache.file_flags().fetched.has(file)
            && !self.flights.has(node, blocks)
    }

    /// The planner wants a block in RAM, or these pages of it. A flight that is under way brings it there, too.
    pub fn prefetch(self: &Arc<Self>, block: BlockId, pages: Option<PageRange>) {
        let Some(attempt) = self.begin_prefetch(block) else { return };
        // The whole block is needed if it is to be known whether its bytes are those of an earlier version.
        let may_trim = || !self.catalog.unproved(attempt.key.node).contains(&block);
        match pages.filter(|_| may_trim()) {
            // Files that are cut are in no store and in no cluster.
            Some(pages) => attempt.trimmed(pages).ask_source(),
            None => attempt.begin(),
        }
    }

    /// The planner wants blocks in RAM that lie one after the other at the source. They come with one request.
    pub fn prefetch_run(self: &Arc<Self>, first: BlockId, count: u32) {
        let mut run = Run::default();
        for block in (first.0..first.0.saturating_add(count)).map(BlockId) {
            if let Some(attempt) = self.begin_prefetch(block) {
                run.add(attempt, self);
            }
        }
        run.begin(self);
    }

    /// Begins the flight of a block that the planner wants in RAM. Its bytes are to be asked for. `None` if it is under
    /// way already.
    fn begin_prefetch(self: &Arc<Self>, block: BlockId) -> Option<Attempt> {
        let Some(located) = self.catalog.locate(block) else {
            self.inbox.put(Event::Failed { block }, None);
            return None;
        };
        let key = FlightKey::whole(block, located.node);
        let begun = match self.flights.join(key, (true, Cause::Late), (), |_, ()| ()) {
            Join::Begun(number) => Some(number),
            Join::Joined { turns_to_ram: true, .. } => None,
            Join::Joined { .. } | Join::Pushing(..) => return None,
        };
        self.page_cache.begin_fetch(&located);
        if let Some(pages) = self.page_cache.pages() {
            pages.expect(&located);
        }
        begun.map(|number| Attempt::new(self, key, number, located, Urgency::Prefetch))
    }

    /// The planner wants a copy of a block in the local store, and not in RAM. A flight that is
    /// under way leaves one there when it ends.
    pub fn load(self: &Arc<Self>, block: BlockId, tier: usize) {
        let placed = NotifyOnDrop::new(&self.inbox, Event::Placed { block, tier, done: false });
        let (Some(store_tier), Some(located)) = (&self.store_tier, self.catalog.locate(block))
        else {
            return;
        };
        let node = located.node;
        let key = FlightKey::whole(block, node);
        let add = |fetching: &mut Fetching, placed| fetching.placed = Some(placed);
        match self.flights.join(key, (false, Cause::Late), placed, add) {
            Join::Begun(number) => {
                Attempt::new(self, key, number, located, Urgency::Prefetch).begin();
            }
            Join::Joined { .. } => {}
            Join::Pushing(bytes, pages, placed) => {
                let is_whole = self.catalog.is_settled(node) && pages.is_none();
                let arrival = is_whole.then(|| self.memory.arrival_to_store(node, &bytes));
                store_tier.put(block, arrival, placed);
            }
        }
    }

    /// Writes a block to the local store and tells the planner.
    pub fn place(&self, block: BlockId, tier: usize, arrival: Arrival) {
        let placed = NotifyOnDrop::new(&self.inbox, Event::Placed { block, tier, done: false });
        if let Some(store_tier) = &self.store_tier {
            store_tier.put(block, Some(arrival), placed);
        }
    }

    /// Gives up a block's copy in the local store.
    pub fn displace(&self, block: BlockId) {
        self.store_tier.iter().for_each(|tier| tier.remove(block));
    }

    /// Asks the source for blocks that readers have waited for at more than `patience` looks, and for all
    /// that waits for a disk that hangs. Lets go of samples that wait to be stored there. Never blocks; to
    /// be called each [`TICK`](crate::disk::TICK).
    pub fn rescue(self: &Arc<Self>, patience: u64) {
        let Some(tier) = &self.store_tier else { return };
        tier.store.tick();
        tier.give_up_hanging();
        let hangs = tier.store.reads_hang();
        let (mut late, mut failed) = (Vec::new(), Vec::new());
        self.flights.for_each(|key, fetching| {
            let Some((located, looks)) = &mut fetching.store else { return };
            *looks += 1;
            let waits = !fetching.waiters.is_empty();
            let urgency = if waits { Urgency::Demand } else { Urgency::Prefetch };
            let attempt = || Attempt::new(self, *key, fetching.number, located.clone(), urgency);
            let is_late = hangs || waits && *looks > patience;
            if is_late && !std::mem::replace(&mut fetching.asks_source, true) {
                fetching.cause = Cause::Disk;
                late.push(attempt());
            } else if let Some(why) = fetching.refused.filter(|_| hangs) {
                failed.push((attempt(), why));
            }
        });
        late.into_iter().for_each(Attempt::ask_source);
        failed.iter().for_each(|(attempt, why)| attempt.refused(*why));
        if hangs {
            let files = tier.take_whole_files();
            files.iter().filter_map(Weak::upgrade).for_each(|file| file.ask_source());
        }
    }

    /// Asks the source a second time for blocks that readers wait for, if their bytes come later than most. Never
    /// blocks; to be called each [`TICK`](crate::disk::TICK).
    pub fn hedge(self: &Arc<Self>, times: &SourceTimes) {
        let Some(late_after) = times.late_after() else { return };
        let mut late = Vec::new();
        self.flights.for_each(|key, fetching| {
            let is_late = fetching.asked.is_some_and(|asked| asked.elapsed() > late_after);
            let is_needed = fetching.unanswered > 0 && !fetching.waiters.is_empty();
            if is_late && is_needed && !fetching.is_hedged {
                late.push((*key, fetching.number));
            }
        });
        for (key, number) in late {
            let Some(located) = key.locate(&self.catalog) else { continue };
            // A sample that has to be made is made once, however often it is asked for.
            let is_made = self.source.unlisted().is_some_and(|top| located.path.starts_with(top));
            if is_made || !times.take_hedge() {
                continue;
            }
            let is_under_way =
                self.flights.with(&key, number, |fetching| fetching.is_hedged = true);
            if is_under_way.is_some() {
                Attempt::new(self, key, number, located, Urgency::Demand).ask_source();
            }
        }
    }

    /// Asks the source for blocks that readers have waited for longer than a member of the cluster usually takes. Never
    /// blocks; to be called each [`TICK`](crate::disk::TICK).
    pub fn pass_over(self: &Arc<Self>) {
        let Some(sharing) = self.sharing.get() else { return };
        let (patience, mut late) = (sharing.patience(), Vec::new());
        let for_making = sharing.patience_for_making();
        self.flights.for_each(|key, fetching| {
            let patience = if fetching.is_being_made { for_making } else { patience };
            let is_late = fetching.members.is_some_and(|asked| asked.elapsed() > patience);
            let is_needed = !fetching.waiters.is_empty();
            if is_late && is_needed && !std::mem::replace(&mut fetching.asks_source, true) {
                late.push((*key, fetching.number));
            }
        });
        sharing.note_passed_over(late.len() as u64);
        for (key, number) in late {
            match key.locate(&self.catalog) {
                Some(at) => Attempt::new(self, key, number, at, Urgency::Demand).ask_source(),
                None => self.fail(key, ReadFailure::PastVersion),
            }
        }
    }

    /// Ends a flight with an error.
    fn fail(&self, key: FlightKey, why: ReadFailure) {
        match self.flights.end(&key) {
            Some(fetching) => self.failed(key, fetching, why),
            None => self.tell_failed(key),
        }
    }

    /// Gives an error to all that waited for a flight that has ended.
    fn failed(&self, key: FlightKey, fetching: Fetching, why: ReadFailure) {
        if fetching.to_ram {
            self.tell_failed(key);
        }
        if let ReadFailure::Errno(_) = why {
            let readers = fetching.waiters.len() as u64;
            self.traffic.read_errors.fetch_add(readers, Ordering::Relaxed);
        }
        for waiter in fetching.waiters {
            waiter(Err(why));
        }
    }

    /// Tells the planner that a block has not come. If its file has left it behind, the planner hears of that.
    fn tell_failed(&self, FlightKey { block, node, .. }: FlightKey) {
        if self.catalog.layout().has(block) {
            self.inbox.put_if_present(&self.catalog, node, Event::Failed { block }, None);
        }
    }
}
