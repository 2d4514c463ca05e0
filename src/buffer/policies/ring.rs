//! The samples offered last: first in, first out.

use super::{CounterRng, Member, OfferContext, Retention, Victim, highest};

pub(super) struct Ring;

impl Retention for Ring {
    fn by_class(&self) -> bool {
        false
    }

    fn rank(&self, member: &Member, _rng: u64) -> u64 {
        u64::from(u32::MAX - member.sample.0)
    }

    fn victim(&self, offer: &OfferContext<'_>, _: &mut CounterRng) -> Victim {
        highest(offer.held, offer.newcomer.member.class, None)
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::tests::offer_all;
    use super::super::super::{Capacity, Policy};

    #[test]
    fn keeps_the_last_ones() {
        let buffer = offer_all(Policy::Ring, Capacity::Samples(10), 1, &[5; 95]);
        assert!(buffer.members().map(|member| member.sample.0).eq(85..95));
        let sizes: Vec<u64> = (0..50).map(|n| 1 + n % 7).collect();
        let buffer = offer_all(Policy::Ring, Capacity::Bytes(20), 1, &sizes);
        let kept: Vec<u32> = buffer.members().map(|member| member.sample.0).collect();
        let first = *kept.first().unwrap();
        assert!(kept.iter().copied().eq(first..50), "{kept:?}");
        let with_one_more = buffer.used() + sizes[first as usize - 1];
        assert!(buffer.used() <= 20 && with_one_more > 20);
    }
}
