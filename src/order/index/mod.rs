//! Index orders: which file is number `i` of the job's dataset.
//!
//! A sampler draws positions. The dataset class gives each position a file by sorting its files before the
//! first epoch. [`index_order`] repeats that: it takes the files below the dataset's directory, excludes
//! other kinds of files, and sorts.
//!
//! The sorts really differ. `-` and `.` come before `/`, so `a-b/x` stands before `a/x` if whole paths are
//! compared, and after it if classes are compared. ImageFolder puts a directory's own files before those of
//! its subdirectories, whatever their names.

mod manifest;

pub use manifest::{Format, Manifest};

use std::cmp::Ordering;

use super::grouped;
use super::listing::Listing;
use crate::error::{Error, ErrorKind, Result};
use crate::ids::FileId;

/// The extensions of torchvision's `ImageFolder` (`IMG_EXTENSIONS`).
const IMAGES: [&str; 9] =
    [".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp"];

/// The extensions of Keras's `image_dataset_from_directory`.
const KERAS_IMAGES: [&str; 5] = [".bmp", ".gif", ".jpeg", ".jpg", ".png"];

/// The extensions of DALI's `readers.file`.
const DALI_FILES: [&str; 15] = [
    ".jpg", ".jpeg", ".png", ".bmp", ".tif", ".tiff", ".pnm", ".ppm", ".pgm", ".pbm", ".jp2",
    ".webp", ".flac", ".ogg", ".wav",
];

/// How a dataset class sorts the files that it finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sorting {
    /// torchvision's `ImageFolder`. The directories directly below the root are the classes, sorted by name.
    /// Within a class, directories are sorted by whole path, as `sorted(os.walk(class))` gives them. Within a
    /// directory, files are sorted by name.
    ImageFolder,
    /// Keras's `image_dataset_from_directory` before it shuffles: like [`Sorting::ImageFolder`], with other
    /// endings and without classes whose name begins with a dot.
    Keras,
    /// DALI's `readers.file(file_root=...)`: by class and then by name, bytewise. Only files directly in a
    /// class belong to it.
    Dali,
    /// Bytewise by path: `sorted()` of all paths, as `find | LC_ALL=C sort` gives them.
    Path,
    /// `sorted()` of `pathlib.Path` objects, such as those of `rglob`: component by component, files and
    /// directories alike.
    Pathlib,
    /// By the file's name, whatever its directory: DLIO with sub-folders.
    Name,
    /// `os.walk` over names as the mount lists them, which is sorted: first the files of a directory, then
    /// its subdirectories in turn.
    Walk,
}

impl Sorting {
    /// All sortings with their words in a spec.
    pub const WORDS: [(&str, Sorting); 7] = [
        ("imagefolder", Sorting::ImageFolder),
        ("keras", Sorting::Keras),
        ("dali", Sorting::Dali),
        ("path", Sorting::Path),
        ("pathlib", Sorting::Pathlib),
        ("name", Sorting::Name),
        ("walk", Sorting::Walk),
    ];

    /// Whether it sorts by paths only. Then the files below a directory keep the order of the whole dataset.
    pub fn sorts_by_path_only(self) -> bool {
        matches!(self, Sorting::Path | Sorting::Pathlib | Sorting::Name | Sorting::Walk)
    }

    /// The word for it in a spec.
    pub fn name(self) -> &'static str {
        Self::WORDS.iter().find(|(_, sorting)| *sorting == self).map_or("", |(word, _)| word)
    }
}

/// How a dataset class numbers its files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IndexOrder<'a> {
    /// By sorting the files that it finds.
    Sorted(Sorting),
    /// As a file lists them.
    Manifest(Manifest<'a>),
}

impl IndexOrder<'_> {
    /// The word for it in a spec.
    pub fn name(&self) -> &'static str {
        match self {
            IndexOrder::Sorted(sorting) => sorting.name(),
            IndexOrder::Manifest(_) => "manifest",
        }
    }
}

/// Which files belong to the dataset.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// The dataset's directory relative to the source, such as `train`; empty for the source.
    pub root: String,
    /// Endings of the names to take, such as `.jpg`, in either case. If empty, the index order decides: those
    /// with classes take images (DALI also audio), the others take all files.
    pub ext: Vec<String>,
}

impl Filter {
    /// The root without `./` and slashes at its ends.
    pub fn directory(&self) -> &str {
        let root = self.root.trim_start_matches("./").trim_matches('/');
        if root == "." { "" } else { root }
    }

    /// Whether the name has a wanted ending. `default` are the endings if the filter has none.
    ///
    /// Python folds case by Unicode. No other character folds to one of an image's ending, so ASCII is
    /// enough.
    pub(super) fn takes(&self, path: &[u8], default: &[&str]) -> bool {
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

/// Numbers the files of a dataset: element `i` is the file at position `i` of a sampler.
///
/// # Errors
/// When no file is left, or a manifest names a file that does not exist (with its line).
pub fn index_order(
    listing: &Listing<'_>,
    order: IndexOrder<'_>,
    filter: &Filter,
) -> Result<Vec<FileId>> {
    let files = match order {
        IndexOrder::Sorted(sorting) => sorted(listing, sorting, filter),
        IndexOrder::Manifest(manifest) => manifest.files(listing, filter)?,
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

fn sorted(listing: &Listing<'_>, sorting: Sorting, filter: &Filter) -> Vec<FileId> {
    let endings: &[&str] = match sorting {
        Sorting::ImageFolder => &IMAGES,
        Sorting::Keras => &KERAS_IMAGES,
        Sorting::Dali => &DALI_FILES,
        Sorting::Path | Sorting::Pathlib | Sorting::Name | Sorting::Walk => &[],
    };
    let below = listing.below(filter.directory());
    let taken = below.filter(|(_, entry)| filter.takes(entry.path, endings));
    let mut files: Vec<(&[u8], FileId)> = taken.map(|(path, entry)| (path, entry.file)).collect();
    match sorting {
        Sorting::ImageFolder => return image_folder(&files),
        Sorting::Keras => {
            files.retain(|(path, _)| !path.starts_with(b"."));
            return image_folder(&files);
        }
        Sorting::Dali => {
            files.retain(|(path, _)| path.iter().filter(|byte| **byte == b'/').count() == 1);
            files.sort_unstable_by(|(a, _), (b, _)| by_component(a, b, false, <[u8]>::cmp));
        }
        Sorting::Path => files.sort_unstable(),
        Sorting::Pathlib => {
            files.sort_by(|(a, _), (b, _)| by_component(a, b, false, python_cmp));
        }
        Sorting::Name => files.sort_by(|(a, _), (b, _)| {
            let name = |path| <[u8]>::rsplit(path, |byte| *byte == b'/').next().unwrap_or(path);
            python_cmp(name(a), name(b)).then_with(|| a.cmp(b))
        }),
        Sorting::Walk => {
            files.sort_unstable_by(|(a, _), (b, _)| by_component(a, b, true, <[u8]>::cmp));
        }
    }
    files.into_iter().map(|(_, file)| file).collect()
}

/// Compares two paths component by component. With `files_first`, the files of a directory come before its
/// subdirectories.
fn by_component(
    a: &[u8],
    b: &[u8],
    files_first: bool,
    cmp: fn(&[u8], &[u8]) -> Ordering,
) -> Ordering {
    let (mut a, mut b) = (a, b);
    loop {
        let (slash_a, slash_b) = (first_slash(a), first_slash(b));
        let (name_a, name_b) = (&a[..slash_a.unwrap_or(a.len())], &b[..slash_b.unwrap_or(b.len())]);
        let kinds = slash_a.is_some().cmp(&slash_b.is_some());
        if files_first && kinds.is_ne() {
            return kinds;
        }
        let names = cmp(name_a, name_b).then(kinds);
        match (slash_a, slash_b) {
            (Some(at_a), Some(at_b)) if names.is_eq() => (a, b) = (&a[at_a + 1..], &b[at_b + 1..]),
            _ => return names,
        }
    }
}

fn first_slash(path: &[u8]) -> Option<usize> {
    path.iter().position(|byte| *byte == b'/')
}

/// A path of `ImageFolder`, split into the parts by which it is sorted in turn.
#[derive(Debug)]
struct ImageFolderPath<'p> {
    class: &'p [u8],
    /// The directory below the class. Empty for a file directly in the class.
    directory: &'p [u8],
    name: &'p [u8],
    file: FileId,
}

impl<'p> ImageFolderPath<'p> {
    /// Splits a path below the root. `None` for a file that is in no class.
    fn of(path: &'p [u8], file: FileId) -> Option<Self> {
        let class = first_slash(path)?;
        let name = path.iter().rposition(|byte| *byte == b'/')?;
        let directory = &path[(class + 1).min(name)..name];
        Some(ImageFolderPath { class: &path[..class], directory, name: &path[name + 1..], file })
    }

    fn cmp(&self, other: &Self) -> Ordering {
        python_cmp(self.class, other.class)
            .then_with(|| python_cmp(self.directory, other.directory))
            .then_with(|| python_cmp(self.name, other.name))
    }
}

fn image_folder(files: &[(&[u8], FileId)]) -> Vec<FileId> {
    let mut paths: Vec<_> =
        files.iter().filter_map(|(path, file)| ImageFolderPath::of(path, *file)).collect();
    paths.sort_by(ImageFolderPath::cmp);
    paths.into_iter().map(|path| path.file).collect()
}

/// Compares two names as Python compares the `str` that `os.fsdecode` makes of them.
///
/// Python compares code points, which is the order of the bytes in UTF-8. A byte that is not UTF-8 becomes a
/// lone surrogate U+DC80 to U+DCFF (PEP 383), between U+D7FF and U+E000.
fn python_cmp(a: &[u8], b: &[u8]) -> Ordering {
    if a.is_ascii() || b.is_ascii() {
        // The other name's first byte beyond ASCII is greater than any of these, whatever it decodes to.
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
        assert_eq!(sorted(&paths, IndexOrder::Sorted(Sorting::ImageFolder), "", &[]), expected);
    }

    #[test]
    fn image_folder_takes_images_in_classes_only() {
        let paths = ["x.jpg", "c/notes.txt", "c/Y.JPeG", "c/.png", "c/jpg", "c/a.webp"];
        let taken = sorted(&paths, IndexOrder::Sorted(Sorting::ImageFolder), "", &[]);
        assert_eq!(taken, ["c/.png", "c/Y.JPeG", "c/a.webp"]);
        assert_eq!(
            sorted(&paths, IndexOrder::Sorted(Sorting::ImageFolder), "", &[".TXT"]),
            ["c/notes.txt"]
        );
    }

    #[test]
    fn path_sorts_bytes_below_the_root() {
        let paths = ["train/a/x", "train/a-b/x", "trainer/q", "val/y", "train/B.png"];
        let expected = ["train/B.png", "train/a-b/x", "train/a/x"];
        for root in ["train", "./train/", "/train"] {
            assert_eq!(sorted(&paths, IndexOrder::Sorted(Sorting::Path), root, &[]), expected);
        }
        assert_eq!(
            sorted(&paths, IndexOrder::Sorted(Sorting::Path), ".", &[".png"]),
            ["train/B.png"]
        );
    }

    #[test]
    fn keras_and_dali_take_their_kinds() {
        let paths = [".h/1.jpg", "a/b/2.jpg", "a/1.gif", "a/1.webp", "a-b/1.jpg", "3.jpg"];
        let taken = |sorting| sorted(&paths, IndexOrder::Sorted(sorting), "", &[]);
        assert_eq!(taken(Sorting::Keras), ["a/1.gif", "a/b/2.jpg", "a-b/1.jpg"]);
        assert_eq!(taken(Sorting::Dali), [".h/1.jpg", "a/1.webp", "a-b/1.jpg"]);
    }

    #[test]
    fn pathlib_and_walk_go_name_by_name() {
        let paths = ["b.txt", "a/z", "a/b/x", "a-b/x", "a/b.c", "c"];
        let taken = |sorting| sorted(&paths, IndexOrder::Sorted(sorting), "", &[]);
        assert_eq!(taken(Sorting::Pathlib), ["a/b/x", "a/b.c", "a/z", "a-b/x", "b.txt", "c"]);
        assert_eq!(taken(Sorting::Walk), ["b.txt", "c", "a/b.c", "a/z", "a/b/x", "a-b/x"]);
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
