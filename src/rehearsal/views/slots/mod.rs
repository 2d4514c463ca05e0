//! Slots: fixed names behind which each opening finds a fresh sample.
//!
//! 1. A lookup reserves a sample, with a node of its own, so its size and content are fixed.
//! 2. An opening of the node takes the sample.
//! 3. If the kernel forgets the node before that, the sample is released. So listing and `stat` take none.
//! 4. The kernel may know the node for long. So the sample is also released after [`PATIENCE`].
//! 5. If the node is opened even later, the sample may have been reserved for another reader. Then the open
//!    fails with `ESTALE`. The kernel looks the name up once more, and finds another sample.

mod buffer_slots;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::node::FIRST_RESERVED;
use super::{KeptSample, ServedBuffer, Upcoming};
use crate::buffer::Reservation;
pub(super) use buffer_slots::{BufferSlots, ClassOrAny};

/// How long a reserved sample waits to be opened. A program opens it right after the lookup, and waits less
/// than this for a processor.
const PATIENCE: Duration = Duration::from_secs(1);

/// On a busy machine readers come later. Each refusal doubles the patience, up to this, so that they are not
/// refused again.
const PATIENCE_MAX: Duration = Duration::from_secs(16);

/// A reserved sample, behind its node.
pub(super) struct ReservedSample {
    pub(super) buffer: usize,
    pub(super) label: String,
    pub(super) sample: Arc<KeptSample>,
    class: ClassOrAny,
    reservation: Reservation,
    stage: Stage,
}

/// The state of a reservation.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Reserved,
    /// The sample may be reserved for other readers.
    Released,
    Taken,
}

pub(super) struct Slots {
    pub(super) buffers: Vec<BufferSlots>,
    reserved: HashMap<u64, ReservedSample>,
    next: u64,
    /// Reserved nodes in their order, with the time. The first one waited to be taken when it was last looked
    /// at.
    waiting: VecDeque<(u64, Instant)>,
    /// How long reserved samples wait at present.
    patience: Duration,
}

impl Slots {
    pub(super) fn new(buffers: &[ServedBuffer]) -> Slots {
        let buffers = buffers.iter().cloned().enumerate();
        let buffers = buffers.map(|(at, served)| BufferSlots::new(at, served)).collect();
        let (reserved, waiting) = Default::default();
        Slots { buffers, reserved, next: FIRST_RESERVED, waiting, patience: PATIENCE }
    }

    /// Reserves a sample, with a node of its own. None if nothing is held.
    pub(super) fn reserve(
        &mut self,
        buffer: usize,
        class: ClassOrAny,
        now: Instant,
    ) -> Option<(u64, &ReservedSample)> {
        self.release_old(now);
        let slots = self.buffers.get_mut(buffer)?;
        let reservation = slots.supply(class)?.reserve()?;
        slots.until_renewal = slots.until_renewal.saturating_sub(1);
        let (label, sample) = slots.sample(reservation.sample)?;
        let node = self.next;
        self.next += 1;
        self.waiting.push_back((node, now));
        let stage = Stage::Reserved;
        let reserved = ReservedSample { buffer, label, sample, class, reservation, stage };
        Some((node, self.reserved.entry(node).insert_entry(reserved).into_mut()))
    }

    /// Releases samples that were reserved long ago and not taken.
    fn release_old(&mut self, now: Instant) {
        while let Some((node, reserved_at)) = self.waiting.front() {
            let reserved = self.reserved.get_mut(node);
            if let Some(reserved) = reserved.filter(|of| of.stage == Stage::Reserved) {
                if now.saturating_duration_since(*reserved_at) < self.patience {
                    break;
                }
                reserved.stage = Stage::Released;
                release(&mut self.buffers, reserved);
            }
            self.waiting.pop_front();
        }
    }

    pub(super) fn get(&self, node: u64) -> Option<&ReservedSample> {
        self.reserved.get(&node)
    }

    /// Takes the sample of a node. Returns its buffer, the sample, and what comes next. None if it was
    /// reserved for another reader meanwhile. A second opening finds the same sample, and takes none.
    pub(super) fn take(&mut self, node: u64) -> Option<(usize, Arc<KeptSample>, Option<Upcoming>)> {
        let reserved = self.reserved.get_mut(&node)?;
        let (buffer, sample) = (reserved.buffer, Arc::clone(&reserved.sample));
        let slots = self.buffers.get_mut(buffer)?;
        let mut upcoming = None;
        if reserved.stage != Stage::Taken
            && let Some(supply) = slots.supply(reserved.class)
        {
            let is_released = reserved.stage == Stage::Released;
            if is_released && supply.was_reserved_again(reserved.reservation) {
                self.patience = (2 * self.patience).min(PATIENCE_MAX);
                return None;
            }
            supply.take(reserved.reservation);
            reserved.stage = Stage::Taken;
            upcoming = slots.upcoming(reserved.class);
        }
        Some((buffer, sample, upcoming))
    }

    pub(super) fn forget(&mut self, node: u64) {
        let reserved = self.reserved.remove(&node);
        if let Some(reserved) = reserved.filter(|of| of.stage == Stage::Reserved) {
            release(&mut self.buffers, &reserved);
        }
    }
}

fn release(buffers: &mut [BufferSlots], reserved: &ReservedSample) {
    if let Some(slots) = buffers.get_mut(reserved.buffer)
        && let Some(supply) = slots.supply(reserved.class)
    {
        supply.release(reserved.reservation);
    }
}
