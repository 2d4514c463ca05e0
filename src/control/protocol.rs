//! The requests, and the client's side.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::runtime::MountDirectory;
use crate::engine::Question;
use crate::error::{Error, ErrorKind, Result};

/// How long a command waits for the daemon's answer; an order of 10^7 samples takes seconds.
const PATIENCE: Duration = Duration::from_secs(120);

/// What a command asks of a daemon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "kebab-case")]
pub enum Request {
    /// The state of everything.
    Status,
    /// The settings in force, rendered.
    Config,
    /// Give a stream an order.
    SetOrder {
        /// The stream's name.
        stream: String,
        /// The order as on the command line.
        order: String,
    },
    /// Take a stream's order away.
    WithdrawOrder {
        /// The stream's name.
        stream: String,
    },
    /// Show the dataset at another mount point too.
    Attach {
        /// Where.
        mountpoint: PathBuf,
    },
    /// Ask something of the rehearsal buffers.
    Rehearse(Question),
    /// Unmount: an attached mount point alone, the first one with all of them and the daemon.
    Unmount {
        /// Which.
        mountpoint: PathBuf,
        /// Also where files of the mount are in use.
        force: bool,
    },
}

/// The daemon's answer: a value, or why not.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Answer {
    Done(Value),
    Failed { code: u8, message: String },
}

fn kind(code: u8) -> ErrorKind {
    let kinds = [
        ErrorKind::Usage,
        ErrorKind::Order,
        ErrorKind::Source,
        ErrorKind::Cache,
        ErrorKind::Mount,
        ErrorKind::Timeout,
        ErrorKind::Busy,
    ];
    kinds.into_iter().find(|kind| kind.exit_code() == code).unwrap_or(ErrorKind::Internal)
}

/// Asks the daemon of the mount at a path.
///
/// # Errors
/// Where there is no such mount or nobody answers, and the daemon's own.
pub fn ask(mountpoint: &Path, request: &Request) -> Result<Value> {
    let socket = MountDirectory::of(mountpoint).socket();
    if !socket.exists() {
        let message = format!("you have nothing of belady mounted at {}", mountpoint.display());
        return Err(Error::new(ErrorKind::Mount, message).hint(
            "`belady status` lists what you have; mounts of another user, or made with another \
             XDG_RUNTIME_DIR, are not among it",
        ));
    }
    call(&socket, request)
}

/// Asks the daemon behind a socket.
///
/// # Errors
/// Where nobody answers, and the daemon's own.
pub fn call(socket: &Path, request: &Request) -> Result<Value> {
    let silent = |error: std::io::Error| {
        let kind = match error.kind() {
            std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut => ErrorKind::Timeout,
            _ => ErrorKind::Mount,
        };
        Error::new(kind, format!("the daemon does not answer at {}: {error}", socket.display()))
            .hint("if it is dead, `belady umount --force MOUNTPOINT` clears what it left")
    };
    let mut stream = UnixStream::connect(socket).map_err(silent)?;
    stream.set_read_timeout(Some(PATIENCE)).map_err(silent)?;
    let mut line = serde_json::to_string(request).unwrap_or_default();
    line.push('\n');
    stream.write_all(line.as_bytes()).map_err(silent)?;
    let mut answer = String::new();
    BufReader::new(stream).read_line(&mut answer).map_err(silent)?;
    match serde_json::from_str(&answer) {
        Ok(Answer::Done(value)) => Ok(value),
        Ok(Answer::Failed { code, message }) => Err(Error::new(kind(code), message)),
        Err(_) => Err(Error::new(ErrorKind::Mount, "the daemon ended before it answered")),
    }
}
