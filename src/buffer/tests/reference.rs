//! Compares policies with plain implementations of their papers.
//!
//! Goal: the same distribution. Method: one sequence of samples is offered under many seeds. Each time, one
//! of the kept samples is picked at random and counted by its place in the sequence. So the counts are
//! independent and a chi-square test is exact. The reference uses another random generator.

use rand::rngs::ChaCha12Rng;
use rand::{RngExt, SeedableRng};

use super::chi_square::alike;
use super::*;

/// How often a sequence is offered.
const TRIALS: u64 = 20_000;

/// A sample of the sequence that is offered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct Item {
    pub(in super::super) place: u32,
    pub(in super::super) class: u32,
}

/// Tasks in sequence, each with this number of samples of one class.
pub(in super::super) fn items_of_tasks(tasks: &[(u32, usize)]) -> Vec<Item> {
    let classes = tasks.iter().flat_map(|(class, count)| std::iter::repeat_n(*class, *count));
    classes.zip(0..).map(|(class, place)| Item { place, class }).collect()
}

/// The reference's random numbers.
pub(in super::super) struct Random(ChaCha12Rng);

impl Random {
    pub(in super::super) fn index(&mut self, n: usize) -> usize {
        self.0.random_range(0..n)
    }

    pub(in super::super) fn shuffle(&mut self, items: &mut [Item]) {
        (1..items.len()).for_each(|last| items.swap(last, self.index(last + 1)));
    }
}

/// The position of a random sample of the largest class. Of equal classes, the first is the largest.
pub(in super::super) fn random_largest(kept: &[Item], random: &mut Random) -> usize {
    let count = |class: u32| kept.iter().filter(|item| item.class == class).count();
    let classes = kept.iter().map(|item| item.class);
    let largest = classes.max_by_key(|class| (count(*class), std::cmp::Reverse(*class)));
    let own: Vec<usize> = (0..kept.len()).filter(|at| Some(kept[*at].class) == largest).collect();
    own[random.index(own.len())]
}

/// Compares the samples that a policy keeps of a sequence with those that a reference keeps.
pub(in super::super) fn compare(
    policy: Policy,
    offered: &[Item],
    capacity: usize,
    reference: impl Fn(&[Item], usize, &mut Random) -> Vec<Item>,
) {
    let mut random = Random(ChaCha12Rng::seed_from_u64(1));
    let mut counts = [vec![0; offered.len()], vec![0; offered.len()]];
    for seed in 0..TRIALS {
        let mut buffer = buffer_of(policy, Capacity::Samples(capacity as u64), seed);
        offered.iter().for_each(|item| drop(buffer.offer(candidate(item.class, 1))));
        let ours: Vec<u32> = buffer.members().map(|member| member.sample.0).collect();
        let theirs = reference(offered, capacity, &mut random);
        assert_eq!((ours.len(), theirs.len()), (capacity, capacity));
        counts[0][ours[random.index(ours.len())] as usize] += 1;
        counts[1][theirs[random.index(theirs.len())].place as usize] += 1;
    }
    alike(&format!("{policy:?} and its reference"), &counts[0], &counts[1]);
}
