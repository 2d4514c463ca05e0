//! Orders that were told.
//!
//! They are hypotheses. If a loader does not read as told, the seed was right as a rule, and another key was
//! wrong. So samplers with the same seed are searched first.

use std::collections::BTreeSet;

use super::indexes::{Indexes, Numbering};
use super::libraries;
use super::origin::Lists;
use crate::order::samplers::torch::{Distributed, Random, Stateful, SubsetRandom};
use crate::order::samplers::{RepeatAug, Sampler};
use crate::order::{Order, OrderSpec};

#[derive(Clone, Debug, PartialEq)]
pub(super) enum ToldOrder {
    /// A sampler draws it over an index.
    Drawn { sampler: Sampler, index: usize },
    /// Its epochs are listed.
    Listed(Lists),
}

impl ToldOrder {
    /// Adds the numbering of an order to `indexes`. `None` if the order draws samples again: a sample has one
    /// place in an epoch here, and the planner follows such an order without the learner.
    pub(super) fn new(
        order: &Order,
        spec: Option<&OrderSpec>,
        indexes: &mut Indexes,
    ) -> Option<Self> {
        let Some((sampler, samples)) = order.drawn_by() else {
            let epochs = 0..order.epochs_listed().unwrap_or(0);
            let all = epochs.map(|epoch| order.epoch(epoch)).collect();
            return Some(ToldOrder::Listed(Lists { all, is_cut: false, is_told: true }));
        };
        if sampler.weights().is_some() || sampler.draws_with_replacement() {
            return None;
        }
        let spec = spec.map(|spec| spec.with_sampler(Sampler::SEQUENTIAL));
        let (name, samples) = ("the told".to_owned(), samples.clone());
        let index = indexes.add_temporary(Numbering { name, samples, spec })?;
        Some(ToldOrder::Drawn { sampler: sampler.clone(), index })
    }

    pub(super) fn index(&self) -> Option<usize> {
        match self {
            ToldOrder::Drawn { index, .. } => Some(*index),
            ToldOrder::Listed(_) => None,
        }
    }
}

/// The seeds of told orders, each once.
pub(super) fn seeds(orders: &[ToldOrder]) -> Vec<u64> {
    let drawn = orders.iter().filter_map(|order| match order {
        ToldOrder::Drawn { sampler, .. } => seed_of(sampler),
        ToldOrder::Listed(_) => None,
    });
    drawn.collect::<BTreeSet<u64>>().into_iter().collect()
}

/// The samplers that told orders may have meant, each once: the told ones with other values of their keys, and
/// others with the same seed. None draws a sample twice in an epoch, as a sample has one place here.
pub(super) fn meant(orders: &[ToldOrder]) -> Vec<Sampler> {
    let mut found: Vec<Sampler> = Vec::new();
    let mut add = |sampler: Sampler| {
        if !sampler.draws_with_replacement() && !found.contains(&sampler) {
            found.push(sampler);
        }
    };
    for order in orders {
        let ToldOrder::Drawn { sampler, .. } = order else { continue };
        settings(sampler).into_iter().for_each(&mut add);
    }
    for seed in seeds(orders) {
        of_torch(seed).into_iter().for_each(&mut add);
        if let Ok(seed) = u32::try_from(seed) {
            libraries::samplers(&[seed]).into_iter().for_each(&mut add);
        }
    }
    found
}

/// Torch's samplers with a seed that differ in their first epochs.
fn of_torch(seed: u64) -> [Sampler; 5] {
    [
        Sampler::TorchDistributed(Distributed { seed, ..Distributed::default() }),
        Sampler::TorchRandom(Random::new(seed)),
        Sampler::TorchSubsetRandom(SubsetRandom { seed, position: 0, gap: 0, epoch: 0 }),
        Sampler::TorchStateful(Stateful { seed, ..Stateful::default() }),
        Sampler::TimmRepeatAug(RepeatAug::default()),
    ]
}

/// Torch's samplers with a seed that draw all epochs from one generator, and other outputs between them.
pub(super) fn of_one_generator(seed: u64) -> [Sampler; 4] {
    let sampler = SubsetRandom { seed, position: 0, gap: 0, epoch: 0 };
    [
        Sampler::TorchRandom(Random::new(seed)),
        Sampler::TorchRandom(Random { persistent_workers: true, ..Random::new(seed) }),
        Sampler::TorchSubsetRandom(sampler),
        Sampler::TorchSubsetRandom(SubsetRandom { position: 2, gap: 2, ..sampler }),
    ]
}

/// The values of keys with few values. A key refuses values that are not its own.
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

/// A told sampler of all ranks with other values of its keys, one at a time. The opens show the rank.
fn settings(sampler: &Sampler) -> Vec<Sampler> {
    let mut whole = sampler.clone();
    for (name, all) in [("rank", "0"), ("world", "1")] {
        if let Some(key) = whole.keys().iter_mut().find(|key| key.name == name) {
            // A world of one is always valid.
            let _ = key.set(all);
        }
    }
    let mut found = vec![sampler.clone(), whole.clone()];
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

/// The seed of a sampler, if that is a number.
fn seed_of(sampler: &Sampler) -> Option<u64> {
    let mut sampler = sampler.clone();
    let keys = sampler.keys();
    keys.iter().find(|key| key.name == "seed")?.text().parse().ok()
}
