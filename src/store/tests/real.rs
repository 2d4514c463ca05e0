//! The store over a real directory, and over a disk that fails.

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Duration;

use nix::fcntl::{Flock, FlockArg};
use nix::libc;

use super::super::directory::{self, Owner};
use super::super::*;
use crate::disk::tests::model::{Model, bytes};
use crate::disk::{Directory, Space};
use crate::error::ErrorKind;
use crate::process::is_ending;

const MIB: u64 = 1 << 20;

fn open(path: &Path) -> Store {
    let disk = Arc::new(Directory::open(path, true).unwrap());
    Store::open(disk, Limits::new(1 << 30, 0), 99).unwrap()
}

fn whole(store: &Store, key: Key) -> Option<Vec<u8>> {
    match store.get(key) {
        ReadOutcome::Whole(bytes) => Some(bytes.to_vec()),
        ReadOutcome::Missing | ReadOutcome::Damaged => None,
    }
}

fn key(number: u128) -> Key {
    Key::new(number << 64 | (number + 5))
}

fn segments(path: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path());
    entries.filter(|path| path.to_str().unwrap().contains("segment-")).collect()
}

#[test]
fn what_is_put_is_what_is_got_also_at_the_next_open() {
    let directory = tempfile::tempdir().unwrap();
    let lengths = [0, 1, 4095, 4096, 4097, 110_000, 1 << 20];
    let store = open(directory.path());
    for (number, length) in lengths.into_iter().enumerate() {
        let sample = bytes(number as u128, length);
        assert!(store.put(&[(key(number as u128), &sample)]));
    }
    store.remove(&[key(2)]);
    for _ in 0..2 {
        for (number, length) in lengths.into_iter().enumerate() {
            let expected = (number != 2).then(|| bytes(number as u128, length));
            assert!(whole(&store, key(number as u128)) == expected, "sample {number}");
        }
        drop(open(directory.path()));
    }
    let again = open(directory.path());
    assert_eq!(again.totals(), store.totals());
    assert!((0..7).all(|n| whole(&again, key(n)) == whole(&store, key(n))));
    assert_eq!(again.state(), DiskState::Normal);
    let version = |byte| Fingerprint([byte; 40]);
    let made = store.key(Path::new("a"), &version(1), 0);
    assert_eq!(again.key(Path::new("a"), &version(1), 0), made, "the secret stays");
    for other in [
        store.key(Path::new("b"), &version(1), 0),
        store.key(Path::new("a"), &version(2), 0),
        store.key(Path::new("a"), &version(1), MIB),
    ] {
        assert_ne!(other, made);
    }
}

#[test]
fn damage_is_found_and_costs_only_what_is_damaged() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path());
    let sample = bytes(1, 5000);
    assert!(store.put(&[(key(1), &sample), (key(2), &sample)]));
    let file = fs::OpenOptions::new().write(true).open(&segments(directory.path())[0]).unwrap();
    file.write_all_at(b"X", 3000).unwrap();
    assert!(matches!(store.get(key(1)), ReadOutcome::Damaged));
    assert!(whole(&store, key(2)).unwrap() == sample);
    file.set_len(8192).unwrap();
    assert!(matches!(store.get(key(2)), ReadOutcome::Damaged), "cut off");
    assert!(!open(directory.path()).claim_read(key(2)), "known at open");
    assert_eq!(store.state(), DiskState::Normal, "the disk does what it is told");
}

/// Bytes that segments take, without what a filesystem may need to record their pieces.
fn used(directory: &Path) -> u64 {
    let bytes = |path: PathBuf| path.metadata().unwrap().blocks() * 512;
    segments(directory).into_iter().map(|path| bytes(path).saturating_sub(4 * 4096)).sum()
}

#[test]
fn freed_places_are_taken_again() {
    let directory = tempfile::tempdir().unwrap();
    let budget = 64 << 16;
    let limits = Limits { segment_bytes: 1 << 20, ..Limits::new(budget, 0) };
    let open = || {
        Store::open(Arc::new(Directory::open(directory.path(), true).unwrap()), limits, 99).unwrap()
    };
    let mut store = open();
    let samples: Vec<Vec<u8>> = (0..64).map(|number| bytes(number, 1 << 16)).collect();
    for round in 0..5 {
        for (number, sample) in samples.iter().enumerate() {
            let number = (number as u128) + round * 64;
            store.remove(&[key(number.checked_sub(64).unwrap_or(9999))]);
            assert!(store.put(&[(key(number), sample)]), "{number}");
        }
        assert!(used(directory.path()) <= budget, "{}", used(directory.path()));
        assert!(
            (0..64).all(|n| whole(&store, key(n + round * 64)).unwrap() == samples[n as usize])
        );
        store = open();
    }
    // Larger samples do not fit into places of smaller ones: that room goes back to the disk.
    store.remove(&(256..320).step_by(2).map(key).collect::<Vec<_>>());
    assert_eq!(store.idle_bytes(), budget / 2);
    let large = bytes(7, 3 << 16);
    assert!((1000..1010).all(|number| store.put(&[(key(number), &large)])));
    assert!(used(directory.path()) <= budget, "{}", used(directory.path()));
    assert!(
        (257..320).step_by(2).all(|n| whole(&store, key(n)).unwrap() == samples[n as usize - 256])
    );
    store.remove(&store.keys());
    assert!(segments(directory.path()).is_empty(), "nothing is in it any more");
}

#[test]
fn a_store_that_must_be_smaller_gives_space_back() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path());
    let samples: Vec<Vec<u8>> = (0..64).map(|number| bytes(number, 1 << 16)).collect();
    for (number, sample) in samples.iter().enumerate() {
        assert!(store.put(&[(key(number as u128), sample)]));
    }
    drop(store);
    let disk = Arc::new(Directory::open(directory.path(), true).unwrap());
    let smaller = Store::open(disk, Limits::new(10 << 16, 0), 99).unwrap();
    smaller.remove(&(0..60).map(key).collect::<Vec<_>>());
    assert!(used(directory.path()) <= 10 << 16, "{} bytes", used(directory.path()));
    assert!((60..64).all(|n| whole(&smaller, key(n)).unwrap() == samples[n as usize]));
}

#[test]
fn no_more_than_the_budget_is_stored() {
    let limits = Limits::new(10 * 4096, 0);
    let store = Store::open(Arc::new(Model::default()), limits, 1).unwrap();
    let sample = bytes(0, 4096);
    for number in 0..20 {
        assert_eq!(store.put(&[(key(number), &sample)]), number < 10);
    }
    assert!(!store.put(&[(key(99), &bytes(0, 4097))]));
    store.remove(&[key(0), key(1)]);
    assert!(store.put(&[(key(99), &bytes(0, 4097))]));
}

#[test]
fn a_disk_that_fails_is_bypassed() {
    let disk = Model::default();
    let store = Store::open(Arc::new(disk.clone()), Limits::new(1 << 30, 0), 1).unwrap();
    let sample = bytes(0, 4096);
    assert!(store.put(&[(key(1), &sample)]));
    disk.fail_writes(Some(libc::EIO));
    assert!(!store.put(&[(key(2), &sample)]));
    assert_eq!(store.state(), DiskState::Unstable);
    disk.fail_reads(Some(libc::EIO));
    for _ in 0..4 {
        assert!(whole(&store, key(1)).is_none());
    }
    assert!(store.state().is_down());
    assert!(!store.claim_read(key(1)) && !store.put(&[(key(2), &sample)]));
    let reopened = Store::open(Arc::new(disk), Limits::new(1 << 30, 0), 1);
    assert!(reopened.is_err(), "an index that cannot be made or read is told of");
}

#[test]
fn a_disk_that_is_full_takes_no_more_and_gives_what_it_has() {
    let disk = Model::default();
    let store = Store::open(Arc::new(disk.clone()), Limits::new(1 << 30, MIB), 1).unwrap();
    let sample = bytes(0, 4096);
    assert!(store.put(&[(key(1), &sample)]));
    disk.fail_writes(Some(libc::ENOSPC));
    disk.set_space(Some(Space { bytes: 0, total: 1 << 30, files: None }));
    assert!(!store.put(&[(key(2), &sample)]));
    assert!(store.state().is_full());
    assert!(whole(&store, key(1)).unwrap() == sample);
    disk.fail_writes(None);
    assert!(!store.put(&[(key(2), &sample)]), "asked again only after a while");
}

#[test]
fn an_index_that_somebody_deletes_is_written_again() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path());
    let sample = bytes(1, 5000);
    assert!(store.put(&[(key(1), &sample)]));
    fs::remove_file(directory.path().join("index-00000001")).unwrap();
    store.compact().unwrap();
    drop(store);
    assert!(whole(&open(directory.path()), key(1)).unwrap() == sample);
}

fn owner(source: &str) -> Owner {
    Owner::new(Path::new(source), 5)
}

#[test]
fn a_store_has_one_user_and_each_source_its_own() {
    let directory = tempfile::tempdir().unwrap();
    let cache = directory.path().join("a/cache");
    let first = directory::claim(&cache, &owner("/a")).unwrap();
    let error = directory::claim(&cache, &owner("/a")).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Busy);
    assert!(error.to_string().contains(&std::process::id().to_string()), "{error}");
    let second = directory::claim(&cache, &owner("/b")).unwrap();
    assert_ne!(first.path(), second.path());
    assert_ne!(Owner::new(Path::new("/a"), 6), owner("/a"), "another filesystem at the path");
    let found = directory::stores(&cache).unwrap();
    assert_eq!(found.len(), 2);
    assert!(found.iter().all(|store| store.in_use && store.owner.is_some()));
    let path = first.path().to_path_buf();
    drop(first);
    directory::discard(&cache, directory::claim(&cache, &owner("/a")).unwrap()).unwrap();
    assert!(!path.exists());
    let busy =
        directory::claim_existing(&cache, &directory::stores(&cache).unwrap()[0]).err().unwrap();
    assert_eq!(busy.kind(), ErrorKind::Busy);
    for made in [&cache, second.path()] {
        assert_eq!(made.metadata().unwrap().permissions().mode() & 0o777, 0o700);
    }
    assert!(fs::read_to_string(second.path().join("../CACHEDIR.TAG")).unwrap().contains("8a477f"));
}

/// A process that makes the owner file again has locked it, but is not the store's user.
#[test]
fn a_store_has_one_user_also_where_the_file_of_its_owner_is_deleted() {
    let directory = tempfile::tempdir().unwrap();
    let cache = directory.path();
    let first = directory::claim(cache, &owner("/a")).unwrap();
    fs::remove_file(first.path().join("owner")).unwrap();
    let error = directory::claim(cache, &owner("/a")).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
    let error =
        directory::claim_existing(cache, &directory::stores(cache).unwrap()[0]).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
    drop(first);
    directory::claim(cache, &owner("/a")).unwrap();
}

/// Also if the owner file, which its user has locked, is deleted.
#[test]
fn a_store_whose_use_is_about_to_end_is_waited_for() {
    std::thread::scope(|scope| {
        for deleted in [false, true] {
            scope.spawn(move || is_waited_for(deleted));
        }
    });
}

fn is_waited_for(deleted: bool) {
    let directory = tempfile::tempdir().unwrap();
    let cache = directory.path();
    let mut first = directory::claim(cache, &owner("/a")).unwrap();
    let lock = first.take_lock().unwrap();
    lock.announce_end();
    assert!(directory::stores(cache).unwrap()[0].in_use);
    if deleted {
        fs::remove_file(first.path().join("owner")).unwrap();
    }
    std::thread::scope(|scope| {
        let second = scope.spawn(|| directory::claim(cache, &owner("/a")).map(drop));
        // A store that is not being left would not be waited for so long.
        std::thread::sleep(Duration::from_secs(6));
        assert!(!second.is_finished());
        drop((first, lock));
        second.join().unwrap().unwrap();
    });
    // The next user is not about to leave.
    let third = directory::claim(cache, &owner("/a")).unwrap();
    assert_eq!(directory::claim(cache, &owner("/a")).err().unwrap().kind(), ErrorKind::Busy);
    drop(third);
}

#[test]
fn a_tag_that_was_cut_short_is_made_whole() {
    let directory = tempfile::tempdir().unwrap();
    let tag = directory.path().join("belady-store-v3/CACHEDIR.TAG");
    drop(directory::claim(directory.path(), &owner("/a")).unwrap());
    let whole = fs::read(&tag).unwrap();
    for cut in [0, 20] {
        fs::write(&tag, &whole[..cut]).unwrap();
        drop(directory::claim(directory.path(), &owner("/a")).unwrap());
        assert_eq!(fs::read(&tag).unwrap(), whole);
    }
}

/// If the holder of a lock is not visible here, it is in another container.
#[test]
fn who_is_not_seen_is_not_taken_for_one_that_ends() {
    let directory = tempfile::tempdir().unwrap();
    let cache = directory.path();
    let first = directory::claim(cache, &owner("/a")).unwrap();
    let mut child = std::process::Command::new("true").spawn().unwrap();
    let start = std::time::Instant::now();
    while !is_ending(child.id()) {
        assert!(start.elapsed() < Duration::from_secs(300), "a child that nobody waits for");
        std::thread::sleep(Duration::from_millis(1));
    }
    child.wait().unwrap();
    let elsewhere = Owner { pid: u32::MAX, ..owner("/a") };
    fs::write(first.path().join("owner"), serde_json::to_vec(&elsewhere).unwrap()).unwrap();
    let error = directory::claim(cache, &owner("/a")).err().unwrap();
    assert!(error.to_string().contains("another container"), "{error}");
}

#[test]
fn only_a_directory_of_ones_own_is_used() {
    let directory = tempfile::tempdir().unwrap();
    let link = directory.path().join("link");
    symlink("/tmp", &link).unwrap();
    let error = directory::claim(&link, &owner("/a")).err().unwrap();
    assert!(error.to_string().contains("link"), "{error}");
    let file = directory.path().join("file");
    fs::write(&file, "").unwrap();
    assert_eq!(directory::claim(&file, &owner("/a")).err().unwrap().kind(), ErrorKind::Cache);
}

#[test]
fn older_formats_go_and_nothing_else() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let others = ["belady-store-v99", "belady-store-mine", "belady-store-v+1", "belady-store-v01"];
    for name in others.iter().chain(&["belady-store-v1/x", "other", "v1"]) {
        fs::create_dir_all(at(name)).unwrap();
    }
    // A present store has the same tag as stores of all formats.
    let tag = directory::claim(&at("today"), &owner("/a")).unwrap().path().join("../CACHEDIR.TAG");
    for name in others.iter().chain(&["belady-store-v1"]) {
        fs::copy(&tag, at(name).join("CACHEDIR.TAG")).unwrap();
    }
    fs::create_dir_all(at("belady-store-v2/without-a-tag")).unwrap();
    fs::write(at("belady-store-v1/x/owner"), "").unwrap();
    let used = fs::File::open(at("belady-store-v1/x/owner")).unwrap();
    let lock = Flock::lock(used, FlockArg::LockExclusive).unwrap();
    directory::reclaim(directory.path()).unwrap();
    assert!(at("belady-store-v1/x/owner").exists(), "somebody uses it");
    drop(lock);
    fs::create_dir_all(at("belady-trash-left/store")).unwrap();
    symlink(at("other"), at("belady-trash-link")).unwrap();
    if nix::unistd::geteuid().is_root() {
        fs::create_dir(at("belady-trash-others")).unwrap();
        std::os::unix::fs::chown(at("belady-trash-others"), Some(1), None).unwrap();
    }
    directory::reclaim(directory.path()).unwrap();
    assert!(!at("belady-store-v1").exists() && !at("belady-trash-left").exists());
    for name in others.iter().chain(&["belady-store-v2/without-a-tag", "other", "v1"]) {
        assert!(at(name).exists(), "{name} is newer or not ours");
    }
    assert!(at("belady-trash-link").is_symlink());
    assert_eq!(at("belady-trash-others").exists(), nix::unistd::geteuid().is_root());
}

#[test]
fn a_store_that_is_smaller_than_a_sample_holds_nothing_and_takes_no_harm() {
    for budget in [0, 1, 4095] {
        let store = Store::open(Arc::new(Model::default()), Limits::new(budget, 0), 1).unwrap();
        assert!(!store.put(&[(key(1), b"x")]));
        assert!(store.put(&[]) && whole(&store, key(1)).is_none());
        store.remove(&[key(1)]);
        assert_eq!((store.totals(), store.state()), ((0, 0), DiskState::Normal));
    }
}

/// Readers meet samples that are stored, removed and replaced.
#[test]
fn reads_are_right_while_samples_come_and_go() {
    let directory = tempfile::tempdir().unwrap();
    let limits = Limits { segment_bytes: 1 << 18, ..Limits::new(1 << 20, 0) };
    let disk = Arc::new(Directory::open(directory.path(), true).unwrap());
    let store = Store::open(disk, limits, 99).unwrap();
    let contents: Vec<Vec<u8>> = (0..64).map(|n| bytes(n, 2000 + 700 * n as usize)).collect();
    let (over, found) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let (store, contents, over, found) = (&store, &contents, &over, &found);
        let reader = move |first: usize| {
            while !over.load(Ordering::Relaxed) {
                for n in (first..64).chain(0..first) {
                    if let ReadOutcome::Whole(read) = store.get(key(n as u128)) {
                        assert!(*read == contents[n], "sample {n}");
                        found.fetch_add(1, Ordering::Relaxed);
                    }
                }
            }
        };
        let readers: Vec<_> = (0..3).map(|nth| scope.spawn(move || reader(nth * 20))).collect();
        // At least until a reader has found a sample.
        let enough = |round: &u128| *round < 3000 || found.load(Ordering::Relaxed) == 0;
        for round in (0..).take_while(enough) {
            let (new, old) = ((round * 7 % 64), (round * 7 + 29) % 64);
            store.remove(&[key(old)]);
            // If the budget is full, the sample waits for its next turn.
            store.put(&[(key(new), &contents[new as usize])]);
        }
        over.store(true, Ordering::Relaxed);
        readers.into_iter().for_each(|reader| reader.join().unwrap());
    });
    assert!(used(directory.path()) <= 1 << 20);
}
