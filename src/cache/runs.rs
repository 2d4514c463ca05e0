//! Brings blocks that lie one after the other with one request to the source: blocks of a file, and files that lie one
//! behind the other in an archive.
//!
//! 1. Each block gets a flight of its own. A block that is on its way already is left out, and so the others may be
//!    several runs.
//! 2. The memory of a run is charged at once. It is charged until the bytes of its last block are let go of.
//! 3. The source is asked for the blocks of all files at once. It joins files that lie one behind the other. The next
//!    bytes do not wait until those before them are pushed.
//! 4. The bytes are given to the flights. If the source does not give them, the blocks that readers wait for are
//!    asked for by themselves. The planner hears that the others have failed.

use std::ffi::OsStr;
use std::ops::RangeInclusive;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::attempts::Attempt;
use super::flights::FlightKey;
use super::on_drop::FailOnDrop;
use super::{Cache, Charge, ReadFailure};
use crate::disk::Buffer;
use crate::ids::PAGE_BYTES;
use crate::plan::Place;
use crate::source::{ReadError, ReadRequest, Urgency};

/// Attempts for blocks of one version of each file, one after the other.
#[derive(Default)]
pub(super) struct Run(Vec<Attempt>);

impl Run {
    /// Adds an attempt. If it does not follow those before it, they are begun, and it is the first of another run.
    pub(super) fn add(&mut self, attempt: Attempt, cache: &Arc<Cache>) {
        let is_stored = cache.store_tier.as_ref().is_some_and(|tier| tier.holds(&attempt.located));
        if is_stored || !self.0.last().is_none_or(|last| is_followed_by(last, &attempt, cache)) {
            std::mem::take(self).begin(cache);
        }
        if is_stored {
            // The planner does not know it yet.
            return attempt.begin();
        }
        self.0.push(attempt);
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
        let flights = self.flights();
        let keys: Vec<_> = self.0.iter().map(|attempt| (attempt.key, attempt.flight)).collect();
        let (asking, first) = (Arc::clone(cache), *flights.start());
        let failing = |mut attempt: Attempt| {
            attempt.is_of_run = true;
            Held { failing: FailOnDrop::new(cache, attempt.key), attempt }
        };
        let pieces = pieces(self.0.into_iter().map(failing));
        // The source also reads the bytes between two files.
        let with_gap = |piece: &Piece| piece.range().1.next_multiple_of(PAGE_BYTES as usize);
        let bytes = pieces.iter().map(with_gap).sum();
        let begun = cache.memory.admit(flights, Urgency::Prefetch, bytes, move |charge| {
            ask_source(pieces, &asking, charge);
        });
        // A reader that joined a flight before the run came to wait could not promote it.
        let has_readers = |(key, flight): &(FlightKey, u64)| {
            cache.flights.with(key, *flight, |it| !it.waiters.is_empty()) == Some(true)
        };
        if !begun && keys.iter().any(has_readers) {
            cache.memory.promote(first);
        }
    }
}

/// Whether the block of an attempt lies behind that of another one: in the same file, or as the start of the next file.
fn is_followed_by(before: &Attempt, next: &Attempt, cache: &Cache) -> bool {
    if next.key.block.0 != before.key.block.0 + 1 {
        return false;
    }
    let (before, next) = (&before.located, &next.located);
    let end = before.offset + before.length as u64;
    let follows = match before.node == next.node {
        true => (before.offset..=end).contains(&next.offset),
        // The planner may know an earlier version of an archive.
        false => {
            next.offset == 0
                && end == before.fingerprint.size()
                && lies_behind(&before.path, &next.path, cache)
        }
    };
    follows && before.is_sized && next.is_sized
}

/// Whether the source has a file right behind another one.
fn lies_behind(before: &Path, next: &Path, cache: &Cache) -> bool {
    let (Some(directory), Some(names)) = (next.parent(), before.file_name().zip(next.file_name()))
    else {
        return false;
    };
    let names = [names.0, names.1].map(OsStr::to_owned);
    let found = cache.source.lie_behind(directory, &names);
    before.parent() == Some(directory) && found.is_some_and(|behind| behind.last() == Some(&true))
}

/// An attempt that fails if nothing comes of it.
struct Held {
    attempt: Attempt,
    failing: FailOnDrop,
}

/// The blocks of a run that are of one file.
struct Piece {
    blocks: Vec<Held>,
    /// Whether a block of the run is asked for again, because its file has changed.
    looks_again: Arc<AtomicBool>,
}

/// The pieces of a run.
fn pieces(run: impl Iterator<Item = Held>) -> Vec<Piece> {
    let (mut pieces, looks_again): (Vec<Piece>, _) = (Vec::new(), Arc::<AtomicBool>::default());
    for held in run {
        let node = held.attempt.located.node;
        match pieces.last_mut() {
            Some(piece)
                if piece.blocks.last().is_some_and(|it| it.attempt.located.node == node) =>
            {
                piece.blocks.push(held);
            }
            _ => {
                pieces.push(Piece { blocks: vec![held], looks_again: Arc::clone(&looks_again) });
            }
        }
    }
    pieces
}

/// Asks for all pieces of a run at once.
fn ask_source(pieces: Vec<Piece>, cache: &Arc<Cache>, charge: Charge) {
    let charge = Arc::new(charge);
    // The source may look right now, and take its time to deliver.
    let asked = cache.catalog.now();
    let is_exact = cache.catalog.is_revalidated();
    let requests = pieces.into_iter();
    let requests = requests.filter_map(|piece| piece.request(is_exact, asked, &charge)).collect();
    drop(charge);
    cache.source.read(requests);
}

impl Piece {
    /// Its offset in the file, and its length in bytes.
    fn range(&self) -> (u64, usize) {
        let start = self.blocks.first().map_or(0, |first| first.attempt.located.offset);
        let end = |last: &Held| last.attempt.located.offset + last.attempt.located.length as u64;
        (start, self.blocks.last().map_or(0, |last| end(last) - start) as usize)
    }

    fn request(self, exact: bool, asked: u32, charge: &Arc<Charge>) -> Option<ReadRequest> {
        let located = &self.blocks.first()?.attempt.located;
        let (path, fingerprint) = (Arc::clone(&located.path), located.fingerprint);
        let ((offset, length), charge) = (self.range(), Arc::clone(charge));
        // A reader of a block that comes late may have the source asked a second time, for that block alone.
        self.blocks.iter().for_each(|held| _ = held.attempt.note_asked());
        let deliver = move |result| {
            let taken = |held: Held| (held.attempt, held.failing.taken());
            let (attempts, _failing): (Vec<_>, Vec<_>) = self.blocks.into_iter().map(taken).unzip();
            attempts.iter().for_each(Attempt::count_answer);
            match result {
                Ok(bytes) => arrived(attempts, offset, bytes, charge, asked),
                Err(error) => {
                    drop(charge);
                    failed(attempts, error, &self.looks_again);
                }
            }
        };
        let (urgency, is_sized, deliver) = (Urgency::Prefetch, true, Box::new(deliver));
        Some(ReadRequest { path, fingerprint, is_sized, exact, offset, length, urgency, deliver })
    }
}

/// The source has not given the bytes of a piece. A source that is asked too much is not asked for all of them again.
fn failed(attempts: Vec<Attempt>, error: ReadError, looks_again: &AtomicBool) {
    let (why, mut asks_in_any_case) = match error {
        ReadError::Source(errno) => (ReadFailure::Errno(errno), false),
        // The first request has the catalog look at its file again. All files of an archive change at once: the others
        // are looked at when they are read.
        ReadError::Changed => {
            (ReadFailure::PastVersion, !looks_again.swap(true, Ordering::Relaxed))
        }
    };
    for attempt in attempts {
        let is_asked = std::mem::take(&mut asks_in_any_case);
        if is_asked || !attempt.end_unread(why) {
            attempt.ask_source();
        }
    }
}

/// The source has answered a read of a piece that begins at `offset`. It was asked at the tick `asked`.
fn arrived(
    mut attempts: Vec<Attempt>,
    offset: u64,
    bytes: Vec<u8>,
    charge: Arc<Charge>,
    asked: u32,
) {
    charge.note_fetched();
    if attempts.len() == 1
        && let Some(attempt) = attempts.pop()
    {
        return attempt.arrived(Buffer::from(bytes).holding(charge), Place::Source, Some(asked));
    }
    for attempt in attempts {
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
