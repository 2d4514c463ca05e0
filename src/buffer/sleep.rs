//! A sleep set: a fixed number of samples to learn from again, chosen at once from a buffer of any size
//! (SIESTA, Harun et al. 2023).
//!
//! A set is a sequence of batches. Within a batch no sample repeats while others are left. If classes take
//! turns, a class leaves the batch when all its samples were drawn. Choosers with weights draw each batch
//! from all samples. Choosers with an order continue where the last batch ended, and begin again after the
//! last sample.
//!
//! A sample is drawn with a probability in proportion to its weight, without replacement, from a tree of
//! sums: O(log n) a draw. Weights are integers, so sums have no rounding errors.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::counter_rng::{CounterRng, Purpose};
use super::members::{Member, SampleId};

/// How samples are chosen from a buffer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Chooser {
    /// All equally likely.
    Uniform,
    /// Classes in turn; within a class all equally likely.
    #[default]
    UniformBalanced,
    /// Classes in turn; within a class in proportion to 1 / distance from its mean.
    Prototypical,
    /// In proportion to 1 / (1 + margin above the smallest).
    MinMargin,
    /// In proportion to 1 + loss above the smallest.
    MaxLoss,
    /// In proportion to 1 / (1 + how often the sample was shown again).
    MinReplay,
    /// The largest interference first.
    Mir,
    /// Classes in turn; within a class in the order of herding.
    Herding,
}

/// What to choose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SleepSet {
    pub chooser: Chooser,
    pub budget: u64,
    /// How many consecutive samples are all different. 0: all.
    pub batch: u64,
    pub seed: u64,
}

/// Weights are scaled to integers. The largest weight becomes this.
const WEIGHT_MAX: f64 = (1_u64 << 32) as f64;

/// The smallest distance that counts: a distance of 0 would get all the weight.
const DISTANCE_MIN: f32 = 1e-7;

impl Chooser {
    /// Whether it needs scores: without any, it chooses by chance.
    pub fn goes_by_scores(self) -> bool {
        use Chooser::{Herding, MaxLoss, MinMargin, Mir, Prototypical};
        matches!(self, Prototypical | MinMargin | MaxLoss | Mir | Herding)
    }

    fn is_balanced(self) -> bool {
        matches!(self, Chooser::UniformBalanced | Chooser::Prototypical | Chooser::Herding)
    }

    /// The place of a sample, for choosers with an order. A sample without a score comes last.
    fn place(self, member: &Member) -> Option<f32> {
        match self {
            Chooser::Mir => Some(member.score.map_or(f32::INFINITY, |score| -score)),
            Chooser::Herding => Some(member.score.unwrap_or(f32::INFINITY)),
            _ => None,
        }
    }

    /// The weight of a sample in a group whose least score is `least`. A sample without a score counts as
    /// `mean`.
    fn weight(self, member: &Member, least: f32, mean: f32) -> f64 {
        let score = f64::from(member.score.unwrap_or(mean));
        let above = (score - f64::from(least)).max(0.0);
        match self {
            Chooser::Uniform | Chooser::UniformBalanced | Chooser::Mir | Chooser::Herding => 1.0,
            Chooser::Prototypical => 1.0 / score.max(f64::from(DISTANCE_MIN)),
            Chooser::MinMargin => 1.0 / (1.0 + above),
            Chooser::MaxLoss => 1.0 + above,
            Chooser::MinReplay => 1.0 / (1.0 + f64::from(member.replays)),
        }
    }
}

/// A class, or all samples: samples are drawn from a group.
struct Group {
    samples: Vec<SampleId>,
    weights: Vec<u64>,
    /// A tree: node `i` is the sum of nodes `2 i` and `2 i + 1`. Leaves begin at `leaves`.
    sums: Vec<u64>,
    leaves: usize,
    /// Samples drawn since the last refill.
    drawn: Vec<usize>,
    /// For choosers with an order: the next sample.
    next: Option<usize>,
}

impl Group {
    fn new(chooser: Chooser, mut members: Vec<&Member>, rng: &mut CounterRng) -> Group {
        // Equal samples get a random order.
        rng.shuffle(&mut members);
        let in_order = members.first().is_some_and(|member| chooser.place(member).is_some());
        if in_order {
            let place = |member: &&Member| chooser.place(member).unwrap_or(f32::INFINITY);
            members.sort_by(|a, b| place(a).total_cmp(&place(b)));
        }
        let scores = members.iter().filter_map(|member| member.score);
        let count = scores.clone().count().max(1);
        let sum: f64 = scores.clone().map(f64::from).sum();
        let least = scores.reduce(f32::min).unwrap_or(0.0);
        let mean = (sum / count as f64) as f32;
        let weights: Vec<f64> =
            members.iter().map(|member| chooser.weight(member, least, mean)).collect();
        let largest = weights.iter().copied().fold(f64::MIN_POSITIVE, f64::max);
        let scaled = |weight: &f64| ((weight / largest * WEIGHT_MAX) as u64).max(1);
        let mut group = Group {
            samples: members.iter().map(|member| member.sample).collect(),
            weights: weights.iter().map(scaled).collect(),
            leaves: members.len().next_power_of_two(),
            sums: Vec::new(),
            drawn: Vec::new(),
            next: in_order.then_some(0),
        };
        group.sums = vec![0; 2 * group.leaves];
        group.sums[group.leaves..][..group.weights.len()].copy_from_slice(&group.weights);
        for node in (1..group.leaves).rev() {
            group.sums[node] = group.sums[2 * node] + group.sums[2 * node + 1];
        }
        group
    }

    fn set(&mut self, index: usize, weight: u64) {
        let mut node = self.leaves + index;
        self.sums[node] = weight;
        while node > 1 {
            node /= 2;
            self.sums[node] = self.sums[2 * node] + self.sums[2 * node + 1];
        }
    }

    /// Whether all samples were drawn.
    fn is_empty(&self) -> bool {
        self.drawn.len() == self.samples.len()
    }

    /// Makes all samples available again. An order continues where it is.
    fn refill(&mut self) {
        for index in std::mem::take(&mut self.drawn) {
            self.set(index, self.weights[index]);
        }
    }

    fn draw(&mut self, rng: &mut CounterRng) -> SampleId {
        let index = match self.next {
            Some(next) => {
                self.next = Some((next + 1) % self.samples.len());
                next
            }
            None => self.find(rng.below(self.sums[1])),
        };
        self.set(index, 0);
        self.drawn.push(index);
        self.samples[index]
    }

    /// The first leaf at which the sum of leaves up to it exceeds `target`.
    fn find(&self, mut target: u64) -> usize {
        let mut node = 1;
        while node < self.leaves {
            node *= 2;
            if target >= self.sums[node] {
                target -= self.sums[node];
                node += 1;
            }
        }
        node - self.leaves
    }
}

/// Groups that take turns. In each round, every group that is not empty gives one sample, in random order.
struct RoundRobin {
    groups: Vec<Group>,
    /// The groups that still give one in this round.
    round: Vec<usize>,
    /// The groups that had samples left when the round began, and the groups that had none.
    filled: Vec<usize>,
    empty: Vec<usize>,
    /// The groups with drawn samples.
    touched: Vec<usize>,
}

impl RoundRobin {
    fn new(groups: Vec<Group>) -> RoundRobin {
        let (round, empty, touched) = Default::default();
        RoundRobin { filled: (0..groups.len()).collect(), groups, round, empty, touched }
    }

    /// Refills all groups. Takes time in proportion to the samples drawn.
    fn refill(&mut self) {
        self.filled.append(&mut self.empty);
        for at in self.touched.drain(..) {
            self.groups[at].refill();
        }
    }

    /// Draws a sample. If all were drawn, the groups are refilled first.
    fn draw(&mut self, rng: &mut CounterRng) -> Option<SampleId> {
        if self.round.is_empty() {
            let emptied = self.filled.extract_if(.., |at| self.groups[*at].is_empty());
            self.empty.extend(emptied);
            if self.filled.is_empty() {
                self.refill();
            }
            rng.shuffle(&mut self.filled);
            self.round.clone_from(&self.filled);
        }
        // A group in the round has given none since the round began.
        let at = self.round.pop()?;
        if self.groups[at].drawn.is_empty() {
            self.touched.push(at);
        }
        Some(self.groups[at].draw(rng))
    }
}

/// Chooses a sleep set from the members of a buffer, in the order in which it is to be read.
///
/// The same members and the same request give the same set. Takes O((n + budget) log n).
pub fn sleep_set<'a>(
    members: impl IntoIterator<Item = &'a Member>,
    set: &SleepSet,
) -> Vec<SampleId> {
    let mut classes: BTreeMap<u32, Vec<&Member>> = BTreeMap::new();
    for member in members {
        let group = if set.chooser.is_balanced() { member.class.0 } else { 0 };
        classes.entry(group).or_default().push(member);
    }
    let mut rng = CounterRng::new(set.seed, Purpose::Sleep, set.budget);
    let groups = classes.into_values().map(|own| Group::new(set.chooser, own, &mut rng));
    let mut round_robin = RoundRobin::new(groups.collect());
    let mut chosen = Vec::new();
    if round_robin.groups.is_empty() {
        return chosen;
    }
    let batch = if set.batch == 0 { set.budget } else { set.batch };
    while (chosen.len() as u64) < set.budget {
        let begin = chosen.len();
        let size = batch.min(set.budget - begin as u64);
        chosen.extend((0..size).map_while(|_| round_robin.draw(&mut rng)));
        rng.shuffle(&mut chosen[begin..]);
        round_robin.refill();
    }
    chosen
}
