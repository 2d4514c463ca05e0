//! Reading files in all ways, and judging what came of it.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::thread;
use std::time::Duration;

use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};
use nix::libc;
use rand::RngExt;
use rand::rngs::ChaCha8Rng;

use crate::clock::{Nanos, now};
use crate::excuse::name_of;
use crate::shadow::{self, End, Pieces};
use crate::stage::Stage;
use crate::tally::Wrong;
use crate::target::Subject;

/// How a file is read.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Way {
    /// From start to end; the kernel forgets its pages first, or not.
    Whole {
        /// Whether it does.
        forget: bool,
    },
    /// Some ranges of it.
    Ranges,
    /// Its attributes.
    Stat,
}

impl Way {
    fn name(self) -> &'static str {
        match self {
            Way::Whole { .. } => "read",
            Way::Ranges => "read of ranges",
            Way::Stat => "stat",
        }
    }

    fn any(random: &mut ChaCha8Rng) -> Self {
        match random.random_range(0..20) {
            0..6 => Way::Whole { forget: true },
            6..12 => Way::Whole { forget: false },
            12..18 => Way::Ranges,
            _ => Way::Stat,
        }
    }
}

/// Reads files as they come. One who is careful leaves alone what a fault holds.
pub(super) fn act(stage: &Stage, random: &mut ChaCha8Rng, is_careful: bool) {
    while stage.may_go_on() {
        let number = random.random_range(0..stage.shadow.files.len());
        let file = &stage.shadow.files[number];
        let subject = Subject::File(file.name.clone());
        let began = now();
        if is_careful && stage.watch.excuses.held_until(&subject, began) > began {
            // There may be nothing else at the moment.
            stage.sleep(Duration::from_micros(200));
            continue;
        }
        let point = random.random_range(0..stage.points.len());
        let way = Way::any(random);
        read(stage, point, file, way, random);
        // Others are to have a processor, too.
        thread::sleep(Duration::from_micros(random.random_range(0..2000)));
    }
}

/// What was seen of a file.
enum Seen {
    Bytes(Pieces),
    Size(u64),
}

/// Reads a file, and judges it.
pub(super) fn read(
    stage: &Stage,
    point: usize,
    file: &shadow::File,
    way: Way,
    random: &mut ChaCha8Rng,
) {
    let (began, seen) = look(stage, point, file, way, random);
    judge(stage, file, way.name(), began, seen);
}

/// Judges what came of a map.
pub(super) fn judge_map(
    stage: &Stage,
    file: &shadow::File,
    began: Nanos,
    read: io::Result<Pieces>,
) {
    judge(stage, file, "map", began, read.map(Seen::Bytes));
}

/// Reads a file of which the source has what it will have; what is not yet as it should be.
pub(crate) fn attempt(
    stage: &Stage,
    point: usize,
    file: &shadow::File,
    way: Way,
    random: &mut ChaCha8Rng,
) -> Result<(), String> {
    let (began, seen) = look(stage, point, file, way, random);
    let shows_changes = stage.shadow.promise.shows_changes();
    match seen {
        Ok(Seen::Bytes(read)) => {
            let is_late = match shows_changes {
                true => file.check(&file.current(), &read),
                false => Ok(()),
            };
            judge(stage, file, way.name(), began, Ok(Seen::Bytes(read)));
            is_late
        }
        Ok(Seen::Size(_)) => Ok(()),
        // Where nothing is asked twice, a file that is gone may be stale for ever.
        Err(error) if file.body().is_none() => match error.raw_os_error() {
            Some(libc::ENOENT) => Ok(()),
            Some(libc::ESTALE) if !shows_changes => Ok(()),
            _ => Err(error.to_string()),
        },
        Err(error) => match error.raw_os_error() {
            Some(libc::ENOENT) if file.may_stay_absent(&stage.shadow.promise) => Ok(()),
            _ => Err(error.to_string()),
        },
    }
}

/// Reads a file as one operation; when it began, and what was seen.
fn look(
    stage: &Stage,
    point: usize,
    file: &shadow::File,
    way: Way,
    random: &mut ChaCha8Rng,
) -> (Nanos, io::Result<Seen>) {
    let path = stage.at_point(point, &file.name);
    let operation = stage.watch.begin(way.name(), Subject::File(file.name.clone()));
    let seen = match way {
        Way::Whole { forget } => whole(&path, forget).map(Seen::Bytes),
        Way::Ranges => ranges(&path, random).map(Seen::Bytes),
        Way::Stat => fs::metadata(&path).map(|found| Seen::Size(found.len())),
    };
    (operation.began, seen)
}

fn judge(stage: &Stage, file: &shadow::File, way: &str, began: Nanos, seen: io::Result<Seen>) {
    let ended = now();
    let permitted = file.permitted(&stage.shadow.promise, began, ended);
    let judged = match seen {
        Ok(Seen::Bytes(read)) => {
            let bytes: usize = read.pieces.iter().map(|(_, bytes)| bytes.len()).sum();
            stage.watch.tally.counts().bytes += bytes as u64;
            file.check(&permitted, &read)
        }
        Ok(Seen::Size(size)) if permitted.may_have_size(size) => Ok(()),
        Ok(Seen::Size(size)) => {
            Err(format!("{} has {size} bytes, permitted are {}", file.name, permitted.describe()))
        }
        Err(error) => {
            let errno = error.raw_os_error().unwrap_or(0);
            let by_change = match errno {
                libc::ENOENT => permitted.may_be_absent(),
                libc::ESTALE | libc::EFAULT => permitted.has_changed(),
                _ => false,
            };
            let subject = Subject::File(file.name.clone());
            if by_change || stage.explains(errno, &subject, began, ended) {
                stage.watch.tally.counts().explained += 1;
            } else {
                let what = format!("{} of {}: {}", way, file.name, name_of(errno));
                stage.watch.wrong(Wrong::Error, &what);
            }
            Ok(())
        }
    };
    if let Err(what) = judged {
        stage.watch.wrong(Wrong::Bytes, &format!("{}: {what}", way));
    }
}

/// Reads from start to end through one descriptor.
fn whole(path: &Path, forget: bool) -> io::Result<Pieces> {
    let file = File::open(path)?;
    if forget {
        // Only what the kernel wants to forget it does.
        let _ = posix_fadvise(&file, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED);
    }
    let length = file.metadata()?.len();
    // One byte more than there should be, so that the end is seen.
    range(&file, 0, length as usize + 1)
}

/// Reads `length` bytes from `offset` on, or as many as there are.
fn range(file: &File, offset: u64, length: usize) -> io::Result<Pieces> {
    const MOST: usize = 1 << 20;
    let (mut bytes, mut read) = (vec![0; length], 0);
    let mut pieces = Pieces::default();
    while read < length {
        let most = length.min(read + MOST);
        match file.read_at(&mut bytes[read..most], offset + read as u64)? {
            0 => {
                let at = offset + read as u64;
                pieces.ends.push(End { at, is_exact: read > 0 || offset == 0 });
                break;
            }
            more => read += more,
        }
    }
    bytes.truncate(read);
    if !bytes.is_empty() {
        pieces.pieces.push((offset, bytes));
    }
    Ok(pieces)
}

/// Reads some ranges through one descriptor, which must all be of one version.
fn ranges(path: &Path, random: &mut ChaCha8Rng) -> io::Result<Pieces> {
    let file = File::open(path)?;
    let length = file.metadata()?.len();
    let mut all = Pieces::default();
    for _ in 0..random.random_range(1..6) {
        let offset = random.random_range(0..=length);
        let one = range(&file, offset, random.random_range(1..40_000))?;
        all.pieces.extend(one.pieces);
        all.ends.extend(one.ends);
    }
    Ok(all)
}
