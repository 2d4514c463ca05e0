//! The local store: keeps samples on a local disk from one mount to the next.
//!
//! A store is a directory. In the order of events:
//!
//! 1. Samples are written in batches to *segments*: files of raw samples and nothing else. Each sample begins
//!    at a page boundary. Segments are filled one after the other. Once the budget is used up, samples take
//!    the places of removed ones (`segments.rs`). Blocks of large files go to sparse files of their own
//!    (`large.rs`).
//! 2. Then a record of each sample is appended to the *index*, a log (`log.rs`). A record has the sample's
//!    [`Key`], which names one version of one block, its place, and a checksum of the key and the bytes.
//! 3. A read takes the place from memory, reads past the page cache, and compares the checksum. A damaged
//!    sample is removed and fetched again. The one exception is a large file that the kernel reads by
//!    itself, which is compared once a mount (`passthrough.rs`).
//! 4. Because each read is checked, neither a torn write nor a record that a crash brought back does harm, and
//!    writes need no order. Syncs only decide what survives a crash. They happen after 256 MiB of writes, and
//!    at [`Store::sync`], which the mount calls some seconds after a write. The record of a removal stands in
//!    the log before its place is used again. So a sync that covers the new sample covers the removal.
//! 5. Once a removal is recorded, the place is free. A segment without samples is deleted. Free places are
//!    punched if none is large enough for a new sample, or if others need the space. One thread writes at a
//!    time, and reads never wait for it.
//! 6. At open the log is replayed; the segments' data are not read. A record that leads to no segment, or past
//!    the end of one, is left out, and so are records whose places overlap. All are reported (`losses.rs`).
//!
//! The planner decides what is stored and what is removed (`plan/ledger`).

pub mod directory;
mod index;
mod inspect;
mod large;
mod log;
mod losses;
mod passthrough;
mod segments;
#[cfg(test)]
pub(crate) mod tests;
mod writer;

use std::collections::HashSet;
use std::hash::Hasher;
use std::io::{Error, ErrorKind, Result};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use siphasher::sip128::{Hasher128, SipHasher24};

use crate::disk::{Alarm, Buffer, Disk, DiskState, DiskWatch, Health, has_no_room, unguessable};
use crate::ids::PAGE_BYTES;
use crate::source::Fingerprint;
use crate::sync::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
use index::Index;
pub use inspect::{StoreCounts, count, recorded_keys};
pub use large::LargeBlock;
pub use log::Key;
use log::{Entries, Location, Log, is_index};
pub use losses::Losses;
pub use passthrough::PassthroughFile;
use segments::{Extent, Segments, SkippedEntries, is_segment, pages_of};
pub use writer::Sample;
use writer::Writer;

/// After this number of written bytes a sync follows.
const SYNC_BYTES: u64 = 256 << 20;

#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes of samples, in whole pages.
    pub bytes: u64,
    /// Bytes to leave free on the disk, whoever uses the rest.
    pub min_free: u64,
    /// Files that other programs must still be able to create on the disk.
    pub min_free_files: u64,
    pub segment_bytes: u64,
    /// From this size in bytes a file is large: it is not packed with others.
    pub large_bytes: u64,
    /// The index is rewritten if it has this many more dead records than live ones.
    pub dead_records: u64,
}

impl Limits {
    /// Limits for `bytes` of samples beside `min_free` bytes that stay free. The number of files is small
    /// for any size.
    pub fn new(bytes: u64, min_free: u64) -> Self {
        let segment_bytes = (bytes / 256).clamp(256 << 20, 64 << 30);
        let large_bytes = 64 << 20;
        Limits {
            bytes,
            min_free,
            min_free_files: 0,
            segment_bytes,
            large_bytes,
            dead_records: 1 << 16,
        }
    }
}

pub struct Store {
    disk: Arc<dyn Disk>,
    limits: Limits,
    secret: [u8; 16],
    index: RwLock<Index>,
    writer: Mutex<Writer>,
    used: AtomicU64,
    /// Bytes of samples that are allowed now: the limit or less.
    budget: AtomicU64,
    health: Health,
    watch: Arc<DiskWatch>,
}

/// How a store and other programs share a disk, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskUsage {
    /// The whole disk. 0 if our directory on it was deleted.
    pub total: u64,
    pub others: u64,
    pub min_free: u64,
}

/// The result of reading a sample.
pub enum ReadOutcome {
    Whole(Buffer),
    Missing,
    /// The bytes are not what was stored, or cannot be read. The sample should be removed.
    Damaged,
}

/// Bytes that a sample takes on the disk.
fn bytes_on_disk(length: usize) -> u64 {
    u64::from(pages_of(length as u32)) * PAGE_BYTES
}

/// Whether the file was cut, deleted or replaced.
fn is_lost(error: &std::io::Error) -> bool {
    error.kind() == ErrorKind::UnexpectedEof || large::is_missing(error)
}

fn checksum(key: Key, bytes: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&key.get().to_le_bytes()), bytes)
}

/// An unguessable secret for a new store.
pub fn fresh_secret() -> u128 {
    u128::from(unguessable()) << 64 | u128::from(unguessable())
}

impl Store {
    /// Opens the store on a disk, and mends its index. `fresh` becomes the secret of a new store; it should
    /// be unguessable.
    ///
    /// # Errors
    /// The disk's, if it cannot be read or an index cannot be made.
    pub fn open(disk: Arc<dyn Disk>, limits: Limits, fresh: u128) -> Result<Self> {
        let (watch, disk, names) = open_disk(disk)?;
        let (log, entries) = match Log::open(&*disk, &names)? {
            Some(found) => found,
            None => (Log::begin(&*disk, &names, fresh)?, Entries::default()),
        };
        let (store, _) = Self::with(watch, disk, &names, limits, log, entries);
        store.repair_index();
        Ok(store)
    }

    /// Rewrites an index with unreadable records, which a crash of the machine may have left.
    fn repair_index(&self) {
        let mut writer = self.writer();
        let records = writer.log.torn_records;
        if records > 0 {
            tracing::warn!(
                records,
                "the index of the store was damaged; what is missing is fetched again"
            );
            // If that fails, the index can be read as it is.
            let _ = writer.rewrite(&self.index).inspect_err(|error| self.health.note_error(error));
        }
    }

    /// Opens an existing store, and says what it has lost. None if there is no store. A store without an
    /// index is not changed.
    ///
    /// # Errors
    /// The disk's, and [`ErrorKind::InvalidData`] if all samples are lost with the index.
    pub fn open_found(disk: Arc<dyn Disk>, limits: Limits) -> Result<Option<(Self, Losses)>> {
        let (watch, disk, names) = open_disk(disk)?;
        if let Some((log, entries)) = Log::open(&*disk, &names)? {
            let (store, lost) = Self::with(watch, disk, &names, limits, log, entries);
            let losses = Losses::of(&store.writer(), &lost);
            return Ok(Some((store, losses)));
        }
        let is_ours =
            |name: &str| is_index(name) || is_segment(name) || large::parse(name).is_some();
        if names.iter().any(|(name, _)| is_ours(name)) {
            let message = "its index is gone or damaged, and all that was stored is lost with it";
            return Err(Error::new(ErrorKind::InvalidData, message));
        }
        Ok(None)
    }

    fn with(
        watch: Arc<DiskWatch>,
        disk: Arc<dyn Disk>,
        names: &[(String, u64)],
        limits: Limits,
        mut log: Log,
        mut entries: Entries,
    ) -> (Self, Vec<(Key, Location)>) {
        let (segments, files, SkippedEntries { lost, closed }) =
            Segments::open(&disk, names, &mut entries, limits.segment_bytes);
        // Other samples will take their places. Without these records the next open would leave them out,
        // too.
        log.queue_removals(lost.iter().map(|(key, _)| *key));
        let used = entries.values().map(|at| bytes_on_disk(at.length as usize)).sum();
        let store = Store {
            secret: log.secret().to_le_bytes(),
            limits,
            index: RwLock::new(Index::new(entries, files)),
            writer: Mutex::new(Writer::new(&disk, log, segments, closed, limits.dead_records)),
            used: AtomicU64::new(used),
            budget: AtomicU64::new(limits.bytes),
            health: Health::new(limits.min_free, limits.min_free_files),
            watch,
            disk,
        };
        (store, lost)
    }

    fn read(&self) -> RwLockReadGuard<'_, Index> {
        self.index.read()
    }

    fn write(&self) -> RwLockWriteGuard<'_, Index> {
        self.index.write()
    }

    fn writer(&self) -> MutexGuard<'_, Writer> {
        self.writer.lock()
    }

    pub fn is_large(&self, size: u64) -> bool {
        size >= self.limits.large_bytes
    }

    /// The block at `offset` of a version of a large file. None if a file of `size` bytes is not large.
    pub fn large_block(
        &self,
        path: &Path,
        version: &Fingerprint,
        offset: u64,
        size: u64,
    ) -> Option<LargeBlock> {
        // No block has this offset.
        self.is_large(size)
            .then(|| LargeBlock::new(self.key(path, version, u64::MAX), offset))
            .flatten()
    }

    /// A number that tells this store from others, as long as it lasts.
    pub fn id(&self) -> u64 {
        let mut hasher = SipHasher24::new_with_key(&self.secret);
        hasher.write(b"id");
        hasher.finish128().as_u128() as u64
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

    /// Whether the sample is stored, whatever the state of the disk.
    pub fn holds(&self, key: Key) -> bool {
        self.read().entries.contains_key(&key)
    }

    /// Keeps the samples that [are stored](Self::holds).
    pub fn retain_held<T>(&self, samples: &mut Vec<(T, Key)>) {
        let index = self.read();
        samples.retain(|(_, key)| index.entries.contains_key(key));
    }

    /// Whether the sample is stored and its disk is to be read. If the disk is down, one read now and then
    /// claims a try of it.
    pub fn claim_read(&self, key: Key) -> bool {
        self.holds(key) && self.claim_try()
    }

    /// Reads a sample. Blocks.
    pub fn get(&self, key: Key) -> ReadOutcome {
        match self.try_get(key) {
            // It may have been removed and stored again in the same place during the read.
            ReadOutcome::Damaged => self.try_get(key),
            found => found,
        }
    }

    fn try_get(&self, key: Key) -> ReadOutcome {
        let Some((at, file)) = self.read().find(key) else { return ReadOutcome::Missing };
        let mut buffer = Buffer::pages(at.length as usize);
        let read = file.read_at(buffer.pages_mut(), u64::from(at.page) * PAGE_BYTES);
        match read {
            Ok(()) => {
                self.health.note_success();
                if checksum(key, &buffer) == at.checksum {
                    return ReadOutcome::Whole(buffer);
                }
            }
            Err(error) if is_lost(&error) => {}
            Err(error) => self.health.note_error(&error),
        }
        // It may have been removed meanwhile.
        match self.read().entries.get(&key) {
            Some(now) if *now == at => ReadOutcome::Damaged,
            _ => ReadOutcome::Missing,
        }
    }

    /// Reads samples and compares their checksums. Returns those that are damaged, and those that cannot be
    /// read while others can, each with its place. Blocks.
    ///
    /// # Errors
    /// The disk's, in words, if the disk fails as a whole: samples may be readable again tomorrow.
    pub fn verify(&self, keys: &mut dyn Iterator<Item = Key>) -> Result<Vec<(Key, String)>> {
        let (mut whole, mut damaged) = (None, Vec::new());
        for key in keys {
            match self.get(key) {
                ReadOutcome::Whole(_) => whole = Some(key),
                ReadOutcome::Damaged => damaged.push(key),
                ReadOutcome::Missing => {}
            }
        }
        let works = || whole.is_some_and(|key| matches!(self.get(key), ReadOutcome::Whole(_)));
        if self.state() != DiskState::Normal && !works() {
            return Err(Error::other(self.state().to_string()));
        }
        Ok(damaged.into_iter().map(|key| (key, self.place(key))).collect())
    }

    /// Where a sample is, for messages.
    fn place(&self, key: Key) -> String {
        let Some(at) = self.read().entries.get(&key).copied() else { return String::new() };
        self.writer().segments.describe(&at)
    }

    /// Stores samples, all or none. Returns whether they are stored. They should be a few megabytes
    /// together. A sample that is stored already stays as it is. Blocks.
    pub fn put(&self, samples: &[(Key, &[u8])]) -> bool {
        let sample = |&(key, bytes): &(Key, _)| Sample { key, bytes, large: None };
        self.put_all(&samples.iter().map(sample).collect::<Vec<_>>())
    }

    /// As [`put`](Self::put), for samples that may be blocks of large files.
    pub fn put_all(&self, samples: &[Sample<'_>]) -> bool {
        let samples: Vec<Sample<'_>> = {
            let index = self.read();
            let mut seen = HashSet::with_capacity(samples.len());
            let mut new = |key: Key| seen.insert(key) && !index.entries.contains_key(&key);
            samples.iter().filter(|sample| new(sample.key)).copied().collect()
        };
        if samples.is_empty() {
            return true;
        }
        let bytes: u64 = samples.iter().map(|sample| bytes_on_disk(sample.bytes.len())).sum();
        let fits = self.used().saturating_add(bytes) <= self.budget();
        // A claimed try of a disk that is down must be made, so all other conditions come first.
        let may = fits && !self.reads_hang() && self.health.claim_room(&*self.disk, bytes);
        if !may || !self.claim_try() {
            return false;
        }
        let mut writer = self.writer();
        match writer.append(&self.index, &samples, (self.used(), self.budget())) {
            Ok(bytes) => {
                self.used.fetch_add(bytes, Ordering::Relaxed);
                self.health.note_stored();
            }
            Err(error) => {
                self.health.note_error(&error);
                return false;
            }
        }
        if writer.unsynced >= SYNC_BYTES {
            // If that fails, the samples are stored all the same, but a crash may lose them.
            let _ = writer.sync().inspect_err(|error| self.health.note_error(error));
        }
        let _ = writer
            .rewrite_if_mostly_dead(&self.index)
            .inspect_err(|error| self.health.note_error(error));
        true
    }

    /// The large file with this first block, if it is [prepared](Self::prepare_passthrough) for the kernel. Never
    /// blocks.
    pub fn passthrough_file(&self, first: Key) -> Option<Arc<PassthroughFile>> {
        if self.reads_hang() || !self.health.is_up() {
            return None;
        }
        self.read().passthrough_file(first)
    }

    /// Prepares a large file of `length` bytes for the kernel if `blocks` are all of its blocks, and all are
    /// stored and right. Returns whether it is. Reads the whole file once. Blocks.
    pub fn prepare_passthrough(&self, blocks: &[Key], length: u64) -> bool {
        let Some(file) = self.read().file_of_all(blocks) else { return false };
        let compared = self.read().is_compared(file);
        if !compared && blocks.iter().any(|key| !matches!(self.get(*key), ReadOutcome::Whole(_))) {
            return false;
        }
        // Places change only under this lock.
        let mut writer = self.writer();
        if self.read().file_of_all(blocks) != Some(file) {
            return false;
        }
        let opened = match writer.segments.open_passthrough(file, length) {
            Ok(Some(opened)) => opened,
            Ok(None) => return false,
            Err(error) => {
                tracing::debug!(%error, "a large file cannot be lent");
                return false;
            }
        };
        self.write().add_passthrough(file, opened);
        true
    }

    /// Removes samples. Blocks.
    pub fn remove(&self, keys: &[Key]) {
        let mut writer = self.writer();
        let removed = self.write().remove(keys);
        let bytes = removed.iter().map(|(_, at)| Extent::of(at).bytes()).sum();
        self.used.fetch_sub(bytes, Ordering::Relaxed);
        let _ = writer.remove(&removed).inspect_err(|error| self.health.note_error(error));
        let idle = match self.health.is_full() {
            true => 0,
            false => self.budget().saturating_sub(self.used()),
        };
        writer.shrink(idle, &self.index);
        let _ = writer
            .rewrite_if_mostly_dead(&self.index)
            .inspect_err(|error| self.health.note_error(error));
    }

    /// Gives all idle space back to the disk, and rewrites the index. If a full disk has no room for a
    /// smaller index, the index stays. Blocks.
    pub fn compact(&self) -> Result<()> {
        let mut writer = self.writer();
        writer.segments.shrink(0);
        writer.clear_leftovers(&self.index);
        let written = writer.rewrite(&self.index);
        written.or_else(|error| if has_no_room(&error) { Ok(()) } else { Err(error) })
    }

    /// Bytes that were stored and are not durable yet. Blocks.
    pub fn unsynced(&self) -> u64 {
        self.writer().unsynced
    }

    /// Makes all stored samples durable. Blocks.
    pub fn sync(&self) -> Result<()> {
        self.writer().sync().inspect_err(|error| self.health.note_error(error))
    }

    /// Deletes files in which nothing was found at open, and punches what a crash has left in others.
    /// Blocks.
    pub fn clear_leftovers(&self) {
        self.writer().clear_leftovers(&self.index);
    }

    /// Bytes that the store has on the disk without a sample.
    pub fn idle_bytes(&self) -> u64 {
        self.writer().segments.idle()
    }

    /// Sets the budget to `bytes`, at most the configured limit. Idle space beyond it goes back to the disk
    /// at once; the caller decides which samples are removed. Blocks.
    pub fn resize(&self, bytes: u64) {
        self.budget.store(bytes.min(self.limits.bytes), Ordering::Relaxed);
        self.writer().shrink(self.budget().saturating_sub(self.used()), &self.index);
    }

    /// How the disk is shared now. Blocks.
    pub fn disk_usage(&self) -> Result<DiskUsage> {
        let own = self.used() + self.idle_bytes();
        let space = self.health.update_space(&*self.disk)?;
        let others = space.total.saturating_sub(space.bytes).saturating_sub(own);
        Ok(DiskUsage { total: space.total, others, min_free: self.limits.min_free })
    }

    pub fn keys(&self) -> Vec<Key> {
        self.read().entries.keys().copied().collect()
    }

    /// Number of samples, and their bytes in whole pages.
    pub fn totals(&self) -> (u64, u64) {
        (self.read().entries.len() as u64, self.used())
    }

    fn budget(&self) -> u64 {
        self.budget.load(Ordering::Relaxed)
    }

    /// Bytes of all samples, in whole pages.
    pub fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// Watches another directory of the same disk: if a call to it is not answered, the disk hangs.
    pub fn watch_directory(&self, directory: Arc<dyn Disk>) -> Arc<dyn Disk> {
        self.watch.watched(directory)
    }

    /// As [`DiskWatch::set_alarm`].
    pub(crate) fn set_alarm(&self, alarm: &Arc<Alarm>) {
        self.watch.set_alarm(alarm);
    }

    /// As [`DiskWatch::is_called`].
    pub(crate) fn is_called(&self) -> bool {
        self.watch.is_called()
    }

    /// As [`DiskWatch::tick`].
    pub fn tick(&self) {
        self.watch.tick();
    }

    /// As [`DiskWatch::reads_hang`].
    pub fn reads_hang(&self) -> bool {
        self.watch.reads_hang()
    }

    /// As [`DiskWatch::hangs`].
    pub fn hangs(&self) -> bool {
        self.watch.hangs()
    }

    /// As [`DiskWatch::writes_answered`].
    pub fn writes_answered(&self) -> u64 {
        self.watch.writes_answered()
    }

    /// Whether all samples are durable, and the disk is up, has room and does not hang. May block.
    pub fn is_settled(&self) -> bool {
        let is_well = self.health.is_up() && !self.health.is_full();
        is_well && !self.hangs() && self.unsynced() == 0
    }

    /// Claims a try of the disk, unless it hangs.
    pub(super) fn claim_try(&self) -> bool {
        !self.reads_hang() && self.health.claim_try()
    }

    pub fn state(&self) -> DiskState {
        if self.reads_hang() {
            DiskState::Hanging
        } else if self.hangs() {
            DiskState::NotStoring
        } else {
            self.health.state()
        }
    }
}

type OpenedDisk = (Arc<DiskWatch>, Arc<dyn Disk>, Vec<(String, u64)>);

fn open_disk(disk: Arc<dyn Disk>) -> Result<OpenedDisk> {
    let watch = Arc::new(DiskWatch::default());
    let disk = watch.watched(disk);
    let names = disk.names()?;
    Ok((watch, disk, names))
}
