//! A journal on a local disk: what happened, one record after the other, with bytes where they
//! belong to it. What it says can be lived through again after any crash.
//!
//! A journal is a file `journal-GENERATION`. A record is a header of 20 bytes, its text, and the
//! bytes that are *pinned* with it. The header has a checksum of itself and the text, and one of
//! the bytes. Records are written in their order and count up to the first one that is torn: what
//! was synced is there, and never anything without what was before it. Bytes are compared with
//! their checksum when they are read.
//!
//! A journal of mostly dead bytes is rewritten: what is left of it goes to a new file, which is
//! synced and only then named as the next generation. Whoever has a place in an older one can
//! still read it.

use std::fs::{self, File, OpenOptions};
use std::io::{Error, ErrorKind, Result};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Tells a journal from other files and other formats.
const MAGIC: u32 = u32::from_le_bytes(*b"blj1");

const HEADER_BYTES: usize = 20;

/// Bytes of records that wait to be written together.
const PENDING_MAX: usize = 1 << 20;

/// Bytes of a text: more is no record.
const TEXT_MAX: usize = 1 << 30;

const PREFIX: &str = "journal-";

/// Name of a journal that is being rewritten.
const UNNAMED: &str = "journal-next";

/// Where bytes are pinned.
#[derive(Clone, Debug)]
pub struct Pinned {
    file: Arc<File>,
    offset: u64,
    length: u32,
    checksum: u32,
}

impl Pinned {
    /// How many bytes.
    pub fn length(&self) -> u32 {
        self.length
    }

    /// Reads them. Blocks.
    ///
    /// # Errors
    /// The disk's, and `InvalidData` where they are not what was written.
    pub fn read(&self) -> Result<Vec<u8>> {
        let mut bytes = vec![0; self.length as usize];
        self.file.read_exact_at(&mut bytes, self.offset)?;
        if crc32c::crc32c(&bytes) != self.checksum {
            return Err(Error::new(ErrorKind::InvalidData, "pinned bytes are damaged"));
        }
        Ok(bytes)
    }
}

/// A journal that is written.
pub struct Journal {
    directory: PathBuf,
    file: Arc<File>,
    generation: u32,
    /// Where what is pending goes.
    end: u64,
    pending: Vec<u8>,
    synced: bool,
}

fn name(generation: u32) -> String {
    format!("{PREFIX}{generation:08}")
}

fn create(directory: &Path, name: &str) -> Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(true).mode(0o600);
    options.open(directory.join(name))
}

/// The generations in a directory, the latest first.
fn generations(directory: &Path) -> Result<Vec<u32>> {
    let names =
        fs::read_dir(directory)?.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let mut found: Vec<u32> =
        names.filter_map(|name| name.strip_prefix(PREFIX)?.parse().ok()).collect();
    found.sort_unstable_by(|a, b| b.cmp(a));
    Ok(found)
}

fn encode(text: &[u8], length: u32, checksum: u32, out: &mut Vec<u8>) {
    let begin = out.len();
    for word in [MAGIC, text.len() as u32, length, checksum] {
        out.extend_from_slice(&word.to_le_bytes());
    }
    let of_header = crc32c::crc32c_append(crc32c::crc32c(&out[begin..]), text);
    out.extend_from_slice(&of_header.to_le_bytes());
    out.extend_from_slice(text);
}

/// Reads a record's header and text at an offset; none where there is no whole one. Says how many
/// bytes are pinned, their checksum, and where they begin.
fn decode(file: &File, offset: u64, length: u64) -> Option<(Vec<u8>, u32, u32, u64)> {
    let mut header = [0; HEADER_BYTES];
    file.read_exact_at(&mut header, offset).ok()?;
    let word = |at: usize| header[at..at + 4].try_into().map_or(0, u32::from_le_bytes);
    let [magic, text, pinned, checksum, of_header] = [0, 4, 8, 12, 16].map(word);
    let begin = offset + HEADER_BYTES as u64;
    let after = begin + u64::from(text) + u64::from(pinned);
    if magic != MAGIC || text as usize > TEXT_MAX || after > length {
        return None;
    }
    let mut bytes = vec![0; text as usize];
    file.read_exact_at(&mut bytes, begin).ok()?;
    let computed = crc32c::crc32c_append(crc32c::crc32c(&header[..16]), &bytes);
    (computed == of_header).then_some((bytes, pinned, checksum, begin + u64::from(text)))
}

impl Journal {
    /// Opens the journal in a directory, and tells `each` what it says; one that says nothing is
    /// begun where there is none.
    ///
    /// # Errors
    /// Where the disk does not do what is needed.
    pub fn open(directory: &Path, mut each: impl FnMut(&[u8], Option<Pinned>)) -> Result<Journal> {
        let generations = generations(directory)?;
        let latest = generations.first().copied();
        let generation = latest.unwrap_or(1);
        let file = match latest {
            Some(_) => {
                OpenOptions::new().read(true).write(true).open(directory.join(name(generation)))?
            }
            None => create(directory, &name(generation))?,
        };
        let length = file.metadata()?.len();
        let file = Arc::new(file);
        let mut end = 0;
        while let Some((text, pinned, checksum, offset)) = decode(&file, end, length) {
            let place = Pinned { file: Arc::clone(&file), offset, length: pinned, checksum };
            each(&text, (pinned > 0).then_some(place));
            end = offset + u64::from(pinned);
        }
        if end < length {
            tracing::warn!(bytes = length - end, "the end of a journal was torn and is left out");
            file.set_len(end)?;
        }
        // Before this one has its name it is whole; the others are what a crash left.
        for old in generations.iter().skip(1) {
            let _ = fs::remove_file(directory.join(name(*old)));
        }
        let _ = fs::remove_file(directory.join(UNNAMED));
        let directory = directory.to_path_buf();
        let pending = Vec::new();
        Ok(Journal { directory, file, generation, end, pending, synced: false })
    }

    /// Adds a record, and says where its bytes will be once it is [written](Self::write).
    pub fn append(&mut self, text: &[u8], bytes: &[u8]) -> Pinned {
        let checksum = crc32c::crc32c(bytes);
        encode(text, bytes.len() as u32, checksum, &mut self.pending);
        let offset = self.end + self.pending.len() as u64;
        self.pending.extend_from_slice(bytes);
        Pinned { file: Arc::clone(&self.file), offset, length: bytes.len() as u32, checksum }
    }

    /// Whether so much waits to be written that it should be.
    pub fn is_full(&self) -> bool {
        self.pending.len() >= PENDING_MAX
    }

    /// Writes what was added. Where that fails it can be tried again.
    ///
    /// # Errors
    /// The disk's.
    pub fn write(&mut self) -> Result<()> {
        if !self.pending.is_empty() {
            self.file.write_all_at(&self.pending, self.end)?;
            self.end += self.pending.len() as u64;
            self.pending.clear();
            self.synced = false;
        }
        Ok(())
    }

    /// Makes what was written last.
    ///
    /// # Errors
    /// The disk's.
    pub fn sync(&mut self) -> Result<()> {
        if !self.synced {
            self.file.sync_data()?;
            self.synced = true;
        }
        Ok(())
    }

    /// Bytes of the journal, with what waits to be written.
    pub fn length(&self) -> u64 {
        self.end + self.pending.len() as u64
    }

    /// Begins the next generation with what `fill` adds to it. The journal stays as it was where
    /// that fails.
    ///
    /// # Errors
    /// The disk's, or those of `fill`.
    pub fn rewrite<T>(&mut self, fill: impl FnOnce(&mut Journal) -> Result<T>) -> Result<T> {
        let generation = self.generation.checked_add(1).ok_or(ErrorKind::FileTooLarge)?;
        let mut next = Journal {
            directory: self.directory.clone(),
            file: Arc::new(create(&self.directory, UNNAMED)?),
            generation,
            end: 0,
            pending: Vec::new(),
            synced: false,
        };
        let filled = fill(&mut next)?;
        next.write()?;
        next.sync()?;
        fs::rename(self.directory.join(UNNAMED), self.directory.join(name(generation)))?;
        File::open(&self.directory)?.sync_all()?;
        let before = std::mem::replace(self, next);
        // One that stays is removed at the next open.
        let _ = fs::remove_file(self.directory.join(name(before.generation)));
        Ok(filled)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Said = Vec<(Vec<u8>, Option<Pinned>)>;

    fn open(directory: &Path) -> (Journal, Said) {
        let mut said = Vec::new();
        let journal = Journal::open(directory, |text, pinned| said.push((text.to_vec(), pinned)));
        (journal.unwrap(), said)
    }

    /// Records `0..n`, of which every second has bytes pinned.
    fn write(journal: &mut Journal, n: u8) -> Vec<Option<Pinned>> {
        let record = |n: u8| {
            let bytes = vec![n; if n.is_multiple_of(2) { 100 + usize::from(n) } else { 0 }];
            let pinned = journal.append(&[n; 3], &bytes);
            (!bytes.is_empty()).then_some(pinned)
        };
        let pinned = (0..n).map(record).collect();
        journal.write().unwrap();
        journal.sync().unwrap();
        pinned
    }

    fn check(said: &Said) {
        for (n, (text, pinned)) in said.iter().enumerate() {
            assert_eq!(text, &[n as u8; 3]);
            let bytes = pinned.as_ref().map(|pinned| pinned.read().unwrap());
            assert_eq!(bytes, (n.is_multiple_of(2)).then(|| vec![n as u8; 100 + n]));
        }
    }

    #[test]
    fn what_was_written_is_said_again() {
        let directory = tempfile::tempdir().unwrap();
        let (mut journal, said) = open(directory.path());
        assert!(said.is_empty());
        let pinned = write(&mut journal, 9);
        assert_eq!(pinned[4].as_ref().unwrap().read().unwrap(), vec![4; 104]);
        drop(journal);
        let (mut journal, said) = open(directory.path());
        assert_eq!(said.len(), 9);
        check(&said);
        journal.append(&[9; 3], &[]);
        journal.write().unwrap();
        assert_eq!(open(directory.path()).1.len(), 10);
    }

    #[test]
    fn a_torn_journal_says_what_was_before_the_tear() {
        let whole = tempfile::tempdir().unwrap();
        write(&mut open(whole.path()).0, 6);
        let bytes = fs::read(whole.path().join(name(1))).unwrap();
        let mut lengths = std::collections::BTreeSet::new();
        for cut in 0..bytes.len() {
            let directory = tempfile::tempdir().unwrap();
            fs::write(directory.path().join(name(1)), &bytes[..cut]).unwrap();
            let (mut journal, said) = open(directory.path());
            check(&said);
            lengths.insert(said.len());
            let n = said.len() as u8;
            journal.append(
                &[n; 3],
                &vec![n; if n.is_multiple_of(2) { 100 + usize::from(n) } else { 0 }],
            );
            journal.write().unwrap();
            let (_, again) = open(directory.path());
            assert_eq!(again.len(), said.len() + 1, "cut at {cut}");
            check(&again);
        }
        assert!(lengths.into_iter().eq(0..6));
    }

    #[test]
    fn damage_is_found() {
        let directory = tempfile::tempdir().unwrap();
        write(&mut open(directory.path()).0, 6);
        let path = directory.path().join(name(1));
        let bytes = fs::read(&path).unwrap();
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 4;
            fs::write(&path, &damaged).unwrap();
            let (_, said) = open(directory.path());
            let unread = said.iter().filter(|(_, p)| p.as_ref().is_some_and(|p| p.read().is_err()));
            assert_eq!(said.len() + unread.count(), if said.len() == 6 { 7 } else { said.len() });
            fs::write(&path, &bytes).unwrap();
        }
    }

    #[test]
    fn a_rewritten_journal_has_what_was_put_into_it_and_old_places_can_be_read() {
        let directory = tempfile::tempdir().unwrap();
        let (mut journal, _) = open(directory.path());
        let pinned = write(&mut journal, 200);
        let before = journal.length();
        let failed = journal.rewrite(|_| Err::<(), _>(Error::other("no")));
        assert!(failed.is_err() && journal.length() == before);
        journal.rewrite(|next| Ok(write(next, 5))).unwrap();
        assert!(journal.length() < before);
        assert_eq!(pinned[150].as_ref().unwrap().read().unwrap(), vec![150; 250]);
        journal.append(&[5; 3], &[]);
        journal.write().unwrap();
        drop(journal);
        let (journal, said) = open(directory.path());
        assert_eq!((said.len(), journal.generation), (6, 2));
        check(&said);
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    }
}
