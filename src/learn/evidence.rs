//! How much the opens of readers say for an order.
//!
//! Two models are compared: the readers go forward through the order, or they open what has not been opened
//! yet in no order at all. [`weigh`] gives the logarithm of the likelihood ratio, to base 2. The first model
//! codes steps adaptively (Krichevsky and Trofimov 1981), from a prior that likes short steps. So batches,
//! workers, ranks and unseen opens are learnt as they come. Both models are true probabilities, so an order
//! that no loader reads reaches `b` bits once in 2^b, whenever it is weighed (Ville 1939).

use super::event::Basis;

/// Bits beyond those that tell all orders tried apart: one loader in a million is followed in a wrong order.
pub(super) const SURE: f64 = 20.0;

/// The evidence for an order.
#[derive(Clone, Copy, Debug)]
pub(super) struct Evidence {
    pub(super) basis: Basis,
    /// The bits that speak for the order, and those that are asked for.
    pub(super) bits: f64,
    pub(super) needed: f64,
}

impl Evidence {
    pub(super) fn is_enough(&self) -> bool {
        self.bits >= self.needed
    }
}

/// The longest step forward: two batches of 128 of 8 workers of one in 8 ranks.
pub(super) const STEP_MAX: u32 = 1 << 14;

/// Prior probabilities: of one step forward, and of an open that is no step forward.
const ONE: f64 = 0.25;
const MISS: f64 = 1.0 / 16.0;

/// How many observed steps the prior weighs.
const PRIOR: f64 = 4.0;

/// How many different steps are told apart.
const STEPS_KEPT: usize = 64;

/// The steps that readers have taken.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Steps {
    counts: Vec<(u32, u32)>,
    misses: u32,
    total: u32,
}

impl Steps {
    /// The probability of this step, which is then counted. Step 0 is an open that is no step forward.
    pub(super) fn take(&mut self, step: u32) -> f64 {
        let mut other = 0;
        let (prior, count) = match step {
            0 => (MISS, &mut self.misses),
            step => {
                // 1/d over 2..=STEP_MAX sums up to 9.281.
                let rest = (1.0 - ONE - MISS) / 9.281 / f64::from(step);
                let mut at = self.counts.iter().position(|count| count.0 == step);
                if at.is_none() && self.counts.len() < STEPS_KEPT {
                    at = Some(self.counts.len());
                    self.counts.push((step, 0));
                }
                let count = at.map_or(&mut other, |at| &mut self.counts[at].1);
                (if step == 1 { ONE } else { rest }, count)
            }
        };
        let probability = (PRIOR * prior + f64::from(*count)) / (PRIOR + f64::from(self.total));
        *count += 1;
        self.total += 1;
        probability
    }
}

/// The probability of a reader's first place: near the start as a rule, anywhere after a resume.
fn start(place: u32, n: f64) -> f64 {
    let near = if place == 0 { 0.25 } else { 0.75 / f64::from(place) / (n.ln() + 1.0) };
    (near + 1.0 / n) / 2.0
}

/// The bits of one reader's opens, and the steps with those of the reader.
fn weigh_one(
    samples: &[u32],
    unread: f64,
    mut steps: Steps,
    place: impl Fn(u32) -> Option<u32>,
) -> (f64, Steps) {
    let (mut bits, mut last, mut lost) = (0.0, None, false);
    for &sample in samples {
        let place = place(sample);
        let (Some(from), Some(to)) = (last, place) else {
            match place {
                Some(to) => bits += (start(to, unread) * unread).log2(),
                None => bits += steps.take(0).log2(),
            }
            last = last.or(place);
            continue;
        };
        let step = to.checked_sub(from).filter(|step| (1..=STEP_MAX).contains(step));
        let probability = steps.take(step.unwrap_or(0));
        bits += probability.log2() + if step.is_some() { unread.log2() } else { 0.0 };
        // A single open out of order may belong to another order. After two the reader is elsewhere.
        if step.is_some() || lost {
            last = Some(to);
        }
        lost = step.is_none() && !lost;
    }
    (bits, steps)
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Weight {
    /// The logarithm of the likelihood ratio.
    pub(super) bits: f64,
    /// By reader, the bits of its own opens.
    pub(super) readers: Vec<f64>,
    pub(super) steps: Steps,
}

/// Weighs an order, in which `place` gives a sample's place, by what each reader opened in turn. `unread`
/// samples of it had not been opened before. A reader may also have nothing to do with the order, which costs
/// the others one bit.
pub(super) fn weigh<'r>(
    readers: impl IntoIterator<Item = &'r [u32]>,
    unread: u32,
    place: impl Fn(u32) -> Option<u32>,
) -> Weight {
    let unread = f64::from(unread.max(2));
    let mut weight = Weight::default();
    for samples in readers {
        let (bits, learnt) = weigh_one(samples, unread, weight.steps.clone(), &place);
        if bits > 0.0 {
            weight.steps = learnt;
        }
        // The mean of both ratios is at most one bit below the better.
        weight.bits += if bits > 60.0 { bits - 1.0 } else { ((bits.exp2() + 1.0) / 2.0).log2() };
        weight.readers.push(bits);
    }
    weight
}

/// Weighs an order against the model that the readers open, in no order, samples between the lowest and the
/// highest place that they opened. Files of a class lie together in the order of names, so a job that
/// shuffles one class takes short steps through that order.
pub(super) fn weigh_nearby<'r>(
    readers: impl Iterator<Item = &'r [u32]> + Clone,
    unread: u32,
    place: impl Fn(u32) -> Option<u32>,
) -> Weight {
    let places = || readers.clone().flatten().filter_map(|&sample| place(sample));
    let span = places().max().zip(places().min()).map_or(0, |(high, low)| high - low + 1);
    weigh(readers, unread.min(span), &place)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bits(readers: &[Vec<u32>], n: u32) -> f64 {
        weigh(readers.iter().map(Vec::as_slice), n, |sample| (sample < n).then_some(sample)).bits
    }

    #[test]
    fn consecutive_opens_weigh_about_the_logarithm_of_what_is_unread() {
        let five = bits(&[(0..5).collect()], 50_000);
        assert!((60.0..5.0 * 15.6).contains(&five), "{five}");
        let workers: Vec<Vec<u32>> = (0..4).map(|w| (w * 64..w * 64 + 4).collect()).collect();
        assert!(bits(&workers, 50_000) > 4.0 * 42.0);
    }

    #[test]
    fn strides_and_gaps_are_learnt() {
        let strided = bits(&[(0..20).map(|i| 3 + 24 * i).collect()], 50_000);
        assert!(strided > 15.0 * 14.0, "{strided}");
        let gaps = bits(&[vec![0, 1, 3, 4, 5, 8, 9, 10]], 50_000);
        assert!(gaps > 70.0, "{gaps}");
    }

    #[test]
    fn a_resumed_reader_weighs_by_its_steps() {
        let resumed = bits(&[(31_000..31_008).collect()], 50_000);
        assert!(resumed > 80.0, "{resumed}");
        assert!(bits(&[vec![31_000]], 50_000) < 0.5);
    }

    #[test]
    fn who_reads_something_else_costs_a_bit() {
        let own: Vec<u32> = (0..8).collect();
        let alone = bits(std::slice::from_ref(&own), 50_000);
        let jumps: Vec<u32> = (7..55u32).map(|i| i * i * 7_919 % 50_000).collect();
        let beside = bits(&[jumps.clone(), own.clone(), vec![u32::MAX; 48]], 50_000);
        assert!(alone - beside < 2.1, "{alone} {beside}");
        let weight = weigh([jumps.as_slice(), &own], 50_000, Some);
        assert!(weight.readers[0] < 0.0 && weight.readers[1] > 80.0, "{weight:?}");
    }

    #[test]
    fn short_steps_within_a_part_say_nothing() {
        let nearby = |samples: &[u32]| weigh_nearby([samples].into_iter(), 1 << 20, Some).bits;
        let jumps: Vec<u32> = (7..55u32).map(|i| 9_000 + i * i * 7_919 % 1_300).collect();
        assert!(bits(std::slice::from_ref(&jumps), 1 << 20) > 60.0);
        assert!(nearby(&jumps) < 10.0, "{}", nearby(&jumps));
        let ahead: Vec<u32> = (9_000..9_016).collect();
        assert!(nearby(&ahead) > 24.0, "{}", nearby(&ahead));
    }

    /// The sum of the likelihood ratio over all that could have happened is 1: nothing is counted
    /// twice, and there is no evidence out of nothing.
    #[test]
    fn the_ratio_is_one_on_average() {
        let n = 64;
        let all = (0..n).flat_map(|a| (0..n).map(move |b| vec![a, b]));
        let sum: f64 = all.map(|opens| bits(&[opens], n).exp2()).sum();
        let mean = sum / f64::from(n * n);
        assert!((0.5..1.01).contains(&mean), "{mean}");
    }
}
