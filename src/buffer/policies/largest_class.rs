//! The buffer of REMIND (Hayes et al., ECCV 2020) and SIESTA: every newcomer is added, then a random sample
//! of the largest class is given up.

use super::{CounterRng, OfferContext, Retention, Victim};

pub(super) struct LargestClass;

impl Retention for LargestClass {
    fn victim(&self, offer: &OfferContext<'_>, rng: &mut CounterRng) -> Victim {
        let OfferContext { held, newcomer, .. } = *offer;
        let class = newcomer.member.class;
        let own = held.count(class);
        let (largest, count) = match held.largest() {
            // The newcomer counts for its class. Of equal classes, the first is the largest.
            Some((largest, count)) if own + 1 < count || (own + 1 == count && largest < class) => {
                (largest, count)
            }
            _ => (class, own + 1),
        };
        held.of_class(largest, rng.index(count)).map_or(Victim::Newcomer, Victim::Held)
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::Policy;
    use super::super::super::tests::reference::{Item, compare, items_of_tasks, random_largest};

    #[test]
    fn keeps_what_remind_keeps() {
        let offered = items_of_tasks(&[(0, 30), (1, 8), (2, 20), (0, 15), (1, 12)]);
        compare(Policy::LargestClass, &offered, 20, |offered, capacity, random| {
            let mut kept: Vec<Item> = Vec::new();
            for item in offered {
                kept.push(*item);
                if kept.len() > capacity {
                    let at = random_largest(&kept, random);
                    kept.swap_remove(at);
                }
            }
            kept
        });
    }
}
