//! The workers of one epoch of a trainer, or a process that reads itself.

use std::collections::BTreeMap;

use super::member::Member;
use crate::stall::{Epoch, Kind, Meters, Place, Series, TrainerLooks, TrainerState, Watched};

/// Workers that start within so many seconds of the one before are of one epoch. After a longer pause they are if no batch
/// has been handed over: a loader gives no task before all its workers have started.
const START_TOGETHER: f64 = 1.0;

/// Workers that live shorter, in seconds, are no loader: a fork that becomes another program looks like a worker.
const LIFE_MIN: f64 = 1.0;

/// Who has read less, and made fewer batches, is not worth a report.
const READ_MIN: u64 = 1 << 20;
const BATCHES_MIN: u64 = 3;

/// More batches are not believed: then the measure of a batch was none.
const BATCHES_MAX: u64 = 1 << 20;

/// In a group of more workers first batches are not measured by frequent looks.
const MEASURED_MAX: usize = 16;

pub(super) struct Group {
    pub(super) kind: Kind,
    pub(super) members: BTreeMap<u32, Member>,
    /// The start of the latest member.
    latest: f64,
    trainer_looks: TrainerLooks,
    /// The same until the first batch was handed over.
    first_looks: TrainerLooks,
    /// Seconds in which the trainer waited for a processor.
    trainer_queued: f64,
    /// Whether the trainer has had other workers meanwhile.
    shares_trainer: bool,
    /// The epoch of their order that its members were seen reading last.
    epoch: Option<u32>,
    /// The bytes that a worker writes for a batch, if an earlier epoch has shown it.
    per_batch: Option<u64>,
    /// Whether its members were those of an earlier epoch, too.
    has_begun_again: bool,
    /// What the mount had counted when the group was made, and what it counted since.
    meters: Meters,
    series: Series,
}

impl Group {
    pub(super) fn new(kind: Kind, meters: Meters) -> Self {
        Group {
            kind,
            members: BTreeMap::new(),
            latest: 0.0,
            trainer_looks: TrainerLooks::default(),
            first_looks: TrainerLooks::default(),
            trainer_queued: 0.0,
            shares_trainer: false,
            epoch: None,
            per_batch: None,
            has_begun_again: false,
            meters,
            series: Series::default(),
        }
    }

    pub(super) fn add(&mut self, task: u32, member: Member, born: f64) {
        self.latest = self.latest.max(born);
        self.members.insert(task, member);
        // The trainer waits for the first batch when all workers have started.
        if !self.has_made_a_batch() {
            self.first_looks = TrainerLooks::default();
        }
    }

    /// A task that still runs is no worker after all.
    pub(super) fn leave(&mut self, task: u32) {
        if self.members.get(&task).is_some_and(|member| !member.has_ended()) {
            self.members.remove(&task);
        }
    }

    /// Whether a worker has ended. A fork that has ended at once was none.
    fn has_lost_a_worker(&self) -> bool {
        let was_worker = |member: &Member| member.watched.seconds() >= LIFE_MIN;
        self.members.values().any(|member| member.has_ended() && was_worker(member))
    }

    /// Whether a task is a member that has not ended.
    pub(super) fn is_alive(&self, task: u32) -> bool {
        self.members.get(&task).is_some_and(|member| !member.has_ended())
    }

    pub(super) fn is_over(&self) -> bool {
        self.members.values().all(Member::has_ended)
    }

    fn has_made_a_batch(&self) -> bool {
        self.watched().any(Watched::has_written)
    }

    /// Whether a worker that starts at `born` is one of this epoch.
    pub(super) fn takes(&self, born: f64) -> bool {
        let is_open = !self.has_begun_again && !self.has_lost_a_worker();
        is_open && (born - self.latest < START_TOGETHER || !self.has_made_a_batch())
    }

    /// Whether first batches are being made that are to be measured.
    pub(super) fn makes_first_batches(&self) -> bool {
        let few = self.members.len() <= MEASURED_MAX;
        few && self.watched().any(Watched::makes_its_first_batch)
    }

    /// Reads the counters of members whose turn it is. Of the one that started first they are read at each look until its first
    /// batch is measured.
    pub(super) fn count(&mut self, is_turn: impl Fn(u32) -> bool) {
        let first = self.watched().map(|watched| watched.since).fold(f64::INFINITY, f64::min);
        for (task, member) in &mut self.members {
            let is_measured =
                member.watched.since <= first && member.watched.makes_its_first_batch();
            if !member.has_ended() && (is_turn(*task) || is_measured) {
                member.count();
            }
        }
    }

    /// The trainer was seen in a state for so many seconds, and waited for a processor for `queued` of them.
    /// `is_shared`: whether it has other workers.
    pub(super) fn note_trainer(
        &mut self,
        state: TrainerState,
        (seconds, queued): (f64, f64),
        is_shared: bool,
    ) {
        self.shares_trainer |= is_shared;
        if self.has_lost_a_worker() {
            // The trainer waits for the ends of its workers.
            return;
        }
        self.trainer_queued += queued;
        // In a later epoch of the same workers it is not seen when the first batch is handed over.
        let is_first = !self.has_begun_again && !self.has_made_a_batch();
        let first = is_first.then_some(&mut self.first_looks);
        for looks in first.into_iter().chain([&mut self.trainer_looks]) {
            looks.add(state, seconds);
        }
    }

    /// The mount has counted so much until now.
    pub(super) fn note_meters(&mut self, now: f64, meters: &Meters) {
        let since = self.watched().map(|watched| watched.since).fold(f64::INFINITY, f64::min);
        if since < now && !self.is_over() {
            self.series.note(now - since, &meters.since(&self.meters));
        }
    }

    /// Notes which epoch of their order members read. Returns whether it is another one than before.
    pub(super) fn note_epoch(&mut self, places: &[Place]) -> bool {
        let place = places.iter().find(|place| self.members.contains_key(&place.task));
        let Some(Place { epoch, .. }) = place.copied() else { return false };
        self.epoch.replace(epoch).is_some_and(|before| epoch > before)
    }

    /// Its members begin another epoch. Returns a group that had the last one.
    pub(super) fn begin_again(&mut self, meters: &Meters) -> Group {
        let mut next = Group::new(self.kind, meters.clone());
        (next.latest, next.epoch, next.has_begun_again) = (self.latest, self.epoch, true);
        next.per_batch = self.per_batch();
        for (task, member) in &mut self.members {
            if !member.has_ended() {
                let before = member.watched.begin_again();
                next.members.insert(*task, std::mem::replace(member, Member::ended(before)));
            }
        }
        std::mem::replace(self, next)
    }

    fn watched(&self) -> impl Iterator<Item = &Watched> {
        self.members.values().map(|member| &member.watched)
    }

    /// Whether a member has lived long enough to be a worker.
    fn lives(&self) -> bool {
        self.watched().any(|watched| watched.seconds() >= LIFE_MIN)
    }

    /// Whether it is worth a report. `is_reader`: whether it is known to read, though the kernel may not tell. Workers of
    /// which the kernel tells nothing are taken for readers.
    pub(super) fn is_of_interest(&self, is_reader: bool) -> bool {
        let read: Option<u64> = self.members.values().map(Member::read).sum();
        let reads = |read| read >= READ_MIN;
        match self.kind {
            Kind::Workers => {
                let has_made = || self.batches().is_some_and(|count| count >= BATCHES_MIN);
                self.lives() && (read.is_none_or(reads) || has_made())
            }
            Kind::Itself | Kind::Threads => read.map_or(is_reader, reads),
        }
    }

    /// Whether these were workers of an epoch that was too short to be looked at.
    pub(super) fn was_short(&self) -> bool {
        let works = self.members.values().filter_map(Member::read).sum::<u64>() >= READ_MIN;
        self.kind == Kind::Workers && self.is_over() && works && !self.lives()
    }

    /// Whether threads read, beside the main thread of their process.
    fn are_threads(&self) -> bool {
        self.kind == Kind::Itself && self.members.len() > 1
    }

    pub(super) fn epoch(&self, trainer: u32, program: &str, number: u32, meters: &Meters) -> Epoch {
        let are_threads = self.are_threads();
        // The main thread of such a process makes no batches.
        let makes = |(task, _): &(&u32, &Member)| !are_threads || **task != trainer;
        let workers = self.members.iter().filter(makes).map(|(_, member)| &member.watched);
        let mut epoch = Epoch {
            trainer,
            program: program.to_owned(),
            number,
            kind: if are_threads { Kind::Threads } else { self.kind },
            is_over: self.is_over(),
            trainer_looks: self.trainer_looks,
            first_looks: self.first_looks,
            trainer_queued_s: self.trainer_queued,
            shares_trainer: self.shares_trainer,
            batches: self.batches(),
            mount: meters.since(&self.meters),
            points: self.series.points().to_vec(),
            ..Epoch::of(workers)
        };
        if are_threads {
            // That of the main thread is of the whole process.
            epoch.read_bytes = self.members.get(&trainer).and_then(Member::read);
        }
        epoch
    }

    /// The bytes that a worker writes for a batch. The one that starts first makes the first batch.
    fn per_batch(&self) -> Option<u64> {
        let first = || self.watched().min_by(|a, b| a.since.total_cmp(&b.since))?.per_batch();
        self.per_batch.or_else(first)
    }

    fn batches(&self) -> Option<u64> {
        let written = self.watched().filter_map(|member| Some(member.bytes()?.1)).sum::<u64>();
        let batches = (written as f64 / self.per_batch()? as f64).round() as u64;
        (batches <= BATCHES_MAX).then_some(batches)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stall::{Counters, State};

    /// A worker that has lived for so many seconds, and has read so many bytes.
    fn worker(seconds: f64, read: u64) -> Member {
        let mut watched = Watched::new(0.0, 0.0, None);
        watched.look(seconds, State::Fetches);
        watched.count(seconds, Counters { bytes: Some((read, 0)), ..Counters::default() });
        Member::ended(watched)
    }

    #[test]
    fn workers_that_are_kept_begin_again_with_their_order() {
        let mut group = Group::new(Kind::Workers, Meters::default());
        (1..=2).for_each(|task| group.add(task, worker(2.0, READ_MIN), 0.0));
        let at = |task, epoch| [Place { task, epoch }];
        assert!(!group.note_epoch(&[]) && !group.note_epoch(&at(1, 0)));
        assert!(!group.note_epoch(&at(2, 0)) && !group.note_epoch(&at(3, 1)), "another job's");
        assert!(group.note_epoch(&at(2, 1)) && !group.note_epoch(&at(1, 1)));
        let before = group.begin_again(&Meters::default());
        assert!(before.is_over() && before.is_of_interest(false) && group.members.is_empty());
        assert!(!group.takes(0.0), "workers that start later are of another loader");
    }

    #[test]
    fn short_epochs_are_those_of_workers_that_have_read() {
        let of = |kind, seconds, read| {
            let mut group = Group::new(kind, Meters::default());
            (1..=2).for_each(|task| group.add(task, worker(seconds, read), 0.0));
            (group.was_short(), group.is_of_interest(false))
        };
        assert_eq!(of(Kind::Workers, 0.5, READ_MIN), (true, false));
        assert_eq!(of(Kind::Workers, 1.5, READ_MIN), (false, true));
        assert_eq!(of(Kind::Workers, 0.5, 100), (false, false), "a fork that becomes a program");
        assert_eq!(of(Kind::Itself, 0.5, READ_MIN), (false, true));
    }
}
