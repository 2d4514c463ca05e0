//! The traits of a sampler: [`SamplerInfo`] gives its name and keys in a spec, [`Sampling`] what it draws.

use super::{Key, SamplerEpochs, Weights};
use crate::error::Result;
use crate::order::index::Sorting;

/// A sampler's name and keys in a spec.
pub trait SamplerInfo {
    /// One value for each name, with its defaults.
    fn all() -> Vec<Self>
    where
        Self: Sized;

    /// Its name in a spec.
    fn name(&self) -> &'static str;

    /// What it is in the script, in one line.
    fn about(&self) -> &'static str;

    /// Its keys, for reading and setting.
    fn keys(&mut self) -> Vec<Key<'_>>;
}

/// Makes a sampler's type from its parameters and their defaults. The key of a spec that sets a parameter has
/// the same name. After `=>` stands the help for a parameter that must be given.
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

        impl $crate::order::samplers::SamplerInfo for $sampler {
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
pub trait Sampling: SamplerInfo {
    /// The index order if the spec names none.
    fn sorting(&self) -> Sorting {
        Sorting::Path
    }

    /// Checks that the parameters fit together.
    ///
    /// # Errors
    /// When they do not: a rank that is not below its world, for example.
    fn validate(&self) -> Result<()> {
        Ok(())
    }

    /// Checks that valid parameters fit a dataset of `n` samples.
    ///
    /// # Errors
    /// When they do not.
    fn validate_for(&self, _n: u32) -> Result<()> {
        Ok(())
    }

    /// How many positions epoch `k` of the stream has over a dataset of `n` samples.
    fn epoch_len(&self, n: u32, _k: u32) -> u32 {
        n
    }

    /// Whether an epoch over `n` samples may repeat a position.
    fn repeats(&self, _n: u32) -> bool {
        self.draws_with_replacement()
    }

    /// Whether each position is drawn from all samples, also from those drawn before.
    fn draws_with_replacement(&self) -> bool {
        false
    }

    /// About how many random draws it takes to reach the stream's epoch `k`.
    fn draws_before(&self, _n: u32, _k: u32) -> u64 {
        0
    }

    /// The stream's epochs over a dataset of `n` samples.
    ///
    /// # Panics
    /// When [`check`](super::Sampler::check) refuses the sampler or the number.
    fn epochs(&self, n: u32) -> SamplerEpochs;

    /// The weights of the samples, if it draws by weights.
    fn weights(&self) -> Option<&Weights> {
        None
    }

    /// The same, for reading them from their file.
    fn weights_mut(&mut self) -> Option<&mut Weights> {
        None
    }
}
