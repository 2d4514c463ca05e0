//! The bytes of a container.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::order::grouped;
use crate::order::samplers::wrong;

/// Reads a range of a file. The bytes are fewer if the file ends before.
pub type ReadRange = Arc<dyn Fn(Range<u64>) -> Result<Vec<u8>> + Send + Sync>;

/// Longer reads are refused. The offsets of as many samples as an order has take less.
const READ_MAX: u64 = 129 << 20;

/// The file is asked for so many bytes at most at once.
const PIECE_MAX: u64 = 8 << 20;

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
            return Err(wrong(format!(
                "its index has {} bytes at byte {start}, which is too much",
                grouped(length)
            )));
        }
        let mut bytes = Vec::new();
        for from in (start..end).step_by(PIECE_MAX as usize) {
            let piece = from..end.min(from + PIECE_MAX);
            let read = (self.read)(piece.clone())?;
            if read.len() as u64 != piece.end - piece.start {
                let Range { start, end } = piece;
                return Err(wrong(format!("bytes {start} to {end} cannot all be read")));
            }
            if bytes.is_empty() { bytes = read } else { bytes.extend_from_slice(&read) }
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
