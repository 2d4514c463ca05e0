//! Who is at which file: the tasks, and what each holds open as far as can be told.

use std::collections::BTreeMap;

use super::crowd::Crowd;
use super::task::Task;
use crate::ids::FileId;

/// How many tasks are remembered with the stream that they read for.
const TASKS_MAX: usize = 4096;

/// The tasks that read, and the files that are open.
#[derive(Default)]
pub(super) struct Readers {
    /// Open handles of each open file.
    open: BTreeMap<FileId, u32>,
    /// By task, where it was seen last: it holds that file open, as far as can be told.
    seen_at: BTreeMap<u32, FileId>,
    /// The stream that a task reads for, and its last few blocks.
    tasks: BTreeMap<u32, Task>,
    /// Tasks that are new, taken together.
    pub(super) crowd: Crowd,
}

impl Readers {
    /// Whether a file is open.
    pub(super) fn has_open(&self, file: FileId) -> bool {
        self.open.contains_key(&file)
    }

    /// A file is opened once more.
    pub(super) fn open(&mut self, file: FileId) {
        *self.open.entry(file).or_default() += 1;
    }

    /// One handle of a file is closed. Says whether it was the last one.
    pub(super) fn close(&mut self, file: FileId) -> bool {
        let is_last = self.open.get(&file).is_none_or(|handles| *handles == 1);
        if is_last {
            self.open.remove(&file);
        } else if let Some(handles) = self.open.get_mut(&file) {
            *handles -= 1;
        }
        is_last
    }

    /// How many files are open.
    #[cfg(test)]
    pub(super) fn open_files(&self) -> usize {
        self.open.len()
    }

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
        self.tasks.remove(&task);
        self.seen_at.remove(&task)
    }

    /// The tasks that hold a file open.
    pub(super) fn tasks(&self) -> impl Iterator<Item = u32> + '_ {
        self.seen_at.keys().copied()
    }

    /// Whether no task holds a file open.
    pub(super) fn are_none(&self) -> bool {
        self.seen_at.is_empty()
    }

    /// Takes out what is known of a task, which is to be [put back](Self::put).
    pub(super) fn take(&mut self, task: u32) -> Task {
        if self.tasks.len() > TASKS_MAX {
            self.tasks.clear();
        }
        std::mem::take(self.tasks.entry(task).or_default())
    }

    /// What is known of a task now.
    pub(super) fn put(&mut self, task: u32, known: Task) {
        self.tasks.insert(task, known);
    }

    /// What is known of a task, if it has opened something.
    pub(super) fn known(&mut self, task: u32) -> Option<&mut Task> {
        self.tasks.get_mut(&task)
    }
}
