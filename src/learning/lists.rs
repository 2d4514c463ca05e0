//! Lists of files, by which a loader that reads them may number its samples.
//!
//! A list is a small file with an ending that lists have and few of the dataset's files do. When a task reads
//! it, its bytes are fetched from the source. If all that it names is there, its order is a numbering. The
//! names may be paths from the source, from the list's directory, or absolute paths of the dataset elsewhere.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;
use std::sync::mpsc::SyncSender;

use super::{Note, Surroundings};
use crate::ids::FileId;
use crate::learn::Numbering;
use crate::order::index::{Filter, Format, IndexOrder, Manifest, index_order};
use crate::order::{Entry, Listing};
use crate::plan::Layout;
use crate::source::{ReadRequest, Urgency};

/// The endings of lists.
const ENDINGS: [&str; 6] = [".csv", ".tsv", ".json", ".jsonl", ".ndjson", ".txt"];

/// Larger files, or files with longer words, are data and no lists.
const BYTES_MAX: u64 = 16 << 20;
const WORD_MAX: usize = 4096;

/// If more files than these, or one in so many, have such an ending, they are samples.
const FEW: usize = 16;
const USUAL: usize = 100;

/// How many lists are read at most.
const LISTS_MAX: usize = 8;

/// The names of values in JSON that are paths.
const NAMES: [&str; 12] = [
    "path",
    "file",
    "filename",
    "file_name",
    "file_path",
    "filepath",
    "image",
    "image_path",
    "img",
    "img_path",
    "name",
    "images.file_name",
];

/// The lists of a dataset, and those that were read.
#[derive(Default)]
pub(super) struct Lists {
    /// Those that no task has read, with their paths.
    unread: BTreeMap<FileId, String>,
    asked: usize,
    pub(super) numberings: Vec<Numbering>,
}

impl Lists {
    /// Finds the files that may be lists.
    pub(super) fn find(&mut self, listing: &Listing<'_>) {
        let entries = listing.entries();
        self.unread.clear();
        for ending in ENDINGS {
            let of_kind = |entry: &&Entry<'_>| ends_in(entry.path, ending);
            let lists: Vec<&Entry<'_>> = entries.iter().filter(of_kind).collect();
            if lists.len() > FEW.max(entries.len() / USUAL) {
                continue;
            }
            for list in lists.into_iter().filter(|list| (1..=BYTES_MAX).contains(&list.size)) {
                if let Ok(path) = std::str::from_utf8(list.path) {
                    self.unread.insert(list.file, path.to_owned());
                }
            }
        }
    }

    /// A task reads a file. If it is a list, its bytes go to `notes`.
    pub(super) fn read(
        &mut self,
        file: FileId,
        around: &Surroundings,
        layout: &Layout,
        notes: &SyncSender<Note>,
    ) {
        let Surroundings { source, catalog, .. } = around;
        if self.unread.is_empty() || self.asked >= LISTS_MAX {
            return;
        }
        let Some(path) = self.unread.remove(&file) else { return };
        let first = layout.blocks_of(file).next().and_then(|block| catalog.locate(block));
        let Some(first) = first.filter(|at| at.is_sized) else { return };
        let length = catalog.file(first.node).map_or(0, |(_, bytes)| bytes);
        if !(1..=BYTES_MAX).contains(&length) {
            return;
        }
        self.asked += 1;
        let notes = notes.clone();
        source.read(vec![ReadRequest {
            path: first.path,
            fingerprint: first.fingerprint,
            is_sized: true,
            exact: catalog.is_revalidated(),
            offset: 0,
            length: length as usize,
            urgency: Urgency::Prefetch,
            deliver: Box::new(move |bytes| {
                let Ok(bytes) = bytes else { return };
                // If the thread is far behind, the list is not learnt from.
                let _ = notes.try_send(Note::Listed { path, text: bytes });
            }),
        }]);
    }

    /// Adds the numbering of a list, if the list names files of the dataset.
    pub(super) fn add(
        &mut self,
        path: &str,
        text: &[u8],
        listing: Listing<'_>,
    ) -> Option<Numbering> {
        if words(text).any(|word| word.len() > WORD_MAX) {
            return None;
        }
        let prefix = absolute(text).and_then(|path| prefix(path, &listing));
        let listing = match prefix {
            Some(prefix) => listing.with_prefix(prefix),
            None => listing,
        };
        let files = files_in(path, text, &listing)?;
        let samples: Arc<[u32]> = files.into_iter().map(|file| file.0).collect();
        // A file that is named twice has no one number.
        let once = samples.iter().collect::<HashSet<_>>().len() == samples.len();
        let numbering = Numbering { name: format!("the list {path}'s"), samples, spec: None };
        if !once {
            return None;
        }
        self.numberings.retain(|before| before.name != numbering.name);
        self.numberings.push(numbering.clone());
        Some(numbering)
    }
}

fn ends_in(path: &[u8], ending: &str) -> bool {
    let start = path.len().checked_sub(ending.len());
    start.is_some_and(|start| path[start..].eq_ignore_ascii_case(ending.as_bytes()))
}

/// The files in the order of a list.
fn files_in(path: &str, text: &[u8], listing: &Listing<'_>) -> Option<Vec<FileId>> {
    let format = Format::of_name(path);
    let has = |name: &&str| {
        let key = name.rsplit('.').next().unwrap_or(name);
        let quoted = format!("\"{key}\"");
        text.windows(quoted.len()).any(|window| window == quoted.as_bytes())
    };
    let columns: Vec<Option<&str>> = match format {
        Format::Text => vec![None, Some("0"), Some("1")],
        Format::Csv | Format::Tsv => vec![None],
        Format::Json => {
            std::iter::once(None).chain(NAMES.into_iter().filter(has).map(Some)).collect()
        }
    };
    let directory = path.rsplit_once('/').map_or("", |(directory, _)| directory);
    let roots = if directory.is_empty() { vec![""] } else { vec!["", directory] };
    roots.into_iter().find_map(|root| {
        let filter = Filter { root: root.to_owned(), ext: Vec::new() };
        columns.iter().find_map(|&column| {
            let manifest = Manifest { text, format, column };
            let files = index_order(listing, IndexOrder::Manifest(manifest), &filter).ok()?;
            (files.len() > 1).then_some(files)
        })
    })
}

/// The words between quotes, commas, tabs and ends of lines.
fn words(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    text.split(|byte| b"\"',;\t\r\n".contains(byte)).map(<[u8]>::trim_ascii)
}

/// The first word of a list that is an absolute path.
fn absolute(text: &[u8]) -> Option<&[u8]> {
    words(text).find(|word| word.starts_with(b"/"))
}

/// The part of a path before a path of the dataset.
fn prefix<'t>(path: &'t [u8], listing: &Listing<'_>) -> Option<&'t [u8]> {
    let word = path.split(|byte| *byte == b' ').next().unwrap_or(path);
    let slashes = word.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| at);
    let starts: Vec<usize> = slashes.collect();
    let known: BTreeSet<&[u8]> = {
        // The rests of it that are paths of the dataset, in one pass over that.
        let parts: BTreeSet<&[u8]> = starts.iter().map(|start| &word[start + 1..]).collect();
        let paths = listing.entries().iter().map(|entry| entry.path);
        paths.filter(|path| parts.contains(path)).collect()
    };
    starts.into_iter().find(|start| known.contains(&word[start + 1..])).map(|start| &word[..start])
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATHS: [&str; 5] =
        ["train/a/1.jpg", "train/a/2.jpg", "train/b/3.jpg", "lists/train.csv", "train/names.txt"];

    fn listing() -> Listing<'static> {
        let entry = |(row, path): (usize, &&'static str)| Entry {
            path: path.as_bytes(),
            file: FileId(row as u32),
            size: 1,
        };
        Listing::new(PATHS.iter().enumerate().map(entry).collect())
    }

    fn taken(path: &str, text: &str) -> Option<Vec<u32>> {
        let numbering = Lists::default().add(path, text.as_bytes(), listing())?;
        Some(numbering.samples.to_vec())
    }

    #[test]
    fn lists_are_read_as_jobs_have_them() {
        let csv = "label,path\n1,train/b/3.jpg\n0,train/a/1.jpg\n";
        let text = "b/3.jpg 1\na/1.jpg 0\n";
        let absolute = "/data/set/train/b/3.jpg\n/data/set/train/a/1.jpg\n";
        let json =
            r#"[{"label": 1, "image": "train/b/3.jpg"}, {"label": 0, "image": "train/a/1.jpg"}]"#;
        let lines = "{\"path\": \"a/../x\"}\n";
        for (path, text) in [
            ("lists/train.csv", csv),
            ("train/names.txt", text),
            ("names.txt", "train/b/3.jpg\ntrain/a/1.jpg"),
            ("lists/all.txt", absolute),
            ("lists/all.json", json),
            ("all.json", r#"["train/b/3.jpg", "train/a/1.jpg"]"#),
            ("coco.json", &format!(r#"{{"images": {}}}"#, json.replace("image\"", "file_name\""))),
        ] {
            assert_eq!(taken(path, text), Some(vec![2, 0]), "{path}: {text}");
        }
        for (path, text) in [
            ("notes.txt", "nothing of the kind\nat all\n"),
            ("lists/train.csv", "label,path\n1,train/b/4.jpg\n"),
            ("a.json", lines),
            ("a.json", "[1, 2"),
            ("a.txt", "train/a/1.jpg\n"),
            ("a.txt", ""),
            ("twice.txt", "train/a/1.jpg\ntrain/b/3.jpg\ntrain/a/1.jpg\n"),
            ("data.txt", &format!("train/a/1.jpg\ntrain/b/3.jpg\n{}", "/9j/4AAQ".repeat(1000))),
        ] {
            assert_eq!(taken(path, text), None, "{path}: {text}");
        }
    }

    #[test]
    fn many_files_of_a_kind_are_no_lists() {
        let paths: Vec<String> = (0..1_000).map(|at| format!("{at}.txt")).collect();
        let sizes = |row: usize| if row == 0 { BYTES_MAX + 1 } else { 1 };
        let mut entries: Vec<Entry<'_>> = (0..)
            .zip(&paths)
            .map(|(row, path)| Entry { path: path.as_bytes(), file: FileId(row), size: 1 })
            .collect();
        for (row, path) in ["big.csv", "train.CSV"].iter().enumerate() {
            let file = FileId(1_000 + row as u32);
            entries.push(Entry { path: path.as_bytes(), file, size: sizes(row) });
        }
        let mut lists = Lists::default();
        lists.find(&Listing::new(entries));
        assert_eq!(
            lists.unread.into_iter().collect::<Vec<_>>(),
            [(FileId(1_001), "train.CSV".to_owned())]
        );
    }
}
