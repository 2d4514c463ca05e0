//! Where the sockets and logs of running mounts are.

use std::fmt::Display;
use std::fs::{self, DirBuilder, File};
use std::io::ErrorKind as IoErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use serde::{Deserialize, Serialize};

use crate::error::{Error, ErrorKind, Result};

/// What a mount's directory says of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Running {
    /// The daemon's process.
    pub pid: u32,
    #[serde(with = "crate::paths")]
    pub source: PathBuf,
    /// Device and inode of that directory.
    pub identity: (u64, u64),
    /// Where it is mounted.
    #[serde(with = "crate::paths")]
    pub mountpoint: PathBuf,
    /// The mount's own device, as the mount table writes it.
    #[serde(default)]
    pub device: Option<String>,
}

/// The directory of one mount: socket, log and note.
#[derive(Clone, Debug)]
pub struct MountDirectory(PathBuf);

/// `$XDG_RUNTIME_DIR/belady`, `/run/belady` for root, else `/tmp/belady-UID`.
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
fn private(directory: &Path) -> Result<()> {
    let made = DirBuilder::new().recursive(true).mode(0o700).create(directory);
    made.map_err(|error| refuse(directory, format!("cannot be made: {error}")).hint(ELSEWHERE))?;
    match is_private(directory)? {
        true => Ok(()),
        false => Err(refuse(directory, "is gone again").hint(ELSEWHERE)),
    }
}

/// Whether a directory is there, which must be ours: what others could have put into it is not
/// believed, and nobody who may have made a socket there is asked anything.
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
    /// The directory of the mount at a path, whether it exists or not.
    pub fn of(mountpoint: &Path) -> Self {
        // FNV-1a: the same name in every version of belady.
        let hash =
            mountpoint.as_os_str().as_bytes().iter().fold(0xcbf2_9ce4_8422_2325, |h, byte| {
                (h ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3)
            });
        MountDirectory(runtime_directory().join(format!("{hash:016x}")))
    }

    /// Makes the directory.
    ///
    /// # Errors
    /// Where it cannot be made, or belongs to someone else.
    pub fn create(&self) -> Result<()> {
        private(&runtime_directory())?;
        private(&self.0)
    }

    /// The control socket.
    pub fn socket(&self) -> PathBuf {
        self.0.join("socket")
    }

    /// The log of a daemon in the background.
    pub fn log(&self) -> PathBuf {
        self.0.join("log")
    }

    /// Notes what is mounted.
    ///
    /// # Errors
    /// Where the note cannot be written.
    pub fn note(&self, running: &Running) -> Result<()> {
        let text = serde_json::to_vec(running).unwrap_or_default();
        let temporary = self.0.join("mount.json.new");
        fs::write(&temporary, text)
            .and_then(|()| fs::rename(&temporary, self.0.join("mount.json")))
            .map_err(|error| Error::new(ErrorKind::Mount, format!("{}: {error}", self.0.display())))
    }

    /// What the note says, if there is one.
    pub fn running(&self) -> Option<Running> {
        serde_json::from_slice(&fs::read(self.0.join("mount.json")).ok()?).ok()
    }

    /// Has the socket of another mount's daemon answer here too.
    ///
    /// # Errors
    /// Where the link cannot be made.
    pub fn link(&self, daemon: &MountDirectory) -> Result<()> {
        let _ = fs::remove_file(self.socket());
        std::os::unix::fs::symlink(daemon.socket(), self.socket())
            .map_err(|error| Error::new(ErrorKind::Mount, format!("{}: {error}", self.0.display())))
    }

    /// Removes socket and note, unless they are of another daemon that came after this one.
    pub fn clear_own(&self) {
        if self.running().is_some_and(|running| running.pid == std::process::id()) {
            self.clear();
        }
    }

    /// Removes socket and note; the log stays for those who want to know.
    pub fn clear(&self) {
        for name in ["socket", "mount.json"] {
            let _ = fs::remove_file(self.0.join(name));
        }
    }
}

/// The directory of all mounts, made where it is missing.
///
/// # Errors
/// Where it cannot be made, or belongs to someone else.
pub fn runtime() -> Result<PathBuf> {
    let directory = runtime_directory();
    private(&directory)?;
    Ok(directory)
}

/// A turn to mount a source, until it is dropped or the process has ended: whoever mounts it at the same
/// time waits for that, and then finds out what has become of it.
#[derive(Debug)]
pub struct Turn {
    lock: Flock<File>,
}

impl Turn {
    /// Waits for the turn, and calls `waits` before it does; none where files cannot be locked.
    ///
    /// # Errors
    /// Where the runtime directory cannot be used.
    pub fn take((device, inode): (u64, u64), waits: impl FnOnce()) -> Result<Option<Self>> {
        let path = runtime()?.join(format!("source-{device:x}-{inode:x}.lock"));
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
            Ok(lock) => Ok(Some(Turn { lock })),
            // Two mounts that begin at once are two then.
            Err((_, Errno::ENOSYS | Errno::EOPNOTSUPP | Errno::ENOLCK)) => Ok(None),
            Err((_, errno)) => Err(cannot(&errno.desc())),
        }
    }

    /// What a process holds the turn by as its input, should this one be killed.
    ///
    /// # Errors
    /// Where there can be no more open files.
    pub fn input(&self) -> std::io::Result<Stdio> {
        self.lock.try_clone().map(Stdio::from)
    }
}

/// Makes sure that the directory of all mounts is ours alone, if there is one; says whether.
///
/// # Errors
/// Where it belongs to someone else, or others can write to it.
pub fn has_runtime() -> Result<bool> {
    is_private(&runtime_directory())
}

/// Every mount that has a note, dead ones included.
///
/// # Errors
/// Where others could have written the notes.
pub fn running() -> Result<Vec<Running>> {
    if !has_runtime()? {
        return Ok(Vec::new());
    }
    let Ok(entries) = fs::read_dir(runtime_directory()) else { return Ok(Vec::new()) };
    let mut found: Vec<Running> =
        entries.flatten().filter_map(|entry| MountDirectory(entry.path()).running()).collect();
    found.sort_by(|a, b| a.mountpoint.cmp(&b.mountpoint));
    Ok(found)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn only_a_directory_of_our_own_is_believed() {
        let top = tempfile::tempdir().unwrap();
        let (own, link) = (top.path().join("own"), top.path().join("link"));
        assert_eq!(is_private(&own), Ok(false));
        private(&own).unwrap();
        symlink(&own, &link).unwrap();
        assert!(is_private(&link).unwrap_err().message().contains("not a directory of yours"));
        for (mode, believed) in [(0o700, true), (0o755, true), (0o770, false), (0o702, false)] {
            fs::set_permissions(&own, fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!((is_private(&own).is_ok(), private(&own).is_ok()), (believed, believed));
        }
    }
}
