//! Samples that rehearsal shows next: they lie on a local disk, and are read ahead of their opens.
//!
//! 1. Whoever shows samples of a buffer says which ones it has drawn for the coming opens
//!    ([`Event::Drawn`](super::Event::Drawn)): the whole list each time one of them is opened.
//! 2. The soonest are had ready ([`Action::Ready`]), in the window that streams stage in, of which
//!    they take no more than a part: who has stopped to draw must not be in others' way.
//! 3. A draw is charged as staged until it is opened, or on no list any more. Its pages are those of
//!    the disk's file, which the kernel may take back at any time; nobody has to drop them.

use std::collections::BTreeMap;

use super::Planner;
use super::event::{Action, Draw, Drawn};
use crate::ids::PAGE_BYTES;

/// The part of the window that draws take at most.
const WINDOW_PART: u64 = 4;

/// Draws that are being read at once.
const READING_MAX: u32 = 4;

/// Lists that are remembered: those told of last.
const LISTS_MAX: usize = 16;

/// What has become of a draw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Reading,
    Ready,
    /// It could not be read.
    Failed,
}

/// What is drawn ahead, and what of it is charged.
#[derive(Debug, Default)]
pub(super) struct Draws {
    /// By who shows them, the draws that come next with their bytes; who was heard of last is last.
    lists: Vec<(u64, Vec<(Draw, u64)>)>,
    /// What was read ahead, with what it is charged.
    ahead: BTreeMap<Draw, (Stage, u64)>,
    /// Bytes that are charged.
    pub(super) bytes: u64,
    reading: u32,
    /// Something may be read that could not be before.
    due: bool,
}

impl Draws {
    /// What was read ahead.
    #[cfg(test)]
    pub(super) fn ahead(&self) -> impl Iterator<Item = Draw> {
        self.ahead.keys().copied()
    }

    fn is_listed(&self, draw: Draw) -> bool {
        self.lists.iter().any(|(_, list)| list.iter().any(|(of, _)| *of == draw))
    }

    /// The soonest draw of at most so many bytes that is not read ahead; the lists are gone through
    /// side by side.
    fn nearest(&self, bytes_max: u64) -> Option<(Draw, u64)> {
        let longest = self.lists.iter().map(|(_, list)| list.len()).max()?;
        let at = |place: usize| self.lists.iter().rev().filter_map(move |(_, l)| l.get(place));
        let mut listed = (0..longest).flat_map(at).copied();
        listed.find(|(draw, bytes)| *bytes <= bytes_max && !self.ahead.contains_key(draw))
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
        let lists = &mut self.draws.lists;
        let at = lists.iter().position(|(of, _)| of == by);
        let mut over: Vec<_> = at.map(|at| lists.remove(at).1).unwrap_or_default();
        if !next.is_empty() {
            if lists.len() >= LISTS_MAX {
                over.append(&mut lists.remove(0).1);
            }
            let charged = |bytes: u64| bytes.next_multiple_of(PAGE_BYTES);
            lists.push((*by, next.iter().map(|(draw, bytes)| (*draw, charged(*bytes))).collect()));
        }
        for (draw, _) in over {
            if self.draws.ahead.contains_key(&draw) && !self.draws.is_listed(draw) {
                self.release(draw);
            }
        }
        self.draws.due = true;
    }

    fn release(&mut self, draw: Draw) {
        let (_, bytes) = self.draws.ahead.remove(&draw).unwrap_or((Stage::Failed, 0));
        self.draws.bytes -= bytes;
        self.residency.staged -= bytes;
    }

    /// A draw has been read, or cannot be.
    pub(super) fn readied(&mut self, draw: Draw, done: bool) {
        self.draws.reading = self.draws.reading.saturating_sub(1);
        self.draws.due = true;
        match self.draws.ahead.get_mut(&draw) {
            Some((stage, _)) if done => *stage = Stage::Ready,
            Some(_) => {
                // It is not tried again while it is listed.
                self.release(draw);
                self.draws.ahead.insert(draw, (Stage::Failed, 0));
            }
            None => {}
        }
    }

    /// There is less room than there was: what is read ahead is not counted on any more.
    pub(super) fn give_up_draws(&mut self) {
        let ahead: Vec<Draw> = self.draws.ahead.keys().copied().collect();
        ahead.into_iter().for_each(|draw| self.release(draw));
        self.draws.due = true;
    }

    /// Reads draws ahead as far as there is room.
    pub(super) fn stage_draws(&mut self, actions: &mut Vec<Action>) {
        if !self.draws.due || !self.settings.prefetch {
            return;
        }
        let part = self.window / WINDOW_PART;
        while self.draws.reading < READING_MAX {
            // What can never fit is left to its reader.
            let Some((draw, bytes)) = self.draws.nearest(part) else { break };
            if self.draws.bytes + bytes > part {
                break;
            }
            if self.residency.staged + self.residency.dropping + bytes > self.window {
                // There is room when something of a stream's has been read.
                return;
            }
            self.draws.ahead.insert(draw, (Stage::Reading, bytes));
            self.draws.bytes += bytes;
            self.residency.staged += bytes;
            self.draws.reading += 1;
            self.counters.draws_ahead += 1;
            actions.push(Action::Ready { draw });
        }
        self.draws.due = false;
    }
}
