//! One clock for all times that are compared.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Nanoseconds since the program began.
pub(crate) type Nanos = u64;

pub(crate) fn now() -> Nanos {
    static BEGAN: OnceLock<Instant> = OnceLock::new();
    nanos(BEGAN.get_or_init(Instant::now).elapsed())
}

pub(crate) fn nanos(duration: Duration) -> Nanos {
    Nanos::try_from(duration.as_nanos()).unwrap_or(Nanos::MAX)
}

/// Nanoseconds as seconds, for people.
pub(crate) fn seconds(nanos: Nanos) -> f64 {
    nanos as f64 / 1e9
}
