//! Greedy balance (GDumb, Prabhu, Torr and Dokania, ECCV 2020). A sample is taken while its class has less
//! than an equal share of the room. If there is no room, it replaces a random sample of the largest class. A
//! balanced buffer does not change.

use super::{CounterRng, OfferContext, Retention, Victim};

pub(super) struct Gdumb;

impl Retention for Gdumb {
    fn admits(&self, offer: &OfferContext<'_>, _: &mut CounterRng) -> bool {
        let OfferContext { held, newcomer, .. } = *offer;
        let used = u128::from(held.used_by(newcomer.member.class));
        used * (held.classes().len() as u128) < u128::from(held.capacity.limit())
    }

    fn victim(&self, offer: &OfferContext<'_>, rng: &mut CounterRng) -> Victim {
        let any = |(class, count)| offer.held.of_class(class, rng.index(count));
        offer.held.largest().and_then(any).map_or(Victim::Newcomer, Victim::Held)
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::Policy;
    use super::super::super::tests::reference::{Item, compare, items_of_tasks, random_largest};

    #[test]
    fn keeps_what_gdumb_keeps() {
        let offered = items_of_tasks(&[(0, 30), (1, 8), (2, 20), (0, 15), (1, 12)]);
        compare(Policy::Gdumb, &offered, 20, |offered, capacity, random| {
            let mut kept: Vec<Item> = Vec::new();
            let mut classes: Vec<u32> = Vec::new();
            for item in offered {
                if !classes.contains(&item.class) {
                    classes.push(item.class);
                }
                let count = kept.iter().filter(|k| k.class == item.class).count();
                if count * classes.len() >= capacity {
                    continue;
                }
                if kept.len() >= capacity {
                    let at = random_largest(&kept, random);
                    kept.swap_remove(at);
                }
                kept.push(*item);
            }
            kept
        });
    }
}
