//! Blocks that lie side by side come with one request, and slices without the pages that others have.

use super::*;
use crate::config::Manners;
use crate::limiter::{Limiter, Meter};
use crate::order::{FileRange, Order, SampleTable};

/// Blocks of the file, and what is asked of its source: each request waits until the test answers it.
const BLOCKS: u32 = 5;

struct Asked {
    stand: Stand,
    times: Arc<SourceTimes>,
    requests: Receiver<ReadRequest>,
    bytes: Vec<u8>,
}

fn asked() -> Asked {
    asked_of(&["file"], false)
}

/// The same with several files of the same bytes, which may lie one behind the other.
fn asked_of(names: &[&str], have_neighbours: bool) -> Asked {
    let directory = tempfile::tempdir().unwrap();
    let length = BLOCKS as usize * BLOCK_BYTES as usize - 100;
    let bytes: Vec<u8> = (0..length).map(|at| (at / 1000) as u8).collect();
    for name in names {
        std::fs::write(directory.path().join(name), &bytes).unwrap();
    }
    let (ask, requests) = channel();
    let ask = Mutex::new(ask);
    let read = move |request: ReadRequest| ask.lock().send(request).unwrap();
    let mut times = None;
    let source = |directory| -> Arc<dyn Source> {
        let source = StubSource::hedged(directory, read);
        let source = Arc::new(if have_neighbours { source.with_neighbours() } else { source });
        let metadata = [0; 2].map(|_| Limiter::of_metadata(1, Manners::Fair));
        let (inbox, meter) = (Arc::new(Inbox::new(8)), Meter::new(8, Manners::Fair));
        let timed = TimedSource::new(source, &inbox, meter, metadata, None);
        times = Some(Arc::clone(timed.times()));
        Arc::new(timed)
    };
    let stand = stand_over(directory, source, |disk| Arc::new(disk), None);
    let pages = FullPages { asked: channel().0, lock: Arc::default() };
    stand.cache.page_cache().connect(Arc::new(pages), Box::new(|_, _, done| done(Ok(()))));
    Asked { stand, times: times.unwrap(), requests, bytes }
}

impl Asked {
    fn next(&self) -> ReadRequest {
        self.requests.recv_timeout(LIMIT).unwrap()
    }

    fn answer(&self, request: ReadRequest) {
        let start = request.offset as usize;
        let bytes = self.bytes[start..start + request.length].to_vec();
        (request.deliver)(Ok(bytes));
    }

    fn of_block(&self, block: u32) -> Vec<u8> {
        let chunk = self.bytes.chunks(BLOCK_BYTES as usize).nth(block as usize);
        chunk.unwrap().to_vec()
    }

    /// Waits until so many blocks have arrived in RAM.
    fn arrive(&self, count: usize) {
        let (mut messages, mut arrived) = (Vec::new(), 0);
        let start = Instant::now();
        while arrived < count {
            assert!(start.elapsed() < LIMIT, "{arrived} of {count} arrive");
            self.stand.inbox.take(&mut messages, &mut Vec::new(), Duration::from_millis(50));
            let is_arrival = |it: &Message| matches!(it.event, Event::Arrived { .. });
            arrived += messages.drain(..).filter(is_arrival).count();
        }
    }
}

#[test]
fn blocks_side_by_side_come_with_one_request() {
    let asked = asked();
    asked.stand.cache.prefetch_run(BLOCK, BLOCKS);
    let request = asked.next();
    assert_eq!((request.offset, request.length), (0, asked.bytes.len()));
    let reader = asked.stand.read_block(BlockId(3), asked.stand.node);
    asked.answer(request);
    assert_eq!(reader.recv_timeout(LIMIT).unwrap(), Ok(asked.of_block(3)));
    asked.arrive(BLOCKS as usize);
    assert!(asked.requests.try_recv().is_err(), "nothing else is asked for");
}

#[test]
fn what_is_on_its_way_already_is_left_out_of_a_run() {
    let asked = asked();
    let reader = asked.stand.read_block(BlockId(2), asked.stand.node);
    let alone = asked.next();
    asked.stand.cache.prefetch_run(BLOCK, BLOCKS);
    let runs = [asked.next(), asked.next()];
    let blocks = runs.each_ref().map(|run| run.offset / BLOCK_BYTES);
    assert_eq!((alone.offset / BLOCK_BYTES, blocks), (2, [0, 3]));
    runs.into_iter().chain([alone]).for_each(|request| asked.answer(request));
    assert_eq!(reader.recv_timeout(LIMIT).unwrap(), Ok(asked.of_block(2)));
    asked.arrive(BLOCKS as usize);
}

#[test]
fn a_block_of_a_run_that_fails_is_asked_for_by_itself_if_a_reader_waits_for_it() {
    let asked = asked();
    asked.stand.cache.prefetch_run(BLOCK, BLOCKS);
    let reader = asked.stand.read_block(BlockId(1), asked.stand.node);
    (asked.next().deliver)(Err(ReadError::Source(Errno::EIO)));
    let request = asked.next();
    assert_eq!((request.offset, request.length as u64), (BLOCK_BYTES, BLOCK_BYTES));
    asked.answer(request);
    assert_eq!(reader.recv_timeout(LIMIT).unwrap(), Ok(asked.of_block(1)));
    let (mut messages, mut failed, mut arrived) = (Vec::new(), Vec::new(), Vec::new());
    let start = Instant::now();
    while failed.len() < BLOCKS as usize - 1 || arrived.is_empty() {
        assert!(start.elapsed() < LIMIT, "{failed:?} have failed, and {arrived:?} has arrived");
        asked.stand.inbox.take(&mut messages, &mut Vec::new(), Duration::from_millis(50));
        for message in messages.drain(..) {
            match message.event {
                Event::Failed { block } => failed.push(block.0),
                Event::Arrived { block, .. } => arrived.push(block.0),
                _ => {}
            }
        }
    }
    assert!(arrived == [1] && !failed.contains(&1), "{failed:?} {arrived:?}");
    assert!(asked.requests.try_recv().is_err(), "nothing else is asked for");
    wait_until(|| asked.stand.cache.memory.used() == 0, "memory stays charged");
}

#[test]
fn a_run_of_a_file_that_has_changed_has_it_looked_at_again() {
    let asked = asked();
    asked.stand.cache.prefetch_run(BLOCK, BLOCKS);
    (asked.next().deliver)(Err(ReadError::Changed));
    let request = asked.next();
    assert_eq!(request.offset, 0, "the first block is asked for once more");
    asked.answer(request);
    asked.arrive(1);
}

/// Files that lie one behind the other are asked for at once, and are timed as one read.
#[test]
fn files_side_by_side_are_asked_for_at_once() {
    for have_neighbours in [true, false] {
        let asked = asked_of(&["a", "b"], have_neighbours);
        asked.stand.cache.prefetch_run(BlockId(BLOCKS - 1), 2);
        let (last, first) = (asked.next(), asked.next());
        assert_eq!((&*last.path, &*first.path), (Path::new("a"), Path::new("b")));
        assert_eq!((last.offset, first.offset), (u64::from(BLOCKS - 1) * BLOCK_BYTES, 0));
        assert_eq!(asked.times.in_flight(), if have_neighbours { 1 } else { 2 });
        asked.answer(last);
        asked.arrive(1);
        assert_eq!(asked.times.in_flight(), u32::from(!have_neighbours));
        asked.answer(first);
        asked.arrive(1);
        assert_eq!(asked.times.in_flight(), 0);
        wait_until(|| asked.stand.cache.memory.used() == 0, "memory stays charged");
    }
}

/// An archive has changed: one of its files is looked at, and one that a reader waits for.
#[test]
fn files_side_by_side_that_fail_are_not_all_asked_for_again() {
    let asked = asked_of(&["a", "b", "c", "d"], true);
    // The files are large: their last and first blocks stand for small ones.
    let of_b = BlockId(BLOCKS);
    asked.stand.cache.prefetch_run(BlockId(BLOCKS - 1), 2);
    let (of_a, of_next) = (asked.next(), asked.next());
    let node = asked.stand.cache.catalog.locate(of_b).unwrap().node;
    let reader = asked.stand.read_block(of_b, node);
    (of_a.deliver)(Err(ReadError::Changed));
    let looked = asked.next();
    assert_eq!(&*looked.path, Path::new("a"));
    (of_next.deliver)(Err(ReadError::Changed));
    let again = asked.next();
    assert_eq!(&*again.path, Path::new("b"), "a reader waits for it");
    asked.answer(looked);
    asked.answer(again);
    assert_eq!(reader.recv_timeout(LIMIT).unwrap(), Ok(asked.of_block(0)));
    asked.arrive(2);
    asked.stand.cache.prefetch_run(BlockId(3 * BLOCKS - 1), 2);
    let (of_c, of_d) = (asked.next(), asked.next());
    (of_c.deliver)(Err(ReadError::Changed));
    let looked = asked.next();
    (of_d.deliver)(Err(ReadError::Changed));
    asked.answer(looked);
    asked.arrive(1);
    assert!(asked.requests.try_recv().is_err(), "nobody waits for the last one");
    wait_until(|| asked.stand.cache.memory.used() == 0, "memory stays charged");
}

/// The answer to a slice without a page comes when another flight is to bring all of it.
#[test]
fn a_late_answer_without_a_page_ends_no_other_flight() {
    let asked = asked();
    let flights = Flights::default();
    let key = FlightKey::whole(BLOCK, asked.stand.node);
    let begun = flights.join(key, (true, Cause::Late), (), |_, ()| ());
    assert!(matches!(begun, Join::Begun(1)));
    let bytes = Arc::new(Buffer::from(vec![0; 4096]));
    let pages = Some(PageRange { first: 1, count: 1 });
    assert!(flights.take_waiting(key, &bytes, pages).is_none());
    flights.with(&key, 1, |fetching| fetching.pages = pages).unwrap();
    assert!(flights.take_waiting(key, &bytes, pages).is_some());
}

#[test]
fn a_block_of_a_run_that_is_late_is_asked_for_again_by_itself() {
    let asked = asked();
    for _ in 0..200 {
        let reader = asked.stand.read();
        asked.answer(asked.next());
        assert_eq!(reader.recv_timeout(LIMIT).unwrap(), Ok(asked.of_block(0)));
        wait_until(|| asked.stand.cache.flights.is_empty(), "the flight never ends");
    }
    asked.stand.cache.prefetch_run(BlockId(1), BLOCKS - 1);
    let run = asked.next();
    let reader = asked.stand.read_block(BlockId(3), asked.stand.node);
    let (mut again, start) = (None, Instant::now());
    while again.is_none() {
        assert!(start.elapsed() < LIMIT, "it is not asked for again");
        asked.stand.cache.hedge(&asked.times);
        again = asked.requests.recv_timeout(Duration::from_millis(1)).ok();
    }
    let again = again.unwrap();
    assert_eq!((again.offset, again.length as u64), (3 * BLOCK_BYTES, BLOCK_BYTES));
    asked.answer(again);
    assert_eq!(reader.recv_timeout(LIMIT).unwrap(), Ok(asked.of_block(3)));
    asked.answer(run);
    wait_until(|| asked.stand.cache.flights.is_empty(), "a flight never ends");
}

#[test]
fn a_slice_that_comes_without_a_page_gives_its_readers_what_it_has() {
    const SAMPLE: u64 = 10_000;
    let asked = asked();
    let file = asked.stand.node.file().unwrap();
    let range = |nth| FileRange { file, offset: nth * SAMPLE, length: SAMPLE };
    let table = SampleTable::Ranges((0..40).map(range).collect());
    let order = Order::listed("ranges", vec![(0..40).collect()], table).unwrap();
    let cache = &asked.stand.cache;
    assert_eq!(cache.catalog.cut_along(&order), [file]);
    let layout = cache.catalog.layout();
    let slice = layout.blocks_in(file, SAMPLE, SAMPLE).next().unwrap();
    // The slice before it has its first page.
    let pages = layout.pages_without(slice, [true, false]).unwrap();
    assert_eq!((pages.first, layout.range(slice).0), (1, 2 * 4096));
    cache.prefetch(slice, Some(pages));
    let trimmed = asked.next();
    assert_eq!(trimmed.offset, 3 * 4096);
    let read = |pages: PageRange| {
        let (answer, answered) = channel();
        let bytes = pages.offset()..pages.offset() + pages.bytes();
        let waiter = move |result: Result<Landed, ReadFailure>| {
            answer
                .send(result.and_then(|landed| landed.cut(&bytes)).map(|it| it.to_vec()))
                .unwrap();
        };
        cache.read(slice, pages, asked.stand.node, 1, Box::new(waiter));
        answered
    };
    let joined = read(PageRange { first: 1, count: 2 });
    let beside = read(PageRange { first: 0, count: 2 });
    let lacking = asked.next();
    assert_eq!((lacking.offset, lacking.length), (2 * 4096, 2 * 4096));
    asked.answer(lacking);
    asked.answer(trimmed);
    let of_page = |page: usize| asked.bytes[page * 4096..(page + 2) * 4096].to_vec();
    assert_eq!(beside.recv_timeout(LIMIT).unwrap(), Ok(of_page(2)));
    assert_eq!(joined.recv_timeout(LIMIT).unwrap(), Ok(of_page(3)));
    asked.arrive(1);
}
