//! Finds how many requests a source serves best at once.
//!
//! The limit follows the product of rate and latency (Little's law), and not a latency that is taken for good:
//! tails and jitter belong to a source.
//!
//! 1. Answers are counted in rounds. A round has at least as many answers as the limit, and takes at least 20 ms.
//!    The first answers after a change are skipped, since they were asked for under the old limit. So are rounds
//!    in which the limit was mostly not reached: they say nothing about it.
//! 2. *Ramp*: the limit doubles as long as the rate grows by a fifth.
//! 3. *Hold*: the limit is a quarter more than rate times latency. If that product falls, the limit follows.
//! 4. *Probe up*: a quarter more is tried. If the rate grows, the limit stays there, and after two gains in a row it
//!    doubles again.
//! 5. *Probe down*: each fourth probe tries a fifth less. If the rate stays, the difference was only a queue.
//!
//! Polite manners give way to others. If the median latency is 30 % over the least one of this mount, requests
//! queue, of ours or of others, and the limit falls. Fair manners take as much as the source gives.
//!
//! A lower limit has to make answers faster, or to cost no rate. If it does neither, requests did not queue: the
//! source answers more slowly than before, for example because its client had the first files in memory. Then the
//! latencies of before are forgotten, and the limit is ramped up again.
//!
//! On source models from a local parallel filesystem to a store behind 150 ms, the limit reaches the best fixed
//! one within seconds (the tests of this room).

use std::collections::VecDeque;

use super::Answer;
use crate::config::Manners;

/// The limit before anything is known: a source with little latency is busy with that, and one behind a long
/// link is ramped up to within seconds.
const START: u32 = 16;

const LEAST: u32 = 2;

/// The fewest answers in a round: the mean of fewer is noise.
const ROUND_MIN: u32 = 32;
const ROUND_US_MIN: u64 = 20_000;

/// How long the latency of a round counts.
const LATENCY_FOR_US: u64 = 10_000_000;

/// How many of the last rounds tell the rate.
const RATES: usize = 10;

/// Rounds of a hold, and of a probe.
const HOLD_ROUNDS: u32 = 6;
const PROBE_ROUNDS: u32 = 2;

/// Growth of the rate that lets the ramp go on.
const RAMP_GAIN: f64 = 1.2;

/// How far the limit is above rate times latency, and how far a probe goes up and down.
const HEADROOM: f64 = 1.25;
const PROBE_UP: f64 = 1.25;
const PROBE_DOWN: f64 = 0.8;

/// Growth of the rate that makes a probe up a gain, and what is left of it if a probe down lost nothing.
const PROBE_GAIN: f64 = 1.08;
const PROBE_KEPT: f64 = 0.98;

/// The source has become slower if rate times latency is this part of what it was.
const SLOWER: f64 = 0.7;

/// The part of the limit that stays if a polite limiter gives way in its ramp and in a hold, and after the source
/// said that it is overloaded.
const GIVE_WAY_IN_RAMP: f64 = 0.6;
const GIVE_WAY: f64 = 0.85;
const OVERLOADED: f64 = 0.7;

/// A polite limiter gives way above this multiple of the least median latency.
const POLITE: f64 = 1.3;

/// A lower limit was wrong if the median latency stays above this part of what it was, and the rate falls below
/// this part.
const NOT_FASTER: f64 = 0.97;
const COSTS_RATE: f64 = 0.9;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Phase {
    Ramp {
        /// The best rate so far.
        best: f64,
        /// Whether the last round brought no growth.
        stalled: bool,
    },
    Hold,
    Up {
        /// Probes up that gained, in a row.
        gains: u32,
    },
    Down,
}

/// Answers since the last decision.
#[derive(Debug, Default)]
struct Round {
    began_us: u64,
    bytes: u64,
    latencies: Vec<u64>,
    /// Answers that came while the limit was nearly reached.
    limited: usize,
    /// Whether its answers were asked for under an earlier limit.
    is_settling: bool,
}

/// What a round has shown.
#[derive(Clone, Copy, Debug)]
struct Found {
    /// Bytes a second.
    rate: f64,
    /// Requests: rate times latency.
    product: f64,
    /// The median latency in seconds, and the size class of the answers.
    median: f64,
    class: usize,
    /// Whether requests queue longer than a polite limiter accepts.
    queues: bool,
}

/// What was before the limit was lowered.
#[derive(Clone, Copy, Debug)]
struct Lowered {
    base: u32,
    rate: f64,
    median: f64,
}

/// Decides how many requests of one kind may be under way at one source.
#[derive(Debug)]
pub struct Limiter {
    manners: Manners,
    most: u32,
    limit: u32,
    /// The limit that probes start from.
    base: u32,
    phase: Phase,
    round: Round,
    /// Rounds left of a hold or a probe.
    left: u32,
    probes: u32,
    /// The rate of the last round.
    rate: f64,
    /// Rates of the last rounds, of this hold, and of this probe: bytes a second.
    rates: VecDeque<f64>,
    held: Vec<f64>,
    probed: Vec<f64>,
    /// When a round ended, and its mean latency in seconds.
    latencies: VecDeque<(u64, f64)>,
    /// The least median latency of a round in seconds, by the size of its answers: each class has four times the
    /// bytes of the class before it.
    least: [f64; 16],
    /// Set until the first round at the lower limit.
    lowered: Option<Lowered>,
}

impl Limiter {
    /// A limiter that never asks for more than `most` requests at once.
    pub fn new(most: u32, manners: Manners) -> Self {
        let start = if manners == Manners::Off { most } else { START.min(most) };
        Limiter {
            manners,
            most,
            limit: start,
            base: start,
            phase: Phase::Ramp { best: 0.0, stalled: false },
            round: Round { is_settling: true, ..Round::default() },
            left: 0,
            probes: 0,
            rate: 0.0,
            rates: VecDeque::new(),
            held: Vec::new(),
            probed: Vec::new(),
            latencies: VecDeque::new(),
            least: [f64::INFINITY; 16],
            lowered: None,
        }
    }

    /// Requests that may be under way at once.
    pub fn limit(&self) -> u32 {
        self.limit
    }

    /// Bytes a second that the source gave in the last round.
    pub fn rate(&self) -> f64 {
        self.rate
    }

    /// The highest rate of the last rounds at this limit.
    fn best_rate(&self) -> f64 {
        self.rates.iter().copied().fold(0.0, f64::max)
    }

    /// The source has answered.
    pub fn answered(&mut self, answer: &Answer) {
        self.round.add(answer, self.limit);
        let count = self.round.latencies.len() as u32;
        if self.round.is_settling {
            if count >= self.limit {
                self.begin_round(answer.at_us, false);
            }
            return;
        }
        let took_us = answer.at_us.saturating_sub(self.round.began_us);
        if count < self.limit.max(ROUND_MIN) || took_us < ROUND_US_MIN {
            return;
        }
        if self.round.is_limited() {
            let found = self.evaluate(answer.at_us);
            self.decide(found, answer.at_us);
        } else {
            self.begin_round(answer.at_us, false);
        }
    }

    /// The source has said that it is overloaded.
    pub fn overloaded(&mut self, at_us: u64) {
        // Requests that were under way at the last decision may have met the same overload.
        if !self.round.is_settling && self.manners != Manners::Off {
            self.hold(scaled(self.limit, OVERLOADED), at_us);
        }
    }

    fn begin_round(&mut self, at_us: u64, is_settling: bool) {
        self.round.latencies.clear();
        self.round = Round {
            began_us: at_us,
            is_settling,
            latencies: std::mem::take(&mut self.round.latencies),
            ..Round::default()
        };
    }

    fn set_limit(&mut self, limit: u32, at_us: u64) {
        self.limit = limit.clamp(LEAST.min(self.most), self.most);
        self.begin_round(at_us, true);
    }

    /// What the round has shown.
    fn evaluate(&mut self, at_us: u64) -> Found {
        let count = self.round.latencies.len() as f64;
        let took_s = seconds(at_us - self.round.began_us);
        let bytes = self.round.bytes.max(1) as f64;
        let mean = self.round.latencies.iter().sum::<u64>() as f64 / 1e6 / count;
        self.latencies.push_back((at_us, mean));
        while self.latencies.front().is_some_and(|&(at, _)| at + LATENCY_FOR_US < at_us) {
            self.latencies.pop_front();
        }
        self.rate = bytes / took_s;
        self.rates.push_back(self.rate);
        self.rates.drain(..self.rates.len().saturating_sub(RATES));
        let latency = self.latencies.iter().map(|&(_, mean)| mean).fold(f64::INFINITY, f64::min);
        let middle = self.round.latencies.len() / 2;
        let (_, &mut median, _) = self.round.latencies.select_nth_unstable(middle);
        let (median, class) = (seconds(median), ((bytes / count).log2() / 2.0) as usize);
        let class = class.min(self.least.len() - 1);
        self.least[class] = self.least[class].min(median);
        Found {
            rate: self.rate,
            product: self.best_rate() / (bytes / count) * latency,
            median,
            class,
            queues: self.manners == Manners::Polite && median > POLITE * self.least[class],
        }
    }

    fn decide(&mut self, found: Found, at_us: u64) {
        if self.manners == Manners::Off {
            return self.begin_round(at_us, false);
        }
        let wanted = scaled(1, HEADROOM * found.product) + 1;
        match self.phase {
            Phase::Ramp { .. } if found.queues => {
                self.lower(scaled(self.limit, GIVE_WAY_IN_RAMP), found, at_us)
            }
            Phase::Ramp { best, .. } if found.rate > RAMP_GAIN * best => {
                self.phase = Phase::Ramp { best: found.rate, stalled: false };
                self.set_limit(self.limit.saturating_mul(2), at_us);
            }
            Phase::Ramp { best, stalled: false } => {
                self.phase = Phase::Ramp { best, stalled: true };
                self.begin_round(at_us, false);
            }
            Phase::Ramp { .. } => self.hold(wanted.min(self.limit), at_us),
            Phase::Hold if self.was_wrong(found) => self.forget(found, at_us),
            Phase::Hold if found.queues => self.lower(scaled(self.base, GIVE_WAY), found, at_us),
            Phase::Hold => self.hold_on(found, wanted, at_us),
            Phase::Up { .. } if found.queues => self.hold_again(at_us),
            Phase::Up { .. } | Phase::Down => {
                self.probed.push(found.rate);
                self.left -= 1;
                match self.left {
                    0 => self.judge_probe(at_us),
                    _ => self.begin_round(at_us, false),
                }
            }
        }
    }

    /// Holds another limit, from which rates count anew.
    fn hold(&mut self, limit: u32, at_us: u64) {
        self.base = limit.clamp(LEAST.min(self.most), self.most);
        self.rates.clear();
        self.hold_again(at_us);
    }

    /// Holds the present base.
    fn hold_again(&mut self, at_us: u64) {
        (self.phase, self.left) = (Phase::Hold, HOLD_ROUNDS);
        self.held.clear();
        self.set_limit(self.base, at_us);
    }

    /// Holds a lower limit, because requests queue or the source has become slower.
    fn lower(&mut self, limit: u32, found: Found, at_us: u64) {
        let Found { rate, median, .. } = found;
        self.lowered = Some(Lowered { base: self.limit, rate, median });
        self.hold(limit, at_us);
    }

    /// Whether the first round at a lower limit shows that it was lowered for nothing.
    fn was_wrong(&self, found: Found) -> bool {
        self.lowered.is_some_and(|before| {
            found.median > NOT_FASTER * before.median && found.rate < COSTS_RATE * before.rate
        })
    }

    /// The source answers more slowly than before: goes on from the limit before, with the present latency.
    fn forget(&mut self, found: Found, at_us: u64) {
        if let Some(before) = self.lowered.take() {
            self.latencies.clear();
            self.least[found.class] = found.median;
            self.base = before.base;
            self.ramp(before.rate, at_us);
        }
    }

    /// Doubles the limit, which has brought this rate.
    fn ramp(&mut self, rate: f64, at_us: u64) {
        self.phase = Phase::Ramp { best: rate, stalled: false };
        self.rates.clear();
        self.set_limit(self.base.saturating_mul(2), at_us);
    }

    /// A round of a hold is over.
    fn hold_on(&mut self, found: Found, wanted: u32, at_us: u64) {
        self.lowered = None;
        self.held.push(found.rate);
        self.left -= 1;
        let is_slower = self.rates.len() >= 4 && f64::from(wanted) < SLOWER * f64::from(self.base);
        if is_slower {
            return self.lower(wanted.max(self.base / 2), found, at_us);
        }
        if self.left > 0 {
            return self.begin_round(at_us, false);
        }
        self.probes += 1;
        match self.probes % 4 {
            0 => self.probe(Phase::Down, scaled(self.base, PROBE_DOWN), at_us),
            _ => self.probe_up(0, at_us),
        }
    }

    fn probe_up(&mut self, gains: u32, at_us: u64) {
        self.probe(Phase::Up { gains }, scaled(self.base, PROBE_UP) + 1, at_us);
    }

    fn probe(&mut self, phase: Phase, limit: u32, at_us: u64) {
        (self.phase, self.left) = (phase, PROBE_ROUNDS);
        self.probed.clear();
        self.set_limit(limit, at_us);
    }

    /// A probe is over.
    fn judge_probe(&mut self, at_us: u64) {
        let (held, probed) = (mean(&self.held), mean(&self.probed));
        match self.phase {
            Phase::Up { gains } if probed > PROBE_GAIN * held => {
                self.base = self.limit;
                if gains > 0 {
                    return self.ramp(probed, at_us);
                }
                self.held = vec![probed];
                self.probe_up(gains + 1, at_us);
            }
            Phase::Down if probed >= PROBE_KEPT * held => {
                self.base = self.limit;
                self.hold_again(at_us);
            }
            _ => self.hold_again(at_us),
        }
    }
}

impl Round {
    fn add(&mut self, answer: &Answer, limit: u32) {
        self.bytes += answer.bytes;
        self.latencies.push(answer.latency_us);
        self.limited += usize::from(f64::from(answer.in_flight) >= 0.9 * f64::from(limit));
    }

    /// Whether the limit was nearly reached most of the time.
    fn is_limited(&self) -> bool {
        self.limited * 5 >= self.latencies.len() * 4
    }
}

pub(super) fn seconds(us: u64) -> f64 {
    us as f64 / 1e6
}

fn scaled(limit: u32, factor: f64) -> u32 {
    (f64::from(limit) * factor) as u32
}

fn mean(rates: &[f64]) -> f64 {
    rates.iter().sum::<f64>() / rates.len().max(1) as f64
}
