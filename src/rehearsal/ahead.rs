//! Samples that slots and streams show next, read ahead of their opens.
//!
//! The planner hears which they are, and says when each is to be read: its bytes come into the page
//! cache, where its reader finds them and compares them with their checksum.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use crate::cache::Inbox;
use crate::plan::{Draw, Drawn, Event};
use crate::rehearsal::views::{Sample, Upcoming};
use crate::source::{Pool, Urgency};
use crate::sync::Mutex;

/// Threads that read.
const READERS: usize = 2;

/// What was told last.
#[derive(Default)]
struct Told {
    /// By who shows samples, the number of the last telling and what comes next.
    by: HashMap<u64, (u64, Vec<Draw>)>,
    samples: HashMap<Draw, Next>,
}

/// A sample that comes next.
struct Next {
    /// Of how many who show samples.
    of: usize,
    /// As long as they have it: they keep their journal's file.
    sample: Weak<Sample>,
}

impl Told {
    /// Takes what somebody shows next. Says whether it is news: another thread may have been faster
    /// with what came after.
    fn take(&mut self, by: u64, telling: u64, next: Vec<(Draw, Weak<Sample>)>) -> bool {
        let (last, before) = self.by.entry(by).or_default();
        if telling <= *last {
            return false;
        }
        *last = telling;
        let draws = next.iter().map(|(draw, _)| *draw).collect();
        let before = std::mem::replace(before, draws);
        for (draw, sample) in next {
            let of = self.samples.get(&draw).map_or(0, |next| next.of) + 1;
            self.samples.insert(draw, Next { of, sample });
        }
        for draw in before {
            if let Some(next) = self.samples.get_mut(&draw) {
                next.of -= 1;
                if next.of == 0 {
                    self.samples.remove(&draw);
                }
            }
        }
        true
    }
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
        let known = next.iter().map(|of| (draw(of.id), Arc::downgrade(of))).collect();
        let drawn = Box::new(Drawn { by, opened: opened.map(draw), next: listed });
        // The planner hears of them in their order, too.
        let mut told = self.told.lock();
        if told.take(by, telling, known) {
            self.inbox.put(Event::Drawn { drawn }, None);
        }
    }

    /// A sample that comes next.
    fn sample(&self, draw: Draw) -> Option<Arc<Sample>> {
        self.told.lock().samples.get(&draw)?.sample.upgrade()
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
    use crate::buffer::SampleId;

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

    #[test]
    fn a_sample_is_known_as_long_as_somebody_shows_it_next() {
        let mut told = Told::default();
        let draw = |sample| Draw { buffer: 0, sample: SampleId(sample) };
        let mut tell = |by, telling, samples: &[u32]| {
            let next = samples.iter().map(|sample| (draw(*sample), Weak::new())).collect();
            told.take(by, telling, next);
            let mut known: Vec<u32> = told.samples.keys().map(|of| of.sample.0).collect();
            known.sort_unstable();
            known
        };
        assert_eq!(tell(1, 1, &[4, 5, 4]), [4, 5]);
        assert_eq!(tell(2, 1, &[5, 6]), [4, 5, 6]);
        assert_eq!(tell(1, 2, &[4]), [4, 5, 6]);
        assert_eq!(tell(2, 2, &[]), [4]);
        assert_eq!(tell(1, 1, &[9]), [4], "it was overtaken");
        assert!(tell(1, 3, &[]).is_empty());
    }
}
