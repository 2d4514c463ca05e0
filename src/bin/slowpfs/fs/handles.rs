//! Open files and directories.

use std::collections::HashMap;
use std::fs::File;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use fuser::{Errno, FileHandle};

use super::source::Entry;
use crate::locked;

#[derive(Debug)]
pub(crate) enum Handle {
    /// A file of the source.
    File {
        file: File,
        /// The kernel's number of its inode.
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

/// All open files and directories, by the kernel's number.
#[derive(Debug, Default)]
pub(crate) struct Handles {
    open: Mutex<HashMap<u64, Arc<Handle>>>,
    last: AtomicU64,
}

impl Handles {
    /// Stores `handle` under a new number. Numbers are never reused.
    pub(crate) fn add(&self, handle: Handle) -> FileHandle {
        let number = self.last.fetch_add(1, Relaxed) + 1;
        locked(&self.open).insert(number, Arc::new(handle));
        FileHandle(number)
    }

    pub(crate) fn get(&self, number: FileHandle) -> Result<Arc<Handle>, Errno> {
        locked(&self.open).get(&number.0).cloned().ok_or(Errno::EBADF)
    }

    /// An open file of an inode, whatever its name is.
    pub(crate) fn of_inode(&self, number: u64) -> Option<Arc<Handle>> {
        let is_it = |handle: &&Arc<Handle>| matches!(&***handle, Handle::File { ino, .. } if *ino == number);
        locked(&self.open).values().find(is_it).cloned()
    }

    /// Removes a handle, and returns it.
    pub(crate) fn remove(&self, number: FileHandle) -> Option<Arc<Handle>> {
        locked(&self.open).remove(&number.0)
    }
}
