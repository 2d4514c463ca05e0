//! Lends complete large files to readers outside of the daemon.
//!
//! The kernel can read such a file instead of the daemon (passthrough). Then checksums are no longer
//! compared. So all blocks are compared before, once a mount, and again if a block was removed and has come
//! back. This is the one exception to comparing each read. Damage by the disk after that, and its errors,
//! reach the reader: this mode accepts that.
//!
//! While a file is held, nothing in it is punched or written. Removed blocks are punched later, and blocks
//! that come back go to another file.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Limit of files that can be lent at once: each is a descriptor.
pub(super) const LENDABLE_MAX: usize = 128;

/// A complete large file, to be read from start to end. Its bytes stay while this value lives.
pub struct Lent(pub(super) OwnedFd);

impl AsFd for Lent {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
