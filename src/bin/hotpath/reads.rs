//! The ways to read a sample.

use std::fs::{self, File};
use std::io::{self, IsTerminal, Read};
use std::num::NonZeroUsize;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;

use belady::page_size::page_bytes;
use nix::dir::Dir;
use nix::fcntl::{AtFlags, OFlag};
use nix::libc;
use nix::sys::stat::{Mode as Permissions, fstat, fstatat};
use rand::SeedableRng;
use rand::rngs::ChaCha8Rng;
use rand::seq::SliceRandom;

use super::{Mode, Timings};

/// Bytes of one read of a shard.
const PIECE: usize = 128 << 10;

/// The samples of a run.
pub(super) enum Samples {
    /// Whole files, and how each is read.
    Files { paths: Vec<PathBuf>, mode: Mode },
    /// Directories, each with its entries.
    Directories(Vec<PathBuf>),
    /// Offsets in one file.
    Pieces { shard: File, offsets: Vec<u64> },
}

impl Samples {
    /// Finds the samples of a mode.
    pub(super) fn find(mode: Mode, path: &Path, seed: u64) -> io::Result<Self> {
        match mode {
            Mode::Walk => Ok(Samples::Directories(directories(path)?)),
            Mode::ShardSeq | Mode::ShardRandom => {
                let shard = File::open(path)?;
                let mut offsets: Vec<u64> = (0..shard.metadata()?.len()).step_by(PIECE).collect();
                if mode == Mode::ShardRandom {
                    offsets.shuffle(&mut ChaCha8Rng::seed_from_u64(seed));
                }
                Ok(Samples::Pieces { shard, offsets })
            }
            _ => Ok(Samples::Files { paths: paths(path)?, mode }),
        }
    }

    /// Reads every `step`th sample from `first` on.
    pub(super) fn read(&self, first: usize, step: usize) -> io::Result<Timings> {
        let mut timings = Timings::default();
        let mut buffer = vec![0; (2 << 20) + 4096];
        match self {
            Samples::Files { paths, mode } => {
                for path in paths.iter().skip(first).step_by(step) {
                    time_file(*mode, path, &mut buffer, &mut timings)?;
                }
            }
            Samples::Directories(directories) => {
                for directory in directories.iter().skip(first).step_by(step) {
                    timings.time(|| Ok((list(directory)?, 0)))?;
                }
            }
            Samples::Pieces { shard, offsets } => {
                for &offset in offsets.iter().skip(first).step_by(step) {
                    timings
                        .time(|| Ok((1, shard.read_at(&mut buffer[..PIECE], offset)? as u64)))?;
                }
            }
        }
        Ok(timings)
    }
}

/// The paths in a list, one a line.
pub(super) fn paths(list: &Path) -> io::Result<Vec<PathBuf>> {
    Ok(fs::read_to_string(list)?.lines().map(PathBuf::from).collect())
}

/// All directories at and below `top`, found before anything is timed.
fn directories(top: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = vec![top.to_path_buf()];
    let mut next = 0;
    while next < found.len() {
        for entry in fs::read_dir(&found[next])? {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                found.push(entry.path());
            }
        }
        next += 1;
    }
    Ok(found)
}

/// Times what a mode does with a file.
fn time_file(mode: Mode, path: &Path, buffer: &mut [u8], timings: &mut Timings) -> io::Result<()> {
    match mode {
        Mode::Mmap => timings.time(|| Ok((1, map_file(path)?))),
        Mode::Open => timings.time(|| open(path).map(|_| (1, 0))),
        Mode::Pages => {
            let mut file = open(path)?;
            timings.time(|| Ok((1, read_to_end(&mut file, buffer)?)))
        }
        Mode::Isatty => {
            let file = open(path)?;
            timings.time(|| Ok((1, u64::from(file.is_terminal()))))
        }
        // A loader reads like this.
        _ => timings.time(|| Ok((1, read_to_end(&mut open(path)?, buffer)?))),
    }
}

/// Opens a file and asks for its attributes.
fn open(path: &Path) -> io::Result<File> {
    let file = File::open(path)?;
    // The standard library would also ask for the time of birth, which other programs do not.
    fstat(&file)?;
    Ok(file)
}

/// Reads a file to its end. Returns its bytes.
fn read_to_end(file: &mut File, buffer: &mut [u8]) -> io::Result<u64> {
    let mut total = 0;
    loop {
        match file.read(buffer)? {
            0 => return Ok(total),
            bytes => total += bytes as u64,
        }
    }
}

/// Maps a file and touches its pages. Returns its bytes.
fn map_file(path: &Path) -> io::Result<u64> {
    with_pages(path, |_, length| Ok(length as u64))
}

/// Maps a file, touches its pages, and calls `then` with the address and the length of the mapping.
pub(super) fn with_pages<T: Default>(
    path: &Path,
    then: impl FnOnce(usize, usize) -> io::Result<T>,
) -> io::Result<T> {
    let file = File::open(path)?;
    let size = fstat(&file)?.st_size;
    let Some(length) = usize::try_from(size).ok().and_then(NonZeroUsize::new) else {
        return Ok(T::default());
    };
    let (protection, flags) = (libc::PROT_READ, libc::MAP_SHARED);
    // SAFETY: a new mapping of an open file, at an address of the kernel's choice.
    let address = unsafe {
        libc::mmap(std::ptr::null_mut(), length.get(), protection, flags, file.as_raw_fd(), 0)
    };
    if address == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    let mapped = NonNull::new(address.cast::<u8>()).ok_or(io::ErrorKind::OutOfMemory)?;
    for at in (0..length.get()).step_by(page_bytes() as usize) {
        // SAFETY: inside the mapping, which lives until the end of this function.
        std::hint::black_box(unsafe { mapped.add(at).read_volatile() });
    }
    let result = then(address as usize, length.get());
    // SAFETY: exactly what was mapped above, and nothing points into it any more.
    if unsafe { libc::munmap(address, length.get()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    result
}

/// Lists a directory with the attributes of its entries. Returns their number.
fn list(directory: &Path) -> io::Result<u64> {
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let mut dir = Dir::open(directory, flags, Permissions::empty())?;
    let mut names = Vec::new();
    for entry in dir.iter() {
        let name = entry?.file_name().to_owned();
        if !matches!(name.to_bytes(), b"." | b"..") {
            names.push(name);
        }
    }
    for name in &names {
        fstatat(&dir, name.as_c_str(), AtFlags::AT_SYMLINK_NOFOLLOW)?;
    }
    Ok(names.len() as u64)
}
