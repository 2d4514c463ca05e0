//! Slots: fixed names behind which each opening finds a fresh sample.
//!
//! 1. A lookup deals a sample, with a node of its own, so its size and content are fixed.
//! 2. An opening of the node takes the sample.
//! 3. If the kernel forgets the node before that, the sample is given back. So listing and `stat` take none.
//! 4. The kernel may know the node for long. So the sample is also given back after [`PATIENCE`].
//! 5. If the node is opened even later, the sample may have been dealt to another reader. Then the open fails
//!    with `ESTALE`. The kernel looks the name up once more, and finds another sample.

mod deck;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::place::DEALT;
use super::{Display, Sample, Upcoming};
use crate::buffer::Deal;
pub use deck::BufferView;
pub(super) use deck::Class;
use deck::{Deck, RENEW_AFTER};

/// How long a dealt sample waits to be opened. A program opens it right after the lookup, and waits less than
/// this for a processor.
const PATIENCE: Duration = Duration::from_secs(1);

/// On a busy machine readers come later. Each refusal doubles the patience, up to this, so that they are not
/// refused again.
const PATIENCE_MAX: Duration = Duration::from_secs(16);

/// A dealt sample, behind its node.
pub(super) struct Dealt {
    pub(super) buffer: usize,
    pub(super) label: String,
    pub(super) sample: Arc<Sample>,
    class: Class,
    deal: Deal,
    stage: Stage,
}

/// What became of a dealt sample.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Dealt,
    /// It may be dealt to other readers.
    Back,
    Taken,
}

pub(super) struct Slots {
    decks: Vec<Deck>,
    dealt: HashMap<u64, Dealt>,
    next: u64,
    /// Dealt nodes in their order, with the time. The first one waited to be taken when it was last looked
    /// at.
    waiting: VecDeque<(u64, Instant)>,
    /// How long dealt samples wait at present.
    patience: Duration,
}

impl Slots {
    pub(super) fn new(buffers: &[BufferView]) -> Slots {
        let decks = buffers.iter().cloned().map(Deck::new).collect();
        let (dealt, waiting) = Default::default();
        Slots { decks, dealt, next: DEALT, waiting, patience: PATIENCE }
    }

    /// Whether the known samples are still those that are held.
    pub(super) fn is_current(&self, buffer: usize) -> bool {
        self.decks.get(buffer).is_none_or(Deck::is_current)
    }

    /// Whether the held samples are to be looked up again. If so, the caller has to do it, and no other
    /// caller until [`renew`](Self::renew).
    pub(super) fn claim_renewal(&mut self, buffer: usize) -> bool {
        let Some(deck) = self.decks.get_mut(buffer) else { return false };
        let due = deck.left == 0 && !deck.is_current();
        if due {
            deck.left = usize::MAX;
        }
        due
    }

    /// Takes the samples that were held after at least `changes` changes. If there is no answer, they are
    /// looked up again later.
    pub(super) fn renew(&mut self, buffer: usize, changes: Option<u64>, held: Option<&Display>) {
        match (self.decks.get_mut(buffer), held) {
            (Some(deck), Some(held)) => {
                deck.renew(held);
                deck.changes = changes;
            }
            (Some(deck), None) => deck.left = RENEW_AFTER,
            (None, _) => {}
        }
    }

    /// The place of a class of which samples are held.
    pub(super) fn class(&self, buffer: usize, name: &str) -> Option<usize> {
        self.decks.get(buffer)?.class(name)
    }

    /// Names and places of classes of which samples are held.
    pub(super) fn classes(&self, buffer: usize) -> Vec<(String, usize)> {
        let Some(deck) = self.decks.get(buffer) else { return Vec::new() };
        let named = deck.classes.iter().cloned().zip(0..);
        named.filter(|(_, place)| deck.holds(*place)).collect()
    }

    /// The names of the slots, if samples are held.
    pub(super) fn names(&mut self, buffer: usize, class: Class) -> Vec<String> {
        let Some(deck) = self.decks.get_mut(buffer) else { return Vec::new() };
        if deck.supply(class).is_none_or(|supply| supply.is_empty()) {
            return Vec::new();
        }
        (0..deck.view.slots).map(|slot| format!("{slot:04}{}", deck.extension)).collect()
    }

    /// Whether a slot has this name, with any extension: the name may be older than the samples.
    pub(super) fn has(&self, buffer: usize, name: &str) -> bool {
        let stem = name.split_once('.').map_or(name, |(stem, _)| stem);
        let number = stem.parse::<u32>().ok().filter(|number| stem == format!("{number:04}"));
        let deck = self.decks.get(buffer);
        deck.zip(number).is_some_and(|(deck, number)| number < deck.view.slots)
    }

    /// Deals a sample, with a node of its own. None if nothing is held.
    pub(super) fn deal(
        &mut self,
        buffer: usize,
        class: Class,
        now: Instant,
    ) -> Option<(u64, &Dealt)> {
        self.take_back(now);
        let deck = self.decks.get_mut(buffer)?;
        let deal = deck.supply(class)?.deal()?;
        deck.left = deck.left.saturating_sub(1);
        let (place, sample) = deck.samples.get(&deal.sample)?;
        let (label, sample) = (deck.classes.get(*place)?.clone(), Arc::clone(sample));
        let node = self.next;
        self.next += 1;
        self.waiting.push_back((node, now));
        let dealt = Dealt { buffer, label, sample, class, deal, stage: Stage::Dealt };
        Some((node, self.dealt.entry(node).insert_entry(dealt).into_mut()))
    }

    /// Gives back samples that were dealt long ago and not taken.
    fn take_back(&mut self, now: Instant) {
        while let Some((node, dealt_at)) = self.waiting.front() {
            if let Some(dealt) = self.dealt.get_mut(node).filter(|of| of.stage == Stage::Dealt) {
                if now.saturating_duration_since(*dealt_at) < self.patience {
                    break;
                }
                dealt.stage = Stage::Back;
                if let Some(deck) = self.decks.get_mut(dealt.buffer)
                    && let Some(supply) = deck.supply(dealt.class)
                {
                    supply.give_back(dealt.deal);
                }
            }
            self.waiting.pop_front();
        }
    }

    pub(super) fn get(&self, node: u64) -> Option<&Dealt> {
        self.dealt.get(&node)
    }

    /// What a supply deals next, if it was never reported.
    pub(super) fn first_upcoming(&mut self, buffer: usize, class: Class) -> Option<Upcoming> {
        let deck = self.decks.get_mut(buffer)?;
        deck.told.insert(class).then(|| deck.upcoming(buffer, class)).flatten()
    }

    /// Takes the sample of a node. Returns its buffer, the sample, and what comes next. None if it was dealt
    /// to another reader meanwhile. A second opening finds the same sample, and takes none.
    pub(super) fn take(&mut self, node: u64) -> Option<(usize, Arc<Sample>, Option<Upcoming>)> {
        let dealt = self.dealt.get_mut(&node)?;
        let (buffer, sample, class) = (dealt.buffer, Arc::clone(&dealt.sample), dealt.class);
        let deck = self.decks.get_mut(buffer)?;
        let mut upcoming = None;
        if dealt.stage != Stage::Taken
            && let Some(supply) = deck.supply(class)
        {
            if dealt.stage == Stage::Back && supply.was_dealt_again(dealt.deal) {
                self.patience = (2 * self.patience).min(PATIENCE_MAX);
                return None;
            }
            supply.take(dealt.deal);
            dealt.stage = Stage::Taken;
            upcoming = deck.upcoming(buffer, class);
        }
        Some((buffer, sample, upcoming))
    }

    pub(super) fn forget(&mut self, node: u64) {
        if let Some(dealt) = self.dealt.remove(&node).filter(|dealt| dealt.stage == Stage::Dealt)
            && let Some(deck) = self.decks.get_mut(dealt.buffer)
            && let Some(supply) = deck.supply(dealt.class)
        {
            supply.give_back(dealt.deal);
        }
    }
}
