//! Collects the samples of an order file into epochs and checks them against the file's directives.

use std::fmt;
use std::sync::Arc;

use crate::error::{Error, ErrorKind, Result};
use crate::ids::FileId;
use crate::order::sample::IdSet;

/// A line or entry of an order file, counted from 1.
#[derive(Clone, Copy, Debug)]
pub(super) enum InputLocation {
    Line(u64),
    Entry(u64),
}

impl InputLocation {
    /// An error about this location.
    pub(super) fn error(self, message: impl fmt::Display) -> Error {
        Error::new(ErrorKind::Order, format!("{self}: {message}"))
    }
}

impl fmt::Display for InputLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            InputLocation::Line(number) => write!(f, "line {number}"),
            InputLocation::Entry(number) => write!(f, "entry {number}"),
        }
    }
}

/// The epochs read so far.
///
/// The samples of an epoch are collected in the order of the file. When the epoch ends, loops over the whole
/// epoch turn them into ids and look for duplicates. Done one by one, 10^7 random accesses to memory would
/// take longer than everything else. A finished epoch takes 4 bytes a sample, and at most 8 while it is read.
pub(super) struct Builder<'p> {
    epochs: Vec<Arc<[u32]>>,
    current: Vec<u32>,
    /// The index order that the samples are positions of. `None`: the samples are sample ids.
    index: Option<&'p [FileId]>,
    /// Finds duplicates in an epoch. `None`: duplicates are allowed.
    seen: Option<IdSet>,
    count: Option<u64>,
    /// The number of the current epoch, if a line gave one.
    label: Option<u64>,
    /// Number of samples in the epochs before the current one.
    before: u64,
    /// Gives the location of a sample from the number of samples before it in the file.
    locate: &'p dyn Fn(u64) -> InputLocation,
}

impl<'p> Builder<'p> {
    /// For a file of at most `capacity` samples.
    pub(super) fn new(capacity: usize, locate: &'p dyn Fn(u64) -> InputLocation) -> Self {
        Builder {
            epochs: Vec::new(),
            current: Vec::with_capacity(capacity),
            index: None,
            seen: None,
            count: None,
            label: None,
            before: 0,
            locate,
        }
    }

    /// The samples that are pushed are positions in this index order, below its length.
    pub(super) fn with_index(mut self, index: Option<&'p [FileId]>) -> Self {
        self.index = index;
        self
    }

    /// Requires `count` samples in every epoch, if it is given.
    pub(super) fn with_count(mut self, count: Option<u64>) -> Self {
        self.count = count;
        self
    }

    fn has_samples(&self) -> bool {
        !(self.current.is_empty() && self.epochs.is_empty())
    }

    /// Forbids duplicates in an epoch.
    pub(super) fn require_unique(&mut self, location: InputLocation) -> Result<()> {
        self.check_early(location)?;
        self.seen = Some(IdSet::default());
        Ok(())
    }

    /// Requires `count` samples in every epoch.
    pub(super) fn require_count(&mut self, count: u64, location: InputLocation) -> Result<()> {
        self.check_early(location)?;
        match self.count.replace(count) {
            Some(other) if other != count => {
                Err(location.error(format!("count {count}, but another count given is {other}")))
            }
            _ => Ok(()),
        }
    }

    fn check_early(&self, location: InputLocation) -> Result<()> {
        if self.has_samples() {
            return Err(location.error("a directive has to stand before the first sample"));
        }
        Ok(())
    }

    pub(super) fn push(&mut self, sample: u32) {
        self.current.push(sample);
    }

    /// Ends the current epoch, if there is one, and begins the epoch with the number `label`.
    pub(super) fn begin_epoch(&mut self, label: u64, location: InputLocation) -> Result<()> {
        if self.has_samples() || self.label.is_some() {
            self.end_epoch(location)?;
        }
        if let Some(before) = self.label.replace(label)
            && before.checked_add(1) != Some(label)
        {
            return Err(location.error(format!("epoch {label} follows epoch {before}")));
        }
        Ok(())
    }

    /// Ends the last epoch. `location` is the file's last line or entry.
    pub(super) fn finish(mut self, location: InputLocation) -> Result<Vec<Arc<[u32]>>> {
        self.end_epoch(location)?;
        Ok(self.epochs)
    }

    fn end_epoch(&mut self, location: InputLocation) -> Result<()> {
        let epoch = self.label.unwrap_or(self.epochs.len() as u64);
        let length = self.current.len() as u64;
        if length == 0 {
            return Err(location.error(format!("epoch {epoch} ends without a sample")));
        }
        if let Some(count) = self.count
            && count != length
        {
            let message = format!("epoch {epoch} ends with {length} samples; count says {count}");
            return Err(location.error(message));
        }
        let ids: Arc<[u32]> = match self.index {
            Some(index) => self.current.iter().map(|&at| index[at as usize].0).collect(),
            None => Arc::from(self.current.as_slice()),
        };
        self.check_unique(&ids)?;
        self.epochs.push(ids);
        self.current.clear();
        self.before += length;
        Ok(())
    }

    fn check_unique(&mut self, ids: &[u32]) -> Result<()> {
        let Some(seen) = &mut self.seen else { return Ok(()) };
        if let Some(at) = ids.iter().position(|id| !seen.insert(*id)) {
            let location = (self.locate)(self.before + at as u64);
            return Err(location.error("this sample stands twice in its epoch"));
        }
        seen.remove_all(ids);
        Ok(())
    }
}
