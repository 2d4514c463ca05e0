//! The watcher: a process that ends the connections of a daemon that was killed.
//!
//! The kernel ends a connection when the last thread of its daemon is gone. A killed daemon may live on as
//! one thread that the kernel holds up: a push waits for pages that a read has locked, and that read is never
//! answered. Then readers hang, and with them every `sync` of the machine.
//!
//! 1. The daemon starts the watcher. The start of a program closes devices, so the watcher has none open.
//! 2. The daemon tells it by a pipe which connections there are, each time that this changes. The watcher at
//!    once opens the files that can end them: a later mount may get the number of one that is gone.
//! 3. Once a second the watcher looks whether the daemon was killed. If so, it aborts the connections, and
//!    also those that were unmounted in use.
//! 4. The pipe ends when nothing of the daemon is left, and then the watcher ends. It ignores the signals
//!    that end a daemon. If it is killed, the daemon starts another one.
//! 5. If the daemon had a shard of a cluster, the watcher first waits whether another daemon adopts the shard. If none
//!    does so within a minute, it ends the shard. It knows the server by its number and its start.
//!
//! Neither the pipe nor a descriptor of the process would tell of the kill: both are silent until the last
//! thread is gone.

use std::fs::OpenOptions;
use std::io::{BufRead, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};

use serde::{Deserialize, Serialize};

use crate::error::{Error, ErrorKind, Result};
use crate::fuse::{AbortHandle, MountIdentity};
use crate::peers;
use crate::process::{Process, close_descriptors, is_ending, wait_until_gone};

/// The hidden verb that runs the watcher.
pub const VERB: &str = "watch-daemon";

/// It differs from the daemon's name, so that one `killall` does not end both.
const NAME: &std::ffi::CStr = c"belady-watcher";

/// How often a watcher checks whether the daemon is ending.
const CHECK_DAEMON_EVERY: Duration = Duration::from_secs(1);

/// The shortest and the longest pause before another try to start a watcher.
const RETRY_PAUSE_MIN: Duration = Duration::from_secs(1);
const RETRY_PAUSE_MAX: Duration = Duration::from_secs(60);

/// How long a shard is left for another daemon.
const ADOPT_WAIT: Duration = Duration::from_secs(60);

/// The signals that end a daemon, and that a watcher ignores.
const ENDS: [Signal; 3] = [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP];

/// What a daemon has that someone else must end if it is killed.
#[derive(Clone, Default, Serialize, Deserialize)]
struct Leavings {
    connections: Vec<MountIdentity>,
    /// The directory of a shard, if there may be one.
    #[serde(with = "crate::paths")]
    shard: PathBuf,
    /// The server of the shard, once it runs. If the directory is gone, nothing else tells which one it is.
    server: Process,
}

/// The daemon's side.
pub(super) struct Watcher {
    pipe: Mutex<ChildStdin>,
    /// What the watcher is told.
    leavings: Mutex<Leavings>,
}

impl Watcher {
    /// Starts the watcher of this process, and another one whenever it has ended. To be called before
    /// anything is mounted.
    pub(super) fn start() -> std::io::Result<Arc<Self>> {
        let (mut child, pipe) = spawn()?;
        let watcher = Arc::new(Watcher { pipe: Mutex::new(pipe), leavings: Mutex::default() });
        let restarted = Arc::clone(&watcher);
        let restart = move || {
            while child.wait().is_ok() {
                tracing::warn!("the watcher was ended; another one is started");
                let (next, pipe) = spawn_with_retries();
                child = next;
                restarted.use_pipe(pipe);
            }
        };
        thread::Builder::new().name("belady-watched".into()).spawn(restart)?;
        Ok(watcher)
    }

    /// Tells the watcher which connections there are.
    pub(super) fn set_connections(&self, places: &[MountIdentity]) {
        self.leavings().connections = places.to_vec();
        self.send_leavings();
    }

    /// Tells the watcher where the shard is.
    pub(super) fn set_shard(&self, place: &Path) {
        self.leavings().shard = place.to_owned();
        self.send_leavings();
    }

    /// Tells the watcher which process runs the shard.
    pub(super) fn set_server(&self, server: Process) {
        self.leavings().server = server;
        self.send_leavings();
    }

    fn leavings(&self) -> MutexGuard<'_, Leavings> {
        self.leavings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn use_pipe(&self, pipe: ChildStdin) {
        *self.pipe.lock().unwrap_or_else(PoisonError::into_inner) = pipe;
        self.send_leavings();
    }

    /// If the watcher is gone, the next one is told.
    fn send_leavings(&self) {
        // First: of two messages, the later one is the newer one.
        let mut pipe = self.pipe.lock().unwrap_or_else(PoisonError::into_inner);
        let mut line = serde_json::to_string(&*self.leavings()).unwrap_or_default();
        line.push('\n');
        let _ = pipe.write_all(line.as_bytes());
    }
}

/// Tries to start a watcher until it succeeds, at growing intervals.
fn spawn_with_retries() -> (Child, ChildStdin) {
    let mut pause = RETRY_PAUSE_MIN;
    loop {
        thread::sleep(pause);
        match spawn() {
            Ok(spawned) => return spawned,
            Err(error) => {
                tracing::warn!(%error, "the watcher cannot be started, and will be tried again")
            }
        }
        pause = (pause * 2).min(RETRY_PAUSE_MAX);
    }
}

fn spawn() -> std::io::Result<(Child, ChildStdin)> {
    let mut command = Command::new("/proc/self/exe");
    command.arg0("belady").arg(VERB).arg(std::process::id().to_string());
    command.current_dir("/").stdin(Stdio::piped()).stdout(Stdio::null());
    let mut child = command.spawn()?;
    let pipe = child.stdin.take().ok_or_else(|| std::io::Error::other("no pipe"))?;
    Ok((child, pipe))
}

/// Watches a daemon, the parent of this process, until nothing of it is left. `say` is told of each
/// connection that was ended.
///
/// # Errors
/// If no thread can be started.
pub fn watch(pid: u32, say: impl Fn(String)) -> Result<()> {
    // A connection that the daemon was about to make may have been inherited.
    close_descriptors();
    // A signal to the daemon's process group, session or cgroup must not end the watcher.
    let _ = nix::unistd::setsid();
    let ignored = SigAction::new(SigHandler::SigIgn, SaFlags::empty(), SigSet::empty());
    for signal in ENDS {
        // SAFETY: there is no handler.
        let _ = unsafe { sigaction(signal, &ignored) };
    }
    let _ = nix::sys::prctl::set_name(NAME);
    let (send, received) = mpsc::channel();
    let read = move || {
        let told = messages(std::io::stdin().lock());
        let _ = told.map_while(|told| send.send(told).ok()).count();
    };
    let spawned = thread::Builder::new().spawn(read);
    spawned.map_err(|error| Error::new(ErrorKind::Internal, format!("the watcher: {error}")))?;
    let mut watched: Vec<WatchedConnection> = Vec::new();
    let (mut shard, mut server) = (PathBuf::new(), Process::default());
    // A message does not delay the next check.
    let mut check = Instant::now() + CHECK_DAEMON_EVERY;
    loop {
        match received.recv_timeout(check.saturating_duration_since(Instant::now())) {
            Ok(told) => {
                update(&mut watched, told.connections);
                (shard, server) = (told.shard, told.server);
            }
            Err(RecvTimeoutError::Timeout) => {
                check = Instant::now() + CHECK_DAEMON_EVERY;
                if is_ending(pid) {
                    cut_off(pid, &mut watched).into_iter().for_each(&say);
                }
            }
            Err(RecvTimeoutError::Disconnected) => {
                close_errors();
                // The pipe is closed a moment before the process has ended.
                wait_until_gone(pid, ADOPT_WAIT);
                await_adoption(&shard, server);
                return Ok(());
            }
        }
    }
}

/// What a daemon tells, a line each. A line that is cut off, since the daemon was killed, is left out.
fn messages(input: impl BufRead) -> impl Iterator<Item = Leavings> {
    let lines = input.split(b'\n').map_while(std::result::Result::ok);
    lines.filter_map(|line| serde_json::from_slice(&line).ok())
}

/// Ends the shard in this directory, if there is one, unless another daemon adopts it soon. `told` is the server that
/// the daemon has told of.
fn await_adoption(shard: &Path, told: Process) {
    let (begun, left) = (Instant::now(), || peers::left_server(shard));
    let noted = left();
    let server = noted.unwrap_or(told);
    if noted.is_none() && told.has_ended() {
        return;
    }
    while begun.elapsed() < ADOPT_WAIT {
        if !shard.exists() {
            return peers::kill_server(server, shard);
        }
        if left() != Some(server) {
            return;
        }
        thread::sleep(CHECK_DAEMON_EVERY);
    }
    peers::end_left(shard);
}

/// Closes the output of errors: whoever reads it to its end must not wait for this process.
fn close_errors() {
    if let Ok(nothing) = OpenOptions::new().write(true).open("/dev/null") {
        let _ = nix::unistd::dup2_stderr(nothing);
    }
}

struct WatchedConnection {
    place: MountIdentity,
    /// None if this user can have none.
    switch: Option<AbortHandle>,
}

/// Watches these connections, and earlier ones that are still in use.
fn update(watched: &mut Vec<WatchedConnection>, places: Vec<MountIdentity>) {
    let mut before = std::mem::take(watched);
    watched.extend(places.into_iter().map(|place| {
        match before.iter().position(|watched| watched.place == place) {
            Some(known) => before.swap_remove(known),
            None => WatchedConnection { switch: place.abort_handle(), place },
        }
    }));
    let is_used =
        |watched: &WatchedConnection| watched.switch.as_ref().is_some_and(|it| !it.is_ended());
    watched.extend(before.into_iter().filter(is_used));
}

/// Ends each connection once, unless it is gone: a later mount may have its number. Returns the messages,
/// which are logged when all are ended: logging may hang.
fn cut_off(pid: u32, watched: &mut Vec<WatchedConnection>) -> Vec<String> {
    let ended = watched.drain(..).filter_map(|WatchedConnection { place, switch }| {
        let ended = match switch {
            Some(switch) if switch.is_ended() => return None,
            Some(switch) => switch.abort(),
            None => place.abort(),
        };
        let at = place.path.display();
        let how = match ended {
            true => "was cut off".to_owned(),
            false => format!(
                "cannot be cut off; its readers hang until root runs `belady umount --force {at}`"
            ),
        };
        Some(format!("belady: the daemon {pid} was killed and is stuck; {at} {how}"))
    });
    ended.collect()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// A connection at a path. Its switch is two files in a directory.
    fn watched(top: &Path, at: &str) -> WatchedConnection {
        let place =
            MountIdentity { path: PathBuf::from(at), device: "0:7".into(), name: b"x".to_vec() };
        let [abort, waiting] = ["abort", "waiting"].map(|file| top.join(format!("{at}-{file}")));
        fs::write(&waiting, "0\n").unwrap();
        fs::write(&abort, "").unwrap();
        WatchedConnection { switch: Some(AbortHandle::of_files(&abort, &waiting).unwrap()), place }
    }

    #[test]
    fn a_message_that_is_cut_off_changes_nothing() {
        let connections = vec![MountIdentity {
            path: PathBuf::from("/mnt/é"),
            device: "0:7".into(),
            name: b"x".to_vec(),
        }];
        let leavings = Leavings { connections, shard: "/run/shard".into(), ..Leavings::default() };
        let line = serde_json::to_vec(&leavings).unwrap();
        let told = |input: &[u8]| {
            let paths = messages(input).map(|told| (told.connections.len(), told.shard));
            paths.collect::<Vec<_>>()
        };
        let one = [(1, PathBuf::from("/run/shard"))];
        for cut in 0..line.len() {
            assert_eq!(told(&[&line, &b"\n"[..], &line[..cut]].concat()), one, "{cut}");
        }
        assert_eq!(told(&[&line[..9], b"\n", &line, b"\n"].concat()), one);
    }

    #[test]
    fn a_connection_is_watched_over_until_it_is_gone() {
        let top = tempfile::tempdir().unwrap();
        let mut all = ["stays", "in-use", "gone"].map(|at| watched(top.path(), at)).into();
        fs::write(top.path().join("gone-waiting"), "").unwrap();
        let WatchedConnection { place: stays, .. } = watched(top.path(), "stays");
        update(&mut all, vec![stays]);
        let paths = |all: &[WatchedConnection]| {
            all.iter().map(|it| it.place.path.clone()).collect::<Vec<_>>()
        };
        assert_eq!(paths(&all), ["stays", "in-use"].map(PathBuf::from));
        fs::write(top.path().join("stays-waiting"), "").unwrap();
        let messages = cut_off(1, &mut all);
        assert!(messages.len() == 1 && messages[0].contains("in-use was cut off"), "{messages:?}");
        let aborted =
            |at: &str| fs::read_to_string(top.path().join(format!("{at}-abort"))).unwrap();
        assert_eq!((aborted("in-use").as_str(), aborted("stays").as_str()), ("1", ""));
        assert!(all.is_empty() && cut_off(1, &mut all).is_empty(), "each is ended once");
    }
}
