//! Streams: the samples that were held when an epoch was first looked at, each under one ordinal.
//!
//! A lookup binds an ordinal, since its answer has the size of the sample. A listing binds none. The binding
//! is on the disk before the answer, so the next mount has it, too. A listing leaves out ordinals whose
//! samples are not held any more.
//!
//! An ordinal leads to the sample's file in the stream's display, so no other part has to know ordinals.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::errno::Errno;

use super::place::{self, Place};
use super::{Display, Entry, EntryKind, Sample};
use crate::buffer::{AHEAD, Ordinals, SampleId};
use crate::fs::Access;
use crate::sync::Mutex;

/// The least number of digits.
const DIGITS: usize = 6;

/// The number of a stream in [`Upcoming::by`](super::Upcoming). Those of slots are below `1 << 63`.
pub(super) fn shown_by(slot: usize) -> u64 {
    1 << 63 | slot as u64
}

pub(super) struct Stream {
    ordinals: Mutex<Ordinals>,
    /// Whether nothing may be bound any more. Changes under the lock of the ordinals.
    over: AtomicBool,
    /// A warning was logged that the disk does not take bindings.
    warned: AtomicBool,
    display: Arc<Display>,
    /// The class and file of each sample in the display.
    places: HashMap<SampleId, (usize, usize)>,
}

impl Stream {
    pub(super) fn new(seed: u64, epoch: u64, display: &Arc<Display>) -> Stream {
        let classes = display.classes.iter().zip(0..);
        let files = classes.flat_map(|((_, files), class)| {
            files.iter().zip(0..).map(move |(exhibit, file)| (exhibit, (class, file)))
        });
        let places: HashMap<SampleId, (usize, usize)> =
            files.filter_map(|(exhibit, place)| Some((exhibit.sample()?.id, place))).collect();
        let held = |sample| places.contains_key(&sample);
        let (set, pairs): (Vec<SampleId>, Vec<_>) = match &display.bindings {
            Some(bindings) => {
                let pair = |(ordinal, sample)| (ordinal as usize, SampleId(sample));
                let pairs = bindings.pairs().into_iter().map(pair).collect();
                (bindings.set().iter().copied().map(SampleId).collect(), pairs)
            }
            None => (places.keys().copied().collect(), Vec::new()),
        };
        let ordinals = Mutex::new(Ordinals::new(seed, epoch, set, pairs, held));
        let (over, warned) = Default::default();
        Stream { ordinals, over, warned, display: Arc::clone(display), places }
    }

    /// A sample, if it is written.
    fn ready(&self, sample: SampleId) -> Option<&Arc<Sample>> {
        let (class, file) = self.places.get(&sample)?;
        let (_, files) = self.display.classes.get(*class)?;
        files.get(*file)?.sample().filter(|sample| sample.pinned.is_written())
    }

    /// The written samples that get ordinals next.
    pub(super) fn upcoming(&self) -> Vec<Arc<Sample>> {
        let ordinals = self.ordinals.lock();
        // Only the first are looked at: many may not be written.
        let due = ordinals.upcoming().take(2 * AHEAD);
        due.filter_map(|sample| self.ready(sample).cloned()).take(AHEAD).collect()
    }

    fn file(&self, slot: usize, sample: SampleId) -> Option<Place> {
        self.places.get(&sample).map(|(class, file)| Place::File(slot, *class, *file))
    }

    /// The file of an ordinal, and whether this call has bound it. Waits for the disk.
    ///
    /// # Errors
    /// `ENOENT` if there is no such ordinal or no sample is left for it, `EAGAIN` if none that is left is
    /// written yet, and `ESTALE` if the stream is over.
    pub(super) fn lookup(&self, slot: usize, name: &str) -> Result<(Place, bool), Errno> {
        let (sample, is_new) = self.bind(name)?;
        if let Some(bindings) = &self.display.bindings
            && let Err(error) = bindings.write_pairs()
            && !self.warned.swap(true, Ordering::Relaxed)
        {
            tracing::warn!(%error, "what a stream binds is not kept for the next mount as long as this lasts");
        }
        let file = self.file(slot, sample).ok_or(Errno::ENOENT)?;
        Ok((file, is_new))
    }

    /// The sample of an ordinal, and whether this call has bound it.
    fn bind(&self, name: &str) -> Result<(SampleId, bool), Errno> {
        let mut ordinals = self.ordinals.lock();
        let ordinal = ordinal(name).filter(|ordinal| *ordinal < ordinals.len());
        let ordinal = ordinal.ok_or(Errno::ENOENT)?;
        if let Some(sample) = ordinals.get(ordinal) {
            return Ok((sample, false));
        }
        if self.over.load(Ordering::Relaxed) {
            return Err(Errno::ESTALE);
        }
        if ordinals.left() == 0 {
            return Err(Errno::ENOENT);
        }
        let sample = ordinals.bind(ordinal, |sample| self.ready(sample).is_some());
        let sample = sample.ok_or(Errno::EAGAIN)?;
        if let Some(bindings) = &self.display.bindings {
            bindings.bind(ordinal as u32, sample.0);
        }
        Ok((sample, true))
    }

    /// Binds nothing after this: another mount or display may take up the bindings.
    pub(super) fn end(&self) {
        let _ordinals = self.ordinals.lock();
        self.over.store(true, Ordering::Relaxed);
    }

    pub(super) fn found(&self, slot: usize, name: &str) -> Option<Place> {
        let sample = self.ordinals.lock().get(ordinal(name)?)?;
        self.file(slot, sample)
    }

    /// The ordinals. An unbound one has no node yet.
    pub(super) fn list(&self, slot: usize) -> Vec<(String, Entry)> {
        let ordinals = self.ordinals.lock();
        let mut left = ordinals.left();
        let node = |ordinal: usize| match ordinals.get(ordinal) {
            Some(sample) => self.file(slot, sample).map(Place::node),
            None => {
                let is_left = left > 0;
                left = left.saturating_sub(1);
                is_left.then_some(place::DEALT)
            }
        };
        let entry = |(ordinal, node): (usize, u64)| {
            let kind = EntryKind::File(0, Access::default());
            (format!("{ordinal:0DIGITS$}"), Entry { node, kind, lasting: true })
        };
        let nodes = (0..ordinals.len()).map(node).enumerate();
        nodes.filter_map(|(ordinal, node)| Some((ordinal, node?))).map(entry).collect()
    }
}

/// The ordinal that has this name.
fn ordinal(name: &str) -> Option<usize> {
    name.parse().ok().filter(|ordinal: &usize| format!("{ordinal:0DIGITS$}") == name)
}
