//! The samplers of training frameworks, bit for bit.
//!
//! A [`Sampler`] turns the number `n` of a dataset's samples into positions. Epoch `k` is a list of numbers
//! below `n`, in the order in which the framework's sampler yields them. The [index
//! order](crate::order::index) and [splits](crate::order::Split) say what a position stands for. The
//! generators are repeated draw by draw. So a list is exactly the job's, or useless if the seed or the number
//! of samples is wrong.
//!
//! Each sampler has its own file. There `sampler!` makes its type, name and keys, and an implementation of
//! [`Sampling`] gives the rest. The list `samplers!` here makes it a variant of [`Sampler`]. A new sampler is
//! such a file, its `mod` and `pub use`, and a line of that list. The tests compare each sampler with the
//! library's own output.

#[macro_use]
mod sampling;

mod accelerate;
mod dali;
mod dlio;
mod epochs;
mod keras;
mod keys;
mod libstdcxx;
pub mod numpy;
mod python;
mod sequential;
mod shuffle;
mod tensorflow;
mod timm;
pub mod torch;

pub use accelerate::Accelerate;
pub use dali::Dali;
pub use dlio::{Dlio, DlioSampler};
pub use epochs::SamplerEpochs;
pub use keras::{Keras, Subset};
pub use keys::{Fraction, Key, PythonSeed, Required};
pub(in crate::order) use keys::{check_positive, parse_number, wrong};
pub use sampling::{SamplerInfo, Sampling};
pub use sequential::Sequential;
pub use shuffle::{Algorithm, Reshuffle, Shuffle};
pub use tensorflow::TfShuffle;
pub use timm::RepeatAug;
pub use torch::{DefaultGenerator, Distributed, Random, Stateful, SubsetRandom, Weighted, Weights};

use std::fmt;
use std::ops::{Deref, DerefMut};

use crate::error::Result;
use crate::order::grouped;

/// Limit of random draws before a stream's second epoch: about half a minute of them.
const DRAWS_MAX: u64 = 1 << 34;

macro_rules! samplers {
    ($($variant:ident($sampler:ty),)*) => {
        /// The sampler of one stream: how a job draws positions of its dataset, epoch after epoch. It does
        /// what its variant's [`Sampling`] does.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub enum Sampler {
            $(#[doc = concat!("[`", stringify!($sampler), "`]")] $variant($sampler),)*
        }

        impl Sampler {
            /// One of each sampler with its defaults, in the order in which help lists them.
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
    pub const SEQUENTIAL: Sampler = Sampler::Sequential(Sequential {});

    /// The sampler of this name, with its defaults.
    pub fn named(name: &str) -> Option<Sampler> {
        Self::all().into_iter().find(|sampler| sampler.name() == name)
    }

    /// The keys to show, with their values: the seed, and keys that differ from their defaults.
    pub fn shown_keys(&self) -> Vec<(&'static str, String)> {
        let (mut own, mut default) = (self.clone(), Sampler::named(self.name()));
        let default: Vec<_> = default.iter_mut().flat_map(|s| s.keys()).map(|k| k.text()).collect();
        let keys = own.keys().into_iter().zip(default);
        let shown = keys.filter(|(key, default)| {
            let text = key.text();
            text != *default || key.name == "seed" && text != "none"
        });
        shown.map(|(key, _)| (key.name, key.text())).collect()
    }

    /// Checks that the sampler gives epochs over a dataset of `n` samples.
    ///
    /// # Errors
    /// When [`validate`](Sampling::validate) or [`validate_for`](Sampling::validate_for) refuses, the first
    /// epoch is empty, or epochs take too long to reach.
    pub fn check(&self, n: u32) -> Result<()> {
        self.validate()?;
        self.validate_for(n)?;
        if self.epoch_len(n, 0) == 0 {
            let n = grouped(n.into());
            return Err(wrong(format!("the order {self} is empty over {n} files")));
        }
        // The draws before the second epoch are those before the first and those from one epoch to the next.
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
        self.shown_keys().iter().try_for_each(|(key, value)| write!(f, " {key} {value}"))
    }
}

#[cfg(test)]
mod tests;
