//! What is written to the files of views that take something, until it is whole.
//!
//! Each process that was forked meanwhile closes its copy of the descriptor as well, in the middle of
//! what is written: only the one that wrote last ends it.

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, PoisonError};

use fuser::LockOwner;

use crate::sync::{Mutex, MutexGuard};

/// Bytes that wait for their end at most.
const BYTES_MAX: usize = 64 << 20;

/// A file that somebody writes to.
#[derive(Default)]
pub(super) struct Writing {
    begun: Mutex<Begun>,
    /// What was refused of it.
    pub(super) refused: Arc<AtomicU64>,
}

/// What is not whole.
#[derive(Default)]
struct Begun {
    bytes: Vec<u8>,
    /// Who wrote it.
    writer: Option<LockOwner>,
    /// It was more than can wait, and none of it is left.
    over: bool,
}

impl Writing {
    fn begun(&self) -> MutexGuard<'_, Begun> {
        self.begun.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds to what is not whole yet. Says whether it was taken: once it is too much, nothing
    /// is.
    pub(super) fn add(&self, data: &[u8], writer: Option<LockOwner>) -> bool {
        let mut begun = self.begun();
        begun.writer = writer;
        begun.over |= begun.bytes.len() + data.len() > BYTES_MAX;
        if begun.over {
            begun.bytes = Vec::new();
        } else {
            begun.bytes.extend_from_slice(data);
        }
        !begun.over
    }

    /// Whether it was too much.
    pub(super) fn is_over(&self) -> bool {
        self.begun().over
    }

    /// Adds to lines, and says those that are whole with this; none where a line is too long.
    pub(super) fn add_lines(&self, data: &[u8], writer: Option<LockOwner>) -> Option<Vec<u8>> {
        if !self.add(data, writer) {
            return None;
        }
        let line = &mut self.begun().bytes;
        let whole = line.iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last + 1);
        let rest = line.split_off(whole);
        Some(std::mem::replace(line, rest))
    }

    /// What is left, where whoever closes a descriptor has written to it.
    pub(super) fn end(&self, closer: LockOwner) -> Option<Vec<u8>> {
        let mut begun = self.begun();
        let ends = begun.writer.is_some_and(|writer| writer == closer);
        ends.then(|| std::mem::take(&mut begun.bytes))
    }

    /// What is left when nobody has the file open any more: whoever wrote it may have left its
    /// closing to others.
    pub(super) fn rest(&self) -> Vec<u8> {
        std::mem::take(&mut self.begun().bytes)
    }
}
