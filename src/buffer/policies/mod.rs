//! Policies: which samples a buffer keeps, and which it gives up.
//!
//! A policy decides whether it wants a newcomer at all. While the newcomer does not fit, the policy chooses
//! the victim: a held sample or the newcomer itself. Policies have no state. What they need of the past is in
//! [`Members`] and [`LowestEvicted`].
//!
//! Most policies order samples by *rank* and give up the highest. If ranks are random, the kept samples are a
//! uniform sample of all offers, by the argument for Algorithm R: the k lowest of n random numbers are
//! equally likely to belong to any k samples. This also holds for a capacity in bytes: every sample that
//! ranks below all that were given up is kept.

mod class_balanced;
mod gdumb;
mod largest_class;
mod random_replace;
mod reservoir;
mod ring;
mod scored;
mod uniform_balanced;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::counter_rng::CounterRng;
use super::members::{ClassId, Member, Members, SampleId};

/// Which samples a buffer keeps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Policy {
    /// Every offered sample is kept with the same probability (Vitter 1985).
    Reservoir,
    /// Equal classes, each a uniform sample of its offers (CBRS, Chrysakis and Moens 2020).
    #[default]
    ClassBalanced,
    /// The samples offered last.
    Ring,
    /// Greedy balance of classes (GDumb, Prabhu et al. 2020).
    Gdumb,
    /// A newcomer replaces a random sample with probability 1/4 (Neomem, 14 candidates of a batch of 56). Not
    /// uniform: recent samples prevail. For comparison.
    RandomReplace,
    /// Equal classes. Unlike with CBRS, they become equal again when a scarce class gets more offers.
    UniformBalanced,
    /// A newcomer replaces a random sample of the largest class (REMIND, Hayes et al. 2020).
    LargestClass,
    /// Samples whose mean is near the mean of their class (iCaRL, Rebuffi et al. 2017).
    Herding,
    /// Samples of the largest loss.
    MaxLoss,
    /// Samples of the smallest margin between the true class and the next.
    MinMargin,
    /// Samples that were shown again least often.
    MinReplay,
    /// Samples nearest to the mean of their class.
    Prototypical,
    /// Samples whose loss would grow most by the next update (as MIR, Aljundi et al. 2019).
    Mir,
}

impl Policy {
    pub const ALL: [Policy; 13] = [
        Policy::Reservoir,
        Policy::ClassBalanced,
        Policy::Ring,
        Policy::Gdumb,
        Policy::RandomReplace,
        Policy::UniformBalanced,
        Policy::LargestClass,
        Policy::Herding,
        Policy::MaxLoss,
        Policy::MinMargin,
        Policy::MinReplay,
        Policy::Prototypical,
        Policy::Mir,
    ];

    /// Whether its scores are made from features.
    pub fn goes_by_features(self) -> bool {
        matches!(self, Policy::Herding | Policy::Prototypical)
    }

    pub(super) fn retention(self) -> &'static dyn Retention {
        match self {
            Policy::Reservoir => &reservoir::Reservoir,
            Policy::ClassBalanced => &class_balanced::ClassBalanced,
            Policy::Ring => &ring::Ring,
            Policy::Gdumb => &gdumb::Gdumb,
            Policy::RandomReplace => &random_replace::RandomReplace,
            Policy::UniformBalanced => &uniform_balanced::UniformBalanced,
            Policy::LargestClass => &largest_class::LargestClass,
            Policy::Herding | Policy::Prototypical | Policy::MinMargin => {
                &scored::ByScore { sign: 1.0 }
            }
            Policy::MaxLoss | Policy::Mir => &scored::ByScore { sign: -1.0 },
            Policy::MinReplay => &scored::MinReplay,
        }
    }
}

/// A sample that is offered, with its rank.
pub(super) struct Newcomer {
    pub(super) member: Member,
    pub(super) rank: u64,
}

/// What a policy knows when a sample is offered.
pub(super) struct OfferContext<'a> {
    pub(super) held: &'a Members,
    pub(super) evicted: &'a LowestEvicted,
    pub(super) newcomer: &'a Newcomer,
}

impl OfferContext<'_> {
    /// Whether it ranks below all samples of its class that were given up for want of room.
    fn ranks_below_evicted_of_class(&self) -> bool {
        let lowest = self.evicted.of(self.newcomer.member.class);
        lowest.is_none_or(|lowest| self.newcomer.rank < lowest)
    }
}

/// Which sample is given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Victim {
    Held(SampleId),
    /// The offered sample.
    Newcomer,
}

/// The lowest rank given up for want of room, by class. A sample with a higher rank is not kept.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct LowestEvicted(BTreeMap<ClassId, u64>);

impl LowestEvicted {
    /// Notes a rank. Returns the lowest rank of the class before.
    pub(super) fn note(&mut self, class: ClassId, rank: u64) -> Option<u64> {
        let before = self.of(class);
        self.0.insert(class, before.map_or(rank, |lowest| rank.min(lowest)));
        before
    }

    /// Undoes the last note of a class.
    pub(super) fn take_back(&mut self, class: ClassId, before: Option<u64>) {
        match before {
            Some(lowest) => self.0.insert(class, lowest),
            None => self.0.remove(&class),
        };
    }

    fn of(&self, class: ClassId) -> Option<u64> {
        self.0.get(&class).copied()
    }

    /// The lowest rank of all classes.
    fn of_all(&self) -> Option<u64> {
        self.0.values().min().copied()
    }
}

/// The decisions of a policy.
pub(super) trait Retention: Sync {
    /// Whether ranks are compared within a class only.
    fn by_class(&self) -> bool {
        true
    }

    /// The rank of a sample. `rng` is its random part.
    fn rank(&self, _member: &Member, rng: u64) -> u64 {
        rng
    }

    /// Whether a newcomer is wanted if there is room.
    fn admits(&self, _offer: &OfferContext<'_>, _rng: &mut CounterRng) -> bool {
        true
    }

    /// The victim of a newcomer that does not fit. By default the highest rank of the class that is the
    /// largest with the newcomer.
    fn victim(&self, offer: &OfferContext<'_>, _rng: &mut CounterRng) -> Victim {
        let OfferContext { held, newcomer, .. } = *offer;
        let class = newcomer.member.class;
        match held.largest() {
            Some((largest, count)) if held.count(class) < count => highest(held, largest, None),
            _ => highest(held, class, Some(newcomer)),
        }
    }

    /// The first victim if the capacity shrinks: the highest rank, in the largest class if ranks are compared
    /// within a class.
    fn shrink_victim(&self, held: &Members, _rng: &mut CounterRng) -> Option<SampleId> {
        let (class, _) = held.largest()?;
        held.last(class).map(|(_, sample)| sample)
    }
}

/// The sample of the highest rank in the group of `class`, including the newcomer if it is given.
fn highest(held: &Members, class: ClassId, newcomer: Option<&Newcomer>) -> Victim {
    match (held.last(class), newcomer) {
        (Some((rank, _)), Some(newcomer)) if newcomer.rank > rank => Victim::Newcomer,
        (Some((_, sample)), _) => Victim::Held(sample),
        (None, _) => Victim::Newcomer,
    }
}
