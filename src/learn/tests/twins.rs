//! Orders that look like what is read and are not: with files below the dataset that are no samples,
//! notes and licences, and where readers leave an order.

use rand::SeedableRng;
use rand::rngs::ChaCha8Rng;

use super::shell::{Outcome, Shell, Truth};
use super::sim::{Loader, opened};
use crate::learn::{Decision, Learner, Numbering, Settings};
use crate::order::SampleTable;
use crate::order::samplers::Sampler;
use crate::order::samplers::torch::{Distributed, Random, generator, randperm};

const N: u32 = 1_000;
const GROUP: u64 = 100;

/// What comes out for a job that reads `epochs`, which number the samples, where so many files that
/// are no samples come before them.
fn run(notes: u32, workers: usize, epochs: &[Vec<u32>], seeds: &[u32]) -> Outcome {
    let numbering = |name: &str, samples: std::ops::Range<u32>| Numbering {
        name: name.into(),
        samples: samples.collect(),
        spec: None,
    };
    let numberings = vec![numbering("path", 0..N + notes), numbering("images", notes..N + notes)];
    let learner = Learner::new(Settings::default(), numberings, SampleTable::Files);
    let job = Loader {
        group: GROUP,
        workers,
        batch: 16,
        drop_last: false,
        persistent: false,
        resume: 0,
        lost: 0.0,
        epochs: epochs.to_vec(),
    };
    let truth = Truth { epochs: job.epochs.clone(), seeds: seeds.to_vec(), ..Truth::default() };
    let mut shell = Shell::new(learner, [(GROUP, truth)].into(), 20);
    shell.run(&job.run(1_000, &mut ChaCha8Rng::seed_from_u64(1)));
    shell.outcomes.remove(&GROUP).unwrap_or_default()
}

/// Epochs of the images alone, with the numbers that their files have behind the notes.
fn behind(notes: u32, epochs: impl Iterator<Item = Vec<u32>>) -> Vec<Vec<u32>> {
    let numbered = |epoch: Vec<u32>| epoch.into_iter().map(|image| image + notes).collect();
    epochs.take(4).map(numbered).collect()
}

#[track_caller]
fn is_known(outcome: &Outcome, words: &str, case: &str) {
    let case = format!("{case}: {outcome:?}");
    assert!(outcome.wrong.is_empty() && outcome.withdrawn == 0, "{case}");
    assert!(outcome.titles.iter().all(|title| title.contains(words)), "{case}");
    assert!((1..4).all(|epoch| outcome.opens.get(&epoch).is_some_and(|n| *n <= 24)), "{case}");
    assert!(outcome.foreseen >= 2, "{case}");
}

/// A permutation of two files more that begins two draws earlier differs in two samples only.
#[test]
fn two_notes_are_not_taken_for_the_two_draws_of_a_loaders_own_generator() {
    for notes in 0..4 {
        for persistent_workers in [false, true] {
            for workers in [0, 2, 4, 8] {
                let own = Random { persistent_workers, ..Random::new(42) };
                let epochs = behind(notes, Sampler::TorchRandom(own).epochs(N));
                let outcome = run(notes, workers, &epochs, &[42]);
                let words = if notes == 0 { "after" } else { "in images order" };
                let case = format!("{notes} notes, persistent {persistent_workers}, {workers}");
                is_known(&outcome, words, &case);
            }
        }
    }
}

/// The other way round: two draws that nobody makes.
#[test]
fn who_reads_the_notes_too_is_followed_with_them() {
    for workers in [0, 2, 4, 8] {
        let all = Distributed { seed: 42, ..Distributed::default() };
        let epochs: Vec<Vec<u32>> = (0..4).map(|epoch| all.epoch(N + 2, epoch)).collect();
        let outcome = run(2, workers, &epochs, &[42, 43, 44, 45]);
        is_known(&outcome, "in path order", &format!("counting, {workers} workers"));
        let mut rng = generator(42);
        let epochs: Vec<Vec<u32>> = (0..4).map(|_| randperm(N + 2, &mut rng)).collect();
        let outcome = run(2, workers, &epochs, &[42]);
        is_known(&outcome, "in path order", &format!("going on, {workers} workers"));
    }
}

/// Where the first opens were not seen, nothing tells the two apart but what comes next.
#[test]
fn the_next_epoch_says_which_of_two_orders_it_was() {
    for skip in [0, 2] {
        let files = N + 2 - skip;
        let mut origins = (0..4).map(|epoch| {
            let mut rng = generator(42);
            let before = u64::from(skip) + epoch * (2 * u64::from(files - 1) + 2);
            (0..before).for_each(|_| _ = rng.next_u32());
            randperm(files, &mut rng)
        });
        let mut epochs = behind(skip, origins.by_ref());
        epochs[0].drain(..40);
        let outcome = run(2, 2, &epochs, &[42]);
        let case = format!("{skip}: {outcome:?}");
        assert!((1..4).all(|epoch| outcome.opens.get(&epoch).is_some_and(|n| *n <= 24)), "{case}");
    }
}

#[test]
fn a_drawn_order_that_was_left_is_not_believed_again_in_its_epoch() {
    let sampler = Sampler::TorchDistributed(Distributed { seed: 3, ..Distributed::default() });
    let order = sampler.epochs(5 * N).next().unwrap();
    let all = Numbering { name: "path".into(), samples: (0..5 * N).collect(), spec: None };
    let settings = Settings { crack: false, samplers: vec![sampler], ..Settings::default() };
    let mut learner = Learner::new(settings, vec![all], SampleTable::Files);
    let mut out = Vec::new();
    for task in 0..6 {
        let from = 200 * task as usize;
        let jumps = (0..40).map(|jump| &order[3_800 - 60 * jump - task as usize]);
        for &sample in order[from..from + 200].iter().chain(jumps) {
            learner.apply(opened(task, GROUP, sample), &mut out);
        }
    }
    let committed = |decision: &&Decision| matches!(decision, Decision::Committed(_));
    assert_eq!(out.iter().filter(committed).count(), 1);
}
