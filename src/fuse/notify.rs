//! Notifications: messages that the kernel did not ask for, each written to the device as one record.
//!
//! A notification may wait for a lock that a request holds. So none is sent from a request thread or under
//! a lock; builds with checks assert that. A notification that takes long is logged while it still waits.

use std::ffi::OsStr;
use std::fs::File;
use std::io::IoSlice;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::time::{Duration, Instant};

use fuser::BackingId;
use nix::errno::Errno;
use nix::sys::uio::writev;

use super::guard::is_answering;
use crate::catalog::NodeId;
use crate::sync::{Mutex, MutexGuard, is_holding};

const INVAL_INODE: i32 = 2;
const INVAL_ENTRY: i32 = 3;
const STORE: i32 = 4;

/// `FUSE_EXPIRE_ONLY`, Linux 6.2.
const EXPIRE_ONLY: u32 = 1;

/// Bytes of the header of every message.
const HEADER_BYTES: usize = 16;

/// A notification takes microseconds. One that takes this long waits for something.
const LONG: Duration = Duration::from_secs(1);

/// Sends notifications of a connection. Its methods block.
pub struct Notifier {
    device: OwnedFd,
    in_flight: Mutex<Vec<InFlight>>,
}

struct InFlight {
    code: i32,
    since: Instant,
    is_logged: bool,
}

/// Removes a notification from the list when it is sent.
struct SendGuard<'a>(&'a Notifier, Instant);

impl Drop for SendGuard<'_> {
    fn drop(&mut self) {
        let mut in_flight = self.0.in_flight();
        if let Some(at) = in_flight.iter().position(|one| one.since == self.1) {
            in_flight.swap_remove(at);
        }
    }
}

impl Notifier {
    pub(super) fn new(device: OwnedFd) -> Self {
        Notifier { device, in_flight: Mutex::default() }
    }

    fn in_flight(&self) -> MutexGuard<'_, Vec<InFlight>> {
        self.in_flight.lock()
    }

    /// Registers a file that the kernel can read by itself, until the connection ends.
    pub(super) fn register_backing(&self, file: &File) -> std::io::Result<()> {
        BackingId::create_raw(&self.device, file).map(drop)
    }

    /// Logs each notification that waits for long, once. Returns how many wait for long.
    pub fn log_slow(&self, now: Instant) -> usize {
        let mut in_flight = self.in_flight();
        let slow =
            in_flight.iter_mut().filter(|one| now.saturating_duration_since(one.since) > LONG);
        let logged = slow.map(|one| {
            if !std::mem::replace(&mut one.is_logged, true) {
                let code = one.code;
                tracing::warn!(code, "the kernel makes a notification wait, for a reader perhaps");
            }
        });
        logged.count()
    }

    /// Stores bytes in the page cache of a node that the kernel knows.
    pub(super) fn store(&self, node: NodeId, offset: u64, bytes: &[u8]) -> Result<(), Errno> {
        let mut body = [0; 24];
        body[..8].copy_from_slice(&node.0.to_ne_bytes());
        body[8..16].copy_from_slice(&offset.to_ne_bytes());
        body[16..20].copy_from_slice(&(bytes.len() as u32).to_ne_bytes());
        self.send(STORE, &[&body, bytes])
    }

    /// Makes the kernel forget a name, its node and pages, and what it knows of the directory. Never call
    /// it from a request thread.
    ///
    /// # Errors
    /// The kernel's: `ENOENT` if it does not know the name.
    pub fn forget(&self, parent: NodeId, name: &OsStr) -> Result<(), Errno> {
        let listing = self.forget_pages(parent);
        self.invalidate_name(parent, name, 0).and(listing)
    }

    /// Makes the kernel look a name up at its next use. The node and its pages stay. Kernels without this
    /// feature do what [`forget`](Self::forget) does.
    pub(super) fn expire(&self, parent: NodeId, name: &OsStr) -> Result<(), Errno> {
        self.invalidate_name(parent, name, EXPIRE_ONLY)
    }

    fn invalidate_name(&self, parent: NodeId, name: &OsStr, flags: u32) -> Result<(), Errno> {
        let mut body = [0; 16];
        body[..8].copy_from_slice(&parent.0.to_ne_bytes());
        body[8..12].copy_from_slice(&(name.len() as u32).to_ne_bytes());
        body[12..].copy_from_slice(&flags.to_ne_bytes());
        self.send(INVAL_ENTRY, &[&body, name.as_bytes(), b"\0"])
    }

    /// Makes the kernel forget the attributes of a node and its pages: the bytes of a file, or the listing
    /// of a directory.
    pub(super) fn forget_pages(&self, node: NodeId) -> Result<(), Errno> {
        let mut body = [0; 24];
        body[..8].copy_from_slice(&node.0.to_ne_bytes());
        self.send(INVAL_INODE, &[&body])
    }

    /// Makes the kernel drop pages of a node, also those that processes have mapped.
    pub(super) fn forget_range(&self, node: NodeId, offset: i64, length: i64) -> Result<(), Errno> {
        let mut body = [0; 24];
        body[..8].copy_from_slice(&node.0.to_ne_bytes());
        body[8..16].copy_from_slice(&offset.to_ne_bytes());
        body[16..].copy_from_slice(&length.to_ne_bytes());
        self.send(INVAL_INODE, &[&body])
    }

    fn send(&self, code: i32, parts: &[&[u8]]) -> Result<(), Errno> {
        debug_assert!(!is_answering(), "a request thread notifies the kernel");
        debug_assert!(!is_holding(), "the kernel is notified under a lock");
        let length = HEADER_BYTES + parts.iter().map(|part| part.len()).sum::<usize>();
        let mut header = [0; HEADER_BYTES];
        header[..4].copy_from_slice(&(length as u32).to_ne_bytes());
        header[4..8].copy_from_slice(&code.to_ne_bytes());
        let message: Vec<IoSlice<'_>> =
            std::iter::once(&header[..]).chain(parts.iter().copied()).map(IoSlice::new).collect();
        let since = Instant::now();
        self.in_flight().push(InFlight { code, since, is_logged: false });
        let _guard = SendGuard(self, since);
        writev(&self.device, &message).map(|_| ())
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;

    use nix::fcntl::{FcntlArg, OFlag, fcntl};

    use super::*;

    #[test]
    fn a_notification_that_waits_is_counted_and_told_once() {
        // A full pipe takes a message as slowly as a kernel that is held up.
        let (mut kernel, mut device) = std::io::pipe().unwrap();
        fcntl(&device, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).unwrap();
        while device.write(&[0; 4096]).is_ok() {}
        while device.write(&[0]).is_ok() {}
        fcntl(&device, FcntlArg::F_SETFL(OFlag::empty())).unwrap();
        let notifier = Arc::new(Notifier::new(device.into()));
        assert_eq!(notifier.log_slow(Instant::now() + 2 * LONG), 0);
        let sends = Arc::clone(&notifier);
        let sender = thread::spawn(move || sends.expire(NodeId::ROOT, OsStr::new("name")));
        while notifier.log_slow(Instant::now() + 2 * LONG) == 0 {
            thread::yield_now();
        }
        assert!(notifier.in_flight().iter().all(|sending| sending.is_logged));
        assert_eq!(
            notifier.log_slow(Instant::now() + 2 * LONG),
            1,
            "it is counted as long as it waits"
        );
        let is_sent = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&is_sent);
        let drain = thread::spawn(move || {
            let mut bytes = [0; 4096];
            while !seen.load(Ordering::Relaxed) && kernel.read(&mut bytes).is_ok_and(|n| n > 0) {}
        });
        assert_eq!(sender.join().unwrap(), Ok(()));
        is_sent.store(true, Ordering::Relaxed);
        assert_eq!(notifier.log_slow(Instant::now() + 2 * LONG), 0);
        drop(notifier);
        drain.join().unwrap();
    }
}
