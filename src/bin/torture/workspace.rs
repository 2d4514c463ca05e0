//! The directory of a run. It is removed at the end, whatever happened in it.
//!
//! Processes are recognised by their program and by an argument that is a path below the directory. Mounts
//! are recognised by their paths. So nothing outside the run is touched. Processes of torture itself end with
//! it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use tempfile::TempDir;

use crate::mounts::{force_unmount, mounts_below};
use crate::process::{pids_of, program, signal};

/// How long killed processes may take to be gone.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The directory of a run and of its scenarios, and the programs that use it.
#[derive(Debug)]
pub(crate) struct Workspace {
    run: TempDir,
    /// The directory of the scenario.
    scenario: PathBuf,
    /// The program under test.
    pub(crate) belady: PathBuf,
    /// The slow filesystem.
    pub(crate) slowpfs: PathBuf,
}

impl Workspace {
    /// Makes the directory.
    ///
    /// # Errors
    /// If a program is missing, or the directory cannot be made.
    pub(crate) fn new() -> io::Result<Self> {
        let (belady, slowpfs) = (program("belady")?, program("slowpfs")?);
        let run = tempfile::Builder::new().prefix("belady-torture-").tempdir()?;
        let scenario = run.path().join("scenario");
        fs::create_dir(&scenario)?;
        Ok(Workspace { run, scenario, belady, slowpfs })
    }

    /// The directory of a scenario.
    pub(crate) fn scenario_dir(&self) -> &Path {
        &self.scenario
    }

    /// A path in the directory of a scenario.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.scenario.join(name)
    }

    /// The directory of files that last for the run.
    pub(crate) fn run_dir(&self) -> &Path {
        self.run.path()
    }

    /// The processes of belady that use the directory of a scenario.
    pub(crate) fn daemons(&self) -> Vec<i32> {
        pids_of(&self.belady, self.scenario_dir())
    }

    /// The daemon that belady has noted for a mount point.
    pub(crate) fn daemon_of(&self, point: &Path) -> Option<i32> {
        let entries = fs::read_dir(self.path("run/belady")).ok()?.flatten();
        let notes = entries.filter_map(|entry| fs::read(entry.path().join("mount.json")).ok());
        let mut notes =
            notes.filter_map(|note| serde_json::from_slice::<serde_json::Value>(&note).ok());
        let here = |note: &serde_json::Value| note["mountpoint"].as_str() == point.to_str();
        notes.find(here)?["pid"].as_i64()?.try_into().ok()
    }

    /// All logs of the daemons.
    pub(crate) fn logs(&self) -> String {
        let entries = fs::read_dir(self.path("run/belady")).into_iter().flatten().flatten();
        entries.filter_map(|entry| fs::read_to_string(entry.path().join("log")).ok()).collect()
    }

    /// Kills every process of a scenario, removes every mount, and then empties its directory.
    pub(crate) fn clear(&self) {
        clear(self.scenario_dir(), &self.belady, &self.slowpfs);
    }
}

impl Drop for Workspace {
    fn drop(&mut self) {
        clear(self.run.path(), &self.belady, &self.slowpfs);
    }
}

/// As [`Workspace::clear`], for callers that have only the paths.
pub(crate) fn clear(root: &Path, belady: &Path, slowpfs: &Path) {
    for mount in mounts_below(root).iter().filter(|mount| mount.kind == "ext4") {
        // A process that writes to a frozen disk cannot be killed.
        let mut thaw = Command::new("fsfreeze");
        let _ = thaw.arg("--unfreeze").arg(&mount.point).stderr(Stdio::null()).status();
    }
    let left = || [belady, slowpfs].map(|program| pids_of(program, root)).concat();
    let began = Instant::now();
    loop {
        let left = left();
        left.iter().for_each(|pid| signal(*pid, Signal::SIGKILL));
        force_unmount(root);
        if left.is_empty() || began.elapsed() > TIMEOUT {
            break;
        }
        thread::sleep(Duration::from_millis(20));
    }
    let entries = fs::read_dir(root).into_iter().flatten().flatten();
    for entry in entries {
        let path = entry.path();
        // A path with a mount left is not removed: that would empty the mount.
        if mounts_below(&path).is_empty() {
            let _ = if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
        }
    }
}
