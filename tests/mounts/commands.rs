//! `belady cache` where something is wrong with the disk or with a store.
//!
//! Goal: space can be had back when it is needed most, and what is wrong with one store is no
//! other's. Method: a cache directory with the stores of two sources, and one misfortune.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use nix::mount::{MntFlags, MsFlags};
use serde_json::Value;

use crate::faults::files_of_stores;
use crate::ground::{Ground, content};
use crate::mounted::Mounted;
use crate::refused::Tmpfs;

/// Two sources, each of which has a store in this cache directory.
fn make_stores(ground: &Ground, cache: &Path) -> [PathBuf; 2] {
    ground.plant("file", b"x");
    ground.plant("../further/file", b"y");
    let sources = [ground.path("source"), ground.path("further")];
    let options = ["--cache-dir", cache.to_str().unwrap(), "--nvme", "16MiB"];
    for source in &sources {
        Mounted::at(ground, source, &ground.path("mount"), &options).umount();
    }
    sources
}

fn list(ground: &Ground, cache: &str) -> Vec<Value> {
    serde_json::from_str(&ground.ends(0, &["cache", "ls", cache, "--json"])).unwrap()
}

#[test]
fn stores_are_deleted_where_no_file_can_be_made() {
    let ground = Ground::new();
    let disk = Tmpfs::new(&ground, "disk", "size=64M,nr_inodes=200,mode=700");
    let cache = disk.0.join("cache");
    let [first, second] = make_stores(&ground, &cache);
    let cache = cache.to_str().unwrap();
    let exhaust = |name: &str| {
        let all = (0..).take_while(|nth| File::create(disk.0.join(format!("{name}{nth}"))).is_ok());
        assert!(all.count() > 0);
        assert!(fs::create_dir(disk.0.join("more")).is_err());
    };
    exhaust("a");
    let said = ground.ends(0, &["cache", "rm", cache, first.to_str().unwrap()]);
    assert!(said.contains("deleted"), "{said}");
    assert_eq!(list(&ground, cache)[0]["source"], second.to_str().unwrap());
    exhaust("b");
    ground.ends(0, &["cache", "gc", cache]);
    let said = ground.ends(0, &["cache", "gc", cache, "--unused", "0s"]);
    assert!(said.contains("deleted"), "{said}");
    assert!(list(&ground, cache).is_empty());
}

#[test]
fn a_store_that_cannot_be_read_is_no_other_stores_trouble() {
    let ground = Ground::new();
    let cache = ground.path("cache");
    make_stores(&ground, &cache);
    let owners = files_of_stores(&cache, "owner");
    let [broken, whole] = [&owners[0], &owners[1]].map(|owner| owner.parent().unwrap());
    // What no sample needs.
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
    let listed = list(&ground, cache);
    assert_eq!(listed.len(), 2);
    for row in &listed {
        let is_broken = row["store"] == broken.file_name().unwrap().to_str().unwrap();
        assert_eq!(row["error"].is_string(), is_broken, "{row}");
        assert_eq!(row["samples"].is_null(), is_broken, "{row}");
    }
    assert!(ground.ends(0, &["cache", "ls", cache]).contains("cannot be read: Read-only"));
    assert!(ground.ends(5, &["cache", "gc", cache]).contains("Read-only"));
    let left = |store: &Path| store.join("segment-00000099").exists();
    assert_eq!((left(broken), left(whole)), (true, false));
    let said = ground.ends(5, &["cache", "gc", cache, "--unused", "0s"]);
    assert!(said.contains("deleted") && said.contains("Read-only"), "{said}");
    assert_eq!((broken.exists(), whole.exists()), (true, false));
    nix::mount::umount2(broken, MntFlags::MNT_DETACH).unwrap();
    ground.ends(0, &["cache", "gc", cache]);
    assert_eq!((list(&ground, cache).len(), left(broken)), (1, false));
}
