//! A source in which archives are directories: tar files and zip files show the files in them.
//!
//! 1. The directories of the source are listed. A file whose name ends in `.tar` or `.zip` is an archive. All other
//!    regular files are shown, too. Links are left out.
//! 2. The headers of each archive are read ([`tar`], [`zip`]), some archives at a time ([`headers`]). Its members are
//!    shown in the directory that the archive is in, as if it had been extracted there.
//! 3. A read of a member is a read of its range in the archive. If members that lie one behind the other are asked for
//!    at once, they come with one read ([`joined`]). The source checks the version of the archive before and after. If
//!    an archive changes, all of its members have changed.
//!
//! Whoever may read an archive may read its members.

mod headers;
mod joined;
mod range_reader;
mod tar;
mod zip;

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use nix::errno::Errno;

use super::keyed::{Keyed, say_fault};
use super::tree::{Access, Blob, Blobs, Listing, PathFault, hash};
use super::{Calls, Fingerprint, Kind, ReadError, ReadRequest, Source, SourceFailures, Stat};
use crate::error::{Error, ErrorKind, Result as UserResult};
use crate::limiter::Limiter;
use crate::sync::Mutex;
use headers::Reading;

/// How long after a change of a file whose filesystem has whole seconds another change may look the same.
const UNSETTLED_FOR: Duration = Duration::from_secs(2);

/// How long the version of an archive counts as known.
const KNOWN_FOR: Duration = Duration::from_secs(1);

/// What tells this view of a source from the source itself.
const VIEW: u128 = 0x6172_6368_6976_6573;

/// A file in an archive.
#[derive(Debug)]
struct Member {
    path: PathBuf,
    /// Where its bytes begin in the archive, and how many there are.
    offset: u64,
    size: u64,
    /// Nanoseconds since 1970; `None` if the archive does not tell.
    mtime_ns: Option<i64>,
}

/// What is in an archive.
#[derive(Debug, Default)]
struct Members {
    files: Vec<Member>,
    directories: Vec<PathBuf>,
    /// Links, devices and the like, which are not shown.
    others: usize,
}

/// An archive, or a file beside archives.
#[derive(Debug)]
struct Shard {
    path: Arc<Path>,
    fingerprint: Fingerprint,
}

/// A file or directory of the source.
type FoundFile = (PathBuf, Stat);

/// Where the bytes of a file are.
#[derive(Debug)]
pub(super) struct Place {
    shard: Arc<Shard>,
    offset: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Format {
    Tar,
    Zip,
}

impl Format {
    fn of(path: &Path) -> Option<Self> {
        let extension = path.extension()?.to_ascii_lowercase();
        match extension.to_str()? {
            "tar" => Some(Format::Tar),
            "zip" => Some(Format::Zip),
            _ => None,
        }
    }
}

/// The archives of a source.
pub(super) struct Archives {
    source: Arc<dyn Source>,
    /// The name of the one archive to show, if not all are.
    only: Option<OsString>,
    /// When an archive was last found as it was listed.
    known: Arc<Mutex<HashMap<Arc<Path>, Instant>>>,
    /// Reads of headers.
    headers: Calls,
}

impl Archives {
    /// The archives of `source`, or the one named `only` at its top. The limiter is of the reads of headers.
    pub(super) fn new(source: Arc<dyn Source>, only: Option<OsString>, limiter: Limiter) -> Self {
        Archives { source, only, known: Arc::default(), headers: Calls::new(limiter) }
    }

    /// The lasting identity of the archives of a source that has this one, or of `only` one of them.
    pub(super) fn identity(source: u128, only: Option<&OsStr>) -> u128 {
        source ^ VIEW ^ only.map_or(0, |only| u128::from(hash(&[only.as_bytes()])))
    }

    /// The same request, whose answer tells whether the archive is still as it was.
    fn heard(&self, request: ReadRequest) -> ReadRequest {
        let (known, path, deliver) =
            (Arc::clone(&self.known), Arc::clone(&request.path), request.deliver);
        let deliver = move |read: Result<Vec<u8>, ReadError>| {
            if read == Err(ReadError::Changed) {
                known.lock().remove(&path);
            }
            deliver(read);
        };
        ReadRequest { deliver: Box::new(deliver), ..request }
    }

    /// All regular files of the source, and all directories.
    fn walk(&self) -> UserResult<(Vec<FoundFile>, Vec<FoundFile>)> {
        let root = self.source.stat(Path::new(""));
        let root = root.map_err(|errno| unreadable(Path::new("."), errno))?;
        let (mut files, mut directories) = (Vec::new(), vec![(PathBuf::new(), root)]);
        if let Some(only) = &self.only {
            let path = PathBuf::from(only);
            let stat = self.source.stat(&path).map_err(|errno| unreadable(&path, errno))?;
            if stat.kind != Kind::File {
                return Err(unreadable(&path, Errno::EISDIR)
                    .hint("if archives are in it, end the URL with a slash"));
            }
            return Ok((vec![(path, stat)], directories));
        }
        let mut next = 0;
        while let Some((directory, _)) = directories.get(next).cloned() {
            next += 1;
            let mut names = Vec::new();
            let listed =
                self.source.list_in_parts(&directory, &mut |part| names.extend_from_slice(part));
            match listed {
                // A store may have such a key in it.
                Err(Errno::EPERM) if !directory.as_os_str().is_empty() => {
                    tracing::warn!(?directory, "a directory that cannot be read is not shown");
                    continue;
                }
                listed => listed.map_err(|errno| unreadable(&directory, errno))?,
            }
            for (name, stat) in names.iter().zip(self.source.stat_all(&directory, &names)) {
                let path = directory.join(name);
                match stat {
                    Ok(stat) if stat.kind == Kind::Directory => directories.push((path, stat)),
                    Ok(stat) if stat.kind == Kind::File => files.push((path, stat)),
                    // It has gone since it was listed.
                    Ok(_) | Err(Errno::ENOENT) => {}
                    Err(errno) => return Err(unreadable(&path, errno)),
                }
            }
        }
        Ok((files, directories))
    }
}

/// A number that tells whether files or directories have changed.
fn state_of(files: &[FoundFile], directories: &[FoundFile]) -> u64 {
    let files = files
        .iter()
        .map(|(path, stat)| hash(&[path.as_os_str().as_bytes(), stat.fingerprint().lasting()]));
    let directories = directories.iter().map(|(path, stat)| {
        let Access { mode, uid, gid } = access_of(stat, 0o777);
        hash(&[path.as_os_str().as_bytes(), format!("{mode} {uid} {gid}").as_bytes()])
    });
    // They may be listed in any order.
    files.chain(directories).fold(0, u64::wrapping_add)
}

/// Whether the file may have changed since without another time.
fn is_unsettled(stat: &Stat) -> bool {
    let changed = UNIX_EPOCH + Duration::from_nanos(stat.ctime_ns.max(0) as u64);
    let is_whole = stat.ctime_ns % 1_000_000_000 == 0;
    is_whole && SystemTime::now().duration_since(changed).is_ok_and(|age| age < UNSETTLED_FOR)
}

fn access_of(stat: &Stat, mask: u16) -> Access {
    Access { mode: stat.mode & mask, uid: stat.uid, gid: stat.gid }
}

fn unreadable(path: &Path, errno: Errno) -> Error {
    let message = format!("cannot read {} in the source: {}", path.display(), errno.desc());
    Error::new(ErrorKind::Source, message)
}

fn broken(archive: &Path, what: &str) -> Error {
    Error::new(ErrorKind::Source, format!("the archive {}: {what}", archive.display()))
}

/// Why an archive cannot be shown.
enum Fault {
    /// It cannot be read, or is none.
    Io(std::io::Error),
    /// It has something that cannot be read in place.
    Unsupported(String),
}

impl Fault {
    fn at(self, archive: &Path) -> Error {
        match self {
            Fault::Io(error) => broken(archive, &error.to_string())
                .hint("is it whole? Compressed archives must be named other than .tar"),
            Fault::Unsupported(what) => broken(archive, &what).hint(
                "members are read in place: write the archive without compression and holes \
                 (`tar cf`, `zip -0`)",
            ),
        }
    }
}

impl From<std::io::Error> for Fault {
    fn from(error: std::io::Error) -> Self {
        Fault::Io(error)
    }
}

/// A member's path below the archive's directory, as extracting it would make it: without a leading `/` or `./`.
fn place_of(path: &Path) -> PathBuf {
    let is_part = |part: &std::path::Component<'_>| {
        !matches!(part, std::path::Component::RootDir | std::path::Component::CurDir)
    };
    path.components().filter(is_part).collect()
}

impl Keyed for Archives {
    type Key = Place;

    fn lasting_identity(&self) -> u128 {
        Archives::identity(self.source.lasting_identity(), self.only.as_deref())
    }

    fn list(&self, known: Option<u64>, seen: &AtomicU64) -> UserResult<Option<Listing<Place>>> {
        let (files, found) = self.walk()?;
        let state = state_of(&files, &found);
        if known == Some(state) && !files.iter().any(|(_, stat)| is_unsettled(stat)) {
            return Ok(None);
        }
        if !files.iter().any(|(path, _)| Format::of(path).is_some()) {
            return Err(Error::new(
                ErrorKind::Source,
                "there is no .tar and no .zip file in the source",
            )
            .hint("its files are shown as they are without `--as files` and BELADY_SOURCE_VIEW"));
        }
        let (source, calls, is_first) = (&self.source, &self.headers, known.is_none());
        let archives = Reading { source, calls, is_first, seen }.all(&files)?;
        let access = |(path, stat): &FoundFile| (path.clone(), access_of(stat, 0o555));
        let access = found.iter().map(access).collect();
        let mut directories: Vec<PathBuf> = found.into_iter().map(|(path, _)| path).collect();
        let mut blobs = Blobs::default();
        for ((path, stat), members) in files.into_iter().zip(archives) {
            let fingerprint = stat.fingerprint();
            let shard = Arc::new(Shard { path: path.as_path().into(), fingerprint });
            let access = access_of(&stat, 0o444);
            let blob = |offset, size, mtime_ns| Blob {
                size: Some(size),
                mtime_ns,
                changed_ns: stat.ctime_ns,
                version: hash(&[fingerprint.lasting(), &u64::to_le_bytes(offset)]),
                access,
                key: Place { shard: Arc::clone(&shard), offset },
            };
            let Some(members) = members else {
                blobs.add(&path, blob(0, stat.size, stat.mtime_ns));
                continue;
            };
            let above = path.parent().unwrap_or(Path::new(""));
            directories.extend(members.directories.iter().map(|path| above.join(path)));
            blobs.extend(members.files.into_iter().map(|member| {
                let mtime_ns = member.mtime_ns.unwrap_or(stat.mtime_ns);
                (above.join(member.path), blob(member.offset, member.size, mtime_ns))
            }));
        }
        directories.retain(|path| !path.as_os_str().is_empty());
        Ok(Some(Listing { blobs, directories, access, state, guess: 0 }))
    }

    fn refuse(&self, fault: &PathFault) -> Error {
        let hint = match fault {
            PathFault::Twice(_) => {
                "archives are shown as if they had been extracted where they are: move one of them"
            }
            _ => "extracting the archives would fail, too",
        };
        let message = format!("the archives are no tree of files: {}", say_fault(fault));
        Error::new(ErrorKind::Source, message).hint(hint)
    }

    fn is_current(&self, blob: &Blob<Place>) -> Result<bool, Errno> {
        let shard = &blob.key.shard;
        let is_new = |at: &Instant| at.elapsed() < KNOWN_FOR;
        if self.known.lock().get(&shard.path).is_some_and(is_new) {
            return Ok(true);
        }
        let asked = Instant::now();
        let is_current = match self.source.stat_anew(&shard.path) {
            Ok(stat) => stat.fingerprint() == shard.fingerprint,
            Err(Errno::ENOENT) => false,
            Err(errno) => return Err(errno),
        };
        if is_current {
            self.known.lock().insert(Arc::clone(&shard.path), asked);
        }
        Ok(is_current)
    }

    fn read(&self, blob: &Blob<Place>, request: ReadRequest) {
        self.read_all(vec![(blob, request)]);
    }

    fn has_neighbours(&self) -> bool {
        true
    }

    fn lies_behind(&self, before: &Blob<Place>, blob: &Blob<Place>) -> bool {
        let (one, other) = (&before.key, &blob.key);
        let end = one.offset + before.size.unwrap_or_default();
        Arc::ptr_eq(&one.shard, &other.shard) && joined::is_behind(end, other.offset)
    }

    fn read_all(&self, requests: Vec<(&Blob<Place>, ReadRequest)>) {
        let in_archive = requests.into_iter().map(|(blob, request)| {
            let Place { shard, offset } = &blob.key;
            ReadRequest {
                path: Arc::clone(&shard.path),
                fingerprint: shard.fingerprint,
                offset: offset + request.offset,
                ..request
            }
        });
        let joined = joined::join(in_archive);
        self.source.read(joined.into_iter().map(|request| self.heard(request)).collect());
    }

    fn is_hedged(&self) -> bool {
        self.source.is_hedged()
    }

    fn overloads(&self) -> u64 {
        self.source.overloads()
    }

    fn failures(&self) -> Option<SourceFailures> {
        self.source.failures()
    }

    fn advice(&self) -> Option<String> {
        self.source.advice()
    }

    fn list_xattrs(&self, directory: &Path) -> Result<Vec<u8>, Errno> {
        match self.source.list_xattrs(directory) {
            // It is a directory in an archive.
            Err(Errno::ENOENT) => Ok(Vec::new()),
            listed => listed,
        }
    }

    fn xattr(&self, directory: &Path, name: &OsStr) -> Result<Vec<u8>, Errno> {
        match self.source.xattr(directory, name) {
            Err(Errno::ENOENT) => Err(Errno::ENODATA),
            found => found,
        }
    }

    fn space(&self) -> Result<[u64; 7], Errno> {
        self.source.space()
    }

    fn close_idle(&self) {
        self.source.close_idle();
    }
}

/// Whether a path is that of an archive, by its name.
pub(super) fn is_archive(path: &Path) -> bool {
    Format::of(path).is_some()
}

#[cfg(test)]
mod tests;
