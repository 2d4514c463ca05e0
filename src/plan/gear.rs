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

use super::Planner;
use super::event::Action;
use super::layout::Layout;
use super::residency::RAM;
use super::stream::Stream;
use crate::config::PolicyKind;
use crate::ids::{BlockId, FileId};

/// Files of more blocks are watched: a request is nothing against reading them.
const TRUSTED_BLOCKS_MAX: usize = 16;

/// How a file is opened: the tick since which each open of it is seen, at the latest, [`TRUST`] where
/// it is opened without asking.
///
/// [`TRUST`]: Gear::TRUST
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Gear(u64);

impl Gear {
    pub(super) const TRUST: Gear = Gear(u64::MAX);
}

/// What the planner can see of its readers.
#[derive(Clone, Copy)]
pub(super) struct Sight<'a> {
    pub(super) layout: &'a Layout,
    pub(super) gears: &'a [Gear],
}

impl Sight<'_> {
    /// Whether a read of the block since a tick may not have been seen: its file is trusted, or was
    /// at that time, and it is no beacon, which is lit before anyone can get there.
    pub(super) fn misses(&self, block: BlockId, since: u64) -> bool {
        !is_beacon(self.layout.file_of(block)) && self.may_miss(block, since)
    }

    /// As [`misses`](Sight::misses), and a beacon may have been lit too late as well.
    pub(super) fn may_miss(&self, block: BlockId, since: u64) -> bool {
        self.gears.get(self.layout.file_of(block).index()).is_some_and(|gear| gear.0 > since)
    }
}

/// Whether each read of a file is to be seen: one of sixteen, as good as random.
fn is_beacon(file: FileId) -> bool {
    file.0.wrapping_mul(0x9e37_79b1) >> 28 == 0
}

impl Planner {
    pub(super) fn sight(&self) -> Sight<'_> {
        Sight { layout: &self.layout, gears: &self.gears }
    }

    /// Puts a file into the gear that fits what is known now.
    pub(super) fn regear(&mut self, file: FileId, actions: &mut Vec<Action>) {
        if !self.settings.gears {
            return;
        }
        let trust = self.may_trust(file);
        if let Some(gear) = self.gears.get_mut(file.index())
            && (*gear == Gear::TRUST) != trust
        {
            *gear = if trust { Gear::TRUST } else { Gear(self.ticks + 1) };
            self.trusted_files = self.trusted_files + u64::from(trust) - u64::from(!trust);
            actions.push(if trust { Action::Trust { file } } else { Action::Watch { file } });
        }
    }

    /// Others have to see a file's opens from now on, or need not any more.
    pub(super) fn withhold(&mut self, file: FileId, on: bool, actions: &mut Vec<Action>) {
        if let Some(withheld) = self.withheld.get_mut(file.index()) {
            *withheld = on;
            self.regear(file, actions);
        }
    }

    pub(super) fn regear_all(&mut self, actions: &mut Vec<Action>) {
        for file in 0..self.layout.files() as u32 {
            self.regear(FileId(file), actions);
        }
    }

    fn may_trust(&self, file: FileId) -> bool {
        let blocks = self.layout.blocks_of(file);
        let withheld = self.withheld.get(file.index()).is_none_or(|withheld| *withheld);
        if blocks.len() == 0 || blocks.len() > TRUSTED_BLOCKS_MAX || withheld {
            return false;
        }
        let mut streams = self.streams.iter().flatten();
        let beacon = is_beacon(file);
        // An order of others, as of a validation, says nothing of when it is read.
        let ordered = |block| {
            self.streams.iter().flatten().any(|one| one.is_following() && one.contains(block))
        };
        let watched =
            |stream: &Stream, block| stream.is_in_head(block) || beacon && stream.is_near(block);
        let kept = |block| {
            let there = self.residency.is_in(block, RAM) || self.residency.is_fetching(block);
            there && !self.residency.is_staged(block)
        };
        self.policy != PolicyKind::Lru
            && blocks.clone().all(ordered)
            && !streams.clone().any(Stream::is_ending)
            && blocks.clone().all(kept)
            && !streams.any(|stream| blocks.clone().any(|block| watched(stream, block)))
    }
}
