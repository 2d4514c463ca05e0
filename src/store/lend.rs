//! Large files that are all there, lent to those who read them by themselves.
//!
//! The kernel can read such a file in the daemon's stead (passthrough). Then nobody looks at
//! checksums any more, so all of them are compared before, once a mount, and again where something of
//! the file was given up and has come back: the one exception to comparing each read. What the disk
//! damages after that reaches the reader, as its errors do; who chooses that mode takes it so.
//!
//! As long as somebody holds the file, nothing in it is punched or written: what is given up of it is
//! punched later, and what comes back goes to another file.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Files that can be lent at once: each is a descriptor.
pub(super) const LENDABLE_MAX: usize = 128;

/// A large file that is all there, to be read from its start to its end; its bytes stay as long as
/// it is held.
pub struct Lent(pub(super) OwnedFd);

impl AsFd for Lent {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
