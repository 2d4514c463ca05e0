//! Members of a cluster, in memory: blocks come from them, and no fault of theirs reaches a reader.

use std::collections::HashMap;
use std::sync::atomic::AtomicBool;

use rand::RngExt;

use super::*;
use crate::cluster::{EpochHomes, Lack, Member, Moves, Report, Samples, Uses, View, Worth};
use crate::peers::{
    Answer, Ask, COPY_MOST, ClusterStatus, Give, HomesStatus, Key, Keys, Listed, TakeNote,
};
use crate::source::ReadError;

const OWN: u64 = 1;
const OTHER: u64 = 2;
const THIRD: u64 = 3;

/// What a member does with the next question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mood {
    Answers,
    /// It answers that another one brings the block.
    Leases,
    IsSilent,
    /// It keeps the question.
    Hangs,
}

/// The shards of the other members.
struct InMemory {
    /// By member and key.
    values: Mutex<HashMap<(u64, Key), Vec<u8>>>,
    moods: Mutex<Vec<Mood>>,
    kept: Mutex<Vec<Ask>>,
    asked: AtomicU64,
    passed_over: AtomicU64,
}

impl InMemory {
    /// It answers the first questions like this, and all others.
    fn with_moods(moods: &[Mood]) -> Arc<Self> {
        let moods = Mutex::new(moods.iter().rev().copied().collect());
        let (values, kept) = (Mutex::default(), Mutex::default());
        let (asked, passed_over) = (AtomicU64::new(0), AtomicU64::new(0));
        Arc::new(InMemory { values, moods, kept, asked, passed_over })
    }

    fn answer(&self, ask: &Ask) -> Answer {
        let found = self.values.lock().get(&(ask.member, ask.key)).cloned();
        found.map_or(Answer::Lacks(Lack::Missing), Answer::Found)
    }

    fn asked(&self) -> u64 {
        self.asked.load(Ordering::Relaxed)
    }
}

impl Shards for InMemory {
    fn membership(&self) -> Option<Arc<Membership>> {
        None
    }

    fn ask(&self, ask: Ask) {
        assert_ne!(ask.member, OWN);
        self.asked.fetch_add(1, Ordering::Relaxed);
        let mood = self.moods.lock().pop().unwrap_or(Mood::Answers);
        let answer = match mood {
            Mood::Answers => self.answer(&ask),
            Mood::Leases => Answer::Lacks(Lack::Leased),
            Mood::IsSilent => Answer::Lacks(Lack::Silent),
            Mood::Hangs => return self.kept.lock().push(ask),
        };
        (ask.deliver)(answer);
    }

    fn give(&self, give: Give) {
        let mut values = self.values.lock();
        values.insert((give.member, give.key), give.bytes.to_vec());
        give.left.into_iter().for_each(|left| drop(values.remove(&(left, give.key))));
        drop(values);
        (give.done)(true);
    }

    fn remove(&self, member: u64, key: Key) {
        self.values.lock().remove(&(member, key));
    }

    fn status(&self) -> ClusterStatus {
        ClusterStatus::default()
    }

    fn usual_wait(&self) -> Duration {
        Duration::ZERO
    }

    fn note_passed_over(&self, blocks: u64) {
        self.passed_over.fetch_add(blocks, Ordering::Relaxed);
    }

    fn is_full(&self) -> bool {
        false
    }

    fn sweep(&self, _: &dyn Fn(Key) -> bool) -> Result<u64, String> {
        Ok(0)
    }

    fn take_notes(&self, _: TakeNote) {}

    fn list(&self, _: &mut dyn FnMut(Key, Listed)) -> Result<(), String> {
        Ok(())
    }

    fn mark_on_disk(&self, _: &[Key], _: bool) -> Result<(), String> {
        Ok(())
    }

    fn forget(&self, _: &[Key]) -> Result<(), String> {
        Ok(())
    }

    fn note_homes(&self, _: HomesStatus) {}

    fn exchange(&self, _: Report) -> Vec<(u64, Report)> {
        Vec::new()
    }
}

/// A mount whose blocks all have their home at the other member.
struct Node {
    stand: Stand,
    shards: Arc<InMemory>,
    reads: Arc<AtomicU64>,
    is_down: Arc<AtomicBool>,
}

impl Node {
    fn new(moods: &[Mood]) -> Self {
        let (reads, is_down) = (Arc::<AtomicU64>::default(), Arc::<AtomicBool>::default());
        let (counted, down) = (Arc::clone(&reads), Arc::clone(&is_down));
        let read = move |request: ReadRequest| {
            counted.fetch_add(1, Ordering::Relaxed);
            let error = || Err(ReadError::Source(Errno::ESTALE));
            let bytes = Ok(b"bytes".to_vec());
            (request.deliver)(if down.load(Ordering::Relaxed) { error() } else { bytes });
        };
        let stand = stand(|directory| Arc::new(StubSource::new(directory, read)));
        Node::of(stand, moods, reads, is_down)
    }

    /// A mount whose only file is made when it is read. Its size is not known before.
    fn making(size: usize, moods: &[Mood]) -> Self {
        let reads = Arc::<AtomicU64>::default();
        let counted = Arc::clone(&reads);
        let read = move |request: ReadRequest| {
            counted.fetch_add(1, Ordering::Relaxed);
            (request.deliver)(Ok(vec![7; size]));
        };
        let stand = stand(|directory| Arc::new(StubSource::making(directory, 100, read)));
        Node::of(stand, moods, reads, Arc::default())
    }

    fn of(stand: Stand, moods: &[Mood], reads: Arc<AtomicU64>, is_down: Arc<AtomicBool>) -> Self {
        let shards = InMemory::with_moods(moods);
        stand.cache.share(Arc::clone(&shards) as _);
        let node = Node { stand, shards, reads, is_down };
        let view = view(&[OTHER]);
        node.set_homes(Homes::new(OWN, &view, SAMPLES));
        node
    }

    fn set_homes(&self, homes: Homes) {
        let view = homes.view().clone();
        let membership = Membership { own: OWN, view, keys: Keys::new("secret") };
        self.stand.cache.set_homes(Some((Arc::new(membership), Arc::new(homes))));
    }

    /// The members that have the block.
    fn holders(&self) -> Vec<u64> {
        let mut holders: Vec<u64> = self.shards.values.lock().keys().map(|(id, _)| *id).collect();
        holders.sort_unstable();
        holders
    }

    /// Reads the block, and waits until all is over.
    #[track_caller]
    fn read(&self) -> Result<Vec<u8>, ReadFailure> {
        let bytes = self.stand.read().recv_timeout(LIMIT).unwrap();
        wait_until(|| self.stand.cache.flights.is_empty(), "the flight never ends");
        bytes
    }

    fn reads(&self) -> u64 {
        self.reads.load(Ordering::Relaxed)
    }
}

/// This member has no room, and the others have some.
fn view(others: &[u64]) -> View {
    let member = |id, capacity| Member { id, capacity, disk: 0, seed: 0, group: 0 };
    let others = others.iter().map(|id| member(*id, 1 << 20));
    View::new(others.chain([member(OWN, 0)]).collect())
}

const SAMPLES: Samples<'static> = Samples { hashes: &[7], bytes: &[5] };

fn bytes() -> Result<Vec<u8>, ReadFailure> {
    Ok(b"bytes".to_vec())
}

#[test]
fn a_block_is_read_from_the_source_once_and_then_from_its_home() {
    let node = Node::new(&[]);
    assert_eq!(node.read(), bytes());
    assert_eq!((node.reads(), node.shards.values.lock().len()), (1, 1));
    for _ in 0..9 {
        assert_eq!(node.read(), bytes());
    }
    assert_eq!((node.reads(), node.shards.asked()), (1, 10));
    // Without a cluster it comes from the source.
    node.stand.cache.set_homes(None);
    assert_eq!(node.read(), bytes());
    assert_eq!((node.reads(), node.shards.asked()), (2, 10));
}

/// A file that turns out to have several blocks, so that who has asked for its first one asks anew.
#[test]
fn a_file_of_unknown_size_is_given_with_all_of_its_bytes() {
    let (large, too_large) = ((3 << 20) / 2, COPY_MOST as usize + 1);
    for (size, given) in [(200, 200), (large, large), (too_large, 0)] {
        let node = Node::making(size, &[]);
        let expected = if size == 200 { Ok(vec![7; 200]) } else { Err(ReadFailure::PastVersion) };
        assert_eq!(node.read(), expected);
        let values: Vec<usize> = node.shards.values.lock().values().map(Vec::len).collect();
        assert_eq!(values, if given > 0 { vec![given] } else { Vec::new() }, "{size}");
        assert_eq!(node.reads(), 1);
    }
    // Another member has it.
    let node = Node::making(large, &[Mood::Hangs]);
    let reader = node.stand.read();
    let ask = node.shards.kept.lock().pop().unwrap();
    assert_eq!(ask.length, None);
    (ask.deliver)(Answer::Found(vec![7; large]));
    assert_eq!(reader.recv_timeout(LIMIT).unwrap(), Err(ReadFailure::PastVersion));
    wait_until(|| node.stand.cache.flights.is_empty(), "the flight never ends");
    let size = node.stand.cache.catalog.served(node.stand.node).unwrap().size;
    assert_eq!((size, node.reads()), (large as u64, 0));
    wait_until(|| node.stand.cache.memory.used() == 0, "memory stays charged");
}

/// As long as another member makes it, the source would not be sooner.
#[test]
fn a_sample_that_another_one_makes_is_waited_for() {
    let node = Node::making(200, &[Mood::Leases, Mood::Hangs]);
    node.stand.cache.set_source_wait(0, 10_000_000);
    let reader = node.stand.read();
    wait_until(|| node.shards.kept.lock().len() == 1, "it is not asked again");
    std::thread::sleep(Duration::from_millis(30));
    node.stand.cache.pass_over();
    assert_eq!(node.reads(), 0);
    let ask = node.shards.kept.lock().pop().unwrap();
    (ask.deliver)(Answer::Found(vec![9; 200]));
    assert_eq!(reader.recv_timeout(LIMIT).unwrap(), Ok(vec![9; 200]));
    assert_eq!(node.reads(), 0);
}

#[test]
fn a_block_moves_on_with_the_first_read_of_an_epoch() {
    let node = Node::new(&[]);
    let view = view(&[OTHER, THIRD]);
    let number = |id: u64| view.numbers().find(|number| view.member(*number).id == id);
    let moves = |readers: [u64; 2]| {
        let of_epoch = |epoch: u32| {
            let reader = number(readers[usize::from(epoch == 1)]);
            EpochHomes::new(OWN, &view, SAMPLES, |_| reader)
        };
        Homes::moving(OWN, &view, Moves::from(0, None, of_epoch))
    };
    // This member has no room, so the block is at another one. In the second epoch it is read by a third one.
    let first = moves([OWN, OWN]).holders(0, Some(0))[0].id;
    let next = if first == OTHER { THIRD } else { OTHER };
    let homes = moves([OWN, next]);
    node.set_homes(homes.clone());
    assert_eq!((node.read(), node.reads()), (bytes(), 1));
    assert_eq!(node.holders(), [next]);
    // It is where it was to be in the first epoch. A further read in that epoch takes it nowhere.
    let (at, value) = node.shards.values.lock().drain().next().unwrap();
    node.shards.values.lock().insert((first, at.1), value);
    node.set_homes(homes);
    assert_eq!((node.read(), node.holders()), (bytes(), vec![first]));
    // With the first read it leaves.
    node.set_homes(moves([OWN, next]));
    assert_eq!((node.read(), node.reads()), (bytes(), 1));
    assert_eq!(node.holders(), [next]);
}

#[test]
fn a_member_is_not_given_what_it_would_not_keep() {
    let node = Node::new(&[]);
    let uses = Uses::default();
    let set_worth = |horizon: Option<f32>| {
        let horizons = horizon.map(|horizon| (OTHER, horizon)).into_iter().collect();
        node.stand.cache.set_worth(Some(Worth { uses: uses.clone(), horizons }));
    };
    set_worth(Some(100.0));
    assert_eq!((node.read(), node.holders()), (bytes(), Vec::new()));
    set_worth(None);
    assert_eq!((node.read(), node.holders()), (bytes(), vec![OTHER]));
}

#[test]
fn a_block_that_another_one_brings_is_waited_for() {
    let node = Node::new(&[Mood::Answers, Mood::Leases, Mood::Leases, Mood::Answers]);
    node.read().unwrap();
    assert_eq!(node.read(), bytes());
    assert_eq!((node.reads(), node.shards.asked()), (1, 4));
    let node = Node::new(&[Mood::Leases; 1000]);
    assert_eq!(node.read(), bytes());
    assert_eq!((node.reads(), node.shards.values.lock().len()), (1, 0), "the other one stores it");
}

#[test]
fn a_member_that_does_not_answer_costs_a_read_of_the_source() {
    let node = Node::new(&[Mood::IsSilent]);
    assert_eq!(node.read(), bytes());
    assert_eq!((node.reads(), node.shards.values.lock().len()), (1, 0), "it is not given a block");
}

#[test]
fn a_member_that_hangs_is_passed_over_and_its_late_answer_does_no_harm() {
    let node = Node::new(&[Mood::Hangs]);
    let reader = node.stand.read();
    let passes_over = || {
        node.stand.cache.pass_over();
        node.reads() == 1
    };
    wait_until(passes_over, "the source is never asked");
    assert_eq!(reader.recv_timeout(LIMIT).unwrap(), bytes());
    assert_eq!(node.shards.passed_over.load(Ordering::Relaxed), 1);
    wait_until(|| node.stand.cache.flights.is_empty(), "the flight never ends");
    let ask = node.shards.kept.lock().pop().unwrap();
    (ask.deliver)(Answer::Found(b"bytes".to_vec()));
    assert_eq!(node.read(), bytes());
    wait_until(|| node.stand.cache.memory.used() == 0, "memory stays charged");
}

#[test]
fn a_prefetch_waits_for_a_member_and_a_reader_joins_it() {
    let node = Node::new(&[Mood::Hangs]);
    node.stand.cache.prefetch(BLOCK, None);
    wait_until(|| node.shards.kept.lock().len() == 1, "no member is asked");
    std::thread::sleep(Duration::from_millis(30));
    node.stand.cache.pass_over();
    assert_eq!(node.reads(), 0, "nobody waits");
    let reader = node.stand.read();
    let ask = node.shards.kept.lock().pop().unwrap();
    (ask.deliver)(Answer::Found(b"bytes".to_vec()));
    assert_eq!(reader.recv_timeout(LIMIT).unwrap(), bytes());
    assert_eq!(node.reads(), 0);
}

#[test]
fn an_error_of_the_source_is_told_unless_a_member_has_the_bytes() {
    let node = Node::new(&[Mood::Answers, Mood::Hangs, Mood::Hangs]);
    node.read().unwrap();
    node.is_down.store(true, Ordering::Relaxed);
    for answer in [Answer::Found(b"bytes".to_vec()), Answer::Lacks(Lack::Missing)] {
        let (before, reader) = (node.reads(), node.stand.read());
        let passes_over = || {
            node.stand.cache.pass_over();
            node.reads() > before
        };
        wait_until(passes_over, "the source is never asked");
        let expected = match answer {
            Answer::Found(_) => bytes(),
            Answer::Lacks(_) => Err(ReadFailure::Errno(Errno::ESTALE)),
        };
        let ask = node.shards.kept.lock().pop().unwrap();
        (ask.deliver)(answer);
        assert_eq!(reader.recv_timeout(LIMIT).unwrap(), expected);
        wait_until(|| node.stand.cache.flights.is_empty(), "the flight never ends");
    }
}

#[test]
fn whatever_members_do_readers_get_the_bytes() {
    let mut random = ChaCha8Rng::seed_from_u64(24);
    let all = [Mood::Answers, Mood::Leases, Mood::IsSilent, Mood::Hangs];
    let moods: Vec<Mood> = (0..2000).map(|_| all[random.random_range(0..all.len())]).collect();
    let node = Node::new(&moods);
    while !node.shards.moods.lock().is_empty() {
        if random.random_bool(0.3) {
            node.stand.cache.prefetch(BLOCK, None);
        }
        let readers: Vec<_> = (0..random.random_range(1..3)).map(|_| node.stand.read()).collect();
        for reader in readers {
            let start = Instant::now();
            let answer = loop {
                match reader.recv_timeout(Duration::from_millis(5)) {
                    Ok(answer) => break answer,
                    Err(_) => node.stand.cache.pass_over(),
                }
                assert!(start.elapsed() < LIMIT, "a reader waits for ever");
            };
            assert_eq!(answer, bytes());
        }
        let late = std::mem::take(&mut *node.shards.kept.lock());
        for ask in late {
            match random.random_range(0..3) {
                0 => {
                    let answer = node.shards.answer(&ask);
                    (ask.deliver)(answer);
                }
                1 => (ask.deliver)(Answer::Lacks(Lack::Silent)),
                _ => (ask.deliver)(Answer::Lacks(Lack::Leased)),
            }
        }
        wait_until(|| node.stand.cache.flights.is_empty(), "a flight never ends");
    }
    wait_until(|| node.stand.cache.memory.used() == 0, "memory stays charged");
}
