//! Where a source is: a path of this machine, or the URL of a store.

use std::ffi::OsString;
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
                "scylla" => return Err(no_scylla()),
                "cassandra" => Location::Rows(Cluster::parse(&text, settings)?),
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

    /// The place above it, and its name there, if it may be one file: a file of this machine, an object, or a value.
    pub(super) fn split(&self) -> Option<(Location, OsString)> {
        match self {
            Location::Path(path) if path.is_file() => {
                Some((Location::Path(path.parent()?.to_owned()), path.file_name()?.to_owned()))
            }
            Location::Bucket(bucket) => {
                let (above, name) = bucket.split()?;
                Some((Location::Bucket(above), name.into()))
            }
            Location::Database(database) => {
                let (above, name) = database.split()?;
                Some((Location::Database(above), name.into()))
            }
            Location::Path(_) | Location::Rows(_) | Location::Site(_) => None,
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

fn no_scylla() -> Error {
    let message =
        "cannot use a source scylla://: belady is tested with Cassandra, not with ScyllaDB";
    Error::new(ErrorKind::Source, message)
        .hint("ScyllaDB speaks Cassandra's protocol: cassandra://HOST/KEYSPACE may work")
}

/// Whether a text begins as a URL does, and not as a path.
fn is_url(text: &str) -> bool {
    text.split_once("://").is_some_and(|(scheme, _)| {
        !scheme.is_empty() && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Location> {
        Location::parse(Path::new(text), &SourceConfig::default())
    }

    #[test]
    fn what_was_not_tested_is_refused() {
        let refused = parse("scylla://db1/imagenet").unwrap_err().to_string();
        assert!(refused.contains("scylla://") && refused.contains("cassandra://HOST"), "{refused}");
        assert!(parse("ftp://host/x").unwrap_err().to_string().contains("cannot use"));
    }

    #[test]
    fn a_place_that_may_be_one_file_is_split() {
        let split = |text: &str| {
            let (above, name) = parse(text).unwrap().split()?;
            Some(format!("{} {}", above.name().display(), name.display()))
        };
        assert_eq!(split("s3://bucket/a/1.tar"), Some("s3://bucket/a 1.tar".into()));
        let database = split("redis://host/0/a/1.tar");
        assert_eq!(database, Some("redis://host:6379/0/a 1.tar".into()));
        assert_eq!(split("https://host/a/files.tsv"), None);
        let directory = tempfile::tempdir().unwrap();
        let path = std::fs::canonicalize(directory.path()).unwrap();
        assert_eq!(split(path.to_str().unwrap()), None);
        std::fs::write(path.join("1.tar"), b"x").unwrap();
        let file = split(path.join("1.tar").to_str().unwrap());
        assert_eq!(file, Some(format!("{} 1.tar", path.display())));
    }
}
