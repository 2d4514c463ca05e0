//! Buffers over several lives: what is held, decided and known is there again.

use std::path::Path;
use std::sync::Arc;

use super::displays;
use super::held::{Held, Taken};
use crate::cache::store::disk::Directory;
use crate::config::{Config, Host, Layers, RehearsalSettings};
use crate::fs::views::Access;
use crate::rehearsal::{Labels, SampleId};

fn settings(written: &[&str]) -> RehearsalSettings {
    let layers = Layers::new().set("cache.dir=/c").set("rehearsal.old.size=20");
    let layers =
        written.iter().fold(layers, |layers, set| layers.set(format!("rehearsal.old.{set}")));
    let (config, _): (Config, _) = layers.build().unwrap();
    let host = Host {
        memory_limit: 1 << 30,
        memory_available: 1 << 30,
        cores: 2,
        cache_free: Some((1 << 40, 1 << 40)),
    };
    config.resolve(&host).unwrap().rehearsal.remove(0)
}

fn open(directory: &Path, written: &[&str]) -> Held {
    let disk = Arc::new(Directory::open(directory, false).unwrap());
    Held::open(settings(written), Labels::default(), disk).unwrap()
}

fn bytes(n: u32) -> Vec<u8> {
    vec![n as u8; 50 + n as usize % 30]
}

/// Offers samples of ten classes; says which were kept.
fn offer(held: &mut Held, samples: std::ops::Range<u32>) -> usize {
    let mut kept = 0;
    for n in samples {
        let path = format!("train/c{}/{n}.jpg", n % 10);
        let access = Access { mode: 0o640, uid: 7, gid: 8 };
        if let Taken::Wanted(sample) =
            held.offer(Path::new(&path), (bytes(n).len() as u64, access), false)
        {
            held.pin(sample, &bytes(n));
            kept += 1;
        }
    }
    held.write();
    kept
}

/// What is shown is what was offered, each sample with its own bytes.
fn check(held: &Held) -> Vec<String> {
    let mut paths = Vec::new();
    for (class, files) in displays::all(held).classes {
        for file in files {
            let n: u32 = file.name.trim_end_matches(".jpg").parse().unwrap();
            let sample = file.sample().unwrap();
            assert_eq!(sample.source, format!("train/{class}/{n}.jpg"));
            assert_eq!(sample.pinned.read().unwrap(), bytes(n));
            assert_eq!(sample.access, Access { mode: 0o640, uid: 7, gid: 8 });
            paths.push(sample.source.clone());
        }
    }
    paths
}

#[test]
fn a_buffer_is_there_again() {
    let directory = tempfile::tempdir().unwrap();
    let mut held = open(directory.path(), &[]);
    offer(&mut held, 0..300);
    let shown = held.sample(&check(&held)[3]).unwrap();
    held.shown(shown);
    held.score(shown, 2.5).unwrap();
    held.begin_task(4, vec!["train/c1".to_owned()]);
    held.write();
    let (before, paths) = (held.buffer.clone(), check(&held));
    assert_eq!((before.len(), paths.len()), (20, 20));
    drop(held);
    let mut held = open(directory.path(), &[]);
    assert_eq!((&held.buffer, held.task), (&before, 4));
    assert_eq!(held.files, ["train/c1"]);
    assert_eq!(check(&held), paths);
    let member = held.buffer.get(shown).unwrap();
    assert_eq!((member.score, member.replays), (Some(2.5), 1));
    assert_eq!(offer(&mut held, 0..300), 0, "each is offered once");
    // It goes on as one that had never ended.
    let other = tempfile::tempdir().unwrap();
    let mut whole = open(other.path(), &[]);
    offer(&mut whole, 0..600);
    offer(&mut held, 300..600);
    assert_eq!(check(&held), check(&whole));
}

/// Wherever the journal is cut by a crash, what is left is a buffer that was.
#[test]
fn a_crash_leaves_a_buffer_that_was() {
    let whole = tempfile::tempdir().unwrap();
    offer(&mut open(whole.path(), &["size=5"]), 0..12);
    let name = std::fs::read_dir(whole.path()).unwrap().next().unwrap().unwrap().file_name();
    let journal = std::fs::read(whole.path().join(&name)).unwrap();
    for cut in (0..journal.len()).step_by(7) {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join(&name), &journal[..cut]).unwrap();
        let mut held = open(directory.path(), &["size=5"]);
        check(&held);
        assert_eq!(held.buffer.len(), check(&held).len(), "what is held has its bytes");
        offer(&mut held, 0..40);
        assert_eq!((held.buffer.len(), check(&held).len()), (5, 5));
    }
}

#[test]
fn other_rules_take_over_what_was_held() {
    let directory = tempfile::tempdir().unwrap();
    offer(&mut open(directory.path(), &[]), 0..300);
    let held = open(directory.path(), &["size=8", "policy=ring"]);
    let paths = check(&held);
    assert_eq!((paths.len(), held.buffer.len()), (8, 8));
    drop(held);
    let mut held = open(directory.path(), &["size=8", "policy=ring"]);
    assert_eq!(check(&held), paths);
    assert_eq!(offer(&mut held, 0..300), 0, "what was known is known");
    assert_eq!(offer(&mut held, 300..310), 10);
}

#[test]
fn dead_bytes_are_left_behind() {
    let directory = tempfile::tempdir().unwrap();
    let mut held = open(directory.path(), &["policy=ring"]);
    let large = vec![3; 1 << 20];
    for n in 0..150 {
        let path = format!("train/c/{n}.jpg");
        let taken = held.offer(Path::new(&path), (large.len() as u64, Access::default()), false);
        let Taken::Wanted(sample) = taken else { panic!("a ring keeps everything at first") };
        held.pin(sample, &large);
        held.write();
    }
    let files = std::fs::read_dir(directory.path()).unwrap();
    let on_disk: u64 = files.map(|file| file.unwrap().metadata().unwrap().len()).sum();
    assert!(on_disk < 110 << 20, "{on_disk}");
    let frozen = displays::all(&held);
    drop(held);
    let held = open(directory.path(), &["policy=ring"]);
    let files = &displays::all(&held).classes[0].1;
    assert_eq!(files.len(), 20);
    let whole =
        |file: &crate::fs::views::Exhibit| file.sample().unwrap().pinned.read().unwrap() == large;
    assert!(files.iter().all(whole) && frozen.classes[0].1.iter().all(whole));
}

#[test]
fn what_cannot_be_pinned_is_not_held() {
    let directory = tempfile::tempdir().unwrap();
    let mut held = open(directory.path(), &["root=train", "offer-rate=0.5"]);
    let mut take = |path: &str, bytes, named| {
        matches!(held.offer(Path::new(path), (bytes, Access::default()), named), Taken::Wanted(_))
    };
    assert!(!take("val/c/1.jpg", 10, false), "not below the root");
    assert!(take("val/c/1.jpg", 10, true), "but for who names it");
    assert!(!take("1.jpg", 10, true), "of no class");
    assert!(!take("train/c/1.jpg", 0, true) && !take("train/c/1.jpg", 1 << 40, true));
    let taken = (0..400).filter(|n| take(&format!("train/c{}/{n}.jpg", n % 10), 10, false)).count();
    let half = held.buffer.offers();
    assert!((150..250).contains(&half) && taken > 0, "{half} of 400 are offered");
    held.pin(SampleId(0), &[0; 9]);
    assert!(held.sample("val/c/1.jpg").is_none(), "other bytes than were offered");
    drop(held);
    let held = open(directory.path(), &["root=train", "offer-rate=0.5"]);
    assert!(held.buffer.is_empty(), "no bytes had come");
}
