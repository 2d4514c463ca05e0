//! The samplers of training frameworks, bit for bit.
//!
//! A [`Sampler`] turns the number of samples of a dataset into positions: epoch `k` is a list of
//! numbers below `n`, in the order the framework's sampler yields them. What a position stands for
//! is the matter of the [index order](crate::order::index) and of [splits](crate::order::Split).
//! The generators are not imitated but repeated draw by draw, so a list is either exactly the
//! job's or (a wrong seed, another count of samples) of no use at all.
//!
//! Each sampler has a file of its own. There `sampler!` makes its type, its name and its keys, and
//! it says the rest of itself as a [`Sampling`]. The list of `samplers!` here makes it a variant of
//! [`Sampler`]. A new sampler is such a file, its `mod` and `pub use`, and a line of that list. The
//! tests compare each sampler with what the library itself gave.

#[macro_use]
mod sampling;

mod accelerate;
pub mod batches;
mod dali;
mod dlio;
mod keras;
mod keys;
mod libstdcxx;
pub mod numpy;
mod positions;
mod python;
mod sequential;
mod shuffle;
mod tensorflow;
mod timm;
pub mod torch;

pub use accelerate::Accelerate;
pub use batches::Workers;
pub use dali::Dali;
pub use dlio::{Dlio, Reads};
pub use keras::{Keras, Subset};
pub use keys::{Fraction, Key, PythonSeed, Required};
pub(in crate::order) use keys::{check_positive, number, wrong};
pub use positions::Positions;
pub use sampling::{Sampling, Spelled};
pub use sequential::Sequential;
pub use shuffle::{Algorithm, Epochs, Shuffle};
pub use tensorflow::TfShuffle;
pub use timm::RepeatAug;
pub use torch::{DefaultGenerator, Distributed, Random, Stateful, SubsetRandom, Weighted, Weights};

use std::fmt;
use std::ops::{Deref, DerefMut};

use crate::error::Result;
use crate::order::grouped;

/// Random draws that may come before a stream's second epoch: about half a minute of them.
const DRAWS_MAX: u64 = 1 << 34;

macro_rules! samplers {
    ($($variant:ident($sampler:ty),)*) => {
        /// The sampler of one stream: how a job draws the positions of its dataset, epoch after
        /// epoch. All that it does is that of its variant's [`Sampling`].
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub enum Sampler {
            $(#[doc = concat!("[`", stringify!($sampler), "`]")] $variant($sampler),)*
        }

        impl Sampler {
            /// One of each sampler with its defaults, in the order in which people are told of
            /// them.
            pub fn all() -> Vec<Sampler> {
                let mut all = Vec::new();
                $(all.extend(<$sampler>::all().into_iter().map(Sampler::$variant));)*
                all
            }
        }

        impl Deref for Sampler {
            type Target = dyn Sampling;

            fn deref(&self) -> &Self::Target {
                match self { $(Sampler::$variant(sampler) => sampler,)* }
            }
        }

        impl DerefMut for Sampler {
            fn deref_mut(&mut self) -> &mut Self::Target {
                match self { $(Sampler::$variant(sampler) => sampler,)* }
            }
        }
    };
}

samplers! {
    Sequential(Sequential),
    TorchDistributed(Distributed),
    TorchRandom(Random),
    TorchDefault(DefaultGenerator),
    TorchSubsetRandom(SubsetRandom),
    TorchStateful(Stateful),
    TorchWeighted(Weighted),
    Accelerate(Accelerate),
    TimmRepeatAug(RepeatAug),
    Shuffle(Shuffle),
    TfShuffle(TfShuffle),
    Keras(Keras),
    Dali(Dali),
    Dlio(Dlio),
}

impl Sampler {
    /// The sampler of this name, with its defaults.
    pub fn named(name: &str) -> Option<Sampler> {
        Self::all().into_iter().find(|sampler| sampler.name() == name)
    }

    /// The keys that say something, with their values: the seed, and those that are not at their
    /// defaults.
    pub fn given(&self) -> Vec<(&'static str, String)> {
        let (mut own, mut default) = (self.clone(), Sampler::named(self.name()));
        let default: Vec<_> = default.iter_mut().flat_map(|s| s.keys()).map(|k| k.text()).collect();
        let keys = own.keys().into_iter().zip(default);
        let says = keys.filter(|(key, default)| {
            let text = key.text();
            text != *default || key.name == "seed" && text != "none"
        });
        says.map(|(key, _)| (key.name, key.text())).collect()
    }

    /// Whether the sampler gives epochs over a dataset of `n` samples.
    ///
    /// # Errors
    /// What [`validate`](Sampling::validate) and [`fits`](Sampling::fits) say, an epoch without a
    /// position, or epochs that take too long to reach.
    pub fn check(&self, n: u32) -> Result<()> {
        self.validate()?;
        self.fits(n)?;
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
}

impl fmt::Display for Sampler {
    /// The sampler in plain words: `torch-distributed seed 42 world 2`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())?;
        self.given().iter().try_for_each(|(key, value)| write!(f, " {key} {value}"))
    }
}

#[cfg(test)]
mod tests;
