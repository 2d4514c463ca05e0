//! The cache directory as an administrator sees it: its cost, its owner, and its contents.
//!
//! Goal: few files and descriptors however many samples there are, no second copy of them in memory, and a
//! store for each user. Nothing from earlier versions stays or makes a mount wait. Method: real mounts.
//! Files, descriptors and pages are counted. One deletion does not finish.

use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, chown};
use std::path::Path;
use std::process::{Command, Stdio};

use memmap2::Mmap;
use nix::libc;

use crate::failing_disk::Loop;
use crate::faults::{files_of_stores, is_saved};
use crate::fixture::{Fixture, check_many, content, said, wait_until};
use crate::mounted::{Mounted, Slowpfs, mounts_at, where_all_may_mount};
use crate::programs::wait_for_end;

/// Pages of a file that the kernel holds.
fn pages_held(path: &Path) -> usize {
    let file = File::open(path).unwrap();
    // SAFETY: nothing is read through the map.
    let map = unsafe { Mmap::map(&file) }.unwrap();
    let mut pages = vec![0_u8; map.len().div_ceil(4096)];
    let address = map.as_ptr().cast_mut().cast();
    // SAFETY: the map is alive, and there is a byte for each of its pages.
    assert_eq!(unsafe { libc::mincore(address, map.len(), pages.as_mut_ptr()) }, 0);
    pages.iter().filter(|page| **page & 1 == 1).count()
}

#[test]
fn many_samples_are_few_files_few_descriptors_and_no_second_copy_in_memory() {
    const FILES: u64 = 10_000;
    const SIZE: usize = 300;
    let fixture = Fixture::new();
    fixture.write_many("d", FILES, SIZE);
    let disk = Loop::new(&fixture, 256);
    let cache = disk.point.join("cache");
    let options = ["--ram", "1MiB", "--cache-dir", cache.to_str().unwrap(), "--disk", "128MiB"];
    let options =
        [&options[..], &["--set", "order.learn=off", "--set", "cache.slow-after=1h"]].concat();
    let stored = |mounted: &Mounted| mounted.count("/disk/stored") / 4096;
    let few = |mounted: &Mounted| {
        let names = files_of_stores(&cache, "");
        assert!(names.len() < 10, "{names:?}");
        let descriptors = fs::read_dir(format!("/proc/{}/fd", mounted.pid)).unwrap().count();
        assert!(descriptors < FILES as usize / 10, "{descriptors} descriptors");
    };
    let mounted = Mounted::new(&fixture, &options);
    wait_until("all is stored", || {
        fixture.run(0, &["warmup", mounted.point.to_str().unwrap()]);
        check_many(&mounted.path(""), "d", FILES, SIZE);
        stored(&mounted) >= FILES
    });
    few(&mounted);
    mounted.umount();
    let mounted = Mounted::new(&fixture, &options);
    wait_until("all that is stored is known", || mounted.count("/disk/kept") >= FILES * 4096);
    check_many(&mounted.path(""), "d", FILES, SIZE);
    assert_eq!(mounted.count("/source_bytes"), 0, "all of it comes from the store");
    few(&mounted);
    let segments = files_of_stores(&cache, "segment-");
    assert!(
        segments.iter().map(|path| path.metadata().unwrap().len()).sum::<u64>() >= FILES * 4096
    );
    assert_eq!(segments.iter().map(|path| pages_held(path)).sum::<usize>(), 0);
    mounted.umount();
    disk.umount();
}

#[test]
fn what_is_left_from_earlier_days_goes_and_no_mount_waits_for_it() {
    let fixture = Fixture::new();
    fixture.write_many("d", 20, 10_000);
    let cache = fixture.path("cache");
    let options = ["--cache-dir", cache.to_str().unwrap(), "--disk", "64MiB"];
    let mount = || Mounted::new(&fixture, &options);
    mount().umount();
    let (older, trash) = (cache.join("belady-store-v1"), cache.join("belady-trash-left"));
    fs::create_dir_all(older.join("store")).unwrap();
    fs::write(older.join("store/owner"), "").unwrap();
    fs::copy(cache.join("belady-store-v3/CACHEDIR.TAG"), older.join("CACHEDIR.TAG")).unwrap();
    // Deleting this directory waits for a filesystem that does not answer.
    let slow = Slowpfs::new(&fixture, &[]);
    let inside = trash.join("inside");
    fs::create_dir_all(&inside).unwrap();
    let bind = nix::mount::MsFlags::MS_BIND;
    nix::mount::mount(Some(&slow.point.join("d")), &inside, None::<&str>, bind, None::<&str>)
        .unwrap();
    slow.ctl(&["fault", "hang", "d*", "ops=opendir,readdir"]);
    let mounted = mount();
    check_many(&mounted.path(""), "d", 20, 10_000);
    assert!(!older.exists() && trash.exists());
    slow.ctl(&["fault", "clear"]);
    mounted.umount();
    nix::mount::umount2(&inside, nix::mount::MntFlags::MNT_DETACH).unwrap();
    let mounted = mount();
    let names = || {
        let entries = fs::read_dir(&cache).unwrap();
        entries.map(|entry| entry.unwrap().file_name()).collect::<Vec<_>>()
    };
    wait_until("the trash is gone", || names() == ["belady-store-v3"]);
    check_many(&mounted.path(""), "d", 20, 10_000);
    mounted.umount();
    check_many(&fixture.path("source"), "d", 20, 10_000);
}

/// As a user without rights, mounts what root has mounted with a store.
const THEIRS: &str = r#"
exec setpriv --reuid 65534 --regid 65534 --clear-groups sh -e -c '
  belady() { "$TEST_DIR/belady" "$@"; }
  belady mount "$TEST_DIR/source" "$TEST_DIR/theirs/mount" --cache-dir "$TEST_DIR/theirs/cache" --disk 64MiB
  for file in "$TEST_DIR"/theirs/mount/d/*; do cmp "$file" "$TEST_DIR/source/d/${file##*/}"; done
  belady umount "$TEST_DIR/theirs/mount"
  belady cache ls "$TEST_DIR/theirs/cache"
'
"#;

#[test]
fn another_user_has_a_daemon_and_a_store_of_their_own() {
    let fixture = Fixture::new();
    fixture.write_many("d", 20, 30_000);
    for name in ["theirs", "theirs/mount", "theirs/run"] {
        fs::create_dir(fixture.path(name)).unwrap();
        chown(fixture.path(name), Some(65534), Some(65534)).unwrap();
    }
    fixture.copy_belady();
    let [ours, theirs] = ["cache", "theirs/cache"].map(|name| fixture.path(name));
    let mounted = Mounted::new(&fixture, &["--cache-dir", ours.to_str().unwrap()]);
    check_many(&mounted.path(""), "d", 20, 30_000);
    let mut command: Command = where_all_may_mount(&fixture, THEIRS);
    command.env("XDG_RUNTIME_DIR", fixture.path("theirs/run"));
    let output = command.stdin(Stdio::null()).output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    let owner = |cache: &Path| -> Vec<u32> {
        let owners = files_of_stores(cache, "owner");
        owners.iter().map(|owner| owner.metadata().unwrap().uid()).collect()
    };
    assert_eq!((owner(&ours), owner(&theirs)), (vec![0], vec![65534]));
    assert_eq!(theirs.metadata().unwrap().mode() & 0o777, 0o700);
    mounted.umount();
}

/// The catalog is checked, but one name does not answer, so that the check does not finish. Stored samples of
/// no file are given up all the same.
#[test]
fn what_is_of_no_file_goes_though_one_name_cannot_be_checked() {
    const FILES: u64 = 20;
    const GONE: u64 = 10;
    const SIZE: usize = 30_000;
    let fixture = Fixture::new();
    fixture.write_many("d", FILES, SIZE);
    let (slow, cache) = (Slowpfs::new(&fixture, &[]), fixture.path("cache"));
    let options = ["--ram", "1MiB", "--cache-dir", cache.to_str().unwrap(), "--disk", "64MiB"];
    let more = ["--set", "source.revalidate=1s", "--set", "order.learn=off"];
    let options = [&options[..], &more].concat();
    let mount = || Mounted::at(&fixture, &slow.point, &fixture.path("mount"), &options);
    let pages = |files: u64| files * (SIZE as u64).next_multiple_of(4096);
    let mounted = mount();
    wait_until("the catalog is saved", || is_saved(&cache, "catalog"));
    let catalog = files_of_stores(&cache, "owner")[0].with_file_name("catalog");
    let saved = fs::read(&catalog).unwrap();
    fixture.write_many("gone", GONE, SIZE);
    wait_until("all is stored", || {
        check_many(&mounted.path(""), "d", FILES, SIZE);
        let _ = fs::read_dir(mounted.path("gone")).map(|_| {
            check_many(&mounted.path(""), "gone", GONE, SIZE);
        });
        mounted.count("/disk/stored") == pages(FILES + GONE)
    });
    mounted.umount();
    // As if the daemon had been killed before it saved the catalog again.
    fs::write(&catalog, saved).unwrap();
    fs::remove_dir_all(fixture.source("gone")).unwrap();
    slow.ctl(&["fault", "eio", "d/0007", "ops=lookup,getattr"]);
    let mounted = mount();
    wait_until("only what is of a file is stored", || {
        mounted.count("/disk/stored") == pages(FILES)
    });
    assert_eq!(mounted.status()["catalog"], "checking");
    slow.ctl(&["fault", "clear"]);
    check_many(&mounted.path(""), "d", FILES, SIZE);
    assert_eq!(mounted.count("/source_bytes"), 0, "what could not be checked was not given up");
    mounted.umount();
}

/// The mount serves without the store, and the next mount has the stored samples.
#[test]
fn a_disk_that_hangs_when_the_mount_begins_holds_nobody_up() {
    const FILES: u64 = 20;
    const SIZE: usize = 30_000;
    let fixture = Fixture::new();
    fixture.write_many("d", FILES, SIZE);
    let disk = Loop::new(&fixture, 64);
    let cache = disk.point.join("cache");
    let options = ["--ram", "1MiB", "--cache-dir", cache.to_str().unwrap(), "--disk", "16MiB"];
    let options = [&options[..], &["--set", "order.learn=off"]].concat();
    let stored = FILES * (SIZE as u64).next_multiple_of(4096);
    let mounted = Mounted::new(&fixture, &options);
    wait_until("all is stored", || {
        check_many(&mounted.path(""), "d", FILES, SIZE);
        mounted.count("/disk/stored") >= stored
    });
    mounted.umount();
    let frozen = disk.freeze();
    let (source, point) = (fixture.path("source"), fixture.path("mount"));
    let mut command = fixture.belady();
    command.arg("mount").args([&source, &point]).args(&options).stdout(Stdio::piped());
    let mut mount = command.spawn().unwrap();
    wait_until("the mount", || mount.try_wait().unwrap().is_some());
    let said = said(&mount.wait_with_output().unwrap());
    assert!(said.contains("the disk does not answer; going on without it"), "{said}");
    check_many(&point, "d", FILES, SIZE);
    let state = fixture.run(0, &["status", point.to_str().unwrap(), "--json"]);
    assert!(state.contains("down: the cache disk failed, hung"), "{state}");
    let pid = fixture.daemons()[0];
    drop(frozen);
    fixture.umount(&point);
    wait_for_end(pid);
    let mounted = Mounted::new(&fixture, &options);
    wait_until("all that is stored is known", || mounted.count("/disk/kept") >= stored);
    check_many(&mounted.path(""), "d", FILES, SIZE);
    assert_eq!(mounted.count("/source_bytes"), 0);
    mounted.umount();
    disk.umount();
}

/// Each command that needs a cache disk ends if the disk does not answer, and says so once.
fn commands_end(fixture: &Fixture, [source, catalog, settings, cache]: [&str; 4]) {
    let commands: [&[&str]; 8] = [
        &["cache", "ls", cache],
        &["cache", "verify", cache],
        &["cache", "gc", cache],
        &["cache", "rm", cache, "--all"],
        &["config", "check", settings],
        &["catalog", "import", catalog, source, "--cache-dir", cache],
        &["catalog", "export", source, catalog, "--cache-dir", cache],
        &["doctor", "--cache-dir", cache],
    ];
    let start = |words: &&[&str]| {
        let mut command = fixture.belady();
        command.args(*words).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    for (words, mut child) in commands.iter().zip(commands.iter().map(start).collect::<Vec<_>>()) {
        wait_until("the end of a command", || child.try_wait().unwrap().is_some());
        let output = child.wait_with_output().unwrap();
        let said = said(&output);
        assert_eq!(output.status.code(), Some(5), "{words:?}: {said}");
        assert_eq!(said.matches("does not answer").count(), 1, "{words:?}: {said}");
    }
}

/// Names on the disk hang, too: each command ends, and the mount goes on without the cache.
#[test]
fn a_disk_that_tells_of_nothing_holds_up_no_command() {
    const FILES: u64 = 20;
    const SIZE: usize = 30_000;
    let fixture = Fixture::new();
    let (data, point) = (fixture.path("data"), fixture.path("mount"));
    fs::create_dir_all(data.join("d")).unwrap();
    for number in 0..FILES {
        fs::write(data.join(format!("d/{number:04}")), content(number, SIZE)).unwrap();
    }
    let store = fixture.source("cache");
    let mounted = Mounted::at(&fixture, &data, &point, &["--cache-dir", store.to_str().unwrap()]);
    check_many(&point, "d", FILES, SIZE);
    mounted.umount();
    let slow = Slowpfs::new(&fixture, &[]);
    let cache = slow.point.join("cache");
    let cache = cache.to_str().unwrap();
    assert!(fixture.run(0, &["cache", "ls", cache]).contains(data.to_str().unwrap()));
    let names = ["catalog", "settings"].map(|name| fixture.path(name));
    let [catalog, settings] = names.each_ref().map(|name| name.to_str().unwrap());
    fixture.run(0, &["catalog", "export", data.to_str().unwrap(), catalog]);
    fs::write(settings, format!("[cache]\ndir = \"{cache}\"\n")).unwrap();
    slow.ctl(&["fault", "hang", "cache*", "ops=lookup,getattr,open,opendir,readdir,read"]);
    commands_end(&fixture, [data.to_str().unwrap(), catalog, settings, cache]);
    let mount = ["mount", data.to_str().unwrap(), point.to_str().unwrap()];
    let said = fixture.run(0, &[&mount[..], &["--cache-dir", cache]].concat());
    assert!(said.contains("the disk does not answer; going on without it"), "{said}");
    check_many(&point, "d", FILES, SIZE);
    let status = fixture.run(0, &["status", point.to_str().unwrap(), "--json"]);
    assert!(status.contains("down: the cache disk failed, hung"), "{status}");
    let pid = fixture.daemons()[0];
    fixture.umount(&point);
    assert_eq!(mounts_at(&point), 0);
    slow.ctl(&["fault", "clear"]);
    wait_for_end(pid);
}

#[test]
fn a_cache_directory_beneath_a_disk_that_is_not_mounted_is_told_of() {
    let fixture = Fixture::new();
    fixture.write_many("d", 5, 1000);
    let disk = Loop::new(&fixture, 64);
    let (cache, point) = (disk.point.join("cache"), fixture.path("mount"));
    let words = |path: &Path| path.to_str().unwrap().to_owned();
    let mount = || {
        let [source, point, cache] =
            [&fixture.path("source"), &point, &cache].map(|path| words(path));
        let said =
            fixture.run(0, &["mount", &source, &point, "--cache-dir", &cache, "--disk", "16MiB"]);
        let status = fixture.run(0, &["status", &point]);
        check_many(Path::new(&point), "d", 5, 1000);
        fixture.umount(Path::new(&point));
        let warning = format!("was on one mounted at {} before", words(&disk.point));
        let told = [&said, &status].map(|text| text.contains(&warning));
        assert_eq!(told[0], told[1], "{said}{status}");
        told[0]
    };
    assert!(!mount() && !mount());
    disk.umount();
    assert!(mount() && mount(), "also where a directory was made by then");
    disk.mount();
    assert!(!mount());
    disk.umount();
}
