//! Reads files in all ways, and judges the results.

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
use crate::fault_log::name_of;
use crate::history::{self, End, Permitted, Pieces};
use crate::plan::COPIES;
use crate::scenario::Scenario;
use crate::stats::Failure;
use crate::target::Subject;

/// The share of reads that read a derived copy, if there are any.
const COPIES_SHARE: f64 = 0.3;

/// How a file is read.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Way {
    /// From start to end.
    Whole {
        /// Whether the kernel first drops its pages of the file.
        drop_pages: bool,
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

    fn draw(random: &mut ChaCha8Rng) -> Self {
        match random.random_range(0..20) {
            0..6 => Way::Whole { drop_pages: true },
            6..12 => Way::Whole { drop_pages: false },
            12..18 => Way::Ranges,
            _ => Way::Stat,
        }
    }
}

/// Reads random files. A careful reader leaves out files that a fault holds.
pub(super) fn run(scenario: &Scenario, random: &mut ChaCha8Rng, is_careful: bool) {
    while scenario.wait_while_paused() {
        let number = random.random_range(0..scenario.history.files.len());
        let file = &scenario.history.files[number];
        let subject = Subject::File(file.name.clone());
        let began = now();
        if is_careful && scenario.watch.faults.held_until(&subject, began) > began {
            // All files may be held at the moment.
            scenario.sleep(Duration::from_micros(200));
            continue;
        }
        let point = random.random_range(0..scenario.points.len());
        let way = Way::draw(random);
        read(scenario, point, file, way, random);
        // Leaves a processor to other threads.
        thread::sleep(Duration::from_micros(random.random_range(0..2000)));
    }
}

/// What one operation saw of a file.
#[derive(Debug, Default)]
struct Seen {
    /// What was read, also before an error.
    pieces: Pieces,
    /// The size in its attributes, if these were requested.
    size: Option<u64>,
    /// The error that ended the operation early.
    error: Option<io::Error>,
}

/// Reads a file and judges the result.
pub(super) fn read(
    scenario: &Scenario,
    point: usize,
    file: &history::File,
    way: Way,
    random: &mut ChaCha8Rng,
) {
    let (began, seen) = observe(scenario, point, file, way, random);
    judge(scenario, file, way.name(), began, seen);
}

/// Judges the result of a map.
pub(super) fn judge_map(
    scenario: &Scenario,
    file: &history::File,
    began: Nanos,
    read: io::Result<Pieces>,
) {
    let seen = match read {
        Ok(pieces) => Seen { pieces, ..Seen::default() },
        Err(error) => Seen { error: Some(error), ..Seen::default() },
    };
    judge(scenario, file, "map", began, seen);
}

/// Reads a file that does not change at the source any more. The error tells what is not right yet.
pub(crate) fn check_once(
    scenario: &Scenario,
    point: usize,
    file: &history::File,
    way: Way,
    random: &mut ChaCha8Rng,
) -> Result<(), String> {
    let (began, seen) = observe(scenario, point, file, way, random);
    let shows_changes = scenario.history.staleness.shows_changes();
    match seen.error {
        None => {
            let result = match shows_changes && !seen.pieces.is_empty() {
                true => file.check(&file.current(), &seen.pieces),
                false => Ok(()),
            };
            judge(scenario, file, way.name(), began, seen);
            result
        }
        // If names are not revalidated, a removed file may be stale for ever.
        Some(error) if file.body().is_none() => match error.raw_os_error() {
            Some(libc::ENOENT) => Ok(()),
            Some(libc::ESTALE) if !shows_changes => Ok(()),
            _ => Err(error.to_string()),
        },
        Some(error) => match error.raw_os_error() {
            Some(libc::ENOENT) if file.may_stay_absent(&scenario.history.staleness) => Ok(()),
            _ => Err(error.to_string()),
        },
    }
}

/// Reads a file as one operation. Returns when it began, and what was seen.
fn observe(
    scenario: &Scenario,
    point: usize,
    file: &history::File,
    way: Way,
    random: &mut ChaCha8Rng,
) -> (Nanos, Seen) {
    let path = match scenario.plan.is_copied && random.random_bool(COPIES_SHARE) {
        true => scenario.at_point(point, &format!(".derived/{COPIES}/{}", file.name)),
        false => scenario.at_point(point, &file.name),
    };
    let operation = scenario.watch.begin(way.name(), Subject::File(file.name.clone()));
    let mut pieces = Pieces::default();
    let size = match way {
        Way::Whole { drop_pages } => read_whole(&path, drop_pages, &mut pieces).map(|()| None),
        Way::Ranges => read_ranges(&path, random, &mut pieces).map(|()| None),
        Way::Stat => fs::metadata(&path).map(|found| Some(found.len())),
    };
    let began = operation.began;
    drop(operation);
    match size {
        Ok(size) => (began, Seen { pieces, size, error: None }),
        Err(error) => (began, Seen { pieces, size: None, error: Some(error) }),
    }
}

/// Judges what was seen. Bytes before an error are judged, too.
fn judge(scenario: &Scenario, file: &history::File, way: &str, began: Nanos, seen: Seen) {
    let ended = now();
    let permitted = file.permitted(&scenario.history.staleness, began, ended);
    scenario.watch.stats.counts().bytes += seen.pieces.length();
    if let Err(what) = seen.check(file, &permitted) {
        scenario.watch.report(Failure::Bytes, &format!("{way}: {what}"));
    }
    let Some(error) = seen.error else { return };
    let errno = error.raw_os_error().unwrap_or(0);
    let by_change = match errno {
        libc::ENOENT => permitted.may_be_absent(),
        libc::ESTALE | libc::EFAULT => permitted.has_changed(),
        _ => false,
    };
    let subject = Subject::File(file.name.clone());
    if by_change || scenario.explains(errno, &subject, began, ended) {
        scenario.watch.stats.counts().explained += 1;
    } else {
        let what = format!("{way} of {}: {}", file.name, name_of(errno));
        scenario.watch.report(Failure::Error, &what);
    }
}

impl Seen {
    /// Checks that its bytes and its size are permitted. The error tells what they are.
    fn check(&self, file: &history::File, permitted: &Permitted) -> Result<(), String> {
        if !self.pieces.is_empty() {
            file.check(permitted, &self.pieces)?;
        }
        match self.size {
            Some(size) if !permitted.may_have_size(size) => Err(format!(
                "{} has {size} bytes, permitted are {}",
                file.name,
                permitted.describe()
            )),
            _ => Ok(()),
        }
    }
}

/// Reads from start to end through one descriptor.
fn read_whole(path: &Path, drop_pages: bool, pieces: &mut Pieces) -> io::Result<()> {
    let file = File::open(path)?;
    if drop_pages {
        // The kernel may keep some pages.
        let _ = posix_fadvise(&file, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED);
    }
    let length = file.metadata()?.len();
    // One byte more than the file should have, so that the end is seen.
    read_range(&file, 0, length as usize + 1, pieces)
}

/// Reads `length` bytes from `offset` on, or fewer if the file ends. Bytes before an error are added to the
/// pieces, too.
fn read_range(
    file: &impl FileExt,
    offset: u64,
    length: usize,
    pieces: &mut Pieces,
) -> io::Result<()> {
    const MOST: usize = 1 << 20;
    let (mut bytes, mut read) = (vec![0; length], 0);
    let mut result = Ok(());
    while read < length {
        let most = length.min(read + MOST);
        match file.read_at(&mut bytes[read..most], offset + read as u64) {
            Ok(0) => {
                let at = offset + read as u64;
                pieces.ends.push(End { at, is_exact: read > 0 || offset == 0 });
                break;
            }
            Ok(more) => read += more,
            Err(error) => {
                result = Err(error);
                break;
            }
        }
    }
    bytes.truncate(read);
    if !bytes.is_empty() {
        pieces.pieces.push((offset, bytes));
    }
    result
}

/// Reads some ranges through one descriptor. All must be of one version.
fn read_ranges(path: &Path, random: &mut ChaCha8Rng, pieces: &mut Pieces) -> io::Result<()> {
    let file = File::open(path)?;
    let length = file.metadata()?.len();
    for _ in 0..random.random_range(1..6) {
        let offset = random.random_range(0..=length);
        read_range(&file, offset, random.random_range(1..40_000), pieces)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::{Body, Staleness};

    /// Some bytes, and then EIO.
    struct Failing(Vec<u8>);

    impl FileExt for Failing {
        fn read_at(&self, into: &mut [u8], offset: u64) -> io::Result<usize> {
            let rest = self.0.get(offset as usize..).unwrap_or_default();
            if rest.is_empty() {
                return Err(io::Error::from_raw_os_error(libc::EIO));
            }
            let length = rest.len().min(into.len());
            into[..length].copy_from_slice(&rest[..length]);
            Ok(length)
        }

        fn write_at(&self, _: &[u8], _: u64) -> io::Result<usize> {
            unreachable!("nothing is written")
        }
    }

    #[test]
    fn bytes_before_an_error_are_judged() {
        let body = Body { content: 1, size: 1000 };
        let file = history::File::new(3, "d/0003".into(), body, 0);
        let permitted = file.permitted(&Staleness::new(None, 0), 1, 2);
        for (right, bytes) in [(true, file.bytes(body)), (false, vec![7; 1000])] {
            let mut pieces = Pieces::default();
            let read = read_range(&Failing(bytes[..600].to_vec()), 0, 1001, &mut pieces);
            assert_eq!(read.map_err(|error| error.raw_os_error()), Err(Some(libc::EIO)));
            assert_eq!(pieces.length(), 600);
            let seen = Seen { pieces, ..Seen::default() };
            assert_eq!(seen.check(&file, &permitted).is_ok(), right);
        }
    }
}
