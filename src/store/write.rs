//! Writing samples and their records.

use std::collections::HashSet;
use std::io::{Error, Result};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::log::{Location, Record};
use super::segments::{Extent, Segments, Wanted, pages_of};
use super::{Key, Part, Store, Writer, checksum, stored};
use crate::disk::Buffer;

/// Places that are written to at once.
const WRITES_AT_ONCE: usize = 8;

/// Bytes after which what was written is synced, however soon.
const SYNC_BYTES: u64 = 256 << 20;

/// What is to be stored: a block of a file, which for most files is all of it.
#[derive(Clone, Copy)]
pub struct Sample<'a> {
    /// Names it.
    pub key: Key,
    /// Its bytes.
    pub bytes: &'a [u8],
    /// Of a large file, which part it is.
    pub part: Option<Part>,
}

/// Writes samples that lie one after the other.
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

impl Store {
    /// Stores samples, all of them or none; says whether. They should be a few megabytes together.
    /// What is there already stays as it is. Blocks.
    pub fn put(&self, samples: &[(Key, &[u8])]) -> bool {
        let sample = |&(key, bytes): &(Key, _)| Sample { key, bytes, part: None };
        self.put_all(&samples.iter().map(sample).collect::<Vec<_>>())
    }

    /// As [`put`](Self::put), for samples some of which may be blocks of large files.
    pub fn put_all(&self, samples: &[Sample<'_>]) -> bool {
        let samples: Vec<Sample<'_>> = {
            let index = self.read();
            let mut seen = HashSet::with_capacity(samples.len());
            let mut new = |key: Key| seen.insert(key) && !index.entries.contains_key(&key);
            samples.iter().filter(|sample| new(sample.key)).copied().collect()
        };
        if samples.is_empty() {
            return true;
        }
        let bytes: u64 = samples.iter().map(|sample| stored(sample.bytes.len())).sum();
        let fits = self.used().saturating_add(bytes) <= self.budget();
        // One who may try a disk that is down does try it.
        let may = fits && !self.reads_hang() && self.health.has_room(&*self.disk, bytes);
        if !may || !self.claim_try() {
            return false;
        }
        let mut writer = self.writer();
        match self.append(&mut writer, &samples) {
            Ok(()) => self.health.stored(),
            Err(error) => {
                self.health.bad(&error);
                return false;
            }
        }
        writer.unsynced += bytes;
        if writer.unsynced >= SYNC_BYTES {
            // Where that fails, what is stored is there all the same; only a crash may lose it.
            let _ = self.sync_all(&mut writer);
        }
        self.tidy(&mut writer);
        true
    }

    /// Writes samples and their records, and makes them known.
    fn append(&self, writer: &mut Writer, samples: &[Sample<'_>]) -> Result<()> {
        let wanted = |Sample { bytes, part, .. }: &Sample<'_>| Wanted {
            pages: pages_of(bytes.len() as u32),
            part: *part,
        };
        let wanted: Vec<Wanted> = samples.iter().map(wanted).collect();
        let places = writer.segments.place(&wanted, self.used(), self.budget())?;
        let written = self.write_samples(writer, samples, &places);
        let recorded = written.and_then(|records| {
            writer.log.append(records.iter().map(|(key, at)| Record::Stored(*key, *at)))?;
            Ok(records)
        });
        match recorded {
            Ok(records) => {
                self.used.fetch_add(places.iter().map(Extent::bytes).sum(), Ordering::Relaxed);
                // What comes again is where it is now.
                records.iter().for_each(|(key, _)| _ = writer.closed.remove(key));
                self.write().entries.extend(records);
                Ok(())
            }
            Err(error) => {
                writer.segments.free(&places);
                self.delete_empty(writer);
                Err(error)
            }
        }
    }

    /// Writes samples to their places, neighbours at once.
    fn write_samples(
        &self,
        writer: &Writer,
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
            if !self.read().files.contains_key(segment)
                && let Some(file) = writer.segments.file(*segment)
            {
                self.write().files.insert(*segment, Arc::clone(file));
            }
        }
        // Far from each other they are not written one after the other: disks do several at once.
        let share = runs.len().div_ceil(WRITES_AT_ONCE).max(1);
        let write = |runs: &[&[(&Extent, &[u8])]]| {
            runs.iter().try_for_each(|run| write_run(&writer.segments, run))
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
                // No thread was to be had.
                Err(share) => write(share),
            });
            joined.fold(written, Result::and)
        })?;
        Ok(records)
    }
}
