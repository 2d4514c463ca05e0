//! What is mounted where, by the kernel's table of this process, and taking it away.

use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::errno::Errno;
use nix::libc::dev_t;
use nix::mount::{MntFlags, umount2};
use nix::sys::stat::makedev;

use crate::error::{Error, ErrorKind, Result};

/// A path as the mount table has it.
fn escaped(path: &Path) -> String {
    let path = path.to_string_lossy().replace('\\', "\\134");
    path.replace(' ', "\\040").replace('\t', "\\011").replace('\n', "\\012")
}

/// The line of the mount table of what is mounted last at exactly this path.
fn mounted_at(mountpoint: &Path) -> Option<String> {
    let table = std::fs::read("/proc/self/mountinfo").ok()?;
    let (table, path) = (String::from_utf8_lossy(&table), escaped(mountpoint));
    table.lines().rfind(|line| line.split(' ').nth(4) == Some(&path)).map(str::to_owned)
}

/// Where a path without links lies on its filesystem, by whatever mount it is reached: the device and
/// the path there, as the mount table writes them.
pub fn place_on_device(path: &Path) -> Option<(String, PathBuf)> {
    path.ancestors().find_map(|above| {
        let line = mounted_at(above)?;
        let mut fields = line.split(' ').skip(2);
        let (device, root) = (fields.next()?, fields.next()?);
        let rest = escaped(path.strip_prefix(above).ok()?);
        Some((device.to_owned(), Path::new(root).join(rest)))
    })
}

/// Whether something is mounted at exactly this path.
pub fn is_mounted(path: &Path) -> bool {
    mounted_at(path).is_some()
}

/// The device that is mounted at exactly this path, as the mount table writes it.
pub fn device_of(mountpoint: &Path) -> Option<String> {
    mounted_at(mountpoint)?.split(' ').nth(2).map(str::to_owned)
}

/// The same as a number.
pub(super) fn device_at(mountpoint: &Path) -> Option<dev_t> {
    let device = device_of(mountpoint)?;
    let (major, minor) = device.split_once(':')?;
    Some(makedev(major.parse().ok()?, minor.parse().ok()?))
}

/// Whether what is mounted last at exactly this path is belady's of this source, and of this device
/// where that is known: others may be mounted there by now, the source itself may be.
pub fn is_of(mountpoint: &Path, source: &Path, device: Option<&str>) -> bool {
    let name = escaped(source).replace(',', "_");
    let topmost = mounted_at(mountpoint);
    let kind = topmost.as_deref().and_then(|line| line.split_once(" - ")).map(|(_, kind)| kind);
    let ours = |kind: &str| kind.split(' ').nth(1) == Some(&name) && kind.starts_with("fuse");
    kind.is_some_and(ours) && (device.is_none() || device_of(mountpoint).as_deref() == device)
}

/// Cuts off the mount at a path if it [is of](is_of) this source: every request to it fails from now on.
///
/// A daemon that was killed may live on as a thread whose push waits for pages that a read has
/// locked, and everyone else waits with it. Forcing the unmount sets all of them free, as root; the
/// mount goes then, or stays where something is mounted inside. Whoever else mounted it may end its
/// connection, where the kernel's list of connections is mounted.
pub fn abort(mountpoint: &Path, source: &Path, device: Option<&str>) {
    if is_of(mountpoint, source, device)
        && let Some(("0", minor)) =
            device_of(mountpoint).as_deref().and_then(|device| device.split_once(':'))
    {
        sever(mountpoint, minor);
    }
}

/// Ends the connection of what is mounted at a path, whose device has this minor number. Says whether
/// it is unmounted by that, which it is where nobody uses it.
pub(super) fn sever(mountpoint: &Path, minor: impl Display) -> bool {
    let forced = umount2(mountpoint, MntFlags::MNT_FORCE | MntFlags::UMOUNT_NOFOLLOW);
    if forced == Err(Errno::EPERM) {
        // Where the kernel's list is not mounted, what waits goes on waiting.
        let _ = std::fs::write(format!("/sys/fs/fuse/connections/{minor}/abort"), "1");
    }
    forced.is_ok()
}

/// Unmounts a path as root does, or through `fusermount3`; with `force` also where it is in use:
/// the mount point is free at once, and what is open stays open. Nothing mounted is no error.
///
/// # Errors
/// `Busy` where files are in use, `Mount` where it is not permitted.
pub fn unmount(mountpoint: &Path, force: bool) -> Result<()> {
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
