//! Warm-ups and evictions: users ask for samples to be here before they are read, or to be dropped.
//!
//! 1. The selector of samples ([`Selection`]) is looked up in the catalog and becomes a list of blocks.
//! 2. A *warm-up* is a thread that hands the list to the planner, a little ahead of what arrives (`feed.rs`).
//!    The planner decides where a block goes, and the cache brings it.
//! 3. The command that began the warm-up asks now and then how far it is. If it has not asked for many looks
//!    of the thread, it has ended, and the warm-up ends as well.

mod feed;
mod selection;

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
pub use selection::Selection;
pub(super) use selection::Selector;

/// The most warm-ups of one engine at once. If there are more, one that is over is forgotten, even if its
/// command has not asked for its end.
const WARMUPS_MAX: usize = 16;

/// Blocks in one question to the planner: its thread has other things to do.
const ASKED_AT_ONCE: usize = 1 << 14;

/// How long an answer of the planner is waited for.
const ANSWER_WAIT: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tally {
    /// Blocks: whole files up to a block's size, or parts of larger files.
    pub blocks: u64,
    pub bytes: u64,
}

impl Tally {
    fn add(&mut self, bytes: u64) {
        self.blocks += 1;
        self.bytes += bytes;
    }

    fn plus(self, other: Tally) -> Self {
        Tally { blocks: self.blocks + other.blocks, bytes: self.bytes + other.bytes }
    }
}

/// How far a warm-up is. `chosen` is the sum of all other tallies but `gone`, `ram` and `disk`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    pub files: u64,
    /// Given names that are not in the dataset.
    pub missing: u64,
    pub chosen: Tally,
    /// Blocks that were here already.
    pub already: Tally,
    pub fetched: Tally,
    /// Blocks that have no place in any tier.
    pub unfit: Tally,
    pub failed: Tally,
    /// Blocks that have not come before the deadline.
    pub late: Tally,
    /// Blocks that are still to be looked at, or on their way.
    pub waiting: Tally,
    /// Blocks that were here or have been fetched, and are not here in the end.
    pub gone: Tally,
    /// Blocks that RAM keeps in the end.
    pub ram: Tally,
    /// Blocks that are on the local disk in the end, and not in RAM.
    pub disk: Tally,
    /// Whether it broke off: the mount ends or does not answer, or its command has not asked for long.
    pub broken: bool,
    pub done: bool,
}

/// The limits of a warm-up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Pace {
    /// Bytes a second to fetch at most.
    pub rate: Option<u64>,
    /// Seconds after which nothing more is fetched.
    pub deadline_s: Option<f64>,
}

/// The state that a warm-up's thread shares with those who ask about it.
struct Warmup {
    progress: Mutex<Progress>,
    /// Looks of the thread since the last question.
    unasked: AtomicU32,
}

pub struct Warmups {
    engine: EngineHandles,
    selector: Selector,
    running: Mutex<Running>,
}

#[derive(Default)]
struct Running {
    next: u64,
    /// The warm-up that was asked about last is at the end.
    warmups: Vec<(u64, Arc<Warmup>)>,
}

#[derive(Clone)]
struct EngineHandles {
    inbox: Arc<Inbox>,
    catalog: Arc<Catalog>,
    /// Whether the cache disk hangs, so that nothing is stored.
    hangs: Arc<dyn Fn() -> bool + Send + Sync>,
}

impl EngineHandles {
    /// Asks the planner; `None` if it has ended or does not answer.
    fn ask<T: Send + 'static>(
        &self,
        question: impl FnOnce(&Planner) -> T + Send + 'static,
    ) -> Option<T> {
        let (sender, answer) = channel();
        self.inbox.ask(Box::new(move |planner| {
            // The asker may have stopped waiting.
            let _ = sender.send(question(planner));
        }));
        answer.recv_timeout(ANSWER_WAIT).ok()
    }

    fn standings(&self, blocks: &[BlockId]) -> Option<Vec<Standing>> {
        let mut standings = Vec::with_capacity(blocks.len());
        for chunk in blocks.chunks(ASKED_AT_ONCE) {
            let chunk = chunk.to_vec();
            let ask = move |planner: &Planner| -> Vec<Standing> {
                chunk.iter().map(|block| planner.standing(*block)).collect()
            };
            standings.append(&mut self.ask(ask)?);
        }
        Some(standings)
    }

    /// Counts the blocks that are here, in RAM or on the local disk.
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
    pub(super) fn new(selector: Selector) -> Self {
        let core = selector.core();
        let store = core.cache.store().map(Arc::clone);
        let hangs = Arc::new(move || store.as_ref().is_some_and(|store| store.hangs()));
        let (inbox, catalog) = (Arc::clone(&core.inbox), Arc::clone(&core.catalog));
        let engine = EngineHandles { inbox, catalog, hangs };
        Warmups { engine, selector, running: Mutex::default() }
    }

    /// Begins a warm-up. Returns the number to [ask](Self::progress) about it with.
    ///
    /// # Errors
    /// If the selector is wrong, and `Busy` if there are too many warm-ups.
    pub fn start(&self, selection: &Selection, pace: Pace) -> Result<u64> {
        let started = Instant::now();
        let (blocks, progress) = self.selector.blocks(selection)?;
        let progress = Mutex::new(progress);
        let warmup = Arc::new(Warmup { progress, unasked: AtomicU32::new(0) });
        let mut running = self.running.lock();
        if running.warmups.len() >= WARMUPS_MAX {
            let over = running.warmups.iter().position(|(_, warmup)| warmup.progress.lock().done);
            let message = format!("there are {WARMUPS_MAX} warm-ups of this mount already");
            let over = over.ok_or_else(|| Error::new(ErrorKind::Busy, message))?;
            running.warmups.remove(over);
        }
        let engine = self.engine.clone();
        let shared = Arc::clone(&warmup);
        let run = move || feed::run(&engine, &shared, &blocks, pace, started);
        std::thread::Builder::new().name("belady-warmup".into()).spawn(run).map_err(|error| {
            Error::new(ErrorKind::Internal, format!("cannot start a thread: {error}"))
        })?;
        let number = running.next;
        running.next += 1;
        running.warmups.push((number, warmup));
        Ok(number)
    }

    /// How far a warm-up is. One that is over is then forgotten.
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

    /// Counts the chosen samples that are here.
    pub fn count_here(&self, selection: &Selection) -> Result<Progress> {
        let (blocks, mut progress) = self.selector.blocks(selection)?;
        self.engine.count_here(&blocks, &mut progress).ok_or_else(ended)?;
        (progress.waiting, progress.done) = (Tally::default(), true);
        Ok(progress)
    }

    /// Drops the chosen blocks, except those that are read at this moment. Returns what is still here. Blocks
    /// that an order reads soon come back.
    pub fn evict(&self, selection: &Selection) -> Result<Progress> {
        let (blocks, mut progress) = self.selector.blocks(selection)?;
        let engine = &self.engine;
        engine.count_here(&blocks, &mut progress).ok_or_else(ended)?;
        progress.already = progress.ram.plus(progress.disk);
        for chunk in blocks.chunks(ASKED_AT_ONCE) {
            engine.inbox.put(Event::Unwanted { blocks: chunk.to_vec() }, None);
        }
        engine.count_here(&blocks, &mut progress).ok_or_else(ended)?;
        (progress.waiting, progress.done) = (Tally::default(), true);
        Ok(progress)
    }
}
