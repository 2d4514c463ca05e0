//! Where a source is: a path of this machine, or the URL of a store.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::cql::Cluster;
use super::http::Site;
use super::object::Bucket;
use super::redis::Database;
use crate::config::SourceConfig;
use crate::error::{Error, ErrorKind, Result};

/// Where a source is.
#[derive(Clone, Debug)]
pub enum Location {
    /// A directory or an archive, by an absolute path without links.
    Path(PathBuf),
    Bucket(Bucket),
    Database(Database),
    Rows(Cluster),
    Site(Site),
}

impl Location {
    /// Reads a path or a URL. A store is asked as `settings` say, and as the environment says. No store is asked yet.
    ///
    /// # Errors
    /// If nothing has the path, the URL is none of a store, or a setting is wrong.
    pub fn parse(text: &Path, settings: &SourceConfig) -> Result<Self> {
        let url = text.to_str().filter(|text| is_url(text));
        if let Some((scheme, _)) = url.and_then(|url| url.split_once("://")) {
            let text = text.to_string_lossy();
            return Ok(match scheme {
                "redis" => Location::Database(Database::parse(&text, &settings.credentials)?),
                "cassandra" | "scylla" => Location::Rows(Cluster::parse(&text, settings)?),
                "http" | "https" => Location::Site(Site::parse(&text)?),
                _ => Location::Bucket(Bucket::parse(scheme, &text, &settings.credentials)?),
            });
        }
        let path = std::fs::canonicalize(text).map_err(|error| {
            let message = format!("cannot use the source {}: {error}", text.display());
            Error::new(ErrorKind::Source, message)
                .hint("is the parallel filesystem mounted on this node?")
        })?;
        Ok(Location::Path(path))
    }

    /// Its path; `None` if it is none of this machine.
    pub fn path(&self) -> Option<&Path> {
        match self {
            Location::Path(path) => Some(path),
            Location::Bucket(_) | Location::Database(_) | Location::Rows(_) | Location::Site(_) => {
                None
            }
        }
    }

    /// Its path or URL, for people. An order may name a file by this, a slash, and the path of the file in it.
    pub fn name(&self) -> &Path {
        match self {
            Location::Path(path) => path,
            Location::Bucket(bucket) => bucket.name(),
            Location::Database(database) => database.name(),
            Location::Rows(cluster) => cluster.name(),
            Location::Site(site) => site.name(),
        }
    }

    /// Two numbers that tell it from all other places: device and inode of a path. `None` if nothing has the path.
    pub fn identity(&self) -> Option<(u64, u64)> {
        match self {
            Location::Path(path) => {
                let found = std::fs::metadata(path).ok()?;
                Some((found.dev(), found.ino()))
            }
            // No device has the number 0.
            Location::Bucket(bucket) => Some((0, bucket.identity() as u64)),
            Location::Database(database) => Some((0, database.identity() as u64)),
            Location::Rows(cluster) => Some((0, cluster.identity() as u64)),
            Location::Site(site) => Some((0, site.identity() as u64)),
        }
    }
}

/// Whether a text begins as a URL does, and not as a path.
fn is_url(text: &str) -> bool {
    text.split_once("://").is_some_and(|(scheme, _)| {
        !scheme.is_empty() && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric())
    })
}
