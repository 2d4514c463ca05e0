//! Index orders compared with the installed torchvision and Python, on a tree of awkward names.

#![expect(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use belady::ids::FileId;
use belady::order::index::{Filter, IndexOrder, Sorting, index_order};
use belady::order::{Entry, Listing};

const PYTHON: &str = "/usr/bin/python3";

/// Prints the files of a directory's dataset, relative to it and in the dataset's order, each as hexadecimal
/// bytes.
const SCRIPT: &str = r#"
import os, pathlib, sys
from torchvision.datasets import ImageFolder

def walk(root):
    # The mount lists names sorted by bytes; this directory is not behind one.
    for directory, below, names in os.walk(root, followlinks=True):
        below.sort(key=os.fsencode)
        yield from (os.path.join(directory, name) for name in sorted(names, key=os.fsencode))

def keras(root):
    endings = (".bmp", ".gif", ".jpeg", ".jpg", ".png")
    for name in sorted(os.listdir(root)):
        top = os.path.join(root, name)
        if os.path.isdir(top) and not name.startswith("."):
            for directory, _, names in sorted(os.walk(top, followlinks=True), key=lambda x: x[0]):
                for name in sorted(names):
                    if name.lower().endswith(endings):
                        yield os.path.join(directory, name)

kind, root = sys.argv[1:]
paths = {
    "imagefolder": lambda: (path for path, _ in ImageFolder(root).samples),
    "keras": lambda: keras(root),
    "path": lambda: sorted(walk(root), key=os.fsencode),
    "pathlib": lambda: sorted(pathlib.Path(path) for path in walk(root)),
    "name": lambda: sorted(walk(root), key=lambda path: (os.path.basename(path), os.fsencode(path))),
    "walk": lambda: walk(root),
}[kind]()
for path in paths:
    print(os.fsencode(os.path.relpath(path, root)).hex())
"#;

const CLASSES: [&[u8]; 14] = [
    b"a",
    b"a-b",
    b"a.b",
    b"a b",
    b"A",
    b"Z",
    b"_",
    b"~",
    b"10",
    b"9",
    "\u{e9}".as_bytes(),
    "\u{ffff}".as_bytes(),
    "\u{1f600}".as_bytes(),
    b"caf\xe9",
];
const DIRECTORIES: [&[u8]; 9] =
    [b"", b"b", b"b/c", b"b-c", b"b.c", b"b/c.d", b"B", "b/\u{e9}\u{10000}".as_bytes(), b"b\xff"];
const NAMES: [&[u8]; 14] = [
    b"1.jpg",
    b"10.jpg",
    b"2.JPG",
    b"-.jpeg",
    b".png",
    b"b.png",
    b"x.Tiff",
    b"x.webp",
    b"x.gif",
    b"x.jpg.txt",
    b"jpg",
    "\u{fffd}.bmp".as_bytes(),
    "\u{1f600}.bmp".as_bytes(),
    b"\x80\xff.ppm",
];

fn join(parts: &[&[u8]]) -> Vec<u8> {
    let parts: Vec<_> = parts.iter().copied().filter(|part| !part.is_empty()).collect();
    parts.join(b"/".as_slice())
}

fn make(root: &Path) -> BTreeSet<Vec<u8>> {
    let mut paths = BTreeSet::from([b"stray.jpg".to_vec()]);
    for class in CLASSES {
        for directory in DIRECTORIES {
            paths.extend(NAMES.map(|name| join(&[class, directory, name])));
        }
    }
    for path in &paths {
        let path = root.join(OsStr::from_bytes(path));
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, b"").unwrap();
    }
    // Links give loaders more paths: a class, a directory in a class, a file.
    for (target, link) in [("a/b-c", "linked"), ("../Z/B", "a/b.link"), ("../A/1.jpg", "a/0.jpg")] {
        symlink(target, root.join(link)).unwrap();
    }
    paths.extend(NAMES.map(|name| join(&[b"linked", name])));
    paths.extend(NAMES.map(|name| join(&[b"a/b.link", name])));
    paths.insert(b"a/0.jpg".to_vec());
    paths
}

fn ask(kind: &str, root: &Path) -> Vec<Vec<u8>> {
    let output = Command::new(PYTHON)
        .args([OsStr::new("-c"), OsStr::new(SCRIPT), OsStr::new(kind), root.as_os_str()])
        .output()
        .unwrap_or_else(|error| panic!("{PYTHON} does not start ({error}): install python3"));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "this test compares with the real torchvision: install python3-torchvision for {PYTHON}\n\
         {stderr}"
    );
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    let lines = output.stdout.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    lines.map(|line| line.chunks(2).map(byte).collect()).collect()
}

#[test]
fn indexes_are_the_libraries() {
    let scratch = tempfile::tempdir().unwrap();
    let paths: Vec<_> = make(scratch.path()).into_iter().collect();
    let entry = |(row, path)| Entry { path, file: FileId(row as u32), size: 0 };
    // The order of a listing must not matter.
    let paths: Vec<Vec<u8>> = paths.iter().rev().cloned().collect();
    let listing = Listing::new(paths.iter().map(Vec::as_slice).enumerate().map(entry).collect());
    for (word, sorting) in Sorting::WORDS {
        if sorting == Sorting::Dali {
            // DALI is not installed; unit tests check its rule.
            continue;
        }
        let order = IndexOrder::Sorted(sorting);
        let files = index_order(&listing, order, &Filter::default()).unwrap();
        let found: Vec<_> = files.iter().map(|file| paths[file.index()].clone()).collect();
        let expected = ask(word, scratch.path());
        assert!(expected.len() > 1000, "{} files", expected.len());
        for (at, (found, expected)) in found.iter().zip(&expected).enumerate() {
            let shown = (String::from_utf8_lossy(found), String::from_utf8_lossy(expected));
            assert_eq!(found, expected, "{word}, file {at}: {shown:?}");
        }
        assert_eq!(found.len(), expected.len(), "{word}");
    }
}
