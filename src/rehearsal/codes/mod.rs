//! Codes: what a network made of samples, each of the same few bytes, by their numbers.
//!
//! They lie in a [`Journal`]. What is appended at once is one record, so a crash leaves it whole or
//! not at all: its text is the number and the checksum of each code, its bytes are the codes one after
//! the other. So a code takes 12 bytes more on the disk than it has, and an append 32. One that is
//! given again takes the place of the one before; a journal of mostly dead codes is rewritten.
//!
//! What is read is a [`CodeFile`]: all codes in the order in which their numbers were first given, the
//! numbers in that order, or one code. What a file holds never changes; what is appended is in the
//! next one.

mod chunks;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::io::{Error, ErrorKind, Result};
use std::sync::Arc;

use nix::libc;

use crate::disk::Disk;
use crate::disk::journal::{Alive, Journal, Kept, Pinned};
use crate::sync::{Mutex, MutexGuard};
use chunks::Chunks;

const NUMBER_BYTES: usize = 8;

/// Bytes that a text has of each code: its number and its checksum, little-endian.
const HEAD_BYTES: usize = NUMBER_BYTES + 4;

/// Bytes of codes in a record of a journal that is rewritten.
const BATCH_BYTES: usize = 1 << 20;

/// All codes as they were at some time.
#[derive(Clone, Default)]
pub struct Codes {
    /// Bytes of a code.
    bytes: usize,
    numbers: Chunks<u64>,
    codes: Chunks<Pinned>,
}

/// What a file shows.
#[derive(Clone)]
pub enum CodeFile {
    /// All codes, one after the other.
    All(Codes),
    /// Their numbers in that order, 8 bytes each, little-endian.
    Numbers(Codes),
    One(Pinned),
}

impl CodeFile {
    /// How many bytes.
    pub fn length(&self) -> u64 {
        match self {
            CodeFile::All(codes) => (codes.codes.len() * codes.bytes) as u64,
            CodeFile::Numbers(codes) => (codes.numbers.len() * NUMBER_BYTES) as u64,
            CodeFile::One(code) => u64::from(code.length()),
        }
    }

    /// Reads a part, cut at the end. Blocks.
    ///
    /// # Errors
    /// The disk's, and `InvalidData` where a code is not what was written.
    pub fn read(&self, offset: u64, length: usize) -> Result<Vec<u8>> {
        let end = offset.saturating_add(length as u64).min(self.length());
        let (Ok(offset), Ok(end)) = (usize::try_from(offset), usize::try_from(end)) else {
            return Err(Error::from(ErrorKind::FileTooLarge));
        };
        if offset >= end {
            return Ok(Vec::new());
        }
        let mut bytes = Vec::new();
        // Where what is read begins.
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

/// The codes that there are now.
#[derive(Default)]
struct Held {
    codes: Codes,
    /// The place of each number in the order.
    places: HashMap<u64, usize>,
    /// Changes with each append.
    version: u64,
}

impl Held {
    /// Takes the codes of a record.
    fn take(&mut self, text: &[u8], pinned: Option<&Pinned>) -> Result<()> {
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
            let next = self.places.len();
            let place = *self.places.entry(number).or_insert(next);
            self.codes.numbers.set(place, number);
            self.codes.codes.set(place, code);
        }
        self.version += 1;
        Ok(())
    }
}

/// The codes of a store, as they are read.
pub struct Shelf {
    bytes: usize,
    held: Mutex<Held>,
}

impl Shelf {
    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock()
    }

    /// Takes the codes of records.
    fn take(&self, records: impl IntoIterator<Item = (Vec<u8>, Pinned)>) -> Result<()> {
        let mut held = self.held();
        records.into_iter().try_for_each(|(text, pinned)| held.take(&text, Some(&pinned)))
    }

    /// How many codes there are.
    pub fn len(&self) -> usize {
        self.held().places.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of a code.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Bytes of each with its number before it, as they are appended.
    pub fn bytes_with_number(&self) -> usize {
        NUMBER_BYTES + self.bytes
    }

    /// All codes, and a number that says whether they are still the same.
    pub fn all(&self) -> (u64, Codes) {
        let held = self.held();
        (held.version, held.codes.clone())
    }

    /// The number that [`all`](Self::all) says.
    pub fn version(&self) -> u64 {
        self.held().version
    }

    /// The code of a number.
    pub fn get(&self, number: u64) -> Option<Pinned> {
        let held = self.held();
        held.codes.codes.get(*held.places.get(&number)?).cloned()
    }
}

/// Codes that are written.
pub struct CodeStore {
    kept: Kept,
    shelf: Arc<Shelf>,
}

impl CodeStore {
    /// Opens the codes on a disk, which have so many bytes each; or begins with none.
    ///
    /// # Errors
    /// Where the disk cannot be read, and `InvalidData` where what it has are no codes of this size.
    pub fn open(disk: Arc<dyn Disk>, bytes: u32, min_free: u64) -> Result<CodeStore> {
        let bytes = bytes.max(1) as usize;
        let codes = Codes { bytes, ..Codes::default() };
        let mut held = Held { codes, ..Held::default() };
        let mut taken = Ok(());
        let journal = Journal::open(disk, |text, pinned| {
            if taken.is_ok() {
                taken = held.take(text, pinned.as_ref());
            }
        })?;
        taken?;
        let shelf = Arc::new(Shelf { bytes, held: Mutex::new(held) });
        let kept = Kept::new(journal, &*shelf, min_free);
        Ok(CodeStore { kept, shelf })
    }

    /// The codes, for readers.
    pub fn shelf(&self) -> &Arc<Shelf> {
        &self.shelf
    }

    /// Adds codes, each behind its number of 8 bytes, little-endian: all of them, or none where there
    /// is an error. They are written then. Says how many. Blocks.
    ///
    /// # Errors
    /// `InvalidInput` where these are not whole codes, `StorageFull` where others need the space of the
    /// disk, and the disk's.
    pub fn append(&mut self, bytes: &[u8]) -> Result<usize> {
        let each = self.shelf.bytes_with_number();
        if !bytes.len().is_multiple_of(each) {
            let (found, code) = (bytes.len(), self.shelf.bytes);
            let message = format!("{found} bytes are no multiple of {NUMBER_BYTES} + {code}");
            return Err(Error::new(ErrorKind::InvalidInput, message));
        }
        let count = bytes.len() / each;
        if count == 0 {
            return Ok(0);
        }
        if !self.make_room(bytes.len() as u64) {
            return Err(Error::from_raw_os_error(libc::ENOSPC));
        }
        let mut record = Record::of(count, self.shelf.bytes);
        for code in bytes.chunks_exact(each) {
            let (number, code) = code.split_at(NUMBER_BYTES);
            record.add(number, crc32c::crc32c(code), code);
        }
        let pinned = self.kept.journal.append(&record.text, &record.codes)?;
        if let Err(error) = self.kept.journal.write() {
            self.kept.journal.discard();
            return Err(error);
        }
        self.shelf.take([(record.text, pinned)])?;
        if let Err(error) = self.leave_dead_bytes() {
            tracing::warn!(%error, "the journal of codes cannot be rewritten");
        }
        Ok(count)
    }

    /// Makes room for so many bytes in the journal: dead ones are given back if others need the space.
    fn make_room(&mut self, bytes: u64) -> bool {
        self.kept.check_room(bytes)
            || self.leave_dead_bytes().is_ok() && self.kept.check_room(bytes)
    }

    /// Makes what was written last.
    pub fn sync(&mut self) -> Result<()> {
        while let Some(saved) = self.kept.sync(&*self.shelf)? {
            self.shelf.take(saved)?;
        }
        Ok(())
    }

    /// Whether everything lasts.
    pub fn lasts(&self) -> bool {
        self.kept.journal.lasts()
    }

    /// Bytes on the disk.
    pub fn length(&self) -> u64 {
        self.kept.journal.length()
    }

    fn leave_dead_bytes(&mut self) -> Result<()> {
        let saved = self.kept.leave_dead_bytes(&*self.shelf)?;
        self.shelf.take(saved.into_iter().flatten())
    }
}

impl Alive for Shelf {
    /// The texts of records, and where their codes are.
    type Saved = Vec<(Vec<u8>, Pinned)>;

    fn bytes(&self) -> u64 {
        (self.len() * (HEAD_BYTES + self.bytes)) as u64
    }

    /// A code that is damaged stays so: its checksum goes with it.
    fn save(&self, journal: &mut Journal) -> Result<Self::Saved> {
        let (_, codes) = self.all();
        let batch = (BATCH_BYTES / codes.bytes).max(1);
        let mut saved = Vec::new();
        for from in (0..codes.numbers.len()).step_by(batch) {
            let mut record = Record::of(batch, codes.bytes);
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

/// A record that is made.
struct Record {
    text: Vec<u8>,
    codes: Vec<u8>,
}

impl Record {
    fn of(count: usize, bytes: usize) -> Record {
        Record {
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
