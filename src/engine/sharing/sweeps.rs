//! When this node's shard is swept.

use std::time::{Duration, Instant};

/// When blocks are removed that nobody asks for any more, and how often: members that come and go within this time move
/// nothing.
const SWEEP_AFTER: Duration = Duration::from_secs(60);

/// When a full shard also gives up what is still at its earlier home, and how often.
const FULL_SWEEP_AFTER: Duration = Duration::from_secs(10);
const FULL_SWEEP_AGAIN: Duration = Duration::from_secs(600);

/// How long the homes before are remembered.
const REMEMBERED: Duration = Duration::from_secs(3600);

/// When this node's shard is swept.
pub(super) struct Sweeps {
    /// When members came or went last.
    moved: Instant,
    /// Whether homes or files have changed since the last sweep.
    is_due: bool,
    tried: Option<Instant>,
    fully_tried: Option<Instant>,
}

impl Sweeps {
    pub(super) fn new() -> Self {
        Sweeps { moved: Instant::now(), is_due: false, tried: None, fully_tried: None }
    }

    /// Homes have changed. Unless the members are the same, they have come or gone.
    pub(super) fn go_on(&mut self, same_members: bool) {
        if !same_members {
            *self = Sweeps::new();
        }
        (self.is_due, self.fully_tried) = (true, None);
    }

    /// Whether a sweep is due. If so, whether what is at its earlier home is removed, too.
    pub(super) fn next(&mut self, now: Instant, is_full: bool) -> Option<bool> {
        let age = now - self.moved;
        let rested = |tried: Option<Instant>, pause: Duration| {
            tried.is_none_or(|tried| now - tried >= pause)
        };
        let fully =
            is_full && age >= FULL_SWEEP_AFTER && rested(self.fully_tried, FULL_SWEEP_AGAIN);
        let is_due = self.is_due && age >= SWEEP_AFTER && rested(self.tried, SWEEP_AFTER);
        if !fully && !is_due {
            return None;
        }
        self.tried = Some(now);
        if fully {
            self.fully_tried = Some(now);
        }
        Some(fully)
    }

    /// A sweep has been made.
    pub(super) fn are_done(&mut self) {
        self.is_due = false;
    }

    /// Whether members came or went so long ago that earlier homes are forgotten.
    pub(super) fn are_old(&self) -> bool {
        self.moved.elapsed() >= REMEMBERED
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shard_is_swept_after_changes_and_again_while_it_is_full() {
        let mut sweeps = Sweeps::new();
        let start = sweeps.moved;
        let mut next = |s: u64, is_full: bool| sweeps.next(start + Duration::from_secs(s), is_full);
        assert_eq!(next(100, false), None, "nothing has changed");
        assert_eq!(next(5, true), None, "members may come back");
        assert_eq!(next(10, true), Some(true));
        assert_eq!(next(300, true), None);
        assert_eq!(next(610, true), Some(true), "it is full again");
        sweeps.go_on(false);
        let start = sweeps.moved;
        let mut next = |s: u64| sweeps.next(start + Duration::from_secs(s), false);
        assert_eq!((next(59), next(60)), (None, Some(false)));
        assert_eq!((next(119), next(120)), (None, Some(false)), "it has failed");
        sweeps.is_due = false;
        assert_eq!(sweeps.next(start + Duration::from_secs(999), false), None);
    }
}
