//! The origin of a sampler's epoch, and the sampler of an origin.

use super::origin::{Generators, Law, Origin, Outputs};
use super::share::Share;
use crate::order::samplers::torch::{
    DefaultGenerator, Distributed, Random, SubsetRandom, randperm_outputs,
};
use crate::order::samplers::{Accelerate, Sampler, Shuffle};

/// How many outputs of a default generator are kept after an epoch's seed.
const AFTER: usize = 4096;

/// The origin of epoch `epoch` of a sampler over `n` samples, and its law. Torch's permutations are of all
/// ranks.
pub(super) fn origin_of(
    sampler: &Sampler,
    epoch: u32,
    n: u32,
    generators: &Generators,
) -> (Origin, Law) {
    let draws = randperm_outputs(n);
    let numbered = |seed: u64, law| (Origin::Draw { seed: seed as u32, skip: 0 }, law);
    let running = |seed: u64, before: u64, gap: u64, first: u32| {
        let epochs = u64::from(first) + u64::from(epoch);
        let skip = before.saturating_add(epochs.saturating_mul(draws.saturating_add(gap)));
        (Origin::Draw { seed: seed as u32, skip }, Law::Continued { gap })
    };
    match sampler {
        Sampler::Sequential(_) => (Origin::Sequential, Law::Same),
        Sampler::TorchDistributed(ranks) if ranks.shuffle => {
            let first = ranks.seed.wrapping_add(ranks.epoch);
            match ranks.set_epoch {
                true => numbered(first.wrapping_add(epoch.into()), Law::Counting),
                false => numbered(first, Law::Same),
            }
        }
        Sampler::Accelerate(Accelerate { seed, epoch: first, shuffle: true, .. }) => {
            numbered(seed.wrapping_add(*first).wrapping_add(epoch.into()), Law::Counting)
        }
        Sampler::TorchRandom(own) if !own.replacement => {
            let gap = if own.persistent_workers { draws } else { draws + 2 };
            running(own.seed, 2, gap, own.epoch)
        }
        Sampler::TorchSubsetRandom(own) => running(own.seed, own.position, own.gap, own.epoch),
        Sampler::TorchStateful(own) => {
            let seed = generators.after(own.seed as u32, own.position).next_u32();
            let unused = draws.saturating_mul(own.stride - 1);
            running(seed.into(), unused, unused, own.epoch)
        }
        Sampler::TorchDefault(own) if !own.replacement => {
            let epochs = u64::from(own.epoch) + u64::from(epoch);
            let at = own.position.saturating_add(epochs.saturating_mul(own.stride));
            let mut rng = generators.after(own.seed as u32, at);
            let seed = rng.next_u32();
            let values = (0..AFTER).map(|_| rng.next_u32()).collect();
            let outputs = Outputs { seed: own.seed as u32, from: at + 1, values };
            let law = Law::Default { outputs, at, stride: own.stride };
            (Origin::Draw { seed, skip: 0 }, law)
        }
        other => {
            let origin = Origin::Sampler { sampler: other.clone(), epoch };
            let law = origin.own_law();
            (origin, law)
        }
    }
}

/// The sampler whose epoch `epoch` over `n` samples has this origin and law, for a loader that reads this
/// share. `None` if no sampler can be told.
pub(super) fn sampler_of(
    origin: &Origin,
    law: &Law,
    share: Share,
    n: u32,
    epoch: u32,
) -> Option<Sampler> {
    let Share { block, stride: world, first: rank } = share;
    let whole = share == Share::WHOLE;
    if let Law::Default { outputs, at, stride } = law {
        let position = at.checked_sub(stride * u64::from(epoch))?;
        let (seed, stride) = (u64::from(outputs.seed), *stride);
        let default = DefaultGenerator { seed, position, stride, ..Default::default() };
        return whole.then_some(Sampler::TorchDefault(default));
    }
    let first = origin.back(law, n, epoch);
    let (origin, law) = first.unwrap_or_else(|| (origin.clone(), law.clone()));
    match (origin, law) {
        (Origin::Sequential, _) if whole => Some(Sampler::SEQUENTIAL),
        (Origin::Sequential, _) if block == 1 => {
            let ranks = Distributed { world, rank, shuffle: false, ..Distributed::default() };
            Some(Sampler::TorchDistributed(ranks))
        }
        (Origin::Draw { seed, skip: 0 }, law @ (Law::Same | Law::Counting)) => {
            let (seed, set_epoch) = (u64::from(seed), law == Law::Counting);
            let ranks = Distributed { seed, world, rank, set_epoch, ..Distributed::default() };
            let batches =
                Accelerate { seed, world, rank, batch_size: block, ..Accelerate::default() };
            match block {
                1 => Some(Sampler::TorchDistributed(ranks)),
                _ => set_epoch.then_some(Sampler::Accelerate(batches)),
            }
        }
        (Origin::Draw { seed, skip }, Law::Continued { gap }) if whole => {
            Some(of_one_generator(seed, skip, gap, n))
        }
        (Origin::Sampler { sampler, epoch }, Law::Sampler) if whole => later(sampler, epoch),
        (Origin::Sampler { sampler: Sampler::Shuffle(list), .. }, law) if whole => {
            let reshuffle = match law {
                Law::Same => list.reshuffle,
                Law::Shuffled(reshuffle) => reshuffle,
                _ => return None,
            };
            Some(Sampler::Shuffle(Shuffle { reshuffle, ..list }))
        }
        _ => None,
    }
}

/// The sampler that draws its permutations of `n` samples from one generator: the first after `skip` outputs,
/// each further one after `gap` more.
fn of_one_generator(seed: u32, skip: u64, gap: u64, n: u32) -> Sampler {
    let (seed, draws) = (u64::from(seed), randperm_outputs(n));
    let own = |persistent_workers| -> Option<Random> {
        let unused = if persistent_workers { draws } else { draws + 2 };
        let epochs = skip.checked_sub(2)?.checked_div(draws + unused)?;
        let epoch = u32::try_from(epochs).ok()?;
        let is_it = gap == unused && skip == 2 + epochs * (draws + unused);
        is_it.then(|| Random { epoch, persistent_workers, ..Random::new(seed) })
    };
    match own(false).or_else(|| own(true)) {
        Some(own) => Sampler::TorchRandom(own),
        None => {
            let own = SubsetRandom { seed, position: skip, gap, epoch: 0 };
            Sampler::TorchSubsetRandom(own)
        }
    }
}

fn later(mut sampler: Sampler, epochs: u32) -> Option<Sampler> {
    if epochs > 0 {
        let mut keys = sampler.keys();
        let key = keys.iter_mut().find(|key| key.name == "epoch")?;
        let first: u64 = key.text().parse().ok()?;
        key.set(&(first + u64::from(epochs)).to_string()).ok()?;
    }
    Some(sampler)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::order::samplers::torch::Stateful;
    use crate::order::samplers::{Algorithm, Keras, RepeatAug, Reshuffle};

    const N: u32 = 300;

    fn samplers() -> Vec<Sampler> {
        let random = Random { epoch: 1, ..Random::new(7) };
        let list = Shuffle::new(Algorithm::Python);
        vec![
            Sampler::SEQUENTIAL,
            Sampler::TorchDistributed(Distributed { seed: 5, ..Distributed::default() }),
            Sampler::TorchDistributed(Distributed { set_epoch: false, ..Distributed::default() }),
            Sampler::TorchRandom(random),
            Sampler::TorchRandom(Random { persistent_workers: true, ..random }),
            Sampler::TorchDefault(DefaultGenerator { seed: 42, ..DefaultGenerator::default() }),
            Sampler::TorchSubsetRandom(SubsetRandom { seed: 3, ..SubsetRandom::default() }),
            Sampler::TorchStateful(Stateful { seed: 42, stride: 2, ..Stateful::default() }),
            Sampler::TimmRepeatAug(RepeatAug::default()),
            Sampler::Keras(Keras { seed: Some(1), ..Keras::default() }),
            Sampler::Shuffle(Shuffle { reshuffle: Reshuffle::Again, ..list.clone() }),
            Sampler::Shuffle(list),
        ]
    }

    #[test]
    fn an_origin_is_the_epoch_of_its_sampler_and_goes_on_as_it_does() {
        let generators = Generators::default();
        for sampler in samplers() {
            let epochs: Vec<Vec<u32>> = sampler.epochs(N).take(4).collect();
            for epoch in 0..3 {
                let (origin, law) = origin_of(&sampler, epoch, N, &generators);
                assert_eq!(origin.positions(N, &generators).as_ref(), epochs.get(epoch as usize));
                if let Some((next, _)) = origin.after(&law, N) {
                    let next = next.positions(N, &generators);
                    assert_eq!(next.as_ref(), epochs.get(epoch as usize + 1), "{sampler}");
                }
            }
        }
    }

    #[test]
    fn the_sampler_of_an_origin_has_the_same_epochs() {
        let generators = Generators::default();
        for sampler in samplers() {
            for epoch in [0, 2] {
                let (origin, law) = origin_of(&sampler, epoch, N, &generators);
                let law = if law == Law::Unknown { Law::Same } else { law };
                let found = sampler_of(&origin, &law, Share::WHOLE, N, epoch).unwrap();
                let same = found.epochs(N).take(3).eq(sampler.epochs(N).take(3));
                assert!(same, "{sampler} at {epoch}: {found}");
                assert!(found.validate().is_ok(), "{found}");
            }
        }
    }

    #[test]
    fn a_share_is_that_of_a_rank() {
        let origin = Origin::Draw { seed: 9, skip: 0 };
        let said = |block, law: Law| {
            let share = Share { block, stride: 4, first: 1 };
            sampler_of(&origin, &law, share, N, 2).map(|sampler| sampler.to_string())
        };
        let counting = said(1, Law::Counting).unwrap();
        assert_eq!(counting, "torch-distributed seed 7 world 4 rank 1");
        let same = said(1, Law::Same).unwrap();
        assert_eq!(same, "torch-distributed seed 9 world 4 rank 1 set_epoch false");
        let batches = said(16, Law::Counting).unwrap();
        assert_eq!(batches, "accelerate seed 7 world 4 rank 1 batch_size 16");
        assert_eq!(said(16, Law::Same), None);
    }
}
