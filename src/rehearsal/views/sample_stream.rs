//! A sample stream: the samples that were held when an epoch was first looked at, each under one ordinal.
//!
//! A lookup binds an ordinal, since its answer has the size of the sample. A listing binds none. The binding
//! is on the disk before the answer, so the next mount has it, too. A listing leaves out ordinals whose
//! samples are not held any more.
//!
//! An ordinal leads to the sample's file in the stream's snapshot, so no other part has to know ordinals.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::errno::Errno;

use super::node::{self, Node};
use super::{Entry, EntryKind, KeptSample, Snapshot};
use crate::buffer::{AHEAD, Ordinals, SampleId};
use crate::fs::Access;
use crate::sync::Mutex;

/// The least number of digits.
const DIGITS: usize = 6;

pub(super) struct SampleStream {
    ordinals: Mutex<Ordinals>,
    /// Whether nothing may be bound any more. Changes under the lock of the ordinals.
    ended: AtomicBool,
    /// A warning was logged that the disk does not take bindings.
    warned: AtomicBool,
    snapshot: Arc<Snapshot>,
    /// The class and file of each sample in the snapshot.
    file_of: HashMap<SampleId, (usize, usize)>,
}

impl SampleStream {
    pub(super) fn new(seed: u64, epoch: u64, snapshot: &Arc<Snapshot>) -> SampleStream {
        let classes = snapshot.classes.iter().zip(0..);
        let files = classes.flat_map(|((_, files), class)| {
            files.iter().zip(0..).map(move |(entry, file)| (entry, (class, file)))
        });
        let file_of: HashMap<SampleId, (usize, usize)> =
            files.filter_map(|(entry, at)| Some((entry.sample()?.id, at))).collect();
        let held = |sample| file_of.contains_key(&sample);
        let (set, pairs): (Vec<SampleId>, Vec<_>) = match &snapshot.bindings {
            Some(bindings) => {
                let pair = |(ordinal, sample)| (ordinal as usize, SampleId(sample));
                let pairs = bindings.pairs().into_iter().map(pair).collect();
                (bindings.set().iter().copied().map(SampleId).collect(), pairs)
            }
            None => (file_of.keys().copied().collect(), Vec::new()),
        };
        let ordinals = Mutex::new(Ordinals::new(seed, epoch, set, pairs, held));
        let (ended, warned) = Default::default();
        SampleStream { ordinals, ended, warned, snapshot: Arc::clone(snapshot), file_of }
    }

    /// A sample, if it is written.
    fn ready(&self, sample: SampleId) -> Option<&Arc<KeptSample>> {
        let (class, file) = self.file_of.get(&sample)?;
        let (_, files) = self.snapshot.classes.get(*class)?;
        files.get(*file)?.sample().filter(|sample| sample.bytes.is_written())
    }

    /// The written samples that get ordinals next.
    pub(super) fn upcoming(&self) -> Vec<Arc<KeptSample>> {
        let ordinals = self.ordinals.lock();
        // Only the first are looked at: many may not be written.
        let due = ordinals.upcoming().take(2 * AHEAD);
        due.filter_map(|sample| self.ready(sample).cloned()).take(AHEAD).collect()
    }

    fn file(&self, id: usize, sample: SampleId) -> Option<Node> {
        self.file_of.get(&sample).map(|(class, file)| Node::File(id, *class, *file))
    }

    /// The file of an ordinal, and whether this call has bound it. Waits for the disk.
    ///
    /// # Errors
    /// `ENOENT` if there is no such ordinal or no sample is left for it, `EAGAIN` if none that is left is
    /// written yet, and `ESTALE` if the stream has ended.
    pub(super) fn lookup(&self, id: usize, name: &str) -> Result<(Node, bool), Errno> {
        let (sample, is_new) = self.bind(name)?;
        if let Some(bindings) = &self.snapshot.bindings
            && let Err(error) = bindings.write_pairs()
            && !self.warned.swap(true, Ordering::Relaxed)
        {
            tracing::warn!(%error, "what a stream binds is not kept for the next mount as long as this lasts");
        }
        let file = self.file(id, sample).ok_or(Errno::ENOENT)?;
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
        if self.ended.load(Ordering::Relaxed) {
            return Err(Errno::ESTALE);
        }
        if ordinals.left() == 0 {
            return Err(Errno::ENOENT);
        }
        let sample = ordinals.bind(ordinal, |sample| self.ready(sample).is_some());
        let sample = sample.ok_or(Errno::EAGAIN)?;
        if let Some(bindings) = &self.snapshot.bindings {
            bindings.bind(ordinal as u32, sample.0);
        }
        Ok((sample, true))
    }

    /// Binds nothing after this: another mount or snapshot may take up the bindings.
    pub(super) fn end(&self) {
        let _ordinals = self.ordinals.lock();
        self.ended.store(true, Ordering::Relaxed);
    }

    pub(super) fn find(&self, id: usize, name: &str) -> Option<Node> {
        let sample = self.ordinals.lock().get(ordinal(name)?)?;
        self.file(id, sample)
    }

    /// The ordinals. An unbound one has no node yet.
    pub(super) fn list(&self, id: usize) -> Vec<(String, Entry)> {
        let ordinals = self.ordinals.lock();
        let mut left = ordinals.left();
        let node = |ordinal: usize| match ordinals.get(ordinal) {
            Some(sample) => self.file(id, sample).map(Node::number),
            None => {
                let is_left = left > 0;
                left = left.saturating_sub(1);
                is_left.then_some(node::FIRST_RESERVED)
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
