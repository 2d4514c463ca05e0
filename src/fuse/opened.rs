//! What is open of the views, by number.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use fuser::FileHandle;

use super::writing::Writing;
use crate::disk::journal::Pinned;
use crate::rehearsal::CodeFile;
use crate::rehearsal::views::Entry;
use crate::sync::{Mutex, MutexGuard};

/// Bytes of a sample that is read by the thread that was asked: of a larger one others would wait for it.
const AT_ONCE_MAX: u32 = 256 << 10;

/// A file that is open.
pub(super) struct Open {
    pinned: Pinned,
    /// Its bytes, once they were needed.
    bytes: OnceLock<Vec<u8>>,
}

impl Open {
    pub(super) fn new(pinned: Pinned) -> Self {
        Open { pinned, bytes: OnceLock::new() }
    }

    /// Its bytes, where nobody has to wait for them: a sample is read ahead of its opening.
    pub(super) fn bytes_now(&self) -> Option<&[u8]> {
        if self.bytes.get().is_none() && self.pinned.length() <= AT_ONCE_MAX {
            let _ = self.bytes.set(self.pinned.read_now()?);
        }
        self.bytes.get().map(Vec::as_slice)
    }

    /// Its bytes, read where nobody has needed them yet. Blocks then.
    pub(super) fn bytes(&self) -> std::io::Result<&[u8]> {
        if self.bytes.get().is_none() {
            // Of two that read at once the first one's are kept.
            let _ = self.bytes.set(self.pinned.read()?);
        }
        Ok(self.bytes.get().map_or(&[], Vec::as_slice))
    }
}

#[derive(Clone)]
pub(super) enum Handle {
    Scores(Arc<Writing>),
    Append(Arc<Writing>),
    Codes(Arc<CodeFile>),
    Listing(Arc<Vec<(String, Entry)>>),
    File(Arc<Open>),
}

/// What is open, by number.
#[derive(Default)]
pub(super) struct Handles {
    open: Mutex<HashMap<u64, Handle>>,
    last: AtomicU64,
}

impl Handles {
    pub(super) fn open(&self) -> MutexGuard<'_, HashMap<u64, Handle>> {
        self.open.lock()
    }

    pub(super) fn keep(&self, handle: Handle) -> FileHandle {
        let number = self.last.fetch_add(1, Ordering::Relaxed) + 1;
        self.open().insert(number, handle);
        FileHandle(number)
    }
}
