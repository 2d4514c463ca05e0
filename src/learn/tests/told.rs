//! Orders that somebody told, right or nearly so.

use std::collections::BTreeSet;
use std::sync::Arc;

use rand::rngs::ChaCha8Rng;
use rand::{RngExt, SeedableRng};

use super::shell::{Outcome, Shell, Truth};
use super::sim::{Loader, Step, opened, unknowable};
use crate::ids::FileId;
use crate::learn::{Belief, Decision, Learner, Numbering, Observation, Settings};
use crate::order::samplers::torch::{
    DefaultGenerator, Distributed, Random, Stateful, Weighted, Weights,
};
use crate::order::samplers::{Algorithm, PythonSeed, RepeatAug, Reshuffle, Sampler, Shuffle};
use crate::order::spec::SequenceSpec;
use crate::order::{Order, OrderSpec, SampleTable};

const N: u32 = 1_200;
const GROUP: u64 = 100;

/// A dataset of a training set behind a validation set, and two ways to number each. Nothing is
/// searched but what costs little.
fn learner() -> Learner {
    let numbering = |spec: &str, samples: Vec<u32>| {
        let (name, samples, spec) = (spec.into(), samples.into(), spec.parse().ok());
        Numbering { name, samples, spec }
    };
    let numberings = vec![
        numbering("sequential", (0..N + N / 4).collect()),
        numbering("sequential:root=train", (N / 4..N + N / 4).collect()),
        numbering("sequential:root=val", (0..N / 4).collect()),
        numbering("sequential:index=name,root=train", (N / 4..N + N / 4).rev().collect()),
    ];
    let settings = Settings { crack: false, ..Settings::default() };
    Learner::new(settings, numberings, SampleTable::Files)
}

/// Tells an order of the training set, or of all files.
fn tell(learner: &mut Learner, spec: &str) -> Vec<Decision> {
    let spec: OrderSpec = spec.parse().unwrap();
    let SequenceSpec::Sampler(sampler) = &spec.sequence else { panic!("{spec}") };
    tell_drawn(learner, &spec, sampler)
}

fn tell_drawn(learner: &mut Learner, spec: &OrderSpec, sampler: &Sampler) -> Vec<Decision> {
    let first = if spec.filter.root == "train" { N / 4 } else { 0 };
    let files: Vec<FileId> = (first..N + N / 4).map(FileId).collect();
    let order = Order::drawn(sampler.clone(), &files, "path order").unwrap();
    let mut out = Vec::new();
    learner.tell(&order, Some(spec), &mut out);
    out
}

/// The epochs of a sampler over the training set.
fn drawn(sampler: &Sampler) -> impl Iterator<Item = Vec<u32>> {
    let numbered = |epoch: Vec<u32>| epoch.into_iter().map(|at| at + N / 4).collect();
    sampler.epochs(N).map(numbered)
}

fn job(epochs: Vec<Vec<u32>>) -> Loader {
    Loader {
        group: GROUP,
        workers: 2,
        batch: 16,
        drop_last: false,
        persistent: false,
        resume: 0,
        lost: 0.0,
        epochs,
    }
}

fn shell(learner: Learner, job: &Loader) -> Shell {
    let truth = Truth { epochs: job.epochs.clone(), ..Truth::default() };
    Shell::new(learner, [(GROUP, truth)].into(), 20)
}

/// What a job does whose workers have ended before those of the next epoch begin.
fn steps(job: &Loader) -> Vec<Step> {
    let (mut rng, mut steps) = (ChaCha8Rng::seed_from_u64(1), Vec::new());
    for (epoch, base) in (0..job.epochs.len()).zip((1_000..).step_by(2)) {
        job.run_epoch(epoch, base, &mut rng, &mut steps);
        steps.extend((base..base + 2).map(|task| Step::Left { task }));
    }
    steps
}

fn read(learner: &mut Learner, task: u32, samples: &[u32]) -> Vec<Decision> {
    let mut out = Vec::new();
    for &sample in samples {
        learner.apply(opened(task, GROUP, sample), &mut out);
    }
    out
}

/// What comes out for a job that reads these epochs of the training set, the first of them not seen
/// if it is `missed`.
fn run(mut learner: Learner, told: &str, read: &Sampler, missed: bool) -> (Outcome, Shell) {
    if !told.is_empty() {
        let out = tell(&mut learner, told);
        assert!(out.is_empty(), "{out:?}");
    }
    let job = job(drawn(read).skip(usize::from(missed)).take(4).collect());
    let mut shell = shell(learner, &job);
    shell.run(&job.run(1_000, &mut ChaCha8Rng::seed_from_u64(1)));
    (shell.outcomes.remove(&GROUP).unwrap_or_default(), shell)
}

fn belief(shell: &Shell) -> Belief {
    let beliefs: Vec<Belief> = shell.learner.beliefs().collect();
    let [belief] = &beliefs[..] else { panic!("{beliefs:?}") };
    belief.clone()
}

/// Whether nothing was wrong but what the first epoch seemed to say of the second.
fn is_foreseen_only(outcome: &Outcome) -> bool {
    outcome.wrong.iter().all(|words| words.starts_with("epoch 0 foresaw "))
}

fn own(seed: u64, persistent_workers: bool) -> Sampler {
    Sampler::TorchRandom(Random { persistent_workers, ..Random::new(seed) })
}

#[test]
fn what_is_read_as_told_needs_no_search() {
    let seed = PythonSeed::Number(77_777_777);
    let list = Shuffle { seed, reshuffle: Reshuffle::Again, ..Shuffle::new(Algorithm::Python) };
    let default = DefaultGenerator { seed: 9, position: 70_003, ..DefaultGenerator::default() };
    for read in [
        own(123_456_789, false),
        Sampler::TorchDistributed(Distributed { seed: 123_456_789, ..Distributed::default() }),
        Sampler::TorchDefault(default),
        Sampler::TorchStateful(Stateful { seed: 123_456_789, stride: 2, ..Stateful::default() }),
        Sampler::Shuffle(list),
    ] {
        let spec = learner().shared.indexes[1].spec.clone().unwrap().with_sampler(read.clone());
        let (outcome, shell) = run(learner(), &spec.to_string(), &read, false);
        let case = format!("{read}: {outcome:?}");
        assert!(outcome.wrong.is_empty() && shell.asked == 0, "{case}");
        assert!((0..4).all(|k| outcome.opens.get(&k).is_some_and(|n| *n <= 24)), "{case}");
        assert!(outcome.foreseen >= 3, "{case}");
    }
}

/// Told, what is read, and what should have been told.
#[test]
fn a_told_seed_with_another_setting_is_found_and_said() {
    let seed = 123_456_789;
    let ranks = Distributed { seed, ..Distributed::default() };
    let list = Shuffle { seed: PythonSeed::Number(seed), ..Shuffle::new(Algorithm::Python) };
    let stateful = Stateful { seed, ..Stateful::default() };
    for (told, read, fix) in [
        (
            "torch-random:seed=123456789,root=train",
            own(seed, true),
            "torch-random:seed=123456789,persistent_workers=true,root=train",
        ),
        (
            "torch-distributed:seed=123456789,root=train",
            Sampler::TorchDistributed(Distributed { set_epoch: false, ..ranks }),
            "torch-distributed:seed=123456789,set_epoch=false,root=train",
        ),
        (
            "torch-distributed:seed=123456789",
            Sampler::TorchDistributed(ranks),
            "torch-distributed:seed=123456789,root=train",
        ),
        (
            "torch-random:seed=123456789,root=train",
            Sampler::TorchDistributed(ranks),
            "torch-distributed:seed=123456789,root=train",
        ),
        (
            "torch-distributed:seed=123456789,root=train",
            Sampler::TorchDistributed(Distributed { epoch: 3, ..ranks }),
            "torch-distributed:seed=123456792,root=train",
        ),
        (
            "torch-random:seed=123456789,root=train",
            Sampler::TorchDefault(DefaultGenerator { seed, ..DefaultGenerator::default() }),
            "torch-default:seed=123456789,root=train",
        ),
        (
            "python-random:seed=123456789,root=train",
            Sampler::Shuffle(Shuffle { reshuffle: Reshuffle::Fresh, ..list }),
            "python-random:seed=123456789,epochs=fresh,root=train",
        ),
        (
            "numpy-generator:seed=7,root=train",
            Sampler::TorchStateful(Stateful { seed: 7, stride: 2, ..stateful }),
            "torch-subset-random:seed=",
        ),
    ] {
        let (outcome, shell) = run(learner(), told, &read, false);
        let case = format!("told {told}, read {read}: {outcome:?}");
        assert!(is_foreseen_only(&outcome), "{case}");
        let opens = |epoch: usize| outcome.opens.get(&epoch).copied().unwrap_or(u32::MAX);
        assert!((1..4).all(|epoch| opens(epoch) <= 24), "{case}");
        assert!(opens(0) <= 200, "{case}");
        let said = belief(&shell).spec.map(|spec| spec.to_string()).unwrap_or_default();
        assert!(said.starts_with(fix), "{said}: {case}");
        // What is said is what is read.
        let again: OrderSpec = said.parse().unwrap();
        let SequenceSpec::Sampler(again) = again.sequence else { panic!("{said}") };
        assert!(again.epochs(N).take(4).eq(read.epochs(N).take(4)), "{said}: {case}");
    }
}

/// Samples that are drawn again are no steps through an order: nothing is believed that has to be taken
/// back.
#[test]
fn weighted_draws_are_left_to_the_planner() {
    let spec: OrderSpec = "torch-weighted:seed=123456789,weights=w,root=train".parse().unwrap();
    let values: Vec<f64> = (0..N).map(|at| f64::from(1 + at % 7)).collect();
    let (seed, weights) = (123_456_789, Weights::of("w", &values));
    let told = Weighted { seed, weights, ..Weighted::default() };
    for (position, gap) in [(2, 2), (0, 0)] {
        let read = Sampler::TorchWeighted(Weighted { position, gap, ..told.clone() });
        let mut learner = learner();
        let out = tell_drawn(&mut learner, &spec, &Sampler::TorchWeighted(told.clone()));
        assert!(out.is_empty(), "{out:?}");
        let (outcome, shell) = run(learner, "", &read, false);
        assert!(outcome.titles.is_empty() && outcome.withdrawn == 0, "{read}: {outcome:?}");
        assert_eq!(belief(&shell).spec, None, "{read}");
    }
}

#[test]
fn draws_with_replacement_are_left_to_the_planner() {
    for (keys, epoch) in [(",replacement=true", 0), (",replacement=true", 2), ("", 0)] {
        let drawn = |replacement, epoch| {
            let seeded = Random::new(123_456_789);
            Sampler::TorchRandom(Random { replacement, epoch, ..seeded })
        };
        let spec = format!("torch-random:seed=123456789{keys},root=train").parse().unwrap();
        let mut learner = learner();
        let out = tell_drawn(&mut learner, &spec, &drawn(!keys.is_empty(), 0));
        assert!(out.is_empty(), "{out:?}");
        let (outcome, _) = run(learner, "", &drawn(true, epoch), false);
        assert!(outcome.titles.is_empty() && outcome.withdrawn == 0, "{spec}: {outcome:?}");
    }
}

#[test]
fn a_popular_seed_is_found_in_a_later_epoch_of_its_generator() {
    for read in [own(0, false), own(0, true)] {
        let (outcome, shell) = run(learner(), "", &read, true);
        let case = format!("{read}: {outcome:?}");
        assert!(outcome.wrong.is_empty() && outcome.opens.contains_key(&0), "{case}");
        assert!((1..4).all(|k| outcome.opens.get(&k).is_some_and(|n| *n <= 24)), "{case}");
        let spec = belief(&shell).spec.map(|spec| spec.to_string()).unwrap_or_default();
        assert!(spec.starts_with("torch-random:seed=0,epoch=1"), "{spec}");
    }
}

#[test]
fn where_nothing_is_known_the_part_that_is_read_is() {
    let mut rng = ChaCha8Rng::seed_from_u64(2);
    let weighted: Vec<u32> = (0..4_000).map(|_| N / 4 + rng.random_range(0..N)).collect();
    let mut learner = learner();
    tell(&mut learner, "torch-distributed");
    read(&mut learner, 1, &weighted);
    let loader = learner.beliefs().next().unwrap().loader;
    let part = learner.within(loader).map(OrderSpec::to_string);
    assert_eq!(part.as_deref(), Some("sequential:root=train"));
    assert_eq!(learner.latest(loader), weighted.last().copied());
}

#[test]
fn samples_that_are_listed_are_known_as_they_are_told() {
    let sampler = Sampler::TimmRepeatAug(RepeatAug::default());
    let epochs: Vec<Vec<u32>> = sampler.epochs(N).take(4).collect();
    let lists: Vec<Arc<[u32]>> = epochs.iter().map(|epoch| epoch.as_slice().into()).collect();
    let order = Order::listed("written", lists, SampleTable::Files).unwrap();
    let mut learner = learner();
    let mut out = Vec::new();
    learner.tell(&order, None, &mut out);
    for (task, epoch) in (1..).zip(&epochs) {
        read(&mut learner, task, epoch);
        learner.apply(Observation::Exited { process: task.into() }, &mut out);
    }
    let belief = learner.beliefs().next().unwrap();
    assert!(belief.text.contains("epoch 3 of the order that was told"), "{}", belief.text);
    assert_eq!((belief.epoch, belief.foreseen), (3, 3), "{}", belief.text);
}

#[test]
fn a_list_is_known_that_is_told_while_its_job_reads() {
    let epoch = unknowable(N, &mut ChaCha8Rng::seed_from_u64(4));
    let lists = vec![epoch.as_slice().into()];
    let order = Order::listed("written", lists, SampleTable::Files).unwrap();
    let mut learner = learner();
    let mut out = read(&mut learner, 1, &epoch[..40]);
    let is_wanted = |decision: &Decision| matches!(decision, Decision::SearchWanted { .. });
    assert!(out.iter().any(is_wanted), "{out:?}");
    learner.tell(&order, None, &mut out);
    let then = read(&mut learner, 1, &epoch[40..50]);
    let is_known = |decision: &Decision| matches!(decision, Decision::Committed(_));
    assert!(then.iter().any(is_known), "{then:?}");
    let is_over = |decision: &Decision| matches!(decision, Decision::SearchOver { .. });
    assert!(then.iter().any(is_over), "{then:?}");
}

/// Told for each fold of a dataset, with a list of its own.
#[test]
fn numberings_of_told_orders_are_forgotten_with_these() {
    let mut learner = learner();
    let count = |learner: &Learner| learner.shared.indexes.values().count();
    let known = count(&learner);
    let sampler = Sampler::TorchDistributed(Distributed { seed: 5, ..Distributed::default() });
    let list = |fold: u32| (0..N).filter(move |sample| sample % 50 != fold);
    let tell = |learner: &mut Learner, fold: u32| {
        let files: Vec<FileId> = list(fold).map(FileId).collect();
        let order = Order::drawn(sampler.clone(), &files, "fold").unwrap();
        learner.tell(&order, None, &mut Vec::new());
    };
    tell(&mut learner, 0);
    let first: Vec<u32> = list(0).collect();
    let epochs = sampler.epochs(first.len() as u32).take(2);
    let epochs: Vec<Vec<u32>> =
        epochs.map(|epoch| epoch.iter().map(|at| first[*at as usize]).collect()).collect();
    read(&mut learner, 1, &epochs[0][..200]);
    (1..50).for_each(|fold| tell(&mut learner, fold));
    // Those that are told, and the one that is read.
    assert!(count(&learner) <= known + 16 + 1, "{}", count(&learner));
    read(&mut learner, 1, &epochs[0][200..]);
    learner.apply(Observation::Exited { process: 1 }, &mut Vec::new());
    read(&mut learner, 2, &epochs[1]);
    let belief = learner.beliefs().next().unwrap();
    assert_eq!((belief.epoch, belief.foreseen), (1, 1), "{}", belief.text);
}

/// A job may read all files in the order of their names before it trains, or a few others.
#[test]
fn what_is_read_before_a_sampler_is_none_of_its_epochs() {
    let others = unknowable(N / 4, &mut ChaCha8Rng::seed_from_u64(3));
    let before = [(N / 4..N + N / 4).collect(), others[..100].to_vec()];
    let seed = 123_456_789;
    let default = DefaultGenerator { seed, position: 7, ..DefaultGenerator::default() };
    for (is_told, read) in [
        (false, Sampler::TorchDistributed(Distributed::default())),
        (true, Sampler::TorchDistributed(Distributed { seed, ..Distributed::default() })),
        (false, own(0, false)),
        (true, own(seed, false)),
        (true, Sampler::TorchDefault(default)),
    ] {
        let spec = learner().shared.indexes[1].spec.clone().unwrap().with_sampler(read.clone());
        for before in &before {
            let job = job(std::iter::once(before.clone()).chain(drawn(&read).take(4)).collect());
            let mut shell = shell(learner(), &job);
            if is_told {
                tell(&mut shell.learner, &spec.to_string());
            }
            let mut said = BTreeSet::new();
            for steps in steps(&job).chunks(N as usize / 4) {
                shell.run(steps);
                said.extend(belief(&shell).spec.map(|spec| spec.to_string()));
            }
            said.retain(|said| !said.starts_with("sequential:"));
            let outcome = &shell.outcomes[&GROUP];
            let case = format!("{read} after {} samples: {outcome:?}", before.len());
            assert!(is_foreseen_only(outcome), "{case}");
            assert_eq!(said, BTreeSet::from([spec.to_string()]), "{case}");
        }
    }
}

#[test]
fn epochs_that_were_read_before_their_order_was_told_are_the_sampler_s() {
    let seed = 123_456_789;
    for read in [
        Sampler::TorchDistributed(Distributed { seed, ..Distributed::default() }),
        own(seed, false),
    ] {
        let told = learner().shared.indexes[1].spec.clone().unwrap().with_sampler(read.clone());
        let job = job(drawn(&read).take(4).collect());
        let (mut shell, steps) = (shell(learner(), &job), steps(&job));
        let (first, rest) = steps.split_at(N as usize * 3 / 2);
        shell.run(first);
        let out = tell(&mut shell.learner, &told.to_string());
        shell.heed(out, 0);
        shell.run(rest);
        let said = belief(&shell).spec.map(|spec| spec.to_string());
        let outcome = &shell.outcomes[&GROUP];
        assert_eq!(said, Some(told.to_string()), "{outcome:?}");
        assert!(outcome.wrong.is_empty(), "{outcome:?}");
    }
}
