//! Values of a Redis database that are mounted.
//!
//! Goal: a loader of files reads values and cannot tell. Method: a real server, which redis-cli fills with the files of
//! a directory beside the mount.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;

use crate::archives::{COMPARE, pack, python};
use crate::fixture::{Fixture, content, program, said, wait_until};
use crate::mounted::Mounted;
use crate::programs::Watchdog;

const FILES: u64 = 60;

struct Server {
    child: Child,
    port: String,
    _watchdog: Watchdog,
}

impl Server {
    fn start() -> Self {
        loop {
            // Another program may take the port meanwhile. Then the server ends.
            let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
            let port = free.port().to_string();
            let mut child = Command::new("redis-server")
                .args(["--port", &port, "--bind", "127.0.0.1", "--save", ""])
                .stdout(Stdio::null())
                .spawn()
                .expect("redis-server is missing: scripts/test installs it");
            let watchdog = Watchdog::over(child.id() as i32);
            let mut has_ended = false;
            wait_until("the server", || {
                has_ended = child.try_wait().unwrap().is_some();
                has_ended || TcpStream::connect(free).is_ok()
            });
            if !has_ended {
                return Server { child, port, _watchdog: watchdog };
            }
        }
    }

    /// Runs a request whose last word is a file's content, if one is given.
    fn ask(&self, words: &[&str], file: Option<&Path>) {
        let mut cli = Command::new("redis-cli");
        cli.args(["-p", &self.port]);
        if let Some(file) = file {
            cli.arg("-x").stdin(std::fs::File::open(file).unwrap());
        }
        let output = cli.args(words).output().unwrap();
        assert!(output.status.success(), "{}", said(&output));
    }

    fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/3/images", self.port)
    }
}

/// A link to a server, which can be cut.
struct Link {
    child: Child,
    port: String,
    control: PathBuf,
    _watchdog: Watchdog,
}

impl Link {
    fn to(fixture: &Fixture, server: &Server) -> Self {
        let control = fixture.path("link.socket");
        let mut child = Command::new(program("slowlink"))
            .args(["--to", &format!("127.0.0.1:{}", server.port), "--delay", "1ms", "--control"])
            .arg(&control)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let watchdog = Watchdog::over(child.id() as i32);
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let port = line.trim().rsplit(':').next().unwrap().to_owned();
        Link { child, port, control, _watchdog: watchdog }
    }

    fn tell(&self, word: &str) {
        let socket = UnixStream::connect(&self.control).unwrap();
        writeln!(&socket, "{word}").unwrap();
        let mut answer = String::new();
        BufReader::new(&socket).read_line(&mut answer).unwrap();
        assert_eq!(answer, "ok\n");
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_loader_of_images_reads_a_database_as_a_directory() {
    let (fixture, server) = (Fixture::new(), Server::start());
    for nth in 0..FILES {
        let name = format!("class{}/{nth}.jpg", nth % 3);
        fixture.write(&name, &content(nth, 1000 + 777 * nth as usize));
        let key = format!("images/{name}");
        server.ask(&["-n", "3", "SET", &key], Some(&fixture.source(&name)));
    }
    let (url, point) = (server.url(), fixture.path("mount"));
    let refused = fixture.run(4, &["mount", &url, point.to_str().unwrap()]);
    assert!(refused.contains("there is no hash images:index"), "{refused}");
    let order = "torch-random:seed=7,index=imagefolder";
    let options = ["--set", "source.consistency=immutable", "--ram", "64MiB", "--order", order];
    let mounted = Mounted::at(&fixture, Path::new(&url), &point, &options);
    wait_until("all files are fetched", || {
        mounted.count("/source_times/operations/read/count") >= FILES
            && mounted.count("/fetching") == 0
    });
    let (source, shown) = (fixture.source(""), mounted.path(""));
    assert_eq!(python(COMPARE, &[&source, &shown]).trim(), FILES.to_string());
    let status = mounted.status();
    assert_eq!((&status["cold"], &status["source"]), (&0.into(), &url.as_str().into()));
    mounted.umount();
    let found = fixture.run(0, &["order", "check", order, &url]);
    assert!(found.contains("60 files in the dataset, 60 samples"), "{found}");
    let found = fixture.run(0, &["doctor", "--source", &url]);
    assert!(found.contains(&url) && found.contains(" ms a request"), "{found}");
}

#[test]
fn archives_in_a_database_are_shown_as_files() {
    let (fixture, server) = (Fixture::new(), Server::start());
    for class in 0..2 {
        let directory = format!("class{class}");
        fixture.write(&format!("{directory}/a.jpg"), &content(class, 100_000));
        let archive = fixture.path("archive.tar");
        pack(&fixture.source(""), &directory, &archive);
        server.ask(&["-n", "3", "SET", &format!("images/{class}.tar")], Some(&archive));
    }
    let (url, point) = (server.url(), fixture.path("mount"));
    let options = ["--as", "files", "--set", "source.consistency=immutable"];
    let mounted = Mounted::at(&fixture, Path::new(&url), &point, &options);
    let (source, shown) = (fixture.source(""), mounted.path(""));
    assert_eq!(python(COMPARE, &[&source, &shown]).trim(), "2");
    mounted.umount();
    let one = Mounted::at(&fixture, Path::new(&format!("{url}/1.tar")), &point, &options);
    assert!(!one.path("class0").exists());
    assert_eq!(std::fs::read(one.path("class1/a.jpg")).unwrap(), content(1, 100_000));
    one.umount();
}

#[test]
fn a_link_that_is_dead_for_a_while_costs_readers_time_and_no_error() {
    let (fixture, server) = (Fixture::new(), Server::start());
    for nth in 0..8 {
        fixture.write(&nth.to_string(), &content(nth, 300_000));
        let key = format!("images/{nth}");
        server.ask(&["-n", "3", "SET", &key], Some(&fixture.source(nth.to_string())));
    }
    let link = Link::to(&fixture, &server);
    let (url, point) = (format!("redis://127.0.0.1:{}/3/images", link.port), fixture.path("mount"));
    let options = [
        ["--set", "source.consistency=immutable"],
        ["--set", "prefetch.enabled=false"],
        ["--set", "log.level=debug"],
    ];
    let mounted = Mounted::at(&fixture, Path::new(&url), &point, options.as_flattened());
    for (word, numbers) in [("cut", 0..4), ("stall", 4..8)] {
        link.tell(word);
        let paths: Vec<_> = numbers.clone().map(|nth| mounted.path(nth.to_string())).collect();
        let read = |path: PathBuf| thread::spawn(move || std::fs::read(path));
        let readers: Vec<_> = paths.into_iter().map(read).collect();
        wait_until("requests are under way", || mounted.count("/source_times/in_flight") == 4);
        if word == "cut" {
            wait_until("a request is made again", || {
                mounted.log().contains("the store is asked again")
            });
        }
        link.tell("go");
        for (nth, reader) in numbers.zip(readers) {
            assert!(reader.join().unwrap().unwrap() == content(nth, 300_000), "{word}: {nth}");
        }
    }
    mounted.umount();
}

#[test]
fn a_server_that_asks_for_a_password_gets_it_from_a_file() {
    let (fixture, server) = (Fixture::new(), Server::start());
    server.ask(&["-n", "3", "SET", "images/a", "1"], None);
    server.ask(&["CONFIG", "SET", "requirepass", "some-word"], None);
    let (url, point) = (server.url(), fixture.path("mount"));
    let immutable = ["--set", "source.consistency=immutable"];
    let words = [&["mount", &url, point.to_str().unwrap()], &immutable[..]].concat();
    let refused = fixture.run(4, &words);
    assert!(refused.contains("set REDIS_USERNAME and REDIS_PASSWORD"), "{refused}");
    let file = fixture.path("password");
    std::fs::write(&file, "redis_password = some-word\n").unwrap();
    let setting = format!("source.credentials={}", file.display());
    let words = [&words[..], &["--set", &setting]].concat();
    let refused = fixture.run(3, &words);
    assert!(refused.contains("may be read by others"), "{refused}");
    assert!(Command::new("chmod").arg("600").arg(&file).status().unwrap().success());
    let mounted = Mounted::by(&fixture, fixture.belady().args(&words), &point);
    assert_eq!(std::fs::read(mounted.path("a")).unwrap(), b"1");
    assert!(!mounted.log().contains("some-word"));
    mounted.umount();
}
