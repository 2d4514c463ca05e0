//! The runtime directory: sockets, logs and notes of running mounts, and locks of sources.

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
        std::os::unix::fs::symlink(daemon.socket(), self.socket())
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

/// The notes of all mounts, dead ones included.
///
/// # Errors
/// If other users could have written them.
pub fn mount_notes() -> Result<Vec<MountNote>> {
    if !has_runtime()? {
        return Ok(Vec::new());
    }
    let Ok(entries) = fs::read_dir(runtime_directory()) else { return Ok(Vec::new()) };
    let mut found: Vec<MountNote> =
        entries.flatten().filter_map(|entry| MountDirectory(entry.path()).read_note()).collect();
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
