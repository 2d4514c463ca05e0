//! A real server, which `scripts/test` installs, and a forged one that answers wrong.

#[path = "../../../tests/nginx/mod.rs"]
mod nginx;

use std::collections::BTreeSet;
use std::fs;

use tempfile::TempDir;

use super::*;
use crate::source::keyed::KeyedSource;
use crate::source::tests::conformance::{
    Stopped, Store, check, check_changes, check_slow, read, read_version, some_files, wait_until,
};
use crate::source::tests::forged::{Answer, serve};
use crate::source::{ReadError, Source};
use crate::sync::Mutex;
use nginx::Nginx;

const MANIFEST: &str = "files.tsv";

/// When files were written that never change.
const TIME: u64 = 1_700_000_000;

/// A directory, and a server of what is in it.
fn start() -> (TempDir, Nginx) {
    let top = TempDir::new().unwrap();
    let nginx = Nginx::serve(top.path());
    (top, nginx)
}

/// Writes a manifest of these files: 1 for their paths, 2 for sizes, too, and 3 for ETags, too.
fn publish(nginx: &Nginx, paths: &[&Path], fields: usize) {
    let line = |path: &&Path| {
        let line = nginx.line(path);
        line.split('\t').take(fields).collect::<Vec<_>>().join("\t") + "\n"
    };
    let text: String = paths.iter().map(line).collect();
    nginx.put(MANIFEST, text.as_bytes(), TIME);
}

fn open(url: &str, is_immutable: bool) -> UserResult<KeyedSource<HttpStore>> {
    let store = HttpStore::open(&Site::parse(url)?, is_immutable)?;
    KeyedSource::open(store, &AtomicU64::new(0))
}

/// What is said of a mount that is refused.
fn refusal(nginx: &Nginx, is_immutable: bool) -> String {
    open(&nginx.url(MANIFEST), is_immutable).err().unwrap().to_string()
}

#[test]
fn a_site_conforms() {
    let ((_top, nginx), files) = (start(), some_files());
    files.iter().for_each(|(path, bytes)| nginx.put(path, bytes, TIME));
    let paths: Vec<&Path> = files.keys().map(PathBuf::as_path).collect();
    for (fields, is_immutable) in [(3, false), (2, true), (1, true)] {
        publish(&nginx, &paths, fields);
        let site = Site::parse(&nginx.url(MANIFEST)).unwrap();
        let (store, seen) = (HttpStore::open(&site, is_immutable).unwrap(), AtomicU64::new(0));
        let source = KeyedSource::open(store, &seen).unwrap();
        assert_eq!(seen.into_inner(), files.len() as u64);
        assert_eq!(source.tells_sizes(), fields > 1);
        check(&source, &files);
        check_slow(&source, &files, || Stopped::new(&nginx.child));
    }
}

/// A site, and the paths of its manifest.
struct Published {
    top: TempDir,
    nginx: Nginx,
    paths: Mutex<BTreeSet<PathBuf>>,
}

impl Published {
    fn change(&self, change: impl FnOnce(&mut BTreeSet<PathBuf>)) {
        let mut paths = self.paths.lock();
        change(&mut paths);
        publish(&self.nginx, &paths.iter().map(PathBuf::as_path).collect::<Vec<_>>(), 3);
    }
}

impl Store for Published {
    fn put(&self, path: &str, bytes: &[u8], nth: u32) {
        self.nginx.put(path, bytes, TIME + u64::from(nth));
        self.change(|paths| _ = paths.insert(path.into()));
    }

    fn delete(&self, path: &str) {
        fs::remove_file(self.top.path().join(path)).unwrap();
        self.change(|paths| _ = paths.remove(Path::new(path)));
    }
}

#[test]
fn a_site_that_changes_conforms() {
    let (top, nginx) = start();
    let site = Published { top, nginx, paths: Mutex::default() };
    check_changes(&site, || open(&site.nginx.url(MANIFEST), false).unwrap());
}

#[test]
fn sizes_that_are_not_listed_are_guessed_from_the_others() {
    let (_top, nginx) = start();
    [("a", 100), ("b", 300), ("c", 7)].iter().for_each(|(path, size)| {
        nginx.put(path, &vec![0; *size], TIME);
    });
    nginx.put(MANIFEST, b"a\t100\nb\t300\nc\n", TIME);
    let source = open(&nginx.url(MANIFEST), true).unwrap();
    let listed = source.stat_all(Path::new(""), &["a".into(), "c".into()]);
    let listed: Vec<_> = listed.into_iter().map(|stat| stat.unwrap()).collect();
    assert_eq!([listed[0].size, listed[1].size], [100, 200]);
    assert_eq!([listed[0].is_sized, listed[1].is_sized], [true, false]);
    assert_eq!(source.stat(Path::new("c")).unwrap().size, 7);
}

#[test]
fn sizes_that_are_listed_nowhere_are_asked_for() {
    let (_top, nginx) = start();
    [("a", 100), ("b", 300)].iter().for_each(|(path, size)| nginx.put(path, &vec![0; *size], TIME));
    nginx.put(MANIFEST, b"a\nb\n", TIME);
    let source = open(&nginx.url(MANIFEST), true).unwrap();
    let listed = source.stat_all(Path::new(""), &["a".into(), "b".into()]);
    let listed: Vec<_> = listed.into_iter().map(|stat| stat.unwrap()).collect();
    assert!(listed.iter().all(|stat| stat.size == 200 && !stat.is_sized), "{listed:?}");
    assert_eq!(source.stat(Path::new("b")).unwrap(), listed[1].with_size(300));
}

#[test]
fn a_manifest_keeps_its_sizes() {
    let (_top, nginx) = start();
    nginx.put("a", b"bytes", TIME);
    nginx.put(MANIFEST, b"a\t5\n", TIME);
    let source = open(&nginx.url(MANIFEST), true).unwrap();
    let (a, b) = (Path::new("a"), Path::new("b"));
    let before = source.stat(a).unwrap();
    nginx.put(MANIFEST, b"a\t5\nb\n", TIME);
    // The listing is refused once it is old enough to be made anew.
    wait_until(|| source.stat(b) == Err(Errno::EIO));
    assert_eq!((source.stat(a), source.tells_sizes()), (Ok(before), true));
    nginx.put("b", b"b", TIME);
    nginx.put(MANIFEST, b"a\t5\nb\t1\n", TIME);
    wait_until(|| source.stat(b).is_ok());
}

#[test]
fn a_file_that_is_replaced_has_another_version_as_soon_as_the_manifest_says_so() {
    let (_top, nginx) = start();
    let (x, y) = (Path::new("a/x"), Path::new("a/y"));
    nginx.put(x, b"old", 1);
    nginx.put(y, b"y", 1);
    publish(&nginx, &[x, y], 3);
    let source = open(&nginx.url(MANIFEST), false).unwrap();
    let [mut before, other] = [x, y].map(|path| source.stat(path).unwrap());
    for (time, bytes) in (2..).zip([&b"new"[..], b"longer", b"s"]) {
        nginx.put(x, bytes, time);
        for (offset, length) in [(0, before.size as usize), (before.size - 1, 1)] {
            let read = read_version(&source, x, before.fingerprint(), offset, length);
            assert_eq!(read, Err(ReadError::Changed), "{offset} of {before:?}");
        }
        // Nobody has told of the new version.
        assert_eq!(source.stat(x).unwrap(), before);
        publish(&nginx, &[x, y], 3);
        wait_until(|| source.stat(x).unwrap().fingerprint() != before.fingerprint());
        assert_eq!(read(&source, x).unwrap(), bytes);
        before = source.stat(x).unwrap();
    }
    assert_eq!(source.stat(y).unwrap(), other);
}

#[test]
fn a_file_that_is_deleted_is_gone() {
    let (top, nginx) = start();
    let (x, y, directory) = (Path::new("a/x"), Path::new("a/y"), Path::new("a"));
    nginx.put(x, b"bytes", TIME);
    nginx.put(y, b"y", TIME);
    publish(&nginx, &[x, y], 3);
    let [source, fixed] =
        [false, true].map(|is_immutable| open(&nginx.url(MANIFEST), is_immutable).unwrap());
    let before = source.stat(x).unwrap();
    let names = source.stat(directory).unwrap();
    fs::remove_file(top.path().join(x)).unwrap();
    let (changed, missing) = (ReadError::Changed, ReadError::Source(Errno::ENOENT));
    for (source, error) in [(&source, changed), (&fixed, missing)] {
        for (offset, length) in [(0, 5), (1, 2)] {
            let read = read_version(source, x, before.fingerprint(), offset, length);
            assert_eq!(read, Err(error));
        }
    }
    assert_eq!(source.stat(x), Err(Errno::ENOENT));
    publish(&nginx, &[y], 3);
    wait_until(|| source.stat(directory).unwrap().fingerprint() != names.fingerprint());
    assert_eq!(source.stat(x), Err(Errno::ENOENT));
    assert_eq!(read(&source, y).unwrap(), b"y");
}

#[test]
fn a_manifest_that_does_not_fit_is_refused() {
    let (_top, nginx) = start();
    assert!(refusal(&nginx, true).contains("the manifest is not there"));
    // The ETag has hexadecimal numbers.
    nginx.put("x", b"bytes", 0x11);
    for (manifest, is_immutable, said) in [
        ("", true, "the manifest names no file"),
        ("x\t5\nx\n", true, "two files are x"),
        ("x\t5\n./y\t5\n", true, "the path ./y leads out of the tree"),
        ("x\tmany\n", true, "line 1 of the manifest: its size \"many\" is no number"),
        ("x\t5\t11-5\nz\t5\n", false, "the manifest has no ETag of z"),
        ("x\n", false, "set source.consistency=immutable"),
        ("x\t6\t11-5\n", false, "x has 5 bytes, and 6 in the manifest"),
        ("x\t5\t12-5\n", false, "x has the ETag 11-5, and 12-5 in the manifest"),
        ("x\t5\t12-5\n", true, "the manifest is older than the file"),
        ("y\t5\nx\t5\n", true, "the manifest names y, and the server does not have it"),
        ("y\n", true, "the manifest names y, and the server does not have it"),
    ] {
        nginx.put(MANIFEST, manifest.as_bytes(), TIME);
        let refused = refusal(&nginx, is_immutable);
        assert!(refused.contains(said), "{manifest:?}: {refused}");
    }
    nginx.put(MANIFEST, b"x\t5\t\"11-5\"\n", TIME);
    let source = open(&nginx.url(MANIFEST), false).unwrap();
    assert_eq!(read(&source, Path::new("x")).unwrap(), b"bytes");
}

/// The range that a request has: its first and its last byte.
fn range(request: &str) -> Option<(usize, usize)> {
    let (_, range) = request.split_once("bytes=")?;
    let (from, to) = range.lines().next()?.trim().split_once('-')?;
    Some((from.parse().ok()?, to.parse().ok()?))
}

/// The answer of a server that knows ranges.
fn right(request: &str) -> Answer {
    let (bytes, etag) = (b"bytes", "ETag: \"one\"".to_owned());
    match range(request) {
        Some((from, to)) => {
            let part = format!("Content-Range: bytes {from}-{to}/5");
            ("206 Partial Content", vec![etag, part], bytes[from..=to].to_vec())
        }
        None => ("200 OK", vec![etag], bytes.to_vec()),
    }
}

/// A site of one file `x` of five bytes. The first look at it, which is at its last byte, is answered right. Reads are
/// answered with what `answer` makes of a request.
fn forged(
    is_immutable: bool,
    answer: impl Fn(&str) -> Answer + Send + Sync + 'static,
) -> KeyedSource<HttpStore> {
    let address = serve(move |request| match request {
        _ if request.contains(MANIFEST) => ("200 OK", Vec::new(), b"x\t5\tone\n".to_vec()),
        _ if request.starts_with("HEAD ") || range(request) == Some((4, 4)) => right(request),
        _ => answer(request),
    });
    open(&format!("http://{address}/d/{MANIFEST}"), is_immutable).unwrap()
}

/// Reads a part of the file of a forged site.
fn read_part(source: &KeyedSource<HttpStore>) -> Result<Vec<u8>, ReadError> {
    let stat = source.stat(Path::new("x")).unwrap();
    read_version(source, Path::new("x"), stat.fingerprint(), 1, 2)
}

/// A server that has too much to do, and a connection that breaks.
#[test]
fn a_request_is_made_again_until_it_is_answered() {
    let fail: [fn(&str) -> Answer; 3] = [
        |_| ("503 Service Unavailable", Vec::new(), b"<html>busy</html>".to_vec()),
        |_| ("429 Too Many Requests", Vec::new(), Vec::new()),
        |request| {
            let (status, mut headers, body) = right(request);
            headers.push(format!("Content-Length: {}", body.len()));
            headers.push("Connection: close".to_owned());
            (status, headers, body[..1].to_vec())
        },
    ];
    for (nth, fail) in fail.into_iter().enumerate() {
        let asked = AtomicU64::new(0);
        let source = forged(false, move |request| {
            let fails = asked.fetch_add(1, Ordering::Relaxed) % 6 < 5;
            if fails { fail(request) } else { right(request) }
        });
        assert_eq!(read(&source, Path::new("x")).unwrap(), b"bytes", "{nth}");
        assert_eq!(read_part(&source).unwrap(), b"yt", "{nth}");
    }
}

/// An answer with this ETag to a request for two of five bytes.
fn part(etag: &str, range: &str, bytes: &[u8]) -> Answer {
    let headers = vec![format!("ETag: {etag}"), format!("Content-Range: bytes {range}")];
    ("206 Partial Content", headers, bytes.to_vec())
}

#[test]
fn what_is_not_the_listed_version_is_never_delivered() {
    let (changed, broken) = (ReadError::Changed, ReadError::Source(Errno::EIO));
    type Wrong = (fn(&str) -> Answer, ReadError);
    let wrong: [Wrong; 7] = [
        (|_| part("\"two\"", "1-2/5", b"yt"), changed),
        (|_| part("\"one\"", "1-2/7", b"yt"), changed),
        (|_| part("\"one\"", "1-2/5", b"y"), broken),
        (|_| part("\"one\"", "2-3/5", b"te"), broken),
        // A server that knows no ranges any more.
        (|_| right("GET /d/x HTTP/1.1"), broken),
        (|_| ("404 Not Found", Vec::new(), Vec::new()), changed),
        (|_| ("403 Forbidden", Vec::new(), Vec::new()), ReadError::Source(Errno::EACCES)),
    ];
    for (nth, (answer, error)) in wrong.into_iter().enumerate() {
        assert_eq!(read_part(&forged(false, answer)), Err(error), "{nth}");
    }
    let weak = forged(false, |_| part("W/\"one\"", "1-2/5", b"yt"));
    assert_eq!(read_part(&weak).unwrap(), b"yt");
    let gone = forged(true, |_| ("404 Not Found", Vec::new(), Vec::new()));
    assert_eq!(read_part(&gone), Err(ReadError::Source(Errno::ENOENT)));
}

#[test]
fn a_server_that_gives_out_no_parts_or_no_etags_is_refused() {
    let said = |manifest: &'static [u8], is_immutable, answer: fn(&str) -> Answer| {
        let address = serve(move |request| match request.contains(MANIFEST) {
            true => ("200 OK", Vec::new(), manifest.to_vec()),
            false => answer(request),
        });
        open(&format!("http://{address}/{MANIFEST}"), is_immutable).err().unwrap().to_string()
    };
    let whole: fn(&str) -> Answer = |_| right("GET /x HTTP/1.1");
    for (manifest, is_immutable) in [(&b"x\t5\tone\n"[..], false), (b"x\n", true)] {
        let refused = said(manifest, is_immutable, whole);
        assert!(refused.contains("the server does not give out parts of x"), "{refused}");
        assert!(refused.contains("range requests"), "{refused}");
    }
    let bare: fn(&str) -> Answer = |_| ("200 OK", Vec::new(), b"bytes".to_vec());
    let refused = said(b"x\t5\tone\n", false, bare);
    assert!(refused.contains("the server tells no ETag of x"), "{refused}");
    let closed: fn(&str) -> Answer = |_| ("403 Forbidden", Vec::new(), Vec::new());
    let refused = said(b"x\t5\n", true, closed);
    assert!(refused.contains("the server does not let x be read"), "{refused}");
}
