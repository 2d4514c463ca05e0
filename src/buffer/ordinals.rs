//! The ordinals of a sample stream: each sample gets one, in an order that depends on which samples are
//! ready.
//!
//! The set of an epoch is fixed. The order in which its samples are due is fixed, too: a random permutation,
//! known ahead. The ordinals are numbers from 0, as many as there are samples. An ordinal that a reader asks
//! for is *bound* to the first due sample that is ready and has no ordinal. Samples that are not ready are
//! skipped and stay due. So a reader waits only if no sample is ready, and each sample is still read once.
//!
//! When an epoch is resumed in a new process, its bindings are restored. Samples without an ordinal that are
//! not held any more are no longer due, so some ordinals may stay without a sample.

use std::collections::HashSet;

use super::counter_rng::{CounterRng, Purpose};
use super::members::SampleId;

/// The ordinals of an epoch.
///
/// The seed, the epoch and the samples alone decide when each sample is due. Which ordinal a sample gets also
/// depends on the order of requests and on which samples are ready.
pub struct Ordinals {
    bound: Vec<Option<SampleId>>,
    /// Samples without an ordinal. The last is due first.
    due: Vec<SampleId>,
}

impl Ordinals {
    /// The ordinals of an epoch with the samples of `set`. `pairs` are bound already. Other samples are due
    /// if they are `held`. A pair that conflicts with an earlier pair or with the set is ignored.
    pub fn new(
        seed: u64,
        epoch: u64,
        set: impl IntoIterator<Item = SampleId>,
        pairs: impl IntoIterator<Item = (usize, SampleId)>,
        held: impl Fn(SampleId) -> bool,
    ) -> Ordinals {
        let mut due: Vec<SampleId> = set.into_iter().collect();
        due.sort_unstable();
        due.dedup();
        let (mut bound, mut taken) = (vec![None; due.len()], HashSet::new());
        for (ordinal, sample) in pairs {
            if let Some(place @ None) = bound.get_mut(ordinal)
                && due.binary_search(&sample).is_ok()
                && taken.insert(sample)
            {
                *place = Some(sample);
            }
        }
        CounterRng::new(seed, Purpose::Ordinals, epoch).shuffle(&mut due);
        due.reverse();
        due.retain(|sample| held(*sample) && !taken.contains(sample));
        Ordinals { bound, due }
    }

    pub(crate) fn len(&self) -> usize {
        self.bound.len()
    }

    /// How many samples have no ordinal.
    pub fn left(&self) -> usize {
        self.due.len()
    }

    /// The sample that an ordinal is bound to.
    pub fn get(&self, ordinal: usize) -> Option<SampleId> {
        self.bound.get(ordinal).copied().flatten()
    }

    /// The samples that are bound next if they are ready, the first one first.
    pub fn upcoming(&self) -> impl Iterator<Item = SampleId> {
        self.due.iter().rev().copied()
    }

    /// The sample of an ordinal, which is bound from here on. `None` if no remaining sample is ready, or
    /// there is no such ordinal.
    ///
    /// Takes O(1), and O(1) for each sample that is skipped.
    pub fn bind(&mut self, ordinal: usize, ready: impl Fn(SampleId) -> bool) -> Option<SampleId> {
        let place = self.bound.get_mut(ordinal)?;
        if place.is_none() {
            let first = self.due.iter().rposition(|sample| ready(*sample))?;
            *place = Some(self.due.remove(first));
        }
        *place
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::super::tests::chi_square::uniform;
    use super::*;

    fn ordinals(n: u32, epoch: u64) -> Ordinals {
        Ordinals::new(11, epoch, (0..n).map(SampleId), [], |_| true)
    }

    /// The samples in the order in which they are due.
    fn order(n: u32, epoch: u64) -> Vec<SampleId> {
        let mut ordinals = ordinals(n, epoch);
        (0..n as usize).map(|ordinal| ordinals.bind(ordinal, |_| true).unwrap()).collect()
    }

    #[test]
    fn the_order_is_known_ahead_and_another_one_in_another_epoch() {
        let first = order(200, 3);
        let mut sorted = first.clone();
        sorted.sort_unstable();
        assert!(sorted.into_iter().eq((0..200).map(SampleId)) && !first.is_sorted());
        assert_eq!(order(200, 3), first);
        assert_ne!(order(200, 4), first);
        let mut other = Ordinals::new(12, 3, (0..200).rev().map(SampleId), [], |_| true);
        assert!(first.iter().enumerate().any(|(at, s)| other.bind(at, |_| true) != Some(*s)));
        let none = ordinals(0, 3).bind(0, |_| true);
        assert_eq!((none, ordinals(0, 3).len()), (None, 0));
    }

    #[test]
    fn skipped_samples_stay_due() {
        let order = order(5, 0);
        let mut ordinals = ordinals(5, 0);
        let late = [order[0], order[2]];
        let ready = |sample| !late.contains(&sample);
        assert_eq!(ordinals.bind(4, ready), Some(order[1]));
        assert_eq!(ordinals.bind(0, ready), Some(order[3]));
        assert_eq!(ordinals.bind(4, ready), Some(order[1]), "it is bound");
        assert_eq!(ordinals.bind(1, |sample| sample != late[1]), Some(order[0]));
        assert_eq!(ordinals.bind(2, ready), Some(order[4]));
        assert_eq!((ordinals.bind(3, ready), ordinals.get(3)), (None, None), "none is left");
        assert_eq!(ordinals.bind(5, |_| true), None, "no such ordinal");
        assert_eq!(ordinals.bind(3, |_| true), Some(order[2]));
        assert_eq!((ordinals.get(3), ordinals.len()), (Some(order[2]), 5));
    }

    #[test]
    fn bindings_are_restored() {
        let order = order(6, 2);
        let [a, b, gone, c, d, e] = order[..] else { panic!("six") };
        let pairs = [(4, a), (1, c), (1, d), (0, c), (9, e), (2, SampleId(17))];
        let set = (0..6).map(SampleId);
        let mut again = Ordinals::new(11, 2, set, pairs, |sample| sample != gone);
        assert_eq!((again.get(4), again.get(1), again.get(0)), (Some(a), Some(c), None));
        assert_eq!((again.len(), again.left()), (6, 3));
        let bound = [0, 5, 2, 3].map(|ordinal| again.bind(ordinal, |_| true));
        assert_eq!(bound, [Some(b), Some(d), Some(e), None]);
        assert_eq!((again.bind(4, |_| false), again.left()), (Some(a), 0));
    }

    #[test]
    fn each_sample_is_as_likely_at_each_ordinal() {
        for place in [0, 4, 9] {
            let mut counts = vec![0; 10];
            (0..5000).for_each(|epoch| counts[order(10, epoch)[place].0 as usize] += 1);
            uniform(&format!("ordinal {place} of 10"), &counts);
        }
    }

    /// An event of a sample stream.
    #[derive(Clone, Debug)]
    enum Step {
        /// A reader asks for an ordinal.
        Ask(usize),
        /// A sample becomes ready.
        Ready(u32),
    }

    fn steps() -> impl Strategy<Value = (u32, Vec<Step>)> {
        (1..40_u32).prop_flat_map(|n| {
            // Some numbers are no ordinals.
            let ask = (0..n as usize + 2).prop_map(Step::Ask);
            let step = prop_oneof![ask, (0..n).prop_map(Step::Ready)];
            (Just(n), prop::collection::vec(step, 0..200))
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        /// Readers ask in any order, and samples become ready in any order.
        #[test]
        fn each_sample_gets_one_ordinal((n, steps) in steps(), epoch in any::<u64>()) {
            let order = order(n, epoch);
            let mut ordinals = ordinals(n, epoch);
            let (mut ready, mut taken) = (HashSet::new(), HashSet::new());
            let mut bound = vec![None; n as usize];
            for step in steps {
                let ordinal = match step {
                    Step::Ready(sample) => {
                        ready.insert(SampleId(sample));
                        continue;
                    }
                    Step::Ask(ordinal) => ordinal,
                };
                let found = ordinals.bind(ordinal, |sample| ready.contains(&sample));
                let Some(place) = bound.get_mut(ordinal) else {
                    prop_assert_eq!(found, None);
                    continue;
                };
                if place.is_none() {
                    let free = |s: &&SampleId| ready.contains(*s) && !taken.contains(*s);
                    *place = order.iter().find(free).copied();
                    taken.extend(*place);
                }
                prop_assert_eq!(found, *place, "ordinal {}", ordinal);
                prop_assert_eq!(ordinals.get(ordinal), found);
            }
            // In the end all are bound, each to its own sample.
            let all = (0..n as usize).map(|ordinal| ordinals.bind(ordinal, |_| true));
            let all: HashSet<SampleId> = all.map(|sample| sample.unwrap()).collect();
            prop_assert_eq!(all.len(), n as usize);
            prop_assert!(bound.iter().zip(0..).all(|(b, at)| b.is_none() || ordinals.get(at) == *b));
        }
    }
}
