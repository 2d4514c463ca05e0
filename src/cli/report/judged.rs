//! What a report says: epochs, what follows from them, and what would be.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::cache::Latencies;
use crate::config::Size;
use crate::engine::Profile;
use crate::profiler::Seen;
use crate::stall::{Epoch, Finding, Kind};
use crate::whatif::{Change, Job, Prediction, Setup};

/// A process without workers that waits for files for less than this share is left out beside loaders with workers.
const FETCH_MIN: f64 = 0.1;

/// If workers wait for a processor for a larger share, more of them are of no use.
const QUEUED_MIN: f64 = 0.1;

/// RAM for which it is told how long an epoch would take, in % of the data.
const RAM_SHARES: [f64; 7] = [5.0, 20.0, 40.0, 60.0, 80.0, 90.0, 100.0];

/// A profile with what follows from it.
#[derive(Serialize, Deserialize)]
pub(in crate::cli) struct Report {
    pub(super) source: String,
    pub(super) mountpoints: Vec<String>,
    pub(super) setup: Option<Setup>,
    /// How long readers have waited since the mount, by cause.
    #[serde(default)]
    pub(super) waits: BTreeMap<String, Latencies>,
    pub(super) has_strangers: bool,
    #[serde(default)]
    pub(super) short_epochs: u64,
    pub(super) cpu_s: f64,
    pub(super) epochs: Vec<Judged>,
}

/// An epoch and what follows from it.
#[derive(Serialize, Deserialize)]
pub(super) struct Judged {
    #[serde(flatten)]
    pub(super) epoch: Epoch,
    #[serde(flatten)]
    pub(super) finding: Finding,
    /// How many seconds a later epoch would take, and if something were different. Only of the last epoch of a trainer.
    #[serde(default)]
    pub(super) later_s: Option<f64>,
    #[serde(default)]
    pub(super) what_if: Vec<Prediction>,
}

impl Judged {
    fn of(epoch: Epoch) -> Self {
        Judged { finding: Finding::of(&epoch), epoch, later_s: None, what_if: Vec::new() }
    }

    /// The job in virtual time, if it gives the epoch back.
    fn job(&self, setup: &Setup) -> Option<Job> {
        let model = self.finding.model.as_ref().filter(|_| self.finding.gains.is_some())?;
        Job::of(setup, &self.epoch, model)
    }

    /// The changes that may be of interest to anybody.
    fn usual_changes(&self, setup: &Setup) -> Vec<Vec<Change>> {
        let twice = Change::Workers(self.epoch.workers.saturating_mul(2));
        let mut changes = Vec::new();
        let has_room = |share: u64| setup.ram_bytes >= setup.bytes / 100 * share;
        let shares = [50, 100].into_iter().filter(|share| !has_room(*share));
        changes.extend(shares.map(|share| vec![Change::Ram(Size::Percent(share as f64))]));
        // Without reading ahead it was not seen how much the source gives at once.
        if setup.prefetch && !setup.order_is_known {
            changes.push(vec![Change::OrderTold]);
        }
        if self.finding.parts.queued < QUEUED_MIN {
            changes.push(vec![twice]);
        }
        changes.extend([vec![Change::Latency(0.5)], vec![Change::Link(2.0)]]);
        changes
    }

    /// What a later epoch would take with RAM for these shares of the data, in % and seconds.
    pub(super) fn by_ram(&self, setup: &Setup) -> Vec<(f64, f64)> {
        let Some(job) = self.job(setup) else { return Vec::new() };
        let with = |share: f64| {
            let change = Change::Ram(Size::Percent(share));
            (share, job.predict(&[change]).seconds)
        };
        RAM_SHARES.map(with).into()
    }

    fn predict(&mut self, setup: &Setup, wanted: &[Vec<Change>]) {
        let Some(job) = self.job(setup) else {
            if !wanted.is_empty() {
                self.finding.notes.push(
                    "there is no prediction: the epoch goes on, or others have read at the mount \
                     meanwhile, or a simulation of it does not take as long as it took"
                        .to_owned(),
                );
            }
            return;
        };
        let usual;
        let changes = match wanted {
            [] => {
                usual = self.usual_changes(setup);
                &usual
            }
            wanted => wanted,
        };
        // The planner knows what the source limits, the model of the loader alone does not.
        let (gains, cap_s) = job.gains();
        self.finding.bottleneck = Some(gains.largest());
        (self.finding.gains, self.finding.cap_s) = (Some(gains), Some(cap_s));
        self.later_s = Some(job.predict(&[]).seconds);
        self.what_if = changes.iter().map(|changes| job.predict(changes)).collect();
    }
}

impl Report {
    pub(in crate::cli) fn of(profile: Profile) -> Self {
        let Profile { source, mountpoints, setup, waits, seen } = profile;
        let Seen { epochs, has_strangers, short_epochs, cpu_s } = seen;
        let mut epochs: Vec<Judged> = epochs.into_iter().map(Judged::of).collect();
        // Beside loaders with workers, processes that wait for no file are launchers and helpers.
        let has_workers = epochs.iter().any(|judged| judged.epoch.kind == Kind::Workers);
        epochs.retain(|Judged { epoch, finding, .. }| {
            epoch.kind == Kind::Workers || !has_workers || finding.parts.fetch >= FETCH_MIN
        });
        Report { source, mountpoints, setup, waits, has_strangers, short_epochs, cpu_s, epochs }
    }

    /// Says how long a later epoch of each trainer would take with these changes, or with the usual ones. What is told follows
    /// from its last whole epoch.
    pub(in crate::cli) fn predict(&mut self, wanted: &[Vec<Change>]) {
        let Some(setup) = &self.setup else { return };
        let of_workers = self.epochs.iter().filter(|judged| judged.epoch.kind == Kind::Workers);
        let trainers: BTreeSet<u32> = of_workers.map(|judged| judged.epoch.trainer).collect();
        for trainer in trainers {
            if let Some(nth) = told_epoch(&self.epochs, trainer) {
                self.epochs[nth].predict(setup, wanted);
            }
        }
    }
}

/// The epoch of a trainer that tells most: its last whole one, or else its last one.
pub(super) fn told_epoch(epochs: &[Judged], trainer: u32) -> Option<usize> {
    let is_of = |judged: &Judged| judged.epoch.trainer == trainer;
    let of_workers = |judged: &Judged| is_of(judged) && judged.epoch.kind == Kind::Workers;
    let is_whole =
        |judged: &Judged| of_workers(judged) && judged.epoch.is_over && judged.epoch.is_whole;
    let last = |wanted: &dyn Fn(&Judged) -> bool| epochs.iter().rposition(wanted);
    last(&is_whole).or_else(|| last(&of_workers)).or_else(|| last(&is_of))
}
