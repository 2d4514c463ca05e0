//! Replaces one file atomically, below a directory that is held open.
//!
//! The new file is written under another name, synced and renamed. So after any crash the file is as before
//! or as after. In a directory of our own the other name is always the same, so that the next replacement
//! overwrites what a crash left. In a directory of other users it is random. A directory that later takes
//! the place of ours is never touched.

use std::fs::File;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{Error, ErrorKind, Result};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use nix::fcntl::{OFlag, open, openat, renameat};
use nix::sys::stat::Mode;
use nix::unistd::{UnlinkatFlags, fsync, unlinkat};

/// Opens a directory to hold it. A link to a directory is an error.
pub fn hold(directory: &Path) -> Result<Arc<OwnedFd>> {
    let flags = OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    Ok(Arc::new(open(directory, flags, Mode::empty())?))
}

pub fn unguessable() -> u64 {
    RandomState::new().build_hasher().finish()
}

#[derive(Clone, Debug)]
pub struct AtomicFile {
    directory: Arc<OwnedFd>,
    name: String,
    /// Whether the directory is ours alone.
    ours: bool,
}

impl AtomicFile {
    /// A file in a directory of our own that is [held](hold).
    pub fn new(directory: &Arc<OwnedFd>, name: &str) -> Self {
        AtomicFile { directory: Arc::clone(directory), name: name.to_owned(), ours: true }
    }

    /// The file at a path, in the directory that is there now. Links to the directory are followed, and
    /// other users may have files in it.
    ///
    /// # Errors
    /// The disk's, and [`ErrorKind::InvalidInput`] for a path that ends with no name in UTF-8.
    pub fn at(path: &Path) -> Result<Self> {
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let directory = hold(&parent.unwrap_or(Path::new(".")).canonicalize()?)?;
        let name = path.file_name().and_then(|name| name.to_str());
        let no_name = || Error::new(ErrorKind::InvalidInput, "it is no name of a file");
        Ok(AtomicFile { directory, name: name.ok_or_else(no_name)?.to_owned(), ours: false })
    }

    /// Opens the file for reading. Follows no link, and does not block on a FIFO or device.
    pub fn open(&self) -> Result<File> {
        let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
        Ok(openat(&self.directory, self.name.as_str(), flags, Mode::empty())?.into())
    }

    /// Replaces the file by what `write` writes to a new one, which only its owner may read. Only one
    /// caller may do so at a time.
    ///
    /// # Errors
    /// The disk's. The file is then as it was, or its name may not be durable.
    pub fn replace(&self, write: impl FnOnce(&File) -> Result<()>) -> Result<()> {
        let next = match self.ours {
            true => format!("{}.new", self.name),
            false => format!(".belady-{:016x}", unguessable()),
        };
        let remove = || unlinkat(&self.directory, next.as_str(), UnlinkatFlags::NoRemoveDir);
        if self.ours {
            let _ = remove();
        }
        let flags = OFlag::O_RDWR | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_CLOEXEC;
        let mode = Mode::S_IRUSR | Mode::S_IWUSR;
        let file = File::from(openat(&self.directory, next.as_str(), flags, mode)?);
        let (from, to) = (next.as_str(), self.name.as_str());
        let outcome = write(&file)
            .and_then(|()| file.sync_all())
            .and_then(|()| Ok(renameat(&self.directory, from, &self.directory, to)?));
        if outcome.is_err() {
            // The new file is useless, and the old one stays.
            let _ = remove();
        }
        outcome.and_then(|()| Ok(fsync(&self.directory)?))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write;

    use super::*;

    fn names(directory: &Path) -> Vec<String> {
        let entries = fs::read_dir(directory).unwrap().flatten();
        entries.map(|entry| entry.file_name().into_string().unwrap()).collect()
    }

    #[test]
    fn a_file_is_replaced_in_the_directory_that_is_held_wherever_that_is() {
        let top = tempfile::tempdir().unwrap();
        let (ours, moved) = (top.path().join("ours"), top.path().join("moved"));
        fs::create_dir(&ours).unwrap();
        let place = AtomicFile::new(&hold(&ours).unwrap(), "file");
        place.replace(|mut file| file.write_all(b"one")).unwrap();
        fs::rename(&ours, &moved).unwrap();
        fs::create_dir(&ours).unwrap();
        for name in ["file", "file.new"] {
            fs::write(ours.join(name), "precious").unwrap();
        }
        place.replace(|mut file| file.write_all(b"two")).unwrap();
        for name in ["file", "file.new"] {
            assert_eq!(fs::read(ours.join(name)).unwrap(), b"precious");
        }
        assert_eq!(fs::read(moved.join("file")).unwrap(), b"two");
        assert_eq!(std::io::read_to_string(place.open().unwrap()).unwrap(), "two");
        assert_eq!(names(&moved), ["file"]);
    }

    #[test]
    fn what_fails_or_was_cut_short_leaves_the_file_as_it_was() {
        let top = tempfile::tempdir().unwrap();
        let path = top.path().join("file");
        let place = AtomicFile::new(&hold(top.path()).unwrap(), "file");
        assert_eq!(place.open().unwrap_err().kind(), ErrorKind::NotFound);
        place.replace(|mut file| file.write_all(b"one")).unwrap();
        assert!(place.replace(|_| Err(Error::other("injected"))).is_err());
        // A crash before the rename.
        fs::write(top.path().join("file.new"), "half").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"one");
        place.replace(|mut file| file.write_all(b"two")).unwrap();
        assert_eq!(
            (fs::read(&path).unwrap(), names(top.path())),
            (b"two".to_vec(), vec!["file".into()])
        );
        // In a directory of other users, a file with this name is theirs.
        fs::write(top.path().join("file.new"), "precious").unwrap();
        let among = AtomicFile::at(&path).unwrap();
        assert!(among.replace(|_| Err(Error::other("injected"))).is_err());
        among.replace(|mut file| file.write_all(b"three")).unwrap();
        assert_eq!(std::io::read_to_string(among.open().unwrap()).unwrap(), "three");
        assert_eq!(fs::read(top.path().join("file.new")).unwrap(), b"precious");
        assert_eq!(names(top.path()).len(), 2);
        std::os::unix::fs::symlink(&path, top.path().join("link")).unwrap();
        assert!(AtomicFile::at(&top.path().join("link")).unwrap().open().is_err());
        assert!(AtomicFile::at(Path::new("/")).is_err());
    }
}
