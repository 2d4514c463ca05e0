//! Ends mounts and makes them again at once: kills and quick cycles.

use std::thread;
use std::time::Duration;

use nix::sys::signal::Signal;
use rand::RngExt;
use rand::rngs::ChaCha8Rng;

use crate::belady::{Belady, End};
use crate::clock::now;
use crate::plan::Fault;
use crate::process::is_running;
use crate::scenario::Scenario;
use crate::stats::Failure;
use crate::target::{Subject, Target};

/// Ends the mount and makes it again. Readers may get errors meanwhile. Returns whether it is mounted.
pub(crate) fn remount(
    scenario: &Scenario,
    belady: &mut Belady,
    fault: Fault,
    end: impl FnOnce(&mut Belady) -> bool,
) -> bool {
    let id = scenario.watch.faults.begin(fault, Target::All);
    scenario.history.staleness.note_mount(now());
    // Reads may come before the mount command has returned.
    permit_remembered(scenario);
    if !(end(belady) && belady.mount()) {
        scenario.abort();
        return false;
    }
    permit_remembered(scenario);
    belady.pid.into_iter().for_each(|pid| scenario.set_daemon(pid));
    scenario.watch.faults.end(id);
    true
}

/// Permits a mount that begins about now to serve what its catalog remembers.
fn permit_remembered(scenario: &Scenario) {
    if scenario.plan.has_cache() {
        scenario.history.staleness.note_remembered(now());
    }
}

/// Kills the daemon and mounts again. With `waits`, it mounts when all operations that waited for the
/// daemon are free. A new mount frees them, too. Without one, only the daemon's watcher does.
pub(crate) fn kill_and_remount(
    scenario: &Scenario,
    belady: &mut Belady,
    by: Signal,
    waits: bool,
) -> bool {
    if scenario.plan.mode == "push" {
        scenario.watch.stats.counts().kills += 1;
    }
    let mounted = remount(scenario, belady, Fault::Kill, |belady| {
        belady.kill(by);
        if waits {
            scenario.pause();
        }
        !scenario.watch.has_hung()
    });
    scenario.resume();
    mounted
}

/// Reports and replaces a daemon that ended by itself. Returns whether there was one.
pub(crate) fn replace_lost_daemon(scenario: &Scenario, belady: &mut Belady) -> bool {
    if belady.pid.is_none() || belady.is_alive() {
        return false;
    }
    report_loss(scenario, belady);
    remount(scenario, belady, Fault::Kill, |_| true);
    true
}

/// Reports that a daemon ended by itself. Kills for want of memory are counted at the end of the scenario.
pub(crate) fn report_loss(scenario: &Scenario, belady: &Belady) {
    if belady.group.as_ref().is_none_or(|group| group.kills() == 0) {
        scenario.watch.report(Failure::Error, "the daemon has ended by itself");
    }
}

/// Unmounts and mounts again and again, with all ways to end a mount.
pub(crate) fn run_cycles(scenario: &Scenario, belady: &mut Belady, random: &mut ChaCha8Rng) {
    let ends = [End::Umount, End::Umount, End::Force, End::Terminate, End::Interrupt];
    for _ in 0..scenario.plan.rounds {
        scenario.sleep(Duration::from_millis(random.random_range(0..250)));
        if scenario.is_over() || scenario.watch.has_hung() {
            return;
        }
        if replace_lost_daemon(scenario, belady) {
            continue;
        }
        let end = ends[random.random_range(0..ends.len())];
        if end == End::Umount {
            scenario.pause();
        }
        let done = remount(scenario, belady, Fault::Cycle, |belady| belady.end(end));
        scenario.resume();
        if !done {
            return;
        }
        scenario.watch.stats.counts().cycles += 1;
        scenario.watch.stats.count_fault(Fault::Cycle);
    }
}

/// Kills the daemon again and again. SIGKILL acts as a kill from outside. SIGABRT acts as a fault of the
/// daemon itself: its threads wait for each other until core is dumped.
pub(crate) fn run_kills(scenario: &Scenario, belady: &mut Belady, random: &mut ChaCha8Rng) {
    for _ in 0..scenario.plan.rounds {
        scenario.sleep(Duration::from_millis(random.random_range(20..600)));
        if scenario.is_over() || scenario.watch.has_hung() {
            return;
        }
        if replace_lost_daemon(scenario, belady) {
            continue;
        }
        let killed = belady.pid;
        scenario.watch.stats.count_fault(Fault::Kill);
        let by = if random.random_bool(0.2) { Signal::SIGABRT } else { Signal::SIGKILL };
        if !kill_and_remount(scenario, belady, by, random.random_bool(0.5)) {
            return;
        }
        // No fault of the source may hold this end.
        let operation = scenario.watch.begin("end after a kill", Subject::Local("the daemon"));
        while killed.is_some_and(is_running) && !scenario.watch.has_hung() {
            thread::sleep(Duration::from_millis(2));
        }
        drop(operation);
    }
}
