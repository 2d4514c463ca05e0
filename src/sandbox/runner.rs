//! The runner: a process with one thread that runs a command on one input after the other.
//!
//! It is in a user namespace, in which it may make mounts, and in namespaces of the network and of IPC, in which nothing
//! is. Its mounts are those of the daemon: with mounts of its own it would keep those from being unmounted.

use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixStream;

use nix::errno::Errno;
use nix::sched::{CloneFlags, clone};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::Pid;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::MemfdFlags;
use rustix::process::{PidfdFlags, configure_io_flusher_behavior, getpid, pidfd_open};

use super::confined::{self, Files, NOT_CONFINED, SIGNALED, UNCONFINED};
use super::{DONE, FAILED, Failure, START_PATIENCE, UNABLE};
use crate::derive::{Command, Limits};
use crate::error::{Error, ErrorKind, Result};
use crate::privileges::enter_user_namespace;
use crate::process::close_descriptors;
use crate::sync::lower_priority;

/// The nice value of runners and of commands.
const NICE: u32 = 10;

/// What is read of the end of what a command says, in bytes.
const SAID_BYTES: u64 = 512;

/// The stack of a process before it is another program.
const STACK_BYTES: usize = 1 << 20;

/// Runs a command line on the inputs that come from the standard input, and answers there. Returns when it is closed.
///
/// # Errors
/// If the standard input is no socket, or fails.
pub fn serve(line: &str, limits: Limits) -> Result<()> {
    close_descriptors();
    let failed = |error| Error::new(ErrorKind::Internal, format!("a runner: {error}"));
    let mut socket = UnixStream::from(io::stdin().as_fd().try_clone_to_owned().map_err(failed)?);
    // A signal to the daemon's process group or session must not end it.
    let _ = nix::unistd::setsid();
    // Memory of the daemon never waits for filesystems. That of a command may.
    let _ = configure_io_flusher_behavior(false);
    lower_priority(NICE);
    let trial = Limits { time: START_PATIENCE / 2, ..limits };
    let trial = Command { line: ":".to_owned(), suffix: String::new(), limits: trial };
    let ready = enter().and_then(|()| run(&trial, memory()?, &socket)).map(|_| Vec::new());
    let is_ready = ready.is_ok();
    answer(&mut socket, ready).map_err(failed)?;
    if !is_ready {
        return Ok(());
    }
    let command = Command { line: line.to_owned(), suffix: String::new(), limits };
    while let Some(length) = next(&mut socket).map_err(failed)? {
        // If an input is not read to its end, the next one cannot be told from its rest.
        let input = receive(&socket, length).map_err(failed)?;
        let made = match run(&command, input, &socket) {
            Ok(made) if made.is_empty() && length > 0 => {
                Err(Failure::Command("the command wrote nothing".to_owned()))
            }
            made => made,
        };
        answer(&mut socket, made).map_err(failed)?;
    }
    Ok(())
}

/// Takes an input of this length.
fn receive(mut socket: &UnixStream, length: u64) -> io::Result<File> {
    let mut input = memory().map_err(|failure| io::Error::other(failure.reason()))?;
    match io::copy(&mut Read::take(&mut socket, length), &mut input)? {
        received if received == length => Ok(input),
        _ => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

/// Enters the namespaces in which all commands run.
fn enter() -> std::result::Result<(), Failure> {
    let spaces = CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWIPC;
    enter_user_namespace(spaces).map_err(|errno| {
        Failure::Machine(match errno {
            Errno::ENOSPC => "this machine allows no user namespaces".to_owned(),
            errno => format!("a user namespace is not permitted: {}", errno.desc()),
        })
    })?;
    // In one of its own, a command would have rights again. If this cannot be written, it has them there, and nowhere else.
    let _ = std::fs::write("/proc/sys/user/max_user_namespaces", "0");
    Ok(())
}

/// How long the next input is; `None` if there will be none.
fn next(socket: &mut UnixStream) -> io::Result<Option<u64>> {
    let mut length = [0; 8];
    if socket.read(&mut length[..1])? == 0 {
        return Ok(None);
    }
    socket.read_exact(&mut length[1..])?;
    Ok(Some(u64::from_le_bytes(length)))
}

fn answer(socket: &mut UnixStream, made: std::result::Result<Vec<u8>, Failure>) -> io::Result<()> {
    let (kind, bytes) = match made {
        Ok(bytes) => (DONE, bytes),
        Err(Failure::Command(reason)) => (FAILED, reason.into_bytes()),
        Err(other) => (UNABLE, other.reason().into_bytes()),
    };
    socket.write_all(&[kind])?;
    socket.write_all(&(bytes.len() as u64).to_le_bytes())?;
    socket.write_all(&bytes)
}

/// What a command writes when it reads `input`.
fn run(
    command: &Command,
    mut input: File,
    daemon: &UnixStream,
) -> std::result::Result<Vec<u8>, Failure> {
    let failed = |error: io::Error| Failure::Machine(format!("the command cannot be run: {error}"));
    input.rewind().map_err(failed)?;
    let mut files = Files { input, output: memory()?, said: memory()? };
    let runner = pidfd_open(getpid(), PidfdFlags::empty()).map_err(|error| failed(error.into()))?;
    let spaces = CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWPID;
    let mut stack = vec![0; STACK_BYTES];
    let process = Box::new(|| confined::run(command, &files, &runner) as isize);
    // SAFETY: this process has one thread, so no lock is held, and memory can be had. The new one gets a copy of it.
    let process = unsafe { clone(process, &mut stack, spaces, Some(Signal::SIGCHLD as i32)) }
        .map_err(|errno| {
            Failure::Machine(match errno {
                Errno::ENOSPC => "this machine allows no such namespaces".to_owned(),
                errno => format!("namespaces are not permitted: {}", errno.desc()),
            })
        })?;
    let is_over = wait(process, &command.limits, daemon);
    if !matches!(is_over, Ok(true)) {
        let _ = kill(process, Signal::SIGKILL);
    }
    // When the first process of a PID namespace is gone, all others of it are.
    let status = waitpid(process, None).map_err(|errno| failed(errno.into()))?;
    if !is_over.map_err(failed)? {
        let reason = format!("the command took longer than {:?}", command.limits.time);
        return Err(Failure::Command(reason));
    }
    let code = match status {
        WaitStatus::Exited(_, code) => code,
        WaitStatus::Signaled(_, signal, _) => SIGNALED + signal as i32,
        _ => NOT_CONFINED,
    };
    let written = files.output.metadata().map_err(failed)?.len();
    if written > command.limits.output {
        let reason = format!("the command wrote more than {} bytes", command.limits.output);
        return Err(Failure::Command(reason));
    }
    if code != 0 {
        return Err(failure(code, &last_line(&mut files.said)));
    }
    let mut output = Vec::new();
    files.output.rewind().and_then(|()| files.output.read_to_end(&mut output)).map_err(failed)?;
    Ok(output)
}

/// An empty file in memory. It is opened: `memfd_create(2)` gives a file whose position has no lock, so that processes that
/// write at the same time would overwrite each other's bytes.
fn memory() -> std::result::Result<File, Failure> {
    let failed =
        |error: io::Error| Failure::Machine(format!("no file in memory can be had: {error}"));
    let made = rustix::fs::memfd_create("belady-sample", MemfdFlags::CLOEXEC);
    let made = made.map_err(|errno| failed(errno.into()))?;
    let place = format!("/proc/self/fd/{}", made.as_raw_fd());
    File::options().read(true).write(true).open(place).map_err(failed)
}

/// Waits until a process has ended; `false` if its time is over before.
///
/// # Errors
/// If the daemon has ended.
fn wait(process: Pid, limits: &Limits, daemon: &UnixStream) -> io::Result<bool> {
    let Some(pid) = rustix::process::Pid::from_raw(process.as_raw()) else { return Ok(false) };
    let process = pidfd_open(pid, PidfdFlags::empty())?;
    let mut waited = [PollFd::new(&process, PollFlags::IN), PollFd::new(daemon, PollFlags::RDHUP)];
    let patience = Timespec::try_from(limits.time).map_err(io::Error::other)?;
    poll(&mut waited, Some(&patience))?;
    let [process, daemon] = waited.map(|waited| !waited.revents().is_empty());
    match daemon {
        true => Err(io::Error::other("the daemon has ended")),
        false => Ok(process),
    }
}

/// The last line that a command has said.
fn last_line(said: &mut File) -> String {
    let mut bytes = Vec::new();
    let end = said.metadata().map_or(0, |metadata| metadata.len());
    let _ = said.seek(io::SeekFrom::Start(end.saturating_sub(SAID_BYTES)));
    let _ = said.take(SAID_BYTES).read_to_end(&mut bytes);
    let text = String::from_utf8_lossy(&bytes);
    let line = text.lines().rev().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default();
    line.replace(char::is_control, " ")
}

/// Why a command has failed, by its exit code and the last line that it has said.
fn failure(code: i32, line: &str) -> Failure {
    // A command may end so itself, too, but it would hardly say this.
    if code == NOT_CONFINED && line.starts_with(UNCONFINED) {
        return Failure::Machine(line.to_owned());
    }
    let ended = match Signal::try_from(code - SIGNALED) {
        Ok(signal) => format!("the command was ended by {signal}"),
        Err(_) => format!("the command ended with the code {code}"),
    };
    Failure::Command(if line.is_empty() { ended } else { format!("{ended}: {line}") })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_of_the_machine_are_not_those_of_a_command() {
        let said = |code, line| match failure(code, line) {
            Failure::Command(reason) => reason,
            other => panic!("{other:?}"),
        };
        assert_eq!(said(3, ""), "the command ended with the code 3");
        assert_eq!(said(1, "no such option"), "the command ended with the code 1: no such option");
        assert_eq!(said(128 + 9, ""), "the command was ended by SIGKILL");
        assert_eq!(said(125, "so what"), "the command ended with the code 125: so what");
        let unable = failure(125, "a command cannot be confined: /tmp: no space");
        assert!(matches!(unable, Failure::Machine(_)), "{unable:?}");
    }
}
