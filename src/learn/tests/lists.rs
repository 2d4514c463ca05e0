//! Lists that scripts shuffle by themselves: once, or anew before every epoch.

use rand::SeedableRng;
use rand::rngs::ChaCha8Rng;

use super::shell::{Outcome, Shell, Truth, in_library};
use super::sim::Loader;
use super::trials::learner;
use crate::learn::{Journal, Learner};
use crate::order::samplers::{Algorithm, PythonSeed, Reshuffle, Sampler, Shuffle};

const N: u32 = 2_000;
const GROUP: u64 = 100;
const SEED: u32 = 42;
const ALGORITHMS: [Algorithm; 3] =
    [Algorithm::NumpyRandomState, Algorithm::NumpyGenerator, Algorithm::Python];

/// Five epochs of a list of the training set.
fn epochs(algorithm: Algorithm, reshuffle: Reshuffle) -> Vec<Vec<u32>> {
    let seed = PythonSeed::Number(SEED.into());
    let list = Sampler::Shuffle(Shuffle { seed, reshuffle, ..Shuffle::new(algorithm) });
    let numbered = |epoch: Vec<u32>| epoch.into_iter().map(|sample| sample + N / 4).collect();
    list.epochs(N).take(5).map(numbered).collect()
}

/// What comes out for a job that reads them, and what the learner then knows.
fn run(learner: Learner, epochs: &[Vec<u32>]) -> (Outcome, Shell) {
    let job = Loader {
        group: GROUP,
        workers: 4,
        batch: 16,
        drop_last: false,
        persistent: false,
        resume: 0,
        lost: 0.0,
        epochs: epochs.to_vec(),
    };
    let seed = PythonSeed::Number(SEED.into());
    let list = |algorithm| Sampler::Shuffle(Shuffle { seed, ..Shuffle::new(algorithm) });
    let seeds = vec![in_library(&list(Algorithm::NumpyGenerator))];
    let truth = Truth { epochs: job.epochs.clone(), seeds, ..Truth::default() };
    let mut shell = Shell::new(learner, [(GROUP, truth)].into(), 20);
    shell.run(&job.run(1_000, &mut ChaCha8Rng::seed_from_u64(1)));
    (shell.outcomes.remove(&GROUP).unwrap_or_default(), shell)
}

#[test]
fn a_list_is_followed_whatever_is_done_to_it_before_an_epoch() {
    for algorithm in ALGORITHMS {
        for each in [Reshuffle::Same, Reshuffle::Reseed, Reshuffle::Fresh, Reshuffle::Again] {
            let (outcome, _) = run(learner(N), &epochs(algorithm, each));
            let case = format!("{algorithm:?} {each:?}: {outcome:?}");
            assert!(outcome.wrong.is_empty(), "{case}");
            assert!((1..5).all(|k| outcome.opens.get(&k).is_some_and(|n| *n <= 24)), "{case}");
            assert!(outcome.foreseen >= 3, "{case}");
        }
    }
}

/// As Keras's `on_epoch_end`, which shuffles when an epoch is over.
#[test]
fn a_list_that_is_shuffled_after_its_first_epoch_is_followed_too() {
    for algorithm in ALGORITHMS {
        let mut read = epochs(algorithm, Reshuffle::Again);
        read.insert(0, (N / 4..N + N / 4).collect());
        let (outcome, _) = run(learner(N), &read);
        let case = format!("{algorithm:?}: {outcome:?}");
        assert!((2..6).all(|k| outcome.opens.get(&k).is_some_and(|n| *n <= 24)), "{case}");
    }
}

#[test]
fn a_list_that_is_shuffled_anew_is_known_again() {
    for each in [Reshuffle::Reseed, Reshuffle::Fresh, Reshuffle::Again] {
        let read = epochs(Algorithm::Python, each);
        let mut journal = Journal::default();
        let (_, first) = run(learner(N), &read);
        first.learner.records().for_each(|record| journal.add(&record, false));
        let (kept, _) = Journal::decode(&journal.encode(3)).unwrap();
        let mut again = learner(N);
        again.recall(kept);
        let (outcome, shell) = run(again, &read);
        let case = format!("{each:?}: {outcome:?}");
        assert!(shell.asked == 0 && outcome.wrong.is_empty() && outcome.foreseen == 4, "{case}");
    }
}
