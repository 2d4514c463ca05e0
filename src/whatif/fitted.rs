//! The numbers of a scenario that takes as long as what was measured.

use std::sync::Arc;

use super::{Rank, Setup};
use crate::error::Result;
use crate::order::Order;
use crate::plan::{Layout, Settings, Tier};
use crate::sim::{Machine, Reader, Scenario, SourceModel, workload};
use crate::stall::AHEAD;

/// Samples that are simulated at most. A larger dataset is made smaller, with all that belongs to it.
const SAMPLES_MAX: u64 = 100_000;

/// The share of the data that an epoch has to read, and the share of what the source gives that it has to read.
const ALL: f64 = 0.9;

/// With more workers nothing is simulated.
const WORKERS_MAX: u32 = 4096;

/// What is left to the workers if others use all processors.
pub(super) const PROCESSORS_MIN: f64 = 0.1;

/// The seed of the simulated orders.
const SEED: u64 = 1;

pub(super) struct Fitted {
    /// The samples that each rank reads in an epoch, and those of its batches.
    shares: Vec<u32>,
    batches: Vec<u32>,
    /// Whether each of them reads all samples. Otherwise they divide the samples among themselves.
    all_read_all: bool,
    sample_bytes: u64,
    /// How many times as large the real dataset is.
    pub(super) scale: f64,
    source: SourceModel,
    /// From the start of the first rank to the end of the last one.
    pub(super) seconds: f64,
}

impl Fitted {
    /// `None` if too little is known, if the ranks have not read all of the data, or if others have read meanwhile.
    pub(super) fn of(setup: &Setup, ranks: &[Rank<'_>]) -> Option<Self> {
        let mean = setup.bytes.checked_div(setup.files).filter(|bytes| *bytes > 0)?;
        let read: Vec<u64> =
            ranks.iter().map(|rank| rank.epoch.read_bytes).collect::<Option<_>>()?;
        let samples: Vec<u64> = read.iter().map(|bytes| (bytes / mean).min(setup.files)).collect();
        let is_all = |samples: u64| samples as f64 >= ALL * setup.files as f64;
        let all_read_all = samples.iter().all(|samples| is_all(*samples));
        let together: u64 = samples.iter().sum();
        let divide = is_all(together) && together as f64 * ALL <= setup.files as f64;
        let mount = ranks.iter().map(|rank| &rank.epoch.mount).max_by_key(|it| it.source_reads)?;
        let is_alone = mount.source_bytes as f64 * ALL <= read.iter().sum::<u64>() as f64;
        let too_many = ranks.iter().any(|rank| rank.model.workers > WORKERS_MAX);
        if !(all_read_all || divide) || !is_alone || too_many || mount.source_reads == 0 {
            return None;
        }
        let batches = ranks.iter().zip(&samples);
        let batches = batches.map(|(rank, samples)| samples.div_ceil(rank.model.batches.max(1)));
        let scale = (together as f64 / SAMPLES_MAX as f64).max(1.0);
        let fitted = Fitted {
            shares: samples.iter().map(|samples| (*samples as f64 / scale) as u32).collect(),
            batches: batches.map(|batch| u32::try_from(batch).ok()).collect::<Option<_>>()?,
            all_read_all,
            sample_bytes: mean,
            scale,
            source: source(setup, ranks, mean),
            seconds: seconds(ranks),
        };
        let is_something = |number: &u32| *number > 0;
        let numbers = || fitted.shares.iter().chain(&fitted.batches);
        (fitted.seconds > 0.0 && numbers().all(is_something)).then_some(fitted)
    }

    /// The processors that others have left to the workers. `None` if that is not known.
    pub(super) fn processors_left(&self, setup: &Setup, ranks: &[Rank<'_>]) -> Option<f64> {
        let busy = ranks.iter().map(|rank| rank.epoch.mount.busy_s);
        let busy = busy.collect::<Option<Vec<f64>>>()?.into_iter().fold(0.0, f64::max);
        let runs: f64 = ranks.iter().map(|rank| rank.epoch.run_s).sum();
        let others = (busy - runs).max(0.0) / self.seconds;
        let left = (f64::from(setup.processors) - others).max(PROCESSORS_MIN);
        (setup.processors > 0).then_some(left)
    }

    /// The scenario with so many processors. `None` for them: waiting for a processor takes as long as it took.
    pub(super) fn scenario(
        &self,
        setup: &Setup,
        ranks: &[Rank<'_>],
        processors: Option<f64>,
    ) -> Result<Scenario> {
        let samples = if self.all_read_all { self.shares[0] } else { self.shares.iter().sum() };
        let layout = Layout::new((0..samples).map(|_| self.sample_bytes));
        let capacity = |bytes: u64| (bytes as f64 / self.scale) as u64;
        let disk_us = (setup.disk_read_s.unwrap_or_default() * 1e6) as u64;
        let ram = Tier { capacity: capacity(setup.ram_bytes), block_us: 0 };
        let disk = Tier { capacity: capacity(setup.disk_bytes), block_us: disk_us };
        let numbers = ranks.iter().zip(&self.batches).zip(self.orders(samples)?);
        let reader = |((rank, batch), order): ((&Rank<'_>, &u32), Arc<Order>)| {
            let model = rank.model;
            let each = |seconds: f64| (seconds / f64::from(*batch) * 1e6) as u64;
            let counted = if processors.is_some() { model.run_s + model.queued_s } else { 0.0 };
            Reader {
                order,
                workers: model.workers,
                batch: *batch,
                think_us: each((model.preparation_s - counted).max(0.0)),
                run_us: if processors.is_some() { each(model.run_s) } else { 0 },
                // A step of no time would be no trainer.
                step_us: ((model.step_s * 1e6) as u64).max(1),
                ahead: AHEAD as u32,
            }
        };
        let free = Machine::default();
        Ok(Scenario {
            layout: Arc::new(layout),
            readers: numbers.map(reader).collect(),
            known: setup.order_is_known,
            epochs: 2,
            settings: Settings {
                tiers: std::iter::once(ram).chain((setup.disk_bytes > 0).then_some(disk)).collect(),
                source_us: None,
                policy: setup.policy,
                prefetch: setup.prefetch,
                inflight_max: setup.reads_at_once.max(1),
                window_bytes: None,
                request_bytes: 8 << 20,
                start_at_open: true,
                may_untrack: false,
                withheld: false,
            },
            machine: Machine { processors: processors.unwrap_or(free.processors), ..free },
            source: self.source,
            manners: None,
            vanish: None,
        })
    }

    /// The order of each rank.
    fn orders(&self, samples: u32) -> Result<Vec<Arc<Order>>> {
        match self.all_read_all {
            true => (SEED..)
                .take(self.shares.len())
                .map(|seed| workload::permutations(samples, 2, seed))
                .collect(),
            false => workload::divided(&self.shares, 2, SEED),
        }
    }
}

/// The source as it was measured. If nothing is read ahead, workers wait for all that a read takes: for the kernel and for
/// belady, too. Waits for the cache disk are none for the source.
fn source(setup: &Setup, ranks: &[Rank<'_>], sample_bytes: u64) -> SourceModel {
    let mount = ranks.iter().map(|rank| &rank.epoch.mount).max_by_key(|it| it.source_reads);
    let (reads, seconds) = mount.map_or((0, 0.0), |mount| (mount.source_reads, mount.source_s));
    let disk_reads = mount.map_or(0, |mount| mount.disk_bytes / sample_bytes);
    let waited = |rank: &Rank<'_>| rank.model.fetch_s * rank.model.batches as f64;
    let waited_for_disk = disk_reads as f64 * setup.disk_read_s.unwrap_or_default();
    let all = match setup.prefetch {
        true => seconds,
        false => (ranks.iter().map(waited).sum::<f64>() - waited_for_disk).max(0.0),
    };
    let whole = all / reads.max(1) as f64;
    let transfer = (setup.seconds_per_byte * sample_bytes as f64).clamp(0.0, whole);
    let bandwidth = if transfer > 0.0 { (sample_bytes as f64 / transfer) as u64 } else { 0 };
    let latency_us = ((whole - transfer) * 1e6) as u64;
    SourceModel { latency_us, servers: setup.reads_at_once.max(1), bandwidth }
}

/// From the start of the first rank to the end of the last one.
fn seconds(ranks: &[Rank<'_>]) -> f64 {
    if let [rank] = ranks {
        return rank.epoch.seconds;
    }
    let began = ranks.iter().map(|rank| rank.epoch.began_s).fold(f64::INFINITY, f64::min);
    let ended = ranks.iter().map(|rank| rank.epoch.began_s + rank.epoch.seconds);
    ended.fold(0.0, f64::max) - began
}
