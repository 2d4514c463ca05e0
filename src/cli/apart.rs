//! Runs a command in a process of its own, which is left behind if a disk does not answer.
//!
//! A process cannot end as long as one of its threads waits in the kernel for a disk that hangs. So a child
//! does what may wait for a cache disk, and the command passes its output on. The command itself touches no
//! disk and ends in any case.

use std::io::{IsTerminal, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;

use crate::config::hanging_disk_error;
use crate::disk::{StallDetector, TICK};
use crate::error::{Error, ErrorKind, Result};

/// Set in the environment of the child.
const APART: &str = "BELADY_APART";

/// Does the work of this command line, which needs the disk of a cache directory.
///
/// # Errors
/// The error of the work, and [`ErrorKind::Disk`] if the disk does not answer.
pub(super) fn run(cache: &Path, work: impl FnOnce() -> Result<()>) -> Result<()> {
    run_or_else(|| hanging_disk_error(cache), work)
}

/// The same for work that also needs a source. The error cannot tell which of the two does not answer.
pub(super) fn run_with(
    source: &Path,
    cache: &Path,
    work: impl FnOnce() -> Result<()>,
) -> Result<()> {
    let (cache, source) = (cache.display(), source.display());
    let hangs = || {
        let what = format!("the disk of {cache} or the source {source} does not answer");
        Error::new(ErrorKind::Disk, what).hint("`dmesg` may say why")
    };
    run_or_else(hangs, work)
}

fn run_or_else(hangs: impl FnOnce() -> Error, work: impl FnOnce() -> Result<()>) -> Result<()> {
    if std::env::var_os(APART).is_some() {
        // When the command has failed, the child must not change anything on the disk any more.
        let _ = set_pdeathsig(Signal::SIGKILL);
        return work();
    }
    let failed = |error| Error::new(ErrorKind::Internal, format!("a process of its own: {error}"));
    let mut child = start().map_err(failed)?;
    let (passing, (relays, relayed)) = (Arc::default(), mpsc::channel());
    let (output, errors) = (child.stdout.take(), child.stderr.take());
    let output = output.map(|from| relay(from, std::io::stdout(), &passing, &relays));
    let errors = errors.map(|from| relay(from, std::io::stderr(), &passing, &relays));
    drop(relays);
    let Some(status) = wait(&mut child, &passing, &relayed).map_err(failed)? else {
        let _ = child.kill();
        return Err(hangs());
    };
    // It is no error if our own reader has gone away.
    [output, errors].into_iter().flatten().for_each(|relay| _ = relay.join());
    match status.code() {
        Some(0) => Ok(()),
        Some(code) => std::process::exit(code),
        None => {
            let by = status.signal().unwrap_or_default();
            let what = "the part of the command that reads the cache disk was ended by signal";
            Err(Error::new(ErrorKind::Internal, format!("{what} {by}")))
        }
    }
}

fn start() -> std::io::Result<Child> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(std::env::args_os().skip(1)).env(APART, "1").stdout(Stdio::piped());
    if !std::io::stderr().is_terminal() {
        // Otherwise a child that is left behind would hold a pipe open that a program reads to its end.
        command.stderr(Stdio::piped());
    }
    command.spawn()
}

/// Passes the child's output on, to its end. If our own output is read slowly, the child waits as well;
/// `passing` counts the relays that wait so.
fn relay(
    mut from: impl Read + Send + 'static,
    mut to: impl Write + Send + 'static,
    passing: &Arc<AtomicUsize>,
    relays: &Sender<()>,
) -> JoinHandle<std::io::Result<()>> {
    let (passing, relays) = (Arc::clone(passing), relays.clone());
    thread::spawn(move || {
        let _relays = relays;
        let mut bytes = [0; 1 << 14];
        loop {
            let length = from.read(&mut bytes)?;
            if length == 0 {
                return Ok(());
            }
            passing.fetch_add(1, Ordering::Relaxed);
            let passed = to.write_all(&bytes[..length]).and_then(|()| to.flush());
            passing.fetch_sub(1, Ordering::Relaxed);
            passed?;
        }
    })
}

/// Waits for the end of the child, which comes soon after its output has been `relayed`; `None` if it hangs.
fn wait(
    child: &mut Child,
    passing: &AtomicUsize,
    relayed: &Receiver<()>,
) -> std::io::Result<Option<ExitStatus>> {
    let mut standstill = StallDetector::default();
    let mut pause = Duration::from_millis(1);
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        let run_times =
            (passing.load(Ordering::Relaxed) == 0).then(|| run_times(child.id())).flatten();
        if standstill.tick(run_times) {
            return Ok(None);
        }
        if relayed.recv_timeout(TICK) == Err(RecvTimeoutError::Disconnected) {
            thread::sleep(pause);
            pause = TICK;
        }
    }
}

/// How long the threads of a process have run and waited to run, as text of the kernel.
fn run_times(process: u32) -> Option<String> {
    let tasks = std::fs::read_dir(format!("/proc/{process}/task")).ok()?;
    tasks.map(|task| std::fs::read_to_string(task.ok()?.path().join("schedstat")).ok()).collect()
}
