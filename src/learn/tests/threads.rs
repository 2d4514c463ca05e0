//! Loaders whose workers make new threads for each batch.

use std::collections::{BTreeMap, VecDeque};

use rand::SeedableRng;
use rand::rngs::ChaCha8Rng;
use rand::seq::SliceRandom;

use super::shell::{Shell, Truth};
use super::sim::{Loader, Step, unknowable};
use super::trials::learner;
use crate::learn::Epoch;
use crate::order::samplers::torch::{generator, randperm};

const N: u32 = 5_000;
const GROUP: u64 = 100;

/// Threads of a batch.
const THREADS: usize = 8;

/// The number of the first thread.
const FIRST: u32 = 1_000_000;

fn loader(epochs: &[Vec<u32>]) -> Loader {
    let files = |epoch: &Vec<u32>| epoch.iter().map(|position| position + N / 4).collect();
    Loader {
        group: GROUP,
        workers: 2,
        batch: 32,
        drop_last: true,
        persistent: false,
        resume: 0,
        lost: 0.0,
        epochs: epochs.iter().map(files).collect(),
    }
}

/// How a job is run.
#[derive(Clone, Copy, Debug)]
struct How {
    /// Whether workers stay from epoch to epoch; else whether each ends after its last batch.
    persistent: bool,
    early: bool,
    /// How many steps later it is noticed that threads have ended.
    late: usize,
}

const HOWS: [How; 5] = [
    How { persistent: false, early: false, late: 0 },
    How { persistent: false, early: false, late: 100 },
    How { persistent: false, early: true, late: 0 },
    How { persistent: true, early: false, late: 0 },
    How { persistent: true, early: false, late: 100 },
];

/// What a worker does in an epoch.
#[derive(Default)]
struct Worker {
    epoch: usize,
    /// Samples that it has read.
    read: usize,
    /// The threads of its batch.
    threads: Vec<u32>,
    /// Opens that its threads are about to make, in any order.
    opens: Vec<Step>,
}

/// A job of which each batch is read by threads that are made for it.
struct Threaded<'a> {
    how: How,
    shell: &'a mut Shell,
    steps: Vec<Step>,
    workers: BTreeMap<u32, Worker>,
    /// Threads that have ended, and at which step that is noticed.
    ended: VecDeque<(usize, u32)>,
    next: u32,
}

impl Threaded<'_> {
    fn run(job: &Loader, how: How, rng: &mut ChaCha8Rng, shell: &mut Shell) {
        let (steps, workers, ended) = (Vec::new(), BTreeMap::new(), VecDeque::new());
        let mut threaded = Threaded { how, shell, steps, workers, ended, next: FIRST };
        let job = Loader { persistent: how.persistent, ..job.clone() };
        let steps = job.run(1_000, rng);
        let mut left: BTreeMap<u32, usize> = BTreeMap::new();
        for step in &steps {
            if let Step::Open { task, .. } = step {
                *left.entry(*task).or_default() += 1;
            }
        }
        for step in steps {
            threaded.notice();
            match step {
                Step::Open { task, .. } => {
                    threaded.open(step, job.batch, rng);
                    let left = left.entry(task).or_default();
                    *left -= 1;
                    if *left == 0 && (how.early || how.persistent) {
                        threaded.end(task);
                    }
                }
                Step::Left { task } => threaded.end(task),
            }
        }
        threaded.shell.run(&threaded.steps);
    }

    /// A worker is to open a sample.
    fn open(&mut self, step: Step, batch: usize, rng: &mut ChaCha8Rng) {
        let Step::Open { task: number, group, sample, epoch, seen } = step else { return };
        let mut worker = self.workers.remove(&number).unwrap_or_default();
        if worker.epoch != epoch {
            self.end_batch(&mut worker);
            (worker.epoch, worker.read) = (epoch, 0);
        }
        let nth = worker.read % batch;
        if nth == 0 {
            worker.threads = (self.next..self.next + THREADS as u32).collect();
            self.next += THREADS as u32;
            let of = worker.threads.iter().map(|thread| (*thread, u64::from(number)));
            self.shell.threads.extend(of);
        }
        worker.read += 1;
        let task = worker.threads[nth % THREADS];
        worker.opens.push(Step::Open { task, group, sample, epoch, seen });
        if worker.opens.len() == THREADS || nth + 1 == batch {
            worker.opens.shuffle(rng);
            self.steps.append(&mut worker.opens);
        }
        if nth + 1 == batch {
            self.end_batch(&mut worker);
        }
        self.workers.insert(number, worker);
    }

    /// The threads of a worker's batch end.
    fn end_batch(&mut self, worker: &mut Worker) {
        self.steps.append(&mut worker.opens);
        let at = self.steps.len() + self.how.late;
        self.ended.extend(worker.threads.drain(..).map(|task| (at, task)));
    }

    /// A worker ends.
    fn end(&mut self, number: u32) {
        if let Some(mut worker) = self.workers.remove(&number) {
            self.end_batch(&mut worker);
            self.steps.push(Step::Left { task: number });
        }
    }

    /// It is noticed that threads have ended.
    fn notice(&mut self) {
        while let Some(&(at, task)) = self.ended.front()
            && at <= self.steps.len()
        {
            self.ended.pop_front();
            self.steps.push(Step::Left { task });
        }
    }
}

#[test]
fn what_threads_of_each_batch_read_is_known_as_what_a_worker_reads() {
    for (workers, batch) in [(1, 32), (2, 32), (4, 32), (2, 16), (2, 8), (1, 8)] {
        for how in HOWS {
            let mut rng = ChaCha8Rng::seed_from_u64(1);
            let seeds = [40, 41, 42, 43];
            let perm = |seed: u32| randperm(N, &mut generator(u64::from(seed)));
            let job = Loader { workers, batch, ..loader(&seeds.map(perm)) };
            let truth =
                Truth { epochs: job.epochs.clone(), seeds: seeds.to_vec(), ..Truth::default() };
            let mut shell = Shell::new(learner(N), BTreeMap::from([(GROUP, truth)]), 60);
            Threaded::run(&job, how, &mut rng, &mut shell);
            let case = format!("{batch} by {workers}, {how:?}");
            let outcome = shell.outcomes.get(&GROUP).unwrap_or_else(|| panic!("{case}: nothing"));
            println!("{case}: {:?}", outcome.opens);
            assert!(outcome.wrong.is_empty(), "{case}: {outcome:?}");
            assert_eq!(outcome.opens.len(), 4, "{case}: {outcome:?}");
            let most = |epoch: &usize| if *epoch == 0 { 600 } else { 64 };
            let soon = |(epoch, opens): (&usize, &u32)| *opens <= most(epoch);
            assert!(outcome.opens.iter().all(soon), "{case}: {outcome:?}");
        }
    }
}

/// One worker may have read its last batch when another one is between two of its own.
#[test]
fn threads_of_a_batch_begin_no_epoch() {
    for (workers, batch) in [(1, 32), (2, 32), (4, 32), (2, 8)] {
        for how in HOWS {
            let mut rng = ChaCha8Rng::seed_from_u64(2);
            let epochs: Vec<Vec<u32>> = (0..4).map(|_| unknowable(N, &mut rng)).collect();
            let job = Loader { workers, batch, ..loader(&epochs) };
            let mut shell = Shell::new(learner(N), BTreeMap::new(), 60);
            Threaded::run(&job, how, &mut rng, &mut shell);
            let records: Vec<_> = shell.learner.records().collect();
            let [record] = records.as_slice() else { panic!("{records:?}") };
            let lengths: Vec<u32> = record.epochs.iter().map(Epoch::len).collect();
            let case = format!("{batch} by {workers}, {how:?}");
            println!("{case}: {lengths:?}");
            // What the edge of an epoch has is put down to one of the two.
            let whole = |length: &u32| length.abs_diff(N) <= 64;
            assert!(lengths.len() == 4 && lengths.iter().all(whole), "{case}: {lengths:?}");
        }
    }
}
