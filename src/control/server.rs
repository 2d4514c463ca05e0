//! The daemon's side of the control socket.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::oneshot;
use tokio::task::{JoinHandle, JoinSet};

use super::protocol::{self, Answer, PATIENCE, REQUEST_MAX, Reply, Request, Text};
use crate::error::{Error, ErrorKind, Result};

/// A control socket that is being served.
pub struct Server {
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl Server {
    /// Takes no more requests, and waits for the answers that are on their way, but not longer
    /// than this.
    pub async fn finish(self, patience: Duration) {
        let _ = self.stop.send(());
        let _ = tokio::time::timeout(patience, self.task).await;
    }
}

/// Answers requests with `handle`, each on a thread that may block. Must be called inside a tokio
/// runtime.
///
/// # Errors
/// Where the socket cannot be made.
pub fn serve(
    socket: &Path,
    handle: impl Fn(Request) -> Result<Reply> + Send + Sync + 'static,
) -> Result<Server> {
    let refuse = |error: std::io::Error| {
        Error::new(ErrorKind::Mount, format!("control socket {}: {error}", socket.display()))
    };
    // Left by a daemon that died; a living one was asked before.
    let _ = std::fs::remove_file(socket);
    let listener = UnixListener::bind(socket).map_err(refuse)?;
    std::fs::set_permissions(socket, std::fs::Permissions::from_mode(0o600)).map_err(refuse)?;
    let (stop, stopped) = oneshot::channel();
    let task = tokio::spawn(listen(listener, Arc::new(handle), stopped));
    Ok(Server { stop, task })
}

async fn listen<H>(listener: UnixListener, handle: Arc<H>, mut stopped: oneshot::Receiver<()>)
where
    H: Fn(Request) -> Result<Reply> + Send + Sync + 'static,
{
    let mut answers = JoinSet::new();
    loop {
        tokio::select! {
            _ = &mut stopped => break,
            Some(_) = answers.join_next() => {}
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    answers.spawn(answer(stream, Arc::clone(&handle)));
                }
                Err(error) => {
                    tracing::warn!(%error, "control socket");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            },
        }
    }
    while answers.join_next().await.is_some() {}
}

async fn answer<H>(stream: UnixStream, handle: Arc<H>)
where
    H: Fn(Request) -> Result<Reply> + Send + Sync + 'static,
{
    let (reader, mut writer) = stream.into_split();
    let mut line = String::new();
    let mut reader = BufReader::new(reader.take(REQUEST_MAX as u64));
    if reader.read_line(&mut line).await.is_err() {
        return;
    }
    let request = serde_json::from_str::<Request>(&line);
    // It may be large, and the answer may take long.
    drop(line);
    let result = match request {
        Ok(request) => tokio::task::spawn_blocking(move || handle(request))
            .await
            .unwrap_or_else(|_| Err(Error::new(ErrorKind::Internal, "the request failed"))),
        Err(error) => Err(Error::new(ErrorKind::Usage, format!("not a request: {error}"))),
    };
    let (answer, text) = match result {
        Ok(Reply { value, text }) => (Answer::Done(value), text),
        Err(error) => {
            let (code, message) = (error.kind().exit_code(), error.to_string());
            (Answer::Failed { code, message }, None)
        }
    };
    let mut line = serde_json::to_vec(&answer).unwrap_or_default();
    line.push(b'\n');
    // The command may have gone away.
    let written = writer.write_all(&line).await;
    if let (Ok(()), Some(text)) = (written, text)
        && let Ok(stream) = reader.into_inner().into_inner().reunite(writer)
        && let Ok(stream) = stream.into_std()
    {
        let _ = tokio::task::spawn_blocking(move || send(text, stream)).await;
    }
}

/// Sends the text after an answer, on a thread that may wait.
fn send(text: Text, stream: std::os::unix::net::UnixStream) -> std::io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_write_timeout(Some(PATIENCE))?;
    protocol::send(text, &mut std::io::BufWriter::new(stream))
}
