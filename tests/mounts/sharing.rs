//! Nodes of a cluster that share samples.
//!
//! Goal: a sample leaves the source once, and whatever becomes of a shard, each reader gets the bytes of the source.
//! Method: mounts over one slow filesystem, which counts the bytes that it gives. Their shards are real servers. Nothing
//! is fetched ahead, so it is known who asks for which sample.

use std::fs;
use std::path::Path;
use std::process::Command;

use nix::sys::signal::Signal;
use redis::{Connection, ConnectionAddr, IntoConnectionInfo, RedisConnectionInfo, cmd};
use sha2::{Digest, Sha256};

use crate::certificates::Certificates;
use crate::doctor::working_in;
use crate::fixture::{Fixture, content, said, wait_until};
use crate::free_ports::free_ports;
use crate::mounted::{Mounted, Slowpfs};
use crate::programs::signal;

pub(crate) const FILES: u64 = 90;
pub(crate) const SIZE: usize = 20_000;
pub(crate) const ALL: u64 = FILES * SIZE as u64;

/// Writes the samples of a cluster.
pub(crate) fn write_samples(fixture: &Fixture) {
    fixture.write_many("d", FILES, SIZE);
}

/// The fields are dropped in their order: the mount before its directory.
pub(crate) struct Node {
    pub(crate) mounted: Mounted,
    pub(crate) fixture: Fixture,
    options: Vec<String>,
}

/// A cluster over one source. The nodes are dropped before what they need.
pub(crate) struct Cluster {
    pub(crate) nodes: Vec<Node>,
    /// Where the nodes' shards are; none if they have none.
    addresses: Vec<String>,
    slow: Slowpfs,
    fixture: Fixture,
}

impl Cluster {
    /// Mounts nodes, and waits until they know where samples are.
    fn new(count: usize, options: &[&str]) -> Self {
        Cluster::with(count, |_| options.iter().map(ToString::to_string).collect())
    }

    /// The same, with the options of each node.
    pub(crate) fn with(count: usize, options: impl Fn(usize) -> Vec<String>) -> Self {
        Cluster::over((FILES, SIZE), count, options)
    }

    /// The same over so many files of a size.
    pub(crate) fn over(
        (files, size): (u64, usize),
        count: usize,
        options: impl Fn(usize) -> Vec<String>,
    ) -> Self {
        Cluster::of(|fixture| fixture.write_many("d", files, size), count, options)
    }

    /// The same over what `write` writes into the source.
    pub(crate) fn of(
        write: impl Fn(&Fixture),
        count: usize,
        options: impl Fn(usize) -> Vec<String>,
    ) -> Self {
        let ports = free_ports(count);
        let addresses: Vec<String> = ports.iter().map(|port| format!("127.0.0.1:{port}")).collect();
        let join = format!("hosts:{}", addresses.join(","));
        let with_shard = |nth: usize| {
            let at = format!("cluster.address={}", addresses[nth]);
            let shard = ["--cluster-ram", "32MiB", "--set", &at].map(str::to_owned);
            shard.into_iter().chain(options(nth)).collect()
        };
        let cluster = Cluster::joining(&join, write, count, with_shard);
        Cluster { addresses, ..cluster }
    }

    /// The same with another value of `cluster.join`.
    pub(crate) fn joining(
        join: &str,
        write: impl Fn(&Fixture),
        count: usize,
        options: impl Fn(usize) -> Vec<String>,
    ) -> Self {
        let fixture = Fixture::new();
        write(&fixture);
        let slow = Slowpfs::new(&fixture, &[]);
        let secret = format!("cluster.secret={}", fixture.path("secret").display());
        let node = |nth: usize| {
            let own = Fixture::new();
            let set = ["--set", &secret, "--set", "prefetch.enabled=false"];
            let all = [&set[..], &["--ram", "64MiB", "--cluster", join]].concat();
            let all: Vec<String> = all.into_iter().map(str::to_owned).chain(options(nth)).collect();
            let words: Vec<&str> = all.iter().map(String::as_str).collect();
            let mounted = Mounted::at(&own, &slow.point, &own.path("mount"), &words);
            Node { fixture: own, options: all, mounted }
        };
        let nodes = (0..count).map(node).collect();
        let cluster = Cluster { nodes, addresses: Vec::new(), slow, fixture };
        cluster.await_homes();
        cluster
    }

    /// Unmounts the last node. Returns what it needs to come back.
    pub(crate) fn leave(&mut self) -> (Fixture, Vec<String>) {
        let Node { mounted, fixture, options } = self.nodes.pop().unwrap();
        mounted.umount();
        self.await_homes();
        (fixture, options)
    }

    pub(crate) fn come_back(&mut self, (fixture, options): (Fixture, Vec<String>)) {
        let words: Vec<&str> = options.iter().map(String::as_str).collect();
        let mounted = Mounted::at(&fixture, &self.slow.point, &fixture.path("mount"), &words);
        self.nodes.push(Node { mounted, fixture, options });
        self.await_homes();
    }

    /// Waits until all nodes have one view of all of them, and know where samples are in that view.
    fn await_homes(&self) {
        wait_until("all know where samples are", || {
            let status = self.nodes.iter().map(|node| node.mounted.status()["cluster"].take());
            let views: Vec<String> = status
                .map(|cluster| {
                    let members = cluster["members"].as_array().into_iter().flatten();
                    let there = members.filter(|member| {
                        ["here", "member"].iter().any(|state| member["state"] == *state)
                    });
                    let is_placed =
                        cluster["placed"].is_string() && cluster["placed"] == cluster["view"];
                    let (there, nodes) = (there.count(), &cluster["nodes"]["count"]);
                    let known = nodes.as_u64().map_or(there, |count| count as usize);
                    match is_placed && there > 0 && known == self.nodes.len() {
                        true => cluster["view"].to_string(),
                        false => String::new(),
                    }
                })
                .collect();
            !views[0].is_empty() && views.iter().all(|view| *view == views[0])
        });
    }

    pub(crate) fn source_bytes(&self) -> u64 {
        self.slow.count("bytes")
    }

    /// Each node reads its part: who reads which sample depends on `turn`.
    pub(crate) fn read(&self, turn: u64) {
        let count = self.nodes.len() as u64;
        for number in 0..FILES {
            let node = &self.nodes[((number + turn) % count) as usize];
            check(&node.mounted, number, number);
        }
    }

    pub(crate) fn evict(&self) {
        for node in &self.nodes {
            node.fixture.run(0, &["warmup", node.mounted.point.to_str().unwrap(), "--evict"]);
        }
    }

    /// Waits until nodes have all samples in their shards: then an epoch needs no source.
    pub(crate) fn await_epoch_without_source(&self) {
        let mut turn = 0;
        wait_until("an epoch without the source", || {
            let before = self.source_bytes();
            self.evict();
            turn += 1;
            self.read(turn);
            self.source_bytes() == before
        });
    }

    /// How often nodes were late or silent, as they may be on a busy machine. Then the source was asked as well.
    pub(crate) fn late(&self) -> u64 {
        self.traffic("passed_over") + self.traffic("silent")
    }

    /// Fails if the source has given more bytes than this, and a sample for each time that a node was late.
    #[track_caller]
    pub(crate) fn assert_source_gave(&self, bytes: u64) {
        let (late, given) = (self.late(), self.source_bytes());
        assert!(
            given >= bytes && given <= bytes + late * SIZE as u64,
            "the source gave {given} bytes and not {bytes}; nodes were late {late} times"
        );
    }

    pub(crate) fn traffic(&self, name: &str) -> u64 {
        let count = |node: &Node| node.mounted.count(&format!("/cluster/traffic/{name}"));
        self.nodes.iter().map(count).sum()
    }

    pub(crate) fn server(&self, node: usize) -> i32 {
        let servers = working_in(&self.nodes[node].fixture.path("run"));
        assert_eq!(servers.len(), 1, "{servers:?}");
        servers[0]
    }

    pub(crate) fn umount(self) {
        for Node { fixture, mounted, .. } in self.nodes {
            mounted.umount();
            assert_eq!(working_in(&fixture.path("run")), Vec::<i32>::new());
        }
    }

    /// A connection to the shard of a node, as its daemon has it.
    pub(crate) fn connect_as_owner(&self, node: usize) -> Connection {
        connect_to_own_shard(&self.nodes[node].fixture.path("run"))
    }

    /// Mounts a node again whose daemon is gone.
    pub(crate) fn mount_again(&mut self, node: usize) {
        let Node { fixture, options, mounted } = self.nodes.remove(node);
        let words: Vec<&str> = options.iter().map(String::as_str).collect();
        let again = Mounted::at(&fixture, &self.slow.point, &fixture.path("mount"), &words);
        drop(mounted);
        self.nodes.insert(node, Node { mounted: again, fixture, options });
        self.await_homes();
    }

    /// Has reads of a file wait at the source until this is called with `None`.
    pub(crate) fn hold(&self, name: Option<&str>) {
        match name {
            Some(name) => self.slow.ctl(&["fault", "hang", name, "ops=read"]),
            None => self.slow.ctl(&["fault", "clear"]),
        };
    }

    /// A connection to the shard of a node, as another member has it.
    fn connect(&self, node: usize) -> Connection {
        let secret = fs::read_to_string(self.fixture.path("secret")).unwrap();
        let address = &self.addresses[node];
        let hash = Sha256::digest(format!("{address} {}", secret.trim()).as_bytes());
        let password: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
        let settings = RedisConnectionInfo::default().set_skip_set_lib_name();
        let settings = settings.set_username("belady").set_password(&password);
        let (ip, port) = address.split_once(':').unwrap();
        let at = ConnectionAddr::Tcp(ip.to_owned(), port.parse().unwrap());
        let info = at.into_connection_info().unwrap().set_redis_settings(settings);
        redis::Client::open(info).unwrap().get_connection().unwrap()
    }
}

#[track_caller]
pub(crate) fn check(mounted: &Mounted, number: u64, seed: u64) {
    let path = mounted.path(format!("d/{number:04}"));
    let bytes = fs::read(&path).unwrap_or_else(|error| panic!("{number}: {error}"));
    assert!(bytes == content(seed, SIZE), "{number} has other bytes");
}

pub(crate) const NEVER_CHANGES: [&str; 2] = ["--set", "source.consistency=immutable"];

#[test]
fn connections_between_nodes_may_be_encrypted() {
    let files = Fixture::new();
    let certificates = Certificates::make(&files);
    let options = |_| {
        let plain = NEVER_CHANGES.iter().map(ToString::to_string);
        plain.chain(certificates.options()).collect()
    };
    let cluster = Cluster::with(3, options);
    cluster.read(0);
    cluster.assert_source_gave(ALL);
    cluster.await_epoch_without_source();
    assert!(cluster.traffic("found") > 0);
    assert_eq!(cluster.traffic("damaged"), 0);
    // Without TLS nobody is heard.
    let (_, port) = cluster.addresses[0].split_once(':').unwrap();
    let output = Command::new("redis-cli").args(["-p", port, "PING"]).output().unwrap();
    assert!(!said(&output).contains("PONG") && !said(&output).contains("NOAUTH"), "{output:?}");
    cluster.umount();
}

#[test]
fn a_sample_leaves_the_source_once() {
    let cluster = Cluster::new(3, &NEVER_CHANGES);
    cluster.read(0);
    cluster.assert_source_gave(ALL);
    wait_until("all samples are given", || cluster.traffic("given") >= FILES);
    cluster.await_epoch_without_source();
    assert!(cluster.traffic("found") > 0 && cluster.traffic("found_here") > 0);
    assert_eq!(cluster.traffic("damaged"), 0);
    let point = cluster.nodes[0].mounted.point.to_str().unwrap();
    let shown = cluster.nodes[0].fixture.run(0, &["cluster", "ls", point]);
    assert!(shown.contains("samples (") && shown.contains("at others"), "{shown}");
    let metrics = fs::read_to_string(cluster.nodes[0].mounted.path(".belady/stats")).unwrap();
    assert!(metrics.contains("belady_cluster_nodes{state=\"member\"} 3"), "{metrics}");
    cluster.umount();
}

/// Homes move to a node that comes later. It learns from the others where samples were before.
#[test]
fn a_node_that_comes_later_finds_what_others_hold() {
    let mut cluster = Cluster::new(3, &NEVER_CHANGES);
    let last = cluster.leave();
    cluster.read(0);
    wait_until("all samples are given", || cluster.traffic("given") >= FILES);
    cluster.await_epoch_without_source();
    let before = cluster.source_bytes();
    cluster.come_back(last);
    (0..FILES).for_each(|number| check(&cluster.nodes[2].mounted, number, number));
    cluster.assert_source_gave(before);
    cluster.umount();
}

#[test]
fn a_shard_that_is_killed_or_stopped_costs_no_reader_anything() {
    let cluster = Cluster::new(3, &NEVER_CHANGES);
    cluster.read(0);
    cluster.await_epoch_without_source();
    // Stopped, it answers nothing.
    let stopped = cluster.server(2);
    signal(stopped, Signal::SIGSTOP);
    cluster.evict();
    cluster.read(1);
    signal(stopped, Signal::SIGCONT);
    cluster.await_epoch_without_source();
    // Killed, it loses its samples. Another one takes its place.
    signal(cluster.server(1), Signal::SIGKILL);
    cluster.evict();
    cluster.read(2);
    cluster.await_homes();
    cluster.await_epoch_without_source();
    cluster.umount();
}

#[test]
fn what_is_wrong_in_a_shard_reaches_no_reader() {
    let cluster = Cluster::new(2, &NEVER_CHANGES);
    cluster.read(0);
    cluster.await_epoch_without_source();
    for node in 0..2 {
        let mut shard = cluster.connect(node);
        // A member may list nothing, so the owner's file says how to log in.
        let keys = keys_of(&cluster, node);
        assert!(keys.len() >= 20, "{}", keys.len());
        let mut value =
            |key: &String| -> Vec<u8> { cmd("GET").arg(key).query(&mut shard).unwrap() };
        let values: Vec<Vec<u8>> = keys.iter().map(&mut value).collect();
        for (nth, key) in keys.iter().enumerate() {
            let own = &values[nth];
            let damaged = match nth % 6 {
                0 => values[(nth + 1) % keys.len()].clone(),
                1 => [&own[..77], &[own[77] ^ 1], &own[78..]].concat(),
                2 => own[..own.len() - 1].to_vec(),
                3 => [&own[..], b"more"].concat(),
                4 => Vec::new(),
                _ => vec![0; 100_000],
            };
            cmd("SET").arg(key).arg(damaged).query::<()>(&mut shard).unwrap();
        }
    }
    cluster.evict();
    cluster.read(1);
    wait_until("damage is counted", || cluster.traffic("damaged") >= FILES / 2);
    cluster.await_epoch_without_source();
    cluster.umount();
}

/// The keys of samples in the shard of a node, as its owner sees them.
fn keys_of(cluster: &Cluster, node: usize) -> Vec<String> {
    keys_and_lengths(cluster, node).into_iter().map(|(key, _)| key).collect()
}

/// The same with the lengths of their values.
pub(crate) fn keys_and_lengths(cluster: &Cluster, node: usize) -> Vec<(String, usize)> {
    // A lease is short, and ends by itself.
    values_of(cluster, node).into_iter().filter(|(_, length)| *length > SIZE).collect()
}

/// The keys of samples and of leases in the shard of a node, with the lengths of their values.
pub(crate) fn values_of(cluster: &Cluster, node: usize) -> Vec<(String, usize)> {
    let mut connection = cluster.connect_as_owner(node);
    let keys: Vec<String> = cmd("KEYS").arg("b1:*:s:*").query(&mut connection).unwrap();
    let length = |key: String| -> (String, usize) {
        let length = cmd("STRLEN").arg(&key).query(&mut connection).unwrap();
        (key, length)
    };
    keys.into_iter().map(length).collect()
}

fn connect_to_own_shard(run: &Path) -> Connection {
    let place = find(run, "server.json").expect("the shard has an owner");
    let owner: serde_json::Value =
        serde_json::from_slice(&fs::read(place.join("server.json")).unwrap()).unwrap();
    let password = owner["password"].as_str().unwrap();
    let settings = RedisConnectionInfo::default().set_skip_set_lib_name();
    let settings = settings.set_username("owner").set_password(password);
    let socket = ConnectionAddr::Unix(place.join("server.socket"));
    let info = socket.into_connection_info().unwrap().set_redis_settings(settings);
    redis::Client::open(info).unwrap().get_connection().unwrap()
}

/// The directory below `top` that has a file of this name.
fn find(top: &Path, name: &str) -> Option<std::path::PathBuf> {
    let entries = fs::read_dir(top).ok()?.filter_map(Result::ok);
    entries.into_iter().find_map(|entry| match entry.file_name() == name {
        true => Some(top.to_path_buf()),
        false => find(&entry.path(), name),
    })
}

#[test]
fn a_file_that_changes_is_never_read_as_it_was() {
    let cluster = Cluster::new(
        2,
        &["--set", "source.consistency=revalidate", "--set", "source.revalidate=2s"],
    );
    // The bytes of a file that has just been written are not given.
    wait_until("samples are given", || {
        cluster.evict();
        cluster.read(0);
        cluster.traffic("given") >= FILES
    });
    for number in 0..FILES {
        let path = format!("d/{number:04}");
        fs::write(cluster.fixture.source(&path), content(number + 1000, SIZE)).unwrap();
    }
    for node in &cluster.nodes {
        wait_until("the new bytes are read", || {
            (0..FILES).all(|number| {
                let bytes = fs::read(node.mounted.path(format!("d/{number:04}"))).unwrap();
                let is_new = bytes == content(number + 1000, SIZE);
                assert!(is_new || bytes == content(number, SIZE), "{number} has other bytes");
                is_new
            })
        });
    }
    // From then on nobody reads the old ones.
    for _ in 0..5 {
        cluster.evict();
        for node in &cluster.nodes {
            (0..FILES).for_each(|number| check(&node.mounted, number, number + 1000));
        }
    }
    cluster.umount();
}
