//! Shards of MosaicML's streaming (MDS).
//!
//! A shard begins with the number of its samples, and where each of them begins, in bytes from the start of the file.
//! One more number says where the last sample ends. All are little-endian `u32`.

use std::ops::Range;

use super::{FileBytes, check_count};
use crate::error::Result;
use crate::order::samplers::wrong;

const NUMBER: u64 = 4;

/// Where the samples of a shard are.
pub(super) fn samples(file: &FileBytes) -> Result<Vec<Range<u64>>> {
    let count: u64 = u32::from_le_bytes(file.array(0)?).into();
    check_count(count)?;
    let places = file.read_at(NUMBER, (count + 1) * NUMBER)?;
    let (numbers, _) = places.as_chunks::<4>();
    let begins = numbers.iter().map(|number| u64::from(u32::from_le_bytes(*number)));
    let mut last = (count + 2) * NUMBER;
    let mut checked = Vec::with_capacity(numbers.len());
    for (nth, begin) in (1..).zip(begins) {
        if begin < last {
            let at = nth * NUMBER;
            return Err(wrong(format!(
                "it is no shard of MDS: at byte {at} it says {begin}, which is before byte {last}"
            ))
            .hint("belady reads shards that are not compressed"));
        }
        last = begin;
        checked.push(begin);
    }
    Ok(checked.windows(2).map(|pair| pair[0]..pair[1]).collect())
}

#[cfg(test)]
mod tests {
    use super::super::Container;
    use super::super::tests::{file_of, samples_of};
    use super::*;

    fn shard(places: &[u32], bytes: usize) -> Vec<u8> {
        let count = (places.len() as u32 - 1).to_le_bytes();
        let places = places.iter().flat_map(|place| place.to_le_bytes());
        let mut shard: Vec<u8> = count.into_iter().chain(places).collect();
        shard.resize(bytes, 0);
        shard
    }

    #[test]
    fn a_shard_begins_with_the_places_of_its_samples() {
        let found = samples(&file_of(shard(&[40, 50, 50, 99], 99))).unwrap();
        assert_eq!(found, [40..50, 50..50, 50..99]);
        let found = samples_of(&Container::Mds, shard(&[40, 99, 99], 99)).unwrap();
        assert_eq!(found, [40..99, 98..99], "an empty sample has a place");
    }

    #[test]
    fn wrong_shards_are_refused_with_the_place() {
        let cases = [
            (shard(&[40, 50, 99], 98), "sample 1 is said to have bytes 50 to 99"),
            (shard(&[40, 50, 45], 99), "at byte 12 it says 45"),
            (shard(&[10, 50, 55], 99), "at byte 4 it says 10"),
            (shard(&[40, 50, 55], 14), "bytes 4 to 16 are missing"),
            (vec![255; 99], "more than 16,777,216 samples"),
            (Vec::new(), "bytes 0 to 4 are missing"),
        ];
        for (bytes, why) in cases {
            let error = samples_of(&Container::Mds, bytes).unwrap_err().to_string();
            assert!(error.contains(why), "{why}: {error}");
        }
    }
}
