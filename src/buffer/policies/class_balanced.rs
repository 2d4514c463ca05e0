//! Class-balanced reservoir sampling (CBRS, Chrysakis and Moens, ICML 2020).
//!
//! If no sample of a class was ever given up, its newcomers replace samples of the largest class. A class
//! that lost samples, or is the largest, is a reservoir of its own.

use super::{CounterRng, OfferContext, Retention, Victim, highest};

pub(super) struct ClassBalanced;

impl Retention for ClassBalanced {
    fn admits(&self, offer: &OfferContext<'_>, _: &mut CounterRng) -> bool {
        offer.ranks_below_evicted_of_class()
    }

    fn victim(&self, offer: &OfferContext<'_>, _: &mut CounterRng) -> Victim {
        let OfferContext { held, evicted, newcomer } = *offer;
        let class = newcomer.member.class;
        match held.largest() {
            Some((largest, count)) if held.count(class) < count && evicted.of(class).is_none() => {
                highest(held, largest, None)
            }
            _ => highest(held, class, Some(newcomer)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::Policy;
    use super::super::super::tests::reference::{Item, compare, items_of_tasks, random_largest};

    #[test]
    fn keeps_what_cbrs_keeps() {
        let offered = items_of_tasks(&[(0, 40), (1, 8), (2, 20), (0, 15), (1, 12), (2, 9)]);
        compare(Policy::ClassBalanced, &offered, 24, |offered, capacity, random| {
            let mut kept: Vec<Item> = Vec::new();
            let mut full = [false; 3];
            let mut seen = [0; 3];
            for item in offered {
                let class = item.class as usize;
                seen[class] += 1;
                let count =
                    |class: usize| kept.iter().filter(|k| k.class as usize == class).count();
                if kept.len() < capacity {
                    kept.push(*item);
                    continue;
                }
                let most = (0..3).map(count).max().unwrap_or(0);
                full[class] |= count(class) == most;
                if full[class] {
                    if random.index(seen[class]) < count(class) {
                        let mut own = kept.iter_mut().filter(|k| k.class == item.class);
                        let at = random.index(own.by_ref().count());
                        let mut own = kept.iter_mut().filter(|k| k.class == item.class);
                        *own.nth(at).unwrap() = *item;
                    }
                } else {
                    let at = random_largest(&kept, random);
                    full[kept[at].class as usize] = true;
                    kept[at] = *item;
                }
            }
            kept
        });
    }
}
