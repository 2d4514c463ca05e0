//! A source that is asked a second time for bytes that are late.

use super::*;
use crate::config::Manners;
use crate::limiter::{Limiter, Meter};
use crate::source::ReadError;

type Held = Arc<Mutex<Vec<ReadRequest>>>;

/// A source that answers so many reads at once, and holds all others.
struct Late {
    stand: Stand,
    times: Arc<SourceTimes>,
    held: Held,
}

impl Late {
    fn after(answered: usize) -> Self {
        let (held, mut found) = (Held::default(), None);
        let requests = Arc::clone(&held);
        let left = AtomicU64::new(answered as u64);
        let read = move |request: ReadRequest| match left.load(Ordering::Relaxed) {
            0 => requests.lock().push(request),
            more => {
                left.store(more - 1, Ordering::Relaxed);
                (request.deliver)(Ok(b"bytes".to_vec()));
            }
        };
        let source = |directory| -> Arc<dyn Source> {
            let source = Arc::new(StubSource::hedged(directory, read));
            let meter = Meter::new(8, Manners::Fair);
            let metadata = [0; 2].map(|_| Limiter::of_metadata(1, Manners::Fair));
            let timed = TimedSource::new(source, &Arc::new(Inbox::new(8)), meter, metadata, None);
            found = Some(Arc::clone(timed.times()));
            Arc::new(timed)
        };
        let stand = stand(source);
        let late = Late { stand, times: found.unwrap(), held };
        for _ in 0..answered {
            assert_eq!(late.stand.read().recv_timeout(LIMIT).unwrap(), Ok(b"bytes".into()));
            // The block is pushed by then.
            late.wait_until_idle();
        }
        late
    }

    fn wait_until_idle(&self) {
        wait_until(|| self.stand.cache.flights.is_empty(), "the flight never ends");
    }

    fn held(&self) -> usize {
        self.held.lock().len()
    }

    fn ask_again_until(&self, held: usize) {
        let asks = || {
            self.stand.cache.hedge(&self.times);
            self.held() == held
        };
        wait_until(asks, "the source is not asked a second time");
    }

    /// Answers a request that is held.
    fn answer(&self, nth: usize, answer: Result<Vec<u8>, ReadError>) {
        let request = self.held.lock().remove(nth);
        (request.deliver)(answer);
    }
}

const READS: usize = 200;

#[test]
fn the_first_answer_counts() {
    for nth in [0, 1] {
        let late = Late::after(READS);
        let reader = late.stand.read();
        late.ask_again_until(2);
        late.answer(nth, Ok(b"bytes".into()));
        assert_eq!(reader.recv_timeout(LIMIT).unwrap(), Ok(b"bytes".into()));
        late.wait_until_idle();
        late.answer(0, Err(ReadError::Source(Errno::EIO)));
        assert!(late.stand.cache.flights.is_empty());
    }
}

#[test]
fn an_error_counts_if_no_answer_is_left() {
    let late = Late::after(READS);
    let reader = late.stand.read();
    late.ask_again_until(2);
    late.answer(1, Err(ReadError::Source(Errno::ENETDOWN)));
    assert!(reader.try_recv().is_err(), "the other request is under way");
    late.answer(0, Err(ReadError::Source(Errno::EIO)));
    let failed = Err(ReadFailure::Errno(Errno::EIO));
    assert_eq!(reader.recv_timeout(LIMIT).unwrap(), failed);
    assert!(late.stand.cache.flights.is_empty());
}

#[test]
fn few_are_asked_for_again_and_only_if_a_reader_waits() {
    let late = Late::after(READS);
    late.stand.cache.prefetch(BLOCK, None);
    wait_until(|| late.held() == 1, "the source is not asked");
    std::thread::sleep(Duration::from_millis(50));
    late.stand.cache.hedge(&late.times);
    assert_eq!(late.held(), 1, "nobody waits for it");
    let reader = late.stand.read();
    late.ask_again_until(2);
    late.stand.cache.hedge(&late.times);
    assert_eq!(late.held(), 2, "it is asked for twice at most");
    late.answer(0, Ok(b"bytes".into()));
    assert_eq!(reader.recv_timeout(LIMIT).unwrap(), Ok(b"bytes".into()));
}

#[test]
fn nothing_is_late_as_long_as_few_were_answered() {
    assert_eq!(Late::after(99).times.late_after(), None);
    assert!(Late::after(100).times.late_after().is_some());
}

/// Every answer counts, also while the first one waits until the file was looked at again.
#[test]
fn a_version_that_is_past_is_waited_for_no_longer() {
    let late = Late::after(READS);
    let reader = late.stand.read();
    late.ask_again_until(2);
    // There is no page cache, and so nobody who looks at the file again.
    late.answer(0, Err(ReadError::Changed));
    assert_eq!(reader.recv_timeout(LIMIT).unwrap(), Err(ReadFailure::PastVersion));
    assert!(late.stand.cache.flights.is_empty());
    late.answer(0, Ok(b"bytes".into()));
}
