//! Jobs with something special about them.

use std::collections::BTreeMap;

use rand::SeedableRng;
use rand::rngs::ChaCha8Rng;

use super::shell::{Shell, Truth};
use super::sim::{Loader, Step, merge, opened, reader, unknowable};
use super::trials::learner;
use crate::learn::{Basis, Decision, Learner, Numbering, Observation, Record, Settings, samples};
use crate::order::SampleTable;
use crate::order::samplers::torch::{Distributed, generator, randperm};

const N: u32 = 5_000;

/// A loader of the training set, whose numbers begin at `N / 4`.
fn loader(group: u64, epochs: &[Vec<u32>]) -> Loader {
    let files = |epoch: &Vec<u32>| epoch.iter().map(|position| position + N / 4).collect();
    Loader {
        group,
        workers: 4,
        batch: 32,
        drop_last: false,
        persistent: false,
        resume: 0,
        lost: 0.0,
        epochs: epochs.iter().map(files).collect(),
    }
}

fn truth(loader: &Loader, seeds: &[u32]) -> Truth {
    Truth { epochs: loader.epochs.clone(), seeds: seeds.to_vec(), ..Truth::default() }
}

fn perm(seed: u32) -> Vec<u32> {
    randperm(N, &mut generator(u64::from(seed)))
}

fn beliefs(shell: &Shell, group: u64) -> Vec<(Basis, String)> {
    let of_it = shell.learner.beliefs().filter(|belief| belief.group == group);
    of_it.map(|belief| (belief.basis, belief.text)).collect()
}

#[test]
fn ranks_on_one_machine_learn_from_each_other() {
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    let rank = |rank| {
        let sampler = Distributed { seed: 7, world: 4, rank, ..Distributed::default() };
        let epochs: Vec<Vec<u32>> = (0..3).map(|epoch| sampler.epoch(N, epoch)).collect();
        loader(100 + u64::from(rank), &epochs)
    };
    let ranks: Vec<Loader> = (0..4).map(rank).collect();
    let runs: Vec<Vec<Step>> =
        (0..).zip(&ranks).map(|(at, rank)| rank.run(1_000 * (at + 1), &mut rng)).collect();
    let truths = ranks.iter().map(|rank| (rank.group, truth(rank, &[7, 8, 9]))).collect();
    let mut shell = Shell::new(learner(N), truths, 60);
    shell.run(&merge(runs.into_iter().map(Into::into).collect(), &mut rng));
    for (at, rank) in ranks.iter().enumerate() {
        let outcome = &shell.outcomes[&rank.group];
        assert!(outcome.wrong.is_empty(), "{:?}", outcome.wrong);
        assert_eq!(outcome.opens.len(), 3, "each epoch is known");
        assert!(outcome.titles[0].contains(&format!("rank {at} of 4")), "{:?}", outcome.titles);
    }
    let asked = shell.asked;
    assert!(asked < 3 * 4, "{asked} searches for one seed");
}

#[test]
fn a_validation_loader_of_the_same_process_is_another_loader() {
    let mut rng = ChaCha8Rng::seed_from_u64(2);
    for persistent in [false, true] {
        let training = loader(100, &[perm(40), perm(41), perm(42)]);
        let validation = Loader { epochs: vec![(0..N / 4).collect(); 3], ..loader(100, &[]) };
        let mut steps = Vec::new();
        for epoch in 0..3 {
            for (at, one) in [&training, &validation].into_iter().enumerate() {
                let kept = if persistent { 0 } else { epoch as u32 };
                let base = 1_000 + 100 * at as u32 + 10 * kept;
                one.run_epoch(epoch, base, &mut rng, &mut steps);
                if !persistent {
                    steps.extend((base..base + 4).map(|task| Step::Left { task }));
                }
            }
        }
        let truths = BTreeMap::from([(100, truth(&training, &[40, 41, 42]))]);
        let mut shell = Shell::new(learner(N), truths, 60);
        shell.run(&steps);
        let texts = beliefs(&shell, 100);
        assert_eq!(texts.len(), 2, "{texts:?}");
        let has = |words: &str| texts.iter().any(|(_, text)| text.contains(words));
        assert!(has("seed 42") && has("the seed counts up"), "{texts:?}");
        assert!(has("one after the other over 1250 samples"), "{texts:?}");
        assert_eq!(shell.outcomes[&100].withdrawn, 0, "{:?}", shell.outcomes[&100]);
    }
}

#[test]
fn looks_of_the_process_itself_throw_no_order_away() {
    let mut rng = ChaCha8Rng::seed_from_u64(7);
    let job = loader(100, &[perm(40), perm(41), perm(42)]);
    let mut steps = Vec::new();
    let mut looks =
        (N / 4..).map(|sample| Step::Open { task: 100, group: 100, sample, epoch: 0, seen: true });
    for epoch in 0..3 {
        let mut opens = Vec::new();
        job.run_epoch(epoch, 1_000, &mut rng, &mut opens);
        if epoch == 0 {
            // Eight at once where the workers' queues are full.
            for burst in 0..8 {
                let at = opens.len() / 4 + burst * opens.len() / 16;
                opens.splice(at..at, looks.by_ref().take(8));
            }
        }
        steps.extend(opens);
    }
    let mut shell = Shell::new(learner(N), BTreeMap::from([(100, truth(&job, &[40, 41, 42]))]), 0);
    shell.run(&steps);
    let outcome = &shell.outcomes[&100];
    assert!(outcome.titles.iter().all(|title| title.contains("torch permutation")), "{outcome:?}");
    assert_eq!((outcome.opens.len(), outcome.withdrawn), (3, 0), "{outcome:?}");
}

/// What the learner decides about a process that reads these samples, by some tasks in turn.
fn decisions(n: u32, tasks: u32, samples: &[u32]) -> Vec<Decision> {
    let all = Numbering { name: "path".into(), samples: (0..n).collect(), spec: None };
    let mut learner = Learner::new(Settings::default(), vec![all], SampleTable::Files);
    let mut out = Vec::new();
    for (&sample, at) in samples.iter().zip(0..) {
        let task = 1_000 + at % tasks;
        let open = Observation::Opened {
            at_ms: 0,
            task,
            process: task.into(),
            group: 1,
            sample,
            exact: true,
        };
        learner.apply(open, &mut out);
    }
    out
}

fn commits(decisions: &[Decision]) -> usize {
    decisions.iter().filter(|decision| matches!(decision, Decision::Committed(_))).count()
}

#[test]
fn who_shuffles_a_part_does_not_read_one_after_the_other() {
    let n = 1_281_167;
    for tasks in [1, 4, 8] {
        let mut rng = ChaCha8Rng::seed_from_u64(8);
        let epochs = (0..3).flat_map(|_| unknowable(1_300, &mut rng));
        let part: Vec<u32> = epochs.map(|position| 427_055 + position).collect();
        assert_eq!(commits(&decisions(n, tasks, &part[..1_300])), 0, "{tasks} tasks");
        let all: Vec<u32> = (427_055..427_655).collect();
        assert_eq!(commits(&decisions(n, tasks, &all)), 1, "{tasks} tasks");
    }
}

#[test]
fn who_reads_one_file_in_some_does_not_read_one_after_the_other() {
    let n = 1_000_000;
    for one_in in [2, 10, 50] {
        let mut rng = ChaCha8Rng::seed_from_u64(9);
        let mut some = unknowable(n, &mut rng);
        some.truncate((n / one_in) as usize);
        some.sort_unstable();
        assert_eq!(commits(&decisions(n, 1, &some[..5_000])), 0, "one in {one_in}");
    }
}

#[test]
fn of_very_many_threads_the_order_is_found_too() {
    let job = loader(100, &[perm(42)]);
    let open = |(&sample, at): (&u32, u32)| Step::Open {
        task: 1_000 + at % 128,
        group: 100,
        sample,
        epoch: 0,
        seen: true,
    };
    let steps: Vec<Step> = job.epochs[0].iter().zip(0..).map(open).collect();
    let mut shell = Shell::new(learner(N), BTreeMap::from([(100, truth(&job, &[42]))]), 0);
    shell.run(&steps);
    let outcome = &shell.outcomes[&100];
    assert!(outcome.wrong.is_empty() && outcome.opens.len() == 1, "{outcome:?}");
}

#[test]
fn a_last_batch_that_is_never_read_holds_no_epoch_open() {
    for (batch, workers) in [(64, 4), (512, 2), (2000, 1), (3000, 1)] {
        for persistent in [false, true] {
            let mut rng = ChaCha8Rng::seed_from_u64(12);
            let job = loader(100, &[perm(40), perm(41), perm(42), perm(43)]);
            let job = Loader { batch, workers, persistent, drop_last: true, ..job };
            let truth = truth(&job, &[40, 41, 42, 43]);
            let mut shell = Shell::new(learner(N), BTreeMap::from([(100, truth)]), 60);
            shell.run(&job.run(1_000, &mut rng));
            let outcome = &shell.outcomes[&100];
            let case = format!("{batch} by {workers}, persistent {persistent}: {outcome:?}");
            assert!(outcome.wrong.is_empty() && outcome.opens.len() == 4, "{case}");
            assert_eq!((outcome.withdrawn, outcome.foreseen >= 2), (0, true), "{case}");
        }
    }
}

#[test]
fn processes_that_read_one_file_each_drive_nobody_out() {
    let mut rng = ChaCha8Rng::seed_from_u64(10);
    let job = loader(100, &[perm(40)]);
    let steps = job.run(1_000, &mut rng);
    let mut shell = Shell::new(learner(N), BTreeMap::from([(100, truth(&job, &[40]))]), 0);
    shell.run(&steps[..1_000]);
    let one = |at: u32| Step::Open {
        task: 5_000 + at,
        group: u64::from(5_000 + at),
        sample: at,
        epoch: 0,
        seen: true,
    };
    shell.run(&(0..200).map(one).collect::<Vec<Step>>());
    shell.run(&steps[1_000..]);
    let outcome = &shell.outcomes[&100];
    assert_eq!((outcome.opens.len(), outcome.titles.len(), outcome.withdrawn), (1, 1, 0));
    assert!(beliefs(&shell, 100)[0].1.contains("seed 40"));
}

#[test]
fn who_has_ended_is_searched_for_no_more() {
    let mut rng = ChaCha8Rng::seed_from_u64(11);
    let mut learner = learner(N);
    let mut out = Vec::new();
    for (sample, group) in unknowable(N, &mut rng)[..100].iter().zip([1, 2].into_iter().cycle()) {
        let task = group as u32;
        learner.apply(
            Observation::Opened {
                at_ms: 0,
                task,
                process: task.into(),
                group,
                sample: *sample,
                exact: true,
            },
            &mut out,
        );
    }
    let wanted = |decision: &Decision| matches!(decision, Decision::SearchWanted { .. });
    assert_eq!(out.iter().filter(|decision| wanted(decision)).count(), 2, "{out:?}");
    out.clear();
    learner.apply(Observation::Ended { group: 1 }, &mut out);
    assert!(matches!(out.as_slice(), [Decision::SearchOver { .. }]), "{out:?}");
    assert_eq!(learner.beliefs().map(|belief| belief.group).collect::<Vec<u64>>(), [2]);
}

#[test]
fn an_order_that_is_left_is_withdrawn() {
    let mut rng = ChaCha8Rng::seed_from_u64(3);
    let jobs = loader(100, &[perm(40), unknowable(N, &mut rng)]);
    let mut steps = jobs.run(1_000, &mut rng);
    let half = steps.iter().position(|step| matches!(step, Step::Left { .. })).unwrap_or(0) / 2;
    // The job breaks off in the middle, and the same workers read on in no order.
    let (first, last) = (half, steps.len() - half);
    steps.drain(first..last);
    for step in &mut steps {
        if let Step::Open { task, .. } = step {
            *task = 1_000 + *task % 4;
        }
    }
    steps.retain(|step| matches!(step, Step::Open { .. }));
    let mut shell = Shell::new(learner(N), BTreeMap::from([(100, truth(&jobs, &[40]))]), 0);
    shell.run(&steps);
    let outcome = &shell.outcomes[&100];
    assert_eq!((outcome.opens.len(), outcome.withdrawn), (1, 1), "{outcome:?}");
    assert!(
        beliefs(&shell, 100)
            .iter()
            .all(|(basis, _)| matches!(basis, Basis::Unread | Basis::Unknown))
    );
}

#[test]
fn who_only_looks_is_not_followed() {
    let mut learner = learner(N);
    let mut out = Vec::new();
    for sample in 0..N {
        let open =
            Observation::Opened { at_ms: 0, task: 1, process: 1, group: 1, sample, exact: false };
        learner.apply(open, &mut out);
    }
    assert!(out.is_empty(), "{out:?}");
}

#[test]
fn who_is_known_to_read_only_after_the_look_is_followed() {
    let mut learner = learner(N);
    let mut out = Vec::new();
    for sample in 0..N / 8 {
        for exact in [false, true, true] {
            let open =
                Observation::Opened { at_ms: 0, task: 1, process: 1, group: 1, sample, exact };
            learner.apply(open, &mut out);
        }
    }
    assert!(matches!(out.as_slice(), [.., Decision::Committed(_)]), "{out:?}");
}

#[test]
fn nothing_is_searched_for_in_vain_forever() {
    let mut rng = ChaCha8Rng::seed_from_u64(4);
    let epochs: Vec<Vec<u32>> = (0..12).map(|_| unknowable(N, &mut rng)).collect();
    let steps = loader(100, &epochs).run(1_000, &mut rng);
    let mut shell = Shell::new(learner(N), BTreeMap::new(), 20);
    shell.run(&steps);
    assert!(shell.outcomes.is_empty(), "{:?}", shell.outcomes);
    // Popular seeds, those of later epochs and other libraries in some epochs, splits in some, and all
    // seeds in two of them.
    assert!((6..=48).contains(&shell.asked), "{}", shell.asked);
    let mut cached = Shell::new(learner(N), BTreeMap::new(), 20);
    cached.learner.apply(Observation::Cached { all: true }, &mut Vec::new());
    cached.run(&steps);
    assert_eq!(cached.asked, 0);
}

/// Epochs whose seeds torch's default generator draws, so many outputs apart.
fn drawn(seed: u32, apart: &[usize]) -> (Vec<Vec<u32>>, Vec<u32>) {
    let mut outputs = generator(u64::from(seed));
    (0..7).for_each(|_| _ = outputs.next_u32());
    let mut next = |apart: &usize| (0..*apart).map(|_| outputs.next_u32()).last().unwrap();
    let seeds: Vec<u32> = apart.iter().map(&mut next).collect();
    (seeds.iter().map(|&seed| perm(seed)).collect(), seeds)
}

/// A validation in every second epoch draws a seed for its workers; workers that stay draw none.
#[test]
fn epochs_may_draw_more_or_less_of_the_default_generator() {
    for apart in [[4, 4, 4, 2, 2, 2], [4, 6, 4, 6, 4, 6], [2, 8, 8, 2, 12, 2]] {
        let mut rng = ChaCha8Rng::seed_from_u64(11);
        let (epochs, seeds) = drawn(42, &apart);
        let loader = loader(100, &epochs);
        let steps = loader.run(1_000, &mut rng);
        let mut shell = Shell::new(learner(N), [(100, truth(&loader, &seeds))].into(), 60);
        shell.run(&steps);
        let outcome = &shell.outcomes[&100];
        let late = |epoch: &usize| outcome.opens.get(epoch).is_none_or(|opens| *opens > 24);
        // What was foreseen was wrong where they change, and only there.
        let foresaw = |words: &String| words.contains(" foresaw ");
        assert!(outcome.wrong.len() <= 4 && outcome.wrong.iter().all(foresaw), "{outcome:?}");
        assert!(!(2..6).any(|epoch| late(&epoch)), "{apart:?}: {outcome:?}");
    }
}

#[test]
fn a_seed_that_is_found_after_its_epoch_leads_to_the_default_generator() {
    let mut rng = ChaCha8Rng::seed_from_u64(12);
    let (epochs, seeds) = drawn(42, &[4; 12]);
    let loader = loader(100, &epochs);
    let steps = loader.run(1_000, &mut rng);
    let mut shell = Shell::new(learner(N), [(100, truth(&loader, &seeds))].into(), 60);
    shell.crack_delay = N as usize * 3 / 2;
    shell.run(&steps);
    let outcome = &shell.outcomes[&100];
    assert!(outcome.wrong.is_empty(), "{outcome:?}");
    assert!(outcome.opens.get(&11).is_some_and(|opens| *opens <= 24), "{outcome:?}");
}

#[test]
fn a_numbering_that_comes_later_is_searched_too() {
    let mut rng = ChaCha8Rng::seed_from_u64(13);
    let list: Vec<u32> = unknowable(N, &mut rng).iter().map(|sample| sample + N / 4).collect();
    let orders = |epoch| Distributed { seed: 3, ..Distributed::default() }.epoch(N, epoch);
    let epochs: Vec<Vec<u32>> = (0..2).map(orders).collect();
    let listed = |epoch: &Vec<u32>| epoch.iter().map(|at| list[*at as usize] - N / 4).collect();
    let loader = loader(100, &epochs.iter().map(listed).collect::<Vec<_>>());
    let steps = loader.run(1_000, &mut rng);
    let mut shell = Shell::new(learner(N), [(100, truth(&loader, &[3, 4]))].into(), 20);
    shell.run(&steps[..400]);
    assert!(shell.outcomes.is_empty(), "{:?}", shell.outcomes);
    let mut out = Vec::new();
    let numbering = Numbering { name: "list".into(), samples: list.into(), spec: None };
    shell.learner.consider(numbering.clone(), &mut out);
    shell.heed(out, 0);
    shell.run(&steps[400..]);
    let outcome = &shell.outcomes[&100];
    assert!(outcome.wrong.is_empty() && outcome.opens[&0] < 1_000, "{outcome:?}");
    assert!(outcome.titles[0].contains("in list order"), "{outcome:?}");
    // What is known already changes nothing.
    let mut out = Vec::new();
    shell.learner.consider(numbering, &mut out);
    assert!(out.is_empty(), "{out:?}");
}

#[test]
fn nothing_is_searched_for_a_process_that_has_spent_its_time() {
    let mut rng = ChaCha8Rng::seed_from_u64(4);
    let epochs: Vec<Vec<u32>> = (0..4).map(|_| unknowable(N, &mut rng)).collect();
    let steps = loader(100, &epochs).run(1_000, &mut rng);
    let mut learner = learner(N);
    let mut out = Vec::new();
    let hear = |learner: &mut Learner, step: &Step, out: &mut Vec<Decision>| {
        let Step::Open { task, group, sample, .. } = *step else { return };
        learner.apply(opened(task, group, sample), out);
    };
    let wanted = |out: &[Decision]| match out {
        [Decision::SearchWanted { id, group: 100, .. }] => Some(*id),
        _ => None,
    };
    let asks = steps.iter().position(|step| {
        hear(&mut learner, step, &mut out);
        !out.is_empty()
    });
    let search = wanted(&out).expect("a search");
    let mut over = Vec::new();
    learner.apply(Observation::Spent { group: 100 }, &mut over);
    assert!(matches!(over[..], [Decision::SearchOver { id }] if id == search), "{over:?}");
    // What the last slices found is of a search that is over.
    learner.apply(Observation::Searched { search }, &mut over);
    steps[asks.unwrap() + 1..].iter().for_each(|step| hear(&mut learner, step, &mut over));
    assert_eq!(over.len(), 1, "{over:?}");
    let belief = learner.beliefs().next().unwrap();
    assert!(belief.text.contains("order.learn-time is used up"), "{}", belief.text);
    // A process that comes later, under the same number, has its own time.
    learner.apply(Observation::Ended { group: 100 }, &mut over);
    steps.iter().for_each(|step| hear(&mut learner, step, &mut over));
    assert!(over.iter().any(|decision| matches!(decision, Decision::SearchWanted { .. })));
}

#[test]
fn a_job_that_is_started_again_is_known_at_once() {
    let mut rng = ChaCha8Rng::seed_from_u64(5);
    let (first, again) = (loader(100, &[perm(40), perm(41)]), loader(200, &[perm(40), perm(41)]));
    let mut steps = first.run(1_000, &mut rng);
    steps.extend(again.run(2_000, &mut rng));
    let truths = [&first, &again].map(|one| (one.group, truth(one, &[40, 41])));
    let mut shell = Shell::new(learner(N), truths.into(), 60);
    shell.run(&steps);
    let outcome = &shell.outcomes[&200];
    assert!(outcome.wrong.is_empty() && outcome.opens[&0] <= 12, "{outcome:?}");
}

#[test]
fn beside_a_reader_of_everything() {
    let mut rng = ChaCha8Rng::seed_from_u64(6);
    let job = loader(100, &[perm(4_000_000_000)]);
    let all: Vec<u32> = (0..N + N / 4).collect();
    let both = vec![job.run(1_000, &mut rng).into(), reader(7, 7, &all)];
    let truths = BTreeMap::from([
        (100, truth(&job, &[4_000_000_000])),
        (7, Truth { epochs: vec![all.clone()], parts: true, ..Truth::default() }),
    ]);
    let mut shell = Shell::new(learner(N), truths, 30);
    shell.run(&merge(both, &mut rng));
    for outcome in shell.outcomes.values() {
        assert!(outcome.wrong.is_empty() && outcome.opens.len() == 1, "{outcome:?}");
    }
    let texts = beliefs(&shell, 100);
    assert!(texts[0].0 == Basis::Cracked && texts[0].1.contains("seed 4000000000"), "{texts:?}");
}

#[test]
fn what_was_read_is_remembered() {
    let mut rng = ChaCha8Rng::seed_from_u64(7);
    let known = loader(100, &[perm(40), perm(41), perm(42)]);
    let unknown = loader(200, &[unknowable(N, &mut rng), unknowable(N, &mut rng)]);
    let mut steps = known.run(1_000, &mut rng);
    steps.extend(unknown.run(2_000, &mut rng));
    let truths = [(&known, &[40, 41, 42][..]), (&unknown, &[])];
    let truths = truths.map(|(one, seeds)| (one.group, truth(one, seeds)));
    let mut shell = Shell::new(learner(N), truths.into(), 60);
    shell.run(&steps);
    let records: Vec<Record> = shell.learner.records().collect();
    let [first, second] = records.as_slice() else { panic!("{records:?}") };
    assert_eq!((first.group, second.group), (100, 200));
    let numbers: Vec<u32> = first.epochs.iter().map(|epoch| epoch.number).collect();
    assert_eq!(numbers, [0, 1, 2]);
    let read = first.epochs.iter().zip(samples(&first.epochs));
    for ((epoch, read), truth) in read.zip(&known.epochs) {
        assert!(epoch.is_learnt && *read == **truth && epoch.len() == N);
    }
    // By two workers, of which either may be ahead, but each goes forward.
    let read = second.epochs.iter().zip(samples(&second.epochs));
    for ((epoch, read), truth) in read.zip(&unknown.epochs) {
        let (mut seen, mut all) = (read.to_vec(), truth.clone());
        assert!(!epoch.is_learnt && seen != all);
        let near = |at: usize| truth[at.saturating_sub(600)..N as usize].contains(&seen[at]);
        assert!((0..N as usize).all(near));
        seen.sort_unstable();
        all.sort_unstable();
        assert_eq!(seen, all);
    }
    assert_eq!(second.epochs.iter().map(|epoch| epoch.is_over).collect::<Vec<_>>(), [true, true]);
}

#[test]
fn of_those_that_have_ended_few_are_remembered_and_readers_longest() {
    let mut learner = learner(N);
    let mut out = Vec::new();
    let mut open = |learner: &mut Learner, task: u32, samples: std::ops::Range<u32>| {
        for sample in samples {
            let group = u64::from(task);
            learner.apply(opened(task, group, sample), &mut out);
        }
        learner.apply(Observation::Ended { group: u64::from(task) }, &mut out);
    };
    open(&mut learner, 1, 0..100);
    // One process for each file.
    for task in 2..200 {
        open(&mut learner, task, task..task + 1);
    }
    assert!(learner.loaders.len() <= 10, "{}", learner.loaders.len());
    let records: Vec<u64> = learner.records().map(|record| record.group).collect();
    assert_eq!(records, [1]);
}
