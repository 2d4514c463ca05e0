//! The runtime directory: sockets, logs and notes of running mounts, and locks of sources.

use std::ffi::OsStr;
use std::fmt::Display;
use std::fs::{self, DirBuilder, File};
use std::io::ErrorKind as IoErrorKind;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use nix::mount::MsFlags;
use serde::{Deserialize, Serialize};

use crate::config::View;
use crate::error::{Error, ErrorKind, Result};

/// The note of one mount.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MountNote {
    /// The daemon's process.
    pub pid: u32,
    #[serde(with = "crate::paths")]
    pub source: PathBuf,
    /// Device and inode of the source.
    pub identity: (u64, u64),
    /// What of it is shown.
    #[serde(default)]
    pub view: View,
    #[serde(with = "crate::paths")]
    pub mountpoint: PathBuf,
    /// The device of the mount, as the mount table writes it.
    #[serde(default)]
    pub device: Option<String>,
    /// Whether the daemon ends with a `belady run`. Then no other command shares it.
    #[serde(default)]
    pub of_run: bool,
}

#[derive(Clone, Debug)]
pub struct MountDirectory(PathBuf);

/// `$XDG_RUNTIME_DIR/belady`, else `/run/belady` for root and `/tmp/belady-UID` for other users.
fn runtime_directory() -> PathBuf {
    let user = nix::unistd::geteuid();
    match std::env::var_os("XDG_RUNTIME_DIR") {
        Some(directory) if !directory.is_empty() => PathBuf::from(directory).join("belady"),
        _ if user.is_root() => PathBuf::from("/run/belady"),
        _ => PathBuf::from(format!("/tmp/belady-{user}")),
    }
}

fn refuse(directory: &Path, what: impl Display) -> Error {
    Error::new(ErrorKind::Mount, format!("{}: {what}", directory.display()))
}

const ELSEWHERE: &str = "set XDG_RUNTIME_DIR to a directory of your own";

/// Makes a directory that only its owner can enter, or checks that it is one.
fn create_private(directory: &Path) -> Result<()> {
    let made = DirBuilder::new().recursive(true).mode(0o700).create(directory);
    made.map_err(|error| refuse(directory, format!("cannot be made: {error}")).hint(ELSEWHERE))?;
    match is_private(directory)? {
        true => Ok(()),
        false => Err(refuse(directory, "is gone again").hint(ELSEWHERE)),
    }
}

/// Whether a directory exists. It must be ours: notes of other users are not believed, and their sockets are
/// asked nothing.
///
/// # Errors
/// If it belongs to another user, or other users can write to it.
fn is_private(directory: &Path) -> Result<bool> {
    let found = match fs::symlink_metadata(directory) {
        Err(error)
            if matches!(error.kind(), IoErrorKind::NotFound | IoErrorKind::NotADirectory) =>
        {
            return Ok(false);
        }
        found => found.map_err(|error| refuse(directory, error).hint(ELSEWHERE))?,
    };
    if !found.is_dir() || found.uid() != nix::unistd::geteuid().as_raw() {
        return Err(refuse(directory, "is not a directory of yours").hint(ELSEWHERE));
    }
    if found.mode() & 0o022 != 0 {
        let fix = format!("look at what is in it, then `chmod go-w {}`", directory.display());
        return Err(refuse(directory, "others can write to it").hint(fix));
    }
    Ok(true)
}

impl MountDirectory {
    /// The directory of the mount at a path, even if it does not exist.
    pub fn of(mountpoint: &Path) -> Self {
        // FNV-1a: the name is the same in every version of belady.
        let hash =
            mountpoint.as_os_str().as_bytes().iter().fold(0xcbf2_9ce4_8422_2325, |h, byte| {
                (h ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3)
            });
        MountDirectory(runtime_directory().join(format!("{hash:016x}")))
    }

    /// Makes the directory.
    ///
    /// # Errors
    /// If it cannot be made, or belongs to another user.
    pub fn create(&self) -> Result<()> {
        create_private(&runtime_directory())?;
        create_private(&self.0)
    }

    /// Its name, which is that of no other mount point.
    pub(super) fn name(&self) -> String {
        self.0.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    pub fn socket(&self) -> PathBuf {
        self.0.join("socket")
    }

    /// The directory of this node's shard of a cluster.
    pub fn shard(&self) -> PathBuf {
        self.0.join("shard")
    }

    /// The log of a daemon in the background.
    pub fn log(&self) -> PathBuf {
        self.0.join("log")
    }

    /// Writes the note.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn write_note(&self, note: &MountNote) -> Result<()> {
        let text = serde_json::to_vec(note).unwrap_or_default();
        let temporary = self.0.join("mount.json.new");
        fs::write(&temporary, text)
            .and_then(|()| fs::rename(&temporary, self.0.join("mount.json")))
            .map_err(|error| Error::new(ErrorKind::Mount, format!("{}: {error}", self.0.display())))
    }

    /// Reads the note, if there is one.
    pub fn read_note(&self) -> Option<MountNote> {
        serde_json::from_slice(&fs::read(self.0.join("mount.json")).ok()?).ok()
    }

    /// Links this socket to the one of another mount, whose daemon then answers here.
    ///
    /// # Errors
    /// If the link cannot be made.
    pub fn link(&self, daemon: &MountDirectory) -> Result<()> {
        let _ = fs::remove_file(self.socket());
        // They are beside each other, whatever the path to both is.
        let name = daemon.0.file_name().unwrap_or_default();
        let target = Path::new("..").join(name).join("socket");
        std::os::unix::fs::symlink(target, self.socket())
            .map_err(|error| Error::new(ErrorKind::Mount, format!("{}: {error}", self.0.display())))
    }

    /// Removes socket and note, unless they are of a later daemon.
    pub fn clear_own(&self) {
        if self.read_note().is_some_and(|note| note.pid == std::process::id()) {
            self.clear();
        }
    }

    /// Removes socket and note. The log stays.
    pub fn clear(&self) {
        for name in ["socket", "mount.json"] {
            let _ = fs::remove_file(self.0.join(name));
        }
    }
}

/// The directory of all mounts. Makes it if it is missing.
///
/// # Errors
/// If it cannot be made, or belongs to another user.
pub fn create_runtime() -> Result<PathBuf> {
    let directory = runtime_directory();
    create_private(&directory)?;
    Ok(directory)
}

/// The lock on a source that is being mounted, until it is dropped or the process has ended. A second mount
/// of the source waits for it, and then finds what became of the first.
#[derive(Debug)]
pub struct SourceLock {
    lock: Flock<File>,
}

impl SourceLock {
    /// Takes the lock. If it has to wait, it calls `waits` before. None if files cannot be locked.
    ///
    /// # Errors
    /// If the runtime directory cannot be used.
    pub fn acquire((device, inode): (u64, u64), waits: impl FnOnce()) -> Result<Option<Self>> {
        let path = create_runtime()?.join(format!("source-{device:x}-{inode:x}.lock"));
        let cannot = |errno: &dyn Display| refuse(&path, errno).hint(ELSEWHERE);
        let file = File::options().create(true).append(true).mode(0o600).open(&path);
        let file = file.map_err(|error| cannot(&error))?;
        let mut lock = match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Err((file, Errno::EWOULDBLOCK)) => {
                waits();
                Flock::lock(file, FlockArg::LockExclusive)
            }
            outcome => outcome,
        };
        while let Err((file, Errno::EINTR)) = lock {
            lock = Flock::lock(file, FlockArg::LockExclusive);
        }
        match lock {
            Ok(lock) => Ok(Some(SourceLock { lock })),
            // Two mounts that begin at once are not noticed then.
            Err((_, Errno::ENOSYS | Errno::EOPNOTSUPP | Errno::ENOLCK)) => Ok(None),
            Err((_, errno)) => Err(cannot(&errno.desc())),
        }
    }

    /// The input by which a child process holds the lock, in case this process is killed.
    ///
    /// # Errors
    /// If no more files can be opened.
    pub fn input(&self) -> std::io::Result<Stdio> {
        self.lock.try_clone().map(Stdio::from)
    }
}

/// Whether the directory of all mounts exists. It must be ours.
///
/// # Errors
/// If it belongs to another user, or other users can write to it.
pub fn has_runtime() -> Result<bool> {
    is_private(&runtime_directory())
}

/// The notes of all mounts that this process may share, dead ones included. Those of [runs](RunDirectory) are not among
/// them.
///
/// # Errors
/// If other users could have written them.
pub fn mount_notes() -> Result<Vec<MountNote>> {
    let found = if has_runtime()? { notes_in(&runtime_directory()) } else { Vec::new() };
    Ok(found.into_iter().map(|(_, note)| note).collect())
}

/// The notes of all mounts, with those of runs, dead ones included.
///
/// # Errors
/// If other users could have written them.
pub fn all_mounts() -> Result<Vec<(MountDirectory, MountNote)>> {
    if !has_runtime()? {
        return Ok(Vec::new());
    }
    let runs = runs_in(&runtime_directory()).into_iter().filter(|run| !is_over(run));
    let of_runs = runs.flat_map(|run| notes_in(&run));
    Ok(notes_in(&runtime_directory()).into_iter().chain(of_runs).collect())
}

fn notes_in(directory: &Path) -> Vec<(MountDirectory, MountNote)> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let directories = entries.map(|entry| MountDirectory(entry.path()));
    let mut found: Vec<_> = directories
        .filter_map(|directory| directory.read_note().map(|note| (directory, note)))
        .collect();
    found.sort_by(|(_, a), (_, b)| a.mountpoint.cmp(&b.mountpoint));
    found
}

/// How the names of the directories of runs begin.
const RUN: &str = "run-";

fn runs_in(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let is_run = |name: &OsStr| name.as_bytes().starts_with(RUN.as_bytes());
    entries.filter(|entry| is_run(&entry.file_name())).map(|entry| entry.path()).collect()
}

/// The directory of a `belady run`, which stands in for the runtime directory in its mount namespace. So its mounts are
/// not those that other commands find at the same paths. It is locked as long as the run lasts.
#[derive(Debug)]
pub struct RunDirectory {
    /// The runtime directory, which stays open: [`cover`](Self::cover) hides its path.
    outer: File,
    path: PathBuf,
    /// `None` if files cannot be locked there. Then the directory of a killed run stays.
    _lock: Option<Flock<File>>,
}

impl RunDirectory {
    /// Makes one. Those of runs that were killed are removed.
    ///
    /// # Errors
    /// If it cannot be made, or the runtime directory belongs to another user.
    pub fn create() -> Result<Self> {
        let outer = create_runtime()?;
        for run in runs_in(&outer).into_iter().filter(|run| is_over(run)) {
            let _ = fs::remove_dir_all(run);
        }
        let cannot = |error: &dyn Display| refuse(&outer, error).hint(ELSEWHERE);
        let made = tempfile::Builder::new().prefix(RUN).tempdir_in(&outer);
        let path = made.map_err(|error| cannot(&error))?.keep();
        let lock = lock_run(&path, FlockArg::LockExclusive).ok();
        let outer = File::open(&outer).map_err(|error| cannot(&error))?;
        Ok(RunDirectory { outer, path, _lock: lock })
    }

    /// Has it stand in for the runtime directory, in the mount namespace of this process.
    ///
    /// # Errors
    /// If that is not permitted.
    pub fn cover(&self) -> Result<()> {
        let (at, none) = (runtime_directory(), None::<&str>);
        nix::mount::mount(Some(&self.path), &at, none, MsFlags::MS_BIND, none)
            .map_err(|errno| refuse(&at, format!("cannot be covered: {}", errno.desc())))
    }
}

impl Drop for RunDirectory {
    fn drop(&mut self) {
        let open = Path::new("/proc/self/fd").join(self.outer.as_raw_fd().to_string());
        if let Some(name) = self.path.file_name() {
            let _ = fs::remove_dir_all(open.join(name));
        }
    }
}

/// A run has its directory locked at this age.
const LOCKED_AFTER: Duration = Duration::from_secs(60);

/// Whether the run of a directory has ended.
fn is_over(run: &Path) -> bool {
    let made = fs::metadata(run).and_then(|found| found.modified());
    let is_old = made.is_ok_and(|made| made.elapsed().is_ok_and(|age| age > LOCKED_AFTER));
    is_old && lock_run(run, FlockArg::LockExclusiveNonblock).is_ok()
}

/// Locks the directory of a run as long as the result lives.
fn lock_run(run: &Path, how: FlockArg) -> std::io::Result<Flock<File>> {
    let file = File::options().create(true).append(true).mode(0o600).open(run.join("lock"))?;
    Ok(Flock::lock(file, how).map_err(|(_, errno)| errno)?)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::time::SystemTime;

    use super::*;

    #[test]
    fn the_directory_of_a_run_is_locked_while_it_lasts() {
        let top = tempfile::tempdir().unwrap();
        let (living, dead) = (top.path().join("run-a"), top.path().join("run-b"));
        [&living, &dead].into_iter().for_each(|run| fs::create_dir(run).unwrap());
        fs::create_dir(top.path().join("0123")).unwrap();
        let mut runs = runs_in(top.path());
        runs.sort();
        assert_eq!(runs, [living.clone(), dead.clone()]);
        let lock = lock_run(&living, FlockArg::LockExclusive).unwrap();
        drop(lock_run(&dead, FlockArg::LockExclusive).unwrap());
        assert!(!is_over(&living) && !is_over(&dead), "they may just have begun");
        let long_ago = SystemTime::now() - 2 * LOCKED_AFTER;
        for run in [&living, &dead] {
            File::open(run).unwrap().set_modified(long_ago).unwrap();
        }
        assert!(!is_over(&living) && is_over(&dead));
        drop(lock);
        assert!(is_over(&living));
    }

    #[test]
    fn only_a_directory_of_our_own_is_believed() {
        let top = tempfile::tempdir().unwrap();
        let (own, link) = (top.path().join("own"), top.path().join("link"));
        assert_eq!(is_private(&own), Ok(false));
        create_private(&own).unwrap();
        symlink(&own, &link).unwrap();
        assert!(is_private(&link).unwrap_err().message().contains("not a directory of yours"));
        for (mode, believed) in [(0o700, true), (0o755, true), (0o770, false), (0o702, false)] {
            fs::set_permissions(&own, fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(
                (is_private(&own).is_ok(), create_private(&own).is_ok()),
                (believed, believed)
            );
        }
    }
}
