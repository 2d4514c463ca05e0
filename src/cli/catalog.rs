//! `belady catalog`: exports and imports what is known of a source's names, for other nodes and jobs.

use std::io::ErrorKind as IoErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use clap::Subcommand;
use serde_json::json;

use super::settings::{Shown, source_settings};
use super::{apart, say, say_json, warn};
use crate::catalog::{Catalog, CatalogState};
use crate::config::View;
use crate::disk::AtomicFile;
use crate::error::{Error, ErrorKind, Result};
use crate::mount::{absolute, check_outside};
use crate::source::{Location, Opening, Source, is_in_image};
use crate::store::directory::{self, Owner};

const SCAN_THREADS: usize = 16;

#[derive(Debug, Subcommand)]
pub(super) enum Verb {
    /// Write the catalog of a source to a file: as its last mount saved it, else by a scan
    Export {
        /// The source
        source: PathBuf,
        /// The file, which is replaced
        file: PathBuf,
        /// The cache directory of the mounts; without one the source is scanned
        #[arg(long, value_name = "DIR")]
        cache_dir: Option<PathBuf>,
        #[command(flatten)]
        shown: Shown,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Give a catalog to the next mount of a source, which then does not scan it
    Import {
        /// A file that `export` wrote; owned by you or root, and not writable by others
        file: PathBuf,
        /// The source
        source: PathBuf,
        /// The cache directory of the mount
        #[arg(long, value_name = "DIR")]
        cache_dir: PathBuf,
        #[command(flatten)]
        shown: Shown,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

pub(super) fn run(verb: &Verb) -> Result<()> {
    match verb {
        Verb::Export { source, file, cache_dir, shown, json } => {
            let work = || {
                export((source.as_path(), shown.view), &absolute(file), cache_dir.as_deref(), *json)
            };
            match cache_dir {
                Some(cache) => apart::run_with(source, cache, work),
                None => work(),
            }
        }
        Verb::Import { file, source, cache_dir, shown, json } => {
            apart::run_with(source, cache_dir, || {
                import(&absolute(file), (source.as_path(), shown.view), &absolute(cache_dir), *json)
            })
        }
    }
}

/// Where the source is, what is shown of it, and the owner of its saved catalog.
fn open((source, view): (&Path, View)) -> Result<(Location, Arc<dyn Source>, Owner)> {
    let location = Location::parse(source, &source_settings())?;
    if location.path().is_some_and(is_in_image) {
        let message = format!("the source {} is in an image", location.name().display());
        return Err(Error::new(ErrorKind::Source, message)
            .hint("its files do not tell which version of it they are of; a mount scans it fast"));
    }
    let source = Opening::for_names(view, &AtomicU64::new(0)).open(&location)?;
    let owner = Owner::new(location.name(), source.lasting_identity());
    Ok((location, source, owner))
}

fn cannot(file: &Path, error: &std::io::Error) -> Error {
    let hint = match error.kind() {
        IoErrorKind::PermissionDenied => {
            "a catalog says who may read what, so that you or root must own it and nobody else \
             write it: `chmod go-w` it, or copy it"
        }
        IoErrorKind::InvalidData => {
            "`belady catalog export` of this source and version of belady writes one that fits"
        }
        IoErrorKind::NotFound => "is the path right? `belady catalog export` writes the file",
        _ => directory::advice(error),
    };
    Error::new(ErrorKind::Cache, format!("the catalog {}: {error}", file.display())).hint(hint)
}

fn cannot_write(file: &Path, error: &std::io::Error) -> Error {
    let hint = match error.kind() {
        IoErrorKind::PermissionDenied => "name a file in a directory that you may write to",
        IoErrorKind::NotFound => "make its directory first",
        _ => directory::advice(error),
    };
    Error::new(ErrorKind::Cache, format!("cannot write {}: {error}", file.display())).hint(hint)
}

fn report(verb: &str, catalog: &Catalog, file: &Path, json: bool) {
    let ((files, bytes), state) = (catalog.totals(), catalog.state());
    if json {
        return say_json(
            &json!({ "files": files, "bytes": bytes, "saved": state != CatalogState::Scanned }),
        );
    }
    let from = if state == CatalogState::Scanned { "" } else { ", as it was saved" };
    say(format!("{verb} {}: {files} files{from}", file.display()));
}

fn export(source: (&Path, View), file: &Path, cache: Option<&Path>, json: bool) -> Result<()> {
    let (location, source, owner) = open(source)?;
    let scan = || {
        let scanned = Catalog::scan(Arc::clone(&source), SCAN_THREADS, None);
        scanned.map_err(|(name, errno)| {
            let at = location.name().join(name);
            let message = format!("cannot read {}: {}", at.display(), errno.desc());
            Error::new(ErrorKind::Source, message)
                .hint("a catalog is of all files: export it when the source tells of them")
        })
    };
    let catalog = match cache {
        None => scan()?,
        Some(cache) => {
            let saved = directory::catalog(&absolute(cache), &owner);
            let open = |place: AtomicFile| Catalog::open(Arc::clone(&source), None, &place);
            match AtomicFile::at(&saved).and_then(open) {
                Ok(catalog) => catalog,
                Err(error) if error.kind() == IoErrorKind::NotFound => scan()?,
                Err(error) => {
                    let why = cannot(&saved, &error);
                    warn(format!("belady: {}; the source is scanned", why.message()));
                    scan()?
                }
            }
        }
    };
    let exported = AtomicFile::at(file).and_then(|place| catalog.export(&place));
    exported.map_err(|error| cannot_write(file, &error))?;
    report("exported to", &catalog, file, json);
    Ok(())
}

fn import(file: &Path, source: (&Path, View), cache: &Path, json: bool) -> Result<()> {
    let (location, source, owner) = open(source)?;
    check_outside(cache, &location)?;
    let opened = AtomicFile::at(file).and_then(|place| Catalog::open(source, None, &place));
    let catalog = opened.map_err(|error| cannot(file, &error))?;
    let store_dir = directory::claim(cache, &owner)?;
    let saved = directory::catalog(cache, &owner);
    catalog.export(&store_dir.catalog()).map_err(|error| cannot_write(&saved, &error))?;
    report("imported from", &catalog, file, json);
    Ok(())
}
