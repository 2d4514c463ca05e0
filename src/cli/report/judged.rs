//! What a report says: epochs, what follows from them, and what would be.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::cache::Latencies;
use crate::config::Size;
use crate::engine::Profile;
use crate::profiler::Seen;
use crate::stall::{Epoch, Finding, Gains, Kind};
use crate::whatif::{Change, Job, Prediction, Rank, Setup};

/// A process without workers that waits for files for less than this share is left out beside loaders with workers.
const FETCH_MIN: f64 = 0.1;

/// Epochs of two trainers belong together if they share so much of the time of both.
const TOGETHER: f64 = 0.9;

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

    /// The trainer with its workers, if the model gives the epoch back.
    fn rank(&self) -> Option<Rank<'_>> {
        let model = self.finding.model.as_ref().filter(|_| self.finding.gains.is_some())?;
        Some(Rank { epoch: &self.epoch, model })
    }

    /// Whether another trainer read at the same time.
    fn is_beside(&self, other: &Judged) -> bool {
        let (a, b) = (&self.epoch, &other.epoch);
        let ends = [a, b].map(|epoch| epoch.began_s + epoch.seconds);
        let both = ends[0].min(ends[1]) - a.began_s.max(b.began_s);
        a.trainer != b.trainer && both >= TOGETHER * a.seconds.max(b.seconds)
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
        if setup.disk_read_s.is_some() && setup.disk_bytes < setup.bytes {
            changes.push(vec![Change::Disk(Size::Percent(100.0), None)]);
        }
        changes.push(vec![match self.finding.parts.queued < QUEUED_MIN {
            true => twice,
            false => Change::Cores(setup.processors.saturating_mul(2)),
        }]);
        changes.extend([vec![Change::Latency(0.5)], vec![Change::Link(2.0)]]);
        changes
    }

    /// What each part's absence would give, and below what no storage brings the epoch. The planner knows what the source
    /// limits, the model of the loader alone does not.
    fn take_gains(&mut self, (gains, cap_s): (Gains, f64)) {
        self.finding.bottleneck = Some(gains.largest());
        (self.finding.gains, self.finding.cap_s) = (Some(gains), Some(cap_s));
    }

    fn predict(&mut self, job: &Job, setup: &Setup, wanted: &[Vec<Change>]) {
        self.later_s = job.predict(&[]).ok().map(|later| later.seconds);
        let changes = if wanted.is_empty() { &self.usual_changes(setup) } else { wanted };
        for changes in changes {
            match job.predict(changes) {
                Ok(prediction) => self.what_if.push(prediction),
                Err(_) if wanted.is_empty() => {}
                Err(reason) => {
                    let words: Vec<String> = changes.iter().map(ToString::to_string).collect();
                    self.finding.notes.push(format!("{}: {reason}", words.join(", ")));
                }
            }
        }
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
    /// from its last whole epoch. Of trainers that read together it is told once.
    pub(in crate::cli) fn predict(&mut self, wanted: &[Vec<Change>]) {
        let Some(setup) = self.setup.clone() else { return };
        let of_workers = self.epochs.iter().filter(|judged| judged.epoch.kind == Kind::Workers);
        let trainers: BTreeSet<u32> = of_workers.map(|judged| judged.epoch.trainer).collect();
        let told = trainers.into_iter().filter_map(|trainer| told_epoch(&self.epochs, trainer));
        let mut told: BTreeSet<usize> = told.collect();
        let mut failed = BTreeSet::new();
        while let Some(nth) = told.pop_first() {
            let Some((job, ranks)) = self.job(nth, &mut failed) else {
                self.epochs[nth].finding.notes.extend((!wanted.is_empty()).then(no_prediction));
                continue;
            };
            let gains = job.gains();
            let note = (ranks.len() > 1).then(|| {
                format!(
                    "{} trainers read together: verdict, gains and cap are those of all of them, and predictions \
                     stand at pid {}",
                    ranks.len(),
                    self.epochs[nth].epoch.trainer
                )
            });
            for rank in &ranks {
                self.epochs[*rank].take_gains(gains);
                self.epochs[*rank].finding.notes.extend(note.clone());
                told.remove(rank);
            }
            self.epochs[nth].predict(&job, &setup, wanted);
        }
    }

    /// An epoch in virtual time, with those of other trainers that read at the same time, if a simulation gives its time
    /// back. Also which ones these are, with itself. `failed`: sets of epochs of which it is known that none does.
    fn job(&self, nth: usize, failed: &mut BTreeSet<Vec<usize>>) -> Option<(Job, Vec<usize>)> {
        let setup = self.setup.as_ref()?;
        let beside = |other: &usize| {
            let other = &self.epochs[*other];
            other.epoch.kind == Kind::Workers && other.is_beside(&self.epochs[nth])
        };
        let together = (0..self.epochs.len()).filter(|other| *other == nth || beside(other));
        let sets = [together.collect(), vec![nth]];
        sets.into_iter().find_map(|set| {
            if !failed.insert(set.clone()) {
                return None;
            }
            let ranks = set.iter().map(|rank| self.epochs[*rank].rank());
            let job = Job::of(setup, &ranks.collect::<Option<Vec<_>>>()?)?;
            failed.remove(&set);
            Some((job, set))
        })
    }

    /// The seconds of a later epoch for each share of the data that RAM has room for, in %. Empty if there are no predictions at
    /// this epoch.
    pub(super) fn by_ram(&self, nth: usize) -> Vec<(f64, f64)> {
        let is_told = self.epochs[nth].later_s.is_some();
        let job = || self.job(nth, &mut BTreeSet::new());
        let Some((job, _)) = is_told.then(job).flatten() else { return Vec::new() };
        let with = |share: f64| {
            let told = job.predict(&[Change::Ram(Size::Percent(share))]).ok()?;
            Some((share, told.seconds))
        };
        RAM_SHARES.into_iter().filter_map(with).collect()
    }
}

fn no_prediction() -> String {
    "there is no prediction: the epoch goes on, or others have read at the mount meanwhile, or a simulation of it does \
     not take as long as it took"
        .to_owned()
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stall::{Loader, Looks, Meters, TrainerLooks};

    const SAMPLES: u64 = 3_000;
    const BYTES: u64 = 110_000;

    /// An epoch of a trainer that reads a part of the data: for each sample, 8 ms for its bytes and 4 ms for its preparation.
    fn epoch(trainer: u32, samples: u64, began_s: f64) -> Epoch {
        let loader = Loader {
            workers: 2,
            batches: samples as usize / 60,
            starting: 0.0,
            work: 0.012 * 60.0,
            spread: 0.0,
            step: 0.1,
        };
        let run = loader.run();
        let (workers_s, each) = (2.0 * run.seconds, samples as f64);
        let has_no_work = workers_s - 0.012 * each;
        let looks = Looks {
            fetches: 0.008 * each,
            elsewhere: 0.004 * each,
            has_no_work,
            ..Looks::default()
        };
        Epoch {
            trainer,
            kind: Kind::Workers,
            is_over: true,
            is_whole: true,
            began_s,
            seconds: run.seconds,
            workers: 2,
            workers_s,
            looks,
            trainer_looks: TrainerLooks {
                waits: run.waited,
                all: run.seconds,
                ..TrainerLooks::default()
            },
            read_bytes: Some(samples * BYTES),
            batches: Some(samples / 60),
            mount: Meters { source_reads: SAMPLES, ..Meters::default() },
            ..Epoch::default()
        }
    }

    fn report(epochs: Vec<Epoch>) -> Report {
        let setup = Setup {
            files: SAMPLES,
            bytes: SAMPLES * BYTES,
            ram_bytes: 4 << 20,
            reads_at_once: 16,
            ..Setup::default()
        };
        let seen = Seen { epochs, ..Seen::default() };
        let mut report = Report::of(Profile { setup: Some(setup), seen, ..Profile::default() });
        report.predict(&[Change::parse_all("ram=100%").unwrap()]);
        report
    }

    #[test]
    fn samples_that_were_made_are_told_of() {
        let before = super::super::text(&report(vec![epoch(1, SAMPLES, 50.0)]));
        assert!(!before.contains("derived"), "{before}");
        let mut with = epoch(1, SAMPLES, 50.0);
        (with.mount.made, with.mount.making_s) = (300, 3.0);
        let told = super::super::text(&report(vec![with]));
        assert!(told.contains("derived  300 samples were made meanwhile, 10 ms each"), "{told}");
    }

    fn has_note(judged: &Judged, words: &str) -> bool {
        judged.finding.notes.iter().any(|note| note.contains(words))
    }

    #[test]
    fn ranks_are_predicted_together_and_once() {
        let told = report(vec![epoch(1, SAMPLES / 2, 50.0), epoch(2, SAMPLES / 2, 50.2)]);
        let [first, second] = &told.epochs[..] else { panic!() };
        assert!(has_note(first, "2 trainers") && second.what_if.is_empty());
        let would = first.what_if[0].seconds / first.epoch.seconds;
        assert!((0.3..0.45).contains(&would), "{would}");
        assert_eq!(first.finding.cap_s, second.finding.cap_s);
        assert!(told.by_ram(0).len() == RAM_SHARES.len() && told.by_ram(1).is_empty());
    }

    #[test]
    fn one_of_two_jobs_one_after_the_other_is_predicted_alone() {
        let told = report(vec![epoch(1, SAMPLES, 50.0), epoch(2, SAMPLES, 500.0)]);
        for judged in &told.epochs {
            assert!(judged.what_if.len() == 1 && judged.finding.notes.is_empty());
        }
        let part = report(vec![epoch(1, SAMPLES / 2, 50.0)]);
        assert!(has_note(&part.epochs[0], "no prediction") && part.epochs[0].what_if.is_empty());
    }

    #[test]
    fn a_change_that_cannot_be_made_is_told_with_its_reason() {
        let mut told = report(vec![epoch(1, SAMPLES, 50.0)]);
        told.epochs[0].what_if.clear();
        told.predict(&["disk=50%", "cores=8"].map(|text| Change::parse_all(text).unwrap()));
        assert!(told.epochs[0].what_if.is_empty());
        assert!(has_note(&told.epochs[0], "a cache disk for 50 % of the data: nothing was read"));
        assert!(has_note(&told.epochs[0], "8 processors: it is not known how"));
        told.predict(&[]);
        assert!(told.epochs[0].what_if.len() >= 4, "the usual ones");
    }
}
