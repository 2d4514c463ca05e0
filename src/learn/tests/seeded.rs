//! Scripts that seed torch's default generator and shuffle by it: the commonest of all.

use rand::SeedableRng;
use rand::rngs::ChaCha8Rng;

use super::shell::{Shell, Truth};
use super::sim::Loader;
use crate::learn::{Basis, Journal, Learner, Numbering, Observation, Settings};
use crate::order::SampleTable;
use crate::order::samplers::torch::{generator, randperm};

const N: u32 = 1_000;
const GROUP: u64 = 100;

/// The first samples of four epochs of `DataLoader(shuffle=True)` after `torch.manual_seed(seed)`,
/// over 1,000 samples, as torch 1.13 and 2.15 read them; and how many outputs of the default
/// generator one epoch draws.
const TORCH: [(u32, usize, [[u32; 8]; 4]); 4] = [
    (
        0,
        4,
        [
            [226, 331, 747, 309, 589, 626, 71, 647],
            [872, 31, 885, 300, 206, 594, 863, 292],
            [157, 454, 879, 737, 27, 384, 894, 375],
            [671, 249, 202, 247, 984, 954, 796, 483],
        ],
    ),
    // With workers that stay.
    (
        42,
        2,
        [
            [88, 494, 773, 894, 370, 750, 522, 119],
            [864, 345, 832, 278, 181, 30, 333, 635],
            [894, 501, 615, 255, 163, 15, 329, 856],
            [696, 207, 547, 882, 534, 583, 294, 709],
        ],
    ),
    // With a validation loader between the epochs.
    (
        42,
        6,
        [
            [88, 494, 773, 894, 370, 750, 522, 119],
            [696, 207, 547, 882, 534, 583, 294, 709],
            [24, 930, 700, 456, 560, 323, 622, 159],
            [788, 760, 218, 765, 862, 704, 969, 981],
        ],
    ),
    (
        3407,
        4,
        [
            [757, 403, 192, 442, 798, 374, 516, 24],
            [204, 549, 879, 680, 790, 508, 953, 337],
            [261, 378, 670, 45, 44, 159, 682, 216],
            [660, 384, 994, 689, 583, 500, 480, 148],
        ],
    ),
];

/// Four epochs of a script that seeds the default generator, after so many outputs.
fn epochs(seed: u32, before: usize, stride: usize) -> Vec<Vec<u32>> {
    let mut outputs = generator(u64::from(seed));
    (0..before).for_each(|_| _ = outputs.next_u32());
    let mut next = |apart: usize| (0..apart).map(|_| outputs.next_u32()).last().unwrap_or(0);
    let seeds = [next(4), next(stride), next(stride), next(stride)];
    seeds.iter().map(|&seed| randperm(N, &mut generator(u64::from(seed)))).collect()
}

/// A learner that may not search all seeds, as on a busy node.
fn learner() -> Learner {
    let all = Numbering { name: "path".into(), samples: (0..N).collect(), spec: None };
    let settings = Settings { crack: false, ..Settings::default() };
    Learner::new(settings, vec![all], SampleTable::Files)
}

/// What comes out for a job with so many workers.
fn run(learner: Learner, epochs: &[Vec<u32>], workers: usize) -> Shell {
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
    let truth = Truth { epochs: epochs.to_vec(), ..Truth::default() };
    let mut shell = Shell::new(learner, [(GROUP, truth)].into(), 20);
    shell.run(&job.run(1_000, &mut ChaCha8Rng::seed_from_u64(1)));
    shell
}

#[test]
fn the_default_generators_first_seeds_are_known_without_a_search_of_all() {
    for (seed, stride, heads) in TORCH {
        let epochs = epochs(seed, 0, stride);
        for (epoch, head) in epochs.iter().zip(heads) {
            assert_eq!(epoch[..8], head, "{seed} {stride}");
        }
        for workers in [0, 2, 8] {
            let shell = run(learner(), &epochs, workers);
            let outcome = &shell.outcomes[&GROUP];
            let case = format!("{seed} by {stride}, {workers} workers: {outcome:?}");
            assert!(outcome.wrong.is_empty() && outcome.opens[&0] <= 128, "{case}");
            assert!((1..4).all(|epoch| outcome.opens[&epoch] <= 24), "{case}");
            assert!(outcome.foreseen >= 2, "{case}");
            let generator = format!("torch's default generator of seed {seed}");
            assert!(outcome.titles.iter().all(|title| title.contains(&generator)), "{case}");
            let belief = shell.learner.beliefs().next().unwrap();
            assert_eq!(belief.basis, Basis::Derived, "{}", belief.text);
        }
    }
}

#[test]
fn a_script_that_draws_before_its_loader_is_known_too() {
    for before in [1, 250, 4_000] {
        let outcome = run(learner(), &epochs(1234, before, 4), 2).outcomes.remove(&GROUP);
        let outcome = outcome.unwrap_or_default();
        assert!(outcome.wrong.is_empty() && outcome.opens.len() == 4, "{before}: {outcome:?}");
    }
}

#[test]
fn one_epoch_is_enough_to_know_the_next_ones_generator_after_a_restart() {
    let epochs = epochs(42, 0, 4);
    let mut journal = Journal::default();
    let first = run(learner(), &epochs[..1], 2);
    first.learner.records().for_each(|record| journal.add(&record, false));
    let (kept, _) = Journal::decode(&journal.encode(3)).unwrap();
    journal.detach();
    assert_eq!(kept, journal);
    let mut again = learner();
    again.recall(kept);
    let shell = run(again, &epochs, 2);
    let outcome = &shell.outcomes[&GROUP];
    assert_eq!((shell.asked, outcome.opens.len()), (0, 4), "{outcome:?}");
}

#[test]
fn an_epoch_that_begins_unexplained_is_at_a_border_as_is_one_that_ends() {
    let at_border = |samples: &[u32]| {
        let (mut learner, mut out) = (learner(), Vec::new());
        let border = |(at, &sample): (u64, &u32)| {
            let (task, process, group) = (1, 1, GROUP);
            let open = Observation::Opened { at_ms: at, task, process, group, sample, exact: true };
            learner.apply(open, &mut out);
            learner.take_border()
        };
        let border: Vec<bool> = (0..).zip(samples).map(border).collect();
        assert!(!learner.take_border(), "nothing was opened since");
        border
    };
    let unexplained = at_border(&epochs(42, 0, 4)[0]);
    assert!(unexplained[..64].iter().all(|border| *border));
    assert!(unexplained[64..].iter().all(|border| !border));
    let followed = at_border(&(0..N).collect::<Vec<_>>());
    assert!(followed[100..800].iter().all(|border| !border));
    assert!(followed[900..].iter().all(|border| *border));
}
