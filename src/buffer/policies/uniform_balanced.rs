//! Equal classes, each a uniform sample of its offers.
//!
//! Unlike with CBRS, a class that lost samples takes room from a larger class when it gets offers again.

use super::{CounterRng, OfferContext, Retention};

pub(super) struct UniformBalanced;

impl Retention for UniformBalanced {
    fn admits(&self, offer: &OfferContext<'_>, _: &mut CounterRng) -> bool {
        offer.ranks_below_evicted_of_class()
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::tests::reference::{Item, compare, items_of_tasks};
    use super::super::super::tests::{buffer_of, fill};
    use super::super::super::{Capacity, Policy};

    /// Equally many offers of each class: each keeps its share, as if drawn at once from all offers.
    #[test]
    fn keeps_an_equal_share_of_each_class() {
        let offered = items_of_tasks(&[(0, 30), (1, 30), (2, 30)]);
        compare(Policy::UniformBalanced, &offered, 15, |offered, capacity, random| {
            let mut kept = Vec::new();
            for class in 0..3 {
                let mut own: Vec<Item> =
                    offered.iter().filter(|i| i.class == class).copied().collect();
                random.shuffle(&mut own);
                kept.extend_from_slice(&own[..capacity / 3]);
            }
            kept
        });
    }

    /// A class keeps all its offers, or as many as the largest class, plus or minus one.
    #[test]
    fn scarce_classes_are_held_whole() {
        for seed in 0..50 {
            let mut buffer = buffer_of(Policy::UniformBalanced, Capacity::Samples(100), seed);
            fill(&mut buffer, &[(0, 500), (1, 7), (2, 300), (3, 60)]);
            let counts: Vec<usize> = buffer.classes().map(|class| buffer.count(class)).collect();
            assert_eq!((buffer.len(), counts[1]), (100, 7), "{counts:?}");
            assert!(
                [0, 2, 3].iter().all(|class| (30..=32).contains(&counts[*class])),
                "{counts:?}"
            );
        }
    }
}
