//! What a task did over time, in a limited number of spans.

use serde::{Deserialize, Serialize};

use super::State;

/// Spans of a lane. If there would be more, each two become one.
const SPANS_MAX: usize = 128;

/// Microseconds of a span at first.
const SPAN_US: u64 = 40_000;

/// The states of a task, in spans of the same length.
#[derive(Clone, Debug, PartialEq)]
pub struct Lane {
    span_us: u64,
    /// Time so far.
    passed_us: u64,
    /// By span: microseconds in each state.
    spans: Vec<[u64; State::ALL.len()]>,
}

impl Default for Lane {
    fn default() -> Self {
        Lane { span_us: SPAN_US, passed_us: 0, spans: Vec::new() }
    }
}

/// A lane as it is told: the state in which the task was most of each span.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ToldLane {
    /// Seconds from the start of the epoch to that of the lane.
    pub since: f64,
    /// Seconds of a span.
    pub span: f64,
    /// A [letter](State::letter) for each span.
    pub states: String,
}

impl Lane {
    /// The task was in a state for so many seconds, after what was told so far.
    pub fn add(&mut self, state: State, seconds: f64) {
        let mut left = (seconds.max(0.0) * 1e6) as u64;
        while left > 0 {
            let nth = (self.passed_us / self.span_us) as usize;
            if nth >= SPANS_MAX {
                self.join_spans();
                continue;
            }
            let part = left.min((nth as u64 + 1) * self.span_us - self.passed_us);
            self.spans.resize(nth + 1, Default::default());
            self.spans[nth][state as usize] += part;
            self.passed_us += part;
            left -= part;
        }
    }

    fn join_spans(&mut self) {
        let sum = |pair: &[[u64; State::ALL.len()]]| {
            let mut sum = pair[0];
            let more = pair[1..].iter().flat_map(|span| span.iter().enumerate());
            more.for_each(|(state, part)| sum[state] += part);
            sum
        };
        self.spans = self.spans.chunks(2).map(sum).collect();
        self.span_us *= 2;
    }

    /// The lane of a task that was seen first so many seconds after the start of the epoch.
    pub fn told(&self, since: f64) -> ToldLane {
        let most = |span: &[u64; State::ALL.len()]| {
            let longest = State::ALL.into_iter().max_by_key(|state| span[*state as usize]);
            longest.map_or('?', State::letter)
        };
        ToldLane {
            since,
            span: self.span_us as f64 / 1e6,
            states: self.spans.iter().map(most).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_has_the_state_in_which_the_task_was_most_of_it() {
        let mut lane = Lane::default();
        lane.add(State::Runs, 0.08);
        lane.add(State::Fetches, 0.03);
        lane.add(State::Runs, 0.01);
        lane.add(State::HasNoWork, 0.05);
        let told = lane.told(1.5);
        assert_eq!((told.states.as_str(), told.span, told.since), ("RRFWW", 0.04, 1.5));
    }

    #[test]
    fn a_long_lane_has_longer_spans() {
        let mut lane = Lane::default();
        lane.add(State::Fetches, 1_000.0);
        lane.add(State::Elsewhere, 3_000.0);
        let told = lane.told(0.0);
        assert!((SPANS_MAX / 2..=SPANS_MAX).contains(&told.states.len()), "{told:?}");
        assert!((told.span * told.states.len() as f64 - 4_000.0).abs() <= told.span);
        let fetches = told.states.matches('F').count() as f64 * told.span;
        assert!((fetches - 1_000.0).abs() <= told.span, "{told:?}");
        lane.add(State::Fetches, 864_000.0);
        assert!(lane.told(0.0).states.ends_with('F'), "ten days later");
        let told = lane.told(0.0);
        lane.add(State::Runs, -1.0);
        lane.add(State::Runs, f64::NAN);
        assert_eq!(lane.told(0.0), told);
    }
}
