//! A journal on a local disk: a log of records, which can be replayed after any crash. A record may have
//! bytes with it.
//!
//! A journal is a file `journal-GENERATION`. A record is a header of 32 bytes, its text, and the bytes that
//! are *pinned* with it. Each of the three has a checksum. The header also says how much of the journal had
//! been synced when the record was added. So an open can tell two kinds of damage apart:
//!
//! - Behind the last synced byte, a crash may leave anything. There every byte is compared with its
//!   checksum, and the journal ends before the first record that is not whole.
//! - Synced bytes are there, and so is all before them. If a synced record is not whole, the disk has lost
//!   it. That is an error, and nothing is cut off. Pinned bytes there are compared when they are read.
//!
//! A journal of mostly dead bytes is rewritten; [`CompactingJournal`] decides when. The live part goes to a
//! new file, which is synced and then renamed to the next generation. Places in an older generation can still
//! be read.
//!
//! A sync that fails is reported once, perhaps to a process that has ended: afterwards the kernel treats
//! the lost writes as done. So the unsynced part is read back, compared with its checksums and written
//! again before the next sync counts. The same holds for bytes of an opened journal that are not known to
//! be durable.

mod compacting;
mod reader;
#[cfg(test)]
mod tests;

use std::io::{Error, ErrorKind, Result};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{Blob, Disk, Space, Use};
pub use compacting::{CompactingJournal, LiveState};
use reader::JournalReader;

/// Tells a journal from other files and other formats.
const MAGIC: [u8; 4] = *b"blj2";

const HEADER_BYTES: usize = 32;

/// Bytes of records that may wait to be written together.
const PENDING_MAX: usize = 1 << 20;

/// Limit of a record's text, in bytes.
const TEXT_MAX: usize = 1 << 30;

/// Bytes that are searched or written again at once.
const CHUNK: u64 = 1 << 20;

const PREFIX: &str = "journal-";

/// Name of a journal that is being rewritten.
const UNNAMED: &str = "journal-next";

struct Log {
    blob: Arc<dyn Blob>,
    generation: u32,
    /// The bytes that have been written.
    written: AtomicU64,
}

impl Log {
    fn new(blob: Arc<dyn Blob>, generation: u32) -> Arc<Log> {
        Arc::new(Log { blob, generation, written: AtomicU64::new(0) })
    }
}

/// The place of pinned bytes.
#[derive(Clone)]
pub struct Pinned {
    log: Arc<Log>,
    offset: u64,
    length: u32,
    checksum: u32,
}

impl std::fmt::Debug for Pinned {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Pinned({}: {}+{})", self.log.generation, self.offset, self.length)
    }
}

impl Pinned {
    pub fn length(&self) -> u32 {
        self.length
    }

    fn end(&self) -> u64 {
        self.offset + u64::from(self.length)
    }

    /// Whether they have been written. Before that they cannot be read.
    pub fn is_written(&self) -> bool {
        self.end() <= self.log.written.load(Ordering::Acquire)
    }

    /// A part of them that has a checksum of its own.
    pub(crate) fn part(&self, from: u32, length: u32, checksum: u32) -> Pinned {
        let (log, offset) = (Arc::clone(&self.log), self.offset + u64::from(from));
        Pinned { log, offset, length, checksum }
    }

    /// Their checksum, CRC-32C.
    pub(crate) fn checksum(&self) -> u32 {
        self.checksum
    }

    /// Reads them, damaged or not. Blocks.
    pub(crate) fn read_unchecked(&self) -> Result<Vec<u8>> {
        let mut bytes = vec![0; self.length as usize];
        self.log.blob.read_at(&mut bytes, self.offset)?;
        Ok(bytes)
    }

    /// Loads them into the page cache if the disk uses it, damaged or not. Blocks.
    pub fn warm(&self) -> Result<()> {
        self.log.blob.warm(self.offset, self.length.into())
    }

    /// Reads them if they are in memory and undamaged. Never waits for the disk.
    pub fn read_now(&self) -> Option<Vec<u8>> {
        let mut bytes = vec![0; self.length as usize];
        let found = self.log.blob.peek_at(&mut bytes, self.offset);
        (found && crc32c::crc32c(&bytes) == self.checksum).then_some(bytes)
    }

    /// Reads them. Blocks.
    ///
    /// # Errors
    /// The disk's, and `InvalidData` if they are damaged.
    pub fn read(&self) -> Result<Vec<u8>> {
        let mut bytes = vec![0; self.length as usize];
        match self.log.blob.read_at(&mut bytes, self.offset) {
            Ok(()) if crc32c::crc32c(&bytes) == self.checksum => Ok(bytes),
            Err(error) if error.kind() != ErrorKind::UnexpectedEof => Err(error),
            _ => Err(damaged("pinned bytes are damaged".into())),
        }
    }
}

pub struct Journal {
    disk: Arc<dyn Disk>,
    log: Arc<Log>,
    pending: Vec<u8>,
    /// The bytes that are durable.
    synced: u64,
    /// Whether a sync has failed: bytes behind `synced` may be in memory alone, though no later sync would
    /// say so.
    sync_failed: bool,
    /// Whether its name is durable. Until then older generations stay, which a crash may bring back.
    is_named: bool,
}

fn damaged(message: String) -> Error {
    Error::new(ErrorKind::InvalidData, message)
}

fn name(generation: u32) -> String {
    format!("{PREFIX}{generation:08}")
}

/// The generations with their lengths in bytes, the latest first.
fn generations(disk: &dyn Disk) -> Result<Vec<(u32, u64)>> {
    let found = disk.names()?.into_iter().filter_map(|(found, length)| {
        let generation = found.strip_prefix(PREFIX)?.parse().ok()?;
        (found == name(generation)).then_some((generation, length))
    });
    let mut found: Vec<(u32, u64)> = found.collect();
    found.sort_unstable_by(|a, b| b.cmp(a));
    Ok(found)
}

fn remove(disk: &dyn Disk, name: &str) {
    // A file that stays does no harm. The next open tries again.
    let _ = disk.remove(name);
}

impl Journal {
    /// Opens the journal in a directory, and calls `each` with its records. If there is none, an empty one
    /// is made.
    ///
    /// # Errors
    /// The disk's, and `InvalidData` if the disk has lost something that was synced, or if the journal has
    /// another format.
    pub fn open(
        disk: Arc<dyn Disk>,
        mut each: impl FnMut(&[u8], Option<Pinned>),
    ) -> Result<Journal> {
        let generations = generations(&*disk)?;
        let (generation, length) = generations.first().copied().unwrap_or((1, 0));
        let name_of = name(generation);
        let file = match generations.is_empty() {
            true => disk.create(&name_of, Use::Log)?,
            false => disk.open(&name_of, Use::Log)?,
        };
        let log = Log::new(file, generation);
        let reading = JournalReader { log: Arc::clone(&log), length };
        if !reading.is_known()? {
            return Err(damaged(format!("{name_of} is of another format")));
        }
        let (synced, end) = reading.run(&mut each)?;
        if end < length {
            tracing::warn!(bytes = length - end, "the end of a journal was torn and is left out");
            log.blob.cut(end)?;
        }
        remove(&*disk, UNNAMED);
        log.written.store(end, Ordering::Release);
        // What a killed process has written and named may not be durable.
        let doubtful = synced < end;
        let mut journal =
            Journal { synced, sync_failed: doubtful, is_named: false, ..Journal::of(disk, log) };
        // If that fails, it is tried again.
        let _ = journal.sync_name();
        Ok(journal)
    }

    fn of(disk: Arc<dyn Disk>, log: Arc<Log>) -> Journal {
        let (pending, synced, doubtful) = Default::default();
        Journal { disk, log, pending, synced, sync_failed: doubtful, is_named: true }
    }

    /// Adds a record with a text. Returns where its bytes will be once it is [written](Self::write).
    ///
    /// # Errors
    /// `InvalidInput` if text or bytes are too large for a record.
    pub fn append(&mut self, text: &[u8], bytes: &[u8]) -> Result<Pinned> {
        let text_bytes = u32::try_from(text.len()).ok().filter(|_| text.len() <= TEXT_MAX);
        let (Some(text_bytes), Ok(length)) = (text_bytes, u32::try_from(bytes.len())) else {
            return Err(Error::new(ErrorKind::InvalidInput, "a record of a journal is too large"));
        };
        let checksum = crc32c::crc32c(bytes);
        let begin = self.pending.len();
        self.pending.extend_from_slice(&MAGIC);
        for word in [text_bytes, crc32c::crc32c(text), length, checksum] {
            self.pending.extend_from_slice(&word.to_le_bytes());
        }
        self.pending.extend_from_slice(&self.synced.to_le_bytes());
        let of_header = crc32c::crc32c(&self.pending[begin..]);
        self.pending.extend_from_slice(&of_header.to_le_bytes());
        self.pending.extend_from_slice(text);
        let offset = self.length();
        self.pending.extend_from_slice(bytes);
        Ok(Pinned { log: Arc::clone(&self.log), offset, length, checksum })
    }

    /// Whether the pending records should be written before more are added.
    pub fn has_many_pending(&self) -> bool {
        self.pending.len() >= PENDING_MAX
    }

    /// Writes the pending records. After an error it can be called again.
    pub fn write(&mut self) -> Result<()> {
        if !self.pending.is_empty() {
            self.log.blob.write_at(&self.pending, self.end())?;
            self.log.written.store(self.length(), Ordering::Release);
            self.pending.clear();
            self.pending.shrink_to(PENDING_MAX);
        }
        Ok(())
    }

    /// Drops the pending records, which could not be written.
    pub(crate) fn discard(&mut self) {
        self.pending.clear();
        self.pending.shrink_to(PENDING_MAX);
        // Bytes that a failed write has left behind the end take space, and will be overwritten.
        let _ = self.log.blob.cut(self.end());
    }

    /// Makes what was written durable, and its name.
    ///
    /// # Errors
    /// The disk's, and `InvalidData` if the disk lost something at a sync before.
    pub fn sync(&mut self) -> Result<()> {
        if self.synced < self.end() {
            if self.sync_failed {
                self.write_again()?;
            }
            let synced = self.log.blob.sync();
            self.sync_failed = synced.is_err();
            synced?;
            self.synced = self.end();
        }
        self.sync_name()
    }

    fn sync_name(&mut self) -> Result<()> {
        if !self.is_named {
            self.disk.sync_names()?;
            // This one was whole before it had its name.
            let others = generations(&*self.disk)?.into_iter().map(|(generation, _)| generation);
            others
                .filter(|other| *other < self.log.generation)
                .for_each(|other| remove(&*self.disk, &name(other)));
            self.is_named = true;
        }
        Ok(())
    }

    /// Writes the bytes that are not durable once more. They come from the page cache if it still has them.
    fn write_again(&mut self) -> Result<()> {
        let (from, end) = (self.synced, self.end());
        let reading = JournalReader { log: Arc::clone(&self.log), length: end };
        if !reading.is_whole(from, end)? {
            return Err(damaged(format!("what was written from byte {from} on is lost")));
        }
        let mut at = from;
        while at < end {
            let mut chunk = vec![0; CHUNK.min(end - at) as usize];
            self.log.blob.read_at(&mut chunk, at)?;
            self.log.blob.write_at(&chunk, at)?;
            at += chunk.len() as u64;
        }
        Ok(())
    }

    /// Whether all that was added is written and durable.
    pub fn is_durable(&self) -> bool {
        self.synced == self.length() && self.is_named
    }

    /// Where the pending records go.
    fn end(&self) -> u64 {
        self.log.written.load(Ordering::Acquire)
    }

    /// Bytes of the journal, with the pending ones.
    pub fn length(&self) -> u64 {
        self.end() + self.pending.len() as u64
    }

    pub fn space(&self) -> Result<Space> {
        self.disk.space()
    }

    /// Begins the next generation with what `fill` adds to it. After an error the journal is as it was.
    ///
    /// # Errors
    /// The disk's, or those of `fill`.
    pub fn rewrite<T>(&mut self, fill: impl FnOnce(&mut Journal) -> Result<T>) -> Result<T> {
        let next = self.next_generation(fill);
        if next.is_err() {
            remove(&*self.disk, UNNAMED);
        }
        let (next, filled) = next?;
        // From here on, an open finds the next generation.
        *self = Journal { is_named: false, ..next };
        if let Err(error) = self.sync_name() {
            tracing::warn!(%error, "the name of a journal may not last");
        }
        Ok(filled)
    }

    fn next_generation<T>(
        &self,
        fill: impl FnOnce(&mut Journal) -> Result<T>,
    ) -> Result<(Journal, T)> {
        let generation = self.log.generation.checked_add(1).ok_or(ErrorKind::FileTooLarge)?;
        remove(&*self.disk, UNNAMED);
        let log = Log::new(self.disk.create(UNNAMED, Use::Log)?, generation);
        let disk = Arc::clone(&self.disk);
        let mut next = Journal::of(disk, log);
        let filled = fill(&mut next)?;
        next.write()?;
        next.sync()?;
        // This empty record says that all before it was synced.
        next.append(&[], &[])?;
        next.write()?;
        next.sync()?;
        self.disk.rename(UNNAMED, &name(generation))?;
        Ok((next, filled))
    }
}
