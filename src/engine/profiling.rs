//! What the profiler of a mount hears: who reads, and how long readers have waited.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::Engine;
use crate::cache::{Arrival, Cache, Cause, Observer};
use crate::plan::Event;
use crate::profiler::{Profiler, Readers, Seen};

/// What was seen of the loaders that read at a mount.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Profile {
    pub source: String,
    /// Empty if there is no mount.
    pub mountpoints: Vec<String>,
    #[serde(flatten)]
    pub seen: Seen,
}

/// Starts the profiler. A mount serves without it.
pub(super) fn start(cache: &Arc<Cache>) -> Option<Profiler> {
    let cache = Arc::clone(cache);
    let causes = move || {
        let seconds = |cause: Cause| cache.waits().latencies(cause).total_us as f64 / 1e6;
        Cause::ALL.into_iter().map(|cause| (cause.name().to_owned(), seconds(cause))).collect()
    };
    let failed = |error: &std::io::Error| tracing::warn!(%error, "the profiler cannot be started");
    Profiler::start(causes).inspect_err(failed).ok()
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
            seen: engine.profiler.as_ref().map(Profiler::seen).unwrap_or_default(),
        }
    }
}
