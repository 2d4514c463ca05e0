//! The tasks that were seen to read, and for which processes they read.

use std::collections::{BTreeSet, HashMap};

use crate::process::{Task, runs};

/// How many tasks are remembered.
const TASKS_MAX: usize = 4096;

/// Which process each task reads for, found out when it is first seen.
#[derive(Default)]
pub(super) struct Groups {
    known: HashMap<u32, Task>,
    /// The processes of the tasks.
    pub(super) processes: BTreeSet<u64>,
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
        let of = Task::of(task)?;
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::program;

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
