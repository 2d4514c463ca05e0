//! Whether a process is over.
//!
//! A killed process is gone when the last of its threads has left the kernel. Until then everything
//! that it holds stays held: locks, sockets, devices. Its leader is a zombie meanwhile, or has a kill
//! pending if the leader is the thread that the kernel holds up. A process that dumps core waits for its
//! last thread, too: its signal is pending no more, and the kernel says that it dumps.

use std::fs;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

/// The bit of `SIGKILL` in a set of signals, as the kernel writes it.
const KILL: u64 = 1 << 8;

/// The kernel's account of a process or a thread; none if it is not there, or is not seen from this
/// container.
fn status_of(task: u32) -> Option<String> {
    fs::read_to_string(format!("/proc/{task}/status")).ok()
}

/// The value of a line of such an account.
fn value<'a>(status: &'a str, key: &str) -> Option<&'a str> {
    status.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':')).map(str::trim)
}

/// Whether an account is of a task that will run no more of its own code.
fn is_over(status: &str) -> bool {
    let is_gone = value(status, "State").is_some_and(|state| state.starts_with(['Z', 'X']));
    let pends = |key| u64::from_str_radix(value(status, key)?, 16).ok();
    let killed = ["SigPnd", "ShdPnd"].into_iter().filter_map(pends).any(|set| set & KILL != 0);
    is_gone || killed || value(status, "CoreDumping") == Some("1")
}

/// Whether an account is of a task that runs no code until somebody has it go on: it was sent a
/// `SIGSTOP`, or a debugger holds it.
fn stands_still(status: &str) -> bool {
    value(status, "State").is_some_and(|state| state.starts_with(['T', 't']))
}

/// Whether a process was stopped. It answers nothing until it is continued.
pub fn is_stopped(pid: u32) -> bool {
    status_of(pid).is_some_and(|status| stands_still(&status))
}

/// Whether a process is over and still holds what it held. It is not if it is gone.
pub fn is_ending(pid: u32) -> bool {
    status_of(pid).is_some_and(|status| is_over(&status))
}

/// Whether a process is over, gone or not.
pub fn has_ended(pid: u32) -> bool {
    status_of(pid).is_none_or(|status| is_over(&status))
}

/// Waits until nothing is left of a process, so that whatever it held is free. Says whether it is so.
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
        // Kernels before 5.3: its end is all that can be seen.
        Err(_) => {
            while !has_ended(pid) && start.elapsed() < patience {
                std::thread::sleep(Duration::from_millis(10));
            }
            has_ended(pid)
        }
    }
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
            assert_eq!((stands_still(&status), is_over(&status)), (stopped, false), "{state}");
        }
    }
}
