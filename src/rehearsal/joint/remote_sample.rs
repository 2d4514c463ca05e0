//! Samples that another node keeps, and their bytes.
//!
//! 1. The node that keeps a sample is asked for its bytes.
//! 2. If it does not answer within a second, or has given the sample up, the source is read. The bytes count if they have the
//!    same length and checksum.
//! 3. If the source does not have them and the node has not answered yet, its answer is waited for longer.
//!
//! A node that did not answer is not asked for a while.

use std::collections::HashMap;
use std::io::{Error, ErrorKind, Result};
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use lru::LruCache;

use super::asking::{ask, begin};
use super::messages::Question;
use crate::cache::{Cache, read_whole};
use crate::catalog::NodeId;
use crate::disk::Buffer;
use crate::peers::Wants;
use crate::sync::Mutex;

/// How long the node that keeps a sample is waited for, before the source is read and in all.
const NODE_WAIT: Duration = Duration::from_secs(1);
const NODE_WAIT_MAX: Duration = Duration::from_secs(10);

/// How long a node that did not answer is left alone.
const LEFT_ALONE: Duration = Duration::from_secs(10);

const SOURCE_WAIT: Duration = Duration::from_secs(60);

/// Bytes that are read ahead at most, and samples.
const AHEAD_BYTES_MAX: usize = 32 << 20;
const AHEAD_MAX: NonZeroUsize = NonZeroUsize::new(1 << 12).expect("more than none");

/// A sample of another node, without its bytes.
#[derive(Clone)]
pub struct RemoteSample {
    /// The id of the node that keeps it.
    keeper: u64,
    buffer: Arc<str>,
    hash: u64,
    /// Its path within the dataset.
    source: String,
    length: u32,
    /// The CRC-32C of its bytes.
    checksum: u32,
    samples: Arc<RemoteSamples>,
}

impl std::fmt::Debug for RemoteSample {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "RemoteSample({} at {:016x})", self.source, self.keeper)
    }
}

/// Reads samples of other nodes.
pub(super) struct RemoteSamples {
    wants: Weak<dyn Wants>,
    cache: Arc<Cache>,
    ahead: Mutex<Ahead>,
    /// Nodes that did not answer, and until when they are left alone.
    silent: Mutex<HashMap<u64, Instant>>,
    /// How many were read from other nodes, and from the source in their place.
    pub(super) read: AtomicU64,
    pub(super) read_from_source: AtomicU64,
}

impl RemoteSamples {
    pub(super) fn new(wants: Weak<dyn Wants>, cache: Arc<Cache>) -> Self {
        let (silent, read, read_from_source) = Default::default();
        let ahead = Mutex::new(Ahead { samples: LruCache::new(AHEAD_MAX), bytes: 0 });
        RemoteSamples { wants, cache, ahead, silent, read, read_from_source }
    }

    fn is_silent(&self, node: u64) -> bool {
        self.silent.lock().get(&node).is_some_and(|until| Instant::now() < *until)
    }

    fn note_silent(&self, node: u64) {
        self.silent.lock().insert(node, Instant::now() + LEFT_ALONE);
    }

    /// Reads a file of the dataset, if it has this size. Blocks.
    fn read_from_source(&self, path: &str, length: u32) -> Option<Vec<u8>> {
        let catalog = self.cache.catalog();
        let node = path.split('/').try_fold(NodeId::ROOT, |parent, name| {
            Some(catalog.lookup(parent, name.as_ref(), true)?.ok()?.node)
        })?;
        catalog.getattr(node).ok().filter(|attr| attr.stat.size == u64::from(length))?;
        let (send, taken) = sync_channel(1);
        let take = Box::new(move |bytes: Option<Buffer>| {
            // The reader may have given up.
            let _ = send.send(bytes.map(|bytes| bytes.to_vec()));
        });
        read_whole(&self.cache, node, take);
        taken.recv_timeout(SOURCE_WAIT).ok().flatten()
    }
}

impl RemoteSample {
    pub(super) fn new(
        samples: &Arc<RemoteSamples>,
        buffer: &Arc<str>,
        keeper: u64,
        listed: &super::Listed,
    ) -> Self {
        RemoteSample {
            keeper,
            buffer: Arc::clone(buffer),
            hash: listed.hash,
            source: listed.source.clone(),
            length: listed.length,
            checksum: listed.checksum,
            samples: Arc::clone(samples),
        }
    }

    pub(in crate::rehearsal) fn length(&self) -> u32 {
        self.length
    }

    fn is_right(&self, bytes: &[u8]) -> bool {
        bytes.len() == self.length as usize && crc32c::crc32c(bytes) == self.checksum
    }

    fn key(&self) -> (u64, u32) {
        (self.hash, self.checksum)
    }

    /// The bytes, if they were read ahead. They are given once.
    pub(in crate::rehearsal) fn read_now(&self) -> Option<Vec<u8>> {
        self.samples.ahead.lock().take(self.key())
    }

    /// Reads the bytes. Blocks.
    ///
    /// # Errors
    /// `NotFound` if neither the node nor the source has them.
    pub(in crate::rehearsal) fn read(&self) -> Result<Vec<u8>> {
        if let Some(bytes) = self.read_now() {
            return Ok(bytes);
        }
        let is_silent = self.samples.is_silent(self.keeper);
        let answer = (!is_silent).then(|| self.ask());
        let soon = answer.as_ref().map(|answer| answer.recv_timeout(NODE_WAIT));
        let is_late = is_silent || matches!(soon, Some(Err(_)));
        if is_late && !is_silent {
            self.samples.note_silent(self.keeper);
        }
        if let Some(bytes) = soon.and_then(|soon| self.of_node(soon.ok().flatten())) {
            return Ok(bytes);
        }
        let bytes = self.samples.read_from_source(&self.source, self.length);
        if let Some(bytes) = bytes.filter(|bytes| self.is_right(bytes)) {
            self.samples.read_from_source.fetch_add(1, Ordering::Relaxed);
            return Ok(bytes);
        }
        let late = || answer.unwrap_or_else(|| self.ask()).recv_timeout(NODE_WAIT_MAX).ok()?;
        let bytes = is_late.then(late).flatten();
        self.of_node(bytes).ok_or_else(|| {
            let message = format!(
                "{}: the node that kept it does not give it, and the dataset has another version",
                self.source
            );
            Error::new(ErrorKind::NotFound, message)
        })
    }

    /// Asks the node that keeps it for the bytes.
    fn ask(&self) -> Receiver<Option<Vec<u8>>> {
        let RemoteSample { keeper, hash, checksum, .. } = *self;
        let question = Question::Bytes { buffer: self.buffer.to_string(), hash, checksum };
        begin(&self.samples.wants, keeper, &question, NODE_WAIT_MAX)
    }

    /// The bytes that a node has given, if they are right.
    fn of_node(&self, bytes: Option<Vec<u8>>) -> Option<Vec<u8>> {
        let bytes = bytes.filter(|bytes| self.is_right(bytes))?;
        self.samples.read.fetch_add(1, Ordering::Relaxed);
        Some(bytes)
    }

    /// Reads the bytes for a reader that comes soon, unless they are so many that others had no room. Blocks.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub(in crate::rehearsal) fn read_ahead(&self) -> Result<()> {
        let is_small = self.length as usize <= AHEAD_BYTES_MAX / 4;
        if is_small && !self.samples.ahead.lock().samples.contains(&self.key()) {
            let bytes = self.read()?;
            self.samples.ahead.lock().put(self.key(), bytes);
        }
        Ok(())
    }

    /// Has the node that keeps it count that it was shown.
    pub(in crate::rehearsal) fn note_shown(&self) {
        let shown = Question::Shown { buffer: self.buffer.to_string(), hash: self.hash };
        ask(&self.samples.wants, self.keeper, &shown, Duration::ZERO, Box::new(|_| ()));
    }
}

/// Samples that were read ahead of their readers.
struct Ahead {
    samples: LruCache<(u64, u32), Vec<u8>>,
    bytes: usize,
}

impl Ahead {
    fn take(&mut self, key: (u64, u32)) -> Option<Vec<u8>> {
        let bytes = self.samples.pop(&key)?;
        self.bytes -= bytes.len();
        Some(bytes)
    }

    fn put(&mut self, key: (u64, u32), bytes: Vec<u8>) {
        self.bytes += bytes.len();
        if let Some((_, before)) = self.samples.push(key, bytes) {
            self.bytes -= before.len();
        }
        while self.bytes > AHEAD_BYTES_MAX
            && let Some((_, oldest)) = self.samples.pop_lru()
        {
            self.bytes -= oldest.len();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_read_ahead_is_bounded_and_given_once() {
        let mut ahead = Ahead { samples: LruCache::new(AHEAD_MAX), bytes: 0 };
        let large = AHEAD_BYTES_MAX / 2;
        ahead.put((1, 0), vec![1; large]);
        ahead.put((1, 0), vec![2; large]);
        ahead.put((2, 0), vec![3; large]);
        assert_eq!(ahead.take((1, 0)), Some(vec![2; large]));
        assert_eq!(ahead.take((1, 0)), None);
        ahead.put((3, 0), vec![4; large]);
        ahead.put((4, 0), vec![5]);
        assert_eq!((ahead.take((2, 0)), ahead.take((4, 0))), (None, Some(vec![5])));
        assert_eq!(ahead.bytes, large);
    }
}
