//! Compares sleep sets with the probabilities that define them.

use std::collections::{BTreeMap, HashSet};

use super::chi_square::{proportional, uniform};
use super::*;

fn member(sample: u32, class: u32, score: Option<f32>) -> Member {
    let (sample, class) = (SampleId(sample), ClassId(class));
    Member { sample, class, task: 0, bytes: 1, score, replays: sample.0 % 5 }
}

/// Classes of 3, 9 and 28 samples, with scores 0.5, 1.0, ... in sequence.
fn members() -> Vec<Member> {
    let class = |sample| {
        if sample < 3 {
            0
        } else if sample < 12 {
            1
        } else {
            2
        }
    };
    (0..40).map(|n| member(n, class(n), Some(0.5 * (n + 1) as f32))).collect()
}

fn choose(members: &[Member], chooser: Chooser, budget: u64, batch: u64, seed: u64) -> Vec<u32> {
    let set = SleepSet { chooser, budget, batch, seed };
    sleep_set(members, &set).iter().map(|sample| sample.0).collect()
}

/// Sets of one sample: the probabilities of a first draw are proportional to the weights.
#[test]
fn the_first_draw_is_in_proportion_to_the_weights() {
    let members = members();
    type Weight = fn(&Member) -> f64;
    let weights: [(Chooser, Weight); 4] = [
        (Chooser::Uniform, |_| 1.0),
        (Chooser::MaxLoss, |m| 0.5 + f64::from(m.score.unwrap_or(0.0))),
        (Chooser::MinMargin, |m| 1.0 / (0.5 + f64::from(m.score.unwrap_or(0.0)))),
        (Chooser::MinReplay, |m| 1.0 / f64::from(1 + m.replays)),
    ];
    for (chooser, weight) in weights {
        let mut counts = vec![0; 40];
        (0..40_000).for_each(|seed| counts[choose(&members, chooser, 1, 0, seed)[0] as usize] += 1);
        let weights: Vec<f64> = members.iter().map(weight).collect();
        proportional(&format!("{chooser:?}"), &counts, &weights);
    }
}

/// The second draw of a batch, given the first: in proportion to the weights that are left.
#[test]
fn the_next_draw_of_a_batch_is_from_what_is_left() {
    let members: Vec<Member> = (0..4).map(|n| member(n, 0, Some(n as f32))).collect();
    let mut counts = vec![0; 6];
    let pairs = [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)];
    for seed in 0..20_000 {
        let mut pair = choose(&members, Chooser::MaxLoss, 2, 0, seed);
        pair.sort_unstable();
        let found = pairs.iter().position(|(a, b)| pair == [*a, *b]).unwrap();
        counts[found] += 1;
    }
    let p = |a: f64, b: f64| a / 10.0 * b / (10.0 - a) + b / 10.0 * a / (10.0 - b);
    let weight = |(a, b): &(u32, u32)| p(f64::from(a + 1), f64::from(b + 1));
    proportional("pairs of max-loss", &counts, &pairs.iter().map(weight).collect::<Vec<_>>());
}

#[test]
fn balanced_sets_take_classes_in_turn() {
    let members = members();
    for chooser in [Chooser::UniformBalanced, Chooser::Prototypical, Chooser::Herding] {
        let chosen = choose(&members, chooser, 300, 9, 5);
        let mut counts = BTreeMap::<u32, u32>::new();
        chosen.iter().for_each(|s| *counts.entry(members[*s as usize].class.0).or_default() += 1);
        assert_eq!(counts.into_values().collect::<Vec<_>>(), [100; 3], "{chooser:?}");
    }
    let mut counts = vec![0; 9];
    let mut near = vec![0; 9];
    for seed in 0..20_000 {
        let first = |chooser| {
            let chosen = choose(&members, chooser, 3, 0, seed);
            chosen.into_iter().find(|sample| (3..12).contains(sample)).unwrap() as usize - 3
        };
        counts[first(Chooser::UniformBalanced)] += 1;
        near[first(Chooser::Prototypical)] += 1;
    }
    uniform("uniform-balanced within a class", &counts);
    let weights: Vec<f64> = (3..12).map(|n| 1.0 / (0.5 * f64::from(n + 1))).collect();
    proportional("prototypical within a class", &near, &weights);
}

#[test]
fn interference_and_herding_go_by_place() {
    let members = members();
    let mut largest = choose(&members, Chooser::Mir, 5, 0, 1);
    largest.sort_unstable();
    assert_eq!(largest, [35, 36, 37, 38, 39]);
    let mut first = choose(&members, Chooser::Herding, 6, 0, 1);
    first.sort_unstable();
    assert_eq!(first, [0, 1, 3, 4, 12, 13]);
    let unknown = [member(0, 0, None), member(1, 0, Some(-3.0)), member(2, 0, Some(7.0))];
    assert_eq!(choose(&unknown, Chooser::Mir, 1, 0, 1), [2]);
}

/// Batches follow the order one after the other. After the last sample the order begins again.
#[test]
fn ordered_choosers_take_all_others_before_they_repeat() {
    let members = members();
    let batches = choose(&members, Chooser::Mir, 100, 10, 1);
    for (turn, batch) in batches.chunks(10).enumerate() {
        let first = 30 - 10 * (turn as u32 % 4);
        let mut batch = batch.to_vec();
        batch.sort_unstable();
        assert!(batch.iter().copied().eq(first..first + 10), "batch {turn}: {batch:?}");
    }
    let herded = choose(&members, Chooser::Herding, 27, 9, 1);
    let mut middle: Vec<u32> = herded.into_iter().filter(|s| (3..12).contains(s)).collect();
    middle.sort_unstable();
    assert!(middle.into_iter().eq(3..12), "all of a class, once each");
}

const EVERY: [Chooser; 8] = [
    Chooser::Uniform,
    Chooser::UniformBalanced,
    Chooser::Prototypical,
    Chooser::MinMargin,
    Chooser::MaxLoss,
    Chooser::MinReplay,
    Chooser::Mir,
    Chooser::Herding,
];

/// All samples of a batch are different. A batch larger than the buffer has all samples equally often.
fn check_batches(members: &[Member], budget: u64, batches: &[u64]) {
    for (chooser, batch) in EVERY.iter().flat_map(|of| batches.iter().map(move |batch| (of, batch)))
    {
        let chosen = choose(members, *chooser, budget, *batch, 3);
        assert_eq!(chosen.len() as u64, budget);
        for chosen in chosen.chunks(*batch as usize) {
            let mut counts = vec![0; members.len()];
            chosen.iter().for_each(|sample| counts[*sample as usize] += 1);
            let (least, most) = (counts.iter().min(), counts.iter().max());
            let whole = chosen.len() / members.len();
            let rest = usize::from(chosen.len() % members.len() > 0);
            assert_eq!(least, Some(&whole), "{chooser:?}, {batch}");
            assert_eq!(most, Some(&(whole + rest)), "{chooser:?}, {batch}");
        }
    }
}

#[test]
fn nothing_comes_twice_in_a_batch_as_long_as_there_are_others() {
    check_batches(&members(), 400, &[1, 7, 10, 20, 39, 40, 41, 100, 400]);
    let uneven: Vec<Member> =
        (0..1001).map(|n| member(n, u32::from(n == 7), Some(n as f32))).collect();
    check_batches(&uneven, 4 * 512 + 100, &[512, 1001, 1500]);
    for chooser in EVERY {
        assert!(choose(&[], chooser, 5, 0, 1).is_empty());
        assert!(choose(&members(), chooser, 0, 0, 1).is_empty());
    }
}

/// A class whose samples were all drawn waits for the next batch. The other classes take its turns.
#[test]
fn small_classes_leave_the_turn_of_a_batch() {
    let members = members();
    for chooser in [Chooser::UniformBalanced, Chooser::Prototypical, Chooser::Herding] {
        for batch in choose(&members, chooser, 5 * 30, 30, 5).chunks(30) {
            let mut counts = [0; 3];
            batch.iter().for_each(|sample| counts[members[*sample as usize].class.0 as usize] += 1);
            assert_eq!(counts, [3, 9, 18], "{chooser:?}");
        }
    }
}

#[test]
fn a_set_is_the_same_again() {
    let members = members();
    let set = |seed| choose(&members, Chooser::MinMargin, 100, 10, seed);
    assert_eq!(set(4), set(4));
    assert_ne!(set(4), set(5));
}

/// A sleep of SIESTA: 2,502 batches of 512, from as many samples as ImageNet has codes. Classes have one
/// size, or sizes up to half of all.
#[test]
fn a_sleep_set_of_imagenet_is_chosen_at_once() {
    let even = |n: u32| n % 1000;
    let uneven = |n: u32| (f64::from(n + 1) / 959_665.0).log2().abs() as u32 * 50 + n % 50;
    let classes: [(&str, &dyn Fn(u32) -> u32); 2] = [("even", &even), ("uneven", &uneven)];
    for (what, class) in classes {
        let members: Vec<Member> =
            (0..959_665).map(|n| member(n, class(n), Some(n as f32))).collect();
        for chooser in [Chooser::UniformBalanced, Chooser::Herding, Chooser::MinMargin] {
            let begun = std::time::Instant::now();
            let chosen = choose(&members, chooser, 2502 * 512, 512, 1);
            println!("{what}, {chooser:?}: {} samples in {:.2?}", chosen.len(), begun.elapsed());
            assert_eq!(chosen.len(), 2502 * 512);
            let different = |batch: &[u32]| batch.iter().collect::<HashSet<_>>().len() == 512;
            assert!(chosen.chunks(512).all(different));
        }
    }
}
