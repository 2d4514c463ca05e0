//! Measures the most vector operations that a core does without dependencies between them. The kinds and
//! proportions are those of the search's inner loop: shifts, exclusive ors, multiplications and additions, a
//! quarter each.

use belady::learn::crack::Path;

/// Operations in a round.
const ROUND: u64 = 16;

/// Words of a vector.
pub(crate) fn lanes(path: Path) -> u32 {
    match path {
        Path::Scalar => 1,
        #[cfg(target_arch = "x86_64")]
        Path::Avx2 => 8,
        #[cfg(target_arch = "x86_64")]
        Path::Avx512 => 16,
    }
}

/// Runs the rounds, and returns the number of operations. 0 for the scalar path. The processor must support
/// the path.
pub(crate) fn run(path: Path, rounds: u64) -> u64 {
    match path {
        // The compiler decides how the scalar search runs.
        Path::Scalar => return 0,
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the caller has asked whether this processor has AVX2.
        Path::Avx2 => unsafe { x86::avx2(rounds) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the caller has asked whether this processor has AVX-512.
        Path::Avx512 => unsafe { x86::avx512(rounds) },
    }
    rounds * ROUND
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::asm;
    use std::arch::x86_64::*;

    /// A round in assembler. Its results are unused, so the compiler would drop a round in Rust.
    macro_rules! round {
        ($reg:ident, $odd:expr, $two:expr, $xor:literal) => {
            // SAFETY: plain arithmetic in registers that are named as overwritten.
            unsafe {
                asm!(
                    ".rept 4",
                    "vpsrld {s}, {o}, 1",
                    concat!($xor, " {x}, {o}, {t}"),
                    "vpmulld {m}, {o}, {o}",
                    "vpaddd {a}, {o}, {o}",
                    ".endr",
                    o = in($reg) $odd,
                    t = in($reg) $two,
                    s = out($reg) _,
                    x = out($reg) _,
                    m = out($reg) _,
                    a = out($reg) _,
                    options(nomem, nostack, preserves_flags),
                );
            }
        };
    }

    #[target_feature(enable = "avx2")]
    pub(super) fn avx2(rounds: u64) {
        let (odd, two) = (_mm256_set1_epi32(0x6c07_8965), _mm256_set1_epi32(2));
        for _ in 0..rounds {
            round!(ymm_reg, odd, two, "vpxor");
        }
    }

    #[target_feature(enable = "avx512f")]
    pub(super) fn avx512(rounds: u64) {
        let (odd, two) = (_mm512_set1_epi32(0x6c07_8965), _mm512_set1_epi32(2));
        for _ in 0..rounds {
            round!(zmm_reg, odd, two, "vpxord");
        }
    }
}
