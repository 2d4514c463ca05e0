//! Jobs that are started again, after the learner has forgotten all but its journal.

use std::collections::BTreeMap;
use std::sync::Arc;

use rand::SeedableRng;
use rand::rngs::ChaCha8Rng;

use super::shell::{Outcome, Shell, Truth, in_library};
use super::sim::{Loader, Step, unknowable};
use super::trials::learner;
use crate::learn::journal::Run;
use crate::learn::origin::Lists;
use crate::learn::{Basis, Journal};
use crate::order::samplers::torch::{Distributed, Random, generator, randperm};
use crate::order::samplers::{Keras, Sampler};

const N: u32 = 5_000;
const GROUP: u64 = 100;

fn loader(epochs: Vec<Vec<u32>>) -> Loader {
    Loader {
        group: GROUP,
        workers: 2,
        batch: 16,
        drop_last: false,
        persistent: false,
        resume: 0,
        lost: 0.0,
        epochs: epochs
            .iter()
            .map(|e| e.iter().map(|position| position + N / 4).collect())
            .collect(),
    }
}

/// Has a job read with what is in the journal; gives what came out, and how many searches were
/// asked for. The journal then has what is known afterwards.
fn run(
    journal: &mut Journal,
    epochs: Vec<Vec<u32>>,
    seeds: &[u32],
    steps: impl Fn(Vec<Step>) -> Vec<Step>,
) -> (Outcome, u32, Basis) {
    let job = loader(epochs);
    let truth = Truth { epochs: job.epochs.clone(), seeds: seeds.to_vec(), ..Truth::default() };
    // What was recorded is in the order of arrival.
    let truth = Truth { slack: 96, parts: true, ..truth };
    let mut shell = Shell::new(learner(N), BTreeMap::from([(GROUP, truth)]), 60);
    shell.learner.recall(journal.clone());
    shell.run(&steps(job.run(1_000, &mut ChaCha8Rng::seed_from_u64(9))));
    for record in shell.learner.records() {
        journal.add(&record, false);
    }
    // As it is kept.
    let (kept, numbering) = Journal::decode(&journal.encode(3)).unwrap();
    journal.detach();
    assert_eq!((&kept, numbering), (&*journal, 3));
    let basis = shell.learner.beliefs().next().map_or(Basis::Unknown, |belief| belief.basis);
    let outcome = shell.outcomes.remove(&GROUP).unwrap_or_default();
    assert!(outcome.wrong.is_empty(), "{:?}", outcome.wrong);
    (outcome, shell.asked, basis)
}

fn all(steps: Vec<Step>) -> Vec<Step> {
    steps
}

/// All of a job's first epoch but some of its end.
fn begun(mut steps: Vec<Step>) -> Vec<Step> {
    steps.truncate(N as usize - 100);
    steps
}

fn epochs(sampler: &Sampler, from: u32, count: usize) -> Vec<Vec<u32>> {
    sampler.epochs(N).skip_epochs(from).take(count).collect()
}

#[test]
fn the_same_run_again_is_known_from_its_first_opens() {
    let own = Sampler::TorchRandom(Random::new(42));
    let distributed = Sampler::TorchDistributed(Distributed { seed: 5, ..Distributed::default() });
    for (sampler, seeds) in [(own, vec![42]), (distributed, vec![5, 6, 7])] {
        let mut journal = Journal::default();
        let (_, asked, _) = run(&mut journal, epochs(&sampler, 0, 3), &seeds, all);
        assert!(asked > 0 && journal.len() == 1);
        let (outcome, asked, basis) = run(&mut journal, epochs(&sampler, 0, 1), &[], begun);
        assert_eq!((asked, basis), (0, Basis::Replayed), "{sampler}");
        assert!(outcome.opens[&0] <= 12, "{outcome:?}");
        // Its second epoch is known as well.
        let (outcome, asked, _) = run(&mut journal, epochs(&sampler, 0, 2), &[], all);
        assert_eq!((asked, outcome.foreseen, journal.len()), (0, 1, 1), "{outcome:?}");
        // Where the first one left off.
        let (outcome, asked, _) = run(&mut journal, epochs(&sampler, 2, 2), &[], all);
        assert!(asked == 0 && outcome.opens[&0] <= 12, "{sampler}: {outcome:?}");
    }
}

#[test]
fn the_next_seed_is_known_from_its_first_opens() {
    let sampler = |seed| Sampler::TorchRandom(Random::new(seed));
    let mut journal = Journal::default();
    run(&mut journal, epochs(&sampler(42), 0, 2), &[42], all);
    let (outcome, asked, _) = run(&mut journal, epochs(&sampler(43), 0, 2), &[], all);
    assert!(asked == 0 && outcome.opens[&0] <= 12 && outcome.foreseen == 1, "{outcome:?}");
    assert_eq!(journal.len(), 2);
}

#[test]
fn seeds_of_the_default_generator_are_known_again() {
    let mut outputs = generator(1234);
    (0..700).for_each(|_| _ = outputs.next_u32());
    let seeds: Vec<u32> =
        (0..4).map(|_| (0..4).map(|_| outputs.next_u32()).last().unwrap()).collect();
    let drawn = || seeds.iter().map(|&seed| randperm(N, &mut generator(u64::from(seed)))).collect();
    let mut journal = Journal::default();
    let (_, asked, _) = run(&mut journal, drawn(), &seeds, all);
    assert!(asked > 0);
    let (outcome, asked, _) = run(&mut journal, drawn(), &[], all);
    assert_eq!((asked, outcome.foreseen), (0, 3), "{outcome:?}");
    assert!(outcome.opens.values().all(|opens| *opens <= 24), "{outcome:?}");
}

#[test]
fn a_sampler_of_another_library_is_known_again() {
    let sampler = Sampler::Keras(Keras { seed: Some(0), ..Keras::default() });
    let mut journal = Journal::default();
    let seeds = [in_library(&sampler)];
    let (outcome, asked, _) = run(&mut journal, epochs(&sampler, 0, 3), &seeds, all);
    assert!(asked > 0 && outcome.opens.len() == 3, "{outcome:?}");
    let (outcome, asked, basis) = run(&mut journal, epochs(&sampler, 0, 1), &[], begun);
    assert_eq!((asked, basis, journal.len()), (0, Basis::Replayed, 1), "{outcome:?}");
    assert!(outcome.opens[&0] <= 16, "{outcome:?}");
    // Where that left off.
    let (outcome, asked, _) = run(&mut journal, epochs(&sampler, 1, 2), &[], all);
    assert!(asked == 0 && outcome.opens[&0] <= 16 && outcome.foreseen == 1, "{outcome:?}");
}

#[test]
fn an_epoch_that_was_read_before_keeps_no_sampler_from_being_found() {
    let sampler = Sampler::Keras(Keras { seed: Some(0), ..Keras::default() });
    let job = epochs(&sampler, 0, 4);
    let list: Arc<[u32]> = job[0].iter().map(|position| position + N / 4).collect();
    let first = Run { lists: Lists { all: [list].into(), ..Lists::default() }, ..Run::default() };
    let (outcome, asked, _) =
        run(&mut Journal { runs: vec![first] }, job, &[in_library(&sampler)], all);
    assert!(asked > 0 && outcome.opens.len() == 4 && outcome.foreseen >= 2, "{outcome:?}");
    assert!(outcome.titles.last().is_some_and(|title| title.contains("keras")), "{outcome:?}");
}

#[test]
fn an_order_that_nobody_can_compute_is_replayed() {
    let mut rng = ChaCha8Rng::seed_from_u64(10);
    let (one, two) = (unknowable(N, &mut rng), unknowable(N, &mut rng));
    // One for all epochs, seen once; and one for each.
    for first in [vec![one.clone()], vec![one.clone(), two.clone()]] {
        let mut journal = Journal::default();
        let (outcome, _, _) = run(&mut journal, first.clone(), &[], all);
        assert!(outcome.opens.is_empty() && journal.len() == 1);
        let (outcome, _, basis) = run(&mut journal, first.clone(), &[], begun);
        assert_eq!(basis, Basis::Replayed);
        assert!(outcome.opens[&0] <= 16, "{outcome:?}");
        let again = if first.len() == 1 { vec![one.clone(); 3] } else { first };
        let (outcome, _, _) = run(&mut journal, again, &[], all);
        assert!(outcome.foreseen > 0, "{outcome:?}");
        assert_eq!(journal.len(), 1);
    }
}

#[test]
fn another_job_is_not_followed_in_what_is_remembered() {
    let mut rng = ChaCha8Rng::seed_from_u64(11);
    let mut journal = Journal::default();
    for _ in 0..6 {
        let drawn = (0..2).map(|_| unknowable(N, &mut rng)).collect();
        let (outcome, _, _) = run(&mut journal, drawn, &[], all);
        assert!(outcome.opens.is_empty(), "{outcome:?}");
    }
    assert_eq!(journal.len(), 6);
    // Other numbers for the samples, of which some are gone.
    let before = journal.clone();
    let back =
        journal.renumbered(|sample| Some(sample + 7)).renumbered(|sample| sample.checked_sub(7));
    assert_eq!(back, before);
    assert!(back.renumbered(|sample| (sample % 3 == 0).then_some(sample)).is_empty());
}

/// The job is killed when so many samples are read.
fn killed(after: usize) -> impl Fn(Vec<Step>) -> Vec<Step> {
    move |mut steps| {
        steps.truncate(after);
        steps.extend([1_000, 1_001].map(|task| Step::Left { task }));
        steps
    }
}

#[test]
fn a_record_that_breaks_off_is_left_at_its_end() {
    let mut rng = ChaCha8Rng::seed_from_u64(12);
    let one = unknowable(N, &mut rng);
    let mut journal = Journal::default();
    let (outcome, ..) = run(&mut journal, vec![one.clone()], &[], killed(N as usize * 41 / 100));
    assert!(outcome.opens.is_empty() && journal.len() == 1);
    let first = journal.clone();
    let (outcome, _, basis) = run(&mut journal, vec![one.clone()], &[], begun);
    assert!(outcome.opens[&0] <= 16, "{outcome:?}");
    // Nothing is said of what comes after the record.
    assert_eq!((outcome.withdrawn, outcome.foreseen, basis), (1, 0, Basis::Unread), "{outcome:?}");
    // A job that goes on where that broke off has read a few of its last samples again.
    let resumed = |steps: Vec<Step>| begun(steps)[N as usize * 38 / 100..].to_vec();
    let (outcome, _, basis) = run(&mut first.clone(), vec![one.clone()], &[], resumed);
    assert_eq!((outcome.withdrawn, basis), (1, Basis::Unread), "{outcome:?}");
    // Once an epoch was read to its end it is known to its end.
    run(&mut journal, vec![one.clone()], &[], all);
    let (outcome, _, basis) = run(&mut journal, vec![one; 2], &[], all);
    assert_eq!((outcome.withdrawn, basis), (0, Basis::Replayed), "{outcome:?}");
    assert!(outcome.foreseen >= 1, "{outcome:?}");
}

#[test]
fn a_record_is_left_where_other_samples_are_read() {
    let mut rng = ChaCha8Rng::seed_from_u64(13);
    let one = unknowable(N, &mut rng);
    let mut journal = Journal::default();
    run(&mut journal, vec![one[..4_000].to_vec()], &[], killed(4_000));
    let job = loader(vec![[&one[..1_000], &one[4_000..], &one[1_000..4_000]].concat()]);
    let mut shell = Shell::new(learner(N), BTreeMap::new(), 60);
    shell.learner.recall(journal);
    let steps = job.run(1_000, &mut ChaCha8Rng::seed_from_u64(9));
    let basis = |shell: &Shell| shell.learner.beliefs().next().map(|belief| belief.basis);
    shell.run(&steps[..900]);
    assert_eq!(basis(&shell), Some(Basis::Replayed));
    shell.run(&steps[900..1_100]);
    assert_eq!((basis(&shell), shell.outcomes[&GROUP].withdrawn), (Some(Basis::Unread), 1));
}
