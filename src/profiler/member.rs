//! A task that is looked at: a worker, or a thread that reads.

use super::task::{Ended, TaskFiles, now};
use crate::stall::{State, Watched};

/// A task that has started within so many seconds is looked at from its start.
const NEW: f64 = 2.0;

pub(super) struct Member {
    /// `None` if the task has ended.
    files: Option<TaskFiles>,
    pub(super) watched: Watched,
    /// What it did at the last look. `None` if it was not looked at yet.
    pub(super) state: Option<State>,
}

impl Member {
    /// # Errors
    /// If it has ended.
    pub(super) fn new(files: TaskFiles, born: f64) -> Result<Self, Ended> {
        let now = now();
        let counted = if now - born < NEW { None } else { Some(files.counters()?) };
        Ok(Member { files: Some(files), watched: Watched::new(born, now, counted), state: None })
    }

    /// A task that has ended, or that has begun another epoch, of which so much was seen.
    pub(super) fn ended(watched: Watched) -> Self {
        Member { files: None, watched, state: None }
    }

    pub(super) fn has_ended(&self) -> bool {
        self.files.is_none()
    }

    pub(super) fn look(&mut self) {
        self.state = self.unless_ended(TaskFiles::state);
        if let Some(state) = self.state {
            self.watched.look(now(), state);
        }
    }

    /// The task was found in this state.
    pub(super) fn was_seen(&mut self, state: Result<State, Ended>) {
        match state {
            Ok(state) if self.files.is_some() => {
                self.state = Some(state);
                self.watched.look(now(), state);
            }
            Ok(_) => {}
            Err(Ended) => self.files = None,
        }
    }

    pub(super) fn count(&mut self) {
        if let Some(counters) = self.unless_ended(TaskFiles::counters) {
            self.watched.count(now(), counters);
        }
        // A task that has ended stays until its parent asks for its exit code. It looks as if it ran.
        let may_be_over = self.state == Some(State::Runs) && self.watched.stands_still();
        if may_be_over && self.files.as_ref().is_some_and(TaskFiles::is_zombie) {
            self.files = None;
        }
    }

    fn unless_ended<T>(&mut self, ask: impl FnOnce(&TaskFiles) -> Result<T, Ended>) -> Option<T> {
        let answer = ask(self.files.as_ref()?);
        if answer.is_err() {
            self.files = None;
        }
        answer.ok()
    }

    /// Bytes that it has read. `None` if this may not be known.
    pub(super) fn read(&self) -> Option<u64> {
        self.watched.bytes().map(|(read, _)| read)
    }
}
