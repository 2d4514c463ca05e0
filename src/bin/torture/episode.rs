//! Plays one episode, from an empty directory to an empty directory.

use std::fs;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use rand::rngs::ChaCha8Rng;
use rand::{RngExt, SeedableRng};

use crate::actors;
use crate::belady::{Belady, End};
use crate::clock::{Nanos, nanos};
use crate::diagnose;
use crate::disk::CacheDisk;
use crate::excuse::Excuses;
use crate::ground::Ground;
use crate::lanes::Lanes;
use crate::mounts::{Connections, below, sever};
use crate::plan::{Kind, Limit, Plan, Source, Trouble};
use crate::process::signal;
use crate::settle::settle;
use crate::shadow::Promise;
use crate::source::{Slow, plant};
use crate::stage::Stage;
use crate::tally::{Tally, Wrong};
use crate::target::Target;
use crate::watch::Watch;
use crate::yardstick::Yardstick;

/// What all episodes of a run share.
#[derive(Debug)]
pub(crate) struct Run {
    /// The seed of all random choices.
    pub(crate) seed: u64,
    /// How long an operation may take.
    pub(crate) limit: Nanos,
    pub(crate) tally: Arc<Tally>,
    /// The directory of the run.
    pub(crate) ground: Arc<Ground>,
    /// How long operations without belady wait on this machine.
    pub(crate) yardstick: Arc<Yardstick>,
    /// The kernel's list of connections.
    pub(crate) connections: Option<Connections>,
    /// Set when a signal asks for the end.
    pub(crate) stop: Arc<AtomicBool>,
}

/// How often operations are checked.
const LOOK: Duration = Duration::from_millis(100);

/// How many hangs of an episode are reported in all detail.
const DIAGNOSED: u32 = 2;

/// How much later than promised a change may show on a slow machine. It is not derived from the limit of a
/// hang, which may be longer than an episode.
const LATE: Duration = Duration::from_secs(8);

/// How long actors may take to end when nothing holds them.
const PATIENCE: Duration = Duration::from_secs(20);

impl Run {
    /// Plays an episode.
    ///
    /// # Errors
    /// If the machine lacks what the episode needs.
    pub(crate) fn play(&self, plan: &Plan) -> io::Result<()> {
        eprintln!("episode {} of seed {}: {}", plan.number, self.seed, plan.describe());
        for name in ["source", "slow", "run", "mount0", "mount1", "mount2"] {
            fs::create_dir_all(self.ground.path(name))?;
        }
        // An answer that hung tells the state at the time of its request.
        let slack = nanos(LATE) + plan.longest_ms() * 1_000_000;
        let promise = Promise::new(plan.period_ms.map(|ms| ms * 1_000_000), slack);
        let shadow = plant(plan, &self.ground.path("source"), promise)?;
        let mut slow = match &plan.source {
            Source::Plain => None,
            Source::Slow(options) => Some(Slow::start(&self.ground, options)?),
        };
        let mut disk = CacheDisk::new(plan.disk, &self.ground)?;
        let (tally, yardstick) = (Arc::clone(&self.tally), Arc::clone(&self.yardstick));
        let excuses = Excuses::new(plan.sizes.len() as u64);
        let watch = Arc::new(Watch::new(tally, yardstick, self.limit, excuses, plan.number));
        let from = self.ground.path(if slow.is_some() { "slow" } else { "source" });
        let cache = disk.as_ref().map(CacheDisk::options).unwrap_or_default();
        let (ground, watching) = (Arc::clone(&self.ground), Arc::clone(&watch));
        let belady = Belady::new(ground, watching, plan, from, cache)?;
        let points = belady.points.clone();
        let ground = Arc::clone(&self.ground);
        let stage = Arc::new(Stage::new(plan.clone(), ground, shadow, watch, points));
        self.on_stage(&stage, belady, &mut slow, &mut disk)?;
        self.tally.counts().episodes += 1;
        Ok(())
    }

    fn on_stage(
        &self,
        stage: &Arc<Stage>,
        mut belady: Belady,
        slow: &mut Option<Slow>,
        disk: &mut Option<CacheDisk>,
    ) -> io::Result<()> {
        let watch = &stage.watch;
        if matches!(stage.plan.limit, Limit::Descriptors(_)) {
            watch.excuses.begin(Trouble::FewDescriptors, Target::All);
            watch.tally.fault(Trouble::FewDescriptors);
        }
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| self.look(stage, &over));
            let played = if belady.mount() {
                belady.pid.into_iter().for_each(|pid| stage.is_served_by(pid));
                self.with_actors(stage, &mut belady, slow, disk)
            } else {
                Ok(())
            };
            if watch.has_hung() || belady.pid.is_some() {
                self.rescue(stage);
            }
            self.look_back(stage, &belady);
            over.store(true, Relaxed);
            played
        })
    }

    /// Runs actors and troubles while the source is mounted, then ends the mounts.
    fn with_actors(
        &self,
        stage: &Arc<Stage>,
        belady: &mut Belady,
        slow: &mut Option<Slow>,
        disk: &mut Option<CacheDisk>,
    ) -> io::Result<()> {
        let actors = actors::start(stage)?;
        let random = &mut ChaCha8Rng::seed_from_u64(stage.plan.seed);
        match stage.plan.kind {
            Kind::Faults => {
                let belady = Mutex::new(&mut *belady);
                Lanes { stage, belady: &belady }.run(slow, disk);
            }
            Kind::Cycles => stage.cycle(belady, random),
            Kind::Kills => stage.kill_again_and_again(belady, random),
        }
        stage.end();
        if stage.is_broken() {
            self.rescue(stage);
        }
        self.join(stage, actors);
        if stage.is_broken() || self.stop.load(Relaxed) {
            return Ok(());
        }
        if !belady.is_alive() {
            stage.report_loss(belady);
            return Ok(());
        }
        settle(stage);
        let ends = [End::Umount, End::Umount, End::Force, End::Terminate];
        if belady.end(ends[random.random_range(0..ends.len())]) {
            self.is_clean(stage);
        }
        Ok(())
    }

    /// Checks operations until the episode is over, and reports those that hang.
    fn look(&self, stage: &Stage, over: &AtomicBool) {
        let mut diagnosed = 0;
        while !over.load(Relaxed) {
            let threads = stage.watch.look();
            if !threads.is_empty() {
                if diagnosed < DIAGNOSED {
                    diagnosed += 1;
                    diagnose::print(&self.ground.daemons(), &threads, self.ground.root());
                }
                stage.watch.confirm();
            }
            if self.stop.load(Relaxed) {
                stage.end();
            }
            thread::sleep(LOOK);
        }
    }

    /// Frees everything that waits for the mounts, whatever their daemon does.
    fn rescue(&self, stage: &Stage) {
        let minors: Vec<u32> = below(self.ground.root())
            .iter()
            .filter(|mount| stage.points.iter().any(|point| mount.point.starts_with(point)))
            .map(|mount| mount.minor)
            .collect();
        for pid in self.ground.daemons() {
            signal(pid, Signal::SIGKILL);
        }
        stage.points.iter().for_each(|point| sever(point));
        for minor in minors {
            self.connections.iter().for_each(|connections| connections.abort(minor));
        }
    }

    /// Waits until all actors have ended. An actor that cannot be freed ends the run.
    fn join(&self, stage: &Stage, actors: Vec<JoinHandle<()>>) {
        let began = Instant::now();
        let patience = PATIENCE + Duration::from_nanos(self.limit);
        while !actors.iter().all(JoinHandle::is_finished) {
            if stage.watch.has_hung() {
                self.rescue(stage);
            }
            if began.elapsed() > patience {
                stage.watch.found_hang("an actor cannot be ended, nor can its mount be cut off");
                diagnose::print(&self.ground.daemons(), &[], self.ground.root());
                self.ground.clear();
                self.tally.counts().print(self.seed, nanos(began.elapsed()));
                std::process::exit(1);
            }
            thread::sleep(Duration::from_millis(10));
        }
        for actor in actors {
            if actor.join().is_err() {
                stage.watch.wrong(Wrong::Error, "torture itself: an actor panicked");
            }
        }
    }

    /// Reports mounts that are left after the end.
    fn is_clean(&self, stage: &Stage) {
        let left = |point| below(point).into_iter().map(|mount| mount.line);
        let lines: Vec<String> = stage.points.iter().flat_map(|point| left(point)).collect();
        if !lines.is_empty() {
            let what = format!("after the end there is still mounted: {}", lines.join("; "));
            stage.watch.wrong(Wrong::Error, &what);
        }
    }

    /// Reports what shows only at the end: kills for want of memory, and panics.
    fn look_back(&self, stage: &Stage, belady: &Belady) {
        let kills = belady.group.as_ref().map_or(0, |group| group.kills());
        if kills > 0 {
            let mib = stage.plan.memory_mib.unwrap_or(0);
            let what = format!("{kills} processes were killed in a cgroup of {mib} MiB");
            stage.watch.wrong(Wrong::OutOfMemory, &what);
        }
        belady.report_panic();
    }
}
