//! The cluster and the datasets of the six scenarios.

use rand::rngs::ChaCha8Rng;
use rand::{RngExt, SeedableRng};

/// Storage of a node. Sizes are MB, rates MB/s.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Class {
    pub capacity: f64,
    /// Threads that fill it, and what they read together.
    pub threads: f64,
    pub rate: f64,
}

/// A node, and what all nodes read from. Rates are MB/s.
#[derive(Clone, Debug, PartialEq)]
pub struct Machine {
    /// What a node trains, and what a thread of it prepares.
    pub compute: f64,
    pub preparation: f64,
    pub network: f64,
    /// The buffer that a node trains from.
    pub staging: Class,
    /// RAM, then the disk.
    pub classes: Vec<Class>,
    /// What so many nodes get from the parallel filesystem together.
    pub filesystem: Vec<(usize, f64)>,
}

impl Machine {
    /// The node of the paper's simulations, at so many MB/s of training.
    pub fn of_paper(compute: f64) -> Self {
        let class =
            |gigabytes: f64, threads, rate| Class { capacity: gigabytes * 1e3, threads, rate };
        Machine {
            compute,
            preparation: 200.0,
            network: 24_000.0,
            staging: class(5.0, 8.0, 111_000.0),
            classes: vec![class(120.0, 4.0, 85_000.0), class(900.0, 2.0, 4_000.0)],
            filesystem: vec![(1, 330.0), (2, 730.0), (4, 1_540.0), (8, 2_870.0)],
        }
    }

    /// What each of so many nodes gets from the parallel filesystem. The largest case that was measured, and that does not
    /// have more nodes, tells it.
    pub fn filesystem_share(&self, nodes: usize) -> f64 {
        let measured = self.filesystem.iter().rev().find(|(count, _)| *count <= nodes);
        measured.map_or(0.0, |(_, rate)| rate / nodes as f64)
    }

    /// What a node can hold, without its staging buffer.
    pub fn capacity(&self) -> f64 {
        self.classes.iter().map(|class| class.capacity).sum()
    }
}

/// A dataset and the nodes that read it. The sizes of its samples have this mean and standard deviation, in MB.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scenario {
    pub name: &'static str,
    pub mean: f64,
    pub deviation: f64,
    pub samples: u32,
    pub nodes: usize,
    /// Samples of a node in a batch.
    pub batch: usize,
}

impl Scenario {
    pub const ALL: [Scenario; 6] = [
        Scenario::new("mnist", 0.00076, 0.0, 50_000, 4, 32),
        Scenario::new("imagenet-1k", 0.1077, 0.1, 1_281_167, 4, 32),
        Scenario::new("openimages", 0.2937, 0.2, 1_743_042, 4, 32),
        Scenario::new("imagenet-22k", 0.1077, 0.2, 14_197_122, 4, 32),
        Scenario::new("cosmoflow", 17.0, 0.0, 262_144, 4, 16),
        Scenario::new("cosmoflow-512", 1_000.0, 0.0, 10_000, 8, 1),
    ];

    const fn new(
        name: &'static str,
        mean: f64,
        deviation: f64,
        samples: u32,
        nodes: usize,
        batch: usize,
    ) -> Self {
        Scenario { name, mean, deviation, samples, nodes, batch }
    }

    /// Sizes of so many of its samples. They are log-normal: a size is never negative.
    pub(super) fn sizes(&self, samples: u32) -> Vec<f64> {
        let mut chance = ChaCha8Rng::seed_from_u64(u64::from(self.samples));
        let variance = (1.0 + (self.deviation / self.mean).powi(2)).ln();
        let middle = self.mean.ln() - variance / 2.0;
        let mut size = || {
            // A number of the standard normal distribution (Box and Muller, 1958).
            let (a, b) = (1.0 - chance.random::<f64>(), chance.random::<f64>());
            let normal = (-2.0 * a.ln()).sqrt() * (std::f64::consts::TAU * b).cos();
            (middle + variance.sqrt() * normal).exp()
        };
        (0..samples).map(|_| size()).collect()
    }
}
