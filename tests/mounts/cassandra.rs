//! Rows of Cassandra that are mounted.
//!
//! Goal: a loader of files reads rows, and cannot tell them from files. Method: a server in memory
//! ([`cql_server`](crate::cql_server)) has the tables of cassandra-dali, with the files of a directory beside the mount.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

use serde_json::Value;

use crate::archives::{COMPARE, pack, python};
use crate::cql_server::{CqlServer, Part};
use crate::fixture::{Fixture, content, said, wait_until};
use crate::mounted::Mounted;

const SETTINGS: &str = r#"
[source]
rows = "metadata_train"
path = "{or_split}/{or_label}/{id}.JPEG"
data = "data_train.data"
size = "bytes"
"#;

/// Options of a mount that does not know the column of sizes.
const UNSIZED: [&str; 4] = ["--set", "source.size=", "--set", "source.consistency=immutable"];

/// A fixture, and a server with empty tables.
struct Rows {
    fixture: Fixture,
    server: CqlServer,
}

impl Rows {
    fn of(server: CqlServer) -> Self {
        let id = ("id", "uuid", Part::PartitionKey);
        server.create_keyspace("imagenet");
        let columns = [("or_split", "text"), ("or_label", "text"), ("bytes", "int")];
        let columns = columns.map(|(name, kind)| (name, kind, Part::Regular));
        server.create_table("metadata_train", &[&[id][..], &columns].concat());
        server.create_table("data_train", &[id, ("data", "blob", Part::Regular)]);
        let fixture = Fixture::new();
        std::fs::write(fixture.path("belady.toml"), SETTINGS).unwrap();
        Rows { fixture, server }
    }

    /// Writes a row, and a file that is the same. Returns its path.
    fn put(&self, nth: u64, bytes: &[u8], written: i64) -> String {
        let (key, label) = (id(nth), format!("class{}", nth % 3));
        let size = (bytes.len() as i32).to_be_bytes();
        self.server.put("data_train", &key, &[("data", bytes, written)]);
        let cells = [("or_split", &b"train"[..]), ("or_label", label.as_bytes()), ("bytes", &size)];
        let cells = cells.map(|(column, cell)| (column, cell, written));
        self.server.put("metadata_train", &key, &cells);
        let path = format!("train/{label}/00000000-0000-0000-0000-{nth:012x}.JPEG");
        self.fixture.write(&path, bytes);
        path
    }

    fn url(&self) -> String {
        format!("cassandra://{}/imagenet", self.server.address())
    }

    fn point(&self) -> PathBuf {
        self.fixture.path("mount")
    }

    fn mounted(&self, options: &[&str]) -> Mounted {
        let config = self.fixture.path("belady.toml");
        let words = [&["--config", config.to_str().unwrap()], options].concat();
        Mounted::at(&self.fixture, Path::new(&self.url()), &self.point(), &words)
    }
}

/// What statements for the bytes of a row have in them.
const READ: &str = "\"data_train\" WHERE \"id\"";

/// How many requests for bytes came since they were counted last.
fn count_reads(server: &CqlServer) -> u64 {
    server.requests().iter().filter(|request| request.contains(READ)).count() as u64
}

/// Waits until all rows are in RAM. If a size was guessed, a row may be read twice until then.
fn await_rows(rows: &Rows, mounted: &Mounted, count: u64) {
    let point = mounted.point.to_str().unwrap();
    wait_until("all rows are in RAM", || {
        let said = rows.fixture.run(0, &["warmup", point, "--check", "--json"]);
        let here: Value = serde_json::from_str(said.trim()).unwrap();
        here["ram"]["blocks"] == count
    });
}

/// Has a loader read all images of the mount, and compare them with those of the directory.
fn compare(rows: &Rows, mounted: &Mounted, count: u64) {
    let (source, shown) = (rows.fixture.source("train"), mounted.path("train"));
    assert_eq!(python(COMPARE, &[&source, &shown]).trim(), count.to_string());
    assert_eq!(mounted.count("/cold"), 0);
}

/// A uuid.
fn id(nth: u64) -> [u8; 16] {
    u128::from(nth).to_be_bytes()
}

#[test]
fn a_loader_of_images_reads_rows_as_a_directory() {
    let rows = Rows::of(CqlServer::start());
    let count = 60;
    for nth in 0..count {
        rows.put(nth, &content(nth, 1000 + 777 * nth as usize), 1_700_000_000_000_000);
    }
    let order = "torch-random:seed=7,index=imagefolder,root=train";
    let mounted = rows.mounted(&["--ram", "64MiB", "--order", order]);
    await_rows(&rows, &mounted, count);
    compare(&rows, &mounted, count);
    assert_eq!(mounted.status()["source"], rows.url().as_str());
    mounted.umount();
    let mut doctor = rows.fixture.belady();
    for (name, value) in [
        ("ROWS", "metadata_train"),
        ("PATH", "{or_split}/{or_label}/{id}.JPEG"),
        ("DATA", "data_train.data"),
    ] {
        doctor.env(format!("BELADY_SOURCE_{name}"), value);
    }
    let found = doctor.args(["doctor", "--source", &rows.url()]).output().unwrap();
    let found = (found.status.success(), said(&found));
    assert!(found.0 && found.1.contains(" ms a request"), "{found:?}");
    assert_eq!(rows.server.not_understood(), Vec::<String>::new());
}

#[test]
fn a_loader_reads_rows_whose_sizes_nobody_has_told() {
    let rows = Rows::of(CqlServer::start());
    let count = 60;
    for nth in 0..count {
        rows.put(nth, &content(nth, 1000 + 777 * nth as usize), 1);
    }
    let order = "torch-random:seed=7,index=imagefolder,root=train";
    let mounted = rows.mounted(&[&UNSIZED[..], &["--ram", "64MiB", "--order", order]].concat());
    await_rows(&rows, &mounted, count);
    // Some were read for the mean of their sizes.
    let read = count_reads(&rows.server);
    assert!((count + 1..=2 * count).contains(&read), "{read}");
    compare(&rows, &mounted, count);
    // The kernel may take pages back that nobody has touched for a while.
    let taken_back = mounted.count("/lost") + mounted.count("/restored");
    let again = count_reads(&rows.server);
    assert!(again <= taken_back, "{again} reads, {taken_back} taken back");
    mounted.umount();
}

#[test]
fn archives_in_rows_are_shown_as_files() {
    let rows = Rows::of(CqlServer::start());
    let archive = rows.fixture.path("archive.tar");
    for class in 0..3 {
        let directory = format!("train/class{class}");
        rows.fixture.write(&format!("{directory}/a.jpg"), &content(class, 100_000));
        pack(&rows.fixture.source(""), &directory, &archive);
        let (key, bytes) = (id(class), std::fs::read(&archive).unwrap());
        let size = (bytes.len() as i32).to_be_bytes();
        rows.server.put("data_train", &key, &[("data", &bytes, 1)]);
        let cells = [("or_split", &b""[..], 1), ("or_label", b"shards", 1), ("bytes", &size, 1)];
        rows.server.put("metadata_train", &key, &cells);
    }
    let path = ["--set", "source.path={or_label}/{id}.tar", "--as", "files"];
    let mounted = rows.mounted(&path);
    let (source, shown) = (rows.fixture.source("train"), mounted.path("shards/train"));
    assert_eq!(python(COMPARE, &[&source, &shown]).trim(), "3");
    mounted.umount();
    let point = rows.point();
    let config = rows.fixture.path("belady.toml");
    let (url, config) = (rows.url(), config.to_str().unwrap());
    let words = ["mount", &url, point.to_str().unwrap(), "--config", config];
    let refused = rows.fixture.run(4, &[&words[..], &path, &UNSIZED].concat());
    assert!(refused.contains("the sizes of the archives"), "{refused}");
    assert_eq!(rows.server.not_understood(), Vec::<String>::new());
}

#[test]
fn sizes_are_found_out_and_remembered() {
    let rows = Rows::of(CqlServer::start());
    // Most are far from the mean, which has two blocks.
    let sizes = [0, 1, 4096, 300_000, 1 << 20, (1 << 20) + 1, 3_000_000, 5 << 20];
    let put = |(nth, size): (u64, usize)| rows.put(nth, &content(nth, size), 1);
    let paths: Vec<String> = (0..).zip(sizes).map(put).collect();
    let kept = rows.fixture.path("cache");
    let kept = ["--cache-dir", kept.to_str().unwrap(), "--set", "prefetch.enabled=false"];
    let mounted = rows.mounted(&[&UNSIZED[..], &kept].concat());
    count_reads(&rows.server);
    for entry in std::fs::read_dir(mounted.path("train/class0")).unwrap() {
        assert!(entry.unwrap().file_type().unwrap().is_file());
    }
    assert_eq!(count_reads(&rows.server), 0, "names cost no reads");
    let look = |mounted: &Mounted| {
        for (path, size) in paths.iter().zip(sizes) {
            assert_eq!(std::fs::metadata(mounted.path(path)).unwrap().len(), size as u64);
        }
    };
    look(&mounted);
    assert_eq!(count_reads(&rows.server), sizes.len() as u64);
    for (nth, (path, size)) in (0..).zip(paths.iter().zip(sizes)) {
        assert!(std::fs::read(mounted.path(path)).unwrap() == content(nth, size), "{size}");
    }
    mounted.umount();
    let mounted = rows.mounted(&[&UNSIZED[..], &kept].concat());
    count_reads(&rows.server);
    look(&mounted);
    assert_eq!(count_reads(&rows.server), 0, "the catalog has them");
    mounted.umount();
}

#[test]
fn rows_that_change_are_seen() {
    let rows = Rows::of(CqlServer::start());
    let path = rows.put(1, b"old", 1);
    let going = rows.put(2, b"going", 1);
    let mounted = rows.mounted(&["--set", "source.revalidate=1s"]);
    assert_eq!(std::fs::read(mounted.path(&path)).unwrap(), b"old");
    assert_eq!(std::fs::read(mounted.path(&going)).unwrap(), b"going");
    rows.put(1, b"newer", 2);
    let added = rows.put(3, b"added", 2);
    for table in ["metadata_train", "data_train"] {
        rows.server.delete(table, &id(2));
    }
    wait_until("the new bytes", || {
        std::fs::read(mounted.path(&path)).ok() == Some(b"newer".into())
    });
    wait_until("the row is gone", || !mounted.path(&going).exists());
    wait_until("a new row", || std::fs::read(mounted.path(&added)).ok() == Some(b"added".into()));
    mounted.umount();
}

#[test]
fn a_server_that_is_away_for_a_while_costs_readers_time_and_no_error() {
    let rows = Rows::of(CqlServer::start());
    let paths: Vec<String> = (0..4).map(|nth| rows.put(nth, &content(nth, 300_000), 1)).collect();
    let options = [["--set", "prefetch.enabled=false"], ["--set", "log.level=debug"]];
    let mounted = rows.mounted(options.as_flattened());
    rows.server.stop();
    let read = |path: &String| {
        let path = mounted.path(path);
        thread::spawn(move || std::fs::read(path))
    };
    let readers: Vec<_> = paths.iter().map(read).collect();
    wait_until("a request is made again", || mounted.log().contains("the store is asked again"));
    rows.server.start_again();
    for (nth, reader) in (0..).zip(readers) {
        assert!(reader.join().unwrap().unwrap() == content(nth, 300_000), "{nth}");
    }
    mounted.umount();
}

#[test]
fn what_is_no_table_of_samples_is_refused_and_a_password_comes_from_a_file() {
    let rows = Rows::of(CqlServer::with_password("belady", "some-word"));
    let path = rows.put(1, b"bytes", 1);
    let (url, point, config) = (rows.url(), rows.point(), rows.fixture.path("belady.toml"));
    let words = ["mount", &url, point.to_str().unwrap()];
    let refused = rows.fixture.run(3, &words);
    assert!(refused.contains("source.rows is not set"), "{refused}");
    let words = [&words[..], &["--config", config.to_str().unwrap()]].concat();
    let refused = rows.fixture.run(4, &words);
    assert!(refused.contains("set CASSANDRA_USERNAME and CASSANDRA_PASSWORD"), "{refused}");
    let file = rows.fixture.path("password");
    std::fs::write(&file, "cassandra_username = belady\ncassandra_password = some-word\n").unwrap();
    assert!(Command::new("chmod").arg("600").arg(&file).status().unwrap().success());
    let setting = format!("source.credentials={}", file.display());
    let words = [&words[..], &["--set", &setting]].concat();
    for (wrong, said) in [
        ("source.rows=nothing", "there is no table imagenet.nothing"),
        ("source.path={or_label}/{nothing}", "metadata_train has no column nothing"),
        ("source.size=or_label", "or_label of metadata_train is of the type text, not int"),
        ("source.data=metadata_train.bytes", "of the type int, not blob"),
        ("source.size=", "set source.consistency=immutable"),
    ] {
        let refused = rows.fixture.run(4, &[&words[..], &["--set", wrong]].concat());
        assert!(refused.contains(said), "{wrong}: {refused}");
    }
    let mounted = Mounted::by(&rows.fixture, rows.fixture.belady().args(&words), &point);
    assert_eq!(std::fs::read(mounted.path(path)).unwrap(), b"bytes");
    assert!(!mounted.log().contains("some-word"));
    mounted.umount();
}
