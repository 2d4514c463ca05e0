//! Lets the kernel read large files by itself from the cache directory (passthrough).
//!
//! If opens are requests, an open can be answered with a file that the kernel reads instead of asking us.
//! At any time the kernel takes only one of the two kinds of open for a node, and always the same file. So
//! the passthrough of a node begins with an open while no other descriptor has it open. It ends when all
//! descriptors are closed. The bytes of such a file are compared with their checksums once a mount. All
//! other bytes from the store are compared at each read.
//!
//! Passthrough needs Linux 6.9 and CAP_SYS_ADMIN. It is tried at the mount, and given up at the first
//! refusal.

use std::collections::HashMap;
use std::io::{Error, Result};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use fuser::BackingId;
use tempfile::tempfile_in;

use super::{Notifier, Pusher};
use crate::catalog::NodeId;
use crate::source::{Pool, Urgency};
use crate::store::PassthroughFile;
use crate::sync::{Mutex, MutexGuard};

/// The file behind a node that is passed through, and its number in the kernel.
struct Backing<I, L> {
    id: Arc<I>,
    /// Holding this keeps the bytes in place.
    _file: L,
}

/// How often a node is open: with reads sent to the daemon, and passed through.
struct Opens<I, L> {
    through_daemon: u32,
    passed_through: u32,
    backing: Option<Backing<I, L>>,
}

impl<I, L> Default for Opens<I, L> {
    fn default() -> Self {
        Opens { through_daemon: 0, passed_through: 0, backing: None }
    }
}

pub(super) struct Passthrough<I = BackingId, L = Arc<PassthroughFile>> {
    supported: AtomicBool,
    opens: Mutex<HashMap<NodeId, Opens<I, L>>>,
    /// Closes files: the cache disk may take long to release a deleted file.
    closer: Pool,
}

impl<I, L> Default for Passthrough<I, L> {
    fn default() -> Self {
        let closer = Pool::new("belady-close", 1, 0);
        Passthrough { supported: AtomicBool::default(), opens: Mutex::default(), closer }
    }
}

impl<I: Send + Sync + 'static, L: Send + 'static> Passthrough<I, L> {
    pub(super) fn set_supported(&self) {
        self.supported.store(true, Ordering::Relaxed);
    }

    /// Tries it with a file in a directory: the kernel may support it, and yet not permit it, or not for this
    /// filesystem. Blocks.
    pub(super) fn probe(&self, notifier: &Notifier, pusher: &Pusher, directory: &Path) {
        pusher.wait_for_init();
        if !self.is_supported() {
            return;
        }
        // A disk without room for another file may hold files to read.
        if let Ok(file) = tempfile_in(directory)
            && let Err(error) = notifier.register_backing(&file)
        {
            self.give_up(&error);
        }
    }

    fn give_up(&self, error: &Error) {
        tracing::info!(%error, "the kernel passes no files through");
        self.supported.store(false, Ordering::Relaxed);
    }

    /// Whether the kernel supports it, as far as is known.
    pub(super) fn is_supported(&self) -> bool {
        self.supported.load(Ordering::Relaxed)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<NodeId, Opens<I, L>>> {
        self.opens.lock()
    }

    /// Counts an open of a node. Returns what to answer if the node is passed through. `find` gives the file, and
    /// `register` registers it with the kernel. Each open must be [released](Self::release).
    pub(super) fn open(
        &self,
        node: NodeId,
        find: impl FnOnce() -> Option<L>,
        register: impl FnOnce(&L) -> Result<I>,
    ) -> Option<Arc<I>> {
        let supported = self.is_supported();
        let mut all = self.lock();
        if !supported && !all.contains_key(&node) {
            return None;
        }
        let opens = all.entry(node).or_default();
        if supported && opens.through_daemon == 0 && opens.backing.is_none() {
            opens.backing = find().and_then(|file| match register(&file) {
                Ok(id) => Some(Backing { id: Arc::new(id), _file: file }),
                Err(error) => {
                    self.give_up(&error);
                    None
                }
            });
        }
        match &opens.backing {
            Some(backing) => {
                opens.passed_through += 1;
                Some(Arc::clone(&backing.id))
            }
            None => {
                opens.through_daemon += 1;
                None
            }
        }
    }

    /// Counts the end of an open, which was passed through or not.
    pub(super) fn release(&self, node: NodeId, passed: bool) {
        let mut all = self.lock();
        let Some(opens) = all.get_mut(&node) else { return };
        let count = if passed { &mut opens.passed_through } else { &mut opens.through_daemon };
        *count = count.saturating_sub(1);
        let ended = (opens.through_daemon == 0 && opens.passed_through == 0)
            .then(|| all.remove(&node))
            .flatten();
        drop(all);
        if let Some(backing) = ended.and_then(|opens| opens.backing) {
            self.closer.submit(Urgency::Prefetch, move || drop(backing));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::time::Duration;

    use super::*;

    /// A time that only a broken program takes.
    const LIMIT: Duration = Duration::from_secs(180);

    /// A file that reports when it is being closed, and is closed when a test says so.
    struct Slow(Sender<()>, Receiver<()>);

    impl Drop for Slow {
        fn drop(&mut self) {
            self.0.send(()).unwrap();
            // The test may be over.
            let _ = self.1.recv_timeout(LIMIT);
        }
    }

    /// Opens and closes a node on another thread, which a test waits for with a limit.
    fn open_and_release(passthrough: &Arc<Passthrough<(), Slow>>, node: NodeId, file: Slow) {
        let (passthrough, (sender, receiver)) = (Arc::clone(passthrough), channel());
        std::thread::spawn(move || {
            let passed = passthrough.open(node, || Some(file), |_| Ok(())).is_some();
            passthrough.release(node, passed);
            sender.send(passed).unwrap();
        });
        assert_eq!(receiver.recv_timeout(LIMIT), Ok(true));
    }

    #[test]
    fn a_file_that_is_slow_to_close_holds_up_no_request() {
        let passthrough = Arc::<Passthrough<(), Slow>>::default();
        passthrough.set_supported();
        let (closes, closing) = channel();
        let ends: Vec<Sender<()>> = [1, 2, 1, 3]
            .map(|node| {
                let (end, ended) = channel();
                open_and_release(&passthrough, NodeId(node), Slow(closes.clone(), ended));
                end
            })
            .into();
        assert!(passthrough.lock().is_empty(), "nobody has one open");
        for end in ends {
            assert_eq!(closing.recv_timeout(LIMIT), Ok(()), "one after the other");
            assert!(closing.try_recv().is_err());
            end.send(()).unwrap();
        }
    }

    #[test]
    fn a_file_is_held_as_long_as_somebody_has_it_open() {
        let passthrough = Passthrough::<(), Slow>::default();
        passthrough.set_supported();
        let (node, (closes, closing), (end, ended)) = (NodeId(1), channel(), channel());
        let file = Slow(closes, ended);
        assert!(passthrough.open(node, || Some(file), |_| Ok(())).is_some());
        assert!(passthrough.open(node, || unreachable!(), |_| unreachable!()).is_some());
        passthrough.release(node, true);
        assert!(closing.recv_timeout(Duration::from_millis(20)).is_err());
        passthrough.release(node, true);
        assert_eq!(closing.recv_timeout(LIMIT), Ok(()));
        end.send(()).unwrap();
    }
}
