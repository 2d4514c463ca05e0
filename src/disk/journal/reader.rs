//! Reads a journal record by record, and finds how far it can be trusted.

use std::collections::VecDeque;
use std::io::{ErrorKind, Result};
use std::sync::Arc;

use super::{CHUNK, HEADER_BYTES, Log, MAGIC, Pinned, TEXT_MAX, damaged};

struct ReadRecord {
    begin: u64,
    text: Vec<u8>,
    pinned: Pinned,
    /// The bytes that were durable when it was added.
    synced: u64,
}

pub(super) struct JournalReader {
    pub(super) log: Arc<Log>,
    pub(super) length: u64,
}

impl JournalReader {
    /// Reads the record at an offset, without its pinned bytes. None if there is no whole record.
    fn record(&self, begin: u64) -> Result<Option<ReadRecord>> {
        let mut header = [0; HEADER_BYTES];
        if begin + HEADER_BYTES as u64 > self.length {
            return Ok(None);
        }
        self.log.blob.read_at(&mut header, begin)?;
        let word = |at: usize| header[at..at + 4].try_into().map_or(0, u32::from_le_bytes);
        let [text_bytes, of_text, length, checksum] = [4, 8, 12, 16].map(word);
        let synced = header[20..28].try_into().map_or(0, u64::from_le_bytes);
        let at_text = begin + HEADER_BYTES as u64;
        let offset = at_text + u64::from(text_bytes);
        let whole = header[..4] == MAGIC && word(28) == crc32c::crc32c(&header[..28]);
        if !whole || text_bytes as usize > TEXT_MAX || offset + u64::from(length) > self.length {
            return Ok(None);
        }
        let mut text = vec![0; text_bytes as usize];
        self.log.blob.read_at(&mut text, at_text)?;
        let pinned = Pinned { log: Arc::clone(&self.log), offset, length, checksum };
        let whole = crc32c::crc32c(&text) == of_text;
        Ok(whole.then_some(ReadRecord { begin, text, pinned, synced }))
    }

    /// Whether a whole record behind `from` says that the bytes at `from` were synced.
    fn was_synced(&self, from: u64) -> Result<bool> {
        let mut chunk = vec![0; CHUNK.min(self.length - from) as usize];
        let mut at = from;
        while at + HEADER_BYTES as u64 <= self.length {
            let count = CHUNK.min(self.length - at) as usize;
            self.log.blob.read_at(&mut chunk[..count], at)?;
            let words = chunk[..count].windows(MAGIC.len()).enumerate();
            for (index, _) in words.filter(|(_, word)| *word == MAGIC) {
                if self.record(at + index as u64)?.is_some_and(|found| found.synced > from) {
                    return Ok(true);
                }
            }
            // The word may span both chunks.
            at += (count + 1 - MAGIC.len()) as u64;
        }
        Ok(false)
    }

    /// Calls `each` with the records. Returns how much is durable by the records' own word, and where the
    /// journal ends.
    pub(super) fn run(&self, each: &mut dyn FnMut(&[u8], Option<Pinned>)) -> Result<(u64, u64)> {
        let mut tell = |read: ReadRecord| {
            if !read.text.is_empty() {
                each(&read.text, (read.pinned.length > 0).then_some(read.pinned));
            }
        };
        let mut end = 0;
        let mut unsynced = VecDeque::new();
        while let Some(read) = self.record(end)? {
            end = read.pinned.end();
            let lasts =
                unsynced.iter().take_while(|before: &&ReadRecord| before.begin < read.synced);
            let lasts = lasts.count();
            unsynced.drain(..lasts).for_each(&mut tell);
            unsynced.push_back(read);
        }
        if end < self.length && self.was_synced(end)? {
            return Err(damaged(format!("the record at byte {end} is damaged")));
        }
        let synced = unsynced.front().map_or(end, |read: &ReadRecord| read.begin);
        for read in unsynced {
            match read.pinned.read() {
                Ok(_) => tell(read),
                Err(error) if error.kind() == ErrorKind::InvalidData => {
                    return Ok((synced, read.begin));
                }
                Err(error) => return Err(error),
            }
        }
        Ok((synced, end))
    }

    /// Whether every byte between two records is what was written.
    pub(super) fn is_whole(&self, from: u64, end: u64) -> Result<bool> {
        let mut at = from;
        while at < end {
            let Some(read) = self.record(at)? else { return Ok(false) };
            match read.pinned.read() {
                Ok(_) => at = read.pinned.end(),
                Err(error) if error.kind() == ErrorKind::InvalidData => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// Whether the file begins as a journal of this format, or as a crash may have left one.
    pub(super) fn is_known(&self) -> Result<bool> {
        let mut begin = [0; MAGIC.len()];
        if self.length < begin.len() as u64 {
            return Ok(true);
        }
        self.log.blob.read_at(&mut begin, 0)?;
        Ok(begin == MAGIC || begin == [0; MAGIC.len()])
    }
}
