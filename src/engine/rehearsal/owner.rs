//! The thread that owns the buffers.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender};
use std::time::{Duration, Instant};

use super::Note;
use super::displays;
use super::held::{Held, Taken};
use super::offers::Waiting;
use crate::catalog::{Catalog, NodeId};
use crate::fs::views::{Access, Display, View, Views};
use crate::rehearsal::SampleId;
use crate::source::{Kind, ReadRequest, Urgency};

/// How often what was written is made to last, while anything is.
const SYNC_EVERY: Duration = Duration::from_secs(1);

/// Fetches from the source under way at once, for samples whose bytes were not at hand.
const FETCHES_MAX: usize = 4;

/// Notes that are taken before what came of them is written.
const BATCH: usize = 256;

/// A sample whose bytes are wanted.
struct Wanted {
    buffer: usize,
    sample: SampleId,
    node: NodeId,
}

/// Owner of the buffers.
pub(super) struct Owner {
    pub(super) held: Vec<Held>,
    pub(super) catalog: Arc<Catalog>,
    pub(super) views: Arc<Views>,
    /// Sleep sets that were made.
    pub(super) nights: u64,
    notes: SyncSender<Note>,
    wanted: VecDeque<Wanted>,
    fetching: usize,
}

impl Owner {
    pub(super) fn new(
        held: Vec<Held>,
        catalog: Arc<Catalog>,
        views: Arc<Views>,
        notes: SyncSender<Note>,
    ) -> Self {
        Owner { held, catalog, views, nights: 0, notes, wanted: VecDeque::new(), fetching: 0 }
    }

    /// Takes notes until `closed`.
    pub(super) fn run(mut self, notes: &Receiver<Note>, closed: &AtomicBool) {
        let mut due: Option<Instant> = None;
        while !closed.load(Ordering::Relaxed) {
            let patience = due.map_or(Duration::from_secs(3600), |due| {
                due.saturating_duration_since(Instant::now())
            });
            match notes.recv_timeout(patience) {
                Ok(note) => {
                    self.take(note);
                    notes.try_iter().take(BATCH).for_each(|note| self.take(note));
                    self.held.iter_mut().for_each(Held::write);
                    due.get_or_insert_with(|| Instant::now() + SYNC_EVERY);
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            if due.is_some_and(|due| due <= Instant::now()) {
                self.held.iter_mut().for_each(Held::sync);
                due = None;
            }
        }
        self.held.iter_mut().for_each(Held::sync);
    }

    fn take(&mut self, note: Note) {
        match note {
            Note::Read { node, bytes } => self.read(node, bytes.as_ref()),
            Note::Fetched { buffer, sample, bytes } => {
                self.fetching -= 1;
                if let Some(held) = self.held.get_mut(buffer) {
                    match bytes {
                        Some(bytes) => held.pin(sample, &bytes),
                        None => held.lose(sample),
                    }
                }
                self.fetch();
            }
            Note::Make { buffer, view, made } => made(self.display(buffer, view)),
            Note::Shown { buffer, sample } => {
                if let Some(held) = self.held.get_mut(buffer) {
                    held.shown(sample);
                }
            }
            Note::Scored { buffer, lines, done } => {
                let lines = String::from_utf8_lossy(&lines);
                done(self.score(buffer, &lines).map_or(0, |came| came.count));
            }
            // Who asked may be gone.
            Note::Asked { question, answer } => drop(answer.send(self.answer(question))),
            Note::Wake => {}
        }
        self.held.iter_mut().filter(|held| held.is_full()).for_each(Held::write);
    }

    /// What a view of a buffer shows from now on.
    fn display(&mut self, buffer: usize, view: View) -> Option<Display> {
        let held = self.held.get_mut(buffer)?;
        // What is shown is on the disk before.
        held.write();
        match view {
            View::Epoch(_) => Some(displays::all(held)),
            View::Mix(epoch) => Some(displays::mix(held, &self.catalog, epoch)),
            View::TaskMix => Some(displays::mix(held, &self.catalog, held.task.into())),
            // They are there from the beginning.
            View::Sleep(_) => None,
        }
    }

    /// A file was read: it is offered to each buffer.
    fn read(&mut self, node: NodeId, bytes: Option<&Waiting>) {
        let Ok(path) = self.catalog.path(node) else { return };
        for buffer in 0..self.held.len() {
            let bytes = bytes.map(|waiting| &**waiting.bytes);
            self.offer(buffer, &path, node, bytes, false);
        }
    }

    /// Offers a file to a buffer. Says whether it is kept; none where it is not to be offered.
    pub(super) fn offer(
        &mut self,
        buffer: usize,
        path: &Path,
        node: NodeId,
        bytes: Option<&[u8]>,
        named: bool,
    ) -> Option<bool> {
        let stat = self.catalog.getattr(node).ok()?.stat;
        if stat.kind != Kind::File {
            return None;
        }
        let access = Access { mode: stat.mode, uid: stat.uid, gid: stat.gid };
        let held = self.held.get_mut(buffer)?;
        match (held.offer(path, (stat.size, access), named), bytes) {
            (Taken::NotOffered, _) => None,
            (Taken::Passed, _) => Some(false),
            (Taken::Wanted(sample), Some(bytes)) => {
                held.pin(sample, bytes);
                Some(true)
            }
            (Taken::Wanted(sample), None) => {
                self.wanted.push_back(Wanted { buffer, sample, node });
                self.fetch();
                Some(true)
            }
        }
    }

    /// Begins further fetches of what is wanted.
    fn fetch(&mut self) {
        while self.fetching < FETCHES_MAX
            && let Some(Wanted { buffer, sample, node }) = self.wanted.pop_front()
        {
            let Some(held) = self.held.get_mut(buffer) else { continue };
            if held.buffer.get(sample).is_none() {
                continue;
            }
            let whole = self.catalog.path(node).and_then(|path| {
                Ok((
                    path,
                    self.catalog.getattr(node)?.stat.fingerprint(),
                    self.catalog.file(node)?.1,
                ))
            });
            let Ok((path, fingerprint, length)) = whole else {
                held.lose(sample);
                continue;
            };
            self.fetching += 1;
            let notes = self.notes.clone();
            let deliver = move |result: Result<Vec<u8>, _>| {
                // Waits where the owner is behind; it may have ended.
                drop(notes.send(Note::Fetched { buffer, sample, bytes: result.ok() }));
            };
            self.catalog.source().read(vec![ReadRequest {
                path: path.into(),
                fingerprint,
                offset: 0,
                length: length as usize,
                urgency: Urgency::Prefetch,
                deliver: Box::new(deliver),
            }]);
        }
    }
}
