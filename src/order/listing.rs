//! The dataset as an order sees it: paths, the files behind them, and their sizes.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::hash::{DefaultHasher, Hasher};
use std::ops::Range;

use super::containers::FileBytes;
use super::suggest;
use crate::error::{Error, ErrorKind, Result};
use crate::ids::FileId;

/// The longest listing that is searched for a name similar to an unknown one.
const SEARCHED_ENTRIES_MAX: usize = 5_000;

/// Longer names are not compared: the cost is the square of the length.
const COMPARED_NAME_MAX: usize = 256;

/// A path that leads to a regular file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    /// The path relative to the source, as raw bytes, without `./` or a slash at either end.
    pub path: &'a [u8],
    /// The file that a read of this path reads. For a symbolic link it is the target, or the link itself if
    /// the target is no file of the source.
    pub file: FileId,
    /// The file's size in bytes; `u64::MAX` if it is not known.
    pub size: u64,
}

/// Finds where the samples of a file are, by its bytes.
pub type FindSamples<'a> = dyn Fn(FileBytes) -> Result<Vec<Range<u64>>> + Sync + 'a;

/// The samples of a file, and its index. All ranges are in bytes from the start of the file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FileSamples {
    /// Its samples, by their position.
    pub samples: Vec<Range<u64>>,
    /// The parts of the file that were read to find them. The job's reader needs these parts as well.
    pub index: Vec<Range<u64>>,
}

/// Calls a function with the bytes of each of some files, several at once. Gives what it found and read, in the order
/// of the files.
pub type ReadEach<'a> = dyn Fn(&[Entry<'_>], &FindSamples<'_>) -> Vec<Result<FileSamples>> + 'a;

#[derive(Clone, Copy)]
struct Reader<'a>(&'a ReadEach<'a>);

impl fmt::Debug for Reader<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Reader")
    }
}

/// Every path of a dataset that leads to a regular file, in any order.
///
/// Paths through symbolic links to files and directories are included, because loaders follow them.
#[derive(Clone, Debug, Default)]
pub struct Listing<'a> {
    entries: Vec<Entry<'a>>,
    prefixes: Vec<&'a [u8]>,
    unlisted: Option<&'a str>,
    reader: Option<Reader<'a>>,
}

impl<'a> Listing<'a> {
    pub fn new(entries: Vec<Entry<'a>>) -> Self {
        Listing { entries, prefixes: Vec::new(), unlisted: None, reader: None }
    }

    /// Also accepts absolute paths below `prefix` (the source, the mount point) in order files and manifests.
    pub fn with_prefix(mut self, prefix: &'a [u8]) -> Self {
        self.prefixes.push(prefix.strip_suffix(b"/").unwrap_or(prefix));
        self
    }

    /// Leaves the files of this directory out of the datasets that do not name it: no reader sees it in a listing.
    pub fn with_unlisted(self, directory: Option<&'a str>) -> Self {
        Listing { unlisted: directory, ..self }
    }

    /// The path of an entry in the unlisted directory, if it is there.
    fn unlisted_path<'p>(&self, path: &'p [u8]) -> Option<&'p [u8]> {
        path.strip_prefix(self.unlisted?.as_bytes())?.strip_prefix(b"/")
    }

    /// Whether a reader finds a path who goes through all directories.
    pub fn is_listed(&self, path: &[u8]) -> bool {
        self.unlisted_path(path).is_none()
    }

    /// The entries that such a reader finds.
    pub fn listed(&self) -> impl Iterator<Item = &Entry<'a>> {
        self.entries.iter().filter(|entry| self.is_listed(entry.path))
    }

    /// The entries below a directory, with their paths from there.
    pub(super) fn below<'s>(
        &'s self,
        root: &'s str,
    ) -> impl Iterator<Item = (&'a [u8], &'s Entry<'a>)> {
        let is_named = self.unlisted.is_some_and(|name| root.split('/').next() == Some(name));
        let below = move |entry: &'s Entry<'a>| {
            let rest = match root.as_bytes() {
                b"" => entry.path,
                root => entry.path.strip_prefix(root)?.strip_prefix(b"/")?,
            };
            (is_named || self.is_listed(entry.path)).then_some((rest, entry))
        };
        self.entries.iter().filter_map(below)
    }

    /// The listing of what a reader finds who goes through all directories, and one of each directory in the unlisted
    /// one.
    pub fn apart(&self) -> Vec<Cow<'_, Listing<'a>>> {
        if self.unlisted.is_none() {
            return vec![Cow::Borrowed(self)];
        }
        let mut parts: BTreeMap<&[u8], Vec<Entry<'a>>> = BTreeMap::from([(&b""[..], Vec::new())]);
        for entry in &self.entries {
            let path = self.unlisted_path(entry.path);
            let name = path.and_then(|path| path.split(|byte| *byte == b'/').next());
            parts.entry(name.unwrap_or_default()).or_default().push(*entry);
        }
        parts.into_values().map(|entries| Cow::Owned(Listing::new(entries))).collect()
    }

    /// Lets orders be made that need bytes of files.
    pub fn with_reader(self, reader: &'a ReadEach<'a>) -> Self {
        Listing { reader: Some(Reader(reader)), ..self }
    }

    /// Finds the samples of each of some files. There is an error for each file if the listing has no reader.
    pub(super) fn read_each(
        &self,
        files: &[Entry<'_>],
        find: &FindSamples<'_>,
    ) -> Vec<Result<FileSamples>> {
        let unread = || Error::new(ErrorKind::Order, "the dataset's files cannot be read here");
        match self.reader {
            Some(Reader(read)) => read(files, find),
            None => files.iter().map(|_| Err(unread())).collect(),
        }
    }

    pub fn with_entries(mut self, entries: impl IntoIterator<Item = Entry<'a>>) -> Self {
        self.entries.extend(entries);
        self
    }

    pub fn entries(&self) -> &[Entry<'a>] {
        &self.entries
    }

    /// A path relative to the source: without a known prefix and leading `./`.
    pub(super) fn relative<'p>(&self, path: &'p [u8]) -> &'p [u8] {
        let below = |prefix: &&[u8]| path.strip_prefix(*prefix)?.strip_prefix(b"/");
        let mut path = self.prefixes.iter().find_map(below).unwrap_or(path);
        while let Some(rest) = path.strip_prefix(b"./") {
            path = rest;
        }
        path
    }
}

/// Finds the entries of a listing by path.
///
/// A hash table of row numbers with open addressing: 8 to 16 bytes an entry, usually one probe.
#[derive(Debug)]
pub(super) struct Lookup<'l> {
    listing: &'l Listing<'l>,
    /// Rows of the listing, or [`FREE`]. Their number is a power of two, and at most half are used.
    slots: Vec<u32>,
}

const FREE: u32 = u32::MAX;

impl<'l> Lookup<'l> {
    /// Makes the table. If several entries have the same path, the first is found.
    pub(super) fn new(listing: &'l Listing<'l>) -> Self {
        let slots = vec![FREE; (listing.entries.len() * 2).next_power_of_two()];
        let mut lookup = Lookup { listing, slots };
        for (row, entry) in listing.entries.iter().enumerate() {
            let slot = lookup.slot(entry.path);
            if lookup.slots[slot] == FREE {
                lookup.slots[slot] = row as u32;
            }
        }
        lookup
    }

    /// The entry of a path, which may have a known prefix or leading `./`.
    pub(super) fn find(&self, path: &[u8]) -> Option<&'l Entry<'l>> {
        let row = self.slots[self.slot(self.listing.relative(path))];
        self.listing.entries.get(row as usize)
    }

    /// The slot of the path, or the free slot where it would be.
    fn slot(&self, path: &[u8]) -> usize {
        let mut hasher = DefaultHasher::new();
        hasher.write(path);
        let mask = self.slots.len() - 1;
        let mut slot = hasher.finish() as usize & mask;
        while let Some(entry) = self.listing.entries.get(self.slots[slot] as usize) {
            if entry.path == path {
                break;
            }
            slot = (slot + 1) & mask;
        }
        slot
    }

    /// Advice about a path that is not in the listing.
    pub(super) fn hint(&self, path: &[u8]) -> String {
        let path = self.listing.relative(path);
        match self.misplaced(path).or_else(|| self.misspelt(path)) {
            Some(known) => format!(
                "paths are relative to the source; did you mean '{}'?",
                String::from_utf8_lossy(known)
            ),
            None => "paths are relative to the source and are compared byte by byte".to_owned(),
        }
    }

    /// The known path that differs from the unknown one only in leading directories.
    fn misplaced(&self, path: &[u8]) -> Option<&'l [u8]> {
        let slashes = path.iter().enumerate().filter(|(_, byte)| **byte == b'/');
        let mut shorter = slashes.map(|(at, _)| &path[at + 1..]);
        if let Some(entry) = shorter.find_map(|rest| self.find(rest)) {
            return Some(entry.path);
        }
        let below = |known: &&[u8]| {
            known.strip_suffix(path).is_some_and(|directory| directory.ends_with(b"/"))
        };
        self.listing.entries.iter().map(|entry| entry.path).find(below)
    }

    /// The known path most similar to the unknown one.
    fn misspelt(&self, path: &[u8]) -> Option<&'l [u8]> {
        let word = std::str::from_utf8(path).ok()?;
        if word.len() > COMPARED_NAME_MAX || self.listing.entries.len() > SEARCHED_ENTRIES_MAX {
            return None;
        }
        let paths = self.listing.entries.iter().map(|entry| entry.path);
        let words = paths.filter(|path| path.len() <= COMPARED_NAME_MAX);
        suggest::nearest(word, words.filter_map(|path| std::str::from_utf8(path).ok()))
            .map(str::as_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listing() -> Listing<'static> {
        let paths: [&[u8]; 3] = [b"train/cat/1.jpg", b"train/dog/2.jpg", b"caf\xe9.png"];
        let entry = |(row, path)| Entry { path, file: FileId(row as u32 + 10), size: 5 };
        Listing::new(paths.into_iter().enumerate().map(entry).collect()).with_prefix(b"/data/set/")
    }

    #[test]
    fn paths_are_found_as_people_write_them() {
        let listing = listing();
        let lookup = Lookup::new(&listing);
        let find = |path: &[u8]| lookup.find(path).map(|entry| entry.file.0);
        assert_eq!(find(b"train/dog/2.jpg"), Some(11));
        assert_eq!(find(b"././train/dog/2.jpg"), Some(11));
        assert_eq!(find(b"/data/set/train/dog/2.jpg"), Some(11));
        assert_eq!(find(b"caf\xe9.png"), Some(12));
        assert_eq!(find(b"/data/settrain/dog/2.jpg"), None);
        assert_eq!(find(b""), None);
        assert!(Lookup::new(&Listing::default()).find(b"a").is_none());
    }

    #[test]
    fn an_unlisted_directory_is_only_in_datasets_that_name_it() {
        let paths: [&[u8]; 5] =
            [b"a/1", b".other/2", b".hidden/x/a/1", b".hidden/x/a/3", b".hidden/y/a/1"];
        let entry = |(row, path)| Entry { path, file: FileId(row as u32), size: 5 };
        let all = Listing::new(paths.into_iter().enumerate().map(entry).collect());
        let files = |listing: &Listing<'_>, root: &str| -> Vec<u32> {
            listing.below(root).map(|(_, entry)| entry.file.0).collect()
        };
        assert_eq!(files(&all, ""), [0, 1, 2, 3, 4], "none is unlisted");
        let listing = all.with_unlisted(Some(".hidden"));
        assert_eq!(files(&listing, ""), [0, 1]);
        assert_eq!(files(&listing, "a"), [0]);
        assert_eq!(files(&listing, ".hidden"), [2, 3, 4]);
        assert_eq!(files(&listing, ".hidden/x/a"), [2, 3]);
        let (path, _) = listing.below(".hidden/y").next().unwrap();
        assert_eq!(path, b"a/1");
        assert_eq!(listing.listed().count(), 2);
        let apart = listing.apart();
        let apart: Vec<Vec<u32>> = apart.iter().map(|part| files(part, "")).collect();
        assert_eq!(apart, [vec![0, 1], vec![2, 3], vec![4]]);
    }

    #[test]
    fn unknown_paths_get_the_nearest() {
        let listing = listing();
        let lookup = Lookup::new(&listing);
        for path in ["cat/1.jpg", "imagenet/train/cat/1.jpg", "train/cat/l.jpg"] {
            assert!(lookup.hint(path.as_bytes()).contains("'train/cat/1.jpg'"), "{path}");
        }
        assert!(!lookup.hint(b"something/else").contains("did you mean"));
    }
}
