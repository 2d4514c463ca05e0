//! A trace of a mount: what its readers, its source and its cache disk did when.
//!
//! 1. For some seconds, each read at the source, read of the cache disk, push and wait that ends is noted with its time
//!    (`cache/spans`). So is each open of a file, or the request that has shown it. The profiler notes each look.
//! 2. A new trace ends the one before: its command may have been killed.
//! 3. `chrome` writes it for a viewer.

mod chrome;

use std::collections::HashMap;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::Engine;
use crate::cache::{DISK_READ, PUSH, Span, Spans};
use crate::error::{Error, ErrorKind, Result};
use crate::ids::FileId;
use crate::profiler::{Look, Profiler};
use crate::sync::Mutex;

/// Opens that are kept at most.
const OPENS_MAX: usize = 200_000;

/// The pause between two looks whether the trace has to end.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Who opens what, while somebody traces.
#[derive(Default)]
pub(super) struct Opens {
    is_on: AtomicBool,
    noted: Mutex<Vec<Open>>,
    left_out: AtomicU64,
    /// Traces that were begun. An earlier one ends.
    begun: AtomicU64,
    /// Held while somebody traces.
    turn: Mutex<()>,
}

#[derive(Clone, Copy, Debug)]
struct Open {
    at: Instant,
    task: u32,
    file: FileId,
    /// Whether it was no request of its own: another request of the task has shown it.
    is_sighting: bool,
}

impl Opens {
    pub(super) fn note(&self, task: u32, file: FileId, is_sighting: bool) {
        if !self.is_on.load(Ordering::Relaxed) {
            return;
        }
        let mut noted = self.noted.lock();
        if noted.len() < OPENS_MAX {
            noted.push(Open { at: Instant::now(), task, file, is_sighting });
        } else {
            self.left_out.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// What notes while somebody traces. It ends when this is dropped.
struct Recording<'a>(&'a Engine);

impl<'a> Recording<'a> {
    fn begin(engine: &'a Engine) -> Self {
        let recording = Recording(engine);
        recording.spans().iter().for_each(|spans| spans.begin());
        engine.profiler.iter().for_each(Profiler::begin_trace);
        engine.opens.noted.lock().clear();
        engine.opens.left_out.store(0, Ordering::Relaxed);
        engine.opens.is_on.store(true, Ordering::Relaxed);
        recording
    }

    /// Those of the source, of blocks, and of waits.
    fn spans(&self) -> [&'a Spans; 3] {
        let Recording(engine) = *self;
        let cache = &engine.core.cache;
        [&engine.times.spans, &cache.traffic().spans, &cache.waits().spans]
    }
}

impl Drop for Recording<'_> {
    fn drop(&mut self) {
        self.0.opens.is_on.store(false, Ordering::Relaxed);
        self.0.opens.noted.lock().clear();
        self.spans().iter().for_each(|spans| drop(spans.end()));
        self.0.profiler.iter().for_each(|profiler| drop(profiler.end_trace()));
    }
}

/// What was noted, in the order of its begin.
pub struct Trace {
    began: Instant,
    /// Reads at the source, what was done with blocks, and waits.
    reads: Vec<Span>,
    blocks: Vec<Span>,
    waits: Vec<Span>,
    opens: Vec<(Open, Arc<Path>)>,
    looks: Vec<Look>,
    left_out: u64,
    /// Whether it is shorter than it was to be.
    was_ended: bool,
}

impl Trace {
    pub(super) fn take(engine: &Engine, time: Duration) -> Self {
        let number = engine.opens.begun.fetch_add(1, Ordering::Relaxed) + 1;
        let _turn = engine.opens.turn.lock();
        let has_to_end =
            || engine.serving.is_over() || engine.opens.begun.load(Ordering::Relaxed) != number;
        let began = Instant::now();
        let recording = Recording::begin(engine);
        while began.elapsed() < time && !has_to_end() {
            sleep(LOOK_EVERY.min(time.saturating_sub(began.elapsed())));
        }
        let was_ended = began.elapsed() < time;
        let [(reads, a), (blocks, b), (waits, c)] = recording.spans().map(|spans| {
            let (mut noted, left_out) = spans.end();
            noted.sort_by_key(|span| span.began);
            (noted, left_out)
        });
        let (looks, d) = engine.profiler.as_ref().map(Profiler::end_trace).unwrap_or_default();
        let (opens, e) = opens(engine);
        let left_out = a + b + c + d + e;
        Trace { began, reads, blocks, waits, opens, looks, left_out, was_ended }
    }

    /// How much was noted.
    pub fn summary(&self) -> Value {
        let blocks = |what: &str| self.blocks.iter().filter(|span| span.what == what).count();
        json!({
            "reads": self.reads.len(),
            "disk_reads": blocks(DISK_READ),
            "pushes": blocks(PUSH),
            "waits": self.waits.len(),
            "opens": self.opens.len(),
            "looks": self.looks.len(),
            "left_out": self.left_out,
            "was_ended": self.was_ended,
        })
    }

    /// Writes the events as one JSON value.
    ///
    /// # Errors
    /// If they cannot be written.
    pub fn write(&self, out: &mut dyn Write) -> Result<()> {
        let failed = |error| Error::new(ErrorKind::Internal, format!("the trace: {error}"));
        chrome::write(self, out).map_err(failed)
    }
}

/// The opens that were noted, with their files, and how many others there were.
fn opens(engine: &Engine) -> (Vec<(Open, Arc<Path>)>, u64) {
    let noted = std::mem::take(&mut *engine.opens.noted.lock());
    let mut left_out = engine.opens.left_out.load(Ordering::Relaxed);
    let mut paths: HashMap<FileId, Arc<Path>> = HashMap::new();
    let mut opens = Vec::with_capacity(noted.len());
    for open in noted {
        let path = || Some(Arc::from(engine.core.catalog.path_of(open.file)?));
        match paths.get(&open.file).cloned().or_else(path) {
            Some(path) => {
                paths.insert(open.file, Arc::clone(&path));
                opens.push((open, path));
            }
            None => left_out += 1,
        }
    }
    (opens, left_out)
}
