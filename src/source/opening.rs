//! Opens what is mounted.

use std::borrow::Cow;
use std::ffi::OsString;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use super::archive::{Archives, is_archive};
use super::cql::CqlStore;
use super::http::HttpStore;
use super::keyed::KeyedSource;
use super::object::ObjectSource;
use super::redis::RedisStore;
use super::{Location, PosixSource, Source};
use crate::config::{Manners, View};
use crate::error::{Error, ErrorKind, Result};
use crate::limiter::Limiter;

/// The most requests that a look at names makes at once.
const NAMES_AT_ONCE: u32 = 128;

/// How a source is opened.
#[derive(Clone, Copy)]
pub struct Opening<'a> {
    /// What is shown. With [`View::Files`], a location may be one archive.
    pub view: View,
    /// Whether files never change.
    pub is_immutable: bool,
    /// The most prefetches that run at once.
    pub inflight: usize,
    /// The most requests for names that run at once, and how the source is shared.
    pub scan_threads: u32,
    pub manners: Manners,
    /// Counts the names that are found meanwhile.
    pub seen: &'a AtomicU64,
}

impl<'a> Opening<'a> {
    /// For a look at the names in a source.
    pub fn for_names(view: View, seen: &'a AtomicU64) -> Self {
        let at_once = NAMES_AT_ONCE;
        Opening {
            view,
            is_immutable: true,
            inflight: at_once as usize,
            scan_threads: at_once,
            manners: Manners::Auto,
            seen,
        }
    }

    /// Opens the source at a location.
    ///
    /// # Errors
    /// If it cannot be opened, or cannot be shown so.
    pub fn open(self, location: &Location) -> Result<Arc<dyn Source>> {
        match self.view {
            View::Directory => self.files(location),
            View::Files => Ok(Arc::new(KeyedSource::open(self.archives(location)?, self.seen)?)),
        }
    }

    /// A limiter of requests for names.
    fn limiter(self, location: &Location) -> Limiter {
        let manners = self.manners.at(location.path().is_some());
        Limiter::of_metadata(self.scan_threads, manners)
    }

    /// The files at a location.
    fn files(self, location: &Location) -> Result<Arc<dyn Source>> {
        Ok(match location {
            Location::Path(path) => Arc::new(PosixSource::open(path, self.inflight)?),
            Location::Bucket(bucket) => {
                Arc::new(ObjectSource::open(bucket, self.limiter(location))?)
            }
            Location::Database(database) => {
                let store = RedisStore::open(database, self.is_immutable)?;
                Arc::new(KeyedSource::open(store, self.seen)?)
            }
            Location::Rows(cluster) => {
                let store = CqlStore::open(cluster, self.is_immutable)?;
                Arc::new(KeyedSource::open(store, self.seen)?)
            }
            Location::Site(site) => {
                let store = HttpStore::open(site, self.is_immutable)?;
                Arc::new(KeyedSource::open(store, self.seen)?)
            }
        })
    }

    /// The archives at a location, or the archive that it is.
    fn archives(self, location: &Location) -> Result<Archives> {
        let (place, only) = archives_at(location);
        let name = location.name().display();
        let refuse = |what: String| Error::new(ErrorKind::Source, what);
        match &*place {
            Location::Path(path) if path.is_file() => {
                return Err(refuse(format!("the source {name} is no .tar and no .zip file"))
                    .hint("SOURCE must be a directory, or with `--as files` an archive"));
            }
            Location::Site(site) if is_archive(site.name()) => {
                return Err(refuse(format!("the source {name} is an archive and not a manifest"))
                    .hint("name the archive in a manifest, with its size"));
            }
            _ => {}
        }
        let source = self.files(&place)?;
        if !source.tells_sizes() {
            return Err(refuse(format!("the sizes of the archives in {name} are not known"))
                .hint("set source.size, or write the sizes into the manifest"));
        }
        Ok(Archives::new(source, only, self.limiter(location)))
    }
}

/// Where the archives of a location are. If the location is one archive, its name comes with it.
fn archives_at(location: &Location) -> (Cow<'_, Location>, Option<OsString>) {
    match location.split() {
        Some((above, name)) if is_archive(Path::new(&name)) => (Cow::Owned(above), Some(name)),
        _ => (Cow::Borrowed(location), None),
    }
}

/// The [lasting identity](Source::lasting_identity) of the source at a location; `None` if it cannot be opened. No
/// store is asked.
pub fn lasting_identity(location: &Location, view: View) -> Option<u128> {
    let (place, only) = match view {
        View::Directory => (Cow::Borrowed(location), None),
        View::Files => archives_at(location),
    };
    let of_files = match &*place {
        Location::Path(path) => PosixSource::open(path, 1).ok()?.lasting_identity(),
        Location::Bucket(bucket) => bucket.identity(),
        Location::Database(database) => database.identity(),
        Location::Rows(cluster) => cluster.identity(),
        Location::Site(site) => site.identity(),
    };
    Some(match view {
        View::Directory => of_files,
        View::Files => Archives::identity(of_files, only.as_deref()),
    })
}
