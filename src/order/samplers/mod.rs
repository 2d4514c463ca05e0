//! The samplers of training frameworks, bit for bit.
//!
//! A [`Sampler`] turns the number of samples of a dataset into positions: epoch `k` is a list of
//! numbers below `n`, in the order the framework's sampler yields them. What a position stands for
//! is the matter of the [index order](crate::order::index). The generators are not imitated but
//! repeated draw by draw, so a list is either exactly the job's or (a wrong seed, another count of
//! samples) of no use at all.

pub mod torch;

pub use torch::{Distributed, Random};

use std::fmt;

/// The sampler of one stream: how a job draws the positions of its dataset, epoch after epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sampler {
    /// `torch.utils.data.DistributedSampler`; also of one process, as world 1 and rank 0.
    TorchDistributed(Distributed),
    /// `torch.utils.data.DataLoader(shuffle=True, generator=...)` with a seeded generator.
    TorchRandom(Random),
    /// 0, 1, 2 ... in every epoch: `torch.utils.data.SequentialSampler`, or no shuffling at all.
    Sequential,
}

impl Sampler {
    /// How many positions every epoch has over a dataset of `n` samples.
    pub fn epoch_len(&self, n: u32) -> u32 {
        match self {
            Sampler::TorchDistributed(sampler) => sampler.epoch_len(n),
            Sampler::TorchRandom(_) | Sampler::Sequential => n,
        }
    }

    /// The epochs over a dataset of `n` samples, from the stream's epoch `from` (its first is 0).
    pub fn epochs(&self, n: u32, from: u32) -> Positions {
        match self {
            Sampler::TorchDistributed(sampler) => {
                Positions(Inner::Distributed { sampler: *sampler, n, next: from })
            }
            Sampler::TorchRandom(sampler) => {
                let mut loader = sampler.start(n);
                for _ in 0..from {
                    loader.skip_epoch();
                }
                Positions(Inner::Random(Box::new(loader)))
            }
            Sampler::Sequential => Positions(Inner::Sequential { n }),
        }
    }
}

impl fmt::Display for Sampler {
    /// The sampler in plain words: `torch-random seed 42 epoch 0..`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Sampler::TorchDistributed(s) => {
                write!(f, "torch-distributed")?;
                if s.shuffle {
                    write!(f, " seed {}", s.seed)?;
                }
                // An epoch that counts on, or one that stays.
                let dots = if s.set_epoch { ".." } else { " always" };
                write!(f, " epoch {}{dots} world {} rank {}", s.epoch, s.world, s.rank)?;
                write!(f, "{}", if s.drop_last { " drop_last" } else { "" })?;
                write!(f, "{}", if s.shuffle { "" } else { " unshuffled" })
            }
            Sampler::TorchRandom(s) => {
                write!(f, "torch-random seed {} epoch {}..", s.seed, s.epoch)?;
                write!(f, "{}", if s.persistent_workers { " persistent_workers" } else { "" })
            }
            Sampler::Sequential => f.write_str("sequential"),
        }
    }
}

/// The epochs of a [`Sampler`], one after another without end.
///
/// Each costs one permutation, also where a framework draws all epochs from one generator and
/// reaching epoch `k` by itself costs all those before it.
#[derive(Clone, Debug)]
pub struct Positions(Inner);

#[derive(Clone, Debug)]
enum Inner {
    Distributed { sampler: Distributed, n: u32, next: u32 },
    Random(Box<torch::Loader>),
    Sequential { n: u32 },
}

impl Iterator for Positions {
    type Item = Vec<u32>;

    /// The next epoch's positions. Never `None`.
    fn next(&mut self) -> Option<Vec<u32>> {
        Some(match &mut self.0 {
            Inner::Distributed { sampler, n, next } => {
                let positions = sampler.epoch(*n, *next);
                *next = next.wrapping_add(1);
                positions
            }
            Inner::Random(loader) => loader.next_epoch(),
            Inner::Sequential { n } => (0..*n).collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequential_is_every_position_in_every_epoch() {
        let mut epochs = Sampler::Sequential.epochs(4, 7);
        assert_eq!(epochs.next(), Some(vec![0, 1, 2, 3]));
        assert_eq!(epochs.next(), Some(vec![0, 1, 2, 3]));
        assert_eq!(Sampler::Sequential.epoch_len(4), 4);
    }

    #[test]
    fn starting_late_is_the_same_as_running_there() {
        for sampler in [
            Sampler::TorchDistributed(Distributed { world: 3, rank: 2, ..Distributed::default() }),
            Sampler::TorchRandom(Random::new(42)),
            Sampler::TorchRandom(Random { persistent_workers: true, epoch: 2, ..Random::new(42) }),
        ] {
            let run: Vec<_> = sampler.epochs(101, 0).take(6).collect();
            let late: Vec<_> = sampler.epochs(101, 4).take(2).collect();
            assert_eq!(run[4..], late, "{sampler}");
            assert_eq!(run[0].len(), sampler.epoch_len(101) as usize, "{sampler}");
        }
    }
}
