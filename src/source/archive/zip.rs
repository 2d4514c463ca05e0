//! The members of a zip file, by its central directory and the local header of each member.

use std::io::{Read, Seek};
use std::path::Path;

use zip::result::ZipError;
use zip::{CompressionMethod, ZipArchive};

use super::{Fault, Member, Members, place_of};

/// Reads the central directory of a zip file.
pub(super) fn members(reader: impl Read + Seek) -> Result<Members, Fault> {
    let mut archive = ZipArchive::new(reader)?;
    let mut found = Members::default();
    for nth in 0..archive.len() {
        let file = archive.by_index_raw(nth)?;
        let path = place_of(Path::new(&*file.name()?));
        if file.is_dir() {
            found.directories.push(path);
            continue;
        }
        if file.is_symlink() {
            found.others += 1;
            continue;
        }
        if file.encrypted() || file.compression() != CompressionMethod::Stored {
            let how = if file.encrypted() { "encrypted" } else { "compressed" };
            return Err(Fault::Unsupported(format!("{} is {how}", path.display())));
        }
        if file.compressed_size() != file.size() {
            let what = format!("{} has two sizes", path.display());
            return Err(Fault::Io(std::io::Error::other(what)));
        }
        let Some(offset) = file.data_start() else {
            return Err(Fault::Io(std::io::Error::other("a member has no local header")));
        };
        found.files.push(Member { path, offset, size: file.size(), mtime_ns: None });
    }
    found.directories.retain(|path| !path.as_os_str().is_empty());
    Ok(found)
}

impl From<ZipError> for Fault {
    fn from(error: ZipError) -> Self {
        Fault::Io(std::io::Error::other(error))
    }
}
