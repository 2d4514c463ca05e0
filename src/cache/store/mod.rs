//! The local store: samples on a local disk, packed into segments, there again at the next mount.
//!
//! A store is a directory. In the order it happens:
//!
//! 1. Samples are written in batches to the end of the newest *segment*, a file of raw samples that
//!    each begin at a page; there is nothing else in it. A segment that has reached its size is
//!    synced and followed by a new one. No place in a segment is ever written twice.
//! 2. Then a record for each goes to the end of the *index*, a log of what is where. It has
//!    the sample's [`Key`], which names one version of one block, its place, and a checksum of the
//!    key and the bytes.
//! 3. A read takes the place from memory, reads past the page cache, and compares the checksum.
//!    What is damaged is dropped and fetched again. So neither a torn write nor a record that a
//!    crash brought back can do harm, and writes need no order: syncs only say what a crash must
//!    leave. They happen at the end of a segment and at [`Store::sync`].
//! 4. What is given up is recorded, and its pages are punched out of the segment. A segment without
//!    samples is deleted. Where many segments hold little, the samples of the emptiest one are
//!    written again and it goes. Reads never wait for any of this: one thread at a time writes.
//! 5. At open the log is replayed; the segments' data are not looked at. What leads to no segment,
//!    or past the end of one, is left out, and segments without samples go.
//!
//! The store stores: what is stored and what is given up is the policy's to say.

pub mod disk;
mod health;
pub mod home;
mod log;
mod segments;
#[cfg(test)]
mod tests;

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
use segments::{Files, Segments};

/// What a store may take.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes of samples, in whole pages.
    pub bytes: u64,
    /// Bytes to leave free on the disk, whoever uses the rest.
    pub min_free: u64,
    /// Bytes after which a segment is full.
    pub segment_bytes: u64,
    /// Segments from which on the emptiest ones are given up.
    pub segments: usize,
    /// Dead records in the index beyond as many as there are live ones.
    pub dead_records: u64,
}

impl Limits {
    /// For so many bytes, beside `min_free` that stay free: few files, whatever the size.
    pub fn new(bytes: u64, min_free: u64) -> Self {
        let segment_bytes = (bytes / 256).clamp(256 << 20, 64 << 30);
        Limits { bytes, min_free, segment_bytes, segments: 512, dead_records: 1 << 16 }
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
}

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

fn pages(length: u32) -> u64 {
    u64::from(length).next_multiple_of(PAGE_BYTES)
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
        let (log, mut entries) = Log::open(&*disk, &names, fresh)?;
        let (segments, files) = Segments::open(&*disk, &names, &mut entries);
        let used = entries.values().map(|at| pages(at.length)).sum();
        Ok(Store {
            secret: log.secret().to_le_bytes(),
            limits,
            index: RwLock::new(Index { entries, files }),
            writer: Mutex::new(Writer { log, segments }),
            used: AtomicU64::new(used),
            health: Health::new(limits.min_free),
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
            let new = |sample: &&(Key, &[u8])| !index.entries.contains_key(&sample.0);
            samples.iter().filter(new).copied().collect()
        };
        if samples.is_empty() {
            return true;
        }
        let bytes: u64 = samples.iter().map(|(_, bytes)| pages(bytes.len() as u32)).sum();
        let fits = self.used().saturating_add(bytes) <= self.limits.bytes;
        if !fits || !self.health.is_usable() || !self.health.has_room(&*self.disk, bytes) {
            return false;
        }
        let mut writer = self.writer();
        let written = self.write_samples(&mut writer, &samples);
        match written.and_then(|stored| self.record(&mut writer, stored)) {
            Ok(()) => {
                self.health.good();
                self.tidy(&mut writer);
                true
            }
            Err(error) => {
                self.health.bad(&error);
                false
            }
        }
    }

    /// Writes samples to the newest segment; nobody knows of them yet.
    fn write_samples(
        &self,
        writer: &mut Writer,
        samples: &[(Key, &[u8])],
    ) -> Result<Vec<(Key, Location)>> {
        let total: u64 = samples.iter().map(|(_, bytes)| pages(bytes.len() as u32)).sum();
        let room = writer.segments.room(&*self.disk, total, self.limits.segment_bytes)?;
        if let Some((id, file)) = room.begun {
            // What came before lasts from here on.
            self.write().files.insert(id, file);
            writer.segments.sync(&writer.log)?;
        }
        let mut batch = Buffer::pages(total as usize);
        let (mut at, mut stored) = (0, Vec::with_capacity(samples.len()));
        for (key, bytes) in samples {
            let (length, page) = (bytes.len() as u32, (room.offset + at as u64) / PAGE_BYTES);
            batch.pages_mut()[at..at + bytes.len()].copy_from_slice(bytes);
            at += pages(length) as usize;
            let checksum = checksum(*key, bytes);
            let place = Location { segment: room.segment, page: page as u32, length, checksum };
            stored.push((*key, place));
        }
        let written = room.file.write_at(batch.pages_mut(), room.offset);
        writer.segments.add(stored.iter().map(|(_, at)| at));
        self.used.fetch_add(total, Ordering::Relaxed);
        match written {
            Ok(()) => Ok(stored),
            Err(error) => {
                self.free(writer, stored.into_iter().map(|(_, at)| at).collect());
                Err(error)
            }
        }
    }

    /// Makes samples that were written known, in place of what there was of them before.
    fn record(&self, writer: &mut Writer, stored: Vec<(Key, Location)>) -> Result<()> {
        let recorded = writer.log.append(stored.iter().map(|(k, at)| Record::Stored(*k, *at)));
        let free = match &recorded {
            Ok(()) => {
                let mut index = self.write();
                stored.into_iter().filter_map(|(key, at)| index.entries.insert(key, at)).collect()
            }
            Err(_) => stored.into_iter().map(|(_, at)| at).collect(),
        };
        self.free(writer, free);
        recorded
    }

    /// Gives samples up. Blocks.
    pub fn remove(&self, keys: &[Key]) {
        let mut writer = self.writer();
        let mut index = self.write();
        let gone: Vec<(Key, Location)> =
            keys.iter().filter_map(|key| Some((*key, index.entries.remove(key)?))).collect();
        drop(index);
        if gone.is_empty() {
            return;
        }
        if let Err(error) = writer.log.append(gone.iter().map(|(key, _)| Record::GivenUp(*key))) {
            // After a restart they lead to what is not theirs, which the checksum shows.
            self.health.bad(&error);
        }
        self.free(&mut writer, gone.into_iter().map(|(_, at)| at).collect());
        self.tidy(&mut writer);
    }

    /// Gives places back to the disk.
    fn free(&self, writer: &mut Writer, places: Vec<Location>) {
        let bytes = places.iter().map(|at| pages(at.length)).sum();
        self.used.fetch_sub(bytes, Ordering::Relaxed);
        for range in writer.segments.take(places) {
            let file = self.read().files.get(&range.segment).cloned();
            if let Some(file) = file {
                // Filesystems that cannot do it get the space back with the segment.
                let _ = file.punch(range.offset, range.length);
            }
        }
        self.delete_empty(writer);
    }

    fn delete_empty(&self, writer: &mut Writer) {
        for id in writer.segments.empty() {
            self.write().files.remove(&id);
            if let Err(error) = self.disk.remove(&segments::name(id)) {
                tracing::debug!(%error, id, "an empty segment stays until the next mount");
            }
        }
    }

    /// Keeps the index and the number of segments small.
    fn tidy(&self, writer: &mut Writer) {
        let live = self.read().entries.len() as u64;
        if writer.log.records > 2 * live + self.limits.dead_records {
            let index = self.read();
            let entries = index.entries.iter().map(|(key, at)| (*key, *at));
            if let Err(error) = writer.log.rewrite(&*self.disk, entries) {
                drop(index);
                self.health.bad(&error);
            }
        }
        if let Some(emptiest) = writer.segments.emptiest(self.limits.segments)
            && let Err(error) = self.move_out(writer, emptiest)
        {
            self.health.bad(&error);
        }
    }

    /// Writes what is in a segment again, after which it goes. A record may be left by a crash that
    /// has lost the bytes which it leads to: here it must not, for it takes the place of another.
    fn move_out(&self, writer: &mut Writer, segment: u32) -> Result<()> {
        let keys: Vec<Key> = {
            let index = self.read();
            let inside = index.entries.iter().filter(|(_, at)| at.segment == segment);
            inside.map(|(key, _)| *key).collect()
        };
        let (mut moved, mut damaged) = (Vec::new(), Vec::new());
        for key in keys {
            match self.get(key) {
                Found::Whole(bytes) => {
                    moved.append(&mut self.write_samples(writer, &[(key, &bytes)])?)
                }
                Found::Damaged | Found::Nothing => damaged.push(key),
            }
        }
        writer.segments.sync(&writer.log)?;
        let damaged = damaged.into_iter().filter_map(|key| self.write().entries.remove(&key));
        let damaged: Vec<Location> = damaged.collect();
        self.free(writer, damaged);
        writer.log.append(moved.iter().map(|(key, at)| Record::Stored(*key, *at)))?;
        writer.log.sync()?;
        let mut index = self.write();
        let places = moved.into_iter().filter_map(|(key, at)| index.entries.insert(key, at));
        let places: Vec<Location> = places.collect();
        drop(index);
        self.free(writer, places);
        Ok(())
    }

    /// Makes what is stored last. Blocks.
    ///
    /// # Errors
    /// The disk's.
    pub fn sync(&self) -> Result<()> {
        let mut writer = self.writer();
        let Writer { log, segments } = &mut *writer;
        segments.sync(log)
    }

    /// Deletes segments in which nothing was found at open. Blocks.
    pub fn clear_leftovers(&self) {
        self.delete_empty(&mut self.writer());
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
