//! Which errors and waits are explained: the faults, and when each was active.

use std::sync::{Mutex, MutexGuard, PoisonError};

use nix::libc;

use crate::clock::{Nanos, now};
use crate::plan::{Plan, Trouble};
use crate::target::{Subject, Target};

/// How long after a fault its effects may last, because answers were on their way.
const TAIL: Nanos = 1_500_000_000;

/// A fault and when it was active.
#[derive(Clone, Copy, Debug)]
struct Window {
    trouble: Trouble,
    target: Target,
    from: Nanos,
    until: Nanos,
}

/// All faults of an episode.
#[derive(Debug, Default)]
pub(crate) struct Excuses {
    windows: Mutex<Vec<Window>>,
    /// Number of files of the source.
    files: u64,
}

/// The number of a fault that was noted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Noted(usize);

impl Excuses {
    /// No faults yet, for a source with `files` files.
    pub(crate) fn new(files: u64) -> Self {
        Excuses { files, ..Excuses::default() }
    }

    fn windows(&self) -> MutexGuard<'_, Vec<Window>> {
        self.windows.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that a fault begins.
    pub(crate) fn begin(&self, trouble: Trouble, target: Target) -> Noted {
        let mut windows = self.windows();
        windows.push(Window { trouble, target, from: now(), until: Nanos::MAX });
        Noted(windows.len() - 1)
    }

    /// Notes that a fault is over.
    pub(crate) fn end(&self, noted: Noted) {
        self.windows()[noted.0].until = now();
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
                && window.trouble.errors(subject).contains(&errno)
        })
    }

    /// Whether the source had trouble between the two times, so that mounting may have failed.
    pub(crate) fn source_was_in_trouble(&self, began: Nanos, ended: Nanos) -> bool {
        let is_it = |window: &Window| window.trouble.is_of_the_source();
        self.windows().iter().any(|window| window.overlaps(began, ended) && is_it(window))
    }

    /// Whether the mount was away at some moment between the two times.
    pub(crate) fn is_away(&self, began: Nanos, ended: Nanos) -> bool {
        let is_it = |window: &Window| window.trouble.takes_the_mount_away();
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
        found.map_or("no fault", |window| window.trouble.name())
    }

    /// All faults between the two times and their targets, for people.
    pub(crate) fn all(&self, began: Nanos, ended: Nanos) -> String {
        let windows = self.windows();
        let here = windows.iter().filter(|window| window.overlaps(began, ended));
        let names =
            here.map(|window| format!("{} ({})", window.trouble.name(), window.target.pattern()));
        match names.collect::<Vec<_>>() {
            names if names.is_empty() => "no fault".to_owned(),
            names => names.join(", "),
        }
    }
}

impl Window {
    /// Whether the fault may hold operations on the subject while it lasts. The source has `files` files.
    fn holds(&self, subject: &Subject, files: u64) -> bool {
        let spreads = |from| self.target.beside(subject, (0..files).map(Plan::name)) >= from;
        let meets = self.target.covers(subject) || self.trouble.spreads_from().is_some_and(spreads);
        meets && self.trouble.holds(subject)
    }

    /// The last moment at which an operation may begin that the fault explains. If the fault took the mount
    /// away, its effects end with it: they do not concern the next mount.
    fn ends(&self) -> Nanos {
        let tail = if self.trouble.takes_the_mount_away() { 0 } else { TAIL };
        self.until.saturating_add(tail)
    }

    fn overlaps(&self, began: Nanos, ended: Nanos) -> bool {
        self.from <= ended && self.ends() >= began
    }
}

/// The name of an error, for people.
pub(crate) fn name_of(errno: i32) -> String {
    nix::errno::Errno::from_raw(errno).to_string()
}

/// Errors of a mount whose daemon was killed, that ends, or that is not there.
pub(crate) const AWAY: &[i32] = &[
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
    fn only_what_a_fault_covers_is_excused() {
        let excuses = Excuses::default();
        let file = |path: &str| Subject::File(path.to_owned());
        let noted = excuses.begin(Trouble::SourceEio, Target::Ending(3));
        let began = now();
        let explains =
            |errno, subject: &Subject, began| excuses.explains(errno, subject, began, began);
        assert!(explains(libc::EIO, &file("d0/0003.bin"), began));
        assert!(!explains(libc::EIO, &file("d0/0004.bin"), began));
        assert!(!explains(libc::ESTALE, &file("d0/0003.bin"), began));
        excuses.end(noted);
        assert!(!explains(libc::EIO, &file("d0/0003.bin"), now() + 2 * TAIL));
    }

    #[test]
    fn what_begins_after_the_mount_is_there_again_is_not_excused() {
        let excuses = Excuses::default();
        let file = Subject::File("d0/0003.bin".to_owned());
        let explains = |began| excuses.explains(libc::ENOTCONN, &file, began, began);
        for trouble in [Trouble::Kill, Trouble::Cycle] {
            let noted = excuses.begin(trouble, Target::All);
            let away = now();
            excuses.end(noted);
            assert!(explains(away) && !explains(now() + 1), "{}", trouble.name());
        }
    }

    #[test]
    fn only_what_hangs_may_wait() {
        let excuses = Excuses::default();
        let file = |path: &str| Subject::File(path.to_owned());
        let noted = excuses.begin(Trouble::SourceHangData, Target::Directory(1));
        assert_eq!(excuses.held_until(&file("d1/0003.bin"), now()), Nanos::MAX);
        assert_eq!(excuses.held_until(&Subject::Local("x"), 7), 7);
        let other = now();
        assert_eq!(excuses.held_until(&file("d2/0003.bin"), other), other);
        assert_eq!(excuses.held_until(&Subject::Mount, other), other);
        assert_eq!(excuses.held_until(&Subject::Remount, other), Nanos::MAX);
        excuses.end(noted);
        assert!(excuses.held_until(&file("d1/0003.bin"), other) < Nanos::MAX);
    }

    #[test]
    fn few_names_that_hang_hold_no_others() {
        let file = |path: &str| Subject::File(path.to_owned());
        // Of the files that end with 3, directory d3 has 3, 43, 83 and so on.
        for (files, holds) in [(243, false), (244, true)] {
            let excuses = Excuses::new(files);
            excuses.begin(Trouble::SourceHangNames, Target::Ending(3));
            let held = |path: &str| excuses.held_until(&file(path), now()) == Nanos::MAX;
            assert!(held("d3/0043.bin") && !held("d2/0010.bin"));
            assert_eq!(held("d3/0011.bin"), holds, "{files}");
            let directory = Subject::Directory("d3".to_owned());
            assert_eq!(excuses.held_until(&directory, now()), Nanos::MAX, "it is listed");
        }
    }
}
