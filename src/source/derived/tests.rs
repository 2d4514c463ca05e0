//! Samples made of the images in `tests/vectors/images`.

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::UNIX_EPOCH;

use tempfile::TempDir;

use super::*;
use crate::derive::{Choice, Format, Steps, Work};
use crate::source::PosixSource;
use crate::source::stub::StubSource;
use crate::source::tests::conformance::{listed_stat, read, read_unsized, read_version};

const VECTORS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/vectors/images");

fn image(name: &str) -> Vec<u8> {
    fs::read(Path::new(VECTORS).join(name)).unwrap()
}

fn recipe(name: &str, from: &str, resize: u32, format: Format) -> Recipe {
    let work = Work::Image(Steps { resize: Some(resize), crop: None, format });
    Recipe { name: name.into(), at: None, from: Choice::parse(from).unwrap(), work }
}

/// A directory of images, and how often each file of it was read.
struct Stand {
    top: TempDir,
    reads: Arc<AtomicU64>,
    source: Derived,
}

impl Stand {
    fn new() -> Self {
        let top = tempfile::tempdir().unwrap();
        for (path, name) in [
            ("train/a/1.jpg", "wide.jpg"),
            ("train/a/2.jpg", "tall.jpg"),
            ("train/b/3.JPEG", "progressive.jpg"),
            ("val/4.jpg", "wide.jpg"),
        ] {
            let path = top.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, image(name)).unwrap();
        }
        fs::write(top.path().join("train/a/list.txt"), "1.jpg").unwrap();
        std::os::unix::fs::symlink("1.jpg", top.path().join("train/a/link.jpg")).unwrap();
        let recipes = [
            recipe("small", "train/**/*.[jJ]*", 24, Format::Jpeg { quality: 90 }),
            recipe("array", "", 20, Format::Npy),
        ];
        let reads = Arc::new(AtomicU64::new(0));
        let source = Derived::open(counted(top.path(), &reads), &recipes).unwrap();
        Stand { top, reads, source }
    }

    /// All paths below a directory, sorted, with a slash after those of directories.
    fn paths(&self, directory: &str) -> Vec<String> {
        let mut found = Vec::new();
        let mut left = vec![PathBuf::from(directory)];
        while let Some(directory) = left.pop() {
            let mut names = Vec::new();
            let each = &mut |part: &[OsString]| names.extend_from_slice(part);
            self.source.list_in_parts(&directory, each).unwrap();
            for (name, stat) in names.iter().zip(self.source.stat_all(&directory, &names)) {
                let path = directory.join(name);
                let text = path.to_str().unwrap().to_owned();
                match stat.map(|stat| stat.kind) {
                    Ok(Kind::Directory) => {
                        found.push(text + "/");
                        left.push(path);
                    }
                    Ok(Kind::File) => found.push(text),
                    Ok(_) | Err(Errno::ENOENT) => {}
                    Err(errno) => panic!("{text}: {errno}"),
                }
            }
        }
        found.sort_unstable();
        found
    }

    fn of(&self, name: &str) -> DerivedStatus {
        self.source.derived().into_iter().find(|status| status.name == name).unwrap()
    }
}

fn counted(top: &Path, reads: &Arc<AtomicU64>) -> Arc<dyn Source> {
    let (files, reads) = (PosixSource::open(top, 4).unwrap(), Arc::clone(reads));
    let read = move |request: ReadRequest| {
        reads.fetch_add(1, Ordering::Relaxed);
        files.read(vec![request]);
    };
    Arc::new(StubSource::new(PosixSource::open(top, 4).unwrap(), read))
}

fn sides(jpeg: &[u8]) -> (u32, u32) {
    let image = crate::derive::Image::decode(jpeg).unwrap();
    (image.width, image.height)
}

#[test]
fn each_recipe_shows_the_files_that_it_takes() {
    let stand = Stand::new();
    assert_eq!(
        stand.paths(".derived/small"),
        [
            ".derived/small/train/",
            ".derived/small/train/a/",
            ".derived/small/train/a/1.jpg",
            ".derived/small/train/a/2.jpg",
            ".derived/small/train/b/",
            ".derived/small/train/b/3.JPEG",
        ]
    );
    let arrays = stand.paths(".derived/array");
    let files: Vec<&str> =
        arrays.iter().map(String::as_str).filter(|p| !p.ends_with('/')).collect();
    assert_eq!(
        files,
        [
            ".derived/array/train/a/1.jpg.npy",
            ".derived/array/train/a/2.jpg.npy",
            ".derived/array/train/b/3.JPEG.npy",
            ".derived/array/val/4.jpg.npy",
        ]
    );
    let top = stand.paths(".derived");
    assert!(top.contains(&".derived/small/".into()) && top.contains(&".derived/array/".into()));
    assert!(stand.paths("").contains(&"train/a/list.txt".into()), "the source is shown as it is");
    for missing in [".derived/x", ".derived/small/val", ".derived/small/train/a/list.txt"] {
        assert_eq!(stand.source.stat(Path::new(missing)).err(), Some(Errno::ENOENT), "{missing}");
    }
    assert_eq!(stand.reads.load(Ordering::Relaxed), 0, "nothing is made for a listing");
}

#[test]
fn a_sample_is_made_once_for_all_who_ask() {
    let stand = Stand::new();
    let path = Path::new(".derived/small/train/a/2.jpg");
    let listed = listed_stat(&stand.source, path);
    assert!(!listed.is_sized);
    let made = read_unsized(&stand.source, path, &listed).unwrap();
    assert_eq!(sides(&made), (24, 38));
    let stat = stand.source.stat(path).unwrap();
    assert_eq!((stat.is_sized, stat.size), (true, made.len() as u64));
    assert_eq!(read(&stand.source, path).unwrap(), made);
    let version = stat.fingerprint();
    assert_eq!(read_version(&stand.source, path, version, 7, 9).unwrap(), made[7..16]);
    assert_eq!(stand.reads.load(Ordering::Relaxed), 1);
    let status = stand.of("small");
    assert_eq!((status.made, status.failed, status.bytes), (1, 0, made.len() as u64));
    assert_eq!(status.originals_bytes, image("tall.jpg").len() as u64);
    let original = Path::new("train/a/2.jpg");
    assert_eq!(read(&stand.source, original).unwrap(), image("tall.jpg"));
}

#[test]
fn many_who_ask_at_once_share_what_is_made() {
    let stand = Stand::new();
    let path = Path::new(".derived/array/train/a/1.jpg.npy");
    let listed = listed_stat(&stand.source, path);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| read_unsized(&stand.source, path, &listed).unwrap());
            scope.spawn(|| stand.source.stat(path).unwrap());
        }
    });
    assert_eq!((stand.of("array").made, stand.reads.load(Ordering::Relaxed)), (1, 1));
}

#[test]
fn another_original_or_recipe_is_another_version() {
    let stand = Stand::new();
    let path = Path::new(".derived/small/train/a/1.jpg");
    let before = stand.source.stat(path).unwrap();
    let first = read(&stand.source, path).unwrap();
    let array = Path::new(".derived/array/train/a/1.jpg.npy");
    let unmade = listed_stat(&stand.source, array);
    let original = stand.top.path().join("train/a/1.jpg");
    fs::write(&original, image("tall.jpg")).unwrap();
    // The same time as before, and another size.
    let at = UNIX_EPOCH + std::time::Duration::from_nanos(before.mtime_ns as u64);
    fs::File::options().write(true).open(&original).unwrap().set_modified(at).unwrap();
    assert_eq!(read_unsized(&stand.source, array, &unmade), Err(ReadError::Changed));
    let after = stand.source.stat(path).unwrap();
    assert!(!after.fingerprint().is_content_of(&before.fingerprint()));
    assert_ne!(read(&stand.source, path).unwrap(), first);

    let larger = [recipe("small", "", 30, Format::Jpeg { quality: 90 })];
    let other = Derived::open(counted(stand.top.path(), &stand.reads), &larger).unwrap();
    let (one, two) = (listed_stat(&stand.source, path), listed_stat(&other, path));
    assert_ne!(one.identity, two.identity);
    assert_ne!(stand.source.tree_identity(), other.tree_identity(), "its catalog is another one");
    assert_eq!(stand.source.lasting_identity(), other.lasting_identity());
}

#[test]
fn a_file_of_which_nothing_can_be_made_has_an_error_with_the_reason() {
    let stand = Stand::new();
    let whole = image("wide.jpg");
    fs::write(stand.top.path().join("train/a/1.jpg"), &whole[..whole.len() / 2]).unwrap();
    fs::write(stand.top.path().join("train/a/empty.jpg"), b"").unwrap();
    for name in ["1.jpg", "empty.jpg"] {
        let path = Path::new(".derived/small/train/a").join(name);
        let listed = listed_stat(&stand.source, &path);
        let eio = ReadError::Source(Errno::EIO);
        assert_eq!(read_unsized(&stand.source, &path, &listed), Err(eio), "{name}");
        assert_eq!(stand.source.stat(&path).err(), Some(Errno::EIO), "{name}");
    }
    let status = stand.of("small");
    assert_eq!((status.made, status.failed), (0, 2), "each is tried once");
    let failure = |path: &str, reason: &str| {
        let is_it = |failure: &Failure| failure.path == path && failure.reason.contains(reason);
        assert!(status.failures.iter().any(is_it), "{:?}", status.failures);
    };
    failure("train/a/1.jpg", "ends too early");
    failure("train/a/empty.jpg", "no JPEG and no PNG");
    assert!(read(&stand.source, Path::new(".derived/small/train/a/2.jpg")).is_ok());
}

#[test]
fn an_error_of_the_source_is_that_of_the_sample_and_is_not_kept() {
    let top = tempfile::tempdir().unwrap();
    fs::write(top.path().join("1.jpg"), image("wide.jpg")).unwrap();
    let (files, fails) = (PosixSource::open(top.path(), 4).unwrap(), Arc::new(AtomicU64::new(1)));
    let failing = Arc::clone(&fails);
    let read_or_fail = move |request: ReadRequest| match failing.load(Ordering::Relaxed) {
        0 => files.read(vec![request]),
        _ => (request.deliver)(Err(ReadError::Source(Errno::EIO))),
    };
    let source = Arc::new(StubSource::new(PosixSource::open(top.path(), 4).unwrap(), read_or_fail));
    let recipes = [recipe("small", "", 24, Format::Png)];
    let source = Derived::open(source, &recipes).unwrap();
    let path = Path::new(".derived/small/1.jpg");
    assert_eq!(source.stat(path).err(), Some(Errno::EIO));
    assert_eq!(source.derived()[0].failed, 0, "the file is not to blame");
    fails.store(0, Ordering::Relaxed);
    assert!(source.stat(path).is_ok());
}

/// The source cannot say what one name stands for. All others are known.
#[test]
fn a_name_that_the_source_knows_nothing_of_hides_no_other() {
    let top = tempfile::tempdir().unwrap();
    for name in ["1.jpg", "2.jpg", "notes.txt"] {
        fs::write(top.path().join(name), image("wide.jpg")).unwrap();
    }
    for (broken, format) in [
        ("1.jpg", Format::Npy),
        ("1.jpg", Format::Png),
        ("notes.txt", Format::Npy),
        ("notes.txt", Format::Png),
    ] {
        let files = || PosixSource::open(top.path(), 1).unwrap();
        let source = StubSource::new(files(), |_| ()).with_broken(broken);
        let source = Derived::open(Arc::new(source), &[recipe("x", "", 20, format)]).unwrap();
        let directory = Path::new(".derived/x");
        let mut names = Vec::new();
        let each = &mut |part: &[OsString]| names.extend_from_slice(part);
        source.list_in_parts(directory, each).unwrap();
        let kinds = source.listed_kinds(directory);
        let found = names.iter().zip(source.stat_all(directory, &names));
        let (mut unknown, mut known) = (Vec::new(), 0);
        for (name, stat) in found {
            match stat {
                Ok(stat) => known += u32::from(stat.kind == Kind::File),
                Err(Errno::ENOENT) => {}
                Err(errno) => unknown.push((name.clone(), errno, kinds.get(name).copied())),
            }
        }
        if broken == "1.jpg" {
            let name = OsString::from(if format == Format::Npy { "1.jpg.npy" } else { "1.jpg" });
            assert_eq!((unknown, known), (vec![(name, Errno::EIO, Some(Kind::File))], 1));
        } else {
            assert_eq!((unknown, known), (vec![], 2), "it is not shown, whatever it is");
        }
    }
}

/// Nothing is known of any name, so all of them may be shown.
#[test]
fn samples_do_not_vanish_if_the_source_fails() {
    let top = tempfile::tempdir().unwrap();
    fs::write(top.path().join("1.jpg"), image("wide.jpg")).unwrap();
    for format in [Format::Npy, Format::Png] {
        let source = StubSource::new(PosixSource::open(top.path(), 1).unwrap(), |_| ());
        let source = source.with_broken("1.jpg");
        let recipes = [recipe("x", "", 20, format)];
        let source = Derived::open(Arc::new(source), &recipes).unwrap();
        let gone = top.path().join("1.jpg");
        fs::rename(&gone, top.path().join("elsewhere")).unwrap();
        let name = OsString::from(format!("1.jpg{}", recipes[0].suffix()));
        assert_eq!(source.stat_all(Path::new(".derived/x"), &[name]), [Err(Errno::EIO)]);
        fs::rename(top.path().join("elsewhere"), gone).unwrap();
    }
}

#[test]
fn a_name_with_the_suffix_is_shown_once() {
    let top = tempfile::tempdir().unwrap();
    for (name, bytes) in [("a.jpg", image("wide.jpg")), ("a.jpg.npy", vec![1]), ("b", vec![2])] {
        fs::write(top.path().join(name), bytes).unwrap();
    }
    for directory in ["b.npy", "c.npy"] {
        fs::create_dir(top.path().join(directory)).unwrap();
        fs::write(top.path().join(directory).join("d.jpg"), image("tall.jpg")).unwrap();
    }
    let source = counted(top.path(), &Arc::default());
    let source = Derived::open(source, &[recipe("x", "**/*.jpg", 20, Format::Npy)]).unwrap();
    let mut stand = Vec::new();
    for directory in ["", "b.npy", "c.npy"] {
        let directory = Path::new(".derived/x").join(directory);
        let mut names = Vec::new();
        let each = &mut |part: &[OsString]| names.extend_from_slice(part);
        source.list_in_parts(&directory, each).unwrap();
        let found = names.iter().zip(source.stat_all(&directory, &names));
        let shown = found.filter_map(|(name, stat)| Some((name.clone(), stat.ok()?.kind)));
        stand.extend(shown);
    }
    stand.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
    let expected = [
        ("a.jpg.npy", Kind::File),
        ("b.npy", Kind::Directory),
        ("c.npy", Kind::Directory),
        ("d.jpg.npy", Kind::File),
        ("d.jpg.npy", Kind::File),
    ];
    assert_eq!(stand, expected.map(|(name, kind)| (OsString::from(name), kind)));
}

/// The first request is dropped.
#[test]
fn a_source_that_drops_a_request_costs_an_error_and_no_more() {
    let top = tempfile::tempdir().unwrap();
    fs::write(top.path().join("1.jpg"), image("wide.jpg")).unwrap();
    let (files, drops) = (PosixSource::open(top.path(), 1).unwrap(), AtomicU64::new(1));
    let read = move |request: ReadRequest| {
        if drops.swap(0, Ordering::Relaxed) == 0 {
            files.read(vec![request]);
        }
    };
    let source = StubSource::new(PosixSource::open(top.path(), 1).unwrap(), read);
    let recipes = [recipe("x", "", 20, Format::Png)];
    let source = Derived::open(Arc::new(source), &recipes).unwrap();
    let path = Path::new(".derived/x/1.jpg");
    assert_eq!(source.stat(path).err(), Some(Errno::EIO));
    assert!(source.stat(path).is_ok());
}

#[test]
fn a_source_that_cannot_have_derived_samples_is_refused() {
    let top = tempfile::tempdir().unwrap();
    let recipes = [recipe("small", "", 24, Format::Png)];
    let files = || PosixSource::open(top.path(), 1).unwrap();
    let guessing: Arc<dyn Source> = Arc::new(StubSource::guessing(files(), 7, |_| ()));
    let refused = Derived::open(guessing, &recipes).err().unwrap();
    assert!(refused.to_string().contains("sizes"), "{refused}");
    fs::create_dir(top.path().join(DERIVED)).unwrap();
    let refused = Derived::open(Arc::new(files()), &recipes).err().unwrap();
    assert!(refused.to_string().contains("a directory .derived itself"), "{refused}");
}
