//! What the owner is told, and the way to it.
//!
//! Nobody waits for room. What must arrive does: of that there is one note for each who waits for its
//! answer, one for each epoch, and one for each fetch. What can be missed is given up where very many
//! notes wait, and counted: a file that was read, which is offered when it is read again, and the
//! opening of a sample, which is shown again without being counted.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use serde_json::{Value, json};

use super::offers::Waiting;
use super::owner::Owner;
use crate::buffer::SampleId;
use crate::catalog::NodeId;
use crate::rehearsal::views::{Appended, Made, Scored, Synced, View};

/// Notes that wait before those that can be missed are given up: what many readers leave in the
/// seconds that a mix of millions of files takes.
pub(super) const NOTES_MAX: usize = 1 << 17;

/// What the owner is told.
pub(super) enum Note {
    /// A file was read; with its bytes where they are at hand.
    Read {
        node: NodeId,
        bytes: Option<Waiting>,
    },
    /// An epoch has begun, after what was read before this.
    Began {
        epoch: u32,
    },
    /// Somebody looks at a view that is not made yet.
    Make {
        buffer: usize,
        view: View,
        made: Made,
    },
    /// Somebody wants to know what a buffer holds now.
    Show {
        buffer: usize,
        shown: Made,
    },
    /// A sample of a view was opened.
    Shown {
        buffer: usize,
        sample: SampleId,
    },
    /// The bytes of a sample of a view are not what was written.
    Damaged {
        buffer: usize,
        sample: SampleId,
    },
    /// Lines `path score` were written for a buffer.
    Scored {
        buffer: usize,
        lines: Vec<u8>,
        done: Scored,
    },
    /// Codes were written for a buffer.
    Appended {
        buffer: usize,
        bytes: Vec<u8>,
        done: Appended,
    },
    /// What was taken for a buffer is to last.
    Sync {
        buffer: usize,
        done: Synced,
    },
    Asked {
        ask: Box<dyn FnOnce(&mut Owner) + Send>,
    },
    /// There is something to look at: bytes that were fetched, or the end.
    Wake,
}

/// What waits and what was missed.
#[derive(Default)]
struct Load {
    waiting: AtomicUsize,
    reads: AtomicU64,
    openings: AtomicU64,
}

/// The owner has ended.
#[derive(Debug)]
pub(super) struct Ended;

/// Leaves notes.
#[derive(Clone)]
pub(super) struct Notes {
    to: Sender<Note>,
    load: Arc<Load>,
}

/// Where notes arrive.
pub(super) struct Arriving {
    from: Receiver<Note>,
    load: Arc<Load>,
}

/// A way for notes.
pub(super) fn notes() -> (Notes, Arriving) {
    let ((to, from), load) = (channel(), Arc::<Load>::default());
    (Notes { to, load: Arc::clone(&load) }, Arriving { from, load })
}

impl Notes {
    /// Leaves a note, however many wait.
    ///
    /// # Errors
    /// Where nobody takes it any more.
    pub(super) fn send(&self, note: Note) -> Result<(), Ended> {
        self.load.waiting.fetch_add(1, Ordering::Relaxed);
        self.to.send(note).map_err(|_| Ended)
    }

    /// Leaves a note that can be missed. Says whether it was left.
    pub(super) fn try_send(&self, note: Note) -> bool {
        if self.load.waiting.load(Ordering::Relaxed) < NOTES_MAX {
            return self.send(note).is_ok();
        }
        match note {
            Note::Read { .. } => self.load.reads.fetch_add(1, Ordering::Relaxed),
            Note::Shown { .. } => self.load.openings.fetch_add(1, Ordering::Relaxed),
            // The next reader finds the same damage.
            _ => 0,
        };
        false
    }

    /// What was given up in this mount.
    pub(super) fn missed(&self) -> Value {
        let Load { reads, openings, .. } = &*self.load;
        json!({
            "reads": reads.load(Ordering::Relaxed),
            "openings": openings.load(Ordering::Relaxed),
        })
    }
}

impl Arriving {
    /// The next note. Waits for it so long at most.
    pub(super) fn next(&self, patience: Duration) -> Result<Note, RecvTimeoutError> {
        self.from.recv_timeout(patience).inspect(|_| self.took())
    }

    /// So many of those that are there at most.
    pub(super) fn there(&self, most: usize) -> impl Iterator<Item = Note> {
        self.from.try_iter().take(most).inspect(|_| self.took())
    }

    fn took(&self) {
        self.load.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_can_be_missed_is_counted_and_all_else_arrives() {
        let (notes, arriving) = notes();
        let shown = |sample| Note::Shown { buffer: 0, sample: SampleId(sample) };
        let all = NOTES_MAX as u32;
        assert!((0..all).all(|sample| notes.try_send(shown(sample))));
        assert_eq!(notes.missed(), json!({ "reads": 0, "openings": 0 }));
        assert!(!notes.try_send(shown(all)) && !notes.try_send(shown(all)));
        assert!(!notes.try_send(Note::Read { node: NodeId(1), bytes: None }));
        assert!(!notes.try_send(Note::Damaged { buffer: 0, sample: SampleId(0) }));
        assert_eq!(notes.missed(), json!({ "reads": 1, "openings": 2 }));
        let made = Box::new(|_| ());
        let view = View::Epoch(7);
        notes.send(Note::Make { buffer: 0, view, made }).unwrap();
        notes.send(Note::Began { epoch: 8 }).unwrap();
        // In their order, and there is room again for as many as were taken.
        for expected in 0..3 {
            let note = arriving.next(Duration::ZERO).unwrap();
            assert!(matches!(note, Note::Shown { sample, .. } if sample.0 == expected));
        }
        assert!(notes.try_send(shown(all)) && !notes.try_send(shown(all)));
        let rest: Vec<Note> = arriving.there(usize::MAX).skip(NOTES_MAX - 3).collect();
        assert!(matches!(rest[0], Note::Make { view: View::Epoch(7), .. }));
        assert!(matches!(rest[1], Note::Began { epoch: 8 }));
        assert!(matches!(rest[2], Note::Shown { sample, .. } if sample.0 == all));
        assert_eq!(rest.len(), 3);
        assert!((0..all).all(|sample| notes.try_send(shown(sample))), "all was taken");
        drop(arriving);
        notes.send(Note::Wake).unwrap_err();
    }
}
