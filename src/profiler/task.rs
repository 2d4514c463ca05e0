//! What the kernel tells of one task, read from files that stay open.

use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use nix::libc::{ESRCH, SYS_futex};
use nix::time::{ClockId, clock_gettime};
use nix::unistd::{SysconfVar, sysconf};

use crate::process::{START_WORD, stat_words};
use crate::stall::{Counters, State};

/// The most that a file of a task has.
const FILE_MAX: usize = 1024;

/// The letters of the states of a task that has ended.
const ENDED: [char; 2] = ['Z', 'X'];

/// Seconds since the start of the machine, as the kernel counts the starts of processes.
pub(super) fn now() -> f64 {
    clock_gettime(ClockId::CLOCK_BOOTTIME)
        .map_or(0.0, |now| now.tv_sec() as f64 + now.tv_nsec() as f64 / 1e9)
}

/// The files of a task. Those that this user may not read are left out.
#[derive(Debug)]
pub(super) struct TaskFiles {
    place: PathBuf,
    wchan: Option<File>,
    schedstat: Option<File>,
    io: Option<File>,
    /// Only of trainers.
    syscall: Option<File>,
}

/// The task has ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ended;

impl TaskFiles {
    /// The main thread of a process.
    ///
    /// # Errors
    /// If it has ended.
    pub(super) fn of_process(process: u32) -> Result<Self, Ended> {
        Self::open(Path::new("/proc").join(process.to_string()))
    }

    /// The main thread of a process that takes batches.
    ///
    /// # Errors
    /// If it has ended.
    pub(super) fn of_trainer(process: u32) -> Result<Self, Ended> {
        let files = Self::of_process(process)?;
        let syscall = File::open(files.place.join("syscall")).ok();
        Ok(TaskFiles { syscall, ..files })
    }

    /// A thread of a process.
    ///
    /// # Errors
    /// If it has ended.
    pub(super) fn of_thread(process: u32, thread: u32) -> Result<Self, Ended> {
        Self::open(Path::new("/proc").join(format!("{process}/task/{thread}")))
    }

    fn open(place: PathBuf) -> Result<Self, Ended> {
        let open = |name: &str| match File::open(place.join(name)) {
            Ok(file) => Ok(Some(file)),
            Err(error) if has_ended(&error) => Err(Ended),
            Err(_) => Ok(None),
        };
        let (wchan, schedstat, io) = (open("wchan")?, open("schedstat")?, open("io")?);
        Ok(TaskFiles { place, wchan, schedstat, io, syscall: None })
    }

    /// What the task does now.
    ///
    /// # Errors
    /// If it has ended.
    pub(super) fn state(&self) -> Result<State, Ended> {
        let mut buffer = [0; FILE_MAX];
        let name = self.wchan.as_ref().map_or(Ok(""), |file| read(file, &mut buffer))?;
        if let Some(state) = State::of_function(name).filter(|state| *state != State::Unknown) {
            return Ok(state);
        }
        let is_named = !name.is_empty();
        // If no file can be opened now, it is not known.
        let letter = self.letter()?.unwrap_or('?');
        Ok(State::of_letter(letter, is_named && letter != '?'))
    }

    /// Whether the task waits for another one, and not longer than a given time.
    pub(super) fn waits_for_thread(&self) -> bool {
        let mut buffer = [0; FILE_MAX];
        let Some(Ok(text)) = self.syscall.as_ref().map(|file| read(file, &mut buffer)) else {
            return false;
        };
        waits_with_a_timeout(text)
    }

    fn stat(&self) -> Result<Option<Vec<u8>>, Ended> {
        match std::fs::read(self.place.join("stat")) {
            Ok(stat) => Ok(Some(stat)),
            Err(error) if has_ended(&error) => Err(Ended),
            Err(_) => Ok(None),
        }
    }

    /// The letter of its state in `/proc/PID/stat`.
    fn letter(&self) -> Result<Option<char>, Ended> {
        let stat = self.stat()?;
        Ok(stat.as_deref().and_then(stat_words).and_then(|mut words| words.next()?.chars().next()))
    }

    /// Whether it has ended and its parent has not asked for its exit code yet.
    pub(super) fn is_zombie(&self) -> bool {
        self.letter().is_ok_and(|letter| letter.is_some_and(|letter| ENDED.contains(&letter)))
    }

    /// What the kernel has counted for it.
    ///
    /// # Errors
    /// If it has ended.
    pub(super) fn counters(&self) -> Result<Counters, Ended> {
        let mut buffer = [0; FILE_MAX];
        let text = self.schedstat.as_ref().map_or(Ok(""), |file| read(file, &mut buffer))?;
        let mut seconds = text.split_whitespace().map(|ns| ns.parse::<f64>().unwrap_or(0.0) / 1e9);
        let mut next = || seconds.next().unwrap_or(0.0);
        let (run_s, queued_s) = (next(), next());
        let bytes = match &self.io {
            Some(file) => bytes(read(file, &mut buffer)?),
            None => None,
        };
        Ok(Counters { run_s, queued_s, bytes })
    }

    /// Seconds in which it has waited for a processor. `None` if that cannot be known.
    pub(super) fn queued_s(&self) -> Option<f64> {
        let mut buffer = [0; FILE_MAX];
        let text = read(self.schedstat.as_ref()?, &mut buffer).ok()?;
        Some(text.split_whitespace().nth(1)?.parse::<f64>().ok()? / 1e9)
    }

    /// Seconds from the start of the machine to its own start.
    ///
    /// # Errors
    /// If it has ended.
    pub(super) fn born(&self) -> Result<f64, Ended> {
        start_in(&self.stat()?.ok_or(Ended)?).ok_or(Ended)
    }
}

/// Seconds from the start of the machine to the start of a process. `None` if it has ended, even if its parent has not asked
/// for its exit code yet.
pub(super) fn start_of(process: u32) -> Option<f64> {
    let stat = std::fs::read(format!("/proc/{process}/stat")).ok()?;
    let has_ended = stat_words(&stat)?.next()?.starts_with(ENDED);
    start_in(&stat).filter(|_| !has_ended)
}

fn start_in(stat: &[u8]) -> Option<f64> {
    let start: f64 = stat_words(stat)?.nth(START_WORD)?.parse().ok()?;
    let ticks = sysconf(SysconfVar::CLK_TCK).ok().flatten().unwrap_or(100);
    Some(start / ticks as f64)
}

/// Whether this call of the kernel, as `/proc/PID/syscall` has it, is a `futex` with a timeout. The words are the number of the
/// call and its arguments. The fourth one is the place of the timeout.
fn waits_with_a_timeout(text: &str) -> bool {
    let mut words = text.split_whitespace();
    let is_futex = words.next().and_then(|word| word.parse().ok()) == Some(SYS_futex);
    is_futex && words.nth(3).is_some_and(|timeout| timeout != "0x0")
}

/// Whether a file of a task says by this error that the task has ended.
fn has_ended(error: &std::io::Error) -> bool {
    error.kind() == ErrorKind::NotFound || error.raw_os_error() == Some(ESRCH)
}

fn read<'a>(file: &File, buffer: &'a mut [u8]) -> Result<&'a str, Ended> {
    match file.read_at(buffer, 0) {
        Ok(length) => {
            let text = std::str::from_utf8(&buffer[..length]).unwrap_or_default();
            Ok(text.trim_end_matches(['\0', '\n']))
        }
        Err(error) if has_ended(&error) => Err(Ended),
        // Its rights may have changed with its program.
        Err(_) => Ok(""),
    }
}

/// Bytes read and written, as `/proc/PID/io` has them.
fn bytes(text: &str) -> Option<(u64, u64)> {
    let field =
        |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
    Some((field("rchar:")?, field("wchar:")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_sleeps_is_seen_until_it_ends() {
        let mut child = std::process::Command::new("sleep").arg("600").spawn().unwrap();
        let files = TaskFiles::of_process(child.id()).unwrap();
        while files.state().unwrap() != State::Elsewhere {
            std::thread::yield_now();
        }
        let age = now() - files.born().unwrap();
        assert!((0.0..300.0).contains(&age), "{age}");
        assert_eq!(start_of(child.id()), files.born().ok());
        assert!(files.counters().unwrap().bytes.is_some() && !files.is_zombie());
        child.kill().unwrap();
        while !files.is_zombie() {
            std::thread::yield_now();
        }
        assert_eq!(start_of(child.id()), None);
        child.wait().unwrap();
        assert!(files.counters().is_err() && files.state().is_err() && files.born().is_err());
        assert!(TaskFiles::of_process(child.id()).is_err());
    }

    #[test]
    fn a_thread_has_counters_of_its_own() {
        let task = nix::unistd::gettid().as_raw() as u32;
        let files = TaskFiles::of_thread(std::process::id(), task).unwrap();
        let before = files.counters().unwrap();
        std::fs::read("/proc/self/status").unwrap();
        let after = files.counters().unwrap();
        assert!(after.bytes > before.bytes && files.state().unwrap() == State::Runs);
    }

    #[test]
    fn a_wait_with_a_timeout_is_told_from_one_without() {
        let timed = format!("{SYS_futex} 0x7f1 0x189 0x0 0x7ffd8 0x0 0xffffffff 0x7ffd7 0x7f3");
        assert!(waits_with_a_timeout(&timed));
        assert!(!waits_with_a_timeout(&timed.replace(" 0x7ffd8 ", " 0x0 ")), "it has no end");
        for other in ["", "running", "7 0x7f1 0x1 0x0 0x7ffd8 0x0 0x0 0x7ffd7 0x7f3", "-1 0x1 0x2"]
        {
            assert!(!waits_with_a_timeout(other), "{other}");
        }
        // Python's queues wait so.
        let script = "import queue; queue.Queue().get(timeout=600)";
        let mut child = std::process::Command::new("python3").args(["-c", script]).spawn().unwrap();
        let files = TaskFiles::of_trainer(child.id()).unwrap();
        let end = std::time::Instant::now() + std::time::Duration::from_secs(180);
        while !files.waits_for_thread() && std::time::Instant::now() < end {
            std::thread::yield_now();
        }
        let was_seen = files.waits_for_thread();
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(was_seen && !files.waits_for_thread());
    }

    #[test]
    fn bytes_are_read_where_the_kernel_has_them() {
        let text = "rchar: 12\nwchar: 34\nsyscr: 1\nsyscw: 2\nread_bytes: 0\nwrite_bytes: 5\n";
        assert_eq!((bytes(text), bytes("")), (Some((12, 34)), None));
    }
}
