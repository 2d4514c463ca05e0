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

use crate::ground::Ground;
use crate::mounts::sever;
use crate::plan::{Disk, Trouble};

/// Size of a separate disk, in MiB.
const MIB: u64 = 48;

/// How long a slow disk takes writes, and how long it holds them.
const SLOW: [Duration; 2] = [Duration::from_millis(100), Duration::from_millis(400)];

nix::ioctl_read!(
    /// Makes everything on a filesystem fail.
    go_down, b'X', 125, u32
);

/// Makes ext4 forget what is not written yet.
const WITHOUT_FLUSH: u32 = 2;

#[derive(Debug)]
pub(crate) struct CacheDisk {
    kind: Disk,
    point: PathBuf,
    slow: Option<(Arc<AtomicBool>, JoinHandle<()>)>,
}

/// Runs a command that must succeed.
fn succeed(command: &mut Command) -> io::Result<()> {
    let output = command.stdin(Stdio::null()).output()?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(io::Error::other(format!("{command:?}: {said}")))
}

impl CacheDisk {
    /// Makes a disk. `None` if the plan has no disk.
    pub(crate) fn new(kind: Disk, ground: &Ground) -> io::Result<Option<Self>> {
        if kind == Disk::None {
            return Ok(None);
        }
        let disk = CacheDisk { kind, point: ground.path("disk"), slow: None };
        fs::create_dir(&disk.point)?;
        match kind {
            Disk::Ext4 => {
                let image = ground.path("disk.img");
                File::create(&image)?.set_len(MIB << 20)?;
                succeed(Command::new("mkfs.ext4").args(["-q", "-F", "-m", "0"]).arg(&image))?;
                succeed(Command::new("mount").args(["-o", "loop"]).args([&image, &disk.point]))?;
            }
            Disk::Tmpfs => {
                let size = format!("size={MIB}M,mode=700");
                let options = ["-t", "tmpfs", "-o", &size, "none"];
                succeed(Command::new("mount").args(options).arg(&disk.point))?;
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

    /// Begins a trouble.
    pub(crate) fn begin(&mut self, trouble: Trouble) -> io::Result<()> {
        match trouble {
            Trouble::DiskFull => fill(&self.point.join("others")),
            Trouble::DiskReadOnly => {
                // As after a disk error: files may be open for writing.
                let options = ["-o", "remount,abort"];
                succeed(Command::new("mount").args(options).arg(&self.point))
            }
            Trouble::DiskHangs => freeze(&self.point),
            Trouble::DiskSlow => {
                let over = Arc::new(AtomicBool::new(false));
                let (point, stop) = (self.point.clone(), Arc::clone(&over));
                let thread = thread::Builder::new().name("slow disk".into()).spawn(move || {
                    while !stop.load(Relaxed) {
                        thread::sleep(SLOW[0]);
                        if freeze(&point).is_ok() {
                            thread::sleep(SLOW[1]);
                            let _ = thaw(&point);
                        }
                    }
                })?;
                self.slow = Some((over, thread));
                Ok(())
            }
            Trouble::DiskGone => {
                let directory = File::open(&self.point)?;
                let mut how = WITHOUT_FLUSH;
                // SAFETY: the descriptor is open, and the number lives as long as the call.
                unsafe { go_down(directory.as_raw_fd(), &raw mut how) }?;
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Ends a trouble, if it can end.
    pub(crate) fn end(&mut self, trouble: Trouble) -> io::Result<()> {
        match trouble {
            Trouble::DiskFull => match fs::remove_file(self.point.join("others")) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
                removed => removed,
            },
            Trouble::DiskHangs => thaw(&self.point),
            Trouble::DiskSlow => {
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

    /// Whether a trouble lasts until the disk is mounted again.
    pub(crate) fn is_lasting(trouble: Trouble) -> bool {
        matches!(trouble, Trouble::DiskGone | Trouble::DiskReadOnly)
    }
}

impl Drop for CacheDisk {
    fn drop(&mut self) {
        self.stop_slowing();
        if self.kind == Disk::Ext4 {
            let _ = thaw(&self.point);
        }
        sever(&self.point);
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
    succeed(Command::new("fsfreeze").arg("--freeze").arg(point))
}

fn thaw(point: &Path) -> io::Result<()> {
    succeed(Command::new("fsfreeze").arg("--unfreeze").arg(point))
}
