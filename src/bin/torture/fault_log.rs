//! The log of injected faults, with the times at which each was active. It tells which errors and waits are
//! explained by a fault.

use std::sync::{Mutex, MutexGuard, PoisonError};

use nix::libc;

use crate::clock::{Nanos, now};
use crate::plan::{Component, Fault, Plan};
use crate::target::{Subject, Target};

/// How long after a fault its effects may last, because answers were on their way.
const AFTER_EFFECT: Nanos = 1_500_000_000;

/// A fault and when it was active.
#[derive(Clone, Copy, Debug)]
struct Window {
    fault: Fault,
    target: Target,
    from: Nanos,
    until: Nanos,
}

/// All faults of a scenario.
#[derive(Debug, Default)]
pub(crate) struct FaultLog {
    windows: Mutex<Vec<Window>>,
    /// Number of files of the source.
    files: u64,
}

/// The number of a fault in the log.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FaultId(usize);

impl FaultLog {
    /// No faults yet, for a source with `files` files.
    pub(crate) fn new(files: u64) -> Self {
        FaultLog { files, ..FaultLog::default() }
    }

    fn windows(&self) -> MutexGuard<'_, Vec<Window>> {
        self.windows.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that a fault begins.
    pub(crate) fn begin(&self, fault: Fault, target: Target) -> FaultId {
        let mut windows = self.windows();
        windows.push(Window { fault, target, from: now(), until: Nanos::MAX });
        FaultId(windows.len() - 1)
    }

    /// Notes that a fault is over.
    pub(crate) fn end(&self, id: FaultId) {
        self.windows()[id.0].until = now();
    }

    /// Whether a fault explains this error of an operation between the two times.
    pub(crate) fn explains(
        &self,
        errno: i32,
        subject: &Subject,
        began: Nanos,
        ended: Nanos,
    ) -> bool {
        self.windows().iter().any(|window| {
            window.overlaps(began, ended)
                && window.target.covers(subject)
                && window.fault.errors(subject).contains(&errno)
        })
    }

    /// Whether a fault hit the source between the two times, so that mounting may have failed.
    pub(crate) fn source_had_fault(&self, began: Nanos, ended: Nanos) -> bool {
        let is_it = |window: &Window| window.fault.component() == Component::Source;
        self.windows().iter().any(|window| window.overlaps(began, ended) && is_it(window))
    }

    /// Whether nothing was mounted at some moment between the two times.
    pub(crate) fn was_unmounted(&self, began: Nanos, ended: Nanos) -> bool {
        let is_it = |window: &Window| window.fault.removes_the_mount();
        self.windows().iter().any(|window| window.overlaps(began, ended) && is_it(window))
    }

    /// Until when faults may hold an operation that began at `began`. `Nanos::MAX` if such a fault is not
    /// over.
    pub(crate) fn held_until(&self, subject: &Subject, began: Nanos) -> Nanos {
        let windows = self.windows();
        let holds = |window: &&Window| window.ends() >= began && window.holds(subject, self.files);
        let holds = windows.iter().filter(holds);
        holds.map(|window| window.until).max().unwrap_or(0).max(began)
    }

    /// The fault that is named as the cause of a stall between the two times.
    pub(crate) fn cause(&self, subject: &Subject, began: Nanos, ended: Nanos) -> &'static str {
        let windows = self.windows();
        let here = || windows.iter().filter(|window| window.overlaps(began, ended));
        let covers = |window: &&Window| window.target.covers(subject);
        let holds = |window: &&Window| window.holds(subject, self.files);
        let found = here().find(holds).or_else(|| here().find(covers)).or_else(|| here().next());
        found.map_or("no fault", |window| window.fault.name())
    }

    /// All faults between the two times and their targets, for people.
    pub(crate) fn describe(&self, began: Nanos, ended: Nanos) -> String {
        let windows = self.windows();
        let here = windows.iter().filter(|window| window.overlaps(began, ended));
        let names =
            here.map(|window| format!("{} ({})", window.fault.name(), window.target.pattern()));
        match names.collect::<Vec<_>>() {
            names if names.is_empty() => "no fault".to_owned(),
            names => names.join(", "),
        }
    }
}

impl Window {
    /// Whether the fault may hold operations on the subject while it lasts. The source has `files` files.
    fn holds(&self, subject: &Subject, files: u64) -> bool {
        let spreads = |from| self.target.siblings(subject, (0..files).map(Plan::name)) >= from;
        let meets = self.target.covers(subject) || self.fault.spreads_from().is_some_and(spreads);
        meets && self.fault.holds(subject)
    }

    /// The last moment at which an operation may begin that the fault explains. If the fault removed the
    /// mount, its effects end with it: they do not concern the next mount.
    fn ends(&self) -> Nanos {
        let after = if self.fault.removes_the_mount() { 0 } else { AFTER_EFFECT };
        self.until.saturating_add(after)
    }

    fn overlaps(&self, began: Nanos, ended: Nanos) -> bool {
        self.from <= ended && self.ends() >= began
    }
}

/// The name of an error, for people.
pub(crate) fn name_of(errno: i32) -> String {
    nix::errno::Errno::from_raw(errno).to_string()
}

/// The errors of a mount that ends, or has ended, or whose daemon was killed.
pub(crate) const UNMOUNTED: &[i32] = &[
    libc::ENOTCONN,
    libc::ECONNABORTED,
    libc::ENOENT,
    libc::EIO,
    libc::ENODEV,
    libc::ESTALE,
    libc::EFAULT,
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_explains_only_errors_of_its_target() {
        let faults = FaultLog::default();
        let file = |path: &str| Subject::File(path.to_owned());
        let id = faults.begin(Fault::SourceEio, Target::Ending(3));
        let began = now();
        let explains =
            |errno, subject: &Subject, began| faults.explains(errno, subject, began, began);
        assert!(explains(libc::EIO, &file("d0/0003.bin"), began));
        assert!(!explains(libc::EIO, &file("d0/0004.bin"), began));
        assert!(!explains(libc::ESTALE, &file("d0/0003.bin"), began));
        faults.end(id);
        assert!(!explains(libc::EIO, &file("d0/0003.bin"), now() + 2 * AFTER_EFFECT));
    }

    #[test]
    fn a_kill_explains_no_error_after_the_next_mount() {
        let faults = FaultLog::default();
        let file = Subject::File("d0/0003.bin".to_owned());
        let explains = |began| faults.explains(libc::ENOTCONN, &file, began, began);
        for fault in [Fault::Kill, Fault::Cycle] {
            let id = faults.begin(fault, Target::All);
            let unmounted = now();
            faults.end(id);
            assert!(explains(unmounted) && !explains(now() + 1), "{}", fault.name());
        }
    }

    #[test]
    fn only_operations_on_the_target_of_a_hang_may_wait() {
        let faults = FaultLog::default();
        let file = |path: &str| Subject::File(path.to_owned());
        let id = faults.begin(Fault::SourceHangData, Target::Directory(1));
        assert_eq!(faults.held_until(&file("d1/0003.bin"), now()), Nanos::MAX);
        assert_eq!(faults.held_until(&Subject::Local("x"), 7), 7);
        let other = now();
        assert_eq!(faults.held_until(&file("d2/0003.bin"), other), other);
        assert_eq!(faults.held_until(&Subject::Mount, other), other);
        assert_eq!(faults.held_until(&Subject::Remount, other), Nanos::MAX);
        faults.end(id);
        assert!(faults.held_until(&file("d1/0003.bin"), other) < Nanos::MAX);
    }

    #[test]
    fn few_names_that_hang_hold_no_others() {
        let file = |path: &str| Subject::File(path.to_owned());
        // Of the files that end with 3, directory d3 has 3, 43, 83 and so on.
        for (files, holds) in [(243, false), (244, true)] {
            let faults = FaultLog::new(files);
            faults.begin(Fault::SourceHangNames, Target::Ending(3));
            let held = |path: &str| faults.held_until(&file(path), now()) == Nanos::MAX;
            assert!(held("d3/0043.bin") && !held("d2/0010.bin"));
            assert_eq!(held("d3/0011.bin"), holds, "{files}");
            let directory = Subject::Directory("d3".to_owned());
            assert_eq!(faults.held_until(&directory, now()), Nanos::MAX, "it is listed");
        }
    }
}
