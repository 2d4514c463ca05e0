//! Opens what is mounted.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use super::archive::{Archives, is_archive};
use super::keyed::{Keyed, KeyedSource};
use super::{PosixSource, Source};
use crate::config::View;
use crate::error::{Error, ErrorKind, Result};

/// A source that is open.
pub struct Opened {
    pub source: Arc<dyn Source>,
    /// Device and inode of its path. They identify it, whatever its path.
    pub identity: (u64, u64),
}

/// Opens the directory at a path, or with [`View::Files`] its archives. Then the path may be that of one archive. At
/// most `inflight` prefetches run at once. Names that are found meanwhile are counted in `seen`.
///
/// # Errors
/// If it cannot be opened, or cannot be shown so.
pub fn open(path: &Path, view: View, inflight: usize, seen: &AtomicU64) -> Result<Opened> {
    match view {
        View::Directory => {
            let source = PosixSource::open(path, inflight)?;
            let identity = source.identity()?;
            Ok(Opened { source: Arc::new(source), identity })
        }
        View::Files => {
            let found = std::fs::metadata(path).map_err(|error| {
                let message = format!("cannot open the source {}: {error}", path.display());
                Error::new(ErrorKind::Source, message)
            })?;
            let archives = archives(path, found.is_file(), inflight)?;
            let source = KeyedSource::open(archives, seen)?;
            Ok(Opened { source: Arc::new(source), identity: (found.dev(), found.ino()) })
        }
    }
}

/// The archives of a directory, or the archive that is a file.
fn archives(path: &Path, is_file: bool, inflight: usize) -> Result<Archives> {
    let (directory, only) = match (is_file, path.parent(), path.file_name()) {
        (true, Some(directory), Some(name)) if is_archive(name) => {
            (directory, Some(name.to_owned()))
        }
        (true, ..) => {
            let message = format!("the source {} is no .tar and no .zip file", path.display());
            return Err(Error::new(ErrorKind::Source, message)
                .hint("SOURCE must be a directory, or with `--as files` an archive"));
        }
        _ => (path, None),
    };
    let source: Arc<dyn Source> = Arc::new(PosixSource::open(directory, inflight)?);
    Ok(Archives::new(source, only))
}

/// The [lasting identity](Source::lasting_identity) of what a path is the source of; `None` if it cannot be opened.
pub fn lasting_identity(path: &Path, view: View) -> Option<u128> {
    match view {
        View::Directory => Some(PosixSource::open(path, 1).ok()?.lasting_identity()),
        View::Files => {
            let is_file = std::fs::metadata(path).ok()?.is_file();
            let archives = archives(path, is_file, 1).ok()?;
            Some(archives.lasting_identity())
        }
    }
}
