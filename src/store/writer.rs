//! Writes samples and their records, one thread at a time.

use std::io::{Error, Result};
use std::sync::Arc;

use super::index::Index;
use super::log::{Entries, Location, Log, Record};
use super::segments::{Extent, Request, Segments, pages_of};
use super::{Key, LargeBlock, checksum};
use crate::disk::{Buffer, Disk};
use crate::sync::RwLock;

const WRITES_AT_ONCE: usize = 8;

/// A sample to store: a block of a file. Most files are one block.
#[derive(Clone, Copy)]
pub struct Sample<'a> {
    pub key: Key,
    pub bytes: &'a [u8],
    /// If it is of a large file, its place there.
    pub large: Option<LargeBlock>,
}

/// Writes samples with adjacent places.
fn write_run(segments: &Segments, run: &[(&Extent, &[u8])]) -> Result<()> {
    let Some((first, _)) = run.first() else { return Ok(()) };
    let no_file = || Error::other("a segment is missing");
    let file = segments.file(first.segment).ok_or_else(no_file)?;
    let total: u64 = run.iter().map(|(place, _)| place.bytes()).sum();
    let mut pages = Buffer::pages(total as usize);
    for (place, bytes) in run {
        let at = (place.offset() - first.offset()) as usize;
        pages.pages_mut()[at..at + bytes.len()].copy_from_slice(bytes);
    }
    file.write_at(pages.pages_mut(), first.offset())
}

/// The state that only the writing thread needs.
pub(super) struct Writer {
    disk: Arc<dyn Disk>,
    pub(super) log: Log,
    pub(super) segments: Segments,
    /// Entries of segments that could not be opened. They may be readable at the next open, so each new
    /// index must contain them.
    pub(super) closed: Entries,
    /// Bytes written since the last sync.
    pub(super) unsynced: u64,
    /// The index is rewritten if it has this many more dead records than live ones: the configured number,
    /// and the present one.
    dead_records_max: u64,
    dead_records: u64,
}

impl Writer {
    pub(super) fn new(
        disk: &Arc<dyn Disk>,
        log: Log,
        segments: Segments,
        closed: Entries,
        dead_records_max: u64,
    ) -> Self {
        let (disk, dead_records) = (Arc::clone(disk), dead_records_max);
        Writer { disk, log, segments, closed, unsynced: 0, dead_records_max, dead_records }
    }

    /// Writes samples and their records beside `used` of `budget` bytes, and adds them to the index.
    /// Returns the bytes that they take.
    pub(super) fn append(
        &mut self,
        known: &RwLock<Index>,
        samples: &[Sample<'_>],
        (used, budget): (u64, u64),
    ) -> Result<u64> {
        let request = |Sample { bytes, large, .. }: &Sample<'_>| Request {
            pages: pages_of(bytes.len() as u32),
            large: *large,
        };
        let requests: Vec<Request> = samples.iter().map(request).collect();
        let places = self.segments.place(&requests, used, budget)?;
        let bytes = places.iter().map(Extent::bytes).sum();
        let written = self.write_samples(known, samples, &places);
        let recorded = written.and_then(|records| {
            self.log.append(records.iter().map(|(key, at)| Record::Stored(*key, *at)))?;
            Ok(records)
        });
        match recorded {
            Ok(records) => {
                // A sample that is stored again has its new place.
                records.iter().for_each(|(key, _)| _ = self.closed.remove(key));
                known.write().entries.extend(records);
                self.unsynced += bytes;
                Ok(bytes)
            }
            Err(error) => {
                self.segments.free(&places);
                self.delete_empty(known);
                Err(error)
            }
        }
    }

    /// Writes samples to their places, adjacent ones with one call.
    fn write_samples(
        &self,
        known: &RwLock<Index>,
        samples: &[Sample<'_>],
        places: &[Extent],
    ) -> Result<Vec<(Key, Location)>> {
        let mut records = Vec::with_capacity(samples.len());
        let mut batch: Vec<(&Extent, &[u8])> = Vec::with_capacity(samples.len());
        for (place, Sample { key, bytes, .. }) in places.iter().zip(samples) {
            let (length, checksum) = (bytes.len() as u32, checksum(*key, bytes));
            let Extent { segment, page, .. } = *place;
            records.push((*key, Location { segment, page, length, checksum }));
            batch.push((place, bytes));
        }
        batch.sort_unstable_by_key(|(place, _)| **place);
        let follows = |a: &(&Extent, &[u8]), b: &(&Extent, &[u8])| {
            (a.0.segment, a.0.page + a.0.pages) == (b.0.segment, b.0.page)
        };
        let runs: Vec<&[(&Extent, &[u8])]> = batch.chunk_by(follows).collect();
        for (Extent { segment, .. }, _) in runs.iter().filter_map(|run| run.first()) {
            if !known.read().files.contains_key(segment)
                && let Some(file) = self.segments.file(*segment)
            {
                known.write().files.insert(*segment, Arc::clone(file));
            }
        }
        // Runs are written in parallel: disks handle several writes at once.
        let share = runs.len().div_ceil(WRITES_AT_ONCE).max(1);
        let write = |runs: &[&[(&Extent, &[u8])]]| {
            runs.iter().try_for_each(|run| write_run(&self.segments, run))
        };
        std::thread::scope(|scope| {
            let mut shares = runs.chunks(share);
            let own = shares.next().unwrap_or_default();
            let others: Vec<_> = shares
                .map(|share| {
                    let thread = std::thread::Builder::new();
                    thread.spawn_scoped(scope, move || write(share)).map_err(|_| share)
                })
                .collect();
            let panicked = || Err(Error::other("a write panicked"));
            let written = write(own);
            let joined = others.into_iter().map(|other| match other {
                Ok(thread) => thread.join().unwrap_or_else(|_| panicked()),
                // No thread could be started.
                Err(share) => write(share),
            });
            joined.fold(written, Result::and)
        })?;
        Ok(records)
    }

    /// Records that samples are removed, and frees their places.
    pub(super) fn remove(&mut self, removed: &[(Key, Location)]) -> Result<()> {
        let places: Vec<Extent> = removed.iter().map(|(_, at)| Extent::of(at)).collect();
        let recorded = self.log.append(removed.iter().map(|(key, _)| Record::Removed(*key)));
        match &recorded {
            Ok(()) => self.segments.free(&places),
            // The places are not reused until the next open, but a full disk gets the space back.
            Err(_) => self.segments.punch(&places),
        }
        recorded
    }

    /// Gives idle space beyond `idle` bytes back to the disk.
    pub(super) fn shrink(&mut self, idle: u64, known: &RwLock<Index>) {
        self.segments.shrink(idle);
        self.delete_empty(known);
    }

    /// Deletes files in which nothing was found at open, and punches what a crash has left in others.
    pub(super) fn clear_leftovers(&mut self, known: &RwLock<Index>) {
        self.segments.clear_gaps();
        self.delete_empty(known);
    }

    fn delete_empty(&mut self, known: &RwLock<Index>) {
        for (id, name) in self.segments.take_empty() {
            known.write().files.remove(&id);
            if let Err(error) = self.disk.remove(&name) {
                tracing::debug!(%error, name, "an empty file stays until the next mount");
            }
        }
    }

    /// Rewrites the index if it has too many dead records.
    pub(super) fn rewrite_if_mostly_dead(&mut self, known: &RwLock<Index>) -> Result<()> {
        let live = (known.read().entries.len() + self.closed.len()) as u64;
        if self.log.records <= 2 * live + self.dead_records {
            return Ok(());
        }
        self.dead_records = self.dead_records_max;
        // After a failure, it is not tried again with each sample.
        self.rewrite(known).inspect_err(|_| self.dead_records = self.log.records)
    }

    /// Writes the index without its dead records.
    pub(super) fn rewrite(&mut self, known: &RwLock<Index>) -> Result<()> {
        let index = known.read();
        let entries = self.closed.iter().chain(&index.entries).map(|(key, at)| (*key, *at));
        self.log.rewrite(&*self.disk, entries)
    }

    /// Makes all that was written durable.
    pub(super) fn sync(&mut self) -> Result<()> {
        self.unsynced = 0;
        self.segments.sync(&self.log)
    }
}
