//! Makes scores from features: a sample's distance from the mean of its class, or its place in the order of
//! herding.

use std::collections::BTreeMap;

use super::members::{ClassId, SampleId};
use super::policies::Policy;

/// A feature vector of a sample, from the trainer's network.
#[derive(Clone, Debug, PartialEq)]
pub struct Feature {
    /// `None` for a sample that was never offered. It counts only for the mean of its class.
    pub sample: Option<SampleId>,
    pub class: ClassId,
    pub values: Vec<f32>,
}

/// Why features make no scores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FeatureError {
    /// A feature is not of finite numbers.
    NotFinite,
    /// A feature differs in length from the first, which has `expected` numbers.
    Dimension { found: usize, expected: usize },
}

/// Makes scores for [`Policy::Herding`] and [`Policy::Prototypical`]. Other policies use no features and get
/// no scores.
///
/// Samples are compared within their class, so the list should have all samples of a class. Features without
/// a sample count for the mean of their class.
///
/// # Errors
/// If features are not finite or differ in length.
pub fn scores(policy: Policy, list: &[Feature]) -> Result<Vec<(SampleId, f32)>, FeatureError> {
    let expected = list.first().map_or(0, |feature| feature.values.len());
    for Feature { values, .. } in list {
        if values.len() != expected {
            return Err(FeatureError::Dimension { found: values.len(), expected });
        }
        if !values.iter().all(|value| value.is_finite()) {
            return Err(FeatureError::NotFinite);
        }
    }
    let score: fn(&[Vec<f64>]) -> Vec<f64> = match policy {
        Policy::Herding => herding,
        Policy::Prototypical => distances,
        _ => return Ok(Vec::new()),
    };
    let mut classes: BTreeMap<ClassId, Vec<&Feature>> = BTreeMap::new();
    list.iter().for_each(|feature| classes.entry(feature.class).or_default().push(feature));
    let mut scores = Vec::new();
    for features in classes.values() {
        let units: Vec<Vec<f64>> = features.iter().map(|feature| unit(&feature.values)).collect();
        for (feature, score) in features.iter().zip(score(&units)) {
            scores.extend(feature.sample.map(|sample| (sample, score as f32)));
        }
    }
    Ok(scores)
}

/// The feature scaled to length 1. A zero feature stays zero.
fn unit(values: &[f32]) -> Vec<f64> {
    let length = values.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>().sqrt();
    let by = if length > 0.0 { length } else { 1.0 };
    values.iter().map(|value| f64::from(*value) / by).collect()
}

/// Independent sums, so that additions do not wait for each other.
const LANES: usize = 8;

fn dot(a: &[f64], b: &[f64]) -> f64 {
    let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<LANES>(), b.as_chunks::<LANES>());
    let mut sums = [0.0; LANES];
    for (a, b) in a.iter().zip(b) {
        sums.iter_mut().zip(a.iter().zip(b)).for_each(|(sum, (a, b))| *sum += a * b);
    }
    let rest: f64 = a_rest.iter().zip(b_rest).map(|(a, b)| a * b).sum();
    sums.iter().sum::<f64>() + rest
}

fn add(to: &mut [f64], other: &[f64], times: f64) {
    to.iter_mut().zip(other).for_each(|(to, other)| *to += other * times);
}

fn mean(units: &[Vec<f64>]) -> Vec<f64> {
    let mut mean = vec![0.0; units.first().map_or(0, Vec::len)];
    units.iter().for_each(|unit| add(&mut mean, unit, 1.0 / units.len() as f64));
    mean
}

/// Cosine distances from the mean, 0 to 2 (SIESTA's prototypical rehearsal, Harun et al. 2023).
fn distances(units: &[Vec<f64>]) -> Vec<f64> {
    let mean = mean(units);
    let length = dot(&mean, &mean).sqrt().max(f64::MIN_POSITIVE);
    units.iter().map(|unit| 1.0 - dot(&mean, unit) / length).collect()
}

/// The place of each sample in the order of herding (iCaRL, Rebuffi et al. 2017, algorithm 4). The next
/// sample is the one that brings the mean of the samples taken nearest to the mean of all. Takes O(n^2 d) for
/// n samples of d numbers.
fn herding(units: &[Vec<f64>]) -> Vec<f64> {
    let mean = mean(units);
    let squares: Vec<f64> = units.iter().map(|unit| dot(unit, unit)).collect();
    let mut places = vec![f64::INFINITY; units.len()];
    // The ideal next sample: the mean times the number of samples including it, minus the sum of the samples
    // taken.
    let mut wanted = mean.clone();
    for place in 0..units.len() {
        let far = |at: usize| squares[at] - 2.0 * dot(&units[at], &wanted);
        let open = (0..units.len()).filter(|at| places[*at].is_infinite());
        let next = open.map(|at| (far(at), at)).min_by(|a, b| a.0.total_cmp(&b.0));
        let Some((_, next)) = next else { break };
        places[next] = place as f64;
        add(&mut wanted, &units[next], -1.0);
        add(&mut wanted, &mean, 1.0);
    }
    places
}

#[cfg(test)]
mod tests {
    use super::super::counter_rng::{CounterRng, Purpose};
    use super::*;

    fn random_features(class: u32, first: u32, n: u32) -> Vec<Feature> {
        let mut rng = CounterRng::new(u64::from(class), Purpose::Offer, 1);
        let mut value = || rng.below(1 << 20) as f32 / (1 << 19) as f32 - 1.0;
        let feature = |sample| Feature {
            sample: Some(SampleId(sample)),
            class: ClassId(class),
            values: (0..8).map(|_| value()).collect(),
        };
        (first..first + n).map(feature).collect()
    }

    /// iCaRL as written: for each candidate, the mean of it and those taken is compared with the mean of all.
    #[test]
    fn herding_takes_what_icarl_takes() {
        let list = random_features(1, 100, 60);
        let units: Vec<Vec<f64>> = list.iter().map(|feature| unit(&feature.values)).collect();
        let all = mean(&units);
        let mut taken: Vec<usize> = Vec::new();
        for k in 1..=60_u32 {
            let distance = |candidate: &usize| {
                let sum = |d: usize| -> f64 {
                    taken.iter().chain([candidate]).map(|at| units[*at][d]).sum()
                };
                (0..8).map(|d| (all[d] - sum(d) / f64::from(k)).powi(2)).sum::<f64>()
            };
            let open = (0..60).filter(|at| !taken.contains(at));
            let next = open.min_by(|a, b| distance(a).total_cmp(&distance(b)));
            taken.extend(next);
        }
        let mut scores = scores(Policy::Herding, &list).unwrap();
        scores.sort_by(|a, b| a.1.total_cmp(&b.1));
        let order: Vec<usize> = scores.iter().map(|(sample, _)| sample.0 as usize - 100).collect();
        assert_eq!(order, taken);
    }

    #[test]
    fn distances_are_from_the_mean_of_the_own_class() {
        let feature = |sample, class, values: [f32; 2]| Feature {
            sample,
            class: ClassId(class),
            values: values.to_vec(),
        };
        let list = [
            feature(Some(SampleId(0)), 0, [1.0, 0.0]),
            feature(Some(SampleId(1)), 1, [0.0, 5.0]),
            feature(Some(SampleId(2)), 0, [0.0, 3.0]),
            feature(None, 0, [2.0, 0.0]),
            feature(Some(SampleId(3)), 2, [0.0, 0.0]),
        ];
        let scores = scores(Policy::Prototypical, &list).unwrap();
        let of = |id| scores.iter().find(|(s, _)| s.0 == id).map(|(_, score)| f64::from(*score));
        let near = |found: Option<f64>, right: f64| found.is_some_and(|f| (f - right).abs() < 1e-6);
        let five = 5.0_f64.sqrt();
        assert!(near(of(0), 1.0 - 2.0 / five) && near(of(2), 1.0 - 1.0 / five));
        assert!(near(of(1), 0.0) && near(of(3), 1.0), "{scores:?}");
        assert_eq!(scores.len(), 4);
    }

    #[test]
    fn features_that_cannot_be_compared_are_refused() {
        let mut list = random_features(0, 0, 3);
        assert_eq!(scores(Policy::MaxLoss, &list), Ok(Vec::new()));
        list[1].values[3] = f32::NAN;
        assert_eq!(scores(Policy::Herding, &list), Err(FeatureError::NotFinite));
        list[1].values.pop();
        let refused = FeatureError::Dimension { found: 7, expected: 8 };
        assert_eq!(scores(Policy::Herding, &list), Err(refused));
        assert_eq!(scores(Policy::Herding, &[]), Ok(Vec::new()));
    }
}
