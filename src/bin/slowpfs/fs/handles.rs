//! What is open.

use std::collections::HashMap;
use std::fs::File;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use fuser::{Errno, FileHandle};

use super::source::Entry;
use crate::locked;

/// An open file or directory.
#[derive(Debug)]
pub(crate) enum Handle {
    /// A file of the source.
    File {
        /// The file.
        file: File,
        /// The number the kernel has for its inode.
        ino: u64,
        /// Its path when it was opened.
        path: Arc<Path>,
    },
    /// A directory of the source.
    Dir {
        /// Its path when it was opened.
        path: Arc<Path>,
        /// Its entries when it was last read from the beginning.
        entries: Mutex<Arc<Vec<Entry>>>,
    },
    /// A virtual file, with its content when it was opened.
    Text(String),
    /// The directory of the virtual files.
    ControlDir,
}

/// All that is open, by the number the kernel has for it.
#[derive(Debug, Default)]
pub(crate) struct Handles {
    open: Mutex<HashMap<u64, Arc<Handle>>>,
    last: AtomicU64,
}

impl Handles {
    /// Keeps `handle`, and numbers it. A number is never used twice.
    pub(crate) fn add(&self, handle: Handle) -> FileHandle {
        let number = self.last.fetch_add(1, Relaxed) + 1;
        locked(&self.open).insert(number, Arc::new(handle));
        FileHandle(number)
    }

    /// The handle with a number.
    pub(crate) fn get(&self, number: FileHandle) -> Result<Arc<Handle>, Errno> {
        locked(&self.open).get(&number.0).cloned().ok_or(Errno::EBADF)
    }

    /// An open file of an inode, whatever its name is by now.
    pub(crate) fn of_inode(&self, number: u64) -> Option<Arc<Handle>> {
        let is_it = |handle: &&Arc<Handle>| matches!(&***handle, Handle::File { ino, .. } if *ino == number);
        locked(&self.open).values().find(is_it).cloned()
    }

    /// Forgets a handle, and returns it.
    pub(crate) fn remove(&self, number: FileHandle) -> Option<Arc<Handle>> {
        locked(&self.open).remove(&number.0)
    }
}
