//! Notes: the messages that other threads send to the buffer thread.
//!
//! No sender waits for room. Notes that must arrive are always taken. There are few of them: one for each
//! request that waits for an answer, for each epoch, and for each fetch.
//!
//! Other notes are dropped if [`NOTES_MAX`] notes wait, and most of them are counted. If a read is missed,
//! the file is offered at its next read. If an opened sample is missed, its replay is not counted.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use super::MissedNotes;
use super::buffer_thread::BufferThread;
use super::read_observer::WaitingBytes;
use crate::buffer::SampleId;
use crate::catalog::NodeId;
use crate::rehearsal::views::{AppendReply, ScoreReply, SnapshotReply, SyncReply, View};

/// How many notes may wait before notes that can be missed are dropped. Making a mix of millions of files
/// takes seconds, in which many readers send this many.
pub(super) const NOTES_MAX: usize = 1 << 17;

pub(super) enum Note {
    /// A file was read. Its bytes come along if they are at hand.
    Read { node: NodeId, bytes: Option<WaitingBytes> },
    /// An epoch has begun. Earlier notes are of reads before it.
    Began { epoch: u32 },
    /// A reader looks at a view that is not made yet.
    Make { buffer: usize, view: View, made: SnapshotReply },
    /// A thread needs all samples that a buffer shows.
    Show { buffer: usize, shown: SnapshotReply },
    /// A sample of a view was opened.
    Shown { buffer: usize, sample: SampleId },
    /// A sample was opened at another node. It is named by the hash of its path.
    ShownElsewhere { buffer: usize, hash: u64 },
    /// The bytes of a view's sample are not those that were written.
    Damaged { buffer: usize, sample: SampleId },
    /// Lines `path score` were written.
    Scored { buffer: usize, lines: Vec<u8>, done: ScoreReply },
    /// Codes were written.
    Appended { buffer: usize, bytes: Vec<u8>, done: AppendReply },
    /// All scores and codes of a buffer are to be synced.
    Sync { buffer: usize, done: SyncReply },
    /// A thread waits until the buffer thread has done something.
    Ask { ask: Box<dyn FnOnce(&mut BufferThread) + Send> },
    /// Wakes the buffer thread: fetched bytes have arrived, or it is to end.
    Wake,
}

#[derive(Default)]
struct Counts {
    waiting: AtomicUsize,
    reads: AtomicU64,
    openings: AtomicU64,
}

#[derive(Debug)]
pub(super) struct ThreadEnded;

#[derive(Clone)]
pub(super) struct Notes {
    to: Sender<Note>,
    counts: Arc<Counts>,
}

pub(super) struct NoteReceiver {
    from: Receiver<Note>,
    counts: Arc<Counts>,
}

pub(super) fn notes() -> (Notes, NoteReceiver) {
    let ((to, from), counts) = (channel(), Arc::<Counts>::default());
    (Notes { to, counts: Arc::clone(&counts) }, NoteReceiver { from, counts })
}

impl Notes {
    /// Sends a note, however many wait.
    ///
    /// # Errors
    /// If the buffer thread has ended.
    pub(super) fn send(&self, note: Note) -> Result<(), ThreadEnded> {
        self.counts.waiting.fetch_add(1, Ordering::Relaxed);
        self.to.send(note).map_err(|_| ThreadEnded)
    }

    /// Sends a note that can be missed. Returns whether it was sent.
    pub(super) fn try_send(&self, note: Note) -> bool {
        if self.counts.waiting.load(Ordering::Relaxed) < NOTES_MAX {
            return self.send(note).is_ok();
        }
        match note {
            Note::Read { .. } => self.counts.reads.fetch_add(1, Ordering::Relaxed),
            Note::Shown { .. } | Note::ShownElsewhere { .. } => {
                self.counts.openings.fetch_add(1, Ordering::Relaxed)
            }
            // The next reader finds the same damage.
            _ => 0,
        };
        false
    }

    /// How many notes were dropped in this mount.
    pub(super) fn missed(&self) -> MissedNotes {
        let count = |count: &AtomicU64| count.load(Ordering::Relaxed);
        MissedNotes { reads: count(&self.counts.reads), openings: count(&self.counts.openings) }
    }
}

impl NoteReceiver {
    /// The next note. Waits `patience` at most.
    pub(super) fn next(&self, patience: Duration) -> Result<Note, RecvTimeoutError> {
        self.from.recv_timeout(patience).inspect(|_| self.count_taken())
    }

    pub(super) fn waiting(&self, most: usize) -> impl Iterator<Item = Note> {
        self.from.try_iter().take(most).inspect(|_| self.count_taken())
    }

    fn count_taken(&self) {
        self.counts.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dropped_notes_are_counted_and_others_arrive() {
        let (notes, receiver) = notes();
        let shown = |sample| Note::Shown { buffer: 0, sample: SampleId(sample) };
        let all = NOTES_MAX as u32;
        assert!((0..all).all(|sample| notes.try_send(shown(sample))));
        assert_eq!(notes.missed(), MissedNotes { reads: 0, openings: 0 });
        assert!(!notes.try_send(shown(all)) && !notes.try_send(shown(all)));
        assert!(!notes.try_send(Note::Read { node: NodeId(1), bytes: None }));
        assert!(!notes.try_send(Note::Damaged { buffer: 0, sample: SampleId(0) }));
        assert_eq!(notes.missed(), MissedNotes { reads: 1, openings: 2 });
        let made = Box::new(|_| ());
        let view = View::Epoch(7);
        notes.send(Note::Make { buffer: 0, view, made }).unwrap();
        notes.send(Note::Began { epoch: 8 }).unwrap();
        // Notes keep their order, and each that was taken makes room.
        for expected in 0..3 {
            let note = receiver.next(Duration::ZERO).unwrap();
            assert!(matches!(note, Note::Shown { sample, .. } if sample.0 == expected));
        }
        assert!(notes.try_send(shown(all)) && !notes.try_send(shown(all)));
        let rest: Vec<Note> = receiver.waiting(usize::MAX).skip(NOTES_MAX - 3).collect();
        assert!(matches!(rest[0], Note::Make { view: View::Epoch(7), .. }));
        assert!(matches!(rest[1], Note::Began { epoch: 8 }));
        assert!(matches!(rest[2], Note::Shown { sample, .. } if sample.0 == all));
        assert_eq!(rest.len(), 3);
        assert!((0..all).all(|sample| notes.try_send(shown(sample))), "all was taken");
        drop(receiver);
        notes.send(Note::Wake).unwrap_err();
    }
}
