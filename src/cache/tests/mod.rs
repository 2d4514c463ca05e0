//! Panics in the source, the page cache and the store: no reader waits for ever, and the planner hears of it.

mod hedge;
mod runs;
mod scarce;
mod sharing;
mod slow;

use std::ffi::OsStr;
use std::path::Path;
use std::sync::RwLock;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use rand::SeedableRng;
use rand::rngs::ChaCha8Rng;

use super::page_cache::PUSH_THREADS;
use super::store_tier::SYNC_LOOKS;
use super::*;
use crate::catalog::{Located, TICK};
use crate::disk::tests::model::Model;
use crate::disk::{self, Buffer};
use crate::ids::BLOCK_BYTES;
use crate::source::stub::StubSource;
use crate::source::{Pool, PosixSource, ReadError, ReadRequest, Source};
use crate::store;
use crate::sync::Mutex;

/// Only a broken program takes as long.
const LIMIT: Duration = Duration::from_secs(300);

/// Reads that panic in a thread of a pool.
fn panicking(directory: PosixSource) -> Arc<dyn Source> {
    let pool = Pool::new("test-source", 1, 0);
    let read = move |request: ReadRequest| {
        pool.submit(Urgency::Demand, move || panic!("injected into a read at {}", request.offset));
    };
    Arc::new(StubSource::new(directory, read))
}

/// Page cache whose calls panic.
struct PanickingPages;

impl Pages for PanickingPages {
    fn expect(&self, _: &Located) {}

    fn store(&self, _: &Located, _: &[u8]) -> Result<(), Errno> {
        panic!("injected into a push")
    }

    fn discard(&self, _: Located, done: Box<dyn FnOnce() + Send>) {
        let drop_pages = move || {
            let _done = done;
            panic!("injected into a drop")
        };
        std::thread::spawn(drop_pages);
    }

    fn expire(&self, _: NodeId, _: NodeId, _: &OsStr) {}

    fn check(&self, _: Located, reply: CheckReply) {
        reply(None);
    }

    fn renew(&self, _: Located) {}

    fn read(&self, _: &Located) -> Result<Vec<u8>, Errno> {
        panic!("injected into a look at pages")
    }
}

/// Page cache that has everything, and tells what it is asked. It takes nothing as long as a test holds the
/// lock.
struct FullPages {
    asked: Sender<&'static str>,
    lock: Arc<RwLock<()>>,
}

impl Pages for FullPages {
    fn expect(&self, _: &Located) {}

    fn store(&self, _: &Located, _: &[u8]) -> Result<(), Errno> {
        let _lock = self.lock.read().unwrap();
        Ok(())
    }

    fn discard(&self, _: Located, done: Box<dyn FnOnce() + Send>) {
        done();
    }

    fn expire(&self, _: NodeId, _: NodeId, _: &OsStr) {}

    fn check(&self, _: Located, reply: CheckReply) {
        self.asked.send("look").unwrap();
        reply(Some(true));
    }

    fn renew(&self, _: Located) {
        self.asked.send("renew").unwrap();
    }

    fn read(&self, _: &Located) -> Result<Vec<u8>, Errno> {
        Err(Errno::EAGAIN)
    }
}

struct Stand {
    cache: Arc<Cache>,
    inbox: Arc<Inbox>,
    node: NodeId,
    directory: tempfile::TempDir,
    stored: tempfile::TempDir,
}

/// Waits until something is so, which it is not only in a broken program.
fn wait_until(is_so: impl Fn() -> bool, complaint: &str) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < LIMIT, "{complaint}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Reads all of the file.
fn whole(cache: &Arc<Cache>, node: NodeId) -> Receiver<Option<Vec<u8>>> {
    let (send, taken) = channel();
    let take = move |bytes: Option<Buffer>| send.send(bytes.map(|bytes| bytes.to_vec())).unwrap();
    read_whole(cache, node, Box::new(take));
    taken
}

const BLOCK: BlockId = BlockId(0);

/// All pages of a block.
const ALL: PageRange = PageRange { first: 0, count: 256 };

/// The number of the store's tier.
const TIER: usize = 1;

fn stand(source: impl FnOnce(PosixSource) -> Arc<dyn Source>) -> Stand {
    stand_on(source, |disk| Arc::new(disk), None)
}

fn stand_on(
    source: impl FnOnce(PosixSource) -> Arc<dyn Source>,
    disk: impl FnOnce(disk::Directory) -> Arc<dyn disk::Disk>,
    period: Option<Duration>,
) -> Stand {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("file"), b"bytes").unwrap();
    stand_over(directory, source, disk, period)
}

fn stand_over(
    directory: tempfile::TempDir,
    source: impl FnOnce(PosixSource) -> Arc<dyn Source>,
    disk: impl FnOnce(disk::Directory) -> Arc<dyn disk::Disk>,
    period: Option<Duration>,
) -> Stand {
    let stored = tempfile::tempdir().unwrap();
    let source = source(PosixSource::open(directory.path(), 4).unwrap());
    let catalog = Catalog::scan(Arc::clone(&source), 1, period).unwrap();
    let inbox = Arc::new(Inbox::new(8));
    let disk = disk(disk::Directory::open(stored.path(), false).unwrap());
    let store = Store::open(disk, store::Limits::new(1 << 20, 0), 1).unwrap();
    let store = Some((TIER, Arc::new(store)));
    let cache = Cache::new(source, Arc::new(catalog), Arc::clone(&inbox), store);
    let node = cache.catalog.locate(BLOCK).unwrap().node;
    Stand { cache, inbox, node, directory, stored }
}

impl Stand {
    fn read(&self) -> Receiver<Result<Vec<u8>, ReadFailure>> {
        self.read_block(BLOCK, self.node)
    }

    fn read_block(&self, block: BlockId, node: NodeId) -> Receiver<Result<Vec<u8>, ReadFailure>> {
        let (answer, answered) = channel();
        let waiter = move |result: Result<Landed, ReadFailure>| {
            answer.send(result.map(|bytes| bytes.to_vec())).unwrap();
        };
        self.cache.read(block, ALL, node, 1, Box::new(waiter));
        answered
    }

    /// Reads the block, and tells why its reader has waited.
    fn cause(&self) -> Receiver<Cause> {
        let (answer, answered) = channel();
        let waiter = move |result: Result<Landed, ReadFailure>| {
            answer.send(result.unwrap().cause()).unwrap();
        };
        self.cache.read(BLOCK, ALL, self.node, 1, Box::new(waiter));
        answered
    }

    /// Waits until the planner hears of such an event.
    fn hears(&self, wanted: fn(&Event) -> bool) {
        self.hears_all(&[wanted]);
    }

    /// Waits until the planner hears of all of such events.
    fn hears_all(&self, wanted: &[fn(&Event) -> bool]) {
        let mut messages: Vec<Message> = Vec::new();
        let start = Instant::now();
        let heard = |messages: &[Message], wanted: &fn(&Event) -> bool| {
            messages.iter().any(|message| wanted(&message.event))
        };
        while !wanted.iter().all(|wanted| heard(&messages, wanted)) {
            assert!(start.elapsed() < LIMIT, "the planner never hears of it");
            self.inbox.take(&mut messages, &mut Vec::new(), Duration::from_millis(50));
        }
    }
}

/// A file of which the catalog has a guess of the size.
fn guessing(bytes: Vec<u8>) -> Stand {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("file"), &bytes).unwrap();
    let read = move |request: ReadRequest| {
        assert!(!request.is_sized, "all is asked for once");
        (request.deliver)(Ok(bytes.clone()));
    };
    let source =
        |directory| -> Arc<dyn Source> { Arc::new(StubSource::guessing(directory, 100, read)) };
    stand_over(directory, source, |disk| Arc::new(disk), None)
}

#[test]
fn a_block_of_a_file_whose_size_was_guessed_is_as_long_as_the_file() {
    let bytes = vec![7; 200_000];
    for prefetches in [false, true] {
        let stand = guessing(bytes.clone());
        if prefetches {
            stand.cache.prefetch(BLOCK, None);
        } else {
            assert_eq!(stand.read().recv_timeout(LIMIT).unwrap(), Ok(bytes.clone()));
        }
        wait_until(|| stand.cache.flights.is_empty(), "the flight never ends");
        let located = stand.cache.catalog.locate(BLOCK).unwrap();
        assert_eq!((located.length, located.node), (bytes.len(), stand.node));
    }
}

#[test]
fn readers_of_a_block_that_a_file_does_not_have_look_again() {
    for size in [0, BLOCK_BYTES as usize + 1] {
        let stand = guessing(vec![7; size]);
        assert_eq!(stand.read().recv_timeout(LIMIT).unwrap(), Err(ReadFailure::PastVersion));
        let mut messages = Vec::new();
        stand.inbox.take(&mut messages, &mut Vec::new(), Duration::from_millis(50));
        let events: Vec<Event> = messages.into_iter().map(|message| message.event).collect();
        let changed =
            |event: &Event| matches!(event, Event::Changed { files, .. } if files.len() == 1);
        assert!(events.iter().any(changed), "{events:?}");
        assert!(!events.iter().any(|event| matches!(event, Event::Failed { .. })), "{events:?}");
        assert_eq!(stand.cache.catalog.served(stand.node).unwrap().size, size as u64);
    }
}

#[test]
fn a_panic_in_a_read_is_an_error_to_its_readers_and_no_more() {
    let stand = stand(panicking);
    // More often than there are threads: they outlive it.
    for _ in 0..3 {
        let readers = [stand.read(), stand.read()];
        for reader in readers {
            assert_eq!(reader.recv_timeout(LIMIT).unwrap(), Err(ReadFailure::Errno(Errno::EIO)));
        }
        stand.hears(|event| matches!(event, Event::Failed { block: BLOCK }));
    }
    stand.cache.prefetch(BLOCK, None);
    stand.hears(|event| matches!(event, Event::Failed { block: BLOCK }));
    assert!(stand.cache.flights.is_empty(), "no flight is left");
}

#[test]
fn a_panic_on_the_reader_s_own_thread_answers_it_too() {
    let read = |request: ReadRequest| panic!("injected into a read at {}", request.offset);
    let stand = stand(|directory| Arc::new(StubSource::new(directory, read)));
    let (answer, answered) = channel();
    let waiter = move |result: Result<Landed, ReadFailure>| answer.send(result.is_err()).unwrap();
    let (cache, node) = (Arc::clone(&stand.cache), stand.node);
    let reader = std::thread::spawn(move || cache.read(BLOCK, ALL, node, 1, Box::new(waiter)));
    assert_eq!(answered.recv_timeout(LIMIT), Ok(true));
    assert!(reader.join().is_err());
    assert!(stand.cache.flights.is_empty(), "no flight is left");
}

#[test]
fn a_panic_in_a_push_or_a_drop_leaves_nothing_under_way() {
    let stand = stand(|directory| Arc::new(directory));
    stand.cache.page_cache().connect(Arc::new(PanickingPages), Box::new(|_, _, _| {}));
    // More often than there are threads that push.
    for _ in 0..2 * PUSH_THREADS {
        assert_eq!(stand.read().recv_timeout(LIMIT).unwrap(), Ok(b"bytes".to_vec()));
        stand.hears(|event| matches!(event, Event::Failed { block: BLOCK }));
        assert!(stand.cache.flights.is_empty(), "no flight is left");
        stand.cache.page_cache().drop_pages(BLOCK, None);
        stand.hears(|event| matches!(event, Event::Dropped { block: BLOCK }));
    }
}

fn is_placed(event: &Event) -> bool {
    matches!(event, Event::Placed { block: BLOCK, tier: TIER, done: true })
}

fn is_not_placed(event: &Event) -> bool {
    matches!(event, Event::Placed { block: BLOCK, tier: TIER, done: false })
}

#[test]
fn what_is_loaded_is_stored_and_not_pushed() {
    let stand = stand(|directory| Arc::new(directory));
    stand.cache.page_cache().connect(Arc::new(PanickingPages), Box::new(|_, _, _| {}));
    stand.cache.load(BLOCK, TIER);
    stand.hears(is_placed);
    assert!(stand.cache.flights.is_empty(), "no flight is left");
    // The file is gone at the source, and is stored.
    std::fs::remove_file(stand.directory.path().join("file")).unwrap();
    assert_eq!(stand.read().recv_timeout(LIMIT).unwrap(), Ok(b"bytes".to_vec()));
    assert!(stand.stored.path().read_dir().unwrap().count() >= 2, "index and segment");
}

#[test]
fn a_damaged_sample_that_is_wanted_whole_is_not_there_any_more() {
    let stand = stand(|directory| Arc::new(directory));
    stand.cache.load(BLOCK, TIER);
    stand.hears(is_placed);
    for entry in stand.stored.path().read_dir().unwrap().flatten() {
        if entry.file_name().to_string_lossy().starts_with("segment-") {
            std::fs::write(entry.path(), [0x5a; 4096]).unwrap();
        }
    }
    let taken = whole(&stand.cache, stand.node);
    assert_eq!(taken.recv_timeout(LIMIT).unwrap(), Some(b"bytes".to_vec()));
    // Twice: the block may have been stored again since it was found damaged.
    let (mut messages, start) = (Vec::new(), Instant::now());
    let not_here =
        |message: &&Message| matches!(message.event, Event::NotHere { block: BLOCK, tier: TIER });
    while messages.iter().filter(not_here).count() < 2 {
        assert!(start.elapsed() < LIMIT, "the planner does not hear of it twice");
        stand.inbox.take(&mut messages, &mut Vec::new(), Duration::from_millis(50));
    }
    assert_eq!(stand.cache.store().unwrap().totals().0, 0);
}

/// A disk that is down is tried once in a while, for all blocks of a file or for none.
#[test]
fn a_file_of_several_blocks_is_wanted_of_a_disk_that_was_down() {
    const LENGTH: usize = 1_500_000;
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("file");
    std::fs::write(&file, [7; LENGTH]).unwrap();
    let source: Arc<dyn Source> = Arc::new(PosixSource::open(directory.path(), 4).unwrap());
    let catalog = Arc::new(Catalog::scan(Arc::clone(&source), 1, None).unwrap());
    let (inbox, disk) = (Arc::new(Inbox::new(8)), Model::default());
    let store = Store::open(Arc::new(disk.clone()), store::Limits::new(4 << 20, 0), 1).unwrap();
    let cache = Cache::new(source, catalog, inbox, Some((TIER, Arc::new(store))));
    let store = cache.store().unwrap();
    for block in [0, 1].map(BlockId) {
        cache.load(block, TIER);
        wait_until(|| store.totals().0 > u64::from(block.0), "nothing is stored");
    }
    disk.fail_reads(Some(nix::libc::EIO));
    while !store.state().is_down() {
        store.keys().into_iter().for_each(|key| drop(store.get(key)));
    }
    disk.fail_reads(None);
    store.make_due();
    // Only the store has it.
    std::fs::remove_file(&file).unwrap();
    let taken = whole(&cache, cache.catalog.locate(BLOCK).unwrap().node);
    assert_eq!(taken.recv_timeout(LIMIT).unwrap().map(|bytes| bytes.len()), Some(LENGTH));
}

#[test]
fn a_load_that_panics_or_fails_is_told_of_once() {
    let stand = stand(panicking);
    for _ in 0..3 {
        stand.cache.load(BLOCK, TIER);
        stand.hears(is_not_placed);
        assert!(stand.cache.flights.is_empty(), "no flight is left");
    }
}

#[test]
fn a_load_that_a_reader_joins_goes_to_ram_too() {
    for prefetched in [false, true] {
        let reads = Arc::new(Mutex::new(Vec::new()));
        let held = Arc::clone(&reads);
        let hold = move |request| held.lock().push(request);
        let stand = stand(|directory| Arc::new(StubSource::new(directory, hold)));
        let is_fetched =
            || stand.cache.page_cache().file_flags().fetched.has(stand.node.file().unwrap());
        stand.cache.load(BLOCK, TIER);
        assert!(!is_fetched(), "the kernel will have no pages of it");
        let reader = (!prefetched).then(|| stand.read());
        if prefetched {
            stand.cache.prefetch(BLOCK, None);
        } else {
            stand.hears(|event| matches!(event, Event::Missed { block: BLOCK, .. }));
        }
        assert!(is_fetched(), "its opens are to be seen");
        let mut requests = std::mem::take(&mut *reads.lock());
        assert_eq!(requests.len(), 1, "one flight");
        (requests.pop().unwrap().deliver)(Ok(b"bytes".to_vec()));
        if let Some(reader) = reader {
            assert_eq!(reader.recv_timeout(LIMIT).unwrap(), Ok(b"bytes".to_vec()));
        }
        stand.hears_all(&[is_placed, |event| matches!(event, Event::Failed { block: BLOCK })]);
    }
}

#[test]
fn a_read_tells_of_its_version_as_of_when_it_was_asked_for() {
    let reads = Arc::new(Mutex::new(Vec::new()));
    let held = Arc::clone(&reads);
    let hold = move |request: ReadRequest| held.lock().push(request);
    let source = |directory| Arc::new(StubSource::new(directory, hold)) as Arc<dyn Source>;
    let period = Duration::from_secs(3600);
    let stand = stand_on(source, |disk| Arc::new(disk), Some(period));
    let catalog = stand.cache.catalog();
    let pass = |ticks| {
        let until = catalog.now() + ticks;
        while catalog.now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    pass(3);
    let before = catalog.getattr(stand.node).unwrap().valid;
    let asked = Instant::now();
    let reader = stand.read();
    let request = reads.lock().pop().unwrap();
    pass(3);
    (request.deliver)(Ok(b"bytes".to_vec()));
    assert_eq!(reader.recv_timeout(LIMIT).unwrap(), Ok(b"bytes".to_vec()));
    let (age, valid) = (asked.elapsed(), catalog.getattr(stand.node).unwrap().valid);
    assert!(valid + age <= period, "{valid:?} after {age:?}");
    let age = asked.elapsed();
    assert!(valid + age > before + TICK, "not seen again: {valid:?} after {age:?}");
}

#[test]
fn what_is_given_up_and_stored_is_done_together_but_in_order_for_each_block() {
    use super::jobs::{Job, take_batch};
    let stand = stand(|directory| Arc::new(directory));
    let memory = Memory::default();
    let owed = |block| {
        NotifyOnDrop::new(
            &stand.inbox,
            Event::Placed { block: BlockId(block), tier: TIER, done: false },
        )
    };
    let put = |block, length| {
        let bytes = Arc::new(Buffer::from(vec![0; length]));
        let arrival = memory.arrival(stand.node, &bytes).unwrap();
        Job::Put(BlockId(block), arrival, owed(block))
    };
    let remove = |block| Job::Remove(BlockId(block));
    let version = stand.cache.catalog.locate(BLOCK).unwrap().fingerprint;
    let most = 4 << 20;
    let mut queue = std::collections::VecDeque::from([
        remove(1),
        put(2, 10),
        remove(3),
        put(4, 10),
        // Not before the block has been stored.
        remove(2),
        put(2, 10),
        Job::Damaged(
            BlockId(2),
            stand.cache.store_tier.as_ref().unwrap().store.key(Path::new("x"), &version, 0),
            owed(2),
        ),
        put(2, 10),
        Job::Adopt(owed(0)),
        Job::Forget(Vec::new()),
        put(5, most),
        Job::Sync,
        remove(6),
        put(7, 1),
        put(8, most + 1),
    ]);
    let shown = |job: &Job| match job {
        Job::Put(block, ..) => format!("+{}", block.0),
        Job::Remove(block) => format!("-{}", block.0),
        Job::Damaged(block, ..) => format!("!{}", block.0),
        Job::Forget(_) => "forget".into(),
        Job::Adopt(_) => "adopt".into(),
        Job::Sync => "sync".into(),
    };
    let batches = std::iter::from_fn(|| {
        let batch = take_batch(&mut queue);
        (!batch.is_empty()).then(|| batch.iter().map(shown).collect::<Vec<_>>().join(" "))
    });
    let expected = ["-1 +2 -3 +4", "-2 +2", "!2 +2", "adopt", "forget +5 sync -6", "+7", "+8"];
    assert_eq!(batches.collect::<Vec<_>>(), expected);
}

#[test]
fn the_kernel_is_asked_to_believe_a_name_after_the_source_was_looked_at() {
    let period = Some(Duration::from_millis(1));
    let stand = stand_on(|directory| Arc::new(directory), |disk| Arc::new(disk), period);
    let (asked, hears) = channel();
    let (begun, under_way) = channel();
    let recheck: Recheck = Box::new(move |_, _, then| begun.send(then).unwrap());
    let pages = FullPages { asked, lock: Arc::default() };
    stand.cache.page_cache().connect(Arc::new(pages), recheck);
    std::thread::sleep(Duration::from_millis(2));
    let now = Instant::now();
    for expected in ["look", "renew"] {
        stand.cache.page_cache().check(BLOCK, now);
        let looked_at = under_way.recv_timeout(LIMIT).unwrap();
        assert!(hears.try_recv().is_err(), "while the source is asked");
        looked_at(Ok(()));
        // Pages are looked at seldom. The name is renewed with each look at the source.
        assert_eq!(hears.recv_timeout(LIMIT), Ok(expected));
    }
}

#[test]
fn what_the_store_does_not_have_the_planner_is_told_of() {
    let stand = stand(|directory| Arc::new(directory));
    assert_eq!(stand.read().recv_timeout(LIMIT).unwrap(), Ok(b"bytes".to_vec()));
    stand.hears(|event| matches!(event, Event::NotHere { block: BLOCK, tier: TIER }));
}

/// Whatever a crash of the machine then loses of bytes that were not synced.
#[test]
fn what_is_stored_lasts_after_a_few_looks() {
    let disk = Model::default();
    let under = Arc::new(disk.clone());
    let stand = stand_on(|directory| Arc::new(directory), |_| under, None);
    stand.cache.load(BLOCK, TIER);
    stand.hears(is_placed);
    let store = stand.cache.store().unwrap();
    let key = store.keys()[0];
    (1..SYNC_LOOKS).for_each(|_| stand.cache.sync_old());
    assert!(store.unsynced() > 0, "more may come");
    stand.cache.sync_old();
    wait_until(|| store.unsynced() == 0, "it is not made to last");
    let mut random = ChaCha8Rng::seed_from_u64(5);
    for _ in 0..50 {
        let left = disk.crash(disk.ops(), &mut random);
        let store = Store::open(Arc::new(left), store::Limits::new(1 << 20, 0), 1).unwrap();
        assert!(matches!(store.get(key), store::ReadOutcome::Whole(bytes) if *bytes == *b"bytes"));
    }
}
