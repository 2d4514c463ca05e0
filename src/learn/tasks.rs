//! Who reads: a task, or tasks of one process that come one after the other.
//!
//! Some loaders make threads for each batch. When a thread ends, the next new thread of its process goes on as
//! the same *reader*, which goes forward through the order like a worker that stays. Readers end with their
//! process.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// How many of a task's latest opens are remembered: a second sign of one is no new open.
const RECENT: usize = 4;

/// How many tasks are told apart, those that were seen last.
const TASKS_MAX: usize = 4096;

/// The tasks that read, and the readers that they are. A reader's number is never used twice.
#[derive(Debug, Default)]
pub(super) struct Tasks {
    all: BTreeMap<u32, Task>,
    processes: BTreeMap<u64, Process>,
    next_reader: u32,
    opens: u64,
}

#[derive(Debug)]
struct Task {
    process: u64,
    group: u64,
    reader: u32,
    /// The number of its latest open, counted over all tasks.
    seen: u64,
    /// Its latest opens, and whether they are known to have read.
    recent: [Option<(u32, bool)>; RECENT],
}

#[derive(Debug)]
struct Process {
    group: u64,
    readers: Vec<u32>,
    /// Readers whose tasks have ended, the first first.
    free: VecDeque<u32>,
}

/// What a sign of an open shows.
pub(super) enum Sign {
    /// A reader opens a sample.
    Open { reader: u32 },
    /// An earlier open was a read.
    Read,
    /// Nothing new.
    Known,
}

/// The group that a process read for which has ended, and its readers.
pub(super) type Ended = (u64, Vec<u32>);

impl Tasks {
    /// A task of a process that reads for a group opens a sample.
    pub(super) fn open(
        &mut self,
        number: u32,
        (process, group): (u64, u64),
        sample: u32,
        exact: bool,
    ) -> Sign {
        self.opens += 1;
        let is_other = |task: &Task| (task.process, task.group) != (process, group);
        if self.all.get(&number).is_some_and(is_other) {
            // The kernel has given the number to another task.
            self.leave(number);
        }
        let seen = self.opens;
        let task = self.all.entry(number).or_insert_with(|| {
            let new = || Process { group, readers: Vec::new(), free: VecDeque::new() };
            let of = self.processes.entry(process).or_insert_with(new);
            let reader = of.begin_reader(&mut self.next_reader);
            Task { process, group, reader, seen, recent: [None; RECENT] }
        });
        task.seen = seen;
        let again = task.recent.iter_mut().flatten().find(|recent| recent.0 == sample);
        if let Some((_, was_exact)) = again {
            let shows_read = exact && !std::mem::replace(was_exact, true);
            return if shows_read { Sign::Read } else { Sign::Known };
        }
        task.recent.rotate_right(1);
        task.recent[0] = Some((sample, exact));
        Sign::Open { reader: task.reader }
    }

    /// A task has ended. Another one may go on as its reader.
    pub(super) fn leave(&mut self, task: u32) {
        if let Some(Task { process, reader, .. }) = self.all.remove(&task)
            && let Some(process) = self.processes.get_mut(&process)
        {
            process.free.push_back(reader);
        }
    }

    /// A process has ended, and with it its readers.
    pub(super) fn end_process(&mut self, process: u64) -> Option<Ended> {
        let Process { group, readers, .. } = self.processes.remove(&process)?;
        self.all.retain(|_, task| task.process != process);
        Some((group, readers))
    }

    /// No task reads for a group any more.
    pub(super) fn end_group(&mut self, group: u64) {
        self.all.retain(|_, task| task.group != group);
        self.processes.retain(|_, process| process.group != group);
    }

    /// Forgets a task if there are too many, except one. A process ends with its last task.
    pub(super) fn bound(&mut self, but: u32) -> Option<Ended> {
        if self.all.len() <= TASKS_MAX {
            return None;
        }
        let others = self.all.iter().filter(|(task, _)| **task != but);
        let (&task, &Task { process, .. }) = others.min_by_key(|(_, task)| task.seen)?;
        self.leave(task);
        let is_left = self.all.values().all(|task| task.process != process);
        is_left.then(|| self.end_process(process)).flatten()
    }

    pub(super) fn groups(&self) -> BTreeSet<u64> {
        self.all.values().map(|task| task.group).collect()
    }
}

impl Process {
    /// A task begins to read. Gives the number of its reader.
    fn begin_reader(&mut self, next: &mut u32) -> u32 {
        self.free.pop_front().unwrap_or_else(|| {
            let reader = *next;
            *next = next.wrapping_add(1);
            self.readers.push(reader);
            reader
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_comes_takes_the_place_of_one_of_its_process_that_has_ended() {
        let mut tasks = Tasks::default();
        let begin = |tasks: &mut Tasks, task, process, group| {
            let Sign::Open { reader } = tasks.open(task, (process, group), 0, true) else {
                panic!("no new open")
            };
            reader
        };
        let first: Vec<u32> = (70..73).map(|task| begin(&mut tasks, task, 7, 1)).collect();
        assert_eq!((first, begin(&mut tasks, 80, 8, 1)), (vec![0, 1, 2], 3));
        tasks.leave(72);
        tasks.leave(70);
        assert_eq!(begin(&mut tasks, 81, 8, 1), 4);
        assert_eq!([73, 74, 75].map(|task| begin(&mut tasks, task, 7, 1)), [2, 0, 5]);
        assert_eq!(tasks.end_process(7), Some((1, vec![0, 1, 2, 5])));
        assert_eq!((tasks.end_process(7), begin(&mut tasks, 76, 7, 2)), (None, 6));
        tasks.end_group(1);
        assert_eq!((tasks.end_process(8), tasks.end_process(7)), (None, Some((2, vec![6]))));
    }
}
