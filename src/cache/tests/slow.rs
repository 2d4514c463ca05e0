//! A cache disk that answers late or not at all: readers get their bytes from the source.

use std::sync::Mutex;
use std::sync::mpsc::TryRecvError;

use super::*;
use crate::disk::DiskState;
use crate::disk::HANGS_AFTER;
use crate::disk::tests::gated::{Gated, Gates};
use crate::source::ReadError;

/// Looks after which a reader has waited for the disk for too long, and after which it hangs.
const PATIENCE: u64 = 5;
const LATE: u64 = PATIENCE + 1;
const FOR_EVER: u64 = HANGS_AFTER + 1;

/// A source that counts its reads, and refuses them while it is told to.
#[derive(Clone, Default)]
struct Counted(Arc<(AtomicU64, Mutex<Option<Errno>>)>);

impl Counted {
    fn reads(&self) -> u64 {
        self.0.0.load(Ordering::Relaxed)
    }

    fn refuse(&self, errno: Option<Errno>) {
        *self.0.1.lock().unwrap() = errno;
    }
}

/// A block that is stored on a disk with gates, and its source.
fn stored() -> (Stand, Gates, Counted) {
    let (gates, counted) = (Gates::default(), Counted::default());
    let (disk_gates, source) = (gates.clone(), counted.clone());
    let read = move |request: ReadRequest| {
        source.0.0.fetch_add(1, Ordering::Relaxed);
        let refused = *source.0.1.lock().unwrap();
        let bytes = refused.map_or(Ok(b"bytes".to_vec()), |errno| Err(ReadError::Source(errno)));
        (request.deliver)(bytes);
    };
    let stand = stand_on(
        |directory| Arc::new(StubSource::new(directory, read)),
        |disk| Arc::new(Gated(disk, disk_gates)),
        None,
    );
    stand.cache.load(BLOCK, TIER);
    stand.hears(is_placed);
    assert_eq!(counted.reads(), 1);
    (stand, gates, counted)
}

impl Stand {
    fn look(&self, times: u64) {
        (0..times).for_each(|_| self.cache.rescue(PATIENCE));
    }

    /// Waits until nothing is under way any more.
    fn rests(&self) {
        wait_until(|| self.cache.flights.is_empty(), "a flight never ends");
    }

    /// Waits until the disk is used again.
    fn settles(&self) {
        let is_normal = || self.cache.disk_state() == Some(DiskState::Normal);
        wait_until(is_normal, "it is never used again");
    }

    /// Reads the block when nothing is under way any more.
    fn read_again(&self) -> Receiver<Result<Vec<u8>, ReadFailure>> {
        self.rests();
        self.read()
    }
}

#[test]
fn a_reader_waits_for_the_cache_disk_for_a_while_and_then_for_the_source_too() {
    let (stand, Gates { reads: gate, .. }, source) = stored();
    gate.shut(true);
    let reader = stand.read_again();
    gate.await_calls(1);
    stand.look(LATE - 1);
    assert_eq!((reader.try_recv(), source.reads()), (Err(TryRecvError::Empty), 1));
    stand.look(1);
    assert_eq!(reader.recv_timeout(LIMIT).unwrap(), Ok(b"bytes".to_vec()));
    assert_eq!((source.reads(), stand.cache.disk_state()), (2, Some(DiskState::Normal)));
    // The disk's answer comes too late, and is no error of anything.
    gate.shut(false);
    gate.await_calls(0);
    assert_eq!(stand.read_again().recv_timeout(LIMIT).unwrap(), Ok(b"bytes".to_vec()));
    assert_eq!(source.reads(), 2, "the store is asked again");
    assert_eq!(stand.cache.traffic().store_errors.load(Ordering::Relaxed), 0);
}

#[test]
fn a_reader_is_told_why_it_waits() {
    let (stand, Gates { reads: gate, .. }, _source) = stored();
    let (asked, _looks) = channel();
    let pages = FullPages { asked, lock: Arc::default() };
    stand
        .cache
        .page_cache()
        .connect(Arc::new(pages), Box::new(|_, _, rechecked| rechecked(Ok(()))));
    let cause = |stand: &Stand| stand.cause().recv_timeout(LIMIT).unwrap();
    gate.shut(true);
    stand.rests();
    stand.cache.prefetch(BLOCK, None);
    gate.await_calls(1);
    let joined = stand.cause();
    gate.shut(false);
    assert_eq!(joined.recv_timeout(LIMIT).unwrap(), Cause::Late);
    stand.rests();
    assert_eq!(cause(&stand), Cause::Lost, "belady has not dropped it");
    stand.rests();
    stand.cache.page_cache().drop_pages(BLOCK, None);
    assert_eq!(cause(&stand), Cause::Cold);
    stand.rests();
    gate.shut(true);
    let reader = stand.cause();
    gate.await_calls(1);
    stand.look(LATE);
    assert_eq!(reader.recv_timeout(LIMIT).unwrap(), Cause::Disk);
    gate.shut(false);
}

#[test]
fn a_prefetch_waits_until_the_disk_hangs_unless_a_reader_joins_it() {
    let (stand, Gates { reads: gate, .. }, source) = stored();
    gate.shut(true);
    stand.cache.prefetch(BLOCK, None);
    gate.await_calls(1);
    stand.look(LATE);
    assert_eq!(source.reads(), 1);
    let reader = stand.read();
    stand.look(LATE);
    assert_eq!(reader.recv_timeout(LIMIT).unwrap(), Ok(b"bytes".to_vec()));
    stand.rests();
    stand.cache.prefetch(BLOCK, None);
    gate.await_calls(2);
    stand.look(LATE);
    assert_eq!(source.reads(), 2);
    stand.look(FOR_EVER);
    assert_eq!(source.reads(), 3);
    gate.shut(false);
}

#[test]
fn a_disk_that_hangs_is_left_alone_until_it_answers() {
    let (stand, Gates { reads: gate, .. }, source) = stored();
    gate.shut(true);
    let reader = stand.read_again();
    gate.await_calls(1);
    let taken = whole(&stand.cache, stand.node);
    gate.await_calls(2);
    stand.look(FOR_EVER);
    assert_eq!(reader.recv_timeout(LIMIT).unwrap(), Ok(b"bytes".to_vec()));
    assert_eq!(taken.recv_timeout(LIMIT).unwrap(), Some(b"bytes".to_vec()));
    assert_eq!(stand.cache.disk_state(), Some(DiskState::Hanging));
    for reads in 4..7 {
        assert_eq!(stand.read_again().recv_timeout(LIMIT).unwrap(), Ok(b"bytes".to_vec()));
        assert_eq!(source.reads(), reads);
    }
    gate.await_calls(2);
    gate.shut(false);
    gate.await_calls(0);
    stand.settles();
    assert_eq!(stand.read_again().recv_timeout(LIMIT).unwrap(), Ok(b"bytes".to_vec()));
    assert_eq!(source.reads(), 6);
}

#[test]
fn what_the_source_refuses_the_slow_disk_may_still_have() {
    let (stand, Gates { reads: gate, .. }, source) = stored();
    source.refuse(Some(Errno::ETIMEDOUT));
    gate.shut(true);
    let reader = stand.read_again();
    gate.await_calls(1);
    stand.look(LATE);
    assert_eq!((reader.try_recv(), source.reads()), (Err(TryRecvError::Empty), 2));
    gate.shut(false);
    assert_eq!(reader.recv_timeout(LIMIT).unwrap(), Ok(b"bytes".to_vec()));
    // A disk that hangs is not waited for any more.
    gate.await_calls(0);
    gate.shut(true);
    let reader = stand.read_again();
    gate.await_calls(1);
    stand.look(LATE);
    stand.look(FOR_EVER);
    assert_eq!(reader.recv_timeout(LIMIT).unwrap(), Err(ReadFailure::Errno(Errno::ETIMEDOUT)));
    gate.shut(false);
}

#[test]
fn a_disk_that_gets_on_does_not_hang_and_one_that_hangs_is_given_nothing() {
    const STORED_NO_MORE: Option<DiskState> = Some(DiskState::NotStoring);
    let (stand, Gates { writes: gate, .. }, _) = stored();
    gate.shut(true);
    stand.cache.displace(BLOCK);
    gate.await_calls(1);
    stand.cache.load(BLOCK, TIER);
    stand.look(HANGS_AFTER);
    gate.let_one_pass();
    stand.look(HANGS_AFTER);
    assert_eq!(stand.cache.disk_state(), Some(DiskState::Normal), "it is slow, no more");
    stand.look(1);
    assert_eq!(stand.cache.disk_state(), STORED_NO_MORE);
    stand.hears(is_not_placed);
    stand.cache.load(BLOCK, TIER);
    stand.hears(is_not_placed);
    gate.shut(false);
    stand.settles();
    stand.cache.load(BLOCK, TIER);
    stand.hears(is_placed);
    gate.shut(true);
    stand.cache.displace(BLOCK);
    gate.await_calls(1);
    stand.look(FOR_EVER);
    assert_eq!((stand.cache.disk_state(), stand.cache.close()), (STORED_NO_MORE, false));
    gate.shut(false);
}

/// A thread that looks seldom while nothing goes on is woken by a call that may come to hang.
#[test]
fn a_call_of_the_disk_wakes_who_rests() {
    let (stand, Gates { reads: gate, .. }, _) = stored();
    let (send, woken) = channel();
    stand.cache.alarm().wake_by(move || send.send(()).unwrap());
    let rests = || wait_until(|| stand.cache.rest(), "the disk is always at something");
    rests();
    gate.shut(true);
    let reader = stand.read_again();
    woken.recv_timeout(LIMIT).unwrap();
    gate.await_calls(1);
    assert!(!stand.cache.rest(), "a call is under way");
    gate.shut(false);
    assert_eq!(reader.recv_timeout(LIMIT).unwrap(), Ok(b"bytes".to_vec()));
    rests();
}
