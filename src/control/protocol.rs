//! The requests of commands, the answers, and the command's side.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::PeerCredentials;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::runtime::{MountDirectory, has_runtime};
use crate::config::Bytes;
use crate::engine::{Pace, Selection};
use crate::error::{Error, ErrorKind, Result};
use crate::process::{is_ending, is_stopped};
use crate::rehearsal::Question;

/// How long a command waits for the daemon's answer. An order of 10^7 samples takes seconds.
pub(super) const PATIENCE: Duration = Duration::from_secs(120);

/// The limit of one request: features of some thousand samples, or names of millions of files.
pub(super) const REQUEST_MAX: usize = 256 << 20;

/// How long `belady umount` waits. The daemon gives up a disk that hangs long before.
const UNMOUNT_PATIENCE: Duration = Duration::from_secs(1200);

/// How long `belady umount --force` waits: the mount is taken away in any case.
const FORCE_PATIENCE: Duration = Duration::from_secs(15);

/// A command's request to a daemon.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "kebab-case")]
pub enum Request {
    /// All that `belady status` shows.
    Status,
    /// What was seen of the loaders that read: of so many of the latest epochs of each, or of all.
    Report { epochs: Option<u32> },
    /// Trace for so many seconds. Answered then, with the events as the text after the answer, as Chrome reads them.
    Trace { seconds: u32 },
    /// The settings in force, as text.
    Config,
    /// How far the scan of the source is. Answered when it is over, or after a moment.
    Scanned,
    /// Set the order of a stream, written as on the command line.
    SetOrder { stream: String, order: String },
    /// An order file of the samples that a loader read, as the text after the answer: the loader of this
    /// number in the status, or of this process. Of the latest epochs, or of all.
    Record { loader: Option<u32>, process: Option<u64>, epochs: Option<u32> },
    /// Take a stream's order away.
    WithdrawOrder { stream: String },
    /// Begin a warm-up of the chosen files. Answered with its number.
    Warmup { chosen: Selection, pace: Pace },
    /// How far a warm-up is.
    WarmupProgress { number: u64 },
    /// How much of the chosen files is in RAM and on the cache disk.
    CountHere { chosen: Selection },
    /// Drop the chosen files from RAM and the cache disk.
    Evict { chosen: Selection },
    /// Show the dataset at a further mount point.
    Attach {
        #[serde(with = "crate::paths")]
        mountpoint: PathBuf,
    },
    /// A question about the rehearsal buffers.
    Rehearse(Question),
    /// Unmount an attached mount point. At the first mount point: unmount all of them, and end the daemon.
    /// With `force` even if files of the mount are in use.
    Unmount {
        #[serde(with = "crate::paths")]
        mountpoint: PathBuf,
        force: bool,
    },
}

impl Request {
    fn patience(&self) -> Duration {
        match self {
            Request::Unmount { force: true, .. } => FORCE_PATIENCE,
            // Samples that wait for the store are stored first, however slow the disk.
            Request::Unmount { force: false, .. } => UNMOUNT_PATIENCE,
            Request::Trace { seconds } => PATIENCE + Duration::from_secs((*seconds).into()),
            _ => PATIENCE,
        }
    }
}

/// A value, or an error.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Answer {
    Done(Value),
    Failed { code: u8, message: String },
}

/// A value, and perhaps a text that follows it.
pub struct Reply {
    pub(super) value: Value,
    pub(super) text: Option<Text>,
}

/// Writes a text, which may be long.
pub type Text = Box<dyn FnOnce(&mut dyn Write) -> Result<()> + Send>;

impl Reply {
    pub fn with_text(value: Value, text: Text) -> Self {
        Reply { value, text: Some(text) }
    }
}

impl From<Value> for Reply {
    fn from(value: Value) -> Self {
        Reply { value, text: None }
    }
}

/// The last line after a text: that it is complete, or why it is not.
const WHOLE: &[u8] = b"# end\n";
const FAILED: &[u8] = b"# failed: ";

/// Writes a text, and how it ended.
pub(super) fn send(text: Text, out: &mut dyn Write) -> std::io::Result<()> {
    match text(out) {
        Ok(()) => out.write_all(WHOLE)?,
        Err(error) => {
            out.write_all(FAILED)?;
            out.write_all(error.to_string().replace('\n', " ").as_bytes())?;
            out.write_all(b"\n")?;
        }
    }
    out.flush()
}

/// Asks the daemon of the mount at a path.
///
/// # Errors
/// If there is no such mount or no answer, and the daemon's own.
pub fn ask(mountpoint: &Path, request: &Request) -> Result<Value> {
    call(&socket_of(mountpoint)?, request)
}

fn socket_of(mountpoint: &Path) -> Result<PathBuf> {
    let socket = MountDirectory::of(mountpoint).socket();
    if !has_runtime()? || !socket.exists() {
        let message = format!("you have nothing of belady mounted at {}", mountpoint.display());
        return Err(Error::new(ErrorKind::Mount, message).hint(
            "`belady status` lists what you have; mounts of another user, or made with another \
             XDG_RUNTIME_DIR, are not among it",
        ));
    }
    Ok(socket)
}

/// Sends a request whose answer has a text, and writes that to `out`.
///
/// # Errors
/// As [`ask`], and if the text is incomplete or cannot be written.
pub fn ask_for_text(mountpoint: &Path, request: &Request, out: &mut dyn Write) -> Result<Value> {
    let (value, rest) = begin(&socket_of(mountpoint)?, request)?;
    receive(rest, out).map(|()| value)
}

/// Copies the text after an answer. Its last line says whether it is complete.
fn receive(mut rest: impl BufRead, out: &mut dyn Write) -> Result<()> {
    let failed = |error| Error::new(ErrorKind::Internal, format!("the text: {error}"));
    let (mut line, mut next) = (Vec::new(), Vec::new());
    loop {
        next.clear();
        if rest.read_until(b'\n', &mut next).map_err(failed)? == 0 {
            break;
        }
        out.write_all(&line).map_err(failed)?;
        std::mem::swap(&mut line, &mut next);
    }
    if line == WHOLE {
        return out.flush().map_err(failed);
    }
    let said = line.strip_prefix(FAILED).map(String::from_utf8_lossy);
    let message = said.as_deref().map_or("the daemon ended before the text did", str::trim_end);
    Err(Error::new(ErrorKind::Internal, message))
}

/// Asks the daemon behind a socket.
///
/// # Errors
/// If there is no answer, and the daemon's own.
pub fn call(socket: &Path, request: &Request) -> Result<Value> {
    begin(socket, request).map(|(value, _)| value)
}

fn encode(request: &Request) -> Result<String> {
    let mut line = serde_json::to_string(request)
        .map_err(|error| Error::new(ErrorKind::Internal, format!("the request: {error}")))?;
    line.push('\n');
    if line.len() > REQUEST_MAX {
        let (long, most) = (Bytes(line.len() as u64).human(), Bytes(REQUEST_MAX as u64).human());
        let message = format!("the request has {long} as it is sent, and may have {most}");
        return Err(Error::new(ErrorKind::Usage, message).hint("give what it names in parts"));
    }
    Ok(line)
}

/// Sends a request. Returns the answer's value, and the stream with the text.
fn begin(socket: &Path, request: &Request) -> Result<(Value, BufReader<UnixStream>)> {
    let silent = |error: std::io::Error| {
        let kind = match error.kind() {
            std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut => ErrorKind::Timeout,
            _ => ErrorKind::Mount,
        };
        Error::new(kind, format!("the daemon does not answer at {}: {error}", socket.display()))
            .hint(CLEARS)
    };
    let line = encode(request)?;
    let mut stream = UnixStream::connect(socket).map_err(silent)?;
    check_runs(&stream, socket)?;
    stream.set_read_timeout(Some(request.patience())).map_err(silent)?;
    stream.set_write_timeout(Some(request.patience())).map_err(silent)?;
    stream.write_all(line.as_bytes()).map_err(silent)?;
    drop(line);
    let mut answer = String::new();
    let mut stream = BufReader::new(stream);
    stream.read_line(&mut answer).map_err(silent)?;
    match serde_json::from_str(&answer) {
        Ok(Answer::Done(value)) => Ok((value, stream)),
        Ok(Answer::Failed { code, message }) => {
            Err(Error::new(ErrorKind::of_exit_code(code), message))
        }
        Err(_) => Err(Error::new(ErrorKind::Mount, "the daemon ended before it answered")),
    }
}

const CLEARS: &str = "if it is dead, `belady umount --force MOUNTPOINT` clears what it left";

/// Makes sure that the daemon behind a socket can answer. If it was killed, its socket takes connections
/// until its last thread has left the kernel. If it was stopped, its socket takes connections, too.
///
/// # Errors
/// [`ErrorKind::Mount`] if it was killed, [`ErrorKind::Timeout`] if it was stopped.
fn check_runs(stream: &UnixStream, socket: &Path) -> Result<()> {
    let daemon =
        getsockopt(stream, PeerCredentials).ok().and_then(|peer| u32::try_from(peer.pid()).ok());
    // A daemon in another container cannot be looked at.
    let Some(pid) = daemon.filter(|pid| *pid != 0) else { return Ok(()) };
    let silent = format!("the daemon does not answer at {}: process {pid} was", socket.display());
    if is_ending(pid) {
        return Err(Error::new(ErrorKind::Mount, format!("{silent} killed")).hint(CLEARS));
    }
    if is_stopped(pid) {
        let hint = format!(
            "`kill -CONT {pid}` has it go on; `belady umount --force MOUNTPOINT` takes its mount away"
        );
        return Err(Error::new(ErrorKind::Timeout, format!("{silent} stopped")).hint(hint));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passed(text: Text, cut: usize) -> (Result<()>, Vec<u8>) {
        let (mut sent, mut out) = (Vec::new(), Vec::new());
        let sending = send(text, &mut sent);
        sending.ok();
        (receive(&sent[..sent.len() - cut], &mut out), out)
    }

    fn text(words: &'static str, then: Result<()>) -> Text {
        Box::new(move |out| {
            let _ = out.write_all(words.as_bytes());
            then
        })
    }

    /// Each control byte of a name takes six.
    #[test]
    fn a_request_that_no_daemon_would_take_is_refused_before_it_is_sent() {
        let names = |bytes: usize| Selection::Files(vec![1; bytes]);
        let count = |bytes| encode(&Request::CountHere { chosen: names(bytes) });
        let rest = count(0).unwrap().len();
        let most = (REQUEST_MAX - rest) / 6;
        assert_eq!(count(most).unwrap().len(), rest + 6 * most);
        let refused = count(most + 1).unwrap_err();
        assert!(
            refused.kind() == ErrorKind::Usage && refused.message().contains("256"),
            "{refused}"
        );
    }

    #[test]
    fn a_text_is_whole_or_not_taken() {
        let (result, out) = passed(text("a\n# end\nb\n", Ok(())), 0);
        assert_eq!((result, out.as_slice()), (Ok(()), b"a\n# end\nb\n".as_slice()));
        let (result, _) = passed(text("", Ok(())), 0);
        assert_eq!(result, Ok(()));
        for cut in 1..10 {
            let (result, _) = passed(text("a\nb\n", Ok(())), cut);
            assert!(result.is_err_and(|error| error.message().contains("ended before")), "{cut}");
        }
        let refused = Error::new(ErrorKind::Order, "no such name").hint("another");
        let (result, _) = passed(text("a\n", Err(refused)), 0);
        assert_eq!(result.unwrap_err().message(), "no such name   hint: another");
    }
}
