//! The tasks that read, and where each was seen last: it holds that file open, as far as can be told.

use std::collections::BTreeMap;

use super::crowd::Crowd;
use super::task::Task;
use crate::ids::FileId;

/// How many tasks are remembered with the stream that they read for.
const TASKS_MAX: usize = 4096;

/// The tasks that read.
#[derive(Default)]
pub(super) struct Tasks {
    /// By task, where it was seen last.
    seen_at: BTreeMap<u32, FileId>,
    /// The stream that a task reads for, and its last few blocks.
    known: BTreeMap<u32, Task>,
    /// Tasks that are new, taken together.
    pub(super) crowd: Crowd,
}

impl Tasks {
    /// Where a task was seen last.
    pub(super) fn place(&self, task: u32) -> Option<FileId> {
        self.seen_at.get(&task).copied()
    }

    /// A task is seen at a file. Gives where it was before.
    pub(super) fn come_to(&mut self, task: u32, file: FileId) -> Option<FileId> {
        self.seen_at.insert(task, file)
    }

    /// A task has ended. Gives where it was.
    pub(super) fn end(&mut self, task: u32) -> Option<FileId> {
        self.known.remove(&task);
        self.seen_at.remove(&task)
    }

    /// The tasks that hold a file open.
    pub(super) fn at_files(&self) -> impl Iterator<Item = u32> + '_ {
        self.seen_at.keys().copied()
    }

    /// Whether no task holds a file open.
    pub(super) fn are_none(&self) -> bool {
        self.seen_at.is_empty()
    }

    /// Takes out what is known of a task, which is to be [put back](Self::put).
    pub(super) fn take(&mut self, task: u32) -> Task {
        if self.known.len() > TASKS_MAX {
            self.known.clear();
        }
        std::mem::take(self.known.entry(task).or_default())
    }

    /// What is known of a task now.
    pub(super) fn put(&mut self, task: u32, known: Task) {
        self.known.insert(task, known);
    }

    /// What is known of a task, if it has opened something.
    pub(super) fn known(&mut self, task: u32) -> Option<&mut Task> {
        self.known.get_mut(&task)
    }
}
