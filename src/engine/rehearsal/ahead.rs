//! Samples that slots and streams show next, read ahead of their opens.
//!
//! The planner hears which they are, and says when each is to be read: its bytes come into the page
//! cache, where its reader finds them and compares them with their checksum.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use crate::cache::Inbox;
use crate::engine::lock;
use crate::fs::views::{Sample, Upcoming};
use crate::plan::{Draw, Drawn, Event};
use crate::rehearsal::SampleId;
use crate::source::{Pool, Urgency};
use crate::sync::Mutex;

/// Threads that read.
const READERS: usize = 2;

/// What comes next of those who show samples: the buffer's place, and its samples, as long as those who
/// show them have them: they keep their journal's file.
type Next = HashMap<u64, (usize, Vec<(SampleId, Weak<Sample>)>)>;

/// Reads ahead what the planner says.
pub(super) struct Ahead {
    inbox: Arc<Inbox>,
    next: Mutex<Next>,
    readers: Pool,
}

impl Ahead {
    pub(super) fn new(inbox: &Arc<Inbox>) -> Arc<Self> {
        let readers = Pool::new("belady-draws", READERS, 0);
        Arc::new(Ahead { inbox: Arc::clone(inbox), next: Mutex::default(), readers })
    }

    /// Tells the planner what comes next. Never waits.
    pub(super) fn drawn(&self, upcoming: Upcoming) {
        let Upcoming { by, buffer, opened, next } = upcoming;
        let draw = |sample| Draw { buffer, sample };
        let listed = next.iter().map(|of| (draw(of.id), u64::from(of.pinned.length()))).collect();
        let known: Vec<_> = next.iter().map(|of| (of.id, Arc::downgrade(of))).collect();
        match known.is_empty() {
            true => lock(&self.next).remove(&by),
            false => lock(&self.next).insert(by, (buffer, known)),
        };
        let drawn = Box::new(Drawn { by, opened: opened.map(draw), next: listed });
        self.inbox.put(Event::Drawn { drawn }, None);
    }

    /// A sample that comes next.
    fn sample(&self, draw: Draw) -> Option<Arc<Sample>> {
        let next = lock(&self.next);
        let lists = next.values().filter(|(buffer, _)| *buffer == draw.buffer);
        let mut listed = lists.flat_map(|(_, list)| list).filter(|(id, _)| *id == draw.sample);
        listed.find_map(|(_, sample)| sample.upgrade())
    }

    /// Reads a sample, and says when that is done.
    pub(super) fn ready(&self, draw: Draw) {
        let (inbox, sample) = (Arc::clone(&self.inbox), self.sample(draw));
        self.readers.submit(Urgency::Prefetch, move || {
            // Why it cannot be read is for its reader.
            let done = sample.is_some_and(|sample| sample.pinned.warm().is_ok());
            inbox.put(Event::Readied { draw, done }, None);
        });
    }
}
