//! The content of files: each 8 bytes tell their file, their content and their place.
//!
//! The three numbers are multiplied by an odd constant. So no byte value is rare, and the numbers can be
//! computed from bytes that were read.

/// Odd, so that it has an inverse.
const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

/// The inverse of [`FACTOR`], by Newton's iteration: each step doubles the number of correct bits.
const INVERSE: u64 = {
    let mut inverse = FACTOR;
    let mut step = 0;
    while step < 5 {
        inverse = inverse.wrapping_mul(2u64.wrapping_sub(FACTOR.wrapping_mul(inverse)));
        step += 1;
    }
    inverse
};

/// The origin of 8 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Origin {
    /// Number of the file.
    pub(crate) file: u16,
    /// Number of its content, from 1.
    pub(crate) content: u16,
    /// Which 8 bytes of the content.
    pub(crate) word: u32,
}

/// `length` bytes of a content from `offset` on.
pub(crate) fn bytes(file: u16, content: u16, offset: u64, length: usize) -> Vec<u8> {
    let (first, skip) = (offset / 8, (offset % 8) as usize);
    let words = (skip + length).div_ceil(8) as u64;
    let base = u64::from(file) << 48 | u64::from(content) << 32;
    let mut made = Vec::with_capacity(words as usize * 8);
    for word in first..first + words {
        made.extend_from_slice(&(base | word).wrapping_mul(FACTOR).to_le_bytes());
    }
    made.drain(..skip);
    made.truncate(length);
    made
}

/// The origin of the first whole 8 bytes of `bytes`, which lie at `offset`. `None` if there are none.
pub(crate) fn origin(bytes: &[u8], offset: u64) -> Option<Origin> {
    let skip = (offset.next_multiple_of(8) - offset) as usize;
    let word = bytes.get(skip..)?.first_chunk::<8>()?;
    let word = u64::from_le_bytes(*word).wrapping_mul(INVERSE);
    Some(Origin { file: (word >> 48) as u16, content: (word >> 32) as u16, word: word as u32 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_tell_of_what_they_are() {
        let all = bytes(7, 3, 0, 1000);
        for (offset, length) in [(0, 1000), (8, 100), (13, 50), (999, 1)] {
            let part = bytes(7, 3, offset, length);
            assert_eq!(part, all[offset as usize..][..length]);
        }
        let wanted = Origin { file: 7, content: 3, word: 2 };
        assert_eq!(origin(&all[13..], 13), Some(wanted));
        assert_eq!(origin(&all[13..20], 13), None);
        assert_ne!(bytes(7, 4, 0, 8), bytes(7, 3, 0, 8));
    }
}
