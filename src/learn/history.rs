//! What a loader has read, epoch by epoch, for order files and for the journal.

use std::collections::VecDeque;
use std::sync::Arc;

use super::attempt::Attempt;
use super::event::LoaderId;
use super::follow::FollowedOrder;
use super::indexes::Index;
use super::origin::{Generators, Law, Origin};
use super::share::Share;
use super::shared::Shared;
use crate::track::BitSet;

/// How many of a loader's latest epochs are remembered, and how many samples of those that no sampler can
/// draw again, at 4 bytes each. The latest epoch always is.
const EPOCHS_MAX: usize = 1024;
const SAMPLES_MAX: usize = 1 << 23;

/// One epoch as a loader read it.
#[derive(Clone, Debug)]
pub struct Epoch {
    /// From 0 for the first that was seen of the loader.
    pub number: u32,
    pub(super) read: Read,
    /// Whether its order was known. Then it is whole, however little was seen of it.
    pub is_learnt: bool,
    /// Whether it is over. If not, it is only known so far, unless it is learnt.
    pub is_over: bool,
    /// Whether it may be longer than is known.
    pub(super) is_cut: bool,
}

#[derive(Clone, Debug)]
pub(super) enum Read {
    /// In an order that a sampler can draw again.
    Made { index: Box<Index>, origin: Box<Origin>, law: Law, share: Share },
    /// As it was seen, now or in an earlier run.
    Seen(Arc<[u32]>),
}

impl Epoch {
    pub fn len(&self) -> u32 {
        match &self.read {
            Read::Made { index, share, .. } => share.len_of(index.sequence.len()),
            Read::Seen(samples) => samples.len() as u32,
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// See [`samples`].
    pub(super) fn samples(&self, generators: &Generators) -> Arc<[u32]> {
        match &self.read {
            Read::Made { index, origin, share, .. } => {
                share.of_epoch(&index.epoch(origin, generators).unwrap_or_default())
            }
            Read::Seen(samples) => Arc::clone(samples),
        }
    }

    /// How many samples are kept for it alone, and not for the epoch before, too.
    fn kept(&self, before: Option<&Epoch>) -> usize {
        match (&self.read, before.map(|epoch| &epoch.read)) {
            (Read::Seen(samples), Some(Read::Seen(same))) if Arc::ptr_eq(samples, same) => 0,
            (Read::Seen(samples), _) => samples.len(),
            (Read::Made { .. }, _) => 0,
        }
    }
}

/// The samples of each epoch: see [`samples`].
#[derive(Debug)]
pub struct Samples<'e> {
    epochs: std::slice::Iter<'e, Epoch>,
    generators: Generators,
}

/// Each epoch's samples in the order of their reads, or of their first opens if that order was not known. Each
/// epoch may cost a permutation of the dataset.
pub fn samples(epochs: &[Epoch]) -> Samples<'_> {
    Samples { epochs: epochs.iter(), generators: Generators::default() }
}

impl Iterator for Samples<'_> {
    type Item = Arc<[u32]>;

    fn next(&mut self) -> Option<Arc<[u32]>> {
        self.epochs.next().map(|epoch| epoch.samples(&self.generators))
    }
}

#[derive(Clone, Debug)]
pub struct Record {
    pub loader: LoaderId,
    /// The process that it reads for.
    pub group: u64,
    /// Its latest epochs, with the current one at the end.
    pub epochs: Vec<Epoch>,
}

/// The epochs that are over.
#[derive(Debug, Default)]
pub(super) struct History {
    epochs: VecDeque<Epoch>,
    /// Samples that were read of the current epoch in an order that was then given up.
    left: Arc<[u32]>,
}

impl History {
    /// An order is given up in the middle of its epoch.
    pub(super) fn leave(&mut self, follow: &FollowedOrder) {
        self.left = follow.done();
    }

    /// The epoch of a followed order is over. `log` has the opens that the order did not explain.
    pub(super) fn follow_ended(
        &mut self,
        number: u32,
        follow: &FollowedOrder,
        log: &[u32],
        shared: &Shared,
    ) {
        let mut epoch = followed(number, follow, shared, true);
        // The order was recorded before, perhaps not to its end.
        if let Read::Seen(samples) = &mut epoch.read
            && log.iter().any(|sample| follow.sequence.place(*sample).is_none())
        {
            let more = log.iter().filter(|sample| follow.sequence.place(**sample).is_none());
            *samples = samples.iter().chain(more).copied().collect();
        }
        self.push(epoch);
    }

    /// An epoch in an unknown order is over.
    pub(super) fn unknown_ended(&mut self, number: u32, log: &[u32]) {
        if let Some(epoch) = self.unknown(number, log, true) {
            self.push(Epoch { is_cut: false, ..epoch });
        }
    }

    /// The samples of the last epoch that is over, if they are kept.
    pub(super) fn last_seen(&self) -> &[u32] {
        match self.epochs.back().map(|epoch| &epoch.read) {
            Some(Read::Seen(samples)) => samples,
            _ => &[],
        }
    }

    /// The samples of an epoch that is over, if its order was not known.
    pub(super) fn seen_in(&self, number: u32) -> Option<&[u32]> {
        let epoch = self.epochs.iter().rev().find(|epoch| epoch.number == number)?;
        match &epoch.read {
            Read::Seen(samples) if !epoch.is_learnt => Some(samples),
            _ => None,
        }
    }

    /// All epochs with the current one at the end: that of the order that is followed, or the attempt.
    pub(super) fn with_current(
        &self,
        number: u32,
        follow: Option<&FollowedOrder>,
        attempt: &Attempt,
        shared: &Shared,
    ) -> Vec<Epoch> {
        let current = match follow {
            Some(follow) => Some(followed(number, follow, shared, false)),
            None => {
                let epoch = self.unknown(number, attempt.log(), attempt.is_left());
                epoch.map(|epoch| Epoch { is_cut: !shared.has_whole(&epoch.read), ..epoch })
            }
        };
        self.epochs.iter().cloned().chain(current).collect()
    }

    fn push(&mut self, epoch: Epoch) {
        self.left = Arc::default();
        self.epochs.push_back(epoch);
        while self.epochs.len() > EPOCHS_MAX || self.epochs.len() > 1 && self.kept() > SAMPLES_MAX {
            self.epochs.pop_front();
        }
    }

    fn kept(&self) -> usize {
        let before = std::iter::once(None).chain(self.epochs.iter().map(Some));
        self.epochs.iter().zip(before).map(|(epoch, before)| epoch.kept(before)).sum()
    }

    fn unknown(&self, number: u32, log: &[u32], is_over: bool) -> Option<Epoch> {
        let mut known = BitSet::default();
        let samples = self.left.iter().chain(log).copied();
        let samples: Arc<[u32]> = match self.left.is_empty() {
            true => log.into(),
            false => samples.filter(|sample| known.insert(*sample)).collect(),
        };
        let read = Read::Seen(samples);
        let epoch = Epoch { number, read, is_learnt: false, is_over, is_cut: true };
        (!epoch.is_empty()).then_some(epoch)
    }
}

fn followed(number: u32, follow: &FollowedOrder, shared: &Shared, is_over: bool) -> Epoch {
    let read = match follow.index {
        Some(index) => Read::Made {
            index: Box::new(shared.indexes[index].clone()),
            origin: Box::new(follow.origin.clone()),
            law: follow.law.clone(),
            share: follow.share(),
        },
        None => Read::Seen(Arc::clone(follow.sequence.items())),
    };
    let is_cut = !is_over && follow.origin.is_cut();
    Epoch { number, read, is_learnt: true, is_over, is_cut }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::learn::{Numbering, Settings};
    use crate::order::SampleTable;

    #[test]
    fn one_generator_draws_all_epochs_of_one() {
        let n = 10_000;
        let all = Numbering { name: "path".into(), samples: (0..n).collect(), spec: None };
        let shared = Shared::new(Settings::default(), vec![all], SampleTable::Files);
        let epoch = |number: u32| {
            let origin = Box::new(Origin::Draw { seed: 5, skip: u64::from(number) * 20_000 });
            let (index, law) = (Box::new(shared.indexes[0].clone()), Law::Unknown);
            let read = Read::Made { index, origin, law, share: Share::WHOLE };
            Epoch { number, read, is_learnt: true, is_over: true, is_cut: false }
        };
        let epochs: Vec<Epoch> = (0..100).map(epoch).collect();
        let mut read = samples(&epochs);
        assert!(read.by_ref().zip(&epochs).all(|(read, epoch)| {
            read == epoch.samples(&Generators::default()) && read.len() == n as usize
        }));
        assert_eq!(read.generators.drawn.get(), 99 * 20_000);
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut history = History::default();
        for number in 0..2 * EPOCHS_MAX as u32 {
            history.unknown_ended(number, &[1, 2, 3]);
        }
        assert_eq!(history.epochs.len(), EPOCHS_MAX);
        let log: Vec<u32> = (0..SAMPLES_MAX as u32 + 1).collect();
        history.unknown_ended(9_000, &log);
        let numbers: Vec<u32> = history.epochs.iter().map(|epoch| epoch.number).collect();
        assert_eq!(numbers, [9_000]);
        history.unknown_ended(9_001, &[]);
        assert_eq!(history.epochs.len(), 1);
    }
}
