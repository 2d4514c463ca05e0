//! What the profiler of a mount hears: who reads, and how long readers have waited.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::Engine;
use super::flow::Flow;
use super::trace::Opens;
use crate::cache::{Arrival, Cache, Cause, Latencies, Observer, Operation, SourceTimes};
use crate::config::Mode;
use crate::plan::{Event, Published};
use crate::process::processors_used;
use crate::profiler::{Profiler, Readers, Seen};
use crate::stall::{Meters, Place};
use crate::sync::Mutex;
use crate::whatif::Setup;

/// What was seen of the loaders that read at a mount.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Profile {
    pub source: String,
    /// Empty if there is no mount.
    pub mountpoints: Vec<String>,
    /// `None` if there is no mount.
    pub setup: Option<Setup>,
    /// How long readers have waited since the mount, by cause.
    pub waits: BTreeMap<String, Latencies>,
    #[serde(flatten)]
    pub seen: Seen,
}

/// Starts the profiler. A mount serves without it.
pub(super) fn start(
    cache: &Arc<Cache>,
    times: &Arc<SourceTimes>,
    (published, flow): (&Arc<Mutex<Published>>, &Arc<Mutex<Flow>>),
) -> Option<Profiler> {
    let (cache, times) = (Arc::clone(cache), Arc::clone(times));
    let (published, flow) = (Arc::clone(published), Arc::clone(flow));
    let busy = BusyProcessors::default();
    let meters = move || {
        let seconds = |cause: Cause| cache.waits().latencies(cause).total_us as f64 / 1e6;
        let causes = Cause::ALL.into_iter().map(|cause| (cause.name().to_owned(), seconds(cause)));
        let reads = times.latencies(Operation::Read);
        let published = published.lock().clone();
        let lead = flow.lock().lead(&published, Instant::now());
        let Published { counters, accounts, streams, .. } = published;
        let derived = cache.source().derived();
        let places = streams.iter().map(|(_, it)| Place { task: it.reader, epoch: it.begun });
        Meters {
            causes: causes.collect(),
            source_reads: reads.count,
            source_s: reads.total_us as f64 / 1e6,
            source_bytes: counters.source_bytes,
            disk_bytes: counters.tier_bytes,
            member_bytes: counters.member_bytes,
            made: derived.iter().map(|of_recipe| of_recipe.made).sum(),
            making_s: derived.iter().map(|of_recipe| of_recipe.seconds).sum(),
            busy_s: busy.seconds(),
            staged_bytes: accounts.staged,
            lead_s: lead.and_then(|lead| lead.seconds),
            places: places.filter(|place| place.task != 0).collect(),
        }
    };
    let failed = |error: &std::io::Error| tracing::warn!(%error, "the profiler cannot be started");
    Profiler::start(meters).inspect_err(failed).ok()
}

/// Tells the profiler who reads, and who opens what while somebody traces.
pub(super) struct ReaderObserver {
    pub(super) readers: Readers,
    pub(super) opens: Arc<Opens>,
}

impl Observer for ReaderObserver {
    fn observe(&mut self, event: &Event, _arrival: Option<&Arrival>, _says: &mut Vec<Event>) {
        match event {
            Event::Opened { task, file } => self.opens.note(*task, *file, false),
            Event::Seen { task, file } => self.opens.note(*task, *file, true),
            _ => {}
        }
        match event {
            Event::Opened { task, .. }
            | Event::Seen { task, .. }
            | Event::Touched { task, .. }
            | Event::Missed { task, .. }
            | Event::Joined { task, .. }
            | Event::Probed { task, .. } => self.readers.reads(*task),
            _ => {}
        }
    }
}

impl Profile {
    pub(super) fn of(engine: &Engine, epochs: Option<u32>) -> Self {
        let points = engine.serving.points();
        let waits = engine.core.cache.waits();
        let wait = |cause: Cause| (cause.name().to_owned(), waits.latencies(cause));
        Profile {
            source: engine.core.source_path.display().to_string(),
            mountpoints: points.iter().map(|path| path.display().to_string()).collect(),
            setup: Some(setup(engine)),
            waits: Cause::ALL.into_iter().map(wait).collect(),
            seen: engine.profiler.as_ref().map(|it| it.seen(epochs)).unwrap_or_default(),
        }
    }
}

/// What a mount says about itself.
fn setup(engine: &Engine) -> Setup {
    let Engine { core, times, .. } = engine;
    let (files, bytes) = core.catalog.totals();
    let published = engine.published.lock().clone();
    let settings = &core.settings;
    let (limits, _) = times.limits();
    Setup {
        files,
        bytes,
        ram_bytes: engine.budgets.ram_status(0).budget,
        disk_bytes: engine.budgets.disk_status(0).map_or(0, |disk| disk.budget),
        policy: settings.cache.policy,
        prefetch: settings.prefetch.enabled && settings.mount.mode != Mode::Plain,
        order_is_known: published.streams.iter().any(|(_, stream)| stream.following),
        reads_at_once: limits.fetches,
        processors: processors(),
        seconds_per_byte: times.seconds_per_byte().unwrap_or_default().max(0.0),
        disk_read_s: core.cache.traffic().disk_reads.latencies().mean_s(),
    }
}

/// Processors that this process may use. 0 if they are not known.
fn processors() -> u32 {
    std::thread::available_parallelism().map_or(0, |count| count.get() as u32)
}

/// The processor time that everybody on the machine has used.
#[derive(Default)]
struct BusyProcessors(Mutex<Option<Asked>>);

/// An answer of the kernel.
#[derive(Clone, Copy)]
struct Asked {
    at: Instant,
    seconds: f64,
    /// Processors in use since the answer before.
    in_use: f64,
}

/// The kernel needs a while to tell it, so it is asked no more often. The time since then is estimated.
const BUSY_EVERY: Duration = Duration::from_secs(1);

impl BusyProcessors {
    /// `None` if it is not known, or if this process may not use all processors.
    fn seconds(&self) -> Option<f64> {
        let mut last = self.0.lock();
        let age = |asked: Asked| asked.at.elapsed().as_secs_f64();
        if let Some(asked) = last.filter(|asked| age(*asked) < BUSY_EVERY.as_secs_f64()) {
            return Some(asked.seconds + asked.in_use * age(asked));
        }
        let seconds = processors_used().filter(|used| used.processors == processors())?.seconds;
        let in_use = last.map_or(0.0, |asked| (seconds - asked.seconds).max(0.0) / age(asked));
        *last = Some(Asked { at: Instant::now(), seconds, in_use });
        Some(seconds)
    }
}
