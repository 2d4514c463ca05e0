//! A source whose samples are values in a Redis database.
//!
//! 1. A [`Database`] is a URL, `redis://HOST:PORT/NUMBER/PREFIX`. The value of the key `PREFIX/a/b.jpg` is the file
//!    `a/b.jpg`.
//! 2. Redis knows no versions of a value. So whoever writes the values may keep them in an index: the hash
//!    `PREFIX:index` has a size and a version for each path. It is listed if it is there. Then it also is what a read
//!    is compared with, in the same transaction.
//! 3. Without an index the keys are listed, with the length of each. Two values of one length then look the same, so
//!    this is for data that never changes.
//! 4. Connections are few and shared by many requests, each of which is one round trip.

mod database;

use std::collections::HashMap;
use std::future::Future;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;

use nix::errno::Errno;
use nix::unistd::{getegid, geteuid};
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, Pipeline, RedisError, ServerErrorKind, Value, pipe};

use super::keyed::{Keyed, say_fault};
use super::remote::{
    PATIENCE, PATIENCE_OF_LISTINGS, Passing, Remote, SourceFailures, note_failure, patiently,
};
use super::tree::{Access, Blob, Listing, NAME_BYTES_MAX, PathFault, hash};
use super::{ReadError, ReadRequest};
use crate::error::{Error, ErrorKind, Result as UserResult};
pub(super) use database::Database;

/// Connections to the server. One has a window of some mebibytes, which a long link fills.
const CONNECTIONS: usize = 8;

/// How long a connection and an answer may take.
const CONNECT: Duration = Duration::from_secs(5);
const ANSWER: Duration = Duration::from_secs(30);

/// Names that are listed with one request, and keys whose lengths are asked for with one.
const PAGE: usize = 5000;

/// Nothing tells when a value was written.
const TIME_NS: i64 = 0;

/// A connection, unless there is none yet or it has failed.
type Slot = tokio::sync::Mutex<Option<MultiplexedConnection>>;

/// What is asked of the server.
struct Asked {
    client: Client,
    config: AsyncConnectionConfig,
    slots: [Slot; CONNECTIONS],
    /// Requests so far. They go to the connections in turn.
    requests: AtomicUsize,
    /// The keys of files begin with it and a slash.
    prefix: String,
    has_index: bool,
}

/// The values of a database whose keys begin with a prefix.
pub(super) struct RedisStore {
    asked: Arc<Asked>,
    identity: u128,
    name: PathBuf,
    remote: Remote,
}

/// Why a request failed.
#[derive(Debug)]
enum Fault {
    Server(RedisError),
    /// The value has another version than the requested one.
    Changed,
    /// An entry of the index is not what it should be.
    Entry(String),
    /// The task has ended.
    Gone,
}

impl From<RedisError> for Fault {
    fn from(error: RedisError) -> Self {
        Fault::Server(error)
    }
}

impl Passing for Fault {
    fn may_pass(&self) -> bool {
        let Fault::Server(error) = self else { return false };
        let is_busy = |kind: &ServerErrorKind| {
            matches!(
                kind,
                ServerErrorKind::BusyLoading
                    | ServerErrorKind::TryAgain
                    | ServerErrorKind::ClusterDown
                    | ServerErrorKind::MasterDown
            )
        };
        error.is_io_error() || is_refused(error) || kinds(error).iter().any(is_busy)
    }

    fn message(&self) -> String {
        match self {
            Fault::Server(error) => error.to_string(),
            Fault::Changed => "it changed while it was read".into(),
            Fault::Entry(what) => what.clone(),
            Fault::Gone => "the request ended without an answer".into(),
        }
    }
}

/// Whether the server did not let a connection in. It may again, as after its users were loaded.
fn is_refused(error: &RedisError) -> bool {
    error.kind() == redis::ErrorKind::AuthenticationFailed
}

/// The kinds of errors that the server told, of all requests in a transaction.
fn kinds(error: &RedisError) -> Vec<ServerErrorKind> {
    let errors = error.clone().into_server_errors();
    errors.iter().flat_map(|all| all.iter().filter_map(|(_, error)| error.kind())).collect()
}

impl Fault {
    /// The error for a reader. `status` and the log have the rest.
    fn errno(&self, key: &str) -> Errno {
        note_failure(key, self.message());
        match self {
            Fault::Server(error) if kinds(error).contains(&ServerErrorKind::NoPerm) => {
                Errno::EACCES
            }
            Fault::Server(error) if is_refused(error) => Errno::EACCES,
            _ if self.may_pass() => Errno::ETIMEDOUT,
            _ => Errno::EIO,
        }
    }
}

/// The size and the version of a value, as the index has them: `SIZE:VERSION`.
fn parse_entry(entry: &str) -> Option<(u64, u64)> {
    let (size, version) = entry.split_once(':')?;
    Some((size.parse().ok()?, hash(&[version.as_bytes()])))
}

impl Asked {
    /// Makes a request over the connection whose turn it is. One that fails is made anew for the next request.
    async fn ask<T: redis::FromRedisValue>(&self, requests: &Pipeline) -> Result<T, Fault> {
        let nth = self.requests.fetch_add(1, Ordering::Relaxed) % CONNECTIONS;
        let mut connection = {
            let mut slot = self.slots[nth].lock().await;
            match &*slot {
                Some(connection) => connection.clone(),
                None => {
                    let client = &self.client;
                    let connect = client.get_multiplexed_async_connection_with_config(&self.config);
                    slot.insert(connect.await?).clone()
                }
            }
        };
        let answer = requests.query_async(&mut connection).await;
        if answer.as_ref().is_err_and(RedisError::is_io_error) {
            self.slots[nth].lock().await.take();
        }
        Ok(answer?)
    }

    fn index(&self) -> String {
        format!("{}:index", self.prefix)
    }

    fn key(&self, path: &str) -> String {
        format!("{}/{path}", self.prefix)
    }

    /// Asks for a page of a listing.
    async fn ask_page<T: redis::FromRedisValue>(&self, request: &Pipeline) -> Result<T, Fault> {
        patiently(PATIENCE_OF_LISTINGS, || self.ask(request)).await
    }

    /// Size and version of each path, by the index. Unless it is `strict`, entries that tell none are left out.
    async fn list_index(&self, strict: bool, seen: &AtomicU64) -> Result<Sizes, Fault> {
        let (mut sizes, mut cursor) = (Sizes::new(), 0u64);
        loop {
            let mut request = pipe();
            request.cmd("HSCAN").arg(self.index()).arg(cursor).arg("COUNT").arg(PAGE);
            let ((next, entries),): ((u64, Vec<(String, String)>),) =
                self.ask_page(&request).await?;
            for (path, entry) in entries {
                if let Some(known) = parse_entry(&entry) {
                    sizes.insert(path, known);
                    continue;
                }
                let index = self.index();
                let what = format!("{index} has {entry:?} of {path:?}, not SIZE:VERSION");
                if strict {
                    return Err(Fault::Entry(what));
                }
                tracing::warn!("{what}");
            }
            seen.store(sizes.len() as u64, Ordering::Relaxed);
            if next == 0 {
                return Ok(sizes);
            }
            cursor = next;
        }
    }

    /// The length of each value, by its key.
    async fn list_keys(&self, seen: &AtomicU64) -> Result<Sizes, Fault> {
        let (mut sizes, mut cursor) = (Sizes::new(), 0u64);
        let pattern = format!("{}/*", escaped(&self.prefix));
        loop {
            let mut request = pipe();
            request.cmd("SCAN").arg(cursor).arg("MATCH").arg(&pattern).arg("COUNT").arg(PAGE);
            request.arg("TYPE").arg("string");
            let ((next, keys),): ((u64, Vec<String>),) = self.ask_page(&request).await?;
            let mut lengths = pipe();
            keys.iter().for_each(|key| _ = lengths.cmd("STRLEN").arg(key));
            if !keys.is_empty() {
                let found: Vec<u64> = self.ask_page(&lengths).await?;
                for (key, size) in keys.iter().zip(found) {
                    let path = key.strip_prefix(&self.prefix).and_then(|key| key.strip_prefix('/'));
                    if let Some(path) = path {
                        sizes.insert(path.to_owned(), (size, 0));
                    }
                }
            }
            seen.store(sizes.len() as u64, Ordering::Relaxed);
            if next == 0 {
                return Ok(sizes);
            }
            cursor = next;
        }
    }

    /// Size and version of a value now; `None` if it is not there.
    async fn find(&self, path: &str) -> Result<Option<(u64, u64)>, Fault> {
        let mut request = pipe();
        if self.has_index {
            request.cmd("HGET").arg(self.index()).arg(path);
            let (entry,): (Option<String>,) = self.ask(&request).await?;
            return Ok(entry.and_then(|entry| parse_entry(&entry)));
        }
        request.cmd("EXISTS").arg(self.key(path)).cmd("STRLEN").arg(self.key(path));
        let (is_there, size): (bool, u64) = self.ask(&request).await?;
        Ok(is_there.then_some((size, 0)))
    }

    async fn read(&self, wanted: &Wanted) -> Result<Vec<u8>, Fault> {
        let (from, to) = (wanted.offset, wanted.offset + wanted.length as u64 - 1);
        let key = self.key(&wanted.path);
        let mut request = pipe();
        request.atomic().cmd("GETRANGE").arg(&key).arg(from).arg(to);
        let (bytes, found): (Vec<u8>, _) = if self.has_index {
            request.cmd("HGET").arg(self.index()).arg(&wanted.path);
            let (bytes, entry): (_, Option<String>) = self.ask(&request).await?;
            (bytes, entry.and_then(|entry| parse_entry(&entry)))
        } else {
            request.cmd("STRLEN").arg(&key);
            let (bytes, size): (_, u64) = self.ask(&request).await?;
            (bytes, Some((size, 0)))
        };
        match found == Some(wanted.version) && bytes.len() == wanted.length {
            true => Ok(bytes),
            false => Err(Fault::Changed),
        }
    }
}

/// Size and version by path.
type Sizes = HashMap<String, (u64, u64)>;

/// What a read asks for.
struct Wanted {
    path: String,
    version: (u64, u64),
    offset: u64,
    length: usize,
}

/// A prefix in a pattern that matches it alone.
fn escaped(prefix: &str) -> String {
    let escape = |letter: char| match letter {
        '*' | '?' | '[' | ']' | '\\' | '^' => format!("\\{letter}"),
        _ => letter.to_string(),
    };
    prefix.chars().map(escape).collect()
}

impl RedisStore {
    /// Connects to a server.
    ///
    /// # Errors
    /// If it does not answer, or if its values may change and have no versions.
    pub(super) fn open(database: &Database, is_immutable: bool) -> UserResult<Self> {
        let remote = Remote::new()?;
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(CONNECT))
            .set_response_timeout(Some(ANSWER));
        let mut asked = Asked {
            client: database.client()?,
            config,
            slots: Default::default(),
            requests: AtomicUsize::new(0),
            prefix: database.prefix().to_owned(),
            has_index: false,
        };
        let connect = async move {
            let mut request = pipe();
            request.cmd("HELLO").cmd("EXISTS").arg(asked.index());
            let (server, has_index): (HashMap<String, Value>, bool) = asked.ask(&request).await?;
            asked.has_index = has_index;
            Ok((asked, server))
        };
        let connected = remote.wait(connect).unwrap_or(Err(Fault::Gone));
        let (asked, server) = connected.map_err(|fault| database.refuse(&fault.message()))?;
        if server.get("mode") == Some(&Value::BulkString(b"cluster".to_vec())) {
            let message = format!("{} is a node of a cluster", database.name().display());
            return Err(Error::new(ErrorKind::Source, message)
                .hint("one node has a part of the values only: clusters are not supported"));
        }
        if !asked.has_index && !is_immutable {
            let (name, index) = (database.name().display(), asked.index());
            let message = format!("{name} has no versions: there is no hash {index}");
            return Err(Error::new(ErrorKind::Source, message).hint(
                "if the values never change, set source.consistency=immutable; else keep \
                 SIZE:VERSION of each path in that hash",
            ));
        }
        let name = database.name().to_owned();
        Ok(RedisStore { asked: Arc::new(asked), identity: database.identity(), name, remote })
    }

    /// Waits for the outcome of a request.
    fn wait<T: Send + 'static>(
        &self,
        future: impl Future<Output = Result<T, Fault>> + Send + 'static,
    ) -> Result<T, Fault> {
        self.remote.wait(future).unwrap_or(Err(Fault::Gone))
    }
}

impl Keyed for RedisStore {
    type Key = Box<str>;

    fn lasting_identity(&self) -> u128 {
        self.identity
    }

    fn list(&self, known: Option<u64>, seen: &AtomicU64) -> UserResult<Option<Listing<Box<str>>>> {
        let (asked, counted) = (Arc::clone(&self.asked), Arc::new(AtomicU64::new(0)));
        let (count, is_first) = (Arc::clone(&counted), known.is_none());
        let listed = self.remote.begin(async move {
            match asked.has_index {
                true => asked.list_index(is_first, &count).await,
                false => asked.list_keys(&count).await,
            }
        });
        let sizes = loop {
            match listed.recv_timeout(Duration::from_millis(100)) {
                Ok(sizes) => break sizes,
                Err(RecvTimeoutError::Timeout) => {
                    seen.store(counted.load(Ordering::Relaxed), Ordering::Relaxed);
                }
                Err(RecvTimeoutError::Disconnected) => break Err(Fault::Gone),
            }
        };
        let sizes = sizes.map_err(|fault| {
            let message = format!("cannot list {}: {}", self.name.display(), fault.message());
            Error::new(ErrorKind::Source, message)
        })?;
        seen.store(sizes.len() as u64, Ordering::Relaxed);
        let state_of = |(path, (size, version)): (&String, &(u64, u64))| {
            hash(&[path.as_bytes(), &size.to_le_bytes(), &version.to_le_bytes()])
        };
        // They come in any order.
        let state = sizes.iter().map(state_of).fold(0, u64::wrapping_add);
        if known == Some(state) {
            return Ok(None);
        }
        let (uid, gid) = (geteuid().as_raw(), getegid().as_raw());
        let blob = |(path, (size, version)): (String, (u64, u64))| {
            let access = Access { mode: 0o444, uid, gid };
            let (mtime_ns, changed_ns) = (TIME_NS, TIME_NS);
            let key = path.as_str().into();
            (path.into(), Blob { size: Some(size), mtime_ns, changed_ns, version, access, key })
        };
        let blobs = sizes.into_iter().map(blob).collect();
        let access = [(PathBuf::new(), Access { mode: 0o555, uid, gid })].into();
        Ok(Some(Listing { blobs, directories: Vec::new(), access, state, guess: 0 }))
    }

    fn refuse(&self, fault: &PathFault) -> Error {
        let message =
            format!("the keys of {} are no tree: {}", self.name.display(), say_fault(fault));
        Error::new(ErrorKind::Source, message)
            .hint("give such a value another key, or mount a prefix without it")
    }

    fn is_current(&self, blob: &Blob<Box<str>>) -> Result<bool, Errno> {
        let (asked, path) = (Arc::clone(&self.asked), blob.key.clone());
        let known = (blob.size.unwrap_or_default(), blob.version);
        let found = self.wait(async move { patiently(PATIENCE, || asked.find(&path)).await });
        let failed = |fault: Fault| self.remote.within(|| fault.errno(&blob.key));
        let found = found.map_err(failed)?;
        Ok(found == Some(known))
    }

    fn read(&self, blob: &Blob<Box<str>>, request: ReadRequest) {
        let asked = Arc::clone(&self.asked);
        let ReadRequest { offset, length, urgency, deliver, .. } = request;
        let version = (blob.size.unwrap_or_default(), blob.version);
        let wanted = Wanted { path: blob.key.clone().into(), version, offset, length };
        self.remote.read(urgency, deliver, async move {
            let read = patiently(PATIENCE, || asked.read(&wanted)).await;
            read.map_err(|fault| match fault {
                Fault::Changed => ReadError::Changed,
                fault => ReadError::Source(fault.errno(&wanted.path)),
            })
        });
    }

    fn failures(&self) -> Option<SourceFailures> {
        self.remote.failures()
    }

    fn space(&self) -> Result<[u64; 7], Errno> {
        Ok([0, 0, 0, 0, 0, 4096, NAME_BYTES_MAX as u64])
    }
}

#[cfg(test)]
mod tests;
