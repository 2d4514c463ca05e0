//! The local store: samples on a local disk, packed into segments, there again at the next mount.
//!
//! A store is a directory. In the order it happens:
//!
//! 1. Samples are written in batches to *segments*, files of raw samples that each begin at a page;
//!    there is nothing else in them. Segments are filled one after the other; once the budget is
//!    full, samples take the places of those that were given up (`segments.rs`).
//! 2. Then a record for each goes to the end of the *index*, a log of what is where (`log.rs`). It
//!    has the sample's [`Key`], which names one version of one block, its place, and a checksum of
//!    the key and the bytes.
//! 3. A read takes the place from memory, reads past the page cache, and compares the checksum.
//!    What is damaged is dropped and fetched again. So neither a torn write nor a record that a
//!    crash brought back can do harm, and writes need no order: syncs only say what a crash must
//!    leave. They happen every now and then and at [`Store::sync`]. Only a place whose giving up
//!    has been recorded is written again, so that what was synced later has its place alone.
//! 4. What is given up is recorded and its place is free. A segment without samples is deleted, and
//!    free places are punched where samples of their size do not come, or others need the space.
//!    Reads never wait for any of this: one thread at a time writes.
//! 5. At open the log is replayed; the segments' data are not looked at. What leads to no segment,
//!    past the end of one, or to the place of another, is left out.
//!
//! The store stores: what is stored and what is given up is the policy's to say.

pub mod disk;
mod health;
pub mod home;
pub mod journal;
mod log;
mod segments;
#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::hash::Hasher;
use std::io::{ErrorKind, Result};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use siphasher::sip128::{Hasher128, SipHasher24};

use super::Buffer;
use crate::ids::PAGE_BYTES;
use crate::source::Fingerprint;
use disk::Disk;
use health::Health;
pub use log::Key;
use log::{Entries, Location, Log, Record};
use segments::{Extent, Files, Segments, pages_of};

/// What a store may take.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes of samples, in whole pages.
    pub bytes: u64,
    /// Bytes to leave free on the disk, whoever uses the rest.
    pub min_free: u64,
    /// Bytes of a segment.
    pub segment_bytes: u64,
    /// Dead records in the index beyond as many as there are live ones.
    pub dead_records: u64,
}

impl Limits {
    /// For so many bytes, beside `min_free` that stay free: few files, whatever the size.
    pub fn new(bytes: u64, min_free: u64) -> Self {
        let segment_bytes = (bytes / 256).clamp(256 << 20, 64 << 30);
        Limits { bytes, min_free, segment_bytes, dead_records: 1 << 16 }
    }
}

/// What is in memory of what is on the disk.
#[derive(Default)]
struct Index {
    entries: Entries,
    files: Files,
}

/// What only the one who writes needs.
struct Writer {
    log: Log,
    segments: Segments,
    /// Bytes written since the last sync.
    unsynced: u64,
    /// Dead records beyond as many as live ones, from which on the index is rewritten.
    dead_records: u64,
}

/// Places that are written to at once.
const WRITES_AT_ONCE: usize = 8;

/// Bytes after which what was written is synced.
const SYNC_BYTES: u64 = 256 << 20;

/// Samples on a local disk.
pub struct Store {
    disk: Arc<dyn Disk>,
    limits: Limits,
    secret: [u8; 16],
    index: RwLock<Index>,
    writer: Mutex<Writer>,
    used: AtomicU64,
    health: Health,
}

/// What came of looking for a sample.
pub enum Found {
    /// Its bytes.
    Whole(Buffer),
    /// It is not there.
    Nothing,
    /// What is there is not what was stored, or cannot be read: it should be removed.
    Damaged,
}

/// Bytes that a sample takes.
fn stored(length: usize) -> u64 {
    u64::from(pages_of(length as u32)) * PAGE_BYTES
}

/// Writes samples that lie one after the other.
fn write_run(segments: &Segments, run: &[(&Extent, &[u8])]) -> Result<()> {
    let Some((first, _)) = run.first() else { return Ok(()) };
    let no_file = || std::io::Error::other("a segment is missing");
    let file = segments.file(first.segment).ok_or_else(no_file)?;
    let total: u64 = run.iter().map(|(place, _)| place.bytes()).sum();
    let mut pages = Buffer::pages(total as usize);
    for (place, bytes) in run {
        let at = (place.offset() - first.offset()) as usize;
        pages.pages_mut()[at..at + bytes.len()].copy_from_slice(bytes);
    }
    file.write_at(pages.pages_mut(), first.offset())
}

/// Number of samples in a store, and their bytes in whole pages, as its index has them. Nothing is
/// changed: the store may be in use.
///
/// # Errors
/// The disk's.
pub fn count(disk: &dyn Disk) -> Result<(u64, u64)> {
    let found = log::replay(disk, &disk.names()?)?;
    let entries = found.map(|found| found.entries).unwrap_or_default();
    Ok((entries.len() as u64, entries.values().map(|at| stored(at.length as usize)).sum()))
}

fn checksum(key: Key, bytes: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&key.get().to_le_bytes()), bytes)
}

impl Store {
    /// Opens what the disk holds. `fresh` becomes the secret of a store that is new; nobody should
    /// be able to guess it.
    ///
    /// # Errors
    /// The disk's, where it cannot be read or an index cannot be made.
    pub fn open(disk: Arc<dyn Disk>, limits: Limits, fresh: u128) -> Result<Self> {
        let names = disk.names()?;
        let (mut log, mut entries) = Log::open(&*disk, &names, fresh)?;
        let (segment, budget) = (limits.segment_bytes, limits.bytes);
        let (segments, files, lost) = Segments::open(&*disk, &names, &mut entries, segment, budget);
        let health = Health::new(limits.min_free);
        // Their places will be others', who must not be left out for them at the next open.
        log.owe(lost.into_iter());
        let used = entries.values().map(|at| stored(at.length as usize)).sum();
        Ok(Store {
            secret: log.secret().to_le_bytes(),
            limits,
            index: RwLock::new(Index { entries, files }),
            writer: Mutex::new(Writer {
                log,
                segments,
                unsynced: 0,
                dead_records: limits.dead_records,
            }),
            used: AtomicU64::new(used),
            health,
            disk,
        })
    }

    fn read(&self) -> RwLockReadGuard<'_, Index> {
        self.index.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Index> {
        self.index.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn writer(&self) -> MutexGuard<'_, Writer> {
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The key of the block at `offset` of one version of a file.
    pub fn key(&self, path: &Path, version: &Fingerprint, offset: u64) -> Key {
        let mut hasher = SipHasher24::new_with_key(&self.secret);
        hasher.write(path.as_os_str().as_bytes());
        hasher.write(&[0]);
        hasher.write(version.lasting());
        hasher.write_u64(offset);
        Key::new(hasher.finish128().as_u128())
    }

    /// Whether the sample is there, and its disk to be used.
    pub fn contains(&self, key: Key) -> bool {
        self.health.is_usable() && self.read().entries.contains_key(&key)
    }

    /// The sample's bytes. Blocks.
    pub fn get(&self, key: Key) -> Found {
        let found = {
            let index = self.read();
            let at = index.entries.get(&key).copied();
            at.and_then(|at| Some((at, Arc::clone(index.files.get(&at.segment)?))))
        };
        let Some((at, file)) = found else { return Found::Nothing };
        let mut buffer = Buffer::pages(at.length as usize);
        match file.read_at(buffer.pages_mut(), u64::from(at.page) * PAGE_BYTES) {
            Ok(()) => {
                self.health.good();
                if checksum(key, &buffer) == at.checksum {
                    return Found::Whole(buffer);
                }
            }
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => {}
            Err(error) => self.health.bad(&error),
        }
        // It may have been given up in the meantime.
        match self.read().entries.get(&key) {
            Some(now) if *now == at => Found::Damaged,
            _ => Found::Nothing,
        }
    }

    /// Stores samples, all of them or none; says whether. They should be a few megabytes together.
    /// What is there already stays as it is. Blocks.
    pub fn put(&self, samples: &[(Key, &[u8])]) -> bool {
        let samples: Vec<(Key, &[u8])> = {
            let index = self.read();
            let mut seen = HashSet::with_capacity(samples.len());
            let mut new = |key: Key| seen.insert(key) && !index.entries.contains_key(&key);
            samples.iter().filter(|(key, _)| new(*key)).copied().collect()
        };
        if samples.is_empty() {
            return true;
        }
        let bytes: u64 = samples.iter().map(|(_, bytes)| stored(bytes.len())).sum();
        let fits = self.used().saturating_add(bytes) <= self.limits.bytes;
        if !fits || !self.health.is_usable() || !self.health.has_room(&*self.disk, bytes) {
            return false;
        }
        let mut writer = self.writer();
        match self.append(&mut writer, &samples) {
            Ok(()) => self.health.good(),
            Err(error) => {
                self.health.bad(&error);
                return false;
            }
        }
        writer.unsynced += bytes;
        if writer.unsynced >= SYNC_BYTES {
            // Where that fails, what is stored is there all the same; only a crash may lose it.
            let _ = self.sync_all(&mut writer);
        }
        self.tidy(&mut writer);
        true
    }

    /// Writes samples and their records, and makes them known.
    fn append(&self, writer: &mut Writer, samples: &[(Key, &[u8])]) -> Result<()> {
        let sizes: Vec<u32> = samples.iter().map(|(_, b)| pages_of(b.len() as u32)).collect();
        let places = writer.segments.place(&*self.disk, &sizes, self.used())?;
        let written = self.write_samples(writer, samples, &places);
        let recorded = written.and_then(|records| {
            writer.log.append(records.iter().map(|(key, at)| Record::Stored(*key, *at)))?;
            Ok(records)
        });
        match recorded {
            Ok(records) => {
                self.used.fetch_add(places.iter().map(Extent::bytes).sum(), Ordering::Relaxed);
                self.write().entries.extend(records);
                Ok(())
            }
            Err(error) => {
                writer.segments.free(places.into_iter());
                self.delete_empty(writer);
                Err(error)
            }
        }
    }

    /// Writes samples to their places, neighbours at once.
    fn write_samples(
        &self,
        writer: &Writer,
        samples: &[(Key, &[u8])],
        places: &[Extent],
    ) -> Result<Vec<(Key, Location)>> {
        let mut records = Vec::with_capacity(samples.len());
        let mut batch: Vec<(&Extent, &[u8])> = Vec::with_capacity(samples.len());
        for (place, (key, bytes)) in places.iter().zip(samples) {
            let (length, checksum) = (bytes.len() as u32, checksum(*key, bytes));
            let Extent { segment, page, .. } = *place;
            records.push((*key, Location { segment, page, length, checksum }));
            batch.push((place, bytes));
        }
        batch.sort_unstable_by_key(|(place, _)| **place);
        let follows = |a: &(&Extent, &[u8]), b: &(&Extent, &[u8])| {
            (a.0.segment, a.0.page + a.0.pages) == (b.0.segment, b.0.page)
        };
        let runs: Vec<&[(&Extent, &[u8])]> = batch.chunk_by(follows).collect();
        for (Extent { segment, .. }, _) in runs.iter().filter_map(|run| run.first()) {
            if !self.read().files.contains_key(segment)
                && let Some(file) = writer.segments.file(*segment)
            {
                self.write().files.insert(*segment, Arc::clone(file));
            }
        }
        // Far from each other they are not written one after the other: disks do several at once.
        let share = runs.len().div_ceil(WRITES_AT_ONCE).max(1);
        let write = |runs: &[&[(&Extent, &[u8])]]| {
            runs.iter().try_for_each(|run| write_run(&writer.segments, run))
        };
        std::thread::scope(|scope| {
            let mut shares = runs.chunks(share);
            let own = shares.next().unwrap_or_default();
            let others: Vec<_> = shares
                .map(|share| {
                    let thread = std::thread::Builder::new();
                    thread.spawn_scoped(scope, move || write(share)).map_err(|_| share)
                })
                .collect();
            let panicked = || Err(std::io::Error::other("a write panicked"));
            let written = write(own);
            let joined = others.into_iter().map(|other| match other {
                Ok(thread) => thread.join().unwrap_or_else(|_| panicked()),
                // No thread was to be had.
                Err(share) => write(share),
            });
            joined.fold(written, Result::and)
        })?;
        Ok(records)
    }

    /// Gives samples up. Blocks.
    pub fn remove(&self, keys: &[Key]) {
        let mut writer = self.writer();
        let mut index = self.write();
        let gone: Vec<(Key, Location)> =
            keys.iter().filter_map(|key| Some((*key, index.entries.remove(key)?))).collect();
        drop(index);
        let places = gone.iter().map(|(_, at)| Extent::of(at));
        let bytes = places.clone().map(|place| place.bytes()).sum();
        self.used.fetch_sub(bytes, Ordering::Relaxed);
        match writer.log.append(gone.iter().map(|(key, _)| Record::GivenUp(*key))) {
            Ok(()) => writer.segments.free(places),
            // Their places are no others' until the next open, but a full disk gets the space.
            Err(error) => {
                self.health.bad(&error);
                writer.segments.punch(places);
            }
        }
        let idle = match self.health.is_full() {
            true => 0,
            false => self.limits.bytes.saturating_sub(self.used()),
        };
        writer.segments.shrink(idle);
        self.delete_empty(&mut writer);
        self.tidy(&mut writer);
    }

    fn delete_empty(&self, writer: &mut Writer) {
        for id in writer.segments.empty() {
            self.write().files.remove(&id);
            if let Err(error) = self.disk.remove(&segments::name(id)) {
                tracing::debug!(%error, id, "an empty segment stays until the next mount");
            }
        }
    }

    /// Keeps the index small.
    fn tidy(&self, writer: &mut Writer) {
        let index = self.read();
        let live = index.entries.len() as u64;
        if writer.log.records <= 2 * live + writer.dead_records {
            return;
        }
        let entries = index.entries.iter().map(|(key, at)| (*key, *at));
        writer.dead_records = self.limits.dead_records;
        if let Err(error) = writer.log.rewrite(&*self.disk, entries) {
            self.health.bad(&error);
            // Not tried again with each sample.
            writer.dead_records = writer.log.records;
        }
    }

    fn sync_all(&self, writer: &mut Writer) -> Result<()> {
        let Writer { log, segments, unsynced, .. } = writer;
        let synced = segments.sync(log);
        *unsynced = 0;
        synced.inspect_err(|error| self.health.bad(error))
    }

    /// Gives everything that no sample needs back to the disk. Blocks.
    ///
    /// # Errors
    /// The disk's.
    pub fn compact(&self) -> Result<()> {
        let mut writer = self.writer();
        writer.segments.shrink(0);
        self.delete_empty(&mut writer);
        let index = self.read();
        let entries = index.entries.iter().map(|(key, at)| (*key, *at));
        writer.log.rewrite(&*self.disk, entries)
    }

    /// Makes what is stored last. Blocks.
    ///
    /// # Errors
    /// The disk's.
    pub fn sync(&self) -> Result<()> {
        self.sync_all(&mut self.writer())
    }

    /// Deletes segments in which nothing was found at open. Blocks.
    pub fn clear_leftovers(&self) {
        self.delete_empty(&mut self.writer());
    }

    /// Bytes that the store has on the disk and no sample takes.
    pub fn idle(&self) -> u64 {
        self.writer().segments.idle()
    }

    /// What is stored.
    pub fn keys(&self) -> Vec<Key> {
        self.read().entries.keys().copied().collect()
    }

    /// Number of samples, and their bytes in whole pages.
    pub fn totals(&self) -> (u64, u64) {
        (self.read().entries.len() as u64, self.used())
    }

    fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// `normal`, or what is wrong in words.
    pub fn state(&self) -> &'static str {
        self.health.words()
    }
}
