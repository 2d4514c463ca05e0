//! Helpers of the tests of policies, draws and sleep sets.

mod buffer;
pub(super) mod chi_square;
pub(super) mod reference;
mod scored;
mod sleep;

use super::*;

pub(super) fn buffer_of(policy: Policy, capacity: Capacity, seed: u64) -> RehearsalBuffer {
    RehearsalBuffer::new(Rules { policy, capacity, seed })
}

pub(super) fn candidate(class: u32, bytes: u64) -> Candidate {
    Candidate { class: ClassId(class), task: class, bytes }
}

/// Offers `count` samples of each class, one class after the other.
pub(super) fn fill(buffer: &mut RehearsalBuffer, classes: &[(u32, u32)]) {
    for (class, count) in classes {
        (0..*count).for_each(|_| drop(buffer.offer(candidate(*class, 1))));
    }
}

/// Offers samples of one class with these sizes.
pub(super) fn offer_all(
    policy: Policy,
    capacity: Capacity,
    seed: u64,
    sizes: &[u64],
) -> RehearsalBuffer {
    let mut buffer = buffer_of(policy, capacity, seed);
    sizes.iter().for_each(|bytes| drop(buffer.offer(candidate(0, *bytes))));
    buffer
}

/// The share of each task in a buffer, averaged over seeds. Each task has `length` samples of one class.
pub(super) fn shares_of_tasks(
    policy: Policy,
    tasks: u32,
    length: u32,
    capacity: u64,
    seeds: u32,
) -> Vec<f64> {
    let mut counts = vec![0.0; tasks as usize];
    for seed in 0..u64::from(seeds) {
        let mut buffer = buffer_of(policy, Capacity::Samples(capacity), seed);
        for task in (0..tasks).flat_map(|task| (0..length).map(move |_| task)) {
            drop(buffer.offer(Candidate { class: ClassId(0), task, bytes: 1 }));
        }
        buffer.members().for_each(|member| counts[member.task as usize] += 1.0);
    }
    let all: f64 = counts.iter().sum();
    counts.iter().map(|count| count / all).collect()
}
