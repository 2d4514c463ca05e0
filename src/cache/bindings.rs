//! The samples of a set, each bound to one number: on the disk before anybody is told of it.
//!
//! 1. A file `stream-BEGUN-EPOCH` begins with the set: a header of 24 bytes, and 4 bytes for each sample.
//!    It has its name once all of that lasts.
//! 2. Each pair that is bound follows it: 12 bytes, the last 4 of which are a checksum. It is written at
//!    once, so that it is there after the end of a process, and lasts when it is synced.
//! 3. Who takes up the epoch finds the set and the pairs before the first one that is not whole. Of one
//!    that nothing is bound of the set is another one by then: it is begun anew.
//!
//! The files that were begun last are kept.

use std::io::{Error, ErrorKind, Result};
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
const KEPT: usize = 8;

/// The set of an epoch and what is bound of it.
pub struct Bindings {
    epoch: u64,
    set: Vec<u32>,
    blob: Arc<dyn Blob>,
    bound: Mutex<Bound>,
}

/// What is bound.
#[derive(Default)]
struct Bound {
    pairs: Vec<(u32, u32)>,
    /// So many of the pairs have been written, and so many last.
    written: usize,
    synced: usize,
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
    /// Takes up what is bound of an epoch, or begins it with this set of samples.
    ///
    /// # Errors
    /// The disk's.
    pub fn open(disk: &dyn Disk, epoch: u64, set: &[u32]) -> Result<Bindings> {
        let mut files = files(disk)?;
        let is_its = |file: &Named| file.epoch == epoch;
        while let Some(at) = files.iter().rposition(is_its) {
            match Self::take_up(disk, &files[at]) {
                Err(error) if error.kind() == ErrorKind::InvalidData => {
                    tracing::warn!(epoch, %error, "a stream of a rehearsal buffer is begun anew");
                }
                Ok(found) if found.lock().pairs.is_empty() => {}
                other => return other,
            }
            disk.remove(&files.remove(at).name())?;
        }
        let begun = files.last().map_or(0, |file| file.begun) + 1;
        let bindings = Self::begin(disk, &Named { begun, epoch, length: 0 }, set)?;
        for old in files.iter().rev().skip(KEPT - 1) {
            // One that stays is tried again with the next one.
            let _ = disk.remove(&old.name());
        }
        Ok(bindings)
    }

    fn begin(disk: &dyn Disk, file: &Named, set: &[u32]) -> Result<Bindings> {
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
        let (epoch, set) = (file.epoch, set.to_vec());
        Ok(Bindings { epoch, set, blob, bound: Mutex::default() })
    }

    fn take_up(disk: &dyn Disk, file: &Named) -> Result<Bindings> {
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
        // They may have been written by a process that was killed before it synced them.
        let bound = Mutex::new(Bound { written: pairs.len(), synced: 0, pairs });
        Ok(Bindings { epoch: file.epoch, set, blob, bound })
    }

    /// Deletes the files of all epochs: their samples are others from now on.
    ///
    /// # Errors
    /// The disk's.
    pub fn clear(disk: &dyn Disk) -> Result<()> {
        files(disk)?.iter().try_for_each(|file| disk.remove(&file.name()))
    }

    fn lock(&self) -> MutexGuard<'_, Bound> {
        self.bound.lock().unwrap_or_else(PoisonError::into_inner)
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
        self.lock().pairs.clone()
    }

    /// Binds a number to a sample. Where that cannot be written it is bound nonetheless, and written with
    /// the next pair. Blocks for a write.
    ///
    /// # Errors
    /// The disk's.
    pub fn bind(&self, number: u32, sample: u32) -> Result<()> {
        let mut bound = self.lock();
        bound.pairs.push((number, sample));
        let due: Vec<u8> = bound.pairs[bound.written..].iter().flat_map(|of| pair(*of)).collect();
        let before = HEADER_BYTES + self.set.len() * SAMPLE_BYTES + bound.written * PAIR_BYTES;
        self.blob.write_at(&due, before as u64)?;
        bound.written = bound.pairs.len();
        Ok(())
    }

    /// Makes what was written last.
    ///
    /// # Errors
    /// The disk's.
    pub fn sync(&self) -> Result<()> {
        let written = {
            let bound = self.lock();
            if bound.synced == bound.written {
                return Ok(());
            }
            bound.written
        };
        // Whoever binds one meanwhile does not wait.
        self.blob.sync()?;
        self.lock().synced = written;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use nix::libc;

    use super::super::store::tests::model::Model;
    use super::*;

    fn open(disk: &Model, epoch: u64, set: &[u32]) -> Bindings {
        Bindings::open(disk, epoch, set).unwrap()
    }

    #[test]
    fn what_was_bound_is_there_again_with_the_set_of_its_time() {
        let disk = Model::default();
        open(&disk, 3, &[4]);
        let first = open(&disk, 3, &[5, 7, 9]);
        first.bind(2, 7).unwrap();
        first.bind(0, 9).unwrap();
        let again = open(&disk, 3, &[1, 2]);
        assert_eq!((again.set(), again.pairs()), (&[5, 7, 9][..], vec![(2, 7), (0, 9)]));
        again.bind(1, 5).unwrap();
        assert_eq!(open(&disk, 3, &[]).pairs(), [(2, 7), (0, 9), (1, 5)]);
        assert_eq!(open(&disk, 4, &[1]).pairs(), []);
        Bindings::clear(&disk).unwrap();
        assert_eq!(open(&disk, 3, &[1, 2]).set(), [1, 2]);
    }

    #[test]
    fn what_is_not_whole_is_left_out_and_written_over() {
        let disk = Model::default();
        let first = open(&disk, 0, &[1, 2, 3]);
        (0..3).for_each(|number| first.bind(number, 3 - number).unwrap());
        let (name, length) = disk.names().unwrap().remove(0);
        let blob = disk.open(&name, Use::Log).unwrap();
        let end = HEADER_BYTES + 3 * SAMPLE_BYTES + 3 * PAIR_BYTES;
        assert_eq!(length, end as u64);
        blob.cut(length - 1).unwrap();
        let again = open(&disk, 0, &[]);
        assert_eq!(again.pairs(), [(0, 3), (1, 2)]);
        again.bind(2, 1).unwrap();
        blob.write_at(b"?", (end - 2 * PAIR_BYTES) as u64).unwrap();
        assert_eq!(open(&disk, 0, &[]).pairs(), [(0, 3)]);
        // Of a damaged set nothing is known.
        blob.write_at(b"?", HEADER_BYTES as u64).unwrap();
        assert_eq!(open(&disk, 0, &[8]).set(), [8]);
        blob.cut(3).unwrap();
        assert_eq!(open(&disk, 0, &[8]).set(), [8]);
    }

    #[test]
    fn those_that_were_begun_last_are_kept() {
        let disk = Model::default();
        for epoch in [20, 5, 6, 7, 8, 9, 10, 11, 5, 12] {
            open(&disk, epoch, &[1]).bind(0, 1).unwrap();
        }
        let epochs = files(&disk).unwrap().into_iter().map(|file| file.epoch);
        assert_eq!(epochs.collect::<Vec<_>>(), [5, 6, 7, 8, 9, 10, 11, 12]);
    }

    #[test]
    fn what_a_full_disk_did_not_take_is_written_with_the_next_pair() {
        let disk = Model::default();
        let bindings = open(&disk, 0, &[1, 2]);
        disk.fail_writes(Some(libc::ENOSPC));
        bindings.bind(1, 1).unwrap_err();
        disk.fail_writes(None);
        bindings.bind(0, 2).unwrap();
        bindings.sync().unwrap();
        assert_eq!(open(&disk, 0, &[]).pairs(), [(1, 1), (0, 2)]);
    }
}
