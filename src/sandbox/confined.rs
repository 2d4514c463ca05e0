//! The process of a command.
//!
//! 1. It is the first one of a PID namespace, and has mounts of its own. It makes all of them read-only, and without
//!    devices. Over `/tmp` it mounts an empty directory in memory, and over `/dev` one with the devices that hold nothing.
//!    Over `/run`, where the sockets of other programs are, it mounts an empty one, and over `/proc` one that shows its
//!    own processes.
//! 2. It starts a second process. This one gives up all rights, limits itself and becomes the shell of the command.
//! 3. The first process waits for the second one and ends with its code. With it, the kernel ends all that is left of the
//!    command.

use std::convert::Infallible;
use std::ffi::CStr;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::symlink;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command as Program, Stdio};

use nix::errno::Errno;
use nix::libc;
use nix::mount::{MsFlags, mount};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::{SigHandler, Signal, signal};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, fork};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::CWD;
use rustix::mount::{MoveMountFlags, OpenTreeFlags, move_mount, open_tree};
use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities, set_no_new_privs};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch, apply_filter,
};

use crate::derive::{Command, Limits};

/// The exit code of a process that could not be confined. It says why, as if it were the command.
pub(super) const NOT_CONFINED: i32 = 125;

/// How it begins to say why.
pub(super) const UNCONFINED: &str = "a command cannot be confined";

/// The exit code of a command that a signal has ended is this and the number of the signal, as a shell tells it.
pub(super) const SIGNALED: i32 = 128;

/// Devices that hold nothing.
const DEVICES: [&str; 5] = ["null", "zero", "full", "random", "urandom"];

/// Names in `/dev` that stand for others.
const LINKS: [(&str, &str); 5] = [
    ("/proc/self/fd", "/dev/fd"),
    ("/proc/self/fd/0", "/dev/stdin"),
    ("/proc/self/fd/1", "/dev/stdout"),
    ("/proc/self/fd/2", "/dev/stderr"),
    ("/tmp", "/dev/shm"),
];

/// Variables that a command gets from the daemon.
const VARIABLES: [&str; 4] = ["PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH"];

/// The most processes that a command may have at once. Root has no such limit.
const PROCESSES: u64 = 256;

/// The most files that a process may have open.
const OPEN_FILES: u64 = 1024;

/// If memory is short, the kernel ends a command before all others.
const FIRST_TO_GO: &str = "1000";

/// The files of a command: what it reads, what it writes, and what it says.
pub(super) struct Files {
    pub(super) input: File,
    pub(super) output: File,
    pub(super) said: File,
}

/// Runs a command in this process, and returns its exit code. `runner` is the process that has started this one.
pub(super) fn run(command: &Command, files: &Files, runner: &OwnedFd) -> i32 {
    let tied = tie_to(runner).map_err(|error| in_words("the runner", error));
    tied.and_then(|()| confine(&command.limits))
        .and_then(|()| start(command, files))
        .unwrap_or_else(|reason| {
            let _ = writeln!(&files.said, "{reason}");
            NOT_CONFINED
        })
}

/// Has this process end with its runner.
fn tie_to(runner: &OwnedFd) -> io::Result<()> {
    set_pdeathsig(Signal::SIGKILL)?;
    // It may have ended before.
    let at_once = Timespec::default();
    match poll(&mut [PollFd::new(runner, PollFlags::IN)], Some(&at_once))? {
        0 => Ok(()),
        _ => Err(io::Error::other("it has ended")),
    }
}

fn confine(limits: &Limits) -> Result<(), String> {
    let _ = fs::write("/proc/self/oom_score_adj", FIRST_TO_GO);
    let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
    mount(None::<&str>, "/", None::<&str>, private, None::<&str>)
        .map_err(|errno| in_words("the mounts", errno))?;
    let devices: Vec<_> = DEVICES.into_iter().filter_map(detached).collect();
    let all = libc::AT_RECURSIVE;
    set_attributes(CWD, c"/", all, RDONLY | NOSUID | NODEV)
        .map_err(|error| in_words("read-only mounts", error))?;
    let safe = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    let temporary = format!("mode=1777,size={}", limits.memory);
    cover("/tmp", safe, &temporary)?;
    cover("/dev", MsFlags::MS_NOSUID, "mode=755,size=64k")?;
    devices.iter().try_for_each(attach)?;
    for (original, link) in LINKS {
        symlink(original, link).map_err(|error| in_words(link, error))?;
    }
    if Path::new("/run").is_dir() {
        cover("/run", safe | MsFlags::MS_RDONLY, "mode=755,size=4k")?;
    }
    let safe = safe | MsFlags::MS_NOEXEC | MsFlags::MS_RDONLY;
    // In a container it may be forbidden to show other processes than it has.
    match mount(Some("proc"), "/proc", Some("proc"), safe, None::<&str>) {
        Ok(()) => Ok(()),
        Err(_) => cover("/proc", safe, "mode=555,size=4k"),
    }
}

/// Mounts an empty directory over one.
fn cover(directory: &str, flags: MsFlags, options: &str) -> Result<(), String> {
    mount(Some("tmpfs"), directory, Some("tmpfs"), flags, Some(options))
        .map_err(|errno| in_words(directory, errno))
}

/// A mount of a device that is at no place yet.
fn detached(device: &'static str) -> Option<(&'static str, OwnedFd)> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    Some((device, open_tree(CWD, format!("/dev/{device}"), flags).ok()?))
}

fn attach((device, tree): &(&'static str, OwnedFd)) -> Result<(), String> {
    let place = format!("/dev/{device}");
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
    // These devices keep nothing that is written to them, but root could change their rights.
    set_attributes(tree.as_fd(), c"", libc::AT_EMPTY_PATH, RDONLY | NOSUID)
        .and_then(|()| File::create(&place))
        .and_then(|_| Ok(move_mount(tree, "", CWD, &place, flags)?))
        .map_err(|error| in_words(&place, error))
}

/// Attributes of mounts, as the kernel has them (`mount_setattr(2)`).
const RDONLY: u64 = 1;
const NOSUID: u64 = 2;
const NODEV: u64 = 4;

/// Sets attributes of mounts.
fn set_attributes(
    directory: BorrowedFd<'_>,
    path: &CStr,
    flags: libc::c_int,
    set: u64,
) -> io::Result<()> {
    #[repr(C)]
    struct Attributes {
        set: u64,
        clear: u64,
        propagation: u64,
        user_namespace: u64,
    }
    let attributes = Attributes { set, clear: 0, propagation: 0, user_namespace: 0 };
    // SAFETY: the path ends with a zero, the size is that of the structure, and both live during the call.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            directory.as_raw_fd(),
            path.as_ptr(),
            flags,
            &raw const attributes,
            size_of::<Attributes>(),
        )
    };
    match result {
        0 => Ok(()),
        _ => match io::Error::last_os_error() {
            error if error.raw_os_error() == Some(libc::ENOSYS) => {
                Err(io::Error::other("the kernel has to be Linux 5.12 or newer"))
            }
            error => Err(error),
        },
    }
}

/// Starts the command, waits for its end, and returns its exit code.
fn start(command: &Command, files: &Files) -> Result<i32, String> {
    // SAFETY: this process has one thread, so no lock is held.
    match unsafe { fork() }.map_err(|errno| in_words("a process", errno))? {
        ForkResult::Child => match become_command(command, files) {
            Ok(never) => match never {},
            Err(error) => Err(in_words("the command", error)),
        },
        ForkResult::Parent { child } => loop {
            // Processes whose parent has ended have this one as theirs.
            match waitpid(None, None) {
                Ok(WaitStatus::Exited(pid, code)) if pid == child => return Ok(code),
                Ok(WaitStatus::Signaled(pid, signal, _)) if pid == child => {
                    return Ok(SIGNALED + signal as i32);
                }
                Ok(_) | Err(Errno::EINTR) => {}
                Err(errno) => return Err(in_words("the command", errno)),
            }
        },
    }
}

/// Becomes the command.
fn become_command(command: &Command, files: &Files) -> io::Result<Infallible> {
    let mut program = Program::new("/bin/sh");
    program.arg("-c").arg(&command.line).current_dir("/").env_clear();
    let known = VARIABLES.iter().filter_map(|name| Some((name, std::env::var_os(name)?)));
    program.envs(known).envs([("HOME", "/tmp"), ("TMPDIR", "/tmp")]);
    let copy = |file: &File| Ok::<_, io::Error>(Stdio::from(file.try_clone()?));
    program.stdin(copy(&files.input)?).stdout(copy(&files.output)?).stderr(copy(&files.said)?);
    limit(&command.limits)?;
    Err(program.exec())
}

/// Gives up all rights of this process, and limits what it may use.
fn limit(limits: &Limits) -> io::Result<()> {
    // SAFETY: it sets no handler.
    unsafe { signal(Signal::SIGXFSZ, SigHandler::SigDfl) }?;
    set_no_new_privs(true)?;
    let none = CapabilitySet::empty();
    set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none })?;
    for (resource, most) in [
        (Resource::RLIMIT_AS, limits.memory),
        // One more, so that an output that is too large can be told from one that is not.
        (Resource::RLIMIT_FSIZE, limits.output + 1),
        // With 0, the kernel still starts a program that takes core files.
        (Resource::RLIMIT_CORE, 1),
        (Resource::RLIMIT_NPROC, PROCESSES),
        (Resource::RLIMIT_NOFILE, OPEN_FILES),
    ] {
        // It may be less than that already.
        let (_, hard) = getrlimit(resource)?;
        setrlimit(resource, most.min(hard), most.min(hard))?;
    }
    forbid_calls().map_err(io::Error::other)
}

/// Forbids system calls by which a command would reach others, or have rights again: sockets in the filesystem and those of
/// a virtual machine's host, which no namespace hides, keys, and user namespaces.
fn forbid_calls() -> Result<(), seccompiler::Error> {
    const NEW_USER: u64 = libc::CLONE_NEWUSER as u64;
    let makes_user_namespace = || {
        let has_flag = SeccompCmpOp::MaskedEq(NEW_USER);
        let flags = SeccompCondition::new(0, SeccompCmpArgLen::Qword, has_flag, NEW_USER)?;
        SeccompRule::new(vec![flags])
    };
    let refused = [
        (libc::SYS_socket, Vec::new()),
        (libc::SYS_io_uring_setup, Vec::new()),
        (libc::SYS_keyctl, Vec::new()),
        (libc::SYS_add_key, Vec::new()),
        (libc::SYS_request_key, Vec::new()),
        (libc::SYS_unshare, vec![makes_user_namespace()?]),
        (libc::SYS_clone, vec![makes_user_namespace()?]),
    ];
    forbid(&refused, libc::EACCES)?;
    // Its flags are in memory, where no filter sees them. Programs call `clone` then.
    forbid(&[(libc::SYS_clone3, Vec::new())], libc::ENOSYS)
}

/// Has calls fail with an error, if one of their rules holds, or there is none.
fn forbid(calls: &[(i64, Vec<SeccompRule>)], error: i32) -> Result<(), seccompiler::Error> {
    /// A program may also give this number of the x32 interface.
    const X32: i64 = 0x4000_0000;
    let both = |(call, rules): &(i64, Vec<SeccompRule>)| {
        [(*call, rules.clone()), (*call | X32, rules.clone())]
    };
    let rules = calls.iter().flat_map(both).collect();
    let action = SeccompAction::Errno(error as u32);
    let architecture = TargetArch::try_from(std::env::consts::ARCH)?;
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, action, architecture)?;
    apply_filter(&BpfProgram::try_from(filter)?)
}

fn in_words(what: &str, error: impl Into<io::Error>) -> String {
    format!("{UNCONFINED}: {what}: {}", error.into())
}
