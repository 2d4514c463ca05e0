//! The codes beside a buffer, with counts of the taken and refused ones.

use std::io::ErrorKind;
use std::sync::Arc;

use nix::errno::Errno;

use super::{CodeReader, CodeReport, CodeStore, Refusals};

pub(super) struct BufferCodes {
    store: CodeStore,
    /// How many codes were taken in this mount.
    appended: u64,
    refused: Refusals,
    /// A warning was logged that codes cannot be synced, and they still cannot.
    warned: bool,
}

impl BufferCodes {
    pub(super) fn new(store: CodeStore) -> BufferCodes {
        BufferCodes { store, appended: 0, refused: Refusals::default(), warned: false }
    }

    pub(super) fn reader(&self) -> &Arc<CodeReader> {
        self.store.reader()
    }

    /// Takes and writes codes: all of them, or none on an error. Returns how many.
    ///
    /// # Errors
    /// `EINVAL` if they are not whole codes, else the disk's.
    pub(super) fn append(&mut self, bytes: &[u8]) -> Result<usize, Errno> {
        let taken = self.store.append(bytes);
        taken.inspect(|count| self.appended += *count as u64).map_err(|error| {
            self.refused.note("latent/append", &error.to_string());
            match error.kind() {
                ErrorKind::InvalidInput => Errno::EINVAL,
                _ => error.raw_os_error().map_or(Errno::EIO, Errno::from_raw),
            }
        })
    }

    /// Syncs the codes.
    ///
    /// # Errors
    /// The disk's. Only the first of several in a row is logged.
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

    pub(super) fn lasts(&self) -> bool {
        self.store.lasts()
    }

    pub(super) fn report(&self) -> CodeReport {
        let reader = self.reader();
        CodeReport {
            codes: reader.len(),
            bytes_each: reader.bytes,
            bytes_on_disk: self.store.length(),
            appended: self.appended,
            refused: self.refused.clone(),
        }
    }
}
