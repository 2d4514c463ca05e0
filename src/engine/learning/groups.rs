//! For which process a task reads.
//!
//! A loader's workers are processes of their own, started by the one that has the dataset: by a
//! fork, which keeps the command line, or by Python's `multiprocessing` with another one.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

/// How many tasks are remembered.
const TASKS_MAX: usize = 4096;

/// What stands in the command line of workers that Python did not fork.
const WORKERS: [&[u8]; 3] = [b"multiprocessing.spawn", SERVER, b"--multiprocessing-fork"];

/// What stands in the command line of the server that forks workers, and in theirs.
const SERVER: &[u8] = b"multiprocessing.forkserver";

/// Which process each task reads for, found out when it is first seen.
#[derive(Default)]
pub(super) struct Groups {
    known: HashMap<u32, Task>,
}

/// A task: its own process, and that for which it reads.
#[derive(Clone, Copy)]
struct Task {
    own: u64,
    group: u64,
}

impl Groups {
    /// The process that a task reads for.
    pub(super) fn of(&mut self, task: u32) -> u64 {
        if self.known.len() >= TASKS_MAX && !self.known.contains_key(&task) {
            self.known.clear();
        }
        // Who has ended already cannot be asked, and stands for itself.
        let itself = Task { own: task.into(), group: task.into() };
        self.known.entry(task).or_insert_with(|| look(task).unwrap_or(itself)).group
    }

    /// Forgets the tasks that have ended, and says which, and whether their processes go on; and for
    /// whom those read whose process has.
    pub(super) fn take_gone(&mut self) -> Vec<(u32, bool)> {
        let ended = |(task, _): &(&u32, &Task)| !runs(u64::from(**task));
        let gone = self.known.iter().filter(ended);
        let gone: Vec<(u32, bool)> = gone.map(|(task, of)| (*task, runs(of.own))).collect();
        self.known.retain(|_, of| runs(of.group));
        gone.iter().for_each(|(task, _)| _ = self.known.remove(task));
        gone
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
        // Forked by the server, or by one that the server has forked. The server itself was started
        // by whom all this is for, and has another command line than that.
        let (_, before) = process_and_parent(parent)?;
        let by_server = command(before) != of_parent;
        return Some(Task { own, group: if by_server { before } else { parent } });
    }
    Some(Task { own, group: if started || forked { parent } else { own } })
}

/// The process that a task is of, and that process's parent.
fn process_and_parent(task: u64) -> Option<(u64, u64)> {
    let status = fs::read_to_string(format!("/proc/{task}/status")).ok()?;
    let field = |name: &str| -> Option<u64> {
        status.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
    };
    Some((field("Tgid:")?, field("PPid:")?))
}

/// The command line of a process; none of one that has ended.
fn command(process: u64) -> Option<Vec<u8>> {
    let line = fs::read(format!("/proc/{process}/cmdline")).ok();
    line.filter(|line| !line.is_empty())
}

/// Whether a task or process has not ended.
pub(super) fn runs(number: u64) -> bool {
    Path::new("/proc").join(number.to_string()).exists()
}

/// The name of a process's program; empty once it has ended.
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
        assert_eq!(groups.of(task), groups.of(process));
        // Beyond the largest number that the kernel gives to a task.
        assert_eq!(groups.of(1 << 30), 1 << 30);
        assert_eq!(groups.take_gone(), [(1 << 30, false)]);
        // Its process has ended.
        groups.known.insert(task, Task { own: 1 << 30, group: 1 << 30 });
        assert!(groups.take_gone().is_empty());
        assert_eq!(groups.of(task), groups.of(process));
        assert!(!program(process.into()).is_empty());
        // A thread ends, and its process goes on.
        let run = || nix::unistd::gettid().as_raw() as u32;
        let thread = std::thread::spawn(run).join().unwrap();
        groups.known.insert(thread, Task { own: process.into(), group: process.into() });
        while groups.take_gone() != [(thread, true)] {
            groups.known.insert(thread, Task { own: process.into(), group: process.into() });
        }
    }
}
