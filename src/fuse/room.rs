//! The memory account of bytes that were written to control files and views and are not taken yet.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use nix::errno::Errno;

/// Limit for all files together, however much memory there is. It holds an order of 10^7 paths.
pub(super) const BYTES_MAX: usize = 2 << 30;

/// Limit in bytes until the first [`Room::resize`].
const BYTES_AT_FIRST: usize = 8 << 20;

/// The account. Bytes stay charged while they are being taken.
pub struct Room {
    most: AtomicUsize,
    taken: AtomicUsize,
}

impl Default for Room {
    fn default() -> Self {
        Room { most: AtomicUsize::new(BYTES_AT_FIRST), taken: AtomicUsize::default() }
    }
}

impl Room {
    pub fn resize(&self, most: usize) {
        self.most.store(most.min(BYTES_MAX), Ordering::Relaxed);
    }

    #[cfg(test)]
    pub(super) fn taken(&self) -> usize {
        self.taken.load(Ordering::Relaxed)
    }

    pub(super) fn share(self: &Arc<Self>) -> Share {
        Share { room: Arc::clone(self), bytes: 0 }
    }
}

/// A part of the account, given back when this is dropped.
pub(super) struct Share {
    room: Arc<Room>,
    bytes: usize,
}

impl Share {
    /// Charges further bytes.
    ///
    /// # Errors
    /// `ENOSPC` if the limit leaves no room for them.
    pub(super) fn grow(&mut self, bytes: usize) -> Result<(), Errno> {
        let most = self.room.most.load(Ordering::Relaxed);
        let grown = |taken: usize| taken.checked_add(bytes).filter(|taken| *taken <= most);
        let taken = self.room.taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, grown);
        taken.map_err(|_| Errno::ENOSPC)?;
        self.bytes += bytes;
        Ok(())
    }

    /// Splits off the charge of this number of bytes.
    pub(super) fn split(&mut self, bytes: usize) -> Share {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        Share { room: Arc::clone(&self.room), bytes }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.room.taken.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}
