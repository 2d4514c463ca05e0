//! Opens what is mounted.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use super::archive::{Archives, is_archive};
use super::cql::CqlStore;
use super::http::HttpStore;
use super::keyed::KeyedSource;
use super::object::ObjectSource;
use super::redis::RedisStore;
use super::{Location, PosixSource, Source};
use crate::config::View;
use crate::error::{Error, ErrorKind, Result};

/// How a source is opened.
#[derive(Clone, Copy)]
pub struct Opening<'a> {
    /// What is shown. With [`View::Files`], a path may be that of one archive.
    pub view: View,
    /// Whether files never change.
    pub is_immutable: bool,
    /// The most prefetches that run at once.
    pub inflight: usize,
    /// Counts the names that are found meanwhile.
    pub seen: &'a AtomicU64,
}

impl<'a> Opening<'a> {
    /// For a look at the files of a source.
    pub fn for_names(seen: &'a AtomicU64) -> Self {
        Opening { view: View::Directory, is_immutable: true, inflight: 1, seen }
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

    /// The files at a location.
    fn files(self, location: &Location) -> Result<Arc<dyn Source>> {
        Ok(match location {
            Location::Path(path) => Arc::new(PosixSource::open(path, self.inflight)?),
            Location::Bucket(bucket) => Arc::new(ObjectSource::open(bucket)?),
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
        let only = location.path().filter(|path| path.is_file());
        let Some(path) = only else {
            let source = self.files(location)?;
            if !source.tells_sizes() {
                let name = location.name().display();
                let message = format!("the sizes of the archives in {name} are not known");
                return Err(Error::new(ErrorKind::Source, message)
                    .hint("set source.size, or write the sizes into the manifest"));
            }
            return Ok(Archives::new(source, None));
        };
        match (path.parent(), path.file_name()) {
            (Some(directory), Some(name)) if is_archive(name) => {
                let source = Arc::new(PosixSource::open(directory, self.inflight)?);
                Ok(Archives::new(source, Some(name.to_owned())))
            }
            _ => {
                let message = format!("the source {} is no .tar and no .zip file", path.display());
                Err(Error::new(ErrorKind::Source, message)
                    .hint("SOURCE must be a directory, or with `--as files` an archive"))
            }
        }
    }
}

/// The [lasting identity](Source::lasting_identity) of the source at a location; `None` if it cannot be opened. No
/// store is asked.
pub fn lasting_identity(location: &Location, view: View) -> Option<u128> {
    let of_files = match location {
        Location::Path(path) => {
            let directory = if path.is_file() { path.parent()? } else { path };
            PosixSource::open(directory, 1).ok()?.lasting_identity()
        }
        Location::Bucket(bucket) => bucket.identity(),
        Location::Database(database) => database.identity(),
        Location::Rows(cluster) => cluster.identity(),
        Location::Site(site) => site.identity(),
    };
    Some(match view {
        View::Directory => of_files,
        View::Files => Archives::identity(of_files),
    })
}
