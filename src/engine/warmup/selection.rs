//! Finds the samples that a user has chosen.

use std::collections::HashSet;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use glob::{MatchOptions, Pattern};
use serde::{Deserialize, Serialize};

use super::Progress;
use crate::catalog::with_listing;
use crate::engine::Core;
use crate::engine::catalog_keeper::CatalogKeeper;
use crate::engine::orders::resolve;
use crate::engine::serving::Serving;
use crate::error::{Error, ErrorKind, Result};
use crate::ids::{BlockId, FileId};
use crate::order::{Entry, Listing};
use crate::plan::Layout;
use crate::source::DERIVED;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Selection {
    All,
    /// The first epoch of an order, as written on the command line.
    Order(String),
    /// These names, one a line. A directory stands for everything below it.
    Files(#[serde(with = "as_text")] Vec<u8>),
    /// What a shell pattern matches: `*` and `?` within a name, `**` across directories.
    Glob(String),
}

/// Bytes as text in which each byte is one character. So names of any bytes go through JSON.
mod as_text {
    use serde::de::{Deserialize, Deserializer, Error};
    use serde::ser::Serializer;

    pub(super) fn serialize<S: Serializer>(bytes: &[u8], to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&bytes.iter().map(|byte| char::from(*byte)).collect::<String>())
    }

    pub(super) fn deserialize<'d, D: Deserializer<'d>>(from: D) -> Result<Vec<u8>, D::Error> {
        let byte = |c| u8::try_from(c).map_err(|_| D::Error::custom("a character that is no byte"));
        String::deserialize(from)?.chars().map(byte).collect()
    }
}

/// A shell's rules: a wildcard does not match a slash.
const RULES: MatchOptions = MatchOptions {
    case_sensitive: true,
    require_literal_separator: true,
    require_literal_leading_dot: false,
};

/// Parts of files (file, offset, length), in the order in which they are wanted. `missing` counts the names
/// that the dataset does not have.
#[derive(Default)]
struct Parts {
    parts: Vec<(FileId, u64, u64)>,
    missing: u64,
}

impl Parts {
    fn whole(files: impl Iterator<Item = FileId>) -> Self {
        Parts { parts: files.map(|file| (file, 0, u64::MAX)).collect(), missing: 0 }
    }
}

pub(in crate::engine) struct Selector {
    keeper: Arc<CatalogKeeper>,
    serving: Arc<Serving>,
}

impl Selector {
    pub(in crate::engine) fn new(keeper: &Arc<CatalogKeeper>, serving: &Arc<Serving>) -> Self {
        Selector { keeper: Arc::clone(keeper), serving: Arc::clone(serving) }
    }

    pub(super) fn core(&self) -> &Core {
        self.keeper.core()
    }

    /// The chosen blocks, each once, and the progress at the start. Waits until all files are known.
    pub(super) fn blocks(&self, selection: &Selection) -> Result<(Vec<BlockId>, Progress)> {
        self.keeper.await_scan()?;
        let (core, points) = (self.core(), self.serving.points());
        let mut prefixes = points.clone();
        prefixes.push(core.source_path.clone());
        let source = Some(core.source_path.as_path());
        let parts = with_listing(&core.catalog, &points, source, |listing| match selection {
            Selection::All => Ok(Parts::whole(listing.listed().map(|entry| entry.file))),
            Selection::Order(spec) => ordered(spec, listing),
            Selection::Files(names) => Ok(named(names, listing, &prefixes)),
            Selection::Glob(pattern) => matching(pattern, listing),
        })?;
        Ok(cut(&parts, &core.catalog.layout()))
    }
}

fn cut(parts: &Parts, layout: &Layout) -> (Vec<BlockId>, Progress) {
    let mut progress = Progress { missing: parts.missing, ..Progress::default() };
    let (mut files, mut seen) = (HashSet::new(), vec![false; layout.blocks()]);
    let mut blocks = Vec::new();
    for (file, offset, length) in &parts.parts {
        files.insert(*file);
        for block in layout.blocks_in(*file, *offset, *length) {
            if !std::mem::replace(&mut seen[block.index()], true) {
                blocks.push(block);
                progress.chosen.add(layout.range(block).1);
            }
        }
    }
    (progress.files, progress.waiting) = (files.len() as u64, progress.chosen);
    (blocks, progress)
}

fn ordered(spec: &str, listing: &Listing<'_>) -> Result<Parts> {
    let order = resolve(spec, listing)?;
    let sample = |id: &u32| {
        let sample = order.samples().get(*id);
        (sample.file, sample.offset, sample.length.unwrap_or(u64::MAX))
    };
    Ok(Parts { parts: order.epoch(0).iter().map(sample).collect(), missing: 0 })
}

fn matching(pattern: &str, listing: &Listing<'_>) -> Result<Parts> {
    let wrong = |error| Error::new(ErrorKind::Usage, format!("the pattern '{pattern}': {error}"));
    let pattern = Pattern::new(pattern.strip_prefix("./").unwrap_or(pattern)).map_err(wrong)?;
    let matches = |entry: &&Entry<'_>| {
        let path = Path::new(std::ffi::OsStr::from_bytes(entry.path));
        pattern.matches_path_with(path, RULES)
    };
    // What no listing has is only meant by its name.
    let all: Vec<&Entry<'_>> = match pattern.as_str().starts_with(DERIVED) {
        true => listing.entries().iter().collect(),
        false => listing.listed().collect(),
    };
    let mut entries: Vec<&Entry<'_>> = all.into_iter().filter(matches).collect();
    entries.sort_unstable_by_key(|entry| entry.path);
    Ok(Parts::whole(entries.into_iter().map(|entry| entry.file)))
}

fn named(names: &[u8], listing: &Listing<'_>, prefixes: &[PathBuf]) -> Parts {
    let mut entries: Vec<&Entry<'_>> = listing.entries().iter().collect();
    entries.sort_unstable_by_key(|entry| entry.path);
    let mut parts = Parts::default();
    for line in names.split(|byte| *byte == b'\n') {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if line.is_empty() {
            continue;
        }
        let before = parts.parts.len();
        let name = relative(line, prefixes);
        let whole = |entry: &&Entry<'_>| (entry.file, 0, u64::MAX);
        let at = entries.partition_point(|entry| entry.path < name);
        parts.parts.extend(entries[at..].iter().take_while(|e| e.path == name).map(whole));
        // Names such as `a-b` sort between `a` and the names below it.
        let below = match name {
            b"" => Vec::new(),
            name => [name, b"/"].concat(),
        };
        let at = entries.partition_point(|entry| entry.path < below.as_slice());
        let inside = entries[at..].iter().take_while(|entry| entry.path.starts_with(&below));
        // The source itself is what is listed of it.
        let inside = inside.filter(|entry| !name.is_empty() || listing.is_listed(entry.path));
        parts.parts.extend(inside.map(whole));
        parts.missing += u64::from(parts.parts.len() == before);
    }
    parts
}

/// A name that a user wrote, relative to the source and without a slash at its end.
fn relative<'l>(line: &'l [u8], prefixes: &[PathBuf]) -> &'l [u8] {
    let below = |prefix: &PathBuf| {
        let rest = line.strip_prefix(prefix.as_os_str().as_bytes())?;
        if rest.is_empty() { Some(rest) } else { rest.strip_prefix(b"/") }
    };
    let mut name = prefixes.iter().find_map(below).unwrap_or(line);
    while let Some(rest) = name.strip_prefix(b"./") {
        name = rest;
    }
    let name = if name == b"." { b"" } else { name };
    name.strip_suffix(b"/").unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATHS: [&str; 6] = ["a", "a-b", "a/1", "a/x/2", "b/.3", "b/4.jpg"];

    fn with<T>(work: impl FnOnce(&Listing<'_>) -> T) -> T {
        let entry = |(nth, path): (usize, &&'static str)| Entry {
            path: path.as_bytes(),
            file: FileId(nth as u32),
            size: 10,
        };
        work(&Listing::new(PATHS.iter().enumerate().map(entry).collect()))
    }

    fn files(parts: &Parts) -> Vec<u32> {
        parts.parts.iter().map(|(file, _, _)| file.0).collect()
    }

    #[test]
    fn names_are_files_directories_or_missing() {
        let given = b"b/4.jpg\r\n\n/src/a/\n./none\n/src/b/.3\nb/4\n";
        let prefixes = [PathBuf::from("/src")];
        let parts = with(|listing| named(given, listing, &prefixes));
        assert_eq!((files(&parts), parts.missing), (vec![5, 0, 2, 3, 4], 2));
        let parts = with(|listing| named(b"/src\n", listing, &prefixes));
        assert_eq!((parts.parts.len(), parts.missing), (PATHS.len(), 0));
    }

    #[test]
    fn names_of_any_bytes_are_asked_for() {
        let names: Vec<u8> = (0..=u8::MAX).rev().collect();
        let asked = serde_json::to_string(&Selection::Files(names.clone())).unwrap();
        assert_eq!(serde_json::from_str::<Selection>(&asked).unwrap(), Selection::Files(names));
        assert!(serde_json::from_str::<Selection>(r#"{"files": "\u0100"}"#).is_err());
    }

    #[test]
    fn patterns_are_a_shells() {
        let found = |pattern: &str| with(|listing| matching(pattern, listing)).map(|p| files(&p));
        assert_eq!(found("a/*").unwrap(), [2]);
        assert_eq!(found("a/**/*").unwrap(), [2, 3]);
        assert_eq!(found("**/*.jpg").unwrap(), [5]);
        assert!(found("b/?4.jpg").unwrap().is_empty());
        assert!(found("a/***").is_err());
    }

    #[test]
    fn what_is_chosen_twice_is_one() {
        let layout = Layout::new([10, 0, 3 << 20]);
        let file = FileId(2);
        let parts = Parts {
            parts: vec![(file, 1 << 20, 5), (file, 0, u64::MAX), (FileId(1), 0, u64::MAX)],
            missing: 1,
        };
        let (blocks, progress) = cut(&parts, &layout);
        assert_eq!(blocks, [BlockId(2), BlockId(1), BlockId(3)]);
        assert_eq!((progress.files, progress.missing, progress.chosen.bytes), (2, 1, 3 << 20));
    }
}
