//! Daemons that ask each other, over real shards. Each question has one answer, or none, in time.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use super::super::wants::Wanted;
use super::super::{Answer, Answering, Ask, Give, Keys, Listed, Note, Peers, Shards, Want, Wants};
use super::{LIMIT, OTHER, client_of, free_addresses, says, server};
use crate::cluster::Lack;
use crate::config::{ClusterSettings, OwnAddress};
use crate::disk::Buffer;

const TOPIC: &str = "tests";

/// Two nodes that know each other.
fn peers(top: &Path) -> Vec<Arc<Peers>> {
    let addresses = free_addresses(2);
    let list: Vec<String> = addresses.iter().map(ToString::to_string).collect();
    let start = |(nth, address)| {
        let settings = ClusterSettings {
            join: format!("hosts:{}", list.join(",")).parse().unwrap(),
            ram_bytes: 24 << 20,
            servers_bytes: None,
            login: PathBuf::new(),
            tls: None,
            expires: Duration::ZERO,
            secret: top.join("secret"),
            address: OwnAddress::Exact(address),
            group: String::new(),
            source_rate: None,
            disk: true,
            follow: true,
            server: PathBuf::new(),
        };
        let place = top.join(format!("{nth}"));
        Arc::new(Peers::start(settings, place, |_| ()).unwrap())
    };
    let peers: Vec<Arc<Peers>> = addresses.into_iter().enumerate().map(start).collect();
    await_members(&peers, 2);
    peers
}

fn await_members(peers: &[Arc<Peers>], count: usize) {
    let begun = Instant::now();
    let sees_all = |peers: &Arc<Peers>| peers.members().is_some_and(|it| it.1.len() == count);
    while !peers.iter().all(sees_all) {
        assert!(begun.elapsed() < LIMIT, "they do not find each other");
        thread::sleep(Duration::from_millis(20));
    }
}

fn id(peers: &Peers) -> u64 {
    peers.members().unwrap().0
}

fn ask(
    from: &Peers,
    to: u64,
    topic: &'static str,
    question: &str,
    patience: Duration,
) -> Receiver<Option<Vec<u8>>> {
    let (send, answered) = channel();
    from.want(Want {
        member: to,
        topic,
        question: question.to_owned(),
        patience,
        deliver: Box::new(move |answer| drop(send.send(answer))),
    });
    answered
}

fn answer(receiver: &Receiver<Option<Vec<u8>>>) -> Option<Vec<u8>> {
    receiver.recv_timeout(LIMIT).unwrap()
}

/// What is answered: so many bytes as the question says.
fn bytes(count: usize) -> Vec<u8> {
    (0..count).map(|at| (at / 7) as u8).collect()
}

#[test]
fn each_question_has_its_answer() {
    let top = tempfile::tempdir().unwrap();
    let peers = peers(top.path());
    let (one, other) = (&peers[0], &peers[1]);
    other.provide(
        TOPIC,
        Arc::new(|question: String, answering: Answering| {
            // As a provider does, it does not answer in the thread that asks.
            thread::spawn(move || match question.parse() {
                Ok(count) => answering.answer(Some(bytes(count))),
                Err(_) => answering.answer(None),
            });
        }),
    );
    let to = id(other);
    let counts = [0, 1, 5000, 1 << 20, (1 << 20) + 1, 3 << 20];
    let ask_all = || counts.map(|count| (count, ask(one, to, TOPIC, &count.to_string(), LIMIT)));
    for (count, asked) in ask_all().into_iter().chain(ask_all()) {
        assert!(answer(&asked) == Some(bytes(count)), "{count} bytes");
    }
    assert_eq!(answer(&ask(one, to, TOPIC, "nothing", LIMIT)), None);
    // Nobody provides such answers, there is no such member, and the answer is too large for the shard.
    assert_eq!(answer(&ask(one, to, "other", "1", LIMIT)), None);
    assert_eq!(answer(&ask(one, to ^ 1, TOPIC, "1", LIMIT)), None);
    assert_eq!(answer(&ask(one, to, TOPIC, &(100 << 20).to_string(), LIMIT)), None);
    assert!(answer(&ask(one, to, TOPIC, "7", LIMIT)) == Some(bytes(7)), "the shard has room again");
}

#[test]
fn who_does_not_answer_is_not_waited_for() {
    let top = tempfile::tempdir().unwrap();
    let peers = peers(top.path());
    let (one, other) = (&peers[0], &peers[1]);
    let (keep, kept) = channel();
    other.provide(TOPIC, Arc::new(move |_, answering| keep.send(answering).unwrap()));
    let to = id(other);
    let patience = Duration::from_millis(50);
    assert_eq!(answer(&ask(one, to, TOPIC, "late", patience)), None);
    kept.recv_timeout(LIMIT).unwrap().answer(Some(b"too late".to_vec()));
    // If the right to answer is dropped, the asker need not wait.
    let asked = ask(one, to, TOPIC, "dropped", LIMIT);
    drop(kept.recv_timeout(LIMIT).unwrap());
    assert_eq!(answer(&asked), None);
    // Those that wait are told when the mount ends.
    let asked = ask(one, to, TOPIC, "ended", LIMIT);
    let answering = kept.recv_timeout(LIMIT).unwrap();
    one.leave();
    assert_eq!(answer(&asked), None);
    answering.answer(Some(b"for nobody".to_vec()));
    assert_eq!(answer(&ask(one, to, TOPIC, "after the end", LIMIT)), None);
}

#[test]
fn a_server_that_refuses_questions_is_no_answer() {
    for refusal in ["-OOM command not allowed\r\n", "-NOPERM no\r\n", "hello\r\n"] {
        let (wanted, client) = (Arc::new(Wanted::new()), client_of(server(vec![says(refusal)])));
        let (send, answered) = channel();
        let deliver = Box::new(move |answer| drop(send.send(answer)));
        let question = "x".to_owned();
        wanted
            .ask(&client, Want { member: OTHER, topic: TOPIC, question, patience: LIMIT, deliver });
        assert_eq!(answered.recv_timeout(LIMIT).unwrap(), None, "{refusal}");
    }
}

#[test]
fn daemons_are_told_of_blocks_that_their_disks_may_have() {
    let top = tempfile::tempdir().unwrap();
    let peers = peers(top.path());
    let (send, notes) = channel();
    peers[1].take_notes(Box::new(move |note| send.send(note).unwrap_or_default()));
    let noted = || notes.recv_timeout(LIMIT).unwrap();
    let (member, key) = (id(&peers[1]), Keys::new("secret").key(b"a", b"1", 0));
    let bytes = Arc::new(Buffer::from(vec![7; 5000]));
    let ask = |load: bool| {
        let (send, answered) = channel();
        peers[0].ask(Ask {
            member,
            key,
            length: Some(bytes.len()),
            lease: None,
            load,
            after: Duration::ZERO,
            deliver: Box::new(move |answer| drop(send.send(answer))),
        });
        answered.recv_timeout(LIMIT).unwrap()
    };
    let give = || {
        let (bytes, done) = (Arc::clone(&bytes), Box::new(|_| ()));
        peers[0].give(Give { member, key, bytes, done, left: None, tells: true });
    };
    // A shard that has just started takes nothing.
    let begun = Instant::now();
    give();
    while Shards::status(&*peers[0]).traffic.given == 0 {
        assert!(begun.elapsed() < LIMIT);
        thread::sleep(Duration::from_millis(100));
        give();
    }
    assert_eq!(noted(), Note::Given(key));
    assert!(matches!(ask(false), Answer::Found(_)));
    let listed = || {
        let mut listed = Vec::new();
        peers[1].list(&mut |key, what| listed.push((key, what))).unwrap();
        listed
    };
    assert_eq!(listed(), [(key, Listed::Bytes(5000))]);
    let other = Keys::new("secret").key(b"b", b"1", 0);
    peers[1].mark_on_disk(&[key, other], true).unwrap();
    assert!(matches!(ask(false), Answer::Found(_)), "it was there before");
    peers[1].mark_on_disk(&[key], false).unwrap();
    assert!(listed().contains(&(key, Listed::Mark)) && listed().len() == 2);
    peers[1].forget(&[other]).unwrap();
    assert_eq!(listed(), [(key, Listed::Mark)]);
    assert!(matches!(ask(false), Answer::Lacks(Lack::OnDisk)));
    assert!(matches!(ask(true), Answer::Lacks(Lack::OnDisk)));
    while noted() != Note::Asked(key) {}
    assert_eq!(Shards::status(&*peers[0]).traffic.from_disks, 1);
    give();
    while matches!(ask(false), Answer::Lacks(_)) {
        assert!(begun.elapsed() < LIMIT);
    }
}
