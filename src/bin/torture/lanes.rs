//! Begins and ends the troubles of an episode of faults at their times. There are three lanes side by side:
//! the source, the cache disk and the daemon.

use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use nix::sys::signal::Signal;

use crate::belady::{Belady, End};
use crate::clock::{Nanos, now};
use crate::disk::CacheDisk;
use crate::excuse::Noted;
use crate::plan::{Source, Step, Trouble};
use crate::source::Slow;
use crate::stage::Stage;
use crate::target::Target;

/// What the lanes share.
pub(crate) struct Lanes<'e> {
    pub(crate) stage: &'e Stage,
    pub(crate) belady: &'e Mutex<&'e mut Belady>,
}

/// How often the daemon is checked.
const LOOK: Duration = Duration::from_millis(100);

/// The memory limit of a daemon that has less for a while.
const LESS: u64 = 64 << 20;

impl<'e> Lanes<'e> {
    /// Runs all steps, and returns when their time is over.
    pub(crate) fn run(&self, slow: &mut Option<Slow>, disk: &mut Option<CacheDisk>) {
        let began = now();
        thread::scope(|scope| {
            scope.spawn(|| self.source(began, slow));
            scope.spawn(|| self.disk(began, disk));
            self.daemon(began);
        });
    }

    fn steps(&self, lane: usize) -> impl Iterator<Item = &Step> {
        self.stage.plan.steps.iter().filter(move |step| step.lane() == lane)
    }

    /// Waits until a step is due. False if the episode is over before.
    fn is_due(&self, began: Nanos, at_ms: u64) -> bool {
        let due = began + at_ms * 1_000_000;
        self.stage.sleep(Duration::from_nanos(due.saturating_sub(now())));
        !self.stage.is_over() && !self.stage.watch.has_hung()
    }

    fn last(&self, step: &Step) {
        self.stage.sleep(Duration::from_millis(step.lasts_ms));
    }

    fn belady(&self) -> MutexGuard<'_, &'e mut Belady> {
        self.belady.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reports an error of torture itself.
    fn must<T>(&self, what: &str, result: io::Result<T>) -> Option<T> {
        result.map_err(|error| self.stage.fails(what, &error)).ok()
    }

    fn source(&self, began: Nanos, slow: &mut Option<Slow>) {
        let (watch, excuses) = (&self.stage.watch, &self.stage.watch.excuses);
        for step in self.steps(0) {
            if !self.is_due(began, step.at_ms) {
                break;
            }
            watch.tally.fault(step.trouble);
            let target = match step.trouble {
                Trouble::SourceSlow | Trouble::SourceGone | Trouble::SourceHangLists => Target::All,
                _ => step.target,
            };
            let noted = excuses.begin(step.trouble, target);
            let holds_pages =
                step.trouble == Trouble::SourceHangData && self.stage.plan.source_keeps_pages();
            let held = holds_pages.then(|| excuses.begin(Trouble::SourceHoldsPages, target));
            if step.trouble == Trouble::SourceGone {
                self.without_source(slow, step, noted);
            } else if let Some(slow) = slow {
                self.must(step.trouble.name(), slow.begin(step.trouble, target));
                self.last(step);
                self.must("end of a fault", slow.clear());
                [Some(noted), held].into_iter().flatten().for_each(|noted| excuses.end(noted));
            }
        }
    }

    /// Ends the source and brings it back. Then the mount is made again. Meanwhile an empty directory is in
    /// place of the source.
    fn without_source(&self, slow: &mut Option<Slow>, step: &Step, noted: Noted) {
        let Source::Slow(options) = &self.stage.plan.source else { return };
        let mut belady = self.belady();
        if let Some(slow) = slow.take() {
            slow.stop();
        }
        self.last(step);
        *slow = self.must("slowpfs", Slow::start(&self.stage.ground, options));
        // The source is well again, so it explains no failing mount. The old mount does not know the new
        // source.
        let excuses = &self.stage.watch.excuses;
        let old = excuses.begin(Trouble::Cycle, Target::All);
        excuses.end(noted);
        if self.stage.remount(&mut belady, Trouble::Cycle, |belady| belady.end(End::Force)) {
            excuses.end(old);
        }
    }

    fn disk(&self, began: Nanos, disk: &mut Option<CacheDisk>) {
        let Some(disk) = disk else { return };
        let (watch, excuses) = (&self.stage.watch, &self.stage.watch.excuses);
        for step in self.steps(1) {
            if !self.is_due(began, step.at_ms) {
                break;
            }
            watch.tally.fault(step.trouble);
            let noted = excuses.begin(step.trouble, Target::All);
            let is_lasting = CacheDisk::is_lasting(step.trouble);
            // On a disk that is full or holds writes, the kernel can still read passed-through files.
            if is_lasting && self.stage.plan.mode == "passthrough" {
                excuses.begin(Trouble::PassedThrough, Target::All);
            }
            self.must(step.trouble.name(), disk.begin(step.trouble));
            self.last(step);
            self.must("end of a fault", disk.end(step.trouble));
            if !is_lasting {
                excuses.end(noted);
            }
        }
    }

    fn daemon(&self, began: Nanos) {
        let (watch, excuses) = (&self.stage.watch, &self.stage.watch.excuses);
        let end = Step {
            at_ms: self.stage.plan.lasts_ms,
            lasts_ms: 0,
            trouble: Trouble::Cycle,
            target: Target::All,
        };
        for step in self.steps(2).chain([&end]) {
            while now() + LOOK.as_nanos() as Nanos <= began + step.at_ms * 1_000_000 {
                self.stage.sleep(LOOK);
                if self.stage.is_over() || watch.has_hung() {
                    return;
                }
                self.is_lost();
            }
            if !self.is_due(began, step.at_ms) || step.trouble == Trouble::Cycle {
                return;
            }
            watch.tally.fault(step.trouble);
            match step.trouble {
                Trouble::Kill => {
                    let mut belady = self.belady();
                    self.stage.kill_and_mount(&mut belady, Signal::SIGKILL, false);
                }
                _ => {
                    let noted = excuses.begin(step.trouble, Target::All);
                    let limit = |bytes: u64| {
                        let belady = self.belady();
                        // The kernel takes the limit when it has made room.
                        belady.group.as_ref().map(|group| group.limit(bytes))
                    };
                    limit(LESS);
                    self.last(step);
                    limit(self.stage.plan.memory_mib.unwrap_or(0) << 20);
                    excuses.end(noted);
                }
            }
        }
    }

    /// Reports and replaces a daemon that ended by itself.
    fn is_lost(&self) {
        // A lane that mounts again holds the lock.
        let Ok(mut belady) = self.belady.try_lock() else { return };
        self.stage.replaces_lost(&mut belady);
    }
}
