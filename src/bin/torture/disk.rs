//! Cache disks and their faults.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::mounts::force_unmount;
use crate::plan::{Disk, Fault};
use crate::workspace::Workspace;

/// Size of a separate disk, in MiB.
const MIB: u64 = 48;

/// How long a slow disk accepts writes, and then how long it holds them.
const ACCEPTING: Duration = Duration::from_millis(100);
const HOLDING: Duration = Duration::from_millis(400);

nix::ioctl_read!(
    /// Makes everything on a filesystem fail.
    shut_down, b'X', 125, u32
);

/// Makes ext4 forget what is not written yet.
const WITHOUT_FLUSH: u32 = 2;

#[derive(Debug)]
pub(crate) struct CacheDisk {
    kind: Disk,
    point: PathBuf,
    slow: Option<(Arc<AtomicBool>, JoinHandle<()>)>,
}

/// Runs a command. It is an error if the command fails.
fn run(command: &mut Command) -> io::Result<()> {
    let output = command.stdin(Stdio::null()).output()?;
    if output.status.success() {
        return Ok(());
    }
    let message = String::from_utf8_lossy(&output.stderr);
    Err(io::Error::other(format!("{command:?}: {message}")))
}

impl CacheDisk {
    /// Makes a disk. `None` if the plan has no disk.
    pub(crate) fn new(kind: Disk, workspace: &Workspace) -> io::Result<Option<Self>> {
        if kind == Disk::None {
            return Ok(None);
        }
        let disk = CacheDisk { kind, point: workspace.path("disk"), slow: None };
        fs::create_dir(&disk.point)?;
        match kind {
            Disk::Ext4 => {
                let image = workspace.path("disk.img");
                File::create(&image)?.set_len(MIB << 20)?;
                run(Command::new("mkfs.ext4").args(["-q", "-F", "-m", "0"]).arg(&image))?;
                run(Command::new("mount").args(["-o", "loop"]).args([&image, &disk.point]))?;
            }
            Disk::Tmpfs => {
                let size = format!("size={MIB}M,mode=700");
                let options = ["-t", "tmpfs", "-o", &size, "none"];
                run(Command::new("mount").args(options).arg(&disk.point))?;
            }
            Disk::Directory | Disk::None => {}
        }
        Ok(Some(disk))
    }

    /// Mount options that put the cache on this disk.
    pub(crate) fn options(&self) -> Vec<String> {
        let cache = self.point.join("cache").display().to_string();
        let words = ["--cache-dir", &cache, "--nvme", "32MiB", "--set", "cache.min-free=2MiB"];
        words.map(str::to_owned).to_vec()
    }

    /// Begins a fault.
    pub(crate) fn begin(&mut self, fault: Fault) -> io::Result<()> {
        match fault {
            Fault::DiskFull => fill(&self.point.join("others")),
            Fault::DiskReadOnly => {
                // As after a disk error: files may be open for writing.
                let options = ["-o", "remount,abort"];
                run(Command::new("mount").args(options).arg(&self.point))
            }
            Fault::DiskHangs => freeze(&self.point),
            Fault::DiskSlow => {
                let over = Arc::new(AtomicBool::new(false));
                let (point, stop) = (self.point.clone(), Arc::clone(&over));
                let thread = thread::Builder::new().name("slow disk".into()).spawn(move || {
                    while !stop.load(Relaxed) {
                        thread::sleep(ACCEPTING);
                        if freeze(&point).is_ok() {
                            thread::sleep(HOLDING);
                            let _ = thaw(&point);
                        }
                    }
                })?;
                self.slow = Some((over, thread));
                Ok(())
            }
            Fault::DiskGone => {
                let directory = File::open(&self.point)?;
                let mut how = WITHOUT_FLUSH;
                // SAFETY: the descriptor is open, and the number lives as long as the call.
                unsafe { shut_down(directory.as_raw_fd(), &raw mut how) }?;
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Ends a fault, if it can end.
    pub(crate) fn end(&mut self, fault: Fault) -> io::Result<()> {
        match fault {
            Fault::DiskFull => match fs::remove_file(self.point.join("others")) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
                removed => removed,
            },
            Fault::DiskHangs => thaw(&self.point),
            Fault::DiskSlow => {
                self.stop_slowing();
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn stop_slowing(&mut self) {
        if let Some((over, thread)) = self.slow.take() {
            over.store(true, Relaxed);
            let _ = thread.join();
        }
    }

    /// Whether a fault lasts until the disk is mounted again.
    pub(crate) fn is_lasting(fault: Fault) -> bool {
        matches!(fault, Fault::DiskGone | Fault::DiskReadOnly)
    }
}

impl Drop for CacheDisk {
    fn drop(&mut self) {
        self.stop_slowing();
        if self.kind == Disk::Ext4 {
            let _ = thaw(&self.point);
        }
        force_unmount(&self.point);
    }
}

/// Fills the disk until no space is left, as other processes would.
fn fill(path: &Path) -> io::Result<()> {
    let mut file = File::create(path)?;
    for size in [1 << 20, 4096] {
        while file.write_all(&vec![7; size]).is_ok() {}
    }
    Ok(())
}

fn freeze(point: &Path) -> io::Result<()> {
    run(Command::new("fsfreeze").arg("--freeze").arg(point))
}

fn thaw(point: &Path) -> io::Result<()> {
    run(Command::new("fsfreeze").arg("--unfreeze").arg(point))
}
