//! Reads ranges of files: bytes of one version or nothing, and only what is requested.
//!
//! 1. The file is opened, unless a part of it is read and it is [still open](super::open_files) as the expected
//!    version. `fstat` must give the requested fingerprint.
//! 2. The kernel is told that the file is read at random. If the client read ahead by itself, it would
//!    fetch bytes beyond the range, and they would stay in memory when the file becomes another version.
//! 3. A range that needs several requests of the client is announced as a whole, in pieces of one request
//!    each. A plain read would wait for one piece after the other.
//! 4. The range is read. Then `fstat` must give the same fingerprint: bytes are handed out only if the
//!    version was the same before and after.
//! 5. The pages of the range are dropped from the client's memory, at the latest when the bytes have been
//!    delivered.

use std::fs::{self, File};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use nix::errno::Errno;
use nix::fcntl::{OFlag, PosixFadviseAdvice, posix_fadvise};
use nix::libc;
use nix::sys::stat::fstat;
use rustix::io::pread;

use super::open_files::{FilesToClose, OpenFiles};
use super::posix::{fingerprint, open_beneath};
use super::{Fingerprint, ReadError, ReadRequest};
use crate::disk::memory_for;

const SHORT_READS_MAX: usize = 3;

/// The bytes that a client reads ahead at once by default.
const READAHEAD: usize = 128 << 10;

pub(super) struct FileReader {
    root: Arc<OwnedFd>,
    open_files: OpenFiles,
    /// Limit of bytes that the client requests at once.
    piece: usize,
}

impl FileReader {
    pub(super) fn new(root: Arc<OwnedFd>) -> Self {
        let piece = readahead(&root).unwrap_or_default().max(READAHEAD);
        FileReader { root, open_files: OpenFiles::default(), piece }
    }

    pub(super) fn take_idle(&self, now: Instant) -> FilesToClose {
        self.open_files.take_idle(now)
    }

    /// Reads a range. Its pages are dropped with the returned [`Pages`].
    pub(super) fn read(&self, request: &ReadRequest) -> Result<(Vec<u8>, Pages), ReadError> {
        for _ in 0..SHORT_READS_MAX {
            if let Some(read) = self.read_whole_or_part(request)? {
                return Ok(read);
            }
        }
        Err(ReadError::Source(Errno::EIO))
    }

    fn read_whole_or_part(
        &self,
        request: &ReadRequest,
    ) -> Result<Option<(Vec<u8>, Pages)>, ReadError> {
        if !request.is_part() {
            let (file, _) = self.open(request)?;
            // If files never change, the version at the open is the version after the read.
            return self.read_once(&file, request, request.exact);
        }
        let turn = match self.open_files.get_or_turn(&request.path, &request.fingerprint) {
            Ok(file) => {
                if let Ok(Some(read)) = self.read_once(&file, request, true) {
                    return Ok(Some(read));
                }
                // The path may lead to another file by now.
                drop(self.open_files.forget(&request.path, &file));
                None
            }
            Err(turn) => turn,
        };
        let (file, opened) = self.open(request)?;
        let is_kept = opened == request.fingerprint;
        let closed = is_kept.then(|| self.open_files.keep(&request.path, &file, opened));
        drop(turn);
        drop(closed);
        let read = self.read_once(&file, request, request.exact);
        if !matches!(read, Ok(Some(_))) {
            drop(self.open_files.forget(&request.path, &file));
        }
        read
    }

    /// Opens a file. Also returns the version that it has.
    fn open(&self, request: &ReadRequest) -> Result<(Arc<File>, Fingerprint), ReadError> {
        let flags = OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
        let file =
            open_beneath(self.root.as_fd(), &request.path, flags).map_err(ReadError::Source)?;
        let file = Arc::new(File::from(file));
        let opened = version(&file, request)?;
        if request.is_part() || request.length > self.piece {
            let _ = posix_fadvise(&file, 0, 0, PosixFadviseAdvice::POSIX_FADV_RANDOM);
        }
        Ok((file, opened))
    }

    /// Reads the range of a file that was opened as the right version. Returns none after a short read. `checks`:
    /// whether the file may have changed since.
    ///
    /// A short read is not continued. A network filesystem's client may have taken it for the end of the
    /// file, and may give zeros for the bytes after it.
    fn read_once(
        &self,
        file: &Arc<File>,
        request: &ReadRequest,
        checks: bool,
    ) -> Result<Option<(Vec<u8>, Pages)>, ReadError> {
        if request.length > self.piece {
            for at in (0..request.length).step_by(self.piece) {
                let length = self.piece.min(request.length - at);
                let offset = request.offset + at as u64;
                advise(file, offset, length, PosixFadviseAdvice::POSIX_FADV_WILLNEED);
            }
        }
        let mut bytes = memory_for(request.length);
        let room = &mut bytes.spare_capacity_mut()[..request.length];
        let read = || pread(file, &mut *room, request.offset).map(|(read, _)| read.len());
        let read = rustix::io::retry_on_intr(read)
            .map_err(|errno| ReadError::Source(Errno::from_raw(errno.raw_os_error())))?;
        // SAFETY: so many bytes of the room were read.
        unsafe { bytes.set_len(read) };
        let pages =
            Pages { file: Arc::clone(file), offset: request.offset, length: request.length };
        if checks {
            version(file, request)?;
        }
        Ok((bytes.len() == request.length).then_some((bytes, pages)))
    }
}

/// Pages of a file in the memory of the source's client. They are dropped with this value: the pages of our
/// own mount hold the same bytes, so a second copy would only cost memory.
pub(super) struct Pages {
    file: Arc<File>,
    offset: u64,
    length: usize,
}

impl Drop for Pages {
    fn drop(&mut self) {
        advise(&self.file, self.offset, self.length, PosixFadviseAdvice::POSIX_FADV_DONTNEED);
    }
}

/// The file's version, if it is the requested one.
fn version(file: &File, request: &ReadRequest) -> Result<Fingerprint, ReadError> {
    let seen = fingerprint(&fstat(file).map_err(ReadError::Source)?);
    let expected = &request.fingerprint;
    let same = seen == *expected || !request.exact && seen.is_content_of(expected);
    if same { Ok(seen) } else { Err(ReadError::Changed) }
}

/// A failure costs only time.
fn advise(file: &File, offset: u64, length: usize, advice: PosixFadviseAdvice) {
    let _ = posix_fadvise(file, offset as libc::off_t, length as libc::off_t, advice);
}

/// How many bytes the filesystem's client reads ahead at once, if the kernel tells it.
fn readahead(root: &OwnedFd) -> Option<usize> {
    let device = fstat(root).ok()?.st_dev;
    let (major, minor) = (libc::major(device), libc::minor(device));
    let file = Path::new("/sys/class/bdi").join(format!("{major}:{minor}/read_ahead_kb"));
    let kilobytes: usize = fs::read_to_string(file).ok()?.trim().parse().ok()?;
    kilobytes.checked_mul(1 << 10)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::{PosixSource, Source, Urgency};

    const LENGTH: usize = 3 << 20;

    fn reader(directory: &Path) -> (FileReader, PosixSource) {
        let root = nix::fcntl::open(directory, OFlag::O_DIRECTORY, nix::sys::stat::Mode::empty());
        (FileReader::new(Arc::new(root.unwrap())), PosixSource::open(directory, 1).unwrap())
    }

    fn request(source: &PosixSource, offset: u64, length: usize) -> ReadRequest {
        ReadRequest {
            path: Path::new("file").into(),
            fingerprint: source.stat(Path::new("file")).unwrap().fingerprint(),
            is_sized: true,
            exact: true,
            offset,
            length,
            urgency: Urgency::Demand,
            deliver: Box::new(|_| ()),
        }
    }

    fn bytes(reader: &FileReader, request: &ReadRequest) -> Result<Vec<u8>, ReadError> {
        reader.read(request).map(|(bytes, _)| bytes)
    }

    #[test]
    fn ranges_are_what_the_file_has_there() {
        let directory = tempfile::tempdir().unwrap();
        let all: Vec<u8> = (0..LENGTH as u32 / 4).flat_map(u32::to_le_bytes).collect();
        fs::write(directory.path().join("file"), &all).unwrap();
        let (reader, source) = reader(directory.path());
        for (offset, length) in [(0, LENGTH), (0, 4096), (5000, 1 << 20), (LENGTH - 700, 700)] {
            let read = bytes(&reader, &request(&source, offset as u64, length)).unwrap();
            assert!(read == all[offset..offset + length], "{length} at {offset}");
        }
        let beyond = bytes(&reader, &request(&source, LENGTH as u64, 4096));
        assert_eq!(beyond, Err(ReadError::Source(Errno::EIO)));
    }

    #[test]
    fn a_file_stays_open_as_the_version_that_it_was_opened_as() {
        let directory = tempfile::tempdir().unwrap();
        let (path, other) = (directory.path().join("file"), directory.path().join("other"));
        let (reader, source) = reader(directory.path());
        let is_open = |request: &ReadRequest| {
            reader.open_files.get(&request.path, &request.fingerprint).is_some()
        };
        fs::write(&path, vec![1; LENGTH]).unwrap();
        let [whole, old] = [LENGTH, 4096].map(|length| request(&source, 0, length));
        assert_eq!(bytes(&reader, &whole).map(|read| read[0]), Ok(1));
        assert!(!is_open(&whole), "nothing more is read of it");
        assert_eq!(bytes(&reader, &old), Ok(vec![1; 4096]));
        assert!(is_open(&old));
        fs::write(&other, vec![2; LENGTH]).unwrap();
        fs::rename(&other, &path).unwrap();
        let new = request(&source, 0, 4096);
        assert_eq!(bytes(&reader, &new), Ok(vec![2; 4096]));
        assert!(is_open(&new) && !is_open(&old));
        assert_eq!(bytes(&reader, &old), Err(ReadError::Changed));
        assert_eq!(bytes(&reader, &new), Ok(vec![2; 4096]));
    }
}
