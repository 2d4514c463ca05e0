//! Which samples a member keeps, if it cannot keep all that have their home there.

use std::collections::BTreeMap;

use super::uses::Uses;

/// A sample that a member fetches now is not asked for by it once more within this time, in seconds.
const FETCHED_S: f32 = 2.0;

/// The part of its capacity with which a member has no room for all.
const FULL: (u64, u64) = (19, 20);

/// Decides whether a sample is worth its room.
#[derive(Clone, Debug)]
pub struct Worth {
    pub uses: Uses,
    /// By the ids of members, as they were told. Others keep all.
    pub horizons: BTreeMap<u64, f32>,
}

impl Worth {
    /// Whether a member keeps a sample that another one has fetched, so many seconds after the fronts of readers were
    /// known.
    pub fn is_kept(&self, sample: u32, member: u64, now: f32) -> bool {
        let Some(horizon) = self.horizons.get(&member) else { return true };
        self.uses.next(sample, now, now + FETCHED_S) - now <= *horizon
    }
}

/// The choice of a member among its samples.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Kept {
    /// Those that it does not keep.
    pub dropped: Vec<u32>,
    /// A sample that is asked for later than this is not worth its room: seconds, as in [`Uses::next`]. Infinite if there
    /// is room for all.
    pub horizon: f32,
}

impl Kept {
    /// Chooses the samples that are asked for soonest, as many as fit this capacity. Each comes with its bytes.
    pub fn of(held: &[(u32, u32)], uses: &Uses, now: f32, capacity: u64) -> Self {
        let mut ordered: Vec<(f32, u32, u32)> = held
            .iter()
            .map(|(sample, bytes)| (uses.next(*sample, now, now), *sample, *bytes))
            .collect();
        ordered.sort_by(|one, other| one.0.total_cmp(&other.0).then(one.1.cmp(&other.1)));
        let mut used = 0;
        let fits = ordered.iter().take_while(|(_, _, bytes)| {
            used += u64::from(*bytes);
            used <= capacity
        });
        let kept = fits.count();
        let horizon = match ordered.get(kept).or(ordered.last()) {
            Some((horizon, ..)) if used >= capacity / FULL.1 * FULL.0 => *horizon,
            _ => f32::INFINITY,
        };
        let dropped = ordered[kept..].iter().map(|(_, sample, _)| *sample).collect();
        Kept { dropped, horizon }
    }
}
