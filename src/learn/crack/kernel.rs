//! The pass over seeds: which of them give what was seen as the element at a place.
//!
//! Output `i` of mt19937 needs the words `i`, `i + 1` and `i + 397` of the state that the seed is
//! spread to, and those are a chain of multiplications. A block of seeds takes each step together, in
//! loops over arrays that the compiler makes vector instructions of, and many [`Test`]s share the
//! block. The pass gives the seeds that may fit; what they draw afterwards is compared one by one.

use std::array;

use super::Path;
use super::mt::{MIDDLE, OUTPUTS_MAX, draw, next_word};

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

    #[inline(always)]
    fn passes(&self, output: u32) -> bool {
        let quotient = output.wrapping_sub(self.residue).wrapping_mul(self.inverse);
        quotient.rotate_right(self.twos) <= self.limit
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

    /// Adds each of the seeds numbered below `count` and the test that it passes to `found`. A path
    /// that this processor does not have is the baseline.
    ///
    /// A block's vectors fill the registers: more of them are slower, and fewer wait for each other's
    /// multiplications.
    pub(super) fn run(
        &self,
        path: Path,
        count: u64,
        seed: impl Fn(u64) -> u32,
        found: &mut Vec<(u32, u32)>,
    ) {
        match path {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: this processor has AVX2, which is all that the function is compiled for.
            Path::Avx2 if path.is_here() => unsafe { scan_avx2(self, count, seed, found) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: this processor has AVX-512F, which is all that the function is compiled for.
            Path::Avx512 if path.is_here() => unsafe { scan_avx512(self, count, seed, found) },
            _ => scan::<32>(self, count, seed, found),
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn scan_avx2(plan: &Plan, count: u64, seed: impl Fn(u64) -> u32, found: &mut Vec<(u32, u32)>) {
    scan::<64>(plan, count, seed, found);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
fn scan_avx512(plan: &Plan, count: u64, seed: impl Fn(u64) -> u32, found: &mut Vec<(u32, u32)>) {
    scan::<256>(plan, count, seed, found);
}

/// The pass in blocks of `N` seeds. Inlined into each caller, and so compiled for the instructions
/// that the caller has.
#[inline(always)]
fn scan<const N: usize>(
    plan: &Plan,
    count: u64,
    seed: impl Fn(u64) -> u32,
    found: &mut Vec<(u32, u32)>,
) {
    if plan.outputs.is_empty() {
        return;
    }
    let mut kept = vec![[0; N]; plan.stops.len()];
    for from in (0..count).step_by(N) {
        spread(array::from_fn(|at| seed(from + at as u64)), &plan.stops, &mut kept);
        for output in &plan.outputs {
            let [first, second, middle] = output.words.map(|word| &kept[word]);
            let outputs: [u32; N] = array::from_fn(|at| draw(first[at], second[at], middle[at]));
            for test in &output.tests {
                // Without a branch per seed; hardly ever does one pass.
                if !outputs.iter().fold(false, |any, output| any | test.passes(*output)) {
                    continue;
                }
                let passed = (from..count).zip(outputs).filter(|(_, output)| test.passes(*output));
                found.extend(passed.map(|(number, _)| (seed(number), test.number)));
            }
        }
    }
}

/// Spreads a block of seeds to their states as far as the last stop, and keeps the words at each.
#[inline(always)]
fn spread<const N: usize>(mut words: [u32; N], stops: &[u32], kept: &mut [[u32; N]]) {
    let mut at = 0;
    for (kept, &stop) in kept.iter_mut().zip(stops) {
        while at < stop {
            at += 1;
            for word in &mut words {
                *word = next_word(*word, at);
            }
        }
        *kept = words;
    }
}
