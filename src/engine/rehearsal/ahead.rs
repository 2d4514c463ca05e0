//! Samples that slots and streams show next, read ahead of their opens.
//!
//! The planner hears which they are, and says when each is to be read: its bytes are compared with
//! their checksum and left in the page cache, where its reader finds them.

use std::collections::HashMap;
use std::io::ErrorKind;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;

use super::Note;
use crate::cache::Inbox;
use crate::engine::lock;
use crate::fs::views::{Sample, Upcoming};
use crate::plan::{Draw, Drawn, Event};
use crate::source::{Pool, Urgency};
use crate::sync::Mutex;

/// Threads that read.
const READERS: usize = 2;

/// What comes next of those who show samples: the buffer's place, and its samples.
type Next = HashMap<u64, (usize, Vec<Arc<Sample>>)>;

/// Reads ahead what the planner says.
pub(super) struct Ahead {
    inbox: Arc<Inbox>,
    notes: SyncSender<Note>,
    next: Mutex<Next>,
    readers: Pool,
}

impl Ahead {
    pub(super) fn new(inbox: &Arc<Inbox>, notes: &SyncSender<Note>) -> Arc<Self> {
        let (inbox, notes) = (Arc::clone(inbox), notes.clone());
        let readers = Pool::new("belady-draws", READERS, 0);
        Arc::new(Ahead { inbox, notes, next: Mutex::default(), readers })
    }

    /// Tells the planner what comes next. Never waits.
    pub(super) fn drawn(&self, upcoming: Upcoming) {
        let Upcoming { by, buffer, opened, next } = upcoming;
        let draw = |sample| Draw { buffer, sample };
        let listed = next.iter().map(|of| (draw(of.id), u64::from(of.pinned.length()))).collect();
        let before = match next.is_empty() {
            true => lock(&self.next).remove(&by),
            false => lock(&self.next).insert(by, (buffer, next)),
        };
        // The last one to know a sample may close its journal.
        drop(before);
        let drawn = Box::new(Drawn { by, opened: opened.map(draw), next: listed });
        self.inbox.put(Event::Drawn { drawn }, None);
    }

    /// A sample that comes next.
    fn sample(&self, draw: Draw) -> Option<Arc<Sample>> {
        let next = lock(&self.next);
        let lists = next.values().filter(|(buffer, _)| *buffer == draw.buffer);
        lists.flat_map(|(_, list)| list).find(|sample| sample.id == draw.sample).cloned()
    }

    /// Reads a sample, and says when that is done.
    pub(super) fn ready(&self, draw: Draw) {
        let (inbox, notes, sample) =
            (Arc::clone(&self.inbox), self.notes.clone(), self.sample(draw));
        self.readers.submit(Urgency::Prefetch, move || {
            let read = sample.map(|sample| sample.pinned.read());
            if let Some(Err(error)) = &read
                && error.kind() == ErrorKind::InvalidData
            {
                let Draw { buffer, sample } = draw;
                // Where there is no room for it, its reader says so.
                let _ = notes.try_send(Note::Damaged { buffer, sample });
            }
            let done = matches!(read, Some(Ok(_)));
            inbox.put(Event::Readied { draw, done }, None);
        });
    }
}
