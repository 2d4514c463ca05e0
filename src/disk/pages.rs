//! Memory that a disk can read into.

use std::any::Any;
use std::ops::Deref;

use super::spare::{let_go, memory_for};
use crate::ids::PAGE_BYTES;

/// Bytes in memory that a disk can read into past the page cache: whole pages at a page boundary. Bytes
/// from elsewhere keep their place in memory.
pub struct Buffer {
    memory: Vec<u8>,
    start: usize,
    length: usize,
    /// A value that is dropped with the memory, such as an account's charge for it.
    _held: Option<Box<dyn Any + Send + Sync>>,
}

impl Buffer {
    /// Zeroed memory for `length` bytes.
    pub fn pages(length: usize) -> Self {
        let whole = length.next_multiple_of(PAGE_BYTES as usize);
        let mut memory = memory_for(whole + PAGE_BYTES as usize);
        memory.resize(whole + PAGE_BYTES as usize, 0);
        let start = memory.as_ptr().align_offset(PAGE_BYTES as usize);
        Buffer { memory, start, length, _held: None }
    }

    /// The same bytes. `held` lives as long as they are in memory.
    pub fn holding(mut self, held: impl Any + Send + Sync) -> Self {
        self._held = Some(Box::new(held));
        self
    }

    /// All of the pages, including the end of the last one.
    pub fn pages_mut(&mut self) -> &mut [u8] {
        let whole = self.length.next_multiple_of(PAGE_BYTES as usize);
        &mut self.memory[self.start..self.start + whole]
    }
}

impl From<Vec<u8>> for Buffer {
    fn from(memory: Vec<u8>) -> Self {
        let length = memory.len();
        Buffer { memory, start: 0, length, _held: None }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let_go(std::mem::take(&mut self.memory));
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.memory[self.start..self.start + self.length]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_whole_and_aligned() {
        for length in [0, 1, 4095, 4096, 4097] {
            let mut buffer = Buffer::pages(length);
            assert_eq!(buffer.len(), length);
            assert_eq!(buffer.pages_mut().len(), length.next_multiple_of(4096));
            assert_eq!(buffer.pages_mut().as_ptr() as usize % 4096, 0);
        }
        assert_eq!(&*Buffer::from(vec![1, 2]), &[1, 2]);
    }
}
