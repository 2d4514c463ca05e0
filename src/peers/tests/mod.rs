//! A client and servers that answer what real ones seldom do.

#[path = "../../../tests/free_ports/mod.rs"]
mod free_ports;
mod wants;

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use super::client::{ANSWER, Client, Reach, Reached, Terms};
use super::connection::{Endpoint, Login};
use super::values::{self, LEASE, ON_DISK, Seal};
use super::wants::List;
use super::{Answer, Ask, Give, Key, Keys, Membership};
use crate::cluster::{Lack, Member, View};
use crate::disk::Buffer;

/// Only a broken program takes as long.
const LIMIT: Duration = Duration::from_secs(180);

/// Addresses of this machine. The port of each is free, and the next one.
pub(super) fn free_addresses(count: usize) -> Vec<SocketAddr> {
    let ports = free_ports::free_ports(count).into_iter();
    ports.map(|port| SocketAddr::from(([127, 0, 0, 1], port))).collect()
}

const OWN: u64 = 1;
const OTHER: u64 = 2;
const BLOCK: &[u8] = b"the bytes of a block";

/// What a server does with a request.
#[derive(Clone)]
enum Does {
    Says(Vec<u8>),
    /// It says this, and closes the connection.
    Closes(Vec<u8>),
    IsSilent,
}

/// A server that lets everybody in, and then does one of these with each request. Returns its address.
fn server(script: Vec<Does>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        let mut script = script.into_iter();
        let mut kept = Vec::new();
        for stream in listener.incoming() {
            let stream = stream.unwrap();
            kept.push(stream.try_clone().unwrap());
            if serve(stream, &mut script).is_none() {
                return;
            }
        }
    });
    address
}

/// Serves a connection until its end. `None` if nothing is left to do.
fn serve(mut stream: TcpStream, script: &mut impl Iterator<Item = Does>) -> Option<()> {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    while let Some(words) = request(&mut reader) {
        if ![&b"SET"[..], b"GET", b"RPUSH"].contains(&&words[0][..]) {
            stream.write_all(b"+OK\r\n").unwrap();
            continue;
        }
        match script.next()? {
            Does::Says(answer) => stream.write_all(&answer).unwrap(),
            Does::Closes(answer) => {
                stream.write_all(&answer).unwrap();
                stream.shutdown(std::net::Shutdown::Both).unwrap();
                return Some(());
            }
            Does::IsSilent => {}
        }
    }
    Some(())
}

/// The words of a request; `None` at the end of the connection.
fn request(reader: &mut impl BufRead) -> Option<Vec<Vec<u8>>> {
    let mut number = |mark: char| -> Option<usize> {
        let mut line = String::new();
        reader.read_line(&mut line).ok().filter(|bytes| *bytes > 0)?;
        line.trim_end().strip_prefix(mark)?.parse().ok()
    };
    let count = number('*')?;
    let mut words = Vec::new();
    for _ in 0..count {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let length: usize = line.trim_end().strip_prefix('$')?.parse().ok()?;
        let mut word = vec![0; length + 2];
        reader.read_exact(&mut word).ok()?;
        word.truncate(length);
        words.push(word);
    }
    Some(words)
}

fn bulk(value: &[u8]) -> Does {
    Does::Says([format!("${}\r\n", value.len()).as_bytes(), value, b"\r\n"].concat())
}

/// The value of a block.
fn sealed() -> Vec<u8> {
    [BLOCK, &values::trailer(key(), BLOCK)].concat()
}

fn says(text: &str) -> Does {
    Does::Says(text.as_bytes().to_vec())
}

fn key() -> Key {
    Keys::new("secret").key(b"a/b", b"1", 0)
}

/// A client of the member at this address. A busy machine may hold its threads up for long.
fn client_of(address: SocketAddr) -> Client {
    client_with(address, LIMIT)
}

/// The same, with a limit for answers that do not come.
fn client_with(address: SocketAddr, limit: Duration) -> Client {
    let client = Client::new(limit).unwrap();
    let member = |id| Member { id, capacity: 1 << 20, disk: 0, seed: 0, group: 0 };
    let view = View::new(vec![member(OWN), member(OTHER)]);
    let membership = Membership { own: OWN, view, keys: Keys::new("secret") };
    let endpoint = Endpoint { address, login: Login::new("belady", "secret"), encryption: None };
    client.set(Reach {
        membership: Some(membership),
        members: vec![Reached { id: OTHER, endpoint, tag: "7".to_owned() }],
        terms: Terms { seal: Seal::Checksum, expires_s: None },
        nodes: [OWN, OTHER].map(|id| (id, List::of(id))).into(),
    });
    client
}

#[track_caller]
fn ask(client: &Client, lease: bool) -> Answer {
    let (send, answered) = channel();
    client.ask(Ask {
        member: OTHER,
        key: key(),
        length: Some(BLOCK.len()),
        lease: lease.then(|| Duration::from_secs(1)),
        load: false,
        after: Duration::ZERO,
        deliver: Box::new(move |answer| send.send(answer).unwrap()),
    });
    answered.recv_timeout(LIMIT).unwrap()
}

#[track_caller]
fn lacks(answer: Answer) -> Lack {
    match answer {
        Answer::Lacks(lack) => lack,
        Answer::Found(bytes) => panic!("{bytes:?} was found"),
    }
}

#[test]
fn answers_are_told_apart() {
    let sealed = sealed();
    let client = client_of(server(vec![
        bulk(&sealed),
        bulk(LEASE),
        bulk(ON_DISK),
        says("$-1\r\n"),
        bulk(&sealed),
        says("$-1\r\n"),
    ]));
    for lease in [true, false] {
        let Answer::Found(bytes) = ask(&client, lease) else { panic!("it is not found") };
        assert_eq!(bytes, BLOCK);
        if lease {
            assert_eq!(lacks(ask(&client, true)), Lack::Leased);
            assert_eq!(lacks(ask(&client, true)), Lack::OnDisk);
        }
        assert_eq!(lacks(ask(&client, lease)), Lack::Missing);
    }
    let traffic = client.traffic();
    assert_eq!((traffic.found, traffic.waited, traffic.missing), (2, 1, 2));
    assert!(traffic.p99_us > 0 && traffic.found_bytes == 2 * BLOCK.len() as u64);
}

#[test]
fn a_shard_that_is_full_still_gives_what_it_has() {
    let full = || says("-OOM command not allowed when used memory > 'maxmemory'.\r\n");
    let sealed = sealed();
    let client = client_of(server(vec![full(), bulk(&sealed), full(), says("$-1\r\n"), full()]));
    assert!(matches!(ask(&client, true), Answer::Found(_)));
    assert_eq!(lacks(ask(&client, true)), Lack::Silent, "it takes nothing");
    let bytes = Arc::new(Buffer::from(BLOCK.to_vec()));
    let (member, key, done) = (OTHER, key(), Box::new(|_| ()));
    client.give(Give { member, key, bytes, done, left: None, tells: true });
    let begun = Instant::now();
    while client.traffic().refused == 0 {
        assert!(begun.elapsed() < LIMIT);
        thread::sleep(Duration::from_millis(1));
    }
    assert!(client.left_alone().is_empty(), "it has answered");
}

#[test]
fn what_is_no_block_is_read_as_missing() {
    let sealed = sealed();
    let flipped = [&sealed[..3], &[sealed[3] ^ 4], &sealed[4..]].concat();
    let client = client_of(server(vec![bulk(&flipped), bulk(b""), bulk(&vec![7; 1 << 20])]));
    for _ in 0..3 {
        assert_eq!(lacks(ask(&client, true)), Lack::Missing);
    }
    assert_eq!(client.traffic().damaged, 3);
}

#[test]
fn answers_of_no_sense_are_none() {
    let moved = "-MOVED 7 127.0.0.1:1\r\n";
    for answer in [moved, "+OK\r\n", ":5\r\n", "*1\r\n$1\r\nL\r\n", "-CLUSTERDOWN x\r\n"] {
        // A lease that is refused is asked again without one.
        let client = client_of(server(vec![says(answer), says(answer)]));
        assert_eq!(lacks(ask(&client, true)), Lack::Silent, "{answer:?}");
    }
}

#[test]
fn a_server_that_breaks_the_protocol_is_left_alone() {
    const CONNECTIONS: usize = 8;
    let cut = Does::Closes(b"$100\r\nabc".to_vec());
    let endless = says("$1099511627776\r\nabc");
    let nonsense = says("hello\r\n");
    for does in [cut, endless, nonsense, Does::IsSilent] {
        let address = server(vec![does; CONNECTIONS]);
        let client = client_with(address, ANSWER);
        // It may have answered the first request of a connection after a question.
        for _ in 0..CONNECTIONS {
            if client.left_alone().is_empty() {
                assert_eq!(lacks(ask(&client, false)), Lack::Silent);
            }
        }
        assert_eq!(client.left_alone().len(), 1);
        // It is not asked for a while.
        assert_eq!(lacks(ask(&client, false)), Lack::Silent);
    }
}

#[test]
fn nobody_at_an_address_and_an_unknown_member_are_silent() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = free.local_addr().unwrap();
    drop(free);
    let client = client_of(address);
    assert_eq!(lacks(ask(&client, true)), Lack::Silent);
    client.clear();
    assert_eq!(lacks(ask(&client, true)), Lack::Silent);
    assert!(client.membership().is_none());
}

#[test]
fn what_is_held_lives_until_the_bytes_are_sent() {
    let client = client_with(server(vec![Does::IsSilent]), ANSWER);
    let (bytes, held) = (Arc::new(Buffer::from(BLOCK.to_vec())), Arc::new(()));
    let holds = Arc::clone(&held);
    client.give(Give {
        member: OTHER,
        key: key(),
        bytes: Arc::clone(&bytes),
        done: Box::new(move |_| drop(holds)),
        left: None,
        tells: false,
    });
    let begun = Instant::now();
    while client.traffic().refused == 0 {
        // Both go together, after the refusal is counted.
        assert!(Arc::strong_count(&held) == 2 || client.traffic().refused > 0);
        assert!(begun.elapsed() < LIMIT);
        thread::sleep(Duration::from_millis(1));
    }
}
