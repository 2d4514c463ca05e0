//! What all actors of an episode share.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use crate::clock::Nanos;
use crate::excuse::AWAY;
use crate::ground::Ground;
use crate::plan::Plan;
use crate::process::is_there;
use crate::shadow::Shadow;
use crate::tally::Wrong;
use crate::target::Subject;
use crate::watch::Watch;

/// An episode as its actors see it.
#[derive(Debug)]
pub(crate) struct Stage {
    pub(crate) plan: Plan,
    pub(crate) ground: Arc<Ground>,
    /// Which bytes each file may have.
    pub(crate) shadow: Shadow,
    pub(crate) watch: Arc<Watch>,
    /// The mount points.
    pub(crate) points: Vec<PathBuf>,
    over: AtomicBool,
    paused: AtomicBool,
    broken: AtomicBool,
    /// The process id of the daemon. 0 before there is one.
    daemon: AtomicI32,
}

impl Stage {
    pub(crate) fn new(
        plan: Plan,
        ground: Arc<Ground>,
        shadow: Shadow,
        watch: Arc<Watch>,
        points: Vec<PathBuf>,
    ) -> Self {
        let [over, paused, broken] = [const { AtomicBool::new(false) }; 3];
        let daemon = AtomicI32::new(0);
        Stage { plan, ground, shadow, watch, points, over, paused, broken, daemon }
    }

    /// Sets the daemon that serves.
    pub(crate) fn is_served_by(&self, pid: i32) {
        self.daemon.store(pid, Relaxed);
    }

    /// Breaks the episode off because it cannot be mounted. Nothing of it is judged any more.
    pub(crate) fn break_off(&self) {
        self.broken.store(true, Relaxed);
        self.end();
    }

    /// Reports an error of torture itself.
    pub(crate) fn fails(&self, what: &str, error: &std::io::Error) {
        self.watch.wrong(Wrong::Error, &format!("torture itself: {what}: {error}"));
    }

    /// Whether the episode was broken off, or something hangs.
    pub(crate) fn is_broken(&self) -> bool {
        self.broken.load(Relaxed) || self.watch.has_hung()
    }

    /// Whether the daemon has ended by itself. A daemon that is about to end is waited for.
    fn is_cut_off(&self) -> bool {
        const LOOKS: u32 = 20;
        let is_gone = |look: u32| {
            if look > 0 {
                thread::sleep(Duration::from_millis(25));
            }
            self.is_broken() || !is_there(self.daemon.load(Relaxed))
        };
        (0..LOOKS).any(is_gone)
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
        self.is_broken()
            || self.watch.excuses.explains(errno, subject, began, ended)
            || AWAY.contains(&errno) && self.is_cut_off()
    }

    /// Tells all actors to end.
    pub(crate) fn end(&self) {
        self.over.store(true, Relaxed);
    }

    /// Whether actors must end.
    pub(crate) fn is_over(&self) -> bool {
        self.over.load(Relaxed)
    }

    /// Waits while actors are paused. False if the actor must end.
    pub(crate) fn may_go_on(&self) -> bool {
        while self.paused.load(Relaxed) && !self.is_over() {
            thread::sleep(Duration::from_millis(1));
        }
        !self.is_over()
    }

    /// Pauses all actors. Waits until no operation is under way, or something hangs.
    pub(crate) fn pause(&self) {
        self.paused.store(true, Relaxed);
        while self.watch.going_on() > 0 && !self.watch.has_hung() {
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Lets paused actors continue.
    pub(crate) fn go_on(&self) {
        self.paused.store(false, Relaxed);
    }

    /// Sleeps for `duration`, or until the episode ends or something hangs.
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
        self.ground.path("source").join(name)
    }

    /// The path of a file at a mount point.
    pub(crate) fn at_point(&self, point: usize, name: &str) -> PathBuf {
        let point: &Path = &self.points[point % self.points.len()];
        point.join(name)
    }
}
