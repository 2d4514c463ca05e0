//! The real `slowpfs` binary, mounted over a small tree: bytes, counters, faults, unmounting.
//!
//! Needs root or fusermount3, and /dev/fuse; without them these tests fail and do not skip. No test depends
//! on the speed of the machine: tests wait for conditions, with limits that only a broken program reaches.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::libc;
use nix::sys::signal::{Signal, kill};
use nix::sys::stat::Mode;
use nix::unistd::Pid;
use serde_json::Value;
use tempfile::TempDir;

/// A time that only a broken program takes.
const LIMIT: Duration = Duration::from_secs(180);

/// A running slowpfs. Its process and its mount end with the test, even if the test fails.
struct Mount {
    child: Child,
    dir: TempDir,
}

impl Mount {
    /// Mounts an empty directory, with a control socket.
    fn new(options: &[&str]) -> Self {
        let dir = TempDir::new().unwrap();
        for name in ["source", "mount"] {
            fs::create_dir(dir.path().join(name)).unwrap();
        }
        let child = slowpfs()
            .args([dir.path().join("source"), dir.path().join("mount")])
            .arg("--control")
            .arg(dir.path().join("socket"))
            .args(options)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // The guard exists before anything may fail.
        let mut mount = Self { child, dir };
        let mut line = String::new();
        BufReader::new(mount.child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        if !line.contains("is mounted at") {
            let mut errors = String::new();
            mount.child.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
            panic!("slowpfs does not serve; FUSE is needed here: {errors}");
        }
        mount
    }

    /// Mounts without delays.
    fn idle(options: &[&str]) -> Self {
        Self::new(&[&["--preset", "idle"], options].concat())
    }

    /// A path in the source.
    fn source(&self, name: impl AsRef<Path>) -> PathBuf {
        self.dir.path().join("source").join(name)
    }

    /// The same path through the mount.
    fn through(&self, name: impl AsRef<Path>) -> PathBuf {
        self.dir.path().join("mount").join(name)
    }

    /// Sends a command, which slowpfs must accept.
    fn ctl(&self, words: &[&str]) -> String {
        let socket = self.dir.path().join("socket");
        let output = slowpfs().arg("ctl").arg(socket).args(words).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// A counter, as the virtual file shows it.
    fn count(&self, name: &str) -> u64 {
        let json = fs::read_to_string(self.through(".slowpfs/stats")).unwrap();
        let stats: Value = serde_json::from_str(&json).unwrap();
        stats[name].as_u64().unwrap_or_else(|| panic!("no {name} in {json}"))
    }

    /// Waits for a counter to reach a value.
    fn wait_for(&self, name: &str, value: u64) {
        eventually(&format!("{name} = {value}"), || self.count(name) == value);
    }

    fn is_mounted(&self) -> bool {
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        mounts.contains(self.through("").to_str().unwrap().trim_end_matches('/'))
    }

    /// Asks for a clean end, and waits for it.
    fn terminate(&mut self) {
        kill(Pid::from_raw(self.child.id() as i32), Signal::SIGTERM).unwrap();
        let mut status = None;
        eventually("the end of slowpfs", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        assert!(status.unwrap().success(), "{status:?}");
        assert!(!self.is_mounted());
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        // Ends only what this test started, by its process id and its path. Both may be gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if self.is_mounted() {
            let path = self.through("");
            let quiet = |name: &str, flag: &str| {
                let mut command = Command::new(name);
                command
                    .arg(flag)
                    .arg(&path)
                    .stderr(Stdio::null())
                    .status()
                    .is_ok_and(|s| s.success())
            };
            let _ = quiet("umount", "-l") || quiet("fusermount3", "-uz");
        }
    }
}

fn slowpfs() -> Command {
    Command::new(env!("CARGO_BIN_EXE_slowpfs"))
}

#[track_caller]
fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < LIMIT, "{what}: not within {LIMIT:?}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// Bytes that depend on the seed and on the place.
fn content(seed: u64, len: usize) -> Vec<u8> {
    let mix = |i: u64| (i ^ seed).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (0..len as u64).map(|i| (mix(i) >> 56) as u8).collect()
}

fn names(dir: &Path) -> Vec<std::ffi::OsString> {
    let mut names: Vec<_> = fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name()).collect();
    names.sort();
    names
}

#[track_caller]
fn fails<T>(result: io::Result<T>, errno: i32) {
    assert_eq!(result.err().and_then(|e| e.raw_os_error()), Some(errno));
}

/// A tree of all kinds of entries.
fn write_tree(mount: &Mount) {
    fs::create_dir_all(mount.source("dir/deep")).unwrap();
    for (seed, (name, len)) in
        [("empty", 0), ("one", 1), ("dir/page", 4096), ("dir/deep/large", 3_000_001)]
            .into_iter()
            .enumerate()
    {
        fs::write(mount.source(name), content(seed as u64, len)).unwrap();
    }
    fs::write(mount.source(OsStr::from_bytes(b"not \xff utf-8")), "odd").unwrap();
    fs::hard_link(mount.source("one"), mount.source("dir/one too")).unwrap();
    symlink("dir/page", mount.source("link")).unwrap();
    nix::unistd::mkfifo(&mount.source("fifo"), Mode::S_IRUSR).unwrap();
    for i in 0..300 {
        fs::write(mount.source(format!("dir/deep/{i:03}")), i.to_string()).unwrap();
    }
}

/// Compares a directory with its view through the mount.
fn compare(source: &Path, through: &Path) {
    assert_eq!(names(source), names(through));
    for name in names(source) {
        let (a, b) = (source.join(&name), through.join(&name));
        let (ma, mb) = (fs::symlink_metadata(&a).unwrap(), fs::symlink_metadata(&b).unwrap());
        let attributes = |m: &fs::Metadata| {
            (m.ino(), m.mode(), m.nlink(), m.uid(), m.gid(), m.size(), m.mtime(), m.mtime_nsec())
        };
        assert_eq!(attributes(&ma), attributes(&mb), "{name:?}");
        if ma.is_dir() {
            compare(&a, &b);
        } else if ma.is_symlink() {
            assert_eq!(fs::read_link(&a).unwrap(), fs::read_link(&b).unwrap());
        } else if ma.is_file() {
            assert!(fs::read(&a).unwrap() == fs::read(&b).unwrap(), "{name:?}");
        } else {
            assert!(mb.file_type().is_fifo());
        }
    }
}

#[test]
fn tree_is_passed_through_unchanged() {
    for options in [&["--threads", "1"][..], &["--direct-io"], &["--no-readdirplus", "--ttl", "0"]]
    {
        let mut mount = Mount::idle(options);
        write_tree(&mount);
        compare(&mount.source(""), &mount.through(""));
        fails(fs::write(mount.through("one"), "x"), libc::EROFS);
        fails(fs::read(mount.through("none")), libc::ENOENT);
        mount.terminate();
    }
}

#[test]
fn file_larger_than_four_gib_is_read_at_its_end() {
    let mount = Mount::idle(&[]);
    let end = (5_u64 << 30) + 7;
    let file = File::create(mount.source("huge")).unwrap();
    file.write_all_at(b"the end", end - 7).unwrap();
    let mut through = File::open(mount.through("huge")).unwrap();
    assert_eq!(through.metadata().unwrap().len(), end);
    through.seek(SeekFrom::End(-7)).unwrap();
    let mut tail = String::new();
    through.read_to_string(&mut tail).unwrap();
    assert_eq!(tail, "the end");
}

#[test]
fn without_a_client_cache_every_reading_reaches_the_source() {
    let mount = Mount::idle(&[]);
    let data = content(1, 10_000);
    fs::write(mount.source("file"), &data).unwrap();
    for pass in 1..=3 {
        assert!(fs::read(mount.through("file")).unwrap() == data);
        assert_eq!(mount.count("open"), pass);
        assert_eq!(mount.count("read"), pass);
        assert_eq!(mount.count("bytes"), 10_000 * pass);
    }
    assert_eq!(mount.count("seek"), 3);
    mount.wait_for("release", 3);
    assert_eq!(mount.ctl(&["reset"]), "ok\n");
    assert_eq!((mount.count("open"), mount.count("bytes")), (0, 0));
}

#[test]
fn with_a_client_cache_only_opens_reach_the_source_until_the_file_changes() {
    let mount = Mount::idle(&["--client-cache"]);
    fs::write(mount.source("file"), content(1, 10_000)).unwrap();
    for pass in 1..=3 {
        assert!(fs::read(mount.through("file")).unwrap() == content(1, 10_000));
        assert_eq!((mount.count("open"), mount.count("read")), (pass, 1));
    }
    fs::write(mount.source("file"), content(2, 9_000)).unwrap();
    // The size is trusted for a second. After that, the new content is read once.
    eventually("the new content", || fs::read(mount.through("file")).unwrap() == content(2, 9_000));
    mount.ctl(&["reset"]);
    assert!(fs::read(mount.through("file")).unwrap() == content(2, 9_000));
    assert_eq!((mount.count("open"), mount.count("read")), (1, 0));
}

#[test]
fn changes_underneath_are_seen() {
    let mount = Mount::idle(&["--ttl", "0"]);
    fs::write(mount.source("file"), "old").unwrap();
    assert_eq!(fs::read(mount.through("file")).unwrap(), b"old");
    fs::write(mount.source("file"), "and new").unwrap();
    assert_eq!(fs::read(mount.through("file")).unwrap(), b"and new");
    // Another file under the same name, while the first is still open.
    let open = File::open(mount.through("file")).unwrap();
    fs::write(mount.source("other"), "a replacement").unwrap();
    fs::rename(mount.source("other"), mount.source("file")).unwrap();
    assert_eq!(fs::read(mount.through("file")).unwrap(), b"a replacement");
    assert_eq!(open.metadata().unwrap().len(), 7);
    fs::create_dir(mount.source("dir")).unwrap();
    fs::rename(mount.source("file"), mount.source("dir/moved")).unwrap();
    assert_eq!(fs::read(mount.through("dir/moved")).unwrap(), b"a replacement");
    fails(fs::metadata(mount.through("file")), libc::ENOENT);
    assert_eq!(names(&mount.through("")), ["dir"]);
}

#[test]
fn faults_hit_what_they_name_until_they_are_cleared() {
    let mount = Mount::idle(&["--ttl", "0"]);
    fs::create_dir(mount.source("dir")).unwrap();
    for name in ["dir/a", "dir/b"] {
        fs::write(mount.source(name), content(3, 1000)).unwrap();
    }
    mount.ctl(&["fault", "eio", "dir/a"]);
    fails(fs::read(mount.through("dir/a")), libc::EIO);
    assert_eq!(fs::read(mount.through("dir/b")).unwrap().len(), 1000);
    mount.ctl(&["fault", "estale", "*/b", "ops=open"]);
    fails(File::open(mount.through("dir/b")), libc::ESTALE);
    assert!(mount.count("errors_injected") >= 2);
    mount.ctl(&["fault", "clear"]);
    mount.ctl(&["fault", "short", "*"]);
    assert!(fs::read(mount.through("dir/a")).unwrap() == content(3, 1000)[..500]);
    mount.ctl(&["fault", "clear"]);
    assert!(fs::read(mount.through("dir/b")).unwrap() == content(3, 1000));
}

#[test]
fn hung_reads_are_answered_when_the_fault_is_cleared() {
    let mount = Mount::idle(&[]);
    fs::write(mount.source("file"), "late").unwrap();
    mount.ctl(&["fault", "hang", "file", "ops=read"]);
    let path = mount.through("file");
    let reader = thread::spawn(move || fs::read(path));
    mount.wait_for("read", 1);
    mount.wait_for("in_flight", 1);
    assert!(!reader.is_finished());
    mount.ctl(&["fault", "clear"]);
    assert_eq!(reader.join().unwrap().unwrap(), b"late");
    assert_eq!(mount.count("in_flight"), 0);
}

#[test]
fn end_answers_what_hangs_and_leaves_nothing_behind() {
    let mut mount = Mount::idle(&[]);
    fs::write(mount.source("file"), "never").unwrap();
    mount.ctl(&["fault", "hang", "file"]);
    let path = mount.through("file");
    let reader = thread::spawn(move || fs::read(path));
    mount.wait_for("open", 1);
    mount.terminate();
    fails(reader.join().unwrap(), libc::EIO);
    assert!(!mount.dir.path().join("socket").exists());
}

#[test]
fn mount_in_use_is_left_lazily() {
    let mut mount = Mount::idle(&[]);
    fs::write(mount.source("file"), "open").unwrap();
    let open = File::open(mount.through("file")).unwrap();
    mount.terminate();
    drop(open);
}

#[test]
fn model_can_be_changed_while_it_runs() {
    let mount = Mount::idle(&[]);
    fs::write(mount.source("file"), "slow").unwrap();
    mount.ctl(&["preset", "wan"]);
    let start = Instant::now();
    assert_eq!(fs::read(mount.through("file")).unwrap(), b"slow");
    // Lookup, open and read each take a round trip. An answer never comes early; how late it comes is not
    // tested.
    assert!(start.elapsed() >= Duration::from_millis(300));
    assert!(mount.count("held") >= 3);
}

#[test]
fn counters_reach_their_file() {
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("stats.json");
    let mut mount = Mount::idle(&["--stats", file.to_str().unwrap()]);
    let stats = || serde_json::from_slice::<Value>(&fs::read(&file).unwrap()).unwrap();
    assert_eq!(stats()["open"], 0);
    fs::write(mount.source("file"), "x").unwrap();
    fs::read(mount.through("file")).unwrap();
    eventually("the open in the file", || stats()["open"] == 1);
    mount.terminate();
    assert_eq!(stats()["bytes"], 1);
}

#[test]
fn mistakes_are_explained() {
    let refused = |output: Output, why: &str| {
        let errors = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && errors.contains(why), "{errors}");
    };
    let mount = Mount::idle(&[]);
    let (source, through) = (mount.source(""), mount.through(""));
    let run = |a: &Path, b: &Path| slowpfs().arg(a).arg(b).output().unwrap();
    refused(run(Path::new("/no/such/source"), &through), "cannot use /no/such/source");
    refused(run(&source, &through), "is busy");
    fs::write(mount.source("file"), "x").unwrap();
    refused(run(&source, &mount.source("file")), "is not a directory");
    let socket = mount.dir.path().join("socket");
    refused(slowpfs().arg("ctl").arg(&socket).arg("dance").output().unwrap(), "unknown command");
    refused(slowpfs().args(["ctl", "/no/such", "stats"]).output().unwrap(), "cannot reach");
}
