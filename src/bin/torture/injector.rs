//! Begins and ends the faults of a scenario at their times. Each component (the source, the cache disk, the
//! daemon) has a thread of its own.

use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use nix::sys::signal::Signal;

use crate::belady::{Belady, End};
use crate::clock::{Nanos, now};
use crate::disk::CacheDisk;
use crate::fault_log::FaultId;
use crate::plan::{Component, Fault, Source, Step};
use crate::restarts::{kill_and_remount, remount, replace_lost_daemon};
use crate::scenario::Scenario;
use crate::source::Slowpfs;
use crate::target::Target;

/// What the threads of all components share.
pub(crate) struct Injector<'e> {
    pub(crate) scenario: &'e Scenario,
    pub(crate) belady: &'e Mutex<&'e mut Belady>,
}

/// How often the daemon is checked.
const INTERVAL: Duration = Duration::from_millis(100);

/// The memory limit of a daemon that has less memory for a while.
const LESS_MEMORY: u64 = 64 << 20;

impl<'e> Injector<'e> {
    /// Runs all steps, and returns when their time is over.
    pub(crate) fn run(&self, slow: &mut Option<Slowpfs>, disk: &mut Option<CacheDisk>) {
        let began = now();
        thread::scope(|scope| {
            scope.spawn(|| self.inject_into_source(began, slow));
            scope.spawn(|| self.inject_into_disk(began, disk));
            self.inject_into_daemon(began);
        });
    }

    fn steps(&self, component: Component) -> impl Iterator<Item = &Step> {
        self.scenario.plan.steps.iter().filter(move |step| step.fault.component() == component)
    }

    /// Waits until a step is due. Returns false if the scenario is over before.
    fn wait_until_due(&self, began: Nanos, at_ms: u64) -> bool {
        let due = began + at_ms * 1_000_000;
        self.scenario.sleep(Duration::from_nanos(due.saturating_sub(now())));
        !self.scenario.is_over() && !self.scenario.watch.has_hung()
    }

    /// Waits while the fault of a step lasts.
    fn wait_until_over(&self, step: &Step) {
        self.scenario.sleep(Duration::from_millis(step.lasts_ms));
    }

    fn belady(&self) -> MutexGuard<'_, &'e mut Belady> {
        self.belady.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reports an error of torture itself.
    fn report_error<T>(&self, what: &str, result: io::Result<T>) -> Option<T> {
        result.map_err(|error| self.scenario.report_own_error(what, &error)).ok()
    }

    fn inject_into_source(&self, began: Nanos, slow: &mut Option<Slowpfs>) {
        let (watch, faults) = (&self.scenario.watch, &self.scenario.watch.faults);
        for step in self.steps(Component::Source) {
            if !self.wait_until_due(began, step.at_ms) {
                break;
            }
            watch.stats.count_fault(step.fault);
            let target = match step.fault {
                Fault::SourceSlow | Fault::SourceGone | Fault::SourceHangLists => Target::All,
                _ => step.target,
            };
            let id = faults.begin(step.fault, target);
            let holds_pages =
                step.fault == Fault::SourceHangData && self.scenario.plan.source_keeps_pages();
            let pages = holds_pages.then(|| faults.begin(Fault::SourceHoldsPages, target));
            if step.fault == Fault::SourceGone {
                self.restart_source(slow, step, id);
            } else if let Some(slow) = slow {
                self.report_error(step.fault.name(), slow.begin(step.fault, target));
                self.wait_until_over(step);
                self.report_error("end of a fault", slow.clear());
                [Some(id), pages].into_iter().flatten().for_each(|id| faults.end(id));
            }
        }
    }

    /// Ends the source and brings it back. Then the mount is made again. Meanwhile an empty directory is in
    /// place of the source.
    fn restart_source(&self, slow: &mut Option<Slowpfs>, step: &Step, id: FaultId) {
        let Source::Slow(options) = &self.scenario.plan.source else { return };
        let mut belady = self.belady();
        if let Some(slow) = slow.take() {
            slow.stop();
        }
        self.wait_until_over(step);
        *slow = self.report_error("slowpfs", Slowpfs::start(&self.scenario.workspace, options));
        // The source serves again, so it explains no failing mount. The old mount does not know the new source.
        let faults = &self.scenario.watch.faults;
        let old = faults.begin(Fault::Cycle, Target::All);
        faults.end(id);
        if remount(self.scenario, &mut belady, Fault::Cycle, |belady| belady.end(End::Force)) {
            faults.end(old);
        }
    }

    fn inject_into_disk(&self, began: Nanos, disk: &mut Option<CacheDisk>) {
        let Some(disk) = disk else { return };
        let (watch, faults) = (&self.scenario.watch, &self.scenario.watch.faults);
        for step in self.steps(Component::CacheDisk) {
            if !self.wait_until_due(began, step.at_ms) {
                break;
            }
            watch.stats.count_fault(step.fault);
            let id = faults.begin(step.fault, Target::All);
            let is_lasting = CacheDisk::is_lasting(step.fault);
            // On a disk that is full or holds writes, the kernel can still read passed-through files.
            if is_lasting && self.scenario.plan.mode == "passthrough" {
                faults.begin(Fault::PassedThrough, Target::All);
            }
            self.report_error(step.fault.name(), disk.begin(step.fault));
            self.wait_until_over(step);
            self.report_error("end of a fault", disk.end(step.fault));
            if !is_lasting {
                faults.end(id);
            }
        }
    }

    fn inject_into_daemon(&self, began: Nanos) {
        let (watch, faults) = (&self.scenario.watch, &self.scenario.watch.faults);
        let end = Step {
            at_ms: self.scenario.plan.lasts_ms,
            lasts_ms: 0,
            fault: Fault::Cycle,
            target: Target::All,
        };
        for step in self.steps(Component::Daemon).chain([&end]) {
            while now() + INTERVAL.as_nanos() as Nanos <= began + step.at_ms * 1_000_000 {
                self.scenario.sleep(INTERVAL);
                if self.scenario.is_over() || watch.has_hung() {
                    return;
                }
                self.replace_lost_daemon();
            }
            if !self.wait_until_due(began, step.at_ms) || step.fault == Fault::Cycle {
                return;
            }
            watch.stats.count_fault(step.fault);
            match step.fault {
                Fault::Kill => {
                    let mut belady = self.belady();
                    kill_and_remount(self.scenario, &mut belady, Signal::SIGKILL, false);
                }
                _ => {
                    let id = faults.begin(step.fault, Target::All);
                    let limit = |bytes: u64| {
                        let belady = self.belady();
                        // The kernel takes the limit when it has made room.
                        belady.group.as_ref().map(|group| group.limit(bytes))
                    };
                    limit(LESS_MEMORY);
                    self.wait_until_over(step);
                    limit(self.scenario.plan.memory_mib.unwrap_or(0) << 20);
                    faults.end(id);
                }
            }
        }
    }

    /// Reports and replaces a daemon that ended by itself.
    fn replace_lost_daemon(&self) {
        // A thread that mounts again holds the lock.
        let Ok(mut belady) = self.belady.try_lock() else { return };
        replace_lost_daemon(self.scenario, &mut belady);
    }
}
