//! CPython's `random`, as in 3.2 to 3.x.

use std::collections::HashSet;

use rand_mt::Mt;
use sha2::{Digest, Sha512};

/// `random.Random(seed)`: mt19937 initialised by the array of the seed's words, low word first.
pub(super) fn seeded(seed: u64) -> Mt {
    let words = [seed as u32, (seed >> 32) as u32];
    let used = if words[1] == 0 { 1 } else { 2 };
    Mt::new_with_key(words.into_iter().take(used))
}

/// `random.Random(text)`: the seed is the text followed by its SHA-512, read as a number, high byte first.
pub(super) fn seeded_with_text(text: &str) -> Mt {
    let mut bytes = text.as_bytes().to_vec();
    bytes.extend_from_slice(&Sha512::digest(text.as_bytes()));
    bytes.reverse();
    let word =
        |bytes: &[u8]| bytes.iter().rev().fold(0, |word: u32, byte| word << 8 | u32::from(*byte));
    let mut words: Vec<u32> = bytes.chunks(4).map(word).collect();
    while words.last() == Some(&0) && words.len() > 1 {
        words.pop();
    }
    Mt::new_with_key(words)
}

/// `randrange(bound)`: draws as many high bits as the bound has, until they are below it.
pub(super) fn below(bound: u32, rng: &mut Mt) -> u32 {
    loop {
        let drawn = rng.next_u32() >> bound.leading_zeros();
        if drawn < bound {
            return drawn;
        }
    }
}

/// `random.shuffle(list)`
pub(super) fn shuffle(list: &mut [u32], rng: &mut Mt) {
    for last in (1..list.len()).rev() {
        list.swap(last, below(last as u32 + 1, rng) as usize);
    }
}

/// `random.sample(range(n), k)`: picks from a pool that shrinks. If `k` is a small part of `n`, it draws
/// until it has `k` different numbers. Gives at most `n`.
pub(super) fn sample(n: u32, k: u32, rng: &mut Mt) -> Vec<u32> {
    let k = k.min(n);
    // The size of a set of k, in entries of a list.
    let mut set_size = 21;
    if k > 5 {
        let mut power: u64 = 1;
        while power < u64::from(k) * 3 {
            power *= 4;
        }
        set_size += power;
    }
    if u64::from(n) <= set_size {
        let mut pool: Vec<u32> = (0..n).collect();
        return (0..k).map(|i| pool.swap_remove(below(n - i, rng) as usize)).collect();
    }
    let mut seen = HashSet::with_capacity(k as usize);
    let mut fresh = || loop {
        let drawn = below(n, rng);
        if seen.insert(drawn) {
            return drawn;
        }
    };
    (0..k).map(|_| fresh()).collect()
}
