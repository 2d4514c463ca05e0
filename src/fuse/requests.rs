//! How many requests the kernel sent, by kind.

use std::sync::atomic::{AtomicU64, Ordering};

/// What a request asks for.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    Lookup,
    Getattr,
    Open,
    /// An open of a file that the kernel reads by itself.
    Passed,
    Read,
    Release,
    Opendir,
    /// Of a directory, with or without what its names stand for.
    List,
    Ioctl,
    Flush,
    Other,
    /// Whatever one of our own threads asks for: to prime a node, to check or drop its pages.
    Own,
}

/// Names of the kinds, in their order.
const NAMES: [&str; 12] = [
    "lookup", "getattr", "open", "passed", "read", "release", "opendir", "list", "ioctl", "flush",
    "other", "own",
];

/// Requests of the kernel since the mount.
#[derive(Debug, Default)]
pub struct Requests([AtomicU64; NAMES.len()]);

impl Requests {
    pub(super) fn count(&self, kind: Kind) {
        self.0[kind as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// The counts, each with the name of its kind.
    pub fn by_kind(&self) -> impl Iterator<Item = (&'static str, u64)> {
        NAMES.into_iter().zip(self.0.iter().map(|count| count.load(Ordering::Relaxed)))
    }
}
