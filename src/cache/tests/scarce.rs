//! Memory that is scarce: reads wait for it in turn, and nothing waits for ever.

use super::*;
use crate::source::ReadError;

const FILES: u32 = 20;

type Held = Arc<Mutex<Vec<ReadRequest>>>;

/// Files whose reads the test answers, and a cache that may hold no byte.
fn scarce() -> (Stand, Held) {
    let directory = tempfile::tempdir().unwrap();
    for at in 0..FILES {
        std::fs::write(directory.path().join(format!("{at:02}")), b"bytes").unwrap();
    }
    let held = Held::default();
    let reads = Arc::clone(&held);
    let hold = move |request| reads.lock().unwrap().push(request);
    let source = |directory| -> Arc<dyn Source> { Arc::new(Instead::new(directory, hold)) };
    let stand = stand_over(directory, source, |disk| Arc::new(disk), None);
    stand.cache.memory().resize(0);
    (stand, held)
}

fn block(at: u32) -> BlockId {
    BlockId(at)
}

impl Stand {
    fn read_block(&self, at: u32) -> Receiver<Result<Vec<u8>, ReadFailure>> {
        let (answer, answered) = channel();
        let node = self.cache.catalog.locate(block(at)).unwrap().node;
        let waiter = move |result: Result<Landed, ReadFailure>| {
            answer.send(result.map(|bytes| bytes.to_vec())).unwrap();
        };
        self.cache.read(block(at), node, 1, Box::new(waiter));
        answered
    }
}

/// Waits for the read that came to the source first.
fn next(held: &Held) -> ReadRequest {
    let start = Instant::now();
    loop {
        let mut reads = held.lock().unwrap();
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
    let answers: Vec<_> = (0..FILES).map(|at| stand.read_block(at)).collect();
    assert_eq!(held.lock().unwrap().len(), 4, "a few");
    for at in 0..FILES {
        // Errors let go of memory, too.
        let result =
            if at % 3 == 0 { Err(ReadError::Source(Errno::EIO)) } else { Ok(b"bytes".to_vec()) };
        (next(&held).deliver)(result);
    }
    let answers = answers.iter().map(|answer| answer.recv_timeout(LIMIT).unwrap());
    assert_eq!(answers.filter(Result::is_ok).count(), 13);
    let start = Instant::now();
    while stand.cache.memory().used() > 0 {
        assert!(start.elapsed() < LIMIT, "charged for ever");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_prefetch_that_waits_for_memory_goes_before_others_when_a_reader_waits_for_it() {
    let (stand, held) = scarce();
    (0..FILES).for_each(|at| stand.cache.prefetch(block(at)));
    assert_eq!(held.lock().unwrap().len(), 1);
    let answer = stand.read_block(FILES - 1);
    let wanted = stand.cache.catalog.locate(block(FILES - 1)).unwrap().path;
    let first = next(&held);
    let request = next(&held);
    assert_eq!(request.path, wanted, "others first");
    (request.deliver)(Ok(b"bytes".to_vec()));
    assert_eq!(answer.recv_timeout(LIMIT).unwrap(), Ok(b"bytes".to_vec()));
    // All others come one after the other.
    (first.deliver)(Ok(b"bytes".to_vec()));
    for _ in 2..FILES {
        (next(&held).deliver)(Ok(b"bytes".to_vec()));
    }
}
