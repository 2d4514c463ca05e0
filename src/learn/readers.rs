//! Who reads: a task, or tasks of one process that come one after the other.
//!
//! Some loaders make threads for each batch. When a thread ends and its process goes on, the next new
//! thread of that process takes its place. So what each of them reads goes forward through the order, as
//! what a worker reads that stays. A place has been left for good when its process has ended.

use std::collections::{BTreeMap, VecDeque};

/// The readers of all processes, each with a number that is never used twice.
#[derive(Debug, Default)]
pub(super) struct Readers {
    processes: BTreeMap<u64, Process>,
    next: u32,
}

/// The readers of a process.
#[derive(Debug)]
struct Process {
    group: u64,
    all: Vec<u32>,
    /// Those whose tasks have ended, the first first.
    free: VecDeque<u32>,
}

impl Readers {
    /// A task of a process begins to read, for a group. Gives the number of its reader.
    pub(super) fn begin(&mut self, process: u64, group: u64) -> u32 {
        let new = || Process { group, all: Vec::new(), free: VecDeque::new() };
        let of = self.processes.entry(process).or_insert_with(new);
        of.free.pop_front().unwrap_or_else(|| {
            let reader = self.next;
            self.next = self.next.wrapping_add(1);
            of.all.push(reader);
            reader
        })
    }

    /// The task of a reader has ended.
    pub(super) fn pause(&mut self, process: u64, reader: u32) {
        if let Some(of) = self.processes.get_mut(&process) {
            of.free.push_back(reader);
        }
    }

    /// A process has ended. Gives the group that it read for, and its readers.
    pub(super) fn end(&mut self, process: u64) -> Option<(u64, Vec<u32>)> {
        let of = self.processes.remove(&process)?;
        Some((of.group, of.all))
    }

    /// Nobody reads for a group any more.
    pub(super) fn end_group(&mut self, group: u64) {
        self.processes.retain(|_, of| of.group != group);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_comes_takes_the_place_of_one_of_its_process_that_has_ended() {
        let mut readers = Readers::default();
        let first: Vec<u32> = (0..3).map(|_| readers.begin(7, 1)).collect();
        assert_eq!((first, readers.begin(8, 1)), (vec![0, 1, 2], 3));
        readers.pause(7, 2);
        readers.pause(7, 0);
        assert_eq!(readers.begin(8, 1), 4);
        assert_eq!([7, 7, 7].map(|process| readers.begin(process, 1)), [2, 0, 5]);
        assert_eq!(readers.end(7), Some((1, vec![0, 1, 2, 5])));
        assert_eq!((readers.end(7), readers.begin(7, 2)), (None, 6));
        readers.end_group(1);
        assert_eq!((readers.end(8), readers.end(7)), (None, Some((2, vec![6]))));
    }
}
