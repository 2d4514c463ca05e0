//! The samplers of training frameworks, bit for bit.
//!
//! A [`Sampler`] turns the number of samples of a dataset into positions: epoch `k` is a list of
//! numbers below `n`, in the order the framework's sampler yields them. What a position stands for
//! is the matter of the [index order](crate::order::index) and of [splits](crate::order::Split).
//! The generators are not imitated but repeated draw by draw, so a list is either exactly the
//! job's or (a wrong seed, another count of samples) of no use at all.
//!
//! There is one file for each family of libraries. [`Sampler::all`] has one of each sampler; the
//! tests compare every one of them with what the libraries themselves gave.

mod accelerate;
pub mod batches;
mod catalog;
mod dali;
mod dlio;
mod keras;
mod keys;
mod libstdcxx;
pub mod numpy;
mod python;
mod shuffle;
mod tensorflow;
mod timm;
pub mod torch;

pub use accelerate::Accelerate;
pub use batches::Workers;
pub use dali::Dali;
pub use dlio::{Dlio, Reads};
pub use keras::{Keras, Subset};
pub use keys::{Fraction, Key, PythonSeed};
pub(in crate::order) use keys::{check_positive, number, wrong};
pub use shuffle::{Algorithm, Epochs, Shuffle};
pub use tensorflow::TfShuffle;
pub use timm::RepeatAug;
pub use torch::{DefaultGenerator, Distributed, Random, Stateful, SubsetRandom, Weighted, Weights};

use crate::error::Result;
use crate::order::grouped;

/// Random draws that may come before a stream's second epoch: about half a minute of them.
const DRAWS_MAX: u64 = 1 << 34;

/// The sampler of one stream: how a job draws the positions of its dataset, epoch after epoch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sampler {
    /// 0, 1, 2 ... in every epoch: `torch.utils.data.SequentialSampler`, or no shuffling at all.
    Sequential,
    /// `torch.utils.data.DistributedSampler`; also of one process, as world 1 and rank 0.
    TorchDistributed(Distributed),
    /// `torch.utils.data.DataLoader(shuffle=True, generator=...)` with a seeded generator.
    TorchRandom(Random),
    /// `DataLoader(shuffle=True)` after `torch.manual_seed`.
    TorchDefault(DefaultGenerator),
    /// `torch.utils.data.SubsetRandomSampler`
    TorchSubsetRandom(SubsetRandom),
    /// torchdata's `StatefulDataLoader(shuffle=True)`.
    TorchStateful(Stateful),
    /// `torch.utils.data.WeightedRandomSampler`
    TorchWeighted(Weighted),
    /// accelerate's seedable sampler and batch shards.
    Accelerate(Accelerate),
    TimmRepeatAug(RepeatAug),
    /// A list shuffled by numpy, Python or libstdc++.
    Shuffle(Shuffle),
    /// `tf.data.Dataset.shuffle`, and `list_files`.
    TfShuffle(TfShuffle),
    /// `keras.utils.image_dataset_from_directory`
    Keras(Keras),
    /// `nvidia.dali.fn.readers.file`
    Dali(Dali),
    Dlio(Dlio),
}

impl Sampler {
    /// How many positions epoch `k` of the stream has over a dataset of `n` samples.
    pub fn epoch_len(&self, n: u32, k: u32) -> u32 {
        match self {
            Sampler::TorchDistributed(sampler) => sampler.epoch_len(n),
            Sampler::TorchWeighted(sampler) => sampler.epoch_len(n),
            Sampler::Accelerate(sampler) => sampler.epoch_len(n).min(u32::MAX.into()) as u32,
            Sampler::TimmRepeatAug(sampler) => sampler.epoch_len(n),
            Sampler::Shuffle(sampler) => sampler.epoch_len(n),
            Sampler::Keras(sampler) => sampler.epoch_len(n),
            Sampler::Dali(sampler) => sampler.epoch_len(n, k),
            Sampler::Dlio(sampler) => sampler.epoch_len(n),
            Sampler::Sequential
            | Sampler::TorchRandom(_)
            | Sampler::TorchDefault(_)
            | Sampler::TorchSubsetRandom(_)
            | Sampler::TorchStateful(_)
            | Sampler::TfShuffle(_) => n,
        }
    }

    /// Whether an epoch over `n` samples may have a position twice.
    pub fn repeats(&self, n: u32) -> bool {
        match self {
            Sampler::TimmRepeatAug(sampler) => sampler.repeats > 1,
            Sampler::Accelerate(sampler) => sampler.repeats(n),
            sampler => sampler.draws_anew(),
        }
    }

    /// Whether each position is drawn from all samples, whatever was drawn before.
    pub fn draws_anew(&self) -> bool {
        match self {
            Sampler::TorchRandom(sampler) => sampler.replacement,
            Sampler::TorchDefault(sampler) => sampler.replacement,
            Sampler::TorchWeighted(sampler) => sampler.replacement,
            _ => false,
        }
    }

    /// The weights of the samples, if it draws by weights.
    pub fn weights(&self) -> Option<&Weights> {
        match self {
            Sampler::TorchWeighted(sampler) => Some(&sampler.weights),
            _ => None,
        }
    }

    /// The same, to be read.
    pub fn weights_mut(&mut self) -> Option<&mut Weights> {
        match self {
            Sampler::TorchWeighted(sampler) => Some(&mut sampler.weights),
            _ => None,
        }
    }

    /// Whether the parameters go together.
    ///
    /// # Errors
    /// What is wrong with them: a rank that is not in its world, say.
    pub fn validate(&self) -> Result<()> {
        match self {
            Sampler::TorchDistributed(sampler) => sampler.validate(),
            Sampler::TorchDefault(sampler) => sampler.validate(),
            Sampler::TorchStateful(sampler) => sampler.validate(),
            Sampler::TorchWeighted(sampler) => sampler.validate(),
            Sampler::Accelerate(sampler) => sampler.validate(),
            Sampler::TimmRepeatAug(sampler) => sampler.validate(),
            Sampler::Shuffle(sampler) => sampler.validate(),
            Sampler::TfShuffle(sampler) => sampler.validate(),
            Sampler::Keras(sampler) => sampler.validate(),
            Sampler::Dali(sampler) => sampler.validate(),
            Sampler::Dlio(sampler) => sampler.validate(),
            Sampler::Sequential | Sampler::TorchRandom(_) | Sampler::TorchSubsetRandom(_) => Ok(()),
        }
    }

    /// Whether the sampler gives epochs over a dataset of `n` samples.
    ///
    /// # Errors
    /// What [`validate`](Self::validate) says, an epoch without a position, parameters that do not
    /// fit `n`, or epochs that take too long to reach.
    pub fn check(&self, n: u32) -> Result<()> {
        self.validate()?;
        match self {
            Sampler::TorchWeighted(sampler) => sampler.check(n)?,
            Sampler::Accelerate(sampler) => sampler.check(n)?,
            Sampler::Shuffle(sampler) => sampler.check(n)?,
            Sampler::Dali(sampler) => sampler.check(n)?,
            _ => {}
        }
        if self.epoch_len(n, 0) == 0 {
            let n = grouped(n.into());
            return Err(wrong(format!("the order {self} is empty over {n} files")));
        }
        // The second epoch shows both the way to the first and that from one to the next.
        let draws = self.draws_before(n, 1);
        if draws > DRAWS_MAX {
            let (draws, most) = (grouped(draws), grouped(DRAWS_MAX));
            let message = format!("{self} has {draws} random draws before its second epoch");
            return Err(wrong(message).hint(format!("at most {most} are gone through")));
        }
        Ok(())
    }

    /// Random draws, about, that reaching the stream's epoch `k` takes.
    pub fn draws_before(&self, n: u32, k: u32) -> u64 {
        let loader = |loader: torch::Loader, epoch: u32| {
            loader.outputs_before(u64::from(epoch) + u64::from(k))
        };
        match self {
            // The generator at its start costs nothing; making a loader would draw.
            Sampler::TorchRandom(sampler) => loader(sampler.start(n), sampler.epoch),
            Sampler::TorchDefault(sampler) => loader(sampler.start(n), sampler.epoch),
            Sampler::TorchSubsetRandom(sampler) => loader(sampler.start(n), sampler.epoch),
            Sampler::TorchWeighted(sampler) => loader(sampler.start(n), sampler.epoch),
            Sampler::TorchStateful(sampler) => {
                let epochs = u64::from(sampler.epoch) + u64::from(k);
                let each = u64::from(n).saturating_mul(sampler.stride);
                epochs.saturating_mul(each).saturating_add(sampler.position)
            }
            Sampler::Shuffle(sampler) => sampler.draws_before(n, sampler.epoch.saturating_add(k)),
            Sampler::Dali(sampler) => sampler.draws_before(n, k),
            Sampler::Dlio(sampler) => sampler.draws_before(n, k),
            _ => 0,
        }
    }

    /// The epochs over a dataset of `n` samples, from the stream's epoch `from` (its first is 0).
    ///
    /// # Panics
    /// When [`check`](Self::check) refuses the sampler or the number.
    pub fn epochs(&self, n: u32, from: u32) -> Positions {
        let (running, before) = match self {
            Sampler::TorchRandom(sampler) => (Running::Loader(sampler.start(n)), sampler.epoch),
            Sampler::TorchDefault(sampler) => (Running::Loader(sampler.start(n)), sampler.epoch),
            Sampler::TorchSubsetRandom(sampler) => {
                (Running::Loader(sampler.start(n)), sampler.epoch)
            }
            Sampler::TorchStateful(sampler) => (Running::Loader(sampler.start(n)), sampler.epoch),
            Sampler::TorchWeighted(sampler) => (Running::Loader(sampler.start(n)), sampler.epoch),
            Sampler::Shuffle(sampler) => (Running::Shuffling(sampler.start(n)), sampler.epoch),
            Sampler::Dali(sampler) => (Running::Dali(sampler.start(n)), 0),
            Sampler::Dlio(sampler) => (Running::Dlio(sampler.start(n)), 0),
            _ => {
                let numbered = Running::Numbered { sampler: self.clone(), n, next: from };
                return Positions(Box::new(numbered));
            }
        };
        let mut positions = Positions(Box::new(running));
        positions.skip_epochs(u64::from(before) + u64::from(from));
        positions
    }

    /// Epoch `k` of a sampler whose epochs do not hang on one another.
    fn epoch(&self, n: u32, k: u32) -> Vec<u32> {
        match self {
            Sampler::TorchDistributed(sampler) => sampler.epoch(n, k),
            Sampler::Accelerate(sampler) => sampler.epoch(n, k),
            Sampler::TimmRepeatAug(sampler) => sampler.epoch(n, k),
            Sampler::TfShuffle(sampler) => sampler.epoch(n, k),
            Sampler::Keras(sampler) => sampler.epoch(n, k),
            _ => (0..n).collect(),
        }
    }
}

/// The epochs of a [`Sampler`], one after another without end.
///
/// Each costs one permutation, also where a framework draws all epochs from one generator and
/// reaching epoch `k` by itself costs all those before it.
#[derive(Clone, Debug)]
pub struct Positions(Box<Running>);

#[derive(Clone, Debug)]
enum Running {
    /// Each epoch is made from its number.
    Numbered {
        sampler: Sampler,
        n: u32,
        next: u32,
    },
    Loader(torch::Loader),
    Shuffling(shuffle::Shuffling),
    Dali(dali::Reading),
    Dlio(dlio::Run),
}

impl Positions {
    /// Goes past so many epochs, at less than the cost of making them where that is possible.
    pub fn skip_epochs(&mut self, count: u64) {
        match &mut *self.0 {
            Running::Numbered { next, .. } => *next = next.wrapping_add(count as u32),
            Running::Loader(loader) => loader.skip_epochs(count),
            Running::Shuffling(shuffling) => shuffling.skip_epochs(count),
            Running::Dali(reading) => reading.skip_epochs(count),
            Running::Dlio(run) => run.skip_epochs(count),
        }
    }
}

impl Iterator for Positions {
    type Item = Vec<u32>;

    /// The next epoch's positions. Never `None`.
    fn next(&mut self) -> Option<Vec<u32>> {
        Some(match &mut *self.0 {
            Running::Numbered { sampler, n, next } => {
                let positions = sampler.epoch(*n, *next);
                *next = next.wrapping_add(1);
                positions
            }
            Running::Loader(loader) => loader.next_epoch(),
            Running::Shuffling(shuffling) => shuffling.next_epoch(),
            Running::Dali(reading) => reading.next_epoch(),
            Running::Dlio(run) => run.next_epoch(),
        })
    }
}

#[cfg(test)]
mod tests;
