//! The planner in virtual time.
//!
//! A discrete-event simulation of readers, tiers and a source around the very planner that the
//! mount runs. Readers take the samples of their order batch by batch as a loader's workers do,
//! open a file, read its blocks one after the other, and think. They may be so many batches ahead of
//! their job. What the planner asks for is done by the
//! [`SourceModel`] or in the tiers' own time. One seed, one world: the same input gives the same
//! [`Report`], down to its digest.

pub mod workload;
mod world;

use std::sync::Arc;

use serde::Serialize;

use crate::order::Order;
use crate::plan::{Layout, Settings};
use world::World;

/// How long the source takes: a read holds one of `slots` servers for its latency, and its bytes
/// then pass a shared link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourceModel {
    /// Microseconds that a read occupies a server.
    pub latency_us: u64,
    pub slots: u32,
    /// Bytes per second of the shared link; 0: no limit.
    pub bandwidth: u64,
}

impl SourceModel {
    /// A source that answers at once: for figures of theory, which know no time.
    pub const INSTANT: SourceModel = SourceModel { latency_us: 0, slots: u32::MAX, bandwidth: 0 };

    /// Microseconds that a read of so many bytes takes where nobody else reads.
    pub fn read_us(&self, bytes: u64) -> u64 {
        self.latency_us + self.passing_us(bytes)
    }

    /// Microseconds that so many bytes take to pass the link.
    fn passing_us(&self, bytes: u64) -> u64 {
        bytes.saturating_mul(1_000_000).checked_div(self.bandwidth).unwrap_or(0)
    }
}

/// One reader of the dataset: a loader with its workers.
#[derive(Clone, Debug)]
pub struct Reader {
    pub order: Arc<Order>,
    /// Processes that read at the same time.
    pub workers: u32,
    /// Samples that a worker takes in a row.
    pub batch: u32,
    /// Microseconds that a worker rests after each sample.
    pub think_us: u64,
    /// Microseconds that the job takes for a batch; 0: workers do not wait for it.
    pub take_us: u64,
    /// Batches that each worker is handed out ahead of the job.
    pub ahead: u32,
}

/// A simulation: who reads what, with which cache, from which source.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// Sizes and blocks of the files.
    pub layout: Arc<Layout>,
    pub readers: Vec<Reader>,
    /// Whether the planner is told the orders.
    pub known: bool,
    /// Epochs that each reader goes through.
    pub epochs: u32,
    /// The planner's settings. A block is read from a tier below RAM, and written to it, in the time
    /// that is said there.
    pub settings: Settings,
    pub source: SourceModel,
    /// A tier below RAM that loses everything after so many reads.
    pub vanish: Option<(usize, u64)>,
}

/// What happened in one epoch, all readers together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct EpochReport {
    pub reads: u64,
    /// Of these, samples whose every byte was in a tier when they were opened, or had been
    /// brought there for an earlier read.
    pub hits: u64,
    /// Samples of which a reader had to wait for bytes.
    pub waits: u64,
    /// Blocks of these samples.
    pub blocks: u64,
    /// Microseconds that readers waited.
    pub stall_us: u64,
    /// Blocks read at the source.
    pub source_reads: u64,
    /// Bytes read at the source.
    pub source_bytes: u64,
    /// Virtual microseconds from the start to the end of its last read.
    pub end_us: u64,
}

/// What a simulation comes to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Report {
    pub epochs: Vec<EpochReport>,
    /// Virtual microseconds from start to end.
    pub elapsed_us: u64,
    /// Most bytes of page cache that were in use at any time.
    pub ram_bytes_max: u64,
    /// Hash of everything that happened, in order.
    pub digest: u64,
}

impl Report {
    /// All epochs but the first `skip`, added up.
    pub fn after(&self, skip: usize) -> EpochReport {
        self.epochs.iter().skip(skip).fold(EpochReport::default(), |sum, epoch| EpochReport {
            reads: sum.reads + epoch.reads,
            hits: sum.hits + epoch.hits,
            waits: sum.waits + epoch.waits,
            blocks: sum.blocks + epoch.blocks,
            stall_us: sum.stall_us + epoch.stall_us,
            source_reads: sum.source_reads + epoch.source_reads,
            source_bytes: sum.source_bytes + epoch.source_bytes,
            end_us: sum.end_us.max(epoch.end_us),
        })
    }

    /// Share of the blocks read, after the first `skip` epochs, that cost the source no read. Below 0
    /// where more was fetched ahead in vain.
    pub fn hit_share(&self, skip: usize) -> f64 {
        let sum = self.after(skip);
        if sum.blocks == 0 {
            return 0.0;
        }
        1.0 - sum.source_reads as f64 / sum.blocks as f64
    }
}

/// Runs a scenario to its end.
pub fn run(scenario: &Scenario) -> Report {
    World::new(scenario).run()
}

#[cfg(test)]
mod tests;
