//! How long a job's epoch would take if something were different: other memory, another link, more workers.
//!
//! 1. [`Setup`] is what a mount says about itself, and [`Model`] what was measured of the job (`stall`).
//! 2. Both make a [`Scenario`]: the very planner of the mount, a source as it was measured, and a loader with its trainer.
//! 3. The scenario has to take as long as the epoch took. Then each [`Change`] is made to it, and it is run again. What is
//!    told is a later epoch: the first one may have found less in the cache.

mod change;

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::config::PolicyKind;
use crate::error::Result;
use crate::plan::{Layout, Settings, Tier};
use crate::sim::{Reader, Scenario, SourceModel, run, workload};
use crate::stall::{AHEAD, Epoch, Gains, Model};
pub use change::Change;

/// The scenario has to give the measured time back within this share of it.
const ERROR_MAX: f64 = 0.05;

/// Samples that are simulated at most. A larger dataset is made smaller, with all that belongs to it.
const SAMPLES_MAX: u64 = 100_000;

/// The share of the data that an epoch has to read, and the share of what the source gives that it has to read.
const ALL: f64 = 0.9;

/// With more workers nothing is simulated.
const WORKERS_MAX: u32 = 4096;

/// What a mount says about itself.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Setup {
    pub files: u64,
    pub bytes: u64,
    /// Bytes that RAM and the cache disk may hold.
    pub ram_bytes: u64,
    pub disk_bytes: u64,
    pub policy: PolicyKind,
    /// Whether samples are read ahead, and whether an order is followed.
    pub prefetch: bool,
    pub order_is_known: bool,
    /// Reads at the source at once.
    pub reads_at_once: u32,
    /// Seconds by which a read at the source takes longer for each byte. 0 if it is not known.
    pub seconds_per_byte: f64,
    /// Processors of the machine. 0 if they are not known.
    pub processors: u32,
}

/// What an epoch would take.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Prediction {
    pub what: String,
    pub seconds: f64,
}

/// A job at a mount, to be run in virtual time.
#[derive(Clone, Debug)]
pub struct Job {
    scenario: Scenario,
    /// Until a worker begins to read, in seconds. It is not simulated.
    starting: f64,
    /// How many times as large the real dataset is.
    scale: f64,
    /// The epoch of the scenario that takes as long as the measured one: the first one, or a later one.
    measured: usize,
    /// Seconds of the measured epoch.
    seconds: f64,
    /// By how much the scenario misses the measured time, as a share of it.
    pub error: f64,
    /// Measured seconds over simulated ones.
    correction: f64,
    /// Seconds that the machine's processors need for the work of all workers. It is not simulated.
    least: f64,
}

impl Job {
    /// The job of a whole epoch that was measured. `None` if too little is known, or if the scenario does not give its time back.
    pub fn of(setup: &Setup, epoch: &Epoch, model: &Model) -> Option<Self> {
        let is_whole = epoch.is_over && epoch.is_whole;
        let fitted = Fitted::of(setup, epoch, model).filter(|_| is_whole)?;
        let mut job = Job {
            scenario: fitted.scenario(setup, model).ok()?,
            starting: model.starting_s,
            scale: fitted.scale,
            measured: 1,
            seconds: epoch.seconds,
            error: 0.0,
            correction: 1.0,
            least: if setup.processors > 0 {
                epoch.run_s / f64::from(setup.processors)
            } else {
                0.0
            },
        };
        // The cache may have held little at the start of the epoch, or all that it can hold.
        let found = job.epochs(&job.scenario);
        let miss = |nth: &usize| (found[*nth] / epoch.seconds - 1.0).abs();
        job.measured = usize::from(miss(&0) >= miss(&1));
        let given = found[job.measured];
        job.error = given / epoch.seconds - 1.0;
        job.correction = epoch.seconds / given;
        (job.error.abs() <= ERROR_MAX).then_some(job)
    }

    /// What a later epoch takes after these changes.
    pub fn predict(&self, changes: &[Change]) -> Prediction {
        let words: Vec<String> = changes.iter().map(ToString::to_string).collect();
        let later = |scenario: &mut Scenario| changes.iter().for_each(|it| it.make(scenario));
        Prediction { what: words.join(", "), seconds: self.seconds_of(1, later).max(self.least) }
    }

    /// What each part's absence would give of the measured epoch, and the seconds that are left without files. If the
    /// source is read ahead at its limit, the absence of the others gives nothing. The model of the loader alone does
    /// not know that.
    pub fn gains(&self) -> (Gains, f64) {
        let without = |change: &dyn Fn(&mut Scenario)| self.seconds_of(self.measured, change);
        let files = without(&|it| it.source = SourceModel::INSTANT).max(self.least);
        let preparation = without(&|it| it.readers.iter_mut().for_each(|it| it.think_us = 0));
        let steps = without(&|it| it.readers.iter_mut().for_each(|it| it.step_us = 1));
        let gain = |seconds: f64| (1.0 - seconds / self.seconds).max(0.0);
        let gains = Gains {
            fetch: gain(files),
            processor: gain(preparation),
            gpu: gain(steps.max(self.least)),
        };
        (gains, files)
    }

    /// Seconds of an epoch of a scenario that is changed.
    fn seconds_of(&self, epoch: usize, change: impl FnOnce(&mut Scenario)) -> f64 {
        let mut scenario = self.scenario.clone();
        change(&mut scenario);
        self.epochs(&scenario)[epoch] * self.correction
    }

    /// Seconds of the first epoch, and of the second one.
    fn epochs(&self, scenario: &Scenario) -> [f64; 2] {
        let report = run(scenario);
        let end = |epoch: usize| report.epochs.get(epoch).map_or(0, |found| found.trained_us);
        let seconds = |us: u64| us as f64 / 1e6 * self.scale + self.starting;
        [seconds(end(0)), seconds(end(1).saturating_sub(end(0)))]
    }
}

/// The numbers of a scenario.
struct Fitted {
    samples: u32,
    sample_bytes: u64,
    batch: u32,
    scale: f64,
    source: SourceModel,
}

impl Fitted {
    fn of(setup: &Setup, epoch: &Epoch, model: &Model) -> Option<Self> {
        let mean = setup.bytes.checked_div(setup.files).filter(|bytes| *bytes > 0)?;
        let samples = (epoch.read_bytes? / mean).min(setup.files);
        let batch = u32::try_from(samples.div_ceil(model.batches.max(1))).ok()?;
        let reads = epoch.mount.source_reads as f64;
        if batch == 0 || reads < 1.0 || epoch.seconds <= 0.0 || model.workers > WORKERS_MAX {
            return None;
        }
        // Otherwise the epoch is one rank's, or others have read at the mount meanwhile.
        let is_all = samples as f64 >= ALL * setup.files as f64;
        let is_alone = epoch.mount.source_bytes as f64 * ALL <= epoch.read_bytes? as f64;
        if !is_all || !is_alone {
            return None;
        }
        // If nothing is read ahead, workers wait for all that a read takes: for the kernel and for belady, too.
        let whole = match setup.prefetch {
            true => epoch.mount.source_s / reads,
            false => model.fetch_s * model.batches as f64 / reads,
        };
        let transfer = (setup.seconds_per_byte * mean as f64).clamp(0.0, whole);
        let bandwidth = if transfer > 0.0 { (mean as f64 / transfer) as u64 } else { 0 };
        let latency_us = ((whole - transfer) * 1e6) as u64;
        let servers = setup.reads_at_once.max(1);
        let scale = (samples as f64 / SAMPLES_MAX as f64).max(1.0);
        Some(Fitted {
            samples: (samples as f64 / scale) as u32,
            sample_bytes: mean,
            batch,
            scale,
            source: SourceModel { latency_us, servers, bandwidth },
        })
    }

    fn scenario(&self, setup: &Setup, model: &Model) -> Result<Scenario> {
        let layout = Layout::new((0..self.samples).map(|_| self.sample_bytes));
        let capacity = |bytes: u64| (bytes as f64 / self.scale) as u64;
        let tier = |bytes: u64| Tier { capacity: capacity(bytes), block_us: 0 };
        let disk = (setup.disk_bytes > 0).then(|| tier(setup.disk_bytes));
        let order = workload::permutations(self.samples, 2, 1)?;
        let reader = Reader {
            order,
            workers: model.workers,
            batch: self.batch,
            think_us: (model.preparation_s / f64::from(self.batch) * 1e6) as u64,
            // A step of no time would be no trainer.
            step_us: ((model.step_s * 1e6) as u64).max(1),
            ahead: AHEAD as u32,
        };
        Ok(Scenario {
            layout: Arc::new(layout),
            readers: vec![reader],
            known: setup.order_is_known,
            epochs: 2,
            settings: Settings {
                tiers: std::iter::once(tier(setup.ram_bytes)).chain(disk).collect(),
                source_us: None,
                policy: setup.policy,
                prefetch: setup.prefetch,
                inflight_max: setup.reads_at_once.max(1),
                window_bytes: None,
                start_at_open: true,
                may_untrack: false,
                withheld: false,
            },
            source: self.source,
            manners: None,
            vanish: None,
        })
    }
}

#[cfg(test)]
mod tests;
