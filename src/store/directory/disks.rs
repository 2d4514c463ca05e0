//! Notes the disk of a cache directory, to detect that the disk is not mounted.
//!
//! If the disk is not mounted, a new directory is made in the same place on another disk, and nothing there
//! shows the mistake. So the mount point of the disk is noted outside of the cache directory, if the
//! directory is on a disk of its own.

use std::ffi::OsString;
use std::fs::{self, DirBuilder};
use std::hash::Hasher;
use std::io::{Error, ErrorKind, Result, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use siphasher::sip128::{Hasher128, SipHasher24};

use crate::disk::AtomicFile;
use crate::state_directory::state_directory;

/// The lasting directory of the notes: the user's, or the system's for root.
fn notes() -> Option<PathBuf> {
    Some(state_directory()?.join("cache-disks"))
}

/// The mount point of the disk that holds a directory.
fn disk_of(directory: &Path) -> Result<PathBuf> {
    let directory = fs::canonicalize(directory)?;
    let device = fs::metadata(&directory)?.dev();
    let is_on_disk = |path: &&Path| fs::metadata(path).is_ok_and(|found| found.dev() == device);
    let disk = directory.ancestors().take_while(is_on_disk).last();
    Ok(disk.unwrap_or(&directory).to_path_buf())
}

/// Notes the disk of a cache directory. Returns a message if the directory was on another disk before. A
/// failure to note is no error.
pub fn note_disk(cache: &Path) -> Option<String> {
    let mut hasher = SipHasher24::new();
    hasher.write(cache.as_os_str().as_bytes());
    let note = notes()?.join(format!("{:016x}", hasher.finish128().h1));
    compare(cache, &note)
        .inspect_err(|error| tracing::debug!(%error, note = %note.display(), "no note of the disk"))
        .ok()
        .flatten()
}

fn compare(cache: &Path, note: &Path) -> Result<Option<String>> {
    let now = disk_of(cache)?;
    let before = match fs::read(note) {
        Ok(before) => PathBuf::from(OsString::from_vec(before)),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            if now != Path::new("/") {
                write(note, &now)?;
            }
            return Ok(None);
        }
        Err(error) => return Err(error),
    };
    let (cache, note) = (cache.display(), note.display());
    Ok((before != now).then(|| {
        let (now, before) = (now.display(), before.display());
        format!(
            "cache.dir {cache} is on the disk mounted at {now}, and was on one mounted at {before} \
             before, which seems not to be mounted: mount it, and then this source anew; if the \
             directory is to stay where it is, delete {note}"
        )
    }))
}

fn write(note: &Path, disk: &Path) -> Result<()> {
    let directory = note.parent().ok_or_else(|| Error::other("no directory"))?;
    DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    AtomicFile::at(note)?.replace(|mut file| file.write_all(disk.as_os_str().as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_that_was_on_another_disk_is_told_of_until_it_is_there_again() {
        let top = tempfile::tempdir().unwrap();
        let note = top.path().join("state/belady/note");
        // A separate filesystem on any machine.
        let cache = Path::new("/proc");
        let told = || compare(cache, &note).unwrap();
        assert_eq!((told(), told()), (None, None));
        assert_eq!(fs::read(&note).unwrap(), b"/proc");
        fs::write(&note, "/mnt/nvme").unwrap();
        for told in [told().unwrap(), told().unwrap()] {
            assert!(told.contains("was on one mounted at /mnt/nvme before"), "{told}");
            assert!(told.contains(note.to_str().unwrap()), "{told}");
        }
        fs::write(&note, "/proc").unwrap();
        assert_eq!(told(), None);
        fs::remove_file(&note).unwrap();
        assert_eq!(compare(Path::new("/"), &note).unwrap(), None);
        assert!(!note.exists(), "of the disk that is always there nothing is noted");
        assert!(compare(Path::new("/no/such"), &note).is_err());
    }
}
