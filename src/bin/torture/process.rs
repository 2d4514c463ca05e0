//! Starts commands, waits for them within limits, and finds and kills processes.

use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// How often an ending process is checked.
const INTERVAL: Duration = Duration::from_millis(2);

/// The path of a program that was built with this one.
pub(crate) fn program(name: &str) -> io::Result<PathBuf> {
    let own = std::env::current_exe()?;
    let found = own.with_file_name(name);
    if found.exists() {
        return Ok(found);
    }
    let message = format!("{} is missing: build it with `cargo build --bins`", found.display());
    Err(io::Error::new(io::ErrorKind::NotFound, message))
}

/// How a command ended.
#[derive(Debug)]
pub(crate) enum Ended {
    /// By itself, with this status and output.
    Exited(ExitStatus, String),
    /// It took too long and was killed.
    Killed,
}

/// Runs a command to its end, or kills it when `may_run` returns false. Its output goes to the file `output`,
/// because a daemon that it leaves behind may keep a pipe open.
pub(crate) fn run(
    command: &mut Command,
    output: &Path,
    mut may_run: impl FnMut() -> bool,
) -> io::Result<Ended> {
    let file = File::create(output)?;
    command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
    let mut child = command.spawn()?;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Ended::Exited(status, fs::read_to_string(output).unwrap_or_default()));
        }
        if !may_run() {
            kill_and_wait(&mut child, Duration::from_secs(1));
            return Ok(Ended::Killed);
        }
        thread::sleep(INTERVAL);
    }
}

/// Kills a child, and waits a while for its end: a child that is stuck in the kernel does not end. Returns
/// whether it ended.
pub(crate) fn kill_and_wait(child: &mut Child, timeout: Duration) -> bool {
    let _ = child.kill();
    let began = Instant::now();
    while began.elapsed() < timeout {
        if !matches!(child.try_wait(), Ok(None)) {
            return true;
        }
        thread::sleep(INTERVAL);
    }
    false
}

/// Sends a signal. The process may be gone.
pub(crate) fn signal(pid: i32, signal: Signal) {
    let _ = kill(Pid::from_raw(pid), signal);
}

/// Whether a process runs. A zombie has ended only if none of its threads is left.
pub(crate) fn is_running(pid: i32) -> bool {
    let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else { return false };
    let is_dead = stat.rsplit(") ").next().is_none_or(|rest| rest.starts_with(['Z', 'X']));
    let tasks = || fs::read_dir(format!("/proc/{pid}/task")).map_or(0, |tasks| tasks.count());
    !is_dead || tasks() > 1
}

/// The processes of a program with an argument that begins with `path`. Arguments of other programs are not
/// read, because that waits while the memory of a process is locked.
pub(crate) fn pids_of(program: &Path, path: &Path) -> Vec<i32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let name = program.file_name().unwrap_or_default().as_bytes();
    let is_it = |pid: &i32| {
        let comm = fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
        if comm.trim_ascii_end() != name {
            return false;
        }
        let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let needle = path.as_os_str().as_bytes();
        let mut words = words.split(|byte| *byte == 0);
        words.next().is_some_and(|first| Path::new(std::ffi::OsStr::from_bytes(first)) == program)
            && words.any(|word| word.starts_with(needle))
    };
    numbers.filter(is_it).collect()
}
