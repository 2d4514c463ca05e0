//! The account of all memory for bytes on their way.
//!
//! Bytes are charged before memory is taken for them, and for as long as they are in memory: while
//! they are fetched, answered, pushed into the page cache, and while they wait for the planner or for
//! the cache disk. The charge is a part of the [`Buffer`], so that no code can forget it. Memory is used
//! again ([`memory_for`](crate::disk::memory_for)): the few megabytes that are kept for that are not charged.
//!
//! If memory is short, bytes that only wait to be stored give way first, then prefetches, then pushes.
//! A read waits in a queue, without a thread, until bytes are free. It never waits for ever:
//!
//! - A few fetches for readers are under way at any time, whatever is charged. So a read that holds
//!   one block while it waits for another one gets it, and so does one of more than all of the memory.
//!   Bytes that are pushed may stay until then: a push waits for pages that reads have locked, and the
//!   kernel holds such reads back as long as many others wait for their answers.
//! - A fetch that lasts for seconds is not counted. The kernel fills the memory of a read only when
//!   the source answers, so a source that hangs takes none.

use std::collections::{BTreeMap, VecDeque};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::catalog::NodeId;
use crate::disk::{Buffer, ticks_in};
use crate::ids::BLOCK_BYTES;
use crate::source::{Pool, Urgency};
use crate::sync::{Mutex, MutexGuard};

/// Bytes until the first look at what fits.
const CAPACITY_AT_FIRST: usize = 32 << 20;

/// Fetches for readers that are under way though nothing is free.
const DEMANDS_MIN: usize = 4;

/// Prefetches that are under way though nothing is free, unless a reader waits for memory.
const PREFETCHES_MIN: usize = 1;

/// Looks after which a fetch of a block is not counted until its bytes are there. A longer one may take as much longer.
const LASTS_LONG_AFTER: u64 = ticks_in(2);

/// An allocation of at least this many bytes goes back to the system as soon as it is freed. This is more
/// than the kernel asks for of a file that is read at random: to map so small a buffer anew for each read
/// would take time.
#[cfg(target_env = "gnu")]
const GIVEN_BACK: nix::libc::c_int = 132 << 10;

/// The flight of a fetch that no reader can join.
pub(super) const NO_FLIGHT: u64 = 0;

/// A fetch that may begin.
type Begin = Box<dyn FnOnce(Charge) + Send>;

/// A fetch that waits for memory.
struct Request {
    /// Which flights it is for: see [`Memory::promote`].
    flights: RangeInclusive<u64>,
    bytes: usize,
    begin: Begin,
}

/// A fetch under way.
struct Fetch {
    urgency: Urgency,
    bytes: usize,
    /// The number of looks when it began.
    since: u64,
}

#[derive(Default)]
struct Account {
    /// Bytes that may be charged.
    capacity: usize,
    /// Bytes that are charged, without those of fetches that last for long.
    used: usize,
    /// Bytes that only wait to be stored or rehearsed, a part of `used`.
    waiting: usize,
    looks: u64,
    begun: u64,
    /// Fetches under way that are counted, in the order in which they began.
    fetches: BTreeMap<u64, Fetch>,
    demands: VecDeque<Request>,
    prefetches: VecDeque<Request>,
}

impl Account {
    /// Whether fewer than `few` fetches of this urgency are under way.
    fn are_few(&self, urgency: Urgency, few: usize) -> bool {
        let same = self.fetches.values().filter(|fetch| fetch.urgency == urgency);
        same.take(few).count() < few
    }

    /// Whether a fetch of `bytes` may begin now.
    fn admits(&self, urgency: Urgency, bytes: usize) -> bool {
        let (most, few) = match urgency {
            Urgency::Demand => (self.capacity, DEMANDS_MIN),
            Urgency::Prefetch => (self.capacity / 4 * 3, PREFETCHES_MIN),
        };
        self.used.saturating_add(bytes) <= most || self.are_few(urgency, few)
    }

    fn begin(&mut self, urgency: Urgency, bytes: usize) -> u64 {
        let (number, since) = (self.begun, self.looks);
        self.begun += 1;
        self.used += bytes;
        self.fetches.insert(number, Fetch { urgency, bytes, since });
        number
    }

    fn queue(&mut self, urgency: Urgency) -> &mut VecDeque<Request> {
        match urgency {
            Urgency::Demand => &mut self.demands,
            Urgency::Prefetch => &mut self.prefetches,
        }
    }

    /// Takes the next request, if it may begin: no prefetch as long as a reader waits.
    fn take_next(&mut self) -> Option<(Request, Urgency)> {
        let is_read = !self.demands.is_empty();
        let urgency = if is_read { Urgency::Demand } else { Urgency::Prefetch };
        let bytes = self.queue(urgency).front()?.bytes;
        if !self.admits(urgency, bytes) {
            return None;
        }
        self.queue(urgency).pop_front().map(|request| (request, urgency))
    }
}

struct Shared {
    state: Mutex<Account>,
    /// Begins fetches that have waited: a thread that lets go of bytes must not.
    thread: Pool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Account> {
        self.state.lock()
    }

    /// Changes the account, and has the fetches begin that may begin then.
    fn change(self: &Arc<Self>, change: impl FnOnce(&mut Account)) {
        let mut begun = Vec::new();
        let mut state = self.lock();
        change(&mut state);
        while let Some((Request { bytes, begin, .. }, urgency)) = state.take_next() {
            begun.push((begin, state.begin(urgency, bytes), bytes));
        }
        drop(state);
        for (begin, number, bytes) in begun {
            let charge = Charge::new(self, number, bytes);
            self.thread.submit(Urgency::Demand, move || begin(charge));
        }
    }
}

/// Memory that is charged, until this is dropped.
pub struct Charge {
    memory: Arc<Shared>,
    number: u64,
    bytes: usize,
    is_fetched: AtomicBool,
}

impl Charge {
    fn new(memory: &Arc<Shared>, number: u64, bytes: usize) -> Self {
        Charge { memory: Arc::clone(memory), number, bytes, is_fetched: AtomicBool::new(false) }
    }

    /// The bytes are there: the fetch is over, and is counted again if it had lasted for long.
    pub(super) fn fetched(self) -> Self {
        self.note_fetched();
        self
    }

    /// As [`fetched`](Charge::fetched). If only some of the bytes are there, all of them count as fetched.
    pub(super) fn note_fetched(&self) {
        if self.is_fetched.swap(true, Ordering::Relaxed) {
            return;
        }
        let (number, bytes) = (self.number, self.bytes);
        self.memory.change(|state| {
            if state.fetches.remove(&number).is_none() {
                state.used += bytes;
            }
        });
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        let (number, bytes) = (self.number, self.bytes);
        let is_fetched = self.is_fetched.load(Ordering::Relaxed);
        self.memory.change(|state| {
            if is_fetched || state.fetches.remove(&number).is_some() {
                state.used -= bytes;
            }
        });
    }
}

/// The account.
#[derive(Clone)]
pub struct Memory(Arc<Shared>);

impl Default for Memory {
    fn default() -> Self {
        let state = Account { capacity: CAPACITY_AT_FIRST, ..Account::default() };
        let thread = Pool::new("belady-memory", 0, 1);
        Memory(Arc::new(Shared { state: Mutex::new(state), thread }))
    }
}

impl Memory {
    /// Has this process give freed memory back. By itself the allocator keeps several times as much as is
    /// ever in use, for the next block of each thread.
    pub(super) fn keep_nothing_back() {
        #[cfg(target_env = "gnu")]
        // SAFETY: it only sets how the allocator gets memory from now on.
        let _ = unsafe { nix::libc::mallopt(nix::libc::M_MMAP_THRESHOLD, GIVEN_BACK) };
    }

    /// Sets how many bytes may be charged.
    pub fn resize(&self, capacity: usize) {
        self.0.change(|state| state.capacity = capacity);
    }

    /// Bytes that are charged, without those of fetches that last for long.
    pub fn used(&self) -> usize {
        self.0.lock().used
    }

    /// Bytes that may be charged.
    pub fn capacity(&self) -> usize {
        self.0.lock().capacity
    }

    /// Whether far more is charged than fits. Then bytes that can be fetched again are not kept.
    pub(super) fn is_short(&self) -> bool {
        let state = self.0.lock();
        state.used > state.capacity / 4 * 5
    }

    /// Has a fetch of `bytes` begin: at once if they are free, else by another thread as soon
    /// as they are. Says whether it has begun. Never blocks.
    pub(super) fn admit(
        &self,
        flights: RangeInclusive<u64>,
        urgency: Urgency,
        bytes: usize,
        begin: impl FnOnce(Charge) + Send + 'static,
    ) -> bool {
        let mut state = self.0.lock();
        let is_first = state.demands.is_empty() && state.queue(urgency).is_empty();
        if is_first && state.admits(urgency, bytes) {
            let number = state.begin(urgency, bytes);
            drop(state);
            begin(Charge::new(&self.0, number, bytes));
            return true;
        }
        let request = Request { flights, bytes, begin: Box::new(begin) };
        state.queue(urgency).push_back(request);
        false
    }

    /// A reader waits for a flight: its fetches that still wait for memory go before all prefetches.
    pub(super) fn promote(&self, flight: u64) {
        self.0.change(|state| {
            let all = std::mem::take(&mut state.prefetches).into_iter();
            let (wanted, others): (VecDeque<_>, VecDeque<_>) =
                all.partition(|request| request.flights.contains(&flight));
            state.prefetches = others;
            state.demands.extend(wanted);
        });
    }

    /// Whether no fetch is under way or waits, so that there is nothing to [look](Self::look) at.
    pub(super) fn rests(&self) -> bool {
        let state = self.0.lock();
        state.fetches.is_empty() && state.demands.is_empty() && state.prefetches.is_empty()
    }

    /// Stops counting fetches that last for long. To be called each
    /// [`TICK`](crate::disk::TICK).
    pub fn look(&self) {
        self.0.change(|state| {
            state.looks += 1;
            let Account { looks, used, fetches, .. } = state;
            fetches.retain(|_, fetch| {
                let blocks = fetch.bytes.div_ceil(BLOCK_BYTES as usize).max(1) as u64;
                let lasts_long = *looks - fetch.since > LASTS_LONG_AFTER * blocks;
                *used -= if lasts_long { fetch.bytes } else { 0 };
                !lasts_long
            });
        });
    }

    /// Bytes that have arrived and may be stored. None if half of the memory waits for that already.
    pub(super) fn arrival(&self, node: NodeId, bytes: &Arc<Buffer>) -> Option<Arrival> {
        let state = self.0.lock();
        if state.waiting + bytes.len() > state.capacity / 2 {
            return None;
        }
        Some(self.wait(state, node, bytes))
    }

    /// Bytes that were fetched in order to be stored. They are never refused: further fetches wait until
    /// the disk has taken them.
    pub(super) fn arrival_to_store(&self, node: NodeId, bytes: &Arc<Buffer>) -> Arrival {
        self.wait(self.0.lock(), node, bytes)
    }

    fn wait(
        &self,
        mut state: MutexGuard<'_, Account>,
        node: NodeId,
        bytes: &Arc<Buffer>,
    ) -> Arrival {
        state.waiting += bytes.len();
        drop(state);
        let waits = Waits { memory: Arc::clone(&self.0), bytes: bytes.len() };
        Arrival { node, bytes: Arc::clone(bytes), _waits: Arc::new(waits) }
    }
}

/// Bytes that wait to be stored or rehearsed, until this is dropped.
struct Waits {
    memory: Arc<Shared>,
    bytes: usize,
}

impl Drop for Waits {
    fn drop(&mut self) {
        self.memory.lock().waiting -= self.bytes;
    }
}

/// The bytes of a block that has arrived, and the version of its file that they are.
#[derive(Clone)]
pub struct Arrival {
    pub node: NodeId,
    /// The block's bytes.
    pub bytes: Arc<Buffer>,
    _waits: Arc<Waits>,
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, channel};
    use std::time::Duration;

    use super::*;

    const MIB: usize = 1 << 20;
    const LIMIT: Duration = Duration::from_secs(180);

    fn memory(capacity: usize) -> Memory {
        let memory = Memory::default();
        memory.resize(capacity);
        memory
    }

    /// Asks for memory, which comes by the channel.
    fn ask(memory: &Memory, urgency: Urgency, bytes: usize) -> Receiver<Charge> {
        ask_for(memory, 0, urgency, bytes)
    }

    fn ask_for(memory: &Memory, flight: u64, urgency: Urgency, bytes: usize) -> Receiver<Charge> {
        let (begin, begun) = channel();
        memory.admit(flight..=flight, urgency, bytes, move |charge| begin.send(charge).unwrap());
        begun
    }

    #[test]
    fn reads_wait_in_turn_and_begin_as_bytes_are_let_go_of() {
        let memory = memory(8 * MIB);
        let bring = |asked: &Receiver<Charge>| asked.recv_timeout(LIMIT).unwrap().fetched();
        let held: Vec<Charge> =
            (0..8).map(|_| bring(&ask(&memory, Urgency::Demand, MIB))).collect();
        assert_eq!(memory.used(), 8 * MIB);
        // Nothing is free. A few go on all the same.
        let few: Vec<_> = (0..DEMANDS_MIN).map(|_| ask(&memory, Urgency::Demand, MIB)).collect();
        let few: Vec<Charge> = few.iter().map(|asked| asked.try_recv().unwrap()).collect();
        let (next, last) = (ask(&memory, Urgency::Demand, MIB), ask(&memory, Urgency::Demand, MIB));
        assert!(next.try_recv().is_err() && memory.is_short());
        drop(few);
        let next = bring(&next);
        let last = bring(&last);
        assert_eq!(memory.used(), 10 * MIB);
        drop((held, next, last));
        assert_eq!(memory.used(), 0);
        // A fetch that is larger than all of it proceeds alone.
        assert!(ask(&memory, Urgency::Demand, 100 * MIB).try_recv().is_ok());
        assert!(ask(&memory, Urgency::Prefetch, 100 * MIB).try_recv().is_ok());
        assert_eq!(memory.used(), 0);
    }

    #[test]
    fn prefetches_give_way_to_reads_unless_a_reader_waits_for_them() {
        let memory = memory(8 * MIB);
        let ahead: Vec<_> = (0..8).map(|at| ask_for(&memory, at, Urgency::Prefetch, MIB)).collect();
        let begun = |asked: &[Receiver<Charge>]| -> Vec<Option<Charge>> {
            asked.iter().map(|asked| asked.try_recv().ok()).collect()
        };
        let first = begun(&ahead);
        assert_eq!(first.iter().flatten().count(), 6, "a quarter is left to reads");
        let reads: Vec<_> = (0..9).map(|_| ask(&memory, Urgency::Demand, MIB)).collect();
        let read = begun(&reads);
        assert_eq!(read.iter().flatten().count(), DEMANDS_MIN);
        // Room for one, and a reader comes to wait for the last prefetch.
        memory.promote(7);
        drop(first);
        let rest: Vec<Charge> =
            reads[4..8].iter().map(|asked| asked.recv_timeout(LIMIT).unwrap()).collect();
        assert_eq!(memory.used(), 8 * MIB);
        assert!(begun(&reads[8..]).iter().chain(&begun(&ahead[6..])).all(Option::is_none));
        drop((read, rest));
        let late = [&reads[8], &ahead[7], &ahead[6]];
        late.iter().for_each(|asked| drop(asked.recv_timeout(LIMIT).unwrap()));
    }

    #[test]
    fn fetches_that_hang_hold_up_nobody_and_count_again_when_they_end() {
        let memory = memory(8 * MIB);
        let hung: Vec<_> = (0..8).map(|_| ask(&memory, Urgency::Demand, MIB)).collect();
        let hung: Vec<Charge> = hung.iter().map(|asked| asked.try_recv().unwrap()).collect();
        let waits = ask(&memory, Urgency::Demand, MIB);
        (0..LASTS_LONG_AFTER).for_each(|_| memory.look());
        assert!(waits.try_recv().is_err());
        memory.look();
        let next = waits.recv_timeout(LIMIT).unwrap();
        assert_eq!(memory.used(), MIB);
        let ended: Vec<Charge> = hung.into_iter().map(Charge::fetched).collect();
        assert_eq!(memory.used(), 9 * MIB);
        drop((ended, next));
        assert_eq!(memory.used(), 0);
        // One that ends without bytes.
        let hung = ask(&memory, Urgency::Demand, MIB).try_recv().unwrap();
        (0..=LASTS_LONG_AFTER).for_each(|_| memory.look());
        drop(hung);
        assert_eq!(memory.used(), 0);
    }

    #[test]
    fn what_waits_for_the_disk_is_bounded_and_counted_until_the_last_copy_is_gone() {
        let memory = memory(8 * MIB);
        let bytes = Arc::new(Buffer::from(vec![0; MIB]));
        let arrive = || memory.arrival(NodeId(1), &bytes);
        let waiting: Vec<Arrival> = (0..4).map_while(|_| arrive()).collect();
        assert_eq!(waiting.len(), 4);
        assert!(arrive().is_none());
        let copy = waiting[0].clone();
        drop(waiting);
        let waiting: Vec<Arrival> = (0..4).map_while(|_| arrive()).collect();
        assert_eq!(waiting.len(), 3, "a copy still waits");
        drop((copy, waiting));
        assert_eq!(memory.0.lock().waiting, 0);
    }
}
