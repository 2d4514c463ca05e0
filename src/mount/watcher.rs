//! The watcher: a process that ends the connections of a daemon that was killed.
//!
//! The kernel ends a connection when the last thread of its daemon is gone. A killed daemon may live
//! on as one thread that the kernel holds up: a push waits for pages which a read has locked, and
//! nobody answers that read any more. Then readers hang, and with them every `sync` of the machine.
//!
//! 1. The daemon starts the watcher before it opens a device, so that the watcher has none open.
//! 2. The daemon tells it by a pipe what is mounted, each time that this changes.
//! 3. Once a second the watcher looks whether the daemon was killed, and aborts its connections if so.
//! 4. The pipe ends when nothing of the daemon is left. The watcher ends with it.
//!
//! A descriptor of the process or its pipe would not tell of the kill itself: both stay silent until
//! the last thread is gone.

use std::io::{BufRead, Write};
use std::os::unix::process::CommandExt;
use std::process::{ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::error::{Error, ErrorKind, Result};
use crate::fuse::Place;
use crate::process::is_ending;

/// The hidden verb that runs the watcher.
pub const VERB: &str = "watch-daemon";

/// Its name among the processes. It differs from the daemon's, so that one `killall` does not end both.
const NAME: &std::ffi::CStr = c"belady-watcher";

const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The daemon's end of its watcher.
pub(super) struct Watcher(Mutex<ChildStdin>);

impl Watcher {
    /// Starts the watcher of this process. To be called before anything is mounted.
    pub(super) fn start() -> std::io::Result<Self> {
        let mut command = Command::new("/proc/self/exe");
        command.arg0("belady").arg(VERB).arg(std::process::id().to_string());
        command.current_dir("/").stdin(Stdio::piped()).stdout(Stdio::null());
        let mut child = command.spawn()?;
        let pipe = child.stdin.take().ok_or_else(|| std::io::Error::other("no pipe"))?;
        Ok(Watcher(Mutex::new(pipe)))
    }

    /// Tells the watcher what is mounted now.
    pub(super) fn tell(&self, places: &[Place]) {
        let mut line = serde_json::to_string(places).unwrap_or_default();
        line.push('\n');
        let mut pipe = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(error) = pipe.write_all(line.as_bytes()) {
            tracing::warn!(%error, "the watcher is gone; if this daemon is killed, readers may hang");
        }
    }
}

/// Watches over a daemon, which is the parent of this process, until nothing of it is left. Each
/// connection that is ended is told of by `say`.
///
/// # Errors
/// Where there can be no thread.
pub fn watch(pid: u32, say: impl Fn(String)) -> Result<()> {
    // A signal to the daemon's group or session is not for the watcher.
    let _ = nix::unistd::setsid();
    let _ = nix::sys::prctl::set_name(NAME);
    let (bring, brought) = mpsc::channel();
    let reads = move || {
        let lines = std::io::stdin().lock().lines().map_while(std::result::Result::ok);
        let _ = lines.map_while(|line| bring.send(serde_json::from_str(&line)).ok()).count();
    };
    let spawned = std::thread::Builder::new().spawn(reads);
    spawned.map_err(|error| Error::new(ErrorKind::Internal, format!("the watcher: {error}")))?;
    let mut places: Vec<Place> = Vec::new();
    loop {
        match brought.recv_timeout(LOOK_EVERY) {
            Ok(told) => places = told.unwrap_or_default(),
            Err(RecvTimeoutError::Timeout) if is_ending(pid) => cut_off(pid, &mut places, &say),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return Ok(()),
        }
    }
}

/// Ends each connection once: another mount may have its number afterwards.
fn cut_off(pid: u32, places: &mut Vec<Place>, say: &impl Fn(String)) {
    for place in places.drain(..) {
        let at = place.path.display();
        let how = if place.sever() { "was cut off" } else { "cannot be cut off" };
        say(format!("belady: the daemon {pid} was killed and is stuck; {at} {how}"));
    }
}
