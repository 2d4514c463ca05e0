//! Trainers with their workers.
//!
//! Workers of a trainer that start together are one epoch's, which is over when all of them have ended. If a trainer keeps
//! its workers (`persistent_workers`), the mount tells when they begin their order again. If it does not know the order, they
//! have one long epoch. A process without workers is looked at itself, with those of its threads that read. Its epochs are
//! those of its order, too.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use nix::sys::resource::{Resource, getrlimit};

use super::Look;
use super::group::Group;
use super::member::Member;
use super::task::{TaskFiles, now};
use super::tree::{Process, Tree, threads};
use crate::process::program;
use crate::stall::{Epoch, Kind, Meters, State, TrainerState};

/// Descriptors that the process may have, for each task that is looked at. A task takes three of them, and a trainer seven.
const DESCRIPTORS_PER_TASK: u64 = 8;

/// So many tasks are looked at at once. A look that comes after a pause finds nothing of them in the processor's caches, so
/// its cost is that of the tasks.
const TASKS_AT_ONCE: usize = 16;

/// So many tasks are few, and so many are many. With many tasks the pause between two looks is so many times as long.
const FEW_TASKS: usize = 12;
const MANY_TASKS: usize = 40;
const SLOWEST: f64 = 5.0;

/// Threads of a process that are looked at, those that have ended included. More are left out.
const MEMBERS_MAX: usize = 1024;

/// A thread that has read less is no reader.
const THREAD_READ_MIN: u64 = 1 << 20;

/// Programs that fork without being trainers.
const SHELLS: [&str; 6] = ["sh", "bash", "dash", "zsh", "ksh", "fish"];

/// A trainer, or a process that may become one.
struct Trainer {
    files: TaskFiles,
    /// Seconds in which it had waited for a processor at the last look.
    queued: f64,
    /// The name of its program, as it was seen last.
    program: String,
    /// Epochs that are over.
    over: u32,
    groups: Vec<Group>,
    /// Groups whose members have begun another epoch.
    begun_again: Vec<Group>,
    /// The process as a reader, as long as it has no workers.
    as_reader: Option<Group>,
    /// Workers that have ended, as long as their parent has not asked for their exit codes.
    ended: BTreeSet<u32>,
}

impl Trainer {
    fn groups(&self) -> impl Iterator<Item = &Group> {
        self.groups.iter().chain(&self.as_reader)
    }

    fn has_had_workers(&self) -> bool {
        self.over > 0 || !self.groups.is_empty()
    }

    fn has(&self, worker: u32) -> bool {
        self.ended.contains(&worker)
            || self.groups.iter().any(|group| group.members.contains_key(&worker))
    }

    /// Looks at it, for the first time since so many seconds, and at those of its workers whose turn it is.
    fn look(&mut self, process: u32, passed: f64, turn: Turn) {
        let state = self.files.state();
        let of_trainer = match state {
            Ok(State::HasNoWork) => TrainerState::WaitsForWorker,
            Ok(State::Elsewhere) if self.files.waits_for_thread() => TrainerState::WaitsForThread,
            _ => TrainerState::Works,
        };
        let counted = self.files.queued_s().unwrap_or(self.queued);
        let queued = (counted - std::mem::replace(&mut self.queued, counted)).max(0.0);
        let others = self.groups.iter().filter(|group| group.is_of_interest(false));
        let is_shared = self.groups.len() > 1 && others.count() > 1;
        for group in &mut self.groups {
            group.note_trainer(of_trainer, (passed, queued), is_shared);
        }
        let members = self.groups.iter_mut().flat_map(|group| &mut group.members);
        members.filter(|(task, _)| turn.has(**task)).for_each(|(_, member)| member.look());
        for (task, member) in self.as_reader.iter_mut().flat_map(|group| &mut group.members) {
            match *task == process {
                true => member.was_seen(state),
                false if turn.has(*task) => member.look(),
                false => {}
            }
        }
    }
}

/// If there are many tasks, each look is at some of them in turn. Trainers are looked at each time: there are few of them.
#[derive(Clone, Copy)]
struct Turn {
    nth: u64,
    /// The number of turns in which all tasks are looked at.
    of: u64,
}

impl Default for Turn {
    fn default() -> Self {
        Turn { nth: 0, of: 1 }
    }
}

impl Turn {
    /// The next one if there are so many tasks. `all`: it is everybody's turn.
    fn next(self, tasks: usize, all: bool) -> Self {
        let turns = if all { 1 } else { tasks.div_ceil(TASKS_AT_ONCE).max(1) };
        Turn { nth: self.nth.wrapping_add(1), of: turns as u64 }
    }

    /// Whether it is the turn of a task. Workers have numbers one after the other.
    fn has(self, task: u32) -> bool {
        (self.nth + u64::from(task)).is_multiple_of(self.of)
    }
}

/// The groups that are worth a report.
#[derive(Default)]
struct Interest {
    /// Processes with tasks that read at the mount.
    readers: BTreeSet<u32>,
    /// Whether only they and their trainers are of interest.
    of_mount: bool,
}

impl Interest {
    fn is_reader(&self, trainer: u32, group: &Group) -> bool {
        let mut tasks = group.members.keys().chain([&trainer]);
        tasks.any(|task| self.readers.contains(task))
    }

    fn concerns(&self, trainer: u32, program: &str, group: &Group) -> bool {
        let is_loader = group.kind != Kind::Workers || !SHELLS.contains(&program);
        is_loader && (!self.of_mount || self.is_reader(trainer, group))
    }

    fn wants(&self, trainer: u32, program: &str, group: &Group) -> bool {
        let is_reader = self.is_reader(trainer, group);
        self.concerns(trainer, program, group) && group.is_of_interest(is_reader)
    }
}

/// All that is looked at.
#[derive(Default)]
pub(super) struct Loaders {
    tree: Tree,
    trainers: BTreeMap<u32, Trainer>,
    interest: Interest,
    turn: Turn,
    /// When somebody was last seen reading.
    active: f64,
    /// What workers had read and written then. Without a mount, what all had.
    moved: u64,
    /// Reads at the mount until then.
    reads: u64,
    /// Epochs that were too short to be looked at.
    pub(super) short: u64,
}

impl Loaders {
    pub(super) fn is_empty(&self) -> bool {
        self.tree.all.is_empty() && self.trainers.is_empty()
    }

    pub(super) fn are_few(&self) -> bool {
        self.tasks() <= FEW_TASKS
    }

    /// How many times as long the pause between two looks is, so that many tasks cost little more than few of them.
    pub(super) fn slowdown(&self) -> f64 {
        let surplus = self.tasks().clamp(FEW_TASKS, MANY_TASKS) - FEW_TASKS;
        1.0 + (SLOWEST - 1.0) * surplus as f64 / (MANY_TASKS - FEW_TASKS) as f64
    }

    /// The number of tasks that are looked at.
    fn tasks(&self) -> usize {
        let alive = |group: &Group| group.members.values().filter(|it| !it.has_ended()).count();
        let of = |trainer: &Trainer| 1 + trainer.groups().map(alive).sum::<usize>();
        self.trainers.values().map(of).sum()
    }

    /// Whether there are descriptors for one more.
    fn has_room(&self) -> bool {
        let most = getrlimit(Resource::RLIMIT_NOFILE).map_or(1024, |(soft, _)| soft);
        (self.tasks() as u64) < most / DESCRIPTORS_PER_TASK
    }

    /// Leaves out what does not read at the mount.
    pub(super) fn want_readers_only(&mut self) {
        self.interest.of_mount = true;
        self.tree.want_workers_only();
    }

    pub(super) fn follow(&mut self, process: u32) {
        self.active = now();
        self.tree.follow(process);
    }

    pub(super) fn follow_reader(&mut self, task: u32) {
        self.active = now();
        if let Some(process) = self.tree.follow_reader(task) {
            self.interest.readers.insert(process);
        }
    }

    /// Whether a process has got new children.
    pub(super) fn has_new_workers(&mut self) -> bool {
        self.tree.search_trainers()
    }

    /// Whether first batches are being made: they are measured by frequent looks.
    pub(super) fn makes_first_batches(&self) -> bool {
        let mut groups = self.trainers.values().flat_map(|trainer| &trainer.groups);
        groups.any(Group::makes_first_batches)
    }

    /// There were so many reads at the mount until now.
    pub(super) fn note_reads(&mut self, reads: u64) {
        if std::mem::replace(&mut self.reads, reads) != reads {
            self.active = now();
        }
    }

    /// Seconds since somebody was last seen reading.
    pub(super) fn idle(&self) -> f64 {
        now() - self.active
    }

    /// Finds new processes.
    pub(super) fn search(&mut self, meters: &Meters) {
        let alive = |process| {
            let of = |trainer: &Trainer| trainer.groups().any(|group| group.is_alive(process));
            self.trainers.values().any(of)
        };
        self.tree.search(alive);
        let known: Vec<(u32, Process)> = self.tree.all.iter().map(|(a, b)| (*a, *b)).collect();
        for (process, Process { trainer, born, .. }) in known {
            if process == trainer {
                self.add_trainer(process, born, meters);
            } else {
                self.add_worker(process, trainer, born, meters);
            }
        }
        let now = now();
        for (process, trainer) in &mut self.trainers {
            for group in trainer.groups.iter_mut().chain(&mut trainer.as_reader) {
                group.note_meters(now, meters);
                if group.note_epoch(&meters.places) {
                    trainer.begun_again.push(group.begin_again(meters));
                }
            }
            trainer.ended.retain(|worker| self.tree.all.contains_key(worker));
            // It may have become another program. The name is empty if it has ended.
            let name = program((*process).into());
            if !name.is_empty() {
                trainer.program = name;
            }
            // If it has workers, it does not read itself.
            let wants = |group: &Group| self.interest.wants(*process, &trainer.program, group);
            if trainer.groups.iter().any(wants) {
                trainer.as_reader = None;
            }
        }
    }

    fn add_trainer(&mut self, process: u32, born: f64, meters: &Meters) {
        if self.trainers.contains_key(&process) || !self.has_room() {
            return;
        }
        // A fork has become another program, or a worker has workers itself.
        for other in self.trainers.values_mut() {
            other.groups.iter_mut().for_each(|group| group.leave(process));
            other.groups.retain(|group| !group.members.is_empty());
        }
        // It may have ended.
        let Ok(files) = TaskFiles::of_trainer(process) else { return };
        let member = TaskFiles::of_process(process).and_then(|files| Member::new(files, born));
        let as_reader = member.ok().map(|member| {
            let mut group = Group::new(Kind::Itself, meters.clone());
            group.add(process, member, born);
            group
        });
        let trainer = Trainer {
            queued: files.queued_s().unwrap_or_default(),
            files,
            program: program(process.into()),
            over: 0,
            groups: Vec::new(),
            begun_again: Vec::new(),
            as_reader,
            ended: BTreeSet::new(),
        };
        self.trainers.insert(process, trainer);
    }

    fn add_worker(&mut self, process: u32, trainer: u32, born: f64, meters: &Meters) {
        // A child that a worker has forked may become another program. Then the worker stays one.
        let is_worker = self.trainers.values().any(|other| other.has(trainer));
        let is_settled = !self.tree.is_young(process);
        let is_trainer = self.trainers.get(&process).is_some_and(Trainer::has_had_workers);
        let is_known = self.trainers.get(&trainer).is_some_and(|of| of.has(process));
        if is_known || is_trainer || is_worker && !is_settled || !self.has_room() {
            return;
        }
        self.add_trainer(trainer, 0.0, meters);
        let Some(of) = self.trainers.get_mut(&trainer) else { return };
        let files = TaskFiles::of_process(process);
        let Ok(member) = files.and_then(|files| Member::new(files, born)) else { return };
        if !of.groups.iter().any(|group| group.takes(born)) {
            of.groups.push(Group::new(Kind::Workers, meters.clone()));
        }
        let mut groups = of.groups.iter_mut();
        if let Some(group) = groups.find(|group| group.members.is_empty() || group.takes(born)) {
            group.add(process, member, born);
        }
        // It was taken for a process of its own as long as it had another program.
        self.trainers.remove(&process);
    }

    /// Looks at all trainers, for the first time since so many seconds, and at the workers whose turn it is, or at all.
    pub(super) fn look(&mut self, passed: f64, all: bool) {
        self.turn = self.turn.next(self.tasks(), all);
        for (process, trainer) in &mut self.trainers {
            trainer.look(*process, passed, self.turn);
        }
    }

    /// What the workers, and the threads that read, did at this look.
    pub(super) fn looks(&self, at: Instant) -> Vec<Look> {
        let mut looks = Vec::new();
        for (process, trainer) in &self.trainers {
            for (task, member) in trainer.groups().flat_map(|group| &group.members) {
                let was_seen = !member.has_ended() && self.turn.has(*task);
                if let Some(state) = member.state.filter(|_| was_seen) {
                    looks.push(Look { at, trainer: *process, task: *task, state });
                }
            }
        }
        looks
    }

    /// Reads the counters of those whose turn it is, and of those whose first batch is to be measured.
    pub(super) fn count(&mut self) {
        let mut moved = 0_u64;
        for trainer in self.trainers.values_mut() {
            for group in trainer.groups.iter_mut().chain(&mut trainer.as_reader) {
                group.count(|task| self.turn.has(task));
                // A process without workers may read other files than those of the mount.
                let counts = group.kind == Kind::Workers || !self.interest.of_mount;
                let members = group.members.values().filter(|_| counts);
                let bytes = members.filter_map(|member| member.watched.bytes());
                moved = bytes.fold(moved, |sum, (read, written)| sum + read + written);
            }
        }
        if std::mem::replace(&mut self.moved, moved) != moved {
            self.active = now();
        }
    }

    /// Finds threads that read in processes without workers.
    pub(super) fn search_threads(&mut self) {
        let has_room = self.has_room();
        for (process, trainer) in &mut self.trainers {
            let reads = |group: &&mut Group| group.is_of_interest(false) && has_room;
            let Some(group) = trainer.as_reader.as_mut().filter(reads) else { continue };
            // Of those that have ended, what they did is kept: a loader may make threads for each batch.
            if group.members.len() >= MEMBERS_MAX {
                continue;
            }
            for thread in threads(*process) {
                if thread == *process || group.members.contains_key(&thread) {
                    continue;
                }
                let Ok(files) = TaskFiles::of_thread(*process, thread) else { continue };
                let read = files.counters().ok().and_then(|counters| counters.bytes);
                if read.is_some_and(|(read, _)| read >= THREAD_READ_MIN)
                    && let Ok(born) = files.born()
                    && let Ok(member) = Member::new(files, born)
                {
                    group.add(thread, member, born);
                }
            }
        }
    }

    /// Takes the epochs that are over. `meters` is asked if there are any.
    pub(super) fn take_over(&mut self, meters: &dyn Fn() -> Meters) -> Vec<Epoch> {
        let mut over = Vec::new();
        for (process, trainer) in &mut self.trainers {
            let mut ended: Vec<Group> = trainer.groups.extract_if(.., |g| g.is_over()).collect();
            ended.extend(trainer.as_reader.take_if(|group| group.is_over()));
            ended.extend(std::mem::take(&mut trainer.begun_again));
            trainer.ended.extend(ended.iter().flat_map(|group| group.members.keys()));
            for group in ended {
                if self.interest.wants(*process, &trainer.program, &group) {
                    trainer.over += 1;
                    over.push(group.epoch(*process, &trainer.program, trainer.over, &meters()));
                    trainer.as_reader.take_if(|_| group.kind == Kind::Workers);
                } else if group.was_short()
                    && self.interest.concerns(*process, &trainer.program, &group)
                {
                    self.short += 1;
                }
            }
        }
        self.trainers.retain(|process, trainer| {
            let is_left = self.tree.all.contains_key(process);
            is_left || trainer.groups().next().is_some()
        });
        if self.is_empty() {
            self.interest.readers.clear();
        }
        over
    }

    /// The epochs that go on.
    pub(super) fn current(&self, meters: &Meters) -> Vec<Epoch> {
        let mut current = Vec::new();
        for (process, trainer) in &self.trainers {
            let program = trainer.program.as_str();
            let wanted = trainer.groups().filter(|g| self.interest.wants(*process, program, g));
            let numbered = (trainer.over + 1..).zip(wanted);
            current
                .extend(numbered.map(|(nth, group)| group.epoch(*process, program, nth, meters)));
        }
        current
    }
}
