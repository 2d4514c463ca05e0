//! Watches the operations that are under way, and finds operations that take too long.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::clock::{Nanos, now, seconds};
use crate::excuse::Excuses;
use crate::tally::{Tally, Wrong};
use crate::target::Subject;
use crate::yardstick::Yardstick;

/// An operation that is under way.
#[derive(Clone, Debug)]
struct Flight {
    kind: &'static str,
    subject: Subject,
    began: Nanos,
    thread: i32,
    /// Whether it was reported as a hang.
    is_told: bool,
}

/// All operations of an episode.
#[derive(Debug)]
pub(crate) struct Watch {
    /// Which waits are explained.
    pub(crate) excuses: Excuses,
    pub(crate) tally: Arc<Tally>,
    episode: u64,
    yardstick: Arc<Yardstick>,
    limit: Nanos,
    flights: Mutex<HashMap<u64, Flight>>,
    next: AtomicU64,
    hangs: AtomicBool,
}

/// An operation. It ends when it is dropped.
#[derive(Debug)]
pub(crate) struct Operation<'w> {
    watch: &'w Watch,
    number: u64,
    /// When it began.
    pub(crate) began: Nanos,
}

impl Watch {
    /// Watches an episode. No operation may take longer than `limit`.
    pub(crate) fn new(
        tally: Arc<Tally>,
        yardstick: Arc<Yardstick>,
        limit: Nanos,
        excuses: Excuses,
        episode: u64,
    ) -> Self {
        Watch {
            excuses,
            tally,
            episode,
            yardstick,
            limit,
            flights: Mutex::default(),
            next: AtomicU64::new(0),
            hangs: AtomicBool::new(false),
        }
    }

    fn flights(&self) -> MutexGuard<'_, HashMap<u64, Flight>> {
        self.flights.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins an operation on this thread.
    pub(crate) fn begin(&self, kind: &'static str, subject: Subject) -> Operation<'_> {
        let (number, began) = (self.next.fetch_add(1, Relaxed), now());
        let thread = nix::unistd::gettid().as_raw();
        self.flights().insert(number, Flight { kind, subject, began, thread, is_told: false });
        Operation { watch: self, number, began }
    }

    /// How long the operation has waited without an explanation.
    fn overdue(&self, flight: &Flight, now: Nanos) -> Nanos {
        let from = self.excuses.held_until(&flight.subject, flight.began);
        now.saturating_sub(from).saturating_sub(self.yardstick.waited(from, now))
    }

    /// Reports the operations that hang and were not reported before. Returns their threads. The caller calls
    /// [`Self::confirm`] when it has examined them: then they are freed.
    pub(crate) fn look(&self) -> Vec<i32> {
        let (mut found, now) = (Vec::new(), now());
        for flight in self.flights().values_mut() {
            if !flight.is_told && self.overdue(flight, now) > self.limit {
                flight.is_told = true;
                found.push(flight.clone());
            }
        }
        for flight in &found {
            self.hang(flight, now, "and has not ended");
        }
        found.iter().map(|flight| flight.thread).collect()
    }

    /// Makes it known that something hangs.
    pub(crate) fn confirm(&self) {
        self.hangs.store(true, Relaxed);
    }

    fn hang(&self, flight: &Flight, now: Nanos, end: &str) {
        let (kind, subject) = (flight.kind, flight.subject.name());
        let cause = self.excuses.all(flight.began, now);
        let taken = seconds(now - flight.began);
        let what = format!("{kind} of {subject} has taken {taken:.1} s {end} (meanwhile: {cause})");
        self.tally.wrong(Wrong::Hang, self.episode, &what);
    }

    /// Reports a failure.
    pub(crate) fn wrong(&self, kind: Wrong, what: &str) {
        self.tally.wrong(kind, self.episode, what);
    }

    /// Reports that something else than an operation hangs.
    pub(crate) fn found_hang(&self, what: &str) {
        self.confirm();
        self.wrong(Wrong::Hang, what);
    }

    /// Whether it is known that something hangs.
    pub(crate) fn has_hung(&self) -> bool {
        self.hangs.load(Relaxed)
    }

    /// How many operations go on.
    pub(crate) fn going_on(&self) -> usize {
        self.flights().len()
    }

    /// How long an operation may take.
    pub(crate) fn limit(&self) -> Nanos {
        self.limit
    }
}

impl Drop for Operation<'_> {
    fn drop(&mut self) {
        let Some(flight) = self.watch.flights().remove(&self.number) else { return };
        let now = now();
        if !flight.is_told && self.watch.overdue(&flight, now) > self.watch.limit {
            self.watch.hang(&flight, now, "until it ended");
            self.watch.confirm();
        }
        let cause = self.watch.excuses.cause(&flight.subject, flight.began, now);
        let subject = flight.subject.name();
        self.watch.tally.operation(flight.kind, now - flight.began, cause, &subject);
    }
}

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::Duration;

    use super::*;
    use crate::plan::Trouble;
    use crate::target::Target;

    #[test]
    fn what_no_fault_explains_is_a_hang() {
        let (tally, yardstick) = (Arc::<Tally>::default(), Arc::<Yardstick>::default());
        let watch = Watch::new(tally, yardstick, 1_000_000, Excuses::default(), 0);
        let subject = || Subject::File("d1/0001.bin".into());
        let noted = watch.excuses.begin(Trouble::SourceHangData, Target::All);
        let explained = watch.begin("read", subject());
        thread::sleep(Duration::from_millis(20));
        assert!(watch.look().is_empty());
        drop(explained);
        assert!(!watch.has_hung());
        watch.excuses.end(noted);
        let alone = watch.begin("end", Subject::Local("x"));
        thread::sleep(Duration::from_millis(20));
        assert_eq!(watch.look(), [nix::unistd::gettid().as_raw()]);
        assert!(watch.look().is_empty(), "it is told of once");
        assert!(!watch.has_hung(), "nobody has confirmed it");
        drop(alone);
        watch.confirm();
        assert!(watch.has_hung());
        assert_eq!(watch.tally.counts().wrong.get(&Wrong::Hang), Some(&1));
    }
}
