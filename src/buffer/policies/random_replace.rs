//! The update of Neomem. A full buffer takes a newcomer with a fixed probability, in place of any sample. Old
//! and new samples are replaced equally often, so recent tasks prevail.

use super::{CounterRng, Members, OfferContext, Retention, SampleId, Victim};

/// One of this many newcomers is taken: 14 candidates of a batch of 56.
const ONE_IN: u64 = 4;

pub(super) struct RandomReplace;

impl Retention for RandomReplace {
    fn admits(&self, offer: &OfferContext<'_>, rng: &mut CounterRng) -> bool {
        offer.held.fits(offer.newcomer.member.bytes) || rng.below(ONE_IN) == 0
    }

    fn victim(&self, offer: &OfferContext<'_>, rng: &mut CounterRng) -> Victim {
        offer.held.any(rng).map_or(Victim::Newcomer, Victim::Held)
    }

    fn shrink_victim(&self, held: &Members, rng: &mut CounterRng) -> Option<SampleId> {
        held.any(rng)
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::Policy;
    use super::super::super::tests::reference::{Item, compare, items_of_tasks};
    use super::super::super::tests::shares_of_tasks;

    #[test]
    fn keeps_what_neomem_keeps() {
        let offered = items_of_tasks(&[(0, 30), (1, 20), (0, 20)]);
        compare(Policy::RandomReplace, &offered, 12, |offered, capacity, random| {
            let mut kept: Vec<Item> = Vec::new();
            for item in offered {
                if kept.len() < capacity {
                    kept.push(*item);
                } else if random.index(56) < 14 {
                    let at = random.index(capacity);
                    kept[at] = *item;
                }
            }
            kept
        });
    }

    /// Neomem's known shares: the last of four equal tasks has nearly half of the buffer.
    #[test]
    fn tasks_of_one_size_have_unequal_shares() {
        let shares = shares_of_tasks(Policy::RandomReplace, 4, 2500, 1000, 20);
        println!("shares of four equal tasks under random-replace: {shares:.3?}");
        let known = [0.15, 0.13, 0.25, 0.47];
        let near = |(share, known): (&f64, f64)| (share - known).abs() < 0.02;
        assert!(shares.iter().zip(known).all(near), "{shares:?}");
    }
}
