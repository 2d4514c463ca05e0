//! Which files the kernel may open without asking: as the planner says, and those of which nothing was
//! fetched yet. Their first read is a request, and shows the reader as well as an open would.

use std::sync::Arc;

use super::Cache;
use crate::catalog::Bits;
use crate::ids::FileId;
use crate::source::Urgency;

/// What is known of each file.
#[derive(Default)]
pub struct FileFlags {
    untracked: Bits,
    fetched: Bits,
    in_parts: Bits,
}

impl FileFlags {
    /// Whether a file may be opened without a request.
    pub fn is_untracked(&self, file: FileId) -> bool {
        self.untracked.has(file)
    }

    /// Whether something of a file has been fetched, so that there may be pages of it.
    pub fn is_fetched(&self, file: FileId) -> bool {
        self.fetched.has(file)
    }

    /// Whether readers of a file get the pages that they ask for, and no whole blocks.
    pub fn is_in_parts(&self, file: FileId) -> bool {
        self.in_parts.has(file)
    }

    /// Readers of a file get the pages that they ask for, or whole blocks.
    pub fn divide(&self, file: FileId, on: bool) {
        self.in_parts.set(file, on);
    }

    fn set(&self, file: FileId, untracked: bool) {
        self.untracked.set(file, untracked);
    }

    /// Something of a file is being fetched. Says whether that is so for the first time.
    fn note_fetch(&self, file: FileId) -> bool {
        !self.fetched.has(file) && !self.fetched.set(file, true)
    }
}

impl Cache {
    /// Lets a file be opened without asking, or each of its opens be seen.
    pub fn set_untracked(self: &Arc<Self>, file: FileId, untracked: bool) {
        self.file_flags.set(file, untracked);
        if !untracked {
            self.expire(file);
        }
    }

    /// A flight of a file begins: from now on its opens are to be seen, since there may be pages of it.
    pub(super) fn begin_fetch(self: &Arc<Self>, file: Option<FileId>) {
        if let Some(file) = file.filter(|file| self.file_flags.note_fetch(*file))
            && !self.file_flags.is_untracked(file)
        {
            self.expire(file);
        }
    }

    /// Has the kernel look a file up at its next open, unless it is untracked by then.
    fn expire(self: &Arc<Self>, file: FileId) {
        let Some((node, parent, name)) = self.catalog.name(file) else { return };
        let cache = Arc::clone(self);
        self.expire_pool.submit(Urgency::Prefetch, parent, move || {
            if !cache.file_flags.is_untracked(file)
                && let Some(pages) = cache.pages.get()
            {
                pages.expire(node, parent, &name);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_tracked_until_it_is_untracked() {
        let flags = FileFlags::default();
        assert!(!flags.is_untracked(FileId(70)));
        flags.set(FileId(70), true);
        assert!(flags.is_untracked(FileId(70)) && !flags.is_untracked(FileId(6)));
        flags.set(FileId(70), false);
        assert!(!flags.is_untracked(FileId(70)));
    }

    #[test]
    fn a_file_is_fetched_for_the_first_time_once() {
        let flags = FileFlags::default();
        assert!(!flags.is_fetched(FileId(70)));
        assert!(flags.note_fetch(FileId(70)) && !flags.note_fetch(FileId(70)));
        assert!(flags.is_fetched(FileId(70)) && !flags.is_fetched(FileId(71)));
        assert!(flags.note_fetch(FileId(71)));
    }
}
