//! A uniform sample of all offers: the lowest ranks, which are random.

use super::{CounterRng, OfferContext, Retention, Victim, highest};

pub(super) struct Reservoir;

impl Retention for Reservoir {
    fn by_class(&self) -> bool {
        false
    }

    fn admits(&self, offer: &OfferContext<'_>, _: &mut CounterRng) -> bool {
        offer.evicted.of_all().is_none_or(|lowest| offer.newcomer.rank < lowest)
    }

    fn victim(&self, offer: &OfferContext<'_>, _: &mut CounterRng) -> Victim {
        highest(offer.held, offer.newcomer.member.class, Some(offer.newcomer))
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::tests::reference::{Item, compare, items_of_tasks};
    use super::super::super::tests::{offer_all, shares_of_tasks};
    use super::super::super::{Capacity, Policy};

    #[test]
    fn keeps_what_algorithm_r_keeps() {
        let offered = items_of_tasks(&[(0, 30), (1, 10), (0, 20)]);
        compare(Policy::Reservoir, &offered, 12, |offered, capacity, random| {
            let mut kept: Vec<Item> = Vec::new();
            for (seen, item) in offered.iter().enumerate() {
                if seen < capacity {
                    kept.push(*item);
                } else if let at = random.index(seen + 1)
                    && at < capacity
                {
                    kept[at] = *item;
                }
            }
            kept
        });
    }

    #[test]
    fn tasks_of_one_size_have_equal_shares() {
        let shares = shares_of_tasks(Policy::Reservoir, 4, 2500, 1000, 20);
        println!("shares of four equal tasks under reservoir: {shares:.3?}");
        assert!(shares.iter().all(|share| (share - 0.25).abs() < 0.02), "{shares:?}");
    }

    /// With a capacity in bytes, large samples are kept as often as small ones.
    #[test]
    fn size_does_not_matter() {
        let (mut large, mut all) = (0, 0);
        for seed in 0..200 {
            let sizes: Vec<u64> = (0..400).map(|n| if n % 2 == 0 { 10 } else { 90 }).collect();
            let buffer = offer_all(Policy::Reservoir, Capacity::Bytes(2000), seed, &sizes);
            assert!(buffer.used() <= 2000);
            large += buffer.members().filter(|member| member.bytes == 90).count();
            all += buffer.len();
        }
        let share =
            f64::from(u32::try_from(large).unwrap()) / f64::from(u32::try_from(all).unwrap());
        println!("share of large samples: {share:.3} of {all}");
        assert!((share - 0.5).abs() < 0.02, "{share}");
    }
}
