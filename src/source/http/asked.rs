//! The requests to a web server.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use nix::errno::Errno;
use object_store::path::Path as Key;
use object_store::{
    Error as StoreError, GetOptions, GetRange, ObjectMeta, ObjectStore, ObjectStoreExt,
};

use super::Site;
use super::manifest::Line;
use crate::error::Result as UserResult;
use crate::source::object::{Fault, etag_of};
use crate::source::remote::{PATIENCE, PATIENCE_OF_LISTINGS, Passing, patiently};
use crate::source::{ReadError, ReadRequest};

/// What is asked of the server.
pub(super) struct Asked {
    server: Arc<dyn ObjectStore>,
    manifest: Key,
    pub(super) is_immutable: bool,
}

/// A file as the manifest has it.
#[derive(Clone, Debug)]
pub(in crate::source) struct Listed {
    pub(super) path: Box<str>,
    pub(super) etag: Option<Box<str>>,
}

impl Listed {
    pub(super) fn of(line: &Line<'_>) -> Self {
        Listed { path: line.path.into(), etag: line.etag.map(Into::into) }
    }

    /// Where the server has it. Parts that say nothing, as in `a//b`, are left out, as in the tree.
    fn key(&self) -> Result<Key, Fault> {
        let parts = self.path.split('/').filter(|part| !matches!(*part, "" | "."));
        let key = Key::parse(parts.collect::<Vec<_>>().join("/"));
        key.map_err(|error| Fault::from(StoreError::from(error)))
    }

    /// Whether an answer is of this version, which has `size` bytes if that is known.
    fn is_version(&self, size: Option<u64>, found: &ObjectMeta) -> bool {
        let has_size = size.is_none_or(|size| size == found.size);
        has_size && self.etag.as_deref().is_none_or(|etag| etag_of(found) == Some(etag))
    }
}

/// Which bytes of a file a read is for.
pub(super) struct Wanted {
    listed: Listed,
    /// How many bytes the file has.
    size: u64,
    /// `None`: all of them.
    range: Option<Range<u64>>,
}

impl Wanted {
    /// `None` if the size of the file is not known.
    pub(super) fn of(listed: &Listed, request: &ReadRequest) -> Option<Self> {
        let (from, length) = (request.offset, request.length as u64);
        let range = request.is_part().then(|| from..from + length);
        let wanted = Wanted { listed: listed.clone(), size: request.fingerprint.size(), range };
        request.is_sized.then_some(wanted)
    }

    /// The last byte of a file of `size` bytes.
    pub(super) fn last_byte(listed: &Listed, size: u64) -> Self {
        Wanted { listed: listed.clone(), size, range: Some(size - 1..size) }
    }

    /// How many bytes are wanted.
    fn length(&self) -> u64 {
        self.range.as_ref().map_or(self.size, |range| range.end - range.start)
    }

    fn is_version(&self, found: &ObjectMeta) -> bool {
        self.listed.is_version(Some(self.size), found)
    }

    fn path(&self) -> &Path {
        Path::new(&*self.listed.path)
    }
}

impl Asked {
    pub(super) fn new(site: &Site, is_immutable: bool) -> UserResult<Self> {
        let (server, manifest) = (site.connect()?, site.manifest().clone());
        Ok(Asked { server, manifest, is_immutable })
    }

    /// The bytes of the manifest.
    pub(super) async fn manifest(&self) -> Result<Vec<u8>, Fault> {
        patiently(PATIENCE_OF_LISTINGS, || self.manifest_once()).await
    }

    async fn manifest_once(&self) -> Result<Vec<u8>, Fault> {
        let answer = self.server.get(&self.manifest).await?;
        Ok(answer.bytes().await.map_err(Fault::Broken)?.into())
    }

    /// What the server tells of a file.
    pub(super) async fn head(
        &self,
        listed: &Listed,
        patience: Duration,
    ) -> Result<ObjectMeta, Fault> {
        let key = listed.key()?;
        let head = || async { self.server.head(&key).await.map_err(Fault::from) };
        patiently(patience, head).await
    }

    /// Whether a file is as it was listed.
    pub(super) async fn is_current(
        &self,
        listed: &Listed,
        size: Option<u64>,
    ) -> Result<bool, Fault> {
        let found = self.head(listed, PATIENCE).await?;
        Ok(listed.is_version(size, &found))
    }

    /// Reads bytes of the listed version.
    pub(super) async fn read(&self, wanted: &Wanted) -> Result<Vec<u8>, ReadError> {
        let read = patiently(PATIENCE, || self.read_once(wanted)).await;
        let bytes = read.map_err(|fault| self.read_error(&fault, wanted))?;
        let length = wanted.length();
        if length != bytes.len() as u64 {
            Fault::Length { got: bytes.len(), wanted: length as usize }.warn(wanted.path());
            return Err(ReadError::Source(Errno::EIO));
        }
        Ok(bytes)
    }

    fn read_error(&self, fault: &Fault, wanted: &Wanted) -> ReadError {
        match fault {
            Fault::Changed => ReadError::Changed,
            _ if fault.is_missing() && !self.is_immutable => ReadError::Changed,
            _ => ReadError::Source(fault.errno(wanted.path())),
        }
    }

    pub(super) async fn read_once(&self, wanted: &Wanted) -> Result<Vec<u8>, Fault> {
        let (key, range) = (wanted.listed.key()?, wanted.range.clone());
        let is_part = range.is_some();
        let options = GetOptions { range: range.map(GetRange::Bounded), ..GetOptions::default() };
        let answer = match self.server.get_opts(&key, options).await.map_err(Fault::from) {
            Ok(answer) => answer,
            // A file that was replaced by a shorter one may not have the range.
            Err(fault) if is_part && !fault.may_pass() && !fault.is_missing() => {
                let found = self.server.head(&key).await?;
                return Err(if wanted.is_version(&found) { fault } else { Fault::Changed });
            }
            Err(fault) => return Err(fault),
        };
        if !wanted.is_version(&answer.meta) {
            return Err(Fault::Changed);
        }
        Ok(answer.bytes().await.map_err(Fault::Broken)?.into())
    }
}
