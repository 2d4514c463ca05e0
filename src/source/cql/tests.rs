//! Tests without a server, tests with one in memory that fails as it is told to, and ignored ones with a real
//! Cassandra, which `scripts/test-servers` starts and runs. Its address is in `BELADY_CASSANDRA`, as `127.0.0.1:9042`,
//! and it knows its first user.

use std::io::Write;
use std::path::Path;
use std::thread;

use scylla::client::session::Session;
use scylla::client::session_builder::SessionBuilder;
use tempfile::NamedTempFile;
use tokio::runtime::Runtime;

use super::*;
use crate::config::SourceConfig;
use crate::source::cql_server::{CqlServer, Fault, Part, token};
use crate::source::keyed::KeyedSource;
use crate::source::tests::conformance::{
    Store, check, check_changes, check_slow, listed_stat, read, read_unsized, read_version,
    some_files, wait_until,
};
use crate::source::tree::{Tree, hash};
use crate::source::{Fingerprint, Source};

fn row(path: &str, written: i64) -> Row {
    let digest = hash(&[path.as_bytes(), &written.to_le_bytes()]);
    let listed = Listed { id: Box::new([7]), digest, size: Some(5), written };
    Row { path: path.to_owned(), listed }
}

#[test]
fn a_row_is_a_file_of_its_write_time() {
    let access = Access { mode: 0o444, uid: 1, gid: 2 };
    let (path, first) = file(row("a/b", 1_700_000_000_000_000), access);
    assert_eq!((path, first.size), (PathBuf::from("a/b"), Some(5)));
    assert_eq!(first.mtime_ns, 1_700_000_000_000_000_000);
    let (_, later) = file(row("a/b", 1_700_000_000_000_001), access);
    assert!(later.version != first.version && later.mtime_ns > first.mtime_ns);
}

#[test]
fn ranges_are_cut_from_the_whole() {
    let cut =
        |size, offset, length| Wanted { size, offset, length, is_part: true }.of_whole(b"abcdef");
    assert_eq!(cut(Some(6), 2, 3), Ok(b"cde".to_vec()));
    assert_eq!(cut(Some(6), 6, 0), Ok(Vec::new()));
    for (offset, length) in [(4, 3), (7, 0), (u64::MAX, 1), (1, usize::MAX)] {
        assert_eq!(cut(Some(6), offset, length), Err(ReadError::Source(Errno::EIO)));
    }
    assert_eq!(cut(None, 0, 3), Ok(b"abcdef".to_vec()), "the size was a guess");
    assert_eq!(cut(Some(5), 0, 5), Err(ReadError::Changed), "it had another size");
}

const BY_NAME: &str = "{a \"name}";

fn settings(path: &str) -> SourceConfig {
    SourceConfig {
        rows: "files".to_owned(),
        path: path.to_owned(),
        data: "data.data".to_owned(),
        size: "bytes".to_owned(),
        ..SourceConfig::default()
    }
}

/// A server with a table `files`, which is listed, and a table `data`, whose keys are texts.
trait Tables {
    fn url(&self) -> String;

    fn put_data(&self, key: &str, bytes: &[u8], written: i64);

    /// Writes the row of a file.
    fn put_row(&self, key: &str, name: &str, size: usize, written: i64);

    /// Makes the size of a file null.
    fn unset_size(&self, key: &str);

    fn delete(&self, key: &str);

    fn put(&self, name: &str, bytes: &[u8], written: i64) {
        self.put_data(name, bytes, written);
        self.put_row(name, name, bytes.len(), written);
    }

    /// A source of rows that never change, without their sizes.
    fn open_unsized(&self) -> KeyedSource<CqlStore> {
        let settings = SourceConfig { size: String::new(), ..settings(BY_NAME) };
        KeyedSource::open(self.store(&settings, true).unwrap(), &AtomicU64::new(0)).unwrap()
    }

    fn store(&self, settings: &SourceConfig, is_immutable: bool) -> UserResult<CqlStore> {
        CqlStore::open(&Cluster::parse(&self.url(), settings)?, is_immutable)
    }

    fn open(&self, path: &str, is_immutable: bool) -> UserResult<KeyedSource<CqlStore>> {
        KeyedSource::open(self.store(&settings(path), is_immutable)?, &AtomicU64::new(0))
    }
}

/// A keyspace of a real server.
struct Server {
    runtime: Runtime,
    session: Session,
    address: String,
    keyspace: String,
}

impl Server {
    fn start(keyspace: &str, key: &str) -> Self {
        let address = std::env::var("BELADY_CASSANDRA");
        let address = address.expect("BELADY_CASSANDRA has to be the HOST:PORT of a Cassandra");
        let runtime = Runtime::new().unwrap();
        let builder = SessionBuilder::new().known_node(&address).user("cassandra", "cassandra");
        let session = runtime.block_on(builder.build()).unwrap();
        let server = Server { runtime, session, address, keyspace: keyspace.to_owned() };
        server.ask(&format!("DROP KEYSPACE IF EXISTS {keyspace}"));
        let copies = "{'class': 'SimpleStrategy', 'replication_factor': 1}";
        server.ask(&format!("CREATE KEYSPACE {keyspace} WITH replication = {copies}"));
        let columns = format!("(id {key} PRIMARY KEY, \"a \"\"name\" text, bytes int)");
        server.ask(&format!("CREATE TABLE {keyspace}.files {columns}"));
        server.ask(&format!("CREATE TABLE {keyspace}.data (id {key} PRIMARY KEY, data blob)"));
        server
    }

    fn ask(&self, text: &str) {
        self.runtime.block_on(self.session.query_unpaged(text, ())).unwrap();
    }

    /// Writes the data of a row whose key is written in CQL.
    fn write_data(&self, key: &str, bytes: &[u8], written: i64) {
        let keyspace = &self.keyspace;
        let text = format!(
            "INSERT INTO {keyspace}.data (id, data) VALUES ({key}, ?) USING TIMESTAMP {written}"
        );
        self.runtime.block_on(self.session.query_unpaged(text, (bytes,))).unwrap();
    }

    fn write_row(&self, key: &str, name: &str, size: usize, written: i64) {
        let keyspace = &self.keyspace;
        let text = format!(
            "INSERT INTO {keyspace}.files (id, \"a \"\"name\", bytes) VALUES ({key}, ?, {size}) \
             USING TIMESTAMP {written}"
        );
        self.runtime.block_on(self.session.query_unpaged(text, (name,))).unwrap();
    }
}

impl Tables for Server {
    fn url(&self) -> String {
        format!("cassandra://{}/{}", self.address, self.keyspace)
    }

    fn put_data(&self, key: &str, bytes: &[u8], written: i64) {
        self.write_data(&format!("'{key}'"), bytes, written);
    }

    fn put_row(&self, key: &str, name: &str, size: usize, written: i64) {
        self.write_row(&format!("'{key}'"), name, size, written);
    }

    fn unset_size(&self, key: &str) {
        let keyspace = &self.keyspace;
        let update = format!("UPDATE {keyspace}.files USING TIMESTAMP 12 SET bytes = null");
        self.ask(&format!("{update} WHERE id = '{key}'"));
    }

    fn delete(&self, key: &str) {
        for table in ["files", "data"] {
            self.ask(&format!("DELETE FROM {}.{table} WHERE id = '{key}'", self.keyspace));
        }
    }
}

/// A server in memory.
struct Forged(CqlServer);

impl Forged {
    fn start() -> Self {
        Self::of(CqlServer::start(), "text")
    }

    fn of(server: CqlServer, key: &str) -> Self {
        let id = ("id", key, Part::PartitionKey);
        let (name, size) = (("a \"name", "text", Part::Regular), ("bytes", "int", Part::Regular));
        server.create_keyspace("forged");
        server.create_table("files", &[id, name, size]);
        server.create_table("data", &[id, ("data", "blob", Part::Regular)]);
        Forged(server)
    }

    fn write_data(&self, key: &[u8], bytes: &[u8], written: i64) {
        self.0.put("data", key, &[("data", bytes, written)]);
    }

    fn write_row(&self, key: &[u8], name: &str, size: usize, written: i64) {
        let size = (size as i32).to_be_bytes();
        let cells = [("a \"name", name.as_bytes(), written), ("bytes", &size[..], written)];
        self.0.put("files", key, &cells);
    }

    /// Checks how many statements of a kind came since requests were looked at last.
    #[track_caller]
    fn expect_requests(&self, of: &str, expected: usize) {
        let requests = self.0.requests();
        let found = requests.iter().filter(|request| request.contains(of)).count();
        assert_eq!(found, expected, "{requests:#?}");
    }
}

impl Tables for Forged {
    fn url(&self) -> String {
        format!("cassandra://{}/forged", self.0.address())
    }

    fn put_data(&self, key: &str, bytes: &[u8], written: i64) {
        self.write_data(key.as_bytes(), bytes, written);
    }

    fn put_row(&self, key: &str, name: &str, size: usize, written: i64) {
        self.write_row(key.as_bytes(), name, size, written);
    }

    fn unset_size(&self, key: &str) {
        self.0.delete_cell("files", key.as_bytes(), "bytes");
    }

    fn delete(&self, key: &str) {
        self.0.delete("files", key.as_bytes());
        self.0.delete("data", key.as_bytes());
    }
}

/// What statements of each kind have in them.
const LIST: &str = "\"files\" WHERE token(";
const FIND: &str = "\"files\" WHERE \"id\"";
const READ: &str = "\"data\" WHERE \"id\"";

const X: &str = "a/x";
const BYTES: &[u8] = b"bytes";

/// A server with a file, a source that shows it, and its version.
fn one_file() -> (Forged, KeyedSource<CqlStore>, Fingerprint) {
    let server = Forged::start();
    server.put(X, BYTES, 1);
    let source = server.open(BY_NAME, false).unwrap();
    let version = source.stat(Path::new(X)).unwrap().fingerprint();
    server.0.requests();
    (server, source, version)
}

fn read_x(source: &KeyedSource<CqlStore>, version: Fingerprint) -> Result<Vec<u8>, ReadError> {
    read_version(source, Path::new(X), version, 0, BYTES.len())
}

fn right() -> Result<Vec<u8>, ReadError> {
    Ok(BYTES.to_vec())
}

const REFUSED: Result<Vec<u8>, ReadError> = Err(ReadError::Source(Errno::EIO));

fn credentials(lines: &str) -> NamedTempFile {
    let mut file = NamedTempFile::new().unwrap();
    file.write_all(lines.as_bytes()).unwrap();
    file
}

#[track_caller]
fn refused(opened: UserResult<KeyedSource<CqlStore>>, why: &str) {
    let error = opened.err().unwrap().to_string();
    assert!(error.contains(why), "{error}");
}

/// Rows that change.
struct Rows<'a, T>(&'a T);

impl<T: Tables> Store for Rows<'_, T> {
    fn put(&self, path: &str, bytes: &[u8], nth: u32) {
        self.0.put(path, bytes, i64::from(nth));
    }

    fn delete(&self, path: &str) {
        self.0.delete(path);
    }
}

fn check_conformance(server: &impl Tables) {
    check_changes(&Rows(server), || server.open(BY_NAME, false).unwrap());
    ["d/x", "d/new"].iter().for_each(|path| server.delete(path));
    let files = some_files();
    for (path, bytes) in &files {
        server.put(path.to_str().unwrap(), bytes, 1_700_000_000_000_000);
    }
    for is_immutable in [false, true] {
        check(&server.open(BY_NAME, is_immutable).unwrap(), &files);
    }
    check(&server.open_unsized(), &files);
}

fn check_halves(server: &impl Tables) {
    server.put("a/x", b"old", 1);
    server.put("a/y", b"y", 1);
    let source = server.open(BY_NAME, false).unwrap();
    let path = Path::new("a/x");
    let before = source.stat(path).unwrap().fingerprint();
    server.put("a/x", b"new", 2);
    assert_eq!(read_version(&source, path, before, 0, 3), Err(ReadError::Changed));
    wait_until(|| source.stat(path).unwrap().fingerprint() != before);
    assert_eq!(read(&source, path).unwrap(), b"new");
    // A writer that has written half for too long.
    server.put_data("a/y", b"z", 3);
    assert_eq!(read(&source, Path::new("a/y")), REFUSED);
    server.put_row("a/y", "a/y", 1, 3);
    wait_until(|| read(&source, Path::new("a/y")) == Ok(b"z".to_vec()));
    server.delete("a/y");
    wait_until(|| source.stat(Path::new("a/y")) == Err(Errno::ENOENT));
}

fn check_refusals(server: &impl Tables) {
    let refused = |path: &str, why: &str| refused(server.open(path, false), why);
    server.put("x", b"bytes", 1);
    refused("{nothing}", "the table files has no column nothing");
    server.put_row("x", "x", 5, 2);
    refused(BY_NAME, "says 5 bytes, written at 2, but the data has 5 bytes, written at 1");
    assert!(server.open(BY_NAME, true).is_ok(), "rows that never change need no times");
    server.put("x", b"bytes", 9);
    server.put_data("y", b"bytes", 9);
    server.put_row("y", "x", 5, 9);
    refused(BY_NAME, "two files are x");
    server.put_row("y", "../x", 5, 10);
    refused(BY_NAME, "leads out of the tree");
    server.put_row("y", "y", 5, 11);
    server.unset_size("y");
    refused(BY_NAME, "it has no bytes");
}

#[test]
#[ignore = "needs a Cassandra"]
fn a_keyspace_conforms() {
    check_conformance(&Server::start("conforms", "text"));
}

#[test]
#[ignore = "needs a Cassandra"]
fn keys_have_many_types() {
    for (nth, (key, literal, name)) in [
        ("uuid", "4b1f00a2-9d3c-4e7f-8001-deadbeef0010", "4b1f00a2-9d3c-4e7f-8001-deadbeef0010"),
        (
            "timeuuid",
            "50554d6e-29bb-11e5-b345-feff819cdc9f",
            "50554d6e-29bb-11e5-b345-feff819cdc9f",
        ),
        ("int", "-7", "-7"),
        ("bigint", "4294967296", "4294967296"),
        ("blob", "0x00ab", "00ab"),
        ("ascii", "'it''s'", "it's"),
    ]
    .into_iter()
    .enumerate()
    {
        let server = Server::start(&format!("keys_{nth}"), key);
        server.write_data(literal, b"bytes", 1);
        server.write_row(literal, "train", 5, 1);
        let source = server.open(&format!("{BY_NAME}/{{id}}.JPEG"), false).unwrap();
        let path = format!("train/{name}.JPEG");
        assert_eq!(read(&source, Path::new(&path)).unwrap(), b"bytes", "{key}");
    }
}

#[test]
#[ignore = "needs a Cassandra"]
fn rows_change_with_their_write_times() {
    check_halves(&Server::start("changes", "text"));
}

#[test]
#[ignore = "needs a Cassandra"]
fn tables_that_do_not_fit_are_refused() {
    check_refusals(&Server::start("refused", "text"));
}

#[test]
fn a_forged_keyspace_conforms() {
    let server = Forged::start();
    check_conformance(&server);
    let source = server.open(BY_NAME, true).unwrap();
    check_slow(&source, &some_files(), || server.0.hold());
    assert_eq!(server.0.not_understood(), Vec::<String>::new());
}

#[test]
fn forged_rows_change_with_their_write_times() {
    check_halves(&Forged::start());
}

#[test]
fn forged_tables_that_do_not_fit_are_refused() {
    let server = Forged::start();
    check_refusals(&server);
    let id = ("id", "text", Part::PartitionKey);
    let (part, size) = (("part", "int", Part::Clustering), ("bytes", "int", Part::Regular));
    server.0.create_table("files", &[id, part, size]);
    refused(server.open("{id}", false), "the key of files is (id, part), not one column");
    server.0.drop_table("files");
    refused(server.open("{id}", false), "there is no table forged.files");
    server.0.create_keyspace("other");
    refused(server.open("{id}", false), "there is no keyspace forged");
    let server = Forged::start();
    server.0.set_partitioner("org.apache.cassandra.dht.RandomPartitioner");
    refused(server.open("{id}", false), "only Murmur3Partitioner is known");
}

#[test]
fn forged_keys_have_many_types() {
    let uuid = 0x4b1f_00a2_9d3c_4e7f_8001_dead_beef_0010_u128.to_be_bytes();
    let (int, bigint) = ((-7_i32).to_be_bytes(), (1_i64 << 32).to_be_bytes());
    for (kind, key, name) in [
        ("uuid", &uuid[..], "4b1f00a2-9d3c-4e7f-8001-deadbeef0010"),
        ("timeuuid", &uuid[..], "4b1f00a2-9d3c-4e7f-8001-deadbeef0010"),
        ("int", &int[..], "-7"),
        ("bigint", &bigint[..], "4294967296"),
        ("blob", &[0, 0xab][..], "00ab"),
        ("ascii", &b"it's"[..], "it's"),
    ] {
        let server = Forged::of(CqlServer::start(), kind);
        server.write_data(key, BYTES, 1);
        server.write_row(key, "train", BYTES.len(), 1);
        let source = server.open(&format!("{BY_NAME}/{{id}}.JPEG"), false).unwrap();
        let path = format!("train/{name}.JPEG");
        assert_eq!(read(&source, Path::new(&path)), right(), "{kind}");
    }
}

/// The driver has the same.
#[test]
fn tokens_are_those_of_cassandra() {
    for (key, expected) in [
        ("test", -6_017_608_668_500_074_083),
        ("xd", 4_507_812_186_440_344_727),
        ("primary_key", -1_632_642_444_691_073_360),
        ("kremówki", 4_354_931_215_268_080_151),
    ] {
        assert_eq!(token(key.as_bytes()), expected, "{key}");
    }
}

#[test]
fn a_read_is_one_request() {
    let (server, source, version) = one_file();
    for _ in 0..10 {
        assert_eq!(read_x(&source, version), right());
    }
    let requests = server.0.requests();
    let is_read = |request: &String| request.starts_with("LOCAL_ONE") && request.contains(READ);
    assert!(requests.len() == 10 && requests.iter().all(is_read), "{requests:#?}");
}

#[test]
fn a_listing_asks_a_quorum_and_reads_some_rows() {
    let server = Forged::start();
    for nth in 0..32 {
        server.put(&format!("{nth}"), BYTES, 1);
    }
    let source = server.open(BY_NAME, false).unwrap();
    let requests = server.0.requests();
    let count = |of: &str, consistency: &str| {
        let is_so = |request: &&String| request.contains(of) && request.starts_with(consistency);
        requests.iter().filter(is_so).count()
    };
    let (listed, looked) = (count(LIST, "LOCAL_QUORUM"), count(READ, "LOCAL_ONE"));
    assert!(listed == 256 && (1..=16).contains(&looked) && requests.len() == 256 + looked);
    server.delete("7");
    wait_until(|| source.stat(Path::new("7")) == Err(Errno::ENOENT));
    server.expect_requests(READ, 0);
}

#[test]
fn a_listing_is_whole_whatever_the_pages_are() {
    let server = Forged::start();
    for nth in 0..1000 {
        server.put(&format!("{nth}"), BYTES, 1);
    }
    server.0.set_page_max(2);
    server.0.answer_with(LIST, 3, Fault::error(0x1200));
    server.0.answer_with(LIST, 1, Fault::Cut);
    let store = server.store(&settings(BY_NAME), false).unwrap();
    let seen = AtomicU64::new(0);
    let source = KeyedSource::open(store, &seen).unwrap();
    let mut names = 0;
    source.list_in_parts(Path::new(""), &mut |part| names += part.len()).unwrap();
    assert_eq!((names, seen.into_inner()), (1000, 1000));
}

#[test]
fn what_may_pass_is_asked_again() {
    let (server, source, version) = one_file();
    // After a mount that worked, a right that is missing may come back.
    let errors = [0x0000, 0x1000, 0x1001, 0x1002, 0x1003, 0x1200, 0x1300, 0x2100, 0x2500];
    let faults = errors.map(Fault::error).into_iter().chain([Fault::Cut, Fault::NoFrame]);
    for fault in faults {
        server.0.answer_with(READ, 1, fault.clone());
        assert_eq!(read_x(&source, version), right(), "{fault:?}");
        server.expect_requests(READ, 2);
    }
    // One of them says that the server is asked too much.
    assert_eq!(source.overloads(), 1);
}

#[test]
fn what_does_not_pass_is_refused_at_once() {
    let (server, source, version) = one_file();
    let faults = [0x000a, 0x2000, 0x2200, 0x2300].map(Fault::error);
    for fault in faults.into_iter().chain([Fault::WrongLength, Fault::NoRows]) {
        server.0.answer_with(READ, usize::MAX, fault.clone());
        assert_eq!(read_x(&source, version), REFUSED, "{fault:?}");
        server.expect_requests(READ, 1);
        server.0.answer_right();
        assert_eq!(read_x(&source, version), right(), "{fault:?}");
        server.0.requests();
    }
    server.0.drop_table("data");
    assert_eq!(read_x(&source, version), REFUSED);
    let failures = source.failures().unwrap();
    assert_eq!(failures.count, 7);
    assert!(failures.reason.ends_with("the tables have changed since the mount"), "{failures:?}");
}

#[test]
fn a_lookup_asks_a_quorum() {
    let server = Forged::start();
    server.put(X, BYTES, 1);
    let store = server.store(&settings(BY_NAME), false).unwrap();
    let listing = store.list(None, &AtomicU64::new(0)).unwrap().unwrap();
    let blobs = Tree::new(listing).unwrap();
    let blob = blobs.blob(Path::new(X)).unwrap();
    let expect = |current: Result<bool, Errno>, requests: usize| {
        server.0.requests();
        assert_eq!(store.is_current(blob), current);
        server.expect_requests(FIND, requests);
    };
    expect(Ok(true), 1);
    server.0.answer_with(FIND, 1, Fault::error(0x1200));
    expect(Ok(true), 2);
    server.0.answer_with(FIND, 1, Fault::error(0x2200));
    expect(Err(Errno::EIO), 1);
    server.0.put_stale("files", X.as_bytes(), None);
    expect(Ok(true), 1);
    // One replica still has the old row.
    let size = 5_i32.to_be_bytes();
    server.put(X, BYTES, 2);
    let old = [("a \"name", X.as_bytes(), 1), ("bytes", &size[..], 1)];
    server.0.put_stale("files", X.as_bytes(), Some(&old));
    expect(Ok(false), 1);
    server.delete(X);
    expect(Ok(false), 1);
}

#[test]
fn sizes_that_are_not_listed_are_guessed() {
    let server = Forged::start();
    server.put(X, &[1; 10], 1);
    server.put("a/y", &[2; 30], 1);
    let source = server.open_unsized();
    let listed = listed_stat(&source, Path::new(X));
    assert_eq!((listed.size, listed.is_sized), (20, false), "the mean");
    let stat = source.stat(Path::new(X)).unwrap();
    assert_eq!(stat, listed.with_size(10));
    server.0.requests();
    for _ in 0..10 {
        listed_stat(&source, Path::new(X));
    }
    server.expect_requests(READ, 0);
}

#[test]
fn a_size_that_is_not_listed_costs_no_request_of_its_own() {
    let server = Forged::start();
    server.put(X, BYTES, 1);
    let (source, path) = (server.open_unsized(), Path::new(X));
    server.0.requests();
    let stat = source.stat(path).unwrap();
    assert_eq!(stat.size, BYTES.len() as u64);
    assert_eq!(read_x(&source, stat.fingerprint()), right());
    server.expect_requests(READ, 1);
    assert_eq!(read_unsized(&source, path, &listed_stat(&source, path)), right());
    server.expect_requests(READ, 1);
    // A row that was said never to change.
    server.put(X, b"other bytes", 2);
    assert_eq!(read_x(&source, stat.fingerprint()), Err(ReadError::Changed));
    assert_eq!(read(&source, path).unwrap(), b"other bytes");
}

#[test]
fn a_size_that_cannot_be_found_out_is_asked_for_again() {
    let server = Forged::start();
    server.put(X, BYTES, 1);
    let (source, path) = (server.open_unsized(), Path::new(X));
    server.0.answer_with(READ, 1, Fault::error(0x2200));
    assert_eq!(source.stat(path), Err(Errno::EIO));
    server.0.answer_with(READ, 1, Fault::error(0x1200));
    assert_eq!(source.stat(path).unwrap().size, BYTES.len() as u64);
}

#[test]
fn another_row_with_a_path_is_another_version() {
    let server = Forged::start();
    for (key, name) in [("1", "a"), ("2", "b")] {
        server.put_data(key, key.as_bytes(), 7);
        server.put_row(key, name, 1, 7);
    }
    let source = server.open(BY_NAME, false).unwrap();
    let [a, b] = ["a", "b"].map(Path::new);
    let before = source.stat(a).unwrap().fingerprint();
    assert_eq!(read(&source, a).unwrap(), b"1");
    // The sizes keep their write time.
    for (key, name) in [("1", "b"), ("2", "a")] {
        server.0.put("files", key.as_bytes(), &[("a \"name", name.as_bytes(), 8)]);
    }
    assert_ne!(source.stat(a).unwrap().fingerprint(), before);
    assert_eq!((read(&source, a).unwrap(), read(&source, b).unwrap()), (b"2".into(), b"1".into()));
    assert_eq!(read_version(&source, a, before, 0, 1), Err(ReadError::Changed));
}

#[test]
fn a_replica_that_lacks_a_write_is_not_believed() {
    let (server, source, version) = one_file();
    let older = ("data", &b"other"[..], 0);
    for stale in [None, Some(&[older][..])] {
        server.0.put_stale("data", X.as_bytes(), stale);
        assert_eq!(read_x(&source, version), right());
        let requests = server.0.requests();
        let asked: Vec<&str> = requests.iter().filter_map(|text| text.split(' ').next()).collect();
        assert_eq!(asked, ["LOCAL_ONE", "LOCAL_QUORUM"]);
    }
    // A mount while it is so.
    let source = server.open(BY_NAME, false).unwrap();
    assert_eq!(read(&source, Path::new(X)), right());
    server.0.repair();
    server.0.requests();
    assert_eq!(read_x(&source, version), right());
    server.expect_requests(READ, 1);
}

#[test]
fn a_row_that_is_deleted_is_gone() {
    let (server, source, version) = one_file();
    server.delete(X);
    assert_eq!(read_x(&source, version), Err(ReadError::Changed));
    wait_until(|| source.stat(Path::new(X)) == Err(Errno::ENOENT));
}

#[test]
fn bytes_that_are_not_those_of_the_size_are_never_delivered() {
    let (server, source, version) = one_file();
    let lie = Fault::Other(b"bytes of another length".to_vec());
    for times in [1, 2, 3] {
        server.0.answer_with(READ, times, lie.clone());
        assert_eq!(read_x(&source, version), right(), "{times}");
    }
    server.0.answer_with(READ, usize::MAX, lie);
    assert_eq!(read_x(&source, version), REFUSED);
}

#[test]
fn an_answer_that_is_late_holds_no_other_up() {
    let (server, source, version) = one_file();
    server.0.answer_with(READ, 1, Fault::Silence);
    thread::scope(|scope| {
        let reader = scope.spawn(|| read_x(&source, version));
        wait_until(|| server.0.held() == 1);
        for _ in 0..100 {
            assert_eq!(read_x(&source, version), right());
        }
        server.0.release();
        assert_eq!(reader.join().unwrap(), right());
    });
}

#[test]
fn a_server_that_restarts_is_waited_for() {
    let (server, source, version) = one_file();
    server.0.answer_with(READ, 1, Fault::Silence);
    thread::scope(|scope| {
        let reader = scope.spawn(|| read_x(&source, version));
        wait_until(|| server.0.held() == 1);
        server.0.stop();
        server.0.start_again();
        assert_eq!(reader.join().unwrap(), right());
    });
}

#[test]
fn a_user_without_rights_is_refused_at_once() {
    let server = Forged::start();
    server.put(X, BYTES, 1);
    server.0.answer_with(LIST, usize::MAX, Fault::error(0x2100));
    refused(server.open(BY_NAME, false), "has no SELECT permission");
    // Each of those that list asked at most once.
    assert!(server.0.requests().len() <= 16);
}

#[test]
fn who_asks_is_told_what_the_server_says() {
    let server = Forged::of(CqlServer::with_password("belady", "word"), "text");
    server.put(X, BYTES, 1);
    let open = |password: &str, more: &str| -> UserResult<KeyedSource<CqlStore>> {
        let user = "cassandra_username = belady\ncassandra_password";
        let file = credentials(&format!("{user} = {password}\n{more}"));
        let settings = SourceConfig { credentials: file.path().to_owned(), ..settings(BY_NAME) };
        KeyedSource::open(server.store(&settings, false)?, &AtomicU64::new(0))
    };
    assert_eq!(read(&open("word", "").unwrap(), Path::new(X)), right());
    refused(open("x", ""), "Provided username belady and/or password are incorrect");
    refused(open("x", ""), "CASSANDRA_USERNAME");
    refused(
        open("word", "cassandra_datacenter = dc9"),
        "set CASSANDRA_DATACENTER to one of datacenter1",
    );
    let near = open("word", "cassandra_datacenter = datacenter1").unwrap();
    assert_eq!(read(&near, Path::new(X)), right());
}
