//! What samplers there are, by the names they have in a spec, and with which keys.

use std::fmt;

use super::{
    Accelerate, Algorithm, Dali, DefaultGenerator, Distributed, Dlio, Keras, Key, Random,
    RepeatAug, Sampler, Shuffle, Stateful, SubsetRandom, TfShuffle, Weighted,
};

impl Sampler {
    /// One of each sampler with its defaults, in the order in which people are told of them.
    pub fn all() -> Vec<Sampler> {
        vec![
            Sampler::Sequential,
            Sampler::TorchDistributed(Distributed::default()),
            Sampler::TorchRandom(Random::default()),
            Sampler::TorchDefault(DefaultGenerator::default()),
            Sampler::TorchSubsetRandom(SubsetRandom::default()),
            Sampler::TorchStateful(Stateful::default()),
            Sampler::TorchWeighted(Weighted::default()),
            Sampler::Accelerate(Accelerate::default()),
            Sampler::TimmRepeatAug(RepeatAug::default()),
            Sampler::Shuffle(Shuffle::new(Algorithm::NumpyRandomState)),
            Sampler::Shuffle(Shuffle::new(Algorithm::NumpyGenerator)),
            Sampler::Shuffle(Shuffle::new(Algorithm::Python)),
            Sampler::Shuffle(Shuffle::new(Algorithm::Libstdcxx)),
            Sampler::TfShuffle(TfShuffle::default()),
            Sampler::Keras(Keras::default()),
            Sampler::Dali(Dali::default()),
            Sampler::Dlio(Dlio::default()),
        ]
    }

    /// The sampler of this name, with its defaults.
    pub fn named(name: &str) -> Option<Sampler> {
        Self::all().into_iter().find(|sampler| sampler.name() == name)
    }

    /// Its name in a spec.
    pub fn name(&self) -> &'static str {
        match self {
            Sampler::Sequential => "sequential",
            Sampler::TorchDistributed(_) => "torch-distributed",
            Sampler::TorchRandom(_) => "torch-random",
            Sampler::TorchDefault(_) => "torch-default",
            Sampler::TorchSubsetRandom(_) => "torch-subset-random",
            Sampler::TorchStateful(_) => "torch-stateful",
            Sampler::TorchWeighted(_) => "torch-weighted",
            Sampler::Accelerate(_) => "accelerate",
            Sampler::TimmRepeatAug(_) => "timm-repeat-aug",
            Sampler::Shuffle(sampler) => match sampler.algorithm {
                Algorithm::NumpyRandomState => "numpy-random-state",
                Algorithm::NumpyGenerator => "numpy-generator",
                Algorithm::Python => "python-random",
                Algorithm::Libstdcxx => "std-shuffle",
            },
            Sampler::TfShuffle(_) => "tf-shuffle",
            Sampler::Keras(_) => "keras",
            Sampler::Dali(_) => "dali",
            Sampler::Dlio(_) => "dlio",
        }
    }

    /// What it is in the script, in a line.
    pub fn about(&self) -> &'static str {
        match self {
            Sampler::Sequential => "one file after the other, in every epoch",
            Sampler::TorchDistributed(_) => "torch DistributedSampler",
            Sampler::TorchRandom(_) => {
                "torch DataLoader(shuffle=True, generator=G), G seeded with seed"
            }
            Sampler::TorchDefault(_) => {
                "torch DataLoader(shuffle=True) after manual_seed(seed); position and stride count \
                 the default generator's outputs"
            }
            Sampler::TorchSubsetRandom(_) => {
                "torch SubsetRandomSampler over split=; position and gap count outputs before and \
                 between its permutations (0 and 0 with a generator of its own)"
            }
            Sampler::TorchStateful(_) => {
                "torchdata StatefulDataLoader(shuffle=True); stride=2 if it has workers, epoch=1 if persistent ones"
            }
            Sampler::TorchWeighted(_) => {
                "torch WeightedRandomSampler; FILE has a weight a line; position and gap count \
                 outputs before and between its epochs (0 and 0 with a generator of its own)"
            }
            Sampler::Accelerate(_) => "accelerate's seedable sampler, a process's batches",
            Sampler::TimmRepeatAug(_) => "timm RepeatAugSampler",
            Sampler::Shuffle(sampler) => match sampler.algorithm {
                Algorithm::NumpyRandomState => "numpy RandomState(seed).shuffle, or np.random.seed",
                Algorithm::NumpyGenerator => {
                    "numpy default_rng(seed).shuffle; Hugging Face Dataset.shuffle(seed)"
                }
                Algorithm::Python => {
                    "Python random.seed(seed), shuffle or sample=K; a str seed in quotes"
                }
                Algorithm::Libstdcxx => "C++ std::shuffle(.., std::mt19937(seed)) of libstdc++",
            },
            Sampler::TfShuffle(_) => {
                "tf.data shuffle(buffer, seed); without buffer= also list_files(seed=seed)"
            }
            Sampler::Keras(_) => "keras image_dataset_from_directory(seed=seed)",
            Sampler::Dali(_) => "DALI fn.readers.file; world and rank are its shards",
            Sampler::Dlio(_) => "the DLIO benchmark; epoch counts from 1",
        }
    }

    /// Its keys, to be read and set.
    pub fn keys(&mut self) -> Vec<Key<'_>> {
        match self {
            Sampler::Sequential => Vec::new(),
            Sampler::TorchDistributed(sampler) => sampler.keys(),
            Sampler::TorchRandom(sampler) => sampler.keys(),
            Sampler::TorchDefault(sampler) => sampler.keys(),
            Sampler::TorchSubsetRandom(sampler) => sampler.keys(),
            Sampler::TorchStateful(sampler) => sampler.keys(),
            Sampler::TorchWeighted(sampler) => sampler.keys(),
            Sampler::Accelerate(sampler) => sampler.keys(),
            Sampler::TimmRepeatAug(sampler) => sampler.keys(),
            Sampler::Shuffle(sampler) => sampler.keys(),
            Sampler::TfShuffle(sampler) => sampler.keys(),
            Sampler::Keras(sampler) => sampler.keys(),
            Sampler::Dali(sampler) => sampler.keys(),
            Sampler::Dlio(sampler) => sampler.keys(),
        }
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
}

impl fmt::Display for Sampler {
    /// The sampler in plain words: `torch-distributed seed 42 world 2`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())?;
        self.given().iter().try_for_each(|(key, value)| write!(f, " {key} {value}"))
    }
}
