//! An object store in memory, behind the same requests as a real one.

use std::future::Future;
use std::io::Write;
use std::pin::Pin;
use std::sync::atomic::AtomicU64;

use object_store::list::{PaginatedListResult, PaginatedListStore};
use object_store::memory::InMemory;
use object_store::{ObjectStore, PutPayload};

use super::*;
use crate::config::Manners;
use crate::source::tests::conformance::{
    Files, Gate, Store, check, check_changes, check_slow, read, read_version, some_files,
    wait_until,
};
use crate::source::tests::forged::{Answer, serve};

/// Lists objects in memory page by page, with a name or two on each.
struct Pages(Arc<InMemory>);

impl PaginatedListStore for Pages {
    fn list_paginated<'a: 'f, 'b: 'f, 'f>(
        &'a self,
        prefix: Option<&'b str>,
        options: PaginatedListOptions,
    ) -> Pin<Box<dyn Future<Output = object_store::Result<PaginatedListResult>> + Send + 'f>>
    where
        Self: 'f,
    {
        Box::pin(async move {
            let prefix = prefix.map(|prefix| Key::parse(prefix).unwrap());
            let all = self.0.list_with_delimiter(prefix.as_ref()).await?;
            let page: usize = options.page_token.map_or(0, |token| token.parse().unwrap());
            let count = all.objects.len().max(all.common_prefixes.len());
            let objects = all.objects.into_iter().skip(page).take(1).collect();
            let common_prefixes = all.common_prefixes.into_iter().skip(page).take(1).collect();
            let result = ListResult { objects, common_prefixes, extensions: all.extensions };
            let page_token = (page + 1 < count).then(|| (page + 1).to_string());
            Ok(PaginatedListResult { result, page_token })
        })
    }
}

/// A source of objects in memory below a prefix.
fn limiter() -> Limiter {
    Limiter::of_metadata(128, Manners::Fair)
}

fn store_of(files: &Files, prefix: &str) -> ObjectSource {
    let objects = Arc::new(InMemory::new());
    let store = super::Store { pages: Arc::new(Pages(Arc::clone(&objects))), objects };
    let source = ObjectSource::new(store, Key::from(prefix), 7, limiter()).unwrap();
    for (path, bytes) in files {
        put(&source, path.to_str().unwrap(), bytes);
    }
    source
}

fn put(source: &ObjectSource, path: &str, bytes: &[u8]) {
    let asked = Arc::clone(&source.asked);
    let (key, payload) = (asked.key(Path::new(path)).unwrap(), PutPayload::from(bytes.to_vec()));
    source
        .remote
        .wait(async move { asked.store.objects.put(&key, payload).await.unwrap() })
        .unwrap();
}

fn delete(source: &ObjectSource, path: &str) {
    let asked = Arc::clone(&source.asked);
    let key = asked.key(Path::new(path)).unwrap();
    source.remote.wait(async move { asked.store.objects.delete(&key).await.unwrap() }).unwrap();
}

#[test]
fn a_bucket_conforms() {
    let files = some_files();
    for prefix in ["", "some/where"] {
        let source = store_of(&files, prefix);
        check(&source, &files);
    }
}

/// The range of bytes that a request asks for, of so many.
fn asked_range(request: &str, length: usize) -> std::ops::Range<usize> {
    let header = request.lines().find_map(|line| {
        line.to_ascii_lowercase().strip_prefix("range: bytes=").map(str::to_owned)
    });
    let Some((start, end)) = header.as_deref().and_then(|range| range.split_once('-')) else {
        return 0..length;
    };
    start.parse().unwrap()..end.parse().map_or(length, |end: usize| length.min(end + 1))
}

#[test]
fn a_bucket_that_does_not_answer_for_a_while_conforms() {
    let files: Files = (0..40).map(|nth| (format!("{nth}.jpg").into(), vec![nth; 5000])).collect();
    let gate = Arc::<Gate>::default();
    let (held, objects) = (Arc::clone(&gate), files.clone());
    let source = served(move |request| {
        if is_list(request) {
            let entry = |(path, bytes): (&PathBuf, &Vec<u8>)| {
                format!(
                    "<Contents><Key>{}</Key><Size>{}</Size><ETag>&quot;e&quot;</ETag>\
                     <LastModified>2024-05-06T07:08:09.123Z</LastModified></Contents>",
                    path.display(),
                    bytes.len()
                )
            };
            let all: String = objects.iter().map(entry).collect();
            let body = format!("<ListBucketResult>{all}</ListBucketResult>");
            return ("200 OK", Vec::new(), body.into());
        }
        held.pass();
        let path = request.split(' ').nth(1).unwrap().strip_prefix("/bucket/").unwrap();
        let bytes = &objects[Path::new(path)];
        let range = asked_range(request, bytes.len());
        let (_, mut headers, body) = object("\"e\"", &bytes[range.clone()]);
        headers.push(format!(
            "Content-Range: bytes {}-{}/{}",
            range.start,
            range.end - 1,
            bytes.len()
        ));
        ("206 Partial Content", headers, body)
    });
    check_slow(&source.unwrap(), &files, || gate.close());
}

impl Store for Pages {
    fn put(&self, path: &str, bytes: &[u8], _nth: u32) {
        block_on(self.0.put(&Key::from(path), PutPayload::from(bytes.to_vec()))).unwrap();
    }

    fn delete(&self, path: &str) {
        block_on(self.0.delete(&Key::from(path))).unwrap();
    }
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
}

#[test]
fn a_bucket_that_changes_conforms() {
    let objects = Arc::new(InMemory::new());
    let open = || {
        let objects = Arc::clone(&objects);
        let store = super::Store { pages: Arc::new(Pages(Arc::clone(&objects))), objects };
        ObjectSource::new(store, Key::from(""), 7, limiter()).unwrap()
    };
    check_changes(&Pages(Arc::clone(&objects)), open);
}

#[test]
fn an_object_that_is_replaced_has_another_version() {
    let files = [("d/x".into(), b"first".to_vec()), ("d/y".into(), b"y".to_vec())].into();
    let source = store_of(&files, "");
    let path = Path::new("d/x");
    let [before, directory] = ["d/x", "d"].map(|path| source.stat(Path::new(path)).unwrap());
    put(&source, "d/x", b"later");
    for length in [2, 5] {
        let read = read_version(&source, path, before.fingerprint(), 0, length);
        assert_eq!(read.unwrap_err(), ReadError::Changed);
    }
    wait_until(|| source.stat(path).unwrap().fingerprint() != before.fingerprint());
    assert_eq!(read(&source, path).unwrap(), b"later");
    // A shorter one does not have the range that is asked for.
    put(&source, "d/x", b"f");
    let read = read_version(&source, path, before.fingerprint(), 3, 1);
    assert_eq!(read.unwrap_err(), ReadError::Changed);
    delete(&source, "d/x");
    wait_until(|| source.stat(path) == Err(Errno::ENOENT));
    wait_until(|| source.stat(Path::new("d")).unwrap().fingerprint() != directory.fingerprint());
    let read = read_version(&source, path, before.fingerprint(), 0, 5);
    assert_eq!(read.unwrap_err(), ReadError::Source(Errno::ENOENT));
    delete(&source, "d/y");
    // The last one has gone.
    wait_until(|| source.stat(Path::new("d")) == Err(Errno::ENOENT));
}

#[test]
fn a_directory_is_listed_once_for_its_attributes_and_its_names() {
    let files = [("d/x".into(), b"x".to_vec())].into();
    let source = store_of(&files, "");
    let directory = Path::new("d");
    let names = || {
        let mut names = Vec::new();
        source.list_in_parts(directory, &mut |part| names.extend_from_slice(part)).unwrap();
        names
    };
    source.stat(directory).unwrap();
    put(&source, "d/y", b"y");
    assert_eq!(names(), ["x"], "the names that the attributes came from");
    assert_eq!(names(), ["x", "y"]);
    source.stat(directory).unwrap();
    assert_eq!(names(), ["x", "y"]);
}

#[test]
fn a_directory_hides_an_object_of_its_name() {
    let files = [("a/b".into(), b"b".to_vec()), ("c".into(), b"c".to_vec())].into();
    let source = store_of(&files, "");
    put(&source, "a", b"hidden");
    let mut names = Vec::new();
    source.list_in_parts(Path::new(""), &mut |part| names.extend_from_slice(part)).unwrap();
    assert_eq!(names, ["a", "c"]);
    let stats = source.stat_all(Path::new(""), &names);
    let kinds: Vec<_> = stats.into_iter().map(|stat| stat.unwrap().kind).collect();
    assert_eq!(kinds, [Kind::Directory, Kind::File]);
    // Asked by itself, too.
    assert_eq!(source.stat_anew(Path::new("a")).unwrap().kind, Kind::Directory);
}

/// A source over HTTP whose server answers with what `answer` makes of a request such as `GET /bucket/x`.
fn served(answer: impl Fn(&str) -> Answer + Send + Sync + 'static) -> UserResult<ObjectSource> {
    let address = serve(answer);
    let mut file = tempfile::NamedTempFile::new().unwrap();
    let options = "aws_access_key_id = a\naws_secret_access_key = b\naws_endpoint_url";
    writeln!(file, "{options} = http://{address}").unwrap();
    ObjectSource::open(&Bucket::parse("s3", "s3://bucket", file.path()).unwrap(), limiter())
}

/// A listing of one object of five bytes.
fn listing(etag: &str) -> Answer {
    let body = format!(
        "<ListBucketResult><Contents><Key>x</Key><Size>5</Size>{etag}\
         <LastModified>2024-05-06T07:08:09.123Z</LastModified></Contents></ListBucketResult>"
    );
    ("200 OK", Vec::new(), body.into())
}

fn object(etag: &str, bytes: &[u8]) -> Answer {
    let headers = ["Last-Modified: Mon, 06 May 2024 07:08:09 GMT".into(), format!("ETag: {etag}")];
    ("200 OK", headers.into(), bytes.to_vec())
}

fn is_list(request: &str) -> bool {
    request.contains("list-type=2")
}

#[test]
fn etags_are_compared_however_a_server_writes_them() {
    for (listed, answered, is_same) in [
        ("<ETag>\"one\"</ETag>", "\"one\"", true),
        ("<ETag>one</ETag>", "\"one\"", true),
        // A server that lists no etags.
        ("", "\"one\"", true),
        ("<ETag>\"one\"</ETag>", "\"two\"", false),
    ] {
        let source = served(move |request| match is_list(request) {
            true => listing(listed),
            false => object(answered, b"bytes"),
        });
        let read = read(&source.unwrap(), Path::new("x"));
        let expected = if is_same { Ok(b"bytes".to_vec()) } else { Err(ReadError::Changed) };
        assert_eq!(read, expected, "{listed} {answered}");
    }
}

/// A store that has too much to do, a connection that breaks, and an answer that is not what was asked for.
#[test]
fn a_request_is_made_again_until_it_is_answered() {
    let fail: [fn() -> Answer; 3] = [
        || ("503 Slow Down", Vec::new(), b"<Error><Code>SlowDown</Code></Error>".into()),
        || {
            let (status, mut headers, _) = object("\"one\"", b"");
            headers.extend(["Content-Length: 5".into(), "Connection: close".into()]);
            (status, headers, b"by".into())
        },
        || object("\"one\"", b"by"),
    ];
    for (nth, fail) in fail.into_iter().enumerate() {
        let asked = AtomicU64::new(0);
        let source = served(move |request| match is_list(request) {
            true => listing("<ETag>one</ETag>"),
            false if asked.fetch_add(1, Ordering::Relaxed) < 6 => fail(),
            false => object("\"one\"", b"bytes"),
        });
        let source = source.unwrap();
        let stat = source.stat(Path::new("x")).unwrap();
        let read = read_version(&source, Path::new("x"), stat.fingerprint(), 0, 5);
        match nth {
            // A shorter object is another version.
            2 => assert_eq!(read, Err(ReadError::Changed)),
            _ => assert_eq!(read.unwrap(), b"bytes", "{nth}"),
        }
        assert_eq!(source.overloads() > 0, nth == 0, "{nth}");
    }
}

#[test]
fn a_store_that_refuses_is_not_asked_again() {
    let denied = || {
        let body = "<Error><Code>AccessDenied</Code><Message>Not you</Message></Error>";
        ("403 Forbidden", Vec::new(), body.as_bytes().to_vec())
    };
    let error = served(move |_| denied()).err().unwrap();
    let said = error.to_string();
    assert!(said.contains("cannot list the source s3://bucket: AccessDenied: Not you"), "{said}");
    assert!(said.contains("s3:GetObject"), "{said}");
    let source = served(move |request| match is_list(request) {
        true => listing("<ETag>one</ETag>"),
        false => denied(),
    });
    let source = source.unwrap();
    let stat = source.stat(Path::new("x")).unwrap();
    let read = read_version(&source, Path::new("x"), stat.fingerprint(), 0, 5);
    assert_eq!(read, Err(ReadError::Source(Errno::EACCES)));
}

/// A server that knows no ranges answers with all of the object.
#[test]
fn a_part_that_is_not_a_part_is_an_error() {
    let source = served(|request| match is_list(request) {
        true => listing("<ETag>one</ETag>"),
        false => object("\"one\"", b"bytes"),
    });
    let source = source.unwrap();
    let stat = source.stat(Path::new("x")).unwrap();
    let read = read_version(&source, Path::new("x"), stat.fingerprint(), 1, 2);
    assert_eq!(read, Err(ReadError::Source(Errno::EIO)));
}

/// A key that is no path is in a directory beside others.
#[test]
fn a_directory_that_cannot_be_listed_hides_no_other() {
    let listing = |inside: &str| {
        let body = format!("<ListBucketResult>{inside}</ListBucketResult>");
        ("200 OK", Vec::new(), body.into_bytes())
    };
    let object = |key: &str| {
        format!(
            "<Contents><Key>{key}</Key><Size>5</Size><ETag>one</ETag>\
             <LastModified>2024-05-06T07:08:09.123Z</LastModified></Contents>"
        )
    };
    let source = served(move |request| match request {
        _ if !is_list(request) => ("404 Not Found", Vec::new(), Vec::new()),
        _ if request.contains("prefix=bad") => listing(&object("bad//x")),
        _ => {
            let bad = "<CommonPrefixes><Prefix>bad/</Prefix></CommonPrefixes>";
            listing(&(bad.to_owned() + &object("x")))
        }
    });
    let source = source.unwrap();
    let (top, bad) = (Path::new(""), Path::new("bad"));
    let stats = source.stat_all(top, &["bad".into(), "x".into()]);
    let kinds: Vec<_> = stats.into_iter().map(|stat| stat.unwrap().kind).collect();
    assert_eq!(kinds, [Kind::Directory, Kind::File]);
    assert_eq!(source.list_in_parts(bad, &mut |_| ()), Err(Errno::EPERM));
    // Nothing says that the files in it are gone.
    assert_eq!(source.stat_all(bad, &["y".into()]), [Err(Errno::EPERM)]);
    let known = source.listed_kinds(top);
    assert_eq!(known.get(OsStr::new("bad")), Some(&Kind::Directory));
}

/// A key may have names that mean other directories. The server tells them as it has them.
#[test]
fn a_key_leads_out_of_no_directory() {
    for key in ["../x", "a/../../x", "./x", "a/.."] {
        let body = format!(
            "<ListBucketResult><Contents><Key>{key}</Key><Size>5</Size><ETag>one</ETag>\
             <LastModified>2024-05-06T07:08:09.123Z</LastModified></Contents></ListBucketResult>"
        );
        let source = served(move |request| match is_list(request) {
            true => ("200 OK", Vec::new(), body.clone().into_bytes()),
            false => object("one", b"bytes"),
        });
        match source {
            Err(error) => assert!(error.to_string().contains("give it another key"), "{error}"),
            Ok(source) => {
                let mut names = Vec::new();
                let listed =
                    source.list_in_parts(Path::new(""), &mut |part| names.extend_from_slice(part));
                assert_eq!((listed, names), (Ok(()), Vec::new()), "{key}");
            }
        }
    }
}
