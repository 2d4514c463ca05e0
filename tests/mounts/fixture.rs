//! The fixture of all tests: a directory of their own, known contents, and waits.
//!
//! Goal: tests do not see each other and never depend on the speed of the machine. Method: everything of a
//! test, including belady's runtime directory, is below one temporary directory. Contents follow from a seed.
//! Tests wait for conditions.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use tempfile::TempDir;

use crate::mounted::{belady, unmount};
use crate::programs::signal;

/// A time that only a broken program takes.
pub(crate) const LIMIT: Duration = Duration::from_secs(180);

/// The variable with the directory of the programs, for a user who runs the tests. Without it they are where
/// they were built.
const PROGRAMS: &str = "BELADY_TEST_PROGRAMS";

/// A program that was built for the tests.
pub(crate) fn program(name: &str) -> PathBuf {
    let built = match name {
        "belady" => env!("CARGO_BIN_EXE_belady"),
        "slowlink" => env!("CARGO_BIN_EXE_slowlink"),
        "slowpfs" => env!("CARGO_BIN_EXE_slowpfs"),
        other => panic!("no program {other}"),
    };
    std::env::var_os(PROGRAMS).map_or(built.into(), |directory| Path::new(&directory).join(name))
}

#[track_caller]
pub(crate) fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < LIMIT, "{what}: not within {LIMIT:?}");
        thread::sleep(Duration::from_millis(10));
    }
}

/// The directory of one test: a source, a mount point, and room for more.
pub(crate) struct Fixture {
    dir: TempDir,
}

impl Fixture {
    pub(crate) fn new() -> Self {
        assert!(Path::new("/dev/fuse").exists(), "these tests need FUSE: /dev/fuse is missing");
        assert!(
            nix::unistd::geteuid().is_root() || std::env::var_os(PROGRAMS).is_some(),
            "these tests mount filesystems: run them as root, or by scripts/lib/as_user"
        );
        let dir = TempDir::new().unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        for name in ["source", "mount", "slow", "run"] {
            fs::create_dir(dir.path().join(name)).unwrap();
        }
        Fixture { dir }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// A path in the source.
    pub(crate) fn source(&self, name: impl AsRef<Path>) -> PathBuf {
        self.dir.path().join("source").join(name)
    }

    /// Writes a file below the source, and the directories that it needs.
    pub(crate) fn write(&self, name: &str, bytes: &[u8]) {
        let path = self.source(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }

    /// Writes `count` files of `size` bytes: `dir/0000` and so on. Their numbers are their seeds.
    pub(crate) fn write_many(&self, dir: &str, count: u64, size: usize) {
        for number in 0..count {
            self.write(&format!("{dir}/{number:04}"), &content(number, size));
        }
    }

    /// The belady command line, with a runtime directory that only this test sees.
    pub(crate) fn belady(&self) -> Command {
        belady(&self.path("run"))
    }

    /// Copies the program, as `belady`, to where every user may run it: the build directory may be closed to
    /// others. Another process does it. A program that a test starts at this moment would have a copy of a
    /// descriptor that is open for writing, and a file that is being written cannot be run.
    pub(crate) fn copy_belady(&self) {
        let mut copy = Command::new("cp");
        copy.arg(program("belady")).arg(self.path("belady"));
        assert!(copy.status().unwrap().success());
    }

    /// Unmounts as a user does.
    #[track_caller]
    pub(crate) fn umount(&self, point: &Path) {
        unmount(&self.path("run"), point);
    }

    /// Runs belady with these words. It must end with this exit code. Returns its output.
    #[track_caller]
    pub(crate) fn run(&self, code: i32, words: &[&str]) -> String {
        let output = self.belady().args(words).output().unwrap();
        let said = said(&output);
        assert_eq!(output.status.code(), Some(code), "belady {words:?}: {said}");
        said
    }

    /// The processes of the daemons that this test has noted as running.
    pub(crate) fn daemons(&self) -> Vec<i32> {
        daemons(&self.path("run"))
    }
}

/// The table of mounts. Some mount points have names that are not UTF-8.
pub(crate) fn mount_table() -> String {
    String::from_utf8_lossy(&fs::read("/proc/self/mountinfo").unwrap()).into_owned()
}

impl Drop for Fixture {
    fn drop(&mut self) {
        // A mount that should have been refused and was not has no guard of its own.
        for pid in self.daemons() {
            signal(pid, Signal::SIGKILL);
        }
        let table = mount_table();
        let points = table.lines().filter_map(|line| line.split(' ').nth(4));
        let ours: Vec<&str> =
            points.filter(|point| Path::new(point).starts_with(self.dir.path())).collect();
        // First from the outside, so that nothing waits for a dead mount, then from the inside.
        for point in &ours {
            let _ = nix::mount::umount2(*point, nix::mount::MntFlags::MNT_FORCE);
        }
        for point in ours.into_iter().rev() {
            let _ = nix::mount::umount2(point, nix::mount::MntFlags::MNT_DETACH);
        }
    }
}

/// The output of a command, stdout and stderr.
pub(crate) fn said(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    text(&output.stdout) + &text(&output.stderr)
}

/// The processes noted in a runtime directory.
pub(crate) fn daemons(run: &Path) -> Vec<i32> {
    let Ok(entries) = fs::read_dir(run.join("belady")) else { return Vec::new() };
    let noted = entries.flatten().filter_map(|entry| {
        let note: serde_json::Value =
            serde_json::from_slice(&fs::read(entry.path().join("mount.json")).ok()?).ok()?;
        Some(note["pid"].as_i64()? as i32)
    });
    noted.collect()
}

/// Bytes that depend on the seed and on the place.
pub(crate) fn content(seed: u64, length: usize) -> Vec<u8> {
    let mix = |word: u64| (word ^ seed << 32 ^ 0x5bd1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let words =
        (0..length.div_ceil(8) as u64).flat_map(|word| (mix(word) ^ mix(word) >> 29).to_le_bytes());
    let mut bytes: Vec<u8> = words.collect();
    bytes.truncate(length);
    bytes
}

/// Whether the files are as [`Fixture::write_many`] made them.
#[track_caller]
pub(crate) fn check_many(root: &Path, dir: &str, count: u64, size: usize) {
    for number in 0..count {
        let name = format!("{dir}/{number:04}");
        let bytes = fs::read(root.join(&name)).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(bytes == content(number, size), "{name} has other bytes");
    }
}

/// A generator of random numbers: splitmix64. The numbers are the same in every run.
pub(crate) struct Choice(pub(crate) u64);

impl Choice {
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound
    }
}

/// Asserts that a result is this errno.
#[track_caller]
pub(crate) fn fails<T>(result: std::io::Result<T>, errno: i32) {
    match result {
        Ok(_) => panic!("this must fail with errno {errno}, and did not"),
        Err(error) => assert_eq!(error.raw_os_error(), Some(errno), "{error}"),
    }
}
