//! A list shuffled by a library's own function, before training or before every epoch.

use rand_mt::Mt;
use rand_pcg::Pcg64;

use super::keys::{Field, Key, PythonSeed, wrong};
use super::{libstdcxx, numpy, python};
use crate::error::Result;

/// The function that shuffles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithm {
    /// `numpy.random.RandomState(seed).shuffle` or `.permutation`; also `numpy.random.seed` and
    /// the functions of the module.
    NumpyRandomState,
    /// `numpy.random.default_rng(seed).shuffle` or `.permutation`.
    NumpyGenerator,
    /// `random.Random(seed).shuffle`, or `.sample` with `sample`; also `random.seed` and the
    /// functions of the module.
    Python,
    /// `std::shuffle` of libstdc++ with `std::mt19937(seed)`.
    Libstdcxx,
}

/// What the script does before each epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Epochs {
    /// Nothing: the list was shuffled once.
    Same,
    /// Shuffles the list as it was at first with a new generator, seeded with `seed + epoch`.
    Reseed,
    /// Shuffles the list as it was at first with what the generator gives next.
    Fresh,
    /// Shuffles the list as the last epoch left it with what the generator gives next.
    Again,
}

impl Epochs {
    pub(super) const WORDS: [(&str, Epochs); 4] = [
        ("same", Epochs::Same),
        ("reseed", Epochs::Reseed),
        ("fresh", Epochs::Fresh),
        ("again", Epochs::Again),
    ];
}

/// A list that a script shuffles by a library's own function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shuffle {
    pub algorithm: Algorithm,
    /// The seed; a text only for [`Algorithm::Python`].
    pub seed: PythonSeed,
    /// Epochs before the stream's first.
    pub epoch: u32,
    /// What happens before each epoch.
    pub epochs: Epochs,
    /// `random.sample(list, sample)` instead of `random.shuffle(list)`.
    pub sample: Option<u32>,
}

impl Shuffle {
    /// A list shuffled once; with the seed 0, of `std::mt19937` its default.
    pub fn new(algorithm: Algorithm) -> Self {
        let seed = if algorithm == Algorithm::Libstdcxx { libstdcxx::DEFAULT_SEED } else { 0 };
        Shuffle {
            algorithm,
            seed: PythonSeed::Number(seed),
            epoch: 0,
            epochs: Epochs::Same,
            sample: None,
        }
    }

    /// How many positions an epoch over `n` samples has.
    pub fn epoch_len(&self, n: u32) -> u32 {
        self.sample.map_or(n, |sample| sample.min(n))
    }

    /// The list of `n` samples before the stream's first epoch.
    pub(super) fn start(&self, n: u32) -> Shuffling {
        let (generator, spec) = (self.generator(0), self.clone());
        Shuffling { generator, spec, n, list: Vec::new(), k: 0 }
    }

    fn generator(&self, epoch: u64) -> Generator {
        let number = match &self.seed {
            PythonSeed::Text(text) => return Generator::Python(python::seeded_with_text(text)),
            PythonSeed::Number(number) => number.wrapping_add(epoch),
        };
        match self.algorithm {
            Algorithm::NumpyRandomState => Generator::RandomState(Mt::new(number as u32)),
            Algorithm::NumpyGenerator => Generator::Pcg(numpy::default_rng(number)),
            Algorithm::Python => Generator::Python(python::seeded(number)),
            Algorithm::Libstdcxx => Generator::Std(Mt::new(number as u32)),
        }
    }

    pub(super) fn keys(&mut self) -> Vec<Key<'_>> {
        let has_default = self.algorithm == Algorithm::Libstdcxx;
        let seed = if has_default { Key::new } else { Key::required };
        let mut keys = vec![
            seed("seed", Field::Seed(&mut self.seed)),
            Key::new("epoch", Field::U32(&mut self.epoch)),
            Key::new("epochs", Field::Epochs(&mut self.epochs)),
        ];
        if self.algorithm == Algorithm::Python {
            keys.push(Key::new("sample", Field::Maybe32(&mut self.sample)));
        }
        keys
    }

    pub(super) fn validate(&self) -> Result<()> {
        let reseeds = self.epochs == Epochs::Reseed;
        match (&self.seed, self.algorithm) {
            (PythonSeed::Text(_), Algorithm::Python) if reseeds => {
                Err(wrong("a seed that is a text cannot count up with the epochs"))
            }
            (PythonSeed::Text(_), Algorithm::Python) => self.check_sample(),
            (PythonSeed::Text(_), _) => Err(wrong("the seed of this sampler is a number")),
            (PythonSeed::Number(seed), Algorithm::NumpyRandomState) if *seed > u32::MAX.into() => {
                Err(wrong(format!("seed={seed}: numpy's RandomState refuses 2^32 and more")))
            }
            _ => self.check_sample(),
        }
    }

    fn check_sample(&self) -> Result<()> {
        match (self.sample, self.epochs) {
            (Some(_), Epochs::Again) => {
                Err(wrong("random.sample leaves the list as it is: epochs=again needs a shuffle"))
            }
            _ => Ok(()),
        }
    }

    pub(super) fn check(&self, n: u32) -> Result<()> {
        match self.sample {
            Some(sample) if sample > n => {
                Err(wrong(format!("sample={sample} is more than there are: {n}")))
            }
            _ => Ok(()),
        }
    }

    /// Random draws before epoch `k`, at least.
    pub(super) fn draws_before(&self, n: u32, k: u32) -> u64 {
        let running = matches!(self.epochs, Epochs::Fresh | Epochs::Again);
        if running { u64::from(n.max(1)) * u64::from(k) } else { 0 }
    }
}

/// A generator with its library's ways.
#[derive(Clone, Debug)]
enum Generator {
    RandomState(Mt),
    Pcg(numpy::Halves<Pcg64>),
    Python(Mt),
    Std(Mt),
}

/// A running [`Shuffle`]: the generator and the list after some epochs.
#[derive(Clone, Debug)]
pub(super) struct Shuffling {
    generator: Generator,
    spec: Shuffle,
    n: u32,
    /// The last epoch; empty before the first.
    list: Vec<u32>,
    k: u64,
}

impl Shuffling {
    /// The next epoch's positions.
    pub(super) fn next_epoch(&mut self) -> Vec<u32> {
        match self.spec.epochs {
            Epochs::Same if self.k > 0 => return self.list.clone(),
            Epochs::Reseed => self.generator = self.spec.generator(self.k),
            _ => {}
        }
        if self.k == 0 || self.spec.epochs != Epochs::Again {
            self.list = (0..self.n).collect();
        }
        self.k = self.k.saturating_add(1);
        self.draw();
        self.list.clone()
    }

    /// Goes past so many epochs.
    pub(super) fn skip_epochs(&mut self, count: u64) {
        match self.spec.epochs {
            Epochs::Reseed => self.k = self.k.saturating_add(count),
            Epochs::Same => {}
            Epochs::Fresh | Epochs::Again => (0..count).for_each(|_| _ = self.next_epoch()),
        }
    }

    fn draw(&mut self) {
        let list = &mut self.list;
        match (&mut self.generator, self.spec.sample) {
            (Generator::Python(rng), Some(k)) => self.list = python::sample(self.n, k, rng),
            (Generator::Python(rng), None) => python::shuffle(list, rng),
            (Generator::RandomState(rng), _) => numpy::shuffle(list, || rng.next_u32()),
            (Generator::Pcg(rng), _) => numpy::shuffle(list, || rng.next_u32()),
            (Generator::Std(rng), _) => libstdcxx::shuffle(list, rng),
        }
    }
}
