//! What a loader reads now.

use super::attempt::Attempt;
use super::event::LoaderId;

/// How many opens have to have asked for bytes before a loader is searched for or followed.
const EXACT_MIN: u32 = 4;

/// An open of a sample.
#[derive(Clone, Copy, Debug)]
pub(super) struct Open {
    pub(super) at_ms: u64,
    /// The number that [`Tasks`](super::tasks::Tasks) gives to who opened it.
    pub(super) reader: u32,
    pub(super) sample: u32,
    pub(super) exact: bool,
}

#[derive(Debug)]
pub(super) struct Reading {
    pub(super) loader: LoaderId,
    /// The process that it reads for.
    pub(super) group: u64,
    /// Number of the current epoch.
    pub(super) epoch: u32,
    /// The opens that no order explains.
    pub(super) attempt: Attempt,
    /// Whether the attempt began with its epoch.
    pub(super) is_whole: bool,
    /// Whether its opens are known to be reads.
    pub(super) is_proven: bool,
    pub(super) latest: Option<Open>,
}

impl Reading {
    pub(super) fn new(loader: LoaderId, group: u64) -> Self {
        let (epoch, attempt, latest) = (0, Attempt::default(), None);
        Reading { loader, group, epoch, attempt, is_whole: true, is_proven: false, latest }
    }

    /// Whether samples are read, and not only looked at.
    pub(super) fn has_reads(&self) -> bool {
        self.is_proven || self.attempt.exact() >= EXACT_MIN
    }

    /// Adds an open to the attempt. Gives the epoch that is over if it shows that another has begun.
    pub(super) fn note(&mut self, open: &Open) -> Option<Attempt> {
        self.attempt.note(open.at_ms, open.reader, open.sample, open.exact)
    }
}
