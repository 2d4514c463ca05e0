//! Marks the daemon's own threads.
//!
//! The daemon uses its own mount: it looks names up so that the kernel knows them, and opens files to drop
//! their pages. These requests come back to it like any other. They must not be taken for a reader's, and
//! must not wait for the source.

use std::collections::BTreeSet;

use crate::sync::RwLock;

static THREADS: RwLock<BTreeSet<u32>> = RwLock::new(BTreeSet::new());

thread_local! {
    static REGISTRATION: Registration = Registration::new();
}

struct Registration(u32);

impl Registration {
    fn new() -> Self {
        let id = nix::unistd::gettid().as_raw() as u32;
        THREADS.write().insert(id);
        Registration(id)
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        THREADS.write().remove(&self.0);
    }
}

pub struct DaemonThreads;

impl DaemonThreads {
    /// Marks the calling thread for the rest of its life.
    pub fn mark_current() -> Self {
        REGISTRATION.with(|_| ());
        DaemonThreads
    }

    pub fn contains(id: u32) -> bool {
        THREADS.read().contains(&id)
    }
}
