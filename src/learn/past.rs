//! What a loader's epochs have shown.

use std::sync::Arc;

use super::follow::FollowedOrder;
use super::history::History;
use super::indexes::Index;
use super::origin::{EpochOrder, Generators, Law, Origin, Outputs};
use super::share::Share;
use super::shared::Shared;
use crate::track::{BitSet, Sequence};

/// How many epochs before those that were understood may turn out to be the sampler's.
const EARLIER_MAX: usize = 8;

/// In an epoch this short much is in order by chance.
const READ_MIN: usize = 64;

#[derive(Debug, Default)]
pub(super) struct Past {
    pub(super) understood: Option<Understood>,
    /// The samples of the loader, once it has been understood.
    pub(super) scope: Option<Arc<Sequence>>,
    /// The share of an order of this many samples, once it is known.
    pub(super) share: Option<(u32, Share)>,
    /// The last epoch as it was read, if its order was not known.
    pub(super) recorded: Option<Arc<Sequence>>,
    /// Outputs of the default generator after the seed of the epoch with the number.
    pub(super) defaults: Vec<(Outputs, u32)>,
    pub(super) history: History,
}

/// The last epoch whose order is, or was, known.
#[derive(Debug)]
pub(super) struct Understood {
    pub(super) order: EpochOrder,
    pub(super) epoch: u32,
    /// The first known epoch of its sampler, and its origin. An order is told from this epoch on: before a
    /// job trains, it may read all files in the order of their names, or some of them as a test.
    pub(super) first: (u32, Origin),
}

impl Past {
    /// Whether a sample may be one of the loader's.
    pub(super) fn may_have(&self, sample: u32) -> bool {
        self.scope.as_ref().is_none_or(|scope| scope.place(sample).is_some())
    }

    /// The loader is followed in this order, of which this is the whole epoch.
    pub(super) fn follow(
        &mut self,
        order: EpochOrder,
        (sequence, share): (&Arc<Sequence>, Share),
        epoch: u32,
        shared: &Shared,
    ) {
        if order.law != Law::Unknown {
            self.defaults.clear();
        }
        self.share = Some((sequence.len(), share));
        self.scope = Some(scope_of(order.index, sequence, shared));
        self.recorded = order.index.is_none().then(|| Arc::clone(sequence));
        self.understand(order, epoch, shared);
    }

    /// The order of an epoch has become known.
    pub(super) fn understand(&mut self, order: EpochOrder, epoch: u32, shared: &Shared) {
        let index = order.index.and_then(|index| shared.indexes.get(index));
        let first = index.map(|index| self.first_of(&order, index, epoch, shared));
        let first = first.unwrap_or_else(|| (epoch, order.origin.clone()));
        self.understood = Some(Understood { order, epoch, first });
    }

    /// The order that was followed turned out to be wrong.
    pub(super) fn lose(&mut self, follow: &FollowedOrder) {
        self.history.leave(follow);
        if let Some(past) = &mut self.understood {
            past.order.law = Law::Unknown;
        }
        self.share = None;
    }

    /// Whether the origin of this order was foreseen from the epoch before.
    pub(super) fn has_foreseen(&self, order: &EpochOrder, epoch: u32, shared: &Shared) -> bool {
        let Some(Understood { order: past, epoch: before, .. }) = &self.understood else {
            return false;
        };
        let next = || past.origin.after(&past.law, shared.indexes.len_of(past.index));
        let may_be = past.index == order.index && before + 1 == epoch;
        may_be && next().is_some_and(|(next, _)| next == order.origin)
    }

    /// The order with its law, if that is unknown with the law that leads to it from the last known order.
    pub(super) fn with_law(&self, order: &EpochOrder, epoch: u32, shared: &Shared) -> EpochOrder {
        let is_known = order.law != Law::Unknown;
        let past = self.understood.as_ref().filter(|past| past.order.index == order.index);
        let Some(past) = past.filter(|past| !is_known && past.epoch < epoch) else {
            return order.clone();
        };
        let (from, n) = (&past.order.origin, shared.indexes.len_of(order.index));
        let leads_here = |law: &Law| {
            let then = from.after_epochs(law, n, epoch - past.epoch);
            then.is_some_and(|(then, _)| then == order.origin)
        };
        let law = from.laws(n).into_iter().find(leads_here).unwrap_or(Law::Unknown);
        EpochOrder { law, ..order.clone() }
    }

    /// The first epoch of the sampler that has come to this order: the first that was understood, or an earlier
    /// one that was read in the sampler's order.
    fn first_of(
        &self,
        order: &EpochOrder,
        index: &Index,
        epoch: u32,
        shared: &Shared,
    ) -> (u32, Origin) {
        let EpochOrder { index: number, origin, law } = order;
        let n = index.sequence.len();
        let past = self.understood.as_ref().filter(|past| past.order.index == *number);
        let foresaw = |past: &&Understood| {
            let epochs = epoch.saturating_sub(past.epoch);
            let next = past.order.origin.after_epochs(&past.order.law, n, epochs);
            next.is_some_and(|(next, then)| (&next, &then) == (origin, law))
        };
        if let Some(past) = past.filter(foresaw) {
            return past.first.clone();
        }
        let before = |at: u32| Some(origin.back(law, n, epoch.checked_sub(at)?)?.0);
        let leads_to = |(at, then): &(u32, Origin)| {
            before(*at).is_some_and(|before| before.is_same_epoch(then))
        };
        let known = past.map(|past| [past.first.clone(), (past.epoch, past.order.origin.clone())]);
        let known = known.into_iter().flatten().find(leads_to);
        let first = known.unwrap_or_else(|| (epoch, origin.clone()));
        let earlier = (0..first.0).rev().take(EARLIER_MAX).map_while(|at| {
            let (before, read) = (before(at)?, self.history.seen_in(at)?);
            is_read_in(&before, index, read, &shared.generators).then_some((at, before))
        });
        earlier.last().unwrap_or(first)
    }
}

/// The samples of a loader with this order. As a record may lack some, they are those of the smallest
/// numbering that has all of it.
fn scope_of(index: Option<usize>, sequence: &Arc<Sequence>, shared: &Shared) -> Arc<Sequence> {
    let has_all = |index: &&Index| index.has_all(sequence.items().iter());
    let found = shared.indexes.values().filter(|_| index.is_none()).find(has_all);
    Arc::clone(found.map_or(sequence, |index| &index.sequence))
}

/// Whether samples were opened about in the order of an origin's epoch: the first half in its first half.
fn is_read_in(origin: &Origin, index: &Index, read: &[u32], generators: &Generators) -> bool {
    let n = index.sequence.len();
    let mut half = BitSet::default();
    for position in origin.head(n, n.div_ceil(2), generators) {
        half.insert(position);
    }
    let first = &read[..read.len() / 2];
    let is_there = |sample: &&u32| index.sequence.place(**sample).is_some_and(|at| half.has(at));
    read.len() >= READ_MIN && 4 * first.iter().filter(is_there).count() >= 3 * first.len()
}
