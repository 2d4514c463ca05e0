//! How long a busy parallel filesystem takes, as a pure function of the requests.
//!
//! The model has no clock and does no I/O. It is told when each operation arrives, in virtual nanoseconds,
//! and answers when the operation completes:
//!
//! 1. With probability `tail_p` the operation is slow: its latency and its seek are multiplied by `tail_x`.
//! 2. A metadata operation (lookup, getattr, open, a page of a directory) waits for one of `mds_slots`
//!    servers in order of arrival. It is served for `mds_us`, and is answered one latency later.
//! 3. A read travels for its latency, then waits for one of `slots` data servers. The server works for
//!    `seek_ms` (unless the read continues the one before it on the same handle), and then transfers the
//!    bytes at `stream_mbs`. Then the bytes pass the one link of `mbs` that all reads share.
//!
//! The same requests with the same seed give the same times, whatever the machine does.

mod load;
mod params;
mod timeline;

#[cfg(test)]
mod tests;

use std::collections::HashMap;

use rand::rngs::ChaCha8Rng;
use rand::{RngExt, SeedableRng};

pub(crate) use load::{Outcome, closed_loop, whole_file};
pub(crate) use params::{Params, Preset};
use timeline::Timeline;

/// A virtual time or a duration, in nanoseconds.
pub(crate) type Nanos = u64;

/// An operation, with the parameters of its cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    /// A name is resolved.
    Lookup,
    /// Attributes, or other small data of an inode, are requested.
    Getattr,
    /// A file is opened.
    Open,
    /// A directory is opened, or one page of it is read.
    Readdir,
    /// Data is read.
    Read {
        /// The open file. It decides whether a read continues another.
        handle: u64,
        offset: u64,
        bytes: u64,
    },
}

/// The model's answer for one operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Admission {
    /// When it completes.
    pub(crate) done: Nanos,
    /// Whether it is a read that does not continue the previous one.
    pub(crate) random: bool,
}

/// The state of the servers and of the link.
#[derive(Debug)]
pub(crate) struct Model {
    params: Params,
    /// Factor on every time: 1 unless the filesystem is made slow on purpose.
    slowdown: f64,
    rng: ChaCha8Rng,
    /// When each metadata server is free. Operations arrive here in order, so one number is enough.
    mds: Vec<Nanos>,
    slots: Vec<Timeline>,
    link: Timeline,
    /// The offset that the reads of each open file have reached.
    frontiers: HashMap<u64, u64>,
}

impl Model {
    /// A filesystem at rest.
    pub(crate) fn new(params: Params, seed: u64) -> Self {
        let mut model = Self {
            params,
            slowdown: 1.0,
            rng: ChaCha8Rng::seed_from_u64(seed),
            mds: Vec::new(),
            slots: Vec::new(),
            link: Timeline::default(),
            frontiers: HashMap::new(),
        };
        model.set_params(params);
        model
    }

    /// Changes the parameters. Operations that were admitted keep their times.
    pub(crate) fn set_params(&mut self, params: Params) {
        self.params = params;
        self.mds.resize(params.mds_slots.max(1), 0);
        self.slots.resize(params.slots.max(1), Timeline::default());
    }

    /// Multiplies every time from now on.
    pub(crate) fn set_slowdown(&mut self, factor: f64) {
        self.slowdown = factor;
    }

    /// Admits a request that arrives at `now`, and returns when it completes. Times of arrival must not go
    /// backwards.
    pub(crate) fn admit(&mut self, now: Nanos, request: Request) -> Admission {
        let p = self.params;
        let slow =
            if p.tail_p > 0.0 && self.rng.random::<f64>() < p.tail_p { p.tail_x } else { 1.0 };
        let (latency_ms, read) = match request {
            Request::Lookup | Request::Readdir => (p.lookup_ms, None),
            Request::Getattr => (p.getattr_ms, None),
            Request::Open => (p.open_ms, None),
            Request::Read { handle, offset, bytes } => (p.read_ms, Some((handle, offset, bytes))),
        };
        let latency = self.nanos(latency_ms * slow, 1e6);
        match read {
            None => Admission { done: self.metadata(now).saturating_add(latency), random: false },
            Some((handle, offset, bytes)) => {
                let random = !self.note_read(handle, offset, bytes);
                let seek_ms = if random { p.seek_ms * slow } else { 0.0 };
                let done = self.data(now, now.saturating_add(latency), seek_ms, bytes);
                Admission { done, random }
            }
        }
    }

    /// Forgets an open file that was closed.
    pub(crate) fn close(&mut self, handle: u64) {
        self.frontiers.remove(&handle);
    }

    /// Queues for a metadata server, and returns when it has served.
    fn metadata(&mut self, now: Nanos) -> Nanos {
        let service = self.nanos(self.params.mds_us, 1e3);
        match self.mds.iter_mut().min() {
            Some(free) if service > 0 => {
                *free = now.max(*free).saturating_add(service);
                *free
            }
            _ => now,
        }
    }

    /// Queues for a data server at `at` and then for the link. Returns when the last byte has passed.
    fn data(&mut self, now: Nanos, at: Nanos, seek_ms: f64, bytes: u64) -> Nanos {
        let service =
            self.nanos(seek_ms, 1e6).saturating_add(self.transfer(bytes, |p| p.stream_mbs));
        let mut served = at;
        for slot in &mut self.slots {
            slot.prune(now);
        }
        let best = self.slots.iter_mut().map(|slot| (slot.fit(at, service), slot));
        if let Some((start, slot)) = best.min_by_key(|&(start, _)| start) {
            served = start.saturating_add(service);
            slot.occupy(start, served);
        }
        self.link.prune(now);
        let length = self.transfer(bytes, |p| p.mbs);
        self.link.fill(served, length)
    }

    /// Notes a read. Returns whether it continues the earlier reads of its handle.
    ///
    /// The kernel has several readahead requests of one stream in flight, and several threads accept them. So
    /// neighbours change places now and then. A parallel filesystem recognises such reads, and so does the
    /// model: a read continues within two lengths of the request on either side.
    fn note_read(&mut self, handle: u64, offset: u64, bytes: u64) -> bool {
        let end = offset.saturating_add(bytes);
        match self.frontiers.insert(handle, end) {
            Some(frontier) if offset.abs_diff(frontier) <= bytes.saturating_mul(2) => {
                self.frontiers.insert(handle, end.max(frontier));
                true
            }
            _ => false,
        }
    }

    /// The time of `bytes` at a rate in MB/s. A rate of zero means no limit.
    fn transfer(&self, bytes: u64, rate: impl Fn(&Params) -> f64) -> Nanos {
        let mbs = rate(&self.params);
        if mbs > 0.0 { self.nanos(bytes as f64 / mbs, 1e3) } else { 0 }
    }

    /// `value` in units of `unit` nanoseconds, times the slowdown. Casts saturate.
    fn nanos(&self, value: f64, unit: f64) -> Nanos {
        (value * unit * self.slowdown).round() as Nanos
    }
}
