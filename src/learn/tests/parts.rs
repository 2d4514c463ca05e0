//! Loaders that have a part of the files: some left out of a list, or one side of a split.

use rand::SeedableRng;
use rand::rngs::ChaCha8Rng;

use super::shell::{Outcome, Shell, Truth};
use super::sim::{Loader, Step, opened, unknowable};
use super::trials::learner;
use crate::learn::libraries::lists;
use crate::learn::{Journal, Learner, Observation};
use crate::order::samplers::torch::{Distributed, generator, randperm, randperm_outputs};
use crate::order::samplers::{Algorithm, PythonSeed, Sampler, Shuffle};

const N: u32 = 5_000;
const GROUP: u64 = 100;
const SEED: u32 = 42;

fn loader(epochs: &[Vec<u32>]) -> Loader {
    Loader {
        group: GROUP,
        workers: 4,
        batch: 32,
        drop_last: false,
        persistent: false,
        resume: 0,
        lost: 0.0,
        epochs: epochs.to_vec(),
    }
}

/// What comes out for a job whose loaders read one after the other in each epoch.
fn run(loaders: &[Loader], seeds: Vec<u32>) -> (Outcome, Shell) {
    run_with(learner(N), loaders, seeds)
}

fn run_with(learner: Learner, loaders: &[Loader], seeds: Vec<u32>) -> (Outcome, Shell) {
    run_until(learner, loaders, seeds, |at| at)
}

/// The same where the workers of each loader end with those of another one.
fn run_until(
    learner: Learner,
    loaders: &[Loader],
    seeds: Vec<u32>,
    ends_with: fn(usize) -> usize,
) -> (Outcome, Shell) {
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    let mut steps = Vec::new();
    for epoch in 0..loaders[0].epochs.len() {
        let base = |at: usize| 1_000 + 10 * (epoch * loaders.len() + at) as u32;
        for (at, loader) in loaders.iter().enumerate() {
            loader.run_epoch(epoch, base(at), &mut rng, &mut steps);
            let over = (0..loaders.len()).filter(|of| ends_with(*of) == at);
            let tasks = over.flat_map(|of| base(of)..base(of) + 4);
            steps.extend(tasks.map(|task| Step::Left { task }));
        }
    }
    let truth = Truth { epochs: loaders[0].epochs.clone(), seeds, ..Truth::default() };
    let mut shell = Shell::new(learner, [(GROUP, truth)].into(), 20);
    shell.run(&steps);
    (shell.outcomes.remove(&GROUP).unwrap_or_default(), shell)
}

/// Epochs of a list, as `DistributedSampler` of seed 3 draws them.
fn distributed(list: &[u32]) -> Vec<Vec<u32>> {
    distributed_by(3, list)
}

fn distributed_by(seed: u64, list: &[u32]) -> Vec<Vec<u32>> {
    let sampler = Distributed { seed, ..Distributed::default() };
    let epoch = |k| sampler.epoch(list.len() as u32, k);
    (0..5).map(|k| epoch(k).iter().map(|at| list[*at as usize]).collect()).collect()
}

fn is_known_from(epoch: usize, outcome: &Outcome) -> bool {
    (epoch..5).all(|k| outcome.opens.get(&k).is_some_and(|opens| *opens <= 64))
}

#[test]
fn a_list_that_drops_some_files_is_known_when_it_was_read() {
    // Where hardly any are, they may be a last batch: not before they were left out twice.
    for (one_in, known) in [(7, 1), (1_000, 2)] {
        let list: Vec<u32> = (N / 4..N + N / 4).filter(|sample| sample % one_in != 3).collect();
        let (outcome, shell) = run(&[loader(&distributed(&list))], (3..8).collect());
        assert!(outcome.wrong.is_empty() && is_known_from(known, &outcome), "{outcome:?}");
        let text = shell.learner.beliefs().next().map(|belief| belief.text).unwrap_or_default();
        assert!(text.contains("in partial path below train order"), "{text}");
    }
}

/// Jobs that each leave out other files read a whole epoch, and end.
fn read_many_parts(learner: &mut Learner) {
    let mut rng = ChaCha8Rng::seed_from_u64(3);
    let mut out = Vec::new();
    for group in 1_000..1_020 {
        let list = unknowable(N, &mut rng).split_off(N as usize / 6);
        let mut all: Vec<Observation> =
            list.iter().map(|at| opened(1, group, at + N / 4)).collect();
        let left = Observation::Exited { process: 1 };
        all.extend([left, opened(2, group, N / 4), Observation::Ended { group }]);
        all.into_iter().for_each(|observation| learner.apply(observation, &mut out));
    }
}

#[test]
fn a_part_is_known_after_many_others() {
    let mut learner = learner(N);
    read_many_parts(&mut learner);
    let list: Vec<u32> = (N / 4..N + N / 4).filter(|sample| sample % 7 != 3).collect();
    // Only a search of all seeds finds these.
    let seed = 3_000_000_000;
    let loader = loader(&distributed_by(seed.into(), &list));
    let (outcome, shell) = run_with(learner, &[loader], (seed..seed + 5).collect());
    assert!(outcome.wrong.is_empty() && is_known_from(2, &outcome), "{outcome:?}");
    assert!(outcome.opens.get(&1).is_some_and(|opens| *opens <= 1_000), "{outcome:?}");
    assert!(shell.learner.shared.indexes.values().count() <= 4 + 40, "bounded");
}

/// The two sides of the training set's list, as a sampler shuffles it, with so many in the first.
fn split(list: &Sampler, first: u32) -> [Vec<u32>; 2] {
    let positions = list.epochs(N).next().unwrap_or_default();
    let mut one: Vec<u32> = positions.iter().map(|position| position + N / 4).collect();
    let other = one.split_off(first as usize);
    [one, other]
}

/// `random_split` of torch, `train_test_split` of scikit-learn and of `datasets`, a list cut in two.
#[test]
fn a_popular_split_is_known_when_it_was_read() {
    let numpy = |algorithm| {
        Sampler::Shuffle(Shuffle {
            seed: PythonSeed::Number(SEED.into()),
            ..Shuffle::new(algorithm)
        })
    };
    let torch = Distributed { seed: SEED.into(), ..Distributed::default() };
    let all = [
        (Sampler::TorchDistributed(torch), N / 5 * 4, 0),
        (numpy(Algorithm::NumpyRandomState), N / 5, 1),
        (numpy(Algorithm::NumpyGenerator), N / 5, 1),
        (numpy(Algorithm::Python), N / 10 * 9, 0),
    ];
    for (list, first, train) in all {
        let sides = split(&list, first);
        let unit = lists(&(0..SEED + 1).collect::<Vec<u32>>()).iter().position(|of| *of == list);
        let seeds = (3..8).chain(unit.map(|unit| unit as u32)).collect();
        let training = loader(&distributed(&sides[train]));
        let validation = loader(&vec![sides[1 - train].clone(); 5]);
        let (outcome, shell) = run(&[training, validation], seeds);
        assert!(is_known_from(1, &outcome), "{list}: {outcome:?}");
        let texts: Vec<String> = shell.learner.beliefs().map(|belief| belief.text).collect();
        let has = |words: &str| texts.iter().any(|text| text.contains(words));
        assert!(has(&format!("split by {list}")) && has("one after the other"), "{texts:?}");
        assert_eq!(outcome.withdrawn, 0, "{list}: {outcome:?}");
    }
}

/// Lightning keeps the workers that train until those that validate have ended.
#[test]
fn a_split_is_known_though_the_workers_of_one_side_stay() {
    let torch = Distributed { seed: SEED.into(), ..Distributed::default() };
    let [train, validate] = split(&Sampler::TorchDistributed(torch), N / 5 * 4);
    let loaders = [loader(&distributed(&train)), loader(&vec![validate; 5])];
    let unit = lists(&(0..SEED + 1).collect::<Vec<u32>>());
    let unit = unit.iter().position(|of| *of == Sampler::TorchDistributed(torch));
    let seeds = (3..8).chain(unit.map(|unit| unit as u32)).collect();
    let (outcome, _) = run_until(learner(N), &loaders, seeds, |_| 1);
    assert!(is_known_from(1, &outcome), "{outcome:?}");
    let first = outcome.opens.get(&0).copied();
    assert!(first.is_some_and(|opens| opens <= 200), "in the first epoch, too: {outcome:?}");
}

/// A job that gives `SubsetRandomSampler` two parts of `randperm` after `torch.manual_seed`.
#[test]
fn subsets_of_the_generator_that_splits_are_known_when_they_were_read() {
    let list = randperm(N, &mut generator(SEED.into()));
    let [train, validate] = [&list[1_000..], &list[..1_000]];
    let mut rng = generator(SEED.into());
    (0..randperm_outputs(N)).for_each(|_| _ = rng.next_u32());
    let mut epochs = [Vec::new(), Vec::new()];
    for _ in 0..5 {
        for (part, epochs) in [train, validate].into_iter().zip(&mut epochs) {
            (0..2).for_each(|_| _ = rng.next_u32());
            let drawn = randperm(part.len() as u32, &mut rng);
            epochs.push(drawn.iter().map(|at| part[*at as usize] + N / 4).collect::<Vec<u32>>());
        }
    }
    let seeds = vec![SEED, SEED * 4];
    let (outcome, shell) = run(&epochs.map(|epochs| loader(&epochs)), seeds);
    assert!(is_known_from(1, &outcome), "{outcome:?}");
    let known = shell.learner.beliefs().filter(|belief| belief.text.contains("one generator for"));
    let texts: Vec<String> = known.map(|belief| belief.text).collect();
    assert_eq!(texts.len(), 2, "{texts:?}");
}

/// The next run does not have its numbering: it has the epochs themselves.
#[test]
fn a_part_is_known_again() {
    let list: Vec<u32> = (N / 4..N + N / 4).filter(|sample| sample % 7 != 3).collect();
    let read = distributed(&list);
    let mut journal = Journal::default();
    let (_, first) = run(&[loader(&read)], (3..8).collect());
    first.learner.records().for_each(|record| journal.add(&record, false));
    let (kept, _) = Journal::decode(&journal.encode(3)).unwrap();
    let mut again = learner(N);
    again.recall(kept);
    let (outcome, _) = run_with(again, &[loader(&read[1..])], Vec::new());
    let opens = outcome.opens.values().copied();
    assert!(outcome.wrong.is_empty() && opens.clone().count() >= 3, "{outcome:?}");
    assert!(opens.clone().take(3).all(|opens| opens <= 40), "{outcome:?}");
}

#[test]
fn what_is_drawn_anew_for_each_epoch_is_no_part() {
    let mut rng = ChaCha8Rng::seed_from_u64(2);
    let epochs: Vec<Vec<u32>> = (0..5)
        .map(|_| unknowable(N, &mut rng)[..4_000].iter().map(|sample| sample + N / 4).collect())
        .collect();
    let (outcome, shell) = run(&[loader(&epochs)], Vec::new());
    assert!(outcome.titles.is_empty(), "{outcome:?}");
    assert!(shell.learner.shared.indexes.values().count() <= 4 + 2 * 2, "bounded");
}
