//! Brings blocks that lie one after the other in a file with one request to the source.
//!
//! 1. Each block gets a flight of its own. A block that is on its way already is left out, and so the others may be
//!    several runs.
//! 2. The memory of a run is charged at once. It is charged until the bytes of its last block are let go of.
//! 3. The bytes are given to the flights. If the source does not give them, the blocks that readers wait for are
//!    asked for by themselves. The planner hears that the others have failed.

use std::ops::RangeInclusive;
use std::sync::Arc;

use super::attempts::Attempt;
use super::flights::FlightKey;
use super::on_drop::FailOnDrop;
use super::{Cache, Charge, ReadFailure};
use crate::catalog::Located;
use crate::disk::Buffer;
use crate::plan::Place;
use crate::source::{ReadError, ReadRequest, Urgency};

/// Attempts for blocks of one version of a file, one after the other.
#[derive(Default)]
pub(super) struct Run(Vec<Attempt>);

impl Run {
    /// Adds an attempt. If it does not follow those before it, they are begun, and it is the first of another run.
    pub(super) fn add(&mut self, attempt: Attempt, cache: &Arc<Cache>) {
        if !self.is_followed_by(&attempt) {
            std::mem::take(self).begin(cache);
        }
        self.0.push(attempt);
    }

    fn is_followed_by(&self, attempt: &Attempt) -> bool {
        let (next, is_sized) = (&attempt.located, attempt.located.is_sized);
        self.0.last().is_none_or(|Attempt { located, .. }| {
            let end = located.offset + located.length as u64;
            located.node == next.node && (located.offset..=end).contains(&next.offset) && is_sized
        })
    }

    /// The offset of the run in its file, and its length in bytes.
    fn range(&self) -> (u64, usize) {
        let start = self.0.first().map_or(0, |first| first.located.offset);
        let end = |last: &Attempt| last.located.offset + last.located.length as u64;
        (start, self.0.last().map_or(0, |last| end(last) - start) as usize)
    }

    fn flights(&self) -> RangeInclusive<u64> {
        let number = |attempt: &Attempt| attempt.flight;
        let (first, last) = (self.0.first().map_or(0, number), self.0.last().map_or(0, number));
        first..=last
    }

    /// Has the memory charged, and then the source asked.
    pub(super) fn begin(mut self, cache: &Arc<Cache>) {
        if self.0.len() < 2 {
            return self.0.pop().into_iter().for_each(Attempt::begin);
        }
        let failing: Vec<_> = self.0.iter().map(|it| FailOnDrop::new(cache, it.key)).collect();
        let ((_, bytes), flights) = (self.range(), self.flights());
        let keys: Vec<_> = self.0.iter().map(|attempt| (attempt.key, attempt.flight)).collect();
        let (asking, first) = (Arc::clone(cache), *flights.start());
        let begun = cache.memory.admit(flights, Urgency::Prefetch, bytes, move |charge| {
            self.ask_source(&asking, failing, charge);
        });
        // A reader that joined a flight before the run came to wait could not promote it.
        let has_readers = |(key, flight): &(FlightKey, u64)| {
            cache.flights.with(key, *flight, |it| !it.waiters.is_empty()) == Some(true)
        };
        if !begun && keys.iter().any(has_readers) {
            cache.memory.promote(first);
        }
    }

    fn ask_source(self, cache: &Arc<Cache>, failing: Vec<FailOnDrop>, charge: Charge) {
        let Some(Located { path, fingerprint, .. }) = self.0.first().map(|it| it.located.clone())
        else {
            return;
        };
        let (offset, length) = self.range();
        // A reader of a block that comes late may have the source asked a second time, for that block alone.
        self.0.iter().for_each(|attempt| _ = attempt.note_asked());
        // The source may look right now, and take its time to deliver.
        let asked = cache.catalog.now();
        let request = ReadRequest {
            path,
            fingerprint,
            is_sized: true,
            exact: cache.catalog.is_revalidated(),
            offset,
            length,
            urgency: Urgency::Prefetch,
            deliver: Box::new(move |result| {
                let _failing: Vec<_> = failing.into_iter().map(FailOnDrop::taken).collect();
                self.0.iter().for_each(Attempt::count_answer);
                match result {
                    Ok(bytes) => self.arrived(&bytes, charge, asked),
                    Err(error) => {
                        drop(charge);
                        self.failed(error);
                    }
                }
            }),
        };
        cache.source.read(vec![request]);
    }

    /// The source has not given the bytes of the run. A source that is asked too much is not asked for all of them
    /// again.
    fn failed(self, error: ReadError) {
        let (why, mut asks_in_any_case) = match error {
            ReadError::Source(errno) => (ReadFailure::Errno(errno), false),
            // The first request has the catalog look at the file again.
            ReadError::Changed => (ReadFailure::PastVersion, true),
        };
        for attempt in self.0 {
            let is_asked = std::mem::take(&mut asks_in_any_case);
            if is_asked || !attempt.end_unread(why) {
                attempt.ask_source();
            }
        }
    }

    /// The source has answered a read that began at the tick `asked`.
    fn arrived(self, bytes: &[u8], charge: Charge, asked: u32) {
        let (offset, charge) = (self.range().0, Arc::new(charge.fetched()));
        for attempt in self.0 {
            let start = (attempt.located.offset - offset) as usize;
            match bytes.get(start..start + attempt.located.length) {
                Some(own) => {
                    let own = Buffer::from(own.to_vec()).holding(Arc::clone(&charge));
                    attempt.arrived(own, Place::Source, Some(asked));
                }
                None => attempt.ask_source(),
            }
        }
    }
}
