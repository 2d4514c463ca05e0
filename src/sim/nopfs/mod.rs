//! The six scenarios of NoPFS, its policies, and its performance model (Dryden et al., "Clairvoyant Prefetching for
//! Distributed Machine Learning I/O", SC 2021).
//!
//! 1. A [`Scenario`] is a dataset and the nodes that read it, on a [`Machine`]. Each epoch is a permutation. Its position `p`
//!    is read by node `p` modulo their number.
//! 2. A [`Policy`] says what each node holds after the first epoch. RAM is filled first, then the disk.
//! 3. A node takes a sample from the fastest place that has it: itself, another node, or the parallel filesystem. What it
//!    reads waits in the staging buffer until it is trained.
//! 4. A node begins with a sample when it is available, and has trained the one before.
//!
//! The paper leaves some of it open. This is how it is read here. The threads of the staging buffer share what a node gets
//! from the parallel filesystem. All nodes always read there at once. In the first epoch everything comes from there, and
//! the rule of NoPFS counts the reads of the others. Sizes are log-normal. Reading ahead has no limit. A large dataset is
//! simulated by a part of it, with storage that is smaller in proportion.

mod policy;
mod scenario;

use std::sync::Arc;

use serde::Serialize;

use crate::error::Result;
use crate::order::Order;
use crate::sim::workload;
use policy::NOTHING;
pub use policy::Policy;
pub use scenario::{Class, Machine, Scenario};

/// A job of the comparison.
pub struct Job {
    machine: Machine,
    nodes: usize,
    batch: usize,
    /// MB, by sample.
    sizes: Vec<f64>,
    order: Arc<Order>,
    epochs: u32,
    /// How many times as large the real dataset is.
    scale: f64,
}

/// What a policy gives.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Outcome {
    /// Seconds of all epochs, and of what is read before them.
    pub seconds: f64,
    /// The share of reads after the first epoch that the parallel filesystem gets.
    pub source: f64,
    /// Whether the job reads all samples in each epoch.
    pub reads_all: bool,
}

/// Where a node finds a sample.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Place {
    Own(usize),
    /// At another node.
    Other(usize),
    Filesystem,
}

/// A node in time. Times are seconds.
#[derive(Clone, Copy, Debug, Default)]
struct Clock {
    /// When its next sample is available, and when it begins to train the last one.
    available: f64,
    begun: f64,
    /// What the last one takes.
    training: f64,
}

impl Job {
    /// A job of so many epochs, with a part of the scenario's samples: at most `samples_max`.
    ///
    /// # Errors
    /// If there are no epochs.
    pub fn new(
        scenario: &Scenario,
        machine: &Machine,
        epochs: u32,
        samples_max: u32,
    ) -> Result<Self> {
        let samples = scenario.samples.min(samples_max);
        let scale = f64::from(scenario.samples) / f64::from(samples);
        let smaller = |class: &Class| Class { capacity: class.capacity / scale, ..*class };
        let classes = machine.classes.iter().map(smaller).collect();
        Ok(Job {
            machine: Machine { classes, ..machine.clone() },
            nodes: scenario.nodes,
            batch: scenario.batch,
            sizes: scenario.sizes(samples),
            order: workload::permutations(samples, epochs, 1)?,
            epochs,
            scale,
        })
    }

    /// What a policy gives. `None` if the data does not fit.
    pub fn run(&self, policy: Policy) -> Option<Outcome> {
        let held = policy.held(self)?;
        let mut clocks = vec![Clock::default(); self.nodes];
        if held.from_start {
            for (clock, classes) in clocks.iter_mut().zip(&held.classes) {
                let samples = classes.iter().enumerate().filter(|(_, class)| **class != NOTHING);
                clock.available =
                    samples.map(|(nth, _)| self.seconds(Place::Filesystem, self.sizes[nth])).sum();
            }
        }
        let (mut source, mut reads) = (0_u64, 0_u64);
        for epoch in 0..self.epochs {
            let is_held = epoch > 0 || held.from_start;
            for (node, samples) in
                self.assigned(policy, epoch, is_held, &held.classes).iter().enumerate()
            {
                for sample in samples {
                    let place = match is_held {
                        true => self.find(node, *sample, &held.classes),
                        false => Place::Filesystem,
                    };
                    if epoch > 0 {
                        source += u64::from(place == Place::Filesystem);
                        reads += 1;
                    }
                    self.step(policy, &mut clocks[node], *sample, place);
                }
            }
        }
        let end = |clock: &Clock| clock.begun + clock.training;
        let reads_all = !policy.reads_own() || self.count_held(&held.classes) == self.sizes.len();
        Some(Outcome {
            seconds: clocks.iter().map(end).fold(0.0, f64::max) * self.scale,
            source: if policy == Policy::Perfect {
                0.0
            } else {
                source as f64 / reads.max(1) as f64
            },
            reads_all,
        })
    }

    /// Samples that any node holds.
    fn count_held(&self, classes: &[Vec<u8>]) -> usize {
        let is_held = |sample: &usize| classes.iter().any(|node| node[*sample] != NOTHING);
        (0..self.sizes.len()).filter(is_held).count()
    }

    /// The samples of an epoch that a node reads, if none are exchanged.
    fn dealt<'a>(&self, order: &'a [u32], node: usize) -> impl Iterator<Item = u32> + 'a {
        order.iter().skip(node).step_by(self.nodes).copied()
    }

    /// The samples that each node reads in an epoch.
    fn assigned(
        &self,
        policy: Policy,
        epoch: u32,
        is_held: bool,
        classes: &[Vec<u8>],
    ) -> Vec<Vec<u32>> {
        let order = self.order.epoch(epoch);
        let dealt = |node: usize| self.dealt(&order, node);
        if is_held && policy.reads_own() {
            let own = |node: usize| {
                (0..self.sizes.len() as u32).filter(move |s| classes[node][*s as usize] != NOTHING)
            };
            return (0..self.nodes)
                .map(|node| own(node).cycle().take(dealt(node).count()).collect())
                .collect();
        }
        if is_held && policy == Policy::LocalityAware {
            return self.by_locality(&order, classes);
        }
        (0..self.nodes).map(|node| dealt(node).collect()).collect()
    }

    /// Divides each batch so that a node gets what it holds, and all get the same number.
    fn by_locality(&self, order: &[u32], classes: &[Vec<u8>]) -> Vec<Vec<u32>> {
        let mut assigned = vec![Vec::new(); self.nodes];
        for batch in order.chunks(self.batch * self.nodes) {
            let most = batch.len().div_ceil(self.nodes);
            let (mut of_batch, mut left) = (vec![Vec::new(); self.nodes], Vec::new());
            for sample in batch {
                let holds = |node: &usize| {
                    classes[*node][*sample as usize] != NOTHING && of_batch[*node].len() < most
                };
                match (0..self.nodes).find(holds) {
                    Some(node) => of_batch[node].push(*sample),
                    None => left.push(*sample),
                }
            }
            for samples in &mut of_batch {
                let room = most - samples.len();
                samples.extend(left.drain(left.len().saturating_sub(room)..));
            }
            assigned.iter_mut().zip(of_batch).for_each(|(all, samples)| all.extend(samples));
        }
        assigned
    }

    /// The fastest place that has a sample.
    fn find(&self, node: usize, sample: u32, classes: &[Vec<u8>]) -> Place {
        let class = |node: &Vec<u8>| Some(node[sample as usize]).filter(|class| *class != NOTHING);
        let own = classes.get(node).and_then(class).map(|class| Place::Own(class.into()));
        let others = classes.iter().enumerate().filter(|(other, _)| *other != node);
        let other = others
            .filter_map(|(_, held)| class(held))
            .min()
            .map(|class| Place::Other(class.into()));
        let places = own.into_iter().chain(other).chain([Place::Filesystem]);
        let seconds = |place: &Place| self.seconds(*place, self.sizes[sample as usize]);
        places.min_by(|a, b| seconds(a).total_cmp(&seconds(b))).unwrap_or(Place::Filesystem)
    }

    /// Seconds in which the threads of the staging buffer get a sample, if they work at nothing else.
    fn seconds(&self, place: Place, size: f64) -> f64 {
        let Machine { preparation, network, staging, classes, .. } = &self.machine;
        let write =
            (size / preparation).max(size * staging.threads / staging.rate) / staging.threads;
        let of_thread = |class: usize| classes[class].rate / classes[class].threads;
        write
            + match place {
                Place::Filesystem => size / self.machine.filesystem_share(self.nodes),
                Place::Own(class) => {
                    size / (of_thread(class) * staging.threads).min(classes[class].rate)
                }
                Place::Other(class) => {
                    size / (of_thread(class) * staging.threads)
                        .min(classes[class].rate)
                        .min(*network)
                }
            }
    }

    /// A node reads a sample and trains it.
    fn step(&self, policy: Policy, clock: &mut Clock, sample: u32, place: Place) {
        let size = self.sizes[sample as usize];
        let free = clock.begun + clock.training;
        let threads = self.machine.staging.threads;
        match policy {
            Policy::Perfect => {}
            // One thread reads, prepares and trains.
            Policy::Naive => {
                let filesystem = size / self.machine.filesystem_share(self.nodes);
                let preparation = self.seconds(place, size) - filesystem;
                clock.available = free + filesystem + preparation * threads;
            }
            _ => clock.available += self.seconds(place, size),
        }
        clock.begun = clock.available.max(free);
        clock.training = size / self.machine.compute;
    }
}

#[cfg(test)]
mod tests;
