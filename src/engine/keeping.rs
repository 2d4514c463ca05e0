//! The catalog over the life of an engine: taken up or scanned, checked, saved.

use std::io::ErrorKind as IoErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use nix::errno::Errno;

use super::{Engine, cannot_read, lock};
use crate::cache::store::home::Home;
use crate::catalog::Catalog;
use crate::config::SourceSettings;
use crate::error::Result;
use crate::source::Source;

/// Of the threads that scan, one in so many checks what an earlier mount has seen: the readers are
/// there already, and want the source too.
const SWEEP_SHARE: u32 = 4;

/// The catalog that is saved in the home of a source's store; else a scan of the source.
pub(super) fn catalog(
    source: Arc<dyn Source>,
    settings: &SourceSettings,
    path: &Path,
    home: Option<&Home>,
    seen: &AtomicU64,
) -> Result<Catalog> {
    if let Some(home) = home {
        match Catalog::open(Arc::clone(&source), settings.revalidate, &home.catalog()) {
            Ok(catalog) => return Ok(catalog),
            Err(error) if error.kind() == IoErrorKind::NotFound => {}
            Err(error) => tracing::warn!(%error, "the saved catalog is of no use: scanning"),
        }
    }
    let failed = |(name, errno): (PathBuf, Errno)| cannot_read(&path.join(name), errno);
    let threads = settings.scan_threads as usize;
    Catalog::scan(source, threads, settings.revalidate, seen).map_err(failed)
}

impl Engine {
    /// Whether the catalog is that of an earlier mount, and not all of it was checked since.
    pub(super) fn is_unchecked(&self) -> bool {
        self.catalog.state() == "checking"
    }

    /// Checks what only an earlier mount has seen. Says whether names came or went.
    pub(super) fn check_catalog(&self, threads: u32) -> bool {
        self.catalog.sweep(threads as usize, &self.over, &|found| self.dataset.report(found))
    }

    /// Checks a catalog that was taken up and saves one that is new, behind the readers.
    pub fn keep_catalog(self: &Arc<Self>) {
        let engine = Arc::clone(self);
        let keep = move || {
            let threads = (engine.settings.source.scan_threads / SWEEP_SHARE).max(1);
            let renamed = engine.is_unchecked() && engine.check_catalog(threads);
            if engine.over.load(Ordering::Relaxed) {
                return;
            }
            if renamed {
                engine.renew_orders();
            }
            engine.save_catalog();
        };
        if let Err(error) = std::thread::Builder::new().name("belady-catalog".into()).spawn(keep) {
            tracing::warn!(%error, "the catalog is checked where it is asked, and saved at the end");
        }
    }

    /// Saves what is known of the source's names, where there is a place for it.
    pub(super) fn save_catalog(&self) {
        if let Some(home) = &*lock(&self.home)
            && let Err(error) = self.catalog.save(&home.catalog())
        {
            tracing::warn!(%error, "the catalog was not saved; the next mount scans the source");
        }
    }

    /// What is known of the source since earlier mounts, in words.
    pub fn taken_up(&self) -> Option<String> {
        let files = self.catalog.totals().0;
        let unchecked = self.is_unchecked();
        unchecked.then(|| format!("catalog: {files} files from an earlier mount, being checked"))
    }
}
