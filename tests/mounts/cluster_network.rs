//! A node that the network does not reach any more.
//!
//! Goal: no reader gets an error, wherever it is, and the node is a member again when the network is back. Method: four
//! mounts in four network namespaces over one slow filesystem. A bridge in a namespace of its own joins them.

use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::fixture::{Fixture, program, said, wait_until};
use crate::mounted::{Mounted, Slowpfs};
use crate::sharing::{FILES, NEVER_CHANGES, SIZE, check};

const NODES: usize = 4;
const MEMBERS: [&str; 2] = ["here", "member"];

/// How many networks this process has made.
static MADE: AtomicUsize = AtomicUsize::new(0);

/// Namespaces that reach each other.
struct Network {
    bridge: String,
    names: Vec<String>,
}

impl Network {
    fn new(count: usize) -> Self {
        let made = MADE.fetch_add(1, Ordering::Relaxed);
        let name = |part: &str| format!("belady-{}-{made}-{part}", std::process::id());
        let names = (0..count).map(|nth| name(&nth.to_string())).collect();
        let network = Network { bridge: name("bridge"), names };
        ip(&["netns", "add", &network.bridge]);
        network.outside(&["link", "add", "bridge", "type", "bridge"]);
        network.outside(&["link", "set", "bridge", "up"]);
        for (nth, name) in network.names.iter().enumerate() {
            let link = format!("node{nth}");
            ip(&["netns", "add", name]);
            let peer = ["type", "veth", "peer", "name", "eth0", "netns", name];
            network.outside(&[&["link", "add", &link], &peer[..]].concat());
            network.outside(&["link", "set", &link, "master", "bridge", "up"]);
            ip(&["-n", name, "addr", "add", &format!("{}/24", address(nth)), "dev", "eth0"]);
            ip(&["-n", name, "link", "set", "eth0", "up"]);
            ip(&["-n", name, "link", "set", "lo", "up"]);
        }
        network
    }

    /// Runs `ip` in the namespace of the bridge.
    fn outside(&self, words: &[&str]) {
        ip(&[&["-n", &self.bridge], words].concat());
    }

    fn set_link(&self, nth: usize, state: &str) {
        self.outside(&["link", "set", &format!("node{nth}"), state]);
    }

    /// Mounts a node in its namespace.
    fn mount(&self, nth: usize, fixture: &Fixture, source: &Path, options: &[&str]) -> Mounted {
        let point = fixture.path("mount");
        let run = fixture.path("run");
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/run/netns/{}", self.names[nth])).arg(program("belady"));
        command.env("XDG_RUNTIME_DIR", &run).env("XDG_STATE_HOME", run.join("state"));
        Mounted::by(fixture, command.arg("mount").args([source, &point]).args(options), &point)
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for name in self.names.iter().chain([&self.bridge]) {
            let _ = Command::new("ip").args(["netns", "del", name]).output();
        }
    }
}

/// An address of the range for benchmarks (RFC 2544).
fn address(nth: usize) -> String {
    format!("198.18.78.{}", nth + 1)
}

fn ip(words: &[&str]) {
    let output = Command::new("ip").args(words).output();
    let output = output.expect("ip is missing: scripts/test installs it");
    assert!(output.status.success(), "ip {words:?}: {}", said(&output));
}

/// How many members a node sees, if it knows where samples are by its view.
fn members(mounted: &Mounted) -> usize {
    let cluster = mounted.status()["cluster"].take();
    let members = cluster["members"].as_array().into_iter().flatten();
    let is_there = |member: &&serde_json::Value| MEMBERS.iter().any(|it| member["state"] == *it);
    let there = members.filter(is_there).count();
    let is_placed = cluster["placed"].is_string() && cluster["placed"] == cluster["view"];
    if is_placed { there } else { 0 }
}

#[test]
fn a_node_that_is_cut_off_reads_on_and_comes_back() {
    let network = Network::new(NODES);
    let fixture = Fixture::new();
    fixture.write_many("d", FILES, SIZE);
    let slow = Slowpfs::new(&fixture, &[]);
    let nodes: Vec<String> = (0..NODES).map(address).collect();
    let (join, secret) = (format!("hosts:{}", nodes.join(",")), fixture.path("secret"));
    let secret = format!("cluster.secret={}", secret.display());
    let set = ["--set", &secret, "--set", "prefetch.enabled=false", "--cluster", &join];
    let memory = ["--ram", "64MiB", "--cluster-ram", "32MiB"];
    let options = [&set[..], &memory, &NEVER_CHANGES].concat();
    let fixtures: Vec<Fixture> = (0..NODES).map(|_| Fixture::new()).collect();
    let mount = |(nth, own): (usize, &Fixture)| network.mount(nth, own, &slow.point, &options);
    let mounts: Vec<Mounted> = fixtures.iter().enumerate().map(mount).collect();
    let await_members = |mounts: &[Mounted], count: usize| {
        wait_until("all know where samples are", || mounts.iter().all(|it| members(it) == count));
    };
    let evict = || {
        for (mounted, own) in mounts.iter().zip(&fixtures) {
            own.run(0, &["warmup", mounted.point.to_str().unwrap(), "--evict"]);
        }
    };
    let read = || {
        evict();
        for mounted in &mounts {
            (0..FILES).for_each(|number| check(mounted, number, number));
        }
    };
    await_members(&mounts, NODES);
    read();

    // Nobody is told that the link is down: packets do not arrive any more.
    let last = NODES - 1;
    network.set_link(last, "down");
    read();
    await_members(&mounts[..last], last);
    read();
    network.set_link(last, "up");
    await_members(&mounts, NODES);
    wait_until("an epoch without the source", || {
        let before = slow.count("bytes");
        read();
        slow.count("bytes") == before
    });
    mounts.into_iter().for_each(Mounted::umount);
}
