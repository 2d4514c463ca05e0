//! The segments of a store, and the room in them.
//!
//! 1. Room consists of extents of whole pages without a sample. An *idle* extent has space on the disk. A
//!    *clean* extent has none: it was punched, or never written.
//! 2. While the budget has room, a batch goes to one clean extent. So filling a store writes each segment
//!    from start to end.
//! 3. After that, each sample goes to the idle extent that fits it best: overwriting costs a filesystem
//!    only the write. If none fits, idle extents are punched until the budget has room for a clean one.
//! 4. A segment without samples is deleted.
//!
//! Blocks of large files have places of their own (`large.rs`).

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::io::Result;
use std::sync::Arc;

use super::large::{self, LargeBlock, LargeFiles};
use super::log::{Entries, Key, Location, Log};
use super::passthrough::PassthroughFile;
use crate::disk::{Blob, Disk, Use};
use crate::ids::PAGE_BYTES;

/// The file of each segment and each large file, by number.
pub(super) type Files = HashMap<u32, Arc<dyn Blob>>;

/// Pages of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Extent {
    pub(super) segment: u32,
    pub(super) page: u32,
    pub(super) pages: u32,
}

impl Extent {
    /// The place of a sample. An empty sample takes a page, too, so that no other sample has the same
    /// place.
    pub(super) fn of(at: &Location) -> Self {
        Extent { segment: at.segment, page: at.page, pages: pages_of(at.length) }
    }

    pub(super) fn offset(&self) -> u64 {
        u64::from(self.page) * PAGE_BYTES
    }

    pub(super) fn bytes(&self) -> u64 {
        u64::from(self.pages) * PAGE_BYTES
    }

    fn end(&self) -> u32 {
        self.page.saturating_add(self.pages)
    }
}

/// From this number of segments, gaps are filled before a new segment is made: each is a descriptor.
const SEGMENTS_MAX: usize = 512;

/// The number of pages that a sample of this length takes.
pub(super) fn pages_of(length: u32) -> u32 {
    length.div_ceil(PAGE_BYTES as u32).max(1)
}

struct Segment {
    file: Arc<dyn Blob>,
    pages: u32,
    /// Pages without a sample.
    room: u32,
}

#[derive(Clone, Copy)]
pub(super) struct Request {
    pub(super) pages: u32,
    /// If it is of a large file, its place there.
    pub(super) large: Option<LargeBlock>,
}

/// The segments, and the room in them.
pub(super) struct Segments {
    disk: Arc<dyn Disk>,
    large: LargeFiles,
    segments: BTreeMap<u32, Segment>,
    /// By segment and first page: number of pages, and whether they are clean.
    room: BTreeMap<(u32, u32), (u32, bool)>,
    /// The same, sorted by kind and size.
    sizes: BTreeSet<(bool, u32, u32, u32)>,
    idle: u64,
    /// Number of the next segment.
    next: u32,
    unsynced: BTreeSet<u32>,
    segment_pages: u32,
}

fn name(id: u32) -> String {
    format!("segment-{id:08}")
}

fn id_of(name: &str) -> Option<u32> {
    name.strip_prefix("segment-")?.parse().ok()
}

pub(super) fn is_segment(name: &str) -> bool {
    id_of(name).is_some()
}

/// Entries that were recorded and are not served.
#[derive(Default)]
pub(super) struct SkippedEntries {
    /// They lead nowhere, or to the same pages as another entry, since a crash has brought one back.
    pub(super) lost: Vec<(Key, Location)>,
    /// Their segments cannot be opened now.
    pub(super) closed: Entries,
}

impl Segments {
    /// Opens the segments. Removes entries that lead nowhere or to the same pages as another one, and
    /// entries of a segment that cannot be opened.
    pub(super) fn open(
        disk: &Arc<dyn Disk>,
        names: &[(String, u64)],
        entries: &mut Entries,
        segment_bytes: u64,
    ) -> (Self, Files, SkippedEntries) {
        let segment_pages = u32::try_from(segment_bytes / PAGE_BYTES).unwrap_or(u32::MAX).max(1);
        let mut segments = Segments {
            disk: Arc::clone(disk),
            large: LargeFiles::default(),
            segments: BTreeMap::new(),
            room: BTreeMap::new(),
            sizes: BTreeSet::new(),
            idle: 0,
            next: 1,
            unsynced: BTreeSet::new(),
            segment_pages,
        };
        let (mut written, mut closed) = (HashMap::new(), HashSet::new());
        for (name, length) in names {
            let there = u32::try_from(length.div_ceil(PAGE_BYTES)).unwrap_or(u32::MAX);
            if let Some((id, file)) = large::parse(name) {
                segments.next = segments.next.max(id.saturating_add(1));
                segments.large.add(disk, id, file);
                written.insert(id, there);
            }
            let Some(id) = id_of(name) else { continue };
            segments.next = segments.next.max(id.saturating_add(1));
            let file = match disk.open(name, Use::Pages) {
                Ok(file) => file,
                Err(error) => {
                    tracing::warn!(%error, name, "a segment stays closed until the next mount");
                    closed.insert(id);
                    continue;
                }
            };
            let there = u32::try_from(length / PAGE_BYTES).unwrap_or(u32::MAX);
            let pages = there.max(segment_pages);
            written.insert(id, there);
            segments.segments.insert(id, Segment { file, pages, room: 0 });
        }
        let closed = entries.extract_if(|_, at| closed.contains(&at.segment)).collect();
        let lost = segments.remove_overlaps(entries, &written);
        let packed = segments.segments.iter().map(|(id, segment)| (*id, &segment.file));
        let files = packed.chain(segments.large.blobs());
        let files = files.map(|(id, file)| (id, Arc::clone(file))).collect();
        (segments, files, SkippedEntries { lost, closed })
    }

    /// Removes the entries that lead nowhere or overlap, and finds the room between the others.
    fn remove_overlaps(
        &mut self,
        entries: &mut Entries,
        written: &HashMap<u32, u32>,
    ) -> Vec<(Key, Location)> {
        let mut lost = HashSet::new();
        let mut places: Vec<(Extent, Key)> = Vec::with_capacity(entries.len());
        for (key, at) in entries.iter() {
            self.next = self.next.max(at.segment.saturating_add(1));
            let place = Extent::of(at);
            match written.get(&at.segment) {
                Some(there) if place.end() <= *there => places.push((place, *key)),
                _ => drop(lost.insert(*key)),
            }
        }
        places.sort_unstable();
        for pair in places.windows(2) {
            let [(first, one), (second, other)] = pair else { continue };
            if first.segment == second.segment && first.end() > second.page {
                lost.extend([*one, *other]);
            }
        }
        let mut lost: Vec<(Key, Location)> =
            lost.into_iter().filter_map(|key| Some((key, entries.remove(&key)?))).collect();
        lost.sort_unstable_by_key(|(_, at)| (at.segment, at.page));
        if !lost.is_empty() {
            places.retain(|(_, key)| entries.contains_key(key));
        }
        let places = places.into_iter().map(|(place, _)| place);
        let (large, packed): (Vec<Extent>, Vec<Extent>) =
            places.partition(|place| self.large.holds(place.segment));
        self.large.count(&large, written);
        self.find_room(&packed, written);
        lost
    }

    /// Finds the room between samples, whose places are sorted.
    fn find_room(&mut self, places: &[Extent], written: &HashMap<u32, u32>) {
        let mut places = places.iter().peekable();
        let ids: Vec<(u32, u32)> = self.segments.iter().map(|(id, s)| (*id, s.pages)).collect();
        for (segment, pages) in ids {
            let there = written.get(&segment).copied().unwrap_or_default();
            let mut page = 0;
            while let Some(place) = places.next_if(|place| place.segment == segment) {
                self.add_room(Extent { segment, page, pages: place.page - page }, false);
                page = place.end();
            }
            self.add_room(Extent { segment, page, pages: there - page }, false);
            self.add_room(Extent { segment, page: there, pages: pages - there }, true);
        }
    }

    /// Adds room, joined with adjacent room of the same kind.
    fn add_room(&mut self, extent: Extent, clean: bool) {
        let Extent { segment, mut page, mut pages } = extent;
        let Some(entry) = self.segments.get_mut(&segment) else { return };
        if pages == 0 {
            return;
        }
        entry.room += pages;
        self.idle += if clean { 0 } else { extent.bytes() };
        let before = self.room.range(..(segment, page)).next_back();
        if let Some((&(s, p), &(n, kind))) = before
            && (s, p + n, kind) == (segment, page, clean)
        {
            self.drop_room(s, p);
            (page, pages) = (p, pages + n);
        }
        if let Some(&(n, kind)) = self.room.get(&(segment, page + pages))
            && kind == clean
        {
            self.drop_room(segment, page + pages);
            pages += n;
        }
        self.room.insert((segment, page), (pages, clean));
        self.sizes.insert((clean, pages, segment, page));
    }

    fn drop_room(&mut self, segment: u32, page: u32) {
        if let Some((pages, clean)) = self.room.remove(&(segment, page)) {
            self.sizes.remove(&(clean, pages, segment, page));
        }
    }

    /// Takes pages from the smallest extent of this kind that is large enough.
    fn take_room(&mut self, pages: u32, clean: bool) -> Option<Extent> {
        let sizes = (clean, pages, 0, 0)..=(clean, u32::MAX, u32::MAX, u32::MAX);
        let (_, found, segment, page) = self.sizes.range(sizes).next().copied()?;
        self.drop_room(segment, page);
        let left = found - pages;
        if left > 0 {
            self.room.insert((segment, page + pages), (left, clean));
            self.sizes.insert((clean, left, segment, page + pages));
        }
        let taken = Extent { segment, page, pages };
        self.idle -= if clean { 0 } else { taken.bytes() };
        if let Some(entry) = self.segments.get_mut(&segment) {
            entry.room -= pages;
        }
        self.unsynced.insert(segment);
        Some(taken)
    }

    /// Takes clean pages, from a new segment if necessary.
    fn take_clean(&mut self, pages: u32) -> Result<Extent> {
        if let Some(taken) = self.take_room(pages, true) {
            return Ok(taken);
        }
        let id = self.next;
        let file = self.disk.create(&name(id), Use::Pages)?;
        self.next = id.saturating_add(1);
        // Unless the file's name is durable, its samples are not either, whatever is synced.
        self.disk.sync_names().inspect_err(|_| drop(self.disk.remove(&name(id))))?;
        let size = self.segment_pages.max(pages);
        self.segments.insert(id, Segment { file, pages: size, room: 0 });
        self.add_room(Extent { segment: id, page: 0, pages: size }, true);
        self.take_room(pages, true)
            .ok_or_else(|| std::io::Error::other("a new segment has no room"))
    }

    /// Places the requested samples, in this order, beside `used` bytes of other samples. With the idle room
    /// they take at most `budget` bytes.
    pub(super) fn place(
        &mut self,
        requests: &[Request],
        used: u64,
        budget: u64,
    ) -> Result<Vec<Extent>> {
        let mut places = vec![None; requests.len()];
        let placed = self.place_all(requests, used, budget, &mut places);
        let places: Vec<Extent> = places.into_iter().flatten().collect();
        match placed {
            Ok(()) => Ok(places),
            Err(error) => {
                self.free(&places);
                Err(error)
            }
        }
    }

    fn place_all(
        &mut self,
        requests: &[Request],
        mut used: u64,
        budget: u64,
        places: &mut [Option<Extent>],
    ) -> Result<()> {
        let mut packed = Vec::with_capacity(requests.len());
        for (request, place) in requests.iter().zip(places) {
            let Some(block) = request.large else {
                packed.push((request.pages, place));
                continue;
            };
            used += u64::from(request.pages) * PAGE_BYTES;
            self.shrink(budget.saturating_sub(used));
            *place = Some(self.large.place(&self.disk, block, request.pages, &mut self.next)?);
            self.unsynced.extend(place.iter().map(|place| place.segment));
        }
        self.place_packed(packed, used, budget)
    }

    /// Places packed samples, given by their numbers of pages: next to each other in clean pages while the
    /// budget has room, else each where it fits best.
    fn place_packed(
        &mut self,
        samples: Vec<(u32, &mut Option<Extent>)>,
        mut used: u64,
        budget: u64,
    ) -> Result<()> {
        let total: u32 = samples.iter().map(|(pages, _)| pages).sum();
        if total == 0 {
            return Ok(());
        }
        let bytes = u64::from(total) * PAGE_BYTES;
        let contiguous = match used + self.idle + bytes <= budget {
            true if self.segments.len() < SEGMENTS_MAX => Some(self.take_clean(total)?),
            true => self.take_room(total, true),
            false => None,
        };
        if let Some(Extent { segment, mut page, .. }) = contiguous {
            for (pages, place) in samples {
                *place = Some(Extent { segment, page, pages });
                page += pages;
            }
            return Ok(());
        }
        for (pages, place) in samples {
            used += u64::from(pages) * PAGE_BYTES;
            *place = match self.take_room(pages, false) {
                Some(place) => Some(place),
                None => {
                    self.shrink(budget.saturating_sub(used));
                    Some(self.take_clean(pages)?)
                }
            };
        }
        Ok(())
    }

    /// Frees the pages of removed samples.
    pub(super) fn free(&mut self, places: &[Extent]) {
        let (large, packed): (Vec<Extent>, Vec<Extent>) =
            places.iter().partition(|place| self.large.holds(place.segment));
        self.large.free(&large);
        packed.into_iter().for_each(|place| self.add_room(place, false));
    }

    /// Opens a large file for the kernel. None if it is not one.
    pub(super) fn open_passthrough(
        &mut self,
        id: u32,
        length: u64,
    ) -> Result<Option<Arc<PassthroughFile>>> {
        self.large.open_passthrough(&self.disk, id, length)
    }

    /// The name of a file, by its number.
    pub(super) fn name(&self, id: u32) -> String {
        self.large.name(id).unwrap_or_else(|| name(id))
    }

    /// Where a sample is, for messages.
    pub(super) fn describe(&self, at: &Location) -> String {
        let from = u64::from(at.page) * PAGE_BYTES;
        let file = match self.file(at.segment) {
            Some(_) => self.name(at.segment),
            None => format!("file {:08}, which is gone", at.segment),
        };
        format!("{file}, bytes {from} to {}", from + u64::from(at.length))
    }

    /// Punches the gaps in large files.
    pub(super) fn clear_gaps(&mut self) {
        self.large.clear_gaps();
    }

    /// Gives pages of samples back to the disk, but not for other samples: after a crash, records may still
    /// lead there.
    pub(super) fn punch(&mut self, places: &[Extent]) {
        for place in places {
            if self.large.holds(place.segment) {
                self.large.give_back(place);
            } else if let Some(file) = self.file(place.segment) {
                let _ = file.punch(place.offset(), place.bytes());
            }
        }
    }

    /// Gives idle room back to the disk, the largest extents first, until at most `most` bytes are left.
    pub(super) fn shrink(&mut self, most: u64) {
        while self.idle > most
            && let Some(&(false, pages, segment, page)) =
                self.sizes.range(..(true, 0, 0, 0)).next_back()
        {
            let extent = Extent { segment, page, pages };
            self.drop_room(segment, page);
            self.idle -= extent.bytes();
            if let Some(entry) = self.segments.get_mut(&segment) {
                entry.room -= pages;
                // A filesystem that cannot punch gets the space back with the segment.
                let _ = entry.file.punch(extent.offset(), extent.bytes());
            }
            self.add_room(extent, true);
        }
    }

    pub(super) fn idle(&self) -> u64 {
        self.idle
    }

    /// The file of a segment, or a large file.
    pub(super) fn file(&self, id: u32) -> Option<&Arc<dyn Blob>> {
        let segment = self.segments.get(&id).map(|segment| &segment.file);
        segment.or_else(|| self.large.blob(id))
    }

    /// Removes segments and large files without samples from memory. Returns their numbers and names; the
    /// caller deletes them.
    pub(super) fn take_empty(&mut self) -> Vec<(u32, String)> {
        let empty = self.segments.iter().filter(|(_, segment)| segment.room == segment.pages);
        let empty: Vec<u32> = empty.map(|(id, _)| *id).collect();
        for id in &empty {
            while let Some((&(segment, page), &(pages, clean))) =
                self.room.range((*id, 0)..=(*id, u32::MAX)).next()
            {
                self.drop_room(segment, page);
                self.idle -= if clean { 0 } else { Extent { segment, page, pages }.bytes() };
            }
            self.segments.remove(id);
        }
        let packed = empty.into_iter().map(|id| (id, name(id)));
        let empty: Vec<(u32, String)> = packed.chain(self.large.take_empty()).collect();
        for (id, _) in &empty {
            self.unsynced.remove(id);
        }
        empty
    }

    /// Makes the samples durable, and then their records.
    pub(super) fn sync(&mut self, log: &Log) -> Result<()> {
        while let Some(id) = self.unsynced.first().copied() {
            if let Some(file) = self.file(id) {
                file.sync()?;
            }
            self.unsynced.remove(&id);
        }
        log.sync()
    }
}
