//! Who is kept in a buffer, and who must go.
//!
//! A policy is asked whether it wants a newcomer at all, and as long as the newcomer does not fit,
//! who must go: one that is held, or the newcomer itself. Policies hold no state: what they need
//! of the past is in [`Members`] and [`Evicted`].
//!
//! Most of them order samples by *rank* and give up the highest. Where the rank is chance, what
//! remains is a uniform sample of everything that was offered, by the same argument that makes
//! Algorithm R one: the k lowest of n random numbers belong to any k samples alike. With ranks that
//! also holds where capacity is in bytes: whoever ranks below all that were given up is in.

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

/// Who is kept in a buffer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Policy {
    /// Each sample that was offered is kept with the same probability (Vitter 1985).
    Reservoir,
    /// Classes are held alike, each a uniform sample of itself (CBRS, Chrysakis and Moens 2020).
    #[default]
    ClassBalanced,
    /// The last ones that were offered.
    Ring,
    /// Greedy balance of classes (GDumb, Prabhu et al. 2020).
    Gdumb,
    /// A newcomer replaces a random sample with probability 1/4 (Neomem, 14 candidates of a batch
    /// of 56): not uniform, recent samples prevail. For comparison.
    RandomReplace,
    /// Classes are held alike, and become so again when one that was scarce goes on.
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
    /// Samples that are nearest to the mean of their class.
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

    /// Whether features say something: scores are made of them.
    pub fn goes_by_features(self) -> bool {
        matches!(self, Policy::Herding | Policy::Prototypical)
    }

    pub(super) fn keeper(self) -> &'static dyn Keeper {
        match self {
            Policy::Reservoir => &reservoir::Reservoir,
            Policy::ClassBalanced => &class_balanced::ClassBalanced,
            Policy::Ring => &ring::Ring,
            Policy::Gdumb => &gdumb::Gdumb,
            Policy::RandomReplace => &random_replace::RandomReplace,
            Policy::UniformBalanced => &uniform_balanced::UniformBalanced,
            Policy::LargestClass => &largest_class::LargestClass,
            Policy::Herding | Policy::Prototypical | Policy::MinMargin => &scored::Least,
            Policy::MaxLoss | Policy::Mir => &scored::Most,
            Policy::MinReplay => &scored::MinReplay,
        }
    }
}

/// A sample that is offered, with the rank that it would have.
pub(super) struct Newcomer {
    pub(super) member: Member,
    pub(super) rank: u64,
}

/// Who must go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Victim {
    Held(SampleId),
    /// The one that is offered.
    Newcomer,
}

/// The lowest ranks that were given up for want of room, by class: whoever ranks above is out.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Evicted(BTreeMap<ClassId, u64>);

impl Evicted {
    /// Notes a rank, and says what was the lowest of the class before.
    pub(super) fn note(&mut self, class: ClassId, rank: u64) -> Option<u64> {
        let before = self.of(class);
        self.0.insert(class, before.map_or(rank, |lowest| rank.min(lowest)));
        before
    }

    /// What was noted last for a class is as it was before.
    pub(super) fn take_back(&mut self, class: ClassId, before: Option<u64>) {
        match before {
            Some(lowest) => self.0.insert(class, lowest),
            None => self.0.remove(&class),
        };
    }

    /// The lowest of a class.
    fn of(&self, class: ClassId) -> Option<u64> {
        self.0.get(&class).copied()
    }

    /// The lowest of all.
    fn of_all(&self) -> Option<u64> {
        self.0.values().min().copied()
    }
}

/// What a policy decides.
pub(super) trait Keeper: Sync {
    /// Whether ranks are compared within a class only.
    fn by_class(&self) -> bool {
        true
    }

    /// The rank of a sample, of which `rng` is the random part.
    fn rank(&self, _member: &Member, rng: u64) -> u64 {
        rng
    }

    /// Whether a newcomer is wanted, should there be room.
    fn admits(
        &self,
        _held: &Members,
        _evicted: &Evicted,
        _newcomer: &Newcomer,
        _luck: &mut CounterRng,
    ) -> bool {
        true
    }

    /// Who must go for a newcomer that does not fit.
    fn victim(
        &self,
        held: &Members,
        evicted: &Evicted,
        newcomer: &Newcomer,
        rng: &mut CounterRng,
    ) -> Victim;

    /// Who goes first where there is less room: whoever ranks highest, of the largest class where
    /// ranks are compared within one.
    fn spare(&self, held: &Members, _luck: &mut CounterRng) -> Option<SampleId> {
        let (class, _) = held.largest()?;
        held.last(class).map(|(_, sample)| sample)
    }
}

/// Whoever ranks highest of those that `class` is compared with, and the newcomer if it is one.
fn highest(held: &Members, class: ClassId, newcomer: Option<&Newcomer>) -> Victim {
    match (held.last(class), newcomer) {
        (Some((rank, _)), Some(newcomer)) if newcomer.rank > rank => Victim::Newcomer,
        (Some((_, sample)), _) => Victim::Held(sample),
        (None, _) => Victim::Newcomer,
    }
}

/// Whoever ranks highest of the class that would be the largest with the newcomer.
fn highest_of_largest(held: &Members, newcomer: &Newcomer) -> Victim {
    let class = newcomer.member.class;
    match held.largest() {
        Some((largest, count)) if held.count(class) < count => highest(held, largest, None),
        _ => highest(held, class, Some(newcomer)),
    }
}
