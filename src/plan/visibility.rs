//! Decides which files the kernel may open without a request.
//!
//! In mode `push` the kernel sends one request to open a file: a lookup of its name. It believes the answer for
//! a lifetime that belady sets. This lifetime makes a file *tracked* or *untracked*.
//!
//! - Tracked: each open is a lookup, and shows which task reads which file.
//! - Untracked: an open causes no request at all.
//!
//! A file is untracked if RAM holds all its blocks to keep them (none is staged for one read), an order that is
//! followed has it, and the policy is not `lru`. In these cases it is tracked nevertheless:
//!
//! 1. It is among the first files of an epoch. They show that the epoch starts.
//! 2. It is a *probe*, one of a pseudo-random sixteenth of all files. A probe is tracked from shortly before
//!    its read until it is seen. Probes show how far a reader is.
//! 3. It has more than 4 blocks. One request costs little compared with reading them.
//! 4. It is withheld ([`Event::Withheld`](super::Event::Withheld)). Rehearsal has to see its first read.
//!
//! A *slice* of a large file is not opened. If it is tracked, a page of it is left out of the page cache, so that
//! its read is a request ([`Event::Probed`](super::Event::Probed)). If a slice shares all its pages with others,
//! its read is not seen.
//!
//! Of other large files, a page of each block is left out that is fetched ahead, but not of the first one. So the
//! planner sees how far a reader is.
//!
//! While the known part of an order is about to end, all files are tracked: any file may be read next.
//!
//! `fs` adds two rules to these decisions. A file of which nothing was fetched yet is opened without a request,
//! even if it is withheld: its first read is a request, and shows the reader as well. A file with several names is
//! always looked up. `fs::Dataset::may_open_without_lookup` has both rules. `entry_valid` there makes the lifetime,
//! which ends when the name is due to be checked again. `fuse/entries` bounds it.
//!
//! inotify(7) would also report the opens of untracked files. It is not used, since each open would wake the
//! daemon. One open in ten is enough to know a reader's place (`plan/tests/tracker`). Python also sends an ioctl
//! for each file that it opens, which makes the place exact.

use super::event::{Action, Settings};
use super::forecast::Forecast;
use super::layout::Layout;
use super::ledger::Ledger;
use super::stream::Stream;
use crate::config::PolicyKind;
use crate::ids::{BlockId, FileId};

/// Files of more blocks are tracked.
const UNTRACKED_BLOCKS_MAX: usize = 4;

/// In place of a tick: the file is untracked.
const UNTRACKED: u64 = u64::MAX;

pub(super) struct Visibility {
    /// Whether files may be opened without a request. Otherwise each open is seen.
    may_untrack: bool,
    /// By file, the tick since which all its opens are seen (at the latest), or [`UNTRACKED`].
    since: Vec<u64>,
    /// The same by block, for slices.
    slices_since: Vec<u64>,
    withheld: Vec<bool>,
    /// Whether new files are withheld.
    withheld_at_first: bool,
    untracked: u64,
}

impl Visibility {
    /// All files are tracked.
    pub(super) fn new(settings: &Settings) -> Self {
        Visibility {
            may_untrack: settings.may_untrack,
            since: Vec::new(),
            slices_since: Vec::new(),
            withheld: Vec::new(),
            withheld_at_first: settings.withheld,
            untracked: 0,
        }
    }

    pub(super) fn grow(&mut self, layout: &Layout) {
        self.since.resize(layout.files(), 0);
        self.withheld.resize(layout.files(), self.withheld_at_first);
        if layout.has_slices() {
            self.slices_since.resize(layout.blocks(), 0);
        }
    }

    /// A file has new content.
    pub(super) fn renew(&mut self, file: FileId) {
        self.withhold(file, self.withheld_at_first);
    }

    pub(super) fn withhold(&mut self, file: FileId, on: bool) {
        if let Some(withheld) = self.withheld.get_mut(file.index()) {
            *withheld = on;
        }
    }

    pub(super) fn is_withheld(&self, file: FileId) -> bool {
        let is_withheld = || self.withheld.get(file.index()).is_none_or(|withheld| *withheld);
        file.as_slice().is_none() && is_withheld()
    }

    /// Decides again whether a file is tracked. Returns an action if this has changed.
    pub(super) fn decide_again(
        &mut self,
        file: FileId,
        ledger: &Ledger,
        forecast: &Forecast,
    ) -> Option<Action> {
        if !self.may_untrack {
            return None;
        }
        let untracked = !self.is_withheld(file) && opens_may_be_unseen(file, ledger, forecast);
        self.set_untracked(file, untracked, forecast.ticks + 1)
    }

    /// Makes a file untracked, or tracked from `tick` on. Returns an action if this has changed.
    fn set_untracked(&mut self, file: FileId, untracked: bool, tick: u64) -> Option<Action> {
        let since = match file.as_slice() {
            Some(block) => self.slices_since.get_mut(block.index())?,
            None => self.since.get_mut(file.index())?,
        };
        if (*since == UNTRACKED) == untracked {
            return None;
        }
        *since = if untracked { UNTRACKED } else { tick };
        if file.as_slice().is_none() {
            self.untracked = self.untracked + u64::from(untracked) - u64::from(!untracked);
        }
        Some(if untracked { Action::Untrack { file } } else { Action::Track { file } })
    }

    pub(super) fn is_untracked(&self, slice: FileId) -> bool {
        let since = slice.as_slice().and_then(|block| self.slices_since.get(block.index()));
        since.is_some_and(|since| *since == UNTRACKED)
    }

    /// Number of untracked files, slices left out.
    pub(super) fn untracked(&self) -> u64 {
        self.untracked
    }

    pub(super) fn sight<'a>(&'a self, layout: &'a Layout) -> Sight<'a> {
        Sight { layout, since: &self.since, slices_since: &self.slices_since }
    }
}

/// Says which reads the planner may not have seen.
#[derive(Clone, Copy)]
pub(super) struct Sight<'a> {
    pub(super) layout: &'a Layout,
    since: &'a [u64],
    slices_since: &'a [u64],
}

impl<'a> Sight<'a> {
    /// Whether a read of the block since the tick `since` may be unseen: its file is no probe, and is untracked
    /// or was so at that time. Probes are tracked before any reader can get there.
    pub(super) fn misses(&self, block: BlockId, since: u64) -> bool {
        !is_probe(self.layout.unit_of(block)) && self.may_miss(block, since)
    }

    /// [`misses`](Sight::misses) with a fixed tick.
    pub(super) fn missed_since(self, since: u64) -> impl Fn(BlockId) -> bool + 'a {
        move |block| self.misses(block, since)
    }

    /// Like [`misses`](Sight::misses), but a probe may have been tracked too late as well.
    pub(super) fn may_miss(&self, block: BlockId, since: u64) -> bool {
        let file = self.layout.unit_of(block);
        let seen_since = match file.as_slice() {
            Some(block) => self.slices_since.get(block.index()),
            None => self.since.get(file.index()),
        };
        let has_no_page = || self.layout.pages_without(block, [true; 2]).is_none();
        seen_since.is_some_and(|seen_since| *seen_since > since)
            || file.as_slice().is_some() && has_no_page()
    }
}

/// Whether a file is a probe: one of sixteen, pseudo-random.
fn is_probe(file: FileId) -> bool {
    file.0.wrapping_mul(0x9e37_79b1) >> 28 == 0
}

/// Whether the planner does not need to see the opens of a file.
fn opens_may_be_unseen(file: FileId, ledger: &Ledger, forecast: &Forecast) -> bool {
    let blocks = ledger.layout.blocks_of(file);
    if blocks.len() == 0 || blocks.len() > UNTRACKED_BLOCKS_MAX {
        return false;
    }
    let mut streams = forecast.streams();
    let probe = is_probe(file);
    let watched =
        |stream: &Stream, block| stream.is_in_head(block) || probe && stream.is_near(block);
    let kept = |block| ledger.is_here(block) && !ledger.residency.is_staged(block);
    forecast.policy() != PolicyKind::Lru
        // An order of other files, such as a validation's, does not say when this file is read.
        && blocks.clone().all(|block| forecast.is_foreseen(block))
        && !streams.clone().any(Stream::is_ending)
        && blocks.clone().all(kept)
        && !streams.any(|stream| blocks.clone().any(|block| watched(stream, block)))
}
