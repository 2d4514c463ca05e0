//! Jobs whose order of arrival is not that of the epoch before, though it may look so.

use std::collections::BTreeSet;

use rand::SeedableRng;
use rand::rngs::ChaCha8Rng;
use rand::seq::SliceRandom;

use super::sim::{Step, merge, opened, reader, unknowable};
use crate::learn::{Decision, Learner, Numbering, Observation, Settings};
use crate::order::SampleTable;

const GROUP: u64 = 100;
const WORKERS: u32 = 4;

/// One epoch: what each worker reads, by tasks from `base` on, of which either may be ahead.
fn epoch(number: usize, base: u32, parts: &[Vec<u32>], rng: &mut ChaCha8Rng) -> Vec<Step> {
    let readers = (base..).zip(parts).map(|(task, part)| reader(task, GROUP, part));
    let mut steps = merge(readers.collect(), rng);
    for step in &mut steps {
        if let Step::Open { epoch, .. } = step {
            *epoch = number;
        }
    }
    steps
}

/// How far the orders that are told for an epoch are from what it reads, each as a share of what is
/// left: a third where one has nothing to do with the other.
fn errors(n: u32, epochs: &[Vec<Step>], stay: bool) -> Vec<f64> {
    let names = Numbering { name: "path".into(), samples: (0..n).collect(), spec: None };
    let mut learner = Learner::new(Settings::default(), vec![names], SampleTable::Files);
    let mut out = Vec::new();
    learner.apply(Observation::Cached { all: true }, &mut out);
    let mut errors = Vec::new();
    for steps in epochs {
        for (at, step) in (1..).zip(steps) {
            let Step::Open { task, group, sample, .. } = *step else { continue };
            learner.apply(opened(task, group, sample), &mut out);
            for decision in out.drain(..) {
                if let Decision::Committed(known) | Decision::EpochBegan(known) = decision {
                    errors.push(error(&known.order.epoch(0), &steps[at..]));
                }
            }
        }
        let tasks = steps.iter().filter_map(|step| match *step {
            Step::Open { task, .. } if !stay => Some(task),
            _ => None,
        });
        tasks.collect::<BTreeSet<u32>>().into_iter().for_each(|task| {
            learner.apply(Observation::Exited { process: task.into() }, &mut out);
        });
    }
    errors
}

/// How far apart, on average, samples are in what was told and in what is read; of a few that are left
/// that says little.
fn error(told: &[u32], read: &[Step]) -> f64 {
    let read: Vec<u32> = read
        .iter()
        .filter_map(|step| match *step {
            Step::Open { sample, .. } if told.contains(&sample) => Some(sample),
            _ => None,
        })
        .collect();
    let place = |sample| told.iter().position(|told| *told == sample).unwrap_or(0);
    let apart: usize = read.iter().enumerate().map(|(at, s)| place(*s).abs_diff(at)).sum();
    apart as f64 / (read.len() * (read.len() + 64)).max(1) as f64
}

/// The shards of each worker: every fourth.
fn own(shards: &[u32]) -> Vec<Vec<u32>> {
    let every = |worker: u32| shards.iter().skip(worker as usize).step_by(WORKERS as usize);
    (0..WORKERS).map(|worker| every(worker).copied().collect()).collect()
}

/// Nothing is told, or what is read.
fn assert_right(case: &str, errors: &[f64]) {
    assert!(errors.iter().all(|error| *error < 0.15), "{case}: {errors:.2?}");
}

/// Each worker shuffles its own shards, as webdataset's do.
#[test]
fn shards_that_each_worker_shuffles_anew_are_in_no_order() {
    for shards in [20, 64, 300] {
        for seed in 0..40 {
            let mut rng = ChaCha8Rng::seed_from_u64(seed);
            let mut one = |number: usize| {
                let mut parts = own(&(0..shards).collect::<Vec<u32>>());
                parts.iter_mut().for_each(|part| part.shuffle(&mut rng));
                epoch(number, 1_000 + 10 * number as u32, &parts, &mut rng)
            };
            let epochs: Vec<Vec<Step>> = (0..4).map(&mut one).collect();
            let errors = errors(shards, &epochs, seed % 2 == 0);
            assert_right(&format!("{shards} shards, {seed}"), &errors);
        }
    }
}

/// Some threads read a part of a list each, as fio's do. Another one has gone through all of it
/// before.
#[test]
fn parts_that_are_read_side_by_side_are_not_read_one_after_the_other() {
    for n in [20, 64, 256, 1_000, 5_000] {
        for seed in 0..10 {
            let mut rng = ChaCha8Rng::seed_from_u64(seed);
            let list = unknowable(n, &mut rng);
            let parts: Vec<Vec<u32>> = list.chunks(n as usize / 4).map(<[u32]>::to_vec).collect();
            let all = std::slice::from_ref(&list);
            let mut epochs = vec![epoch(0, 900, all, &mut rng)];
            epochs.extend((1..3).map(|number| epoch(number, 1_000, &parts, &mut rng)));
            assert_right(&format!("{n}, {seed}"), &errors(n, &epochs, seed % 2 == 0));
        }
    }
}

/// The threads of a pool take one after the other of a list that is drawn anew in each epoch.
#[test]
fn lists_that_a_pool_reads_are_in_no_order() {
    for n in [20, 64, 300] {
        for seed in 0..40 {
            let mut rng = ChaCha8Rng::seed_from_u64(seed);
            let mut one =
                |number: usize| epoch(number, 1_000, &own(&unknowable(n, &mut rng)), &mut rng);
            let epochs: Vec<Vec<Step>> = (0..4).map(&mut one).collect();
            assert_right(&format!("{n}, {seed}"), &errors(n, &epochs, true));
        }
    }
}

/// The same list again in each epoch is the one before.
#[test]
fn a_list_that_is_read_again_is_as_before() {
    for n in [64, 300, 5_000] {
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        let list = unknowable(n, &mut rng);
        let epochs: Vec<Vec<Step>> =
            (0..3).map(|number| epoch(number, 1_000, &own(&list), &mut rng)).collect();
        let errors = errors(n, &epochs, true);
        assert!(!errors.is_empty(), "{n}");
        assert_right(&format!("{n}"), &errors);
    }
}
