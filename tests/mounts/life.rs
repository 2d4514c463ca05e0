//! The life of a mount: it is made, shared, killed, made again and ended, and leaves nothing behind.
//!
//! Goal: whatever ends a daemon, the next one starts, and disks, mount tables and runtime directories are as
//! before. Method: real processes and signals; then the remains are looked for.

use std::fs;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::fixture::{Fixture, check_many, content, daemons, said, wait_until};
use crate::mounted::{Mounted, Slowpfs, mounts_at, where_all_may_mount};
use crate::programs::{Program, Reader, Watchdog, signal, wait_for_end};

fn entries(directory: &Path) -> usize {
    fs::read_dir(directory).unwrap().count()
}

#[test]
fn a_mount_leaves_nothing_behind() {
    let fixture = Fixture::new();
    fixture.write_many("d", 50, 30_000);
    let cache = fixture.path("cache");
    let disk = ["--cache-dir", cache.to_str().unwrap(), "--disk", "64MiB"];
    for end in ["umount", "SIGTERM", "SIGINT", "outside"] {
        let mounted = Mounted::new(&fixture, &[&["--ram", "1MiB"][..], &disk].concat());
        check_many(&mounted.path(""), "d", 50, 30_000);
        assert_eq!(entries(&cache), 1, "the stores");
        match end {
            "SIGTERM" => signal(mounted.pid, Signal::SIGTERM),
            "SIGINT" => signal(mounted.pid, Signal::SIGINT),
            // The daemon itself may use the mount at any moment.
            "outside" => wait_until("an unmount from outside", || {
                let mut umount = Command::new("umount");
                umount.arg("-R").arg(&mounted.point).status().unwrap().success()
            }),
            _ => fixture.umount(&mounted.point),
        }
        mounted.wait_until_gone();
        assert_eq!(mounts_at(&mounted.point), 0, "after {end}");
        assert_eq!(entries(&cache), 1, "the store stays after {end}");
        assert_eq!(fixture.daemons(), Vec::<i32>::new(), "after {end}");
        assert!(fixture.run(0, &["status"]).contains("nothing is mounted"));
    }
}

#[test]
fn a_link_as_mount_point_means_the_directory_it_leads_to() {
    let fixture = Fixture::new();
    fixture.write("a", &content(1, 700));
    let link = fixture.path("link");
    std::os::unix::fs::symlink(fixture.path("mount"), &link).unwrap();
    let mounted = Mounted::at(&fixture, &fixture.path("source"), &link, &[]);
    assert!(fs::read(fixture.path("mount").join("a")).unwrap() == content(1, 700));
    mounted.umount();
    assert_eq!(mounts_at(&fixture.path("mount")), 0);
}

#[test]
fn a_mount_over_the_source_itself() {
    let fixture = Fixture::new();
    fixture.write_many("d", 50, 30_000);
    let source = fixture.path("source");
    let mounted = Mounted::at(&fixture, &source, &source, &["--ram", "1MiB"]);
    assert_eq!(mounts_at(&source), 1);
    check_many(&source, "d", 50, 30_000);
    assert!(fs::write(fixture.source("new"), "x").is_err(), "it is the mount that is seen");
    assert_eq!(mounted.count("/files"), 50);
    // After a kill it is replaced like any other mount.
    signal(mounted.pid, Signal::SIGKILL);
    wait_for_end(mounted.pid);
    let again = Mounted::at(&fixture, &source, &source, &[]);
    check_many(&source, "d", 50, 30_000);
    again.umount();
    assert_eq!(mounts_at(&source), 0);
    check_many(&source, "d", 50, 30_000);
    fs::write(fixture.source("new"), "x").unwrap();
}

#[test]
fn a_mount_over_the_mount_point_of_its_source_leaves_that_in_place() {
    let fixture = Fixture::new();
    fixture.write_many("d", 20, 10_000);
    let slow = Slowpfs::new(&fixture, &[]);
    for end in ["umount", "SIGTERM", "--force"] {
        let mounted = Mounted::at(&fixture, &slow.point, &slow.point, &[]);
        assert_eq!(mounts_at(&slow.point), 2);
        check_many(&slow.point, "d", 20, 10_000);
        let open = fs::File::open(slow.point.join("d/0001")).unwrap();
        match end {
            "SIGTERM" => signal(mounted.pid, Signal::SIGTERM),
            "--force" => drop(fixture.run(0, &["umount", end, slow.point.to_str().unwrap()])),
            _ => {
                drop(open);
                fixture.umount(&slow.point);
            }
        }
        mounted.wait_until_gone();
        assert_eq!(mounts_at(&slow.point), 1, "the source is still mounted after {end}");
        check_many(&slow.point, "d", 20, 10_000);
    }
}

/// The remains of a killed daemon are cleared away. Other mounts at the same path stay.
#[test]
fn clearing_a_dead_mount_away_leaves_the_source_mounted() {
    let fixture = Fixture::new();
    fixture.write_many("d", 20, 10_000);
    let slow = Slowpfs::new(&fixture, &[]);
    let point = slow.point.to_str().unwrap();
    for words in [&["umount", "--force", point][..], &["umount", point]] {
        // No files are inside, so that the mount goes as soon as it is cut off.
        let mounted =
            Mounted::at(&fixture, &slow.point, &slow.point, &["--set", "mount.control=off"]);
        signal(mounted.pid, Signal::SIGKILL);
        mounted.wait_until_gone();
        fixture.run(0, words);
        assert_eq!(mounts_at(&slow.point), 1, "the source is still mounted");
        check_many(&slow.point, "d", 20, 10_000);
    }
    let said = fixture.run(6, &["umount", "--force", point]);
    assert!(said.contains("is not known to belady"), "{said}");
    assert_eq!(mounts_at(&slow.point), 1, "it was never ours");
    check_many(&slow.point, "d", 20, 10_000);
}

#[test]
fn a_mount_that_nobody_is_told_of_is_taken_away() {
    let fixture = Fixture::new();
    fixture.write("file", b"x");
    let mut command = fixture.belady();
    command.arg("mount").args([fixture.path("source"), fixture.path("mount")]);
    // Like the daemon of a command that was killed while it waited: the other end of the pipe is closed.
    let (other_end, pipe) = std::io::pipe().unwrap();
    drop(other_end);
    // A program that another test starts has a copy of the other end until it runs.
    wait_until("nobody has the other end", || {
        let mut polled = [PollFd::new(pipe.as_fd(), PollFlags::empty())];
        poll(&mut polled, PollTimeout::ZERO).unwrap();
        polled[0].revents().unwrap().contains(PollFlags::POLLERR)
    });
    command.env("BELADY_DAEMON", "1").stdin(Stdio::null()).stdout(pipe);
    let mut daemon = command.stderr(Stdio::null()).spawn().unwrap();
    let _watchdog = Watchdog::over(daemon.id() as i32);
    daemon.wait().unwrap();
    assert_eq!(mounts_at(&fixture.path("mount")), 0);
    assert_eq!(fixture.daemons(), Vec::<i32>::new());
}

#[test]
fn a_daemon_killed_during_reads_is_replaced() {
    let fixture = Fixture::new();
    fixture.write_many("d", 200, 30_000);
    let cache = fixture.path("cache");
    let disk = ["--cache-dir", cache.to_str().unwrap(), "--disk", "64MiB"];
    let options = [&["--ram", "2MiB"][..], &disk].concat();
    let mounted = Mounted::new(&fixture, &options);
    let root = mounted.path("");
    let reader = Reader::start(move || {
        for number in (0..200).cycle() {
            match fs::read(root.join(format!("d/{number:04}"))) {
                Ok(bytes) => assert!(bytes == content(number, 30_000)),
                Err(error) => return error,
            }
        }
        unreachable!()
    });
    wait_until("reads", || mounted.count("/opens") > 300);
    wait_until("something is stored", || mounted.count("/disk/stored") > 0);
    signal(mounted.pid, Signal::SIGKILL);
    let error = reader.result();
    assert!(error.raw_os_error().is_some(), "{error}");
    wait_for_end(mounted.pid);
    assert!(fixture.run(0, &["status"]).contains("its daemon is dead"));
    // The dead mount is cleared away, and its store is used.
    let again = Mounted::new(&fixture, &options);
    assert_eq!((mounts_at(&again.point), entries(&cache)), (1, 1));
    wait_until("what is stored is known", || again.count("/disk/kept") > 0);
    check_many(&again.path(""), "d", 200, 30_000);
    assert_eq!(again.count("/store_errors"), 0);
    again.umount();
    assert_eq!((mounts_at(&mounted.point), entries(&cache)), (0, 1));
}

#[test]
fn a_dead_mount_is_cleared_by_umount() {
    let fixture = Fixture::new();
    fixture.write("file", b"x");
    for words in [&["umount"][..], &["umount", "--force"]] {
        let mounted = Mounted::new(&fixture, &[]);
        signal(mounted.pid, Signal::SIGKILL);
        wait_for_end(mounted.pid);
        assert_eq!(mounts_at(&mounted.point), 1);
        fixture.run(0, &[words, &[mounted.point.to_str().unwrap()]].concat());
        assert_eq!(mounts_at(&mounted.point), 0);
        assert_eq!(fixture.daemons(), Vec::<i32>::new());
    }
}

#[test]
fn two_mounts_at_once_and_no_second_one_at_the_same_place() {
    let fixture = Fixture::new();
    fixture.write_many("d", 20, 10_000);
    fs::create_dir(fixture.path("second")).unwrap();
    let first = Mounted::at(&fixture, &fixture.source("d"), &fixture.path("mount"), &[]);
    let second = Mounted::at(&fixture, &fixture.path("source"), &fixture.path("second"), &[]);
    assert_ne!(first.pid, second.pid);
    let (source, point) = (fixture.path("source"), first.point.clone());
    let words = ["mount", source.to_str().unwrap(), point.to_str().unwrap()];
    assert!(fixture.run(8, &words).contains("in use"));
    let listed: Vec<Value> = serde_json::from_str(&fixture.run(0, &["status", "--json"])).unwrap();
    assert_eq!(listed.len(), 2);
    assert!(fs::read(first.path("0003")).unwrap() == content(3, 10_000));
    check_many(&second.path(""), "d", 20, 10_000);
    first.umount();
    check_many(&second.path(""), "d", 20, 10_000);
    second.umount();
}

/// Mounts a source, and makes a second mount point, at which nothing is mounted.
fn mount_with_spare_point() -> (Fixture, Mounted, PathBuf) {
    let fixture = Fixture::new();
    fixture.write_many("d", 20, 10_000);
    let second = fixture.path("second");
    fs::create_dir(&second).unwrap();
    let first = Mounted::new(&fixture, &[]);
    (fixture, first, second)
}

/// Mounts the source at a second mount point. The command must end with this exit code. Returns its output.
#[track_caller]
fn mount_also_at(fixture: &Fixture, point: &Path, code: i32) -> String {
    let source = fixture.path("source");
    fixture.run(code, &["mount", source.to_str().unwrap(), point.to_str().unwrap()])
}

#[test]
fn a_source_mounted_twice_has_one_daemon() {
    let (fixture, first, second) = mount_with_spare_point();
    for end in ["umount", "SIGTERM"] {
        assert!(mount_also_at(&fixture, &second, 0).contains("shares the daemon"));
        check_many(&second, "d", 20, 10_000);
        assert!(fixture.daemons().iter().all(|pid| *pid == first.pid));
        let status = fs::read_to_string(second.join(".belady/status.json")).unwrap();
        assert!(status.contains(second.to_str().unwrap()), "{status}");
        if end == "SIGTERM" {
            signal(first.pid, Signal::SIGTERM);
            break;
        }
        let held = fs::File::open(second.join("d/0003")).unwrap();
        assert!(fixture.run(8, &["umount", second.to_str().unwrap()]).contains("is in use"));
        assert!(second.join(".belady/order").exists(), "it is there again");
        drop(held);
        fixture.umount(&second);
        assert_eq!((mounts_at(&second), mounts_at(&first.point)), (0, 1));
        assert!(first.path(".belady/status.json").exists());
        check_many(&first.path(""), "d", 20, 10_000);
    }
    first.wait_until_gone();
    assert_eq!((mounts_at(&second), mounts_at(&first.point)), (0, 0));
    assert_eq!(fixture.daemons(), Vec::<i32>::new());
}

/// If the first mount point is unmounted while a file is open, the daemon lives on. A further mount point must
/// not show the directory that lies below the first one.
#[test]
fn a_mount_point_that_is_no_longer_ours_is_not_shown_at_another() {
    let (fixture, first, second) = mount_with_spare_point();
    let held = fs::File::open(first.path("d/0003")).unwrap();
    umount2(&first.point, MntFlags::MNT_DETACH).unwrap();
    fs::write(first.point.join("below"), "").unwrap();
    assert!(mount_also_at(&fixture, &second, 6).contains("any more"));
    assert_eq!((mounts_at(&second), entries(&second)), (0, 0));
    drop(held);
    first.wait_until_gone();
    fs::remove_file(first.point.join("below")).unwrap();
}

/// A filesystem that a user has mounted over a further mount point is theirs.
#[test]
fn another_mount_over_a_further_mount_point_stays() {
    let (fixture, first, second) = mount_with_spare_point();
    assert!(mount_also_at(&fixture, &second, 0).contains("shares the daemon"));
    let none: Option<&str> = None;
    mount(Some("tmpfs"), &second, Some("tmpfs"), MsFlags::empty(), none).unwrap();
    fs::write(second.join("theirs"), "kept").unwrap();
    signal(first.pid, Signal::SIGTERM);
    first.wait_until_gone();
    assert_eq!(fs::read_to_string(second.join("theirs")).unwrap(), "kept");
    while mounts_at(&second) > 0 {
        umount2(&second, MntFlags::MNT_DETACH).unwrap();
    }
}

#[test]
fn a_mount_in_the_foreground_ends_with_its_signal() {
    let fixture = Fixture::new();
    fixture.write("file", b"bytes");
    let mut command = fixture.belady();
    command.arg("mount").args([fixture.path("source"), fixture.path("mount")]).arg("-f");
    let mut program = Program::start(&mut command);
    assert!(program.line().contains("is mounted at"));
    assert_eq!(fs::read(fixture.path("mount/file")).unwrap(), b"bytes");
    wait_until("the note of the daemon", || fixture.daemons().len() == 1);
    signal(fixture.daemons()[0], Signal::SIGINT);
    program.finish();
    assert_eq!(mounts_at(&fixture.path("mount")), 0);
}

/// Mounts, reads and unmounts as a user without rights, who needs fusermount3 for that. The device is open to
/// everybody, but only in a mount namespace of the test's own.
const UNPRIVILEGED: &str = r#"
exec setpriv --reuid 65534 --regid 65534 --clear-groups sh -e -c '
  test "$(id -u)" = 65534
  "$TEST_DIR/belady" mount "$TEST_DIR/source" "$TEST_DIR/theirs/mount" --ram 4MiB --order sequential \
    --set mount.control="$TEST_DIR/theirs/control"
  test "$(stat -c %a "$TEST_DIR/theirs/control/status.json")" = 400
  grep -q "\"files\": 50" "$TEST_DIR/theirs/control/status.json"
  echo torch-random:seed=3 > "$TEST_DIR/theirs/control/order"
  cmp "$TEST_DIR/source/d/0003" "$TEST_DIR/theirs/mount/d/0003"
  cat "$TEST_DIR"/theirs/mount/d/* | md5sum
  "$TEST_DIR/belady" status "$TEST_DIR/theirs/mount" --json
  "$TEST_DIR/belady" umount "$TEST_DIR/theirs/mount"
  test -z "$(ls "$TEST_DIR/theirs/mount" "$TEST_DIR/theirs/control" | grep -v :)"
  code=0
  "$TEST_DIR/belady" mount "$TEST_DIR/source" "$TEST_DIR/theirs/mount" --cache-dir "$TEST_DIR/ours" || code=$?
  test "$code" = 5
'
"#;

/// Runs a script that becomes a user without rights. Returns its output.
#[track_caller]
fn run_unprivileged(script: &str) -> String {
    let fixture = Fixture::new();
    fixture.write_many("d", 50, 30_000);
    for name in ["ours", "theirs", "theirs/mount", "theirs/run", "theirs/control"] {
        fs::create_dir(fixture.path(name)).unwrap();
    }
    fixture.copy_belady();
    for name in ["theirs", "theirs/mount", "theirs/run", "theirs/control"] {
        std::os::unix::fs::chown(fixture.path(name), Some(65534), Some(65534)).unwrap();
    }
    let run = fixture.path("theirs/run");
    let mut command = where_all_may_mount(&fixture, script);
    command.env("XDG_RUNTIME_DIR", &run);
    let output = command.stdin(Stdio::null()).output().unwrap();
    let said = said(&output);
    let left = daemons(&run);
    left.iter().for_each(|pid| signal(*pid, Signal::SIGKILL));
    assert!(output.status.success(), "{said}");
    assert_eq!(left, Vec::<i32>::new(), "{said}");
    said
}

#[test]
fn a_user_without_rights_mounts_through_fusermount3() {
    let said = run_unprivileged(UNPRIVILEGED);
    assert!(said.contains("\"files\":50") && said.contains("\"pid\""), "{said}");
}

/// If they have no place of their own, the views of a user's buffers are not served, and the mount says so.
const VIEWLESS: &str = r#"
exec setpriv --reuid 65534 --regid 65534 --clear-groups sh -e -c '
  cd "$TEST_DIR/theirs"
  mkdir cache
  at="$TEST_DIR/theirs/mount"
  "$TEST_DIR/belady" mount "$TEST_DIR/source" "$at" --cache-dir "$TEST_DIR/theirs/cache" \
    --set rehearsal.old.size=9
  "$TEST_DIR/belady" rehearse stats "$at"
  test ! -e "$at/rehearsal"
  "$TEST_DIR/belady" umount "$at"
  "$TEST_DIR/belady" mount "$TEST_DIR/source" "$at" --cache-dir "$TEST_DIR/theirs/cache" \
    --set rehearsal.old.size=9 --set mount.rehearsal="$TEST_DIR/theirs/control"
  test -e "$TEST_DIR/theirs/control/old/scores"
  "$TEST_DIR/belady" rehearse stats "$at" --json | grep -q "\"doubts\":\[\]"
  "$TEST_DIR/belady" umount "$at"
'
"#;

#[test]
fn a_user_without_rights_is_told_where_views_can_be() {
    let said = run_unprivileged(VIEWLESS);
    let words = "no views: only root and `belady run` have them inside the mount; set mount.rehearsal to a directory";
    assert!(said.contains(words), "{said}");
}

/// Another process keeps the connection alive, as a thread of a killed daemon may that the kernel makes wait:
/// requests are neither answered nor fail.
const LINGERING: &str = r#"
mount -t fusectl none /sys/fs/fuse/connections
user() { setpriv --reuid 65534 --regid 65534 --clear-groups "$@"; }
at="$TEST_DIR/theirs/mount"
user "$TEST_DIR/belady" mount "$TEST_DIR/source" "$at"
pid=$(user "$TEST_DIR/belady" status "$at" --json | python3 -c 'import json, sys; print(json.load(sys.stdin)["pid"])')
touch "$TEST_DIR/held.begun"
python3 -c '
import ctypes, os, sys, time
pid, held = int(sys.argv[1]), sys.argv[2]
daemon = os.pidfd_open(pid)
for name in os.listdir(f"/proc/{pid}/fd"):
    if os.readlink(f"/proc/{pid}/fd/{name}") == "/dev/fuse":
        assert ctypes.CDLL(None).syscall(438, daemon, int(name), 0) >= 0
os.rename(held + ".begun", held)
time.sleep(600)' "$pid" "$TEST_DIR/held" &
holder=$!
trap 'kill "$holder"' EXIT
until test -e "$TEST_DIR/held"; do kill -0 "$holder"; sleep .05; done
watcher=$(cat /proc/$pid/task/*/children | tr " " "\n" | while read child; do
  if grep -qx belady-watcher "/proc/$child/comm"; then echo "$child"; fi
done)
until ls -l "/proc/$watcher/fd" | grep -q "/abort$"; do sleep .05; done
if ls -l "/proc/$watcher/fd" | grep -q "/dev/fuse$"; then exit 1; fi
kill -9 "$pid"
until ! state=$(cut -d " " -f 3 "/proc/$pid/stat") || test "$state" = Z; do sleep .05; done
user timeout -k 1 600 "$TEST_DIR/belady" mount "$TEST_DIR/source" "$at"
user cmp "$TEST_DIR/source/d/0003" "$at/d/0003"
pid=$(user "$TEST_DIR/belady" status "$at" --json | python3 -c 'import json, sys; print(json.load(sys.stdin)["pid"])')
export XDG_RUNTIME_DIR="$TEST_DIR/dev"
if "$TEST_DIR/belady" umount "$at"; then exit 1; fi
"$TEST_DIR/belady" umount --force "$at"
if grep -F "$at" /proc/self/mountinfo; then exit 1; fi
until ! test -e "/proc/$pid"; do sleep .05; done
"#;

#[test]
fn a_user_clears_away_a_mount_whose_killed_daemon_lingers_and_root_takes_it_away() {
    run_unprivileged(LINGERING);
}
