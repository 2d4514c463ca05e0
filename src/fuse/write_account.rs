//! The memory account of bytes that were written to control files and views and are not taken yet.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use nix::errno::Errno;

/// Limit for all files together, however much memory there is. It holds an order of 10^7 paths.
pub(super) const BYTES_MAX: usize = 2 << 30;

/// Limit in bytes until the first [`WriteAccount::resize`].
const BYTES_AT_FIRST: usize = 8 << 20;

/// The account. Bytes stay charged while they are being taken.
pub struct WriteAccount {
    most: AtomicUsize,
    charged: AtomicUsize,
}

impl Default for WriteAccount {
    fn default() -> Self {
        WriteAccount { most: AtomicUsize::new(BYTES_AT_FIRST), charged: AtomicUsize::default() }
    }
}

impl WriteAccount {
    pub fn resize(&self, most: usize) {
        self.most.store(most.min(BYTES_MAX), Ordering::Relaxed);
    }

    #[cfg(test)]
    pub(super) fn charged(&self) -> usize {
        self.charged.load(Ordering::Relaxed)
    }

    /// A charge of no bytes yet.
    pub(super) fn charge(self: &Arc<Self>) -> WriteCharge {
        WriteCharge { account: Arc::clone(self), bytes: 0 }
    }
}

/// A part of the account, given back when this is dropped.
pub(super) struct WriteCharge {
    account: Arc<WriteAccount>,
    bytes: usize,
}

impl WriteCharge {
    /// Charges further bytes.
    ///
    /// # Errors
    /// `ENOSPC` if the limit leaves no room for them.
    pub(super) fn grow(&mut self, bytes: usize) -> Result<(), Errno> {
        let most = self.account.most.load(Ordering::Relaxed);
        let grown = |charged: usize| charged.checked_add(bytes).filter(|charged| *charged <= most);
        let charged =
            self.account.charged.fetch_update(Ordering::Relaxed, Ordering::Relaxed, grown);
        charged.map_err(|_| Errno::ENOSPC)?;
        self.bytes += bytes;
        Ok(())
    }

    /// Splits off the charge of this number of bytes.
    pub(super) fn split(&mut self, bytes: usize) -> WriteCharge {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        WriteCharge { account: Arc::clone(&self.account), bytes }
    }
}

impl Drop for WriteCharge {
    fn drop(&mut self) {
        self.account.charged.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}
