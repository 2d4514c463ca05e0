//! The policies: which samples a node holds, and how it reads the others.

use rand::SeedableRng;
use rand::rngs::ChaCha8Rng;
use rand::seq::SliceRandom;
use serde::Serialize;

use super::Job;

/// A loader of the comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Policy {
    /// Samples are there at once: the bound.
    Perfect,
    /// A sample is read when it is needed.
    Naive,
    /// Samples are read ahead into a buffer, as by a double buffer or tf.data.
    StagingBuffer,
    /// Each sample is in the RAM of the node that has read it first (Zhu et al., MASCOTS 2018).
    DeepIoOrdered,
    /// The same, but a node reads what it holds, and nothing else.
    DeepIoOpportunistic,
    /// A node reads its part of the data before the job begins, and nothing else from then on.
    ParallelStaging,
    /// The store of LBANN (Jacobs et al., 2019): all data is in the RAM of the nodes after the first epoch.
    LbannDynamic,
    /// The same before the first epoch.
    LbannPreload,
    /// Each sample is at the node that has read it first. A batch is divided so that nodes read what they hold (Yang and
    /// Cong, HiPC 2019).
    LocalityAware,
    /// Each node holds what it reads most often.
    Nopfs,
    /// Each sample has a home before any is held twice, as belady places them without known orders.
    Homes,
}

/// What a node holds of a sample: nothing.
pub(super) const NOTHING: u8 = u8::MAX;

/// What the nodes hold after the first epoch.
pub(super) struct Held {
    /// By node and sample: the class in which it is.
    pub classes: Vec<Vec<u8>>,
    /// Whether they held it before the first epoch.
    pub from_start: bool,
}

impl Policy {
    pub const ALL: [Policy; 11] = [
        Policy::Perfect,
        Policy::Naive,
        Policy::StagingBuffer,
        Policy::DeepIoOrdered,
        Policy::DeepIoOpportunistic,
        Policy::ParallelStaging,
        Policy::LbannDynamic,
        Policy::LbannPreload,
        Policy::LocalityAware,
        Policy::Nopfs,
        Policy::Homes,
    ];

    /// Whether a node reads only what it holds, whatever the order says.
    pub(super) fn reads_own(self) -> bool {
        matches!(self, Policy::DeepIoOpportunistic | Policy::ParallelStaging)
    }

    /// `None` if the policy cannot work: the data does not fit.
    pub(super) fn held(self, job: &Job) -> Option<Held> {
        let all = job.machine.classes.len();
        let (classes, priorities) = match self {
            Policy::Perfect | Policy::Naive | Policy::StagingBuffer => (0, Vec::new()),
            Policy::DeepIoOrdered | Policy::DeepIoOpportunistic => (1, first_read(job)),
            Policy::LbannDynamic | Policy::LbannPreload => (1, first_read(job)),
            Policy::ParallelStaging | Policy::LocalityAware => (all, first_read(job)),
            Policy::Nopfs => (all, most_read(job)),
            Policy::Homes => (all, homes(job)),
        };
        let from_start = matches!(self, Policy::LbannPreload | Policy::ParallelStaging);
        let held: Vec<_> = priorities.iter().map(|samples| fill(job, samples, classes)).collect();
        if matches!(self, Policy::LbannDynamic | Policy::LbannPreload) {
            let count = held.iter().flatten().filter(|class| **class != NOTHING).count();
            if count < job.sizes.len() {
                return None;
            }
        }
        Some(Held { classes: held, from_start })
    }
}

/// By node: the samples that it reads in the first epoch.
fn first_read(job: &Job) -> Vec<Vec<u32>> {
    let order = job.order.epoch(0);
    (0..job.nodes).map(|node| job.dealt(&order, node).collect()).collect()
}

/// By node: all samples, those first that it reads most often after the first epoch.
fn most_read(job: &Job) -> Vec<Vec<u32>> {
    let mut times = vec![vec![0_u32; job.sizes.len()]; job.nodes];
    for epoch in 1..job.epochs {
        for (position, sample) in job.order.epoch(epoch).iter().enumerate() {
            times[position % job.nodes][*sample as usize] += 1;
        }
    }
    // Of samples that are read as often as each other, each node takes others.
    let sorted = |(node, times): (usize, &Vec<u32>)| {
        let mut samples = job.order.epoch(0).to_vec();
        samples.shuffle(&mut ChaCha8Rng::seed_from_u64(node as u64));
        samples.sort_by_key(|sample| std::cmp::Reverse(times[*sample as usize]));
        samples
    };
    times.iter().enumerate().map(sorted).collect()
}

/// By node: the samples whose home it is, then others at random.
fn homes(job: &Job) -> Vec<Vec<u32>> {
    let others = |(node, mut samples): (usize, Vec<u32>)| {
        let mut others = job.order.epoch(0).to_vec();
        others.shuffle(&mut ChaCha8Rng::seed_from_u64(node as u64));
        samples.extend(others);
        samples
    };
    first_read(job).into_iter().enumerate().map(others).collect()
}

/// Puts samples into the first so many classes of a node. Says in which class each is.
fn fill(job: &Job, samples: &[u32], classes: usize) -> Vec<u8> {
    let mut held = vec![NOTHING; job.sizes.len()];
    let mut left: Vec<f64> =
        job.machine.classes.iter().take(classes).map(|class| class.capacity).collect();
    for sample in samples {
        let (size, held) = (job.sizes[*sample as usize], &mut held[*sample as usize]);
        let room = left.iter().position(|left| *left >= size);
        if let (NOTHING, Some(class)) = (*held, room) {
            left[class] -= size;
            *held = class as u8;
        }
    }
    held
}
