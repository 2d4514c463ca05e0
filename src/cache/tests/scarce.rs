//! Memory that is scarce: reads wait for it in turn, and nothing waits for ever.

use super::*;
use crate::source::ReadError;

const FILES: u32 = 20;

/// Fetches for readers that go on at any time.
const FEW: usize = 4;

type Held = Arc<Mutex<Vec<ReadRequest>>>;

/// Files whose reads the test answers, and a cache that may hold no byte.
fn scarce() -> (Stand, Held) {
    scarce_of(FILES, b"bytes", 0)
}

/// Files of these bytes, and a cache that may hold `capacity` bytes.
fn scarce_of(files: u32, bytes: &[u8], capacity: usize) -> (Stand, Held) {
    let directory = tempfile::tempdir().unwrap();
    for at in 0..files {
        std::fs::write(directory.path().join(format!("{at:04}")), bytes).unwrap();
    }
    let held = Held::default();
    let reads = Arc::clone(&held);
    let hold = move |request| reads.lock().push(request);
    let source = |directory| -> Arc<dyn Source> { Arc::new(StubSource::new(directory, hold)) };
    let stand = stand_over(directory, source, |disk| Arc::new(disk), None);
    stand.cache.memory().resize(capacity);
    (stand, held)
}

fn block(at: u32) -> BlockId {
    BlockId(at)
}

impl Stand {
    fn read_nth(&self, at: u32) -> Receiver<Result<Vec<u8>, ReadFailure>> {
        let node = self.cache.catalog.locate(block(at)).unwrap().node;
        self.read_block(block(at), node)
    }
}

/// Waits for the read that came to the source first.
fn next(held: &Held) -> ReadRequest {
    let start = Instant::now();
    loop {
        let mut reads = held.lock();
        if !reads.is_empty() {
            return reads.remove(0);
        }
        drop(reads);
        assert!(start.elapsed() < LIMIT, "no read");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn reads_without_memory_go_on_a_few_at_a_time_and_all_are_answered() {
    let (stand, held) = scarce();
    let answers: Vec<_> = (0..FILES).map(|at| stand.read_nth(at)).collect();
    assert_eq!(held.lock().len(), FEW);
    for at in 0..FILES {
        // Errors let go of memory, too.
        let result =
            if at % 3 == 0 { Err(ReadError::Source(Errno::EIO)) } else { Ok(b"bytes".to_vec()) };
        (next(&held).deliver)(result);
    }
    let answers = answers.iter().map(|answer| answer.recv_timeout(LIMIT).unwrap());
    assert_eq!(answers.filter(Result::is_ok).count(), 13);
    wait_until(|| stand.cache.memory().used() == 0, "charged for ever");
}

#[test]
fn a_prefetch_that_waits_for_memory_goes_before_others_when_a_reader_waits_for_it() {
    let (stand, held) = scarce();
    (0..FILES).for_each(|at| stand.cache.prefetch(block(at), None));
    assert_eq!(held.lock().len(), 1);
    let answer = stand.read_nth(FILES - 1);
    let wanted = stand.cache.catalog.locate(block(FILES - 1)).unwrap().path;
    let first = next(&held);
    let request = next(&held);
    assert_eq!(request.path, wanted, "others first");
    (request.deliver)(Ok(b"bytes".to_vec()));
    assert_eq!(answer.recv_timeout(LIMIT).unwrap(), Ok(b"bytes".to_vec()));
    // All other prefetches come one after the other.
    (first.deliver)(Ok(b"bytes".to_vec()));
    for _ in 2..FILES {
        (next(&held).deliver)(Ok(b"bytes".to_vec()));
    }
}

/// Beyond the capacity are the few fetches that go on at any time and, if the kernel takes nothing, pushes of
/// a quarter of the capacity.
#[test]
fn two_thousand_readers_take_no_more_memory_than_there_is() {
    const READERS: u32 = 2000;
    const BYTES: [u8; 4096] = [7; 4096];
    const CAPACITY: usize = 64 * BYTES.len();
    for pushes in [false, true] {
        let (stand, held) = scarce_of(READERS, &BYTES, CAPACITY);
        let lock = Arc::<RwLock<()>>::default();
        let takes_nothing = lock.write().unwrap();
        if pushes {
            let pages = FullPages { asked: channel().0, lock: Arc::clone(&lock) };
            stand.cache.page_cache().connect(Arc::new(pages), Box::new(|_, _, _| ()));
        }
        let most = CAPACITY + FEW * BYTES.len() + if pushes { CAPACITY / 4 } else { 0 };
        let memory = stand.cache.memory();
        let answers: Vec<_> = (0..READERS).map(|at| stand.read_nth(at)).collect();
        assert_eq!(held.lock().len(), CAPACITY / BYTES.len(), "what fits is asked for");
        for at in 0..READERS {
            // A thread may still hold a block that it has answered with.
            let start = Instant::now();
            while memory.used() > most {
                assert!(start.elapsed() < LIMIT, "{at}: {} of {most}", memory.used());
                std::thread::yield_now();
            }
            (next(&held).deliver)(Ok(BYTES.to_vec()));
        }
        for answer in answers {
            assert_eq!(answer.recv_timeout(LIMIT).unwrap().as_deref(), Ok(&BYTES[..]));
        }
        drop(takes_nothing);
        let start = Instant::now();
        while memory.used() > 0 {
            assert!(start.elapsed() < LIMIT, "charged for ever");
            // Bytes that were pushed wait for the planner, which may have them stored.
            stand.inbox.take(&mut Vec::new(), &mut Vec::new(), Duration::from_millis(50));
        }
    }
}
