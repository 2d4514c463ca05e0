//! Daemons and shards of a cluster that end, or have no room.
//!
//! Goal: each reader gets the bytes of the source, and what a shard has is not lost with its daemon. Method: mounts over one
//! slow filesystem, whose shards are real servers. Nothing is fetched ahead.

use std::fs;

use nix::sys::signal::Signal;
use redis::cmd;

use crate::fixture::wait_until;
use crate::programs::{signal, wait_for_end};
use crate::sharing::{Cluster, FILES, NEVER_CHANGES, SIZE, check, values_of};

fn cluster(count: usize) -> Cluster {
    Cluster::with(count, |_| NEVER_CHANGES.map(str::to_owned).to_vec())
}

/// Kills the daemon of a node. Its shard stays.
fn kill_daemon(cluster: &Cluster, node: usize) {
    let pid = cluster.nodes[node].mounted.pid;
    signal(pid, Signal::SIGKILL);
    wait_for_end(pid);
}

#[test]
fn a_lease_ends_if_its_holder_is_killed() {
    let mut cluster = cluster(2);
    let leases = |cluster: &Cluster| -> usize {
        let short = |node| values_of(cluster, node).iter().filter(|value| value.1 < SIZE).count();
        (0..2).map(short).sum()
    };
    cluster.hold(Some("d/0007"));
    let path = cluster.nodes[0].mounted.path("d/0007");
    let reader = std::thread::spawn(move || fs::read(path));
    wait_until("the source is asked", || {
        cluster.nodes[0].mounted.count("/source_times/in_flight") > 0
    });
    kill_daemon(&cluster, 0);
    assert!(reader.join().unwrap().is_err(), "its daemon is gone");
    cluster.hold(None);
    check(&cluster.nodes[1].mounted, 7, 7);
    wait_until("the lease is over", || leases(&cluster) == 0);
    cluster.mount_again(0);
    cluster.await_epoch_without_source();
    cluster.umount();
}

#[test]
fn an_adopted_shard_has_what_it_had() {
    let mut cluster = cluster(2);
    cluster.read(0);
    cluster.await_epoch_without_source();
    let (server, before) = (cluster.server(0), cluster.source_bytes());
    kill_daemon(&cluster, 0);
    cluster.mount_again(0);
    assert_eq!(cluster.server(0), server);
    for node in &cluster.nodes {
        (0..FILES).for_each(|number| check(&node.mounted, number, number));
    }
    cluster.assert_source_gave(before);
    cluster.umount();
}

#[test]
fn a_shard_without_room_costs_no_reader_anything() {
    let cluster = cluster(2);
    let set_room = |node: usize, bytes: &str| {
        let mut shard = cluster.connect_as_owner(node);
        cmd("CONFIG").arg("SET").arg("maxmemory").arg(bytes).query::<()>(&mut shard).unwrap();
    };
    let room: Vec<(String, String)> = (0..2)
        .map(|node| {
            let mut shard = cluster.connect_as_owner(node);
            cmd("CONFIG").arg("GET").arg("maxmemory").query(&mut shard).unwrap()
        })
        .collect();
    // Each write is refused, and so is each lease.
    (0..2).for_each(|node| set_room(node, "1"));
    for turn in 0..2 {
        cluster.read(turn);
        cluster.evict();
    }
    assert_eq!((0..2).map(|node| values_of(&cluster, node).len()).sum::<usize>(), 0);
    room.iter().enumerate().for_each(|(node, (_, bytes))| set_room(node, bytes));
    cluster.await_epoch_without_source();
    cluster.umount();
}
