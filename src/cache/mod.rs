//! Bytes on their way: from the source or the local store, to readers and into the page cache.
//!
//! One block is fetched by at most one *flight* at a time:
//!
//! 1. A read that the kernel could not answer from its pages, or the planner's prefetch, starts a
//!    flight; further reads of the block join it. A reader waits for its own block only.
//! 2. The bytes come from the local store if it has them whole, else from the source; from both
//!    where a reader has waited for the store's disk for long.
//! 3. The waiting readers are answered **first**. Then the block is pushed into the kernel's page
//!    cache: a prefetched file of one block by the thread that brought it, other blocks by threads
//!    that do nothing else. A push waits for pages that a read in flight has locked, and that read
//!    may need another block, which must not find all threads waiting.
//! 4. The flight ends and the planner hears of it.
//!
//! A job that panics fails its flight with `EIO`.
//!
//! No lock is held across I/O, a reply or a push. A cache failure costs a fetch from the source,
//! never an error to a reader; a source error reaches the reader as it is.

mod attempts;
mod checked;
mod file_flags;
mod find;
mod flight;
mod inbox;
mod landing;
mod local;
mod memory;
mod observer;
mod on_drop;
mod parts;
mod peek;
#[cfg(test)]
mod tests;
mod whole;

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ffi::OsStr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use nix::errno::Errno;

use crate::catalog::{Catalog, Located, NodeId};
use crate::disk::Alarm;
use crate::ids::{BlockId, PageRange};
use crate::plan::Event;
use crate::source::{KeyedPool, Pool, Source, Urgency};
use crate::store::{Lent, Store};
use crate::sync::{Mutex, MutexGuard};
use checked::Checked;
pub use file_flags::FileFlags;
use flight::{Fetching, Flight, Key};
pub use inbox::{Inbox, Message, Question};
pub use landing::Landed;
use local::Local;
pub use memory::{Arrival, Charge, Memory};
pub use observer::Observer;
use on_drop::NotifyOnDrop;
pub use whole::Taken;
use whole::Wholes;

/// The kernel's page cache as a place to put blocks: the RAM tier.
pub trait Pages: Send + Sync + 'static {
    /// Bytes of a file will be put there soon.
    fn expect(&self, at: &Located);

    /// Puts the bytes there. Blocks.
    ///
    /// # Errors
    /// The kernel's, `ENOENT` where it does not know the file.
    fn store(&self, at: &Located, bytes: &[u8]) -> Result<(), Errno>;

    /// Looks whether every page is there; the kernel has looked the name up again then, if it
    /// could not believe it any more.
    fn look(&self, at: Located, looked: Looked);

    /// Has the kernel look the name up again if it cannot believe it any more.
    fn renew(&self, at: Located);

    /// Reads bytes of which every page is there. Blocks.
    ///
    /// # Errors
    /// Where one is not, or the pages are of another version.
    fn read(&self, at: &Located) -> Result<Vec<u8>, Errno>;

    /// Makes the kernel look a file's name up at its next open. Its pages stay. Blocks.
    fn expire(&self, node: NodeId, parent: NodeId, name: &OsStr);

    /// Drops the pages; then `done` is called, or dropped where that panicked.
    fn discard(&self, at: Located, done: Box<dyn FnOnce() + Send>);
}

/// Takes whether pages are there; none where the kernel cannot tell.
pub type Looked = Box<dyn FnOnce(Option<bool>) + Send>;

/// Why a read got no bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadFailure {
    /// An error, of the source mostly.
    Errno(Errno),
    /// The node that was read is no longer what its file is: the catalog knows what it gives now.
    PastVersion,
}

/// Takes a block's bytes, which it lets go of when its reader is answered, or why there are none.
pub type Waiter = Box<dyn FnOnce(Result<Landed, ReadFailure>) + Send>;

/// Takes whether a file could be looked at again at the source.
pub type Rechecked = Box<dyn FnOnce(Result<(), Errno>) + Send>;

/// Has a file looked at again at the source, without waiting for it.
pub type Recheck = Box<dyn Fn(NodeId, Urgency, Rechecked) + Send + Sync>;

/// Bytes and reads that went through the daemon since the start.
#[derive(Debug, Default)]
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
}

/// The mover of bytes of one source.
pub struct Cache {
    source: Arc<dyn Source>,
    catalog: Arc<Catalog>,
    inbox: Arc<Inbox>,
    flights: Mutex<HashMap<Key, Flight>>,
    flights_begun: AtomicU64,
    /// Whole files that are read from the local store.
    wholes: Wholes,
    pages: OnceLock<Arc<dyn Pages>>,
    local: Option<Arc<Local>>,
    memory: Memory,
    store_pool: Pool,
    push_pool: Pool,
    expire_pool: KeyedPool<NodeId>,
    checked: Checked,
    file_flags: FileFlags,
    /// Told of files to be looked at again at the source.
    recheck: OnceLock<Recheck>,
    traffic: Traffic,
    alarm: Arc<Alarm>,
}

/// Threads that read the local store.
const STORE_THREADS: usize = 4;

/// For how long expiring a name may take, which is a matter of microseconds.
const EXPIRE_PATIENCE: Duration = Duration::from_secs(2);

/// Threads that push blocks into the page cache.
const PUSH_THREADS: usize = 4;

impl Cache {
    /// A cache of the files of a source, which the catalog names. It tells `inbox` what happens; the
    /// store, if there is one, is the tier of this number.
    pub fn new(
        source: Arc<dyn Source>,
        catalog: Arc<Catalog>,
        inbox: Arc<Inbox>,
        store: Option<(usize, Arc<Store>)>,
    ) -> Arc<Self> {
        Memory::keep_nothing_back();
        let local = |(tier, store)| Arc::new(Local::new(tier, store, Arc::clone(&catalog)));
        let alarm = Arc::new(Alarm::default());
        store.iter().for_each(|(_, store)| store.ring(&alarm));
        let local = store.map(local);
        Arc::new(Cache {
            source,
            catalog,
            inbox,
            flights: Mutex::default(),
            flights_begun: AtomicU64::new(0),
            wholes: Wholes::default(),
            pages: OnceLock::new(),
            local,
            memory: Memory::default(),
            store_pool: Pool::new("belady-store", STORE_THREADS, 2),
            push_pool: Pool::new("belady-push", PUSH_THREADS, 0),
            expire_pool: KeyedPool::new("belady-expire", EXPIRE_PATIENCE, 1, 0, || ()),
            checked: Checked::default(),
            file_flags: FileFlags::default(),
            recheck: OnceLock::new(),
            traffic: Traffic::default(),
            alarm,
        })
    }

    /// Where the bytes come from.
    pub fn source(&self) -> &Arc<dyn Source> {
        &self.source
    }

    /// What rings when there is something to look at that may come to hang.
    pub fn alarm(&self) -> &Arc<Alarm> {
        &self.alarm
    }

    /// Whether no fetch is under way and the disk of the local store is not called: the
    /// [alarm](Self::alarm) rings when it is.
    pub fn rests(&self) -> bool {
        self.alarm.rest();
        self.memory.rests() && self.store().is_none_or(|store| !store.is_called())
    }

    /// Connects the page cache, once it is mounted. Without one blocks are fetched and not kept.
    /// `recheck` is to look at a file again at the source; it must not block.
    pub fn connect(&self, pages: Arc<dyn Pages>, recheck: Recheck) {
        // A second connection of the same source leaves the first one's pages in charge.
        let _ = self.pages.set(pages);
        let _ = self.recheck.set(recheck);
    }

    /// The catalog of what is cached.
    pub fn catalog(&self) -> &Catalog {
        &self.catalog
    }

    /// Totals since the start.
    pub fn traffic(&self) -> &Traffic {
        &self.traffic
    }

    /// The local store, if there is one.
    pub fn store(&self) -> Option<&Arc<Store>> {
        self.local.as_ref().map(|local| &local.store)
    }

    /// Tells the planner what the local store holds already, and gives up what in it is of no file
    /// any more, if `all_known`: an earlier mount's catalog may not have the last files that it
    /// stored. Goes through the whole catalog.
    pub fn adopt(&self, all_known: bool) {
        if let Some(local) = &self.local {
            let blocks = local.adopt(all_known);
            self.inbox.put(Event::Found { tier: local.tier, blocks }, None);
        }
    }

    /// As [`adopt`](Self::adopt), once all is known that the source told, without waiting: after what
    /// the planner has been told until now.
    pub fn adopt_again(self: &Arc<Self>) {
        let Some(local) = self.local.as_ref().map(Arc::clone) else { return };
        let found = Event::Found { tier: local.tier, blocks: Vec::new() };
        let owed = NotifyOnDrop::new(self, found);
        // What it has yet to give up, since files have changed, is queued before.
        self.inbox.ask(Box::new(move |_| local.adopt_again(owed)));
    }

    /// Has what was stored made to last where that has waited for a few seconds. To be called once a
    /// second. Blocks.
    pub fn sync_old(&self) {
        self.local.iter().for_each(Local::sync_old);
    }

    /// A large file that lies in the local store as it is at the source, for the kernel to read by
    /// itself. Never blocks.
    pub fn lent(&self, node: NodeId) -> Option<Arc<Lent>> {
        // The kernel may read the bytes of this version from then on.
        self.local.as_ref()?.lent(node).filter(|_| self.catalog.hand_out_any(node))
    }

    /// What is known of each file.
    pub fn file_flags(&self) -> &FileFlags {
        &self.file_flags
    }

    /// The account of the memory that bytes on their way take.
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Key, Flight>> {
        self.flights.lock()
    }

    /// A reader wants a block that the kernel has no pages of. Never blocks: the waiter is called
    /// at once where the bytes are at hand, else by the thread that brings them.
    pub fn read(self: &Arc<Self>, block: BlockId, node: NodeId, task: u32, waiter: Waiter) {
        self.traffic.reads.fetch_add(1, Ordering::Relaxed);
        let mut flights = self.lock();
        match flights.get_mut(&Key::whole(block, node)) {
            Some(Flight::Pushing(bytes)) => {
                let bytes = Arc::clone(bytes);
                drop(flights);
                self.traffic.reads_from_push.fetch_add(1, Ordering::Relaxed);
                self.inbox.put(Event::Joined { block, task }, None);
                waiter(Ok(Landed::from(bytes)));
            }
            Some(Flight::Fetching(fetching)) => {
                fetching.waiters.push(waiter);
                let (news, flight) = (fetching.go_to_ram(), fetching.route.number());
                drop(flights);
                if news {
                    self.begin_fetch(node.file());
                }
                self.memory.promote(flight);
                let missed = Event::Missed { block, task };
                self.inbox.put(if news { missed } else { Event::Joined { block, task } }, None);
            }
            None => {
                let key = Key::whole(block, node);
                flights.insert(key, Flight::Fetching(Fetching::for_reader(waiter)));
                drop(flights);
                self.begin_fetch(node.file());
                match self.catalog.locate(block).filter(|located| located.node == node) {
                    Some(located) => {
                        self.inbox.put(Event::Missed { block, task }, None);
                        self.fetch(block, located, Urgency::Demand);
                    }
                    None => self.fail(key, ReadFailure::PastVersion),
                }
            }
        }
    }

    /// Has a block brought whose bytes nobody reads, so that it is known what they are. They go nowhere,
    /// and the planner does not hear of it. Never blocks.
    pub fn bring(self: &Arc<Self>, block: BlockId, node: NodeId, waiter: Waiter) {
        let key = Key::whole(block, node);
        let mut flights = self.lock();
        match flights.get_mut(&key) {
            Some(Flight::Pushing(bytes)) => {
                let bytes = Arc::clone(bytes);
                drop(flights);
                waiter(Ok(Landed::from(bytes)));
            }
            Some(Flight::Fetching(fetching)) => {
                fetching.waiters.push(waiter);
                let flight = fetching.route.number();
                drop(flights);
                self.memory.promote(flight);
            }
            None => {
                flights.insert(key, Flight::Fetching(Fetching::for_reader_alone(waiter)));
                drop(flights);
                match self.catalog.locate(block).filter(|located| located.node == node) {
                    Some(located) => self.fetch(block, located, Urgency::Demand),
                    None => self.fail(key, ReadFailure::PastVersion),
                }
            }
        }
    }

    /// The planner wants a block in RAM. A flight that is under way brings it there, too.
    pub fn prefetch(self: &Arc<Self>, block: BlockId) {
        let Some(located) = self.catalog.locate(block) else {
            return self.inbox.put(Event::Failed { block }, None);
        };
        let mut flights = self.lock();
        let is_new = match flights.entry(Key::whole(block, located.node)) {
            Entry::Vacant(slot) => {
                slot.insert(Flight::Fetching(Fetching::for_ram()));
                true
            }
            Entry::Occupied(mut flight) => {
                let Flight::Fetching(fetching) = flight.get_mut() else { return };
                if !fetching.go_to_ram() {
                    return;
                }
                false
            }
        };
        drop(flights);
        self.begin_fetch(located.node.file());
        if let Some(pages) = self.pages.get() {
            pages.expect(&located);
        }
        if is_new {
            self.fetch(block, located, Urgency::Prefetch);
        }
    }

    /// The planner wants a copy of a block in the local store, and not in RAM. A flight that is
    /// under way leaves one there when it ends.
    pub fn load(self: &Arc<Self>, block: BlockId, tier: usize) {
        let placed = NotifyOnDrop::new(self, Event::Placed { block, tier, done: false });
        let (Some(local), Some(located)) = (&self.local, self.catalog.locate(block)) else {
            return;
        };
        let mut flights = self.lock();
        match flights.entry(Key::whole(block, located.node)) {
            Entry::Vacant(slot) => {
                slot.insert(Flight::Fetching(Fetching::for_store(placed)));
                drop(flights);
                self.fetch(block, located, Urgency::Prefetch);
            }
            Entry::Occupied(mut flight) => match flight.get_mut() {
                Flight::Fetching(fetching) => fetching.placed = Some(placed),
                Flight::Pushing(bytes) => {
                    let bytes = Arc::clone(bytes);
                    drop(flights);
                    let settled = self.catalog.is_settled(located.node);
                    let to_store = || self.memory.arrival_to_store(located.node, &bytes);
                    let arrival = settled.then(to_store);
                    local.put(block, arrival, placed);
                }
            },
        }
    }

    /// Looks `now` whether a block that will be read soon is still as it should be: its version, where
    /// the last look at the source was long ago, and its pages. What is not is set right. The
    /// kernel hears of the version last, so that its reader need not ask.
    pub fn check(self: &Arc<Self>, block: BlockId, now: Instant) {
        let Some(located) = self.catalog.locate(block) else { return };
        let look = self.checked.is_due(block, now) && self.checked.may_look(now);
        if self.catalog.is_check_due(located.node)
            && let Some(recheck) = self.recheck.get()
        {
            let cache = Arc::clone(self);
            let checked = move |_| cache.look(block, look.then_some(now));
            return recheck(located.node, Urgency::Prefetch, Box::new(checked));
        }
        if look {
            self.look(block, Some(now));
        }
    }

    /// Renews the kernel's entry of a block's file. If `pages` has a time, also looks whether the block's
    /// pages are there, and notes the look with that time.
    fn look(self: &Arc<Self>, block: BlockId, pages: Option<Instant>) {
        let Some(located) = self.catalog.locate(block) else { return };
        let Some(kernel) = self.pages.get() else { return };
        let Some(now) = pages else { return kernel.renew(located) };
        let (cache, node) = (Arc::clone(self), located.node);
        let looked = move |whole| match whole {
            Some(false) => cache.tell(node, Event::Lost { block }, None),
            // Where the kernel cannot tell, asking again soon is of no use.
            Some(true) | None => cache.checked.note(block, now),
        };
        kernel.look(located, Box::new(looked));
    }

    /// Drops a block's pages, or part of them, and tells the planner when that is done.
    pub fn drop_pages(self: &Arc<Self>, block: BlockId, part: Option<PageRange>) {
        let dropped = NotifyOnDrop::new(self, Event::Dropped { block });
        if let (Some(pages), Some(at)) = (self.pages.get(), self.locate(block, part)) {
            pages.discard(at, Box::new(move || drop(dropped)));
        }
    }

    /// Writes a block to the local store and tells the planner.
    pub fn place(self: &Arc<Self>, block: BlockId, tier: usize, arrival: Arrival) {
        match &self.local {
            Some(local) => {
                let placed = NotifyOnDrop::new(self, Event::Placed { block, tier, done: false });
                local.put(block, Some(arrival), placed);
            }
            None => self.inbox.put(Event::Placed { block, tier, done: false }, None),
        }
    }

    /// Writes what is to be written to the local store, and makes it last. Says whether the store
    /// is left then. Blocks.
    pub fn close(&self) -> bool {
        self.local.as_ref().is_none_or(Local::close)
    }

    /// Gives up a block's copy in the local store.
    pub fn displace(&self, block: BlockId) {
        if let Some(local) = &self.local {
            local.remove(block);
        }
    }
}
