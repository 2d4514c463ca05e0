//! The pass over seeds: which of them give what was seen as the element at a place.
//!
//! Output `i` of mt19937 needs the words `i`, `i + 1` and `i + 397` of the state that the seed is
//! spread to, and those are a chain of multiplications. The chains of many seeds run side by
//! side, a lane each, and many [`Test`]s share them. The pass gives the seeds that may fit; what
//! they draw afterwards is compared one by one.

use std::ops::Range;

use super::Path;
#[cfg(target_arch = "x86_64")]
use super::lanes::x86::{Avx2, Avx512};
use super::lanes::{LONGEST, Lanes};
use super::mt::{MIDDLE, MULTIPLIER, OUTPUTS_MAX, TWIST};

/// Seeds that a pass goes through.
pub(super) trait Seeds {
    /// How many there are.
    fn count(&self) -> u64;

    /// Seed number `at`.
    fn get(&self, at: u64) -> u32;

    /// The seeds from number `at` on; past the last one, any.
    ///
    /// # Safety
    /// The processor has the instructions of `V`.
    unsafe fn vector<V: Lanes>(&self, at: u64) -> V;
}

impl Seeds for Range<u64> {
    fn count(&self) -> u64 {
        self.end.saturating_sub(self.start)
    }

    #[inline(always)]
    fn get(&self, at: u64) -> u32 {
        (self.start + at) as u32
    }

    #[inline(always)]
    unsafe fn vector<V: Lanes>(&self, at: u64) -> V {
        // SAFETY: the caller says that the processor has the instructions.
        unsafe { V::counting(self.get(at)) }
    }
}

impl Seeds for &[u32] {
    fn count(&self) -> u64 {
        self.len() as u64
    }

    #[inline(always)]
    fn get(&self, at: u64) -> u32 {
        self[at as usize]
    }

    #[inline(always)]
    unsafe fn vector<V: Lanes>(&self, at: u64) -> V {
        let mut words = [0; LONGEST];
        let rest = self.iter().skip(at as usize);
        words.iter_mut().zip(rest).for_each(|(word, seed)| *word = *seed);
        // SAFETY: the caller says that the processor has the instructions.
        unsafe { V::load(&words) }
    }
}

/// Of an output, one residue: which outputs have it is asked without a division.
///
/// Modulo an odd `m` the multiples of `m` are those that times the inverse of `m` come out small
/// (Granlund and Montgomery 1994); factors of two rotate to the top.
#[derive(Clone, Copy, Debug)]
pub(super) struct Test {
    residue: u32,
    inverse: u32,
    twos: u32,
    limit: u32,
    /// What the test is told by.
    number: u32,
}

impl Test {
    /// Whether an output is `residue` modulo `modulus`, which is not 0 and above the residue.
    pub(super) fn new(modulus: u32, residue: u32, number: u32) -> Self {
        let twos = modulus.trailing_zeros();
        let odd = modulus >> twos;
        // Newton's iteration doubles the bits that are right; an odd number is its own inverse in 3.
        let mut inverse = odd;
        for _ in 0..4 {
            inverse = inverse.wrapping_mul(2u32.wrapping_sub(odd.wrapping_mul(inverse)));
        }
        Test { residue, inverse, twos, limit: (u32::MAX - residue) / modulus, number }
    }
}

/// One output, and what it is tested for.
#[derive(Clone, Debug)]
struct Output {
    /// Where among the stops its three words are.
    words: [usize; 3],
    tests: Vec<Test>,
}

/// Tests of the outputs of a generator, put together for one pass.
#[derive(Clone, Debug, Default)]
pub(super) struct Plan {
    /// The words of the state that are kept, ascending.
    stops: Vec<u32>,
    outputs: Vec<Output>,
}

impl Plan {
    /// The pass for tests, each of the output with the number before it; those from
    /// [`OUTPUTS_MAX`] on are left out.
    pub(super) fn new(tests: &[(u32, Test)]) -> Self {
        let mut numbers: Vec<u32> = tests.iter().map(|(number, _)| *number).collect();
        numbers.retain(|&number| number < OUTPUTS_MAX);
        numbers.sort_unstable();
        numbers.dedup();
        let words = |number: u32| [number, number + 1, number + MIDDLE];
        let mut stops: Vec<u32> = numbers.iter().flat_map(|&number| words(number)).collect();
        stops.sort_unstable();
        stops.dedup();
        let output = |&number: &u32| Output {
            words: words(number).map(|word| stops.partition_point(|&stop| stop < word)),
            tests: tests.iter().filter(|test| test.0 == number).map(|test| test.1).collect(),
        };
        Plan { outputs: numbers.iter().map(output).collect(), stops }
    }

    /// Vector operations that one vector of seeds takes: 4 a link of the chain, 19 an output, 4 a
    /// test.
    pub(super) fn operations(&self) -> u64 {
        let chain = 4 * u64::from(self.stops.last().copied().unwrap_or(0));
        let each = |output: &Output| 19 + 4 * output.tests.len() as u64;
        chain + self.outputs.iter().map(each).sum::<u64>()
    }

    /// Adds each of the seeds and the test that it passes to `found`. A path that this processor
    /// does not have is the scalar one.
    pub(super) fn run(&self, path: Path, seeds: &impl Seeds, found: &mut Vec<(u32, u32)>) {
        if self.outputs.is_empty() {
            return;
        }
        match path {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: this processor has AVX2, which is all that the function is compiled for.
            Path::Avx2 if path.is_here() => unsafe { scan_avx2(self, seeds, found) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: this processor has AVX-512F, which is all that the function is compiled for.
            Path::Avx512 if path.is_here() => unsafe { scan_avx512(self, seeds, found) },
            // SAFETY: one word at a time is what every processor has.
            _ => unsafe { scan::<u32, 8, _>(self, seeds, found) },
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn scan_avx2(plan: &Plan, seeds: &impl Seeds, found: &mut Vec<(u32, u32)>) {
    // SAFETY: to call this function at all takes a processor that has AVX2.
    unsafe { scan::<Avx2, 8, _>(plan, seeds, found) }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
fn scan_avx512(plan: &Plan, seeds: &impl Seeds, found: &mut Vec<(u32, u32)>) {
    // SAFETY: to call this function at all takes a processor that has AVX-512F.
    unsafe { scan::<Avx512, 16, _>(plan, seeds, found) }
}

/// The pass in vectors of one kind, `ABREAST` of them at a time, so that the multiplications of one
/// chain hide those of another: as many as the registers hold. Inlined into the functions above, and so compiled for what
/// they say the processor has.
///
/// # Safety
/// The processor has the instructions of `V`.
#[inline(always)]
unsafe fn scan<V: Lanes, const ABREAST: usize, S: Seeds>(
    plan: &Plan,
    seeds: &S,
    found: &mut Vec<(u32, u32)>,
) {
    let block = u64::from(V::COUNT) * ABREAST as u64;
    let mut from = 0;
    // SAFETY: the caller says that the processor has the instructions.
    unsafe {
        let mut kept = vec![[V::splat(0); ABREAST]; plan.stops.len()];
        while from < seeds.count() {
            let mut words = [V::splat(0); ABREAST];
            for (at, word) in words.iter_mut().enumerate() {
                *word = seeds.vector(from + at as u64 * u64::from(V::COUNT));
            }
            spread(words, &plan.stops, &mut kept);
            for output in &plan.outputs {
                let [first, second, middle] = output.words;
                let mut outputs = [V::splat(0); ABREAST];
                for (at, output) in outputs.iter_mut().enumerate() {
                    *output = draw(kept[first][at], kept[second][at], kept[middle][at]);
                }
                for test in &output.tests {
                    let mut passed = [0; ABREAST];
                    if !apply(test, &outputs, &mut passed) {
                        continue;
                    }
                    for (at, lanes) in passed.into_iter().enumerate() {
                        for lane in (0..V::COUNT).filter(|lane| lanes >> lane & 1 == 1) {
                            let number = from + at as u64 * u64::from(V::COUNT) + u64::from(lane);
                            if number < seeds.count() {
                                found.push((seeds.get(number), test.number));
                            }
                        }
                    }
                }
            }
            from += block;
        }
    }
}

/// Spreads a block of seeds to their states as far as the last stop, and keeps what is there at
/// each.
///
/// # Safety
/// The processor has the instructions of `V`.
#[inline(always)]
unsafe fn spread<V: Lanes, const ABREAST: usize>(
    mut words: [V; ABREAST],
    stops: &[u32],
    kept: &mut [[V; ABREAST]],
) {
    // SAFETY: the caller says that the processor has the instructions.
    unsafe {
        let (one, multiplier) = (V::splat(1), V::splat(MULTIPLIER));
        let (mut at, mut number) = (0, V::splat(0));
        for (kept, &stop) in kept.iter_mut().zip(stops) {
            while at < stop {
                at += 1;
                number = number.add(one);
                for word in &mut words {
                    *word = word.xor(word.shr(30)).mul(multiplier).add(number);
                }
            }
            *kept = words;
        }
    }
}

/// An output of its three words.
///
/// # Safety
/// The processor has the instructions of `V`.
#[inline(always)]
unsafe fn draw<V: Lanes>(first: V, second: V, middle: V) -> V {
    // SAFETY: the caller says that the processor has the instructions.
    unsafe {
        // The top bit of one and the rest of the other.
        let mixed = second.xor(first.xor(second).and(V::splat(1 << 31)));
        let odd = V::splat(0).sub(second.and(V::splat(1)));
        let word = middle.xor(mixed.shr(1)).xor(odd.and(V::splat(TWIST)));
        let word = word.xor(word.shr(11));
        let word = word.xor(word.shl(7).and(V::splat(0x9d2c_5680)));
        let word = word.xor(word.shl(15).and(V::splat(0xefc6_0000)));
        word.xor(word.shr(18))
    }
}

/// Which lanes pass the test. Says whether any does.
///
/// # Safety
/// The processor has the instructions of `V`.
#[inline(always)]
unsafe fn apply<V: Lanes, const ABREAST: usize>(
    test: &Test,
    outputs: &[V; ABREAST],
    passed: &mut [u32; ABREAST],
) -> bool {
    // SAFETY: the caller says that the processor has the instructions.
    unsafe {
        let (residue, inverse) = (V::splat(test.residue), V::splat(test.inverse));
        let limit = V::splat(test.limit);
        let mut any = 0;
        for (passed, output) in passed.iter_mut().zip(outputs) {
            *passed = output.sub(residue).mul(inverse).ror(test.twos).at_most(limit);
            any |= *passed;
        }
        any != 0
    }
}
