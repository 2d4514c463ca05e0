//! The draw in which members compete for a sample.
//!
//! Each member has a random number `u` in (0, 1) for each sample, by the hashes of both. The member with the least
//! `-ln(u) / weight` wins. So a member wins a share of the samples that is its share of all weights.
//!
//! All members of a cluster must find the same winner. So the logarithm is made of sums, products and quotients, which
//! have one result on every machine. Members of one weight are compared by `u` alone.

use super::mix;
use super::view::MemberNo;

/// Members of one weight.
#[derive(Debug)]
struct Class {
    /// One over the weight.
    inverse: f64,
    /// A number to mix into the hash of a sample, and the member.
    members: Vec<(u64, MemberNo)>,
}

/// Members that take part, with their weights.
#[derive(Debug, Default)]
pub(super) struct Draw {
    classes: Vec<Class>,
}

impl Draw {
    /// A draw of members, each with its seed and its weight. A member with the weight 0 takes no part.
    pub(super) fn new(members: impl IntoIterator<Item = (MemberNo, u64, u64)>) -> Self {
        let mut weighted: Vec<_> =
            members.into_iter().filter(|(_, _, weight)| *weight > 0).collect();
        weighted.sort_unstable_by_key(|(number, _, weight)| (*weight, *number));
        let classes = weighted.chunk_by(|(_, _, a), (_, _, b)| a == b).map(|class| Class {
            inverse: 1.0 / class[0].2 as f64,
            members: class.iter().map(|(number, seed, _)| (mix(*seed), *number)).collect(),
        });
        Draw { classes: classes.collect() }
    }

    /// The winner of a sample with this hash among the members that `may` take part; `None` if there is none.
    pub(super) fn winner(&self, hash: u64, may: impl Fn(MemberNo) -> bool) -> Option<MemberNo> {
        let best = |class: &Class| {
            let members = class.members.iter().filter(|(_, number)| may(*number));
            let drawn = members.map(|(salt, number)| (mix(hash ^ salt), *number));
            drawn.max().map(|(bits, number)| (bits, number, class.inverse))
        };
        let mut bests = self.classes.iter().filter_map(best);
        let (bits, number, inverse) = bests.next()?;
        let Some(second) = bests.next() else { return Some(number) };
        let cost = |bits: u64, inverse: f64| minus_ln(bits) * inverse;
        let (mut winner, mut least) = (number, cost(bits, inverse));
        for (bits, number, inverse) in [second].into_iter().chain(bests) {
            let cost = cost(bits, inverse);
            if cost < least {
                (winner, least) = (number, cost);
            }
        }
        Some(winner)
    }

    /// A member takes no part any more.
    pub(super) fn remove(&mut self, member: MemberNo) {
        for class in &mut self.classes {
            class.members.retain(|(_, number)| *number != member);
        }
        self.classes.retain(|class| !class.members.is_empty());
    }
}

/// `-ln(u)` for the number `u` in (0, 1) that these bits make, within 1e-9 of it.
fn minus_ln(bits: u64) -> f64 {
    // The upper 52 bits, and a half, so that it is neither 0 nor 1.
    let u = (bits >> 12) as f64 + 0.5;
    let (exponent, fraction) = split(u);
    let s = (fraction - 1.0) / (fraction + 1.0);
    let square = s * s;
    // ln(fraction) = 2 artanh(s), by its series. `s` is at most 0.172.
    let series = 1.0
        + square
            * (1.0 / 3.0
                + square * (0.2 + square * (1.0 / 7.0 + square * (1.0 / 9.0 + square / 11.0))));
    let ln = 2.0 * s * series + (exponent - 52) as f64 * std::f64::consts::LN_2;
    -ln
}

/// A positive number as a power of two and a factor between 0.7 and 1.42.
fn split(number: f64) -> (i64, f64) {
    let bits = number.to_bits();
    let (exponent, fraction) = ((bits >> 52) as i64 - 1023, bits & ((1 << 52) - 1) | 1023 << 52);
    let fraction = f64::from_bits(fraction);
    if fraction > std::f64::consts::SQRT_2 {
        (exponent + 1, fraction / 2.0)
    } else {
        (exponent, fraction)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_logarithm_is_nearly_that_of_the_library() {
        for nth in 0..100_000_u64 {
            let bits = mix(nth) >> (nth % 60);
            let u = ((bits >> 12) as f64 + 0.5) / (1_u64 << 52) as f64;
            let (own, library) = (minus_ln(bits), -u.ln());
            assert!((own - library).abs() < 1e-9 && own > 0.0, "{bits}: {own} {library}");
        }
        assert!(minus_ln(u64::MAX) > 0.0 && minus_ln(0).is_finite());
    }

    #[test]
    fn a_member_wins_by_its_weight_and_the_winner_does_not_depend_on_losers() {
        let members = [(0, 1), (1, 3), (2, 3), (3, 9), (4, 0)]
            .map(|(nr, weight)| (MemberNo(nr), mix(u64::from(nr)), weight));
        let (draw, mut without) = (Draw::new(members), Draw::new(members));
        without.remove(MemberNo(2));
        let mut won = [0; 5];
        for nth in 0..160_000_u64 {
            let winner = draw.winner(mix(nth), |_| true).unwrap();
            won[usize::from(winner.0)] += 1;
            if winner != MemberNo(2) {
                assert_eq!(without.winner(mix(nth), |_| true), Some(winner));
                let other = draw.winner(mix(nth), |number| number != MemberNo(2));
                assert_eq!(other, Some(winner));
            }
        }
        for (won, weight) in won.into_iter().zip([1.0, 3.0, 3.0, 9.0, 0.0]) {
            let expected: f64 = 10_000.0 * weight;
            assert!(
                (f64::from(won) - expected).abs() <= 4.0 * expected.sqrt(),
                "{won} of {expected}"
            );
        }
        assert_eq!(Draw::default().winner(1, |_| true), None);
    }
}
