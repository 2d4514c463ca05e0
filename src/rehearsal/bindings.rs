//! Bindings: the ordinals of a stream's samples, on the cache disk.
//!
//! 1. A file `stream-BEGUN-EPOCH` begins with the set of the epoch's samples: a header of 24 bytes, and 4
//!    bytes for each sample. It gets this name once all of that is synced.
//! 2. The bound pairs follow: 12 bytes each, the last 4 of which are a checksum. A pair is written before a
//!    reader hears of it, so it survives the process. Once synced it survives a crash of the machine.
//! 3. A later mount takes up the set, and the pairs before the first damaged one. It begins the epoch anew if
//!    nothing is bound. It also does so if all samples are bound and another epoch was begun later. Without a
//!    later epoch, a job that was ended may still have to read this one.
//!
//! The files that were begun last are kept, and those of streams in use.

use std::collections::HashSet;
use std::io::{Error, ErrorKind, Result};
use std::sync::Arc;

use crate::disk::{Blob, Disk, Use};
use crate::sync::Mutex;

/// Tells these files from other ones.
const MAGIC: [u8; 4] = *b"bls1";

/// The magic, the number of samples, the epoch, and the checksums of the set and of the header.
const HEADER_BYTES: usize = 24;

const SAMPLE_BYTES: usize = 4;
const PAIR_BYTES: usize = 12;

/// How many pairs one write takes.
const PAIRS_AT_ONCE: usize = 1 << 12;

const PREFIX: &str = "stream-";

/// The name of an incomplete file.
const INCOMPLETE: &str = "stream-next";

/// How many files are kept.
const EPOCHS_KEPT: usize = 8;

/// The set of an epoch, and its bound pairs.
pub struct Bindings {
    epoch: u64,
    set: Vec<u32>,
    blob: Arc<dyn Blob>,
    bound: Mutex<Bound>,
}

#[derive(Default)]
struct Bound {
    pairs: Vec<(u32, u32)>,
    /// How many pairs are written, and how many are synced.
    written: usize,
    synced: usize,
    /// How often written pairs were lost, because a sync failed. The kernel may report that only once.
    losses: u64,
}

/// A file by its name.
struct BindingsFile {
    begun: u64,
    epoch: u64,
    length: u64,
}

impl BindingsFile {
    fn name(&self) -> String {
        format!("{PREFIX}{:08}-{}", self.begun, self.epoch)
    }
}

/// All files, the earliest begun first.
fn files(disk: &dyn Disk) -> Result<Vec<BindingsFile>> {
    let found = disk.names()?.into_iter().filter_map(|(name, length)| {
        let (begun, epoch) = name.strip_prefix(PREFIX)?.split_once('-')?;
        let file = BindingsFile { begun: begun.parse().ok()?, epoch: epoch.parse().ok()?, length };
        (file.name() == name).then_some(file)
    });
    let mut found: Vec<BindingsFile> = found.collect();
    found.sort_unstable_by_key(|file| file.begun);
    Ok(found)
}

fn word(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).and_then(|word| word.try_into().ok()).map_or(0, u32::from_le_bytes)
}

fn pair((ordinal, sample): (u32, u32)) -> [u8; PAIR_BYTES] {
    let mut bytes = [0; PAIR_BYTES];
    bytes[..4].copy_from_slice(&ordinal.to_le_bytes());
    bytes[4..8].copy_from_slice(&sample.to_le_bytes());
    let checksum = crc32c::crc32c(&bytes[..8]);
    bytes[8..].copy_from_slice(&checksum.to_le_bytes());
    bytes
}

impl Bindings {
    /// Takes up the bindings of an epoch. None if nothing is bound, or if the epoch is over: no sample of its
    /// set is both `held` and unbound. The epoch that was begun last is over only if none of its samples is
    /// `held`.
    fn take_up(
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
                let is_last = files.last().is_some_and(|last| last.epoch == epoch);
                let is_left = |of: &u32| (is_last || !bound.contains(of)) && held(*of);
                Ok((!pairs.is_empty() && found.set.iter().any(is_left)).then_some(found))
            }
            Err(error) if error.kind() == ErrorKind::InvalidData => {
                tracing::warn!(epoch, %error, "a stream of a rehearsal buffer is begun anew");
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Begins an epoch anew. Keeps the files that were begun last, and those of epochs for which `in_use`
    /// holds.
    ///
    /// # Errors
    /// The disk's, and `InvalidInput` if there are too many samples.
    fn begin(
        disk: &dyn Disk,
        epoch: u64,
        set: &[u32],
        in_use: impl Fn(u64) -> bool,
    ) -> Result<Bindings> {
        let files = files(disk)?;
        let begun = files.last().map_or(0, |file| file.begun) + 1;
        let bindings = Self::write(disk, &BindingsFile { begun, epoch, length: 0 }, set);
        if bindings.is_err() {
            let _ = disk.remove(INCOMPLETE);
        }
        let (its, others): (Vec<_>, Vec<_>) = files.iter().partition(|file| file.epoch == epoch);
        let over = others.into_iter().rev().skip(EPOCHS_KEPT - 1).filter(|of| !in_use(of.epoch));
        for old in its.into_iter().chain(over).filter(|_| bindings.is_ok()) {
            // The next `begin` tries again to delete it. Of two files of an epoch the later one counts.
            let _ = disk.remove(&old.name());
        }
        bindings
    }

    fn write(disk: &dyn Disk, file: &BindingsFile, set: &[u32]) -> Result<Bindings> {
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
        // A failed attempt may have left one.
        let _ = disk.remove(INCOMPLETE);
        let blob = disk.create(INCOMPLETE, Use::Log)?;
        blob.write_at(&bytes, 0)?;
        blob.sync()?;
        disk.rename(INCOMPLETE, &file.name())?;
        disk.sync_names()?;
        Ok(Bindings::of(file.epoch, set.to_vec(), blob, Vec::new()))
    }

    fn of(epoch: u64, set: Vec<u32>, blob: Arc<dyn Blob>, pairs: Vec<(u32, u32)>) -> Bindings {
        // They count as unsynced: a sync would not report the loss of what another process wrote.
        let bound = Bound { pairs, ..Bound::default() };
        Bindings { epoch, set, blob, bound: Mutex::new(bound) }
    }

    fn read(disk: &dyn Disk, file: &BindingsFile) -> Result<Bindings> {
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

    /// Deletes all files: epochs have other samples after this.
    fn clear(disk: &dyn Disk) -> Result<()> {
        let files = files(disk)?;
        if files.is_empty() {
            return Ok(());
        }
        let removed: Vec<Result<()>> = files.iter().map(|file| disk.remove(&file.name())).collect();
        disk.sync_names()?;
        removed.into_iter().collect()
    }

    pub fn set(&self) -> &[u32] {
        &self.set
    }

    /// The pairs of ordinal and sample, in the order in which they were bound.
    pub fn pairs(&self) -> Vec<(u32, u32)> {
        self.bound.lock().pairs.clone()
    }

    /// Binds an ordinal. No reader may hear of it before it is [written](Self::write_pairs).
    pub fn bind(&self, ordinal: u32, sample: u32) {
        self.bound.lock().pairs.push((ordinal, sample));
    }

    /// Writes the unwritten pairs. Two threads that do so at once write the same. Blocks.
    ///
    /// # Errors
    /// The disk's. The call can be repeated.
    pub fn write_pairs(&self) -> Result<()> {
        loop {
            let (from, losses, due) = {
                let bound = self.bound.lock();
                let due = bound.pairs[bound.written..].iter().take(PAIRS_AT_ONCE);
                (bound.written, bound.losses, due.flat_map(|of| pair(*of)).collect::<Vec<u8>>())
            };
            if due.is_empty() {
                return Ok(());
            }
            let before = HEADER_BYTES + self.set.len() * SAMPLE_BYTES + from * PAIR_BYTES;
            self.blob.write_at(&due, before as u64)?;
            let mut bound = self.bound.lock();
            if bound.losses == losses {
                bound.written = bound.written.max(from + due.len() / PAIR_BYTES);
            }
        }
    }

    /// Writes and syncs all pairs. Only one thread may do so at a time. Blocks.
    ///
    /// # Errors
    /// The disk's. The call can be repeated.
    fn sync(&self) -> Result<()> {
        self.write_pairs()?;
        let written = {
            let bound = self.bound.lock();
            if bound.synced == bound.written {
                return Ok(());
            }
            bound.written
        };
        let synced = self.blob.sync();
        let mut bound = self.bound.lock();
        match synced {
            Ok(()) => bound.synced = written,
            Err(_) => (bound.written, bound.losses) = (bound.synced, bound.losses + 1),
        }
        synced
    }

    /// Whether all pairs are synced.
    fn lasts(&self) -> bool {
        let bound = self.bound.lock();
        bound.synced == bound.pairs.len()
    }
}

/// The bindings of a buffer's streams that are in use in this mount.
#[derive(Default)]
pub(super) struct BindingsInUse {
    known: Vec<Arc<Bindings>>,
    /// A warning was logged that they cannot be synced, and they still cannot.
    warned: bool,
}

impl BindingsInUse {
    /// The bindings of an epoch, if they are in use or can be [taken up](Bindings::take_up).
    pub(super) fn take_up(
        &mut self,
        disk: &dyn Disk,
        epoch: u64,
        held: impl Fn(u32) -> bool,
    ) -> Result<Option<Arc<Bindings>>> {
        if let Some(known) = self.known.iter().find(|known| known.epoch == epoch) {
            return Ok(Some(Arc::clone(known)));
        }
        Ok(Bindings::take_up(disk, epoch, held)?.map(|bindings| self.keep(bindings)))
    }

    pub(super) fn begin(
        &mut self,
        disk: &dyn Disk,
        epoch: u64,
        set: &[u32],
    ) -> Result<Arc<Bindings>> {
        let in_use = |epoch| self.known.iter().any(|known| known.epoch == epoch);
        Ok(self.keep(Bindings::begin(disk, epoch, set, in_use)?))
    }

    fn keep(&mut self, bindings: Bindings) -> Arc<Bindings> {
        let bindings = Arc::new(bindings);
        self.known.push(Arc::clone(&bindings));
        bindings
    }

    /// Forgets all epochs, and deletes their files.
    pub(super) fn clear(&mut self, disk: &dyn Disk) -> Result<()> {
        self.known.clear();
        Bindings::clear(disk)
    }

    /// Syncs the bindings. Failures are tried again with the next call.
    pub(super) fn sync(&mut self, name: &str) {
        let mut failed = None;
        for bindings in &self.known {
            failed = bindings.sync().err().or(failed);
        }
        if let Some(error) = failed.as_ref().filter(|_| !self.warned) {
            tracing::warn!(name, %error, "what a stream binds may not outlive the machine");
        }
        self.warned = failed.is_some();
        // The dropped ones are synced, and no view uses them.
        self.known.retain(|bindings| Arc::strong_count(bindings) > 1 || !bindings.lasts());
    }

    pub(super) fn lasts(&self) -> bool {
        self.known.iter().all(|bindings| bindings.lasts())
    }
}

#[cfg(test)]
mod tests {
    use nix::libc;
    use rand::rngs::ChaCha8Rng;
    use rand::{RngExt, SeedableRng};

    use super::*;
    use crate::disk::tests::model::Model;

    fn begin(disk: &Model, epoch: u64, set: &[u32], pairs: &[(u32, u32)]) -> Bindings {
        let bindings = Bindings::begin(disk, epoch, set, |_| false).unwrap();
        bind(&bindings, pairs);
        bindings
    }

    fn bind(bindings: &Bindings, pairs: &[(u32, u32)]) {
        for (ordinal, sample) in pairs {
            bindings.bind(*ordinal, *sample);
            bindings.write_pairs().unwrap();
        }
    }

    /// The bindings of an epoch, if all samples are held.
    fn take_up(disk: &Model, epoch: u64) -> Option<Bindings> {
        Bindings::take_up(disk, epoch, |_| true).unwrap()
    }

    fn pairs(disk: &Model, epoch: u64) -> Option<Vec<(u32, u32)>> {
        take_up(disk, epoch).map(|found| found.pairs())
    }

    #[test]
    fn bindings_and_their_set_are_taken_up() {
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
        assert!(left(5).is_some() && left(7).is_some() && left(6).is_none());
        bind(&again, &[(1, 5)]);
        assert_eq!(pairs(&disk, 3), Some(vec![(2, 7), (0, 9), (1, 5)]), "it was begun last");
        assert!(left(1).is_none() && pairs(&disk, 4).is_none());
        begin(&disk, 4, &[1, 2], &[(0, 1)]);
        assert_eq!((pairs(&disk, 3), pairs(&disk, 4)), (None, Some(vec![(0, 1)])));
        Bindings::clear(&disk).unwrap();
        assert_eq!((pairs(&disk, 4), disk.names().unwrap()), (None, Vec::new()));
    }

    #[test]
    fn a_damaged_pair_is_left_out_and_written_over() {
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
        // Without its set a file is useless.
        blob.write_at(b"?", HEADER_BYTES as u64).unwrap();
        assert_eq!(pairs(&disk, 0), None);
        blob.cut(3).unwrap();
        assert_eq!(pairs(&disk, 0), None);
    }

    #[test]
    fn the_latest_epochs_are_kept() {
        let disk = Model::default();
        for epoch in [20, 5, 6, 7, 8, 9, 10, 11, 5, 12] {
            begin(&disk, epoch, &[1], &[]);
        }
        let epochs: Vec<u64> = files(&disk).unwrap().iter().map(|file| file.epoch).collect();
        assert_eq!(epochs, [6, 7, 8, 9, 10, 11, 5, 12]);
        Bindings::begin(&disk, 13, &[1], |epoch| epoch == 6).unwrap();
        let epochs: Vec<u64> = files(&disk).unwrap().iter().map(|file| file.epoch).collect();
        assert_eq!(epochs, [6, 7, 8, 9, 10, 11, 5, 12, 13], "6 goes on");
    }

    #[test]
    fn bindings_on_a_full_disk_are_written_later() {
        let disk = Model::default();
        let bindings = begin(&disk, 0, &[1, 2, 3], &[(0, 2)]);
        disk.fail_writes(Some(libc::ENOSPC));
        bindings.bind(1, 1);
        bindings.write_pairs().unwrap_err();
        assert!(Bindings::begin(&disk, 1, &[1], |_| false).is_err());
        assert_eq!(disk.names().unwrap().len(), 1, "nothing is left of what could not be begun");
        disk.fail_writes(None);
        bindings.sync().unwrap();
        assert_eq!(pairs(&disk, 0), Some(vec![(0, 2), (1, 1)]));
    }

    /// A crash leaves the first pairs that were bound, at least those of the last successful sync. A later
    /// mount can go on from there.
    #[test]
    fn a_crash_leaves_what_was_synced_and_no_other_pairs() {
        let disk = Model::default();
        let bindings = begin(&disk, 0, &(0..30).collect::<Vec<u32>>(), &[]);
        let bound: Vec<(u32, u32)> = (0..27).map(|ordinal| (ordinal, 29 - ordinal)).collect();
        let mut synced = vec![(0, 0), (disk.ops(), 0)];
        let mut random = ChaCha8Rng::seed_from_u64(1);
        for (at, (ordinal, sample)) in bound.iter().enumerate() {
            bindings.bind(*ordinal, *sample);
            // Some pairs are written together.
            if random.random_bool(0.6) {
                bindings.write_pairs().unwrap();
            }
            if random.random_bool(0.2) {
                disk.fail_syncs(Some(libc::EIO));
                assert!(bindings.sync().is_err() && !bindings.lasts());
                disk.fail_syncs(None);
            }
            if random.random_bool(0.3) {
                bindings.sync().unwrap();
                assert!(bindings.lasts());
                synced.push((disk.ops(), at + 1));
            }
        }
        assert!(synced.len() > 5);
        for (cut, _) in (0..=disk.ops()).flat_map(|cut| (0..20).map(move |turn| (cut, turn))) {
            let image = disk.crash(cut, &mut random);
            let found = pairs(&image, 0).unwrap_or_default();
            let least = synced.iter().rfind(|(ops, _)| *ops <= cut).map_or(0, |(_, n)| *n);
            assert!(found.len() >= least && bound.starts_with(&found), "{cut}: {found:?}");
            if let Some(again) = take_up(&image, 0) {
                let expected = [&found[..], &[(29, 1), (28, 0)]].concat();
                bind(&again, &expected[found.len()..]);
                assert_eq!(pairs(&image, 0), Some(expected), "{cut}");
            }
        }
    }

    #[test]
    fn a_failed_sync_is_tried_again_and_delays_no_other_bindings() {
        let (disk, mut in_use) = (Model::default(), BindingsInUse::default());
        let shown = [3, 4].map(|epoch| in_use.begin(&disk, epoch, &[1, 2, 3]).unwrap());
        shown.iter().for_each(|bindings| bindings.bind(0, 2));
        assert!(!in_use.lasts());
        disk.fail_syncs_of(Some("stream-00000001-3"));
        in_use.sync("old");
        assert!(!in_use.lasts() && in_use.warned && shown[1].lasts());
        disk.fail_syncs_of(None);
        in_use.sync("old");
        assert!(in_use.lasts() && !in_use.warned && in_use.known.len() == 2);
        let [first, second] = shown;
        first.bind(1, 1);
        drop((first, second));
        disk.fail_syncs(Some(libc::EIO));
        in_use.sync("old");
        assert_eq!(in_use.known.len(), 1, "what does not last yet is kept");
        disk.fail_syncs(None);
        in_use.sync("old");
        assert!(in_use.known.is_empty());
        let again = in_use.take_up(&disk, 3, |_| true).unwrap().unwrap();
        assert_eq!(again.pairs(), [(0, 2), (1, 1)]);
        in_use.clear(&disk).unwrap();
        assert!(in_use.known.is_empty() && disk.names().unwrap().is_empty());
    }
}
