//! The samples of a set, each bound to one number: on the disk before anybody is told of it.
//!
//! 1. A file `stream-BEGUN-EPOCH` begins with the set: a header of 24 bytes, and 4 bytes for each sample.
//!    It has its name once all of that lasts.
//! 2. Each pair that is bound follows it: 12 bytes, the last 4 of which are a checksum. It is written
//!    before anybody hears of it, so that it is there after the end of a process, and lasts when it is
//!    synced.
//! 3. Who takes up the epoch finds the set and the pairs before the first one that is not whole. An epoch
//!    of which nothing is bound, or nothing is left, is begun anew with another set.
//!
//! The files that were begun last are kept.

use std::collections::HashSet;
use std::io::{Error, ErrorKind, Result};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError};

use super::store::disk::{Blob, Disk, Use};
use crate::sync::{Mutex, MutexGuard};

/// Tells such a file from others.
const MAGIC: [u8; 4] = *b"bls1";

/// The magic, the number of samples, the epoch, and the checksums of the set and of all this.
const HEADER_BYTES: usize = 24;

const SAMPLE_BYTES: usize = 4;
const PAIR_BYTES: usize = 12;

const PREFIX: &str = "stream-";

/// Name of a file that is being begun.
const UNNAMED: &str = "stream-next";

/// Files that are kept.
pub const EPOCHS_KEPT: usize = 8;

/// The set of an epoch and what is bound of it.
pub struct Bindings {
    epoch: u64,
    set: Vec<u32>,
    blob: Arc<dyn Blob>,
    pairs: Mutex<Vec<(u32, u32)>>,
    /// So many of the pairs have been written, and so many last.
    written: AtomicUsize,
    synced: AtomicUsize,
}

impl std::fmt::Debug for Bindings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Bindings({} of epoch {})", self.set.len(), self.epoch)
    }
}

/// A file, by its name.
struct Named {
    begun: u64,
    epoch: u64,
    length: u64,
}

impl Named {
    fn name(&self) -> String {
        format!("{PREFIX}{:08}-{}", self.begun, self.epoch)
    }
}

/// The files that there are, the one that was begun first at the front.
fn files(disk: &dyn Disk) -> Result<Vec<Named>> {
    let found = disk.names()?.into_iter().filter_map(|(name, length)| {
        let (begun, epoch) = name.strip_prefix(PREFIX)?.split_once('-')?;
        let file = Named { begun: begun.parse().ok()?, epoch: epoch.parse().ok()?, length };
        (file.name() == name).then_some(file)
    });
    let mut found: Vec<Named> = found.collect();
    found.sort_unstable_by_key(|file| file.begun);
    Ok(found)
}

fn word(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).and_then(|word| word.try_into().ok()).map_or(0, u32::from_le_bytes)
}

fn pair((number, sample): (u32, u32)) -> [u8; PAIR_BYTES] {
    let mut bytes = [0; PAIR_BYTES];
    bytes[..4].copy_from_slice(&number.to_le_bytes());
    bytes[4..8].copy_from_slice(&sample.to_le_bytes());
    let checksum = crc32c::crc32c(&bytes[..8]);
    bytes[8..].copy_from_slice(&checksum.to_le_bytes());
    bytes
}

impl Bindings {
    /// Takes up what is bound of an epoch, where something is and something is left to bind of what is
    /// `held`.
    ///
    /// # Errors
    /// The disk's.
    pub fn take_up(
        disk: &dyn Disk,
        epoch: u64,
        held: impl Fn(u32) -> bool,
    ) -> Result<Option<Bindings>> {
        let files = files(disk)?;
        let Some(file) = files.iter().rfind(|file| file.epoch == epoch) else { return Ok(None) };
        match Self::read(disk, file) {
            Ok(found) => {
                let pairs = found.pairs();
                let bound: HashSet<u32> = pairs.iter().map(|(_, sample)| *sample).collect();
                let is_left = found.set.iter().any(|of| !bound.contains(of) && held(*of));
                Ok((is_left && !pairs.is_empty()).then_some(found))
            }
            Err(error) if error.kind() == ErrorKind::InvalidData => {
                tracing::warn!(epoch, %error, "a stream of a rehearsal buffer is begun anew");
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Begins an epoch anew with a set of samples.
    ///
    /// # Errors
    /// The disk's, and `InvalidInput` where there are too many.
    pub fn begin(disk: &dyn Disk, epoch: u64, set: &[u32]) -> Result<Bindings> {
        let files = files(disk)?;
        let begun = files.last().map_or(0, |file| file.begun) + 1;
        let bindings = Self::write(disk, &Named { begun, epoch, length: 0 }, set);
        if bindings.is_err() {
            let _ = disk.remove(UNNAMED);
        }
        let (its, others): (Vec<_>, Vec<_>) = files.iter().partition(|file| file.epoch == epoch);
        let over = others.into_iter().rev().skip(EPOCHS_KEPT - 1);
        for old in its.into_iter().chain(over).filter(|_| bindings.is_ok()) {
            // One that stays is tried again with the next one; of an epoch the last one counts.
            let _ = disk.remove(&old.name());
        }
        bindings
    }

    fn write(disk: &dyn Disk, file: &Named, set: &[u32]) -> Result<Bindings> {
        let too_many = || Error::new(ErrorKind::InvalidInput, "too many samples");
        let count = u32::try_from(set.len()).map_err(|_| too_many())?;
        let samples: Vec<u8> = set.iter().flat_map(|sample| sample.to_le_bytes()).collect();
        let mut bytes = Vec::with_capacity(HEADER_BYTES + samples.len());
        bytes.extend_from_slice(&MAGIC);
        bytes.extend_from_slice(&count.to_le_bytes());
        bytes.extend_from_slice(&file.epoch.to_le_bytes());
        bytes.extend_from_slice(&crc32c::crc32c(&samples).to_le_bytes());
        let checksum = crc32c::crc32c(&bytes);
        bytes.extend_from_slice(&checksum.to_le_bytes());
        bytes.extend_from_slice(&samples);
        // What an attempt has left is in nobody's way.
        let _ = disk.remove(UNNAMED);
        let blob = disk.create(UNNAMED, Use::Log)?;
        blob.write_at(&bytes, 0)?;
        blob.sync()?;
        disk.rename(UNNAMED, &file.name())?;
        disk.sync_names()?;
        Ok(Bindings::of(file.epoch, set.to_vec(), blob, Vec::new()))
    }

    fn of(epoch: u64, set: Vec<u32>, blob: Arc<dyn Blob>, pairs: Vec<(u32, u32)>) -> Bindings {
        // They may have been written by a process that was killed before it synced them.
        let (written, synced) = (AtomicUsize::new(pairs.len()), AtomicUsize::new(0));
        Bindings { epoch, set, blob, pairs: Mutex::new(pairs), written, synced }
    }

    fn read(disk: &dyn Disk, file: &Named) -> Result<Bindings> {
        let damaged = || Error::new(ErrorKind::InvalidData, "its file is damaged");
        let blob = disk.open(&file.name(), Use::Log)?;
        let length = usize::try_from(file.length).map_err(|_| damaged())?;
        let mut bytes = vec![0; length];
        blob.read_at(&mut bytes, 0)?;
        let (header, rest) = bytes.split_at_checked(HEADER_BYTES).ok_or_else(damaged)?;
        let is_whole = header[..4] == MAGIC && word(header, 20) == crc32c::crc32c(&header[..20]);
        let samples = (word(header, 4) as usize).checked_mul(SAMPLE_BYTES);
        let parts = samples.filter(|_| is_whole).and_then(|samples| rest.split_at_checked(samples));
        let (samples, pairs) = parts.ok_or_else(damaged)?;
        if crc32c::crc32c(samples) != word(header, 16) {
            return Err(damaged());
        }
        let set = samples.as_chunks().0.iter().map(|sample| u32::from_le_bytes(*sample)).collect();
        let of = |bytes: &[u8; PAIR_BYTES]| Some((word(bytes, 0), word(bytes, 4)));
        let whole = |bytes: &[u8; PAIR_BYTES]| of(bytes).filter(|found| pair(*found) == *bytes);
        let pairs: Vec<(u32, u32)> = pairs.as_chunks().0.iter().map_while(whole).collect();
        Ok(Bindings::of(file.epoch, set, blob, pairs))
    }

    /// Deletes the files of all epochs: their samples are others from now on.
    ///
    /// # Errors
    /// The disk's, the first one.
    pub fn clear(disk: &dyn Disk) -> Result<()> {
        let files = files(disk)?;
        if files.is_empty() {
            return Ok(());
        }
        let removed: Vec<Result<()>> = files.iter().map(|file| disk.remove(&file.name())).collect();
        disk.sync_names()?;
        removed.into_iter().collect()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<(u32, u32)>> {
        self.pairs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The epoch.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The set.
    pub fn set(&self) -> &[u32] {
        &self.set
    }

    /// The pairs that are bound, number and sample, in the order in which they were.
    pub fn pairs(&self) -> Vec<(u32, u32)> {
        self.lock().clone()
    }

    /// Binds a number to a sample. Nobody may hear of it before it is [written](Self::write_pairs).
    pub fn bind(&self, number: u32, sample: u32) {
        self.lock().push((number, sample));
    }

    /// Writes what was bound and has not been written. Two who do so at once write the same. Blocks.
    ///
    /// # Errors
    /// The disk's. It can be tried again.
    pub fn write_pairs(&self) -> Result<()> {
        let (from, due) = {
            let pairs = self.lock();
            let from = self.written.load(Ordering::Acquire);
            (from, pairs[from..].iter().flat_map(|of| pair(*of)).collect::<Vec<u8>>())
        };
        if due.is_empty() {
            return Ok(());
        }
        let before = HEADER_BYTES + self.set.len() * SAMPLE_BYTES + from * PAIR_BYTES;
        self.blob.write_at(&due, before as u64)?;
        self.written.fetch_max(from + due.len() / PAIR_BYTES, Ordering::AcqRel);
        Ok(())
    }

    /// Writes what was bound, and makes what was written last. Blocks.
    ///
    /// # Errors
    /// The disk's.
    pub fn sync(&self) -> Result<()> {
        self.write_pairs()?;
        let written = self.written.load(Ordering::Acquire);
        if self.synced.load(Ordering::Acquire) < written {
            self.blob.sync()?;
            self.synced.fetch_max(written, Ordering::AcqRel);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use nix::libc;
    use rand::SeedableRng;
    use rand::rngs::ChaCha8Rng;

    use super::super::store::tests::model::Model;
    use super::*;

    fn begin(disk: &Model, epoch: u64, set: &[u32], pairs: &[(u32, u32)]) -> Bindings {
        let bindings = Bindings::begin(disk, epoch, set).unwrap();
        bind(&bindings, pairs);
        bindings
    }

    fn bind(bindings: &Bindings, pairs: &[(u32, u32)]) {
        for (number, sample) in pairs {
            bindings.bind(*number, *sample);
            bindings.write_pairs().unwrap();
        }
    }

    /// What is taken up where all is held.
    fn take_up(disk: &Model, epoch: u64) -> Option<Bindings> {
        Bindings::take_up(disk, epoch, |_| true).unwrap()
    }

    fn pairs(disk: &Model, epoch: u64) -> Option<Vec<(u32, u32)>> {
        take_up(disk, epoch).map(|found| found.pairs())
    }

    #[test]
    fn what_was_bound_is_there_again_with_the_set_of_its_time() {
        let disk = Model::default();
        assert_eq!(pairs(&disk, 3), None);
        begin(&disk, 3, &[4], &[]);
        assert_eq!(pairs(&disk, 3), None, "nothing is bound");
        begin(&disk, 3, &[5, 7, 9], &[(2, 7)]);
        let again = take_up(&disk, 3).unwrap();
        assert_eq!((again.set(), again.pairs()), (&[5, 7, 9][..], vec![(2, 7)]));
        bind(&again, &[(0, 9)]);
        assert_eq!(pairs(&disk, 3), Some(vec![(2, 7), (0, 9)]));
        let left = |of: u32| Bindings::take_up(&disk, 3, |sample| sample == of).unwrap();
        assert!(left(5).is_some() && left(7).is_none(), "of what is held nothing is left");
        bind(&again, &[(1, 5)]);
        assert_eq!((pairs(&disk, 3), pairs(&disk, 4)), (None, None));
        begin(&disk, 4, &[1, 2], &[(0, 1)]);
        Bindings::clear(&disk).unwrap();
        assert_eq!((pairs(&disk, 4), disk.names().unwrap()), (None, Vec::new()));
    }

    #[test]
    fn what_is_not_whole_is_left_out_and_written_over() {
        let disk = Model::default();
        begin(&disk, 0, &[1, 2, 3, 4], &[(0, 3), (1, 2), (2, 1)]);
        let (name, length) = disk.names().unwrap().remove(0);
        let blob = disk.open(&name, Use::Log).unwrap();
        let end = HEADER_BYTES + 4 * SAMPLE_BYTES + 3 * PAIR_BYTES;
        assert_eq!(length, end as u64);
        blob.cut(length - 1).unwrap();
        let again = take_up(&disk, 0).unwrap();
        assert_eq!(again.pairs(), [(0, 3), (1, 2)]);
        bind(&again, &[(2, 4)]);
        assert_eq!(pairs(&disk, 0), Some(vec![(0, 3), (1, 2), (2, 4)]));
        blob.write_at(b"?", (end - 2 * PAIR_BYTES) as u64).unwrap();
        assert_eq!(pairs(&disk, 0), Some(vec![(0, 3)]));
        // Of a damaged set nothing is known.
        blob.write_at(b"?", HEADER_BYTES as u64).unwrap();
        assert_eq!(pairs(&disk, 0), None);
        blob.cut(3).unwrap();
        assert_eq!(pairs(&disk, 0), None);
    }

    #[test]
    fn those_that_were_begun_last_are_kept() {
        let disk = Model::default();
        for epoch in [20, 5, 6, 7, 8, 9, 10, 11, 5, 12] {
            begin(&disk, epoch, &[1], &[]);
        }
        let epochs: Vec<u64> = files(&disk).unwrap().iter().map(|file| file.epoch).collect();
        assert_eq!(epochs, [6, 7, 8, 9, 10, 11, 5, 12]);
    }

    #[test]
    fn what_a_full_disk_did_not_take_is_written_later() {
        let disk = Model::default();
        let bindings = begin(&disk, 0, &[1, 2, 3], &[(0, 2)]);
        disk.fail_writes(Some(libc::ENOSPC));
        bindings.bind(1, 1);
        bindings.write_pairs().unwrap_err();
        assert!(Bindings::begin(&disk, 1, &[1]).is_err());
        assert_eq!(disk.names().unwrap().len(), 1, "nothing is left of what could not be begun");
        disk.fail_writes(None);
        bindings.sync().unwrap();
        assert_eq!(pairs(&disk, 0), Some(vec![(0, 2), (1, 1)]));
    }

    /// Whatever a crash of the machine leaves is a beginning of what was bound, with all that was synced.
    #[test]
    fn a_crash_leaves_what_was_synced_and_no_other_pairs() {
        let disk = Model::default();
        let bindings = begin(&disk, 0, &[0, 1, 2, 3, 4, 5, 6, 7], &[]);
        let bound: Vec<(u32, u32)> = (0..7).map(|number| (number, 7 - number)).collect();
        let mut synced = vec![(disk.ops(), 0)];
        for (at, pair) in bound.iter().enumerate() {
            bind(&bindings, &[*pair]);
            if at % 3 == 1 {
                bindings.sync().unwrap();
                synced.push((disk.ops(), at + 1));
            }
        }
        let mut random = ChaCha8Rng::seed_from_u64(1);
        for cut in synced[0].0..=disk.ops() {
            for _ in 0..20 {
                let found = pairs(&disk.crash(cut, &mut random), 0).unwrap_or_default();
                let least = synced.iter().rfind(|(ops, _)| *ops <= cut).map_or(0, |(_, n)| *n);
                assert!(found.len() >= least && bound.starts_with(&found), "{cut}: {found:?}");
            }
        }
    }
}
