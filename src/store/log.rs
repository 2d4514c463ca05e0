//! The index on disk: a log of small records, replayed at open.
//!
//! A log is a file `index-GENERATION` of records of 40 bytes. The first record has the secret from which
//! keys are made. Each further record says that a sample is stored at a place, or removed. Records are
//! appended. Replay skips a record that is torn or missing after a crash, and uses the records behind it:
//! whatever mix of records is left, the bytes they lead to are checked. The rest of an append that was cut
//! short at the end is no loss, and is overwritten.
//!
//! A log with more dead records than live ones is rewritten. The live records go to a new file, which is
//! synced and then renamed to the next generation. The latest generation counts.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::io::{Error, ErrorKind, Result};
use std::num::NonZeroU128;
use std::sync::Arc;

use crate::disk::{Blob, Disk, Use};

/// Names a version of a block: a hash of its path, its fingerprint and its offset in the file. The hash
/// uses the store's secret, so that no user can construct two equal keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key(NonZeroU128);

impl Key {
    pub(super) fn new(hash: u128) -> Self {
        Key(NonZeroU128::new(hash).unwrap_or(NonZeroU128::MIN))
    }

    pub(super) fn get(self) -> u128 {
        self.0.get()
    }
}

/// Where a sample's bytes are, and their checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Location {
    pub(super) segment: u32,
    /// First page in the segment.
    pub(super) page: u32,
    pub(super) length: u32,
    /// CRC-32C of the key and the bytes.
    pub(super) checksum: u32,
}

/// Keys are hashes already.
#[derive(Default)]
pub(super) struct KeyHasher(u64);

impl Hasher for KeyHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.0 ^= u64::from_le_bytes(word);
        }
    }

    fn write_u128(&mut self, key: u128) {
        self.0 = key as u64;
    }
}

/// The stored samples, by key.
pub(super) type Entries = HashMap<Key, Location, BuildHasherDefault<KeyHasher>>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Record {
    /// The first record, with the store's secret.
    Secret(u128),
    Stored(Key, Location),
    /// The sample was removed.
    Removed(Key),
}

const RECORD_BYTES: usize = 40;

/// These tell the kinds of records apart, and from other files and formats.
const SECRET: u32 = u32::from_le_bytes(*b"bly2");
const STORED: u32 = u32::from_le_bytes(*b"keep");
const REMOVED: u32 = u32::from_le_bytes(*b"gone");

/// Records read at once.
const CHUNK: usize = 1 << 15;

impl Record {
    fn encode(self) -> [u8; RECORD_BYTES] {
        let none = Location { segment: 0, page: 0, length: 0, checksum: 0 };
        let (kind, key, at) = match self {
            Record::Secret(secret) => (SECRET, secret, none),
            Record::Stored(key, at) => (STORED, key.get(), at),
            Record::Removed(key) => (REMOVED, key.get(), none),
        };
        let mut bytes = [0; RECORD_BYTES];
        bytes[..16].copy_from_slice(&key.to_le_bytes());
        let words = [at.segment, at.page, at.length, at.checksum, kind];
        for (slot, word) in bytes[16..36].chunks_exact_mut(4).zip(words) {
            slot.copy_from_slice(&word.to_le_bytes());
        }
        let checksum = crc32c::crc32c(&bytes[..36]);
        bytes[36..].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    /// The record. None if it is torn.
    fn decode(bytes: &[u8]) -> Option<Self> {
        let word = |at: usize| bytes[at..at + 4].try_into().map_or(0, u32::from_le_bytes);
        if crc32c::crc32c(&bytes[..36]) != word(36) {
            return None;
        }
        let key = bytes[..16].try_into().map_or(0, u128::from_le_bytes);
        let at =
            Location { segment: word(16), page: word(20), length: word(24), checksum: word(28) };
        match word(32) {
            SECRET => Some(Record::Secret(key)),
            STORED => Some(Record::Stored(Key::new(key), at)),
            REMOVED => Some(Record::Removed(Key::new(key))),
            _ => None,
        }
    }
}

/// The log to which records are appended.
pub(super) struct Log {
    file: Arc<dyn Blob>,
    generation: u32,
    secret: u128,
    end: u64,
    pub(super) records: u64,
    /// Number of found records that cannot be read.
    pub(super) torn_records: u64,
    /// Later logs that were found and cannot be read.
    pub(super) skipped: Vec<String>,
    /// Records to write before any further record.
    queued: Vec<Record>,
    /// Whether a failed append may have left bytes beyond the end.
    torn: bool,
}

fn name(generation: u32) -> String {
    format!("index-{generation:08}")
}

/// Name of a log that is being rewritten.
const UNNAMED: &str = "index-next";

fn generation_of(name: &str) -> Option<u32> {
    name.strip_prefix("index-")?.parse().ok()
}

/// Whether this is the name of a complete log.
pub(super) fn is_index(name: &str) -> bool {
    generation_of(name).is_some()
}

pub(super) struct Replayed {
    generation: u32,
    pub(super) secret: u128,
    pub(super) records: u64,
    torn_records: u64,
    pub(super) entries: Entries,
}

/// Reads the latest log that begins as a log does. Changes nothing.
///
/// # Errors
/// The disk's: a store that cannot be read is not taken for an empty one.
pub(super) fn replay(disk: &dyn Disk, names: &[(String, u64)]) -> Result<Option<Replayed>> {
    let mut logs: Vec<(u32, u64)> =
        names.iter().filter_map(|(name, length)| Some((generation_of(name)?, *length))).collect();
    logs.sort_unstable();
    for (generation, length) in logs.into_iter().rev() {
        let file = disk.open(&name(generation), Use::Log)?;
        if let Some(found) = replay_one(&*file, generation, length)? {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

fn replay_one(file: &dyn Blob, generation: u32, length: u64) -> Result<Option<Replayed>> {
    let whole = length / RECORD_BYTES as u64;
    let mut bytes = vec![0; RECORD_BYTES * CHUNK.min(whole as usize)];
    let mut entries = Entries::default();
    let mut secret = None;
    // Records up to the last readable one, unreadable ones before it, and unreadable ones behind it that
    // are not blank.
    let (mut records, mut torn_records, mut behind) = (0, 0, 0);
    let mut read = 0;
    while read < whole {
        let count = CHUNK.min((whole - read) as usize);
        let bytes = &mut bytes[..count * RECORD_BYTES];
        file.read_at(bytes, read * RECORD_BYTES as u64)?;
        if read == 0 {
            match Record::decode(&bytes[..RECORD_BYTES]) {
                Some(Record::Secret(found)) => secret = Some(found),
                _ => return Ok(None),
            }
            // Most records of most logs are live.
            entries.reserve(whole as usize);
        }
        for (nth, record) in (read..).zip(bytes.chunks_exact(RECORD_BYTES)) {
            match Record::decode(record) {
                None => {
                    behind += u64::from(record.iter().any(|byte| *byte != 0));
                    continue;
                }
                Some(Record::Secret(_)) => {}
                Some(Record::Stored(key, at)) => drop(entries.insert(key, at)),
                Some(Record::Removed(key)) => drop(entries.remove(&key)),
            }
            torn_records += nth - records;
            (records, behind) = (nth + 1, 0);
        }
        read += count as u64;
    }
    // An append that was cut short leaves at most one torn record, and blanks.
    if behind > 1 {
        torn_records += whole - records;
        records = whole;
    }
    Ok(secret.map(|secret| Replayed { generation, secret, records, torn_records, entries }))
}

impl Log {
    fn new(file: Arc<dyn Blob>, generation: u32, secret: u128) -> Self {
        let (end, records, torn_records) = (0, 0, 0);
        let (skipped, queued, torn) = (Vec::new(), Vec::new(), false);
        Log { file, generation, secret, end, records, torn_records, skipped, queued, torn }
    }

    /// Opens the log that [`replay`] finds. Changes nothing if there is none.
    pub(super) fn open(
        disk: &dyn Disk,
        names: &[(String, u64)],
    ) -> Result<Option<(Self, Entries)>> {
        let Some(found) = replay(disk, names)? else { return Ok(None) };
        let Replayed { generation, secret, records, torn_records, entries } = found;
        let file = disk.open(&name(generation), Use::Log)?;
        let end = records * RECORD_BYTES as u64;
        let later = |name: &String| generation_of(name).is_some_and(|later| later > generation);
        let skipped = names.iter().map(|(name, _)| name).filter(|name| later(name)).cloned();
        let log = Log {
            end,
            records,
            torn_records,
            skipped: skipped.collect(),
            ..Log::new(file, generation, secret)
        };
        remove_others(disk, names, generation);
        Ok(Some((log, entries)))
    }

    /// Begins a log with this secret, if none of the found ones is a log.
    pub(super) fn begin(disk: &dyn Disk, names: &[(String, u64)], secret: u128) -> Result<Self> {
        // The number must be new: the existing names may be all that a crash left.
        let latest = names.iter().filter_map(|(name, _)| generation_of(name)).max();
        let generation = latest.unwrap_or(0).wrapping_add(1);
        let log = write_new(disk, generation, secret, std::iter::empty())?;
        remove_others(disk, names, generation);
        Ok(log)
    }

    pub(super) fn secret(&self) -> u128 {
        self.secret
    }

    /// Records the removal of these samples before any further record.
    pub(super) fn queue_removals(&mut self, removed: impl Iterator<Item = Key>) {
        self.queued.extend(removed.map(Record::Removed));
    }

    /// Appends records. If that fails, no part of them will be replayed behind later records.
    pub(super) fn append(&mut self, records: impl Iterator<Item = Record>) -> Result<()> {
        let queued = self.queued.iter().copied();
        let bytes: Vec<u8> = queued.chain(records).flat_map(Record::encode).collect();
        if bytes.is_empty() {
            return Ok(());
        }
        if self.torn {
            self.file.cut(self.end)?;
        }
        self.torn = true;
        self.file.write_at(&bytes, self.end)?;
        self.torn = false;
        self.queued.clear();
        self.end += bytes.len() as u64;
        self.records += (bytes.len() / RECORD_BYTES) as u64;
        Ok(())
    }

    /// Makes the appended records durable.
    pub(super) fn sync(&self) -> Result<()> {
        self.file.sync()
    }

    /// Writes a log without the dead records. If that fails, the log stays as it was.
    pub(super) fn rewrite(
        &mut self,
        disk: &dyn Disk,
        live: impl Iterator<Item = (Key, Location)>,
    ) -> Result<()> {
        let before = self.generation;
        let generation = before.checked_add(1).ok_or_else(|| Error::other("too many rewrites"))?;
        *self = write_new(disk, generation, self.secret, live)?;
        match disk.remove(&name(before)) {
            // It was deleted by another process.
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            removed => removed,
        }
    }
}

/// Removes all logs of these names except one.
fn remove_others(disk: &dyn Disk, names: &[(String, u64)], generation: u32) {
    let kept = name(generation);
    let old = |name: &&String| name.starts_with("index-") && **name != kept;
    for name in names.iter().map(|(name, _)| name).filter(old) {
        // A log that stays is removed the next time.
        let _ = disk.remove(name);
    }
}

/// Writes a log of these entries. It is complete and synced before it gets its name and before an older log
/// is removed.
fn write_new(
    disk: &dyn Disk,
    generation: u32,
    secret: u128,
    entries: impl Iterator<Item = (Key, Location)>,
) -> Result<Log> {
    // An earlier attempt may have left one.
    let _ = disk.remove(UNNAMED);
    let file = disk.create(UNNAMED, Use::Log)?;
    let mut log = Log::new(file, generation, secret);
    let stored = entries.map(|(key, at)| Record::Stored(key, at));
    let mut records = std::iter::once(Record::Secret(secret)).chain(stored).peekable();
    let mut write = || {
        while records.peek().is_some() {
            log.append(records.by_ref().take(CHUNK))?;
        }
        log.sync()?;
        disk.rename(UNNAMED, &name(generation))?;
        disk.sync_names()
    };
    if let Err(error) = write() {
        // The previous log stays in use. The new one must not count, nor take space on a full disk.
        let _ = disk.remove(&name(generation)).or_else(|_| disk.remove(UNNAMED));
        return Err(error);
    }
    Ok(log)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_what_they_were_or_nothing() {
        let at = Location { segment: 1, page: 2, length: 3, checksum: 4 };
        for record in [
            Record::Secret(9),
            Record::Stored(Key::new(7 << 100), at),
            Record::Removed(Key::new(1)),
        ] {
            let bytes = record.encode();
            assert_eq!(Record::decode(&bytes), Some(record));
            for bit in 0..bytes.len() * 8 {
                let mut torn = bytes;
                torn[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(Record::decode(&torn), None, "bit {bit}");
            }
        }
        assert_eq!(Record::decode(&[0; RECORD_BYTES]), None);
    }
}
