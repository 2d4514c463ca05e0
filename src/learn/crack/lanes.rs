//! Vectors of 32-bit words, as wide as the processor has them.
//!
//! The methods are unsafe because they use instructions that not every processor has. The one place
//! where a kind of vector is chosen, [`Plan::run`](super::kernel::Plan::run), asks this processor for
//! them ([`Path::is_here`](super::Path::is_here)).

/// How many words the longest vector has.
pub(super) const LONGEST: usize = 16;

/// A vector of 32-bit words; all arithmetic is modulo 2^32, lane by lane.
pub(super) trait Lanes: Copy {
    const COUNT: u32;

    /// The word in every lane.
    unsafe fn splat(word: u32) -> Self;
    unsafe fn counting(from: u32) -> Self;
    /// The first of these words.
    unsafe fn load(words: &[u32; LONGEST]) -> Self;
    unsafe fn add(self, other: Self) -> Self;
    unsafe fn sub(self, other: Self) -> Self;
    unsafe fn mul(self, other: Self) -> Self;
    unsafe fn and(self, other: Self) -> Self;
    unsafe fn xor(self, other: Self) -> Self;
    unsafe fn shr(self, by: u32) -> Self;
    unsafe fn shl(self, by: u32) -> Self;
    /// Rotates to the right.
    unsafe fn ror(self, by: u32) -> Self;
    /// A bit for each lane, from the lowest: whether the word is not above the limit's.
    unsafe fn at_most(self, limit: Self) -> u32;
}

/// One word at a time: what every processor can do.
impl Lanes for u32 {
    const COUNT: u32 = 1;

    #[inline(always)]
    unsafe fn splat(word: u32) -> Self {
        word
    }
    #[inline(always)]
    unsafe fn counting(from: u32) -> Self {
        from
    }
    #[inline(always)]
    unsafe fn load(words: &[u32; LONGEST]) -> Self {
        words[0]
    }
    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        self.wrapping_add(other)
    }
    #[inline(always)]
    unsafe fn sub(self, other: Self) -> Self {
        self.wrapping_sub(other)
    }
    #[inline(always)]
    unsafe fn mul(self, other: Self) -> Self {
        self.wrapping_mul(other)
    }
    #[inline(always)]
    unsafe fn and(self, other: Self) -> Self {
        self & other
    }
    #[inline(always)]
    unsafe fn xor(self, other: Self) -> Self {
        self ^ other
    }
    #[inline(always)]
    unsafe fn shr(self, by: u32) -> Self {
        self >> by
    }
    #[inline(always)]
    unsafe fn shl(self, by: u32) -> Self {
        self << by
    }
    #[inline(always)]
    unsafe fn ror(self, by: u32) -> Self {
        self.rotate_right(by)
    }
    #[inline(always)]
    unsafe fn at_most(self, limit: Self) -> u32 {
        u32::from(self <= limit)
    }
}

#[cfg(target_arch = "x86_64")]
pub(super) mod x86 {
    use std::arch::x86_64::*;

    use super::{LONGEST, Lanes};

    const COUNTING: [i32; LONGEST] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];

    /// Eight words.
    #[derive(Clone, Copy)]
    pub(in crate::learn::crack) struct Avx2(__m256i);

    impl Lanes for Avx2 {
        const COUNT: u32 = 8;

        #[target_feature(enable = "avx2")]
        #[inline]
        unsafe fn splat(word: u32) -> Self {
            Avx2(_mm256_set1_epi32(word as i32))
        }
        #[target_feature(enable = "avx2")]
        #[inline]
        unsafe fn counting(from: u32) -> Self {
            // SAFETY: the array is longer than a vector, and need not be aligned.
            let counting = unsafe { _mm256_loadu_si256(COUNTING.as_ptr().cast()) };
            Avx2(_mm256_add_epi32(_mm256_set1_epi32(from as i32), counting))
        }
        #[target_feature(enable = "avx2")]
        #[inline]
        unsafe fn load(words: &[u32; LONGEST]) -> Self {
            // SAFETY: the array is longer than a vector, and need not be aligned.
            Avx2(unsafe { _mm256_loadu_si256(words.as_ptr().cast()) })
        }
        #[target_feature(enable = "avx2")]
        #[inline]
        unsafe fn add(self, other: Self) -> Self {
            Avx2(_mm256_add_epi32(self.0, other.0))
        }
        #[target_feature(enable = "avx2")]
        #[inline]
        unsafe fn sub(self, other: Self) -> Self {
            Avx2(_mm256_sub_epi32(self.0, other.0))
        }
        #[target_feature(enable = "avx2")]
        #[inline]
        unsafe fn mul(self, other: Self) -> Self {
            Avx2(_mm256_mullo_epi32(self.0, other.0))
        }
        #[target_feature(enable = "avx2")]
        #[inline]
        unsafe fn and(self, other: Self) -> Self {
            Avx2(_mm256_and_si256(self.0, other.0))
        }
        #[target_feature(enable = "avx2")]
        #[inline]
        unsafe fn xor(self, other: Self) -> Self {
            Avx2(_mm256_xor_si256(self.0, other.0))
        }
        #[target_feature(enable = "avx2")]
        #[inline]
        unsafe fn shr(self, by: u32) -> Self {
            Avx2(_mm256_srl_epi32(self.0, _mm_cvtsi32_si128(by as i32)))
        }
        #[target_feature(enable = "avx2")]
        #[inline]
        unsafe fn shl(self, by: u32) -> Self {
            Avx2(_mm256_sll_epi32(self.0, _mm_cvtsi32_si128(by as i32)))
        }
        #[target_feature(enable = "avx2")]
        #[inline]
        unsafe fn ror(self, by: u32) -> Self {
            let right = _mm256_srl_epi32(self.0, _mm_cvtsi32_si128(by as i32));
            // A shift by 32 gives 0 here.
            let left = _mm256_sll_epi32(self.0, _mm_cvtsi32_si128(32 - by as i32));
            Avx2(_mm256_or_si256(right, left))
        }
        #[target_feature(enable = "avx2")]
        #[inline]
        unsafe fn at_most(self, limit: Self) -> u32 {
            // AVX2 compares signed words only.
            let least = _mm256_min_epu32(self.0, limit.0);
            let lanes = _mm256_cmpeq_epi32(least, self.0);
            _mm256_movemask_ps(_mm256_castsi256_ps(lanes)) as u32
        }
    }

    /// Sixteen words.
    #[derive(Clone, Copy)]
    pub(in crate::learn::crack) struct Avx512(__m512i);

    impl Lanes for Avx512 {
        const COUNT: u32 = 16;

        #[target_feature(enable = "avx512f")]
        #[inline]
        unsafe fn splat(word: u32) -> Self {
            Avx512(_mm512_set1_epi32(word as i32))
        }
        #[target_feature(enable = "avx512f")]
        #[inline]
        unsafe fn counting(from: u32) -> Self {
            // SAFETY: the array is as long as a vector, and need not be aligned.
            let counting = unsafe { _mm512_loadu_epi32(COUNTING.as_ptr()) };
            Avx512(_mm512_add_epi32(_mm512_set1_epi32(from as i32), counting))
        }
        #[target_feature(enable = "avx512f")]
        #[inline]
        unsafe fn load(words: &[u32; LONGEST]) -> Self {
            // SAFETY: the array is as long as a vector, and need not be aligned.
            Avx512(unsafe { _mm512_loadu_epi32(words.as_ptr().cast()) })
        }
        #[target_feature(enable = "avx512f")]
        #[inline]
        unsafe fn add(self, other: Self) -> Self {
            Avx512(_mm512_add_epi32(self.0, other.0))
        }
        #[target_feature(enable = "avx512f")]
        #[inline]
        unsafe fn sub(self, other: Self) -> Self {
            Avx512(_mm512_sub_epi32(self.0, other.0))
        }
        #[target_feature(enable = "avx512f")]
        #[inline]
        unsafe fn mul(self, other: Self) -> Self {
            Avx512(_mm512_mullo_epi32(self.0, other.0))
        }
        #[target_feature(enable = "avx512f")]
        #[inline]
        unsafe fn and(self, other: Self) -> Self {
            Avx512(_mm512_and_si512(self.0, other.0))
        }
        #[target_feature(enable = "avx512f")]
        #[inline]
        unsafe fn xor(self, other: Self) -> Self {
            Avx512(_mm512_xor_si512(self.0, other.0))
        }
        #[target_feature(enable = "avx512f")]
        #[inline]
        unsafe fn shr(self, by: u32) -> Self {
            Avx512(_mm512_srl_epi32(self.0, _mm_cvtsi32_si128(by as i32)))
        }
        #[target_feature(enable = "avx512f")]
        #[inline]
        unsafe fn shl(self, by: u32) -> Self {
            Avx512(_mm512_sll_epi32(self.0, _mm_cvtsi32_si128(by as i32)))
        }
        #[target_feature(enable = "avx512f")]
        #[inline]
        unsafe fn ror(self, by: u32) -> Self {
            Avx512(_mm512_rorv_epi32(self.0, _mm512_set1_epi32(by as i32)))
        }
        #[target_feature(enable = "avx512f")]
        #[inline]
        unsafe fn at_most(self, limit: Self) -> u32 {
            u32::from(_mm512_cmple_epu32_mask(self.0, limit.0))
        }
    }
}
