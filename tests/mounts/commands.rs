//! `belady cache` when something is wrong with the disk or with a store.
//!
//! Goal: space can be freed when it is needed most, and an error of one store does not affect the others.
//! Method: a cache directory with the stores of two sources, and one fault.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::mount::{MntFlags, MsFlags};
use serde_json::Value;

use crate::faults::files_of_stores;
use crate::fixture::{Fixture, content, wait_until};
use crate::mounted::Mounted;
use crate::refused::Tmpfs;

/// Two sources, each of which has a store in this cache directory.
fn make_stores(fixture: &Fixture, cache: &Path) -> [PathBuf; 2] {
    fixture.write("file", b"x");
    fixture.write("../further/file", b"y");
    let sources = [fixture.path("source"), fixture.path("further")];
    let options = ["--cache-dir", cache.to_str().unwrap(), "--disk", "16MiB"];
    for source in &sources {
        Mounted::at(fixture, source, &fixture.path("mount"), &options).umount();
    }
    sources
}

fn list(fixture: &Fixture, cache: &str) -> Vec<Value> {
    serde_json::from_str(&fixture.run(0, &["cache", "ls", cache, "--json"])).unwrap()
}

#[test]
fn stores_are_deleted_where_no_file_can_be_made() {
    let fixture = Fixture::new();
    let disk = Tmpfs::new(&fixture, "disk", "size=64M,nr_inodes=200,mode=700");
    let cache = disk.0.join("cache");
    let [first, second] = make_stores(&fixture, &cache);
    let cache = cache.to_str().unwrap();
    let exhaust = |name: &str| {
        let all = (0..).take_while(|nth| File::create(disk.0.join(format!("{name}{nth}"))).is_ok());
        assert!(all.count() > 0);
        assert!(fs::create_dir(disk.0.join("more")).is_err());
    };
    exhaust("a");
    let said = fixture.run(0, &["cache", "rm", cache, first.to_str().unwrap()]);
    assert!(said.contains("deleted"), "{said}");
    assert_eq!(list(&fixture, cache)[0]["source"], second.to_str().unwrap());
    exhaust("b");
    fixture.run(0, &["cache", "gc", cache]);
    let said = fixture.run(0, &["cache", "gc", cache, "--unused", "0s"]);
    assert!(said.contains("deleted"), "{said}");
    assert!(list(&fixture, cache).is_empty());
}

#[test]
fn a_store_that_cannot_be_read_is_no_other_stores_trouble() {
    let fixture = Fixture::new();
    let cache = fixture.path("cache");
    make_stores(&fixture, &cache);
    let owners = files_of_stores(&cache, "owner");
    let [broken, whole] = [&owners[0], &owners[1]].map(|owner| owner.parent().unwrap());
    // A file that no sample needs.
    for store in [broken, whole] {
        fs::write(store.join("segment-00000099"), content(1, 1 << 20)).unwrap();
    }
    let bind = |flags| {
        let (from, none) = (Some(broken), None::<&str>);
        nix::mount::mount(from, broken, none, MsFlags::MS_BIND | flags, none).unwrap();
    };
    bind(MsFlags::empty());
    bind(MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY);
    let cache = cache.to_str().unwrap();
    let listed = list(&fixture, cache);
    assert_eq!(listed.len(), 2);
    for row in &listed {
        let is_broken = row["store"] == broken.file_name().unwrap().to_str().unwrap();
        assert_eq!(row["error"].is_string(), is_broken, "{row}");
        assert_eq!(row["samples"].is_null(), is_broken, "{row}");
    }
    assert!(fixture.run(0, &["cache", "ls", cache]).contains("cannot be read: Read-only"));
    assert!(fixture.run(5, &["cache", "gc", cache]).contains("Read-only"));
    let left = |store: &Path| store.join("segment-00000099").exists();
    assert_eq!((left(broken), left(whole)), (true, false));
    let said = fixture.run(5, &["cache", "gc", cache, "--unused", "0s"]);
    assert!(said.contains("deleted") && said.contains("Read-only"), "{said}");
    assert_eq!((broken.exists(), whole.exists()), (true, false));
    nix::mount::umount2(broken, MntFlags::MNT_DETACH).unwrap();
    fixture.run(0, &["cache", "gc", cache]);
    assert_eq!((list(&fixture, cache).len(), left(broken)), (1, false));
}

const FILES: u64 = 20;

/// A source's store that holds the whole source.
fn fill(fixture: &Fixture, cache: &str) {
    let mounted = Mounted::new(fixture, &["--cache-dir", cache, "--disk", "16MiB"]);
    fixture.run(0, &["warmup", mounted.point.to_str().unwrap()]);
    mounted.umount();
}

#[test]
fn what_the_disk_has_lost_is_named_and_no_success() {
    let fixture = Fixture::new();
    fixture.write_many("d", FILES, 30_000);
    let cache = fixture.path("cache");
    let file = |prefix: &str| files_of_stores(&cache, prefix).remove(0);
    let open = |prefix: &str| File::options().write(true).open(file(prefix)).unwrap();
    let text = cache.to_str().unwrap();
    let verify = |code| fixture.run(code, &["cache", "verify", text]);
    for damage in ["gone", "cut", "record"] {
        fill(&fixture, text);
        assert!(verify(0).contains(&format!("{FILES} samples checked, 0 damaged")));
        let named = match damage {
            "gone" => {
                fs::remove_file(file("segment-")).unwrap();
                "20 damaged"
            }
            "cut" => {
                open("segment-").set_len(8 * 32_768 - 1).unwrap();
                "damaged: segment-0000000"
            }
            _ => {
                open("index-").write_all_at(b"torn", 45).unwrap();
                "damaged: 1 records of the index"
            }
        };
        let said = verify(5);
        assert!(said.contains(named), "{damage}: {said}");
        // The damaged sample is dropped.
        assert!(verify(0).contains("0 damaged"), "{damage}");
    }
    // If the content of a store cannot be told, nothing is deleted either.
    fill(&fixture, text);
    open("index-").write_all_at(b"head", 3).unwrap();
    let before = files_of_stores(&cache, "");
    for _ in 0..2 {
        assert!(
            verify(5).contains("its index is gone or damaged, and all that was stored is lost")
        );
        assert_eq!(files_of_stores(&cache, ""), before);
    }
    let said = fixture.run(5, &["cache", "verify", text, "--json"]);
    assert!(said.contains("\"error\":"), "{said}");
    fixture.run(0, &["cache", "gc", text]);
    assert!(files_of_stores(&cache, "segment-").is_empty());
    fill(&fixture, text);
    verify(0);
}

/// A damaged index cannot be written anew if something stands in its way.
#[test]
fn what_is_lost_is_named_also_where_the_check_fails_later() {
    let fixture = Fixture::new();
    fixture.write_many("d", FILES, 30_000);
    let cache = fixture.path("cache");
    let text = cache.to_str().unwrap();
    fill(&fixture, text);
    let index = files_of_stores(&cache, "index-").remove(0);
    fs::create_dir(index.with_file_name("index-next")).unwrap();
    let index = File::options().write(true).open(index).unwrap();
    index.write_all_at(b"torn", 45).unwrap();
    let said = fixture.run(5, &["cache", "verify", text]);
    assert!(said.contains("damaged: 1 records of the index"), "{said}");
    assert!(said.contains("the index was damaged") && said.contains("File exists"), "{said}");
    assert!(!said.contains("samples were damaged"), "{said}");
    let said = fixture.run(5, &["cache", "verify", text, "--json"]);
    let rows: Vec<Value> = serde_json::from_str(said.lines().next().unwrap()).unwrap();
    assert_eq!(rows[0]["damaged_records"], 1, "{said}");
    assert!(rows[0]["error"].as_str().unwrap().contains("File exists"), "{said}");
}

#[test]
fn a_store_in_use_is_no_other_stores_trouble() {
    let fixture = Fixture::new();
    let cache = fixture.path("cache");
    let [first, second] = make_stores(&fixture, &cache);
    let cache = cache.to_str().unwrap();
    let [first, second] = [&first, &second].map(|source| source.to_str().unwrap());
    let mounted = Mounted::new(&fixture, &["--cache-dir", cache, "--disk", "16MiB"]);
    let said = fixture.run(0, &["cache", "verify", cache]);
    assert!(said.contains("0 damaged") && said.contains("skipped"), "{said}");
    let said = fixture.run(8, &["cache", "rm", cache, first, second]);
    assert!(said.contains("deleted") && said.contains("in use by process"), "{said}");
    assert_eq!(list(&fixture, cache).len(), 1);
    for verb in [&["verify", cache][..], &["gc", cache], &["rm", cache, "--all"]] {
        let said = fixture.run(0, &[&["cache"], verb].concat());
        assert!(said.contains("skipped") && said.contains(first), "{said}");
    }
    mounted.umount();
    let said = fixture.run(2, &["cache", "rm", cache, "none", first]);
    assert!(said.contains("deleted") && said.contains("no store 'none'"), "{said}");
}

/// A source that is formatted anew has another store at the same path.
#[test]
fn a_source_stands_for_all_its_stores() {
    let fixture = Fixture::new();
    let cache = fixture.path("cache");
    let [first, second] = make_stores(&fixture, &cache).map(|s| s.to_str().unwrap().to_owned());
    for owner in files_of_stores(&cache, "owner") {
        let text = fs::read_to_string(&owner).unwrap();
        fs::write(&owner, text.replace(&format!("{second:?}"), &format!("{first:?}"))).unwrap();
    }
    let cache = cache.to_str().unwrap();
    let said = fixture.run(0, &["cache", "verify", cache, &first, "--json"]);
    assert_eq!(serde_json::from_str::<Vec<Value>>(&said).unwrap().len(), 2);
    fixture.run(0, &["cache", "rm", cache, &first]);
    assert!(list(&fixture, cache).is_empty());
}

#[test]
fn a_store_whose_owner_is_not_known_is_seen_and_deleted() {
    let fixture = Fixture::new();
    let cache = fixture.path("cache");
    let [first, _] = make_stores(&fixture, &cache);
    for owner in files_of_stores(&cache, "owner") {
        fs::remove_file(owner).unwrap();
    }
    // These are not stores.
    let stores = cache.join("belady-store-v3");
    fs::create_dir(stores.join("mine")).unwrap();
    std::os::unix::fs::symlink(&first, stores.join("0123456789abcdef")).unwrap();
    fs::write(stores.join("0123456789abcdee"), "").unwrap();
    let text = cache.to_str().unwrap();
    let listed = list(&fixture, text);
    assert_eq!(listed.len(), 2);
    assert!(listed.iter().all(|row| row["source"] == "unknown" && row["in_use"] == false));
    let mounted = Mounted::at(
        &fixture,
        &first,
        &fixture.path("mount"),
        &["--cache-dir", text, "--disk", "16MiB"],
    );
    let owner = files_of_stores(&cache, "owner").remove(0);
    fs::remove_file(owner).unwrap();
    assert_eq!(list(&fixture, text).iter().filter(|row| row["in_use"] == true).count(), 1);
    fixture.run(0, &["cache", "rm", text, "--all"]);
    assert_eq!(list(&fixture, text).len(), 1, "the one in use");
    mounted.umount();
    fixture.run(0, &["cache", "gc", text, "--unused", "0s"]);
    assert!(list(&fixture, text).is_empty());
    assert_eq!(fs::read_dir(stores).unwrap().count(), 4, "the tag, and what is not ours");
}

/// Mounts the disk again, as soon as the daemon that wrote to it has ended.
fn remount(disk: &Tmpfs, how: &str) {
    let flags = if how == "ro" { MsFlags::MS_RDONLY } else { MsFlags::empty() };
    let none = None::<&str>;
    wait_until("nobody writes to the disk", || {
        match nix::mount::mount(none, &disk.0, none, MsFlags::MS_REMOUNT | flags, none) {
            Err(Errno::EBUSY) => false,
            mounted => mounted.map(|()| true).unwrap(),
        }
    });
}

#[test]
fn a_cache_disk_that_has_become_read_only_is_bypassed() {
    let fixture = Fixture::new();
    let disk = Tmpfs::new(&fixture, "disk", "size=64M,mode=700");
    let cache = disk.0.join("cache");
    make_stores(&fixture, &cache);
    let options = ["--cache-dir", cache.to_str().unwrap(), "--disk", "16MiB"];
    for (how, state) in [("ro", "down"), ("rw", "normal")] {
        remount(&disk, how);
        // Also a source that was never stored there.
        fixture.write("../third/file", b"x");
        for source in ["source", "third"].map(|name| fixture.path(name)) {
            let mounted = Mounted::at(&fixture, &source, &fixture.path("mount"), &options);
            assert_eq!(fs::read(mounted.path("file")).unwrap(), b"x");
            let status = mounted.status();
            assert!(status["disk_state"].as_str().unwrap().starts_with(state), "{status}");
            mounted.umount();
        }
    }
}
