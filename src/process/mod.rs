//! Tells whether a process has ended, and ends one; and for whom a task reads ([`Task`]).
//!
//! A killed process is gone when its last thread has left the kernel. Until then it keeps its locks, sockets
//! and devices. Meanwhile its leader is a zombie. If the kernel holds up the leader itself, the leader has a
//! kill pending. A process that dumps core also waits for its last thread. Its signal is no longer pending
//! then, but the kernel reports the dump.

mod groups;
mod processors;

use std::fs;
use std::time::{Duration, Instant};

use nix::libc;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};

pub use groups::{Task, program, runs};
pub use processors::{ProcessorsUsed, processors_used};

/// The bit of `SIGKILL` in a set of signals, as the kernel writes it.
const SIGKILL_BIT: u64 = 1 << 8;

/// The kernel's status text of a process or thread. `None` if there is no such task, or if this container
/// does not see it.
fn status_of(task: u32) -> Option<String> {
    fs::read_to_string(format!("/proc/{task}/status")).ok()
}

/// The value of a line of a status text.
fn status_value<'a>(status: &'a str, key: &str) -> Option<&'a str> {
    status.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':')).map(str::trim)
}

/// Whether the task of a status text will run no more code of its own.
fn is_over(status: &str) -> bool {
    let is_gone = status_value(status, "State").is_some_and(|state| state.starts_with(['Z', 'X']));
    let signals = |key| u64::from_str_radix(status_value(status, key)?, 16).ok();
    let mut pending = ["SigPnd", "ShdPnd"].into_iter().filter_map(signals);
    let is_killed = pending.any(|set| set & SIGKILL_BIT != 0);
    is_gone || is_killed || status_value(status, "CoreDumping") == Some("1")
}

/// Whether the task of a status text is stopped: it was sent a `SIGSTOP`, or a debugger holds it.
fn is_stopped_status(status: &str) -> bool {
    status_value(status, "State").is_some_and(|state| state.starts_with(['T', 't']))
}

/// Whether a process is stopped. It answers nothing until it is continued.
pub fn is_stopped(pid: u32) -> bool {
    status_of(pid).is_some_and(|status| is_stopped_status(&status))
}

/// Whether a process has ended but still holds its resources. False if it is gone.
pub fn is_ending(pid: u32) -> bool {
    status_of(pid).is_some_and(|status| is_over(&status))
}

/// Whether a process has ended. True also if it is gone.
pub fn has_ended(pid: u32) -> bool {
    status_of(pid).is_none_or(|status| is_over(&status))
}

/// The words of `/proc/PID/stat` after the name of the program, which may have any bytes in it. The state is the first.
pub fn stat_words(stat: &[u8]) -> Option<impl Iterator<Item = &str>> {
    let name_end = stat.iter().rposition(|byte| *byte == b')')?;
    std::str::from_utf8(&stat[name_end + 1..]).ok().map(str::split_whitespace)
}

/// The place of the start among [`stat_words`], in ticks of the kernel since the start of the machine.
pub const START_WORD: usize = 19;

/// A process, by its number and its start: a later process may get the number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// 0 if it is not known.
    pub pid: u32,
    /// The time from the start of the machine, in ticks of the kernel.
    start: u64,
}

impl Process {
    /// The process that has this number now.
    pub fn of(pid: u32) -> Option<Self> {
        let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
        let start = stat_words(&stat)?.nth(START_WORD)?.parse().ok()?;
        Some(Process { pid, start })
    }

    fn is_there(self) -> bool {
        Process::of(self.pid) == Some(self)
    }

    /// Whether it has ended. True also if it is gone.
    pub fn has_ended(self) -> bool {
        !self.is_there() || has_ended(self.pid)
    }

    /// Kills it, and never a later process with its number.
    pub fn kill(self) {
        let Some(pid) = i32::try_from(self.pid).ok().and_then(Pid::from_raw) else { return };
        // The descriptor stays that of the process which had the number.
        match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(process) if self.is_there() => {
                let _ = pidfd_send_signal(process, Signal::KILL);
            }
            Ok(_) | Err(Errno::SRCH) => {}
            Err(_) if self.is_there() => drop(kill_process(pid, Signal::KILL)),
            Err(_) => {}
        }
    }
}

/// Waits until a process is gone, so that its resources are free. Returns whether it is gone.
pub fn wait_until_gone(pid: u32, patience: Duration) -> bool {
    let Some(process) = i32::try_from(pid).ok().and_then(Pid::from_raw) else { return true };
    let start = Instant::now();
    match pidfd_open(process, PidfdFlags::empty()) {
        Ok(process) => loop {
            let left = patience.saturating_sub(start.elapsed());
            let timeout = Timespec::try_from(left).ok();
            match poll(&mut [PollFd::new(&process, PollFlags::IN)], timeout.as_ref()) {
                Err(Errno::INTR) => {}
                ready => return ready.is_ok_and(|ready| ready > 0),
            }
        },
        Err(Errno::SRCH) => true,
        // Kernels before 5.3 have no pidfd. There only the end of the process can be seen.
        Err(_) => {
            while !has_ended(pid) && start.elapsed() < patience {
                std::thread::sleep(Duration::from_millis(10));
            }
            has_ended(pid)
        }
    }
}

/// Closes all descriptors but the standard ones, also those that came from whoever started a program. To be called while
/// nothing of this process uses one.
pub fn close_descriptors() {
    // SAFETY: nothing of this process uses a descriptor yet.
    unsafe { libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, 0) };
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn the_end_of_a_process_is_waited_for_but_not_for_ever() {
        let mut child = Command::new("sleep").arg("600").spawn().unwrap();
        assert!(!wait_until_gone(child.id(), Duration::from_millis(10)));
        child.kill().unwrap();
        assert!(wait_until_gone(child.id(), Duration::from_secs(180)));
        child.wait().unwrap();
        assert!(wait_until_gone(child.id(), Duration::ZERO) && wait_until_gone(0, Duration::ZERO));
    }

    #[test]
    fn only_the_process_itself_is_killed() {
        let mut child = Command::new("sleep").arg("600").spawn().unwrap();
        let process = Process::of(child.id()).unwrap();
        assert_eq!(Process::of(child.id()), Some(process));
        let earlier = Process { start: process.start - 1, ..process };
        assert!(earlier.has_ended() && !process.has_ended());
        earlier.kill();
        assert!(!wait_until_gone(child.id(), Duration::from_millis(10)));
        process.kill();
        assert!(wait_until_gone(child.id(), Duration::from_secs(180)) && process.has_ended());
        child.wait().unwrap();
        assert_eq!(Process::of(child.id()), None);
        process.kill();
        Process::default().kill();
        assert!(process.has_ended() && Process::default().has_ended());
    }

    #[test]
    fn a_zombie_is_over_and_a_child_that_was_reaped_is_gone() {
        let mut child = Command::new("sleep").arg("600").spawn().unwrap();
        assert!(!is_ending(child.id()) && !has_ended(child.id()));
        child.kill().unwrap();
        while !is_ending(child.id()) {
            std::thread::yield_now();
        }
        assert!(has_ended(child.id()));
        child.wait().unwrap();
        assert!(!is_ending(u32::MAX) && has_ended(u32::MAX));
    }

    #[test]
    fn a_kill_that_is_pending_counts() {
        let status = |state: &str, own: &str, shared: &str| {
            format!("Name:\tState: X\nState:\t{state}\nSigPnd:\t{own}\nShdPnd:\t{shared}\n")
        };
        let none = "0000000000000000";
        assert!(is_over(&status("D (disk sleep)", none, "0000000000000100")));
        assert!(is_over(&status("D (disk sleep)", "0000000000000100", none)));
        assert!(!is_over(&status("D (disk sleep)", none, "0000000000004000")));
        assert!(!is_over(&status("S (sleeping)", none, none)));
        assert!(is_over(&status("Z (zombie)", none, none)));
    }

    #[test]
    fn a_process_that_dumps_core_is_over_and_a_stopped_one_is_not() {
        let dumps = |core| format!("State:\tI (idle)\nCoreDumping:\t{core}\nSigPnd:\t0\n");
        assert!(is_over(&dumps(1)) && !is_over(&dumps(0)));
        for (state, stopped) in
            [("T (stopped)", true), ("t (tracing stop)", true), ("S (x)", false)]
        {
            let status = format!("State:\t{state}\nSigPnd:\t0\n");
            assert_eq!((is_stopped_status(&status), is_over(&status)), (stopped, false), "{state}");
        }
    }
}
