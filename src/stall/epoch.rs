//! What was seen of a loader in one epoch.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Point, State, ToldLane, Watched};

/// Workers whose lanes are told.
pub const LANES_MAX: usize = 64;

/// Seconds in which a task was seen in each state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Looks {
    pub runs: f64,
    pub fetches: f64,
    pub has_no_work: f64,
    pub elsewhere: f64,
    pub unknown: f64,
}

impl Looks {
    /// A look has found the task in a state, which stands for so many seconds.
    pub fn add(&mut self, state: State, seconds: f64) {
        let sum = match state {
            State::Runs => &mut self.runs,
            State::Fetches => &mut self.fetches,
            State::HasNoWork => &mut self.has_no_work,
            State::Elsewhere => &mut self.elsewhere,
            State::Unknown => &mut self.unknown,
        };
        *sum += seconds;
    }

    pub fn total(&self) -> f64 {
        self.runs + self.fetches + self.has_no_work + self.elsewhere + self.unknown
    }

    fn join(&mut self, other: &Looks) {
        self.runs += other.runs;
        self.fetches += other.fetches;
        self.has_no_work += other.has_no_work;
        self.elsewhere += other.elsewhere;
        self.unknown += other.unknown;
    }
}

/// What the main thread of a trainer does at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrainerState {
    Works,
    /// It waits for a worker: in `poll` or at a pipe.
    WaitsForWorker,
    /// It waits for another thread, and not longer than a given time. PyTorch waits in this way for the thread that pins memory.
    /// Steps also wait for threads, but without a timeout: for those of the backward pass, say.
    WaitsForThread,
}

/// Seconds in which the trainer's main thread was seen waiting for a batch, and all seconds in which it was seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TrainerLooks {
    pub waits: f64,
    /// Those in which it waited for another thread are not among the others.
    pub waits_for_thread: f64,
    pub all: f64,
    pub count: u32,
}

impl TrainerLooks {
    /// It was seen in a state, which stands for so many seconds.
    pub fn add(&mut self, state: TrainerState, seconds: f64) {
        match state {
            TrainerState::Works => {}
            TrainerState::WaitsForWorker => self.waits += seconds,
            TrainerState::WaitsForThread => self.waits_for_thread += seconds,
        }
        self.all += seconds;
        self.count += 1;
    }

    /// The same if another thread takes the batches from the workers.
    pub fn through_thread(self) -> Self {
        TrainerLooks { waits: self.waits + self.waits_for_thread, ..self }
    }
}

/// A task that reads an epoch of a known order.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Place {
    pub task: u32,
    /// Epochs that its order's readers have begun before this one.
    pub epoch: u32,
}

/// What a mount has counted since its start.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Meters {
    /// Seconds that readers have waited, by cause.
    pub causes: BTreeMap<String, f64>,
    /// Reads at the source, their seconds and their bytes.
    pub source_reads: u64,
    pub source_s: f64,
    pub source_bytes: u64,
    /// Bytes that came from the cache disk, and from other nodes.
    pub disk_bytes: u64,
    pub member_bytes: u64,
    /// Derived samples that were made, and the seconds that threads took to make them.
    pub made: u64,
    pub making_s: f64,
    /// Processor seconds that everybody on the machine has used. `None` if that is not known, or if this job may not use all
    /// processors.
    pub busy_s: Option<f64>,
    /// Bytes that are staged ahead of the readers at this moment, and for how many seconds that is enough.
    pub staged_bytes: u64,
    pub lead_s: Option<f64>,
    /// One reader of each known order at this moment.
    #[serde(skip)]
    pub places: Vec<Place>,
}

impl Meters {
    /// What has been counted since an earlier moment.
    pub fn since(&self, then: &Meters) -> Meters {
        let since = |(cause, seconds): (&String, &f64)| {
            (cause.clone(), seconds - then.causes.get(cause).copied().unwrap_or_default())
        };
        Meters {
            causes: self.causes.iter().map(since).filter(|(_, seconds)| *seconds > 0.0).collect(),
            source_reads: self.source_reads.saturating_sub(then.source_reads),
            source_s: self.source_s - then.source_s,
            source_bytes: self.source_bytes.saturating_sub(then.source_bytes),
            disk_bytes: self.disk_bytes.saturating_sub(then.disk_bytes),
            member_bytes: self.member_bytes.saturating_sub(then.member_bytes),
            made: self.made.saturating_sub(then.made),
            making_s: self.making_s - then.making_s,
            busy_s: self.busy_s.zip(then.busy_s).map(|(now, then)| now - then),
            staged_bytes: self.staged_bytes,
            lead_s: self.lead_s,
            places: Vec::new(),
        }
    }
}

/// Who reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// Worker processes read, and the trainer takes their batches.
    #[default]
    Workers,
    /// The trainer reads itself, in its main thread.
    Itself,
    /// Threads of the trainer read.
    Threads,
}

/// What the workers of a trainer did, from the start of the first one to the end of the last one.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Epoch {
    /// The trainer's process, and the name of its program.
    pub trainer: u32,
    pub program: String,
    /// Its number among the epochs of this trainer, from 1.
    pub number: u32,
    pub kind: Kind,
    /// Whether all workers have ended.
    pub is_over: bool,
    /// Whether it was seen from its start.
    pub is_whole: bool,
    /// When it began, in seconds since the start of the machine.
    pub began_s: f64,
    pub seconds: f64,
    pub workers: u32,
    /// The time of all workers together.
    pub workers_s: f64,
    /// Processor time of the workers' main threads, and time in which they waited for a processor, as the kernel counts.
    pub run_s: f64,
    pub queued_s: f64,
    /// Seconds from the start of a worker to the first byte that it reads, of all workers together.
    pub starting_s: f64,
    pub looks: Looks,
    pub trainer_looks: TrainerLooks,
    /// The same until the first batch was handed over.
    pub first_looks: TrainerLooks,
    /// Seconds in which the trainer waited for a processor, as the kernel counts.
    pub trainer_queued_s: f64,
    /// Whether the trainer had other workers meanwhile.
    pub shares_trainer: bool,
    /// Bytes that the workers read, whether from a cache or not. `None` if that may not be known.
    pub read_bytes: Option<u64>,
    /// Batches that the workers handed over. `None` if that is not known.
    pub batches: Option<u64>,
    /// What the mount has counted meanwhile.
    pub mount: Meters,
    /// What each worker did over time: of [`LANES_MAX`] workers, in the order of their starts. Kept of the latest epochs only.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub lanes: Vec<ToldLane>,
    /// What the mount gave over time. Kept of the latest epochs only.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub points: Vec<Point>,
}

impl Epoch {
    /// What these workers did.
    pub fn of<'a>(workers: impl Iterator<Item = &'a Watched>) -> Self {
        let workers: Vec<&Watched> = workers.collect();
        let (mut since, mut until) = (f64::INFINITY, 0.0_f64);
        let mut epoch = Epoch { is_whole: true, read_bytes: Some(0), ..Epoch::default() };
        for worker in &workers {
            (since, until) = (since.min(worker.since), until.max(worker.until));
            let read = worker.bytes().map(|(read, _)| read);
            epoch.read_bytes = epoch.read_bytes.zip(read).map(|(sum, read)| sum + read);
            epoch.is_whole &= worker.is_whole();
            epoch.workers += 1;
            epoch.workers_s += worker.seconds();
            epoch.run_s += worker.run_s();
            epoch.queued_s += worker.queued_s();
            epoch.starting_s += worker.starting_s();
            epoch.looks.join(&worker.looks);
        }
        epoch.began_s = if since.is_finite() { since } else { 0.0 };
        epoch.seconds = (until - since).max(0.0);
        epoch.lanes = lanes(workers, since);
        epoch
    }
}

/// The lanes of the first workers of an epoch that began then.
fn lanes(mut workers: Vec<&Watched>, since: f64) -> Vec<ToldLane> {
    workers.sort_by(|a, b| a.since.total_cmp(&b.since));
    let first = workers.into_iter().take(LANES_MAX);
    first.map(|worker| worker.lane.told(worker.since - since)).collect()
}
