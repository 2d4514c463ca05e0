//! One file of the local store, written from its start to its end.

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

/// An append-only file of records. Each starts on a page, so that its space can be given back.
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
        let file =
            OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&path)?;
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
        let mut record = Vec::with_capacity(HEADER_BYTES as usize + bytes.len());
        record.extend_from_slice(&header(block, node, bytes));
        record.extend_from_slice(bytes);
        let written = self.file.write_all_at(&record, offset);
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
        let mut record = vec![0; HEADER_BYTES as usize + length as usize];
        self.file.read_exact_at(&mut record, offset)?;
        self.uncache(offset, u64::from(length));
        let bytes = record.split_off(HEADER_BYTES as usize);
        if record != header(block, node, &bytes) {
            return Err(Error::new(ErrorKind::InvalidData, "the checksum is wrong"));
        }
        Ok(bytes)
    }

    /// A second copy in the page cache would count against the same memory.
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
