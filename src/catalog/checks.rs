//! When each row was checked at the source, and how long a check counts.
//!
//! Times are counted in ticks since the catalog began. Tick 0 stands for what was known before.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::ids::FileId;

/// 32 bits of ticks are 2.7 years.
pub(crate) const TICK: Duration = Duration::from_millis(20);

/// How long the kernel may believe what can never change.
pub const FOR_EVER: Duration = Duration::from_secs(365 * 24 * 3600);

/// A check is due when one part in so many of the period is left.
const EARLY: u32 = 8;

/// Two changes of a file within this time after the first may have the same times, if these are counted in
/// seconds. It is twice a second: two clocks are compared.
const SETTLES_AFTER_NS: i64 = 2 * SECOND_NS;
pub(super) const SECOND_NS: i64 = 1_000_000_000;

/// The catalog's clock, and how long a check counts.
#[derive(Debug)]
pub(super) struct Clock {
    pub(super) start: Instant,
    /// How old a check may be; none if the source is taken to be immutable.
    pub(super) period: Option<Duration>,
}

impl Clock {
    /// Ticks since the catalog began, never 0.
    pub(super) fn now(&self) -> u32 {
        let ticks = self.start.elapsed().as_millis() / TICK.as_millis();
        u32::try_from(ticks).unwrap_or(u32::MAX).max(1)
    }

    /// How long a check of this tick still counts; none if it is too old. At the end of the ticks every
    /// check is too old.
    pub(super) fn valid(&self, checked: u32) -> Option<Duration> {
        let Some(period) = self.period else { return Some(FOR_EVER) };
        let now = self.now();
        // A tick more: the check may have been at the start of its tick.
        let age = TICK * now.saturating_sub(checked).saturating_add(1);
        period.checked_sub(age).filter(|left| now < u32::MAX && !left.is_zero())
    }

    /// Whether the period since a check of this tick is nearly over.
    pub(super) fn is_due(&self, checked: u32) -> bool {
        let is_late = |period| self.valid(checked).is_none_or(|left| left < period / EARLY);
        self.period.is_some_and(is_late)
    }

    /// When the catalog began, in nanoseconds since 1970.
    pub(super) fn start_ns(&self) -> i64 {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let start = now.saturating_sub(self.start.elapsed()).as_nanos();
        i64::try_from(start).unwrap_or(i64::MAX)
    }
}

/// The tick of the last check of each row's name. Each name of a file has its own.
#[derive(Debug, Default)]
pub(super) struct Checks {
    ticks: Vec<AtomicU32>,
    /// When the catalog began, in nanoseconds since 1970, by the clock of the source's times.
    pub(super) start_ns: i64,
    /// Whether what was known at tick 0 comes from an earlier mount.
    pub(super) reopened: bool,
}

impl Checks {
    /// So many rows that were not checked at this mount.
    pub(super) fn of(rows: usize) -> Self {
        let mut checks = Checks::default();
        checks.ticks.resize_with(rows, AtomicU32::default);
        checks
    }

    pub(super) fn push(&mut self, tick: u32) {
        self.ticks.push(AtomicU32::new(tick));
    }

    pub(super) fn of_row(&self, row: FileId) -> u32 {
        self.ticks[row.index()].load(Ordering::Relaxed)
    }

    pub(super) fn set(&self, row: FileId, tick: u32) {
        self.ticks[row.index()].store(tick, Ordering::Relaxed);
    }

    /// A row was found as it is known. Another thread may have found that later.
    pub(super) fn confirm(&self, row: FileId, tick: u32) {
        self.ticks[row.index()].fetch_max(tick, Ordering::Relaxed);
    }

    /// Whether a row comes from an earlier mount and was not checked since.
    pub(super) fn is_unchecked(&self, row: FileId) -> bool {
        self.reopened && self.of_row(row) == 0
    }

    /// Whether a row was checked so soon after a change at this time that a further change may have the same
    /// times.
    pub(super) fn is_just_after(&self, row: FileId, changed_ns: i64) -> bool {
        if self.is_unchecked(row) {
            return false;
        }
        let since_start = i64::from(self.of_row(row)).saturating_mul(TICK.as_nanos() as i64);
        let checked_ns = self.start_ns.saturating_add(since_start);
        checked_ns < changed_ns.saturating_add(SETTLES_AFTER_NS)
    }
}
