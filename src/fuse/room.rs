//! Memory for what is written to control files and views: one account of all that was not taken yet.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use nix::errno::Errno;

/// Bytes of all files together, however much memory there is: an order of 10^7 paths.
pub(super) const BYTES_MAX: usize = 2 << 30;

/// Bytes until the first look at what fits.
const BYTES_AT_FIRST: usize = 8 << 20;

/// Bytes that are written and not taken yet, or are being taken.
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
    /// Has room for so many bytes from now on.
    pub fn resize(&self, most: usize) {
        self.most.store(most.min(BYTES_MAX), Ordering::Relaxed);
    }

    /// Bytes that are taken up.
    #[cfg(test)]
    pub(super) fn taken(&self) -> usize {
        self.taken.load(Ordering::Relaxed)
    }

    /// A share of no bytes.
    pub(super) fn share(self: &Arc<Self>) -> Share {
        Share { room: Arc::clone(self), bytes: 0 }
    }
}

/// The room that some bytes take, as long as it is kept.
pub(super) struct Share {
    room: Arc<Room>,
    bytes: usize,
}

impl Share {
    /// Takes room for so many bytes more.
    ///
    /// # Errors
    /// `ENOSPC` where there is none.
    pub(super) fn grow(&mut self, bytes: usize) -> Result<(), Errno> {
        let most = self.room.most.load(Ordering::Relaxed);
        let grown = |taken: usize| taken.checked_add(bytes).filter(|taken| *taken <= most);
        let taken = self.room.taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, grown);
        taken.map_err(|_| Errno::ENOSPC)?;
        self.bytes += bytes;
        Ok(())
    }

    /// Splits off what so many of its bytes take.
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
