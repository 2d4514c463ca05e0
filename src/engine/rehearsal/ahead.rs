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

/// What was told last.
#[derive(Default)]
struct Told {
    /// By who shows samples, the number of the last telling.
    tellings: HashMap<u64, u64>,
    next: Next,
}

/// Reads ahead what the planner says.
pub(super) struct Ahead {
    inbox: Arc<Inbox>,
    told: Mutex<Told>,
    readers: Pool,
}

impl Ahead {
    pub(super) fn new(inbox: &Arc<Inbox>) -> Arc<Self> {
        let readers = Pool::new("belady-draws", READERS, 0);
        Arc::new(Ahead { inbox: Arc::clone(inbox), told: Mutex::default(), readers })
    }

    /// Tells the planner what comes next. Never waits.
    pub(super) fn drawn(&self, upcoming: Upcoming) {
        let Upcoming { by, telling, buffer, opened, next } = upcoming;
        let draw = |sample| Draw { buffer, sample };
        let listed = next.iter().map(|of| (draw(of.id), u64::from(of.pinned.length()))).collect();
        let known: Vec<_> = next.iter().map(|of| (of.id, Arc::downgrade(of))).collect();
        let drawn = Box::new(Drawn { by, opened: opened.map(draw), next: listed });
        // The planner hears of them in their order, too.
        let mut told = lock(&self.told);
        let Told { tellings, next } = &mut *told;
        let last = tellings.entry(by).or_default();
        // Another thread may have been faster with what came after.
        if telling > *last {
            *last = telling;
            match known.is_empty() {
                true => next.remove(&by),
                false => next.insert(by, (buffer, known)),
            };
            self.inbox.put(Event::Drawn { drawn }, None);
        }
    }

    /// A sample that comes next.
    fn sample(&self, draw: Draw) -> Option<Arc<Sample>> {
        let told = lock(&self.told);
        let lists = told.next.values().filter(|(buffer, _)| *buffer == draw.buffer);
        let mut listed = lists.flat_map(|(_, list)| list).filter(|(id, _)| *id == draw.sample);
        listed.find_map(|(_, sample)| sample.upgrade())
    }

    /// Reads a sample, and says when that is done.
    pub(super) fn ready(&self, draw: Draw) {
        let (inbox, sample) = (Arc::clone(&self.inbox), self.sample(draw));
        self.readers.submit(Urgency::Prefetch, move || {
            // Why it cannot be read is for its reader.
            let done = sample.map(|sample| sample.pinned.warm().is_ok());
            inbox.put(Event::Readied { draw, done }, None);
        });
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn who_is_overtaken_is_not_heard() {
        let inbox = Arc::new(Inbox::new(1));
        let ahead = Ahead::new(&inbox);
        // By another one it is another count.
        for (by, telling) in [(1, 1), (1, 3), (1, 2), (2, 1), (1, u64::MAX), (1, 4)] {
            let opened = Some(SampleId(telling as u32));
            ahead.drawn(Upcoming { by, telling, buffer: 0, opened, next: Vec::new() });
        }
        let mut messages = Vec::new();
        inbox.take(&mut messages, &mut Vec::new(), Duration::ZERO);
        let heard = messages.iter().filter_map(|message| match &message.event {
            Event::Drawn { drawn } => Some((drawn.by, drawn.opened?.sample.0)),
            _ => None,
        });
        assert_eq!(heard.collect::<Vec<_>>(), [(1, 1), (1, 3), (2, 1), (1, u32::MAX)]);
    }
}
