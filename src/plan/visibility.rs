//! Which files may be opened without a request.
//!
//! In mode `push` opening a file is no request of its own: the kernel looks its name up, and believes
//! the answer for a lifetime that belady sets. By that a file is *tracked* or *untracked*.
//!
//! - Tracked: each open is a lookup, and shows which task reads which file.
//! - Untracked: an open causes no request at all.
//!
//! A file is untracked if RAM keeps it, an order that is followed has it, and the policy does not go by
//! recency. It is tracked all the same:
//!
//! 1. if it is among the first files of an epoch, which show that the epoch starts;
//! 2. if it is a *probe*, a pseudo-random sixteenth of all files, from shortly before its read until it is
//!    seen. Probes show how far a reader is;
//! 3. if it is staged for one read, so that it is known when it can go;
//! 4. if what is known of an order ends: the epoch after it may begin with any file;
//! 5. if it has more than 16 blocks: a request is nothing against reading them;
//! 6. if it is withheld ([`Event::Withheld`](super::Event::Withheld)): rehearsal has to see its first read.
//!
//! The cache adds one rule (`cache/file_flags`): a file of which nothing was fetched yet is opened without a
//! request, too. Its first read is one, and shows the reader as well.
//!
//! inotify(7) would report the opens of untracked files too, but each open would wake the daemon. It is
//! not used. A reader's place is known well enough if nine of ten opens are unseen (`tests/tracker`).
//! Python sends further requests for each file that it opens, which make the place exact.

use super::event::{Action, Settings};
use super::forecast::Forecast;
use super::layout::Layout;
use super::ledger::Ledger;
use super::stream::Stream;
use crate::config::PolicyKind;
use crate::ids::{BlockId, FileId};

/// Files of more blocks are tracked: a request is nothing against reading them.
const UNTRACKED_BLOCKS_MAX: usize = 16;

/// In place of a tick: opens of the file are not seen.
const UNTRACKED: u64 = u64::MAX;

/// How each file is opened.
pub(super) struct Visibility {
    /// Whether files can be opened without a request; else each open is seen.
    is_chosen: bool,
    /// By file, the tick since which each of its opens is seen, at the latest, or [`UNTRACKED`].
    since: Vec<u64>,
    /// By file, whether others have to see its opens.
    withheld: Vec<bool>,
    /// Whether a file is withheld until something else is said of it.
    withheld_at_first: bool,
    /// How many files are opened without a request.
    untracked: u64,
}

impl Visibility {
    /// All opens of so many files are seen.
    pub(super) fn new(settings: &Settings, files: usize) -> Self {
        let (is_chosen, withheld_at_first) = (settings.may_untrack, settings.withheld);
        let (since, withheld) = (vec![0; files], vec![withheld_at_first; files]);
        Visibility { is_chosen, since, withheld, withheld_at_first, untracked: 0 }
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
        let untracked = !self.is_withheld(file) && may_be_untracked(file, ledger, forecast);
        self.show(file, untracked, forecast.ticks + 1)
    }

    /// A file is to be opened so from this tick on. Says what the shell has to do if that is news.
    fn show(&mut self, file: FileId, untracked: bool, tick: u64) -> Option<Action> {
        let since = self.since.get_mut(file.index())?;
        if (*since == UNTRACKED) == untracked {
            return None;
        }
        *since = if untracked { UNTRACKED } else { tick };
        self.untracked = self.untracked + u64::from(untracked) - u64::from(!untracked);
        Some(if untracked { Action::Untrack { file } } else { Action::Track { file } })
    }

    /// How many files are opened without a request.
    pub(super) fn untracked(&self) -> u64 {
        self.untracked
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

impl<'a> Sight<'a> {
    /// Whether a read of the block since a tick may not have been seen: its file is untracked, or was
    /// at that time, and it is no probe. Probes are tracked before anyone can get there.
    pub(super) fn misses(&self, block: BlockId, since: u64) -> bool {
        !is_probe(self.layout.file_of(block)) && self.may_miss(block, since)
    }

    /// [`misses`](Sight::misses) since a tick, for any block.
    pub(super) fn missed_since(self, since: u64) -> impl Fn(BlockId) -> bool + 'a {
        move |block| self.misses(block, since)
    }

    /// As [`misses`](Sight::misses), and a probe may have been tracked too late as well.
    pub(super) fn may_miss(&self, block: BlockId, since: u64) -> bool {
        let file = self.layout.file_of(block);
        self.since.get(file.index()).is_some_and(|seen_since| *seen_since > since)
    }
}

/// Whether each read of a file is to be seen: one of sixteen, as good as random.
fn is_probe(file: FileId) -> bool {
    file.0.wrapping_mul(0x9e37_79b1) >> 28 == 0
}

/// Whether nothing hangs on seeing the opens of a file.
fn may_be_untracked(file: FileId, ledger: &Ledger, forecast: &Forecast) -> bool {
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
        // An order of other files, as of a validation, does not say when this file is read.
        && blocks.clone().all(|block| forecast.is_foreseen(block))
        && !streams.clone().any(Stream::is_ending)
        && blocks.clone().all(kept)
        && !streams.any(|stream| blocks.clone().any(|block| watched(stream, block)))
}
