//! How long a mount may serve an earlier state of the source.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::clock::Nanos;

/// How stale the files of a mount may be by its settings.
#[derive(Debug)]
pub(crate) struct Staleness {
    /// The time after which a change shows. `None` if files are immutable.
    period: Option<Nanos>,
    /// Extra time for a slow machine.
    slack: Nanos,
    /// Until then, names of an earlier mount may be served.
    remembered_until: AtomicU64,
    /// When the last mount began.
    began: AtomicU64,
}

impl Staleness {
    /// The staleness of `revalidate = period`. Without a period, that of `immutable`.
    pub(crate) fn new(period: Option<Nanos>, slack: Nanos) -> Self {
        let [remembered_until, began] = [const { AtomicU64::new(0) }; 2];
        Staleness { period, slack, remembered_until, began }
    }

    /// Notes that a mount begins and looks at all names.
    pub(crate) fn note_mount(&self, now: Nanos) {
        self.began.store(now, Relaxed);
    }

    /// When the last mount began. It has looked at no name before.
    pub(crate) fn mounted_at(&self) -> Nanos {
        self.began.load(Relaxed)
    }

    /// Notes that a mount begins with the catalog of an earlier one. The names in that catalog may be served
    /// for another period.
    pub(crate) fn note_remembered(&self, now: Nanos) {
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
    pub(crate) fn longest_delay(&self) -> Nanos {
        self.period.unwrap_or(0).saturating_add(self.slack)
    }
}
