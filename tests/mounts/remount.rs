//! The catalog over several mounts of a source.
//!
//! Goal: a remount serves everything before it asks the source anything. A change, made while mounted or not,
//! shows within the configured time, and is never mixed with what was there before. Method: a source that
//! answers nothing, and every way in which files change, with the whole tree compared as soon as the time is
//! over. How much longer it takes depends on the machine. `catalog::tests::time` checks that an answer is
//! never older than allowed.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use nix::libc;
use nix::sys::signal::Signal;

use crate::changes::{version, version_of};
use crate::faults::{files_of_stores, is_saved};
use crate::fixture::{Fixture, LIMIT, check_many, content, wait_until};
use crate::mounted::{Mounted, Slowpfs};
use crate::programs::{signal, wait_for_end};
use crate::refused::Tmpfs;

const PERIOD: Duration = Duration::from_secs(1);

/// Time beyond the period: the kernel's clock is coarse, and the machine may be busy.
const GRAIN: Duration = Duration::from_millis(100);
const LATEST: Duration = LIMIT;

const SIZE: usize = 24_000;

fn options(fixture: &Fixture) -> Vec<String> {
    let cache = fixture.path("cache");
    let words = ["--cache-dir", cache.to_str().unwrap(), "--disk", "64MiB", "--ram", "1MiB"];
    let more = ["--set", "source.revalidate=1s", "--set", "order.learn=off"];
    words.iter().chain(&more).map(|word| (*word).to_owned()).collect()
}

#[track_caller]
fn mount_of(fixture: &Fixture, source: &Path, more: &[&str]) -> Mounted {
    let options = options(fixture);
    let options: Vec<&str> =
        options.iter().map(String::as_str).chain(more.iter().copied()).collect();
    Mounted::at(fixture, source, &fixture.path("mount"), &options)
}

#[track_caller]
fn mount(fixture: &Fixture) -> Mounted {
    mount_of(fixture, &fixture.path("source"), &[])
}

/// The content of a path: a directory, a link's target, or the version and size of a file.
#[derive(Debug, PartialEq, Eq)]
enum Thing {
    Directory,
    Link(PathBuf),
    File(u32, usize),
}

/// Everything below a directory. Each file must have one version.
fn tree(root: &Path) -> BTreeMap<PathBuf, Thing> {
    found(root).unwrap()
}

/// The same, or an error if something changes meanwhile.
fn found(root: &Path) -> io::Result<BTreeMap<PathBuf, Thing>> {
    let mut found = BTreeMap::new();
    let mut queue = vec![PathBuf::new()];
    while let Some(directory) = queue.pop() {
        for entry in fs::read_dir(root.join(&directory))? {
            let path = directory.join(entry?.file_name());
            let at = root.join(&path);
            let kind = fs::symlink_metadata(&at)?.file_type();
            let thing = if kind.is_dir() {
                queue.push(path.clone());
                Thing::Directory
            } else if kind.is_symlink() {
                Thing::Link(fs::read_link(&at)?)
            } else {
                let bytes = fs::read(&at)?;
                Thing::File(version_of(&bytes, 0), bytes.len())
            };
            found.insert(path, thing);
        }
    }
    Ok(found)
}

/// The files that will change, and some that will not.
fn write_files(fixture: &Fixture) {
    for name in [
        "stays",
        "same",
        "over",
        "cut",
        "grown",
        "emptied",
        "removed",
        "to-dir",
        "d/stays",
        "d/over",
        "d/removed",
        "replaced/a",
        "replaced/b",
        "to-file/inside",
        "swap/1",
        "swap/2",
        "linked",
        "deep/er/file",
    ] {
        fixture.write(name, &version(1, SIZE));
    }
    fs::hard_link(fixture.source("linked"), fixture.source("d/link")).unwrap();
    fs::hard_link(fixture.source("linked"), fixture.source("link")).unwrap();
    symlink("same", fixture.source("pointer")).unwrap();
}

/// Changes files in every way, all within a moment.
fn change(fixture: &Fixture) {
    let at = |name: &str| fixture.source(name);
    let rename = |from: &str, to: &str| fs::rename(at(from), at(to)).unwrap();
    // In place, with the same size and the very same time of modification.
    let old = fs::metadata(at("same")).unwrap().modified().unwrap();
    fixture.write("same", &version(2, SIZE));
    File::options().write(true).open(at("same")).unwrap().set_modified(old).unwrap();
    // Replaced by a rename, with the old time.
    for name in ["over", "d/over"] {
        fixture.write("../new", &version(2, SIZE));
        let file = File::options().write(true).open(fixture.path("new")).unwrap();
        file.set_modified(old).unwrap();
        fs::rename(fixture.path("new"), at(name)).unwrap();
    }
    File::options().write(true).open(at("cut")).unwrap().set_len(4096).unwrap();
    fixture.write("grown", &version(2, SIZE + (2 << 20)));
    fixture.write("emptied", &[]);
    fs::remove_file(at("removed")).unwrap();
    fs::remove_file(at("d/removed")).unwrap();
    fs::remove_file(at("to-dir")).unwrap();
    fixture.write("to-dir/new", &version(2, SIZE));
    fs::remove_dir_all(at("to-file")).unwrap();
    fixture.write("to-file", &version(2, SIZE));
    // Another directory of the same name, with the same names in it.
    fixture.write("other/a", &version(2, SIZE));
    fixture.write("other/c", &version(2, SIZE));
    rename("replaced", "was-replaced");
    rename("other", "replaced");
    // Two files change places.
    rename("swap/1", "swap/3");
    rename("swap/2", "swap/1");
    rename("swap/3", "swap/2");
    fixture.write("swap/1", &version(2, SIZE));
    // Of three names, one becomes another file and one is gone.
    fs::remove_file(at("linked")).unwrap();
    fixture.write("../new", &version(2, SIZE));
    fs::rename(fixture.path("new"), at("d/link")).unwrap();
    fs::remove_file(at("pointer")).unwrap();
    symlink("over", at("pointer")).unwrap();
    fixture.write("d/new", &version(2, SIZE));
    fixture.write("deep/er/est/new", &version(2, SIZE));
}

/// Reads files until the time is over: each gives the old or the new version, and never goes back.
fn read_meanwhile(root: &Path, until: Instant) {
    let mut newest: BTreeMap<&str, u32> = BTreeMap::new();
    while Instant::now() < until {
        for name in ["stays", "same", "over", "cut", "grown", "d/over", "replaced/a", "d/link"] {
            let bytes = match fs::read(root.join(name)) {
                Ok(bytes) => bytes,
                Err(error) => {
                    assert_eq!(error.raw_os_error(), Some(libc::ESTALE), "{name}: {error}");
                    continue;
                }
            };
            let seen = version_of(&bytes, 0);
            let newest = newest.entry(name).or_default();
            assert!((1..=2).contains(&seen) && seen >= *newest, "{name}: {seen} after {newest}");
            *newest = seen;
        }
    }
}

/// When the time is over, the tree is that of the source and stays so. If the daemon had no processor to
/// look, this is so a little later.
#[track_caller]
fn check_true_in_time(fixture: &Fixture, mounted: &Mounted, since: Instant) {
    read_meanwhile(&mounted.path(""), since + PERIOD);
    let truth = tree(&fixture.path("source"));
    let is_true = || found(&mounted.path("")).is_ok_and(|found| found == truth);
    while !is_true() && since.elapsed() < LATEST {
        thread::sleep(GRAIN);
    }
    for _ in 0..3 {
        let found = tree(&mounted.path(""));
        assert_eq!(found, truth);
        for (path, thing) in found {
            if let Thing::File(_, length) = thing {
                assert_eq!(fs::metadata(mounted.path(&path)).unwrap().len(), length as u64);
            }
        }
    }
}

#[test]
fn what_changes_while_mounted_shows_in_time() {
    let fixture = Fixture::new();
    write_files(&fixture);
    let mounted = mount(&fixture);
    for _ in 0..2 {
        assert_eq!(tree(&mounted.path("")), tree(&fixture.path("source")));
    }
    change(&fixture);
    check_true_in_time(&fixture, &mounted, Instant::now());
    mounted.umount();
}

#[test]
fn what_changes_while_unmounted_shows_in_time() {
    for killed in [false, true] {
        let fixture = Fixture::new();
        write_files(&fixture);
        let mounted = mount(&fixture);
        wait_until("all is stored", || {
            assert_eq!(tree(&mounted.path("")), tree(&fixture.path("source")));
            mounted.count("/disk/stored") >= 16 * SIZE.next_multiple_of(4096) as u64
        });
        wait_until("the catalog is saved", || is_saved(&fixture.path("cache"), "catalog"));
        if killed {
            signal(mounted.pid, Signal::SIGKILL);
            wait_for_end(mounted.pid);
        } else {
            mounted.umount();
        }
        change(&fixture);
        let mounted = mount(&fixture);
        let since = Instant::now();
        assert_ne!(mounted.status()["catalog"], "scanned");
        check_true_in_time(&fixture, &mounted, since);
        wait_until("the check is over", || mounted.status()["catalog"] == "checked");
        mounted.umount();
        // The changes that were found are saved: the next mount has nothing to find.
        let mounted = mount(&fixture);
        assert_eq!(tree(&mounted.path("")), tree(&fixture.path("source")));
        mounted.umount();
    }
}

/// Names and attributes of everything below a directory.
fn listing(root: &Path) -> BTreeMap<PathBuf, (u64, i64, u32)> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(root).unwrap() {
        let path = entry.unwrap().path();
        let meta = fs::symlink_metadata(&path).unwrap();
        if meta.is_dir() {
            found.extend(listing(&path));
        }
        found.insert(path, (meta.len(), meta.mtime_nsec(), meta.mode()));
    }
    found
}

/// A directory of 300 files behind a filesystem that can be made to answer nothing.
fn slow_fixture() -> (Fixture, Slowpfs) {
    let fixture = Fixture::new();
    fixture.write_many("d/a", 200, 100);
    fixture.write_many("d/b", 100, 100);
    let slow = Slowpfs::new(&fixture, &[]);
    (fixture, slow)
}

/// Mounts while the source answers nothing below its root, and walks through everything.
#[track_caller]
fn serves_without_its_source(
    fixture: &Fixture,
    slow: &Slowpfs,
    expected: &BTreeMap<PathBuf, (u64, i64, u32)>,
) {
    slow.ctl(&["fault", "hang", "d*", "ops=lookup,getattr,opendir,readdir"]);
    let mounted = mount_of(fixture, &slow.point, &["--set", "source.revalidate=1h"]);
    assert_eq!(mounted.status()["catalog"], "checking");
    assert_eq!(&listing(&mounted.path("")), expected);
    slow.ctl(&["fault", "clear"]);
    wait_until("the check is over", || mounted.status()["catalog"] == "checked");
    check_many(&mounted.path(""), "d/a", 200, 100);
    mounted.umount();
}

#[test]
fn a_remount_serves_all_names_while_the_source_answers_nothing() {
    let (fixture, slow) = slow_fixture();
    let mounted = mount_of(&fixture, &slow.point, &[]);
    let expected = listing(&mounted.path(""));
    assert_eq!(expected.len(), 303);
    mounted.umount();
    for _ in 0..2 {
        serves_without_its_source(&fixture, &slow, &expected);
    }
}

#[test]
fn a_catalog_that_is_damaged_or_not_to_be_trusted_is_scanned_anew() {
    let fixture = Fixture::new();
    fixture.write_many("d", 50, 100);
    mount(&fixture).umount();
    let saved = files_of_stores(&fixture.path("cache"), "catalog").remove(0);
    let whole = fs::read(&saved).unwrap();
    for damage in ["none", "bit", "cut", "empty", "writable", "others"] {
        match damage {
            "bit" => fs::write(&saved, whole.iter().rev().copied().collect::<Vec<_>>()).unwrap(),
            "cut" => fs::write(&saved, &whole[..whole.len() / 2]).unwrap(),
            "empty" => fs::write(&saved, []).unwrap(),
            "writable" => fs::set_permissions(&saved, PermissionsExt::from_mode(0o622)).unwrap(),
            "others" => chown(&saved, Some(12345), None).unwrap(),
            _ => {}
        }
        let mounted = mount(&fixture);
        assert_eq!(mounted.status()["catalog"] == "scanned", damage != "none", "{damage}");
        check_many(&mounted.path(""), "d", 50, 100);
        mounted.umount();
        // The useless catalog is replaced.
        let mounted = mount(&fixture);
        assert_ne!(mounted.status()["catalog"], "scanned", "after {damage}");
        mounted.umount();
    }
}

#[test]
fn an_order_is_of_the_files_that_there_are_and_not_of_those_that_were() {
    let fixture = Fixture::new();
    fixture.write_many("d", 20, 100);
    mount(&fixture).umount();
    fixture.write("d/new", &content(7, 100));
    fs::remove_file(fixture.source("d/0003")).unwrap();
    let length = |mounted: &Mounted| mounted.status()["orders"][0]["length"].as_u64();
    // A list of files, one of which the catalog does not know yet.
    let list = fixture.path("list");
    fs::write(&list, "d/new\nd/0000\n").unwrap();
    let mounted = mount_of(&fixture, &fixture.path("source"), &["--order", list.to_str().unwrap()]);
    wait_until("the order", || length(&mounted) == Some(2));
    mounted.umount();
    fixture.write("d/newer", &content(8, 100));
    let mounted = mount_of(&fixture, &fixture.path("source"), &["--order", "torch-random:seed=1"]);
    wait_until("the order of all files", || length(&mounted) == Some(21));
    mounted.umount();
}

#[test]
fn a_catalog_of_another_filesystem_is_refused_though_its_root_has_the_same_number() {
    let fixture = Fixture::new();
    let disks = ["one", "two"].map(|name| Tmpfs::new(&fixture, name, "size=1M,mode=700"));
    let inodes = disks.each_ref().map(|disk| fs::metadata(&disk.0).unwrap().ino());
    assert_eq!(inodes[0], inodes[1]);
    disks.iter().for_each(|disk| fs::write(disk.0.join("file"), "x").unwrap());
    let [file, cache] = ["exported", "cache"].map(|name| fixture.path(name));
    let [file, cache] = [&file, &cache].map(|path| path.to_str().unwrap());
    let [one, two] = disks.each_ref().map(|disk| disk.0.to_str().unwrap());
    fixture.run(0, &["catalog", "export", one, file]);
    let import = |source| ["catalog", "import", file, source, "--cache-dir", cache];
    let said = fixture.run(5, &import(two));
    assert!(said.contains("of another filesystem"), "{said}");
    fixture.run(0, &import(one));
}

#[test]
fn a_catalog_is_handed_on_by_commands() {
    let (fixture, slow) = slow_fixture();
    let at = |name: &str| fixture.path(name).to_str().unwrap().to_owned();
    let (file, cache, source) =
        (at("exported"), at("cache"), slow.point.to_str().unwrap().to_owned());
    let mounted = mount_of(&fixture, &slow.point, &[]);
    let expected = listing(&mounted.path(""));
    mounted.umount();
    // By a scan, and as it was saved.
    assert!(fixture.run(0, &["catalog", "export", &source, &file]).contains("300 files"));
    let said = fixture.run(0, &["catalog", "export", &source, &file, "--cache-dir", &cache]);
    assert!(said.contains("300 files, as it was saved"), "{said}");
    // A damaged catalog is not believed. Another program's file stays.
    let others = format!("{file}.new");
    fs::write(&others, "precious").unwrap();
    fs::write(&files_of_stores(Path::new(&cache), "catalog")[0], "no catalog").unwrap();
    let said = fixture.run(0, &["catalog", "export", &source, &file, "--cache-dir", &cache]);
    assert!(said.contains("300 files") && said.contains("the source is scanned"), "{said}");
    assert_eq!(fs::read_to_string(&others).unwrap(), "precious");
    fs::remove_dir_all(&cache).unwrap();
    let import = ["catalog", "import", &file, &source, "--cache-dir", &cache];
    assert!(fixture.run(0, &import).contains("300 files"));
    serves_without_its_source(&fixture, &slow, &expected);
    // Impossible imports, and a catalog that cannot be trusted.
    let other = at("source");
    fixture.run(5, &["catalog", "import", &file, &other, "--cache-dir", &at("second")]);
    fixture
        .run(3, &["catalog", "import", &file, &source, "--cache-dir", &format!("{source}/cache")]);
    fs::set_permissions(&file, PermissionsExt::from_mode(0o666)).unwrap();
    assert!(fixture.run(5, &import).contains("chmod"));
    fs::write(&file, "another file, given by mistake").unwrap();
    fs::set_permissions(&file, PermissionsExt::from_mode(0o600)).unwrap();
    assert!(fixture.run(5, &import).contains("it is no catalog"));
    let mounted = mount_of(&fixture, &slow.point, &[]);
    fixture.run(0, &["catalog", "export", &source, &file, "--cache-dir", &cache]);
    assert!(fixture.run(8, &import).contains("in use"));
    mounted.umount();
}
