//! The state of a running scenario, which all its workers share.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use crate::clock::Nanos;
use crate::fault_log::UNMOUNTED;
use crate::history::History;
use crate::plan::Plan;
use crate::process::is_running;
use crate::stats::Failure;
use crate::target::Subject;
use crate::watch::Watch;
use crate::workspace::Workspace;

/// A running scenario.
#[derive(Debug)]
pub(crate) struct Scenario {
    pub(crate) plan: Plan,
    pub(crate) workspace: Arc<Workspace>,
    /// Which bytes each file may have.
    pub(crate) history: History,
    pub(crate) watch: Arc<Watch>,
    /// The mount points.
    pub(crate) points: Vec<PathBuf>,
    over: AtomicBool,
    paused: AtomicBool,
    aborted: AtomicBool,
    /// The process id of the daemon. 0 before there is one.
    daemon: AtomicI32,
}

impl Scenario {
    pub(crate) fn new(
        plan: Plan,
        workspace: Arc<Workspace>,
        history: History,
        watch: Arc<Watch>,
        points: Vec<PathBuf>,
    ) -> Self {
        let [over, paused, aborted] = [const { AtomicBool::new(false) }; 3];
        let daemon = AtomicI32::new(0);
        Scenario { plan, workspace, history, watch, points, over, paused, aborted, daemon }
    }

    /// Sets the daemon that serves.
    pub(crate) fn set_daemon(&self, pid: i32) {
        self.daemon.store(pid, Relaxed);
    }

    /// Ends the scenario early because it cannot be mounted. Nothing of it is judged any more.
    pub(crate) fn abort(&self) {
        self.aborted.store(true, Relaxed);
        self.end();
    }

    /// Reports an error of torture itself.
    pub(crate) fn report_own_error(&self, what: &str, error: &std::io::Error) {
        self.watch.report(Failure::Error, &format!("torture itself: {what}: {error}"));
    }

    /// Whether the scenario was aborted, or something hangs.
    pub(crate) fn is_aborted(&self) -> bool {
        self.aborted.load(Relaxed) || self.watch.has_hung()
    }

    /// Waits a moment for the end of the daemon. Returns whether it has ended by itself.
    fn wait_for_daemon_end(&self) -> bool {
        const CHECKS: u32 = 20;
        let has_ended = |check: u32| {
            if check > 0 {
                thread::sleep(Duration::from_millis(25));
            }
            self.is_aborted() || !is_running(self.daemon.load(Relaxed))
        };
        (0..CHECKS).any(has_ended)
    }

    /// Whether an error of an operation between the two times is explained: by a fault, or by a failure that
    /// is reported once elsewhere.
    pub(crate) fn explains(
        &self,
        errno: i32,
        subject: &Subject,
        began: Nanos,
        ended: Nanos,
    ) -> bool {
        self.is_aborted()
            || self.watch.faults.explains(errno, subject, began, ended)
            || UNMOUNTED.contains(&errno) && self.wait_for_daemon_end()
    }

    /// Tells all workers to end.
    pub(crate) fn end(&self) {
        self.over.store(true, Relaxed);
    }

    /// Whether workers must end.
    pub(crate) fn is_over(&self) -> bool {
        self.over.load(Relaxed)
    }

    /// Waits while workers are paused. Returns false if the worker must end.
    pub(crate) fn wait_while_paused(&self) -> bool {
        while self.paused.load(Relaxed) && !self.is_over() {
            thread::sleep(Duration::from_millis(1));
        }
        !self.is_over()
    }

    /// Pauses all workers. Waits until no operation is under way, or something hangs.
    pub(crate) fn pause(&self) {
        self.paused.store(true, Relaxed);
        while self.watch.pending_operations() > 0 && !self.watch.has_hung() {
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Lets paused workers continue.
    pub(crate) fn resume(&self) {
        self.paused.store(false, Relaxed);
    }

    /// Sleeps for `duration`, or until the scenario ends or something hangs.
    pub(crate) fn sleep(&self, duration: Duration) {
        const STEP: Duration = Duration::from_millis(20);
        let mut left = duration;
        while !left.is_zero() && !self.is_over() && !self.watch.has_hung() {
            let step = left.min(STEP);
            thread::sleep(step);
            left -= step;
        }
    }

    /// The path of a file of the source.
    pub(crate) fn in_source(&self, name: &str) -> PathBuf {
        self.workspace.path("source").join(name)
    }

    /// The path of a file at a mount point.
    pub(crate) fn at_point(&self, point: usize, name: &str) -> PathBuf {
        let point: &Path = &self.points[point % self.points.len()];
        point.join(name)
    }
}
