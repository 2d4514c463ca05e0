//! The daemon's side of the control socket.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::oneshot;
use tokio::task::{JoinHandle, JoinSet};

use super::protocol::{self, Answer, PATIENCE, REQUEST_MAX, Reply, Request, Text};
use crate::config::Bytes;
use crate::error::{Error, ErrorKind, Result};

/// Requests up to this length are taken however little memory there is.
const REQUEST_MIN: usize = 1 << 20;

pub struct Server {
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl Server {
    /// Takes no more requests, and waits for answers on their way, `patience` at most.
    pub async fn finish(self, patience: Duration) {
        let _ = self.stop.send(());
        let _ = tokio::time::timeout(patience, self.task).await;
    }
}

/// Answers requests with `handle`, each on a thread that may block. Refuses a request that is longer than
/// `room`, the memory that there is for one. Must be called inside a tokio runtime.
///
/// # Errors
/// If the socket cannot be made.
pub fn serve(
    socket: &Path,
    room: impl Fn() -> usize + Send + Sync + 'static,
    handle: impl Fn(Request) -> Result<Reply> + Send + Sync + 'static,
) -> Result<Server> {
    let refuse = |error: std::io::Error| {
        Error::new(ErrorKind::Mount, format!("control socket {}: {error}", socket.display()))
    };
    // A daemon that died has left it: a living one was asked before.
    let _ = std::fs::remove_file(socket);
    let listener = UnixListener::bind(socket).map_err(refuse)?;
    std::fs::set_permissions(socket, std::fs::Permissions::from_mode(0o600)).map_err(refuse)?;
    let (stop, stopped) = oneshot::channel();
    let task = tokio::spawn(listen(listener, room, Arc::new(handle), stopped));
    Ok(Server { stop, task })
}

async fn listen<H>(
    listener: UnixListener,
    room: impl Fn() -> usize,
    handle: Arc<H>,
    mut stopped: oneshot::Receiver<()>,
) where
    H: Fn(Request) -> Result<Reply> + Send + Sync + 'static,
{
    let mut answers = JoinSet::new();
    loop {
        tokio::select! {
            _ = &mut stopped => break,
            Some(_) = answers.join_next() => {}
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    answers.spawn(answer(stream, room(), Arc::clone(&handle)));
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

async fn answer<H>(stream: UnixStream, room: usize, handle: Arc<H>)
where
    H: Fn(Request) -> Result<Reply> + Send + Sync + 'static,
{
    let (reader, mut writer) = stream.into_split();
    let mut reader = BufReader::new(reader);
    let Ok(line) = receive(&mut reader, room.clamp(REQUEST_MIN, REQUEST_MAX)).await else { return };
    let result = match line.and_then(|line| decode(&line)) {
        Ok(request) => tokio::task::spawn_blocking(move || handle(request))
            .await
            .unwrap_or_else(|_| Err(Error::new(ErrorKind::Internal, "the request failed"))),
        Err(error) => Err(error),
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
    // The command may have ended.
    let written = writer.write_all(&line).await;
    if let (Ok(()), Some(text)) = (written, text)
        && let Ok(stream) = reader.into_inner().reunite(writer)
        && let Ok(stream) = stream.into_std()
    {
        let _ = tokio::task::spawn_blocking(move || send(text, stream)).await;
    }
}

fn decode(line: &[u8]) -> Result<Request> {
    serde_json::from_slice(line)
        .map_err(|error| Error::new(ErrorKind::Usage, format!("not a request: {error}")))
}

/// A line, or why it is refused. It takes memory for `most` bytes at most.
async fn receive(
    mut reader: impl AsyncBufRead + Unpin,
    most: usize,
) -> std::io::Result<Result<Vec<u8>>> {
    let mut line = Vec::new();
    (&mut reader).take(most as u64).read_until(b'\n', &mut line).await?;
    if line.len() < most || line.ends_with(b"\n") {
        return Ok(Ok(line));
    }
    drop(line);
    // The command reads the answer when it has sent all.
    loop {
        let bytes = reader.fill_buf().await?;
        let end = bytes.iter().position(|byte| *byte == b'\n');
        let count = end.map_or(bytes.len(), |end| end + 1);
        reader.consume(count);
        if count == 0 || end.is_some() {
            break;
        }
    }
    let most = Bytes(most as u64).human();
    let message = format!("the request is longer than the {most} that there is memory for");
    Ok(Err(Error::new(ErrorKind::Usage, message)
        .hint("give what it names in parts, or the daemon more memory")))
}

/// Sends the text after an answer. Blocks.
fn send(text: Text, stream: std::os::unix::net::UnixStream) -> std::io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_write_timeout(Some(PATIENCE))?;
    protocol::send(text, &mut std::io::BufWriter::new(stream))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn received(sent: &[u8], most: usize) -> Result<Vec<u8>> {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(receive(BufReader::with_capacity(4, sent), most)).unwrap()
    }

    #[test]
    fn a_request_takes_no_more_memory_than_there_is() {
        let line = b"0123456789\nrest";
        assert_eq!(received(line, 11).unwrap(), &line[..11]);
        assert_eq!(received(b"012", 11).unwrap(), b"012", "it breaks off");
        let refused = received(line, 10).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Usage);
        assert!(refused.message().contains("10"), "{refused}");
        assert!(received(b"0123456789", 4).is_err());
    }
}
