//! Complete large files that the kernel reads by itself (passthrough).
//!
//! While the kernel reads a file instead of the daemon, checksums are not compared. So all blocks are
//! compared before, once a mount, and again if a block was removed and has come back. This is the one
//! exception to comparing each read. Damage by the disk after that, and its errors, reach the reader: this
//! mode accepts that.
//!
//! While the kernel has a file open, nothing in it is punched or written. Removed blocks are punched later,
//! and blocks that come back go to another file.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Limit of files that are prepared at once: each is a descriptor.
pub(super) const PASSTHROUGH_MAX: usize = 128;

/// A complete large file, to be read from start to end. Its bytes stay while this value lives.
pub struct PassthroughFile(pub(super) OwnedFd);

impl AsFd for PassthroughFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
