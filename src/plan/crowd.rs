//! Trusts new tasks together, if each reads too little to be trusted by itself: threads that are made for
//! each batch, say.
//!
//! If several new tasks read close to each other in an order, they read for it. Processes that are started
//! for one file each, by `find -exec` say, do not.

use std::collections::VecDeque;

use crate::ids::StreamId;

const PLACES_MAX: usize = 16;

/// Reads of one place that show that they belong to the order.
const READS_MIN: usize = 4;

/// How far a read may be from the last one of its place, in positions: `1 / NEAR_PART` of the order, within
/// `NEAR`. In a small dataset a task that jumps about comes close by chance.
const NEAR: (u64, u64) = (4, 16);
const NEAR_PART: u64 = 256;

/// The same if most positions between are unseen: in positions, and in seen positions.
const UNSEEN_NEAR: u64 = 64;
const UNSEEN_STEP_MAX: u64 = 2;

#[derive(Debug)]
struct Place {
    stream: StreamId,
    /// The farthest position that was read there.
    last: u64,
    reads: usize,
    /// Positions that are not counted yet.
    pending: Vec<u64>,
}

/// The places where new tasks read, latest last.
#[derive(Debug, Default)]
pub(super) struct Crowd(VecDeque<Place>);

impl Crowd {
    /// A new task opened the file of so many `blocks` that a stream of `length` positions has at `position`. Returns
    /// the positions that now count as read. `distance` is the length of a step in positions whose opens are seen.
    pub(super) fn note_open_at(
        &mut self,
        stream: StreamId,
        position: u64,
        (length, blocks): (u32, u64),
        distance: impl Fn(u64, u64) -> u64,
    ) -> Vec<u64> {
        let near = (u64::from(length) / blocks / NEAR_PART).clamp(NEAR.0, NEAR.1) * blocks;
        let far = |place: &Place| match place.stream == stream {
            true => place.last.abs_diff(position),
            false => u64::MAX,
        };
        let steps = |last: u64| distance(last.min(position), last.max(position));
        let is_near = |place: &Place| {
            let far = far(place);
            far <= near || far <= UNSEEN_NEAR && steps(place.last) <= UNSEEN_STEP_MAX
        };
        let nearest = (0..self.0.len()).min_by_key(|&at| far(&self.0[at]));
        let nearest = nearest.filter(|&at| is_near(&self.0[at]));
        let place = nearest.and_then(|at| self.0.remove(at));
        let mut place =
            place.unwrap_or(Place { stream, last: position, reads: 0, pending: Vec::new() });
        place.last = place.last.max(position);
        place.reads += 1;
        place.pending.push(position);
        let trusted = place.reads >= READS_MIN;
        let read = if trusted { std::mem::take(&mut place.pending) } else { Vec::new() };
        if self.0.len() == PLACES_MAX {
            self.0.pop_front();
        }
        self.0.push_back(place);
        read
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STREAM: StreamId = StreamId(0);
    const STEP: fn(u64, u64) -> u64 = |from, to| to - from;

    #[test]
    fn those_who_read_close_to_each_other_are_trusted_together() {
        let mut crowd = Crowd::default();
        let read: Vec<u64> = [10, 500, 12, 11, 501, 13, 503, 502]
            .iter()
            .flat_map(|&position| crowd.note_open_at(STREAM, position, (2_000, 1), STEP))
            .collect();
        assert_eq!(read, [10, 12, 11, 13, 500, 501, 503, 502]);
        assert_eq!(crowd.note_open_at(STREAM, 15, (2_000, 1), STEP), [15]);
    }

    /// One of sixteen positions is seen.
    #[test]
    fn those_who_are_hardly_seen_are_trusted_as_well() {
        let mut crowd = Crowd::default();
        let seen = |from: u64, to: u64| to / 16 - from / 16;
        let mut see = |position| crowd.note_open_at(STREAM, position, (2_000, 1), seen);
        let read: Vec<u64> =
            [0, 512, 16, 32, 528, 1_024, 48].into_iter().flat_map(&mut see).collect();
        assert_eq!(read, [0, 16, 32, 48]);
        assert!(see(160).is_empty(), "too far");
    }

    #[test]
    fn those_who_jump_about_are_not() {
        let mut crowd = Crowd::default();
        let jumps = (0..1_000u64).map(|k| k * 7_919 % 5_000);
        let read: usize = jumps
            .map(|position| crowd.note_open_at(STREAM, position, (5_000, 1), STEP).len())
            .sum();
        assert!(read < 20, "{read}");
    }
}
