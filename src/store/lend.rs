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
use std::sync::Arc;

use super::{Found, Key, Store};

/// Files that can be lent at once: each is a descriptor.
const LENDABLE_MAX: usize = 128;

/// A large file that is all there, to be read from its start to its end; its bytes stay as long as
/// it is held.
pub struct Lent(pub(super) OwnedFd);

impl AsFd for Lent {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Store {
    /// The file that has this first block, if it [can be lent](Self::make_lendable). Never blocks.
    pub fn lent(&self, first: Key) -> Option<Arc<Lent>> {
        if self.reads_hang() || !self.health.is_up() {
            return None;
        }
        let index = self.read();
        let at = index.entries.get(&first)?;
        index.lent.get(&at.segment).cloned()
    }

    /// Makes a large file of `length` bytes one that can be lent, if these are all of its blocks and
    /// all are there and right; says whether. Reads all of it, once. Blocks.
    pub fn make_lendable(&self, blocks: &[Key], length: u64) -> bool {
        let Some(holder) = self.holder_of_all(blocks) else { return false };
        let compared = self.read().compared.contains(&holder);
        if !compared && blocks.iter().any(|key| !matches!(self.get(*key), Found::Whole(_))) {
            return false;
        }
        // Who holds it is the only one who changes what is where.
        let mut writer = self.writer();
        if self.holder_of_all(blocks) != Some(holder) {
            return false;
        }
        let lent = match writer.segments.lend(holder, length) {
            Ok(Some(lent)) => lent,
            Ok(None) => return false,
            Err(error) => {
                tracing::debug!(%error, "a large file cannot be lent");
                return false;
            }
        };
        let mut index = self.write();
        if index.lent.len() >= LENDABLE_MAX
            && let Some(other) = index.lent.keys().next().copied()
        {
            index.lent.remove(&other);
        }
        index.lent.insert(holder, lent);
        index.compared.insert(holder);
        true
    }

    /// The number of the file that all of these are in, if it is one.
    fn holder_of_all(&self, blocks: &[Key]) -> Option<u32> {
        let index = self.read();
        let mut holders = blocks.iter().map(|key| Some(index.entries.get(key)?.segment));
        let first = holders.next()??;
        holders.all(|holder| holder == Some(first)).then_some(first)
    }
}
