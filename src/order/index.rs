//! Index orders: which file is number `i` of the job's dataset.
//!
//! A sampler draws positions, and the dataset class has decided what they stand for by sorting its
//! files in some way before the first epoch. [`index_order`] repeats that: it takes the files below
//! the dataset's directory, leaves out those of other kinds, and sorts.
//!
//! The sorts really differ. `-` and `.` come before `/`, so `a-b/x` stands before `a/x` when whole
//! paths are compared and after it when classes are; and ImageFolder has a directory's own files
//! before those of its subdirectories, whatever their names.

use std::cmp::Ordering;

use super::grouped;
use super::listing::{Listing, Lookup};
use crate::error::{Error, ErrorKind, Result};
use crate::ids::FileId;

/// The extensions of torchvision's `ImageFolder` (`IMG_EXTENSIONS`).
const IMAGES: [&str; 9] =
    [".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp"];

/// How a dataset class numbers its files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IndexOrder<'a> {
    /// torchvision's `ImageFolder`: the directories directly below the root are the classes,
    /// sorted by name; within a class the directories sorted by whole path (as
    /// `sorted(os.walk(class))` has them) and within a directory the names.
    ImageFolder,
    /// Bytewise by path: `sorted()` of all paths, as `find | LC_ALL=C sort` gives them.
    Path,
    /// As this text lists them, one path a line; relative to the root.
    Manifest(&'a [u8]),
}

impl IndexOrder<'_> {
    /// The word for it in a spec.
    pub fn name(&self) -> &'static str {
        match self {
            IndexOrder::ImageFolder => "imagefolder",
            IndexOrder::Path => "path",
            IndexOrder::Manifest(_) => "manifest",
        }
    }
}

/// Which files belong to the dataset.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// The dataset's directory relative to the source, such as `train`; empty for the source.
    pub root: String,
    /// Endings of the names to take, such as `.jpg`, in either case. None: what the index order
    /// takes by itself, images for [`IndexOrder::ImageFolder`] and everything else for the others.
    pub ext: Vec<String>,
}

impl Filter {
    /// The root without `./` and slashes at its ends.
    fn directory(&self) -> &[u8] {
        let root = self.root.trim_start_matches("./").trim_matches('/');
        if root == "." { b"" } else { root.as_bytes() }
    }

    /// What is left of a path below the root.
    fn below<'p>(&self, path: &'p [u8]) -> Option<&'p [u8]> {
        match self.directory() {
            b"" => Some(path),
            root => path.strip_prefix(root)?.strip_prefix(b"/"),
        }
    }

    /// Whether the name ends as it should; `default` are the endings when none are given.
    ///
    /// Python folds case by Unicode, but no other character folds to one of an image's ending.
    fn takes(&self, path: &[u8], default: &[&str]) -> bool {
        let ends = |ext: &str| {
            let start = path.len().checked_sub(ext.len());
            start.is_some_and(|start| path[start..].eq_ignore_ascii_case(ext.as_bytes()))
        };
        match self.ext.as_slice() {
            [] => default.is_empty() || default.iter().any(|ext| ends(ext)),
            given => given.iter().any(|ext| ends(ext)),
        }
    }
}

/// The files of a dataset by their numbers: element `i` is what position `i` of a sampler stands
/// for.
///
/// # Errors
/// When no file is left, or a manifest names one that does not exist (with its line).
pub fn index_order(
    listing: &Listing<'_>,
    order: IndexOrder<'_>,
    filter: &Filter,
) -> Result<Vec<FileId>> {
    let files = match order {
        IndexOrder::ImageFolder => image_folder(listing, filter),
        IndexOrder::Path => by_path(listing, filter),
        IndexOrder::Manifest(text) => manifest(listing, text, filter)?,
    };
    if files.is_empty() {
        let total = grouped(listing.entries().len() as u64);
        let message = format!(
            "the {} index is empty: none of the {total} files of the source belongs to it",
            order.name()
        );
        let hint = "root= names the dataset's directory relative to the source, ext= the endings";
        return Err(Error::new(ErrorKind::Order, message).hint(hint));
    }
    Ok(files)
}

fn by_path(listing: &Listing<'_>, filter: &Filter) -> Vec<FileId> {
    let taken = |path| filter.below(path).is_some_and(|path| filter.takes(path, &[]));
    let mut files: Vec<_> = listing
        .entries()
        .iter()
        .filter(|entry| taken(entry.path))
        .map(|entry| (entry.path, entry.file))
        .collect();
    files.sort_unstable();
    files.into_iter().map(|(_, file)| file).collect()
}

fn manifest(listing: &Listing<'_>, text: &[u8], filter: &Filter) -> Result<Vec<FileId>> {
    let lookup = Lookup::new(listing);
    let root = filter.directory();
    let mut files = Vec::new();
    let mut joined = Vec::new();
    for (number, line) in (1u64..).zip(text.split(|byte| *byte == b'\n')) {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if line.is_empty() || !filter.takes(line, &[]) {
            continue;
        }
        let path = if root.is_empty() || line.starts_with(b"/") {
            line
        } else {
            joined.clear();
            joined.extend_from_slice(root);
            joined.push(b'/');
            joined.extend_from_slice(line.strip_prefix(b"./").unwrap_or(line));
            &joined
        };
        let entry = lookup.find(path).ok_or_else(|| unknown(&lookup, path, number))?;
        files.push(entry.file);
    }
    Ok(files)
}

/// The error about a line of a manifest that names no file.
fn unknown(lookup: &Lookup<'_>, path: &[u8], number: u64) -> Error {
    let shown = String::from_utf8_lossy(path);
    let error = Error::new(ErrorKind::Order, format!("line {number}: unknown path '{shown}'"));
    let first = path.split(|byte| b" \t,;".contains(byte)).next().unwrap_or(path);
    if first.len() < path.len() && lookup.find(first).is_some() {
        return error.hint("a line of a manifest is a path and nothing else");
    }
    error.hint(lookup.hint(path))
}

/// A path of `ImageFolder` in the parts by which it is sorted, one after the other.
#[derive(Debug)]
struct Parts<'p> {
    class: &'p [u8],
    /// The directory below the class; empty for the class's own.
    directory: &'p [u8],
    name: &'p [u8],
    file: FileId,
}

impl<'p> Parts<'p> {
    /// Takes the path below the root apart; `None` for a file that is in no class.
    fn of(path: &'p [u8], file: FileId) -> Option<Self> {
        let class = path.iter().position(|byte| *byte == b'/')?;
        let name = path.iter().rposition(|byte| *byte == b'/')?;
        let directory = &path[(class + 1).min(name)..name];
        Some(Parts { class: &path[..class], directory, name: &path[name + 1..], file })
    }

    fn cmp(&self, other: &Self) -> Ordering {
        python_cmp(self.class, other.class)
            .then_with(|| python_cmp(self.directory, other.directory))
            .then_with(|| python_cmp(self.name, other.name))
    }
}

fn image_folder(listing: &Listing<'_>, filter: &Filter) -> Vec<FileId> {
    let mut parts: Vec<_> = listing
        .entries()
        .iter()
        .filter(|entry| filter.takes(entry.path, &IMAGES))
        .filter_map(|entry| Parts::of(filter.below(entry.path)?, entry.file))
        .collect();
    parts.sort_by(Parts::cmp);
    parts.into_iter().map(|parts| parts.file).collect()
}

/// Compares two names as Python compares the `str` that `os.fsdecode` makes of them.
///
/// Python compares code points, which is the order of the bytes in UTF-8. A byte that is not
/// UTF-8 becomes the lone surrogate U+DC80 to U+DCFF (PEP 383), between U+D7FF and U+E000.
fn python_cmp(a: &[u8], b: &[u8]) -> Ordering {
    if a.is_ascii() || b.is_ascii() {
        // The other's first byte beyond ASCII is greater than any of these, whatever it decodes to.
        return a.cmp(b);
    }
    code_points(a).cmp(code_points(b))
}

fn code_points(name: &[u8]) -> impl Iterator<Item = u32> + '_ {
    name.utf8_chunks().flat_map(|chunk| {
        let escaped = chunk.invalid().iter().map(|byte| 0xdc00 + u32::from(*byte));
        chunk.valid().chars().map(u32::from).chain(escaped)
    })
}

#[cfg(test)]
mod tests {
    use super::super::listing::Entry;
    use super::*;

    fn listing<'a>(paths: &[&'a str]) -> Listing<'a> {
        let entry = |(row, path): (usize, &&'a str)| Entry {
            path: path.as_bytes(),
            file: FileId(row as u32),
            size: 1,
        };
        Listing::new(paths.iter().enumerate().map(entry).collect())
    }

    fn sorted(paths: &[&str], order: IndexOrder<'_>, root: &str, ext: &[&str]) -> Vec<String> {
        let filter = Filter { root: root.into(), ext: ext.iter().map(|e| (*e).into()).collect() };
        let files = index_order(&listing(paths), order, &filter).unwrap();
        files.iter().map(|file| paths[file.index()].to_owned()).collect()
    }

    #[test]
    fn image_folder_sorts_by_class_then_directory_then_name() {
        let expected = [
            "a/b.jpg",
            "a/z.jpg",
            "a/b/x.jpg",
            "a/b-c/x.jpg",
            "a/b/c/x.jpg",
            "a-b/x.jpg",
            "a.b/x.jpg",
        ];
        let mut paths = expected;
        paths.reverse();
        assert_eq!(sorted(&paths, IndexOrder::ImageFolder, "", &[]), expected);
    }

    #[test]
    fn image_folder_takes_images_in_classes_only() {
        let paths = ["x.jpg", "c/notes.txt", "c/Y.JPeG", "c/.png", "c/jpg", "c/a.webp"];
        let taken = sorted(&paths, IndexOrder::ImageFolder, "", &[]);
        assert_eq!(taken, ["c/.png", "c/Y.JPeG", "c/a.webp"]);
        assert_eq!(sorted(&paths, IndexOrder::ImageFolder, "", &[".TXT"]), ["c/notes.txt"]);
    }

    #[test]
    fn path_sorts_bytes_below_the_root() {
        let paths = ["train/a/x", "train/a-b/x", "trainer/q", "val/y", "train/B.png"];
        let expected = ["train/B.png", "train/a-b/x", "train/a/x"];
        for root in ["train", "./train/", "/train"] {
            assert_eq!(sorted(&paths, IndexOrder::Path, root, &[]), expected);
        }
        assert_eq!(sorted(&paths, IndexOrder::Path, ".", &[".png"]), ["train/B.png"]);
    }

    #[test]
    fn a_manifest_is_taken_as_it_stands() {
        let paths = ["train/a", "train/b"];
        let text = IndexOrder::Manifest(b"b\r\n\n./a\nb");
        assert_eq!(sorted(&paths, text, "train", &[]), ["train/b", "train/a", "train/b"]);
    }

    #[test]
    fn a_manifest_with_an_unknown_path_is_refused_with_its_line() {
        let listing = listing(&["a", "b"]);
        let error = |text: &[u8]| {
            let order = IndexOrder::Manifest(text);
            index_order(&listing, order, &Filter::default()).unwrap_err().to_string()
        };
        assert!(error(b"a\n\nc\n").starts_with("line 3: unknown path 'c'"));
        assert!(error(b"a 0\nb 1").contains("a path and nothing else"));
        assert!(error(b"").contains("index is empty"));
    }

    #[test]
    fn names_beyond_utf8_sort_as_pythons_surrogates() {
        // U+D7FF < a byte that is not UTF-8 < U+E000 < U+10000.
        let names: [&[u8]; 5] =
            [b"z", "\u{d7ff}".as_bytes(), b"\xff", "\u{e000}".as_bytes(), "\u{10000}".as_bytes()];
        for pair in names.windows(2) {
            assert_eq!(python_cmp(pair[0], pair[1]), Ordering::Less, "{pair:?}");
        }
        assert_eq!(python_cmp(b"a\xff", b"a\xff"), Ordering::Equal);
    }
}
