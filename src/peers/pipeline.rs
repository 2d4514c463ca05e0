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
use std::sync::Arc;

use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::sync::{Semaphore, oneshot};
use tokio::task::AbortHandle;
use tokio_rustls::TlsConnector;

use super::connection::{Endpoint, Login};
use super::shards::COPY_MOST;
use super::values::{Sealed, TRAILER_MOST};
use crate::disk::memory_for;
use crate::sync::Mutex;

/// Requests under way at once whose askers still wait, and requests that are written with one call.
const AT_ONCE: usize = 32;

/// The longest value that is read, in bytes. No value of ours is longer.
const VALUE_MOST: usize = COPY_MOST as usize + TRAILER_MOST;

/// The longest line that is read, in bytes.
const LINE_MOST: u64 = 4096;

/// Bytes that are read at once, but for those of a value.
const READ_AT_ONCE: usize = 4096;

const LINE_END: &[u8; 2] = b"\r\n";

/// A command with its arguments.
pub(super) struct Request {
    words: Vec<u8>,
    /// If it stores a value: that, and the words after it.
    value: Option<(Sealed, Vec<u8>)>,
}

impl Request {
    pub(super) fn new(words: &[&[u8]]) -> Self {
        let mut all = beginning(words.len());
        push_words(&mut all, words);
        Request { words: all, value: None }
    }

    /// Stores a value under a name, for a time in seconds if one is given.
    pub(super) fn storing(name: &str, value: Sealed, seconds: Option<u64>) -> Self {
        let seconds = seconds.map(|seconds| seconds.to_string());
        let more: Vec<&[u8]> = seconds.iter().flat_map(|it| [b"EX", it.as_bytes()]).collect();
        let mut words = beginning(3 + more.len());
        push_words(&mut words, &[b"SET", name.as_bytes()]);
        push_length(&mut words, value.len());
        let mut end = LINE_END.to_vec();
        push_words(&mut end, &more);
        Request { words, value: Some((value, end)) }
    }

    fn parts(&self) -> impl Iterator<Item = &[u8]> {
        let value = self.value.iter();
        let value = value.flat_map(|(value, end)| [&value.bytes[..], &value.trailer[..], &end[..]]);
        std::iter::once(&self.words[..]).chain(value)
    }
}

/// The beginning of a request of `count` words.
fn beginning(count: usize) -> Vec<u8> {
    format!("*{count}\r\n").into_bytes()
}

fn push_words(all: &mut Vec<u8>, words: &[&[u8]]) {
    for word in words {
        push_length(all, word.len());
        all.extend_from_slice(word);
        all.extend_from_slice(LINE_END);
    }
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
    pub(super) async fn connect(endpoint: &Endpoint) -> Result<Self> {
        let stream = TcpStream::connect(endpoint.address).await?;
        // A request is not held back until the one before it is answered.
        stream.set_nodelay(true)?;
        let (requests, queue) = channel(AT_ONCE);
        let carrying = match &endpoint.encryption {
            None => tokio::spawn(carry(stream.into_split(), queue)),
            Some(encryption) => {
                let connector = TlsConnector::from(Arc::clone(&encryption.0));
                let encrypted = connector.connect(endpoint.address.ip().into(), stream).await?;
                tokio::spawn(carry(tokio::io::split(encrypted), queue))
            }
        };
        let task = carrying.abort_handle();
        let pipeline = Pipeline { requests, places: Semaphore::new(AT_ONCE), task };
        match pipeline.ask(first_request(&endpoint.login)).await {
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

/// The login, or a question that anybody may ask.
fn first_request(login: &Login) -> Request {
    let words = login.words().unwrap_or_else(|| vec!["PING"]);
    Request::new(&words.iter().map(|word| word.as_bytes()).collect::<Vec<_>>())
}

/// The requests whose replies are still to come, in their order.
type Waiting = Mutex<VecDeque<oneshot::Sender<Reply>>>;

/// Carries requests and replies until the connection ends.
async fn carry(
    (reads, writes): (impl AsyncRead + Unpin, impl AsyncWrite + Unpin),
    queue: Receiver<Sent>,
) {
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
        // What is encrypted may still be here.
        stream.flush().await?;
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
    use super::super::values::{self, Keys, Seal};
    use super::*;
    use crate::disk::Buffer;

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
        let sealed = || Seal::Checksum.close(key, &block).unwrap();
        assert_eq!(written(&Request::storing("n", sealed(), None)), expected.concat());
        let for_a_time = written(&Request::storing("n", sealed(), Some(60)));
        assert!(for_a_time.starts_with(b"*5\r\n$3\r\nSET\r\n"));
        assert!(for_a_time.ends_with(b"\r\n$2\r\nEX\r\n$2\r\n60\r\n"));
    }
}
