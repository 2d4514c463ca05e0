//! The first outputs of mt19937 (Matsumoto and Nishimura 1998), without the rest of its state.

/// The most outputs that follow from the seed's words alone.
pub(super) const OUTPUTS_MAX: u32 = WORDS - MIDDLE;

/// Words of the state.
const WORDS: u32 = 624;
/// How far the word is that an output mixes in.
pub(super) const MIDDLE: u32 = 397;

/// Word number `at` of the state that a seed is spread to, of the word before it.
#[inline(always)]
pub(super) fn next_word(before: u32, at: u32) -> u32 {
    (before ^ before >> 30).wrapping_mul(1_812_433_253).wrapping_add(at)
}

/// An output of three words of that state: its own, the next, and that [`MIDDLE`] words on.
#[inline(always)]
pub(super) fn draw(first: u32, second: u32, middle: u32) -> u32 {
    let mixed = first & 1 << 31 | second & !(1 << 31);
    let odd = (second & 1).wrapping_neg();
    let mut word = middle ^ mixed >> 1 ^ odd & 0x9908_b0df;
    word ^= word >> 11;
    word ^= word << 7 & 0x9d2c_5680;
    word ^= word << 15 & 0xefc6_0000;
    word ^ word >> 18
}

/// The outputs of one seed from the first on, as many as are asked for.
#[derive(Clone, Debug)]
pub(super) struct Outputs {
    words: [u32; WORDS as usize],
    /// How many words have been spread.
    spread: usize,
}

impl Outputs {
    pub(super) fn new(seed: u32) -> Self {
        let mut words = [0; WORDS as usize];
        words[0] = seed;
        Outputs { words, spread: 1 }
    }

    /// Output number `at`, which is below [`OUTPUTS_MAX`].
    pub(super) fn get(&mut self, at: u32) -> u32 {
        let at = at as usize;
        let middle = at + MIDDLE as usize;
        while self.spread <= middle {
            self.words[self.spread] = next_word(self.words[self.spread - 1], self.spread as u32);
            self.spread += 1;
        }
        draw(self.words[at], self.words[at + 1], self.words[middle])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::order::samplers::torch::generator;

    #[test]
    fn the_outputs_are_the_generators() {
        for seed in [0, 1, 42, u32::MAX] {
            let (mut outputs, mut whole) = (Outputs::new(seed), generator(u64::from(seed)));
            for at in 0..OUTPUTS_MAX {
                assert_eq!(outputs.get(at), whole.next_u32(), "{seed} {at}");
            }
        }
    }
}
