//! The processes of a job: the tree below those that are followed.

use std::collections::{BTreeMap, BTreeSet};

use super::task::{now, start_of};
use crate::process::{Task, has_ended, runs};

/// Processes that are known at once. More are left out.
const PROCESSES_MAX: usize = 4096;

/// Seconds from one time that new processes and threads of trainers are asked to the next one. The same of the first threads
/// of all processes: a worker of one may be the trainer of others. The same of all threads.
const EVERY: f64 = 1.0;
const PROCESSES_EVERY: f64 = 5.0;
const ALL_EVERY: f64 = 20.0;

/// How long a process may become another program after its start, in seconds.
const SETTLED: f64 = 2.0;

/// A process that is followed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Process {
    /// The process that it reads for. Its own number if it is no worker.
    pub(super) trainer: u32,
    /// When it started.
    pub(super) born: f64,
    /// Whether it was asked a while after its start which program it is.
    is_settled: bool,
}

/// The processes that are known, by their numbers.
#[derive(Debug, Default)]
pub(super) struct Tree {
    pub(super) all: BTreeMap<u32, Process>,
    /// When new processes and threads of trainers are asked next, all processes, and all threads.
    due: f64,
    processes_due: f64,
    all_due: f64,
    /// Whether children are left out that are no workers.
    workers_only: bool,
    /// The children that were left out.
    left_out: BTreeSet<u32>,
}

impl Tree {
    /// Leaves out children that are no workers.
    pub(super) fn want_workers_only(&mut self) {
        self.workers_only = true;
    }

    /// Follows a process and its children, unless it has ended.
    pub(super) fn follow(&mut self, process: u32) {
        self.follow_for(process, trainer(process));
    }

    /// Follows a process that reads for another one.
    fn follow_for(&mut self, process: u32, trainer: Option<u32>) {
        if self.all.len() >= PROCESSES_MAX || self.all.contains_key(&process) {
            return;
        }
        if let Some(born) = start_of(process) {
            // A process that has just become this program has no command line for a moment.
            self.all.insert(
                process,
                Process { trainer: trainer.unwrap_or(process), born, is_settled: false },
            );
        }
    }

    /// Whether a process may become another program.
    pub(super) fn is_young(&self, process: u32) -> bool {
        self.all.get(&process).is_none_or(|known| now() - known.born < SETTLED)
    }

    /// Follows the job of a task that reads. Returns the process of the task.
    pub(super) fn follow_reader(&mut self, task: u32) -> Option<u32> {
        let Task { own, group } = Task::of(task)?;
        for process in [group, own] {
            self.follow(u32::try_from(process).ok()?);
        }
        u32::try_from(own).ok()
    }

    /// Finds new children of the first threads of processes that are no workers: a loader that begins an epoch is seen at
    /// once. Returns whether there are any.
    pub(super) fn search_trainers(&mut self) -> bool {
        self.search_first_threads(false)
    }

    /// Finds new children of the first threads of trainers, or of all processes.
    fn search_first_threads(&mut self, of_all: bool) -> bool {
        let wanted = |(process, known): &(&u32, &Process)| of_all || **process == known.trainer;
        let wanted = self.all.iter().filter(wanted);
        let children = wanted.flat_map(|(process, _)| children(*process, *process)).collect();
        self.follow_all(children)
    }

    /// Finds new children of all processes, and forgets processes that have ended. There may be many workers, so they are
    /// asked seldom. `is_alive`: whether a process is known to be there.
    pub(super) fn search(&mut self, is_alive: impl Fn(u32) -> bool) {
        self.search_trainers();
        let now = now();
        if now < self.due {
            return;
        }
        self.due = now + EVERY;
        self.all.retain(|process, _| is_alive(*process) || runs(u64::from(*process)));
        if now >= self.processes_due {
            self.processes_due = now + PROCESSES_EVERY;
            self.search_first_threads(true);
        }
        let of_all = now >= self.all_due;
        if of_all {
            self.all_due = now + ALL_EVERY;
        }
        self.left_out.retain(|process| runs(u64::from(*process)));
        self.search_threads(of_all);
        for (process, known) in &mut self.all {
            let is_new = !known.is_settled && now - known.born >= EVERY;
            if of_all || is_new {
                known.become_another_program(*process);
                known.is_settled = true;
            }
        }
    }

    /// Finds new children of all threads of trainers, or of all processes.
    fn search_threads(&mut self, of_all: bool) {
        let wanted = |(process, known): &(&u32, &Process)| of_all || **process == known.trainer;
        let of = |(process, _): (&u32, &Process)| {
            let process = *process;
            threads(process).into_iter().flat_map(move |thread| children(process, thread))
        };
        let children = self.all.iter().filter(wanted).flat_map(of).collect();
        self.follow_all(children);
    }

    /// Follows processes that are new. Returns whether there are any.
    fn follow_all(&mut self, children: Vec<Child>) -> bool {
        let before = self.all.len();
        for Child { process, parent } in children {
            if self.all.contains_key(&process) || self.left_out.contains(&process) {
                continue;
            }
            let task = Task::of_process(process.into(), parent.into());
            let trainer = task.and_then(|task| u32::try_from(task.group).ok());
            match self.workers_only && trainer == Some(process) {
                true => _ = self.left_out.insert(process),
                false => self.follow_for(process, trainer),
            }
        }
        self.all.len() > before
    }
}

impl Process {
    /// Looks whether it has become another program. A worker whose trainer has ended stays one: it ends soon.
    fn become_another_program(&mut self, own: u32) {
        let Some(now) = trainer(own) else { return };
        if now != own || self.trainer == own || !has_ended(self.trainer) {
            self.trainer = now;
        }
    }
}

/// The process that a process reads for. `None` if it has ended, or becomes another program now.
fn trainer(process: u32) -> Option<u32> {
    u32::try_from(Task::of(process)?.group).ok()
}

/// A process that another one has started.
struct Child {
    process: u32,
    parent: u32,
}

/// The children of a thread of a process.
fn children(parent: u32, thread: u32) -> Vec<Child> {
    let text = std::fs::read_to_string(format!("/proc/{parent}/task/{thread}/children"));
    let text = text.unwrap_or_default();
    let numbers = text.split_whitespace().filter_map(|word| word.parse().ok());
    numbers.map(|process| Child { process, parent }).collect()
}

/// The threads of a process.
pub(super) fn threads(process: u32) -> Vec<u32> {
    let entries = std::fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten();
    entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fork_is_a_worker_and_another_program_is_not() {
        // The shell in brackets is a fork. It has the command line of the first one until it becomes another program.
        let script = "(read line; sleep 600) & (sleep 600; read line) & sleep 600 & wait";
        let mut shell = std::process::Command::new("sh").args(["-c", script]).spawn().unwrap();
        let mut tree = Tree::default();
        tree.follow(shell.id());
        let workers = |tree: &Tree| {
            let of_shell = |(pid, process): &(&u32, &Process)| **pid != process.trainer;
            tree.all.iter().filter(of_shell).count()
        };
        while tree.all.len() < 5 || workers(&tree) != 1 {
            tree.search(|_| false);
            std::thread::yield_now();
        }
        let all: Vec<u32> = tree.all.keys().copied().collect();
        for process in all.iter().filter(|process| **process != shell.id()) {
            let pid = nix::unistd::Pid::from_raw(*process as i32);
            let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL);
        }
        shell.kill().unwrap();
        shell.wait().unwrap();
        while !tree.all.is_empty() {
            tree.search(|_| false);
            std::thread::yield_now();
        }
    }
}
