//! The local store: samples on a local disk, packed into segments, there again at the next mount.
//!
//! A store is a directory. In the order it happens:
//!
//! 1. Samples are written in batches to *segments*, files of raw samples that each begin at a page;
//!    there is nothing else in them. Segments are filled one after the other; once the budget is
//!    full, samples take the places of those that were given up (`segments.rs`). Blocks of large
//!    files go to sparse files of their own (`large.rs`).
//! 2. Then a record for each goes to the end of the *index*, a log of what is where (`log.rs`). It
//!    has the sample's [`Key`], which names one version of one block, its place, and a checksum of
//!    the key and the bytes.
//! 3. A read takes the place from memory, reads past the page cache, and compares the checksum.
//!    What is damaged is dropped and fetched again. The one exception is a large file that the
//!    kernel reads by itself, which is compared once a mount (`lend.rs`). So neither a torn write nor a record that a
//!    crash brought back can do harm, and writes need no order: syncs only say what a crash must
//!    leave. They happen after so many bytes and at [`Store::sync`], every few seconds. Only a place whose giving up
//!    has been recorded is written again, so that what was synced later has its place alone.
//! 4. What is given up is recorded and its place is free. A segment without samples is deleted, and
//!    free places are punched where samples of their size do not come, or others need the space.
//!    Reads never wait for any of this: one thread at a time writes.
//! 5. At open the log is replayed; the segments' data are not looked at. What leads to no segment,
//!    past the end of one, or to the place of another, is left out, and told to those who want to know
//!    (`losses.rs`).
//!
//! The store stores: what is stored and what is given up is the policy's to say.

pub mod home;
mod index;
mod large;
mod lend;
mod log;
mod losses;
mod outside;
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

use crate::disk::{Alarm, Buffer, Disk, DiskState, Health, Watch, has_no_room, unguessable};
use crate::ids::PAGE_BYTES;
use crate::source::Fingerprint;
use crate::sync::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
use index::Index;
pub use large::Part;
pub use lend::Lent;
pub use log::Key;
use log::{Entries, Location, Log, is_index};
pub use losses::Losses;
pub use outside::{Count, count, recorded};
use segments::{Extent, LeftOut, Segments, is_segment, pages_of};
pub use writer::Sample;
use writer::Writer;

/// Bytes after which what was written is synced, however soon.
const SYNC_BYTES: u64 = 256 << 20;

/// What a store may take.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes of samples, in whole pages.
    pub bytes: u64,
    /// Bytes to leave free on the disk, whoever uses the rest.
    pub min_free: u64,
    /// Files that others must still be able to make on the disk.
    pub min_free_files: u64,
    pub segment_bytes: u64,
    /// Bytes from which on a file is large: it is not packed with others.
    pub large_bytes: u64,
    /// Dead records in the index beyond as many as there are live ones.
    pub dead_records: u64,
}

impl Limits {
    /// For so many bytes, beside `min_free` that stay free: few files, whatever the size.
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

/// Samples on a local disk.
pub struct Store {
    disk: Arc<dyn Disk>,
    limits: Limits,
    secret: [u8; 16],
    index: RwLock<Index>,
    writer: Mutex<Writer>,
    used: AtomicU64,
    /// Bytes of samples at this moment: what the limits say, or less.
    budget: AtomicU64,
    health: Health,
    watch: Arc<Watch>,
}

/// How a store and others share a disk, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// The whole disk; 0 where our place on it is gone.
    pub total: u64,
    pub others: u64,
    /// What is to stay free.
    pub min_free: u64,
}

/// What came of looking for a sample.
pub enum Found {
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

/// Whether somebody has cut a file, deleted it or put something else in its place.
fn is_gone(error: &std::io::Error) -> bool {
    error.kind() == ErrorKind::UnexpectedEof || large::is_missing(error)
}

fn checksum(key: Key, bytes: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&key.get().to_le_bytes()), bytes)
}

/// A secret for a store that is new, which nobody can guess.
pub fn fresh_secret() -> u128 {
    u128::from(unguessable()) << 64 | u128::from(unguessable())
}

impl Store {
    /// Opens what the disk holds, and mends its index. `fresh` becomes the secret of a store that is new; nobody should
    /// be able to guess it.
    ///
    /// # Errors
    /// The disk's, where it cannot be read or an index cannot be made.
    pub fn open(disk: Arc<dyn Disk>, limits: Limits, fresh: u128) -> Result<Self> {
        let (watch, disk, names) = begin(disk)?;
        let (log, entries) = match Log::open(&*disk, &names)? {
            Some(found) => found,
            None => (Log::begin(&*disk, &names, fresh)?, Entries::default()),
        };
        let (store, _) = Self::with(watch, disk, &names, limits, log, entries);
        store.mend_index();
        Ok(store)
    }

    /// Leaves behind what cannot be read of the index, which a machine that went down may have left.
    fn mend_index(&self) {
        let mut writer = self.writer();
        let records = writer.log.torn_records;
        if records > 0 {
            tracing::warn!(
                records,
                "the index of the store was damaged; what is missing is fetched again"
            );
            // It can be read as it is.
            let _ = writer.rewrite(&self.index).inspect_err(|error| self.health.bad(error));
        }
    }

    /// Opens what the disk holds and says what of it is lost; none where there is no store. Where one
    /// has no index any more nothing is changed.
    ///
    /// # Errors
    /// The disk's, and [`ErrorKind::InvalidData`] where all is lost with the index.
    pub fn open_found(disk: Arc<dyn Disk>, limits: Limits) -> Result<Option<(Self, Losses)>> {
        let (watch, disk, names) = begin(disk)?;
        if let Some((log, entries)) = Log::open(&*disk, &names)? {
            let (store, left_out) = Self::with(watch, disk, &names, limits, log, entries);
            let losses = Losses::of(&store.writer(), &left_out);
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
        watch: Arc<Watch>,
        disk: Arc<dyn Disk>,
        names: &[(String, u64)],
        limits: Limits,
        mut log: Log,
        mut entries: Entries,
    ) -> (Self, Vec<(Key, Location)>) {
        let (segments, files, LeftOut { lost, closed }) =
            Segments::open(&disk, names, &mut entries, limits.segment_bytes);
        // Their places will be others', who must not be left out for them at the next open.
        log.owe(lost.iter().map(|(key, _)| *key));
        let used = entries.values().map(|at| stored(at.length as usize)).sum();
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

    /// Whether a file of so many bytes is large.
    pub fn is_large(&self, size: u64) -> bool {
        size >= self.limits.large_bytes
    }

    /// Which part of a large file the block at `offset` of one version of a file of `size` bytes
    /// is; none where the file is not large.
    pub fn part(&self, path: &Path, version: &Fingerprint, offset: u64, size: u64) -> Option<Part> {
        // At this offset no block is.
        self.is_large(size).then(|| Part::new(self.key(path, version, u64::MAX), offset)).flatten()
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

    /// Whether the sample is there, whatever the state of its disk.
    pub fn holds(&self, key: Key) -> bool {
        self.read().entries.contains_key(&key)
    }

    /// Leaves those of which [the sample is there](Self::holds).
    pub fn retain_held<T>(&self, samples: &mut Vec<(T, Key)>) {
        let index = self.read();
        samples.retain(|(_, key)| index.entries.contains_key(key));
    }

    /// Claims a read of a sample: whether it is there, and its disk is to be used. A disk that is down is
    /// tried now and then, by one read.
    pub fn claim_read(&self, key: Key) -> bool {
        self.holds(key) && self.claim_try()
    }

    /// The sample's bytes. Blocks.
    pub fn get(&self, key: Key) -> Found {
        match self.try_get(key) {
            // Its place may have been given up and taken again by itself while it was read.
            Found::Damaged => self.try_get(key),
            found => found,
        }
    }

    fn try_get(&self, key: Key) -> Found {
        let Some((at, file)) = self.read().find(key) else { return Found::Nothing };
        let mut buffer = Buffer::pages(at.length as usize);
        let read = file.read_at(buffer.pages_mut(), u64::from(at.page) * PAGE_BYTES);
        match read {
            Ok(()) => {
                self.health.good();
                if checksum(key, &buffer) == at.checksum {
                    return Found::Whole(buffer);
                }
            }
            Err(error) if is_gone(&error) => {}
            Err(error) => self.health.bad(&error),
        }
        // It may have been given up in the meantime.
        match self.read().entries.get(&key) {
            Some(now) if *now == at => Found::Damaged,
            _ => Found::Nothing,
        }
    }

    /// Reads samples and compares their checksums. Returns those that are damaged, or cannot be read
    /// while others can, each with where it is. Blocks.
    ///
    /// # Errors
    /// That of the disk, in words, where it fails as a whole: what cannot be read now may be
    /// readable tomorrow.
    pub fn verify(&self, keys: &mut dyn Iterator<Item = Key>) -> Result<Vec<(Key, String)>> {
        let (mut whole, mut damaged) = (None, Vec::new());
        for key in keys {
            match self.get(key) {
                Found::Whole(_) => whole = Some(key),
                Found::Damaged => damaged.push(key),
                Found::Nothing => {}
            }
        }
        let works = || whole.is_some_and(|key| matches!(self.get(key), Found::Whole(_)));
        if self.state() != DiskState::Normal && !works() {
            return Err(Error::other(self.state().to_string()));
        }
        Ok(damaged.into_iter().map(|key| (key, self.place(key))).collect())
    }

    /// Where a sample is, for people.
    fn place(&self, key: Key) -> String {
        let Some(at) = self.read().entries.get(&key).copied() else { return String::new() };
        self.writer().segments.describe(&at)
    }

    /// Stores samples, all of them or none; says whether. They should be a few megabytes together.
    /// What is there already stays as it is. Blocks.
    pub fn put(&self, samples: &[(Key, &[u8])]) -> bool {
        let sample = |&(key, bytes): &(Key, _)| Sample { key, bytes, part: None };
        self.put_all(&samples.iter().map(sample).collect::<Vec<_>>())
    }

    /// As [`put`](Self::put), for samples some of which may be blocks of large files.
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
        let bytes: u64 = samples.iter().map(|sample| stored(sample.bytes.len())).sum();
        let fits = self.used().saturating_add(bytes) <= self.budget();
        // One who may try a disk that is down does try it.
        let may = fits && !self.reads_hang() && self.health.has_room(&*self.disk, bytes);
        if !may || !self.claim_try() {
            return false;
        }
        let mut writer = self.writer();
        match writer.append(&self.index, &samples, (self.used(), self.budget())) {
            Ok(bytes) => {
                self.used.fetch_add(bytes, Ordering::Relaxed);
                self.health.stored();
            }
            Err(error) => {
                self.health.bad(&error);
                return false;
            }
        }
        if writer.unsynced >= SYNC_BYTES {
            // Where that fails, what is stored is there all the same; only a crash may lose it.
            let _ = writer.sync().inspect_err(|error| self.health.bad(error));
        }
        let _ = writer.tidy(&self.index).inspect_err(|error| self.health.bad(error));
        true
    }

    /// The file that has this first block, if it [can be lent](Self::make_lendable). Never blocks.
    pub fn lent(&self, first: Key) -> Option<Arc<Lent>> {
        if self.reads_hang() || !self.health.is_up() {
            return None;
        }
        self.read().lent(first)
    }

    /// Makes a large file of `length` bytes one that can be lent, if these are all of its blocks and
    /// all are there and right; says whether. Reads all of it, once. Blocks.
    pub fn make_lendable(&self, blocks: &[Key], length: u64) -> bool {
        let Some(holder) = self.read().holder_of_all(blocks) else { return false };
        let compared = self.read().is_compared(holder);
        if !compared && blocks.iter().any(|key| !matches!(self.get(*key), Found::Whole(_))) {
            return false;
        }
        // Who holds it is the only one who changes what is where.
        let mut writer = self.writer();
        if self.read().holder_of_all(blocks) != Some(holder) {
            return false;
        }
        let lent = match writer.segments.lend(holder, length) {
            Ok(Some(lent)) => lent,
            Ok(None) => return false,
            Err(error) => {
                tracing::debug!(%error, "a large file cannot be lent");
                return false;
            }
        };
        self.write().lend(holder, lent);
        true
    }

    /// Gives samples up. Blocks.
    pub fn remove(&self, keys: &[Key]) {
        let mut writer = self.writer();
        let gone = self.write().take(keys);
        let bytes = gone.iter().map(|(_, at)| Extent::of(at).bytes()).sum();
        self.used.fetch_sub(bytes, Ordering::Relaxed);
        let _ = writer.give_up(&gone).inspect_err(|error| self.health.bad(error));
        let idle = match self.health.is_full() {
            true => 0,
            false => self.budget().saturating_sub(self.used()),
        };
        writer.shrink(idle, &self.index);
        let _ = writer.tidy(&self.index).inspect_err(|error| self.health.bad(error));
    }

    /// Gives everything that no sample needs back to the disk; the index stays as it is where a
    /// full disk has no room for a smaller one. Blocks.
    pub fn compact(&self) -> Result<()> {
        let mut writer = self.writer();
        writer.segments.shrink(0);
        writer.clear_leftovers(&self.index);
        let written = writer.rewrite(&self.index);
        written.or_else(|error| if has_no_room(&error) { Ok(()) } else { Err(error) })
    }

    /// Bytes that were stored and do not last yet. Blocks.
    pub fn unsynced(&self) -> u64 {
        self.writer().unsynced
    }

    /// Makes what is stored last. Blocks.
    pub fn sync(&self) -> Result<()> {
        self.writer().sync().inspect_err(|error| self.health.bad(error))
    }

    /// Deletes files in which nothing was found at open, and what a crash has left in others.
    /// Blocks.
    pub fn clear_leftovers(&self) {
        self.writer().clear_leftovers(&self.index);
    }

    /// Bytes that the store has on the disk and no sample takes.
    pub fn idle(&self) -> u64 {
        self.writer().segments.idle()
    }

    /// May hold so many bytes of samples from now on, and no more than the limits say. What no
    /// sample takes beyond that goes back to the disk at once; which samples go is others' to say.
    /// Blocks.
    pub fn resize(&self, bytes: u64) {
        self.budget.store(bytes.min(self.limits.bytes), Ordering::Relaxed);
        self.writer().shrink(self.budget().saturating_sub(self.used()), &self.index);
    }

    /// How the disk is shared at this moment. Blocks.
    pub fn share(&self) -> Result<Share> {
        let own = self.used() + self.idle();
        let space = self.health.look(&*self.disk)?;
        let others = space.total.saturating_sub(space.bytes).saturating_sub(own);
        Ok(Share { total: space.total, others, min_free: self.limits.min_free })
    }

    /// What is stored.
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

    /// Bytes of what is stored, in whole pages.
    pub fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// Another directory of the same disk: if a call to it is not answered, the disk hangs.
    pub fn beside(&self, directory: Arc<dyn Disk>) -> Arc<dyn Disk> {
        self.watch.over(directory)
    }

    /// Has an alarm ring when the disk is called.
    pub(crate) fn ring(&self, alarm: &Arc<Alarm>) {
        self.watch.ring(alarm);
    }

    /// Whether there is a call that the disk has not answered.
    pub(crate) fn is_called(&self) -> bool {
        self.watch.is_called()
    }

    /// Looks what the disk is at. To be called each [`LOOK_EVERY`](crate::disk::LOOK_EVERY).
    pub fn look(&self) {
        self.watch.look();
    }

    /// Whether the disk does not answer a read; it is left alone until it has.
    pub fn reads_hang(&self) -> bool {
        self.watch.reads_hang()
    }

    /// Whether the disk does not answer a call, whatever it is: nothing can be stored.
    pub fn hangs(&self) -> bool {
        self.watch.hangs()
    }

    /// What the disk has taken so far, in calls: as long as that grows, it does not hang.
    pub fn writes_answered(&self) -> u64 {
        self.watch.writes_answered()
    }

    /// Whether all that was stored lasts, and the disk does what it should and has room. May block.
    pub fn rests(&self) -> bool {
        let is_well = self.health.is_up() && !self.health.is_full();
        is_well && !self.hangs() && self.unsynced() == 0
    }

    /// Claims a try of the disk, unless it hangs.
    pub(super) fn claim_try(&self) -> bool {
        !self.reads_hang() && self.health.claim_try()
    }

    /// What the disk does at this moment.
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

type Begun = (Arc<Watch>, Arc<dyn Disk>, Vec<(String, u64)>);

fn begin(disk: Arc<dyn Disk>) -> Result<Begun> {
    let watch = Arc::new(Watch::default());
    let disk = watch.over(disk);
    let names = disk.names()?;
    Ok((watch, disk, names))
}
