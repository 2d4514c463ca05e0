//! The segments of a store: where there is room, and what each still holds.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::Result;
use std::sync::Arc;

use super::disk::{Blob, Disk, Use};
use super::log::{Entries, Location, Log};
use super::pages;
use crate::ids::PAGE_BYTES;

/// The open file of each segment.
pub(super) type Files = HashMap<u32, Arc<dyn Blob>>;

/// Room for a batch.
pub(super) struct Room {
    pub(super) segment: u32,
    pub(super) offset: u64,
    pub(super) file: Arc<dyn Blob>,
    /// The segment, where it is a new one.
    pub(super) begun: Option<(u32, Arc<dyn Blob>)>,
}

/// Bytes of a segment.
pub(super) struct Range {
    pub(super) segment: u32,
    pub(super) offset: u64,
    pub(super) length: u64,
}

struct Current {
    id: u32,
    file: Arc<dyn Blob>,
    end: u64,
}

/// What the segments hold.
pub(super) struct Segments {
    /// Bytes of samples in each.
    live: BTreeMap<u32, u64>,
    current: Option<Current>,
    /// Number of the next one; none is used twice.
    next: u32,
    unsynced: BTreeMap<u32, Arc<dyn Blob>>,
}

pub(super) fn name(id: u32) -> String {
    format!("segment-{id:08}")
}

fn id_of(name: &str) -> Option<u32> {
    name.strip_prefix("segment-")?.parse().ok()
}

impl Segments {
    /// The segments that are there. Entries that lead to none of them are taken out.
    pub(super) fn open(
        disk: &dyn Disk,
        names: &[(String, u64)],
        entries: &mut Entries,
    ) -> (Self, Files) {
        let ids = names.iter().filter_map(|(name, length)| Some((id_of(name)?, *length)));
        let lengths: BTreeMap<u32, u64> = ids.collect();
        let mut files: Files = lengths
            .keys()
            .filter_map(|id| Some((*id, disk.open(&name(*id), Use::Pages).ok()?)))
            .collect();
        let mut next = lengths.keys().last().map_or(1, |id| id.saturating_add(1));
        let mut live: BTreeMap<u32, u64> = lengths.keys().map(|id| (*id, 0)).collect();
        let mut last = (0, 0);
        entries.retain(|_, at| {
            next = next.max(at.segment.saturating_add(1));
            if last.0 != at.segment {
                let there = lengths.get(&at.segment).filter(|_| files.contains_key(&at.segment));
                last = (at.segment, there.copied().unwrap_or(0));
            }
            u64::from(at.page) * PAGE_BYTES + pages(at.length) <= last.1
        });
        for at in entries.values() {
            *live.entry(at.segment).or_default() += pages(at.length).max(1);
        }
        files.retain(|id, _| live.get(id).is_some_and(|bytes| *bytes > 0));
        (Segments { live, current: None, next, unsynced: BTreeMap::new() }, files)
    }

    /// Room for so many bytes in the newest segment, or in a new one where that is full.
    pub(super) fn room(&mut self, disk: &dyn Disk, bytes: u64, limit: u64) -> Result<Room> {
        let fits = |current: &Current| current.end == 0 || current.end + bytes <= limit;
        let mut begun = None;
        if !self.current.as_ref().is_some_and(fits) {
            let id = self.next;
            let file = disk.create(&name(id), Use::Pages)?;
            disk.sync_names()?;
            self.next = id.saturating_add(1);
            self.live.insert(id, 0);
            begun = Some((id, Arc::clone(&file)));
            self.current = Some(Current { id, file, end: 0 });
        }
        let current = self.current.as_mut().ok_or_else(|| std::io::Error::other("no segment"))?;
        let offset = current.end;
        current.end += bytes;
        Ok(Room { segment: current.id, offset, file: Arc::clone(&current.file), begun })
    }

    /// Samples were written to the newest segment.
    pub(super) fn add<'a>(&mut self, places: impl Iterator<Item = &'a Location>) {
        let Some(current) = &self.current else { return };
        let bytes: u64 = places.map(|at| pages(at.length).max(1)).sum();
        *self.live.entry(current.id).or_default() += bytes;
        self.unsynced.insert(current.id, Arc::clone(&current.file));
    }

    /// Samples are given up. The ranges that are to be punched: none of segments that go anyway.
    pub(super) fn take(&mut self, mut places: Vec<Location>) -> Vec<Range> {
        for at in &places {
            if let Some(live) = self.live.get_mut(&at.segment) {
                *live = live.saturating_sub(pages(at.length).max(1));
            }
        }
        let current = self.current.as_ref().map(|current| current.id);
        let goes =
            |at: &Location| self.live.get(&at.segment) == Some(&0) && Some(at.segment) != current;
        places.retain(|at| at.length > 0 && !goes(at));
        places.sort_unstable_by_key(|at| (at.segment, at.page));
        let mut ranges: Vec<Range> = Vec::new();
        for at in places {
            let (offset, length) = (u64::from(at.page) * PAGE_BYTES, pages(at.length));
            match ranges.last_mut() {
                Some(last) if last.segment == at.segment && last.offset + last.length == offset => {
                    last.length += length;
                }
                _ => ranges.push(Range { segment: at.segment, offset, length }),
            }
        }
        ranges
    }

    /// Forgets the segments without samples, but for the newest; these can be deleted.
    pub(super) fn empty(&mut self) -> Vec<u32> {
        let current = self.current.as_ref().map(|current| current.id);
        let empty: BTreeSet<u32> = self
            .live
            .iter()
            .filter(|(id, live)| **live == 0 && Some(**id) != current)
            .map(|(id, _)| *id)
            .collect();
        self.live.retain(|id, _| !empty.contains(id));
        self.unsynced.retain(|id, _| !empty.contains(id));
        empty.into_iter().collect()
    }

    /// The segment that holds least, where there are more than `most`.
    pub(super) fn emptiest(&self, most: usize) -> Option<u32> {
        if self.live.len() <= most {
            return None;
        }
        let current = self.current.as_ref().map(|current| current.id);
        let others = self.live.iter().filter(|(id, _)| Some(**id) != current);
        others.min_by_key(|(_, live)| **live).map(|(id, _)| *id)
    }

    /// Makes the samples last, and then their records.
    pub(super) fn sync(&mut self, log: &Log) -> Result<()> {
        while let Some((id, file)) = self.unsynced.first_key_value() {
            file.sync()?;
            let id = *id;
            self.unsynced.remove(&id);
        }
        log.sync()
    }
}
