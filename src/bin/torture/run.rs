//! Runs one scenario, from an empty directory to an empty directory.

use std::fs;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use rand::rngs::ChaCha8Rng;
use rand::{RngExt, SeedableRng};

use crate::baseline::Baseline;
use crate::belady::{Belady, End};
use crate::clock::{Nanos, nanos};
use crate::diagnose;
use crate::disk::CacheDisk;
use crate::fault_log::FaultLog;
use crate::final_check::check_all_files;
use crate::history::Staleness;
use crate::injector::Injector;
use crate::mounts::{Connections, force_unmount, mounts_below};
use crate::plan::{Fault, Kind, Limit, Plan, Source};
use crate::process::signal;
use crate::restarts::{report_loss, run_cycles, run_kills};
use crate::scenario::Scenario;
use crate::source::{Slowpfs, write_files};
use crate::stats::{Failure, Stats};
use crate::target::Target;
use crate::watch::Watch;
use crate::workers;
use crate::workspace::Workspace;

/// What all scenarios of a run share.
#[derive(Debug)]
pub(crate) struct Run {
    /// The seed of all random choices.
    pub(crate) seed: u64,
    /// How long an operation may take.
    pub(crate) limit: Nanos,
    pub(crate) stats: Arc<Stats>,
    /// The directory of the run.
    pub(crate) workspace: Arc<Workspace>,
    /// How long operations without belady wait on this machine.
    pub(crate) baseline: Arc<Baseline>,
    /// The kernel's list of connections.
    pub(crate) connections: Option<Connections>,
    /// Set when a signal asks for the end.
    pub(crate) stop: Arc<AtomicBool>,
}

/// How often operations are checked.
const INTERVAL: Duration = Duration::from_millis(100);

/// How many hangs of a scenario are reported in all detail.
const DIAGNOSED: u32 = 2;

/// How much later than configured a change may show on a slow machine. It is not derived from the limit of a
/// hang, which may be longer than a scenario.
const LATE: Duration = Duration::from_secs(8);

/// How long workers may take to end when nothing holds them.
const TIMEOUT: Duration = Duration::from_secs(20);

impl Run {
    /// Runs a scenario.
    ///
    /// # Errors
    /// If the machine lacks what the scenario needs.
    pub(crate) fn execute(&self, plan: &Plan) -> io::Result<()> {
        eprintln!("scenario {} of seed {}: {}", plan.number, self.seed, plan.describe());
        for name in ["source", "slow", "run", "mount0", "mount1", "mount2"] {
            fs::create_dir_all(self.workspace.path(name))?;
        }
        // An answer that hung tells the state at the time of its request.
        let slack = nanos(LATE) + plan.longest_fault_ms() * 1_000_000;
        let staleness = Staleness::new(plan.period_ms.map(|ms| ms * 1_000_000), slack);
        let history = write_files(plan, &self.workspace.path("source"), staleness)?;
        let mut slow = match &plan.source {
            Source::Plain => None,
            Source::Slow(options) => Some(Slowpfs::start(&self.workspace, options)?),
        };
        let mut disk = CacheDisk::new(plan.disk, &self.workspace)?;
        let (stats, baseline) = (Arc::clone(&self.stats), Arc::clone(&self.baseline));
        let faults = FaultLog::new(plan.sizes.len() as u64);
        let watch = Arc::new(Watch::new(stats, baseline, self.limit, faults, plan.number));
        let from = self.workspace.path(if slow.is_some() { "slow" } else { "source" });
        let cache = disk.as_ref().map(CacheDisk::options).unwrap_or_default();
        let (workspace, watching) = (Arc::clone(&self.workspace), Arc::clone(&watch));
        let belady = Belady::new(workspace, watching, plan, from, cache)?;
        let points = belady.points.clone();
        let workspace = Arc::clone(&self.workspace);
        let scenario = Arc::new(Scenario::new(plan.clone(), workspace, history, watch, points));
        self.mount_and_work(&scenario, belady, &mut slow, &mut disk)?;
        self.stats.counts().scenarios += 1;
        Ok(())
    }

    /// Mounts, and runs the workers and the faults. Watches all operations meanwhile.
    fn mount_and_work(
        &self,
        scenario: &Arc<Scenario>,
        mut belady: Belady,
        slow: &mut Option<Slowpfs>,
        disk: &mut Option<CacheDisk>,
    ) -> io::Result<()> {
        let watch = &scenario.watch;
        if matches!(scenario.plan.limit, Limit::Descriptors(_)) {
            watch.faults.begin(Fault::FewDescriptors, Target::All);
            watch.stats.count_fault(Fault::FewDescriptors);
        }
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| self.watch_operations(scenario, &over));
            let result = if belady.mount() {
                belady.pid.into_iter().for_each(|pid| scenario.set_daemon(pid));
                self.work(scenario, &mut belady, slow, disk)
            } else {
                Ok(())
            };
            if watch.has_hung() || belady.pid.is_some() {
                self.cut_off(scenario);
            }
            report_at_end(scenario, &belady);
            over.store(true, Relaxed);
            result
        })
    }

    /// Runs workers and faults while the source is mounted, then ends the mounts.
    fn work(
        &self,
        scenario: &Arc<Scenario>,
        belady: &mut Belady,
        slow: &mut Option<Slowpfs>,
        disk: &mut Option<CacheDisk>,
    ) -> io::Result<()> {
        let workers = workers::start(scenario)?;
        let random = &mut ChaCha8Rng::seed_from_u64(scenario.plan.seed);
        match scenario.plan.kind {
            Kind::Faults => {
                let belady = Mutex::new(&mut *belady);
                Injector { scenario, belady: &belady }.run(slow, disk);
            }
            Kind::Cycles => run_cycles(scenario, belady, random),
            Kind::Kills => run_kills(scenario, belady, random),
        }
        scenario.end();
        if scenario.is_aborted() {
            self.cut_off(scenario);
        }
        self.join(scenario, workers);
        if scenario.is_aborted() || self.stop.load(Relaxed) {
            return Ok(());
        }
        if !belady.is_alive() {
            report_loss(scenario, belady);
            return Ok(());
        }
        check_all_files(scenario);
        let ends = [End::Umount, End::Umount, End::Force, End::Terminate];
        if belady.end(ends[random.random_range(0..ends.len())]) {
            report_left_mounts(scenario);
        }
        Ok(())
    }

    /// Checks operations until the scenario is over, and reports those that hang.
    fn watch_operations(&self, scenario: &Scenario, over: &AtomicBool) {
        let mut diagnosed = 0;
        while !over.load(Relaxed) {
            let threads = scenario.watch.report_hangs();
            if !threads.is_empty() {
                if diagnosed < DIAGNOSED {
                    diagnosed += 1;
                    let directory = self.workspace.scenario_dir();
                    diagnose::print(&self.workspace.daemons(), &threads, directory);
                }
                scenario.watch.note_hang();
            }
            if self.stop.load(Relaxed) {
                scenario.end();
            }
            thread::sleep(INTERVAL);
        }
    }

    /// Kills the daemons and removes the mounts, so that nothing waits for them any more.
    fn cut_off(&self, scenario: &Scenario) {
        let minors: Vec<u32> = mounts_below(self.workspace.scenario_dir())
            .iter()
            .filter(|mount| scenario.points.iter().any(|point| mount.point.starts_with(point)))
            .map(|mount| mount.minor)
            .collect();
        for pid in self.workspace.daemons() {
            signal(pid, Signal::SIGKILL);
        }
        scenario.points.iter().for_each(|point| force_unmount(point));
        for minor in minors {
            self.connections.iter().for_each(|connections| connections.abort(minor));
        }
    }

    /// Waits until all workers have ended. A worker that still waits then ends the run.
    fn join(&self, scenario: &Scenario, workers: Vec<JoinHandle<()>>) {
        let began = Instant::now();
        let timeout = TIMEOUT + Duration::from_nanos(self.limit);
        while !workers.iter().all(JoinHandle::is_finished) {
            if scenario.watch.has_hung() {
                self.cut_off(scenario);
            }
            if began.elapsed() > timeout {
                let what = "a worker cannot be ended, nor can its mount be cut off";
                scenario.watch.report_other_hang(what);
                diagnose::print(&self.workspace.daemons(), &[], self.workspace.scenario_dir());
                self.workspace.clear();
                self.stats.counts().print(self.seed, nanos(began.elapsed()));
                std::process::exit(1);
            }
            thread::sleep(Duration::from_millis(10));
        }
        for worker in workers {
            if worker.join().is_err() {
                scenario.watch.report(Failure::Error, "torture itself: a worker panicked");
            }
        }
    }
}

/// Reports mounts that are left after the end.
fn report_left_mounts(scenario: &Scenario) {
    let left = |point| mounts_below(point).into_iter().map(|mount| mount.line);
    let lines: Vec<String> = scenario.points.iter().flat_map(|point| left(point)).collect();
    if !lines.is_empty() {
        let what = format!("after the end there is still mounted: {}", lines.join("; "));
        scenario.watch.report(Failure::Error, &what);
    }
}

/// Reports failures that show only at the end: kills for want of memory, and panics.
fn report_at_end(scenario: &Scenario, belady: &Belady) {
    let kills = belady.group.as_ref().map_or(0, |group| group.kills());
    if kills > 0 {
        let mib = scenario.plan.memory_mib.unwrap_or(0);
        let what = format!("{kills} processes were killed in a cgroup of {mib} MiB");
        scenario.watch.report(Failure::OutOfMemory, &what);
    }
    belady.report_panic();
}
