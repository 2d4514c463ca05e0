//! Blocks as values of a shard: their keys, and how a damaged one is found out.
//!
//! A key is a hash of the path, the version of the file and the offset of the block, by a number that only members know.
//! A value is the bytes of the block, and then a trailer with a checksum of the bytes and of the key. So a value under a
//! key of another block is found out, too.

use std::fmt::{self, Display, Formatter};
use std::hash::Hasher;
use std::str::FromStr;

use siphasher::sip128::{Hasher128, SipHasher24};

use super::shard::KEYS;

/// The trailer: a checksum, the length of the block, and a mark.
pub(super) const TRAILER: usize = 16;
const MARK: [u8; 8] = *b"belady1\n";

/// The value of a block that somebody brings. It is shorter than any trailer.
pub(super) const LEASE: &[u8] = b"L";

/// The value of a block that the disk of its node has. It has another length than a lease, and is shorter than any trailer.
pub(super) const ON_DISK: &[u8] = b"disk";

/// Names a block of one version of a file, alike for all members.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key(u128);

/// Makes the keys of a cluster.
#[derive(Clone, Debug)]
pub struct Keys([u8; 16]);

impl Keys {
    /// Keys that are made with the secret of a cluster.
    pub fn new(secret: &str) -> Self {
        let mut hasher = SipHasher24::new();
        hasher.write(secret.as_bytes());
        Keys(hasher.finish128().as_bytes())
    }

    /// The key of the block at `offset` of a version of the file at `path`.
    pub fn key(&self, path: &[u8], version: &[u8], offset: u64) -> Key {
        let mut hasher = SipHasher24::new_with_key(&self.0);
        hasher.write(path);
        hasher.write(&[0]);
        hasher.write(version);
        hasher.write(&offset.to_le_bytes());
        Key(hasher.finish128().as_u128())
    }
}

impl Key {
    /// The upper half of the number.
    pub fn upper(self) -> u64 {
        (self.0 >> 64) as u64
    }

    /// The key at the member with this tag.
    pub(super) fn at(self, tag: &str) -> String {
        format!("{}{self}", prefix(tag))
    }

    /// Reads a key at the member with this tag; `None` if it is no key of a block.
    pub(super) fn parse(text: &[u8], tag: &str) -> Option<Self> {
        std::str::from_utf8(text.strip_prefix(prefix(tag).as_bytes())?).ok()?.parse().ok()
    }
}

impl Display for Key {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        write!(out, "{:032x}", self.0)
    }
}

/// A text is no key.
#[derive(Debug)]
pub struct NoKey;

impl FromStr for Key {
    type Err = NoKey;

    fn from_str(digits: &str) -> Result<Self, NoKey> {
        let digits = Some(digits).filter(|digits| digits.len() == 32);
        let number = digits.and_then(|digits| u128::from_str_radix(digits, 16).ok());
        number.map(Key).ok_or(NoKey)
    }
}

/// What the keys of blocks at a member begin with.
pub(super) fn prefix(tag: &str) -> String {
    format!("{KEYS}{{{tag}}}:s:")
}

fn checksum(key: Key, bytes: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&key.0.to_le_bytes()), bytes)
}

/// What comes after the bytes of a block in its value.
pub(super) fn trailer(key: Key, bytes: &[u8]) -> [u8; TRAILER] {
    let mut trailer = [0; TRAILER];
    trailer[..4].copy_from_slice(&checksum(key, bytes).to_le_bytes());
    trailer[4..8].copy_from_slice(&(bytes.len() as u32).to_le_bytes());
    trailer[8..].copy_from_slice(&MARK);
    trailer
}

/// The block of a value; `None` if it is damaged, or not a block of this key and length.
pub(super) fn open(key: Key, length: usize, mut value: Vec<u8>) -> Option<Vec<u8>> {
    let (bytes, found) = value.split_at_checked(value.len().checked_sub(TRAILER)?)?;
    let is_right = bytes.len() == length && found == trailer(key, bytes);
    is_right.then(|| {
        value.truncate(length);
        value
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seal(key: Key, bytes: &[u8]) -> Vec<u8> {
        [bytes, &trailer(key, bytes)].concat()
    }

    #[test]
    fn a_value_gives_its_block_and_nothing_else() {
        let keys = Keys::new("secret");
        let key = keys.key(b"a/b", b"version", 0);
        for length in [0, 1, 5000] {
            let block: Vec<u8> = (0..length).map(|at| at as u8).collect();
            let value = seal(key, &block);
            assert_eq!(open(key, length, value.clone()), Some(block.clone()));
            for bit in 0..value.len() * 8 {
                let mut damaged = value.clone();
                damaged[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(open(key, length, damaged), None, "bit {bit} of {length} bytes");
            }
            let longer = [&value[..], &[0]].concat();
            for other in [&longer, &value[1..], &value[..value.len() - 1], LEASE, ON_DISK, b""] {
                assert_eq!(open(key, length, other.to_vec()), None);
            }
            assert_eq!(open(key, length + 1, value.clone()), None);
            let others =
                [(&b"a/b"[..], &b"versioo"[..], 0), (b"a/b", b"version", 1), (b"a", b"/b", 0)];
            for (path, version, offset) in others {
                assert_eq!(open(keys.key(path, version, offset), length, value.clone()), None);
            }
        }
    }

    #[test]
    fn keys_are_read_as_they_are_written_and_need_the_secret() {
        let key = Keys::new("secret").key(b"a", b"1", 1 << 20);
        assert_ne!(key, Keys::new("other").key(b"a", b"1", 1 << 20));
        let text = key.at("7");
        assert_eq!(Key::parse(text.as_bytes(), "7"), Some(key));
        for other in ["b1:{7}:m", "b1:{7}:s:12", "", "b1:{8}:s:00000000000000000000000000000000"] {
            assert_eq!(Key::parse(other.as_bytes(), "7"), None);
        }
    }
}
