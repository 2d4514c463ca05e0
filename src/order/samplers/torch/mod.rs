//! PyTorch's samplers on the CPU, as in `torch.utils.data` of 1.13 to 2.x.
//!
//! All randomness is mt19937 (Matsumoto and Nishimura 1998), seeded with the low 32 bits of the seed.
//! [`randperm`] is `torch.randperm` (ATen's `randperm_cpu`): a Fisher-Yates shuffle that walks forward, with
//! one draw a step, reduced by plain modulo. The samplers differ in the generator of the permutation:
//!
//! - [`Distributed`] seeds a new generator with `seed + epoch` for every epoch;
//! - [`Random`] draws all epochs from one generator, which the loader uses as well;
//! - [`DefaultGenerator`] seeds a new generator for every epoch with an output of the process's generator;
//! - [`SubsetRandom`] and [`Stateful`] draw one permutation after the other from one generator;
//! - [`Weighted`] draws positions by their weights, all epochs from one generator.

mod default_generator;
mod distributed;
mod head;
mod loader;
mod random;
mod stateful;
mod subset_random;
mod weighted;
mod weights;

pub use default_generator::DefaultGenerator;
pub use distributed::Distributed;
pub use head::RandpermHead;
pub use random::Random;
pub use stateful::Stateful;
pub use subset_random::SubsetRandom;
pub use weighted::Weighted;
pub use weights::Weights;

use rand_mt::Mt;

/// From this many elements on, `torch.randperm` shuffles by its second rule: UINT32_MAX / 20.
const LARGE: u32 = u32::MAX / 20;

/// The CPU generator `torch.Generator().manual_seed(seed)`.
///
/// Only the low 32 bits of the seed count: 42 and 2^32 + 42 are the same.
pub fn generator(seed: u64) -> Mt {
    Mt::new(seed as u32)
}

/// `torch.randperm(n, generator=rng)`: a permutation of `0..n`; consumes [`randperm_outputs`].
///
/// From 214,748,364 elements on, this is torch's rule since pytorch/pytorch#143682 (the end of 2024). Earlier
/// versions, 1.13 among them, shuffle any number of elements by the rule for fewer.
pub fn randperm(n: u32, rng: &mut Mt) -> Vec<u32> {
    if n < LARGE { forward(n, rng) } else { inside_out(n, rng) }
}

/// How many 32-bit outputs of the generator [`randperm`] of `n` consumes.
pub fn randperm_outputs(n: u32) -> u64 {
    if n < LARGE { u64::from(n.saturating_sub(1)) } else { 2 * u64::from(n) }
}

/// The rule for fewer than [`LARGE`] elements: step `i` swaps element `i` with itself or a later one.
fn forward(n: u32, rng: &mut Mt) -> Vec<u32> {
    let mut perm: Vec<u32> = (0..n).collect();
    let mut rest = perm.as_mut_slice();
    while rest.len() > 1 {
        let chosen = rng.next_u32() % rest.len() as u32;
        rest.swap(0, chosen as usize);
        rest = &mut rest[1..];
    }
    perm
}

/// The rule for [`LARGE`] elements and more: Fisher-Yates inside out. 64-bit draws keep the modulo close to
/// uniform.
fn inside_out(n: u32, rng: &mut Mt) -> Vec<u32> {
    let mut perm: Vec<u32> = Vec::with_capacity(n as usize);
    for i in 0..n {
        // The first draw is the high word.
        let chosen = (rng.next_u64() % (u64::from(i) + 1)) as usize;
        perm.push(i);
        perm.swap(i as usize, chosen);
    }
    perm
}

/// `torch.randint(high=n, size=(n,), generator=rng)`: `n` positions with repetition, one draw each.
/// `RandomSampler` asks for 32 at a time and gets the same.
fn with_replacement(n: u32, rng: &mut Mt) -> Vec<u32> {
    (0..n).map(|_| rng.next_u32() % n).collect()
}

fn discard(rng: &mut Mt, outputs: u64) {
    for _ in 0..outputs {
        rng.next_u32();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn randperm_is_torchs() {
        assert_eq!(randperm(10, &mut generator(0)), [4, 1, 7, 5, 3, 9, 0, 8, 6, 2]);
        assert_eq!(randperm(10, &mut generator(1)), [5, 6, 1, 2, 0, 8, 9, 3, 7, 4]);
        assert!(randperm(0, &mut generator(0)).is_empty());
        assert_eq!(randperm(1, &mut generator(0)), [0]);
    }

    #[test]
    fn randperm_consumes_what_it_says() {
        for n in [0, 1, 2, 1000] {
            let (mut a, mut b) = (generator(5), generator(5));
            randperm(n, &mut a);
            (0..randperm_outputs(n)).for_each(|_| _ = b.next_u32());
            assert_eq!(a, b, "{n}");
        }
    }

    #[test]
    fn the_large_rule_is_atens_loop() {
        // r[i] = i; r[i] = r[z]; r[z] = i, as ATen writes it over an uninitialised array.
        let mut rng = generator(9);
        let mut expected = vec![u32::MAX; 500];
        for i in 0..expected.len() {
            let (high, low) = (u64::from(rng.next_u32()), u64::from(rng.next_u32()));
            let z = ((high << 32 | low) % (i as u64 + 1)) as usize;
            expected[i] = i as u32;
            expected[i] = expected[z];
            expected[z] = i as u32;
        }
        assert_eq!(inside_out(500, &mut generator(9)), expected);
        assert_eq!(LARGE, 214_748_364);
        assert_eq!(randperm_outputs(LARGE), 2 * 214_748_364);
    }
}
