//! `torch.utils.data.WeightedRandomSampler`.

use std::sync::Arc;

use rand_mt::Mt;

use super::generator;
use super::loader::{BASE_SEED_OUTPUTS, EpochDraw, Loader};
use super::weights::Weights;
use crate::error::Result;
use crate::order::grouped;
use crate::order::samplers::keys::{Required, SEED, check_positive, wrong};
use crate::order::samplers::{SamplerEpochs, Sampling};

/// Limit of samples in an epoch, at 4 bytes each.
const SAMPLES_MAX: u32 = 1 << 26;

const FILE: Required = Required {
    placeholder: "FILE",
    hint: "write what the script gives the sampler to a file, a number a line",
};

sampler! {
    name: "torch-weighted",
    about: "torch WeightedRandomSampler; FILE has a weight a line; position and gap count \
            outputs before and between its epochs (0 and 0 with a generator of its own)",

    /// `WeightedRandomSampler`: every epoch draws positions by their weights. The generator is the process's
    /// default one, unless the script gives another.
    ///
    /// The defaults are right if the sampler and its loader draw from the default generator, and no other
    /// code does. The weights have no default.
    pub struct Weighted {
        /// The generator's seed.
        pub seed: u64 = 0 => SEED,
        /// One weight for each sample.
        pub weights: Weights = Weights::default() => FILE,
        /// The sampler's `num_samples`. None: the number of samples in the dataset.
        pub num_samples: Option<u32> = None,
        /// Whether a sample may be drawn again in an epoch.
        pub replacement: bool = true,
        /// Outputs drawn before the first epoch: 2 for the base seed if a `DataLoader` draws from the same
        /// generator, 0 if the sampler has its own.
        pub position: u64 = BASE_SEED_OUTPUTS,
        /// Outputs drawn between two epochs, for the same reasons; 0 also with persistent workers.
        pub gap: u64 = BASE_SEED_OUTPUTS,
        /// Epochs before the stream's first.
        pub epoch: u32 = 0,
    }
}

impl Weighted {
    /// How many positions an epoch over `n` samples has.
    fn count(&self, n: u32) -> u32 {
        self.num_samples.unwrap_or(n)
    }

    fn loader(&self, n: u32) -> Loader<Multinomial> {
        let (weights, count) = (Arc::clone(self.weights.values()), self.count(n));
        let draw = Multinomial { weights, count, replacement: self.replacement };
        Loader::new(generator(self.seed), draw, [self.position, self.gap])
    }
}

impl Sampling for Weighted {
    fn validate(&self) -> Result<()> {
        check_positive("num_samples", self.num_samples.unwrap_or(1).into())
    }

    fn validate_for(&self, n: u32) -> Result<()> {
        let (weights, count) = (self.weights.values(), self.count(n));
        if weights.is_empty() || weights.len() as u64 != u64::from(n) {
            let file = self.weights.file.display();
            let (known, n) = (grouped(weights.len() as u64), grouped(n.into()));
            let message = format!("weights {file}: there are {known} weights and {n} samples");
            return Err(wrong(message).hint(
                "each sample has a weight, in the order of index=, or of the part that split= takes",
            ));
        }
        if count > SAMPLES_MAX {
            let (count, most) = (grouped(count.into()), grouped(SAMPLES_MAX.into()));
            return Err(wrong(format!("num_samples={count} is too many"))
                .hint(format!("an epoch has {most} samples at most")));
        }
        if self.replacement && count == 1 && n > 1 {
            return Err(wrong("num_samples=1: versions of torch draw a single sample differently")
                .hint("give more samples an epoch, or write an order file"));
        }
        let likely = weights.iter().filter(|weight| **weight > 0.0).count() as u64;
        if !self.replacement && u64::from(count) > likely {
            let (count, likely) = (grouped(count.into()), grouped(likely));
            let message = format!(
                "num_samples={count} without replacement, and {likely} weights are above 0"
            );
            return Err(wrong(message).hint(
                "num_samples= is what the script gives the sampler, at most as many as can be drawn",
            ));
        }
        Ok(())
    }

    fn epoch_len(&self, n: u32, _k: u32) -> u32 {
        self.count(n)
    }

    fn draws_with_replacement(&self) -> bool {
        self.replacement
    }

    fn draws_before(&self, n: u32, k: u32) -> u64 {
        self.loader(n).outputs_before(u64::from(self.epoch) + u64::from(k))
    }

    fn epochs(&self, n: u32) -> SamplerEpochs {
        SamplerEpochs::new(self.loader(n)).skip_epochs(self.epoch)
    }

    fn weights(&self) -> Option<&Weights> {
        Some(&self.weights)
    }

    fn weights_mut(&mut self) -> Option<&mut Weights> {
        Some(&mut self.weights)
    }
}

/// `torch.multinomial(weights, count, replacement)` of a tensor of doubles on the CPU.
#[derive(Clone, Debug)]
struct Multinomial {
    weights: Arc<[f64]>,
    count: u32,
    replacement: bool,
}

impl EpochDraw for Multinomial {
    fn positions(&self, rng: &mut Mt) -> Vec<u32> {
        if self.replacement { self.with_replacement(rng) } else { self.without_replacement(rng) }
    }

    fn outputs(&self) -> u64 {
        let numbers = if self.replacement { self.count.into() } else { self.weights.len() as u64 };
        2 * numbers
    }
}

impl Multinomial {
    /// Each position is the first whose cumulative probability reaches a drawn number. Additions and divisions
    /// are in torch's order, because every rounding counts.
    fn with_replacement(&self, rng: &mut Mt) -> Vec<u32> {
        let mut sum = 0.0;
        let add = |weight: &f64| {
            sum += weight;
            sum
        };
        let mut cumulative: Vec<f64> = self.weights.iter().map(add).collect();
        cumulative.iter_mut().for_each(|probability| *probability /= sum);
        if let Some(last) = cumulative.last_mut() {
            *last = 1.0;
        }
        let mut position = || {
            let number = uniform(rng);
            cumulative.partition_point(|probability| *probability < number) as u32
        };
        (0..self.count).map(|_| position()).collect()
    }

    /// Each position gets an exponentially distributed time with its weight as rate. The earliest are drawn.
    /// This is torch's rule unless it draws the times by MKL, as builds for x86 after 1.13 and before 2.7 do.
    /// A logarithm that differs in its last bit matters only if two times are equal except for that bit.
    fn without_replacement(&self, rng: &mut Mt) -> Vec<u32> {
        let speed = |weight: &f64| weight / -(-uniform(rng)).ln_1p();
        let speeds = self.weights.iter().map(speed);
        let mut all: Vec<(f64, u32)> = speeds.zip(0..).collect();
        all.sort_by(|(one, _), (other, _)| other.total_cmp(one));
        all.truncate(self.count as usize);
        all.into_iter().map(|(_, position)| position).collect()
    }
}

/// A number from 0 to below 1 as torch draws a double: the low 53 bits of two outputs.
fn uniform(rng: &mut Mt) -> f64 {
    const RANGE: u64 = 1 << f64::MANTISSA_DIGITS;
    // The first output is the high word.
    (rng.next_u64() % RANGE) as f64 / RANGE as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn weighted(weights: &[f64]) -> Weighted {
        Weighted { weights: Weights::of("w", weights), ..Weighted::default() }
    }

    #[test]
    fn it_consumes_what_it_says() {
        for replacement in [true, false] {
            let weights: Arc<[f64]> = (1..100).map(f64::from).collect();
            let draw = Multinomial { weights, count: 40, replacement };
            let (mut a, mut b) = (generator(5), generator(5));
            assert_eq!(draw.positions(&mut a).len(), 40);
            (0..draw.outputs()).for_each(|_| _ = b.next_u32());
            assert_eq!(a, b, "{replacement}");
        }
    }

    #[test]
    fn numbers_that_torch_refuses_or_draws_by_version_are_refused() {
        let own = |num_samples, replacement| Weighted {
            num_samples: Some(num_samples),
            replacement,
            ..weighted(&[0.0, 1.0, 2.0, 0.5])
        };
        for right in [own(2, true), own(9, true), own(1, false), own(3, false), weighted(&[1.0])] {
            let n = right.weights.values().len() as u32;
            assert!(right.validate().is_ok() && right.validate_for(n).is_ok(), "{right:?}");
        }
        for (wrong, n, why) in [
            (own(2, true), 5, "4 weights and 5 samples"),
            (Weighted::default(), 0, "0 weights and 0 samples"),
            (own(1, true), 4, "a single sample"),
            (own(4, false), 4, "3 weights are above 0"),
            (own(5, false), 4, "3 weights are above 0"),
            (own(u32::MAX, true), 4, "too many"),
        ] {
            let error = wrong.validate_for(n).unwrap_err().to_string();
            assert!(error.contains(why) && error.contains("hint: "), "{error}");
        }
        assert!(own(0, true).validate().is_err());
    }
}
