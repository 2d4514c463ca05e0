//! The codes beside a buffer: what a trainer appends, and what of it was refused.

use std::io::ErrorKind;
use std::sync::Arc;

use nix::errno::Errno;
use serde_json::{Value, json};

use super::answers::Refusals;
use crate::rehearsal::{CodeStore, Shelf};

/// Codes, and what came of those that were written.
pub(super) struct Latent {
    store: CodeStore,
    /// Codes that were taken in this mount, and appends that were not.
    appended: u64,
    refused: Refusals,
    /// It was said that the disk does not take what is written.
    warned: bool,
}

impl Latent {
    pub(super) fn new(store: CodeStore) -> Latent {
        Latent { store, appended: 0, refused: Refusals::default(), warned: false }
    }

    /// The codes, for readers.
    pub(super) fn shelf(&self) -> &Arc<Shelf> {
        self.store.shelf()
    }

    /// Takes codes, all of them or none. They are written then. Says how many.
    ///
    /// # Errors
    /// `EINVAL` where they are not whole codes, else the disk's.
    pub(super) fn append(&mut self, bytes: &[u8]) -> Result<usize, Errno> {
        let came = self.store.append(bytes);
        came.inspect(|count| self.appended += *count as u64).map_err(|error| {
            self.refused.note("latent/append", &error.to_string());
            match error.kind() {
                ErrorKind::InvalidInput => Errno::EINVAL,
                _ => error.raw_os_error().map_or(Errno::EIO, Errno::from_raw),
            }
        })
    }

    /// Makes what was written last.
    ///
    /// # Errors
    /// The disk's, of which is said once that they are there.
    pub(super) fn sync(&mut self) -> std::io::Result<()> {
        let result = self.store.sync();
        if let Err(error) = &result
            && !self.warned
        {
            tracing::warn!(%error, "codes of a rehearsal buffer may not last");
        }
        self.warned = result.is_err();
        result
    }

    /// Whether everything that was taken lasts.
    pub(super) fn lasts(&self) -> bool {
        self.store.lasts()
    }

    /// How many codes there are, and what was refused.
    pub(super) fn stats(&self) -> Value {
        let shelf = self.shelf();
        json!({
            "codes": shelf.len(),
            "bytes_each": shelf.bytes(),
            "bytes_on_disk": self.store.length(),
            "appended": self.appended,
            "refused": self.refused.count,
            "why": self.refused.why,
        })
    }
}
