//! numpy's generators and shuffle, as in numpy 1.17 to 2.x.

use rand_mt::Mt;
use rand_pcg::Pcg64;
use rand_pcg::rand_core::Rng;

/// `shuffle` and `permutation` of `RandomState` and `Generator`: a Fisher-Yates shuffle that walks backward.
/// An index is drawn from the low bits that its bound has, until it is within the bound.
pub(super) fn shuffle(list: &mut [u32], mut next_u32: impl FnMut() -> u32) {
    for last in (1..list.len()).rev() {
        let bound = last as u32;
        let mask = u32::MAX >> bound.leading_zeros();
        let chosen = loop {
            let drawn = next_u32() & mask;
            if drawn <= bound {
                break drawn;
            }
        };
        list.swap(last, chosen as usize);
    }
}

/// `numpy.random.RandomState(seed).permutation(n)`.
pub fn random_state_permutation(n: u32, seed: u32) -> Vec<u32> {
    let mut rng = Mt::new(seed);
    let mut list: Vec<u32> = (0..n).collect();
    shuffle(&mut list, || rng.next_u32());
    list
}

/// The first number of `numpy.random.RandomState(seed).randint(below)`.
pub(super) fn random_state_below(below: u32, seed: u32) -> u32 {
    let mut rng = Mt::new(seed);
    let mask = u32::MAX >> (below - 1).leading_zeros();
    loop {
        let drawn = rng.next_u32() & mask;
        if drawn < below {
            return drawn;
        }
    }
}

/// `numpy.random.default_rng(seed).permutation(n)`; also the indices of Hugging Face's
/// `Dataset.shuffle(seed)`.
pub fn generator_permutation(n: u32, seed: u64) -> Vec<u32> {
    let mut rng = default_rng(seed);
    let mut list: Vec<u32> = (0..n).collect();
    shuffle(&mut list, || rng.next_u32());
    list
}

/// A generator of 64 bits that gives 32 at a time: the low half, then the high half.
#[derive(Clone, Debug)]
pub(super) struct Halves<R> {
    rng: R,
    high: Option<u32>,
}

impl Halves<Pcg64> {
    pub(super) fn next_u32(&mut self) -> u32 {
        if let Some(high) = self.high.take() {
            return high;
        }
        let both = self.rng.next_u64();
        self.high = Some((both >> 32) as u32);
        both as u32
    }
}

/// `numpy.random.default_rng(seed)`: PCG64 (O'Neill 2014, XSL-RR) seeded through `SeedSequence`.
pub(super) fn default_rng(seed: u64) -> Halves<Pcg64> {
    let words = seed_sequence(seed);
    let wide = |at: usize| {
        // Two words make 64 bits, the low word first. Two of these make 128 bits, the high half first.
        let half = |at: usize| u128::from(words[at]) | u128::from(words[at + 1]) << 32;
        half(at) << 64 | half(at + 2)
    };
    Halves { rng: Pcg64::new(wide(0), wide(4)), high: None }
}

/// `numpy.random.SeedSequence(seed).generate_state(8)`, after O'Neill's `seed_seq_fe`.
fn seed_sequence(seed: u64) -> [u32; 8] {
    const MIX: [u32; 2] = [0xca01_f9dd, 0x4973_f715];
    let mut hash = Hash { constant: 0x43b0_d7e5, factor: 0x931e_8875 };
    // A seed below 2^32 is one word, and zeroes follow it, as here.
    let mut pool = [seed as u32, (seed >> 32) as u32, 0, 0].map(|word| hash.of(word));
    for from in 0..pool.len() {
        for to in (0..pool.len()).filter(|to| *to != from) {
            let (own, other) = (MIX[0].wrapping_mul(pool[to]), hash.of(pool[from]));
            let mixed = own.wrapping_sub(MIX[1].wrapping_mul(other));
            pool[to] = mixed ^ mixed >> 16;
        }
    }
    let mut hash = Hash { constant: 0x8b51_f9dd, factor: 0x58f3_8ded };
    std::array::from_fn(|at| hash.of(pool[at % pool.len()]))
}

/// The hash of `SeedSequence`. Its constant changes with every use.
struct Hash {
    constant: u32,
    factor: u32,
}

impl Hash {
    fn of(&mut self, word: u32) -> u32 {
        let word = word ^ self.constant;
        self.constant = self.constant.wrapping_mul(self.factor);
        let word = word.wrapping_mul(self.constant);
        word ^ word >> 16
    }
}
