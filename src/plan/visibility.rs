//! Which files may be opened without asking.
//!
//! Where opening a file is no request of its own, the kernel looks its name up, and by how long it
//! may believe the answer a file is in one of two gears. *Watch*: each open is a lookup, and shows
//! who reads what. *Trust*: no request at all. A file is trusted where nothing hangs on seeing its
//! opens: it is kept in RAM, an order that is followed has it, and recency decides nothing. Watched
//! all the same are the first files of the epochs to come, which show that an epoch starts, and,
//! from shortly before their read until it is seen, a pseudo-random sixteenth of all files, the
//! *beacons*, which show how far a reader is. What is staged for one read is watched, so that it is
//! known exactly when it can go. Where what is known of an order ends, everything is watched again:
//! the epoch after it may begin with any file. Watched, too, is what others have to see: of what may be
//! rehearsed, the first read ([`Event::Withheld`](super::Event::Withheld)).
//!
//! inotify(7) would show the opens of trusted files, too, at the price of an event for each that wakes us
//! beside its reader. It is not used: with nine sightings of ten lost a reader's place is known well
//! enough (`tests/tracker`), and what Python asks of each file that it opens makes it exact.

use super::event::{Action, Settings};
use super::forecast::Forecast;
use super::layout::Layout;
use super::ledger::Ledger;
use super::stream::Stream;
use crate::config::PolicyKind;
use crate::ids::{BlockId, FileId};

/// Files of more blocks are watched: a request is nothing against reading them.
const TRUSTED_BLOCKS_MAX: usize = 16;

/// In place of a tick: opens of the file are not seen.
const UNSEEN: u64 = u64::MAX;

/// How each file is opened.
pub(super) struct Visibility {
    /// Whether files can be opened without a request; else each open is seen.
    is_chosen: bool,
    /// By file, the tick since which each of its opens is seen, at the latest, or [`UNSEEN`].
    since: Vec<u64>,
    /// By file, whether others have to see its opens.
    withheld: Vec<bool>,
    /// Whether that is so of a file of which nothing was said.
    withheld_at_first: bool,
    /// How many files are opened without a request.
    unseen: u64,
}

impl Visibility {
    /// All opens of so many files are seen.
    pub(super) fn new(settings: &Settings, files: usize) -> Self {
        let (is_chosen, withheld_at_first) = (settings.gears, settings.withheld);
        let (since, withheld) = (vec![0; files], vec![withheld_at_first; files]);
        Visibility { is_chosen, since, withheld, withheld_at_first, unseen: 0 }
    }

    /// There are more files.
    pub(super) fn grow(&mut self, files: usize) {
        self.since.resize(files, 0);
        self.withheld.resize(files, self.withheld_at_first);
    }

    /// A file has other content.
    pub(super) fn renew(&mut self, file: FileId) {
        self.withhold(file, self.withheld_at_first);
    }

    /// Others have to see a file's opens from now on, or need not any more.
    pub(super) fn withhold(&mut self, file: FileId, on: bool) {
        if let Some(withheld) = self.withheld.get_mut(file.index()) {
            *withheld = on;
        }
    }

    /// Whether others have to see a file's opens.
    pub(super) fn is_withheld(&self, file: FileId) -> bool {
        self.withheld.get(file.index()).is_none_or(|withheld| *withheld)
    }

    /// Has a file opened as fits what is known now. Says what the shell has to do if that is news.
    pub(super) fn look_again(
        &mut self,
        file: FileId,
        ledger: &Ledger,
        forecast: &Forecast,
    ) -> Option<Action> {
        if !self.is_chosen {
            return None;
        }
        let unseen = !self.is_withheld(file) && may_be_unseen(file, ledger, forecast);
        self.show(file, unseen, forecast.ticks + 1)
    }

    /// A file is to be opened so from this tick on. Says what the shell has to do if that is news.
    fn show(&mut self, file: FileId, unseen: bool, tick: u64) -> Option<Action> {
        let since = self.since.get_mut(file.index())?;
        if (*since == UNSEEN) == unseen {
            return None;
        }
        *since = if unseen { UNSEEN } else { tick };
        self.unseen = self.unseen + u64::from(unseen) - u64::from(!unseen);
        Some(if unseen { Action::Trust { file } } else { Action::Watch { file } })
    }

    /// How many files are opened without a request.
    pub(super) fn unseen(&self) -> u64 {
        self.unseen
    }

    /// What can be seen of readers of files that lie so.
    pub(super) fn sight<'a>(&'a self, layout: &'a Layout) -> Sight<'a> {
        Sight { layout, since: &self.since }
    }
}

/// What the planner can see of its readers.
#[derive(Clone, Copy)]
pub(super) struct Sight<'a> {
    pub(super) layout: &'a Layout,
    since: &'a [u64],
}

impl Sight<'_> {
    /// Whether a read of the block since a tick may not have been seen: its file is trusted, or was
    /// at that time, and it is no beacon, which is lit before anyone can get there.
    pub(super) fn misses(&self, block: BlockId, since: u64) -> bool {
        !is_beacon(self.layout.file_of(block)) && self.may_miss(block, since)
    }

    /// As [`misses`](Sight::misses), and a beacon may have been lit too late as well.
    pub(super) fn may_miss(&self, block: BlockId, since: u64) -> bool {
        let file = self.layout.file_of(block);
        self.since.get(file.index()).is_some_and(|seen_since| *seen_since > since)
    }
}

/// Whether each read of a file is to be seen: one of sixteen, as good as random.
fn is_beacon(file: FileId) -> bool {
    file.0.wrapping_mul(0x9e37_79b1) >> 28 == 0
}

/// Whether nothing hangs on seeing the opens of a file.
fn may_be_unseen(file: FileId, ledger: &Ledger, forecast: &Forecast) -> bool {
    let blocks = ledger.layout.blocks_of(file);
    if blocks.len() == 0 || blocks.len() > TRUSTED_BLOCKS_MAX {
        return false;
    }
    let mut streams = forecast.streams();
    let beacon = is_beacon(file);
    let watched =
        |stream: &Stream, block| stream.is_in_head(block) || beacon && stream.is_near(block);
    let kept = |block| ledger.is_here(block) && !ledger.residency.is_staged(block);
    // An order of others, as of a validation, says nothing of when it is read.
    forecast.policy() != PolicyKind::Lru
        && blocks.clone().all(|block| forecast.is_foreseen(block))
        && !streams.clone().any(Stream::is_ending)
        && blocks.clone().all(kept)
        && !streams.any(|stream| blocks.clone().any(|block| watched(stream, block)))
}
