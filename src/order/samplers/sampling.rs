//! What a sampler says of itself: [`Spelled`] is how a spec names it, [`Sampling`] what it draws.

use super::{Key, Positions, Weights};
use crate::error::Result;
use crate::order::index::Sorting;

/// What has a name and keys in a spec.
pub trait Spelled {
    /// One for each name, with its defaults.
    fn all() -> Vec<Self>
    where
        Self: Sized;

    /// Its name in a spec.
    fn name(&self) -> &'static str;

    /// What it is in the script, in a line.
    fn about(&self) -> &'static str;

    /// Its keys, to be read and set.
    fn keys(&mut self) -> Vec<Key<'_>>;
}

/// Makes a sampler's type: each parameter with its default. The key of a spec that sets it has the
/// same name. After `=>` stands what people are told of a parameter that has to be given.
macro_rules! sampler {
    (
        name: $name:literal,
        about: $about:literal,

        $(#[$of_type:meta])*
        pub struct $sampler:ident {
            $(
                $(#[$of_field:meta])*
                pub $key:ident: $value:ty = $default:expr $(=> $required:expr)?,
            )*
        }
    ) => {
        $(#[$of_type])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct $sampler {
            $($(#[$of_field])* pub $key: $value,)*
        }

        impl Default for $sampler {
            fn default() -> Self {
                $sampler { $($key: $default,)* }
            }
        }

        impl $crate::order::samplers::Spelled for $sampler {
            fn all() -> Vec<Self> {
                vec![Self::default()]
            }

            fn name(&self) -> &'static str {
                $name
            }

            fn about(&self) -> &'static str {
                $about
            }

            fn keys(&mut self) -> Vec<$crate::order::samplers::Key<'_>> {
                vec![$(
                    $crate::order::samplers::Key::new(stringify!($key), &mut self.$key)
                        $(.required($required))?,
                )*]
            }
        }
    };
}

/// A sampler with its parameters.
pub trait Sampling: Spelled {
    /// The index order that it has unless another is named.
    fn sorting(&self) -> Sorting {
        Sorting::Path
    }

    /// Whether the parameters go together.
    ///
    /// # Errors
    /// What is wrong with them: a rank that is not in its world, say.
    fn validate(&self) -> Result<()> {
        Ok(())
    }

    /// Whether the parameters, which go together, fit a dataset of `n` samples.
    ///
    /// # Errors
    /// What does not fit.
    fn fits(&self, _n: u32) -> Result<()> {
        Ok(())
    }

    /// How many positions epoch `k` of the stream has over a dataset of `n` samples.
    fn epoch_len(&self, n: u32, _k: u32) -> u32 {
        n
    }

    /// Whether an epoch over `n` samples may have a position twice.
    fn repeats(&self, _n: u32) -> bool {
        self.draws_anew()
    }

    /// Whether each position is drawn from all samples, whatever was drawn before.
    fn draws_anew(&self) -> bool {
        false
    }

    /// Random draws, about, that reaching the stream's epoch `k` takes.
    fn draws_before(&self, _n: u32, _k: u32) -> u64 {
        0
    }

    /// The epochs over a dataset of `n` samples, from the stream's epoch `from` (its first is 0).
    ///
    /// # Panics
    /// When [`check`](super::Sampler::check) refuses the sampler or the number.
    fn epochs(&self, n: u32, from: u32) -> Positions;

    /// The weights of the samples, if it draws by weights.
    fn weights(&self) -> Option<&Weights> {
        None
    }

    /// The same, to be read.
    fn weights_mut(&mut self) -> Option<&mut Weights> {
        None
    }
}
