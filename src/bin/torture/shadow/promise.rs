//! For how long a mount may serve what the source had before.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::clock::Nanos;

/// What the settings of a mount promise of changes at its source.
#[derive(Debug)]
pub(crate) struct Promise {
    /// After this time a change shows; none where files are taken to be immutable.
    period: Option<Nanos>,
    /// What is added for a machine that is slow.
    slack: Nanos,
    /// Until then the names of an earlier mount may be believed.
    remembered_until: AtomicU64,
    /// When the last mount began.
    began: AtomicU64,
}

impl Promise {
    /// Of `revalidate = period`, or of `immutable`.
    pub(crate) fn new(period: Option<Nanos>, slack: Nanos) -> Self {
        let [remembered_until, began] = [const { AtomicU64::new(0) }; 2];
        Promise { period, slack, remembered_until, began }
    }

    /// A mount begins, and looks at all names.
    pub(crate) fn begins(&self, now: Nanos) {
        self.began.store(now, Relaxed);
    }

    /// From when on a name may have been looked at for the last time.
    pub(crate) fn looked_from(&self) -> Nanos {
        self.began.load(Relaxed)
    }

    /// A mount begins with the catalog of an earlier one: what that knew may be served for the
    /// period once more.
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

    /// Whether what the source has now must show in the end.
    pub(crate) fn shows_changes(&self) -> bool {
        self.period.is_some()
    }

    /// How long it takes at most until a change shows.
    pub(crate) fn delay(&self) -> Nanos {
        self.period.unwrap_or(0).saturating_add(self.slack)
    }
}
