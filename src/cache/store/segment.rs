//! One file of the local store, written from its start to its end.
//!
//! Records are whole pages at page boundaries, so that they can be written and read past the page
//! cache (`O_DIRECT`), where a second copy would count against the memory that samples need, and so
//! that their space can be given back. Filesystems that cannot do so are used by way of the page
//! cache.

use std::fs::{File, OpenOptions, remove_file};
use std::io::{Error, ErrorKind, Result};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

use nix::fcntl::{FallocateFlags, PosixFadviseAdvice, fallocate, posix_fadvise};

use crate::catalog::NodeId;
use crate::ids::{BlockId, PAGE_BYTES};

/// Marks the start of a record.
const MAGIC: u32 = 0x4c45_4231;

/// Magic, checksum, block, length, node.
const HEADER_BYTES: u64 = 24;

/// A buffer for one record that starts at a page boundary of memory, as `O_DIRECT` wants it.
struct Pages {
    buffer: Vec<u8>,
    length: usize,
}

impl Pages {
    fn new(length: u64) -> Self {
        let length = space(length) as usize;
        Pages { buffer: vec![0; length + PAGE_BYTES as usize], length }
    }

    fn get(&mut self) -> &mut [u8] {
        let start = self.buffer.as_ptr().align_offset(PAGE_BYTES as usize);
        &mut self.buffer[start..start + self.length]
    }
}

/// An append-only file of records, each a number of whole pages.
#[derive(Debug)]
pub(super) struct Segment {
    file: File,
    path: PathBuf,
    end: AtomicU64,
    records: AtomicU64,
}

fn space(length: u64) -> u64 {
    (HEADER_BYTES + length).next_multiple_of(PAGE_BYTES)
}

fn header(block: BlockId, node: NodeId, bytes: &[u8]) -> [u8; HEADER_BYTES as usize] {
    let mut header = [0; HEADER_BYTES as usize];
    header[..4].copy_from_slice(&MAGIC.to_le_bytes());
    header[8..12].copy_from_slice(&block.0.to_le_bytes());
    header[12..16].copy_from_slice(&(bytes.len() as u32).to_le_bytes());
    header[16..].copy_from_slice(&node.0.to_le_bytes());
    let checksum = crc32c::crc32c_append(crc32c::crc32c(&header[8..]), bytes);
    header[4..8].copy_from_slice(&checksum.to_le_bytes());
    header
}

impl Segment {
    pub(super) fn create(path: PathBuf) -> Result<Self> {
        let open = |flags| {
            let mut options = OpenOptions::new();
            options.read(true).write(true).create_new(true).mode(0o600);
            options.custom_flags(flags).open(&path)
        };
        let file = match open(nix::libc::O_DIRECT) {
            // The name may have been made before the flag was refused.
            Err(error) if error.raw_os_error() == Some(nix::libc::EINVAL) => {
                let _ = remove_file(&path);
                open(0)?
            }
            opened => opened?,
        };
        Ok(Segment { file, path, end: AtomicU64::new(0), records: AtomicU64::new(0) })
    }

    /// Room for a record of `length` bytes, unless the segment has reached `limit`.
    pub(super) fn reserve(&self, length: usize, limit: u64) -> Option<u64> {
        let grow = |end: u64| (end < limit).then(|| end + space(length as u64));
        let offset = self.end.fetch_update(Ordering::AcqRel, Ordering::Acquire, grow).ok()?;
        self.records.fetch_add(1, Ordering::AcqRel);
        Some(offset)
    }

    /// Writes a record into room that was reserved; room that could not be filled is given up.
    pub(super) fn write(
        &self,
        block: BlockId,
        node: NodeId,
        offset: u64,
        bytes: &[u8],
    ) -> Result<()> {
        let mut pages = Pages::new(bytes.len() as u64);
        let record = pages.get();
        record[..HEADER_BYTES as usize].copy_from_slice(&header(block, node, bytes));
        record[HEADER_BYTES as usize..][..bytes.len()].copy_from_slice(bytes);
        let written = self.file.write_all_at(record, offset);
        if written.is_err() {
            self.give_up(offset, bytes.len() as u32);
        } else {
            self.uncache(offset, bytes.len() as u64);
        }
        written
    }

    /// Reads a record back and checks that it is what was written.
    pub(super) fn read(
        &self,
        block: BlockId,
        node: NodeId,
        offset: u64,
        length: u32,
    ) -> Result<Vec<u8>> {
        let mut pages = Pages::new(u64::from(length));
        let record = pages.get();
        self.file.read_exact_at(record, offset)?;
        self.uncache(offset, u64::from(length));
        let bytes = record[HEADER_BYTES as usize..][..length as usize].to_vec();
        if record[..HEADER_BYTES as usize] != header(block, node, &bytes) {
            return Err(Error::new(ErrorKind::InvalidData, "the checksum is wrong"));
        }
        Ok(bytes)
    }

    /// Drops what the page cache holds where the filesystem does not go past it.
    fn uncache(&self, offset: u64, length: u64) {
        let length = space(length) as i64;
        // Dirty pages stay until they are written; the next read of the record drops them.
        let advice = PosixFadviseAdvice::POSIX_FADV_DONTNEED;
        let _ = posix_fadvise(&self.file, offset as i64, length, advice);
    }

    /// Gives a record's space back to the filesystem, as far as that can.
    pub(super) fn give_up(&self, offset: u64, length: u32) {
        self.records.fetch_sub(1, Ordering::AcqRel);
        let punch = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
        let _ = fallocate(&self.file, punch, offset as i64, space(u64::from(length)) as i64);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.records.load(Ordering::Acquire) == 0
    }

    pub(super) fn delete(&self) {
        // Readers that still have the file open can go on.
        let _ = remove_file(&self.path);
    }
}
