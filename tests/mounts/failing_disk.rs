//! Faults of a cache disk while a job reads.
//!
//! Goal: no wrong byte, no error and no hang reaches a reader, whatever happens to the disk or its content.
//! The cache is used again when it can be. Method: small filesystems made for the test, readers that compare
//! every byte all the time, and one fault after the other.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};

use crate::faults::{files_of_stores, is_saved};
use crate::fixture::{Choice, Fixture, check_many, content, wait_until};
use crate::mounted::{Mounted, mounts_at, unmount};
use crate::programs::{Program, Reader};
use crate::refused::Tmpfs;

const FILES: u64 = 150;
const SIZE: usize = 30_000;
const SHARDS: u64 = 2;
const SHARD: usize = (5 << 20) + 1234;
/// Bytes of all files, in whole pages.
const BYTES: u64 =
    FILES * SIZE.next_multiple_of(4096) as u64 + SHARDS * SHARD.next_multiple_of(4096) as u64;

/// A disk of the test's own in a file.
pub(crate) struct Loop {
    image: PathBuf,
    pub(crate) point: PathBuf,
}

impl Loop {
    pub(crate) fn new(fixture: &Fixture, mib: u64) -> Self {
        let made = Loop { image: fixture.path("disk.img"), point: fixture.path("disk") };
        fs::create_dir(&made.point).unwrap();
        File::create(&made.image).unwrap().set_len(mib << 20).unwrap();
        run(Command::new("mkfs.ext4").args(["-q", "-F", "-m", "0"]).arg(&made.image));
        made.mount();
        made
    }

    pub(crate) fn mount(&self) {
        run(Command::new("mount").args(["-o", "loop"]).args([&self.image, &self.point]));
    }

    /// Unmounts the disk, as soon as the daemon that had its cache there has ended. A program that another
    /// test starts in a mount namespace of its own has a copy of the mount at first. So the disk is gone only
    /// when its device is.
    pub(crate) fn umount(&self) {
        wait_until("nobody uses the disk", || {
            Command::new("umount").arg(&self.point).output().unwrap().status.success()
        });
        wait_until("the device of the disk is free", || {
            let output = Command::new("losetup").arg("-j").arg(&self.image).output().unwrap();
            assert!(output.status.success(), "{}", crate::fixture::said(&output));
            output.stdout.is_empty()
        });
    }

    /// Makes all writes to it wait until the result is dropped.
    pub(crate) fn freeze(&self) -> Frozen {
        run(Command::new("fsfreeze").arg("--freeze").arg(&self.point));
        Frozen(self.point.clone())
    }

    /// Makes everything on it fail, as on a disk that was pulled out.
    fn fail(&self) {
        let shutdown = "import fcntl, os, struct, sys\n\
            fcntl.ioctl(os.open(sys.argv[1], os.O_RDONLY), 0x8004587d, struct.pack('I', 2))";
        Program::python(shutdown, &[self.point.to_str().unwrap()]).finish();
    }
}

pub(crate) struct Frozen(PathBuf);

impl Drop for Frozen {
    fn drop(&mut self) {
        let _ = Command::new("fsfreeze").arg("--unfreeze").arg(&self.0).status();
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = nix::mount::umount2(&self.point, nix::mount::MntFlags::MNT_DETACH);
    }
}

#[track_caller]
fn run(command: &mut Command) {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {}", crate::fixture::said(&output));
}

/// A mount with a cache directory on such a disk, and readers that never pause.
struct Setup<'g> {
    mounted: Mounted,
    readers: Vec<Reader<u64>>,
    stop: Arc<AtomicBool>,
    fixture: &'g Fixture,
}

fn write_files(fixture: &Fixture) {
    fixture.write_many("d", FILES, SIZE);
    fixture.write_many("s", SHARDS, SHARD);
}

impl<'g> Setup<'g> {
    fn new(fixture: &'g Fixture, disk: &Path, options: &[&str]) -> Self {
        let cache = disk.join("cache");
        let cache = ["--ram", "2MiB", "--cache-dir", cache.to_str().unwrap()];
        let set = ["--set", "cache.large-file=4MiB", "--set", "order.learn=off"];
        let mounted = Mounted::new(fixture, &[&cache[..], &set, options].concat());
        let stop = Arc::new(AtomicBool::new(false));
        let read = |seed: u64| {
            let (root, stop) = (mounted.path(""), Arc::clone(&stop));
            move || read_on(&root, seed, &stop)
        };
        let readers = (0..2).map(|seed| Reader::start(read(seed))).collect();
        Setup { mounted, readers, stop, fixture }
    }

    fn check(&self) {
        check_many(&self.mounted.path(""), "d", FILES, SIZE);
        check_many(&self.mounted.path(""), "s", SHARDS, SHARD);
    }

    /// Makes the kernel forget its pages. It may have pages that the planner does not know: answers to reads
    /// that came while the pages were dropped.
    fn forget(&self) {
        let files = (0..FILES).map(|number| format!("d/{number:04}"));
        for name in files.chain((0..SHARDS).map(|number| format!("s/{number:04}"))) {
            let file = File::open(self.mounted.path(name)).unwrap();
            posix_fadvise(file, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED).unwrap();
        }
    }

    /// Reads until all is stored, except what memory keeps.
    fn fill(&self) {
        wait_until("all is stored", || {
            self.forget();
            self.check();
            self.mounted.count("/disk/stored") + self.mounted.count("/ram/kept") >= BYTES
        });
    }

    fn state(&self) -> String {
        self.mounted.status()["disk_state"].as_str().unwrap().to_owned()
    }

    /// Reads on until the state of the disk begins with `state`.
    #[track_caller]
    fn until(&self, state: &str) {
        wait_until(state, || {
            self.check();
            self.state().starts_with(state)
        });
    }

    /// Ends the readers and the mount. No reader has had an error.
    #[track_caller]
    fn finish(self) {
        self.check();
        self.stop.store(true, Ordering::Relaxed);
        assert!(self.readers.into_iter().map(Reader::result).all(|reads| reads > 0));
        assert_eq!(self.mounted.count("/read_errors"), 0);
        self.mounted.umount();
        assert_eq!(self.fixture.daemons(), Vec::<i32>::new());
    }
}

/// Reads whole small files and pieces of large ones, and compares them. Returns the number of reads.
fn read_on(root: &Path, seed: u64, stop: &AtomicBool) -> u64 {
    let (mut choice, mut reads) = (Choice(seed), 0);
    let shards: Vec<Vec<u8>> = (0..SHARDS).map(|number| content(number, SHARD)).collect();
    while !stop.load(Ordering::Relaxed) {
        let number = choice.below(FILES);
        let bytes = fs::read(root.join(format!("d/{number:04}"))).unwrap();
        assert!(bytes == content(number, SIZE), "file {number} has other bytes");
        let (shard, at) = (choice.below(SHARDS), choice.below(SHARD as u64 - 5000));
        let mut piece = [0; 5000];
        let file = File::open(root.join(format!("s/{shard:04}"))).unwrap();
        file.read_exact_at(&mut piece, at).unwrap();
        let right = &shards[shard as usize][at as usize..][..piece.len()];
        assert!(piece == right, "shard {shard} has other bytes at {at}");
        reads += 1;
    }
    reads
}

/// Another file grows on the disk to `bytes` bytes, or until no space is left.
fn take_space(disk: &Path, bytes: usize) -> PathBuf {
    let path = disk.join("others");
    let mut file = File::options().create(true).append(true).open(&path).unwrap();
    let mut written = 0;
    for size in [1 << 20, 4096] {
        while written + size <= bytes && file.write_all(&vec![7; size]).is_ok() {
            written += size;
        }
        let _ = file.sync_all();
    }
    path
}

const DISK: [&str; 4] = ["--disk", "32MiB", "--set", "cache.min-free=8MiB"];

#[test]
fn a_disk_that_others_fill_is_left_to_them_and_taken_again() {
    for (ext4, policy) in [(true, "auto"), (false, "lru"), (true, "belady")] {
        let fixture = Fixture::new();
        write_files(&fixture);
        let disk = ext4.then(|| Loop::new(&fixture, 64));
        let tmpfs = (!ext4).then(|| Tmpfs::new(&fixture, "tmpfs", "size=64M,mode=700"));
        let path =
            disk.as_ref().map_or_else(|| tmpfs.as_ref().unwrap().0.clone(), |d| d.point.clone());
        let policy = format!("cache.policy={policy}");
        let setup = Setup::new(&fixture, &path, &[&DISK[..], &["--set", &policy]].concat());
        setup.fill();
        let free = || {
            let space = nix::sys::statvfs::statvfs(&path).unwrap();
            space.blocks_available() * space.fragment_size()
        };
        take_space(&path, free() as usize - (3 << 20));
        // The space that must stay free becomes free again, at the cost of the cache.
        wait_until("space for others", || {
            setup.check();
            free() >= 7 << 20
        });
        assert!(setup.mounted.count("/disk/budget") < 16 << 20);
        assert!(setup.mounted.status()["disk"]["reduced"].as_str().unwrap().contains("others"));
        let others = take_space(&path, 1 << 30);
        setup.check();
        fs::remove_file(others).unwrap();
        wait_until("the whole budget again", || {
            setup.check();
            setup.mounted.count("/disk/budget") == 32 << 20
        });
        setup.fill();
        setup.until("normal");
        setup.finish();
    }
}

#[test]
fn a_disk_that_others_filled_before_the_mount_is_left_to_them() {
    let fixture = Fixture::new();
    write_files(&fixture);
    let disk = Tmpfs::new(&fixture, "tmpfs", "size=64M,mode=700");
    let setup = Setup::new(&fixture, &disk.0, &DISK);
    setup.fill();
    setup.finish();
    let taken = || -> u64 {
        let files = files_of_stores(&disk.0.join("cache"), "");
        files
            .iter()
            .filter_map(|path| fs::metadata(path).ok())
            .map(|file| file.blocks() * 512)
            .sum()
    };
    assert!(taken() > 8 << 20);
    let others = take_space(&disk.0, 1 << 30);
    // More than the store has: all of its space must be left to others.
    let options = ["--disk", "32MiB", "--set", "cache.min-free=20MiB"];
    let setup = Setup::new(&fixture, &disk.0, &options);
    wait_until("the store gives its space back", || {
        setup.check();
        taken() < 1 << 20
    });
    setup.finish();
    fs::remove_file(others).unwrap();
    let setup = Setup::new(&fixture, &disk.0, &options);
    setup.fill();
    setup.until("normal");
    setup.finish();
}

#[test]
fn a_disk_without_inodes_is_left_alone() {
    let fixture = Fixture::new();
    write_files(&fixture);
    let disk = Tmpfs::new(&fixture, "tmpfs", "size=64M,nr_inodes=3000,mode=700");
    // The user sets how much must stay free: here there would never be enough.
    let many = ["--set", "cache.min-free-inodes=3000"];
    let setup = Setup::new(&fixture, &disk.0, &[&DISK[..], &many].concat());
    setup.until("full");
    assert_eq!(setup.mounted.count("/placed"), 0);
    setup.finish();
    let setup = Setup::new(&fixture, &disk.0, &DISK);
    wait_until("something is stored", || setup.mounted.count("/placed") > 0);
    let many = disk.0.join("many");
    fs::create_dir(&many).unwrap();
    let made = (0..3000).take_while(|number| File::create(many.join(number.to_string())).is_ok());
    assert!(made.count() > 2500, "the disk has no inodes left");
    setup.until("full");
    fs::remove_dir_all(many).unwrap();
    setup.until("normal");
    setup.fill();
    setup.finish();
}

#[test]
fn files_of_the_store_may_be_damaged_and_deleted_while_it_is_read() {
    let fixture = Fixture::new();
    write_files(&fixture);
    let setup = Setup::new(&fixture, &fixture.path(""), &["--disk", "64MiB"]);
    // The daemon may have deleted a file that was there a moment ago.
    let flip = |path: &Path| {
        let Ok(file) = File::options().write(true).open(path) else { return };
        let length = file.metadata().unwrap().len();
        (0..length).step_by(9_000).for_each(|at| file.write_all_at(&[0x5a; 3], at).unwrap());
    };
    let cut = |path: &Path| {
        let _ = File::options().write(true).open(path).map(|file| file.set_len(0).unwrap());
    };
    let delete = |path: &Path| drop(fs::remove_file(path));
    let link = |path: &Path| {
        // In one step: the daemon may create the file again.
        let link = path.with_extension("link");
        symlink("/etc/hostname", &link).unwrap();
        fs::rename(link, path).unwrap();
    };
    let damages: [&dyn Fn(&Path); 4] = [&flip, &cut, &link, &delete];
    for (nth, damage) in damages.iter().enumerate() {
        for prefix in ["file-", "segment-", "index-"] {
            setup.fill();
            let files = files_of_stores(&fixture.path("cache"), prefix);
            files.iter().for_each(|path| damage(path));
            setup.check();
            println!("damage {nth} of {} {prefix}: {}", files.len(), setup.state());
        }
    }
    setup.finish();
    // The store that the last mount left is right, and so is what is read of it.
    let setup = Setup::new(&fixture, &fixture.path(""), &["--disk", "64MiB"]);
    setup.fill();
    setup.until("normal");
    setup.finish();
}

#[test]
fn a_cache_directory_may_be_replaced_or_deleted() {
    let fixture = Fixture::new();
    write_files(&fixture);
    // Learned orders are written there too, and so are new files that were seen.
    let more = ["--set", "order.learn=auto", "--set", "source.revalidate=1s"];
    let setup =
        Setup::new(&fixture, &fixture.path(""), &[&["--disk", "64MiB"][..], &more].concat());
    setup.fill();
    // Another directory with files of these very names, which are not belady's.
    let (cache, moved) = (fixture.path("cache"), fixture.path("moved"));
    wait_until("the catalog is saved", || is_saved(&cache, "catalog"));
    wait_until("what was learnt is saved", || {
        setup.check();
        !files_of_stores(&cache, "journal").is_empty()
    });
    let names = files_of_stores(&cache, "");
    fs::rename(&cache, &moved).unwrap();
    for path in &names {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "precious").unwrap();
    }
    let touched = |path: &PathBuf| fs::read(path).unwrap() != *b"precious";
    for number in 0..20 {
        fixture.write(&format!("n/{number}"), &content(number, SIZE));
    }
    setup.check();
    setup.fixture.run(0, &["warmup", setup.mounted.point.to_str().unwrap(), "--evict"]);
    setup.check();
    setup.fill();
    assert!(!names.iter().any(touched), "what is not ours was touched");
    // The daemon may be creating files there at this moment.
    wait_until("the end of the store", || fs::remove_dir_all(&moved).is_ok());
    setup.until("down");
    let held = || -> u64 {
        let open = fs::read_dir(format!("/proc/{}/fd", setup.mounted.pid)).unwrap().flatten();
        let files = open.filter(|fd| {
            fs::read_link(fd.path()).is_ok_and(|to| to.to_str().unwrap().contains("/segment-"))
        });
        files.filter_map(|fd| fs::metadata(fd.path()).ok()).map(|file| file.blocks()).sum()
    };
    wait_until("the space of what was deleted is given back", || held() == 0);
    wait_until("new files show", || setup.mounted.path("n/0").exists());
    setup.finish();
    assert_eq!(files_of_stores(&cache, "").len(), names.len(), "nothing was added or deleted");
    assert!(!names.iter().any(touched), "what is not ours was touched at the end");
}

#[test]
fn a_disk_that_fails_and_comes_back_is_used_again() {
    let fixture = Fixture::new();
    write_files(&fixture);
    let disk = Loop::new(&fixture, 64);
    let setup = Setup::new(&fixture, &disk.point, &DISK);
    setup.fill();
    setup.finish();
    let setup = Setup::new(&fixture, &disk.point, &DISK);
    wait_until("what is stored is read", || setup.mounted.count("/tier_bytes") > 0);
    disk.fail();
    setup.until("down");
    let before = setup.mounted.count("/source_bytes");
    wait_until("the source is read instead", || {
        setup.check();
        setup.mounted.count("/source_bytes") > before
    });
    setup.finish();
    // A further mount goes on without the disk, and says so.
    let setup = Setup::new(&fixture, &disk.point, &DISK);
    setup.check();
    assert!(setup.state().starts_with("down"), "{}", setup.state());
    assert_eq!(setup.mounted.count("/tier_bytes"), 0);
    setup.finish();
    disk.umount();
    disk.mount();
    let setup = Setup::new(&fixture, &disk.point, &DISK);
    wait_until("what is stored is read", || setup.mounted.count("/tier_bytes") > 0);
    setup.fill();
    setup.until("normal");
    setup.finish();
}

#[test]
fn a_disk_that_hangs_holds_up_nobody() {
    let fixture = Fixture::new();
    write_files(&fixture);
    let disk = Loop::new(&fixture, 64);
    let Setup { mounted, readers, stop, .. } = {
        let setup = Setup::new(&fixture, &disk.point, &DISK);
        setup.fill();
        setup
    };
    let point = mounted.point.to_str().unwrap();
    let state = || mounted.status()["disk_state"].as_str().unwrap().to_owned();
    let check = || check_many(&mounted.path(""), "d", FILES, SIZE);
    let frozen = disk.freeze();
    // The stored samples are given up, and have to be stored again.
    fixture.run(0, &["warmup", point, "--evict"]);
    wait_until("the disk is said to hang", || {
        check();
        state().contains("hangs")
    });
    let before = mounted.count("/source_bytes");
    wait_until("the source is read instead", || {
        check();
        mounted.count("/source_bytes") > before + FILES * SIZE as u64
    });
    stop.store(true, Ordering::Relaxed);
    assert!(readers.into_iter().map(Reader::result).all(|reads| reads > 0));
    assert_eq!(mounted.count("/read_errors"), 0);
    fixture.umount(&mounted.point);
    assert_eq!(mounts_at(&mounted.point), 0);
    drop(frozen);
    mounted.wait_until_gone();
    disk.umount();
    disk.mount();
    let setup = Setup::new(&fixture, &disk.point, &DISK);
    setup.fill();
    setup.finish();
}

#[test]
fn an_umount_waits_for_what_a_slow_disk_is_to_store() {
    let fixture = Fixture::new();
    write_files(&fixture);
    let disk = Loop::new(&fixture, 64);
    let cache = disk.point.join("cache");
    let mounted = Mounted::new(&fixture, &["--cache-dir", cache.to_str().unwrap()]);
    let frozen = disk.freeze();
    let began = Instant::now();
    check_many(&mounted.path(""), "d", FILES, SIZE);
    let (run, point) = (fixture.path("run"), mounted.point.clone());
    let unmounting = Reader::start(move || unmount(&run, &point));
    wait_until("nothing is mounted", || mounts_at(&mounted.point) == 0);
    // Longer than the end of a mount waits for other answers.
    std::thread::sleep(Duration::from_secs(4));
    drop(frozen);
    // If all of this took long, the disk counted as hanging, and is not waited for.
    let hangs = began.elapsed() > Duration::from_secs(9);
    let said = unmounting.result();
    assert!(hangs || said.contains("may be storing what was read last"), "{said}");
    mounted.wait_until_gone();
    disk.umount();
}

/// Nothing is queued for the disk when it begins to hang: only the end of the mount notices that.
#[test]
fn an_umount_ends_where_the_disk_hangs_at_the_end() {
    let fixture = Fixture::new();
    write_files(&fixture);
    let disk = Loop::new(&fixture, 64);
    let cache = disk.point.join("cache");
    let options = ["--cache-dir", cache.to_str().unwrap(), "--set", "rehearsal.old.size=10"];
    let mounted = Mounted::new(&fixture, &options);
    check_many(&mounted.path(""), "d", 10, SIZE);
    wait_until("the catalog is saved", || is_saved(&cache, "catalog"));
    let frozen = disk.freeze();
    check_many(&mounted.path(""), "d", FILES, SIZE);
    fixture.umount(&mounted.point);
    assert_eq!(mounts_at(&mounted.point), 0);
    drop(frozen);
    mounted.wait_until_gone();
    disk.umount();
}
