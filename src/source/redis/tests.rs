//! A real server, which `scripts/test` installs.

use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use super::*;
use crate::source::keyed::KeyedSource;
use crate::source::tests::conformance::{
    Files, Stopped, Store, check, check_changes, check_slow, read, read_version, some_files,
    wait_until,
};
use crate::source::{ReadError, Source};

struct Server {
    child: Child,
    port: u16,
}

impl Server {
    fn start() -> Self {
        loop {
            // Another program may take the port meanwhile. Then the server ends.
            let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
            let mut child = Command::new("redis-server")
                .args(["--port", &free.port().to_string(), "--bind", "127.0.0.1", "--save", ""])
                .stdout(Stdio::null())
                .spawn()
                .expect("redis-server is missing: scripts/test installs it");
            let mut has_ended = false;
            wait_until(|| {
                has_ended = child.try_wait().unwrap().is_some();
                has_ended || TcpStream::connect(free).is_ok()
            });
            if !has_ended {
                return Server { child, port: free.port() };
            }
        }
    }

    fn ask(&self, request: &redis::Cmd) {
        let client = redis::Client::open(("127.0.0.1", self.port)).unwrap();
        request.exec(&mut client.get_connection().unwrap()).unwrap();
    }

    /// Writes a value, and its entry in the index if `version` is given.
    fn put(&self, path: &str, bytes: &[u8], version: Option<u32>) {
        let mut request = redis::cmd("SET");
        self.ask(request.arg(format!("im*ages/{path}")).arg(bytes));
        if let Some(version) = version {
            let mut entry = redis::cmd("HSET");
            entry.arg("im*ages:index").arg(path).arg(format!("{}:{version}", bytes.len()));
            self.ask(&entry);
        }
    }

    fn put_all(&self, files: &Files, version: Option<u32>) {
        let client = redis::Client::open(("127.0.0.1", self.port)).unwrap();
        let mut all = pipe();
        for (path, bytes) in files {
            let path = path.to_str().unwrap();
            all.cmd("SET").arg(format!("im*ages/{path}")).arg(bytes);
            if let Some(version) = version {
                let entry = format!("{}:{version}", bytes.len());
                all.cmd("HSET").arg("im*ages:index").arg(path).arg(entry);
            }
        }
        // Others, which are not shown.
        all.cmd("SET").arg("imagages/other").arg("1").cmd("SADD").arg("im*ages/set").arg("1");
        all.exec(&mut client.get_connection().unwrap()).unwrap();
    }

    fn store(&self, is_immutable: bool) -> UserResult<RedisStore> {
        let url = format!("redis://127.0.0.1:{}/0/im*ages", self.port);
        RedisStore::open(&Database::parse(&url, Path::new("")).unwrap(), is_immutable)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_database_conforms() {
    let files = some_files();
    for version in [None, Some(1)] {
        let server = Server::start();
        server.put_all(&files, version);
        let seen = AtomicU64::new(0);
        let source = KeyedSource::open(server.store(true).unwrap(), &seen).unwrap();
        assert_eq!(seen.into_inner(), files.len() as u64);
        check(&source, &files);
        check_slow(&source, &files, || Stopped::new(&server.child));
    }
}

impl Store for Server {
    fn put(&self, path: &str, bytes: &[u8], nth: u32) {
        Server::put(self, path, bytes, Some(nth));
    }

    fn delete(&self, path: &str) {
        self.ask(redis::cmd("HDEL").arg("im*ages:index").arg(path));
        self.ask(redis::cmd("DEL").arg(format!("im*ages/{path}")));
    }
}

#[test]
fn a_database_that_changes_conforms() {
    let server = Server::start();
    let open = || KeyedSource::open(server.store(false).unwrap(), &AtomicU64::new(0)).unwrap();
    check_changes(&server, open);
}

#[test]
fn values_change_with_their_versions() {
    let server = Server::start();
    let refused = server.store(false).err().unwrap().to_string();
    assert!(refused.contains("there is no hash im*ages:index"), "{refused}");
    server.put("a/x", b"old", Some(1));
    server.put("a/y", b"y", Some(1));
    let source = KeyedSource::open(server.store(false).unwrap(), &AtomicU64::new(0)).unwrap();
    let path = Path::new("a/x");
    let before = source.stat(path).unwrap();
    server.put("a/x", b"new", Some(2));
    let stale = read_version(&source, path, before.fingerprint(), 0, 3);
    assert_eq!(stale, Err(ReadError::Changed));
    wait_until(|| source.stat(path).unwrap().fingerprint() != before.fingerprint());
    assert_eq!(read(&source, path).unwrap(), b"new");
    server.ask(redis::cmd("HDEL").arg("im*ages:index").arg("a/y"));
    wait_until(|| source.stat(Path::new("a/y")) == Err(Errno::ENOENT));
    server.ask(redis::cmd("HSET").arg("im*ages:index").arg("b").arg("x"));
    let refused = KeyedSource::open(server.store(false).unwrap(), &AtomicU64::new(0)).err();
    let refused = refused.unwrap().to_string();
    assert!(refused.contains("has \"x\" of \"b\", not SIZE:VERSION"), "{refused}");
}

#[test]
fn a_server_that_is_away_for_a_while_is_waited_for() {
    let server = Server::start();
    server.put("x", b"bytes", Some(1));
    let source = KeyedSource::open(server.store(false).unwrap(), &AtomicU64::new(0)).unwrap();
    let stat = source.stat(Path::new("x")).unwrap();
    let client = redis::Client::open(("127.0.0.1", server.port)).unwrap();
    let mut own = client.get_connection().unwrap();
    let mut ask = |words: &[&str]| {
        let mut request = redis::cmd(words[0]);
        words[1..].iter().for_each(|word| _ = request.arg(word));
        request.exec(&mut own).unwrap();
    };
    // All other connections are cut, and new ones are refused until somebody reads.
    ask(&["CONFIG", "SET", "maxclients", "1"]);
    ask(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
    let read = std::thread::scope(|scope| {
        let read = || read_version(&source, Path::new("x"), stat.fingerprint(), 0, 5);
        let reader = scope.spawn(read);
        std::thread::sleep(Duration::from_millis(500));
        ask(&["CONFIG", "SET", "maxclients", "100"]);
        reader.join().unwrap()
    });
    assert_eq!(read.unwrap(), b"bytes");
}

#[test]
fn a_wrong_password_is_said_by_the_server() {
    let server = Server::start();
    server.ask(redis::cmd("CONFIG").arg("SET").arg("requirepass").arg("word"));
    let refused = server.store(true).err().unwrap().to_string();
    assert!(refused.contains("set REDIS_USERNAME and REDIS_PASSWORD"), "{refused}");
}

#[test]
fn a_key_leads_out_of_no_directory() {
    let server = Server::start();
    server.put("a/../../x", b"bytes", None);
    let store = server.store(true).unwrap();
    let error = KeyedSource::open(store, &AtomicU64::new(0)).err().unwrap().to_string();
    assert!(error.contains("leads out of the tree"), "{error}");
}
