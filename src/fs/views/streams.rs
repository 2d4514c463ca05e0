//! Streams: what was held when an epoch was first looked at, each sample under one ordinal.
//!
//! A lookup binds an ordinal, since it answers with the size; a listing does not. What an ordinal
//! leads to is the sample's file of the display that was frozen, so that nothing else has to know of
//! ordinals.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use nix::errno::Errno;

use super::place::{self, Place};
use super::{Access, Display, Entry, EntryKind, Sample, lock};
use crate::rehearsal::{AHEAD, Ordinals, SampleId};
use crate::sync::Mutex;

/// Digits of an ordinal at least.
const DIGITS: usize = 6;

/// The number of a display's stream among all that show samples one after the other: the slots' are
/// below.
pub(super) fn shown_by(slot: usize) -> u64 {
    1 << 63 | slot as u64
}

/// The stream of an epoch.
pub(super) struct Stream {
    ordinals: Mutex<Ordinals>,
    /// How often it was told what comes next; changes under the lock of the ordinals.
    tellings: AtomicU64,
    display: Arc<Display>,
    /// The place of each sample in the display: the class, and the file.
    places: HashMap<SampleId, (usize, usize)>,
}

impl Stream {
    /// The stream of what a display shows.
    pub(super) fn new(seed: u64, epoch: u64, display: &Arc<Display>) -> Stream {
        let classes = display.classes.iter().zip(0..);
        let files = classes.flat_map(|((_, files), class)| {
            files.iter().zip(0..).map(move |(exhibit, file)| (exhibit, (class, file)))
        });
        let places: HashMap<SampleId, (usize, usize)> =
            files.filter_map(|(exhibit, place)| Some((exhibit.sample()?.id, place))).collect();
        let ordinals = Mutex::new(Ordinals::new(seed, epoch, places.keys().copied()));
        let tellings = AtomicU64::new(0);
        Stream { ordinals, tellings, display: Arc::clone(display), places }
    }

    /// A sample, once it can be read.
    fn ready(&self, sample: SampleId) -> Option<&Arc<Sample>> {
        let (class, file) = self.places.get(&sample)?;
        let (_, files) = self.display.classes.get(*class)?;
        files.get(*file)?.sample().filter(|sample| sample.pinned.is_written())
    }

    /// What gets an ordinal next, as far as it can be read; and the number of this telling, from 1 on.
    pub(super) fn upcoming(&self) -> (u64, Vec<Arc<Sample>>) {
        let ordinals = lock(&self.ordinals);
        let telling = self.tellings.fetch_add(1, Ordering::Relaxed) + 1;
        // Of many that have not been written only the first are looked at.
        let due = ordinals.upcoming().take(2 * AHEAD);
        let next = due.filter_map(|sample| self.ready(sample).cloned()).take(AHEAD).collect();
        (telling, next)
    }

    /// The file of a sample in the display's slot.
    fn file(&self, slot: usize, sample: SampleId) -> Option<Place> {
        self.places.get(&sample).map(|(class, file)| Place::File(slot, *class, *file))
    }

    /// The file that an ordinal leads to, which is bound from now on; and its sample, where it was not
    /// before.
    ///
    /// # Errors
    /// `ENOENT` where there is no such ordinal, and `EAGAIN` as long as nothing of what is left has
    /// been written.
    pub(super) fn lookup(
        &self,
        slot: usize,
        name: &str,
    ) -> Result<(Place, Option<SampleId>), Errno> {
        let mut ordinals = lock(&self.ordinals);
        let ordinal = ordinal(name).filter(|ordinal| *ordinal < ordinals.len());
        let ordinal = ordinal.ok_or(Errno::ENOENT)?;
        let is_new = ordinals.get(ordinal).is_none();
        let sample = ordinals.bind(ordinal, |sample| self.ready(sample).is_some());
        let file = sample.and_then(|sample| self.file(slot, sample)).ok_or(Errno::EAGAIN)?;
        Ok((file, sample.filter(|_| is_new)))
    }

    /// The file that an ordinal leads to, if it is bound.
    pub(super) fn found(&self, slot: usize, name: &str) -> Option<Place> {
        let sample = lock(&self.ordinals).get(ordinal(name)?)?;
        self.file(slot, sample)
    }

    /// The ordinals; what is behind one is found when it is looked up.
    pub(super) fn list(&self, slot: usize) -> Vec<(String, Entry)> {
        let ordinals = lock(&self.ordinals);
        let entry = |ordinal: usize| {
            let file = ordinals.get(ordinal).and_then(|sample| self.file(slot, sample));
            let node = file.map_or(place::DEALT, Place::node);
            let kind = EntryKind::File(0, Access::default());
            (format!("{ordinal:0DIGITS$}"), Entry { node, kind, lasting: true })
        };
        (0..ordinals.len()).map(entry).collect()
    }
}

/// The ordinal of a name. Each has one name only.
fn ordinal(name: &str) -> Option<usize> {
    name.parse().ok().filter(|ordinal: &usize| format!("{ordinal:0DIGITS$}") == name)
}
