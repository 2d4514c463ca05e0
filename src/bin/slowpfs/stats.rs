//! Counters of requests, and the file they are written to.
//!
//! Operations are counted when they arrive. There are three ways to read the counters: the virtual file
//! `.slowpfs/stats`, the control socket, and the file of `--stats`. A thread rewrites that file atomically (a
//! temporary name, then rename) within 100 ms of a change.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use nix::sys::resource::{UsageWho, getrusage};
use serde::Serialize;

use crate::model::Nanos;

/// The kind of an operation, as counters, faults and the trace name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Op {
    /// A name is resolved.
    Lookup,
    /// Attributes.
    Getattr,
    /// A file is opened.
    Open,
    /// A file is closed for the last time.
    Release,
    /// A directory is opened.
    Opendir,
    /// One page of a directory, with attributes or without.
    Readdir,
    /// Data.
    Read,
    /// Symbolic links, extended attributes, the state of the filesystem.
    Other,
}

impl Op {
    const ALL: [Self; 8] = [
        Self::Lookup,
        Self::Getattr,
        Self::Open,
        Self::Release,
        Self::Opendir,
        Self::Readdir,
        Self::Read,
        Self::Other,
    ];

    /// Its name in counters, in faults and in the trace.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Lookup => "lookup",
            Self::Getattr => "getattr",
            Self::Open => "open",
            Self::Release => "release",
            Self::Opendir => "opendir",
            Self::Readdir => "readdir",
            Self::Read => "read",
            Self::Other => "other",
        }
    }

    /// The operation called `name`.
    pub(crate) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|op| op.name() == name)
    }
}

#[derive(Debug, Default)]
pub(crate) struct Stats {
    ops: [AtomicU64; 8],
    seek: AtomicU64,
    bytes: AtomicU64,
    errors_injected: AtomicU64,
    in_flight: AtomicU64,
    in_flight_max: AtomicU64,
    held: AtomicU64,
    late_ns_sum: AtomicU64,
    late_ns_max: AtomicU64,
    cpu_us_at_reset: AtomicU64,
}

/// The counters at one moment, as JSON shows them.
#[derive(Debug, Serialize, PartialEq, Eq, Clone, Default)]
pub(crate) struct Snapshot {
    lookup: u64,
    getattr: u64,
    open: u64,
    release: u64,
    opendir: u64,
    readdir: u64,
    read: u64,
    other: u64,
    /// Reads that did not continue the previous one of their handle.
    seek: u64,
    /// Bytes of data that reads returned.
    bytes: u64,
    errors_injected: u64,
    in_flight: u64,
    in_flight_max: u64,
    /// Replies that waited for their time.
    held: u64,
    held_late_us_max: u64,
    held_late_us_mean: u64,
    /// Processor time of this process, user and system, since the last reset.
    cpu_us: u64,
}

impl Stats {
    /// Counts an operation that has arrived and is not answered yet.
    pub(crate) fn arrived(&self, op: Op) {
        let now = self.in_flight.fetch_add(1, Relaxed) + 1;
        self.in_flight_max.fetch_max(now, Relaxed);
        self.count(op);
    }

    /// Operations that are not answered yet.
    pub(crate) fn in_flight(&self) -> u64 {
        self.in_flight.load(Relaxed)
    }

    /// Counts an operation without following it to its answer.
    pub(crate) fn count(&self, op: Op) {
        self.ops[op as usize].fetch_add(1, Relaxed);
    }

    /// Counts an answer.
    pub(crate) fn answered(&self) {
        self.in_flight.fetch_sub(1, Relaxed);
    }

    /// Counts a read that did not continue the one before it.
    pub(crate) fn random_read(&self) {
        self.seek.fetch_add(1, Relaxed);
    }

    /// Counts `bytes` of data that a read returned.
    pub(crate) fn read(&self, bytes: usize) {
        self.bytes.fetch_add(bytes as u64, Relaxed);
    }

    /// Counts an operation that met a fault.
    pub(crate) fn injected(&self) {
        self.errors_injected.fetch_add(1, Relaxed);
    }

    /// Counts a reply that waited and was sent `late` after its time.
    pub(crate) fn delayed_reply_sent(&self, late: Nanos) {
        self.held.fetch_add(1, Relaxed);
        self.late_ns_sum.fetch_add(late, Relaxed);
        self.late_ns_max.fetch_max(late, Relaxed);
    }

    /// Zeroes everything except the number of operations in flight.
    pub(crate) fn reset(&self) {
        let simple = [
            &self.seek,
            &self.bytes,
            &self.errors_injected,
            &self.held,
            &self.late_ns_sum,
            &self.late_ns_max,
        ];
        for counter in self.ops.iter().chain(simple) {
            counter.store(0, Relaxed);
        }
        self.in_flight_max.store(self.in_flight.load(Relaxed), Relaxed);
        self.cpu_us_at_reset.store(process_cpu_us(), Relaxed);
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        let op = |op: Op| self.ops[op as usize].load(Relaxed);
        let held = self.held.load(Relaxed);
        let mean_ns = self.late_ns_sum.load(Relaxed).checked_div(held).unwrap_or(0);
        Snapshot {
            lookup: op(Op::Lookup),
            getattr: op(Op::Getattr),
            open: op(Op::Open),
            release: op(Op::Release),
            opendir: op(Op::Opendir),
            readdir: op(Op::Readdir),
            read: op(Op::Read),
            other: op(Op::Other),
            seek: self.seek.load(Relaxed),
            bytes: self.bytes.load(Relaxed),
            errors_injected: self.errors_injected.load(Relaxed),
            in_flight: self.in_flight.load(Relaxed),
            in_flight_max: self.in_flight_max.load(Relaxed),
            held,
            held_late_us_max: self.late_ns_max.load(Relaxed) / 1_000,
            held_late_us_mean: mean_ns / 1_000,
            cpu_us: process_cpu_us().saturating_sub(self.cpu_us_at_reset.load(Relaxed)),
        }
    }

    /// The counters as one line of JSON.
    pub(crate) fn json(&self) -> String {
        self.snapshot().json()
    }
}

impl Snapshot {
    fn json(&self) -> String {
        let mut line = serde_json::to_string(self).unwrap_or_default();
        line.push('\n');
        line
    }
}

/// Writes the counters to a file when they have changed.
#[derive(Debug)]
pub(crate) struct StatsFile {
    path: PathBuf,
    written: Option<Snapshot>,
}

impl StatsFile {
    pub(crate) fn new(path: PathBuf) -> Self {
        Self { path, written: None }
    }

    /// Writes the counters if they differ from what the file holds.
    pub(crate) fn update(&mut self, stats: &Stats) -> io::Result<()> {
        let now = stats.snapshot();
        // This thread uses processor time, too: that alone is no change.
        let same = self
            .written
            .as_ref()
            .is_some_and(|old| *old == Snapshot { cpu_us: old.cpu_us, ..now.clone() });
        if !same {
            replace(&self.path, now.json().as_bytes())?;
            self.written = Some(now);
        }
        Ok(())
    }
}

/// Replaces the file at `path`. A reader sees the old or the new content, never a part.
fn replace(path: &Path, content: &[u8]) -> io::Result<()> {
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(".tmp");
    fs::write(&temporary, content)?;
    fs::rename(&temporary, path)
}

/// User and system time of this process, in microseconds.
fn process_cpu_us() -> u64 {
    let micros = |time: nix::sys::time::TimeVal| time.tv_sec() * 1_000_000 + time.tv_usec();
    getrusage(UsageWho::RUSAGE_SELF)
        .map(|usage| (micros(usage.user_time()) + micros(usage.system_time())).max(0) as u64)
        .unwrap_or(0)
}
