//! Jobs of several processes that deal out whole batches among them.

use rand::SeedableRng;
use rand::rngs::ChaCha8Rng;

use super::shell::{Outcome, Shell, Truth};
use super::sim::{Loader, Step, merge};
use super::trials::learner;
use crate::order::samplers::Accelerate;
use crate::order::samplers::torch::Distributed;

const N: u32 = 5_000;

/// What came out for each rank of a job, which reads three epochs.
fn outcomes(job: Accelerate, workers: usize, lost: f64) -> Vec<Outcome> {
    let mut rng = ChaCha8Rng::seed_from_u64(13);
    let rank = |rank| {
        let sampler = Accelerate { rank, ..job };
        let files = |epoch| sampler.epoch(N, epoch).iter().map(|place| place + N / 4).collect();
        Loader {
            group: 100 + u64::from(rank),
            workers,
            batch: job.batch_size as usize,
            drop_last: false,
            persistent: false,
            resume: 0,
            lost,
            epochs: (0..3).map(files).collect(),
        }
    };
    let ranks: Vec<Loader> = (0..job.world).map(rank).collect();
    let runs: Vec<Vec<Step>> =
        (1..).zip(&ranks).map(|(at, rank)| rank.run(1_000 * at, &mut rng)).collect();
    let truth = |rank: &Loader| {
        let epochs = rank.epochs.clone();
        let truth = Truth { epochs, seeds: vec![7, 8, 9], in_batches: true, ..Truth::default() };
        (rank.group, truth)
    };
    let mut shell = Shell::new(learner(N), ranks.iter().map(truth).collect(), 20);
    shell.run(&merge(runs.into_iter().map(Into::into).collect(), &mut rng));
    ranks.iter().map(|rank| shell.outcomes.remove(&rank.group).unwrap_or_default()).collect()
}

#[test]
fn ranks_that_read_batches_are_followed_in_their_own() {
    for (world, batch, workers, lost) in
        [(2, 8, 0, 0.0), (2, 8, 1, 0.02), (2, 16, 2, 0.0), (4, 4, 4, 0.0), (8, 32, 4, 0.02)]
    {
        let job = Accelerate { seed: 7, world, batch_size: batch, ..Accelerate::default() };
        for (rank, outcome) in outcomes(job, workers, lost).iter().enumerate() {
            let case = format!("{world} ranks, {workers} workers, rank {rank}: {outcome:?}");
            assert!(outcome.wrong.is_empty() && outcome.withdrawn == 0, "{case}");
            // Its first few batches by each worker, and then from before the epochs begin.
            let most = 5 * batch * workers.max(1) as u32 + 64;
            assert!(outcome.opens.len() == 3 && outcome.opens[&0] <= most, "{case}");
            assert!(outcome.opens[&1] <= 24 && outcome.opens[&2] <= 24, "{case}");
            let share = format!("rank {rank} of {world} in batches of {batch}; the seed counts up");
            assert!(outcome.titles.last().is_some_and(|title| title.contains(&share)), "{case}");
        }
    }
}

#[test]
fn ranks_that_read_batches_one_after_the_other_are_too() {
    let plain = Accelerate { shuffle: false, ..Accelerate::default() };
    for (rank, outcome) in
        outcomes(Accelerate { world: 4, batch_size: 16, ..plain }, 2, 0.0).iter().enumerate()
    {
        assert!(outcome.wrong.is_empty() && outcome.opens.len() == 3, "{rank}: {outcome:?}");
        let title = outcome.titles.last().map_or("", |title| title);
        let share = format!("rank {rank} of 4 in batches of 16");
        assert!(title.contains("one after the other") && title.contains(&share), "{title}");
    }
}

#[test]
fn of_very_many_ranks_one_is_found_by_itself() {
    for (n, world, rank) in [(40_000, 256, 200), (100_000, 1_000, 977)] {
        let sampler = Distributed { seed: 3, world, rank, ..Distributed::default() };
        let epoch = |epoch| sampler.epoch(n, epoch).iter().map(|place| place + n / 4).collect();
        let job = Loader {
            group: 100,
            workers: 2,
            batch: 8,
            drop_last: false,
            persistent: false,
            resume: 0,
            lost: 0.0,
            epochs: (0..3).map(epoch).collect(),
        };
        let truth = Truth { epochs: job.epochs.clone(), ..Truth::default() };
        let mut shell = Shell::new(learner(n), [(100, truth)].into(), 2);
        shell.run(&job.run(1_000, &mut ChaCha8Rng::seed_from_u64(14)));
        let outcome = &shell.outcomes[&100];
        assert!(outcome.wrong.is_empty() && outcome.opens.len() == 3, "{outcome:?}");
        let share = format!("rank {rank} of {world}");
        assert!(outcome.titles[0].contains(&share), "{outcome:?}");
    }
}
