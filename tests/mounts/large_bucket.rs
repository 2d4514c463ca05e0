//! A bucket of a million objects.
//!
//! Goal: its listing costs the store one request a page, and no object is asked for its attributes. A mount that finds the
//! catalog of an earlier one serves at once, and checks it behind its readers. Method: a server that makes its listings as
//! it answers, and counts the requests for each page.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use crate::fixture::{Fixture, wait_until};
use crate::mounted::Mounted;

const CLASSES: usize = 500;

/// The keys of a page, as many as S3 tells at once, and the pages of a class.
const PAGE: usize = 1000;
const PAGES: usize = 2;

const OBJECTS: usize = CLASSES * PAGES * PAGE;

/// How often each page was asked for, by the prefix and the number of the page, and what else was asked for.
#[derive(Default)]
struct Asked {
    pages: HashMap<(String, usize), usize>,
    others: Vec<String>,
}

/// A server of one bucket.
struct Server {
    address: String,
    asked: Arc<Mutex<Asked>>,
}

impl Server {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let asked = Arc::<Mutex<Asked>>::default();
        let counted = Arc::clone(&asked);
        thread::spawn(move || {
            for connection in listener.incoming().flatten() {
                let counted = Arc::clone(&counted);
                thread::spawn(move || converse(&connection, &counted));
            }
        });
        Server { address, asked }
    }

    fn mount(&self, fixture: &Fixture) -> Mounted {
        let (point, cache) = (fixture.path("mount"), fixture.path("cache"));
        let mut command = fixture.belady();
        command.args(["mount", "s3://images"]).args([&point]);
        command.args(["--ram", "64MiB", "--cache-dir"]).arg(&cache);
        command.args(["--set", "source.consistency=immutable"]);
        command.envs([
            ("AWS_ENDPOINT_URL", self.address.as_str()),
            ("AWS_ACCESS_KEY_ID", "key"),
            ("AWS_SECRET_ACCESS_KEY", "secret"),
            ("AWS_DEFAULT_REGION", "us-east-1"),
        ]);
        Mounted::by(fixture, &mut command, &point)
    }

    /// Checks that no page was asked for more often than this, and nothing else at all.
    #[track_caller]
    fn check_pages(&self, most: usize) {
        let asked = self.asked.lock().unwrap();
        let often: Vec<_> = asked.pages.iter().filter(|(_, times)| **times > most).collect();
        assert!(often.is_empty(), "asked for again: {often:?}");
        drop(asked);
        self.check_others();
    }

    /// Checks that nothing but pages was asked for.
    #[track_caller]
    fn check_others(&self) {
        let others = &self.asked.lock().unwrap().others;
        assert!(others.is_empty(), "{others:?}");
    }
}

/// Answers the requests of a connection.
fn converse(connection: &TcpStream, asked: &Mutex<Asked>) {
    let mut lines = BufReader::new(connection).lines().map_while(Result::ok);
    while let Some(request) = lines.next() {
        lines.by_ref().take_while(|line| !line.is_empty()).for_each(drop);
        let body = answer(&request, asked);
        let status = if body.is_some() { "200 OK" } else { "404 Not Found" };
        let body = body.unwrap_or_default();
        let mut connection = connection;
        let head = format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n", body.len());
        if connection.write_all((head + &body).as_bytes()).is_err() {
            return;
        }
    }
}

/// The page of a listing that a request asks for.
fn answer(request: &str, asked: &Mutex<Asked>) -> Option<String> {
    let query = request.split_once('?').and_then(|(_, rest)| rest.split(' ').next()).unwrap_or("");
    let query: HashMap<&str, &str> =
        query.split('&').filter_map(|word| word.split_once('=')).collect();
    if query.get("list-type") != Some(&"2") || query.get("delimiter") != Some(&"%2F") {
        asked.lock().unwrap().others.push(request.to_owned());
        return None;
    }
    let prefix = query.get("prefix").copied().unwrap_or("").replace("%2F", "/");
    let page = query.get("continuation-token").map_or(0, |token| token.parse().unwrap());
    *asked.lock().unwrap().pages.entry((prefix.clone(), page)).or_default() += 1;
    let mut list = String::from("<ListBucketResult>");
    if prefix.is_empty() {
        for class in 0..CLASSES {
            let _ = write!(list, "<CommonPrefixes><Prefix>c{class:03}/</Prefix></CommonPrefixes>");
        }
    } else {
        for nth in page * PAGE..(page + 1) * PAGE {
            let _ = write!(
                list,
                "<Contents><Key>{prefix}{nth:06}.jpg</Key><Size>110000</Size><ETag>\"e{nth}\"</ETag>\
                 <LastModified>2024-05-06T07:08:09.000Z</LastModified></Contents>"
            );
        }
        if page + 1 < PAGES {
            let next = page + 1;
            let _ = write!(
                list,
                "<IsTruncated>true</IsTruncated><NextContinuationToken>{next}</NextContinuationToken>"
            );
        }
    }
    Some(list + "</ListBucketResult>")
}

#[test]
fn a_bucket_of_a_million_objects_is_listed_once() {
    let (fixture, server, began) = (Fixture::new(), Server::start(), Instant::now());
    let mounted = server.mount(&fixture);
    wait_until("all objects are known", || mounted.status()["catalog"] == "scanned");
    // A listing is kept for a minute. It is asked for again if its names are needed later.
    let most = if began.elapsed() < Duration::from_secs(50) { 1 } else { 2 };
    assert_eq!(mounted.count("/files"), OBJECTS as u64, "{}", mounted.status());
    server.check_pages(most);
    assert_eq!(server.asked.lock().unwrap().pages.len(), 1 + CLASSES * PAGES);
    mounted.umount();
    // The check of the saved catalog lists again what has become old meanwhile, and asks for no object.
    let mounted = server.mount(&fixture);
    assert_eq!(mounted.count("/files"), OBJECTS as u64);
    wait_until("the catalog is checked", || mounted.status()["catalog"] == "checked");
    server.check_others();
    mounted.umount();
}
