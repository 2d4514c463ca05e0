//! The last epoch of a loader that was understood, and since when the loader reads its sampler.
//!
//! The first epochs that are seen of a loader may be none of the sampler's. Before it trains, a job may
//! read all files in the order of their names, or some of them to see whether it works. So the epochs of
//! an order that should have been told are counted from the first that was the sampler's.

use super::indexes::Index;
use super::loader::Loader;
use super::origin::{Generators, Law, Origin};
use super::sequence::Bits;
use super::shared::Shared;

/// How many epochs before those that were understood may turn out to be the sampler's.
const EARLIER_MAX: usize = 8;

/// In an epoch this short much is in order by chance.
const READ_MIN: usize = 64;

/// The order of an epoch that is, or was, known.
#[derive(Clone, Debug)]
pub(super) struct Past {
    pub(super) index: Option<usize>,
    pub(super) origin: Origin,
    pub(super) law: Law,
    pub(super) epoch: u32,
    /// The first epoch that was read of its sampler, as far as that is known, and where its order
    /// comes from.
    pub(super) first: (u32, Origin),
}

impl Loader {
    /// It is known which order the loader has, or had, in this epoch.
    pub(super) fn understand(
        &mut self,
        (index, origin, law): (Option<usize>, Origin, Law),
        epoch: u32,
        shared: &Shared,
    ) {
        let known = index.and_then(|index| shared.indexes.get(index));
        let first = known.map(|over| self.first_of((index, over), (&origin, &law), epoch, shared));
        let first = first.unwrap_or_else(|| (epoch, origin.clone()));
        self.past = Some(Past { index, origin, law, epoch, first });
    }

    /// The first epoch of the sampler that by this law has come to this origin: the first that was
    /// understood and of those before it what was read in the sampler's order.
    fn first_of(
        &self,
        (number, index): (Option<usize>, &Index),
        (origin, law): (&Origin, &Law),
        epoch: u32,
        shared: &Shared,
    ) -> (u32, Origin) {
        let n = index.sequence.len();
        let past = self.past.as_ref().filter(|past| past.index == number);
        let foretold = |past: &&Past| {
            let next = past.origin.after_epochs(&past.law, n, epoch.saturating_sub(past.epoch));
            next.is_some_and(|(next, then)| (&next, &then) == (origin, law))
        };
        if let Some(past) = past.filter(foretold) {
            return past.first.clone();
        }
        let before = |at: u32| Some(origin.back(law, n, epoch.checked_sub(at)?)?.0);
        let leads_to = |(at, then): &(u32, Origin)| {
            before(*at).is_some_and(|before| before.is_same_epoch(then))
        };
        let known = past.map(|past| [past.first.clone(), (past.epoch, past.origin.clone())]);
        let known = known.into_iter().flatten().find(leads_to);
        let first = known.unwrap_or_else(|| (epoch, origin.clone()));
        let earlier = (0..first.0).rev().take(EARLIER_MAX).map_while(|at| {
            let (before, read) = (before(at)?, self.history.seen_in(at)?);
            is_read_in(&before, index, read, &shared.generators).then_some((at, before))
        });
        earlier.last().unwrap_or(first)
    }
}

/// Whether samples were opened about in the order of an origin's epoch: what was opened first is in its
/// first half.
fn is_read_in(origin: &Origin, index: &Index, read: &[u32], generators: &Generators) -> bool {
    let n = index.sequence.len();
    let mut half = Bits::default();
    for position in origin.head(n, n.div_ceil(2), generators) {
        half.insert(position);
    }
    let first = &read[..read.len() / 2];
    let is_there = |sample: &&u32| index.sequence.place(**sample).is_some_and(|at| half.has(at));
    read.len() >= READ_MIN && 4 * first.iter().filter(is_there).count() >= 3 * first.len()
}
