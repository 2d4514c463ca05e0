//! Flags of files: the kernel may open a file without a request if the planner says so, and if nothing of the
//! file was fetched yet. Then the first read is a request, and shows the reader as well as an open would.

use crate::catalog::Bits;
use crate::ids::FileId;

/// The flags of all files.
#[derive(Default)]
pub struct FileFlags {
    /// Whether the file may be opened without a request.
    pub untracked: Bits,
    /// Whether something of the file has been fetched for RAM, so that there may be pages of it.
    pub fetched: Bits,
    /// Whether readers of the file get the pages that they ask for, and no whole blocks.
    pub in_parts: Bits,
}

impl FileFlags {
    /// Notes that something of a file is fetched. Says whether that is so for the first time.
    pub(super) fn note_fetch(&self, file: FileId) -> bool {
        !self.fetched.has(file) && !self.fetched.set(file, true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_tracked_until_it_is_untracked() {
        let flags = FileFlags::default();
        assert!(!flags.untracked.has(FileId(70)));
        flags.untracked.set(FileId(70), true);
        assert!(flags.untracked.has(FileId(70)) && !flags.untracked.has(FileId(6)));
        flags.untracked.set(FileId(70), false);
        assert!(!flags.untracked.has(FileId(70)));
    }

    #[test]
    fn a_file_is_fetched_for_the_first_time_once() {
        let flags = FileFlags::default();
        assert!(!flags.fetched.has(FileId(70)));
        assert!(flags.note_fetch(FileId(70)) && !flags.note_fetch(FileId(70)));
        assert!(flags.fetched.has(FileId(70)) && !flags.fetched.has(FileId(71)));
        assert!(flags.note_fetch(FileId(71)));
    }
}
