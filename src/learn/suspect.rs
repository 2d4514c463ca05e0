//! Orders that cost nothing to try: they follow from what is known, or need no seed.

use std::sync::Arc;

use super::event::{LoaderId, Rung};
use super::evidence::{Weight, weigh, weigh_nearby};
use super::indexes::{Index, Indexes};
use super::journal::Journal;
use super::origin::{Generators, Law, Origin, Outputs, defaults};
use super::past::Past;
use super::sequence::Sequence;
use super::shared::Shared;
use super::told::Told;

/// How far from its beginning an epoch is looked at, and where there are hundreds of suspects.
pub(super) const HEAD: u32 = 4096;
const SHORT_HEAD: u32 = 128;

/// After so many epochs that were not understood nothing is derived from the last that was; after
/// more of them if they have no more samples together.
const EPOCHS_MAX: u32 = 4;
const SAMPLES_MAX: u32 = 1 << 20;

/// How many times as much a later suspect has to have for it. Within the dataset's part that a job
/// reads, the order of the whole is the same, and has more bits for each open.
const CLEARLY: f64 = 2.0;

/// An order that the loader may be reading.
#[derive(Debug)]
pub(super) struct Suspect {
    pub(super) index: Option<usize>,
    pub(super) origin: Origin,
    pub(super) law: Law,
    pub(super) rung: Rung,
    view: View,
}

#[derive(Debug)]
enum View {
    /// The first positions, ascending, each with its place; samples where there is no index.
    Head(Vec<(u32, u32)>),
    Whole(Arc<Sequence>),
}

/// What another loader reads or read first.
#[derive(Clone, Debug)]
pub(super) struct Other {
    pub(super) loader: LoaderId,
    pub(super) first: (Option<usize>, Origin),
    pub(super) now: (Option<usize>, Origin, Law),
    pub(super) sequence: Arc<Sequence>,
}

/// What suspects follow from.
pub(super) struct Sources<'s> {
    pub(super) indexes: &'s Indexes,
    pub(super) generators: &'s Generators,
    pub(super) samplers: &'s [crate::order::samplers::Sampler],
    pub(super) others: &'s [Other],
    pub(super) loader: LoaderId,
    pub(super) past: Option<&'s Past>,
    /// The epoch that is looked at.
    pub(super) epoch: u32,
    pub(super) recorded: Option<&'s Arc<Sequence>>,
    /// Outputs after the one that was the seed of an epoch, and its number.
    pub(super) defaults: &'s [(Outputs, u32)],
    pub(super) journal: &'s Journal,
    pub(super) told: &'s [Told],
}

impl Sources<'_> {
    /// All suspects, the likeliest first.
    pub(super) fn suspects(&self) -> Vec<Suspect> {
        let mut suspects = Vec::new();
        self.following(&mut suspects);
        self.told(&mut suspects);
        let understood = self.past.is_some();
        suspects.extend(self.journal.suspects(
            self.loader,
            understood,
            self.indexes,
            |index, origin, law| self.head(index, origin, law, HEAD),
        ));
        // What needs no seed is tried by itself.
        let others = self.others.iter().filter(|other| other.loader != self.loader);
        let others = others.filter(|other| matches!(other.now.1, Origin::Draw { .. }));
        for other in others.clone() {
            let (index, origin, law) = other.now.clone();
            suspects.push(Suspect::whole(index, origin, law, Arc::clone(&other.sequence)));
        }
        for other in others {
            if let (Some(index), origin) = other.first.clone() {
                suspects.extend(self.head(index, origin, Law::Unknown, HEAD));
            }
        }
        for (index, found) in self.indexes.iter() {
            let (origin, sequence) = (Origin::Sequential, Arc::clone(&found.sequence));
            suspects.push(Suspect::whole(Some(index), origin, Law::Same, sequence));
            for (origin, law) in found.drawn_after_split() {
                suspects.extend(self.head(index, origin, law, SHORT_HEAD));
            }
            for sampler in self.samplers {
                let origin = Origin::Sampler { sampler: sampler.clone(), epoch: 0 };
                suspects.extend(self.head(index, origin, Law::Sampler, HEAD));
            }
        }
        if let Some(recorded) = self.recorded {
            let sequence = Arc::clone(recorded);
            suspects.push(Suspect::whole(None, Origin::Recorded, Law::Same, sequence));
        }
        suspects
    }

    /// What follows from the last epoch that was understood.
    fn following(&self, suspects: &mut Vec<Suspect>) {
        let Some(past) = self.past else { return };
        let epochs = self.epoch.saturating_sub(past.epoch).max(1);
        let Some(index) = past.index else { return };
        let n = self.indexes[index].sequence.len();
        if epochs > EPOCHS_MAX.max(SAMPLES_MAX / n.max(1)) {
            return;
        }
        let known = (past.law != Law::Unknown).then(|| past.law.clone());
        let laws = past.origin.laws(n).into_iter().filter(|law| *law != past.law);
        for law in known.into_iter().chain(laws) {
            if let Some((origin, law)) = past.origin.after_epochs(&law, n, epochs) {
                suspects.extend(self.head(index, origin, law, HEAD));
            }
        }
        // As long as no law is known, its twins may be what was read.
        let twins = twins(index, &past.origin, self.indexes).into_iter();
        for (index, origin) in twins.filter(|_| past.law == Law::Unknown) {
            let n = self.indexes[index].sequence.len();
            for law in origin.laws(n) {
                if let Some((origin, law)) = origin.after_epochs(&law, n, epochs) {
                    suspects.extend(self.head(index, origin, law, HEAD));
                }
            }
        }
        // Where the law is known, they are in it.
        let unknown = self.defaults.iter().filter(|_| past.law == Law::Unknown);
        let unknown = unknown.map(|(outputs, epoch)| (outputs, outputs.from - 1, *epoch));
        let drawn = match &past.law {
            Law::Drawn { outputs, at } => Some((outputs, *at, past.epoch)),
            _ => None,
        };
        for (outputs, at, epoch) in unknown.chain(drawn) {
            let epochs = self.epoch.saturating_sub(epoch).max(1);
            for (origin, law) in defaults(outputs, at, epochs) {
                suspects.extend(self.head(index, origin, law, SHORT_HEAD));
            }
        }
        // Where it is, an epoch may yet have drawn more or less than those before: a validation
        // between them, workers that stay.
        if let Law::Default { outputs, at, stride } = &past.law {
            let outputs = outputs.since(at + 1);
            let others = defaults(&outputs, *at, epochs).filter(
                |(_, law)| !matches!(law, Law::Default { stride: other, .. } if other == stride),
            );
            for (origin, law) in others {
                suspects.extend(self.head(index, origin, law, SHORT_HEAD));
            }
        }
    }

    pub(super) fn head(
        &self,
        index: usize,
        origin: Origin,
        law: Law,
        count: u32,
    ) -> Option<Suspect> {
        let n = self.indexes[index].sequence.len();
        let positions = origin.head(n, count, self.generators);
        let mut head: Vec<(u32, u32)> = positions.into_iter().zip(0..).collect();
        head.sort_unstable();
        let (index, rung) = (Some(index), Rung::Derived);
        (!head.is_empty()).then_some(Suspect { index, origin, law, rung, view: View::Head(head) })
    }
}

impl Suspect {
    /// An order that is known whole.
    pub(super) fn whole(
        index: Option<usize>,
        origin: Origin,
        law: Law,
        sequence: Arc<Sequence>,
    ) -> Self {
        Suspect { index, origin, law, rung: Rung::Derived, view: View::Whole(sequence) }
    }

    /// An epoch as an earlier run read it. Only its beginning is looked at until it is believed:
    /// the way back from all samples to their places would take as much memory again.
    pub(super) fn listed(origin: Origin, list: &[u32]) -> Self {
        let mut head: Vec<(u32, u32)> = list.iter().copied().zip(0..).take(HEAD as usize).collect();
        head.sort_unstable();
        let (law, rung) = (Law::Listed, Rung::Replayed);
        Suspect { index: None, origin, law, rung, view: View::Head(head) }
    }

    /// The same, as it was told.
    pub(super) fn into_told(self) -> Self {
        Suspect { rung: Rung::Told, ..self }
    }

    /// The orders that are nearly the same: see [`twins`].
    pub(super) fn twins(&self, indexes: &Indexes) -> Vec<(usize, Origin, Law)> {
        let index = self.index.filter(|_| self.law == Law::Unknown);
        let twins = index.map(|index| twins(index, &self.origin, indexes));
        let told = |(index, origin)| (index, origin, self.law.clone());
        twins.into_iter().flatten().map(told).collect()
    }

    pub(super) fn weigh<'r>(
        &self,
        readers: impl Iterator<Item = &'r [u32]> + Clone,
        read: u32,
        indexes: &Indexes,
    ) -> Weight {
        match &self.view {
            View::Whole(sequence) => {
                let unread = sequence.len().saturating_sub(read);
                if self.origin == Origin::Sequential {
                    return weigh_nearby(readers, unread, |sample| sequence.place(sample));
                }
                weigh(readers, unread, |sample| sequence.place(sample))
            }
            View::Head(head) => {
                let sequence = self.index.map(|index| &indexes[index].sequence);
                let listed = self.origin.listed().map_or(0, |list| list.len() as u32);
                let len = sequence.map_or(listed, |sequence| sequence.len());
                weigh(readers, len.saturating_sub(read), |sample| {
                    let position = match sequence {
                        Some(sequence) => sequence.place(sample)?,
                        None => sample,
                    };
                    let at = head.binary_search_by_key(&position, |entry| entry.0).ok()?;
                    Some(head[at].1)
                })
            }
        }
    }

    /// The whole epoch.
    pub(super) fn sequence(&self, shared: &Shared) -> Option<Arc<Sequence>> {
        match (&self.view, self.index) {
            (View::Whole(sequence), _) => Some(Arc::clone(sequence)),
            (View::Head(_), Some(index)) => sequence_of(&self.origin, index, shared),
            (View::Head(_), None) => {
                let list = self.origin.listed()?;
                Some(Arc::new(Sequence::new(Arc::clone(list))))
            }
        }
    }
}

/// The epoch of an origin over an index.
pub(super) fn sequence_of(origin: &Origin, index: usize, shared: &Shared) -> Option<Arc<Sequence>> {
    let index = shared.indexes.get(index)?;
    if *origin == Origin::Sequential {
        return Some(Arc::clone(&index.sequence));
    }
    Some(Arc::new(Sequence::new(index.epoch(origin, &shared.generators)?)))
}

/// Orders that differ from a permutation in two samples only: of two samples fewer, two outputs of
/// the generator later, or of two more, two outputs earlier. At the first of these two outputs a
/// loader that has a generator of its own begins its epochs.
pub(super) fn twins(index: usize, origin: &Origin, indexes: &Indexes) -> Vec<(usize, Origin)> {
    let Origin::Draw { seed, skip } = *origin else { return Vec::new() };
    let n = u64::from(indexes[index].sequence.len());
    let twin = |(other, of): (usize, &Index)| {
        let skip = (n + skip).checked_sub(of.sequence.len().into())?;
        let is_twin = n.abs_diff(of.sequence.len().into()) == 2;
        is_twin.then_some((other, Origin::Draw { seed, skip }))
    };
    indexes.iter().filter_map(twin).collect()
}

/// The suspect that the opens speak for most, and how much; of suspects that are as good, the first
/// or that with fewer samples.
pub(super) fn best<'s, 'r, R: Iterator<Item = &'r [u32]> + Clone>(
    suspects: impl Iterator<Item = &'s Suspect>,
    indexes: &Indexes,
    read: u32,
    readers: impl Fn() -> R,
) -> Option<(&'s Suspect, Weight)> {
    let mut best: Option<(&Suspect, Weight)> = None;
    for suspect in suspects {
        let weight = suspect.weigh(readers(), read, indexes);
        if best.as_ref().is_none_or(|(_, best)| weight.bits > CLEARLY * best.bits.max(1.0)) {
            best = Some((suspect, weight));
        }
    }
    best
}
