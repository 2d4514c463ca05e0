//! Which samples readers of slots find, and when they come too late.

use std::ffi::OsStr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::channel;

use nix::errno::Errno;
use rand::rngs::ChaCha8Rng;
use rand::{RngExt, SeedableRng};

use super::super::node::Node;
use super::super::tests::shown;
use super::super::{Content, Entry, EntryKind, SampleBytes, Snapshot, SnapshotFile, Views};
use super::*;
use crate::buffer::SampleId;
use crate::disk::journal::Journal;
use crate::disk::tests::model::Model;
use crate::fs::Access;

fn served(distance: usize, changes: Arc<AtomicU64>) -> ServedBuffer {
    let (name, slots) = ("old".to_owned(), 64);
    ServedBuffer { name, seed: 1, progress: 0, distance, slots, changes, codes: None }
}

/// The snapshot of a buffer with these samples, in two classes.
fn holding(samples: std::ops::Range<u32>) -> Snapshot {
    let mut journal = Journal::open(Arc::new(Model::default()), |_, _| ()).unwrap();
    let mut file = |n: u32| {
        let pinned = journal.append(b"x", &[1]).unwrap();
        let (id, access, source) = (SampleId(n), Access::default(), format!("d/{n}.jpg"));
        let bytes = SampleBytes::Pinned(pinned);
        let content = Content::Sample(Arc::new(KeptSample { id, hash: 0, source, access, bytes }));
        SnapshotFile { name: format!("{n:04}.jpg"), content }
    };
    let mut class = |of| samples.clone().filter(|n| n % 2 == of).map(&mut file).collect();
    let classes = vec![("even".to_owned(), class(0)), ("odd".to_owned(), class(1))];
    Snapshot { classes, bindings: None }
}

/// Names that readers look up. As in the kernel, a lookup forgets the node before.
struct Names {
    slots: Slots,
    found: HashMap<usize, u64>,
    now: Instant,
}

impl Names {
    fn look(&mut self, name: usize) -> (u64, u32) {
        let (node, reserved) = self.slots.reserve(0, None, self.now).expect("something is held");
        let sample = reserved.sample.id.0;
        if let Some(before) = self.found.insert(name, node) {
            self.slots.forget(before);
        }
        (node, sample)
    }

    fn open(&mut self, name: usize) -> u32 {
        let (node, sample) = self.look(name);
        self.slots.take(node);
        sample
    }
}

/// All names are looked up, and few opened. Then half of the buffer is replaced.
#[test]
fn samples_that_are_only_looked_up_come_back() {
    let mut slots = Slots::new(&[served(20, Arc::default())]);
    slots.buffers[0].renew(Some(1), Some(&holding(0..100)));
    let mut names = Names { slots, found: HashMap::new(), now: Instant::now() };
    for held in [0..100, 50..150, 100..130] {
        names.slots.buffers[0].renew(Some(1), Some(&holding(held.clone())));
        (0..64).for_each(|name| _ = names.look(name));
        names.now += PATIENCE;
        let (mut counts, mut last) = (HashMap::<u32, u32>::new(), HashMap::new());
        for turn in 0..5000 {
            let sample = names.open(turn % 8);
            *counts.entry(sample).or_default() += 1;
            let gap = last.insert(sample, turn).map_or(usize::MAX, |before| turn - before);
            assert!(gap >= 20 && held.contains(&sample), "{sample} of {held:?} after {gap}");
        }
        let (most, least) = (counts.values().max().unwrap(), counts.values().min().unwrap());
        assert!(counts.len() == held.len() && most - least <= 2, "{counts:?}");
    }
}

/// A sample is kept between its lookup and its opening.
#[test]
fn a_looked_up_sample_is_not_reserved_for_others() {
    let mut slots = Slots::new(&[served(20, Arc::default())]);
    slots.buffers[0].renew(Some(1), Some(&holding(0..50)));
    let mut names = Names { slots, found: HashMap::new(), now: Instant::now() };
    let (node, sample) = names.look(0);
    names.now += PATIENCE / 2;
    assert!((0..500).all(|turn| names.open(1 + turn % 8) != sample));
    names.slots.take(node);
    let (late, sample) = names.look(0);
    names.now += PATIENCE;
    assert!((0..50).any(|turn| names.open(1 + turn % 8) == sample), "it was given up on");
    assert!(names.slots.take(late).is_none(), "it is another's");
    assert!((0..19).all(|turn| names.open(1 + turn % 8) != sample));
    // After a refusal the slots wait longer.
    let (late, sample) = names.look(0);
    names.now += PATIENCE;
    assert!((0..500).all(|turn| names.open(1 + turn % 8) != sample));
    assert_eq!(names.slots.take(late).unwrap().1.id.0, sample);
    // The sample was released, and reserved for no other reader.
    let (late, sample) = names.look(0);
    names.now += PATIENCE_MAX;
    names.slots.release_old(names.now);
    assert_eq!(names.slots.take(late).unwrap().1.id.0, sample, "it is what was found");
    assert!((0..19).all(|turn| names.open(1 + turn % 8) != sample), "that counts as well");
}

fn look_up(views: &Arc<Views>, directory: u64, name: &str) -> Result<EntryKind, Errno> {
    let (send, found) = channel();
    let tell = move |entry: Result<Entry, Errno>| send.send(entry.map(|it| it.kind)).unwrap();
    views.lookup(directory, OsStr::new(name), 1, tell);
    found.recv().unwrap()
}

/// Samples without extension, of a class that has the name of a slot.
#[test]
fn a_class_goes_before_the_slot_of_its_name() {
    let make = || {
        let Snapshot { mut classes, .. } = holding(0..4);
        classes.truncate(1);
        let (class, files) = &mut classes[0];
        *class = "0001".to_owned();
        for SnapshotFile { content, .. } in files {
            let Content::Sample(sample) = content else { continue };
            Arc::make_mut(sample).source = "0001/sample".to_owned();
        }
        Snapshot { classes, bindings: None }
    };
    let views = shown(vec![served(4, Arc::default())], make);
    let slots = Node::Slots(0).number();
    let (send, listed) = channel();
    views.list(slots, 1, move |names| send.send(names.unwrap()).unwrap());
    let listed = listed.recv().unwrap();
    assert_eq!((listed.len(), &*listed[0].0, &*listed[63].0), (64, "0000", "0063"));
    let kinds = listed.iter().map(|(_, entry)| entry.kind == EntryKind::Directory);
    assert!(kinds.eq((0..64).map(|slot| slot == 1)));
    assert_eq!(look_up(&views, slots, "0001"), Ok(EntryKind::Directory));
    let class = Node::SlotClass(0, 0).number();
    assert!(matches!(look_up(&views, class, "0001"), Ok(EntryKind::File(..))));
}

/// Lookups of names that do not exist ask the buffer thread only after the buffer has changed.
#[test]
fn an_unchanged_buffer_is_not_looked_at_again() {
    let (changes, looks) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicUsize::new(0)));
    let served = served(4, Arc::clone(&changes));
    let looking = Arc::clone(&looks);
    let make = move || {
        looking.fetch_add(1, Ordering::Relaxed);
        Snapshot::default()
    };
    let views = shown(vec![served], make);
    let slots = Node::Slots(0).number();
    for change in 1..4 {
        for name in ["0000", "class", "no slot"] {
            assert_eq!(look_up(&views, slots, name), Err(Errno::ENOENT));
        }
        assert_eq!(looks.load(Ordering::Relaxed), change);
        changes.fetch_add(1, Ordering::Relaxed);
    }
}

/// As many classes as samples come and go. Each is found by its name, and keeps its number.
#[test]
fn classes_keep_their_numbers_however_many_there_are() {
    let mut slots = Slots::new(&[served(4, Arc::default())]);
    let named = |range: std::ops::Range<u32>| {
        let Snapshot { classes, .. } = holding(range);
        let files = classes.into_iter().flat_map(|(_, files)| files);
        let mut classes: Vec<_> =
            files.map(|file| (format!("c{}", file.name), vec![file])).collect();
        classes.sort_by(|(a, _), (b, _)| a.cmp(b));
        Snapshot { classes, bindings: None }
    };
    let mut numbers = HashMap::new();
    for held in [0..2000, 1000..5000, 0..5000] {
        slots.buffers[0].renew(Some(1), Some(&named(held.clone())));
        assert_eq!(slots.buffers[0].classes().count(), held.len());
        for n in 0..5000 {
            let name = format!("c{n:04}.jpg");
            let number = slots.buffers[0].class(&name);
            assert_eq!(number.is_some(), held.contains(&n), "{name} of {held:?}");
            let Some(number) = number else { continue };
            assert_eq!(*numbers.entry(n).or_insert(number), number, "{name} of {held:?}");
            let (_, reserved) = slots.reserve(0, Some(number), Instant::now()).unwrap();
            assert_eq!((&reserved.label, reserved.sample.id.0), (&name, n));
        }
    }
}

/// Readers wait at random between lookup and opening, at the slots of one class and of all samples.
#[test]
fn nothing_repeats_within_the_distance_however_late_readers_come() {
    let mut random = ChaCha8Rng::seed_from_u64(8);
    for class in [None, Some(1)] {
        let mut slots = Slots::new(&[served(20, Arc::default())]);
        slots.buffers[0].renew(Some(1), Some(&holding(0..120)));
        let (mut now, mut readers, mut refused) = (Instant::now(), Vec::new(), 0);
        let (mut counts, mut last) = (HashMap::<u32, u32>::new(), HashMap::new());
        let mut taken = 0;
        while taken < 20_000 {
            if readers.len() < 8 {
                readers.push(slots.reserve(0, class, now).unwrap().0);
                continue;
            }
            now += Duration::from_millis(random.random_range(0..4000));
            let node = readers.swap_remove(random.random_range(0..8));
            if let Some((_, sample, _)) = slots.take(node) {
                let gap = last.insert(sample.id.0, taken).map_or(20, |before| taken - before);
                assert!(gap >= 20, "{} after {gap}", sample.id.0);
                *counts.entry(sample.id.0).or_default() += 1;
                taken += 1;
            } else {
                // The reader looks the name up again.
                refused += 1;
            }
            slots.forget(node);
        }
        assert!(refused > 0, "nobody came too late");
        assert_eq!(counts.len(), if class.is_none() { 120 } else { 60 });
    }
}
