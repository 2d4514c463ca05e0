//! Stores large files, each as a sparse file beside the segments, under the same index and budget.
//!
//! A block has the same offset as at the source, so that a complete file can be read as it is. The file's
//! name gives the version and file it belongs to. Nothing else is ever stored there: a removed block is
//! punched at once, and a file without blocks is deleted. There may be many such files, so none is kept
//! open. Opening one costs little compared with reading a block of it.

use std::collections::{BTreeMap, HashMap};
use std::io::{Error, ErrorKind, Result};
use std::sync::{Arc, Weak};

use nix::libc;

use super::log::Key;
use super::passthrough::PassthroughFile;
use super::segments::Extent;
use crate::disk::{Blob, Disk, Use};
use crate::ids::PAGE_BYTES;

/// A block's place in a version of a large file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LargeBlock {
    file: Key,
    page: u32,
}

impl LargeBlock {
    /// The block at an offset. None if the offset is not at a page, or has too high a page number.
    pub(super) fn new(file: Key, offset: u64) -> Option<Self> {
        let page = u32::try_from(offset / PAGE_BYTES).ok().filter(|page| *page < u32::MAX >> 1)?;
        offset.is_multiple_of(PAGE_BYTES).then_some(LargeBlock { file, page })
    }
}

struct LargeFile {
    file: Key,
    blob: Arc<dyn Blob>,
    blocks: u32,
    /// First page and number of pages of each gap that is still to be punched. A crash left it, or it was
    /// removed while the kernel had the file open.
    gaps: Vec<(u32, u32)>,
    passthrough: Weak<PassthroughFile>,
}

#[derive(Default)]
pub(super) struct LargeFiles {
    files: BTreeMap<u32, LargeFile>,
    /// The file that gets further blocks of a version.
    numbers: HashMap<Key, u32>,
}

fn name(id: u32, file: Key) -> String {
    format!("file-{id:08}-{:032x}", file.get())
}

/// Number and version, if this is the name of a large file.
pub(super) fn parse(name: &str) -> Option<(u32, Key)> {
    let (id, file) = name.strip_prefix("file-")?.split_once('-')?;
    Some((id.parse().ok()?, Key::new(u128::from_str_radix(file, 16).ok()?)))
}

impl LargeFiles {
    pub(super) fn add(&mut self, disk: &Arc<dyn Disk>, id: u32, file: Key) {
        let blob = Arc::new(Unopened { disk: Arc::clone(disk), name: name(id, file) });
        self.files.insert(
            id,
            LargeFile { file, blob, blocks: 0, gaps: Vec::new(), passthrough: Weak::new() },
        );
        // If a crash has left two files of a version, the later one gets further blocks.
        let number = self.numbers.entry(file).or_insert(id);
        *number = id.max(*number);
    }

    pub(super) fn holds(&self, id: u32) -> bool {
        self.files.contains_key(&id)
    }

    /// Counts the blocks that were found, and notes the gaps between them. `places` is sorted. `written`
    /// gives the number of pages of each file.
    pub(super) fn count(&mut self, places: &[Extent], written: &HashMap<u32, u32>) {
        for (id, large) in &mut self.files {
            let first = places.partition_point(|place| place.segment < *id);
            let own = places[first..].iter().take_while(|place| place.segment == *id);
            let mut page = 0;
            for place in own {
                if place.page > page {
                    large.gaps.push((page, place.page - page));
                }
                (page, large.blocks) = (place.page + place.pages, large.blocks + 1);
            }
            let end = written.get(id).copied().unwrap_or_default();
            if end > page {
                large.gaps.push((page, end - page));
            }
        }
    }

    /// The place of a block that takes `pages` pages. The first block of a version makes a new file with the
    /// number `next`.
    pub(super) fn place(
        &mut self,
        disk: &Arc<dyn Disk>,
        block: LargeBlock,
        pages: u32,
        next: &mut u32,
    ) -> Result<Extent> {
        let id = match self.numbers.get(&block.file) {
            Some(id) => *id,
            None => {
                let (id, name) = (*next, name(*next, block.file));
                disk.create(&name, Use::Pages)?;
                *next = id.saturating_add(1);
                // Unless the file's name is durable, its blocks are not either, whatever is synced.
                disk.sync_names().inspect_err(|_| drop(disk.remove(&name)))?;
                self.add(disk, id, block.file);
                id
            }
        };
        if let Some(large) = self.files.get_mut(&id) {
            large.clear_gaps();
            large.blocks += 1;
        }
        Ok(Extent { segment: id, page: block.page, pages })
    }

    /// Removes blocks and gives their space back.
    pub(super) fn free(&mut self, places: &[Extent]) {
        for place in places {
            let Some(large) = self.files.get_mut(&place.segment) else { continue };
            large.blocks = large.blocks.saturating_sub(1);
        }
        places.iter().for_each(|place| self.give_back(place));
    }

    /// Gives the space of a block back, now or when the kernel has closed the file.
    pub(super) fn give_back(&mut self, place: &Extent) {
        let Some(large) = self.files.get_mut(&place.segment) else { return };
        if large.is_open_by_kernel() && self.numbers.get(&large.file) == Some(&place.segment) {
            // If the block comes back, it goes to another file.
            self.numbers.remove(&large.file);
        }
        // A file without blocks is deleted as a whole.
        if large.blocks > 0 {
            large.gaps.push((place.page, place.pages));
            large.clear_gaps();
        }
    }

    /// Punches the gaps of all files that have blocks and are not open by the kernel.
    pub(super) fn clear_gaps(&mut self) {
        self.files.values_mut().filter(|large| large.blocks > 0).for_each(LargeFile::clear_gaps);
    }

    /// Opens a file for the kernel. None if it is not a large one.
    pub(super) fn open_passthrough(
        &mut self,
        disk: &Arc<dyn Disk>,
        id: u32,
        length: u64,
    ) -> Result<Option<Arc<PassthroughFile>>> {
        let Some(large) = self.files.get_mut(&id) else { return Ok(None) };
        if let Some(opened) = large.passthrough.upgrade() {
            return Ok(Some(opened));
        }
        let opened =
            Arc::new(PassthroughFile(disk.open_passthrough(&name(id, large.file), length)?));
        large.passthrough = Arc::downgrade(&opened);
        Ok(Some(opened))
    }

    pub(super) fn name(&self, id: u32) -> Option<String> {
        self.files.get(&id).map(|large| name(id, large.file))
    }

    pub(super) fn blob(&self, id: u32) -> Option<&Arc<dyn Blob>> {
        self.files.get(&id).map(|large| &large.blob)
    }

    pub(super) fn blobs(&self) -> impl Iterator<Item = (u32, &Arc<dyn Blob>)> {
        self.files.iter().map(|(id, large)| (*id, &large.blob))
    }

    /// Removes the files without blocks from memory. The caller deletes them.
    pub(super) fn take_empty(&mut self) -> Vec<(u32, String)> {
        let empty = self.files.iter().filter(|(_, large)| large.blocks == 0);
        let empty: Vec<(u32, Key)> = empty.map(|(id, large)| (*id, large.file)).collect();
        for (id, file) in &empty {
            self.files.remove(id);
            if self.numbers.get(file) == Some(id) {
                self.numbers.remove(file);
            }
        }
        empty.into_iter().map(|(id, file)| (id, name(id, file))).collect()
    }
}

impl LargeFile {
    fn is_open_by_kernel(&self) -> bool {
        self.passthrough.strong_count() > 0
    }

    fn clear_gaps(&mut self) {
        if self.is_open_by_kernel() {
            return;
        }
        for (page, pages) in std::mem::take(&mut self.gaps) {
            let (offset, bytes) = (u64::from(page) * PAGE_BYTES, u64::from(pages) * PAGE_BYTES);
            let _ = self.blob.punch(offset, bytes);
        }
    }
}

/// A file that is opened for each use.
struct Unopened {
    disk: Arc<dyn Disk>,
    name: String,
}

impl Unopened {
    fn open(&self) -> Result<Arc<dyn Blob>> {
        self.disk.open(&self.name, Use::Pages)
    }
}

/// Whether there is no such file, or something else under its name.
pub(super) fn is_missing(error: &Error) -> bool {
    let other = [libc::ELOOP, libc::EISDIR, libc::ENXIO].map(Some);
    error.kind() == ErrorKind::NotFound || other.contains(&error.raw_os_error())
}

/// If the file was deleted, there is nothing to do.
fn unless_missing(result: Result<()>) -> Result<()> {
    result.or_else(|error| if is_missing(&error) { Ok(()) } else { Err(error) })
}

impl Blob for Unopened {
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> Result<()> {
        self.open()?.read_at(bytes, offset)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> Result<()> {
        let file = self.open().or_else(|error| {
            if !is_missing(&error) {
                return Err(error);
            }
            // The file was deleted. Reads of its other blocks will find that out.
            let _ = self.disk.remove(&self.name);
            let file = self.disk.create(&self.name, Use::Pages)?;
            // The next write must not find a file whose name may not be durable.
            let sync = self.disk.sync_names().inspect_err(|_| drop(self.disk.remove(&self.name)));
            sync.map(|()| file)
        })?;
        file.write_at(bytes, offset)
    }

    fn cut(&self, length: u64) -> Result<()> {
        unless_missing(self.open().and_then(|file| file.cut(length)))
    }

    fn punch(&self, offset: u64, length: u64) -> Result<()> {
        unless_missing(self.open().and_then(|file| file.punch(offset, length)))
    }

    fn sync(&self) -> Result<()> {
        unless_missing(self.open().and_then(|file| file.sync()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_say_whose_a_file_is() {
        let file = Key::new(0xabc << 90 | 7);
        assert_eq!(parse(&name(12, file)), Some((12, file)));
        for other in ["file-", "file-1", "file-x-2", "file-1-x", "segment-00000001", "owner"] {
            assert_eq!(parse(other), None, "{other}");
        }
    }

    #[test]
    fn a_part_is_at_a_page_that_can_be_counted_to() {
        let file = Key::new(1);
        assert!(LargeBlock::new(file, 0).is_some() && LargeBlock::new(file, 1 << 42).is_some());
        assert_eq!((LargeBlock::new(file, 1), LargeBlock::new(file, 1 << 43)), (None, None));
    }
}
