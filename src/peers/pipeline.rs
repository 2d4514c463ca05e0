//! A connection to a shard with many requests under way.
//!
//! 1. Requests queue. All that wait are written with one call. The bytes of a block are written from where they are.
//! 2. The server answers in the order of the requests. A value is read into memory of its own.
//! 3. If the connection ends, or the server breaks the protocol, no request on it gets a reply any more.
//!
//! The protocol is RESP2 (redis.io/docs/latest/develop/reference/protocol-spec). The `redis` crate speaks it, too, but
//! copies each block several times. `scripts/bench cluster` measures what a sample of another node costs.

use std::collections::VecDeque;
use std::io::{Error, ErrorKind, IoSlice, Result, Write};
use std::net::SocketAddr;
use std::sync::Arc;

use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::sync::{Semaphore, oneshot};
use tokio::task::AbortHandle;

use super::connection::Login;
use super::values::{self, Key, TRAILER};
use crate::disk::{Buffer, memory_for};
use crate::ids::BLOCK_BYTES;
use crate::sync::Mutex;

/// Requests under way at once whose askers still wait, and requests that are written with one call.
const AT_ONCE: usize = 32;

/// The longest value that is read, in bytes. No value of ours is longer.
const VALUE_MOST: usize = BLOCK_BYTES as usize + TRAILER;

/// The longest line that is read, in bytes.
const LINE_MOST: u64 = 4096;

/// Bytes that are read at once, but for those of a value.
const READ_AT_ONCE: usize = 4096;

const LINE_END: &[u8; 2] = b"\r\n";

/// A command with its arguments.
pub(super) struct Request {
    words: Vec<u8>,
    /// The last argument of a command that stores a block: the block, and what comes after it.
    block: Option<(Arc<Buffer>, [u8; TRAILER + LINE_END.len()])>,
}

impl Request {
    pub(super) fn new(words: &[&[u8]]) -> Self {
        Request { words: encoded(words.len(), words), block: None }
    }

    /// Stores a block under the name of its key.
    pub(super) fn storing(name: &str, key: Key, block: &Arc<Buffer>) -> Self {
        let mut words = encoded(3, &[b"SET", name.as_bytes()]);
        push_length(&mut words, block.len() + TRAILER);
        let mut end = [0; TRAILER + LINE_END.len()];
        end[..TRAILER].copy_from_slice(&values::trailer(key, block));
        end[TRAILER..].copy_from_slice(LINE_END);
        Request { words, block: Some((Arc::clone(block), end)) }
    }

    fn parts(&self) -> impl Iterator<Item = &[u8]> {
        let block = self.block.iter().flat_map(|(block, end)| [&block[..], &end[..]]);
        std::iter::once(&self.words[..]).chain(block)
    }
}

/// The first words of a request of `count` words.
fn encoded(count: usize, words: &[&[u8]]) -> Vec<u8> {
    let mut all = format!("*{count}\r\n").into_bytes();
    for word in words {
        push_length(&mut all, word.len());
        all.extend_from_slice(word);
        all.extend_from_slice(LINE_END);
    }
    all
}

fn push_length(words: &mut Vec<u8>, length: usize) {
    // Memory takes all of it.
    let _ = write!(words, "${length}\r\n");
}

/// What the server replies.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Reply {
    /// It has done it.
    Done,
    Nil,
    Value(Vec<u8>),
    /// It refuses it, for this reason.
    Refused(String),
}

struct Sent {
    request: Request,
    reply: oneshot::Sender<Reply>,
}

/// A connection. It ends when this is dropped.
pub(super) struct Pipeline {
    requests: Sender<Sent>,
    places: Semaphore,
    task: AbortHandle,
}

impl Drop for Pipeline {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Pipeline {
    /// Connects, and logs in. To be called within a runtime.
    ///
    /// # Errors
    /// If nobody answers there, or the login is refused.
    pub(super) async fn connect(address: SocketAddr, login: &Login<'_>) -> Result<Self> {
        let stream = TcpStream::connect(address).await?;
        // A request is not held back until the one before it is answered.
        stream.set_nodelay(true)?;
        let (requests, queue) = channel(AT_ONCE);
        let task = tokio::spawn(carry(stream, queue)).abort_handle();
        let pipeline = Pipeline { requests, places: Semaphore::new(AT_ONCE), task };
        let words = [b"AUTH", login.user.as_bytes(), login.password.as_bytes()];
        match pipeline.ask(Request::new(&words)).await {
            Some(Reply::Done) => Ok(pipeline),
            Some(Reply::Refused(why)) => Err(Error::new(ErrorKind::PermissionDenied, why)),
            _ => Err(ErrorKind::InvalidData.into()),
        }
    }

    /// Whether it has ended.
    pub(super) fn has_ended(&self) -> bool {
        self.requests.is_closed()
    }

    /// Makes a request. `None` if the connection has ended.
    pub(super) async fn ask(&self, request: Request) -> Option<Reply> {
        let _place = self.places.acquire().await.ok()?;
        let (reply, replied) = oneshot::channel();
        self.requests.send(Sent { request, reply }).await.ok()?;
        replied.await.ok()
    }
}

/// The requests whose replies are still to come, in their order.
type Waiting = Mutex<VecDeque<oneshot::Sender<Reply>>>;

/// Carries requests and replies until the connection ends.
async fn carry(mut stream: TcpStream, queue: Receiver<Sent>) {
    let (reads, writes) = stream.split();
    let waiting = Waiting::default();
    let ended = tokio::select! {
        ended = write_requests(writes, queue, &waiting) => ended,
        ended = read_replies(reads, &waiting) => ended,
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection to a member has ended");
    }
}

/// Writes requests until nobody makes any more.
async fn write_requests(
    mut stream: impl AsyncWrite + Unpin,
    mut queue: Receiver<Sent>,
    waiting: &Waiting,
) -> Result<()> {
    let mut sent = Vec::new();
    while queue.recv_many(&mut sent, AT_ONCE).await > 0 {
        // Some askers wait no longer.
        sent.retain(|sent: &Sent| !sent.reply.is_closed());
        let split = |Sent { request, reply }| (request, reply);
        let (requests, replies): (Vec<Request>, Vec<_>) = sent.drain(..).map(split).unzip();
        waiting.lock().extend(replies);
        let mut parts: Vec<IoSlice<'_>> =
            requests.iter().flat_map(Request::parts).map(IoSlice::new).collect();
        let mut left = &mut parts[..];
        while !left.is_empty() {
            match stream.write_vectored(left).await? {
                0 => return Err(ErrorKind::WriteZero.into()),
                written => IoSlice::advance_slices(&mut left, written),
            }
        }
    }
    Ok(())
}

/// Reads replies for as long as there are requests for them.
async fn read_replies(stream: impl AsyncRead + Unpin, waiting: &Waiting) -> Result<()> {
    let mut stream = BufReader::with_capacity(READ_AT_ONCE, stream);
    loop {
        let reply = read_reply(&mut stream).await?;
        let asker = waiting.lock().pop_front();
        let asker = asker.ok_or_else(|| broken("a reply that nobody has asked for"))?;
        // An asker may wait no longer.
        let _ = asker.send(reply);
    }
}

fn broken(why: &'static str) -> Error {
    Error::new(ErrorKind::InvalidData, why)
}

async fn read_reply(stream: &mut BufReader<impl AsyncRead + Unpin>) -> Result<Reply> {
    let mut line = Vec::new();
    stream.take(LINE_MOST).read_until(b'\n', &mut line).await?;
    let line = line.strip_suffix(LINE_END).ok_or(ErrorKind::UnexpectedEof)?;
    match line.split_first() {
        Some((b'+' | b':', _)) => Ok(Reply::Done),
        Some((b'-', why)) => Ok(Reply::Refused(String::from_utf8_lossy(why).into_owned())),
        Some((b'$', b"-1")) => Ok(Reply::Nil),
        Some((b'$', length)) => {
            let length = std::str::from_utf8(length).ok().and_then(|text| text.parse().ok());
            let length = length.filter(|length| *length <= VALUE_MOST);
            read_value(stream, length.ok_or_else(|| broken("a value that is too long"))?).await
        }
        _ => Err(broken("no reply of the protocol")),
    }
}

async fn read_value(
    stream: &mut BufReader<impl AsyncRead + Unpin>,
    length: usize,
) -> Result<Reply> {
    let whole = length + LINE_END.len();
    let mut value = memory_for(whole);
    stream.take(whole as u64).read_to_end(&mut value).await?;
    if value.len() < whole {
        return Err(ErrorKind::UnexpectedEof.into());
    }
    if !value.ends_with(LINE_END) {
        return Err(broken("a value without an end"));
    }
    value.truncate(length);
    Ok(Reply::Value(value))
}

#[cfg(test)]
mod tests {
    use super::super::values::Keys;
    use super::*;

    fn replies(bytes: &[u8]) -> Vec<Result<Reply>> {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let mut stream = BufReader::with_capacity(8, bytes);
        let mut all = Vec::new();
        runtime.block_on(async {
            while !stream.fill_buf().await.unwrap().is_empty() {
                all.push(read_reply(&mut stream).await);
                if all.last().unwrap().is_err() {
                    return;
                }
            }
        });
        all
    }

    #[test]
    fn replies_are_read_one_after_the_other() {
        let bytes = b"+OK\r\n$-1\r\n$3\r\na\r\n\r\n:7\r\n-ERR no\r\n$0\r\n\r\n$20\r\n01234567890123456789\r\n";
        let read: Vec<Reply> = replies(bytes).into_iter().map(Result::unwrap).collect();
        let value = |text: &str| Reply::Value(text.into());
        let expected = [
            Reply::Done,
            Reply::Nil,
            value("a\r\n"),
            Reply::Done,
            Reply::Refused("ERR no".to_owned()),
            value(""),
            value("01234567890123456789"),
        ];
        assert_eq!(read, expected);
    }

    #[test]
    fn what_is_no_reply_ends_the_connection() {
        let longest = format!("${VALUE_MOST}\r\n");
        let whole = [longest.as_bytes(), &vec![b'x'; VALUE_MOST], LINE_END].concat();
        assert!(replies(&whole).iter().all(Result::is_ok));
        let longer = format!("${}\r\n", VALUE_MOST + 1);
        let endless = "+".repeat(2 * LINE_MOST as usize);
        let texts = [
            "hello\r\n",
            "\r\n",
            "*1\r\n",
            "$x\r\n",
            "$-2\r\n",
            "$3\r\nab",
            "$3\r\nabcde",
            "+O",
            &longer,
            &endless,
            "$1099511627776\r\n",
        ];
        for text in texts {
            assert!(replies(text.as_bytes())[0].is_err(), "{text:.40}");
        }
    }

    #[test]
    fn a_request_is_written_as_an_array_of_its_words() {
        let written = |request: &Request| request.parts().collect::<Vec<_>>().concat();
        assert_eq!(written(&Request::new(&[b"GET", b"a b"])), b"*2\r\n$3\r\nGET\r\n$3\r\na b\r\n");
        let (key, block) = (Keys::new("s").key(b"a", b"1", 0), Arc::new(Buffer::from(vec![7; 5])));
        let expected = [
            &b"*3\r\n$3\r\nSET\r\n$1\r\nn\r\n$21\r\n"[..],
            &[7; 5],
            &values::trailer(key, &block),
            LINE_END,
        ];
        assert_eq!(written(&Request::storing("n", key, &block)), expected.concat());
    }
}
