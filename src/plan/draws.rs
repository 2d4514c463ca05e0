//! Samples that rehearsal shows next: they lie on a local disk, and are read ahead of their opens.
//!
//! 1. Whoever shows samples of a buffer says which ones it has drawn for the coming opens
//!    ([`Event::Drawn`](super::Event::Drawn)): the whole list each time one of them is opened.
//! 2. The soonest are had ready ([`Action::Ready`]), in the window that streams stage in, of which
//!    they take no more than a part. While one waits for room, streams leave it that much.
//! 3. A draw is charged as staged until it is opened, or on no list any more. Its pages are those of
//!    the disk's file, which the kernel may take back at any time; nobody has to drop them.
//! 4. Where the part is full, who was heard of later gets room from those who were silent for longer:
//!    what is farther off with them than with him. Who is silent for long is forgotten then.

use std::collections::BTreeMap;

use super::Planner;
use super::event::{Action, Draw, Drawn};
use crate::ids::PAGE_BYTES;

/// The part of the window that draws take at most.
const WINDOW_PART: u64 = 4;

/// Draws that are being read at once.
const READING_MAX: u32 = 4;

/// Draws that are listed at most; who was silent for longest is forgotten first.
const LISTED_MAX: usize = 1 << 12;

/// Lists that are told of, after which one that was not is forgotten where others need its room.
const SILENT_MAX: u64 = 256;

/// What has become of a draw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Reading,
    Ready,
    /// It could not be read.
    Failed,
}

/// What somebody shows next.
#[derive(Debug)]
struct List {
    by: u64,
    /// The draws with their bytes, the soonest first.
    next: Vec<(Draw, u64)>,
    /// How many lists had been told of by then.
    told: u64,
}

/// What is drawn ahead, and what of it is charged.
#[derive(Debug, Default)]
pub(super) struct Draws {
    /// Who was heard of last is last.
    lists: Vec<List>,
    /// How many lists have been told of.
    told: u64,
    /// What was read ahead, with what it is charged.
    ahead: BTreeMap<Draw, (Stage, u64)>,
    /// Bytes that are charged.
    pub(super) bytes: u64,
    reading: u32,
    /// Something may be read that could not be before.
    due: bool,
    /// Bytes of the draw that waits for room in the window, if one does.
    waiting: u64,
}

impl Draws {
    /// What was read ahead.
    #[cfg(test)]
    pub(super) fn ahead(&self) -> impl Iterator<Item = Draw> {
        self.ahead.keys().copied()
    }

    /// How many opens from now a draw is due at the soonest, where it is listed.
    fn soonest(&self, draw: Draw) -> Option<usize> {
        let place = |list: &List| list.next.iter().position(|(of, _)| *of == draw);
        self.lists.iter().filter_map(place).min()
    }

    fn is_listed(&self, draw: Draw) -> bool {
        self.lists.iter().rev().any(|list| list.next.iter().any(|(of, _)| *of == draw))
    }

    /// The soonest draw of at most so many bytes that is not read ahead, with its list and its place
    /// there; the lists are gone through side by side.
    fn nearest(&self, bytes_max: u64) -> Option<(Draw, u64, usize, usize)> {
        let longest = self.lists.iter().map(|list| list.next.len()).max()?;
        let lists = || self.lists.iter().enumerate().rev();
        let at = |place: usize| {
            lists().filter_map(move |(of, list)| {
                list.next.get(place).map(|&(draw, bytes)| (draw, bytes, of, place))
            })
        };
        let mut listed = (0..longest).flat_map(at);
        listed.find(|(draw, bytes, ..)| *bytes <= bytes_max && !self.ahead.contains_key(draw))
    }

    /// What a list can do without for a draw that others show at a place: the farthest that is ready
    /// and is due later.
    fn spare(&self, list: &List, place: usize) -> Option<Draw> {
        let is_ready = |draw| matches!(self.ahead.get(draw), Some((Stage::Ready, _)));
        let later = list.next.iter().skip(place + 1).rev().map(|(draw, _)| draw);
        let mut later = later.filter(|draw| is_ready(draw)).copied();
        later.find(|draw| self.soonest(*draw) > Some(place))
    }

    /// Bytes that streams leave free in a window.
    pub(super) fn reserved(&self, window: u64) -> u64 {
        self.waiting.min((window / WINDOW_PART).saturating_sub(self.bytes))
    }

    fn look_again(&mut self) {
        (self.due, self.waiting) = (true, 0);
    }
}

impl Planner {
    /// A draw was opened, if one was, and others come next.
    pub(super) fn drawn(&mut self, Drawn { by, opened, next }: &Drawn) {
        if let Some(draw) = opened {
            match self.draws.ahead.get(draw) {
                Some((Stage::Ready, _)) => self.counters.draws_ready += 1,
                Some((Stage::Reading, _)) => self.counters.draws_late += 1,
                _ => self.counters.draws_cold += 1,
            }
        }
        let Draws { lists, told, .. } = &mut self.draws;
        let at = lists.iter().position(|list| list.by == *by);
        let mut over: Vec<_> = at.map(|at| lists.remove(at).next).unwrap_or_default();
        if !next.is_empty() {
            *told += 1;
            let charged = |bytes: u64| bytes.next_multiple_of(PAGE_BYTES);
            let next = next.iter().take(LISTED_MAX);
            let next = next.map(|(draw, bytes)| (*draw, charged(*bytes))).collect();
            lists.push(List { by: *by, next, told: *told });
            while lists.iter().map(|list| list.next.len()).sum::<usize>() > LISTED_MAX {
                over.append(&mut lists.remove(0).next);
            }
        }
        self.unlisted(over);
        self.draws.look_again();
    }

    /// A list is over: what is on no other is not charged any more.
    fn unlisted(&mut self, over: Vec<(Draw, u64)>) {
        for (draw, _) in over {
            if self.draws.ahead.contains_key(&draw) && !self.draws.is_listed(draw) {
                self.release(draw);
            }
        }
    }

    fn release(&mut self, draw: Draw) {
        let (_, bytes) = self.draws.ahead.remove(&draw).unwrap_or((Stage::Failed, 0));
        self.draws.bytes -= bytes;
        self.residency.staged -= bytes;
    }

    /// A draw has been read, or cannot be, or is not known any more to who reads.
    pub(super) fn readied(&mut self, draw: Draw, done: Option<bool>) {
        self.draws.reading = self.draws.reading.saturating_sub(1);
        self.draws.look_again();
        let Some((stage @ Stage::Reading, _)) = self.draws.ahead.get_mut(&draw) else { return };
        match done {
            Some(true) => *stage = Stage::Ready,
            Some(false) => {
                // It is not tried again while it is listed.
                self.release(draw);
                self.draws.ahead.insert(draw, (Stage::Failed, 0));
            }
            None => {
                // Nor is this, before it is told of anew.
                self.release(draw);
                self.draws.lists.iter_mut().for_each(|list| list.next.retain(|of| of.0 != draw));
            }
        }
    }

    /// There is another window: what draws have beyond their part of it is not counted on any more,
    /// the farthest first.
    pub(super) fn give_up_draws(&mut self) {
        let part = self.window.bytes() / WINDOW_PART;
        if self.draws.bytes > part {
            let ahead = self.draws.ahead.keys();
            let mut ahead: Vec<_> = ahead.map(|&draw| (self.draws.soonest(draw), draw)).collect();
            ahead.sort_unstable();
            while self.draws.bytes > part
                && let Some((_, draw)) = ahead.pop()
            {
                self.release(draw);
            }
        }
        self.draws.look_again();
    }

    /// Makes room in the draws' part for one of a list, from those of lists that were silent for
    /// longer. Says whether there is.
    fn make_part(&mut self, bytes: u64, of: usize, place: usize) -> bool {
        let part = self.window.bytes() / WINDOW_PART;
        let told = self.draws.lists[of].told;
        while self.draws.bytes + bytes > part {
            let lists = &self.draws.lists;
            let silent = lists.iter().take_while(|list| list.told < told);
            let spare = || silent.clone().find_map(|list| self.draws.spare(list, place));
            if silent.clone().next().is_some_and(|list| self.draws.told - list.told > SILENT_MAX) {
                let over = self.draws.lists.remove(0).next;
                self.unlisted(over);
            } else if let Some(draw) = spare() {
                self.release(draw);
            } else {
                return false;
            }
        }
        true
    }

    /// Reads draws ahead as far as there is room.
    pub(super) fn stage_draws(&mut self, actions: &mut Vec<Action>) {
        let has_room = |planner: &Self, bytes: u64| {
            planner.residency.staged + planner.residency.dropping + bytes <= planner.window.bytes()
        };
        let Draws { due, waiting, .. } = self.draws;
        if !due || !self.settings.prefetch || waiting > 0 && !has_room(self, waiting) {
            return;
        }
        (self.draws.due, self.draws.waiting) = (false, 0);
        while self.draws.reading < READING_MAX {
            // What can never fit is left to its reader.
            let nearest = self.draws.nearest(self.window.bytes() / WINDOW_PART);
            let Some((draw, bytes, of, place)) = nearest else { break };
            if !self.make_part(bytes, of, place) {
                break;
            }
            if !has_room(self, bytes) {
                // There is when something of a stream's has been read.
                (self.draws.due, self.draws.waiting) = (true, bytes);
                break;
            }
            self.draws.ahead.insert(draw, (Stage::Reading, bytes));
            self.draws.bytes += bytes;
            self.residency.staged += bytes;
            self.draws.reading += 1;
            self.counters.draws_ahead += 1;
            actions.push(Action::Ready { draw });
        }
    }
}
