//! The order of an epoch: where it comes from, and how the next epoch's order follows from it.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use rand_mt::Mt;

use crate::order::samplers::torch::{RandpermHead, generator, randperm, randperm_outputs};
use crate::order::samplers::{Reshuffle, Sampler, SamplerEpochs, Shuffle};

/// Distances between the seeds of two epochs that are tried, in pairs of outputs of torch's default generator.
/// An epoch draws a base seed and a sampler's seed, each further loader and random transform draws more.
pub(super) const STRIDES: std::ops::RangeInclusive<u64> = 1..=200;

/// A generator that has drawn this many outputs is worth keeping, and how many are kept.
const MUCH: u64 = 1 << 12;
const GENERATORS_MAX: usize = 16;

/// How many samplers that go on from epoch to epoch are kept. Each may have a list of samples.
const SAMPLERS_MAX: usize = 4;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct EpochOrder {
    /// The numbering that it permutes; none for an order as it was read before.
    pub(super) index: Option<usize>,
    pub(super) origin: Origin,
    pub(super) law: Law,
}

/// Where the order of an epoch comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// The index order itself.
    Sequential,
    /// `torch.randperm` of a generator with this seed, after `skip` of its outputs.
    Draw { seed: u32, skip: u64 },
    /// Epoch `epoch` of a sampler whose seed is not searched for.
    Sampler { sampler: Sampler, epoch: u32 },
    /// As the loader read the epoch before.
    Recorded,
    /// As an earlier run read it, or as it was told.
    Listed { lists: Lists, at: u32 },
}

/// The samples of epochs, as a run read them or as they were told.
#[derive(Clone, Debug, Default)]
pub(super) struct Lists {
    pub(super) all: Arc<[Arc<[u32]>]>,
    /// Whether the run ended in the last epoch, which may be longer than is known.
    pub(super) is_cut: bool,
    pub(super) is_told: bool,
}

impl PartialEq for Lists {
    /// Compares no samples if both are of one run.
    fn eq(&self, other: &Self) -> bool {
        let same = Arc::ptr_eq(&self.all, &other.all) || self.all == other.all;
        same && (self.is_cut, self.is_told) == (other.is_cut, other.is_told)
    }
}

impl Eq for Lists {}

/// Outputs of torch's default generator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Outputs {
    pub(super) seed: u32,
    /// Number of the first of these.
    pub(super) from: u64,
    pub(super) values: Arc<[u32]>,
}

impl Outputs {
    fn get(&self, at: u64) -> Option<u32> {
        self.values.get(usize::try_from(at.checked_sub(self.from)?).ok()?).copied()
    }

    /// The outputs from `at` on, at least half as many as these.
    pub(super) fn since(&self, at: u64) -> Outputs {
        if at == self.from {
            return self.clone();
        }
        let known = self.reaching(at + self.values.len() as u64 / 2).reaching(at);
        let skip = usize::try_from(at - known.from).unwrap_or(usize::MAX);
        let values = known.values.get(skip..).unwrap_or_default().into();
        Outputs { seed: self.seed, from: at, values }
    }

    /// These if `at` is one of them, else as many from `at` on. That costs all outputs before it.
    fn reaching(&self, at: u64) -> Outputs {
        if self.get(at).is_some() {
            return self.clone();
        }
        let mut rng = generator(u64::from(self.seed));
        (0..at).for_each(|_| _ = rng.next_u32());
        let values = (0..self.values.len().max(1)).map(|_| rng.next_u32()).collect();
        Outputs { seed: self.seed, from: at, values }
    }
}

/// A sampler over `n` samples before its epoch `next`.
#[derive(Clone, Debug)]
struct SamplerState {
    sampler: Sampler,
    n: u32,
    next: u32,
    epochs: SamplerEpochs,
}

/// Generators that have drawn much, to go on from there: each epoch would else cost all before it.
#[derive(Debug, Default)]
pub(super) struct Generators {
    /// Each with its seed and the number of its outputs so far, the latest at the end.
    kept: RefCell<VecDeque<(u32, u64, Mt)>>,
    samplers: RefCell<VecDeque<SamplerState>>,
    /// How many outputs were drawn to reach these states.
    #[cfg(test)]
    pub(super) drawn: std::cell::Cell<u64>,
}

impl Generators {
    fn epoch(&self, sampler: &Sampler, n: u32, epoch: u32) -> Option<Vec<u32>> {
        if sampler.draws_before(n, epoch) < MUCH {
            return sampler.epochs(n).skip_epochs(epoch).next();
        }
        let mut kept = self.samplers.borrow_mut();
        let may_be =
            |kept: &&SamplerState| kept.sampler == *sampler && kept.n == n && kept.next <= epoch;
        let nearest = kept.iter().filter(may_be).max_by_key(|kept| kept.next).cloned();
        let is_it = nearest.as_ref().is_some_and(|kept| kept.next == epoch);
        let mut epochs = match nearest {
            Some(SamplerState { next, epochs, .. }) => epochs.skip_epochs(epoch - next),
            None => sampler.epochs(n).skip_epochs(epoch),
        };
        if !is_it {
            if kept.len() == SAMPLERS_MAX {
                kept.pop_front();
            }
            let (sampler, epochs) = (sampler.clone(), epochs.clone());
            kept.push_back(SamplerState { sampler, n, next: epoch, epochs });
        }
        epochs.next()
    }

    /// The generator with a seed after `skip` of its outputs.
    pub(super) fn after(&self, seed: u32, skip: u64) -> Mt {
        let mut kept = self.kept.borrow_mut();
        let known = kept.iter().filter(|(of, at, _)| *of == seed && *at <= skip);
        let nearest = known.max_by_key(|(_, at, _)| *at).cloned();
        let (_, at, mut rng) = nearest.unwrap_or_else(|| (seed, 0, generator(u64::from(seed))));
        (at..skip).for_each(|_| _ = rng.next_u32());
        #[cfg(test)]
        self.drawn.set(self.drawn.get() + skip - at);
        if skip - at >= MUCH {
            if kept.len() == GENERATORS_MAX {
                kept.pop_front();
            }
            kept.push_back((seed, skip, rng.clone()));
        }
        rng
    }
}

/// How the next epoch's order follows from that of an epoch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Law {
    Unknown,
    /// It is the same again.
    Same,
    /// The seed counts up: `DistributedSampler.set_epoch` and its like.
    Counting,
    /// The same generator goes on, after this many further outputs.
    Continued {
        gap: u64,
    },
    /// The seed is output `at` of torch's default generator. The next epoch's output is not known.
    Drawn {
        outputs: Outputs,
        at: u64,
    },
    /// The seed is output `at` of torch's default generator, the next epoch's `stride` outputs later.
    Default {
        outputs: Outputs,
        at: u64,
        stride: u64,
    },
    /// The sampler's next epoch.
    Sampler,
    /// A script shuffles its list again, in this way, before each further epoch.
    Shuffled(Reshuffle),
    /// The next list of [`Lists`].
    Listed,
}

impl Law {
    /// Whether it holds for a dataset of another size, too.
    pub(super) fn is_lasting(&self) -> bool {
        !matches!(self, Law::Continued { .. })
    }

    /// Drops outputs before the next epoch's seed.
    pub(super) fn trim(&mut self) {
        if let Law::Drawn { outputs, at } = self {
            *outputs = outputs.since(*at + 1);
        }
    }

    /// Whether it holds for another seed, too.
    pub(super) fn is_of_seed(&self) -> bool {
        matches!(self, Law::Same | Law::Counting | Law::Continued { .. })
    }
}

impl Origin {
    /// The positions of the whole epoch over `n` samples; `None` if no sampler draws it.
    pub(super) fn positions(&self, n: u32, generators: &Generators) -> Option<Vec<u32>> {
        match *self {
            Origin::Sequential => Some((0..n).collect()),
            Origin::Draw { seed, skip } => Some(randperm(n, &mut generators.after(seed, skip))),
            Origin::Sampler { ref sampler, epoch } => generators.epoch(sampler, n, epoch),
            Origin::Recorded | Origin::Listed { .. } => None,
        }
    }

    pub(super) fn listed(&self) -> Option<&Arc<[u32]>> {
        match self {
            Origin::Listed { lists, at } => lists.all.get(*at as usize),
            _ => None,
        }
    }

    /// Whether it is the same epoch. How a list is shuffled before later epochs is the same to its first.
    pub(super) fn is_same_epoch(&self, other: &Origin) -> bool {
        match (self, other) {
            (
                Origin::Sampler { sampler: Sampler::Shuffle(one), epoch: 0 },
                Origin::Sampler { sampler: Sampler::Shuffle(other), epoch: 0 },
            ) if one.epoch == 0 => Shuffle { reshuffle: other.reshuffle, ..one.clone() } == *other,
            _ => self == other,
        }
    }

    /// Whether the epoch may be longer than is known.
    pub(super) fn is_cut(&self) -> bool {
        match self {
            Origin::Listed { lists, at } => lists.is_cut && *at as usize + 1 == lists.all.len(),
            _ => false,
        }
    }

    /// Whether a sampler that shuffles draws it.
    pub(super) fn is_drawn(&self) -> bool {
        matches!(self, Origin::Draw { .. } | Origin::Sampler { .. })
    }

    /// Whether it is an order of arrival and not that of a sampler.
    pub(super) fn is_as_seen(&self) -> bool {
        matches!(self, Origin::Recorded | Origin::Listed { .. })
    }

    /// Its first `count` positions, at the cost of these and of the outputs that are skipped.
    pub(super) fn head(&self, n: u32, count: u32, generators: &Generators) -> Vec<u32> {
        if let Origin::Draw { seed, skip } = *self
            && let Some(head) = RandpermHead::new(n, generators.after(seed, skip))
        {
            return head.take(count as usize).collect();
        }
        let mut positions = self.positions(n, generators).unwrap_or_default();
        positions.truncate(count as usize);
        positions
    }

    /// The list, if this is the first epoch of a list that a script may shuffle again in any way.
    fn first_shuffle(&self) -> Option<&Shuffle> {
        match self {
            Origin::Sampler { sampler: Sampler::Shuffle(list), epoch: 0 } => {
                (list.reshuffle == Reshuffle::Same).then_some(list)
            }
            _ => None,
        }
    }

    /// The law that the origin alone shows.
    pub(super) fn own_law(&self) -> Law {
        let own = matches!(self, Origin::Sampler { .. }) && self.first_shuffle().is_none();
        if own { Law::Sampler } else { Law::Unknown }
    }

    /// The origin of the epoch after this one over `n` samples, and the law from there on.
    pub(super) fn after(&self, law: &Law, n: u32) -> Option<(Origin, Law)> {
        let next = match (self, law) {
            (_, Law::Unknown | Law::Drawn { .. }) => return None,
            (origin, Law::Same) => origin.clone(),
            (&Origin::Draw { seed, skip }, Law::Counting) => {
                Origin::Draw { seed: seed.wrapping_add(1), skip }
            }
            (&Origin::Draw { seed, skip }, Law::Continued { gap }) => {
                Origin::Draw { seed, skip: skip + randperm_outputs(n) + gap }
            }
            (Origin::Draw { .. }, Law::Default { outputs, at, stride }) => {
                let outputs = outputs.reaching(at + stride);
                let seed = outputs.get(at + stride)?;
                let law = Law::Default { outputs, at: at + stride, stride: *stride };
                return Some((Origin::Draw { seed, skip: 0 }, law));
            }
            (Origin::Sampler { sampler, epoch }, Law::Sampler) => {
                Origin::Sampler { sampler: sampler.clone(), epoch: epoch.wrapping_add(1) }
            }
            (Origin::Sampler { .. }, Law::Shuffled(reshuffle)) => {
                let list = Shuffle { reshuffle: *reshuffle, ..self.first_shuffle()?.clone() };
                let next = Origin::Sampler { sampler: Sampler::Shuffle(list), epoch: 1 };
                return Some((next, Law::Sampler));
            }
            (Origin::Listed { lists, at }, Law::Listed) => {
                if self.is_cut() {
                    return None;
                }
                // A run of one list reads it again and again. After the last told epoch comes the first.
                let wraps = lists.is_told || lists.all.len() == 1;
                let at = if wraps { (at + 1) % lists.all.len() as u32 } else { at + 1 };
                lists.all.get(at as usize)?;
                Origin::Listed { lists: lists.clone(), at }
            }
            _ => return None,
        };
        Some((next, law.clone()))
    }

    pub(super) fn after_epochs(&self, law: &Law, n: u32, epochs: u32) -> Option<(Origin, Law)> {
        let now = (self.clone(), law.clone());
        (0..epochs).try_fold(now, |(origin, law), _| origin.after(&law, n))
    }

    /// The origin of the epoch `epochs` before this one over `n` samples, and the law from there on, if the
    /// law leads back so far.
    pub(super) fn back(&self, law: &Law, n: u32, epochs: u32) -> Option<(Origin, Law)> {
        if let (Origin::Sampler { sampler, epoch }, Law::Sampler) = (self, law) {
            let (sampler, epoch) = (sampler.clone(), epoch.checked_sub(epochs)?);
            return Some((Origin::Sampler { sampler, epoch }, law.clone()));
        }
        let Origin::Draw { seed, skip } = *self else { return None };
        let many = u64::from(epochs);
        let origin = match law {
            Law::Same => self.clone(),
            Law::Counting => Origin::Draw { seed: seed.checked_sub(epochs)?, skip },
            Law::Continued { gap } => {
                let skip = skip.checked_sub(many.checked_mul(randperm_outputs(n) + gap)?)?;
                Origin::Draw { seed, skip }
            }
            Law::Default { outputs, at, stride } => {
                let at = at.checked_sub(stride * many)?;
                let outputs = outputs.reaching(at);
                let seed = outputs.get(at)?;
                let law = Law::Default { outputs, at, stride: *stride };
                return Some((Origin::Draw { seed, skip: 0 }, law));
            }
            _ => return None,
        };
        Some((origin, law.clone()))
    }

    /// The laws that may lead to the next epoch of `n` samples, if none is known.
    pub(super) fn laws(&self, n: u32) -> Vec<Law> {
        let outputs = randperm_outputs(n);
        match self {
            Origin::Draw { .. } => {
                // A loader's own generator draws two outputs for a base seed, and at the end of an epoch
                // a permutation that is not read, unless the loop broke off.
                let gaps = [outputs + 2, 0, 2, outputs];
                let continued = gaps.map(|gap| Law::Continued { gap });
                [Law::Same, Law::Counting].into_iter().chain(continued).collect()
            }
            Origin::Sampler { .. } if self.first_shuffle().is_some() => {
                let anew = [Reshuffle::Again, Reshuffle::Fresh, Reshuffle::Reseed];
                let anew = anew.map(Law::Shuffled);
                std::iter::once(Law::Same).chain(anew).collect()
            }
            Origin::Sampler { .. } => vec![Law::Sampler, Law::Same],
            Origin::Listed { .. } => vec![Law::Listed, Law::Same],
            // They are hypotheses of every epoch anyway.
            Origin::Sequential | Origin::Recorded => Vec::new(),
        }
    }
}

/// The draws that may be read `epochs` epochs after the one whose seed is output `at`, and their laws. Only
/// seeds among these outputs are given.
pub(super) fn draws_after(
    outputs: &Outputs,
    at: u64,
    epochs: u32,
) -> impl Iterator<Item = (Origin, Law)> {
    STRIDES.map_while(move |half| {
        let stride = 2 * half;
        let at = at + stride * u64::from(epochs);
        let origin = Origin::Draw { seed: outputs.get(at)?, skip: 0 };
        Some((origin, Law::Default { outputs: outputs.clone(), at, stride }))
    })
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Sequential => f.write_str("one after the other"),
            Origin::Draw { seed, skip: 0 } => write!(f, "torch permutation of seed {seed}"),
            Origin::Draw { seed, skip } => {
                write!(f, "torch permutation of seed {seed} after {skip} draws")
            }
            Origin::Sampler { sampler, .. } => write!(f, "{sampler}"),
            Origin::Recorded => f.write_str("as in the epoch before"),
            Origin::Listed { lists, at } if lists.is_told => {
                write!(f, "as in epoch {at} of the order that was told")
            }
            Origin::Listed { at, .. } => write!(f, "as in epoch {at} of an earlier run"),
        }
    }
}

impl fmt::Display for Law {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Law::Unknown => f.write_str("the next epoch is not known"),
            Law::Same => f.write_str("every epoch the same"),
            Law::Counting => f.write_str("the seed counts up"),
            Law::Continued { .. } => f.write_str("one generator for all epochs"),
            Law::Drawn { outputs, .. } => {
                let seed = outputs.seed;
                write!(f, "seed drawn by torch's default generator of seed {seed}, ")?;
                f.write_str("the next epoch's is not known")
            }
            Law::Default { outputs, .. } => {
                write!(f, "seeds drawn by torch's default generator of seed {}", outputs.seed)
            }
            Law::Sampler => f.write_str("epoch after epoch of the sampler"),
            Law::Shuffled(Reshuffle::Same) => f.write_str("shuffled once"),
            Law::Shuffled(_) => f.write_str("shuffled anew for each epoch"),
            Law::Listed => f.write_str("epoch after epoch of that"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::order::samplers::Algorithm;
    use crate::order::samplers::torch::{Distributed, Random};

    #[test]
    fn heads_are_the_beginnings() {
        for origin in [
            Origin::Sequential,
            Origin::Draw { seed: 5, skip: 0 },
            Origin::Draw { seed: 5, skip: 2_000 },
            Origin::Sampler { sampler: Sampler::TorchRandom(Random::new(3)), epoch: 1 },
        ] {
            for n in [1, 2, 50, 1_000] {
                let new = Generators::default();
                let whole = origin.positions(n, &new).unwrap();
                assert_eq!(origin.head(n, 40, &new), whole[..whole.len().min(40)], "{origin}");
                assert_eq!(origin.head(n, u32::MAX, &new), whole, "{origin}");
            }
        }
    }

    #[test]
    fn a_loaders_own_generator_is_one_of_the_laws() {
        let n = 1_000;
        let sampler = Sampler::TorchRandom(Random::new(42));
        let mut origin = Origin::Draw { seed: 42, skip: 2 };
        let law = Law::Continued { gap: randperm_outputs(n) + 2 };
        let generators = Generators::default();
        assert!(origin.laws(n).contains(&law));
        for positions in sampler.epochs(n).take(3) {
            assert_eq!(origin.positions(n, &generators), Some(positions));
            origin = origin.after(&law, n).unwrap().0;
        }
    }

    #[test]
    fn counting_is_distributed() {
        let mut origin = Origin::Draw { seed: u32::MAX, skip: 0 };
        let sampler = Distributed { seed: u64::from(u32::MAX), ..Distributed::default() };
        for epoch in 0..3 {
            let positions = origin.positions(300, &Generators::default());
            assert_eq!(positions, Some(sampler.epoch(300, epoch)));
            origin = origin.after(&Law::Counting, 300).unwrap().0;
        }
        assert_eq!(origin.after(&Law::Unknown, 300), None);
    }

    #[test]
    fn the_default_generator_gives_the_seeds() {
        let mut rng = generator(1234);
        let all: Vec<u32> = (0..1_000).map(|_| rng.next_u32()).collect();
        let outputs = Outputs { seed: 1234, from: 701, values: all[701..710].into() };
        let draw = |at: usize| Origin::Draw { seed: all[at], skip: 0 };
        let (origin, law) = draws_after(&outputs, 700, 1).nth(2).unwrap();
        assert_eq!(law, Law::Default { outputs: outputs.clone(), at: 706, stride: 6 });
        assert_eq!(origin, draw(706));
        assert_eq!(origin.after(&law, 10).unwrap().0, draw(712));
        let further = origin.after(&law, 10).unwrap().1;
        assert!(matches!(further, Law::Default { outputs: Outputs { from: 712, .. }, .. }));
        assert_eq!(draws_after(&outputs, 700, 1).count(), 4);
    }

    #[test]
    fn of_an_epoch_long_ago_only_outputs_at_hand_are_tried() {
        let outputs = Outputs { seed: 1234, from: 1 << 40, values: (0..4_096).collect() };
        let draws = draws_after(&outputs, (1 << 40) - 1, 100).map(|(origin, _)| origin);
        let draws: Vec<Origin> = draws.collect();
        let at = |half: u32| Origin::Draw { seed: 200 * half - 1, skip: 0 };
        assert_eq!(draws, (1..=20).map(at).collect::<Vec<Origin>>());
    }

    #[test]
    fn samplers_go_on_from_where_they_were() {
        let generators = Generators::default();
        let list = Shuffle::new(Algorithm::Python);
        let lists = [Reshuffle::Fresh, Reshuffle::Again];
        let lists = lists.map(|reshuffle| Shuffle { reshuffle, ..list.clone() });
        for epoch in [0, 1, 2, 2, 40, 41, 39, 3] {
            for sampler in lists.clone().map(Sampler::Shuffle) {
                let expected = sampler.epochs(5_000).skip_epochs(epoch).next();
                assert_eq!(generators.epoch(&sampler, 5_000, epoch), expected, "{sampler} {epoch}");
            }
        }
        assert_eq!(generators.samplers.borrow().len(), SAMPLERS_MAX);
    }

    #[test]
    fn generators_go_on_from_where_they_were() {
        let generators = Generators::default();
        for skip in [0, 10, 5_000, 4_999, 20_000, 20_001, 9_000] {
            for seed in [7, 8] {
                let mut rng = generator(u64::from(seed));
                (0..skip).for_each(|_| _ = rng.next_u32());
                assert_eq!(generators.after(seed, skip), rng, "{seed} {skip}");
            }
        }
        (0..100).for_each(|seed| _ = generators.after(seed, MUCH));
        assert_eq!(generators.kept.borrow().len(), GENERATORS_MAX);
    }
}
