//! For which process a task reads.
//!
//! A loader's workers are processes. The process that has the dataset starts them by a fork, which keeps the
//! command line, or by Python's `multiprocessing` with another one.

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::path::Path;

/// How many tasks are remembered.
const TASKS_MAX: usize = 4096;

/// Parts of the command lines of workers that Python did not fork.
const WORKERS: [&[u8]; 3] = [b"multiprocessing.spawn", SERVER, b"--multiprocessing-fork"];

/// A part of the command lines of the server that forks workers, and of these workers.
const SERVER: &[u8] = b"multiprocessing.forkserver";

/// Which process each task reads for, found out when it is first seen.
#[derive(Default)]
pub(super) struct Groups {
    known: HashMap<u32, Task>,
    /// The processes of the tasks.
    pub(super) processes: BTreeSet<u64>,
}

/// A task's own process, and that for which it reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Task {
    pub(super) own: u64,
    pub(super) group: u64,
}

/// Tasks and processes that have ended.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Ended {
    pub(super) tasks: Vec<u32>,
    pub(super) processes: Vec<u64>,
}

impl Groups {
    /// `None` if the task has ended already: its process is not known.
    pub(super) fn of(&mut self, task: u32) -> Option<Task> {
        if let Some(known) = self.known.get(&task) {
            return Some(*known);
        }
        let of = look(task)?;
        if self.known.len() >= TASKS_MAX {
            self.known.clear();
        }
        self.known.insert(task, of);
        self.processes.insert(of.own);
        Some(of)
    }

    /// Forgets tasks and processes that have ended, and gives them. Forgets tasks whose group has ended, too.
    pub(super) fn take_ended(&mut self) -> Ended {
        let tasks = self.known.keys().copied().filter(|task| !runs(u64::from(*task))).collect();
        let processes = self.processes.iter().copied().filter(|process| !runs(*process)).collect();
        let ended = Ended { tasks, processes };
        self.known.retain(|_, of| runs(of.group));
        ended.tasks.iter().for_each(|task| _ = self.known.remove(task));
        ended.processes.iter().for_each(|process| _ = self.processes.remove(process));
        ended
    }
}

fn look(task: u32) -> Option<Task> {
    let (own, parent) = process_and_parent(u64::from(task))?;
    let line = command(own)?;
    let says = |word: &[u8]| line.windows(word.len()).any(|part| part == word);
    let started = WORKERS.iter().any(|word| says(word));
    let of_parent = command(parent);
    let forked = of_parent.as_ref() == Some(&line);
    if forked && says(SERVER) {
        // The parent is the server, or a worker that the server has forked. The server was started by the process
        // that is read for, and has another command line than that.
        let (_, before) = process_and_parent(parent)?;
        let by_server = command(before) != of_parent;
        return Some(Task { own, group: if by_server { before } else { parent } });
    }
    Some(Task { own, group: if started || forked { parent } else { own } })
}

/// The process of a task, and its parent.
fn process_and_parent(task: u64) -> Option<(u64, u64)> {
    let status = fs::read_to_string(format!("/proc/{task}/status")).ok()?;
    let field = |name: &str| -> Option<u64> {
        status.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
    };
    Some((field("Tgid:")?, field("PPid:")?))
}

/// The command line of a process that has not ended.
fn command(process: u64) -> Option<Vec<u8>> {
    let line = fs::read(format!("/proc/{process}/cmdline")).ok();
    line.filter(|line| !line.is_empty())
}

/// Whether a task or process runs.
pub(super) fn runs(number: u64) -> bool {
    Path::new("/proc").join(number.to_string()).exists()
}

/// The name of a process's program; empty if it has ended.
pub(super) fn program(process: u64) -> String {
    let name = fs::read_to_string(format!("/proc/{process}/comm")).unwrap_or_default();
    name.trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_reads_for_its_process_and_a_stranger_for_itself() {
        let mut groups = Groups::default();
        let process = std::process::id();
        let task = nix::unistd::gettid().as_raw() as u32;
        assert!(groups.of(task).is_some_and(|of| of.own == u64::from(process)));
        assert_eq!(groups.of(task), groups.of(process));
        // Beyond the largest number that the kernel gives to a task.
        let none = 1 << 30;
        assert_eq!(groups.of(none), None);
        assert_eq!(groups.take_ended(), Ended::default());
        // Its process has ended.
        groups.known.insert(task, Task { own: none.into(), group: none.into() });
        groups.processes.insert(none.into());
        assert_eq!(groups.take_ended(), Ended { tasks: Vec::new(), processes: vec![none.into()] });
        assert_eq!(groups.take_ended(), Ended::default());
        assert_eq!(groups.of(task), groups.of(process));
        assert!(!program(process.into()).is_empty());
        // A thread ends, and its process goes on.
        let run = || nix::unistd::gettid().as_raw() as u32;
        let thread = std::thread::spawn(run).join().unwrap();
        let ended = Ended { tasks: vec![thread], processes: Vec::new() };
        groups.known.insert(thread, Task { own: process.into(), group: process.into() });
        while groups.take_ended() != ended {
            groups.known.insert(thread, Task { own: process.into(), group: process.into() });
        }
    }
}
