//! Which threads are ours.
//!
//! The daemon uses its own mount: it looks names up so that the kernel knows them, and opens files
//! to drop their pages. Such requests come back to it like any other. They must not be taken for a
//! reader's, nor wait for the source.

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

/// The daemon's own threads, by thread id.
pub struct OwnThreads;

impl OwnThreads {
    /// Marks the calling thread as ours, as long as it lives.
    pub fn enter() -> Self {
        REGISTRATION.with(|_| ());
        OwnThreads
    }

    /// Whether a thread is ours.
    pub fn contains(id: u32) -> bool {
        THREADS.read().contains(&id)
    }
}
