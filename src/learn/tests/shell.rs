//! What the mount does around the learner, in little: runs what it wants searched, and compares
//! what it says with what is true.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use super::sim::Step;
use crate::learn::libraries::samplers;
use crate::learn::search::popular;
use crate::learn::{Decision, Known, Learner, Observation, Search, SearchId};
use crate::order::samplers::Sampler;

/// How far around a true seed is searched in place of everything.
const AROUND: u64 = 150;

/// What is true of one group.
#[derive(Clone, Debug, Default)]
pub(super) struct Truth {
    /// By epoch, all samples in the order of the sampler, this rank's.
    pub(super) epochs: Vec<Vec<u32>>,
    /// Seeds that searches may find.
    pub(super) seeds: Vec<u32>,
    /// How many of the first epoch are not read.
    pub(super) skipped: usize,
    /// Whether the order may be told part by part.
    pub(super) parts: bool,
    /// Whether the order may be told whole until it has shown which batches are this rank's.
    pub(super) in_batches: bool,
    /// How far its workers run ahead of each other.
    pub(super) slack: usize,
}

/// The number that a sampler has in the search for samplers of other libraries.
pub(super) fn in_library(sampler: &Sampler) -> u32 {
    samplers(&popular()).iter().position(|other| other == sampler).unwrap() as u32
}

/// What came out for one group.
#[derive(Clone, Debug, Default)]
pub(super) struct Outcome {
    /// Opens of the epoch until its order was right, by epoch, as far as it was.
    pub(super) opens: BTreeMap<usize, u32>,
    /// Orders that were not what was read then.
    pub(super) wrong: Vec<String>,
    /// How many epochs were known before they began.
    pub(super) foreseen: u32,
    pub(super) withdrawn: u32,
    /// What was said of its orders.
    pub(super) titles: Vec<String>,
}

pub(super) struct Shell {
    pub(super) learner: Learner,
    /// Searches, and when they are through: in steps from now.
    searches: VecDeque<(SearchId, Arc<Search>, usize)>,
    delay: usize,
    /// The same of a search of all seeds, where that takes longer.
    pub(super) crack_delay: usize,
    truths: BTreeMap<u64, Truth>,
    /// The processes of tasks that are threads; others are processes themselves.
    pub(super) threads: BTreeMap<u32, u64>,
    pub(super) outcomes: BTreeMap<u64, Outcome>,
    /// How many searches were asked for.
    pub(super) asked: u32,
    /// By group, its epoch and what was opened in it.
    now: BTreeMap<u64, (usize, Vec<u32>)>,
}

impl Shell {
    pub(super) fn new(learner: Learner, truths: BTreeMap<u64, Truth>, delay: usize) -> Self {
        Shell {
            learner,
            searches: VecDeque::new(),
            delay,
            crack_delay: delay,
            truths,
            threads: BTreeMap::new(),
            outcomes: BTreeMap::new(),
            asked: 0,
            now: BTreeMap::new(),
        }
    }

    pub(super) fn run(&mut self, steps: &[Step]) {
        for (at, step) in steps.iter().enumerate() {
            let mut out = Vec::new();
            let at_ms = at as u64 * 10;
            match *step {
                Step::Left { task } => {
                    self.learner.apply(Observation::Left { task }, &mut out);
                    let process = u64::from(task);
                    self.learner.apply(Observation::Exited { process }, &mut out);
                }
                Step::Open { task, group, sample, epoch, seen } => {
                    let now = self.now.entry(group).or_default();
                    if now.0 != epoch {
                        *now = (epoch, Vec::new());
                    }
                    now.1.push(sample);
                    if seen {
                        let own = self.threads.get(&task).copied();
                        let (process, exact) = (own.unwrap_or(task.into()), true);
                        let open =
                            Observation::Opened { at_ms, task, process, group, sample, exact };
                        self.learner.apply(open, &mut out);
                    }
                }
            }
            self.heed(out, at);
            while self.searches.front().is_some_and(|search| search.2 <= at) {
                self.search(at);
            }
        }
    }

    pub(super) fn heed(&mut self, out: Vec<Decision>, at: usize) {
        for decision in out {
            match decision {
                Decision::SearchWanted { id, search, .. } => {
                    self.asked += 1;
                    let all = search.is_of_all_seeds();
                    let delay = if all { self.crack_delay } else { self.delay };
                    self.searches.push_back((id, search, at + delay));
                }
                Decision::SearchOver { id } => self.searches.retain(|search| search.0 != id),
                Decision::Committed(known) | Decision::EpochBegan(known) => self.check(&known),
                Decision::Withdrawn { loader, .. } => {
                    let belief = self.learner.beliefs().find(|belief| belief.loader == loader);
                    let group = belief.map_or(0, |belief| belief.group);
                    self.outcomes.entry(group).or_default().withdrawn += 1;
                }
            }
        }
    }

    /// Goes through the parts of a search where there is something, and some where there is not.
    fn search(&mut self, at: usize) {
        let Some((id, search, _)) = self.searches.pop_front() else { return };
        // Those that draw whole epochs take long; those of popular seeds are few.
        let around = if search.units() <= 1 << 12 { AROUND / 20 } else { AROUND };
        let all = if search.units() < 200 { search.units() } else { around };
        let seeds = self.truths.values().flat_map(|truth| truth.seeds.clone()).map(u64::from);
        let near = |seed: u64| seed.saturating_sub(around / 2).max(all)..seed + around / 2 + 1;
        let ranges: Vec<Range<u64>> = std::iter::once(0..all).chain(seeds.map(near)).collect();
        for range in ranges {
            let findings = search.run(range);
            let mut out = Vec::new();
            self.learner.apply(Observation::Found { search: id, findings }, &mut out);
            self.heed(out, at);
        }
        let mut out = Vec::new();
        self.learner.apply(Observation::Searched { search: id }, &mut out);
        self.heed(out, at);
    }

    /// Whether an order is what is read.
    fn check(&mut self, known: &Known) {
        let outcome = self.outcomes.entry(known.group).or_default();
        outcome.titles.push(known.order.describe().to_string());
        let Some(truth) = self.truths.get(&known.group) else {
            outcome
                .wrong
                .push(format!("nobody reads in an order here: {}", known.order.describe()));
            return;
        };
        if truth.in_batches && !known.order.describe().contains("in batches of") {
            return;
        }
        let Some((epoch, opened)) = self.now.get(&known.group) else { return };
        let told = known.order.epoch(0);
        let read: BTreeSet<u32> = opened.iter().copied().collect();
        let place = |epoch: usize| -> BTreeMap<u32, usize> {
            // The last round may be filled up with samples from the beginning.
            let samples = truth.epochs[epoch].iter().enumerate().rev();
            samples.map(|(at, sample)| (*sample, at)).collect()
        };
        let seen = ["as in the epoch before", "of an earlier run"];
        let recorded = seen.iter().any(|words| known.order.describe().contains(words));
        // In an order of arrival neighbours change places.
        let slack = if recorded { truth.slack } else { 0 };
        let goes_on = |epoch: usize| {
            let (place, n) = (place(epoch), truth.epochs[epoch].len());
            let places: Vec<usize> = told.iter().filter_map(|s| place.get(s).copied()).collect();
            let (mut at, mut way) = (places.first().copied().unwrap_or(0), 0);
            let forward = places.iter().all(|&place| {
                let step = (place + n - at) % n;
                // A record of an order that stays may begin anywhere in it.
                let on = if recorded { step <= n / 2 } else { place >= at };
                if on {
                    (at, way) = (place, way + step);
                }
                on || n - step <= slack
            });
            let forward = forward && way <= n + slack;
            forward && places.len() + 1 >= told.len()
        };
        let skipped = if *epoch == 0 { truth.skipped } else { 0 };
        let reads = truth.epochs[*epoch][skipped..].iter().copied();
        let left: BTreeSet<u32> = reads.filter(|sample| !read.contains(sample)).collect();
        let there = told.iter().filter(|sample| left.contains(sample)).count();
        // What was not seen the first time is not in a record.
        let complete = recorded || truth.parts || there + 2 + left.len() / 50 >= left.len();
        if !goes_on(*epoch) || !complete {
            let unseen = || {
                let skipped = if *epoch == 1 { truth.skipped } else { 0 };
                let before: BTreeSet<u32> =
                    truth.epochs[epoch - 1][skipped..].iter().copied().collect();
                // After a resume, what the first epoch has left out may come first in the next.
                opened.len() < 24 || before.is_disjoint(&read)
            };
            if *epoch > 0 && goes_on(epoch - 1) && unseen() {
                // It could not be known yet that the epoch is over.
                return;
            }
            outcome.wrong.push(format!(
                "epoch {epoch} after {} opens: {}: {there} of {} left",
                opened.len(),
                known.order.describe(),
                left.len(),
            ));
            return;
        }
        outcome.opens.entry(*epoch).or_insert(opened.len() as u32);
        if known.foreseen > 0
            && let Some(next) = truth.epochs.get(epoch + 1)
        {
            let told = known.order.epoch(1);
            let same = told.iter().zip(next).take_while(|(a, b)| a == b).count();
            if same + 1 >= next.len() || recorded {
                outcome.foreseen += 1;
            } else {
                let title = known.order.describe();
                outcome
                    .wrong
                    .push(format!("epoch {epoch} foresaw {same} of {}: {title}", next.len()));
            }
        }
    }
}
