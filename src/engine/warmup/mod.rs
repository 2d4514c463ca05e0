//! Having samples here before anybody reads them, and having them gone, as people ask for it.
//!
//! 1. What is chosen ([`Chosen`]) is looked up in the catalog and becomes a list of blocks.
//! 2. A *warm-up* is a thread that hands the list to the planner, a little ahead of what arrives
//!    (`feed.rs`). The planner decides where a block goes, and the cache brings it.
//! 3. Whoever began it asks now and then how far it is. One that nobody has asked about for many
//!    looks of its thread has nobody waiting for it any more, and ends.

mod choice;
mod feed;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::cache::Inbox;
use crate::catalog::Catalog;
use crate::error::{Error, ErrorKind, Result};
use crate::ids::BlockId;
use crate::plan::{Event, Planner, Standing};
use crate::sync::Mutex;
pub(super) use choice::Choice;
pub use choice::Chosen;

/// Warm-ups of one engine at once. Those that are over and whose end nobody has asked for make room.
const WARMUPS_MAX: usize = 16;

/// What the planner is asked at once: its thread has other things to do.
const ASKED_AT_ONCE: usize = 1 << 14;

/// For how long an answer of the planner's is waited for.
const PATIENCE: Duration = Duration::from_secs(60);

/// A number of blocks and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tally {
    /// Blocks: whole files up to a block's size, parts of larger ones.
    pub blocks: u64,
    pub bytes: u64,
}

impl Tally {
    fn add(&mut self, bytes: u64) {
        self.blocks += 1;
        self.bytes += bytes;
    }

    fn with(self, other: Tally) -> Self {
        Tally { blocks: self.blocks + other.blocks, bytes: self.bytes + other.bytes }
    }
}

/// How far a warm-up is. `chosen` is the sum of all others but `gone`, `ram` and `disk`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    pub files: u64,
    /// Names given that are not in the dataset.
    pub missing: u64,
    pub chosen: Tally,
    /// Of it, what was here already.
    pub already: Tally,
    /// What has been fetched.
    pub fetched: Tally,
    /// What has no place.
    pub unfit: Tally,
    /// What could not be fetched or stored.
    pub failed: Tally,
    /// What has not come before the deadline.
    pub late: Tally,
    /// What is still to be looked at or on its way.
    pub waiting: Tally,
    /// What was here or has been fetched, and is not here in the end.
    pub gone: Tally,
    /// What RAM keeps in the end.
    pub ram: Tally,
    /// What is on the local disk in the end, and not in RAM.
    pub disk: Tally,
    /// Whether it broke off: the mount ends or does not answer, or nobody has asked for long.
    pub broken: bool,
    /// Whether this is the end.
    pub done: bool,
}

/// How fast and how long.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Pace {
    /// Bytes a second to fetch at most.
    pub rate: Option<u64>,
    /// Seconds after which nothing more is fetched.
    pub deadline_s: Option<f64>,
}

/// A warm-up, as its thread and those who ask about it share it.
struct Warmup {
    progress: Mutex<Progress>,
    /// Looks of its thread since somebody asked.
    unasked: AtomicU32,
}

/// The warm-ups of an engine.
pub struct Warmups {
    around: Around,
    choice: Choice,
    running: Mutex<Running>,
}

/// Those that run, by number.
#[derive(Default)]
struct Running {
    next: u64,
    /// Those that were asked about last are the last.
    warmups: Vec<(u64, Arc<Warmup>)>,
}

/// What a warm-up needs of the engine.
#[derive(Clone)]
struct Around {
    inbox: Arc<Inbox>,
    catalog: Arc<Catalog>,
    /// Whether the cache disk hangs, so that nothing is stored.
    hangs: Arc<dyn Fn() -> bool + Send + Sync>,
}

impl Around {
    /// Asks the planner; none where it has ended.
    fn ask<T: Send + 'static>(
        &self,
        question: impl FnOnce(&Planner) -> T + Send + 'static,
    ) -> Option<T> {
        let (sender, answer) = channel();
        self.inbox.ask(Box::new(move |planner| {
            // Who asked may be gone.
            let _ = sender.send(question(planner));
        }));
        answer.recv_timeout(PATIENCE).ok()
    }

    fn standings(&self, blocks: &[BlockId]) -> Option<Vec<Standing>> {
        let mut standings = Vec::with_capacity(blocks.len());
        for some in blocks.chunks(ASKED_AT_ONCE) {
            let some = some.to_vec();
            let ask = move |planner: &Planner| -> Vec<Standing> {
                some.iter().map(|block| planner.standing(*block)).collect()
            };
            standings.append(&mut self.ask(ask)?);
        }
        Some(standings)
    }

    /// Counts what is here of these blocks.
    fn count_here(&self, blocks: &[BlockId], progress: &mut Progress) -> Option<()> {
        let standings = self.standings(blocks)?;
        let layout = self.catalog.layout();
        (progress.ram, progress.disk) = (Tally::default(), Tally::default());
        for (block, standing) in blocks.iter().zip(standings) {
            let bytes = layout.range(*block).1;
            match standing {
                Standing::Ram => progress.ram.add(bytes),
                Standing::Tier(_) => progress.disk.add(bytes),
                Standing::Coming | Standing::Refused | Standing::Away => {}
            }
        }
        Some(())
    }
}

fn ended() -> Error {
    Error::new(ErrorKind::Mount, "the mount is ending, or does not answer")
}

impl Warmups {
    /// None runs yet.
    pub(super) fn new(choice: Choice) -> Self {
        let core = choice.core();
        let store = core.cache.store().map(Arc::clone);
        let hangs = Arc::new(move || store.as_ref().is_some_and(|store| store.hangs()));
        let (inbox, catalog) = (Arc::clone(&core.inbox), Arc::clone(&core.catalog));
        let around = Around { inbox, catalog, hangs };
        Warmups { around, choice, running: Mutex::default() }
    }

    /// Begins to bring here what is chosen; returns the number to [ask](Self::progress)
    /// about it with.
    ///
    /// # Errors
    /// Whatever is wrong with the choice, and `Busy` where there are too many warm-ups.
    pub fn start(&self, chosen: &Chosen, pace: Pace) -> Result<u64> {
        let begun = Instant::now();
        let (blocks, progress) = self.choice.blocks(chosen)?;
        let progress = Mutex::new(progress);
        let warmup = Arc::new(Warmup { progress, unasked: AtomicU32::new(0) });
        let mut running = self.running.lock();
        if running.warmups.len() >= WARMUPS_MAX {
            let over = running.warmups.iter().position(|(_, warmup)| warmup.progress.lock().done);
            let message = format!("there are {WARMUPS_MAX} warm-ups of this mount already");
            let over = over.ok_or_else(|| Error::new(ErrorKind::Busy, message))?;
            running.warmups.remove(over);
        }
        let around = self.around.clone();
        let shared = Arc::clone(&warmup);
        let run = move || feed::run(&around, &shared, &blocks, pace, begun);
        std::thread::Builder::new().name("belady-warmup".into()).spawn(run).map_err(|error| {
            Error::new(ErrorKind::Internal, format!("cannot start a thread: {error}"))
        })?;
        let number = running.next;
        running.next += 1;
        running.warmups.push((number, warmup));
        Ok(number)
    }

    /// How far a warm-up is. Its end is told once.
    ///
    /// # Errors
    /// Where there is none of this number.
    pub fn progress(&self, number: u64) -> Result<Progress> {
        let mut running = self.running.lock();
        let index = running.warmups.iter().position(|(running, _)| *running == number);
        let none = || Error::new(ErrorKind::Usage, "there is no such warm-up");
        let (number, warmup) = running.warmups.remove(index.ok_or_else(none)?);
        warmup.unasked.store(0, Ordering::Relaxed);
        let progress = warmup.progress.lock().clone();
        if !progress.done {
            running.warmups.push((number, warmup));
        }
        Ok(progress)
    }

    /// Says what is here of what is chosen.
    ///
    /// # Errors
    /// Whatever is wrong with the choice.
    pub fn count_here(&self, chosen: &Chosen) -> Result<Progress> {
        let (blocks, mut progress) = self.choice.blocks(chosen)?;
        self.around.count_here(&blocks, &mut progress).ok_or_else(ended)?;
        (progress.waiting, progress.done) = (Tally::default(), true);
        Ok(progress)
    }

    /// Has gone what is chosen and nobody reads at this moment; says what is still here. What an
    /// order reads soon comes back.
    ///
    /// # Errors
    /// Whatever is wrong with the choice.
    pub fn evict(&self, chosen: &Chosen) -> Result<Progress> {
        let (blocks, mut progress) = self.choice.blocks(chosen)?;
        let around = &self.around;
        around.count_here(&blocks, &mut progress).ok_or_else(ended)?;
        progress.already = progress.ram.with(progress.disk);
        for some in blocks.chunks(ASKED_AT_ONCE) {
            around.inbox.put(Event::Unwanted { blocks: some.to_vec() }, None);
        }
        around.count_here(&blocks, &mut progress).ok_or_else(ended)?;
        (progress.waiting, progress.done) = (Tally::default(), true);
        Ok(progress)
    }
}
