//! A local store over several mounts of its source.
//!
//! Goal: stored samples are there again, whatever ended the daemon before, and nothing is served that the
//! source does not have. Method: real mounts over a filesystem that counts reads. Daemons are killed while
//! they work, and every byte is compared.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use belady::disk::Directory;
use belady::store::{Key, Limits, ReadOutcome, Store, recorded_keys};
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::faults::{files_of_stores, is_saved};
use crate::fixture::{Choice, Fixture, check_many, content, wait_until};
use crate::mounted::{Mounted, Slowpfs};
use crate::programs::{Reader, signal, wait_for_end};

const FILES: u64 = 150;
const SIZE: usize = 30_000;

/// Files behind a filesystem that counts, and options for a cache directory.
struct Setup {
    slow: Slowpfs,
    fixture: Fixture,
    options: Vec<String>,
}

impl Setup {
    fn new(options: &[&str]) -> Self {
        let fixture = Fixture::new();
        fixture.write_many("d", FILES, SIZE);
        let slow = Slowpfs::new(&fixture, &[]);
        let cache = fixture.path("cache");
        let disk = ["--ram", "1MiB", "--cache-dir", cache.to_str().unwrap(), "--disk", "64MiB"];
        // Only what the tests read is counted, and no learned order is fetched ahead.
        let counted = ["--set", "order.learn=off", "--set", "cache.slow-after=1h"];
        let options =
            disk.iter().chain(&counted).chain(options).map(|word| (*word).to_owned()).collect();
        Setup { slow, fixture, options }
    }

    #[track_caller]
    fn mount(&self) -> Mounted {
        let options: Vec<&str> = self.options.iter().map(String::as_str).collect();
        Mounted::at(&self.fixture, &self.slow.point, &self.fixture.path("mount"), &options)
    }

    fn cache(&self) -> PathBuf {
        self.fixture.path("cache")
    }

    /// The only store, opened from outside.
    fn store(&self) -> Directory {
        let owner = files_of_stores(&self.cache(), "owner").remove(0);
        Directory::open(owner.parent().unwrap(), false).unwrap()
    }

    /// Whether the store has all of these samples, undamaged. It must not be in use.
    fn has_all(&self, samples: &[Key]) -> bool {
        let store = Store::open(Arc::new(self.store()), Limits::new(1 << 30, 0), 1).unwrap();
        samples.iter().all(|key| matches!(store.get(*key), ReadOutcome::Whole(_)))
    }

    /// Mounts, reads until everything is stored, and unmounts.
    #[track_caller]
    fn fill(&self) {
        let mounted = self.mount();
        wait_until("all is stored", || {
            check_many(&mounted.path(""), "d", FILES, SIZE);
            mounted.count("/disk/stored") >= FILES * SIZE.next_multiple_of(4096) as u64
        });
        mounted.umount();
    }
}

#[test]
fn what_is_stored_is_not_read_again_after_a_remount() {
    for order in [&[][..], &["--order", "torch-random:seed=1,index=path"]] {
        let setup = Setup::new(order);
        setup.fill();
        let before = setup.slow.count("bytes");
        assert!(before >= FILES * SIZE as u64);
        for _ in 0..2 {
            let mounted = setup.mount();
            wait_until("what is stored is known", || {
                mounted.count("/disk/kept") >= FILES * SIZE as u64
            });
            check_many(&mounted.path(""), "d", FILES, SIZE);
            assert_eq!(mounted.status()["disk_state"], "normal");
            assert_eq!(mounted.count("/source_bytes"), 0);
            mounted.umount();
            assert_eq!(setup.slow.count("bytes"), before, "the source was read");
        }
    }
}

/// More samples than may wait to be stored. The disk cannot take all of them in time. A later epoch stores the rest.
#[test]
fn a_later_epoch_reads_nothing_of_the_source() {
    const LARGE: usize = 1_000_000;
    let fixture = Fixture::new();
    fixture.write_many("d", FILES, LARGE);
    let slow = Slowpfs::new(&fixture, &[]);
    let cache = fixture.path("cache");
    let options =
        ["--ram", "16MiB", "--cache-dir", cache.to_str().unwrap(), "--order", "sequential"];
    let options = [&options[..], &["--set", "cache.slow-after=1h"]].concat();
    let mounted = Mounted::at(&fixture, &slow.point, &fixture.path("mount"), &options);
    wait_until("an epoch that reads nothing of the source", || {
        let before = slow.count("bytes");
        check_many(&mounted.path(""), "d", FILES, LARGE);
        slow.count("bytes") == before
    });
    assert!(mounted.count("/disk/stored") >= (FILES * LARGE as u64) / 10 * 8);
    mounted.umount();
}

/// Unmounts as the kernel's own command does. The daemon sees it afterwards.
#[track_caller]
fn outside(point: &Path) {
    wait_until("an unmount from outside", || {
        Command::new("umount").arg("-R").arg(point).output().unwrap().status.success()
    });
}

#[test]
fn a_mount_right_after_an_umount_has_the_store() {
    let setup = Setup::new(&[]);
    let mut before = setup.mount();
    check_many(&before.path(""), "d", FILES, SIZE);
    for end in ["umount", "outside", "umount", "outside"] {
        match end {
            "umount" => setup.fixture.umount(&before.point),
            _ => outside(&before.point),
        }
        let again = setup.mount();
        wait_until("what is stored is known", || again.count("/disk/kept") > 0);
        before.wait_until_gone();
        before = again;
    }
    check_many(&before.path(""), "d", FILES, SIZE);
    before.umount();
}

#[test]
fn files_that_changed_between_mounts_are_read_anew_and_only_they() {
    let setup = Setup::new(&[]);
    setup.fill();
    let before = setup.slow.count("bytes");
    // The same size, and the same time of modification.
    let old = fs::metadata(setup.fixture.source("d/0003")).unwrap().modified().unwrap();
    setup.fixture.write("d/0003", &content(1003, SIZE));
    let file = File::options().write(true).open(setup.fixture.source("d/0003")).unwrap();
    file.set_modified(old).unwrap();
    setup.fixture.write("d/0004", &content(1004, SIZE / 2));
    fs::remove_file(setup.fixture.source("d/0005")).unwrap();
    fs::rename(setup.fixture.source("d/0006"), setup.fixture.source("d/0005")).unwrap();
    let mounted = setup.mount();
    wait_until("the catalog is checked", || mounted.status()["catalog"] == "checked");
    let read = |name: &str| fs::read(mounted.path(name)).unwrap();
    for number in (0..FILES).filter(|number| !(3..7).contains(number)) {
        assert!(read(&format!("d/{number:04}")) == content(number, SIZE));
    }
    assert_eq!(setup.slow.count("bytes"), before);
    assert!(read("d/0003") == content(1003, SIZE) && read("d/0004") == content(1004, SIZE / 2));
    assert!(read("d/0005") == content(6, SIZE) && !mounted.path("d/0006").exists());
    assert!(setup.slow.count("bytes") > before);
    assert!(mounted.count("/disk/kept") < (FILES + 2) * (SIZE as u64 + 4096 + 128));
    mounted.umount();
}

#[test]
fn a_daemon_killed_again_and_again_leaves_a_store_that_is_right() {
    let setup = Setup::new(&[]);
    let mut choice = Choice(7);
    for round in 0..6 {
        let mounted = setup.mount();
        wait_until("what is stored is known", || round == 0 || mounted.count("/disk/kept") > 0);
        let root = mounted.path("");
        let mut order = Choice(round);
        let reader = Reader::start(move || {
            loop {
                let number = order.below(FILES);
                match fs::read(root.join(format!("d/{number:04}"))) {
                    Ok(bytes) => assert!(bytes == content(number, SIZE), "{number}"),
                    Err(_) => return,
                }
            }
        });
        let wanted = choice.below(FILES / 3) + 10;
        wait_until("samples are stored and read", || {
            mounted.count("/placed") >= wanted.min(20)
                || round > 0 && mounted.count("/opens") >= 4 * FILES
        });
        let before = recorded_keys(&setup.store()).unwrap();
        signal(mounted.pid, Signal::SIGKILL);
        reader.result();
        wait_for_end(mounted.pid);
        assert!(!before.is_empty() && setup.has_all(&before), "what was recorded is there");
    }
    let mounted = setup.mount();
    wait_until("what is stored is known", || mounted.count("/disk/kept") > 0);
    check_many(&mounted.path(""), "d", FILES, SIZE);
    assert_eq!((mounted.count("/store_errors"), mounted.count("/read_errors")), (0, 0));
    mounted.umount();
}

/// The catalog that a killed mount leaves may lack the last files that were stored.
#[test]
fn what_a_killed_mount_stored_of_files_that_came_late_is_served_by_the_next_one() {
    const MORE: u64 = 50;
    let setup = Setup::new(&["--set", "source.revalidate=1s"]);
    let mounted = setup.mount();
    wait_until("the catalog is saved", || is_saved(&setup.cache(), "catalog"));
    let catalog = files_of_stores(&setup.cache(), "owner")[0].with_file_name("catalog");
    let saved = fs::read(&catalog).unwrap();
    setup.fixture.write_many("late", MORE, SIZE);
    setup.fixture.write("d/0007", &content(1007, SIZE));
    let check_all = |mounted: &Mounted| {
        check_many(&mounted.path(""), "late", MORE, SIZE);
        for number in 0..FILES {
            let expected = content(if number == 7 { 1007 } else { number }, SIZE);
            let name = format!("d/{number:04}");
            assert!(fs::read(mounted.path(&name)).unwrap() == expected, "{name}");
        }
    };
    wait_until("what is new shows", || {
        mounted.path("late/0000").exists()
            && fs::read(mounted.path("d/0007")).is_ok_and(|bytes| bytes == content(1007, SIZE))
    });
    let stored = || -> u64 {
        let cache = setup.cache();
        let said = setup.fixture.run(0, &["cache", "ls", cache.to_str().unwrap(), "--json"]);
        serde_json::from_str::<Value>(&said).unwrap()[0]["samples"].as_u64().unwrap()
    };
    wait_until("all is stored", || {
        check_all(&mounted);
        stored() == FILES + MORE
    });
    signal(mounted.pid, Signal::SIGKILL);
    wait_for_end(mounted.pid);
    // As if the daemon had been killed before it saved the catalog again.
    fs::write(&catalog, saved).unwrap();
    let before = setup.slow.count("bytes");
    let mounted = setup.mount();
    wait_until("the catalog is checked", || mounted.status()["catalog"] == "checked");
    let pages = (SIZE as u64).next_multiple_of(4096);
    wait_until("all that is stored is known", || {
        mounted.count("/disk/kept") >= (FILES + MORE) * pages
    });
    check_all(&mounted);
    assert_eq!((setup.slow.count("bytes"), mounted.count("/source_bytes")), (before, 0));
    mounted.umount();
    assert_eq!(stored(), FILES + MORE, "what is of no file is given up");
}

#[test]
fn a_store_damaged_between_mounts_costs_no_byte() {
    let setup = Setup::new(&[]);
    for damage in ["index", "segment", "cut", "gone"] {
        setup.fill();
        let prefix = if damage == "index" { "index-" } else { "segment-" };
        for path in files_of_stores(&setup.cache(), prefix) {
            let file = File::options().write(true).open(&path).unwrap();
            let length = file.metadata().unwrap().len();
            match damage {
                "cut" => file.set_len(length / 2).unwrap(),
                "gone" => fs::remove_file(&path).unwrap(),
                _ => (length / 8..length)
                    .step_by(17_000)
                    .for_each(|at| file.write_all_at(&[0x5a; 3], at).unwrap()),
            }
        }
        let mounted = setup.mount();
        check_many(&mounted.path(""), "d", FILES, SIZE);
        assert_eq!(mounted.count("/read_errors"), 0, "{damage}");
        mounted.umount();
    }
}

#[test]
fn a_store_has_one_daemon_and_a_cache_directory_room_for_several() {
    let setup = Setup::new(&[]);
    fs::create_dir(setup.fixture.path("second")).unwrap();
    let first = setup.mount();
    let second = setup.fixture.path("second");
    let cache = setup.cache();
    let disk = ["--cache-dir", cache.to_str().unwrap(), "--disk", "64MiB", "-f"];
    let paths = [setup.slow.point.to_str().unwrap(), second.to_str().unwrap()];
    let said = setup.fixture.run(8, &[&["mount"][..], &paths, &disk].concat());
    assert!(said.contains("in use") && said.contains(&first.pid.to_string()), "{said}");
    // Another source has another store.
    let source = setup.fixture.path("source");
    let other = Mounted::at(&setup.fixture, &source, &second, &disk[..4]);
    check_many(&other.path(""), "d", FILES, SIZE);
    check_many(&first.path(""), "d", FILES, SIZE);
    other.umount();
    first.umount();
    assert_eq!(files_of_stores(&cache, "owner").len(), 2);
}

#[test]
fn a_smaller_budget_holds_from_the_next_mount_on() {
    let mut setup = Setup::new(&[]);
    setup.fill();
    setup.options[5] = "2MiB".into();
    let mounted = setup.mount();
    let bytes = || {
        files_of_stores(&setup.cache(), "segment-")
            .iter()
            .map(|path| std::os::unix::fs::MetadataExt::blocks(&path.metadata().unwrap()) * 512)
            .sum::<u64>()
    };
    wait_until("space is given back", || bytes() <= 2 << 20);
    check_many(&mounted.path(""), "d", FILES, SIZE);
    wait_until("what is stored is read", || mounted.count("/tier_bytes") > 0);
    assert!(mounted.count("/disk/kept") <= 2 << 20);
    mounted.umount();
}

#[test]
fn large_files_are_stored_as_files_and_read_again() {
    const SHARDS: u64 = 3;
    const SHARD: usize = (5 << 20) + 1234;
    let setup = Setup::new(&["--set", "cache.large-file=4MiB"]);
    setup.fixture.write_many("s", SHARDS, SHARD);
    let pages = |size: usize| size.next_multiple_of(4096) as u64;
    let stored = FILES * pages(SIZE) + SHARDS * pages(SHARD);
    let mounted = setup.mount();
    let check_all = |mounted: &Mounted| {
        check_many(&mounted.path(""), "d", FILES, SIZE);
        check_many(&mounted.path(""), "s", SHARDS, SHARD);
    };
    wait_until("all is stored", || {
        check_all(&mounted);
        mounted.count("/disk/stored") >= stored
    });
    mounted.umount();
    let files = files_of_stores(&setup.cache(), "file-");
    assert_eq!(files.len(), SHARDS as usize);
    let whole =
        |number| files.iter().any(|f| fs::read(f).unwrap()[..SHARD] == content(number, SHARD));
    assert!((0..SHARDS).all(whole), "a large file lies there as it is");
    let before = setup.slow.count("bytes");
    let mounted = setup.mount();
    check_all(&mounted);
    assert_eq!((setup.slow.count("bytes"), mounted.count("/source_bytes")), (before, 0));
    // One file is damaged in a block, one is cut, and one is deleted, all under the mount.
    let open = |nth: usize| File::options().write(true).open(&files[nth]).unwrap();
    open(0).write_all_at(&[0x5a; 3], 3 << 20).unwrap();
    open(1).set_len(2 << 20).unwrap();
    fs::remove_file(&files[2]).unwrap();
    wait_until("damage is found", || {
        check_all(&mounted);
        mounted.count("/store_errors") >= 3
    });
    wait_until("all is stored again", || {
        check_all(&mounted);
        mounted.count("/disk/stored") >= stored
    });
    assert_eq!(
        (mounted.count("/read_errors"), mounted.status()["disk_state"].as_str()),
        (0, Some("normal"))
    );
    mounted.umount();
    let cache = setup.cache();
    let cache = cache.to_str().unwrap();
    let listed = setup.fixture.run(0, &["cache", "ls", cache, "--json"]);
    let listed: Value = serde_json::from_str(&listed).unwrap();
    assert_eq!(
        (listed[0]["large_files"].as_u64(), listed[0]["samples"].as_u64()),
        (Some(3), Some(FILES + 18))
    );
    setup.fixture.run(0, &["cache", "verify", cache]);
    let damaged =
        File::options().write(true).open(&files_of_stores(&setup.cache(), "file-")[0]).unwrap();
    damaged.write_all_at(&[0x5a; 3], 1 << 20).unwrap();
    assert!(setup.fixture.run(5, &["cache", "verify", cache]).contains("1 damaged"));
    setup.fixture.run(0, &["cache", "gc", cache]);
    assert_eq!(files_of_stores(&setup.cache(), "file-").len(), 3);
    // A file that changes is another version: its stored bytes are given up.
    setup.fixture.write("s/0001", &content(101, SHARD / 2));
    let mounted = setup.mount();
    wait_until("space is given back", || files_of_stores(&setup.cache(), "file-").len() == 2);
    assert!(fs::read(mounted.path("s/0001")).unwrap() == content(101, SHARD / 2));
    mounted.umount();
}

#[test]
fn stores_are_listed_checked_and_deleted_by_commands() {
    let setup = Setup::new(&[]);
    let cache = setup.cache();
    let cache_text = cache.to_str().unwrap();
    let json = |words: &[&str]| -> Value {
        let said = setup.fixture.run(0, &[&["cache"], words, &["--json"]].concat());
        serde_json::from_str(&said).unwrap()
    };
    let list = || json(&["ls", cache_text]);
    setup.fill();
    let listed = list();
    assert_eq!(listed.as_array().unwrap().len(), 1, "{listed}");
    assert_eq!(
        (listed[0]["samples"].as_u64(), listed[0]["in_use"].as_bool()),
        (Some(FILES), Some(false))
    );
    assert_eq!(listed[0]["source"], setup.slow.point.to_str().unwrap());
    assert!(setup.fixture.run(0, &["cache", "ls", cache_text]).contains("min ago"));
    let mounted = setup.mount();
    assert_eq!(list()[0]["in_use"], true);
    assert_eq!(list()[0]["pid"], mounted.pid);
    let source = setup.slow.point.to_str().unwrap();
    assert!(setup.fixture.run(8, &["cache", "rm", cache_text, source]).contains("in use"));
    setup.fixture.run(8, &["cache", "verify", cache_text, source]);
    json(&["rm", cache_text, "--all"]);
    check_many(&mounted.path(""), "d", FILES, SIZE);
    mounted.umount();
    assert_eq!(json(&["verify", cache_text])[0]["checked"], FILES);
    let segment = &files_of_stores(&cache, "segment-")[0];
    File::options().write(true).open(segment).unwrap().write_all_at(&[0x5a; 3], 100_000).unwrap();
    assert!(setup.fixture.run(5, &["cache", "verify", cache_text]).contains("1 damaged"));
    assert_eq!(json(&["verify", cache_text])[0]["checked"], FILES - 1);
    assert_eq!(json(&["gc", cache_text, "--unused", "1d"])["deleted"].as_array().unwrap().len(), 0);
    // A mount of three days has just ended, so the store that it used is not unused.
    let owner = files_of_stores(&cache, "owner")[0].clone();
    let three_days_ago = SystemTime::now() - Duration::from_secs(3 * 86_400);
    let make_old =
        || File::options().write(true).open(&owner).unwrap().set_modified(three_days_ago);
    let gc =
        |unused| json(&["gc", cache_text, "--unused", unused])["deleted"].as_array().unwrap().len();
    let mounted = setup.mount();
    make_old().unwrap();
    check_many(&mounted.path(""), "d", FILES, SIZE);
    mounted.umount();
    assert_eq!(gc("1d"), 0);
    make_old().unwrap();
    assert!(setup.fixture.run(0, &["cache", "ls", cache_text]).contains("3 days ago"));
    assert_eq!((gc("4d"), gc("1d"), gc("1d")), (0, 1, 0));
    assert_eq!(list().as_array().unwrap().len(), 0);
    setup.fill();
    setup.fixture.run(2, &["cache", "rm", cache_text, "none"]);
    assert!(setup.fixture.run(0, &["cache", "rm", cache_text, source]).contains("deleted"));
    assert_eq!((list().as_array().unwrap().len(), files_of_stores(&cache, "").len()), (0, 0));
    check_many(&setup.fixture.path("source"), "d", FILES, SIZE);
}
