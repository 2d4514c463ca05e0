//! The life of a mount: it is made, shared, killed, made again and ended, and leaves nothing behind.
//!
//! Goal: whatever ends a daemon, the next one starts, and disks, mount tables and runtime directories are as
//! before. Method: real processes and signals; then the remains are looked for.

use std::fs;
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Command, Stdio};

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::ground::{Ground, check_many, content, daemons, said, wait_until};
use crate::mounted::{Mounted, Slow, in_namespace, mounts_at};
use crate::programs::{Program, Reader, Watchdog, signal, wait_for_end};

fn entries(directory: &Path) -> usize {
    fs::read_dir(directory).unwrap().count()
}

#[test]
fn a_mount_leaves_nothing_behind() {
    let ground = Ground::new();
    ground.plant_many("d", 50, 30_000);
    let cache = ground.path("cache");
    let disk = ["--cache-dir", cache.to_str().unwrap(), "--disk", "64MiB"];
    for end in ["umount", "SIGTERM", "SIGINT", "outside"] {
        let mounted = Mounted::new(&ground, &[&["--ram", "1MiB"][..], &disk].concat());
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
            _ => ground.umount(&mounted.point),
        }
        mounted.wait_until_gone();
        assert_eq!(mounts_at(&mounted.point), 0, "after {end}");
        assert_eq!(entries(&cache), 1, "the store stays after {end}");
        assert_eq!(ground.daemons(), Vec::<i32>::new(), "after {end}");
        assert!(ground.ends(0, &["status"]).contains("nothing is mounted"));
    }
}

#[test]
fn a_link_as_mount_point_means_the_directory_it_leads_to() {
    let ground = Ground::new();
    ground.plant("a", &content(1, 700));
    let link = ground.path("link");
    std::os::unix::fs::symlink(ground.path("mount"), &link).unwrap();
    let mounted = Mounted::at(&ground, &ground.path("source"), &link, &[]);
    assert!(fs::read(ground.path("mount").join("a")).unwrap() == content(1, 700));
    mounted.umount();
    assert_eq!(mounts_at(&ground.path("mount")), 0);
}

#[test]
fn a_mount_over_the_source_itself() {
    let ground = Ground::new();
    ground.plant_many("d", 50, 30_000);
    let source = ground.path("source");
    let mounted = Mounted::at(&ground, &source, &source, &["--ram", "1MiB"]);
    assert_eq!(mounts_at(&source), 1);
    check_many(&source, "d", 50, 30_000);
    assert!(fs::write(ground.source("new"), "x").is_err(), "it is the mount that is seen");
    assert_eq!(mounted.count("/files"), 50);
    // After a kill it is replaced like any other mount.
    signal(mounted.pid, Signal::SIGKILL);
    wait_for_end(mounted.pid);
    let again = Mounted::at(&ground, &source, &source, &[]);
    check_many(&source, "d", 50, 30_000);
    again.umount();
    assert_eq!(mounts_at(&source), 0);
    check_many(&source, "d", 50, 30_000);
    fs::write(ground.source("new"), "x").unwrap();
}

#[test]
fn a_mount_over_the_mount_point_of_its_source_leaves_that_in_place() {
    let ground = Ground::new();
    ground.plant_many("d", 20, 10_000);
    let slow = Slow::new(&ground, &[]);
    for end in ["umount", "SIGTERM", "--force"] {
        let mounted = Mounted::at(&ground, &slow.point, &slow.point, &[]);
        assert_eq!(mounts_at(&slow.point), 2);
        check_many(&slow.point, "d", 20, 10_000);
        let open = fs::File::open(slow.point.join("d/0001")).unwrap();
        match end {
            "SIGTERM" => signal(mounted.pid, Signal::SIGTERM),
            "--force" => drop(ground.ends(0, &["umount", end, slow.point.to_str().unwrap()])),
            _ => {
                drop(open);
                ground.umount(&slow.point);
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
    let ground = Ground::new();
    ground.plant_many("d", 20, 10_000);
    let slow = Slow::new(&ground, &[]);
    let point = slow.point.to_str().unwrap();
    for words in [&["umount", "--force", point][..], &["umount", point]] {
        // No files are inside, so that the mount goes as soon as it is cut off.
        let mounted =
            Mounted::at(&ground, &slow.point, &slow.point, &["--set", "mount.control=off"]);
        signal(mounted.pid, Signal::SIGKILL);
        mounted.wait_until_gone();
        ground.ends(0, words);
        assert_eq!(mounts_at(&slow.point), 1, "the source is still mounted");
        check_many(&slow.point, "d", 20, 10_000);
    }
    let said = ground.ends(6, &["umount", "--force", point]);
    assert!(said.contains("is not known to belady"), "{said}");
    assert_eq!(mounts_at(&slow.point), 1, "it was never ours");
    check_many(&slow.point, "d", 20, 10_000);
}

#[test]
fn a_mount_that_nobody_is_told_of_is_taken_away() {
    let ground = Ground::new();
    ground.plant("file", b"x");
    let mut command = ground.belady();
    command.arg("mount").args([ground.path("source"), ground.path("mount")]);
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
    assert_eq!(mounts_at(&ground.path("mount")), 0);
    assert_eq!(ground.daemons(), Vec::<i32>::new());
}

#[test]
fn a_daemon_killed_during_reads_is_replaced() {
    let ground = Ground::new();
    ground.plant_many("d", 200, 30_000);
    let cache = ground.path("cache");
    let disk = ["--cache-dir", cache.to_str().unwrap(), "--disk", "64MiB"];
    let options = [&["--ram", "2MiB"][..], &disk].concat();
    let mounted = Mounted::new(&ground, &options);
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
    assert!(ground.ends(0, &["status"]).contains("its daemon is dead"));
    // The dead mount is cleared away, and its store is used.
    let again = Mounted::new(&ground, &options);
    assert_eq!((mounts_at(&again.point), entries(&cache)), (1, 1));
    wait_until("what is stored is known", || again.count("/disk/kept") > 0);
    check_many(&again.path(""), "d", 200, 30_000);
    assert_eq!(again.count("/store_errors"), 0);
    again.umount();
    assert_eq!((mounts_at(&mounted.point), entries(&cache)), (0, 1));
}

#[test]
fn a_dead_mount_is_cleared_by_umount() {
    let ground = Ground::new();
    ground.plant("file", b"x");
    for words in [&["umount"][..], &["umount", "--force"]] {
        let mounted = Mounted::new(&ground, &[]);
        signal(mounted.pid, Signal::SIGKILL);
        wait_for_end(mounted.pid);
        assert_eq!(mounts_at(&mounted.point), 1);
        ground.ends(0, &[words, &[mounted.point.to_str().unwrap()]].concat());
        assert_eq!(mounts_at(&mounted.point), 0);
        assert_eq!(ground.daemons(), Vec::<i32>::new());
    }
}

#[test]
fn two_mounts_at_once_and_no_second_one_at_the_same_place() {
    let ground = Ground::new();
    ground.plant_many("d", 20, 10_000);
    fs::create_dir(ground.path("second")).unwrap();
    let first = Mounted::at(&ground, &ground.source("d"), &ground.path("mount"), &[]);
    let second = Mounted::at(&ground, &ground.path("source"), &ground.path("second"), &[]);
    assert_ne!(first.pid, second.pid);
    let (source, point) = (ground.path("source"), first.point.clone());
    let words = ["mount", source.to_str().unwrap(), point.to_str().unwrap()];
    assert!(ground.ends(8, &words).contains("in use"));
    let listed: Vec<Value> = serde_json::from_str(&ground.ends(0, &["status", "--json"])).unwrap();
    assert_eq!(listed.len(), 2);
    assert!(fs::read(first.path("0003")).unwrap() == content(3, 10_000));
    check_many(&second.path(""), "d", 20, 10_000);
    first.umount();
    check_many(&second.path(""), "d", 20, 10_000);
    second.umount();
}

#[test]
fn a_source_mounted_twice_has_one_daemon() {
    let ground = Ground::new();
    ground.plant_many("d", 20, 10_000);
    let (source, second) = (ground.path("source"), ground.path("second"));
    fs::create_dir(&second).unwrap();
    let first = Mounted::new(&ground, &[]);
    let words = ["mount", source.to_str().unwrap(), second.to_str().unwrap()];
    for end in ["umount", "SIGTERM"] {
        assert!(ground.ends(0, &words).contains("shares the daemon"));
        check_many(&second, "d", 20, 10_000);
        assert!(ground.daemons().iter().all(|pid| *pid == first.pid));
        let status = fs::read_to_string(second.join(".belady/status.json")).unwrap();
        assert!(status.contains(second.to_str().unwrap()), "{status}");
        if end == "SIGTERM" {
            signal(first.pid, Signal::SIGTERM);
            break;
        }
        let held = fs::File::open(second.join("d/0003")).unwrap();
        assert!(ground.ends(8, &["umount", second.to_str().unwrap()]).contains("is in use"));
        assert!(second.join(".belady/order").exists(), "it is there again");
        drop(held);
        ground.umount(&second);
        assert_eq!((mounts_at(&second), mounts_at(&first.point)), (0, 1));
        assert!(first.path(".belady/status.json").exists());
        check_many(&first.path(""), "d", 20, 10_000);
    }
    first.wait_until_gone();
    assert_eq!((mounts_at(&second), mounts_at(&first.point)), (0, 0));
    assert_eq!(ground.daemons(), Vec::<i32>::new());
}

/// If the first mount point is unmounted while a file is open, the daemon lives on. A further mount point must
/// not show the directory that lies below the first one.
#[test]
fn a_mount_point_that_is_no_longer_ours_is_not_shown_at_another() {
    let ground = Ground::new();
    ground.plant_many("d", 20, 10_000);
    let (source, second) = (ground.path("source"), ground.path("second"));
    fs::create_dir(&second).unwrap();
    let first = Mounted::new(&ground, &[]);
    let held = fs::File::open(first.path("d/0003")).unwrap();
    umount2(&first.point, MntFlags::MNT_DETACH).unwrap();
    fs::write(first.point.join("below"), "").unwrap();
    let words = ["mount", source.to_str().unwrap(), second.to_str().unwrap()];
    assert!(ground.ends(6, &words).contains("any more"));
    assert_eq!((mounts_at(&second), entries(&second)), (0, 0));
    drop(held);
    first.wait_until_gone();
    fs::remove_file(first.point.join("below")).unwrap();
}

/// A filesystem that a user has mounted over a further mount point is theirs.
#[test]
fn another_mount_over_a_further_mount_point_stays() {
    let ground = Ground::new();
    ground.plant_many("d", 20, 10_000);
    let (source, second) = (ground.path("source"), ground.path("second"));
    fs::create_dir(&second).unwrap();
    let first = Mounted::new(&ground, &[]);
    let words = ["mount", source.to_str().unwrap(), second.to_str().unwrap()];
    assert!(ground.ends(0, &words).contains("shares the daemon"));
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
    let ground = Ground::new();
    ground.plant("file", b"bytes");
    let mut command = ground.belady();
    command.arg("mount").args([ground.path("source"), ground.path("mount")]).arg("-f");
    let mut program = Program::start(&mut command);
    assert!(program.line().contains("is mounted at"));
    assert_eq!(fs::read(ground.path("mount/file")).unwrap(), b"bytes");
    wait_until("the note of the daemon", || ground.daemons().len() == 1);
    signal(ground.daemons()[0], Signal::SIGINT);
    program.finish();
    assert_eq!(mounts_at(&ground.path("mount")), 0);
}

/// Mounts, reads and unmounts as a user without rights, who needs fusermount3 for that. The device is open to
/// everybody, but only in a mount namespace of the test's own.
const UNPRIVILEGED: &str = r#"
mount -t tmpfs -o mode=755 none "$GROUND/dev"
mknod -m 666 "$GROUND/dev/fuse" c 10 229
mount --bind "$GROUND/dev/fuse" /dev/fuse
exec setpriv --reuid 65534 --regid 65534 --clear-groups sh -e -c '
  test "$(id -u)" = 65534
  "$GROUND/belady" mount "$GROUND/source" "$GROUND/theirs/mount" --ram 4MiB --order sequential \
    --set mount.control="$GROUND/theirs/control"
  test "$(stat -c %a "$GROUND/theirs/control/status.json")" = 400
  grep -q "\"files\": 50" "$GROUND/theirs/control/status.json"
  echo torch-random:seed=3 > "$GROUND/theirs/control/order"
  cmp "$GROUND/source/d/0003" "$GROUND/theirs/mount/d/0003"
  cat "$GROUND"/theirs/mount/d/* | md5sum
  "$GROUND/belady" status "$GROUND/theirs/mount" --json
  "$GROUND/belady" umount "$GROUND/theirs/mount"
  test -z "$(ls "$GROUND/theirs/mount" "$GROUND/theirs/control" | grep -v :)"
  code=0
  "$GROUND/belady" mount "$GROUND/source" "$GROUND/theirs/mount" --cache-dir "$GROUND/ours" || code=$?
  test "$code" = 5
'
"#;

/// Runs a script that becomes a user without rights. Returns its output.
#[track_caller]
fn run_unprivileged(script: &str) -> String {
    let ground = Ground::new();
    ground.plant_many("d", 50, 30_000);
    for name in ["dev", "ours", "theirs", "theirs/mount", "theirs/run", "theirs/control"] {
        fs::create_dir(ground.path(name)).unwrap();
    }
    ground.plant_belady();
    for name in ["theirs", "theirs/mount", "theirs/run", "theirs/control"] {
        std::os::unix::fs::chown(ground.path(name), Some(65534), Some(65534)).unwrap();
    }
    let run = ground.path("theirs/run");
    let mut command = in_namespace(&ground, script);
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
mount -t tmpfs -o mode=755 none "$GROUND/dev"
mknod -m 666 "$GROUND/dev/fuse" c 10 229
mount --bind "$GROUND/dev/fuse" /dev/fuse
exec setpriv --reuid 65534 --regid 65534 --clear-groups sh -e -c '
  cd "$GROUND/theirs"
  mkdir cache
  at="$GROUND/theirs/mount"
  "$GROUND/belady" mount "$GROUND/source" "$at" --cache-dir "$GROUND/theirs/cache" \
    --set rehearsal.old.size=9
  "$GROUND/belady" rehearse stats "$at"
  test ! -e "$at/rehearsal"
  "$GROUND/belady" umount "$at"
  "$GROUND/belady" mount "$GROUND/source" "$at" --cache-dir "$GROUND/theirs/cache" \
    --set rehearsal.old.size=9 --set mount.rehearsal="$GROUND/theirs/control"
  test -e "$GROUND/theirs/control/old/scores"
  "$GROUND/belady" rehearse stats "$at" --json | grep -q "\"doubts\":\[\]"
  "$GROUND/belady" umount "$at"
'
"#;

#[test]
fn a_user_without_rights_is_told_where_views_can_be() {
    let said = run_unprivileged(VIEWLESS);
    let words = "no views: only root has them inside the mount; set mount.rehearsal to a directory";
    assert!(said.contains(words), "{said}");
}

/// Another process keeps the connection alive, as a thread of a killed daemon may that the kernel makes wait:
/// requests are neither answered nor fail.
const LINGERING: &str = r#"
mount -t tmpfs -o mode=755 none "$GROUND/dev"
mknod -m 666 "$GROUND/dev/fuse" c 10 229
mount --bind "$GROUND/dev/fuse" /dev/fuse
mount -t fusectl none /sys/fs/fuse/connections
user() { setpriv --reuid 65534 --regid 65534 --clear-groups "$@"; }
at="$GROUND/theirs/mount"
user "$GROUND/belady" mount "$GROUND/source" "$at"
pid=$(user "$GROUND/belady" status "$at" --json | python3 -c 'import json, sys; print(json.load(sys.stdin)["pid"])')
touch "$GROUND/held.begun"
python3 -c '
import ctypes, os, sys, time
pid, held = int(sys.argv[1]), sys.argv[2]
daemon = os.pidfd_open(pid)
for name in os.listdir(f"/proc/{pid}/fd"):
    if os.readlink(f"/proc/{pid}/fd/{name}") == "/dev/fuse":
        assert ctypes.CDLL(None).syscall(438, daemon, int(name), 0) >= 0
os.rename(held + ".begun", held)
time.sleep(600)' "$pid" "$GROUND/held" &
holder=$!
trap 'kill "$holder"' EXIT
until test -e "$GROUND/held"; do kill -0 "$holder"; sleep .05; done
watcher=$(cat /proc/$pid/task/*/children | tr " " "\n" | while read child; do
  if grep -qx belady-watcher "/proc/$child/comm"; then echo "$child"; fi
done)
until ls -l "/proc/$watcher/fd" | grep -q "/abort$"; do sleep .05; done
if ls -l "/proc/$watcher/fd" | grep -q "/dev/fuse$"; then exit 1; fi
kill -9 "$pid"
until ! state=$(cut -d " " -f 3 "/proc/$pid/stat") || test "$state" = Z; do sleep .05; done
user timeout -k 1 600 "$GROUND/belady" mount "$GROUND/source" "$at"
user cmp "$GROUND/source/d/0003" "$at/d/0003"
pid=$(user "$GROUND/belady" status "$at" --json | python3 -c 'import json, sys; print(json.load(sys.stdin)["pid"])')
export XDG_RUNTIME_DIR="$GROUND/dev"
if "$GROUND/belady" umount "$at"; then exit 1; fi
"$GROUND/belady" umount --force "$at"
if grep -F "$at" /proc/self/mountinfo; then exit 1; fi
until ! test -e "/proc/$pid"; do sleep .05; done
"#;

#[test]
fn a_user_clears_away_a_mount_whose_killed_daemon_lingers_and_root_takes_it_away() {
    run_unprivileged(LINGERING);
}
