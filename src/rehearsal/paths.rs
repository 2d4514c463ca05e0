//! Paths as users write them: within the dataset, below a place where it is seen, or of a file of a view.

use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use super::open_buffer::OpenBuffer;
use crate::buffer::SampleId;
use crate::cache::Cache;
use crate::catalog::{Catalog, NodeId};
use crate::rehearsal::views::Views;
use crate::source::Kind;
use crate::sync::Mutex;

/// What a path stands for.
pub(super) enum PathMeaning {
    Held(SampleId),
    /// A file of the dataset that is not held, by its path.
    NotHeld(String),
    /// A file in a view of the buffer that has this name.
    OtherBuffer(String),
}

pub(super) struct Paths {
    pub(super) cache: Arc<Cache>,
    pub(super) views: Arc<Views>,
    /// Where the dataset is seen.
    pub(super) dataset_roots: Arc<Mutex<Vec<PathBuf>>>,
}

impl Paths {
    pub(super) fn catalog(&self) -> &Catalog {
        self.cache.catalog()
    }

    /// The path within the dataset, if this is an absolute path below a place where the dataset is seen.
    fn within(&self, path: &str) -> Option<String> {
        let path = Path::new(path);
        let roots = self.dataset_roots.lock();
        let below = roots.iter().filter(|_| path.is_absolute());
        let found = below.filter_map(|root| path.strip_prefix(root).ok()).next()?;
        Some(found.to_str()?.to_owned())
    }

    /// The node of a path, and the path that the catalog knows it by: a path can be written in many ways, and
    /// a file can have several names.
    pub(super) fn known_as(&self, path: &str) -> Option<(NodeId, PathBuf)> {
        let within = self.within(path);
        let parts = Path::new(within.as_deref().unwrap_or(path)).components();
        let mut parts = parts.filter(|part| *part != Component::CurDir);
        let node = parts.try_fold(NodeId::ROOT, |parent, part| {
            Some(self.catalog().lookup(parent, part.as_os_str(), true)?.ok()?.node)
        })?;
        Some((node, self.catalog().path(node).ok()?))
    }

    /// What a path means for a buffer. None if there neither is nor was such a file.
    pub(super) fn meaning(&self, buffer: &OpenBuffer, path: &str) -> Option<PathMeaning> {
        let journaled = &buffer.journaled;
        let within = self.within(path);
        let path = within.as_deref().unwrap_or(path);
        let offered = |path: &str| match journaled.sample_at(path) {
            Some(sample) => Some(PathMeaning::Held(sample)),
            None => journaled.was_offered(path).then(|| PathMeaning::NotHeld(path.to_owned())),
        };
        let existing = |path: &str| {
            let (node, path) = self.known_as(path)?;
            let is_file = || Some(self.catalog().getattr(node).ok()?.stat.kind == Kind::File);
            let path = path.to_str()?;
            offered(path).or_else(|| is_file()?.then(|| PathMeaning::NotHeld(path.to_owned())))
        };
        // Most paths are known as they are written.
        offered(path).or_else(|| existing(path)).or_else(|| {
            let named = self.views.buffer_of(path);
            if let Some(other) = named.filter(|name| *name != journaled.settings.name) {
                return Some(PathMeaning::OtherBuffer(other.to_owned()));
            }
            let source = self.views.source(buffer.number, path)?;
            offered(&source).or_else(|| existing(&source))
        })
    }
}
