//! Finds which files lie one behind the other in larger files of the source, as members of an archive do. Then one
//! request can bring several of them.
//!
//! 1. The source is asked about the files of each directory, in the order of their numbers. It knows that without a
//!    request of its own. It is not asked again as long as there are the same names.
//! 2. The layout has it for the planner. A file that gets another size later lies by itself there.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::Catalog;
use super::tree::Tree;
use crate::ids::FileId;
use crate::plan::Layout;

/// As [`Catalog::find_neighbours`].
pub(super) fn find(catalog: &Catalog, tell: impl FnOnce(Arc<Layout>)) {
    // Most sources know of no neighbours.
    if catalog.source.lie_behind(Path::new(""), &[]).is_none() {
        return;
    }
    // Another caller waits for the lock until the planner has been told.
    let mut known = catalog.neighbours_of.lock();
    let names = (catalog.names_version(), catalog.read().tables.rows.len());
    if *known == Some(names) {
        return;
    }
    let Some(is_behind) = ask(catalog) else { return };
    let is_behind = |file: FileId| is_behind.get(file.index()).is_some_and(|it| *it);
    if let Some(layout) = note(catalog, is_behind) {
        tell(layout);
    }
    *known = Some(names);
}

/// Notes in the layout which files lie behind others. Returns it if that is news.
fn note(catalog: &Catalog, is_behind: impl Fn(FileId) -> bool) -> Option<Arc<Layout>> {
    loop {
        let before = catalog.layout();
        let mut later = Layout::clone(&before);
        if !later.set_neighbours(&is_behind) {
            return None;
        }
        let mut tree = catalog.write();
        // Others may have changed it meanwhile.
        if Arc::ptr_eq(&tree.layout, &before) {
            tree.layout = Arc::new(later);
            return Some(Arc::clone(&tree.layout));
        }
    }
}

/// Asks of each file whether it lies right behind the one before it. `None` if the files of the source lie by themselves.
fn ask(catalog: &Catalog) -> Option<Vec<bool>> {
    let mut all = vec![false; catalog.read().tables.rows.len()];
    for nth in 0.. {
        let Some((path, files)) = named(&catalog.read(), nth) else { break };
        let (files, names): (Vec<FileId>, Vec<OsString>) = files.into_iter().unzip();
        let behind = catalog.source.lie_behind(&path, &names)?;
        for (pair, is_behind) in files.windows(2).zip(behind.into_iter().skip(1)) {
            if is_behind && pair[0].0 + 1 == pair[1].0 && pair[1].index() < all.len() {
                all[pair[1].index()] = true;
            }
        }
    }
    Some(all)
}

/// The path of the nth directory, and its names in the order of their numbers; `None` behind the last one.
fn named(tree: &Tree, nth: usize) -> Option<(PathBuf, Vec<(FileId, OsString)>)> {
    let directory = tree.tables.directories.get(nth)?.file;
    let mut rows: Vec<FileId> = match tree.entries(directory) {
        Ok(rows) if tree.is_there(directory) => rows.filter(|row| tree.is_there(*row)).collect(),
        _ => Vec::new(),
    };
    rows.sort_unstable();
    let named = |row: FileId| (row, tree.name(row).to_os_string());
    Some((tree.path(directory), rows.into_iter().map(named).collect()))
}
