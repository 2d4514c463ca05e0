//! A list shuffled by a library's own function, before training or before every epoch.

use rand_mt::Mt;
use rand_pcg::Pcg64;

use super::epochs::RunningSampler;
use super::keys::{Key, PythonSeed, SEED, Words, wrong};
use super::{SamplerEpochs, SamplerInfo, Sampling, libstdcxx, numpy, python};
use crate::error::Result;

/// The function that shuffles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithm {
    /// `numpy.random.RandomState(seed).shuffle` or `.permutation`; also `numpy.random.seed` and the module's
    /// functions.
    NumpyRandomState,
    /// `numpy.random.default_rng(seed).shuffle` or `.permutation`.
    NumpyGenerator,
    /// `random.Random(seed).shuffle`, or `.sample` with `sample`; also `random.seed` and the module's
    /// functions.
    Python,
    /// `std::shuffle` of libstdc++ with `std::mt19937(seed)`.
    Libstdcxx,
}

/// What the script does before each epoch: the key `epochs`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reshuffle {
    /// Nothing: the list was shuffled once.
    Same,
    /// Shuffles the original list with a new generator, seeded with `seed + epoch`.
    Reseed,
    /// Shuffles the list that the last epoch left with a new generator, seeded with `seed + epoch`, as
    /// cassandra-dali does.
    ReseedAgain,
    /// Shuffles the original list. One generator draws all epochs.
    Fresh,
    /// Shuffles the list that the last epoch left. One generator draws all epochs.
    Again,
}

impl Words for Reshuffle {
    const WORDS: &'static [(&'static str, Self)] = &[
        ("same", Reshuffle::Same),
        ("reseed", Reshuffle::Reseed),
        ("reseed-again", Reshuffle::ReseedAgain),
        ("fresh", Reshuffle::Fresh),
        ("again", Reshuffle::Again),
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
    pub reshuffle: Reshuffle,
    /// `random.sample(list, sample)` instead of `random.shuffle(list)`.
    pub sample: Option<u32>,
}

impl Shuffle {
    /// A list shuffled once with seed 0, or with the default seed of `std::mt19937`.
    pub fn new(algorithm: Algorithm) -> Self {
        let seed = if algorithm == Algorithm::Libstdcxx { libstdcxx::DEFAULT_SEED } else { 0 };
        Shuffle {
            algorithm,
            seed: PythonSeed::Number(seed),
            epoch: 0,
            reshuffle: Reshuffle::Same,
            sample: None,
        }
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

    /// Whether an epoch needs all epochs before it.
    fn needs_all(&self) -> bool {
        let needs_all = [Reshuffle::Fresh, Reshuffle::Again, Reshuffle::ReseedAgain];
        needs_all.contains(&self.reshuffle)
    }

    /// Whether each epoch has a generator of its own.
    fn reseeds(&self) -> bool {
        matches!(self.reshuffle, Reshuffle::Reseed | Reshuffle::ReseedAgain)
    }

    /// Whether the list of the last epoch is shuffled.
    fn goes_on(&self) -> bool {
        matches!(self.reshuffle, Reshuffle::Again | Reshuffle::ReseedAgain)
    }

    fn check_sample(&self) -> Result<()> {
        if self.sample.is_some() && self.goes_on() {
            return Err(wrong(
                "random.sample leaves the list as it is: this value of epochs= needs a shuffle",
            ));
        }
        Ok(())
    }
}

impl SamplerInfo for Shuffle {
    fn all() -> Vec<Self> {
        let all = [
            Algorithm::NumpyRandomState,
            Algorithm::NumpyGenerator,
            Algorithm::Python,
            Algorithm::Libstdcxx,
        ];
        all.map(Shuffle::new).into()
    }

    fn name(&self) -> &'static str {
        match self.algorithm {
            Algorithm::NumpyRandomState => "numpy-random-state",
            Algorithm::NumpyGenerator => "numpy-generator",
            Algorithm::Python => "python-random",
            Algorithm::Libstdcxx => "std-shuffle",
        }
    }

    fn about(&self) -> &'static str {
        match self.algorithm {
            Algorithm::NumpyRandomState => "numpy RandomState(seed).shuffle, or np.random.seed",
            Algorithm::NumpyGenerator => {
                "numpy default_rng(seed).shuffle; Hugging Face Dataset.shuffle(seed)"
            }
            Algorithm::Python => {
                "Python random.seed(seed), shuffle or sample=K; a str seed in quotes"
            }
            Algorithm::Libstdcxx => "C++ std::shuffle(.., std::mt19937(seed)) of libstdc++",
        }
    }

    fn keys(&mut self) -> Vec<Key<'_>> {
        let seed = Key::new("seed", &mut self.seed);
        let has_default = self.algorithm == Algorithm::Libstdcxx;
        let seed = if has_default { seed } else { seed.required(SEED) };
        let mut keys =
            vec![seed, Key::new("epoch", &mut self.epoch), Key::new("epochs", &mut self.reshuffle)];
        if self.algorithm == Algorithm::Python {
            keys.push(Key::new("sample", &mut self.sample));
        }
        keys
    }
}

impl Sampling for Shuffle {
    fn validate(&self) -> Result<()> {
        match (&self.seed, self.algorithm) {
            (PythonSeed::Text(_), Algorithm::Python) if self.reseeds() => {
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

    fn validate_for(&self, n: u32) -> Result<()> {
        match self.sample {
            Some(sample) if sample > n => {
                Err(wrong(format!("sample={sample} is more than there are: {n}")))
            }
            _ => Ok(()),
        }
    }

    fn epoch_len(&self, n: u32, _k: u32) -> u32 {
        self.sample.map_or(n, |sample| sample.min(n))
    }

    fn draws_before(&self, n: u32, k: u32) -> u64 {
        if self.needs_all() {
            u64::from(n.max(1)) * u64::from(self.epoch.saturating_add(k))
        } else {
            0
        }
    }

    fn epochs(&self, n: u32) -> SamplerEpochs {
        let (generator, sampler) = (self.generator(0), self.clone());
        let running = RunningShuffle { generator, sampler, n, list: Vec::new(), drawn: 0 };
        SamplerEpochs::new(running).skip_epochs(self.epoch)
    }
}

/// A generator, which decides the shuffle function.
#[derive(Clone)]
enum Generator {
    RandomState(Mt),
    Pcg(numpy::Halves<Pcg64>),
    Python(Mt),
    Std(Mt),
}

/// A running [`Shuffle`]: the generator and the list after some epochs.
#[derive(Clone)]
struct RunningShuffle {
    generator: Generator,
    sampler: Shuffle,
    n: u32,
    /// The list of the last epoch. Empty before the first.
    list: Vec<u32>,
    /// Epochs that were drawn, if each needs all before it.
    drawn: u64,
}

impl RunningSampler for RunningShuffle {
    fn epoch(&mut self, k: u64) -> Vec<u32> {
        let is_drawn = !self.list.is_empty();
        match self.sampler.reshuffle {
            Reshuffle::Same if is_drawn => return self.list.clone(),
            _ if is_drawn && self.sampler.goes_on() => {}
            _ => self.list = (0..self.n).collect(),
        }
        if self.sampler.reseeds() {
            self.generator = self.sampler.generator(k);
        }
        self.draw();
        self.drawn += 1;
        self.list.clone()
    }

    fn skip(&mut self, count: u64) {
        if self.sampler.needs_all() {
            (0..count).for_each(|_| _ = self.epoch(self.drawn));
        }
    }
}

impl RunningShuffle {
    fn draw(&mut self) {
        let list = &mut self.list;
        match (&mut self.generator, self.sampler.sample) {
            (Generator::Python(rng), Some(k)) => self.list = python::sample(self.n, k, rng),
            (Generator::Python(rng), None) => python::shuffle(list, rng),
            (Generator::RandomState(rng), _) => numpy::shuffle(list, || rng.next_u32()),
            (Generator::Pcg(rng), _) => numpy::shuffle(list, || rng.next_u32()),
            (Generator::Std(rng), _) => libstdcxx::shuffle(list, rng),
        }
    }
}
