//! A simulated training job: torch's loader with its workers, and others who read beside it.

use std::collections::VecDeque;

use rand::rngs::ChaCha8Rng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};

use crate::learn::Observation;

/// A task that is its own process opens a sample.
pub(super) fn opened(task: u32, group: u64, sample: u32) -> Observation {
    let process = task.into();
    Observation::Opened { at_ms: 0, task, process, group, sample, exact: true }
}

/// A `DataLoader` as its files are opened: batch `k` is read by worker `k` modulo their number,
/// two batches a worker are handed out ahead, the next whenever one is consumed.
#[derive(Clone, Debug)]
pub(super) struct Loader {
    pub(super) group: u64,
    /// 0 reads in the process itself.
    pub(super) workers: usize,
    pub(super) batch: usize,
    pub(super) drop_last: bool,
    pub(super) persistent: bool,
    /// Samples skipped in the first epoch, in whole batches.
    pub(super) resume: usize,
    /// The share of opens that nobody sees.
    pub(super) lost: f64,
    /// By epoch, the samples in the order of the sampler.
    pub(super) epochs: Vec<Vec<u32>>,
}

/// One thing that happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// A task opens a sample in an epoch; whether that is seen.
    Open {
        task: u32,
        group: u64,
        sample: u32,
        epoch: usize,
        seen: bool,
    },
    Left {
        task: u32,
    },
}

impl Loader {
    /// The samples that an epoch reads, in order.
    pub(super) fn reads(&self, epoch: usize) -> &[u32] {
        let all = &self.epochs[epoch];
        let skipped = if epoch == 0 { self.resume / self.batch * self.batch } else { 0 };
        let end = if self.drop_last { all.len() / self.batch * self.batch } else { all.len() };
        &all[skipped.min(end)..end]
    }

    /// All epochs, one after the other.
    pub(super) fn run(&self, first_task: u32, rng: &mut ChaCha8Rng) -> Vec<Step> {
        let mut steps = Vec::new();
        let count = self.workers.max(1) as u32;
        for epoch in 0..self.epochs.len() {
            let kept = self.persistent || self.workers == 0;
            let base = first_task + if kept { 0 } else { epoch as u32 * count };
            let began = steps.len();
            self.run_epoch(epoch, base, rng, &mut steps);
            if !kept {
                steps.extend((base..base + count).map(|task| Step::Left { task }));
            }
            if epoch > 0 && rng.random_bool(0.5) {
                // That tasks have ended is noticed late.
                let left: Vec<Step> = steps.extract_if(..began, is_left).collect();
                let at = steps.len().min(began + 20);
                steps.splice(at..at, left);
            }
        }
        steps
    }

    /// One epoch, by tasks from `base` on.
    pub(super) fn run_epoch(
        &self,
        epoch: usize,
        base: u32,
        rng: &mut ChaCha8Rng,
        steps: &mut Vec<Step>,
    ) {
        let workers = self.workers.max(1);
        let mut batches = self.reads(epoch).chunks(self.batch).enumerate();
        // By worker, its batches that are handed out, each with its number.
        let mut queues: Vec<VecDeque<(usize, &[u32])>> = vec![VecDeque::new(); workers];
        let mut done = Vec::new();
        let mut consumed = 0;
        for _ in 0..2 * workers {
            if let Some((k, batch)) = batches.next() {
                queues[k % workers].push_back((k, batch));
            }
        }
        loop {
            let busy: Vec<usize> = (0..workers).filter(|&w| !queues[w].is_empty()).collect();
            if busy.is_empty() {
                return;
            }
            let worker = busy[rng.random_range(0..busy.len())];
            let (k, batch) = &mut queues[worker][0];
            if let Some((&sample, rest)) = batch.split_first() {
                let seen = !rng.random_bool(self.lost);
                let task = base + worker as u32;
                steps.push(Step::Open { task, group: self.group, sample, epoch, seen });
                *batch = rest;
            }
            if batch.is_empty() {
                done.push(*k);
                queues[worker].pop_front();
                while done.contains(&consumed) {
                    consumed += 1;
                    if let Some((k, batch)) = batches.next() {
                        queues[k % workers].push_back((k, batch));
                    }
                }
            }
        }
    }
}

fn is_left(step: &mut Step) -> bool {
    matches!(step, Step::Left { .. })
}

/// Puts the steps of several readers together, each in its own order.
pub(super) fn merge(mut readers: Vec<VecDeque<Step>>, rng: &mut ChaCha8Rng) -> Vec<Step> {
    let mut steps = Vec::new();
    loop {
        readers.retain(|reader| !reader.is_empty());
        let left: Vec<usize> = readers.iter().map(VecDeque::len).collect();
        let total: usize = left.iter().sum();
        if total == 0 {
            return steps;
        }
        // As likely as there is left to read, so that all go on to the end.
        let mut at = rng.random_range(0..total);
        let reader = left.iter().position(|&left| match at.checked_sub(left) {
            Some(rest) => {
                at = rest;
                false
            }
            None => true,
        });
        steps.extend(reader.and_then(|reader| readers[reader].pop_front()));
    }
}

/// A process that reads samples one after the other.
pub(super) fn reader(task: u32, group: u64, samples: &[u32]) -> VecDeque<Step> {
    let open = |&sample| Step::Open { task, group, sample, epoch: 0, seen: true };
    samples.iter().map(open).collect()
}

/// A permutation that no search could find.
pub(super) fn unknowable(n: u32, rng: &mut ChaCha8Rng) -> Vec<u32> {
    let mut all: Vec<u32> = (0..n).collect();
    all.shuffle(&mut ChaCha8Rng::from_rng(rng));
    all
}

#[test]
fn every_sample_is_read_once_an_epoch_by_the_worker_of_its_batch() {
    let loader = Loader {
        group: 1,
        workers: 3,
        batch: 4,
        drop_last: true,
        persistent: false,
        resume: 5,
        lost: 0.0,
        epochs: vec![(0..42).collect(), (0..42).rev().collect()],
    };
    let steps = loader.run(10, &mut ChaCha8Rng::seed_from_u64(1));
    for epoch in 0..2 {
        let opens = |task: u32| {
            let of_it = move |step: &Step| match *step {
                Step::Open { task: by, sample, epoch: in_epoch, .. } => {
                    (by == task && in_epoch == epoch).then_some(sample)
                }
                Step::Left { .. } => None,
            };
            steps.iter().filter_map(of_it).collect::<Vec<u32>>()
        };
        for worker in 0..3u32 {
            let batches = loader.reads(epoch).chunks(4).skip(worker as usize).step_by(3);
            let expected: Vec<u32> = batches.flatten().copied().collect();
            assert_eq!(opens(10 + 3 * epoch as u32 + worker), expected);
        }
    }
    assert_eq!((loader.reads(0).len(), loader.reads(1).len()), (36, 40));
}
