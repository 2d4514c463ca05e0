//! What a task does at one moment, by the name of the kernel's function in which it sleeps.

use serde::{Deserialize, Serialize};

/// What a task does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// It runs, or it waits for a processor.
    Runs,
    /// It waits for a file: for its bytes, or for names.
    Fetches,
    /// It waits for work, or for somebody to take its work.
    HasNoWork,
    /// It sleeps for another reason: a timer, a lock, the network, another device.
    Elsewhere,
    /// It is not known why it sleeps.
    Unknown,
}

/// Beginnings of names of functions in which a task waits for a file: of FUSE, the page cache, disks, NFS, Lustre, GPFS,
/// CephFS, SMB and 9P.
const FETCHES: [&str; 38] = [
    "request_wait_answer",
    "fuse_",
    "__fuse_",
    "folio_wait",
    "__folio_lock",
    "wait_on_page",
    "__lock_page",
    "filemap_",
    "io_schedule",
    "bit_wait_io",
    "wait_on_bit",
    "out_of_line_wait_on_bit",
    "d_alloc_parallel",
    "d_wait_lookup",
    "iterate_dir",
    "rpc_wait_bit_killable",
    "nfs_",
    "nfs3_",
    "nfs4_",
    "netfs_",
    "cl_sync_io_wait",
    "ptlrpc_",
    "ldlm_",
    "ll_",
    "osc_",
    "cxiWaitEventWait",
    "ceph_",
    "cifs_",
    "wait_for_response",
    "p9_client_rpc",
    "blk_",
    "blkdev_",
    "rq_qos_wait",
    "submit_bio_wait",
    "iomap_",
    "ext4_",
    "xfs_",
    "btrfs_",
];

/// The same of tasks that wait for work: in `poll` or a pipe.
const HAS_NO_WORK: [&str; 9] = [
    "poll_schedule_timeout",
    "do_poll",
    "do_sys_poll",
    "do_select",
    "ep_poll",
    "do_epoll_wait",
    "anon_pipe_",
    "pipe_",
    "unix_stream_",
];

/// The same of tasks that wait for neither: in a timer, a lock, or for the end of a process.
const ELSEWHERE: [&str; 7] = [
    "hrtimer_nanosleep",
    "do_nanosleep",
    "futex_",
    "__futex_",
    "do_wait",
    "do_sigtimedwait",
    "sigsuspend",
];

impl State {
    pub const ALL: [State; 5] =
        [State::Runs, State::Fetches, State::HasNoWork, State::Elsewhere, State::Unknown];

    /// The state in words.
    pub fn words(self) -> &'static str {
        match self {
            State::Runs => "processor",
            State::Fetches => "fetch",
            State::HasNoWork => "no work",
            State::Elsewhere => "elsewhere",
            State::Unknown => "unknown",
        }
    }

    /// The letter of the state in a lane.
    pub fn letter(self) -> char {
        match self {
            State::Runs => 'R',
            State::Fetches => 'F',
            State::HasNoWork => 'W',
            State::Elsewhere => 'E',
            State::Unknown => '?',
        }
    }

    /// The state of a task that sleeps in this function, as `/proc/PID/wchan` names it. `0` stands for a task that runs.
    /// `None` if the name does not tell: then a task in an uninterruptible sleep waits for a file
    /// ([`of_letter`](Self::of_letter)).
    pub fn of_function(name: &str) -> Option<Self> {
        let is_one_of = |names: &[&str]| names.iter().any(|start| name.starts_with(start));
        match name {
            "" => Some(State::Unknown),
            "0" => Some(State::Runs),
            _ if is_one_of(&FETCHES) => Some(State::Fetches),
            _ if is_one_of(&HAS_NO_WORK) => Some(State::HasNoWork),
            _ if is_one_of(&ELSEWHERE) => Some(State::Elsewhere),
            _ => None,
        }
    }

    /// The state of a task with this letter in `/proc/PID/stat`, if the function in which it sleeps does not tell.
    /// `is_named`: whether that function has a name.
    pub fn of_letter(letter: char, is_named: bool) -> Self {
        match letter {
            'R' => State::Runs,
            'D' => State::Fetches,
            _ if is_named => State::Elsewhere,
            _ => State::Unknown,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_function_tells_what_a_task_waits_for() {
        let of = State::of_function;
        assert_eq!(of("folio_wait_bit_common"), Some(State::Fetches));
        assert_eq!(of("rpc_wait_bit_killable"), Some(State::Fetches));
        assert_eq!(of("poll_schedule_timeout.constprop.0"), Some(State::HasNoWork));
        assert_eq!((of("0"), of("")), (Some(State::Runs), Some(State::Unknown)));
        assert_eq!(of("hrtimer_nanosleep"), Some(State::Elsewhere));
        assert_eq!(of("some_driver_waits"), None);
    }

    #[test]
    fn a_sleep_that_nothing_interrupts_is_a_wait_for_a_file() {
        assert_eq!(State::of_letter('D', true), State::Fetches);
        assert_eq!(State::of_letter('D', false), State::Fetches);
        assert_eq!(State::of_letter('S', true), State::Elsewhere);
        assert_eq!(State::of_letter('S', false), State::Unknown);
        assert_eq!(State::of_letter('R', false), State::Runs);
    }
}
