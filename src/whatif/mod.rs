//! How long a job's epoch would take if something were different: other memory, another link, more workers.
//!
//! 1. [`Setup`] is what a mount says about itself, and [`Model`] what was measured of the job (`stall`).
//! 2. Both make a [`Scenario`]: the very planner of the mount, a source as it was measured, and a loader with its trainer.
//!    Ranks that read together are together in it. Workers share the processors that others leave them.
//! 3. The scenario has to take as long as the epoch took. Then each [`Change`] is made to it, and it is run again. What is
//!    told is a later epoch: the first one may have found less in the cache.

mod change;
mod fitted;

use serde::{Deserialize, Serialize};

use crate::config::PolicyKind;
use crate::sim::{Scenario, SourceModel, run};
use crate::stall::{Epoch, Gains, Model};
pub use change::Change;
use fitted::Fitted;

/// The scenario has to give the measured time back within this share of it.
const ERROR_MAX: f64 = 0.05;

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
    /// Seconds that a read of the cache disk has taken, the mean. `None` if nothing was read there.
    pub disk_read_s: Option<f64>,
}

/// What an epoch would take.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Prediction {
    pub what: String,
    pub seconds: f64,
}

/// A trainer with its workers in an epoch, and the model of it. Trainers that read together are the ranks of a job, or
/// several jobs.
#[derive(Clone, Copy, Debug)]
pub struct Rank<'a> {
    pub epoch: &'a Epoch,
    pub model: &'a Model,
}

/// Jobs at a mount, to be run in virtual time.
#[derive(Clone, Debug)]
pub struct Job {
    scenario: Scenario,
    setup: Setup,
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
    /// Seconds that the machine's processors need for the work of all workers, if the scenario has no processors.
    least: f64,
}

impl Job {
    /// The job of an epoch that was measured, with all trainers that read then. `None` if too little is known, or if no
    /// scenario gives its time back.
    pub fn of(setup: &Setup, ranks: &[Rank<'_>]) -> Option<Self> {
        let is_whole = ranks.iter().all(|rank| rank.epoch.is_over && rank.epoch.is_whole);
        let fitted = Fitted::of(setup, ranks).filter(|_| is_whole)?;
        let processors = fitted.processors_left(setup, ranks);
        let mut ways = processors.map(Some).into_iter().chain([None]);
        ways.find_map(|processors| Job::with(setup, ranks, &fitted, processors))
    }

    /// The job with so many processors. `None` for them: waiting for a processor takes as long as it took.
    fn with(
        setup: &Setup,
        ranks: &[Rank<'_>],
        fitted: &Fitted,
        processors: Option<f64>,
    ) -> Option<Self> {
        let runs: f64 = ranks.iter().map(|rank| rank.epoch.run_s).sum();
        let starting = ranks.iter().map(|rank| rank.model.starting_s);
        let mut job = Job {
            scenario: fitted.scenario(setup, ranks, processors).ok()?,
            setup: setup.clone(),
            starting: starting.fold(0.0, f64::max),
            scale: fitted.scale,
            measured: 1,
            seconds: fitted.seconds,
            error: 0.0,
            correction: 1.0,
            least: match processors {
                None if setup.processors > 0 => runs / f64::from(setup.processors),
                _ => 0.0,
            },
        };
        // The cache may have held little at the start of the epoch, or all that it can hold.
        let found = job.epochs(&job.scenario);
        let miss = |nth: &usize| (found[*nth] / job.seconds - 1.0).abs();
        job.measured = usize::from(miss(&0) >= miss(&1));
        let given = found[job.measured];
        job.error = given / job.seconds - 1.0;
        job.correction = job.seconds / given;
        (job.error.abs() <= ERROR_MAX).then_some(job)
    }

    /// What a later epoch takes after these changes.
    ///
    /// # Errors
    /// Why it is not known.
    pub fn predict(&self, changes: &[Change]) -> Result<Prediction, &'static str> {
        let words: Vec<String> = changes.iter().map(ToString::to_string).collect();
        let mut scenario = self.scenario.clone();
        for change in changes {
            change.make(&mut scenario, self)?;
        }
        Ok(Prediction {
            what: words.join(", "),
            seconds: self.seconds_of(1, &scenario).max(self.least),
        })
    }

    /// What each part's absence would give of the measured epoch, and the seconds that are left without files. If the
    /// source is read ahead at its limit, the absence of the others gives nothing. The model of the loader alone does
    /// not know that.
    pub fn gains(&self) -> (Gains, f64) {
        let without = |change: &dyn Fn(&mut Scenario)| {
            let mut scenario = self.scenario.clone();
            change(&mut scenario);
            self.seconds_of(self.measured, &scenario)
        };
        let files = without(&|it| {
            it.source = SourceModel::INSTANT;
            it.machine.disk_bandwidth = 0;
            it.settings.tiers.iter_mut().for_each(|tier| tier.block_us = 0);
        });
        let files = files.max(self.least);
        let preparation = without(&|it| {
            it.readers.iter_mut().for_each(|it| (it.think_us, it.run_us) = (0, 0));
        });
        let steps = without(&|it| it.readers.iter_mut().for_each(|it| it.step_us = 1));
        let gain = |seconds: f64| (1.0 - seconds / self.seconds).max(0.0);
        let gains = Gains {
            fetch: gain(files),
            processor: gain(preparation),
            gpu: gain(steps.max(self.least)),
        };
        (gains, files)
    }

    /// Seconds of an epoch of a scenario.
    fn seconds_of(&self, epoch: usize, scenario: &Scenario) -> f64 {
        self.epochs(scenario)[epoch] * self.correction
    }

    /// Seconds of the first epoch, and of the second one.
    fn epochs(&self, scenario: &Scenario) -> [f64; 2] {
        let report = run(scenario);
        let end = |epoch: usize| report.epochs.get(epoch).map_or(0, |found| found.trained_us);
        let seconds = |us: u64| us as f64 / 1e6 * self.scale + self.starting;
        [seconds(end(0)), seconds(end(1).saturating_sub(end(0)))]
    }
}

#[cfg(test)]
mod tests;
