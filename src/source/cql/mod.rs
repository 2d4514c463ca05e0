//! A source whose samples are rows of Apache Cassandra.
//!
//! 1. A [`Cluster`] is a URL, `cassandra://HOST,HOST:PORT/KEYSPACE`, and settings. `source.rows` is the table that is
//!    listed: each row is a file. `source.path` makes its path of values of its columns. `source.data` is the column of
//!    the bytes, in a table with the same key. `source.size` is the column with their number, in the table that is
//!    listed. The server has no function for the length of a blob.
//! 2. The listing reads the whole table by ranges of tokens ([`scan`]). It asks for no write times of the data: the
//!    server would read all blobs for them, and its memory does not suffice. The first listing reads some rows.
//! 3. A read is one request with a key. The answer has the bytes and when they were written. One round trip is enough
//!    ([`Asked::read`]).
//! 4. A read asks one replica first. If its answer is not the listed version, a quorum is asked, because a replica may
//!    lack a write. The listing and a lookup of a row ask a quorum at once.
//!
//! # Versions
//!
//! The version of a row is the write time of its size. It is in the listing. A read compares it with the write time of
//! the data, which is in the same answer as the bytes. So **a size has to have the write time of the data that it is
//! the size of**. That holds by itself if both are written in one `BATCH`, or with one `USING TIMESTAMP`. A column of
//! sizes that is made later is filled with `USING TIMESTAMP` and the write time of the data. Then bytes of another
//! version are never delivered, in whatever order the writes arrive. Two writes of a row need two write times.
//!
//! If the data has another write time, the row of the size is read anew. If it has changed, too, the file has another
//! version, and all is listed again. If it has not, the writer may be at work, and both are looked at again for some
//! seconds. Then the read fails with `EIO`. A mount reads some rows, and is refused if they are so.
//!
//! With `source.consistency = "immutable"`, write times are not compared, and only the number of bytes is. Tables whose
//! rows were written one by one need it.
//!
//! # Sizes that are not known
//!
//! Without `source.size`, rows have to be immutable. Their sizes are guessed: the mean of some rows is taken. A row is
//! read if its file is looked up. The bytes are kept for a moment, because who looks a file up reads it ([`Recent`]).
//! So both are one request, and a prefetch under way is shared, too.

mod asked;
mod cells;
mod cluster;
mod fault;
mod recent;
mod replicas;
mod rows;
mod scan;
mod schema;
mod template;
mod tls;

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use nix::errno::Errno;
use nix::unistd::{getegid, geteuid};
use tokio::sync::mpsc;

use super::keyed::{Keyed, say_fault};
use super::remote::{PATIENCE, Passing, Remote, SourceFailures, patiently};
use super::tree::{Access, Blob, Blobs, Listing, NAME_BYTES_MAX, PathFault, hash};
use super::{ReadError, ReadRequest};
use crate::error::{Error, ErrorKind, Result as UserResult};
use crate::ids::BLOCK_BYTES;
use asked::Asked;
pub(super) use cluster::Cluster;
use fault::Fault;
use recent::{Recent, Whole};
use rows::{Listed, Row};

/// How long the first connections may take, with the first look at the tables.
const CONNECT: Duration = Duration::from_secs(60);

/// Pages of a listing that wait until their rows are added to the tree.
const PAGES: usize = 32;

const MICROSECOND_NS: i64 = 1000;

const APART: &str = "a size and its data need one write time: write both in one BATCH, or with one \
                     USING TIMESTAMP. If rows never change, set source.consistency=immutable";

const NO_FILE: &str =
    "each row needs a size, and in each column of source.path a value that makes a name";

/// The rows of a table as files.
pub(super) struct CqlStore {
    asked: Arc<Asked>,
    cluster: Cluster,
    is_immutable: bool,
    /// Of each file.
    access: Access,
    recent: Arc<Recent>,
    /// What the first listing has guessed of the sizes that are not listed.
    guess: OnceLock<u64>,
    remote: Remote,
}

impl CqlStore {
    /// Connects to a cluster.
    ///
    /// # Errors
    /// If it does not answer, or if its tables are not as the settings say.
    pub(super) fn open(cluster: &Cluster, is_immutable: bool) -> UserResult<Self> {
        let (remote, tls) = (Remote::new()?, cluster.tls()?);
        let wanted = cluster.clone();
        let connected = remote.wait(async move {
            let connect = Box::pin(Asked::connect(&wanted, tls, is_immutable));
            tokio::time::timeout(CONNECT, connect).await
        });
        let asked = match connected {
            Some(Ok(connected)) => connected?,
            Some(Err(_)) => return Err(cluster.refuse("it does not answer")),
            None => return Err(cluster.refuse(&Fault::Gone.message())),
        };
        Ok(CqlStore {
            asked: asked.into(),
            cluster: cluster.clone(),
            is_immutable,
            access: Access { mode: 0o444, uid: geteuid().as_raw(), gid: getegid().as_raw() },
            recent: Arc::default(),
            guess: OnceLock::new(),
            remote,
        })
    }

    /// All rows as files, and a number that another set of rows changes. Counts them in `seen`. If `looks`, some are
    /// read.
    fn files(&self, looks: bool, seen: &AtomicU64) -> Result<(Blobs<Listed>, u64), Fault> {
        let (asked, (send, mut pages)) = (Arc::clone(&self.asked), mpsc::channel(PAGES));
        let listed = self.remote.begin(async move { scan::list(&asked, looks, &send).await });
        let (mut files, mut state) = (Blobs::default(), 0_u64);
        // The last sender goes when the listing ends.
        while let Some(page) = pages.blocking_recv() {
            seen.fetch_add(page.len() as u64, Ordering::Relaxed);
            // Rows come in any order.
            state = page.iter().map(|row| row.listed.digest).fold(state, u64::wrapping_add);
            files.extend(page.into_iter().map(|row| file(row, self.access)));
        }
        let looked = listed.recv().unwrap_or(Err(Fault::Gone))?;
        self.guess.get_or_init(|| looked.mean().unwrap_or_default().max(1));
        Ok((files, state))
    }

    /// What a request for a row takes along.
    fn shares(&self, listed: &Listed) -> (Arc<Recent>, Arc<Asked>, Listed) {
        (Arc::clone(&self.recent), Arc::clone(&self.asked), listed.clone())
    }

    /// The error of a listing.
    fn refuse_for(&self, fault: &Fault) -> Error {
        let error = self.cluster.refuse(&fault.message());
        match fault {
            Fault::Wrong(_) => error.hint(NO_FILE),
            Fault::Apart(_) => error.hint(APART),
            _ => error,
        }
    }
}

/// The file that a row is.
fn file(row: Row, access: Access) -> (PathBuf, Blob<Listed>) {
    let Row { path, listed } = row;
    let mtime_ns = listed.written.saturating_mul(MICROSECOND_NS);
    // A catalog takes a time of whole seconds for that of a filesystem where two changes within a second look the same.
    let changed_ns = mtime_ns.saturating_add(1);
    // Another row may have the same path later, and the same write time.
    let version = hash(&[&listed.id, &listed.written.to_le_bytes()]);
    let size = listed.size;
    (path.into(), Blob { size, mtime_ns, changed_ns, version, access, key: listed })
}

/// Which bytes of a row a request is for.
#[derive(Clone, Copy)]
struct Wanted {
    /// How many bytes all are, if that is known.
    size: Option<u64>,
    offset: u64,
    length: usize,
    is_part: bool,
}

impl Wanted {
    fn of(request: &ReadRequest) -> Self {
        Wanted {
            size: request.is_sized.then(|| request.fingerprint.size()),
            offset: request.offset,
            length: request.length,
            is_part: request.is_part(),
        }
    }

    /// These bytes of all; all, if their number was not known.
    fn of_whole(self, whole: &[u8]) -> Result<Vec<u8>, ReadError> {
        match self.size {
            None => return Ok(whole.to_vec()),
            Some(size) if size != whole.len() as u64 => return Err(ReadError::Changed),
            Some(_) => {}
        }
        let from = usize::try_from(self.offset).ok();
        let range = from.and_then(|from| whole.get(from..from.checked_add(self.length)?));
        range.map(<[u8]>::to_vec).ok_or(ReadError::Source(Errno::EIO))
    }
}

/// All bytes of a row as it was listed.
async fn read(asked: &Asked, listed: &Listed) -> Result<Vec<u8>, ReadError> {
    let read = patiently(PATIENCE, || asked.read(listed)).await;
    read.map_err(|fault| match fault {
        Fault::Changed => ReadError::Changed,
        fault => ReadError::Source(fault.errno(&asked.say(listed))),
    })
}

impl Keyed for CqlStore {
    type Key = Listed;

    fn lasting_identity(&self) -> u128 {
        self.cluster.identity()
    }

    fn list(&self, known: Option<u64>, seen: &AtomicU64) -> UserResult<Option<Listing<Listed>>> {
        let listed = self.files(known.is_none(), seen);
        let (blobs, state) = listed.map_err(|fault| self.refuse_for(&fault))?;
        self.asked.has_worked.store(true, Ordering::Relaxed);
        if known == Some(state) {
            return Ok(None);
        }
        let access = [(PathBuf::new(), Access { mode: 0o555, ..self.access })].into();
        let guess = self.guess.get().copied().unwrap_or(1);
        Ok(Some(Listing { blobs, directories: Vec::new(), access, state, guess }))
    }

    fn refuse(&self, fault: &PathFault) -> Error {
        let (name, fault) = (self.cluster.name().display(), say_fault(fault));
        let message = format!("the rows of {name} are no tree: {fault}");
        Error::new(ErrorKind::Source, message)
            .hint("with the key of the table in source.path, each row has a path of its own")
    }

    fn is_current(&self, blob: &Blob<Listed>) -> Result<bool, Errno> {
        if self.is_immutable {
            return Ok(true);
        }
        let (asked, listed) = (Arc::clone(&self.asked), blob.key.clone());
        let found = self
            .remote
            .wait(async move { patiently(PATIENCE, || asked.is_current(&listed)).await });
        let failed = |fault: Fault| self.remote.within(|| fault.errno(&self.asked.say(&blob.key)));
        found.unwrap_or(Err(Fault::Gone)).map_err(failed)
    }

    fn is_hedged(&self) -> bool {
        // Requests for a row whose size is not listed share one answer.
        self.tells_sizes()
    }

    fn overloads(&self) -> u64 {
        self.remote.overloads()
    }

    fn failures(&self) -> Option<SourceFailures> {
        self.remote.failures()
    }

    /// If rights are asked for, a keyspace that the user may not name has rows that each request needs.
    fn advice(&self) -> Option<String> {
        self.cluster.user()?;
        let (asked, keyspace) = (Arc::clone(&self.asked), self.cluster.keyspace().to_owned());
        let replicas = self.remote.wait(async move { asked.replicas(&keyspace).await })??;
        replicas.advice()
    }

    fn tells_sizes(&self) -> bool {
        self.asked.tells_sizes()
    }

    fn find_size(&self, blob: &Blob<Listed>) -> Result<u64, Errno> {
        let place = self.recent.place(&blob.key);
        let (recent, asked, listed) = self.shares(&blob.key);
        let found = self.remote.wait(async move {
            let whole = place.get_or_init(|| read(&asked, &listed)).await;
            if whole.is_err() {
                recent.forget(&place);
            }
            whole.as_ref().map(|bytes| bytes.len() as u64).map_err(|error| *error)
        });
        found.unwrap_or(Err(ReadError::Source(Errno::EIO))).map_err(|error| match error {
            ReadError::Source(errno) => errno,
            ReadError::Changed => Errno::ENOENT,
        })
    }

    fn read(&self, blob: &Blob<Listed>, request: ReadRequest) {
        let is_shared = request.is_part() || !self.tells_sizes();
        let place: Option<Whole> = is_shared.then(|| self.recent.place(&blob.key));
        let (recent, asked, listed) = self.shares(&blob.key);
        let wanted = Wanted::of(&request);
        self.remote.read(request.urgency, request.deliver, async move {
            let read = read(&asked, &listed);
            let Some(place) = place else { return read.await };
            let found = match place.get_or_init(|| read).await {
                Ok(whole) => wanted.of_whole(whole),
                Err(error) => Err(*error),
            };
            // Of a large blob, more is asked for soon.
            let is_last = |bytes: &Vec<u8>| !wanted.is_part && bytes.len() as u64 <= BLOCK_BYTES;
            if found.as_ref().map_or(true, is_last) {
                recent.forget(&place);
            }
            found
        });
    }

    fn space(&self) -> Result<[u64; 7], Errno> {
        Ok([0, 0, 0, 0, 0, 4096, NAME_BYTES_MAX as u64])
    }

    fn close_idle(&self) {
        self.recent.forget_idle();
    }
}

#[cfg(test)]
mod tests;
