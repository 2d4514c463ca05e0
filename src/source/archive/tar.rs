//! The members of a tar file, by its headers: ustar, and those of GNU and pax.

use std::collections::HashMap;
use std::io::{Error, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use tar::{Archive, Entry, EntryType};

use super::{Fault, Member, Members, place_of};

const SECOND_NS: i64 = 1_000_000_000;
const BLOCK: u64 = 512;

/// The entries that count. If a path comes several times, its last entry counts, as if all were extracted.
#[derive(Default)]
struct Places {
    found: Members,
    files: HashMap<PathBuf, usize>,
}

impl Places {
    fn add(&mut self, path: PathBuf, member: Member) {
        match self.files.get(&path) {
            Some(earlier) => self.found.files[*earlier] = member,
            None => {
                self.files.insert(path, self.found.files.len());
                self.found.files.push(member);
            }
        }
    }

    /// Something that is no file has this path.
    fn remove(&mut self, path: &Path) {
        if let Some(nth) = self.files.remove(path) {
            self.found.files.swap_remove(nth);
            if let Some(moved) = self.found.files.get(nth) {
                self.files.insert(moved.path.clone(), nth);
            }
        }
    }
}

/// Reads the headers of a tar file.
pub(super) fn members(mut reader: impl Read + Seek) -> Result<Members, Fault> {
    let size = reader.seek(SeekFrom::End(0))?;
    reader.seek(SeekFrom::Start(0))?;
    let mut archive = Archive::new(reader);
    let (mut places, mut end) = (Places::default(), 0);
    for entry in archive.entries_with_seek()? {
        let mut entry = entry?;
        refuse_sparse(&mut entry)?;
        let blocks = entry.size().checked_next_multiple_of(BLOCK);
        let over = blocks.and_then(|bytes| entry.raw_file_position().checked_add(bytes));
        end = over.ok_or_else(|| Error::other("a member is too large"))?;
        let (path, header) = (place_of(&entry.path()?), entry.header());
        // The old form has no type for directories.
        let is_directory = entry.path_bytes().ends_with(b"/");
        match header.entry_type() {
            EntryType::Regular | EntryType::Continuous if !is_directory => {
                let seconds = header.mtime().ok().and_then(|seconds| i64::try_from(seconds).ok());
                let member = Member {
                    path: path.clone(),
                    offset: entry.raw_file_position(),
                    size: entry.size(),
                    mtime_ns: seconds.and_then(|seconds| seconds.checked_mul(SECOND_NS)),
                };
                places.add(path, member);
            }
            EntryType::Directory | EntryType::Regular => {
                places.remove(&path);
                places.found.directories.push(path);
            }
            EntryType::XGlobalHeader => {}
            _ => {
                places.remove(&path);
                places.found.others += 1;
            }
        }
    }
    // A copy that was cut between two members looks like a whole archive otherwise.
    if size < end.saturating_add(BLOCK) {
        return Err(Fault::Io(Error::other("it has no end: the block of zeros is missing")));
    }
    places.found.directories.retain(|path| !path.as_os_str().is_empty());
    Ok(places.found)
}

/// Files with holes are stored as a map and what is not a hole. GNU has a type for them, pax has records.
fn refuse_sparse<R: Read>(entry: &mut Entry<'_, R>) -> Result<(), Fault> {
    let mut is_sparse = entry.header().entry_type() == EntryType::GNUSparse;
    for record in entry.pax_extensions()?.into_iter().flatten() {
        is_sparse |= record?.key_bytes().starts_with(b"GNU.sparse.");
    }
    if is_sparse {
        let what = format!("{} has holes (--sparse)", place_of(&entry.path()?).display());
        return Err(Fault::Unsupported(what));
    }
    Ok(())
}
