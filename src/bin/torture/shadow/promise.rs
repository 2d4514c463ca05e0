//! How long a mount may serve what the source had before.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::clock::Nanos;

/// What the settings of a mount promise about changes at its source.
#[derive(Debug)]
pub(crate) struct Promise {
    /// The time after which a change shows. `None` if files are immutable.
    period: Option<Nanos>,
    /// Extra time for a slow machine.
    slack: Nanos,
    /// Until then, names of an earlier mount may be served.
    remembered_until: AtomicU64,
    /// When the last mount began.
    began: AtomicU64,
}

impl Promise {
    /// The promise of `revalidate = period`, or of `immutable`.
    pub(crate) fn new(period: Option<Nanos>, slack: Nanos) -> Self {
        let [remembered_until, began] = [const { AtomicU64::new(0) }; 2];
        Promise { period, slack, remembered_until, began }
    }

    /// Notes that a mount begins and looks at all names.
    pub(crate) fn begins(&self, now: Nanos) {
        self.began.store(now, Relaxed);
    }

    /// The earliest time at which a name may have been looked at for the last time.
    pub(crate) fn looked_from(&self) -> Nanos {
        self.began.load(Relaxed)
    }

    /// Notes that a mount begins with the catalog of an earlier one. What that catalog knows may be served
    /// for another period.
    pub(crate) fn remembers(&self, now: Nanos) {
        let until = now.saturating_add(self.period.unwrap_or(Nanos::MAX));
        self.remembered_until.store(until.saturating_add(self.slack), Relaxed);
    }

    /// Whether a state that ended at `until` may still be served to an open at `opened`.
    pub(crate) fn permits(&self, until: Nanos, opened: Nanos) -> bool {
        let Some(period) = self.period else { return true };
        let shows = until.saturating_add(period).saturating_add(self.slack);
        shows >= opened || self.remembered_until.load(Relaxed) >= opened
    }

    /// Whether a change at the source must show in the end.
    pub(crate) fn shows_changes(&self) -> bool {
        self.period.is_some()
    }

    /// The longest time until a change shows.
    pub(crate) fn delay(&self) -> Nanos {
        self.period.unwrap_or(0).saturating_add(self.slack)
    }
}
