//! Blocks as values of a shard: their keys, and how a damaged one is found out.
//!
//! A key is a hash of the path, the version of the file and the offset of the block, by a number that only members know.
//! A value is the bytes of the block, and then a trailer with a checksum of the bytes and of the key. So a value under a
//! key of another block is found out, too. On servers that others administer, the bytes are encrypted, and the trailer
//! shows that a member has made them (AES-256-GCM, NIST SP 800-38D): a [`Seal`] is one of both.

use std::fmt::{self, Display, Formatter};
use std::hash::Hasher;
use std::str::FromStr;
use std::sync::Arc;

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use aws_lc_rs::error::Unspecified;
use aws_lc_rs::rand;
use sha2::{Digest, Sha256};
use siphasher::sip128::{Hasher128, SipHasher24};

use super::shard::KEYS;
use crate::disk::{Buffer, memory_for};

/// The trailer with a checksum: the checksum, the length of the block, and a mark.
pub(super) const TRAILER: usize = 16;

/// The trailer of encrypted bytes: a tag of the bytes and of the key, and a nonce that is drawn anew each time.
const TAG: usize = 16;
const CIPHER_TRAILER: usize = TAG + NONCE_LEN;

/// The longest trailer, in bytes.
pub(super) const TRAILER_MOST: usize = CIPHER_TRAILER;

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

    /// The key of a text with a name.
    fn text(&self, name: &str) -> Key {
        self.key(b"text", name.as_bytes(), 0)
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
pub(super) fn open(key: Key, length: Option<usize>, mut value: Vec<u8>) -> Option<Vec<u8>> {
    let end = value.len().checked_sub(TRAILER)?;
    let (bytes, found) = value.split_at_checked(end)?;
    let is_right = length.is_none_or(|length| length == end) && found == trailer(key, bytes);
    is_right.then(|| {
        value.truncate(end);
        value
    })
}

/// How values are protected.
#[derive(Clone)]
pub(super) enum Seal {
    /// By a checksum: it finds out damage. Members alone can write values.
    Checksum,
    /// By encryption with authentication: others can write values, too.
    Cipher(Arc<LessSafeKey>),
}

/// A value that is to be stored: one part after the other.
pub(super) struct Sealed {
    pub(super) bytes: Arc<Buffer>,
    pub(super) trailer: Vec<u8>,
}

impl Sealed {
    /// All bytes of the value.
    pub(super) fn all(&self) -> Vec<u8> {
        [&self.bytes[..], &self.trailer].concat()
    }

    /// How many these are.
    pub(super) fn len(&self) -> usize {
        self.bytes.len() + self.trailer.len()
    }
}

impl Seal {
    /// Encrypts with the secret of a cluster.
    ///
    /// # Errors
    /// If there is no memory.
    pub(super) fn cipher(secret: &str) -> Result<Self, Unspecified> {
        let key = Sha256::digest(format!("values {secret}").as_bytes());
        Ok(Seal::Cipher(Arc::new(LessSafeKey::new(UnboundKey::new(&AES_256_GCM, &key)?))))
    }

    /// The value of a block. None if the system gives no random bytes.
    pub(super) fn close(&self, key: Key, block: &Arc<Buffer>) -> Option<Sealed> {
        let cipher = match self {
            Seal::Checksum => {
                let trailer = trailer(key, block).to_vec();
                return Some(Sealed { bytes: Arc::clone(block), trailer });
            }
            Seal::Cipher(cipher) => cipher,
        };
        let mut nonce = [0; NONCE_LEN];
        rand::fill(&mut nonce).ok()?;
        let mut bytes = memory_for(block.len() + CIPHER_TRAILER);
        bytes.extend_from_slice(block);
        let name = Aad::from(key.0.to_le_bytes());
        cipher.seal_in_place_append_tag(Nonce::from(&nonce), name, &mut bytes).ok()?;
        Some(Sealed { bytes: Arc::new(Buffer::from(bytes)), trailer: nonce.to_vec() })
    }

    /// The value of a text with a name, such as a message. Where members alone can write, it is the text itself.
    pub(super) fn close_text(&self, keys: &Keys, name: &str, text: &[u8]) -> Vec<u8> {
        let Seal::Cipher(_) = self else { return text.to_vec() };
        let sealed = self.close(keys.text(name), &Arc::new(Buffer::from(text.to_vec())));
        // Without random bytes there is nothing that could be read.
        sealed.map(|sealed| sealed.all()).unwrap_or_default()
    }

    /// The text of such a value; `None` if no member has made it.
    pub(super) fn open_text(&self, keys: &Keys, name: &str, value: Vec<u8>) -> Option<Vec<u8>> {
        let Seal::Cipher(_) = self else { return Some(value) };
        self.open(keys.text(name), None, value)
    }

    /// The block of a value; `None` if it is damaged, or not a block of this key and length.
    pub(super) fn open(
        &self,
        key: Key,
        length: Option<usize>,
        mut value: Vec<u8>,
    ) -> Option<Vec<u8>> {
        let cipher = match self {
            Seal::Checksum => return open(key, length, value),
            Seal::Cipher(cipher) => cipher,
        };
        let end = value.len().checked_sub(CIPHER_TRAILER)?;
        if length.is_some_and(|length| length != end) {
            return None;
        }
        let (bytes, nonce) = value.split_at_mut(end + TAG);
        let nonce = Nonce::try_assume_unique_for_key(nonce).ok()?;
        cipher.open_in_place(nonce, Aad::from(key.0.to_le_bytes()), bytes).ok()?;
        value.truncate(end);
        Some(value)
    }
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
            assert_eq!(open(key, Some(length), value.clone()), Some(block.clone()));
            assert_eq!(open(key, None, value.clone()), Some(block.clone()));
            for bit in 0..value.len() * 8 {
                let mut damaged = value.clone();
                damaged[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(open(key, None, damaged), None, "bit {bit} of {length} bytes");
            }
            let longer = [&value[..], &[0]].concat();
            for other in [&longer, &value[1..], &value[..value.len() - 1], LEASE, ON_DISK, b""] {
                assert_eq!(open(key, None, other.to_vec()), None);
            }
            assert_eq!(open(key, Some(length + 1), value.clone()), None);
            let others =
                [(&b"a/b"[..], &b"versioo"[..], 0), (b"a/b", b"version", 1), (b"a", b"/b", 0)];
            for (path, version, offset) in others {
                assert_eq!(open(keys.key(path, version, offset), None, value.clone()), None);
            }
        }
    }

    #[test]
    fn an_encrypted_value_is_read_with_the_secret_and_the_key_alone() {
        let (keys, block) = (Keys::new("secret"), (0..=255).collect::<Vec<u8>>());
        let key = keys.key(b"a/b", b"version", 0);
        let seal = Seal::cipher("secret").unwrap();
        let value = || seal.close(key, &Arc::new(Buffer::from(block.clone()))).unwrap().all();
        let sealed = value();
        assert_eq!(seal.open(key, Some(block.len()), sealed.clone()), Some(block.clone()));
        assert_eq!(seal.open(key, None, sealed.clone()), Some(block.clone()));
        assert_ne!(sealed, value(), "a nonce is used once");
        assert!(!sealed.windows(8).any(|part| block.windows(8).any(|plain| plain == part)));
        for bit in 0..sealed.len() * 8 {
            let mut damaged = sealed.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(seal.open(key, None, damaged), None, "bit {bit}");
        }
        for other in [&sealed[1..], &sealed[..sealed.len() - 1], LEASE, b"", &block] {
            assert_eq!(seal.open(key, None, other.to_vec()), None);
        }
        assert_eq!(seal.open(key, Some(block.len() + 1), sealed.clone()), None);
        assert_eq!(seal.open(key, Some(usize::MAX - 20), sealed.clone()), None);
        let text = seal.close_text(&keys, "w:1", b"{}");
        assert_eq!(seal.open_text(&keys, "w:1", text.clone()), Some(b"{}".to_vec()));
        assert_eq!(seal.open_text(&keys, "w:2", text), None);
        assert_eq!(seal.open_text(&keys, "w:1", b"{}".to_vec()), None);
        let elsewhere = keys.key(b"a/c", b"version", 0);
        assert_eq!(seal.open(elsewhere, None, sealed.clone()), None);
        let stranger = Seal::cipher("other").unwrap();
        assert_eq!(stranger.open(key, None, sealed), None);
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
