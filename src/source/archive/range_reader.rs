//! Reads a file of a source like a local one: what parsers of archives read from.

use std::io::{Error, ErrorKind, Read, Result, Seek, SeekFrom};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};

use crate::source::{Calls, Fingerprint, ReadError, ReadRequest, Source, Stat, Urgency};

/// Bytes that are read at once: some headers of small members, and little of large ones.
const PIECE: u64 = 16 << 10;

/// A place in one version of a file.
pub(super) struct RangeReader<'a> {
    source: &'a Arc<dyn Source>,
    /// The reads of all such readers.
    calls: &'a Calls,
    path: Arc<Path>,
    fingerprint: Fingerprint,
    size: u64,
    at: u64,
    /// Bytes that were read since the last seek, and the most that a parser may ask for in a row.
    run: u64,
    run_max: u64,
    /// Set if the source does not give bytes. Parsers wrap errors, so that theirs do not tell.
    failed: Arc<AtomicBool>,
    /// The bytes that were read last, and where they begin.
    piece: (u64, Vec<u8>),
}

impl<'a> RangeReader<'a> {
    /// A reader of a file that does not read more than `run_max` bytes without a seek.
    pub(super) fn new(
        source: &'a Arc<dyn Source>,
        calls: &'a Calls,
        path: &Path,
        stat: &Stat,
        run_max: u64,
    ) -> Self {
        RangeReader {
            source,
            calls,
            path: path.into(),
            fingerprint: stat.fingerprint(),
            size: stat.size,
            at: 0,
            run: 0,
            run_max,
            failed: Arc::default(),
            piece: (0, Vec::new()),
        }
    }

    /// Whether the source did not give bytes, from now on.
    pub(super) fn failed(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.failed)
    }

    /// Reads a range, and waits for it.
    fn fetch(&self, offset: u64, length: u64) -> Result<Vec<u8>> {
        let (send, answer) = mpsc::channel();
        let (call, overloads) = (self.calls.begin(), self.source.overloads());
        self.source.read(vec![ReadRequest {
            path: Arc::clone(&self.path),
            fingerprint: self.fingerprint,
            is_sized: true,
            exact: true,
            offset,
            length: length as usize,
            urgency: Urgency::Prefetch,
            // Nobody waits any more if the receiver has gone.
            deliver: Box::new(move |read| drop(send.send(read))),
        }]);
        match answer.recv() {
            Ok(Ok(bytes)) => {
                match self.source.overloads() > overloads {
                    true => call.overloaded(),
                    false => call.answered(1, 1),
                }
                Ok(bytes)
            }
            Ok(Err(ReadError::Changed)) => Err(Error::other("it was changed while it was read")),
            Ok(Err(ReadError::Source(errno))) => {
                self.failed.store(true, Ordering::Relaxed);
                Err(errno.into())
            }
            Err(mpsc::RecvError) => {
                self.failed.store(true, Ordering::Relaxed);
                Err(Error::other("the source is closed"))
            }
        }
    }
}

impl Read for RangeReader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> Result<usize> {
        if self.at >= self.size {
            return Ok(0);
        }
        let has =
            |piece: &(u64, Vec<u8>), at| (piece.0..piece.0 + piece.1.len() as u64).contains(&at);
        if !has(&self.piece, self.at) {
            let length = PIECE.min(self.size - self.at);
            self.piece = (self.at, self.fetch(self.at, length)?);
        }
        let (from, bytes) = &self.piece;
        let there = &bytes[(self.at - from) as usize..];
        let length = there.len().min(buffer.len());
        buffer[..length].copy_from_slice(&there[..length]);
        self.at += length as u64;
        self.run += length as u64;
        if self.run > self.run_max {
            return Err(Error::other("a header is too large"));
        }
        Ok(length)
    }
}

impl Seek for RangeReader<'_> {
    fn seek(&mut self, to: SeekFrom) -> Result<u64> {
        let at = match to {
            SeekFrom::Start(at) => Some(at),
            SeekFrom::End(by) => self.size.checked_add_signed(by),
            SeekFrom::Current(by) => self.at.checked_add_signed(by),
        };
        self.run = 0;
        self.at = at.ok_or_else(|| Error::from(ErrorKind::InvalidInput))?;
        Ok(self.at)
    }
}
