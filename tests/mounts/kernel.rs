//! The features of the kernel, and daemons that see fewer of them.
//!
//! Goal: belady works without what older kernels lack, and its tests pass there. Method: the kernel is asked,
//! as `belady doctor` asks it. On a newer kernel, a daemon also runs behind a filter of system calls that
//! refuses those that came after Linux 6.1.

use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::process::Command;

use nix::libc;
use serde_json::Value;

use crate::fixture::Fixture;

/// cachestat(2), Linux 6.5: how many pages of a file the page cache has.
const SYS_CACHESTAT: u32 = 451;

/// `FUSE_DEV_IOC_BACKING_OPEN`, Linux 6.9: passes a file to the kernel that it reads by itself.
const BACKING_OPEN: u32 = 0x4010_e501;

/// The kernel that a daemon sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kernel {
    /// This machine's.
    Own,
    /// A kernel without what came after Linux 6.1.
    Older,
}

impl Kernel {
    pub(crate) const BOTH: [Kernel; 2] = [Kernel::Own, Kernel::Older];

    /// Whether the kernel can read files of this daemon by itself.
    pub(crate) fn passes_through(self, fixture: &Fixture) -> bool {
        let output = fixture.belady().args(["doctor", "--json"]).output().unwrap();
        let told: Value = serde_json::from_slice(&output.stdout).unwrap();
        let rows = told["checks"].as_array().unwrap();
        let row = rows.iter().find(|row| row["check"] == "passthrough").unwrap();
        self == Kernel::Own && row["result"] == "ok"
    }

    /// Whether the daemon can see which pages the page cache has.
    pub(crate) fn counts_pages(self) -> bool {
        let file = tempfile::tempfile().unwrap();
        let (range, mut counts) = ([0u64; 2], [0u64; 5]);
        // SAFETY: both arrays are as long as the structures that the kernel reads and writes.
        let result = unsafe {
            let number = libc::c_long::from(SYS_CACHESTAT);
            libc::syscall(number, file.as_raw_fd(), range.as_ptr(), counts.as_mut_ptr(), 0)
        };
        let known = result == 0;
        assert!(known || io::Error::last_os_error().raw_os_error() == Some(libc::ENOSYS));
        self == Kernel::Own && known
    }

    /// Makes a command, and all that it starts, see this kernel.
    pub(crate) fn for_command(self, command: &mut Command) -> &mut Command {
        if self == Kernel::Own {
            return command;
        }
        // SAFETY: between fork and exec the function makes two system calls and nothing else.
        unsafe { command.pre_exec(refuse_newer) }
    }
}

/// Filters the system calls of this process.
fn refuse_newer() -> io::Result<()> {
    let statement = |code: u32, k: u32| libc::sock_filter { code: code as u16, jt: 0, jf: 0, k };
    let load = |offset| statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, offset);
    let end = |action| statement(libc::BPF_RET | libc::BPF_K, action);
    // Goes on if the value is `k`, else skips `jf` statements.
    let is = |k, jf| libc::sock_filter {
        code: (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16,
        jt: 0,
        jf,
        k,
    };
    let errno = |errno: i32| libc::SECCOMP_RET_ERRNO | errno as u32;
    let mut filter = [
        load(0),
        is(SYS_CACHESTAT, 1),
        end(errno(libc::ENOSYS)),
        is(libc::SYS_ioctl as u32, 3),
        load(24),
        is(BACKING_OPEN, 1),
        end(errno(libc::ENOTTY)),
        end(libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: the program and its filter outlive the calls.
    let result = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
            | libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program)
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
