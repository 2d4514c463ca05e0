//! The tasks that read, and the file where each was seen last: as far as can be seen, it holds that file
//! open.

use std::collections::BTreeMap;

use super::crowd::Crowd;
use super::task::Task;
use crate::ids::FileId;

/// Tasks that are remembered with the stream that they read for.
const TASKS_MAX: usize = 4096;

#[derive(Default)]
pub(super) struct Tasks {
    seen_at: BTreeMap<u32, FileId>,
    known: BTreeMap<u32, Task>,
    /// New tasks, judged together.
    pub(super) crowd: Crowd,
}

impl Tasks {
    /// The file where a task was seen last.
    pub(super) fn place(&self, task: u32) -> Option<FileId> {
        self.seen_at.get(&task).copied()
    }

    /// A task is seen at a file. Returns the file where it was before.
    pub(super) fn come_to(&mut self, task: u32, file: FileId) -> Option<FileId> {
        self.seen_at.insert(task, file)
    }

    /// A task has ended. Returns the file where it was.
    pub(super) fn end(&mut self, task: u32) -> Option<FileId> {
        self.known.remove(&task);
        self.seen_at.remove(&task)
    }

    pub(super) fn at_files(&self) -> impl Iterator<Item = u32> + '_ {
        self.seen_at.keys().copied()
    }

    pub(super) fn are_none(&self) -> bool {
        self.seen_at.is_empty()
    }

    /// Takes out the record of a task, to be [put back](Self::put).
    pub(super) fn take(&mut self, task: u32) -> Task {
        if self.known.len() > TASKS_MAX {
            self.known.clear();
        }
        std::mem::take(self.known.entry(task).or_default())
    }

    pub(super) fn put(&mut self, task: u32, known: Task) {
        self.known.insert(task, known);
    }

    pub(super) fn known(&mut self, task: u32) -> Option<&mut Task> {
        self.known.get_mut(&task)
    }
}
