//! Finds mounts in this process's mount table, and unmounts.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::errno::Errno;
use nix::libc::dev_t;
use nix::mount::{MntFlags, umount2};
use nix::sys::stat::{makedev, minor};
use nix::sys::statvfs::statvfs;
use serde::{Deserialize, Serialize};

use super::connections::{self, AbortHandle};
use crate::error::{Error, ErrorKind, Result};
use crate::sync::is_holding;

struct MountLine(Vec<u8>);

impl MountLine {
    /// A field by its number, without the kernel's escapes.
    fn field(&self, number: usize) -> Option<Vec<u8>> {
        self.0.split(|byte| *byte == b' ').nth(number).map(unescaped)
    }

    /// The device, as `major:minor`.
    fn device(&self) -> Option<String> {
        String::from_utf8(self.field(2)?).ok()
    }

    /// The type of the filesystem and its name. They come after a field that is `-`.
    fn kind(&self) -> Option<[Vec<u8>; 2]> {
        let mut fields = self.0.split(|byte| *byte == b' ').skip_while(|field| *field != b"-");
        Some([unescaped(fields.nth(1)?), unescaped(fields.next()?)])
    }
}

/// A field without the kernel's escapes: a backslash and three octal digits stand for a byte.
fn unescaped(field: &[u8]) -> Vec<u8> {
    let (mut bytes, mut rest) = (Vec::with_capacity(field.len()), field);
    while let Some((&first, after)) = rest.split_first() {
        let digits = after.get(..3).filter(|_| first == b'\\');
        let code = digits.and_then(|digits| std::str::from_utf8(digits).ok());
        match code.and_then(|code| u8::from_str_radix(code, 8).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &after[3..];
            }
            None => {
                bytes.push(first);
                rest = after;
            }
        }
    }
    bytes
}

fn lines() -> Vec<MountLine> {
    let table = std::fs::read("/proc/self/mountinfo").unwrap_or_default();
    table.split(|byte| *byte == b'\n').map(|line| MountLine(line.to_vec())).collect()
}

/// The line of the last mount at exactly this path.
fn mounted_at(mountpoint: &Path) -> Option<MountLine> {
    let path = mountpoint.as_os_str().as_bytes();
    lines().into_iter().rfind(|line| line.field(4).is_some_and(|at| at == path))
}

/// Where a path without links is on its filesystem, whichever mount leads to it: the device, and the path
/// on the device.
pub fn path_on_device(path: &Path) -> Option<(String, PathBuf)> {
    path.ancestors().find_map(|above| {
        let line = mounted_at(above)?;
        let root = PathBuf::from(OsString::from_vec(line.field(3)?));
        Some((line.device()?, root.join(path.strip_prefix(above).ok()?)))
    })
}

pub fn is_mounted(path: &Path) -> bool {
    mounted_at(path).is_some()
}

/// The device that is mounted at exactly this path, as the mount table writes it.
pub fn device_of(mountpoint: &Path) -> Option<String> {
    mounted_at(mountpoint)?.device()
}

/// As [`device_of`], as a number.
pub(super) fn device_at(mountpoint: &Path) -> Option<dev_t> {
    device_number(&device_of(mountpoint)?)
}

fn device_number(device: &str) -> Option<dev_t> {
    let (major, minor) = device.split_once(':')?;
    Some(makedev(major.parse().ok()?, minor.parse().ok()?))
}

pub fn source_name(source: &Path) -> String {
    // The name is an option of mount(8), which a comma would end.
    source.to_string_lossy().replace(',', "_")
}

/// Whether the last mount at exactly this path is belady's mount of this source and, if given, has this
/// device. Another filesystem may be mounted there by now, even the source itself.
pub fn is_mount_of(mountpoint: &Path, source: &Path, device: Option<&str>) -> bool {
    let Some(line) = mounted_at(mountpoint) else { return false };
    let ours = line.kind().is_some_and(|[kind, name]| {
        kind.starts_with(b"fuse") && name == source_name(source).as_bytes()
    });
    ours && (device.is_none() || line.device().as_deref() == device)
}

/// Whether the last mount at exactly this path is belady's, whichever user mounted it.
pub fn is_belady_mount(mountpoint: &Path) -> bool {
    let kind = mounted_at(mountpoint).and_then(|line| line.kind());
    kind.is_some_and(|[kind, _]| kind == b"fuse.belady")
}

/// Aborts the connection of the mount at a path: every request to it fails from now on, and every task that
/// waits in it is freed.
pub fn abort_any(mountpoint: &Path) {
    if let Some(device) = device_at(mountpoint) {
        abort_at(mountpoint, device);
    }
}

/// As [`abort_any`], if the mount [is of](is_mount_of) this source.
pub fn abort_mount_of(mountpoint: &Path, source: &Path, device: Option<&str>) {
    if is_mount_of(mountpoint, source, device) {
        abort_any(mountpoint);
    }
}

/// Whether a path is still mounted though its connection was aborted. If the daemon of the mount answers
/// nothing, this waits for it.
pub fn is_aborted(mountpoint: &Path) -> bool {
    // The kernel may answer attributes from its memory, but asks the daemon for the space.
    matches!(statvfs(mountpoint), Err(Errno::ENOTCONN | Errno::ECONNABORTED))
}

/// A mount, described so that any process can abort its connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MountIdentity {
    #[serde(with = "crate::paths")]
    pub path: PathBuf,
    /// Its device, as `major:minor`.
    pub device: String,
    pub name: Vec<u8>,
}

impl MountIdentity {
    /// The last mount at a path, if that is a FUSE filesystem.
    pub(super) fn at(path: &Path) -> Option<Self> {
        let line = mounted_at(path)?;
        let [_, name] = line.kind().filter(|[kind, _]| kind.starts_with(b"fuse"))?;
        Some(MountIdentity { path: path.to_path_buf(), device: line.device()?, name })
    }

    /// The files that abort this connection and no later one.
    pub fn abort_handle(&self) -> Option<AbortHandle> {
        AbortHandle::of(minor(device_number(&self.device)?))
    }

    /// Aborts the connection, even if it was unmounted while in use. Returns whether that succeeded.
    pub fn abort(&self) -> bool {
        let Some(number) = device_number(&self.device) else { return false };
        let has_it = |line: &MountLine| line.device().as_ref() == Some(&self.device);
        let other = |line: &MountLine| line.kind().is_none_or(|[_, name]| name != self.name);
        // Another filesystem may have the number by now.
        if lines().iter().any(|line| has_it(line) && other(line)) {
            return false;
        }
        // The connection of a mount in use is aborted all the same.
        let forced = || matches!(force(&self.path), Ok(()) | Err(Errno::EBUSY));
        connections::abort(minor(number)) || device_at(&self.path) == Some(number) && forced()
    }
}

/// Makes the kernel abort the connection at a path, and unmount it unless it is in use.
fn force(mountpoint: &Path) -> nix::Result<()> {
    umount2(mountpoint, MntFlags::MNT_FORCE | MntFlags::UMOUNT_NOFOLLOW)
}

/// Aborts the connection at a path with this device. Returns whether that unmounted it.
///
/// A user who cannot reach the kernel's list of connections cannot abort one. Its waiting tasks go on waiting
/// then.
pub(super) fn abort_at(mountpoint: &Path, device: dev_t) -> bool {
    !connections::abort(minor(device)) && force(mountpoint).is_ok()
}

/// Unmounts a path as root, or through `fusermount3`. If it is in use, only `force` unmounts it: the mount
/// point is free at once, and open files stay open. If nothing is mounted, it succeeds.
///
/// # Errors
/// `Busy` if files are in use, `Mount` if it is not permitted.
pub fn unmount(mountpoint: &Path, force: bool) -> Result<()> {
    debug_assert!(!is_holding(), "a mount is taken away under a lock");
    let at = mountpoint.display();
    let busy = || {
        Error::new(ErrorKind::Busy, format!("{at} is in use")).hint(
            "end the programs that use it (`fuser -vm` lists them), or take it away from under \
             them with `belady umount --force`",
        )
    };
    let detach = if force { MntFlags::MNT_DETACH } else { MntFlags::empty() };
    match umount2(mountpoint, detach | MntFlags::UMOUNT_NOFOLLOW) {
        Ok(()) | Err(Errno::EINVAL | Errno::ENOENT) => Ok(()),
        Err(Errno::EBUSY) => Err(busy()),
        Err(Errno::EPERM) => {
            let options = if force { "-uzq" } else { "-uq" };
            let program =
                Command::new("fusermount3").args([options, "--"]).arg(mountpoint).status();
            match program {
                Ok(status) if status.success() => Ok(()),
                Ok(_) if !force => Err(busy()),
                _ => Err(Error::new(ErrorKind::Mount, format!("cannot unmount {at}"))
                    .hint("it belongs to another user; ask them, or root")),
            }
        }
        Err(errno) => {
            Err(Error::new(ErrorKind::Mount, format!("cannot unmount {at}: {}", errno.desc())))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_read_as_the_kernel_writes_them() {
        let text = b"36 35 0:57 /a\\040b /mnt/caf\xe9\\134 ro - fuse.belady /data\\043 ro".to_vec();
        let line = MountLine(text);
        assert_eq!(line.device().as_deref(), Some("0:57"));
        assert_eq!(line.field(3).unwrap(), b"/a b");
        assert_eq!(line.field(4).unwrap(), b"/mnt/caf\xe9\\");
        assert_eq!(line.kind(), Some([b"fuse.belady".to_vec(), b"/data#".to_vec()]));
        assert_eq!(unescaped(b"a\\04"), b"a\\04", "no escape");
        assert!(
            MountLine(Vec::new()).kind().is_none() && MountLine(b"1 2 -".to_vec()).kind().is_none()
        );
    }
}
