//! Finds how many requests a source serves best at once.
//!
//! The limit follows the product of rate and latency (Little's law), and not a latency that is taken for good:
//! tails and jitter belong to a source.
//!
//! 1. Answers are counted in rounds. A round has at least as many answers as the limit, and takes at least 20 ms.
//!    The first answers after a change are skipped, since they were asked for under the old limit. So are rounds
//!    in which the limit has bounded few requests: they say nothing about it.
//! 2. *Ramp*: it begins with few requests, or with more if the first answer shows a long link. The limit doubles as
//!    long as the rate grows by a fifth and answers come as fast as before. It doubles at once, without a round, if
//!    the first answers at a limit come as fast as those at half of it: then nothing queues, and the rate doubles,
//!    too. If answers come more slowly, either they queue, or the first ones were fast because the client of the
//!    source had a part of them in memory. If the rate has grown and they become no slower, the limit goes on to grow,
//!    by half. Over a long link, the very first answers are compared with none.
//! 3. *Hold*: the limit is a quarter more than rate times latency. If that product falls, the limit follows.
//! 4. *Probe up*: a seventh more is tried. If the rate grows, the limit stays there, and after two gains in a row it
//!    doubles again.
//! 5. *Probe down*: each fifth probe tries a quarter less. If the rate stays, the difference was only a queue.
//! 6. If answers come more slowly all at once, the source has changed, and the limit is ramped up again.
//! 7. If answers come a fifth faster than ever before, others have left. Then, as long as hardly anything queues, a
//!    probe up follows each round, and one that gains doubles the limit.
//!
//! Polite manners give way to others. If the median latency of two rounds in a row is 20 % over the least one of this
//! mount, or that of one round 50 %, requests queue, of ours or of others. Then the limit falls. A single round of 20 %
//! is often chance. Giving way to it costs rate until a probe up brings that back. No step goes below the rate times
//! that least latency. If others are always there, that latency may never have been seen. So a probe up has to bring
//! rate without making answers slower, and a probe down that makes answers much faster lowers the limit: both would
//! take a share of the source from others. Fair manners take as much as the source gives.
//!
//! A clearly lower limit has to make answers faster, or to cost no rate. If it does neither, requests did not
//! queue: the source answers more slowly than before, for example because its client had the first files in
//! memory. Then the latencies of before are forgotten, and the limit is ramped up again.
//!
//! Calls for names and attributes have limiters of their own. One call may be several requests, one after the other:
//! the limiter goes by the latency of one of them, so that calls for few names and for many compare.
//!
//! On source models from a local parallel filesystem to a store behind 150 ms, the limit reaches the best fixed
//! one within seconds (the tests of this room).

use std::collections::VecDeque;

use super::{Answer, START_OF_METADATA};
use crate::config::Manners;

/// The limit before anything is known: a source with little latency is busy with that. If the first answers take as
/// long as over a long link, many more requests are needed, and the limit goes on from the second number.
const START: u32 = 8;
const START_IF_FAR: u32 = 32;
const FAR_US: u64 = 80_000;

const LEAST: u32 = 2;

/// The fewest answers in a round: the mean of fewer is noise.
const ROUND_MIN: u32 = 32;
const ROUND_US_MIN: u64 = 20_000;

/// How long the latency of a round counts.
const LATENCY_FOR_US: u64 = 10_000_000;

/// How many of the last rounds tell the rate.
const RATES: usize = 10;

/// Rounds of a hold, and of a probe.
const HOLD_ROUNDS: u32 = 8;
const PROBE_ROUNDS: u32 = 2;

/// How the limit grows from step to step of a ramp, and after a round that brought no growth or made answers slower.
const RAMP: f64 = 2.0;
const RAMP_AGAIN: f64 = 1.5;

/// Growth of the rate that lets the ramp go on.
const RAMP_GAIN: f64 = 1.2;

/// Answers come as fast as before below this multiple of the median latency. The fewest answers that tell.
const AS_FAST: f64 = 1.15;
const FIRST_ANSWERS_MIN: usize = 16;

/// How far the limit is above rate times latency, and how far a probe goes up and down.
const HEADROOM: f64 = 1.25;
const PROBE_UP: f64 = 1.15;
const PROBE_DOWN: f64 = 0.75;

/// The least part of the limit that stays if a probe down shows that a lower limit gives to others.
const GIVE: f64 = 0.8;

/// Probes up from one probe down to the next.
const PROBES_UP: u32 = 4;

/// Growth of the rate that makes a probe up a gain, and what is left of it if a probe down lost nothing.
const PROBE_GAIN: f64 = 1.05;
const PROBE_KEPT: f64 = 0.98;

/// Answers come clearly faster at this part of the median latency: nearly half of what a lower limit costs in rate
/// comes back in latency.
const FASTER: f64 = 0.88;

/// The source has become slower if rate times latency is this part of what it was.
const SLOWER: f64 = 0.7;

/// A source whose median latency grows by more than this from one round to the next has changed.
const CHANGED: f64 = 2.0;

/// The part of the limit that stays if a polite limiter gives way in its ramp and in a hold, and after the source
/// said that it is overloaded.
const GIVE_WAY_IN_RAMP: f64 = 0.6;
const GIVE_WAY: f64 = 0.85;
const OVERLOADED: f64 = 0.7;

/// A polite limiter gives way if two rounds in a row are above the first multiple of the least median latency, or one
/// is above the second.
const QUEUES: f64 = 1.2;
const QUEUES_MUCH: f64 = 1.5;

/// Others have left the source if a median latency is below the first part of the least one before. Hardly anything
/// queues below the second multiple of it.
const FREED: f64 = 0.8;
const FREE: f64 = 1.1;

/// Probes up that may gain nothing after others have left.
const TRIES: u32 = 3;

/// A limit lowered to the first part was wrong if the median latency stays above the second part of what it was,
/// and the rate falls below the third. A step says less than the latencies of a round differ by chance.
const CLEARLY_LOWER: f64 = 0.65;
const NOT_FASTER: f64 = 0.9;
const COSTS_RATE: f64 = 0.9;

/// Classes of answers by size. Each has four times the bytes of the one before it.
const SIZE_CLASSES: usize = 16;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Phase {
    Ramp {
        /// The best rate so far.
        best: f64,
        /// The rate of the last round, if answers came more slowly than before or the rate did not grow.
        stalled: Option<f64>,
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
    answers: Answers,
    /// How many answers are skipped: they were asked for under an earlier limit.
    settling: Option<u32>,
    /// The first answers to what was asked for under the present limit, unless they have been judged.
    first: Option<First>,
    /// Whether the present limit is lower than the one before.
    is_lower: bool,
}

/// The first answers to requests that the limit has bounded, and since when it holds.
#[derive(Debug, Default)]
struct First {
    since_us: u64,
    answers: Answers,
}

#[derive(Debug, Default)]
struct Answers {
    bytes: u64,
    /// How many requests they answer.
    requests: u64,
    /// Of one request of each. Microseconds are too coarse for the attributes of one name.
    latencies_ns: Vec<u64>,
    /// Answers to requests that the limit has bounded.
    limited: usize,
}

/// What a round has shown.
#[derive(Clone, Copy, Debug)]
struct Found {
    /// Bytes a second.
    rate: f64,
    /// Requests: rate times latency.
    product: f64,
    /// Requests that this rate takes if nothing queues: rate times the least latency.
    knee: f64,
    /// The median latency in seconds, and the size class of the answers.
    median: f64,
    class: usize,
    /// Whether answers take longer, and much longer, than before.
    is_slower: bool,
    has_changed: bool,
    /// Whether hardly anything queues.
    is_free: bool,
    /// Whether requests queue longer than a polite limiter accepts, and much longer.
    queues: bool,
    queues_much: bool,
}

/// Rounds, and the sums of their rates and of their median latencies.
#[derive(Clone, Copy, Debug, Default)]
struct Means {
    rounds: f64,
    rates: f64,
    medians: f64,
}

/// What was before the limit was lowered, once or in several steps.
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
    /// The limit before anything is known.
    start: u32,
    limit: u32,
    /// Requests under way when the last answer came.
    in_flight: u32,
    /// When this limit was last nearly reached.
    reached_us: Option<u64>,
    /// The limit that probes start from.
    base: u32,
    phase: Phase,
    round: Round,
    /// Rounds left of a hold or a probe.
    left: u32,
    probes: u32,
    /// The rate of the last round, and its median latency in seconds.
    rate: f64,
    median: f64,
    /// Bytes a second in the last rounds.
    rates: VecDeque<f64>,
    /// Whether requests queued in the last round of this hold.
    queued: bool,
    /// Probes up that may still gain nothing since others have left the source.
    tries: u32,
    /// What this hold and this probe have shown.
    held: Means,
    probed: Means,
    /// When a round ended, and its mean latency in seconds.
    latencies: VecDeque<(u64, f64)>,
    /// The least median latency of a round in seconds, by the size class of its answers.
    least: [f64; SIZE_CLASSES],
    /// Set until a round in which nothing queues.
    lowered: Option<Lowered>,
}

impl Limiter {
    /// A limiter that never asks for more than `most` requests at once.
    pub fn new(most: u32, manners: Manners) -> Self {
        Self::starting_at(START, most, manners)
    }

    /// A limiter of calls for names and attributes. It begins with more: a filesystem with many metadata servers, or
    /// a local one, has to answer at once as it does without a limiter.
    pub fn of_metadata(most: u32, manners: Manners) -> Self {
        Self::starting_at(START_OF_METADATA, most, manners)
    }

    fn starting_at(start: u32, most: u32, manners: Manners) -> Self {
        let start = if manners == Manners::Off { most } else { start.min(most) };
        Limiter {
            manners,
            most,
            start,
            limit: start,
            in_flight: 0,
            reached_us: None,
            base: start,
            phase: Phase::Ramp { best: 0.0, stalled: None },
            round: Round {
                settling: Some(start),
                first: Some(First::default()),
                ..Round::default()
            },
            left: 0,
            // The first probe goes down: others may have been there from the start.
            probes: PROBES_UP,
            rate: 0.0,
            median: f64::INFINITY,
            rates: VecDeque::new(),
            queued: false,
            tries: 0,
            held: Means::default(),
            probed: Means::default(),
            latencies: VecDeque::new(),
            least: [f64::INFINITY; SIZE_CLASSES],
            lowered: None,
        }
    }

    /// Never asks for more than `most` requests at once from now on.
    pub(super) fn bound(&mut self, most: u32, at_us: u64) {
        if self.manners == Manners::Off {
            return;
        }
        self.most = most;
        self.base = self.base.min(most);
        if self.limit > most {
            self.set_limit(most, at_us);
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
        self.in_flight = answer.in_flight;
        if self.is_first_of_far(answer) {
            return self.set_limit(START_IF_FAR, answer.at_us);
        }
        let is_limited = self.is_limited(answer);
        self.round.answers.add(answer, is_limited);
        if is_limited && self.ramps_at_once(answer) {
            return;
        }
        let count = self.round.answers.count() as u32;
        if let Some(left) = self.round.settling {
            if count >= left {
                self.begin_round(answer.at_us, false);
            }
            return;
        }
        let took_us = answer.at_us.saturating_sub(self.round.began_us);
        if count < self.limit.max(ROUND_MIN) || took_us < ROUND_US_MIN {
            return;
        }
        if self.round.answers.are_limited() {
            let found = self.evaluate(answer.at_us);
            self.decide(found, answer.at_us);
        } else {
            self.begin_round(answer.at_us, false);
        }
    }

    /// Whether it is the first answer, and shows a long link.
    fn is_first_of_far(&self, answer: &Answer) -> bool {
        let is_first = self.rate == 0.0 && self.limit == self.start && self.most > self.start;
        is_first && answer.latency_us >= FAR_US * u64::from(answer.requests.max(1))
    }

    /// Whether the limit was nearly reached while the request was under way. Requests that are sent together are
    /// answered together: only the first answer finds all of them there.
    fn is_limited(&mut self, answer: &Answer) -> bool {
        if f64::from(answer.in_flight) >= 0.9 * f64::from(self.limit) {
            self.reached_us = Some(answer.at_us);
        }
        self.reached_us.is_some_and(|at_us| at_us + answer.latency_us >= answer.at_us)
    }

    /// The source has said that it is overloaded.
    pub fn overloaded(&mut self, at_us: u64) {
        // Requests that were under way when the limit was lowered may have met the same overload.
        let is_known = self.round.settling.is_some() && self.round.is_lower;
        if !is_known && self.manners != Manners::Off {
            self.tries = 0;
            self.hold(scaled(self.limit, OVERLOADED), at_us);
        }
    }

    fn begin_round(&mut self, at_us: u64, is_settling: bool) {
        let ramps = matches!(self.phase, Phase::Ramp { stalled: None, .. });
        let first = || First { since_us: at_us, ..First::default() };
        self.round = Round {
            began_us: at_us,
            answers: Answers::default(),
            settling: is_settling.then_some(self.limit.max(self.in_flight)),
            first: if is_settling { ramps.then(first) } else { self.round.first.take() },
            is_lower: self.round.is_lower,
        };
    }

    /// Doubles the limit in a ramp if the first answers at the present one come as fast as those before. Returns
    /// whether it has.
    fn ramps_at_once(&mut self, answer: &Answer) -> bool {
        let Phase::Ramp { best, .. } = self.phase else { return false };
        let Some(mut first) = self.round.first.take() else { return false };
        let was_asked_before = answer.at_us < first.since_us + answer.latency_us;
        if !was_asked_before {
            first.answers.add(answer, true);
        }
        if first.answers.count() < FIRST_ANSWERS_MIN.max(self.limit as usize / 2) {
            self.round.first = Some(first);
            return false;
        }
        let mut first = first.answers;
        let median = first.median();
        if median >= AS_FAST * self.median || self.limit == self.most {
            return false;
        }
        // Little's law.
        self.rate = f64::from(self.limit) / first.mean_latency() * first.mean_bytes();
        // The first step over a long link. The next one doubles the limit however long its answers take.
        if best > 0.0 || self.limit < START_IF_FAR {
            self.median = self.median.min(median);
        }
        self.phase = Phase::Ramp { best: best.max(self.rate), stalled: None };
        self.set_limit(self.limit.saturating_mul(2), answer.at_us);
        true
    }

    fn set_limit(&mut self, limit: u32, at_us: u64) {
        let limit = limit.clamp(LEAST.min(self.most), self.most);
        let before = std::mem::replace(&mut self.limit, limit);
        self.reached_us = None;
        self.begin_round(at_us, true);
        self.round.is_lower = limit < before;
    }

    /// What the round has shown.
    fn evaluate(&mut self, at_us: u64) -> Found {
        let answers = &mut self.round.answers;
        let took_s = seconds(at_us - self.round.began_us);
        let (median, class) = (answers.median(), answers.size_class());
        let is_slower = median > AS_FAST * self.median;
        let has_changed = median > CHANGED * self.median;
        self.median = median;
        let least = self.least[class];
        // In a probe down, a queue of ours may have been the reason. Then the tries fail.
        let ramps = matches!(self.phase, Phase::Ramp { .. });
        if !ramps && least.is_finite() && median < FREED * least {
            self.tries = TRIES;
        }
        self.least[class] = least.min(median);
        self.latencies.push_back((at_us, answers.mean_latency()));
        while self.latencies.front().is_some_and(|&(at, _)| at + LATENCY_FOR_US < at_us) {
            self.latencies.pop_front();
        }
        self.rate = answers.bytes.max(1) as f64 / took_s;
        self.rates.push_back(self.rate);
        self.rates.drain(..self.rates.len().saturating_sub(RATES));
        let latency = self.latencies.iter().map(|&(_, mean)| mean).fold(f64::INFINITY, f64::min);
        let mean_bytes = self.round.answers.mean_bytes();
        Found {
            rate: self.rate,
            knee: self.rate / mean_bytes * self.least[class],
            product: self.best_rate() / mean_bytes * latency,
            median,
            class,
            is_slower,
            has_changed,
            is_free: median < FREE * self.least[class],
            queues: self.queue_beyond(QUEUES, median, class),
            queues_much: self.queue_beyond(QUEUES_MUCH, median, class),
        }
    }

    /// Whether a polite limiter finds a median latency, in seconds, beyond a multiple of the least one.
    fn queue_beyond(&self, multiple: f64, median: f64, class: usize) -> bool {
        self.manners.are_polite() && median > multiple * self.least[class]
    }

    fn decide(&mut self, found: Found, at_us: u64) {
        if self.manners == Manners::Off {
            return self.begin_round(at_us, false);
        }
        let wanted = found.wanted();
        match self.phase {
            Phase::Ramp { .. } if found.queues => {
                self.give_way(scaled(self.limit, GIVE_WAY_IN_RAMP), found, at_us)
            }
            Phase::Ramp { best, stalled } => self.ramp_on(best, stalled, found, at_us),
            Phase::Hold if self.was_wrong(found) => self.forget(found, at_us),
            Phase::Hold if found.queues && (self.queued || found.queues_much) => {
                self.give_way(scaled(self.base, GIVE_WAY), found, at_us)
            }
            Phase::Hold | Phase::Up { .. } | Phase::Down if found.has_changed => {
                self.latencies.clear();
                self.tries = 0;
                self.ramp(found.rate, at_us);
            }
            Phase::Hold => self.hold_on(found, wanted, at_us),
            Phase::Up { .. } | Phase::Down => {
                self.probed.add(found);
                self.left -= 1;
                match self.left {
                    0 => self.judge_probe(found.class, at_us),
                    _ => self.begin_round(at_us, false),
                }
            }
        }
    }

    /// A round of a ramp is over.
    fn ramp_on(&mut self, best: f64, stalled: Option<f64>, found: Found, at_us: u64) {
        let rate = found.rate.max(stalled.unwrap_or(0.0));
        if rate > RAMP_GAIN * best && !found.is_slower {
            self.phase = Phase::Ramp { best: rate, stalled: None };
            let factor = if stalled.is_some() { RAMP_AGAIN } else { RAMP };
            self.set_limit(scaled(self.limit, factor), at_us);
        } else if stalled.is_none() {
            self.phase = Phase::Ramp { best, stalled: Some(rate) };
            self.begin_round(at_us, false);
        } else {
            self.hold(found.wanted().min(self.limit), at_us);
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
        self.held = Means::default();
        self.queued = false;
        self.set_limit(self.base, at_us);
    }

    /// Holds a lower limit, because requests queue. Fewer than the knee would cost rate at once.
    fn give_way(&mut self, limit: u32, found: Found, at_us: u64) {
        let knee = scaled(1, found.knee);
        self.lower(limit.max(knee.min(self.limit)), found, at_us);
    }

    /// Holds a lower limit, because requests queue or the source has become slower.
    fn lower(&mut self, limit: u32, found: Found, at_us: u64) {
        let Found { rate, median, .. } = found;
        self.lowered.get_or_insert(Lowered { base: self.limit, rate, median });
        self.hold(limit, at_us);
    }

    /// Whether a round shows that the limit was lowered for nothing. At the least limit it was: what queues there is
    /// not ours.
    fn was_wrong(&self, found: Found) -> bool {
        self.lowered.is_some_and(|before| {
            let is_clear = f64::from(self.limit) <= CLEARLY_LOWER * f64::from(before.base);
            let is_as_slow = found.median > NOT_FASTER * before.median;
            let costs_rate = found.rate < COSTS_RATE * before.rate;
            is_clear && is_as_slow && costs_rate || self.limit <= LEAST && found.queues
        })
    }

    /// The source answers more slowly than before: goes on with the present latency, from the limit before or from
    /// the least one.
    fn forget(&mut self, found: Found, at_us: u64) {
        if let Some(before) = self.lowered.take() {
            self.latencies.clear();
            self.least[found.class] = found.median;
            self.base = if self.limit <= LEAST { self.limit } else { before.base };
            self.ramp(found.rate, at_us);
        }
    }

    /// Doubles the limit, which has brought this rate.
    fn ramp(&mut self, rate: f64, at_us: u64) {
        self.phase = Phase::Ramp { best: rate, stalled: None };
        self.rates.clear();
        self.set_limit(self.base.saturating_mul(2), at_us);
    }

    /// A round of a hold is over.
    fn hold_on(&mut self, found: Found, wanted: u32, at_us: u64) {
        self.queued = found.queues;
        if !found.queues {
            self.lowered = None;
        }
        self.held.add(found);
        self.left -= 1;
        let is_slower = self.rates.len() >= 4 && f64::from(wanted) < SLOWER * f64::from(self.base);
        if is_slower {
            return self.lower(wanted.max(self.base / 2), found, at_us);
        }
        if self.tries > 0 && found.is_free {
            return self.probe_up(1, at_us);
        }
        if self.left > 0 {
            return self.begin_round(at_us, false);
        }
        self.probes += 1;
        match self.probes % (PROBES_UP + 1) {
            0 => self.probe(Phase::Down, scaled(self.base, PROBE_DOWN), at_us),
            _ => self.probe_up(0, at_us),
        }
    }

    fn probe_up(&mut self, gains: u32, at_us: u64) {
        self.probe(Phase::Up { gains }, scaled(self.base, PROBE_UP) + 1, at_us);
    }

    fn probe(&mut self, phase: Phase, limit: u32, at_us: u64) {
        (self.phase, self.left) = (phase, PROBE_ROUNDS);
        self.probed = Means::default();
        self.set_limit(limit, at_us);
    }

    /// A probe is over. Its answers were of this size class.
    fn judge_probe(&mut self, class: usize, at_us: u64) {
        let Limiter { held, probed, .. } = *self;
        let is_polite = self.manners.are_polite();
        let is_slower = is_polite && held.median() < FASTER * probed.median();
        let takes_from_others = is_slower || self.queue_beyond(QUEUES, probed.median(), class);
        let gives_to_others = is_polite && probed.median() < FASTER * held.median();
        match self.phase {
            Phase::Up { gains }
                if probed.rate() > PROBE_GAIN * held.rate() && !takes_from_others =>
            {
                self.base = self.limit;
                if gains > 0 {
                    return self.ramp(probed.rate(), at_us);
                }
                self.held = probed;
                self.probe_up(gains + 1, at_us);
            }
            Phase::Down if probed.rate() >= PROBE_KEPT * held.rate() => {
                self.base = self.limit;
                self.hold_again(at_us);
            }
            Phase::Down if gives_to_others => {
                // At this part of the limit nothing would queue, if all of the queue is ours.
                let knee = probed.median() / held.median();
                self.base = scaled(self.base, GIVE.max(knee)).max(self.limit);
                // The next probe goes down again.
                self.probes -= 1;
                self.hold_again(at_us);
            }
            Phase::Up { .. } => {
                self.tries = self.tries.saturating_sub(1);
                self.hold_again(at_us);
            }
            _ => self.hold_again(at_us),
        }
    }
}

impl Found {
    /// The limit that the product asks for.
    fn wanted(&self) -> u32 {
        scaled(1, HEADROOM * self.product) + 1
    }
}

impl Means {
    fn add(&mut self, found: Found) {
        self.rounds += 1.0;
        self.rates += found.rate;
        self.medians += found.median;
    }

    fn rate(&self) -> f64 {
        self.rates / self.rounds
    }

    fn median(&self) -> f64 {
        self.medians / self.rounds
    }
}

impl Answers {
    fn add(&mut self, answer: &Answer, is_limited: bool) {
        let requests = u64::from(answer.requests.max(1));
        self.bytes += answer.bytes;
        self.requests += requests;
        self.latencies_ns.push(answer.latency_us.saturating_mul(1000) / requests);
        self.limited += usize::from(is_limited);
    }

    fn count(&self) -> usize {
        self.latencies_ns.len()
    }

    /// Whether the limit has bounded most of their requests.
    fn are_limited(&self) -> bool {
        self.limited * 5 >= self.count() * 4
    }

    /// Of a request.
    fn mean_bytes(&self) -> f64 {
        self.bytes.max(1) as f64 / self.requests.max(1) as f64
    }

    /// In seconds.
    fn mean_latency(&self) -> f64 {
        self.latencies_ns.iter().sum::<u64>() as f64 / 1e9 / self.count().max(1) as f64
    }

    /// In seconds. There is an answer.
    fn median(&mut self) -> f64 {
        let middle = self.count() / 2;
        *self.latencies_ns.select_nth_unstable(middle).1 as f64 / 1e9
    }

    /// The class of their mean size in [`Limiter::least`].
    fn size_class(&self) -> usize {
        ((self.mean_bytes().log2() / 2.0) as usize).min(SIZE_CLASSES - 1)
    }
}

pub(super) fn seconds(us: u64) -> f64 {
    us as f64 / 1e6
}

fn scaled(limit: u32, factor: f64) -> u32 {
    (f64::from(limit) * factor) as u32
}
