//! A second mount point of a source for a user without rights, by a connection of its own.
//!
//! Goal: one daemon, the same tree and bytes at both points, and nothing fetched or kept twice. Whichever
//! point goes first, nothing is left. Method: as uid 65534 in a mount namespace of the test's own, where the
//! device is open to everybody. The source's reads are counted, and mounts and notes are checked.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::fixture::{Fixture, content, daemons, said, wait_until};
use crate::mounted::{Slowpfs, in_namespace};
use crate::programs::{Program, signal, wait_for_end};

/// Lasts as long as its input is open.
const NAMESPACE: &str = r#"
mount -t tmpfs -o mode=755 none "$TEST_DIR/dev"
mknod -m 666 "$TEST_DIR/dev/fuse" c 10 229
mount --bind "$TEST_DIR/dev/fuse" /dev/fuse
echo $$
exec cat
"#;

const BELADY: &str = r#"
belady() { "$TEST_DIR/belady" "$@"; }
first="$TEST_DIR/theirs/first" second="$TEST_DIR/theirs/second"
mounted() { grep -c " $1 " /proc/self/mountinfo || true; }
"#;

/// A user without rights, in a mount namespace with the device.
struct User {
    namespace: String,
    run: PathBuf,
    slow: Slowpfs,
    fixture: Fixture,
    _holder: Program,
}

impl User {
    /// A user for whom a slow filesystem shows `d/0000` to `d/0049` of 30 kB, and `large` of 5 MiB.
    fn new() -> Self {
        let fixture = Fixture::new();
        fixture.write_many("d", 50, 30_000);
        fixture.write("large", &content(99, 5 << 20));
        let theirs = ["theirs", "theirs/first", "theirs/second", "theirs/run", "theirs/cache"];
        for name in theirs.into_iter().chain(["dev"]) {
            fs::create_dir(fixture.path(name)).unwrap();
        }
        for name in theirs {
            std::os::unix::fs::chown(fixture.path(name), Some(65534), Some(65534)).unwrap();
        }
        // The kernel tells only the owner which pages it has.
        std::os::unix::fs::chown(fixture.source("large"), Some(65534), Some(65534)).unwrap();
        fixture.copy_belady();
        let slow = Slowpfs::new(&fixture, &[]);
        let mut holder = Program::start(&mut in_namespace(&fixture, NAMESPACE));
        let namespace = format!("/proc/{}/ns/mnt", holder.line());
        let run = fixture.path("theirs/run");
        User { namespace, run, slow, fixture, _holder: holder }
    }

    /// The source is mounted at the first point with these options, and at the second.
    fn with_both(options: &str) -> Self {
        let user = User::new();
        user.does(&format!(r#"belady mount "$TEST_DIR/slow" "$first" --ram 64MiB {options}"#));
        user.attaches();
        user
    }

    #[track_caller]
    fn attaches(&self) {
        let said = self.does(r#"belady mount "$TEST_DIR/slow" "$second""#);
        assert!(said.contains("shares the daemon"), "{said}");
    }

    fn command(&self, script: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--mount={}", self.namespace)).arg("setpriv");
        command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups", "sh", "-e", "-c"]);
        command.arg(format!("{BELADY}{script}"));
        let top = self.run.ancestors().nth(2).unwrap();
        command.env("TEST_DIR", top).env("XDG_RUNTIME_DIR", &self.run);
        command
    }

    /// Runs a script that must succeed, and returns its output.
    #[track_caller]
    fn does(&self, script: &str) -> String {
        let output = self.command(script).stdin(Stdio::null()).output().unwrap();
        let said = said(&output);
        assert!(output.status.success(), "{script}: {said}");
        said
    }

    /// Runs something that reads nothing of the source, except pages that the kernel has not kept.
    #[track_caller]
    fn fetches_nothing(&self, does: impl FnOnce()) {
        // A fetch that repeats another one is counted when it begins, before the source is read.
        wait_until("nothing is on its way", || self.status("first")["fetching"] == 0);
        let again = || self.status("first")["refetched_bytes"].as_u64().unwrap();
        let before = (again(), self.slow.count("bytes"));
        does();
        let read = self.slow.count("bytes") - before.1;
        // The daemon's numbers may be a moment old.
        wait_until("only what was lost was read", || read <= again() - before.0);
    }

    /// Unmounts as soon as the mount is not used any more. The daemon itself may use it at any moment.
    #[track_caller]
    fn unmounts_from_outside(&self, point: &str) {
        wait_until("an unmount from outside", || {
            let script = format!(r#"fusermount3 -u "${point}""#);
            self.command(&script).stdin(Stdio::null()).output().unwrap().status.success()
        });
    }

    #[track_caller]
    fn reads_all(&self, point: &str) {
        self.does(&format!(r#"diff -r "$TEST_DIR/source" "${point}""#));
    }

    #[track_caller]
    fn status(&self, point: &str) -> Value {
        serde_json::from_str(&self.does(&format!(r#"belady status "${point}" --json"#))).unwrap()
    }

    /// The number of mounts at both points.
    #[track_caller]
    fn mounts(&self) -> (u32, u32) {
        let count = |point: &str| {
            self.does(&format!(r#"mounted "${point}""#)).trim().parse::<u32>().unwrap()
        };
        (count("first"), count("second"))
    }

    #[track_caller]
    fn pid(&self) -> i32 {
        let noted = daemons(&self.run);
        assert!(!noted.is_empty() && noted.iter().all(|pid| *pid == noted[0]), "{noted:?}");
        noted[0]
    }

    /// Nothing is mounted or noted, and the daemon has ended.
    #[track_caller]
    fn check_nothing_left(&self, pid: i32) {
        wait_for_end(pid);
        assert_eq!(self.mounts(), (0, 0));
        assert_eq!(daemons(&self.run), Vec::<i32>::new());
    }
}

impl Drop for User {
    fn drop(&mut self) {
        for pid in daemons(&self.run) {
            signal(pid, Signal::SIGKILL);
        }
    }
}

/// Ranges of the large file, in a mixed order, which the first point reads and then the second one.
const SLICES: &str = r#"
for n in $(seq 0 103); do
  range=$((n * 37 % 104))
  printf 'large\t%d\t50000\n' $((range * 50000))
done > "$TEST_DIR/theirs/order"
belady mount "$TEST_DIR/slow" "$first" --ram 4MiB --order "$TEST_DIR/theirs/order"
belady mount "$TEST_DIR/slow" "$second"
for point in "$first" "$second" "$first"; do
  for n in $(seq 0 103); do
    range=$((n * 37 % 104))
    tail -c +$((range * 50000 + 1)) "$TEST_DIR/source/large" | head -c 50000 > "$TEST_DIR/theirs/wanted" || true
    dd if="$point/large" bs=50000 skip=$range count=1 status=none | cmp - "$TEST_DIR/theirs/wanted"
  done
done
"#;

#[test]
fn ranges_of_a_file_that_is_cut_are_read_at_both_points() {
    let user = User::new();
    user.does(SLICES);
    let pid = user.pid();
    let status = user.status("first");
    assert_eq!(status["orders"][0]["following"], true, "{status}");
    assert_eq!(status["failed"], 0, "{status}");
    // By several tasks, and at any place.
    fs::write(user.fixture.path("ranges.py"), RANGES).unwrap();
    let points = r#""$TEST_DIR/source" "$first" "$second""#;
    user.does(&format!(r#"timeout 400 /usr/bin/python3 "$TEST_DIR/ranges.py" {points}"#));
    let status = user.status("first");
    assert_eq!(status["read_errors"], 0, "{status}");
    user.reads_all("second");
    user.does(r#"belady umount "$second"; belady umount "$first""#);
    user.check_nothing_left(pid);
}

/// Looks at the whole tree, and tries to write.
const TREE: &str = r#"
cd "$TEST_DIR/theirs"
for point in first second; do
  (cd $point && find . -printf '%p %y %m %s %T@ %i %n %U\n' | sort) > $point.tree
  stat -c %a $point/.belady >> $point.tree
  if touch $point/d/0003 2> $point.said; then exit 1; fi
  grep -q 'Read-only file system' $point.said
done
cmp first.tree second.tree
test "$(wc -l < second.tree)" = 54
"#;

#[test]
fn both_points_show_one_tree_and_nothing_is_fetched_twice() {
    for disk in ["", r#"--cache-dir "$TEST_DIR/theirs/cache" --disk 64MiB"#] {
        let user = User::with_both(disk);
        let pid = user.pid();
        user.does(TREE);
        user.does(r#"cmp "$TEST_DIR/source/large" "$second/large""#);
        user.fetches_nothing(|| drop(user.does(r#"cmp "$TEST_DIR/source/large" "$first/large""#)));
        user.reads_all("first");
        let missed =
            |status: &Value| status["reads"].as_u64().zip(status["lost"].as_u64()).unwrap();
        // Readers are answered before their blocks are pushed into the page cache.
        wait_until("all in the pages", || user.status("second")["fetching"] == 0);
        let before = missed(&user.status("second"));
        user.fetches_nothing(|| user.reads_all("second"));
        let status = user.status("second");
        let after = missed(&status);
        // A block that the kernel has taken back may be read page by page.
        let lost = 256 * (after.1 - before.1);
        assert!(after.0 <= before.0 + lost, "not read out of the first one's pages: {status}");
        assert_eq!(status["mountpoints"].as_array().unwrap().len(), 2, "{status}");
        assert_eq!(status["pid"], pid);
        user.does(r#"belady umount "$second"; belady umount "$first""#);
        user.check_nothing_left(pid);
    }
}

/// Maps a file, shared and private, and counts its pages by a descriptor that was open before.
const MAPS: &str = r#"
import ctypes, mmap, os, sys, time
def pages(fd):
    counts = (ctypes.c_uint64 * 5)()
    whole = (ctypes.c_uint64 * 2)()
    assert ctypes.CDLL(None, use_errno=True).syscall(451, fd, whole, counts, 0) == 0, ctypes.get_errno()
    return counts[0]
wanted = open(sys.argv[1], "rb").read()
looking = os.open(sys.argv[2], os.O_RDONLY)
assert os.read(looking, 1 << 20) == wanted[:1 << 20]
assert pages(looking) == 0, pages(looking)
with open(sys.argv[2], "rb") as file:
    for access in (mmap.MAP_SHARED, mmap.MAP_PRIVATE):
        mapped = mmap.mmap(file.fileno(), 0, access, mmap.PROT_READ)
        assert mapped[:] == wanted
        assert pages(looking) > 0
        mapped.close()
    assert os.sendfile(os.open("/dev/null", os.O_WRONLY), file.fileno(), 0, 1 << 16) == 1 << 16
until = time.monotonic() + 180
while pages(looking) and time.monotonic() < until:
    time.sleep(0.01)
assert pages(looking) == 0, pages(looking)
"#;

#[test]
fn files_are_mapped_at_the_second_point_and_leave_no_pages_there() {
    let user = User::with_both("");
    fs::write(user.fixture.path("maps.py"), MAPS).unwrap();
    let run = r#"/usr/bin/python3 "$TEST_DIR/maps.py" "$TEST_DIR/source/large" "$second/large""#;
    user.does(run);
    user.fetches_nothing(|| drop(user.does(run)));
}

/// Reads ranges here and there, by several tasks at each point, and compares each with the source.
const RANGES: &str = r#"
import mmap, os, random, sys
source, points = sys.argv[1], sys.argv[2:]
names = ["large"] + ["d/%04d" % number for number in range(50)]
wanted = {name: open(os.path.join(source, name), "rb").read() for name in names}
def read(point, seed):
    chance = random.Random(seed)
    for turn in range(400):
        name = chance.choice(names + ["large"] * 10)
        whole = wanted[name]
        start = chance.randrange(len(whole))
        end = start + chance.choice([1, 5000, 200_000, 3 << 20])
        with open(os.path.join(point, name), "rb", buffering=0) as file:
            if turn % 8 == 0:
                with mmap.mmap(file.fileno(), 0, mmap.MAP_SHARED, mmap.PROT_READ) as mapped:
                    assert mapped[start:end] == whole[start:end], name
                continue
            parts, at = [], start
            while at < end and (part := os.pread(file.fileno(), end - at, at)):
                parts.append(part)
                at += len(part)
            assert b"".join(parts) == whole[start:end], name
tasks = []
for seed in range(6):
    pid = os.fork()
    if pid == 0:
        try:
            read(points[seed % 2], seed)
        except BaseException as error:
            print(repr(error), flush=True)
            os._exit(1)
        os._exit(0)
    tasks.append(pid)
assert all(os.waitpid(pid, 0)[1] == 0 for pid in tasks)
"#;

#[test]
fn readers_of_both_points_do_not_disturb_each_other() {
    let ram = ["--ram 1MiB", "--ram 4MiB --set mount.mode=keep-cache", "--set mount.mode=plain"];
    for options in ram {
        let user = User::new();
        fs::write(user.fixture.path("ranges.py"), RANGES).unwrap();
        user.does(&format!(r#"belady mount "$TEST_DIR/slow" "$first" {options}"#));
        user.attaches();
        let points = r#""$TEST_DIR/source" "$first" "$second""#;
        user.does(&format!(r#"timeout 400 /usr/bin/python3 "$TEST_DIR/ranges.py" {points}"#));
        let status = user.status("first");
        assert_eq!(status["read_errors"], 0, "{status}");
        user.does(r#"belady umount "$first""#);
    }
}

#[test]
fn what_changes_at_the_source_shows_at_both_points() {
    let user = User::with_both("--set source.revalidate=200ms");
    user.reads_all("first");
    user.reads_all("second");
    user.fixture.write("d/0007", &content(1007, 40_000));
    user.fixture.write("d/new", &content(1008, 20_000));
    fs::remove_file(user.fixture.source("d/0009")).unwrap();
    for point in ["second", "first"] {
        wait_until("what has changed", || {
            let same = format!(r#"diff -r "$TEST_DIR/source" "${point}""#);
            user.command(&same).output().unwrap().status.success()
        });
    }
    // If a reader at the first point finds a change, the kernel is notified for the second point as well.
    let user = User::with_both("--set source.revalidate=3600s");
    user.does(r#"test "$(stat -c %s "$second/d/0011")" = 30000"#);
    user.fixture.write("d/0011", &content(1011, 40_000));
    wait_until("what was come upon", || {
        let told = r#"cat "$first/d/0011" || true; test "$(stat -c %s "$second/d/0011")" = 40000"#;
        user.command(told).output().unwrap().status.success()
    });
    user.does(r#"cmp "$TEST_DIR/source/d/0011" "$second/d/0011""#);
}

/// Reads the files in the order of their names, as one task, in a given number of epochs.
const READS: &str = r#"
import os, sys
for epoch in range(int(sys.argv[2])):
    for name in sorted(os.listdir(sys.argv[1])):
        open(os.path.join(sys.argv[1], name), "rb").read()
"#;

#[test]
fn readers_of_the_second_point_are_followed_in_their_order() {
    let user = User::with_both("--order sequential:root=d");
    fs::write(user.fixture.path("reads.py"), READS).unwrap();
    user.does(r#"/usr/bin/python3 "$TEST_DIR/reads.py" "$second/d" 1"#);
    let predicted = |order: &Value| order["opens_predicted"].as_u64().unwrap() >= 48;
    wait_until("what was read", || predicted(&user.status("first")["orders"][0]));
    // A loader whose order is not told is learned, too.
    let none = User::with_both("");
    fs::write(none.fixture.path("reads.py"), READS).unwrap();
    let loader = r#"exec /usr/bin/python3 "$TEST_DIR/reads.py" "$second/d" 100000"#;
    let _loader = Program::start(&mut none.command(loader));
    wait_until("the loader", || none.status("second")["loaders"][0]["followed"] == true);
}

#[test]
fn the_second_point_comes_and_goes() {
    let user = User::with_both("");
    let pid = user.pid();
    let held = r#"exec 3< "$second/d/0003""#;
    let refused = format!(r#"{held}; belady umount "$second" || test $? = 8"#);
    assert!(user.does(&refused).contains("in use"));
    assert_eq!(user.mounts(), (1, 1));
    user.does(r#"belady umount "$second""#);
    assert_eq!(user.mounts(), (1, 0));
    user.attaches();
    user.does(&format!(
        r#"{held}; belady umount --force "$second"; head -c 30000 <&3 > /dev/null"#
    ));
    assert_eq!(user.mounts(), (1, 0));
    user.attaches();
    user.does(r#"fusermount3 -u "$second""#);
    wait_until("one mount point", || {
        user.status("first")["mountpoints"].as_array().unwrap().len() == 1
    });
    wait_until("one note", || daemons(&user.run).len() == 1);
    user.attaches();
    user.reads_all("second");
    user.does(r#"belady umount "$first""#);
    user.check_nothing_left(pid);
}

#[test]
fn whatever_ends_the_first_point_nothing_is_left() {
    for end in ["umount", "--force", "SIGTERM", "outside", "SIGKILL"] {
        let user = User::with_both("");
        let pid = user.pid();
        user.reads_all("first");
        match end {
            "umount" => {
                let refused = r#"exec 3< "$second/d/0003"; belady umount "$first" || test $? = 8"#;
                assert!(user.does(refused).contains("in use"));
                assert_eq!(user.mounts(), (1, 1));
                drop(user.does(r#"belady umount "$first""#));
            }
            "--force" => {
                drop(user.does(r#"exec 3< "$second/large"; belady umount --force "$first""#));
            }
            "SIGTERM" => signal(pid, Signal::SIGTERM),
            "outside" => {
                user.unmounts_from_outside("first");
                assert_eq!(user.mounts(), (0, 1));
                user.reads_all("second");
                wait_until("no memory to keep anything in", || {
                    user.status("second")["ram"]["budget"] == 0
                });
                user.reads_all("second");
                user.unmounts_from_outside("second");
            }
            _ => {
                signal(pid, Signal::SIGKILL);
                wait_for_end(pid);
                user.does(r#"belady umount "$second"; belady umount "$first""#);
            }
        }
        user.check_nothing_left(pid);
    }
}
