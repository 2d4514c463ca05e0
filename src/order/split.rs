//! Parts of a dataset: which of its samples a sampler draws from, and in which order they stand.

use std::fmt;

use super::samplers::numpy::generator_permutation;
use super::samplers::torch::{generator, randperm};
use super::samplers::{Fraction, parse_number, wrong};
use super::suggest;
use crate::error::Result;

/// A change that a script makes to a dataset before a sampler gets it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Split {
    /// `torch.utils.data.random_split(dataset, lengths, generator)[part]` with a generator seeded with
    /// `seed`: `random_split:SEED:LENGTH+LENGTH:PART`.
    Random {
        seed: u64,
        /// The lengths of the parts: all counts, or all fractions.
        lengths: Vec<Length>,
        /// Which part, from 0.
        part: usize,
    },
    /// Hugging Face's `Dataset.train_test_split(test_size, seed=seed)`:
    /// `train_test_split:SEED:TEST_SIZE:train` or `:test`.
    TrainTest {
        seed: u64,
        /// How much is for the test.
        test: Length,
        part: TrainTestPart,
    },
    /// Hugging Face's `Dataset.shuffle(seed)`: `shuffle:SEED`.
    Shuffle { seed: u64 },
    /// `Subset(dataset, range(from, to))`: `slice:FROM:TO`.
    Slice {
        from: u32,
        /// The first position after the slice.
        to: u32,
    },
}

/// An amount of a dataset's samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Length {
    Count(u32),
    Fraction(Fraction),
}

/// A part of [`Split::TrainTest`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrainTestPart {
    /// The samples that are not for the test.
    Train,
    Test,
}

const NAMES: [&str; 4] = ["random_split", "train_test_split", "shuffle", "slice"];

impl Split {
    /// Parses splits with `/` between them.
    ///
    /// # Errors
    /// When a name is unknown, or its parameters are not of its form.
    pub fn parse(text: &str) -> Result<Vec<Split>> {
        text.split('/').map(Split::parse_one).collect()
    }

    fn parse_one(text: &str) -> Result<Split> {
        let words: Vec<&str> = text.split(':').collect();
        let seed = |text| parse_number("split's seed", text);
        match words[..] {
            ["random_split", first, lengths, part] => Ok(Split::Random {
                seed: seed(first)?,
                lengths: lengths.split('+').map(Length::parse).collect::<Result<_>>()?,
                part: parse_number("split's part", part)?,
            }),
            ["train_test_split", first, test, part @ ("train" | "test")] => {
                let part = if part == "train" { TrainTestPart::Train } else { TrainTestPart::Test };
                Ok(Split::TrainTest { seed: seed(first)?, test: Length::parse(test)?, part })
            }
            ["shuffle", first] => Ok(Split::Shuffle { seed: seed(first)? }),
            ["slice", from, to] => {
                let (from, to) = (parse_number("slice", from)?, parse_number("slice", to)?);
                if from < to {
                    Ok(Split::Slice { from, to })
                } else {
                    Err(wrong(format!("{text} is empty")))
                }
            }
            [name, ..] if NAMES.contains(&name) => {
                let forms = "random_split:SEED:LENGTH+LENGTH:PART, \
                             train_test_split:SEED:TEST_SIZE:train or :test, shuffle:SEED, \
                             slice:FROM:TO";
                Err(wrong(format!("split={text} is not of a known form")).hint(forms))
            }
            _ => {
                let name = words.first().copied().unwrap_or_default();
                Err(wrong(format!("unknown split '{name}'")).hint(suggest::hint(name, &NAMES)))
            }
        }
    }

    /// The positions of the part in a dataset of `n` samples, in the part's order.
    ///
    /// # Errors
    /// When the lengths do not fit `n`, there is no such part, or the part is empty.
    pub fn positions(&self, n: u32) -> Result<Vec<u32>> {
        let (mut list, [from, to]) = match self {
            Split::Random { seed, lengths, part } => {
                (randperm(n, &mut generator(*seed)), bounds(lengths, *part, n)?)
            }
            Split::TrainTest { seed, test, part } => {
                let test = test.ceil_of(n);
                if test > n {
                    return Err(wrong(format!("{self}: there are {n} samples")));
                }
                let part = if *part == TrainTestPart::Test { [0, test] } else { [test, n] };
                (generator_permutation(n, *seed), part)
            }
            Split::Shuffle { seed } => (generator_permutation(n, *seed), [0, n]),
            Split::Slice { to, .. } if *to > n => {
                return Err(wrong(format!("{self}: there are {n} samples")));
            }
            Split::Slice { from, to } => ((0..n).collect(), [*from, *to]),
        };
        list.truncate(to as usize);
        list.drain(..from as usize);
        if list.is_empty() {
            Err(wrong(format!("{self} of {n} samples is empty")))
        } else {
            Ok(list)
        }
    }
}

/// The bounds of a part of `random_split`.
fn bounds(lengths: &[Length], part: usize, n: u32) -> Result<[u32; 2]> {
    if part >= lengths.len() {
        let parts = lengths.len();
        return Err(wrong(format!("there is no part {part} of {parts}")).hint("parts count from 0"));
    }
    let fractions: Option<f64> = lengths.iter().map(|length| length.fraction()).sum();
    let mut sizes: Vec<u64> = lengths.iter().map(|length| length.floor_of(n).into()).collect();
    let sum: u64 = sizes.iter().sum();
    match fractions {
        Some(whole) if (whole - 1.0).abs() < 1e-9 && sum <= u64::from(n) => {
            // Samples left over by rounding go to the parts in turn, one each, from the first part on.
            let (left, parts) = (u64::from(n) - sum, sizes.len() as u64);
            for (at, size) in (0..).zip(&mut sizes) {
                *size += left / parts + u64::from(at < left % parts);
            }
        }
        None if sum == u64::from(n) => {}
        _ => {
            let error =
                wrong(format!("the lengths of random_split add up to {sum} of {n} samples"));
            return Err(error.hint("they are all numbers that add up to all samples, or all fractions that add up to 1"));
        }
    }
    let from: u64 = sizes[..part].iter().sum();
    Ok([from as u32, (from + sizes[part]) as u32])
}

impl Length {
    fn parse(text: &str) -> Result<Self> {
        if text.contains('.') {
            Fraction::parse("length", text).map(Length::Fraction)
        } else {
            parse_number("length", text).map(Length::Count)
        }
    }

    fn fraction(self) -> Option<f64> {
        match self {
            Length::Count(_) => None,
            Length::Fraction(fraction) => Some(fraction.value()),
        }
    }

    fn floor_of(self, n: u32) -> u32 {
        match self {
            Length::Count(count) => count,
            Length::Fraction(fraction) => fraction.floor_of(n),
        }
    }

    fn ceil_of(self, n: u32) -> u32 {
        match self {
            Length::Count(count) => count,
            Length::Fraction(fraction) => fraction.ceil_of(n),
        }
    }
}

impl fmt::Display for Length {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Length::Count(count) => write!(f, "{count}"),
            // With a point even if it is 0: the point tells a fraction from a count.
            Length::Fraction(fraction) => write!(f, "{:?}", fraction.value()),
        }
    }
}

impl fmt::Display for Split {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Split::Random { seed, lengths, part } => {
                let lengths: Vec<_> = lengths.iter().map(Length::to_string).collect();
                write!(f, "random_split:{seed}:{}:{part}", lengths.join("+"))
            }
            Split::TrainTest { seed, test, part } => {
                let part = if *part == TrainTestPart::Train { "train" } else { "test" };
                write!(f, "train_test_split:{seed}:{test}:{part}")
            }
            Split::Shuffle { seed } => write!(f, "shuffle:{seed}"),
            Split::Slice { from, to } => write!(f, "slice:{from}:{to}"),
        }
    }
}
