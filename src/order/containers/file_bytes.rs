//! The bytes of a container.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::order::grouped;
use crate::order::samplers::wrong;

/// Reads a range of a file. The bytes are fewer if the file ends before.
pub type ReadRange = Arc<dyn Fn(Range<u64>) -> Result<Vec<u8>> + Send + Sync>;

/// Longer reads are refused: no index of a file is as long.
const READ_MAX: u64 = 256 << 20;

/// The bytes of a file, which are read piece by piece. Cheap to clone.
#[derive(Clone)]
pub struct FileBytes {
    size: u64,
    read: ReadRange,
}

impl fmt::Debug for FileBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileBytes").field("size", &self.size).finish_non_exhaustive()
    }
}

impl FileBytes {
    /// A file of `size` bytes.
    pub fn new(size: u64, read: ReadRange) -> Self {
        FileBytes { size, read }
    }

    /// In bytes.
    pub(super) fn size(&self) -> u64 {
        self.size
    }

    /// All bytes of a range.
    ///
    /// # Errors
    /// If the file ends before the range does, if the range is too long, or if the file cannot be read.
    pub(super) fn read(&self, range: Range<u64>) -> Result<Vec<u8>> {
        let Range { start, end } = range;
        let length = end.saturating_sub(start);
        if end > self.size || start > end {
            return Err(self.is_cut(format!("bytes {start} to {end} are missing")));
        }
        if length > READ_MAX {
            return Err(wrong(format!("its index at byte {start} has {} bytes", grouped(length))));
        }
        if length == 0 {
            return Ok(Vec::new());
        }
        let bytes = (self.read)(range)?;
        if bytes.len() as u64 != length {
            return Err(wrong(format!(
                "it cannot be read: bytes {start} to {end} are not all there"
            )));
        }
        Ok(bytes)
    }

    /// So many bytes from a place on.
    pub(super) fn read_at(&self, start: u64, length: u64) -> Result<Vec<u8>> {
        self.read(start..start.saturating_add(length))
    }

    /// An array of bytes from a place on.
    pub(super) fn array<const N: usize>(&self, start: u64) -> Result<[u8; N]> {
        let bytes = self.read_at(start, N as u64)?;
        bytes.try_into().map_err(|_| wrong(format!("bytes from {start} on are missing")))
    }

    /// The error of a file that should be longer.
    pub(super) fn is_cut(&self, what: String) -> Error {
        wrong(format!("{what}, and it has {} bytes", self.size))
            .hint("was it cut off while it was copied?")
    }
}
