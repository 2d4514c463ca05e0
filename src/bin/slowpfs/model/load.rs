//! Closed-loop clients in virtual time: what the model predicts under a load.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::{Model, Nanos, Request};

/// What closed-loop clients got from the model.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outcome {
    /// Virtual seconds until the last cycle ended.
    pub(crate) seconds: f64,
    /// Cycles completed per second.
    pub(crate) rate: f64,
    /// Mean time of a cycle.
    pub(crate) mean_ms: f64,
}

/// The requests of a client that reads a whole file in one request.
pub(crate) fn whole_file(bytes: u64) -> [Request; 3] {
    [Request::Lookup, Request::Open, Request::Read { handle: 0, offset: 0, bytes }]
}

/// Lets `clients` repeat `steps` without pause, `cycles` times in all, each time on a new handle.
pub(crate) fn closed_loop(
    model: &mut Model,
    clients: usize,
    cycles: u64,
    steps: &[Request],
) -> Outcome {
    let mut ready: BinaryHeap<_> = (0..clients).map(|c| Reverse((0, c, steps.len(), 0))).collect();
    let (mut started, mut handles, mut busy, mut end) = (0_u64, 0, 0, 0);
    while let Some(Reverse((now, client, mut step, mut began))) = ready.pop() {
        if step == steps.len() {
            end = end.max(now);
            if started == cycles {
                continue;
            }
            started += 1;
            (step, began) = (0, now);
        }
        let request = match steps[step] {
            Request::Read { offset, bytes, .. } => {
                handles += 1;
                Request::Read { handle: handles, offset, bytes }
            }
            other => other,
        };
        let done = model.admit(now, request).done;
        if let Request::Read { handle, .. } = request {
            model.close(handle);
        }
        if step + 1 == steps.len() {
            busy += done - began;
        }
        ready.push(Reverse((done, client, step + 1, began)));
    }
    let seconds = |nanos: Nanos| nanos as f64 / 1e9;
    Outcome {
        seconds: seconds(end),
        rate: cycles as f64 / seconds(end),
        mean_ms: seconds(busy) * 1e3 / cycles as f64,
    }
}
