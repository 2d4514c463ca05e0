//! A store of codes: what a network made of samples. Each code has a number, and all have the same size.
//!
//! Codes are in a [`Journal`]. An append is one record, so a crash leaves all of it or nothing. Its text has
//! the number and the checksum of each code, and its bytes are the codes. So a code takes 12 bytes more on
//! the disk, and an append 32 more. If a number is given again, the new code replaces the old one. A journal
//! of mostly replaced codes is rewritten.
//!
//! Readers see a [`CodeFile`]: all codes in the order in which their numbers were first given, the numbers in
//! that order, or one code. A file never changes: later codes are in the next file.

mod chunks;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::io::{Error, ErrorKind, Result};
use std::sync::Arc;

use nix::libc;

use crate::disk::Disk;
use crate::disk::journal::{CompactingJournal, Journal, LiveState, Pinned};
use crate::sync::Mutex;
use chunks::Chunks;

const NUMBER_BYTES: usize = 8;

/// Bytes of each code in a record's text: its number and its checksum, little-endian.
const HEAD_BYTES: usize = NUMBER_BYTES + 4;

/// Bytes of codes in one record of a rewritten journal.
const BATCH_BYTES: usize = 1 << 20;

#[derive(Clone, Default)]
pub struct Codes {
    bytes: usize,
    numbers: Chunks<u64>,
    codes: Chunks<Pinned>,
}

#[derive(Clone)]
pub enum CodeFile {
    /// All codes, one after the other.
    All(Codes),
    /// Their numbers, 8 bytes each, little-endian.
    Numbers(Codes),
    One(Pinned),
}

impl CodeFile {
    pub fn length(&self) -> u64 {
        match self {
            CodeFile::All(codes) => (codes.codes.len() * codes.bytes) as u64,
            CodeFile::Numbers(codes) => (codes.numbers.len() * NUMBER_BYTES) as u64,
            CodeFile::One(code) => u64::from(code.length()),
        }
    }

    /// Reads a part, which may be cut by the end. Blocks.
    ///
    /// # Errors
    /// The disk's, and `InvalidData` if a code is damaged.
    pub fn read(&self, offset: u64, length: usize) -> Result<Vec<u8>> {
        let end = offset.saturating_add(length as u64).min(self.length());
        let (Ok(offset), Ok(end)) = (usize::try_from(offset), usize::try_from(end)) else {
            return Err(Error::from(ErrorKind::FileTooLarge));
        };
        if offset >= end {
            return Ok(Vec::new());
        }
        let mut bytes = Vec::new();
        // The offset at which `bytes` begins.
        let begin = match self {
            CodeFile::All(codes) => {
                let first = offset / codes.bytes;
                let count = end.div_ceil(codes.bytes) - first;
                bytes.reserve(count * codes.bytes);
                for code in codes.codes.from(first).take(count) {
                    bytes.extend_from_slice(&code.read()?);
                }
                first * codes.bytes
            }
            CodeFile::Numbers(codes) => {
                let first = offset / NUMBER_BYTES;
                let numbers = codes.numbers.from(first).take(end.div_ceil(NUMBER_BYTES) - first);
                numbers.for_each(|number| bytes.extend_from_slice(&number.to_le_bytes()));
                first * NUMBER_BYTES
            }
            CodeFile::One(code) => {
                bytes = code.read()?;
                0
            }
        };
        bytes.truncate(end - begin);
        bytes.drain(..(offset - begin).min(bytes.len()));
        Ok(bytes)
    }
}

#[derive(Default)]
struct CodeTable {
    codes: Codes,
    /// The index of each number in the order.
    indices: HashMap<u64, usize>,
    version: u64,
}

impl CodeTable {
    fn apply(&mut self, text: &[u8], pinned: Option<&Pinned>) -> Result<()> {
        let (heads, rest) = text.as_chunks::<HEAD_BYTES>();
        let length = pinned.map_or(0, |pinned| pinned.length() as usize);
        let bytes = self.codes.bytes;
        let Some(pinned) = pinned.filter(|_| rest.is_empty() && heads.len() * bytes == length)
        else {
            let found = length / heads.len().max(1);
            let message = format!("codes of {found} bytes are there, not of {bytes}");
            return Err(Error::new(ErrorKind::InvalidData, message));
        };
        for (head, at) in heads.iter().zip(0..) {
            let (number, checksum) = head.split_at(NUMBER_BYTES);
            let number = number.try_into().map_or(0, u64::from_le_bytes);
            let checksum = checksum.try_into().map_or(0, u32::from_le_bytes);
            let code = pinned.part(at * bytes as u32, bytes as u32, checksum);
            let next = self.indices.len();
            let index = *self.indices.entry(number).or_insert(next);
            self.codes.numbers.set(index, number);
            self.codes.codes.set(index, code);
        }
        self.version += 1;
        Ok(())
    }
}

/// The codes of a store, for readers.
pub struct CodeReader {
    /// Bytes of a code.
    pub(super) bytes: usize,
    table: Mutex<CodeTable>,
}

impl CodeReader {
    fn apply(&self, records: impl IntoIterator<Item = (Vec<u8>, Pinned)>) -> Result<()> {
        let mut table = self.table.lock();
        records.into_iter().try_for_each(|(text, pinned)| table.apply(&text, Some(&pinned)))
    }

    pub(super) fn len(&self) -> usize {
        self.table.lock().indices.len()
    }

    /// Bytes of a code with its number.
    pub fn bytes_with_number(&self) -> usize {
        NUMBER_BYTES + self.bytes
    }

    /// All codes, and their version.
    pub fn all(&self) -> (u64, Codes) {
        let table = self.table.lock();
        (table.version, table.codes.clone())
    }

    /// A number that changes with each append.
    pub fn version(&self) -> u64 {
        self.table.lock().version
    }

    pub fn get(&self, number: u64) -> Option<Pinned> {
        let table = self.table.lock();
        table.codes.codes.get(*table.indices.get(&number)?).cloned()
    }
}

/// A store, for its writer.
pub struct CodeStore {
    compacting: CompactingJournal,
    reader: Arc<CodeReader>,
}

impl CodeStore {
    /// Opens the codes on a disk, each of `bytes` bytes, or begins with none.
    ///
    /// # Errors
    /// If the disk cannot be read, and `InvalidData` if it has no codes of this size.
    pub fn open(disk: Arc<dyn Disk>, bytes: u32, min_free: u64) -> Result<CodeStore> {
        let bytes = bytes.max(1) as usize;
        let codes = Codes { bytes, ..Codes::default() };
        let mut table = CodeTable { codes, ..CodeTable::default() };
        let mut applied = Ok(());
        let journal = Journal::open(disk, |text, pinned| {
            if applied.is_ok() {
                applied = table.apply(text, pinned.as_ref());
            }
        })?;
        applied?;
        let reader = Arc::new(CodeReader { bytes, table: Mutex::new(table) });
        let compacting = CompactingJournal::new(journal, &*reader, min_free);
        Ok(CodeStore { compacting, reader })
    }

    pub fn reader(&self) -> &Arc<CodeReader> {
        &self.reader
    }

    /// Adds and writes codes, each after its number of 8 bytes, little-endian: all of them, or none on an
    /// error. Returns how many. Blocks.
    ///
    /// # Errors
    /// `InvalidInput` if they are not whole codes, `StorageFull` if other programs need the space of the
    /// disk, and the disk's.
    pub fn append(&mut self, bytes: &[u8]) -> Result<usize> {
        let each = self.reader.bytes_with_number();
        if !bytes.len().is_multiple_of(each) {
            let (found, code) = (bytes.len(), self.reader.bytes);
            let message = format!("{found} bytes are no multiple of {NUMBER_BYTES} + {code}");
            return Err(Error::new(ErrorKind::InvalidInput, message));
        }
        let count = bytes.len() / each;
        if count == 0 {
            return Ok(0);
        }
        if !self.ensure_room(bytes.len() as u64) {
            return Err(Error::from_raw_os_error(libc::ENOSPC));
        }
        let mut record = CodeRecord::of(count, self.reader.bytes);
        for code in bytes.chunks_exact(each) {
            let (number, code) = code.split_at(NUMBER_BYTES);
            record.add(number, crc32c::crc32c(code), code);
        }
        let pinned = self.compacting.journal.append(&record.text, &record.codes)?;
        if let Err(error) = self.compacting.journal.write() {
            self.compacting.journal.discard();
            return Err(error);
        }
        self.reader.apply([(record.text, pinned)])?;
        if let Err(error) = self.leave_dead_bytes() {
            tracing::warn!(%error, "the journal of codes cannot be rewritten");
        }
        Ok(count)
    }

    /// Makes room for `bytes` more bytes. If other programs need the space, replaced codes are given back.
    /// Returns whether there is room.
    fn ensure_room(&mut self, bytes: u64) -> bool {
        self.compacting.claim_room(bytes)
            || self.leave_dead_bytes().is_ok() && self.compacting.claim_room(bytes)
    }

    /// Syncs the journal. If the disk lost a part, the journal is begun anew with the rest.
    pub fn sync(&mut self) -> Result<()> {
        while let Some(saved) = self.compacting.sync(&*self.reader)? {
            self.reader.apply(saved)?;
        }
        Ok(())
    }

    pub fn lasts(&self) -> bool {
        self.compacting.journal.is_durable()
    }

    pub fn length(&self) -> u64 {
        self.compacting.journal.length()
    }

    fn leave_dead_bytes(&mut self) -> Result<()> {
        let saved = self.compacting.rewrite_if_mostly_dead(&*self.reader)?;
        self.reader.apply(saved.into_iter().flatten())
    }
}

impl LiveState for CodeReader {
    /// The texts of records, and where their codes are.
    type Saved = Vec<(Vec<u8>, Pinned)>;

    fn bytes(&self) -> u64 {
        (self.len() * (HEAD_BYTES + self.bytes)) as u64
    }

    /// A damaged code stays damaged, because it keeps its checksum.
    fn save(&self, journal: &mut Journal) -> Result<Self::Saved> {
        let (_, codes) = self.all();
        let batch = (BATCH_BYTES / codes.bytes).max(1);
        let mut saved = Vec::new();
        for from in (0..codes.numbers.len()).step_by(batch) {
            let mut record = CodeRecord::of(batch, codes.bytes);
            let numbers = codes.numbers.from(from).take(batch);
            for (number, code) in numbers.zip(codes.codes.from(from)) {
                record.add(&number.to_le_bytes(), code.checksum(), &code.read_unchecked()?);
            }
            let pinned = journal.append(&record.text, &record.codes)?;
            journal.write()?;
            saved.push((record.text, pinned));
        }
        Ok(saved)
    }
}

struct CodeRecord {
    text: Vec<u8>,
    codes: Vec<u8>,
}

impl CodeRecord {
    fn of(count: usize, bytes: usize) -> CodeRecord {
        CodeRecord {
            text: Vec::with_capacity(count * HEAD_BYTES),
            codes: Vec::with_capacity(count * bytes),
        }
    }

    fn add(&mut self, number: &[u8], checksum: u32, code: &[u8]) {
        self.text.extend_from_slice(number);
        self.text.extend_from_slice(&checksum.to_le_bytes());
        self.codes.extend_from_slice(code);
    }
}
