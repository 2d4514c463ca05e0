//! What a loader has read, epoch by epoch: for order files, and for the journal.

use std::collections::VecDeque;
use std::sync::Arc;

use super::event::LoaderId;
use super::follow::Follow;
use super::indexes::Index;
use super::loader::Loader;
use super::origin::{Generators, Law, Origin};
use super::sequence::Bits;
use super::share::Share;
use super::shared::Shared;

/// How many epochs of a loader are remembered, the latest, and how many samples of those that no
/// sampler can make again: 4 bytes each. The latest is, however long it is.
const EPOCHS_MAX: usize = 1024;
const SAMPLES_MAX: usize = 1 << 23;

/// One epoch as a loader read it.
#[derive(Clone, Debug)]
pub struct Epoch {
    pub(super) number: u32,
    pub(super) read: Read,
    learnt: bool,
    over: bool,
    /// Whether it may have gone on after what is known of it.
    pub(super) is_cut: bool,
}

#[derive(Clone, Debug)]
pub(super) enum Read {
    /// In an order that can be made again.
    Made { index: Box<Index>, origin: Box<Origin>, law: Law, share: Share },
    /// As it was seen, now or before.
    Seen(Arc<[u32]>),
}

impl Epoch {
    /// Its number, from 0 for the first that was seen of the loader.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Whether its order was known: then it is whole, whatever was seen of it.
    pub fn is_learnt(&self) -> bool {
        self.learnt
    }

    /// Whether it is over. Of an epoch that is not, only what was read so far is known, unless it
    /// [is learnt](Self::is_learnt).
    pub fn is_over(&self) -> bool {
        self.over
    }

    /// How many samples it has.
    pub fn len(&self) -> u32 {
        match &self.read {
            Read::Made { index, share, .. } => share.len_of(index.sequence.len()),
            Read::Seen(samples) => samples.len() as u32,
        }
    }

    /// Whether nothing was read.
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

    /// Samples that are kept for it alone, if they are not those of the epoch before.
    fn kept(&self, before: Option<&Epoch>) -> usize {
        match (&self.read, before.map(|epoch| &epoch.read)) {
            (Read::Seen(samples), Some(Read::Seen(same))) if Arc::ptr_eq(samples, same) => 0,
            (Read::Seen(samples), _) => samples.len(),
            (Read::Made { .. }, _) => 0,
        }
    }
}

/// Of each epoch in turn the samples: see [`samples`].
#[derive(Debug)]
pub struct Samples<'e> {
    epochs: std::slice::Iter<'e, Epoch>,
    generators: Generators,
}

/// Of each epoch in turn the samples in the order in which they are read; of an order that was not
/// known, in that in which they were first opened. Each may cost a permutation of the dataset; where
/// one generator draws all of them, it goes on from one to the next.
pub fn samples(epochs: &[Epoch]) -> Samples<'_> {
    Samples { epochs: epochs.iter(), generators: Generators::default() }
}

impl Iterator for Samples<'_> {
    type Item = Arc<[u32]>;

    fn next(&mut self) -> Option<Arc<[u32]>> {
        self.epochs.next().map(|epoch| epoch.samples(&self.generators))
    }
}

/// All that is remembered of a loader.
#[derive(Clone, Debug)]
pub struct Record {
    pub loader: LoaderId,
    /// The process that it reads for.
    pub group: u64,
    /// Its latest epochs, with the current one at the end.
    pub epochs: Vec<Epoch>,
}

/// The epochs of a loader that are over.
#[derive(Debug, Default)]
pub(super) struct History {
    epochs: VecDeque<Epoch>,
    /// Samples read in the order of an epoch that was then left.
    left: Arc<[u32]>,
}

impl History {
    /// An order is not read any more in the middle of its epoch.
    pub(super) fn leave(&mut self, follow: &Follow) {
        self.left = follow.done();
    }

    /// The epoch of an order that was followed is over; `log` is what else was opened.
    pub(super) fn follow_ended(
        &mut self,
        number: u32,
        follow: &Follow,
        log: &[u32],
        shared: &Shared,
    ) {
        let mut epoch = followed(number, follow, shared, true);
        // As it was seen before, that is: perhaps not to its end.
        if let Read::Seen(samples) = &mut epoch.read
            && log.iter().any(|sample| follow.sequence.place(*sample).is_none())
        {
            let more = log.iter().filter(|sample| follow.sequence.place(**sample).is_none());
            *samples = samples.iter().chain(more).copied().collect();
        }
        self.push(epoch);
    }

    /// The epoch of an unknown order is over.
    pub(super) fn seen(&mut self, number: u32, log: &[u32]) {
        if let Some(epoch) = self.unknown(number, log, true) {
            self.push(Epoch { is_cut: false, ..epoch });
        }
    }

    /// What was read in the last epoch that is over, if its order was not known.
    pub(super) fn last_seen(&self) -> &[u32] {
        match self.epochs.back().map(|epoch| &epoch.read) {
            Some(Read::Seen(samples)) => samples,
            _ => &[],
        }
    }

    /// What was read in an epoch that is over, if its order was not known.
    pub(super) fn seen_in(&self, number: u32) -> Option<&[u32]> {
        let epoch = self.epochs.iter().rev().find(|epoch| epoch.number == number)?;
        match &epoch.read {
            Read::Seen(samples) if !epoch.learnt => Some(samples),
            _ => None,
        }
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

    fn unknown(&self, number: u32, log: &[u32], over: bool) -> Option<Epoch> {
        let mut known = Bits::default();
        let samples = self.left.iter().chain(log).copied();
        let samples: Arc<[u32]> = match self.left.is_empty() {
            true => log.into(),
            false => samples.filter(|sample| known.insert(*sample)).collect(),
        };
        let read = Read::Seen(samples);
        let epoch = Epoch { number, read, learnt: false, over, is_cut: true };
        (!epoch.is_empty()).then_some(epoch)
    }
}

fn followed(number: u32, follow: &Follow, shared: &Shared, over: bool) -> Epoch {
    let read = match follow.index {
        Some(index) => Read::Made {
            index: Box::new(shared.indexes[index].clone()),
            origin: Box::new(follow.origin.clone()),
            law: follow.law.clone(),
            share: follow.share(),
        },
        None => Read::Seen(Arc::clone(follow.sequence.samples())),
    };
    let is_cut = !over && follow.origin.is_cut();
    Epoch { number, read, learnt: true, over, is_cut }
}

impl Loader {
    /// All that is remembered of the loader; none of one that only looks around.
    pub(super) fn record(&self, shared: &Shared) -> Option<Record> {
        if !self.reads() {
            return None;
        }
        let mut epochs: Vec<Epoch> = self.history.epochs.iter().cloned().collect();
        let number = self.epoch();
        epochs.extend(match &self.follow {
            Some(follow) => Some(followed(number, follow, shared, false)),
            None => {
                let log = self.attempt.log();
                let epoch = self.history.unknown(number, log, self.attempt.is_left());
                epoch.map(|epoch| Epoch { is_cut: !shared.has_whole(&epoch.read), ..epoch })
            }
        });
        Some(Record { loader: self.id, group: self.group, epochs })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::learn::{Candidate, Settings};
    use crate::order::SampleTable;

    #[test]
    fn one_generator_draws_all_epochs_of_one() {
        let n = 10_000;
        let all = Candidate { name: "path".into(), samples: (0..n).collect(), spec: None };
        let shared = Shared::new(Settings::default(), vec![all], SampleTable::Files);
        let epoch = |number: u32| {
            let origin = Box::new(Origin::Draw { seed: 5, skip: u64::from(number) * 20_000 });
            let (index, law) = (Box::new(shared.indexes[0].clone()), Law::Unknown);
            let read = Read::Made { index, origin, law, share: Share::WHOLE };
            Epoch { number, read, learnt: true, over: true, is_cut: false }
        };
        let epochs: Vec<Epoch> = (0..100).map(epoch).collect();
        let mut read = samples(&epochs);
        assert!(read.by_ref().zip(&epochs).all(|(read, epoch)| {
            read == epoch.samples(&Generators::default()) && read.len() == n as usize
        }));
        assert_eq!(read.generators.drawn(), 99 * 20_000);
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut history = History::default();
        for number in 0..2 * EPOCHS_MAX as u32 {
            history.seen(number, &[1, 2, 3]);
        }
        assert_eq!(history.epochs.len(), EPOCHS_MAX);
        let log: Vec<u32> = (0..SAMPLES_MAX as u32 + 1).collect();
        history.seen(9_000, &log);
        let numbers: Vec<u32> = history.epochs.iter().map(Epoch::number).collect();
        assert_eq!(numbers, [9_000]);
        history.seen(9_001, &[]);
        assert_eq!(history.epochs.len(), 1);
    }
}
