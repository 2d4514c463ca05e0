//! Homes of samples that move to who reads them next.
//!
//! In each epoch a sample is at the home that it has for that epoch: its reader, if that member has room for it. When its
//! reader has it in hand, it goes on to its home of the next epoch. So a reader finds its samples on its own node, and
//! nothing is read a second time for that.
//!
//! Members are not in step. One that is ahead fetches samples of the next epoch, and one that is behind still looks for
//! those of this one. So the homes of some epochs are known at the same time.

use std::sync::Arc;

use super::plan::{Plan, Samples};
use super::search::{Holder, Role};
use super::view::{MemberNo, View};

/// Epochs whose homes are known at the same time: this one, the next one, into which readers look ahead, the one to
/// which those samples move, and one more, since epochs may be short.
const EPOCHS: u32 = 4;

/// From so many of them samples move on.
const MOVING: usize = 2;

/// The homes of samples for one epoch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EpochHomes {
    plan: Plan,
    /// By sample, whether this member reads it in the epoch.
    is_read_here: Vec<bool>,
}

impl EpochHomes {
    /// `reader` tells who reads a sample in the epoch, as far as that is known.
    pub fn new(
        own: u64,
        view: &View,
        samples: Samples<'_>,
        reader: impl Fn(u32) -> Option<MemberNo>,
    ) -> Self {
        let plan = Plan::for_readers(view, samples, &reader);
        let is_own = |member: MemberNo| view.member(member).id == own;
        let count = samples.hashes.len() as u32;
        let is_read_here = (0..count).map(|sample| reader(sample).is_some_and(is_own)).collect();
        EpochHomes { plan, is_read_here }
    }

    /// How many samples there are.
    pub fn samples(&self) -> usize {
        self.is_read_here.len()
    }

    /// Whether this member reads a sample in the epoch.
    pub fn is_read_here(&self, sample: u32) -> bool {
        self.is_read_here.get(sample as usize) == Some(&true)
    }

    fn home(&self, sample: u32) -> Option<MemberNo> {
        self.plan.home(sample)
    }
}

/// The homes of samples in this epoch and the ones after it.
#[derive(Clone, Debug)]
pub struct Moves {
    /// The number of the first epoch.
    first: u32,
    epochs: Vec<Arc<EpochHomes>>,
    /// The epoch before, if it is known. Samples may have stayed there.
    past: Option<Arc<EpochHomes>>,
    /// Whether this member has a rank of the job.
    has_rank: bool,
}

impl Moves {
    /// The homes from an epoch on. `known` are those that were known before; the homes of an epoch that is not among them
    /// are asked of `homes_of`.
    pub fn from(
        first: u32,
        known: Option<&Moves>,
        mut homes_of: impl FnMut(u32) -> EpochHomes,
    ) -> Self {
        // Epochs beyond the greatest number do not come.
        let first = first.min(u32::MAX - EPOCHS);
        let homes = |epoch: u32| match known.and_then(|known| known.epoch(epoch)) {
            Some(known) => Arc::clone(known),
            None => Arc::new(homes_of(epoch)),
        };
        let past = first.checked_sub(1).and_then(|past| known?.epoch(past).cloned());
        let epochs = (first..first + EPOCHS).map(homes).collect();
        Moves { first, epochs, past, has_rank: true }
    }

    /// The same for a member that has no rank of the job.
    #[must_use]
    pub fn of_others(self) -> Self {
        Moves { has_rank: false, ..self }
    }

    /// The epoch of this member's own readers; `None` if it has none. The epochs that others have told may be over already.
    pub(super) fn own_epoch(&self) -> Option<u32> {
        self.has_rank.then_some(self.first)
    }

    /// The number of the first epoch.
    pub fn first(&self) -> u32 {
        self.first
    }

    /// The epochs from which this member's reads move samples on, with their homes: this one, and the next one, into which
    /// readers look ahead.
    pub fn moving(&self) -> impl Iterator<Item = (u32, &Arc<EpochHomes>)> {
        (self.first..).zip(&self.epochs).take(MOVING)
    }

    fn epoch(&self, number: u32) -> Option<&Arc<EpochHomes>> {
        match number.checked_sub(self.first) {
            Some(nth) => self.epochs.get(nth as usize),
            None => self.past.as_ref().filter(|_| number + 1 == self.first),
        }
    }

    /// The home of a sample in the epoch before the first.
    pub(super) fn past(&self, sample: u32) -> Option<MemberNo> {
        self.past.as_ref().and_then(|past| past.home(sample))
    }

    /// The homes that a sample has in this epoch and the next two, in their order.
    pub(super) fn homes(&self, sample: u32) -> impl Iterator<Item = MemberNo> {
        self.epochs.iter().take(MOVING + 1).filter_map(move |epoch| epoch.home(sample))
    }

    /// The members that may have a sample: for the read of an epoch, from which the sample moves on, or for one of which
    /// nothing was known.
    pub(super) fn holders(
        &self,
        sample: u32,
        read: Option<u32>,
        id: impl Fn(MemberNo) -> u64,
    ) -> Vec<Holder> {
        let epoch = read.unwrap_or(self.first);
        let home_in = |epoch: u32| self.epoch(epoch).and_then(|it| it.home(sample)).map(&id);
        let mut holders = Vec::with_capacity(4);
        let role = if read.is_some() { Role::Left } else { Role::Before };
        let mut add = |id: Option<u64>, role: Role| {
            let new = id.filter(|id| !holders.iter().any(|known: &Holder| known.id == *id));
            holders.extend(new.map(|id| Holder { id, role }));
        };
        let (now, next) = (home_in(epoch), home_in(epoch + 1));
        add(now, if now == next { Role::Home } else { role });
        add(next, Role::Home);
        // A reader of another epoch may have had it already, or not yet.
        add(epoch.checked_sub(1).and_then(home_in), Role::Before);
        add(home_in(epoch + 2), Role::Before);
        add(home_in(self.first), Role::Before);
        add(self.past(sample).map(&id), Role::Before);
        holders
    }
}
