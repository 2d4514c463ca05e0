//! Measures how many opens a second the planner and the learner handle, for a loader whose order is known.

use std::sync::Arc;
use std::time::Instant;

use belady::ids::{BlockId, FileId, StreamId};
use belady::learn::{Decision, Learner, Numbering, Observation, Settings};
use belady::order::SampleTable;
use belady::plan::{self, Action, Event, Layout, Place, Planner, PolicyKind, Tier};
use serde_json::{Value, json};

/// Workers of the loader, and samples of a batch.
const WORKERS: u32 = 8;
const BATCH: u32 = 64;

/// Bytes of a sample. RAM has room for half of the samples.
const SAMPLE: u64 = 4096;

/// A planner and a learner on one thread, with a source that answers at once.
struct Mount {
    planner: Planner,
    learner: Learner,
    /// For each block, whether its pages are in RAM.
    pages: Vec<bool>,
    decisions: Vec<Decision>,
    actions: Vec<Action>,
    events: Vec<Event>,
}

impl Mount {
    fn new(samples: u32) -> Self {
        let settings = plan::Settings {
            tiers: vec![Tier { capacity: u64::from(samples) * SAMPLE / 2, block_us: 0 }],
            source_us: None,
            policy: PolicyKind::Auto,
            prefetch: true,
            inflight_max: 64,
            window_bytes: None,
            request_bytes: 8 << 20,
            start_at_open: true,
            // Each open is seen.
            may_untrack: false,
            withheld: false,
        };
        let layout = Arc::new(Layout::new((0..samples).map(|_| SAMPLE)));
        let numbering =
            Numbering { name: "path".into(), samples: (0..samples).collect(), spec: None };
        Mount {
            planner: Planner::new(settings, layout),
            learner: Learner::new(Settings::default(), vec![numbering], SampleTable::Files),
            pages: vec![false; samples as usize],
            decisions: Vec::new(),
            actions: Vec::new(),
            events: Vec::new(),
        }
    }

    fn open(&mut self, task: u32, sample: u32) {
        let (file, missed) = (FileId(sample), !self.pages[sample as usize]);
        self.apply(Event::Seen { task, file });
        if missed {
            let block = BlockId(sample);
            self.apply(Event::Missed { block, task });
            self.pages[sample as usize] = true;
            self.apply(Event::Arrived { block, from: Place::Source, bytes: 1 });
        }
        let (at_ms, group) = (u64::from(sample) / 8, 1);
        let open =
            Observation::Opened { at_ms, task, process: task.into(), group, sample, exact: missed };
        self.learner.apply(open, &mut self.decisions);
        for decision in std::mem::take(&mut self.decisions) {
            let stream = StreamId(0);
            match decision {
                Decision::Committed(known) | Decision::EpochBegan(known) => {
                    self.apply(Event::Continued { stream, order: Arc::new(known.order) });
                }
                Decision::Withdrawn { .. } => self.apply(Event::Withdrawn { stream }),
                Decision::SearchWanted { .. } | Decision::SearchOver { .. } => {}
            }
        }
    }

    fn apply(&mut self, event: Event) {
        self.events.push(event);
        while let Some(event) = self.events.pop() {
            self.planner.apply(event, &mut self.actions);
            for action in self.actions.drain(..) {
                match action {
                    Action::Fetch { block, from, .. } => {
                        self.pages[block.index()] = true;
                        self.events.push(Event::Arrived { block, from, bytes: 1 });
                    }
                    Action::Drop { block } => {
                        self.pages[block.index()] = false;
                        self.events.push(Event::Dropped { block });
                    }
                    _ => {}
                }
            }
        }
    }
}

/// Reads two epochs sample by sample, as workers do, and times the second.
pub(crate) fn run(samples: u32) -> Value {
    let mut mount = Mount::new(samples);
    let mut seconds = 0.0;
    for _ in 0..2 {
        let began = Instant::now();
        // All workers go through their batches side by side.
        for batches in (0..samples).step_by((WORKERS * BATCH) as usize) {
            for at in 0..BATCH {
                for task in 0..WORKERS {
                    let sample = batches + task * BATCH + at;
                    if sample < samples {
                        mount.open(task + 1, sample);
                    }
                }
            }
        }
        seconds = began.elapsed().as_secs_f64();
    }
    let predicted: u64 = mount.planner.streams().map(|(_, status)| status.opens_predicted).sum();
    let followed = mount.learner.beliefs().any(|belief| belief.bits > 0.0);
    json!({
        "samples": samples,
        "followed": followed,
        "predicted": predicted,
        "seconds": seconds,
        "opens_per_second": f64::from(samples) / seconds,
    })
}
