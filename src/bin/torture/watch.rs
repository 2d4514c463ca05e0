//! Watches the operations that are under way, and finds operations that take too long.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::baseline::Baseline;
use crate::clock::{Nanos, now, seconds};
use crate::fault_log::FaultLog;
use crate::stats::{Failure, Stats};
use crate::target::Subject;

/// An operation that is under way.
#[derive(Clone, Debug)]
struct Pending {
    kind: &'static str,
    subject: Subject,
    began: Nanos,
    thread: i32,
    /// Whether it was reported as a hang.
    is_reported: bool,
}

/// All operations of a scenario.
#[derive(Debug)]
pub(crate) struct Watch {
    /// Which waits are explained.
    pub(crate) faults: FaultLog,
    pub(crate) stats: Arc<Stats>,
    scenario: u64,
    baseline: Arc<Baseline>,
    limit: Nanos,
    pending: Mutex<HashMap<u64, Pending>>,
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
    /// Watches a scenario. No operation may take longer than `limit`.
    pub(crate) fn new(
        stats: Arc<Stats>,
        baseline: Arc<Baseline>,
        limit: Nanos,
        faults: FaultLog,
        scenario: u64,
    ) -> Self {
        Watch {
            faults,
            stats,
            scenario,
            baseline,
            limit,
            pending: Mutex::default(),
            next: AtomicU64::new(0),
            hangs: AtomicBool::new(false),
        }
    }

    fn pending(&self) -> MutexGuard<'_, HashMap<u64, Pending>> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins an operation on this thread.
    pub(crate) fn begin(&self, kind: &'static str, subject: Subject) -> Operation<'_> {
        let (number, began) = (self.next.fetch_add(1, Relaxed), now());
        let thread = nix::unistd::gettid().as_raw();
        self.pending().insert(number, Pending { kind, subject, began, thread, is_reported: false });
        Operation { watch: self, number, began }
    }

    /// How long the operation has waited without an explanation.
    fn overdue(&self, operation: &Pending, now: Nanos) -> Nanos {
        let from = self.faults.held_until(&operation.subject, operation.began);
        now.saturating_sub(from).saturating_sub(self.baseline.waited(from, now))
    }

    /// Reports the operations that hang and were not reported before. Returns their threads. The caller
    /// examines the threads and calls [`Self::note_hang`]. Then the operations are freed.
    pub(crate) fn report_hangs(&self) -> Vec<i32> {
        let (mut found, now) = (Vec::new(), now());
        for operation in self.pending().values_mut() {
            if !operation.is_reported && self.overdue(operation, now) > self.limit {
                operation.is_reported = true;
                found.push(operation.clone());
            }
        }
        for operation in &found {
            self.report_hang(operation, now, "and has not ended");
        }
        found.iter().map(|operation| operation.thread).collect()
    }

    /// Notes that something hangs.
    pub(crate) fn note_hang(&self) {
        self.hangs.store(true, Relaxed);
    }

    fn report_hang(&self, operation: &Pending, now: Nanos, end: &str) {
        let (kind, subject) = (operation.kind, operation.subject.name());
        let cause = self.faults.describe(operation.began, now);
        let taken = seconds(now - operation.began);
        let what = format!("{kind} of {subject} has taken {taken:.1} s {end} (meanwhile: {cause})");
        self.stats.count_failure(Failure::Hang, self.scenario, &what);
    }

    /// Reports a failure.
    pub(crate) fn report(&self, kind: Failure, what: &str) {
        self.stats.count_failure(kind, self.scenario, what);
    }

    /// Reports a hang of something that is not an operation.
    pub(crate) fn report_other_hang(&self, what: &str) {
        self.note_hang();
        self.report(Failure::Hang, what);
    }

    /// Whether a hang was noted.
    pub(crate) fn has_hung(&self) -> bool {
        self.hangs.load(Relaxed)
    }

    /// How many operations are under way.
    pub(crate) fn pending_operations(&self) -> usize {
        self.pending().len()
    }

    /// How long an operation may take.
    pub(crate) fn limit(&self) -> Nanos {
        self.limit
    }
}

impl Drop for Operation<'_> {
    fn drop(&mut self) {
        let Some(operation) = self.watch.pending().remove(&self.number) else { return };
        let now = now();
        if !operation.is_reported && self.watch.overdue(&operation, now) > self.watch.limit {
            self.watch.report_hang(&operation, now, "until it ended");
            self.watch.note_hang();
        }
        let cause = self.watch.faults.cause(&operation.subject, operation.began, now);
        let subject = operation.subject.name();
        self.watch.stats.count_operation(operation.kind, now - operation.began, cause, &subject);
    }
}

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::Duration;

    use super::*;
    use crate::plan::Fault;
    use crate::target::Target;

    #[test]
    fn a_wait_that_no_fault_explains_is_a_hang() {
        let (stats, baseline) = (Arc::<Stats>::default(), Arc::<Baseline>::default());
        let watch = Watch::new(stats, baseline, 1_000_000, FaultLog::default(), 0);
        let subject = || Subject::File("d1/0001.bin".into());
        let id = watch.faults.begin(Fault::SourceHangData, Target::All);
        let explained = watch.begin("read", subject());
        thread::sleep(Duration::from_millis(20));
        assert!(watch.report_hangs().is_empty());
        drop(explained);
        assert!(!watch.has_hung());
        watch.faults.end(id);
        let alone = watch.begin("end", Subject::Local("x"));
        thread::sleep(Duration::from_millis(20));
        assert_eq!(watch.report_hangs(), [nix::unistd::gettid().as_raw()]);
        assert!(watch.report_hangs().is_empty(), "it is reported once");
        assert!(!watch.has_hung(), "the hang was not noted yet");
        drop(alone);
        watch.note_hang();
        assert!(watch.has_hung());
        assert_eq!(watch.stats.counts().failures.get(&Failure::Hang), Some(&1));
    }
}
