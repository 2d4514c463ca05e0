//! Lists the mounts below a directory, and removes them without their daemons.

use std::fs;
use std::path::{Path, PathBuf};

use nix::mount::{MntFlags, MsFlags, mount, umount2};

/// A line of the mount table.
#[derive(Clone, Debug)]
pub(crate) struct Mount {
    pub(crate) point: PathBuf,
    /// The minor number of its device. The kernel lists connections by it.
    pub(crate) minor: u32,
    pub(crate) kind: String,
    /// The whole line.
    pub(crate) line: String,
}

/// The mounts at and below a directory, in the order in which they were made.
pub(crate) fn mounts_below(directory: &Path) -> Vec<Mount> {
    let table = fs::read("/proc/self/mountinfo").unwrap_or_default();
    let table = String::from_utf8_lossy(&table);
    let parse = |line: &str| {
        let fields: Vec<&str> = line.split(' ').collect();
        let minor = fields.get(2)?.split_once(':')?.1.parse().ok()?;
        let kind = (*fields.get(fields.iter().position(|field| *field == "-")? + 1)?).to_owned();
        Some(Mount { point: PathBuf::from(fields.get(4)?), minor, kind, line: line.to_owned() })
    };
    let here = |mount: &Mount| mount.point.starts_with(directory);
    table.lines().filter_map(parse).filter(here).collect()
}

/// Aborts the FUSE connections of the mounts at and below a directory, and removes the mounts. Waits for no
/// daemon.
pub(crate) fn force_unmount(directory: &Path) {
    for mount in mounts_below(directory) {
        if mount.kind.starts_with("fuse") {
            let _ = umount2(&mount.point, MntFlags::MNT_FORCE);
        }
    }
    // Mounts may be stacked.
    for _ in 0..8 {
        let left = mounts_below(directory);
        if left.is_empty() {
            return;
        }
        for mount in left.iter().rev() {
            let _ = umount2(&mount.point, MntFlags::MNT_DETACH);
        }
    }
}

/// The kernel's list of FUSE connections, mounted in a directory of the run.
#[derive(Debug)]
pub(crate) struct Connections(PathBuf);

impl Connections {
    /// Mounts the list. Without it, a detached connection cannot be aborted.
    pub(crate) fn mount(directory: PathBuf) -> Option<Self> {
        let none = None::<&str>;
        fs::create_dir(&directory).ok()?;
        mount(Some("none"), &directory, Some("fusectl"), MsFlags::empty(), none).ok()?;
        Some(Connections(directory))
    }

    /// Aborts a connection of the run, unless another mount has its number by then.
    pub(crate) fn abort(&self, minor: u32) {
        let mounted = mounts_below(Path::new("/"));
        if !mounted.iter().any(|mount| mount.minor == minor) {
            let _ = fs::write(self.0.join(minor.to_string()).join("abort"), "1");
        }
    }
}

impl Drop for Connections {
    fn drop(&mut self) {
        let _ = umount2(&self.0, MntFlags::MNT_DETACH);
    }
}
