//! Counts the kernel's requests by kind.

use std::sync::atomic::{AtomicU64, Ordering};

#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    Lookup,
    Getattr,
    Open,
    /// An open of a file that the kernel reads by itself.
    PassedThrough,
    Read,
    Release,
    Opendir,
    /// A listing of a directory, with or without attributes.
    List,
    Ioctl,
    Flush,
    Other,
    /// Any request of our own threads: to prime a node, or to check or drop its pages.
    Daemon,
}

/// Names of the kinds, in the order of [`Kind`].
const NAMES: [&str; 12] = [
    "lookup", "getattr", "open", "passed", "read", "release", "opendir", "list", "ioctl", "flush",
    "other", "own",
];

#[derive(Debug, Default)]
pub struct Requests([AtomicU64; NAMES.len()]);

impl Requests {
    pub(super) fn count(&self, kind: Kind) {
        self.0[kind as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub fn by_kind(&self) -> impl Iterator<Item = (&'static str, u64)> {
        NAMES.into_iter().zip(self.0.iter().map(|count| count.load(Ordering::Relaxed)))
    }
}
