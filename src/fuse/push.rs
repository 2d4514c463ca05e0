//! Pushing blocks into the kernel's page cache, and dropping them.
//!
//! 1. The kernel takes pages only for an inode that it knows; an unknown one is primed by looking
//!    its name up through our own mount.
//! 2. `FUSE_NOTIFY_STORE`, written to the device as one message, copies the bytes into the pages.
//!    It waits for pages that a read in flight has locked.
//! 3. Pages are dropped by opening the file through our own mount and advising the kernel that
//!    they are not needed, which skips pages in use and never waits for them.
//!
//! None of this may run on a request thread: the requests that it causes are answered there.

use std::fs::File;
use std::io::IoSlice;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, RwLock, RwLockReadGuard, RwLockWriteGuard, TryLockError};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{OFlag, PosixFadviseAdvice, open, posix_fadvise};
use nix::sys::stat::{Mode, lstat};
use nix::sys::uio::writev;

use super::known::Known;
use crate::cache::Pages;
use crate::catalog::NodeId;

/// `FUSE_NOTIFY_STORE` and `FUSE_NOTIFY_INVAL_ENTRY` of the protocol.
const NOTIFY_STORE: i32 = 4;
const NOTIFY_INVAL_ENTRY: i32 = 3;

/// Flag of the latter: the name is only checked again.
const EXPIRE_ONLY: u32 = 1;

/// How long an unmount waits for our own threads to leave the mount.
const LEAVE_WITHIN: Duration = Duration::from_secs(2);

/// Bytes of the header of every message to the kernel.
const HEADER_BYTES: usize = 16;

/// The page cache of one mount.
pub struct Pusher {
    device: OwnedFd,
    mountpoint: PathBuf,
    known: Arc<Known>,
    /// Held for reading while our own mount is used, for writing while it is unmounted: else it
    /// would be we ourselves who keep it busy.
    gate: RwLock<()>,
}

impl Pusher {
    pub(super) fn new(device: OwnedFd, mountpoint: PathBuf, known: Arc<Known>) -> Self {
        Pusher { device, mountpoint, known, gate: RwLock::new(()) }
    }

    /// Keeps our own threads out of the mount as long as the guard lives; none where one of them
    /// is held up inside by the kernel.
    pub(super) fn keep_out(&self) -> Option<RwLockWriteGuard<'_, ()>> {
        let patience = Instant::now() + LEAVE_WITHIN;
        loop {
            match self.gate.try_write() {
                Ok(guard) => return Some(guard),
                Err(TryLockError::Poisoned(poisoned)) => return Some(poisoned.into_inner()),
                Err(TryLockError::WouldBlock) if Instant::now() > patience => return None,
                Err(TryLockError::WouldBlock) => std::thread::sleep(Duration::from_millis(1)),
            }
        }
    }

    /// Enters the mount, unless it is being unmounted.
    fn enter(&self) -> Result<RwLockReadGuard<'_, ()>, Errno> {
        match self.gate.try_read() {
            Ok(guard) => Ok(guard),
            Err(TryLockError::Poisoned(poisoned)) => Ok(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => Err(Errno::EBUSY),
        }
    }

    /// Number of nodes that the kernel knows.
    pub fn known(&self) -> usize {
        self.known.len()
    }

    /// Makes the kernel ask again for a name. Blocks; never call it from a request thread.
    pub fn forget_name(&self, parent: NodeId, name: &[u8]) -> Result<(), Errno> {
        self.invalidate_name(parent, name, 0)
    }

    /// The same without dropping what the name stands for. Kernels that do not know how to take it
    /// for [`forget_name`](Self::forget_name).
    pub(super) fn expire_name(&self, parent: NodeId, name: &[u8]) -> Result<(), Errno> {
        self.invalidate_name(parent, name, EXPIRE_ONLY)
    }

    fn invalidate_name(&self, parent: NodeId, name: &[u8], flags: u32) -> Result<(), Errno> {
        let mut body = [0; 16];
        body[..8].copy_from_slice(&parent.0.to_ne_bytes());
        body[8..12].copy_from_slice(&(name.len() as u32).to_ne_bytes());
        body[12..16].copy_from_slice(&flags.to_ne_bytes());
        self.notify(NOTIFY_INVAL_ENTRY, &[&body, name, b"\0"])
    }

    /// Looks a path up so that the kernel knows its node.
    fn prime(&self, path: &Path) -> Result<(), Errno> {
        lstat(&self.mountpoint.join(path)).map(|_| ())
    }

    fn notify(&self, code: i32, parts: &[&[u8]]) -> Result<(), Errno> {
        let length = HEADER_BYTES + parts.iter().map(|part| part.len()).sum::<usize>();
        let mut header = [0; HEADER_BYTES];
        header[..4].copy_from_slice(&(length as u32).to_ne_bytes());
        header[4..8].copy_from_slice(&code.to_ne_bytes());
        let message: Vec<IoSlice<'_>> =
            std::iter::once(&header[..]).chain(parts.iter().copied()).map(IoSlice::new).collect();
        writev(&self.device, &message).map(|_| ())
    }

    fn store_once(&self, node: NodeId, offset: u64, bytes: &[u8]) -> Result<(), Errno> {
        let mut body = [0; 24];
        body[..8].copy_from_slice(&node.0.to_ne_bytes());
        body[8..16].copy_from_slice(&offset.to_ne_bytes());
        body[16..20].copy_from_slice(&(bytes.len() as u32).to_ne_bytes());
        self.notify(NOTIFY_STORE, &[&body, bytes])
    }
}

impl Pages for Pusher {
    fn store(&self, node: NodeId, path: &Path, offset: u64, bytes: &[u8]) -> Result<(), Errno> {
        let _inside = self.enter()?;
        if !self.known.contains(node) {
            self.prime(path)?;
        }
        match self.store_once(node, offset, bytes) {
            // Forgotten between the look and the push.
            Err(Errno::ENOENT) => {
                self.prime(path)?;
                self.store_once(node, offset, bytes)
            }
            result => result,
        }
    }

    fn discard(&self, node: NodeId, path: &Path, offset: u64, length: u64) {
        // What the kernel does not know has no pages.
        if !self.known.contains(node) {
            return;
        }
        let Ok(_inside) = self.enter() else { return };
        let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
        let dropped = open(&self.mountpoint.join(path), flags, Mode::empty()).and_then(|fd| {
            let file = File::from(fd);
            let (offset, length) = (offset as i64, length as i64);
            posix_fadvise(&file, offset, length, PosixFadviseAdvice::POSIX_FADV_DONTNEED)
        });
        if let Err(errno) = dropped {
            tracing::debug!(?path, %errno, "pages could not be dropped");
        }
    }
}
