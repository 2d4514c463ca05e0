//! `std::shuffle` with `std::mt19937`, as in libstdc++ of GCC 11 and later.

use rand_mt::Mt;

/// The seed of a `std::mt19937` without arguments.
pub(super) const DEFAULT_SEED: u64 = 5489;

/// `std::shuffle`: a Fisher-Yates shuffle that walks forward, inside out. Up to 65,535 elements, one drawn
/// number gives two indexes.
pub(super) fn shuffle(list: &mut [u32], rng: &mut Mt) {
    let n = list.len();
    if n < 2 {
        return;
    }
    if (u32::MAX as usize) / n < n {
        for at in 1..n {
            list.swap(at, below(at as u32 + 1, rng) as usize);
        }
        return;
    }
    let mut at = 1;
    if n.is_multiple_of(2) {
        list.swap(1, below(2, rng) as usize);
        at = 2;
    }
    while at < n {
        let (first, second) = (at as u32 + 1, at as u32 + 2);
        let both = below(first * second, rng);
        list.swap(at, (both / second) as usize);
        list.swap(at + 1, (both % second) as usize);
        at += 2;
    }
}

/// `std::uniform_int_distribution` below a bound (Lemire 2019, nearly divisionless).
fn below(bound: u32, rng: &mut Mt) -> u32 {
    loop {
        let product = u64::from(rng.next_u32()) * u64::from(bound);
        let low = product as u32;
        if low >= bound || low >= bound.wrapping_neg() % bound {
            return (product >> 32) as u32;
        }
    }
}
