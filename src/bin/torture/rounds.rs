//! Ends mounts and makes them again at once: kills and quick cycles.

use std::thread;
use std::time::Duration;

use nix::sys::signal::Signal;
use rand::RngExt;
use rand::rngs::ChaCha8Rng;

use crate::belady::{Belady, End};
use crate::clock::now;
use crate::plan::Trouble;
use crate::process::is_there;
use crate::stage::Stage;
use crate::tally::Wrong;
use crate::target::{Subject, Target};

impl Stage {
    /// Ends the mount and makes it again. Readers see meanwhile that it is away.
    pub(crate) fn remount(
        &self,
        belady: &mut Belady,
        trouble: Trouble,
        end: impl FnOnce(&mut Belady) -> bool,
    ) -> bool {
        let noted = self.watch.excuses.begin(trouble, Target::All);
        self.shadow.promise.begins(now());
        // Reads may come before the mount command has returned.
        self.expect_remembered();
        let mounted = end(belady) && belady.mount();
        if !mounted {
            self.break_off();
            return false;
        }
        self.expect_remembered();
        belady.pid.into_iter().for_each(|pid| self.is_served_by(pid));
        self.watch.excuses.end(noted);
        true
    }

    /// Permits a mount that begins about now to serve what its catalog remembers.
    fn expect_remembered(&self) {
        if self.plan.has_cache() {
            self.shadow.promise.remembers(now());
        }
    }

    /// Kills the daemon and mounts again. With `waits`, it mounts when all operations that waited for the
    /// daemon are free. A new mount frees them, too. Without one, only the daemon's watcher does.
    pub(crate) fn kill_and_mount(&self, belady: &mut Belady, by: Signal, waits: bool) -> bool {
        if self.plan.mode == "push" {
            self.watch.tally.counts().kills += 1;
        }
        let mounted = self.remount(belady, Trouble::Kill, |belady| {
            belady.kill(by);
            if waits {
                self.pause();
            }
            !self.watch.has_hung()
        });
        self.go_on();
        mounted
    }

    /// Reports and replaces a daemon that ended by itself. Returns whether there was one.
    pub(crate) fn replaces_lost(&self, belady: &mut Belady) -> bool {
        if belady.pid.is_none() || belady.is_alive() {
            return false;
        }
        self.report_loss(belady);
        self.remount(belady, Trouble::Kill, |_| true);
        true
    }

    /// Reports that a daemon ended by itself. Kills for want of memory are counted at the end of the episode.
    pub(crate) fn report_loss(&self, belady: &Belady) {
        if belady.group.as_ref().is_none_or(|group| group.kills() == 0) {
            self.watch.wrong(Wrong::Error, "the daemon has ended by itself");
        }
    }

    /// Cycles of mount and umount, with all ways to end a mount.
    pub(crate) fn cycle(&self, belady: &mut Belady, random: &mut ChaCha8Rng) {
        let ends = [End::Umount, End::Umount, End::Force, End::Terminate, End::Interrupt];
        for _ in 0..self.plan.rounds {
            self.sleep(Duration::from_millis(random.random_range(0..250)));
            if self.is_over() || self.watch.has_hung() {
                return;
            }
            if self.replaces_lost(belady) {
                continue;
            }
            let end = ends[random.random_range(0..ends.len())];
            if end == End::Umount {
                self.pause();
            }
            let done = self.remount(belady, Trouble::Cycle, |belady| belady.end(end));
            self.go_on();
            if !done {
                return;
            }
            self.watch.tally.counts().cycles += 1;
            self.watch.tally.fault(Trouble::Cycle);
        }
    }

    /// Kills the daemon again and again. SIGKILL acts as a kill from outside. SIGABRT acts as a fault of the
    /// daemon itself: its threads wait for each other until core is dumped.
    pub(crate) fn kill_again_and_again(&self, belady: &mut Belady, random: &mut ChaCha8Rng) {
        for _ in 0..self.plan.rounds {
            self.sleep(Duration::from_millis(random.random_range(20..600)));
            if self.is_over() || self.watch.has_hung() {
                return;
            }
            if self.replaces_lost(belady) {
                continue;
            }
            let killed = belady.pid;
            self.watch.tally.fault(Trouble::Kill);
            let by = if random.random_bool(0.2) { Signal::SIGABRT } else { Signal::SIGKILL };
            if !self.kill_and_mount(belady, by, random.random_bool(0.5)) {
                return;
            }
            // No fault of the source may hold this end.
            let operation = self.watch.begin("end after a kill", Subject::Local("the daemon"));
            while killed.is_some_and(is_there) && !self.watch.has_hung() {
                thread::sleep(Duration::from_millis(2));
            }
            drop(operation);
        }
    }
}
