//! Reads of several blocks, whose pages the kernel keeps locked until all of them have arrived.

use std::ffi::OsStr;
use std::ops::Range;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Instant, UNIX_EPOCH};

use super::reading::RETRIES;
use super::*;
use crate::cache::{CheckReply, Pages};
use crate::catalog::{Located, Served};
use crate::ids::BLOCK_BYTES;
use crate::source::stub::StubSource;
use crate::source::{PosixSource, ReadError, ReadRequest, Source};

/// A time that only a broken program takes.
const LIMIT: Duration = Duration::from_secs(300);

const BLOCK: usize = BLOCK_BYTES as usize;

type Held = Arc<Mutex<Vec<ReadRequest>>>;

/// The file's bytes in the page cache, from its start.
type CachedBytes = Arc<Mutex<Vec<u8>>>;

/// A page cache that reports where blocks are put.
struct ReportingPages(std::sync::mpsc::Sender<u64>, CachedBytes);

impl Pages for ReportingPages {
    fn expect(&self, _: &Located) {}

    fn store(&self, at: &Located, _: &[u8]) -> Result<(), Errno> {
        self.0.send(at.offset).unwrap();
        Ok(())
    }

    fn check(&self, _: Located, reply: CheckReply) {
        reply(Some(true));
    }

    fn renew(&self, _: Located) {}

    fn read(&self, at: &Located) -> Result<Vec<u8>, Errno> {
        let start = at.offset as usize;
        let cached = self.1.lock().unwrap();
        cached.get(start..start + at.length).map(<[u8]>::to_vec).ok_or(Errno::EAGAIN)
    }

    fn expire(&self, _: NodeId, _: NodeId, _: &OsStr) {}

    fn discard(&self, _: Located, done: Box<dyn FnOnce() + Send>) {
        done();
    }
}

struct Stand {
    dataset: Arc<Dataset>,
    directory: PosixSource,
    held: Held,
    /// Offsets of the blocks that are put into the page cache.
    pushed: Receiver<u64>,
    cached: CachedBytes,
    node: NodeId,
    bytes: Vec<u8>,
    files: tempfile::TempDir,
}

fn stand() -> Stand {
    let files = tempfile::tempdir().unwrap();
    let bytes: Vec<u8> = (0..3 * BLOCK).map(|at| (at / 7) as u8).collect();
    std::fs::write(files.path().join("file"), &bytes).unwrap();
    let open = || PosixSource::open(files.path(), 4).unwrap();
    let (held, directory) = (Held::default(), open());
    let holding = Arc::clone(&held);
    let source = StubSource::new(open(), move |request| holding.lock().unwrap().push(request));
    let source: Arc<dyn Source> = Arc::new(source);
    let catalog = Arc::new(Catalog::scan(Arc::clone(&source), 1, None).unwrap());
    let inbox = Arc::new(Inbox::new(8));
    let cache = Cache::new(source, Arc::clone(&catalog), Arc::clone(&inbox), None);
    let (sender, pushed) = channel();
    let cached = CachedBytes::default();
    let pages = Arc::new(ReportingPages(sender, Arc::clone(&cached)));
    cache.page_cache().connect(pages, Box::new(|_, _, _| ()));
    let found = catalog.lookup(NodeId::ROOT, OsStr::new("file"), true);
    let node = found.unwrap().unwrap().node;
    let dataset = Dataset::new(catalog, cache, inbox, Arc::new(|_| ()), false);
    Stand { dataset, directory, held, pushed, cached, node, bytes, files }
}

impl Stand {
    /// Answers the read of the block at an offset, once it is requested.
    fn answer(&self, offset: usize, errno: Option<Errno>) {
        let request = self.request(offset);
        match errno {
            Some(errno) => (request.deliver)(Err(ReadError::Source(errno))),
            None => self.directory.read(vec![request]),
        }
    }

    /// The read of the block at an offset, once it is requested.
    fn request(&self, offset: usize) -> ReadRequest {
        let start = Instant::now();
        loop {
            let mut held = self.held.lock().unwrap();
            if let Some(at) = held.iter().position(|request| request.offset == offset as u64) {
                return held.remove(at);
            }
            drop(held);
            assert!(start.elapsed() < LIMIT, "nobody asks for the block");
            std::thread::yield_now();
        }
    }

    fn read(&self, range: Range<usize>) -> Receiver<Result<Vec<u8>, Errno>> {
        read(&self.dataset, self.node, range)
    }

    /// The next blocks that are pushed.
    fn pushes<const N: usize>(&self) -> [u64; N] {
        let mut offsets = [(); N].map(|()| self.pushed.recv_timeout(LIMIT).unwrap());
        offsets.sort_unstable();
        offsets
    }
}

fn read(
    dataset: &Arc<Dataset>,
    node: NodeId,
    range: Range<usize>,
) -> Receiver<Result<Vec<u8>, Errno>> {
    let (sender, answer) = channel();
    let reply = move |bytes: Result<&[u8], Errno>| sender.send(bytes.map(<[u8]>::to_vec)).unwrap();
    dataset.read(node, 1, range.start as u64, range.len() as u32, Box::new(reply));
    answer
}

#[test]
fn a_block_is_not_pushed_before_reads_of_it_are_answered() {
    let stand = stand();
    let across = BLOCK - 10..BLOCK + 10;
    let waiting = stand.read(across.clone());
    stand.answer(0, None);
    // A read of one block gets its bytes at once, and another block is pushed.
    let (alone, last) = (stand.read(0..100), stand.read(2 * BLOCK..2 * BLOCK + 5));
    assert!(alone.recv_timeout(LIMIT).unwrap().unwrap() == stand.bytes[..100]);
    stand.answer(2 * BLOCK, None);
    assert!(last.recv_timeout(LIMIT).unwrap().is_ok());
    assert_eq!(stand.pushes(), [2 * BLOCK_BYTES]);
    assert!(waiting.try_recv().is_err() && stand.pushed.try_recv().is_err());
    stand.answer(BLOCK, None);
    assert!(waiting.recv_timeout(LIMIT).unwrap().unwrap() == stand.bytes[across]);
    assert_eq!(stand.pushes(), [0, BLOCK_BYTES]);
}

#[test]
fn what_waits_for_a_read_that_fails_is_pushed() {
    let stand = stand();
    let waiting = stand.read(BLOCK - 10..2 * BLOCK + 10);
    stand.answer(0, None);
    stand.answer(BLOCK, Some(Errno::EREMOTEIO));
    assert_eq!(waiting.recv_timeout(LIMIT).unwrap(), Err(Errno::EREMOTEIO));
    assert_eq!(stand.pushes(), [0], "though its third block is not here");
    stand.answer(2 * BLOCK, None);
    assert_eq!(stand.pushes(), [2 * BLOCK_BYTES]);
}

/// As [`stand`], with a check at the source at each doubt.
fn checked(period: Option<Duration>) -> Stand {
    let mut stand = stand();
    let open = || PosixSource::open(stand.files.path(), 4).unwrap();
    let holding = Arc::clone(&stand.held);
    let source = StubSource::new(open(), move |request| holding.lock().unwrap().push(request));
    let source: Arc<dyn Source> = Arc::new(source);
    let catalog = Arc::new(Catalog::scan(Arc::clone(&source), 1, period).unwrap());
    let inbox = Arc::new(Inbox::new(8));
    let cache = Cache::new(source, Arc::clone(&catalog), Arc::clone(&inbox), None);
    let nothing = Arc::new(|_| ());
    stand.dataset = Dataset::new(catalog, Arc::clone(&cache), inbox, nothing, false);
    let dataset = Arc::clone(&stand.dataset);
    let recheck = move |node, urgency, then| dataset.check(node, urgency, then);
    let (sender, pushed) = channel();
    let pages = Arc::new(ReportingPages(sender, Arc::clone(&stand.cached)));
    cache.page_cache().connect(pages, Box::new(recheck));
    stand.pushed = pushed;
    stand
}

impl Stand {
    /// Writes the file, with a time of its own.
    fn write(&mut self, first: u8, length: usize) {
        self.bytes[0] = first;
        self.bytes.truncate(length);
        self.rewrite(first.into());
    }

    /// Writes the file with a time in seconds after 1970.
    fn rewrite(&self, seconds: u64) {
        let path = self.files.path().join("file");
        std::fs::write(&path, &self.bytes).unwrap();
        let file = std::fs::File::options().write(true).open(path).unwrap();
        file.set_modified(UNIX_EPOCH + Duration::from_secs(seconds)).unwrap();
    }
}

#[test]
fn who_has_read_nothing_of_a_version_that_is_past_gets_the_present_one() {
    for period in [None, Some(Duration::from_secs(3600))] {
        let mut stand = checked(period);
        stand.write(1, 3 * BLOCK);
        let read = stand.read(0..BLOCK + 10);
        // Of the version that was known, and then of the present one.
        (0..2).for_each(|_| stand.answer(0, None));
        (0..2).for_each(|_| stand.answer(BLOCK, None));
        assert!(read.recv_timeout(LIMIT).unwrap().unwrap() == stand.bytes[..BLOCK + 10]);
        // The reader has read this version now. Its blocks are fetched again, and differ.
        stand.write(2, 3 * BLOCK);
        let read = stand.read(2 * BLOCK..2 * BLOCK + 10);
        [2 * BLOCK, 0, BLOCK].into_iter().for_each(|offset| stand.answer(offset, None));
        assert_eq!(read.recv_timeout(LIMIT).unwrap(), Err(Errno::ESTALE));
    }
}

#[test]
fn a_large_file_is_read_on_if_all_blocks_that_were_read_are_the_same() {
    for period in [None, Some(Duration::from_secs(3600))] {
        let mut stand = checked(period);
        let read = stand.read(0..BLOCK + 10);
        [0, BLOCK].into_iter().for_each(|offset| stand.answer(offset, None));
        assert!(read.recv_timeout(LIMIT).unwrap().is_ok());
        assert_eq!(stand.pushes(), [0, BLOCK_BYTES]);
        // First an unread byte changes, then only the time.
        stand.bytes[3 * BLOCK - 1] ^= 1;
        for seconds in [1, 2] {
            stand.rewrite(seconds);
            let range = 2 * BLOCK..3 * BLOCK;
            let read = stand.read(range.clone());
            stand.answer(2 * BLOCK, None);
            for offset in [0, BLOCK] {
                let request = stand.request(offset);
                assert!(read.try_recv().is_err(), "it is not known yet whether it may be read");
                assert_eq!(stand.dataset.open(stand.node, 2), Err(Errno::ESTALE), "nor opened");
                stand.directory.read(vec![request]);
            }
            stand.answer(2 * BLOCK, None);
            assert!(read.recv_timeout(LIMIT).unwrap().unwrap() == stand.bytes[range]);
            assert_eq!(stand.dataset.open(stand.node, 2), Ok(()));
            assert_eq!(stand.pushes(), [2 * BLOCK_BYTES], "what was compared is not kept");
            let again = stand.read(0..10);
            stand.answer(0, None);
            assert!(again.recv_timeout(LIMIT).unwrap().unwrap() == stand.bytes[..10]);
            assert_eq!(stand.pushes(), [0]);
        }
    }
}

/// The kernel keeps each page that was answered, as it was then.
#[test]
fn a_large_file_that_is_read_in_parts_is_read_on_if_all_pages_that_were_read_are_the_same() {
    const PAGE: usize = 4096;
    let mut stand = checked(None);
    let file = stand.node.file().unwrap();
    stand.dataset.cache.page_cache().file_flags().in_parts.set(file, true);
    for offset in [0, BLOCK + 5 * PAGE] {
        let read = stand.read(offset + 7..offset + 10);
        stand.answer(offset, None);
        assert!(read.recv_timeout(LIMIT).unwrap().is_ok());
    }
    // First a byte outside the read pages changes, then only the time, then a byte of a read page.
    let changes = [(1, Some(PAGE), true), (2, None, true), (3, Some(BLOCK + 5 * PAGE), false)];
    for (seconds, changed, is_same) in changes {
        let offset = 2 * BLOCK + PAGE * seconds as usize;
        changed.into_iter().for_each(|at| stand.bytes[at] ^= 1);
        stand.rewrite(seconds);
        let read = stand.read(offset..offset + 10);
        stand.answer(offset, None);
        // Blocks that were read before are fetched whole.
        let before = if seconds == 1 { 2 } else { 3 };
        for block in 0..before {
            assert!(read.try_recv().is_err(), "it is not known yet whether it may be read");
            stand.answer(block * BLOCK, None);
        }
        if !is_same {
            assert_eq!(read.recv_timeout(LIMIT).unwrap(), Err(Errno::ESTALE));
            break;
        }
        stand.answer(offset, None);
        assert!(read.recv_timeout(LIMIT).unwrap().unwrap() == stand.bytes[offset..offset + 10]);
    }
    assert!(stand.pushed.try_recv().is_err(), "the kernel keeps what its readers were answered");
}

/// Pages of the later version that were read in parts do not show that it is the same.
#[test]
fn a_further_connection_s_reader_of_a_past_version_has_its_block_compared() {
    let stand = checked(None);
    let is_answered = |answer: Receiver<Result<Vec<u8>, Errno>>| {
        assert!(answer.recv_timeout(LIMIT).unwrap().unwrap() == stand.bytes[..10]);
    };
    let first = stand.read(0..10);
    stand.answer(0, None);
    is_answered(first);
    assert_eq!(stand.pushes(), [0]);
    stand.rewrite(1);
    let catalog = stand.dataset.catalog();
    catalog.refresh(NodeId::ROOT, OsStr::new("file")).unwrap();
    let Served { node: present, file, .. } = catalog.served(stand.node).unwrap();
    stand.dataset.cache.page_cache().file_flags().in_parts.set(file, true);
    let parts = read(&stand.dataset, present, 0..10);
    stand.answer(0, None);
    is_answered(parts);
    *stand.cached.lock().unwrap() = stand.bytes[..10].to_vec();
    let further = stand.dataset.further();
    let compared = read(&further, stand.node, 0..10);
    stand.answer(0, None);
    is_answered(compared);
    assert_eq!(stand.pushes(), [0]);
    is_answered(read(&further, stand.node, 0..10));
    assert!(stand.held.lock().unwrap().is_empty(), "its pages do from then on");
}

#[test]
fn a_read_of_a_file_that_changes_again_and_again_ends() {
    let stand = checked(Some(Duration::from_secs(3600)));
    let read = stand.read(0..10);
    stand.answer(0, None);
    assert!(read.recv_timeout(LIMIT).unwrap().is_ok());
    let read = stand.read(BLOCK..BLOCK + 10);
    // The file changes between its check and its read. The read blocks are compared each time.
    for (seconds, offset) in (0..).zip([BLOCK].into_iter().chain([0; RETRIES as usize])) {
        let request = stand.request(offset);
        stand.rewrite(seconds);
        stand.directory.read(vec![request]);
    }
    assert_eq!(read.recv_timeout(LIMIT).unwrap(), Err(Errno::ESTALE));
}

/// The kernel would fill the file with zeros up to the size that it knows.
#[test]
fn a_file_of_another_size_is_not_given_under_the_size_of_a_past_version() {
    let mut stand = checked(None);
    stand.write(1, BLOCK + 5);
    let read = stand.read(0..10);
    stand.answer(0, None);
    assert_eq!(read.recv_timeout(LIMIT).unwrap(), Err(Errno::ESTALE));
}

#[test]
fn a_source_that_contradicts_itself_is_an_error_after_a_few_reads() {
    let stand = checked(None);
    let read = stand.read(0..10);
    for _ in 0..3 {
        let request = stand.request(0);
        (request.deliver)(Err(ReadError::Changed));
    }
    assert_eq!(read.recv_timeout(LIMIT).unwrap(), Err(Errno::EIO));
    let read = stand.read(0..10);
    (stand.request(0).deliver)(Err(ReadError::Changed));
    stand.answer(0, None);
    assert!(read.recv_timeout(LIMIT).unwrap().unwrap() == stand.bytes[..10]);
}

/// As when the source hangs: the kernel does not release a killed task by itself.
#[test]
fn a_read_of_a_killed_task_is_answered_and_its_bytes_are_kept() {
    let stand = stand();
    let read = stand.read(0..10);
    stand.dataset.waiting.tick(Instant::now() + LIMIT, |task| task == 1);
    assert_eq!(read.recv_timeout(LIMIT).unwrap(), Err(Errno::EINTR));
    stand.answer(0, None);
    assert_eq!(stand.pushes(), [0]);
}

#[test]
fn a_brief_question_about_a_place_that_hangs_is_answered_at_once_and_not_kept() {
    let stand = stand();
    let (release, hung) = channel::<()>();
    let hangs = move || {
        let _ = hung.recv();
        Ok(2)
    };
    let (key, questions) = (MetadataKey::Directory(NodeId::ROOT), &stand.dataset.questions);
    questions.ask_briefly(key, None, |_| (), || Ok(1), hangs);
    let kept = Arc::new(());
    let ask = || {
        let (sender, answer) = channel();
        let (reply, held) = (move |got| sender.send(got).unwrap(), Arc::clone(&kept));
        let asks = move || {
            drop(held);
            Ok(2)
        };
        questions.ask_briefly(key, None, reply, || Ok(1), asks);
        // No tick answers waiting requests in this test.
        answer.recv_timeout(LIMIT).unwrap()
    };
    let start = Instant::now();
    while ask() != Ok(1) {
        assert!(start.elapsed() < LIMIT, "it does not count as one that hangs");
        std::thread::sleep(Duration::from_millis(20));
    }
    while Arc::strong_count(&kept) > 1 {
        assert!(start.elapsed() < LIMIT, "a question is kept");
        std::thread::sleep(Duration::from_millis(1));
    }
    drop(release);
}
