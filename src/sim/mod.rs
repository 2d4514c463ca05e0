//! Runs the planner in virtual time.
//!
//! A discrete-event simulation of readers, tiers and a source around the same planner that a mount runs.
//! Readers take the samples of their order batch by batch, as a loader's workers do. A worker opens a file,
//! reads its blocks in sequence, needs one of the processors, and rests. The job takes the batches in their order, and trains for its step time on each.
//! A worker may run a limited number of batches ahead of it. The
//! [`SourceModel`] and the times of the tiers decide how long the planner's actions take. The same input
//! gives the same [`Report`], including its digest.

pub mod nodes;
pub mod nopfs;
mod pool;
mod runs;
pub mod workload;
mod world;

use std::sync::Arc;

use serde::Serialize;

use crate::config::Manners;
use crate::order::Order;
use crate::plan::{Layout, Settings};
use world::World;

/// How long the source takes. A read occupies one of `servers` for its latency. Then its bytes pass a
/// shared link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourceModel {
    /// Microseconds that a read occupies a server.
    pub latency_us: u64,
    pub servers: u32,
    /// Bytes per second of the shared link. 0: no limit.
    pub bandwidth: u64,
}

impl SourceModel {
    /// A source that answers at once, for comparison with theory that ignores time.
    pub const INSTANT: SourceModel = SourceModel { latency_us: 0, servers: u32::MAX, bandwidth: 0 };

    /// Microseconds that a read of `bytes` takes if there are no other reads.
    pub fn read_us(&self, bytes: u64) -> u64 {
        self.latency_us + transfer_us(bytes, self.bandwidth)
    }
}

/// Microseconds that bytes take at so many bytes a second. 0 if the bandwidth has no limit.
fn transfer_us(bytes: u64, bandwidth: u64) -> u64 {
    bytes.saturating_mul(1_000_000).checked_div(bandwidth).unwrap_or(0)
}

/// What all readers of a machine share.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Machine {
    /// Processors. A part of one is a slower one.
    pub processors: f64,
    /// Bytes per second of each tier below RAM. 0: a block takes no time there beside its tier's `block_us`.
    pub disk_bandwidth: u64,
}

impl Default for Machine {
    /// Nobody waits for a processor, or for another block.
    fn default() -> Self {
        Machine { processors: f64::from(u32::MAX), disk_bandwidth: 0 }
    }
}

/// One reader of the dataset: a loader with its workers.
#[derive(Clone, Debug)]
pub struct Reader {
    pub order: Arc<Order>,
    /// Processes that read in parallel.
    pub workers: u32,
    /// Samples that a worker takes in sequence.
    pub batch: u32,
    /// Microseconds that a worker rests after each sample.
    pub think_us: u64,
    /// Microseconds of a processor that it needs for each sample before it rests, the mean.
    pub run_us: u64,
    /// Microseconds that the job's training step takes for a batch. 0: workers do not wait for the job.
    pub step_us: u64,
    /// Batches that each worker may read ahead of the job.
    pub ahead: u32,
}

/// A simulation: which readers read which data, through which cache, from which source.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// Sizes and blocks of the files.
    pub layout: Arc<Layout>,
    pub readers: Vec<Reader>,
    /// Whether the planner is told the orders.
    pub known: bool,
    /// Epochs that each reader reads.
    pub epochs: u32,
    /// The planner's settings. A tier's `block_us` is also the time of a read or write of a block there.
    pub settings: Settings,
    pub machine: Machine,
    pub source: SourceModel,
    /// How the number of fetches is found. `None`: it is that of the settings.
    pub manners: Option<Manners>,
    /// A tier below RAM, and the number of the read at which it loses everything.
    pub vanish: Option<(usize, u64)>,
}

/// What happened in one epoch, summed over all readers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct EpochReport {
    pub reads: u64,
    /// Samples that were read without a miss: every block was in RAM or on its way there.
    pub hits: u64,
    /// Samples whose reader waited for bytes.
    pub waits: u64,
    /// Blocks of all samples read.
    pub blocks: u64,
    /// Microseconds that readers waited.
    pub stall_us: u64,
    /// Blocks read at the source.
    pub source_reads: u64,
    /// Bytes read at the source, and microseconds that these reads took.
    pub source_bytes: u64,
    pub source_us: u64,
    /// Virtual microseconds from the start to the end of its last read.
    pub end_us: u64,
    /// The same to the end of the last step of the jobs, if they have steps.
    pub trained_us: u64,
}

/// The result of a simulation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Report {
    pub epochs: Vec<EpochReport>,
    /// Virtual microseconds from start to end.
    pub elapsed_us: u64,
    /// The most bytes of page cache in use at any time.
    pub ram_bytes_max: u64,
    /// Hash of all events, in order.
    pub digest: u64,
}

impl Report {
    /// The sum of all epochs after the first `skip`.
    pub fn after(&self, skip: usize) -> EpochReport {
        self.epochs.iter().skip(skip).fold(EpochReport::default(), |sum, epoch| EpochReport {
            reads: sum.reads + epoch.reads,
            hits: sum.hits + epoch.hits,
            waits: sum.waits + epoch.waits,
            blocks: sum.blocks + epoch.blocks,
            stall_us: sum.stall_us + epoch.stall_us,
            source_reads: sum.source_reads + epoch.source_reads,
            source_bytes: sum.source_bytes + epoch.source_bytes,
            source_us: sum.source_us + epoch.source_us,
            end_us: sum.end_us.max(epoch.end_us),
            trained_us: sum.trained_us.max(epoch.trained_us),
        })
    }

    /// Share of the blocks read, after the first `skip` epochs, that cost no read at the source. Negative if
    /// more blocks were prefetched in vain.
    pub fn hit_ratio(&self, skip: usize) -> f64 {
        let sum = self.after(skip);
        if sum.blocks == 0 {
            return 0.0;
        }
        1.0 - sum.source_reads as f64 / sum.blocks as f64
    }
}

pub fn run(scenario: &Scenario) -> Report {
    World::new(scenario).run()
}

#[cfg(test)]
mod tests;
