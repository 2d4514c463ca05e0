//! What the profiler of a mount hears: who reads, and how long readers have waited.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use serde::{Deserialize, Serialize};

use super::Engine;
use super::flow::Flow;
use super::trace::Opens;
use crate::cache::{Arrival, Cache, Cause, Latencies, Observer, Operation, SourceTimes};
use crate::config::Mode;
use crate::plan::{Event, Published};
use crate::profiler::{Profiler, Readers, Seen};
use crate::stall::Meters;
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
    let meters = move || {
        let seconds = |cause: Cause| cache.waits().latencies(cause).total_us as f64 / 1e6;
        let causes = Cause::ALL.into_iter().map(|cause| (cause.name().to_owned(), seconds(cause)));
        let reads = times.latencies(Operation::Read);
        let published = published.lock().clone();
        let lead = flow.lock().lead(&published, Instant::now());
        let Published { counters, accounts, .. } = published;
        Meters {
            causes: causes.collect(),
            source_reads: reads.count,
            source_s: reads.total_us as f64 / 1e6,
            source_bytes: counters.source_bytes,
            disk_bytes: counters.tier_bytes,
            member_bytes: counters.member_bytes,
            staged_bytes: accounts.staged,
            lead_s: lead.and_then(|lead| lead.seconds),
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
            | Event::Joined { task, .. } => self.readers.reads(*task),
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
        processors: std::thread::available_parallelism().map_or(0, |count| count.get() as u32),
        seconds_per_byte: times.seconds_per_byte().unwrap_or_default().max(0.0),
    }
}
