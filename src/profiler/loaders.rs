//! Trainers with their workers, and what is seen of them.
//!
//! Workers of a trainer that start shortly after each other are one epoch's, which is over when all of them have ended. A
//! trainer that keeps its workers (`persistent_workers`) has one long epoch. A process without workers is looked at itself,
//! with those of its threads that read.

use std::collections::{BTreeMap, BTreeSet};

use super::Causes;
use super::task::{Ended, TaskFiles, now};
use super::tree::{Process, Tree, threads};
use crate::process::program;
use crate::stall::{Epoch, Kind, State, TrainerLooks, Watched};

/// Workers that start within so many seconds of the one before are of one epoch.
const START_TOGETHER: f64 = 1.0;

/// A process that has read less is not worth a report, unless others read for it.
const READ_MIN: u64 = 1 << 20;

/// Programs that fork without being trainers.
const SHELLS: [&str; 6] = ["sh", "bash", "dash", "zsh", "ksh", "fish"];

/// A task that is looked at.
struct Member {
    files: TaskFiles,
    watched: Watched,
    has_ended: bool,
}

impl Member {
    fn new(files: TaskFiles, born: f64) -> Result<Self, Ended> {
        let now = now();
        // One that has started a moment ago is looked at from its start.
        let is_new = now - born < START_TOGETHER;
        let counted = if is_new { None } else { Some(files.counters()?) };
        Ok(Member { files, watched: Watched::new(born, now, counted), has_ended: false })
    }

    fn look(&mut self, now: f64) {
        match self.files.state() {
            Ok(state) => self.watched.look(now, state),
            Err(Ended) => self.has_ended = true,
        }
    }

    fn count(&mut self, now: f64) {
        match self.files.counters() {
            Ok(counters) => self.watched.count(now, counters),
            Err(Ended) => self.has_ended = true,
        }
    }

    /// A task that has ended stays until its parent asks for its exit code. It looks as if it ran.
    fn notice_end(&mut self) {
        self.has_ended |= self.watched.stands_still() && self.files.is_zombie();
    }

    fn read(&self) -> u64 {
        self.watched.bytes().map_or(0, |(read, _)| read)
    }
}

/// The workers of one epoch of a trainer, or a process that reads itself.
struct Group {
    number: u32,
    kind: Kind,
    members: BTreeMap<u32, Member>,
    /// The start of the latest member.
    latest: f64,
    trainer_looks: TrainerLooks,
    causes: Causes,
}

impl Group {
    fn new(number: u32, kind: Kind, causes: Causes) -> Self {
        Group {
            number,
            kind,
            members: BTreeMap::new(),
            latest: 0.0,
            trainer_looks: TrainerLooks::default(),
            causes,
        }
    }

    fn is_over(&self) -> bool {
        self.members.values().all(|member| member.has_ended)
    }

    /// Whether a worker that starts at `born` is one of this epoch.
    fn takes(&self, born: f64) -> bool {
        let none_ended = self.members.values().all(|member| !member.has_ended);
        self.kind == Kind::Workers && none_ended && born - self.latest < START_TOGETHER
    }

    fn alive(&mut self) -> impl Iterator<Item = &mut Member> {
        self.members.values_mut().filter(|member| !member.has_ended)
    }

    fn read(&self) -> u64 {
        self.members.values().map(Member::read).max().unwrap_or(0)
    }

    /// The members that make batches. If threads of a process read, its main thread does not.
    fn workers(&self, trainer: u32) -> impl Iterator<Item = &Watched> {
        let are_threads = self.kind == Kind::Itself && self.members.len() > 1;
        let makes = move |(task, _): &(&u32, &Member)| !are_threads || **task != trainer;
        self.members.iter().filter(makes).map(|(_, member)| &member.watched)
    }

    fn epoch(&self, trainer: u32, program: &str, causes: &Causes) -> Epoch {
        let are_threads = self.kind == Kind::Itself && self.members.len() > 1;
        let mut epoch = Epoch {
            trainer,
            program: program.to_owned(),
            number: self.number,
            kind: if are_threads { Kind::Threads } else { self.kind },
            is_over: self.is_over(),
            trainer_looks: self.trainer_looks,
            batches: self.batches(),
            causes: since_then(causes, &self.causes),
            ..Epoch::of(self.workers(trainer))
        };
        if are_threads {
            let process = self.members.get(&trainer).and_then(|main| main.watched.bytes());
            epoch.read_bytes = process.map(|(read, _)| read);
        }
        epoch
    }

    /// The first worker that starts makes the first batch.
    fn batches(&self) -> Option<u64> {
        let members = || self.members.values().map(|member| &member.watched);
        let first = members().min_by(|a, b| a.since.total_cmp(&b.since))?;
        let written: u64 = members().filter_map(|member| Some(member.bytes()?.1)).sum();
        Some((written as f64 / first.per_batch()? as f64).round() as u64)
    }
}

/// The waits since a moment, of causes that have any.
fn since_then(now: &Causes, then: &Causes) -> Causes {
    let since = |(cause, seconds): (&String, &f64)| {
        (cause.clone(), seconds - then.get(cause).copied().unwrap_or_default())
    };
    now.iter().map(since).filter(|(_, seconds)| *seconds > 0.0).collect()
}

/// A trainer, or a process that may become one.
struct Trainer {
    files: TaskFiles,
    program: String,
    /// Epochs that have begun.
    begun: u32,
    groups: Vec<Group>,
    /// The process as a reader of its own, as long as it has no workers.
    own: Option<Group>,
}

impl Trainer {
    /// If it has workers, it does not read itself. One that has just started may become another program.
    fn settle(&mut self) {
        let is_settled = |member: &Member| member.watched.seconds() > START_TOGETHER;
        if self.groups.iter().any(|group| group.members.values().any(is_settled)) {
            self.own = None;
        }
    }
}

/// All that is looked at.
#[derive(Default)]
pub(super) struct Loaders {
    tree: Tree,
    trainers: BTreeMap<u32, Trainer>,
    interest: Interest,
}

impl Loaders {
    pub(super) fn is_empty(&self) -> bool {
        self.tree.all.is_empty() && self.trainers.is_empty()
    }

    /// The number of tasks that are looked at.
    pub(super) fn tasks(&self) -> usize {
        let of = |trainer: &Trainer| -> usize {
            let groups = trainer.groups.iter().chain(&trainer.own);
            1 + groups.map(|group| group.members.len()).sum::<usize>()
        };
        self.trainers.values().map(of).sum()
    }

    /// Leaves out what does not read at the mount.
    pub(super) fn want_readers_only(&mut self) {
        self.interest.of_mount = true;
    }

    pub(super) fn follow(&mut self, process: u32) {
        self.tree.follow(process);
    }

    pub(super) fn follow_reader(&mut self, task: u32) {
        if let Some(process) = self.tree.follow_reader(task) {
            self.interest.here.insert(process);
        }
    }

    /// Whether a process has got new children.
    pub(super) fn has_new_workers(&mut self) -> bool {
        self.tree.search_trainers()
    }

    /// Whether first batches are being made: they are measured by frequent looks.
    pub(super) fn makes_first_batches(&self) -> bool {
        let is_made = |group: &Group| {
            let mut members = group.members.values();
            members.any(|member| member.watched.makes_its_first_batch())
        };
        self.trainers.values().flat_map(|trainer| &trainer.groups).any(is_made)
    }

    /// Finds new processes.
    pub(super) fn search(&mut self, causes: &Causes) {
        self.tree.search();
        let known: Vec<(u32, Process)> = self.tree.all.iter().map(|(a, b)| (*a, *b)).collect();
        for (process, Process { trainer, born }) in known {
            if process == trainer {
                self.add_trainer(process, born, causes);
            } else {
                self.add_worker(process, trainer, born, causes);
            }
        }
        self.trainers.values_mut().for_each(Trainer::settle);
    }

    fn add_trainer(&mut self, process: u32, born: f64, causes: &Causes) {
        if self.trainers.contains_key(&process) {
            return;
        }
        // A fork has become another program.
        for other in self.trainers.values_mut() {
            other.groups.iter_mut().for_each(|group| _ = group.members.remove(&process));
            other.groups.retain(|group| !group.members.is_empty());
        }
        // It may have ended.
        let Ok(files) = TaskFiles::of_process(process) else { return };
        let own = TaskFiles::of_process(process).and_then(|files| Member::new(files, born));
        let own = own.ok().map(|member| {
            let mut group = Group::new(1, Kind::Itself, causes.clone());
            group.members.insert(process, member);
            group
        });
        let trainer =
            Trainer { files, program: program(process.into()), begun: 0, groups: Vec::new(), own };
        self.trainers.insert(process, trainer);
    }

    fn add_worker(&mut self, process: u32, trainer: u32, born: f64, causes: &Causes) {
        // A process that has workers is none itself.
        if self.trainers.get(&process).is_some_and(|own| own.begun > 0) {
            return;
        }
        if !self.trainers.contains_key(&trainer) {
            self.add_trainer(trainer, 0.0, causes);
        }
        let Some(of) = self.trainers.get_mut(&trainer) else { return };
        if of.groups.iter().any(|group| group.members.contains_key(&process)) {
            return;
        }
        let files = TaskFiles::of_process(process);
        let Ok(member) = files.and_then(|files| Member::new(files, born)) else { return };
        let open = of.groups.iter_mut().find(|group| group.takes(born));
        let group = match open {
            Some(group) => group,
            None => {
                of.begun += 1;
                of.groups.push(Group::new(of.begun, Kind::Workers, causes.clone()));
                let last = of.groups.len() - 1;
                &mut of.groups[last]
            }
        };
        group.latest = born;
        group.members.insert(process, member);
    }

    /// Looks at all tasks once.
    pub(super) fn look(&mut self, passed: f64) {
        for trainer in self.trainers.values_mut() {
            let waits = match trainer.files.state() {
                Ok(state) => state == State::HasNoWork,
                Err(Ended) => false,
            };
            for group in &mut trainer.groups {
                let TrainerLooks { waits: waited, all } = &mut group.trainer_looks;
                *waited += if waits { passed } else { 0.0 };
                *all += passed;
            }
            let now = now();
            for group in trainer.groups.iter_mut().chain(&mut trainer.own) {
                group.alive().for_each(|member| member.look(now));
            }
        }
    }

    /// Reads the counters of those that have not made a batch yet, or of all.
    pub(super) fn count(&mut self, all: bool) {
        for trainer in self.trainers.values_mut() {
            for group in trainer.groups.iter_mut().chain(&mut trainer.own) {
                let wanted = |member: &&mut Member| all || member.watched.has_to_be_counted();
                group.alive().filter(wanted).for_each(|member| member.count(now()));
                if all {
                    group.alive().for_each(Member::notice_end);
                }
            }
        }
    }

    /// Finds threads that read in processes without workers.
    pub(super) fn search_threads(&mut self) {
        for (process, trainer) in &mut self.trainers {
            let Some(own) = trainer.own.as_mut().filter(|own| own.read() >= READ_MIN) else {
                continue;
            };
            for thread in threads(*process) {
                if thread == *process || own.members.contains_key(&thread) {
                    continue;
                }
                let files = TaskFiles::of_thread(*process, thread);
                let read = files.as_ref().ok().and_then(|files| files.counters().ok()?.bytes);
                let is_reader = read.is_some_and(|(read, _)| read >= READ_MIN);
                let born = files.as_ref().ok().and_then(|files| files.born().ok());
                if let (true, Ok(files), Some(born)) = (is_reader, files, born)
                    && let Ok(member) = Member::new(files, born)
                {
                    own.members.insert(thread, member);
                }
            }
        }
    }

    /// Takes the epochs that are over. `causes` is asked if there are any.
    pub(super) fn take_over(&mut self, causes: &dyn Fn() -> Causes) -> Vec<Epoch> {
        let mut over = Vec::new();
        for (process, trainer) in &mut self.trainers {
            let groups: Vec<Group> = trainer.groups.extract_if(.., |g| g.is_over()).collect();
            let own = trainer.own.take_if(|own| own.is_over());
            for group in groups.into_iter().chain(own) {
                if self.interest.wants(*process, &trainer.program, &group) {
                    trainer.own.take_if(|_| group.kind == Kind::Workers);
                    over.push(group.epoch(*process, &trainer.program, &causes()));
                }
            }
        }
        self.trainers.retain(|process, trainer| {
            let is_left = self.tree.all.contains_key(process);
            is_left || !trainer.groups.is_empty() || trainer.own.is_some()
        });
        if self.trainers.is_empty() {
            self.interest.here.clear();
        }
        over
    }

    /// The epochs that go on.
    pub(super) fn current(&self, causes: &Causes) -> Vec<Epoch> {
        let mut current = Vec::new();
        for (process, trainer) in &self.trainers {
            let groups = trainer.groups.iter().chain(&trainer.own);
            let wanted =
                groups.filter(|group| self.interest.wants(*process, &trainer.program, group));
            current.extend(wanted.map(|group| group.epoch(*process, &trainer.program, causes)));
        }
        current
    }
}

/// The groups that are worth a report.
#[derive(Default)]
struct Interest {
    /// Processes with tasks that read at the mount.
    here: BTreeSet<u32>,
    /// Whether only they and their trainers are of interest.
    of_mount: bool,
}

impl Interest {
    fn wants(&self, trainer: u32, program: &str, group: &Group) -> bool {
        let mut tasks = group.members.keys().chain([&trainer]);
        let is_here = !self.of_mount || tasks.any(|task| self.here.contains(task));
        let works = match group.kind {
            Kind::Workers => !SHELLS.contains(&program),
            Kind::Itself | Kind::Threads => group.read() >= READ_MIN,
        };
        is_here && works
    }
}
