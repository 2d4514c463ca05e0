//! What the profiler of a mount hears: who reads, and how long readers have waited.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::Engine;
use crate::cache::{Arrival, Cache, Cause, Observer, Operation, SourceTimes};
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
    #[serde(flatten)]
    pub seen: Seen,
}

/// Starts the profiler. A mount serves without it.
pub(super) fn start(
    cache: &Arc<Cache>,
    times: &Arc<SourceTimes>,
    published: &Arc<Mutex<Published>>,
) -> Option<Profiler> {
    let (cache, times, published) = (Arc::clone(cache), Arc::clone(times), Arc::clone(published));
    let meters = move || {
        let seconds = |cause: Cause| cache.waits().latencies(cause).total_us as f64 / 1e6;
        let causes = Cause::ALL.into_iter().map(|cause| (cause.name().to_owned(), seconds(cause)));
        let reads = times.latencies(Operation::Read);
        Meters {
            causes: causes.collect(),
            source_reads: reads.count,
            source_s: reads.total_us as f64 / 1e6,
            source_bytes: published.lock().counters.source_bytes,
        }
    };
    let failed = |error: &std::io::Error| tracing::warn!(%error, "the profiler cannot be started");
    Profiler::start(meters).inspect_err(failed).ok()
}

/// Tells the profiler who reads.
pub(super) struct ReaderObserver(pub(super) Readers);

impl Observer for ReaderObserver {
    fn observe(&mut self, event: &Event, _arrival: Option<&Arrival>, _says: &mut Vec<Event>) {
        match event {
            Event::Opened { task, .. }
            | Event::Seen { task, .. }
            | Event::Touched { task, .. }
            | Event::Missed { task, .. }
            | Event::Joined { task, .. } => self.0.reads(*task),
            _ => {}
        }
    }
}

impl Profile {
    pub(super) fn of(engine: &Engine) -> Self {
        let points = engine.serving.points();
        Profile {
            source: engine.core.source_path.display().to_string(),
            mountpoints: points.iter().map(|path| path.display().to_string()).collect(),
            setup: Some(setup(engine)),
            seen: engine.profiler.as_ref().map(Profiler::seen).unwrap_or_default(),
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
