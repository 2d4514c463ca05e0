//! The learner's thread without a thread: notes in, events for the planner out.

use std::sync::mpsc::sync_channel;

use rand::SeedableRng;
use rand::seq::SliceRandom;

use super::super::loaders::{IDLE_MAX, LoaderState};
use super::*;
use crate::cache::Inbox;
use crate::catalog::Catalog;
use crate::disk::AtomicFile;
use crate::learn::LoaderId;
use crate::order::samplers::Sampler;
use crate::order::samplers::torch::{Distributed, Random};
use crate::plan::Published;
use crate::plan::StreamStatus;
use crate::source::{PosixSource, Source};

const FILES: u32 = 400;

struct Stand {
    thread: LearnerThread,
    inbox: Arc<Inbox>,
    published: Arc<Mutex<Published>>,
    /// In the order of their paths.
    files: Vec<FileId>,
    _directory: tempfile::TempDir,
    _notes: Receiver<Note>,
}

/// A task whose process runs.
fn task() -> u32 {
    std::process::id()
}

/// So long ago that everything may be said again.
fn long_ago() -> Instant {
    Instant::now().checked_sub(2 * IDLE_MAX).unwrap()
}

/// All places, in an order that is not found out.
fn shuffled() -> Vec<u32> {
    let mut places: Vec<u32> = (0..FILES).collect();
    places.shuffle(&mut rand::rngs::ChaCha8Rng::seed_from_u64(1));
    places
}

impl Stand {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        for number in 0..FILES {
            std::fs::write(directory.path().join(format!("{number:04}")), b"bytes").unwrap();
        }
        let source: Arc<dyn Source> = Arc::new(PosixSource::open(directory.path(), 4).unwrap());
        let catalog = Catalog::scan(Arc::clone(&source), 1, None).unwrap();
        let files = with_listing(&catalog, &[], None, |listing| {
            listing.entries().iter().map(|entry| entry.file).collect()
        });
        let (inbox, published) = (Arc::new(Inbox::new(8)), Arc::<Mutex<Published>>::default());
        let around = Surroundings {
            source,
            catalog: Arc::new(catalog),
            inbox: Arc::clone(&inbox),
            streams: Arc::default(),
            published: Arc::clone(&published),
            journal: None,
        };
        let (notes, received) = sync_channel(NOTES_MAX);
        let settings = LearnSettings { crack: false, threads: 1, nice: 0, time: Duration::MAX };
        let thread = LearnerThread::new(settings, around, notes, Arc::default(), long_ago());
        Stand { thread, inbox, published, files, _directory: directory, _notes: received }
    }

    /// The process opens files, by their places in the order of paths, at this moment.
    fn open(&mut self, places: impl IntoIterator<Item = u32>) {
        let at_ms = self.thread.started.elapsed().as_millis() as u64;
        for place in places {
            let file = self.files[place as usize];
            self.thread.take(Note::Heard(at_ms, Event::Opened { task: task(), file }));
        }
    }

    /// The dataset has other files than the learner knows, which was made long ago.
    fn outdate(&mut self) {
        let current = self.thread.current.as_mut().unwrap();
        (current.names_version, current.made) = (u64::MAX, long_ago());
    }

    /// What the planner publishes of a stream.
    fn publish(&self, stream: StreamId, following: bool) {
        let status = StreamStatus {
            order: String::new(),
            epoch: 0,
            position: 0,
            front: 0,
            length: FILES,
            reader: 0,
            begun: 0,
            ahead: 0,
            following,
            opens_predicted: 0,
            opens_seen: 0,
            opens_strayed: 0,
        };
        self.published.lock().streams = vec![(stream, status)];
    }

    /// The orders that were given and withdrawn since the last call, as that many of each.
    fn said(&self) -> (usize, usize) {
        let mut messages = Vec::new();
        self.inbox.take(&mut messages, &mut Vec::new(), Duration::ZERO);
        let of = |wanted: fn(&Event) -> bool| {
            messages.iter().filter(|message| wanted(&message.event)).count()
        };
        let given = of(|event| matches!(event, Event::Continued { .. }));
        (given, of(|event| matches!(event, Event::Withdrawn { .. })))
    }

    /// The loader that is followed.
    fn loader(&mut self) -> &mut LoaderState {
        self.thread.loaders.all.values_mut().find(|loader| loader.stream.is_some()).unwrap()
    }
}

/// An order told of all files, in the order of their paths.
fn tell(stand: &mut Stand, sampler: Sampler) -> StreamId {
    let order = Arc::new(Order::drawn(sampler, &stand.files, "path order").unwrap());
    let stream = StreamId(7);
    stand.thread.take(Note::Received { stream, order });
    stand.publish(stream, true);
    stand.thread.update();
    stream
}

fn own(persistent_workers: bool) -> Sampler {
    Sampler::TorchRandom(Random { persistent_workers, ..Random::new(0) })
}

#[test]
fn what_is_learnt_does_not_compete_with_an_order_that_is_read_as_told() {
    let mut stand = Stand::new();
    tell(&mut stand, own(false));
    for epoch in own(false).epochs(FILES).take(3) {
        stand.open(epoch);
        stand.thread.update();
    }
    assert_eq!((stand.said(), stand.thread.searches.are_running()), ((0, 0), false));
    let [belief] = &stand.thread.beliefs()[..] else { panic!("one loader") };
    assert_eq!((belief.foreseen, belief.known_after), (2, Some(4)), "{}", belief.text);
}

#[test]
fn the_first_epoch_is_known_when_a_told_order_turns_out_to_be_wrong() {
    let mut stand = Stand::new();
    let stream = tell(&mut stand, own(false));
    let epochs: Vec<Vec<u32>> = own(true).epochs(FILES).take(3).collect();
    stand.open(epochs[0].iter().copied());
    stand.open(epochs[1][..40].iter().copied());
    stand.thread.update();
    assert_eq!(stand.said(), (0, 0));
    assert!(stand.thread.status.lock().fixes.is_empty());
    stand.publish(stream, false);
    stand.thread.update();
    assert_eq!(stand.said(), (1, 0));
    let fix = stand.thread.status.lock().fixes[&stream].clone();
    assert_eq!(fix, "what is read is torch-random:seed=0,persistent_workers=true");
    stand.open(epochs[1][40..].iter().chain(&epochs[2][..20]).copied());
    stand.thread.update();
    assert_eq!((stand.said(), stand.thread.searches.are_running()), ((1, 0), false));
    // It is read as told after all.
    stand.publish(stream, true);
    stand.thread.update();
    assert_eq!(stand.said(), (0, 1));
}

#[test]
fn a_part_of_an_order_that_another_node_has_found_out_is_known_at_once() {
    let mut stand = Stand::new();
    // No search of popular seeds finds this one.
    let rank = |rank| Distributed { seed: 3_141_592_653, world: 2, rank, ..Distributed::default() };
    let reads = rank(1).epoch(FILES, 0);
    stand.open(reads[..50].iter().copied());
    stand.thread.update();
    assert_eq!(stand.said().0, 0);
    let order = Order::drawn(Sampler::TorchDistributed(rank(0)), &stand.files, "path order");
    let spec = "torch-distributed:seed=3141592653,world=2".parse().unwrap();
    stand.thread.take(Note::Suggested { order: Arc::new(order.unwrap()), spec });
    stand.open(reads[50..].iter().copied());
    stand.thread.update();
    assert_eq!(stand.said().0, 1);
    let [belief] = &stand.thread.beliefs()[..] else { panic!("one loader") };
    let spec = belief.spec.as_ref().map(OrderSpec::to_string);
    assert_eq!(spec.as_deref(), Some("torch-distributed:seed=3141592653,world=2,rank=1"));
    assert_eq!((belief.spec_epoch, belief.length), (0, FILES / 2));
}

#[test]
fn an_order_that_is_told_takes_the_place_of_what_was_learnt() {
    let mut stand = Stand::new();
    stand.open(0..60);
    assert_eq!(stand.said(), (1, 0));
    let stream = tell(&mut stand, Sampler::SEQUENTIAL);
    assert_eq!(stand.said(), (0, 1));
    stand.open(60..120);
    stand.thread.update();
    assert_eq!(stand.said(), (0, 0));
    stand.thread.take(Note::Withdrawn { stream });
    stand.thread.update();
    assert_eq!(stand.said(), (1, 0));
}

#[test]
fn an_order_over_files_of_one_that_was_told_is_no_twin_of_it() {
    let mut stand = Stand::new();
    stand.open(0..9);
    assert_eq!(stand.said(), (0, 0));
    // Told, and not yet heard of by the thread that learns: only the files are.
    let order = Order::drawn(Sampler::SEQUENTIAL, &stand.files[300..302], "path order").unwrap();
    let files = stand.thread.layout.files();
    stand.thread.told_orders.add(StreamId(7), Arc::new(order), files);
    stand.open(9..60);
    assert_eq!(stand.said(), (0, 0));
}

#[test]
fn other_files_end_no_search() {
    let mut stand = Stand::new();
    stand.open(shuffled().into_iter().take(60));
    assert!(stand.thread.searches.are_running());
    stand.outdate();
    stand.thread.update();
    assert_eq!(stand.thread.searches.generation, 0);
    stand.thread.searches.end_all();
    stand.thread.update();
    assert_eq!(stand.thread.searches.generation, 1);
}

#[test]
fn who_has_spent_the_time_of_searches_is_not_searched_for_by_a_new_learner() {
    let mut stand = Stand::new();
    stand.thread.searches.settings.time = Duration::from_secs(10);
    stand.open(shuffled().into_iter().take(60));
    assert!(stand.thread.searches.are_running());
    let loader = *stand.thread.loaders.all.keys().next().unwrap_or(&LoaderId(0));
    let (search, group, findings) =
        (crate::learn::SearchId(u32::MAX), u64::from(task()), Vec::new());
    let mut slice = |generation, seconds| {
        let (findings, cpu) = (findings.clone(), Duration::from_secs(seconds));
        let (speed, thread) = (None, &mut stand.thread);
        let slice = Slice { generation, search, loader, group, findings, cpu, speed };
        thread.take(Note::Slice(slice));
        thread.searches.are_running()
    };
    assert!(slice(0, 6));
    // Those of a learner that is no more count, too.
    assert!(!slice(7, 6));
    stand.outdate();
    stand.thread.update();
    assert_eq!(stand.thread.searches.generation, 1);
    stand.open(shuffled().into_iter().take(120));
    assert!(!stand.thread.searches.are_running());
}

#[test]
fn a_split_that_is_found_begins_without_pauses_and_gives_no_more_time() {
    let mut stand = Stand::new();
    stand.thread.searches.settings.time = Duration::from_secs(10);
    stand.open(shuffled().into_iter().take(60));
    assert!(stand.thread.searches.are_running());
    let loader = *stand.thread.loaders.all.keys().next().unwrap_or(&LoaderId(0));
    let (search, group) = (crate::learn::SearchId(u32::MAX), u64::from(task()));
    let mut slice = |findings, seconds| {
        let cpu = Duration::from_secs(seconds);
        let (generation, speed, thread) = (0, None, &mut stand.thread);
        let slice = Slice { generation, search, loader, group, findings, cpu, speed };
        thread.take(Note::Slice(slice));
        (thread.searches.spent[&group].since().as_secs(), thread.searches.are_running())
    };
    assert_eq!(slice(Vec::new(), 5), (5, true));
    let split = Finding::Split { list: own(false), view: 0, part: 0..FILES / 2 };
    // What the slice itself took counts from then on.
    assert_eq!(slice(vec![split], 2), (2, true));
    assert_eq!(slice(Vec::new(), 2), (4, true));
    assert_eq!(slice(Vec::new(), 2), (6, false), "eleven seconds in all");
}

#[test]
fn a_reader_that_the_planner_lost_is_told_again() {
    let mut stand = Stand::new();
    stand.open(0..60);
    stand.thread.update();
    assert_eq!(stand.said(), (1, 0));
    let stream = stand.loader().stream.unwrap();
    stand.publish(stream, false);
    stand.loader().told_at = long_ago();
    stand.thread.update();
    assert_eq!(stand.said(), (1, 0));
    // Not without end.
    stand.thread.update();
    assert_eq!(stand.said(), (0, 0));
}

#[test]
fn who_reads_nothing_for_long_is_followed_again_when_it_reads() {
    let mut stand = Stand::new();
    stand.open(0..60);
    assert_eq!(stand.said(), (1, 0));
    // As if that had been then.
    let started = std::mem::replace(&mut stand.thread.started, long_ago() - 2 * IDLE_MAX);
    stand.loader().told_at = long_ago() - 2 * IDLE_MAX;
    stand.thread.update();
    assert_eq!(stand.said(), (0, 1));
    stand.thread.update();
    assert_eq!(stand.said(), (0, 0));
    stand.thread.started = started;
    stand.open(60..70);
    stand.loader().told_at = long_ago();
    stand.thread.update();
    assert_eq!(stand.said(), (1, 0));
}

#[test]
fn a_process_that_has_ended_has_no_loader() {
    let mut stand = Stand::new();
    let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
    // The kernel shows the command line of a program a moment after it has begun.
    while std::fs::read(format!("/proc/{}/cmdline", child.id())).unwrap().is_empty() {
        std::thread::yield_now();
    }
    for &file in &stand.files[..60] {
        stand.thread.take(Note::Heard(0, Event::Opened { task: child.id(), file }));
    }
    assert_eq!(stand.said(), (1, 0));
    child.kill().unwrap();
    child.wait().unwrap();
    stand.thread.update();
    assert_eq!(stand.said(), (0, 1));
    assert!(stand.thread.beliefs().is_empty());
    let records = stand.thread.learner().into_iter().flat_map(Learner::records);
    assert_eq!(records.map(|record| record.group).collect::<Vec<u64>>(), [u64::from(child.id())]);
}

#[test]
fn opens_are_heard_while_the_journal_is_being_written() {
    let mut stand = Stand::new();
    let store = tempfile::tempdir().unwrap();
    let file = AtomicFile::at(&store.path().join("journal")).unwrap();
    stand.thread.journal = SavedJournal::open(Some(file.clone()));
    let order = shuffled();
    stand.open(order[..60].iter().copied());
    let disk = stand.thread.journal.hang();
    stand.thread.remember(true);
    stand.open(order[60..].iter().copied());
    stand.thread.remember(true);
    assert!(!stand.thread.journal.is_due() && stand.thread.journal.is_behind);
    assert_eq!(std::fs::read_dir(store.path()).unwrap().count(), 0);
    // What could not be written is written at the end.
    drop(disk);
    stand.thread.journal.finish();
    assert_eq!(
        SavedJournal::open(Some(file)).words.as_deref().unwrap(),
        "1 earlier runs remembered"
    );
}
