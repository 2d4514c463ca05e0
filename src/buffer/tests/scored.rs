//! Compares policies by scores with plain implementations of their papers, step by step.
//!
//! Goal: the same samples are held. Method: a long log of offers, scores, features and replays from a fixed
//! seed goes to a buffer and to a list of samples. In the list, every answer is found by a scan. Before each
//! offer, every held sample gets a distinct score, so that no decision is random.

use rand::rngs::ChaCha12Rng;
use rand::{RngExt, SeedableRng};

use super::*;

const CLASSES: u32 = 4;
const CAPACITY: usize = 24;
const OFFERS: u32 = 400;
const DIMENSION: usize = 6;

/// What is known of a held sample.
#[derive(Clone)]
struct Known {
    sample: u32,
    class: u32,
    /// How well it can be spared: the largest goes first. `None`: it has no score.
    spared: Option<f64>,
    feature: Vec<f64>,
}

/// A buffer as in the papers.
struct Naive(Vec<Known>);

impl Naive {
    fn count(&self, class: u32) -> usize {
        self.0.iter().filter(|known| known.class == class).count()
    }

    /// The class that is the largest with the newcomer makes room. Of equal classes, it is the first that was
    /// the largest before. The sample that can be spared best is given up. Samples without a score stay.
    fn offer(&mut self, sample: u32, class: u32) {
        let most = (0..CLASSES).map(|class| self.count(class)).max().unwrap();
        let largest = (0..CLASSES).find(|class| self.count(*class) == most).unwrap();
        let own = if self.count(class) == most { class } else { largest };
        self.0.push(Known { sample, class, spared: None, feature: Vec::new() });
        if self.0.len() <= CAPACITY {
            return;
        }
        let scored = self.0.iter().filter(|known| known.class == own && known.spared.is_some());
        let goes = scored.max_by(|a, b| a.spared.partial_cmp(&b.spared).unwrap());
        let goes = goes.map_or(sample, |known| known.sample);
        self.0.retain(|known| known.sample != goes);
    }

    fn samples(&self) -> Vec<u32> {
        self.0.iter().map(|known| known.sample).collect()
    }
}

fn unit(feature: &[f64]) -> Vec<f64> {
    let length = feature.iter().map(|x| x * x).sum::<f64>().sqrt();
    feature.iter().map(|x| x / length).collect()
}

fn mean(units: &[Vec<f64>]) -> Vec<f64> {
    let sum = |at: usize| units.iter().map(|unit| unit[at]).sum::<f64>();
    (0..DIMENSION).map(|at| sum(at) / units.len() as f64).collect()
}

fn distance(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| (a - b).powi(2)).sum::<f64>().sqrt()
}

/// Algorithm 4 of iCaRL: the place at which each sample is taken. Each step takes the sample that brings the
/// mean of all taken nearest to the mean of the class.
fn herding(units: &[Vec<f64>]) -> Vec<f64> {
    let goal = mean(units);
    let mut taken: Vec<usize> = Vec::new();
    while taken.len() < units.len() {
        let far = |next: usize| {
            let with: Vec<Vec<f64>> =
                taken.iter().chain([&next]).map(|at| units[*at].clone()).collect();
            distance(&mean(&with), &goal)
        };
        let left = (0..units.len()).filter(|at| !taken.contains(at));
        taken.push(left.min_by(|a, b| far(*a).partial_cmp(&far(*b)).unwrap()).unwrap());
    }
    (0..units.len()).map(|at| taken.iter().position(|of| *of == at).unwrap() as f64).collect()
}

/// The distance of each direction from the direction of the mean (SIESTA). Of unit vectors, the farther has
/// the larger angle.
fn prototypical(units: &[Vec<f64>]) -> Vec<f64> {
    let prototype = unit(&mean(units));
    units.iter().map(|unit| distance(unit, &prototype)).collect()
}

/// Gives both buffers a distinct score for each held sample.
fn give_scores(
    policy: Policy,
    buffer: &mut RehearsalBuffer,
    naive: &mut Naive,
    random: &mut ChaCha12Rng,
) {
    match policy {
        Policy::Herding | Policy::Prototypical => {
            let score = if policy == Policy::Herding { herding } else { prototypical };
            let mut list = Vec::new();
            for known in &mut naive.0 {
                let feature: Vec<f32> =
                    (0..DIMENSION).map(|_| random.random_range(-1.0..1.0)).collect();
                known.feature = feature.iter().map(|x| f64::from(*x)).collect();
                let (sample, class) = (Some(SampleId(known.sample)), ClassId(known.class));
                list.push(Feature { sample, class, values: feature });
            }
            for (sample, score) in scores(policy, &list).unwrap() {
                buffer.score(sample, score).unwrap();
            }
            for class in 0..CLASSES {
                let own: Vec<usize> =
                    (0..naive.0.len()).filter(|at| naive.0[*at].class == class).collect();
                let units: Vec<Vec<f64>> =
                    own.iter().map(|at| unit(&naive.0[*at].feature)).collect();
                let scores = if units.is_empty() { Vec::new() } else { score(&units) };
                own.iter().zip(scores).for_each(|(at, score)| naive.0[*at].spared = Some(score));
            }
        }
        Policy::MinReplay => {
            // The newcomer gets a number of replays that no other sample has.
            let mut known: Vec<f64> = naive.0.iter().filter_map(|known| known.spared).collect();
            for of in naive.0.iter_mut().filter(|known| known.spared.is_none()) {
                let free = |times: &u32| !known.contains(&f64::from(*times));
                let times = (random.random_range(1..60)..).find(free).unwrap();
                known.push(f64::from(times));
                of.spared = Some(f64::from(times));
                (0..times).for_each(|_| buffer.replayed(SampleId(of.sample)).unwrap());
            }
        }
        _ => {
            // Some known scores change.
            for known in &mut naive.0 {
                if known.spared.is_none() || random.random_range(0..4) == 0 {
                    let score: f32 = random.random_range(-9.0..9.0);
                    buffer.score(SampleId(known.sample), score).unwrap();
                    let sign = if policy == Policy::MinMargin { 1.0 } else { -1.0 };
                    known.spared = Some(sign * f64::from(score));
                }
            }
        }
    }
}

#[test]
fn the_same_is_held_as_by_the_papers() {
    for policy in [
        Policy::MaxLoss,
        Policy::MinMargin,
        Policy::MinReplay,
        Policy::Mir,
        Policy::Prototypical,
        Policy::Herding,
    ] {
        for seed in 0..5 {
            let mut random = ChaCha12Rng::seed_from_u64(seed);
            let mut buffer = buffer_of(policy, Capacity::Samples(CAPACITY as u64), seed);
            let mut naive = Naive(Vec::new());
            for sample in 0..OFFERS {
                // Classes come and go, as with tasks.
                let class = (sample / 50 + random.random_range(0..2)) % CLASSES;
                assert_eq!(buffer.offer(candidate(class, 1)).unwrap().sample, SampleId(sample));
                naive.offer(sample, class);
                let held: Vec<u32> = buffer.members().map(|member| member.sample.0).collect();
                assert_eq!(held, naive.samples(), "{policy:?}, seed {seed}, offer {sample}");
                give_scores(policy, &mut buffer, &mut naive, &mut random);
            }
        }
    }
}
