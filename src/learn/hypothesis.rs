//! Hypotheses about the order of a loader's epoch. They cost nothing to try: they follow from what is known,
//! or need no seed.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::attempt::Attempt;
use super::event::{Basis, LoaderId};
use super::evidence::{weigh, weigh_nearby};
use super::indexes::Indexes;
use super::origin::{EpochOrder, Law, Lists, Origin, draws_after};
use super::parts::drawn_after_split;
use super::past::{Past, Understood};
use super::sampler::origin_of;
use super::shared::Shared;
use super::told_orders::ToldOrder;
use crate::track::Sequence;

/// How many of an epoch's first places are looked at, and how many if there are hundreds of hypotheses.
const HEAD: u32 = 4096;
const SHORT_HEAD: u32 = 128;

/// Up to how many epochs after the last known one hypotheses follow from it, or up to how many samples.
const EPOCHS_MAX: u32 = 4;
const SAMPLES_MAX: u32 = 1 << 20;

/// An order that the loader may be reading.
#[derive(Debug)]
pub(super) struct Hypothesis {
    pub(super) order: EpochOrder,
    pub(super) basis: Basis,
    places: Places,
}

/// The places of an order's samples, as far as they are known.
#[derive(Debug)]
enum Places {
    /// The positions at the first places, ascending, each with its place. Samples if there is no index.
    Head(Vec<(u32, u32)>),
    Whole(Arc<Sequence>),
}

impl Hypothesis {
    /// An order that is known whole.
    pub(super) fn whole(order: EpochOrder, sequence: &Arc<Sequence>) -> Self {
        Hypothesis { order, basis: Basis::Derived, places: Places::Whole(Arc::clone(sequence)) }
    }

    /// Epoch `at` of an earlier run or of a told order. Only its beginning is looked at until it is believed:
    /// the places of all samples would take as much memory again.
    pub(super) fn listed(lists: &Lists, at: u32, basis: Basis) -> Option<Self> {
        let list = lists.all.get(at as usize)?.iter();
        let places = Places::Head(head(list.copied().take(HEAD as usize)));
        let origin = Origin::Listed { lists: lists.clone(), at };
        Some(Hypothesis {
            order: EpochOrder { index: None, origin, law: Law::Listed },
            basis,
            places,
        })
    }

    /// The bits of evidence for it.
    pub(super) fn weigh(&self, attempt: &Attempt, indexes: &Indexes) -> f64 {
        let head = match &self.places {
            Places::Whole(sequence) => return weigh_whole(&self.order.origin, sequence, attempt),
            Places::Head(head) => head,
        };
        let sequence = self.order.index.map(|index| &indexes[index].sequence);
        let listed = self.order.origin.listed().map_or(0, |list| list.len() as u32);
        let len = sequence.map_or(listed, |sequence| sequence.len());
        let place = |sample: u32| {
            let position = match sequence {
                Some(sequence) => sequence.place(sample)?,
                None => sample,
            };
            let at = head.binary_search_by_key(&position, |entry| entry.0).ok()?;
            Some(head[at].1)
        };
        let unread = len.saturating_sub(attempt.log().len() as u32);
        weigh(attempt.samples(), unread, place).bits
    }

    /// The whole epoch.
    pub(super) fn sequence(&self, shared: &Shared) -> Option<Arc<Sequence>> {
        match (&self.places, self.order.index) {
            (Places::Whole(sequence), _) => Some(Arc::clone(sequence)),
            (Places::Head(_), Some(index)) => shared.sequence_of(index, &self.order.origin),
            (Places::Head(_), None) => {
                let list = self.order.origin.listed()?;
                Some(Arc::new(Sequence::new(Arc::clone(list))))
            }
        }
    }
}

fn head(positions: impl IntoIterator<Item = u32>) -> Vec<(u32, u32)> {
    let mut head: Vec<(u32, u32)> = positions.into_iter().zip(0..).collect();
    head.sort_unstable();
    head
}

/// The bits of evidence for an order that is known whole.
pub(super) fn weigh_whole(origin: &Origin, sequence: &Sequence, attempt: &Attempt) -> f64 {
    let unread = sequence.len().saturating_sub(attempt.log().len() as u32);
    let (readers, place) = (attempt.samples(), |sample| sequence.place(sample));
    match origin {
        Origin::Sequential => weigh_nearby(readers, unread, place).bits,
        _ => weigh(readers, unread, place).bits,
    }
}

/// What hypotheses follow from.
pub(super) struct Facts<'f> {
    pub(super) shared: &'f Shared,
    pub(super) loader: LoaderId,
    pub(super) past: &'f Past,
    pub(super) epoch: u32,
}

impl Facts<'_> {
    /// All hypotheses, the likeliest first.
    pub(super) fn hypotheses(&self) -> Vec<Hypothesis> {
        let mut all = Vec::new();
        if let Some(past) = &self.past.understood {
            self.add_following(past, &mut all);
        }
        self.shared.told_orders.iter().for_each(|order| self.add_told_order(order, &mut all));
        all.extend(self.shared.journal.hypotheses(self));
        self.add_others(&mut all);
        for (at, index) in self.shared.indexes.iter() {
            let (origin, law) = (Origin::Sequential, Law::Same);
            let order = EpochOrder { index: Some(at), origin, law };
            all.push(Hypothesis::whole(order, &index.sequence));
            let drawn = drawn_after_split(index).into_iter();
            all.extend(drawn.filter_map(|order| self.head(at, order, SHORT_HEAD)));
            for sampler in &self.shared.settings.samplers {
                let origin = Origin::Sampler { sampler: sampler.clone(), epoch: 0 };
                all.extend(self.head(at, (origin, Law::Sampler), HEAD));
            }
        }
        if let Some(recorded) = &self.past.recorded {
            let order = EpochOrder { index: None, origin: Origin::Recorded, law: Law::Same };
            all.push(Hypothesis::whole(order, recorded));
        }
        all
    }

    /// An order that a sampler draws over an index, by its first places.
    fn head(&self, index: usize, (origin, law): (Origin, Law), count: u32) -> Option<Hypothesis> {
        let n = self.shared.indexes[index].sequence.len();
        let head = head(origin.head(n, count, &self.shared.generators));
        let order = EpochOrder { index: Some(index), origin, law };
        let places = (!head.is_empty()).then_some(Places::Head(head))?;
        Some(Hypothesis { order, basis: Basis::Derived, places })
    }

    /// The same for an order that was told or that an earlier run read.
    pub(super) fn known(
        &self,
        index: usize,
        order: (Origin, Law),
        basis: Basis,
    ) -> Option<Hypothesis> {
        Some(Hypothesis { basis, ..self.head(index, order, HEAD)? })
    }

    /// Orders that follow from the last epoch that was understood.
    fn add_following(&self, past: &Understood, all: &mut Vec<Hypothesis>) {
        let EpochOrder { index: Some(index), origin, law: known } = &past.order else { return };
        let (n, epochs) =
            (self.shared.indexes[*index].sequence.len(), self.epochs_since(past.epoch));
        if epochs > EPOCHS_MAX.max(SAMPLES_MAX / n.max(1)) {
            return;
        }
        let mut add = |index: usize, origin: &Origin, law: &Law| {
            let next = origin.after_epochs(law, self.shared.indexes[index].sequence.len(), epochs);
            all.extend(next.and_then(|order| self.head(index, order, HEAD)));
        };
        add(*index, origin, known);
        let laws = origin.laws(n).into_iter().filter(|law| law != known);
        laws.for_each(|law| add(*index, origin, &law));
        // As long as no law is known, one of its twins may be what was read.
        for EpochOrder { index, origin, .. } in self.shared.indexes.twins(&past.order) {
            let laws = origin.laws(self.shared.indexes.len_of(index));
            laws.iter().for_each(|law| index.into_iter().for_each(|at| add(at, &origin, law)));
        }
        self.add_default_draws(*index, past, all);
    }

    /// Draws of seeds that torch's default generator may give next.
    fn add_default_draws(&self, index: usize, past: &Understood, all: &mut Vec<Hypothesis>) {
        let epochs = self.epochs_since(past.epoch);
        let mut add = |order| all.extend(self.head(index, order, SHORT_HEAD));
        match &past.order.law {
            Law::Unknown => {
                for (outputs, epoch) in &self.past.defaults {
                    let epochs = self.epochs_since(*epoch);
                    draws_after(outputs, outputs.from - 1, epochs).for_each(&mut add);
                }
            }
            Law::Drawn { outputs, at } => draws_after(outputs, *at, epochs).for_each(add),
            // An epoch may draw more or less than the one before: for a validation, or if workers stay.
            Law::Default { outputs, at, stride } => {
                let outputs = outputs.since(at + 1);
                let is_new =
                    |law: &Law| !matches!(law, Law::Default { stride: s, .. } if s == stride);
                let orders = draws_after(&outputs, *at, epochs);
                orders.filter(|(_, law)| is_new(law)).for_each(add);
            }
            _ => {}
        }
    }

    fn epochs_since(&self, epoch: u32) -> u32 {
        self.epoch.saturating_sub(epoch).max(1)
    }

    /// A told order, from its beginning, and at the epoch of a loader that began with it.
    fn add_told_order(&self, order: &ToldOrder, all: &mut Vec<Hypothesis>) {
        match order {
            ToldOrder::Drawn { sampler, index } => {
                let n = self.shared.indexes[*index].sequence.len();
                for epoch in BTreeSet::from([0, self.epoch]) {
                    let (origin, law) = origin_of(sampler, epoch, n, &self.shared.generators);
                    let law = if law == Law::Unknown { Law::Same } else { law };
                    all.extend(self.known(*index, (origin, law), Basis::Told));
                }
            }
            ToldOrder::Listed(lists) => {
                let at = self.epoch % lists.all.len().max(1) as u32;
                let listed = |at| Hypothesis::listed(lists, at, Basis::Told);
                all.extend(BTreeSet::from([0, at]).into_iter().filter_map(listed));
            }
        }
    }

    /// Orders that other loaders read, and what they read first. Orders that need no seed are tried anyway.
    fn add_others(&self, all: &mut Vec<Hypothesis>) {
        let others = self.shared.others.iter().filter(|other| other.loader != self.loader);
        let others = others.filter(|other| matches!(other.now.origin, Origin::Draw { .. }));
        let now = others.clone().map(|other| Hypothesis::whole(other.now.clone(), &other.sequence));
        all.extend(now);
        for other in others {
            if let (Some(index), origin) = other.first.clone() {
                all.extend(self.head(index, (origin, Law::Unknown), HEAD));
            }
        }
    }
}
