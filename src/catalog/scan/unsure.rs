//! Names of which the source says nothing but that they are there.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use nix::errno::Errno;

use super::super::row::{is_unsure, unsure};
use super::{Found, Scan, is_certain};
use crate::ids::FileId;
use crate::source::{Kind, Stat};

/// Of single names the source may be unable to say what they stand for: of so many, or of one in so
/// many. Beyond that it is the source that fails.
const UNSURE_MAX: usize = 64;
const UNSURE_SHARE: usize = 16;

/// Whether the source cannot say what names stand for of too many of so many.
pub(in crate::catalog) fn too_many_are(unsure: usize, names: usize) -> bool {
    unsure > UNSURE_MAX.max(names / UNSURE_SHARE)
}

/// What is known of a name by the answer of the source; none where it is certainly not there, or not
/// for us.
pub(in crate::catalog) fn told(answer: Result<Stat, Errno>) -> Option<Stat> {
    match answer {
        Ok(stat) => Some(stat),
        Err(errno) => (!is_certain(errno)).then(|| unsure(Kind::File)),
    }
}

impl Scan<'_> {
    /// Asks for what the source could not tell of the names of a directory that is known.
    pub(super) fn ask_again(&self, row: FileId, path: &Path) {
        let (node, names) = {
            let tree = self.catalog.read();
            let unsure = tree.entries(row).into_iter().flatten().filter(|row| tree.is_unsure(*row));
            let names: Vec<OsString> = unsure.map(|row| tree.name(row).to_os_string()).collect();
            (tree.node(row), names)
        };
        for name in names {
            match self.catalog.refresh(node, &name) {
                Ok(changes) => (self.report)(changes),
                Err(errno) => {
                    let tree = self.catalog.read();
                    let entry = tree.entry(row, &name);
                    let is_directory = entry.is_some_and(|entry| tree.is_directory(entry));
                    drop(tree);
                    self.unsure(path.join(name), is_directory, errno);
                }
            }
        }
    }

    /// The source cannot say what a name stands for.
    fn unsure(&self, path: PathBuf, is_directory: bool, errno: Errno) {
        if is_directory {
            return self.fault(path, errno);
        }
        self.lock().unsure += 1;
        self.catalog.scan.change(|status| {
            status.unsure.get_or_insert_with(|| {
                tracing::warn!(?path, %errno, "the source does not say what this is, nor perhaps others");
                (path, errno)
            });
        });
    }

    /// Finds out the kinds of names that say nothing for themselves. Where the listing does not tell them
    /// either, nothing of the directory is added.
    pub(super) fn kinds(&self, path: &Path, found: &mut Option<Found>) {
        let Some(Found { names, entries, silent: Some(errno), .. }) = found else { return };
        let kinds = self.catalog.source.listed_kinds(path);
        let mut all = true;
        for (name, stat) in entries.iter_mut().filter(|(_, stat)| is_unsure(stat)) {
            let name = names.get(*name);
            match kinds.get(name) {
                Some(kind) => {
                    *stat = unsure(*kind);
                    self.unsure(path.join(name), *kind == Kind::Directory, *errno);
                }
                None => all = false,
            }
        }
        if !all {
            self.fault(path.to_path_buf(), *errno);
            *found = None;
        }
    }
}
