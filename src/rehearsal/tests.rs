//! Buffers over several mounts: held samples, decisions and tasks are there again.

use std::path::Path;
use std::sync::Arc;

use nix::errno::Errno;
use nix::libc;
use rand::SeedableRng;
use rand::rngs::ChaCha8Rng;

use super::journaled::{JournaledBuffer, OfferedSample, hash_of};
use super::notes::{Notes, notes};
use super::record::Origin;
use super::snapshots;
use super::{answering, invalidate_beside};
use crate::buffer::Labels;
use crate::catalog::Catalog;
use crate::config::{Config, Host, Layers, RehearsalSettings, resolve};
use crate::disk::tests::model::Model;
use crate::disk::{Directory, Disk, Space};
use crate::fs::Access;
use crate::rehearsal::views::{ServedBuffer, Snapshot, SnapshotFile, View, Views};
use crate::source::{PosixSource, Source};

pub(super) fn views(notes: &Notes) -> Arc<Views> {
    let buffer = ServedBuffer {
        name: "old".to_owned(),
        seed: 1,
        distance: 0,
        slots: 1,
        changes: Arc::default(),
        progress: 0,
        codes: None,
    };
    Views::new(vec![buffer], notes.clone())
}

pub(super) fn settings(written: &[&str]) -> RehearsalSettings {
    let layers = Layers::new().set("cache.dir=/c").set("rehearsal.old.size=20");
    let layers =
        written.iter().fold(layers, |layers, set| layers.set(format!("rehearsal.old.{set}")));
    let (config, _): (Config, _) = layers.build().unwrap();
    let host = Host {
        memory_limit: 1 << 30,
        memory_available: 1 << 30,
        cores: 2,
        cache_free: Some((1 << 40, 1 << 40)),
        cache_in_memory: false,
        cache_hangs: false,
        cache_held: 0,
        buffers_held: 0,
    };
    resolve(&config, &host).unwrap().rehearsal.remove(0)
}

fn open_on(disk: Arc<dyn Disk>, written: &[&str]) -> JournaledBuffer {
    JournaledBuffer::open(settings(written), Labels::default(), disk, 0).unwrap()
}

fn open(directory: &Path, written: &[&str]) -> JournaledBuffer {
    open_on(Arc::new(Directory::open(directory, false).unwrap()), written)
}

/// Offers a file if the buffer takes it. Returns whether it is held.
fn offer_one(buffer: &mut JournaledBuffer, path: &str, bytes: &[u8]) -> bool {
    if !buffer.accepts(Path::new(path), bytes.len() as u64, false) {
        return false;
    }
    let class = buffer.class_of(Path::new(path)).unwrap();
    let access = Access { mode: 0o640, uid: 7, gid: 8 };
    let origin = Origin { path: path.to_owned(), access };
    let (hash, length) = (hash_of(path.as_bytes()), bytes.len() as u64);
    buffer.record_offer(OfferedSample { hash, class, bytes: length, origin }, bytes);
    buffer.sample_at(path).is_some()
}

fn bytes(n: u32) -> Vec<u8> {
    vec![n as u8; 50 + n as usize % 30]
}

fn path(n: u32) -> String {
    format!("train/c{}/{n}.jpg", n % 10)
}

/// Offers samples of ten classes. Returns how many were kept.
fn offer(buffer: &mut JournaledBuffer, samples: std::ops::Range<u32>) -> usize {
    let kept = samples.filter(|n| offer_one(buffer, &path(*n), &bytes(*n))).count();
    let _ = buffer.write();
    kept
}

/// Each shown sample has its own bytes and rights.
fn check(buffer: &JournaledBuffer) -> Vec<String> {
    let mut paths = Vec::new();
    for (class, files) in snapshots::all(buffer).classes {
        for file in files {
            let n: u32 = file.name.trim_end_matches(".jpg").parse().unwrap();
            let sample = file.sample().unwrap();
            assert_eq!(sample.source, format!("train/{class}/{n}.jpg"));
            assert_eq!(sample.bytes.read().unwrap(), bytes(n));
            assert_eq!(sample.access, Access { mode: 0o640, uid: 7, gid: 8 });
            paths.push(sample.source.clone());
        }
    }
    paths
}

#[test]
fn a_buffer_is_there_again() {
    let directory = tempfile::tempdir().unwrap();
    let mut buffer = open(directory.path(), &[]);
    offer(&mut buffer, 0..300);
    let shown = buffer.sample_at(&check(&buffer)[3]).unwrap();
    buffer.count_replay(shown);
    buffer.score(shown, 2.5).unwrap();
    buffer.begin_task(4, vec!["train/c1".to_owned()]);
    let _ = buffer.write();
    let (before, paths) = (buffer.buffer().clone(), check(&buffer));
    assert_eq!((before.len(), paths.len()), (20, 20));
    drop(buffer);
    let mut buffer = open(directory.path(), &[]);
    assert_eq!((buffer.buffer(), buffer.task()), (&before, 4));
    assert_eq!(buffer.files(), ["train/c1"]);
    assert_eq!(check(&buffer), paths);
    let member = buffer.buffer().get(shown).unwrap();
    assert_eq!((member.score, member.replays), (Some(2.5), 1));
    assert_eq!(offer(&mut buffer, 0..300), 0, "each is offered once");
    // It goes on like a buffer that was never closed.
    let other = tempfile::tempdir().unwrap();
    let mut whole = open(other.path(), &[]);
    offer(&mut whole, 0..600);
    offer(&mut buffer, 300..600);
    assert_eq!(check(&buffer), check(&whole));
}

/// Wherever a crash cuts the journal, the buffer is as it was earlier.
#[test]
fn a_crash_leaves_a_buffer_that_was() {
    let whole = tempfile::tempdir().unwrap();
    offer(&mut open(whole.path(), &["size=5"]), 0..12);
    let name = std::fs::read_dir(whole.path()).unwrap().next().unwrap().unwrap().file_name();
    let journal = std::fs::read(whole.path().join(&name)).unwrap();
    for cut in (0..journal.len()).step_by(7) {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join(&name), &journal[..cut]).unwrap();
        let mut buffer = open(directory.path(), &["size=5"]);
        check(&buffer);
        assert_eq!(buffer.buffer().len(), check(&buffer).len(), "what is held has its bytes");
        offer(&mut buffer, 0..40);
        assert_eq!((buffer.buffer().len(), check(&buffer).len()), (5, 5));
    }
}

#[test]
fn other_rules_take_over_what_was_held() {
    let directory = tempfile::tempdir().unwrap();
    offer(&mut open(directory.path(), &[]), 0..300);
    let buffer = open(directory.path(), &["size=8", "policy=ring"]);
    let paths = check(&buffer);
    assert_eq!((paths.len(), buffer.buffer().len()), (8, 8));
    drop(buffer);
    let mut buffer = open(directory.path(), &["size=8", "policy=ring"]);
    assert_eq!(check(&buffer), paths);
    assert_eq!(offer(&mut buffer, 0..300), 0, "what was known is known");
    assert_eq!(offer(&mut buffer, 300..310), 10);
}

/// With less room some samples leave, with more there is room for new ones. All else stays.
#[test]
fn another_size_is_the_same_buffer() {
    let directory = tempfile::tempdir().unwrap();
    let mut buffer = open(directory.path(), &[]);
    offer(&mut buffer, 0..300);
    let samples: Vec<_> = buffer.buffer().members().map(|member| member.sample).collect();
    for sample in samples {
        buffer.score(sample, sample.0 as f32).unwrap();
        buffer.count_replay(sample);
    }
    let _ = buffer.write();
    let before = check(&buffer);
    drop(buffer);
    for (size, expected) in [(8, 8), (30, 8)] {
        let buffer = open(directory.path(), &[&format!("size={size}")]);
        assert_eq!((buffer.buffer().len(), buffer.buffer().offers()), (expected, 300));
        assert!(check(&buffer).iter().all(|path| before.contains(path)));
        for member in buffer.buffer().members() {
            assert_eq!((member.score, member.replays), (Some(member.sample.0 as f32), 1));
        }
    }
    let mut buffer = open(directory.path(), &["size=30"]);
    assert_eq!(offer(&mut buffer, 0..300), 0, "each is offered once");
    offer(&mut buffer, 300..400);
    assert_eq!((buffer.buffer().len(), buffer.buffer().offers()), (30, 400));
    let (known, paths) = (buffer.buffer().clone(), check(&buffer));
    drop(buffer);
    let buffer = open(directory.path(), &["size=30"]);
    assert_eq!((buffer.buffer(), check(&buffer)), (&known, paths));
}

#[test]
fn dead_bytes_are_left_behind() {
    let directory = tempfile::tempdir().unwrap();
    let mut buffer = open(directory.path(), &["policy=ring"]);
    let large = vec![3; 1 << 20];
    for n in 0..150 {
        assert!(offer_one(&mut buffer, &format!("train/c/{n}.jpg"), &large));
        let _ = buffer.write();
    }
    let files = std::fs::read_dir(directory.path()).unwrap();
    let on_disk: u64 = files.map(|file| file.unwrap().metadata().unwrap().len()).sum();
    assert!(on_disk < 110 << 20, "{on_disk}");
    let frozen = snapshots::all(&buffer);
    drop(buffer);
    let buffer = open(directory.path(), &["policy=ring"]);
    let files = &snapshots::all(&buffer).classes[0].1;
    assert_eq!(files.len(), 20);
    let whole = |file: &SnapshotFile| file.sample().unwrap().bytes.read().unwrap() == large;
    assert!(files.iter().all(whole) && frozen.classes[0].1.iter().all(whole));
}

#[test]
fn accepted_files_are_below_the_root_and_have_a_class() {
    let directory = tempfile::tempdir().unwrap();
    let buffer = open(directory.path(), &["root=train", "offer-rate=0.5"]);
    let accepts = |path: &str, bytes, named| buffer.accepts(Path::new(path), bytes, named);
    assert!(!accepts("val/c/1.jpg", 10, false), "not below the root");
    assert!(accepts("val/c/1.jpg", 10, true), "but for who names it");
    assert!(!accepts("1.jpg", 10, true), "of no class");
    assert!(!accepts("train/c/1.jpg", 0, true) && !accepts("train/c/1.jpg", 1 << 40, true));
    let half = (0..400).filter(|n| accepts(&path(*n), 10, false)).count();
    assert!((150..250).contains(&half), "{half} of 400 are offered");
}

/// Records wait for a full disk, up to a limit.
#[test]
fn a_full_disk_is_waited_for_and_shows_nothing_that_is_not_on_it() {
    let disk = Model::default();
    drop(open_on(Arc::new(disk.clone()), &[]));
    disk.fail_writes(Some(libc::ENOSPC));
    let mut buffer = open_on(Arc::new(disk.clone()), &["policy=ring"]);
    let large = vec![3; 300 << 10];
    let kept = |n: &u32| buffer.ensure_room() && offer_one(&mut buffer, &path(*n), &large);
    assert_eq!((0..100).filter(kept).count(), 4);
    assert!(snapshots::all(&buffer).classes.is_empty() && !buffer.lasts());
    let stream = snapshots::stream(&mut buffer, 0);
    let frozen = || stream.classes.iter().flat_map(|(_, files)| files).filter_map(|f| f.sample());
    let written = || frozen().filter(|sample| sample.bytes.is_written()).count();
    assert_eq!((frozen().count(), written()), (4, 0));
    disk.fail_writes(None);
    buffer.sync().unwrap();
    assert!(buffer.lasts() && buffer.ensure_room());
    assert_eq!(written(), 4);
    let shown = |buffer: &JournaledBuffer| {
        snapshots::all(buffer).classes.iter().map(|(_, f)| f.len()).sum::<usize>()
    };
    assert_eq!(shown(&buffer), 4);
    drop(buffer);
    assert_eq!(shown(&open_on(Arc::new(disk), &["policy=ring"])), 4);
}

/// The buffer stays as it is until there is space.
#[test]
fn space_that_is_for_others_is_not_taken() {
    let disk = Model::default();
    let room = |bytes| Some(Space { bytes, total: 1 << 40, files: None });
    let open = || {
        let settings = settings(&["policy=ring"]);
        JournaledBuffer::open(settings, Labels::default(), Arc::new(disk.clone()), 1 << 30).unwrap()
    };
    disk.set_space(room((3 << 28) - 1));
    assert!(!open().ensure_room());
    disk.set_space(room(2 << 30));
    assert!(open().ensure_room());
}

/// Lost samples leave the buffer, and the journal is begun anew before any offer is written.
#[test]
fn a_buffer_goes_on_without_what_a_failed_sync_has_lost() {
    let disk = Model::default();
    let mut buffer = open_on(Arc::new(disk.clone()), &[]);
    assert_eq!(offer(&mut buffer, 0..10), 10);
    buffer.sync().unwrap();
    assert_eq!(offer(&mut buffer, 10..20), 10);
    disk.fail_syncs(Some(libc::EIO));
    buffer.sync().unwrap_err();
    assert!(buffer.write().is_ok() && !buffer.ensure_room() && !buffer.lasts());
    disk.fail_syncs(None);
    disk.edit("journal-00000001", |bytes| *bytes.last_mut().unwrap() ^= 1);
    buffer.sync().unwrap();
    assert!(buffer.lasts() && buffer.ensure_room());
    assert_eq!((buffer.buffer().len(), check(&buffer).len()), (19, 19));
    assert_eq!(disk.names().unwrap().len(), 1);
    let mut random = ChaCha8Rng::seed_from_u64(1);
    let again = open_on(Arc::new(disk.crash(disk.ops(), &mut random)), &[]);
    assert_eq!(check(&again), check(&buffer));
}

/// After any crash, a sample that was given up is there, or its successor.
#[test]
fn nothing_is_given_up_before_its_successor_is_there() {
    let disk = Model::default();
    let mut buffer = open_on(Arc::new(disk.clone()), &["policy=ring"]);
    assert_eq!(offer(&mut buffer, 0..20), 20);
    buffer.sync().unwrap();
    let before = check(&buffer);
    disk.fail_writes(Some(libc::ENOSPC));
    offer(&mut buffer, 20..60);
    drop(buffer);
    disk.fail_writes(None);
    assert_eq!(check(&open_on(Arc::new(disk.clone()), &["policy=ring"])), before);
    let mut buffer = open_on(Arc::new(disk.clone()), &["policy=ring"]);
    offer(&mut buffer, 20..60);
    buffer.sync().unwrap();
    let mut random = ChaCha8Rng::seed_from_u64(5);
    for cut in 1..=disk.ops() {
        for _ in 0..20 {
            let buffer = open_on(Arc::new(disk.crash(cut, &mut random)), &["policy=ring"]);
            assert_eq!(check(&buffer).len(), buffer.buffer().len());
        }
    }
}

#[test]
fn a_damaged_sample_is_given_up_and_may_be_offered_again() {
    let disk = Model::default();
    let mut buffer = open_on(Arc::new(disk.clone()), &[]);
    assert_eq!(offer(&mut buffer, 0..20), 20);
    let wrong = buffer.sample_at(&path(19)).unwrap();
    disk.edit("journal-00000001", |bytes| *bytes.last_mut().unwrap() ^= 1);
    disk.fail_reads(Some(libc::EIO));
    buffer.check_sample(wrong);
    assert_eq!(buffer.buffer().len(), 20, "an error is no damage");
    disk.fail_reads(None);
    buffer.check_sample(buffer.sample_at(&path(18)).unwrap());
    buffer.check_sample(wrong);
    assert_eq!((buffer.buffer().len(), check(&buffer).len()), (19, 19));
    assert_eq!(offer(&mut buffer, 19..20), 1);
    assert_eq!(check(&buffer).len(), 20);
}

/// It is not tried at every write, and a failed attempt leaves no file.
#[test]
fn a_rewrite_that_cannot_be_is_tried_later() {
    let disk = Model::default();
    let mut buffer = open_on(Arc::new(disk.clone()), &["policy=ring", "size=1"]);
    let large = vec![3; 16 << 20];
    let room = |bytes| Some(Space { bytes, total: 1 << 40, files: None });
    disk.set_space(room(1 << 20));
    (0..8).for_each(|n| {
        assert!(offer_one(&mut buffer, &path(n), &large));
        let _ = buffer.write();
    });
    let names = disk.names().unwrap();
    assert!(names.len() == 1 && names[0].1 > 8 * large.len() as u64, "{names:?}");
    disk.set_space(None);
    (8..14).for_each(|n| assert!(offer_one(&mut buffer, &path(n), &large)));
    let _ = buffer.write();
    let names = disk.names().unwrap();
    assert!(names.len() == 1 && names[0].1 < 2 * large.len() as u64, "{names:?}");
    drop(buffer);
    let buffer = open_on(Arc::new(disk), &["policy=ring", "size=1"]);
    assert_eq!((buffer.buffer().len(), snapshots::all(&buffer).classes.len()), (1, 1));
}

/// A mix of more files than a directory may have is refused before its draws are made.
#[test]
fn a_mix_of_too_many_files_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::create_dir(directory.path().join("new")).unwrap();
    std::fs::write(directory.path().join("new/1.jpg"), b"x").unwrap();
    let source: Arc<dyn Source> = Arc::new(PosixSource::open(directory.path(), 1).unwrap());
    let catalog = Catalog::scan(source, 1, None).unwrap();
    let mix = |replay: u32| {
        let sets = ["batch=1".to_owned(), format!("replay={replay}")];
        let mut buffer = open_on(Arc::new(Model::default()), &sets.each_ref().map(String::as_str));
        assert_eq!(offer(&mut buffer, 0..5), 5);
        snapshots::mix(&buffer, &catalog, 0)
    };
    let files = |snapshot: Snapshot| -> usize {
        snapshot.classes.iter().map(|(_, files)| files.len()).sum()
    };
    assert_eq!(mix(3).map(files), Ok(4));
    assert_eq!(mix(u32::MAX).map(files), Err(Errno::EOVERFLOW));
}

/// Names are invalidated when the buffer thread has changed them, even if the asking thread has given up.
#[test]
fn names_are_invalidated_also_if_nobody_waits_for_the_answer() {
    let (notes, _receiver) = notes();
    let mut views = views(&notes);
    let (invalidating, invalidated) = std::sync::mpsc::channel();
    views
        .snapshots
        .set_invalidate(Arc::new(move |_, name| invalidating.send(name.to_owned()).unwrap()));
    let begin = |views: &mut Arc<Views>| {
        views.snapshots.keep(0, View::TaskMix, Snapshot::default()).unwrap();
        views.snapshots.begin_task(0, true);
    };
    let beside = Arc::clone(&views);
    let (ask, answered) = answering(begin, move || invalidate_beside(beside));
    ask(&mut views);
    answered.recv().unwrap();
    assert!(invalidated.try_recv().is_err(), "who asked invalidates them");
    views.snapshots.invalidate_names();
    assert_eq!(invalidated.try_recv().as_deref(), Ok("mix"));
    let beside = Arc::clone(&views);
    let (ask, answered) = answering(begin, move || invalidate_beside(beside));
    drop(answered);
    ask(&mut views);
    let patience = std::time::Duration::from_secs(300);
    assert_eq!(invalidated.recv_timeout(patience).as_deref(), Ok("mix"));
}
