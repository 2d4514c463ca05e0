//! Filesystems that a test mounts, each behind a guard.
//!
//! Goal: nothing hangs and nothing is left behind, even if a test fails. Method: a guard knows the process
//! and the path that it started, and ends only these. A [`Watchdog`] kills the process when its time is up,
//! which sets every reader of its filesystem free.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::fixture::{Fixture, daemons, mount_table, program, said, wait_until};
use crate::programs::{Watchdog, runs, signal, wait_for_end};

/// The number of mounts at exactly this path.
pub(crate) fn mounts_at(path: &Path) -> usize {
    let table = mount_table();
    table.lines().filter(|line| line.split(' ').nth(4) == path.to_str()).count()
}

/// Runs a command to its end, or for 15 seconds.
fn run_briefly(command: &mut Command) {
    let Ok(mut child) = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn() else { return };
    let start = Instant::now();
    while matches!(child.try_wait(), Ok(None)) && start.elapsed() < Duration::from_secs(15) {
        thread::sleep(Duration::from_millis(5));
    }
    let _ = child.kill();
    let _ = child.wait();
}

/// The belady command line, with this runtime directory.
pub(crate) fn belady(run: &Path) -> Command {
    let mut command = Command::new(program("belady"));
    command.env("XDG_RUNTIME_DIR", run).env("XDG_STATE_HOME", run.join("state"));
    command
}

/// Unmounts as a user does. It waits until the mount is not used any more: a program that another test starts
/// has copies of this one's open files until it runs. Returns the output of the last try.
#[track_caller]
pub(crate) fn unmount(run: &Path, point: &Path) -> String {
    let mut words = String::new();
    wait_until("nobody uses the mount", || {
        let output = belady(run).arg("umount").arg(point).output().unwrap();
        words = said(&output);
        let in_use = words.contains("is in use");
        assert!(output.status.success() || in_use, "{words}");
        !in_use
    });
    words
}

/// Detaches the mounts of other tests and of their disks. A copy of these mounts would keep them alive.
const ALONE: &str = r#"
awk -v own="${TEST_DIR%/}/" '{
  for (at = 7; $at != "-"; at++);
  if (($(at + 1) ~ /^fuse(\.|$)/ || $(at + 2) ~ /^\/dev\/loop/) && index($5 "/", own) != 1) print $5
}' /proc/self/mountinfo | tac | while read -r point; do umount -l "$point" || true; done
"#;

/// A script in a mount namespace of its own. `TEST_DIR` is the directory of the test.
pub(crate) fn in_namespace(fixture: &Fixture, script: &str) -> Command {
    let mut command = Command::new("unshare");
    command.args(["-m", "--propagation", "private", "sh", "-e", "-c"]);
    command.arg([ALONE, script].concat()).env("TEST_DIR", fixture.path(""));
    command
}

/// Opens the device to users without rights.
const DEVICE: &str = r#"
mount -t tmpfs -o mode=755 none "$TEST_DIR/dev"
mknod -m 666 "$TEST_DIR/dev/fuse" c 10 229
mount --bind "$TEST_DIR/dev/fuse" /dev/fuse
"#;

/// A script in a mount namespace of its own, where users without rights may mount.
pub(crate) fn where_all_may_mount(fixture: &Fixture, script: &str) -> Command {
    std::fs::create_dir(fixture.path("dev")).unwrap();
    in_namespace(fixture, &[DEVICE, script].concat())
}

/// A mount of belady.
pub(crate) struct Mounted {
    pub(crate) point: PathBuf,
    pub(crate) pid: i32,
    run: PathBuf,
    _watchdog: Watchdog,
}

impl Mounted {
    /// Mounts the source at `mount`.
    #[track_caller]
    pub(crate) fn new(fixture: &Fixture, options: &[&str]) -> Self {
        Self::at(fixture, &fixture.path("source"), &fixture.path("mount"), options)
    }

    #[track_caller]
    pub(crate) fn at(fixture: &Fixture, source: &Path, point: &Path, options: &[&str]) -> Self {
        let mut command = fixture.belady();
        Self::by(fixture, command.arg("mount").args([source, point]).args(options), point)
    }

    /// Mounts a directory, and does not wait until all of its files are known.
    #[track_caller]
    pub(crate) fn early(fixture: &Fixture, source: &Path, point: &Path, options: &[&str]) -> Self {
        let mut command = fixture.belady();
        Self::served(fixture, command.arg("mount").args([source, point]).args(options), point)
    }

    #[track_caller]
    pub(crate) fn by(fixture: &Fixture, command: &mut Command, point: &Path) -> Self {
        let mounted = Self::served(fixture, command, point);
        wait_until("the scan of the source", || mounted.status()["catalog"] != "scanning");
        mounted
    }

    #[track_caller]
    fn served(fixture: &Fixture, command: &mut Command, point: &Path) -> Self {
        let before = fixture.daemons();
        let output = command.output().unwrap();
        let started = fixture.daemons().into_iter().find(|pid| !before.contains(pid));
        let pid = started.unwrap_or_else(|| panic!("belady does not mount: {}", said(&output)));
        let (point, run) = (point.to_path_buf(), fixture.path("run"));
        let mounted = Mounted { point, pid, run, _watchdog: Watchdog::over(pid) };
        assert!(output.status.success(), "{}", said(&output));
        mounted
    }

    /// A path in the mount.
    pub(crate) fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.point.join(name)
    }

    fn belady(&self) -> Command {
        belady(&self.run)
    }

    /// The output of `belady status --json`.
    #[track_caller]
    pub(crate) fn status(&self) -> Value {
        let output = self.belady().arg("status").arg(&self.point).arg("--json").output().unwrap();
        assert!(output.status.success(), "{}", said(&output));
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// A number of the status, by its path, such as `/ram/kept`.
    #[track_caller]
    pub(crate) fn count(&self, key: &str) -> u64 {
        let status = self.status();
        status.pointer(key).and_then(Value::as_u64).unwrap_or_else(|| panic!("{key} in {status}"))
    }

    /// Unmounts as a user does. Nothing of the mount may be left.
    #[track_caller]
    pub(crate) fn umount(self) {
        unmount(&self.run, &self.point);
        self.wait_until_gone();
    }

    /// Waits for the end of the daemon. Its log must not have a panic.
    #[track_caller]
    pub(crate) fn wait_until_gone(&self) {
        wait_for_end(self.pid);
        assert!(!self.log().contains("panicked"), "{}", self.log());
    }

    /// The logs of this test's mounts.
    pub(crate) fn log(&self) -> String {
        let entries = fs::read_dir(self.run.join("belady")).into_iter().flatten().flatten();
        entries.filter_map(|entry| fs::read_to_string(entry.path().join("log")).ok()).collect()
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("log of {}:\n{}", self.point.display(), self.log());
        }
        // Ends what this test started, by its path and its process. All of it may be gone already.
        if runs(self.pid) {
            if daemons(&self.run).contains(&self.pid) {
                run_briefly(self.belady().arg("umount").arg("--force").arg(&self.point));
            }
            let start = Instant::now();
            while runs(self.pid) && start.elapsed() < Duration::from_secs(2) {
                thread::sleep(Duration::from_millis(5));
            }
            signal(self.pid, Signal::SIGKILL);
            detach(&self.point, "fuse");
        }
    }
}

/// Detaches a mount of this kind that has outlived its daemon.
fn detach(point: &Path, kind: &str) {
    let table = mount_table();
    let at_point = |line: &&str| line.split(' ').nth(4) == point.to_str();
    if table.lines().rev().find(at_point).is_some_and(|line| line.contains(kind)) {
        // Force sets waiting processes free, which is allowed here.
        if nix::mount::umount2(point, nix::mount::MntFlags::MNT_FORCE).is_err() {
            let _ = nix::mount::umount2(point, nix::mount::MntFlags::MNT_DETACH);
        }
    }
}

/// A slow filesystem over the source, which fails on command.
pub(crate) struct Slowpfs {
    pub(crate) point: PathBuf,
    socket: PathBuf,
    child: Child,
    _watchdog: Watchdog,
}

impl Slowpfs {
    /// Mounts the source at `slow`, without delays. Names are not trusted.
    #[track_caller]
    pub(crate) fn new(fixture: &Fixture, options: &[&str]) -> Self {
        let (point, socket) = (fixture.path("slow"), fixture.path("slow.socket"));
        let mut child = Command::new(program("slowpfs"))
            .args([fixture.path("source"), point.clone()])
            .args(["--preset", "idle", "--ttl", "0", "--control"])
            .arg(&socket)
            .args(options)
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .unwrap();
        let stdout = child.stdout.take().unwrap();
        let _watchdog = Watchdog::over(child.id() as i32);
        let slow = Slowpfs { point, socket, child, _watchdog };
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line).unwrap();
        assert!(line.contains("is mounted at"), "slowpfs does not serve: {line}");
        slow
    }

    /// Sends a command, which slowpfs must accept.
    #[track_caller]
    pub(crate) fn ctl(&self, words: &[&str]) -> String {
        let mut command = Command::new(program("slowpfs"));
        let output = command.arg("ctl").arg(&self.socket).args(words).output().unwrap();
        assert!(output.status.success(), "{}", said(&output));
        String::from_utf8(output.stdout).unwrap()
    }

    /// A counter of the requests that reached the filesystem.
    #[track_caller]
    pub(crate) fn count(&self, name: &str) -> u64 {
        let stats: Value = serde_json::from_str(&self.ctl(&["stats"])).unwrap();
        stats[name].as_u64().unwrap_or_else(|| panic!("no {name} in {stats}"))
    }
}

impl Drop for Slowpfs {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        detach(&self.point, "fuse");
    }
}
