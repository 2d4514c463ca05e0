//! Slots: fixed names, behind which each opening finds a fresh sample.
//!
//! A lookup deals a sample and gives it a node of its own, whose size and content are fixed; the
//! opening of the node takes the sample; a node that the kernel forgets without having opened it
//! gives it back. So who only lists or stats takes nothing. The kernel may know such a node for as
//! long as it likes; so after a while its sample comes back without that. Whoever comes to open it
//! later than that, when others have been dealt it, is refused with `ESTALE`: the kernel looks the
//! name up once more then, and so finds another sample.

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

/// After so long whoever looked a name up will not open what it found: that comes right after it, and
/// who waits for the processor waits less.
const PATIENCE: Duration = Duration::from_secs(1);

/// Where readers come later than that, since the machine is that busy, they are waited for longer: who
/// was refused should not be so again.
const PATIENCE_MAX: Duration = Duration::from_secs(16);

/// A sample behind a node.
pub(super) struct Dealt {
    pub(super) buffer: usize,
    pub(super) label: String,
    pub(super) sample: Arc<Sample>,
    class: Class,
    deal: Deal,
    stage: Stage,
}

/// What has become of a sample behind a node.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Dealt,
    /// It is dealt to others again.
    Back,
    Taken,
}

/// The slots of all buffers.
pub(super) struct Slots {
    decks: Vec<Deck>,
    dealt: HashMap<u64, Dealt>,
    next: u64,
    /// Nodes in the order in which they were dealt, with the time. The first one waits to be taken, or
    /// did so when it was looked at last.
    waiting: VecDeque<(u64, Instant)>,
    /// How long readers are waited for.
    patience: Duration,
}

impl Slots {
    pub(super) fn new(buffers: &[BufferView]) -> Slots {
        let decks = buffers.iter().cloned().map(Deck::new).collect();
        let (dealt, waiting) = Default::default();
        Slots { decks, dealt, next: DEALT, waiting, patience: PATIENCE }
    }

    /// Whether what the buffer holds is what was looked at.
    pub(super) fn is_current(&self, buffer: usize) -> bool {
        self.decks.get(buffer).is_none_or(Deck::is_current)
    }

    /// Claims the look at what the buffer holds now. Whether that is due, and nobody else has claimed it.
    pub(super) fn claim_renewal(&mut self, buffer: usize) -> bool {
        let Some(deck) = self.decks.get_mut(buffer) else { return false };
        let due = deck.left == 0 && !deck.is_current();
        if due {
            // Until that has come nobody else looks.
            deck.left = usize::MAX;
        }
        due
    }

    /// Takes what the buffer holds after so many changes, or more; where that could not be said, it
    /// is looked again later.
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

    /// The place of a class that something is held of.
    pub(super) fn class(&self, buffer: usize, name: &str) -> Option<usize> {
        self.decks.get(buffer)?.class(name)
    }

    /// The names of classes that something is held of, with their places.
    pub(super) fn classes(&self, buffer: usize) -> Vec<(String, usize)> {
        let Some(deck) = self.decks.get(buffer) else { return Vec::new() };
        let named = deck.classes.iter().cloned().zip(0..);
        named.filter(|(_, place)| deck.holds(*place)).collect()
    }

    /// The names of the slots, if anything can be dealt.
    pub(super) fn names(&mut self, buffer: usize, class: Class) -> Vec<String> {
        let Some(deck) = self.decks.get_mut(buffer) else { return Vec::new() };
        if deck.supply(class).is_none_or(|supply| supply.is_empty()) {
            return Vec::new();
        }
        (0..deck.view.slots).map(|slot| format!("{slot:04}{}", deck.extension)).collect()
    }

    /// Whether a slot has this name. Its extension may be any: which samples will be held is not
    /// known when names are.
    pub(super) fn has(&self, buffer: usize, name: &str) -> bool {
        let stem = name.split_once('.').map_or(name, |(stem, _)| stem);
        let number = stem.parse::<u32>().ok().filter(|number| stem == format!("{number:04}"));
        let deck = self.decks.get(buffer);
        deck.zip(number).is_some_and(|(deck, number)| number < deck.view.slots)
    }

    /// Deals a sample at this time, and says its node; none where nothing is held.
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

    /// What was dealt long ago and not taken comes back.
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

    /// The sample behind a node.
    pub(super) fn get(&self, node: u64) -> Option<&Dealt> {
        self.dealt.get(&node)
    }

    /// What comes next of a supply, where nobody has been told of it.
    pub(super) fn first_upcoming(&mut self, buffer: usize, class: Class) -> Option<Upcoming> {
        let deck = self.decks.get_mut(buffer)?;
        deck.told.insert(class).then(|| deck.upcoming(buffer, class)).flatten()
    }

    /// Takes the sample behind a node: its buffer, the sample, and what comes next; none where it has
    /// been dealt to others meanwhile. Who opens it again finds the same one, and takes none.
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

    /// The kernel knows a node no more.
    pub(super) fn forget(&mut self, node: u64) {
        if let Some(dealt) = self.dealt.remove(&node).filter(|dealt| dealt.stage == Stage::Dealt)
            && let Some(deck) = self.decks.get_mut(dealt.buffer)
            && let Some(supply) = deck.supply(dealt.class)
        {
            supply.give_back(dealt.deal);
        }
    }
}
