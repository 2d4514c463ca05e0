//! What the kernel tells of one task, read from files that stay open.

use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use nix::libc::ESRCH;
use nix::time::{ClockId, clock_gettime};
use nix::unistd::{SysconfVar, sysconf};

use crate::process::{START_WORD, stat_words};
use crate::stall::{Counters, State};

/// The most that a file of a task has.
const FILE_MAX: usize = 1024;

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
        Ok(TaskFiles { place, wchan, schedstat, io })
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
        matches!(self.letter(), Ok(Some('Z' | 'X')))
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
        let stat = self.stat()?.ok_or(Ended)?;
        let start = stat_words(&stat).and_then(|mut words| words.nth(START_WORD)?.parse().ok());
        let ticks = sysconf(SysconfVar::CLK_TCK).ok().flatten().unwrap_or(100);
        start.map(|start: f64| start / ticks as f64).ok_or(Ended)
    }
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
        assert!(files.counters().unwrap().bytes.is_some() && !files.is_zombie());
        child.kill().unwrap();
        while !files.is_zombie() {
            std::thread::yield_now();
        }
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
    fn bytes_are_read_where_the_kernel_has_them() {
        let text = "rchar: 12\nwchar: 34\nsyscr: 1\nsyscw: 2\nread_bytes: 0\nwrite_bytes: 5\n";
        assert_eq!((bytes(text), bytes("")), (Some((12, 34)), None));
    }
}
