//! The paths of a catalog, as an order sees them.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::{Catalog, Leading};
use crate::ids::FileId;
use crate::order::{Entry, Listing};

/// The paths of a catalog as an order sees them, links followed; this asks the source where those
/// point. Absolute paths may begin with one of the `points`, where the tree is seen at, or with the
/// `source`'s.
pub fn with_listing<T>(
    catalog: &Catalog,
    points: &[PathBuf],
    source: Option<&Path>,
    work: impl FnOnce(&Listing<'_>) -> T,
) -> T {
    // All paths in one piece: a million small ones would stay behind in the allocator.
    let mut paths = Vec::new();
    let mut files: Vec<(usize, FileId, u64)> = Vec::new();
    catalog.for_each_path(&catalog.links(), points, |Leading { path, file, size }| {
        paths.extend_from_slice(path.as_os_str().as_bytes());
        files.push((paths.len(), file, size));
    });
    let starts = std::iter::once(0).chain(files.iter().map(|(end, ..)| *end));
    let entries = files
        .iter()
        .zip(starts)
        .map(|(&(end, file, size), start)| Entry { path: &paths[start..end], file, size })
        .collect();
    let mut listing = Listing::new(entries);
    for prefix in points.iter().map(PathBuf::as_path).chain(source) {
        listing = listing.with_prefix(prefix.as_os_str().as_bytes());
    }
    work(&listing)
}
