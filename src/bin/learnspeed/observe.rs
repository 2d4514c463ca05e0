//! How many opens a second the learner takes of a loader whose order it knows.

use std::time::Instant;

use belady::learn::{Candidate, Learner, Observation, Settings};
use belady::order::SampleTable;
use serde_json::{Value, json};

/// Workers of the loader, and samples of a batch.
const WORKERS: u32 = 8;
const BATCH: u32 = 64;

/// Reads two epochs one sample after the other, as workers do it, and times the second.
pub(crate) fn run(samples: u32) -> Value {
    let candidate = Candidate { name: "path".into(), samples: (0..samples).collect() };
    let mut learner = Learner::new(Settings::default(), vec![candidate], SampleTable::Files);
    let mut out = Vec::new();
    let mut seconds = 0.0;
    for _ in 0..2 {
        let began = Instant::now();
        // All workers step through their batches side by side.
        for batches in (0..samples).step_by((WORKERS * BATCH) as usize) {
            for at in 0..BATCH {
                for task in 0..WORKERS {
                    let sample = batches + task * BATCH + at;
                    if sample < samples {
                        let at_ms = u64::from(sample) / 8;
                        let (group, exact) = (1, true);
                        let open = Observation::Opened { at_ms, task, group, sample, exact };
                        learner.apply(open, &mut out);
                    }
                }
            }
        }
        seconds = began.elapsed().as_secs_f64();
    }
    let followed = learner.beliefs().any(|belief| belief.bits > 0.0);
    json!({
        "samples": samples,
        "followed": followed,
        "seconds": seconds,
        "opens_per_second": f64::from(samples) / seconds,
    })
}
