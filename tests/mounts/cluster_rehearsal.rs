//! Rehearsal buffers of several nodes as one.
//!
//! Goal: views show the samples that all nodes keep, alike on all nodes, each with its bytes, also if a node is gone. Method:
//! mounts over one slow filesystem, each with a cache directory of its own. Each reads another part of the dataset. Their
//! shards are real servers.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::cluster_existing::Servers;
use crate::fixture::{content, wait_until};
use crate::rehearsal::{rehearse, stats, wait_for_offers};
use crate::sharing::{Cluster, Node};

const FILES: u64 = 60;
const SIZE: usize = 20_000;

struct Buffers {
    cluster: Cluster,
    /// The cache directories, by node.
    _caches: Vec<tempfile::TempDir>,
}

impl Buffers {
    /// Nodes whose buffers keep these shares of the dataset, one after the other.
    fn keeping(shares: &[u64]) -> Self {
        let count = shares.len();
        Buffers::of(shares, |options| Cluster::over((FILES, SIZE), count, options))
    }

    /// The same of nodes without shards, on servers that exist.
    fn on(servers: &Servers, shares: &[u64]) -> Self {
        let start = |options: &dyn Fn(usize) -> Vec<String>| {
            let all = |node: usize| servers.options().into_iter().chain(options(node)).collect();
            Cluster::joining(
                &servers.url(),
                |it| it.write_many("d", FILES, SIZE),
                shares.len(),
                all,
            )
        };
        Buffers::of(shares, start)
    }

    /// `start` mounts nodes with such options.
    fn of(shares: &[u64], start: impl FnOnce(&dyn Fn(usize) -> Vec<String>) -> Cluster) -> Self {
        let caches: Vec<_> = shares.iter().map(|_| tempfile::tempdir().unwrap()).collect();
        let options = |node: usize| {
            let cache = caches[node].path().to_str().unwrap();
            let keys = ["size=1000", "root=d", "batch=2", "replay=1", "distance=8"];
            let sets =
                keys.iter().flat_map(|key| ["--set".to_owned(), format!("rehearsal.old.{key}")]);
            ["--cache-dir".to_owned(), cache.to_owned()].into_iter().chain(sets).collect()
        };
        let cluster = start(&options);
        let mut next = 0;
        for (node, share) in cluster.nodes.iter().zip(shares) {
            (next..next + share).for_each(|number| _ = read(&node.mounted.path("d"), number));
            next += share;
            wait_for_offers(&node.fixture, *share);
        }
        Buffers { cluster, _caches: caches }
    }

    fn nodes(&self) -> &[Node] {
        &self.cluster.nodes
    }

    fn begin_task(&self, task: &str, files: &str) {
        for node in self.nodes() {
            let (code, said) = rehearse(&node.fixture, "task", &["old", task, "-"], files);
            assert_eq!(code, Some(0), "{said}");
        }
    }
}

fn read(directory: &Path, number: u64) -> Vec<u8> {
    fs::read(directory.join(format!("{number:04}"))).unwrap()
}

/// The files of a view at a node. Their only class is `d`.
fn names(node: &Node, view: &str) -> BTreeSet<String> {
    let directory = node.mounted.path("rehearsal/old").join(view).join("d");
    let entries = fs::read_dir(directory).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

/// Reads a file of a view. Its name ends with its number.
#[track_caller]
fn check(node: &Node, view: &str, name: &str) {
    let path = node.mounted.path("rehearsal/old").join(view).join("d").join(name);
    let bytes = fs::read(&path).unwrap_or_else(|error| panic!("{path:?}: {error}"));
    let number = name[name.len() - 4..].parse().unwrap();
    assert!(bytes == content(number, SIZE), "{path:?} has other bytes");
}

fn joint(node: &Node) -> Value {
    stats(&node.fixture)["joint"].take()
}

/// How many samples of other nodes were read. A node that answers late is passed over.
fn read_elsewhere(joint: &Value) -> u64 {
    ["read", "read_from_source"].iter().filter_map(|name| joint[*name].as_u64()).sum()
}

#[test]
fn views_show_what_all_nodes_keep() {
    let buffers = Buffers::keeping(&[10, 20, 30]);
    let expected: BTreeSet<String> = (0..FILES).map(|number| format!("{number:04}")).collect();
    let mut own = [10, 20, 30].into_iter();
    for node in buffers.nodes() {
        assert_eq!(names(node, "epoch-3"), expected);
        expected.iter().for_each(|name| check(node, "epoch-3", name));
        let joint = joint(node);
        assert_eq!((&joint["nodes"], &joint["samples"]), (&3.into(), &FILES.into()), "{joint}");
        assert_eq!(read_elsewhere(&joint), FILES - own.next().unwrap(), "{joint}");
        assert!(joint["read"].as_u64().unwrap() > 0, "{joint}");
    }
    // Each sample was shown at three nodes, and counts where it is kept.
    wait_until("all replays are counted", || {
        let replays = buffers.nodes().iter().map(|node| stats(&node.fixture)["replays"].as_u64());
        replays.flatten().sum::<u64>() == 3 * FILES
    });
    // A slot of a node shows samples of all nodes.
    let slot = buffers.nodes()[0].mounted.path("rehearsal/old/slots/0000");
    let all: BTreeSet<Vec<u8>> = (0..FILES).map(|number| content(number, SIZE)).collect();
    // One of a node that answers late is passed over, and comes in a later round.
    let mut shown: BTreeSet<Vec<u8>> = BTreeSet::new();
    wait_until("a slot shows all samples", || {
        shown.extend((0..FILES).map(|_| fs::read(&slot).unwrap()));
        shown == all
    });
    // The command draws from all, too.
    let drawn = |node: &Node| rehearse(&node.fixture, "draw", &["old", "--epoch", "2"], "");
    assert_eq!(drawn(&buffers.nodes()[0]).0, Some(0));
    assert_eq!(drawn(&buffers.nodes()[0]), drawn(&buffers.nodes()[2]));

    // A node is gone: what it kept comes from the source.
    let Buffers { mut cluster, _caches } = buffers;
    names(&cluster.nodes[0], "epoch-4");
    let gone = cluster.nodes.pop().unwrap();
    gone.mounted.umount();
    let node = &cluster.nodes[0];
    expected.iter().for_each(|name| check(node, "epoch-4", name));
    assert!(joint(node)["read_from_source"].as_u64().unwrap() > 0, "{}", joint(node));
    let mut epoch = 10;
    wait_until("its samples are in no view any more", || {
        epoch += 1;
        names(node, &format!("epoch-{epoch}")).len() as u64 == FILES - 30
    });
    cluster.umount();
}

#[test]
fn a_node_that_comes_back_brings_what_it_kept() {
    let mut buffers = Buffers::keeping(&[20, 25]);
    let expected: BTreeSet<String> = (0..45).map(|number| format!("{number:04}")).collect();
    let last = buffers.cluster.leave();
    let all = |cluster: &Cluster, first: u32, wanted: &BTreeSet<String>| {
        let mut epoch = first;
        wait_until("a view of what the nodes keep", || {
            epoch += 1;
            names(&cluster.nodes[0], &format!("epoch-{epoch}")) == *wanted
        });
        wanted.iter().for_each(|name| check(&cluster.nodes[0], &format!("epoch-{epoch}"), name));
    };
    let left: BTreeSet<String> = expected.iter().take(20).cloned().collect();
    all(&buffers.cluster, 0, &left);
    buffers.cluster.come_back(last);
    all(&buffers.cluster, 1000, &expected);
    buffers.cluster.umount();
}

#[test]
fn servers_that_exist_carry_what_nodes_keep() {
    let servers = Servers::single(&["--maxmemory", "64mb"]);
    let buffers = Buffers::on(&servers, &[10, 20]);
    let expected: BTreeSet<String> = (0..30).map(|number| format!("{number:04}")).collect();
    for node in buffers.nodes() {
        assert_eq!(names(node, "epoch-3"), expected);
        expected.iter().for_each(|name| check(node, "epoch-3", name));
        let joint = joint(node);
        assert_eq!((&joint["nodes"], &joint["samples"]), (&2.into(), &30.into()), "{joint}");
        assert!(joint["read"].as_u64().unwrap() > 0, "{joint}");
    }
    buffers.cluster.umount();
}

#[test]
fn nodes_share_a_mix_and_read_its_old_samples_ahead() {
    let buffers = Buffers::keeping(&[20, 25]);
    // The last 30 files are the task. Of the old ones, 15 are drawn.
    let task: String = (30..FILES).map(|number| format!("d/{number:04}\n")).collect();
    buffers.begin_task("1", &task);
    let seen: Vec<BTreeSet<String>> =
        buffers.nodes().iter().map(|node| names(node, "mix-7")).collect();
    assert_eq!(seen[0], seen[1], "a sampler can share the files among ranks");
    let replays: Vec<&String> = seen[0].iter().filter(|name| name.starts_with("replay")).collect();
    assert_eq!((seen[0].len(), replays.len()), (45, 15));
    // The order tells when each file is read. Nobody has opened one.
    let node = &buffers.nodes()[0];
    let point = node.mounted.point.to_str().unwrap();
    let order = "sequential:root=rehearsal/old/mix-7";
    node.fixture.run(0, &["order", "set", point, order]);
    let remote = replays.iter().filter(|name| name[name.len() - 4..].parse::<u64>().unwrap() >= 20);
    let remote = remote.count();
    wait_until("old samples are there", || read_elsewhere(&joint(node)) == remote as u64);
    assert!(remote > 0, "chance puts all of them on one node");
    // As long as a new sample is not read, the epoch is not over: old samples of the next one are not read ahead.
    let last = format!("{:04}", FILES - 1);
    let rest = || seen[0].iter().filter(|name| **name != last);
    rest().for_each(|name| check(node, "mix-7", name));
    assert_eq!(read_elsewhere(&joint(node)), remote as u64, "none is read twice");
    for node in buffers.nodes() {
        seen[0].iter().for_each(|name| check(node, "mix-7", name));
    }
    // The next task has another mix under the same name.
    buffers.begin_task("2", &task[..task.len() / 2]);
    wait_until("another mix", || names(node, "mix-7") != seen[0]);
    assert_eq!(names(node, "mix-7"), names(&buffers.nodes()[1], "mix-7"));
    buffers.cluster.umount();
}
