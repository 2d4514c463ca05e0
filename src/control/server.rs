//! The daemon's side of the control socket.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};

use super::protocol::{Answer, Request};
use crate::error::{Error, ErrorKind, Result};

/// Bytes that one request may have.
const REQUEST_MAX: u64 = 1 << 20;

/// Answers requests with `handle`, each on a thread that may block, until the returned task is
/// aborted. Must be called inside a tokio runtime.
///
/// # Errors
/// Where the socket cannot be made.
pub fn serve(
    socket: &Path,
    handle: impl Fn(Request) -> Result<Value> + Send + Sync + 'static,
) -> Result<tokio::task::JoinHandle<()>> {
    let refuse = |error: std::io::Error| {
        Error::new(ErrorKind::Mount, format!("control socket {}: {error}", socket.display()))
    };
    // Left by a daemon that died; a living one was asked before.
    let _ = std::fs::remove_file(socket);
    let listener = UnixListener::bind(socket).map_err(refuse)?;
    std::fs::set_permissions(socket, std::fs::Permissions::from_mode(0o600)).map_err(refuse)?;
    let handle = Arc::new(handle);
    Ok(tokio::spawn(async move {
        loop {
            match listener.accept().await {
                Ok((stream, _)) => {
                    tokio::spawn(answer(stream, Arc::clone(&handle)));
                }
                Err(error) => {
                    tracing::warn!(%error, "control socket");
                    tokio::time::sleep(std::time::Duration::from_millis(100)).await;
                }
            }
        }
    }))
}

async fn answer<H>(stream: UnixStream, handle: Arc<H>)
where
    H: Fn(Request) -> Result<Value> + Send + Sync + 'static,
{
    let (reader, mut writer) = stream.into_split();
    let mut line = String::new();
    if BufReader::new(reader.take(REQUEST_MAX)).read_line(&mut line).await.is_err() {
        return;
    }
    let result = match serde_json::from_str::<Request>(&line) {
        Ok(request) => tokio::task::spawn_blocking(move || handle(request))
            .await
            .unwrap_or_else(|_| Err(Error::new(ErrorKind::Internal, "the request failed"))),
        Err(error) => Err(Error::new(ErrorKind::Usage, format!("not a request: {error}"))),
    };
    let answer = match result {
        Ok(value) => Answer::Done(value),
        Err(error) => {
            Answer::Failed { code: error.kind().exit_code(), message: error.to_string() }
        }
    };
    let mut text = serde_json::to_vec(&answer).unwrap_or_default();
    text.push(b'\n');
    // The command may have gone away.
    let _ = writer.write_all(&text).await;
}
