//! A source that is a bucket of an object store, or what is below a prefix in one.
//!
//! 1. A [`Bucket`] is a URL, and the options with which its store is asked.
//! 2. A directory is what a listing with the delimiter `/` tells: its objects are files, its common prefixes are
//!    subdirectories ([`Directory`]). Sizes, times and etags come with the listing. So no object is asked for them
//!    when a source is scanned.
//! 3. The attributes of a directory come from its names, so it is listed for them. That listing is kept for whoever
//!    asks for the names next ([`Listings`]). As many directories are listed at once for their attributes as the store
//!    serves best ([`Places`]).
//! 4. A read is one request. The store answers with bytes and their etag. If that is not the listed one, the object
//!    has changed. Servers exist that ignore conditional requests, so none is made.
//! 5. A request that fails for a reason that may pass is made again ([`Fault`]).

mod bucket;
mod fault;
mod listing;
mod places;

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::unistd::{getegid, geteuid};
use object_store::list::PaginatedListOptions;
use object_store::path::Path as Key;
use object_store::{GetOptions, GetRange, ListResult, ObjectMeta, ObjectStoreExt};

use super::remote::{
    PATIENCE, PATIENCE_OF_LISTINGS, Passing, Remote, SourceFailures, overloads, patiently,
};
use super::tree::{Access, Blob, NAME_BYTES_MAX, SECOND_NS, blob_stat, hash};
use super::{Calls, Fingerprint, Kind, ReadError, ReadRequest, Source, Stat};
use crate::error::{Error, ErrorKind, Result as UserResult};
use crate::limiter::Limiter;
use crate::sync::Mutex;
use bucket::Store;
pub(super) use bucket::{Bucket, client_options, retries};
pub(super) use fault::Fault;
use listing::{Directory, Listings};
use places::Places;

/// Names of a directory that are reported at a time.
const PART: usize = 512;

/// How long the attributes in a listing count as present ones, for one name and for many.
const NEW_FOR: Duration = Duration::from_secs(1);
const NEW_FOR_MANY: Duration = Duration::from_secs(10);

/// What is asked of the store.
struct Asked {
    store: Store,
    /// The key of the mounted directory.
    prefix: Key,
    access: Access,
    listings: Listings,
    /// Requests for listings.
    calls: Calls,
    /// Places for listings of directories whose attributes are asked for.
    places: Places,
    /// Directories whose names are being told.
    telling: Mutex<HashMap<PathBuf, Arc<Directory>>>,
    /// Whether the store tells etags when it lists.
    lists_etags: AtomicBool,
}

/// What a read asks for.
struct Wanted {
    path: Arc<Path>,
    fingerprint: Fingerprint,
    exact: bool,
    offset: u64,
    length: usize,
}

impl Wanted {
    /// The range to ask for; `None` if all of the object is wanted.
    fn range(&self) -> Option<GetRange> {
        let length = self.length as u64;
        let is_part = length < self.fingerprint.size();
        is_part.then(|| GetRange::Bounded(self.offset..self.offset + length))
    }

    fn is_version(&self, found: Fingerprint) -> bool {
        match self.exact {
            true => found == self.fingerprint,
            false => found.is_content_of(&self.fingerprint),
        }
    }
}

/// A bucket of an object store as a tree of files.
pub(super) struct ObjectSource {
    asked: Arc<Asked>,
    identity: u128,
    remote: Remote,
}

impl ObjectSource {
    /// Opens a bucket, and lists its top. The limiter is of listings.
    ///
    /// # Errors
    /// If the store does not let its top be listed.
    pub(super) fn open(bucket: &Bucket, limiter: Limiter) -> UserResult<Self> {
        let store = bucket.connect()?;
        let source = Self::new(store, bucket.prefix().clone(), bucket.identity(), limiter)?;
        let asked = Arc::clone(&source.asked);
        let began = Instant::now();
        let listed = async move { asked.list_pages(Path::new(""), Duration::ZERO).await };
        let listed = source.remote.wait(listed).unwrap_or_else(|| Err(Fault::Gone));
        let directory = listed.map_err(|fault| bucket.refuse(&fault))?;
        if let Some(directory) = directory {
            source.asked.listings.keep(Path::new(""), &Arc::new(directory), began);
        } else if !bucket.prefix().as_ref().is_empty() {
            let message = format!("there is nothing below {}", bucket.name().display());
            return Err(Error::new(ErrorKind::Source, message)
                .hint("SOURCE is a bucket and a prefix, as s3://BUCKET/DIRECTORY: is it right?"));
        }
        Ok(source)
    }

    fn new(store: Store, prefix: Key, identity: u128, limiter: Limiter) -> UserResult<Self> {
        let access = Access { mode: 0o444, uid: geteuid().as_raw(), gid: getegid().as_raw() };
        let calls = Calls::new(limiter);
        Ok(ObjectSource {
            asked: Arc::new(Asked {
                store,
                prefix,
                access,
                listings: Listings::default(),
                places: Places::new(calls.limit()),
                calls,
                telling: Mutex::default(),
                lists_etags: AtomicBool::new(true),
            }),
            identity,
            remote: Remote::new()?,
        })
    }

    /// A directory as the store tells of it now.
    fn list(&self, directory: &Path) -> Result<Arc<Directory>, Errno> {
        let (asked, directory) = (Arc::clone(&self.asked), directory.to_owned());
        let listed = async move { asked.list(&directory, Instant::now()).await };
        self.remote.wait(listed).unwrap_or(Err(Errno::EIO))
    }

    /// What a listing that is not too old tells of a directory.
    fn listed(&self, directory: &Path) -> Result<Arc<Directory>, Errno> {
        let telling = self.asked.telling.lock().get(directory).cloned();
        let listings = &self.asked.listings;
        let known = telling
            .or_else(|| listings.get(directory, NEW_FOR_MANY))
            .or_else(|| listings.get_new(directory));
        known.map_or_else(|| self.list(directory), Ok)
    }
}

impl Asked {
    /// The key of a path; `None` if no object can have it.
    fn key(&self, path: &Path) -> Option<Key> {
        let path = path.to_str()?;
        let key = match self.prefix.as_ref() {
            "" => Key::parse(path),
            prefix if path.is_empty() => Key::parse(prefix),
            prefix => Key::parse(format!("{prefix}/{path}")),
        };
        key.ok()
    }

    /// The file that an object is.
    fn blob(&self, meta: &ObjectMeta, etag: Option<&str>) -> Blob<()> {
        let version = etag.map_or(0, |etag| hash(&[etag.as_bytes()]));
        // An answer to a read has whole seconds, a listing may have parts of them.
        let mtime_ns = meta.last_modified.timestamp().saturating_mul(SECOND_NS);
        // A catalog takes a time of whole seconds for that of a filesystem where two changes within a second look
        // the same. An etag tells them apart.
        let changed_ns = mtime_ns.saturating_add(i64::from(etag.is_some()));
        Blob { size: Some(meta.size), mtime_ns, changed_ns, version, access: self.access, key: () }
    }

    /// Lists a directory, page by page. `None` if nothing is in it.
    async fn list_pages(
        &self,
        path: &Path,
        patience: Duration,
    ) -> Result<Option<Directory>, Fault> {
        let Some(key) = self.key(path) else { return Ok(None) };
        let prefix = (!key.as_ref().is_empty()).then(|| format!("{key}/"));
        let (mut directory, mut is_there, mut token) = (Directory::default(), false, None);
        loop {
            let (call, before) = (self.calls.begin(), overloads());
            let page = patiently(patience, || {
                let (delimiter, page_token) = (Some("/".into()), Option::clone(&token));
                let options = PaginatedListOptions { delimiter, page_token, ..Default::default() };
                let page = self.store.pages.list_paginated(prefix.as_deref(), options);
                async { page.await.map_err(Fault::from) }
            });
            let page = page.await?;
            let names = page.result.objects.len() + page.result.common_prefixes.len();
            match overloads() > before {
                true => call.overloaded(),
                false => call.answered(names, 1),
            }
            is_there |= names > 0;
            self.add(&mut directory, &key, &page.result);
            token = page.page_token;
            if token.is_none() {
                break;
            }
        }
        directory.hide_files();
        Ok(is_there.then_some(directory))
    }

    /// Adds a page of the listing of a key to a directory.
    fn add(&self, directory: &mut Directory, key: &Key, page: &ListResult) {
        directory.subdirectories.extend(page.common_prefixes.iter().filter_map(name_of));
        // An object with the key of the directory itself marks that it is there.
        for object in page.objects.iter().filter(|object| object.location != *key) {
            let etag = etag_of(object);
            if etag.is_none() {
                self.lists_etags.store(false, Ordering::Relaxed);
            }
            if let Some(name) = name_of(&object.location) {
                directory.files.insert(name, self.blob(object, etag));
            }
        }
    }

    /// Lists a directory, and keeps what was listed. Somebody else may have listed it since `asked`.
    async fn list(&self, path: &Path, asked: Instant) -> Result<Arc<Directory>, Errno> {
        let mut turn = self.listings.turn(path).await;
        if let Some(listed) = self.listings.get(path, asked.elapsed()) {
            return Ok(listed);
        }
        if let Some(errno) = turn.failed_since(asked) {
            return Err(errno);
        }
        let began = Instant::now();
        let directory = match self.list_pages(path, PATIENCE_OF_LISTINGS).await {
            Ok(None) if !path.as_os_str().is_empty() => {
                self.listings.forget_directory(path);
                return Err(Errno::ENOENT);
            }
            Ok(listed) => listed.unwrap_or_default(),
            Err(fault) if fault.is_invalid_key() => {
                fault.warn(path);
                Directory { is_unreadable: true, ..Directory::default() }
            }
            Err(fault) => return Err(turn.fail(fault.errno(path))),
        };
        let directory = Arc::new(directory);
        self.listings.keep(path, &directory, began);
        Ok(directory)
    }

    async fn stat_directory(&self, path: &Path) -> Result<Stat, Errno> {
        let directory = match self.listings.get_new(path) {
            Some(directory) => directory,
            None => self.list(path, Instant::now()).await?,
        };
        Ok(directory.stat(path, Access { mode: 0o555, ..self.access }))
    }

    /// As [`stat_directory`](Self::stat_directory), of one of many directories.
    async fn stat_in_turn(&self, path: &Path) -> Result<Stat, Errno> {
        if self.listings.get_new(path).is_some() {
            return self.stat_directory(path).await;
        }
        let place = self.places.take(self.calls.at_once()).await;
        let stat = self.stat_directory(path).await;
        self.places.give_back(place, self.calls.at_once());
        stat
    }

    /// What a listing of the directory above says of a name.
    async fn stat_listed(&self, above: &Directory, path: &Path) -> Result<Stat, Errno> {
        let name = path.file_name().unwrap_or_default();
        match above.file(name) {
            Some(blob) => Ok(blob_stat(path, blob, 0)),
            None if above.has_subdirectory(name) => self.stat_directory(path).await,
            None => Err(Errno::ENOENT),
        }
    }

    async fn stat(&self, path: &Path) -> Result<Stat, Errno> {
        let above = path.parent().and_then(|above| self.listings.get(above, NEW_FOR));
        match above.filter(|above| !above.is_unreadable) {
            Some(listed) => self.stat_listed(&listed, path).await,
            None => self.stat_anew(path).await,
        }
    }

    /// Asks for a path by itself. It may be the key of an object, or a prefix of keys.
    async fn stat_anew(&self, path: &Path) -> Result<Stat, Errno> {
        if path.as_os_str().is_empty() {
            return self.stat_directory(path).await;
        }
        if self.listings.is_directory(path) {
            match self.stat_directory(path).await {
                Err(Errno::ENOENT) => {}
                found => return found,
            }
        }
        let key = self.key(path).ok_or(Errno::ENOENT)?;
        let head = || async { self.store.objects.head(&key).await.map_err(Fault::from) };
        match patiently(PATIENCE, head).await {
            Ok(meta) => {
                let lists_etags = self.lists_etags.load(Ordering::Relaxed);
                let etag = etag_of(&meta).filter(|_| lists_etags);
                Ok(blob_stat(path, &self.blob(&meta, etag), 0))
            }
            // A store may refuse to say that there is no such object.
            Err(fault) if fault.is_missing() || fault.is_refusal() => {
                match self.stat_directory(path).await {
                    Err(Errno::ENOENT) if fault.is_refusal() => Err(Errno::EACCES),
                    found => found,
                }
            }
            Err(fault) => Err(fault.errno(path)),
        }
    }

    /// Whether an answer is of the version that is asked for. A version with an etag is told by that and the size.
    fn is_version(&self, wanted: &Wanted, meta: &ObjectMeta) -> bool {
        let found = |etag| blob_stat(&wanted.path, &self.blob(meta, etag), 0).fingerprint();
        etag_of(meta).is_some_and(|etag| found(Some(etag)).is_file_of(&wanted.fingerprint))
            || wanted.is_version(found(None))
    }

    async fn read_once(&self, key: &Key, wanted: &Wanted) -> Result<Vec<u8>, Fault> {
        let range = wanted.range();
        let is_part = range.is_some();
        let answer =
            self.store.objects.get_opts(key, GetOptions { range, ..GetOptions::default() }).await;
        let answer = match answer.map_err(Fault::from) {
            Ok(answer) => answer,
            // An object that was replaced by a shorter one may not have the range.
            Err(fault) if is_part && !fault.may_pass() && !fault.is_missing() => {
                let meta = self.store.objects.head(key).await?;
                return Err(if self.is_version(wanted, &meta) { fault } else { Fault::Changed });
            }
            Err(fault) => return Err(fault),
        };
        if !self.is_version(wanted, &answer.meta) {
            return Err(Fault::Changed);
        }
        let bytes = answer.bytes().await.map_err(Fault::Broken)?;
        match bytes.len() == wanted.length {
            true => Ok(bytes.into()),
            false => Err(Fault::Length { got: bytes.len(), wanted: wanted.length }),
        }
    }

    async fn read(&self, wanted: &Wanted) -> Result<Vec<u8>, ReadError> {
        let key = self.key(&wanted.path).ok_or(ReadError::Source(Errno::ENOENT))?;
        let read = patiently(PATIENCE, || self.read_once(&key, wanted)).await;
        read.map_err(|fault| match fault {
            Fault::Changed => {
                wanted.path.parent().iter().for_each(|above| self.listings.forget(above));
                ReadError::Changed
            }
            fault => ReadError::Source(fault.errno(&wanted.path)),
        })
    }
}

/// The etag of an object.
pub(super) fn etag_of(meta: &ObjectMeta) -> Option<&str> {
    meta.e_tag.as_deref().map(bare_etag)
}

/// An etag without its quotes, which servers write or leave out.
pub(super) fn bare_etag(etag: &str) -> &str {
    etag.trim_start_matches("W/").trim_matches('"')
}

/// The name of a key in its directory; `None` if the kernel does not take it.
fn name_of(key: &Key) -> Option<OsString> {
    let Some(name) = key.filename() else {
        tracing::warn!("keys that begin with a slash are not shown");
        return None;
    };
    if name.len() > NAME_BYTES_MAX {
        tracing::warn!(%key, "a name that is longer than {NAME_BYTES_MAX} bytes is not shown");
        return None;
    }
    Some(name.into())
}

impl Source for ObjectSource {
    fn lasting_identity(&self) -> u128 {
        self.identity
    }

    fn overloads(&self) -> u64 {
        self.remote.overloads()
    }

    fn failures(&self) -> Option<SourceFailures> {
        self.remote.failures()
    }

    fn is_hedged(&self) -> bool {
        true
    }

    fn list_in_parts(
        &self,
        directory: &Path,
        each: &mut dyn FnMut(&[OsString]),
    ) -> Result<(), Errno> {
        let Asked { listings, telling, .. } = &*self.asked;
        let listed = match listings.take(directory) {
            Some(listed) => listed,
            None => {
                let listed = self.list(directory)?;
                listings.told(directory);
                listed
            }
        };
        if listed.is_unreadable {
            return Err(Errno::EPERM);
        }
        telling.lock().insert(directory.to_owned(), Arc::clone(&listed));
        listed.names().chunks(PART).for_each(each);
        telling.lock().remove(directory);
        Ok(())
    }

    fn stat(&self, path: &Path) -> Result<Stat, Errno> {
        let (asked, path) = (Arc::clone(&self.asked), path.to_owned());
        self.remote.wait(async move { asked.stat(&path).await }).unwrap_or(Err(Errno::EIO))
    }

    fn stat_anew(&self, path: &Path) -> Result<Stat, Errno> {
        let (asked, path) = (Arc::clone(&self.asked), path.to_owned());
        self.remote.wait(async move { asked.stat_anew(&path).await }).unwrap_or(Err(Errno::EIO))
    }

    fn asks_one_by_one(&self) -> bool {
        false
    }

    fn stat_all(&self, directory: &Path, names: &[OsString]) -> Vec<Result<Stat, Errno>> {
        let above = match self.listed(directory) {
            Ok(above) if above.is_unreadable => return vec![Err(Errno::EPERM); names.len()],
            Ok(above) => above,
            Err(errno) => return vec![Err(errno); names.len()],
        };
        let begin = |name: &OsString| {
            let path = directory.join(name);
            if let Some(blob) = above.file(name) {
                return Ok(Ok(blob_stat(&path, blob, 0)));
            }
            if !above.has_subdirectory(name) {
                return Ok(Err(Errno::ENOENT));
            }
            let asked = Arc::clone(&self.asked);
            Err(self.remote.begin(async move { asked.stat_in_turn(&path).await }))
        };
        let answers: Vec<Result<_, mpsc::Receiver<_>>> = names.iter().map(begin).collect();
        let wait = |later: mpsc::Receiver<_>| later.recv().unwrap_or(Err(Errno::EIO));
        answers.into_iter().map(|answer| answer.unwrap_or_else(wait)).collect()
    }

    fn listed_kinds(&self, directory: &Path) -> HashMap<OsString, Kind> {
        self.listed(directory).map(|listed| listed.kinds()).unwrap_or_default()
    }

    fn read_link(&self, _path: &Path) -> Result<OsString, Errno> {
        Err(Errno::EINVAL)
    }

    fn list_xattrs(&self, _path: &Path) -> Result<Vec<u8>, Errno> {
        Ok(Vec::new())
    }

    fn xattr(&self, _path: &Path, _name: &OsStr) -> Result<Vec<u8>, Errno> {
        Err(Errno::ENODATA)
    }

    fn space(&self) -> Result<[u64; 7], Errno> {
        Ok([0, 0, 0, 0, 0, 4096, NAME_BYTES_MAX as u64])
    }

    fn close_idle(&self) {
        self.asked.listings.close_idle();
    }

    fn read(&self, requests: Vec<ReadRequest>) {
        for request in requests {
            let asked = Arc::clone(&self.asked);
            let ReadRequest { path, fingerprint, exact, offset, length, urgency, deliver, .. } =
                request;
            let wanted = Wanted { path, fingerprint, exact, offset, length };
            self.remote.read(urgency, deliver, async move { asked.read(&wanted).await });
        }
    }
}

#[cfg(test)]
mod tests;
