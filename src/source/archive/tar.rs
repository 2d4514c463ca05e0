//! The members of a tar file, by its headers: the old form, ustar, and those of GNU and pax.

use std::collections::HashMap;
use std::io::{Read, Seek};
use std::path::PathBuf;

use tar::{Archive, EntryType};

use super::{Fault, Member, Members, place_of};

const SECOND_NS: i64 = 1_000_000_000;

/// Reads the headers of a tar file. If a path comes twice, the later member counts, as if both were extracted.
pub(super) fn members(reader: impl Read + Seek) -> Result<Members, Fault> {
    let mut archive = Archive::new(reader);
    let (mut found, mut places) = (Members::default(), HashMap::<PathBuf, usize>::new());
    for entry in archive.entries_with_seek()? {
        let entry = entry?;
        let (path, header) = (place_of(&entry.path()?), entry.header());
        match header.entry_type() {
            EntryType::Regular | EntryType::Continuous => {
                let seconds = header.mtime().ok().and_then(|seconds| i64::try_from(seconds).ok());
                let member = Member {
                    path: path.clone(),
                    offset: entry.raw_file_position(),
                    size: entry.size(),
                    mtime_ns: seconds.and_then(|seconds| seconds.checked_mul(SECOND_NS)),
                };
                match places.get(&path) {
                    Some(earlier) => found.files[*earlier] = member,
                    None => {
                        places.insert(path, found.files.len());
                        found.files.push(member);
                    }
                }
            }
            EntryType::Directory => found.directories.push(path),
            EntryType::GNUSparse => {
                let what = format!("{} has holes (--sparse)", path.display());
                return Err(Fault::Unsupported(what));
            }
            EntryType::XGlobalHeader => {}
            _ => found.others += 1,
        }
    }
    found.directories.retain(|path| !path.as_os_str().is_empty());
    Ok(found)
}
