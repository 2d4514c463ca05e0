//! Orders that somebody told.
//!
//! They are the first that a loader is suspected of. Where it does not read as told, whoever told it
//! knew the seed as a rule, and had another key wrong: so what has the same seed is searched first.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::libraries;
use super::origin::{Law, Lists, Origin};
use super::suspect::{HEAD, Sources, Suspect};
use crate::order::samplers::torch::{Distributed, Random, Stateful, SubsetRandom};
use crate::order::samplers::{RepeatAug, Sampler};

/// An order that somebody told.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Told {
    /// A sampler draws it over an index.
    Drawn { sampler: Sampler, index: usize },
    /// Its epochs are listed.
    Listed(Lists),
}

impl Told {
    /// The numbering that it is drawn over.
    pub(super) fn index(&self) -> Option<usize> {
        match self {
            Told::Drawn { index, .. } => Some(*index),
            Told::Listed(_) => None,
        }
    }
}

impl Sources<'_> {
    /// What was told, from its beginning, and as a loader is in it that began with it.
    pub(super) fn told(&self, suspects: &mut Vec<Suspect>) {
        for told in self.told {
            match told {
                Told::Drawn { sampler, index } => {
                    let n = self.indexes[*index].sequence.len();
                    for epoch in BTreeSet::from([0, self.epoch]) {
                        let (origin, law) = Origin::of(sampler, epoch, n, self.generators);
                        let law = if law == Law::Unknown { Law::Same } else { law };
                        suspects
                            .extend(self.head(*index, origin, law, HEAD).map(Suspect::into_told));
                    }
                }
                Told::Listed(lists) => {
                    let at = self.epoch % lists.all.len().max(1) as u32;
                    for at in BTreeSet::from([0, at]) {
                        let origin = Origin::Listed { lists: lists.clone(), at };
                        let list = lists.all.get(at as usize);
                        suspects.extend(list.map(|list| Suspect::listed(origin, list).into_told()));
                    }
                }
            }
        }
    }
}

/// The seeds of what was told, each once.
pub(super) fn seeds(told: &[Told]) -> Vec<u64> {
    let drawn = told.iter().filter_map(|told| match told {
        Told::Drawn { sampler, .. } => seed_of(sampler),
        Told::Listed(_) => None,
    });
    drawn.collect::<BTreeSet<u64>>().into_iter().collect()
}

/// The samplers that somebody may have meant who told these: with other settings of their keys, and
/// all others with the same seed. Each is another one. None draws a sample again in an epoch: here each
/// sample has one place.
pub(super) fn meant(told: &[Told]) -> Vec<Sampler> {
    let mut found: Vec<Sampler> = Vec::new();
    let mut add = |sampler: Sampler| {
        if !sampler.draws_anew() && !found.contains(&sampler) {
            found.push(sampler);
        }
    };
    for told in told {
        let Told::Drawn { sampler, .. } = told else { continue };
        settings(sampler).into_iter().for_each(&mut add);
    }
    for seed in seeds(told) {
        of_torch(seed).into_iter().for_each(&mut add);
        if let Ok(seed) = u32::try_from(seed) {
            libraries::samplers(&[seed]).into_iter().for_each(&mut add);
        }
    }
    found
}

/// Torch's samplers of a seed that differ in their first epochs.
fn of_torch(seed: u64) -> [Sampler; 5] {
    [
        Sampler::TorchDistributed(Distributed { seed, ..Distributed::default() }),
        Sampler::TorchRandom(Random::new(seed)),
        Sampler::TorchSubsetRandom(SubsetRandom { seed, position: 0, gap: 0, epoch: 0 }),
        Sampler::TorchStateful(Stateful { seed, ..Stateful::default() }),
        Sampler::TimmRepeatAug(RepeatAug::default()),
    ]
}

/// Torch's loaders of a seed that draw all epochs from one generator: what is drawn between them
/// differs.
pub(super) fn of_one_generator(seed: u64) -> [Sampler; 4] {
    let sampler = SubsetRandom { seed, position: 0, gap: 0, epoch: 0 };
    [
        Sampler::TorchRandom(Random::new(seed)),
        Sampler::TorchRandom(Random { persistent_workers: true, ..Random::new(seed) }),
        Sampler::TorchSubsetRandom(sampler),
        Sampler::TorchSubsetRandom(SubsetRandom { position: 2, gap: 2, ..sampler }),
    ]
}

/// What keys with few values may have: to others a key says that they are none of its values.
const VALUES: [&str; 13] = [
    "true",
    "false",
    "none",
    "same",
    "reseed",
    "fresh",
    "again",
    "training",
    "validation",
    "iterative",
    "index",
    "0",
    "1",
];

/// A sampler with other settings of its keys, one at a time; those of the rank are left as the
/// reader's share shows them.
fn settings(told: &Sampler) -> Vec<Sampler> {
    let mut whole = told.clone();
    for (name, all) in [("rank", "0"), ("world", "1")] {
        if let Some(key) = whole.keys().iter_mut().find(|key| key.name == name) {
            // A world of one is always right.
            let _ = key.set(all);
        }
    }
    let mut found = vec![told.clone(), whole.clone()];
    for at in 0..whole.keys().len() {
        for value in VALUES {
            let mut other = whole.clone();
            let is_set = other.keys().get_mut(at).is_some_and(|key| {
                !["seed", "rank", "world", "epoch"].contains(&key.name) && key.set(value).is_ok()
            });
            if is_set && other.validate().is_ok() {
                found.push(other);
            }
        }
    }
    found
}

/// The seed that a sampler was told with, if that is a number.
fn seed_of(sampler: &Sampler) -> Option<u64> {
    let mut sampler = sampler.clone();
    let keys = sampler.keys();
    keys.iter().find(|key| key.name == "seed")?.text().parse().ok()
}

/// Epochs that a told order lists, as they may be suspected.
pub(super) fn lists(epochs: Vec<Arc<[u32]>>) -> Told {
    Told::Listed(Lists { all: epochs.into(), is_cut: false, is_told: true })
}
