//! Nodes of a cluster whose shards cannot hold all samples, and whose disks hold the rest.
//!
//! Goal: a sample leaves the source once, though shards have no room for it. If a disk has lost a sample, the source
//! is read. A node that comes back still has the samples on its disk. Method: two mounts with cache directories over one slow filesystem. The
//! shards hold about half of the samples, and no disk holds all of them. Nothing is fetched ahead.

use std::fs;

use crate::fixture::{Fixture, content, wait_until};
use crate::sharing::{Cluster, NEVER_CHANGES, Node};

const NODES: usize = 2;
const MANY: u64 = 300;
const LARGE: usize = 200_000;
const ALL: u64 = MANY * LARGE as u64;

/// Nodes with cache directories below `caches`.
fn cluster(caches: &Fixture) -> Cluster {
    let options = |node: usize| {
        let dir = caches.path(&format!("cache{node}")).display().to_string();
        let disk = ["--cache-dir", &dir, "--set", "cache.disk=24MiB", "--set", "cache.min-free=0%"];
        NEVER_CHANGES.iter().chain(&disk).map(ToString::to_string).collect()
    };
    let cluster = Cluster::over((MANY, LARGE), NODES, options);
    await_disks(&cluster);
    cluster
}

fn await_disks(cluster: &Cluster) {
    wait_until("disks hold samples for all", || {
        cluster.nodes.iter().all(|node| node.mounted.status()["cluster"]["on_disks"] == true)
    });
}

/// A node reads all samples.
fn read(cluster: &Cluster, node: usize) {
    for number in 0..MANY {
        let path = cluster.nodes[node].mounted.path(format!("d/{number:04}"));
        let bytes = fs::read(&path).unwrap_or_else(|error| panic!("{number}: {error}"));
        assert!(bytes == content(number, LARGE), "{number} has other bytes");
    }
}

/// Waits until nodes read nearly all samples without the source. Shards alone hold less than half of them, and a busy machine
/// may ask the source because a node is slow.
fn await_epoch_from_disks(cluster: &Cluster) {
    wait_until("an epoch from shards and disks", || {
        let before = cluster.source_bytes();
        (0..NODES).for_each(|node| read(cluster, node));
        cluster.source_bytes() - before < ALL / 4
    });
}

#[test]
fn disks_hold_what_shards_cannot() {
    let caches = Fixture::new();
    let mut cluster = cluster(&caches);
    read(&cluster, 0);
    await_epoch_from_disks(&cluster);
    assert!(cluster.traffic("from_disks") > 0);
    let point = cluster.nodes[0].mounted.point.to_str().unwrap();
    let shown = cluster.nodes[0].fixture.run(0, &["cluster", "ls", point]);
    assert!(shown.contains("on disk") && shown.contains("for a sample on its disk"), "{shown}");

    // Its shard is new. Its disk has what it had.
    let stored = |node: &Node| node.mounted.count("/disk/kept");
    wait_until("disks are full", || cluster.nodes.iter().all(|node| stored(node) > 22 << 20));
    let last = cluster.leave();
    cluster.come_back(last);
    await_disks(&cluster);
    read(&cluster, 1);
    let from_disk = || cluster.nodes[1].mounted.count("/tier_bytes");
    wait_until("what is read counts", || from_disk() > ALL / 4);

    // Marks without samples: whoever finds one is told, and reads the source.
    cluster.evict();
    (0..NODES).for_each(|node| read(&cluster, node));
    await_epoch_from_disks(&cluster);
    assert_eq!(cluster.traffic("damaged"), 0);
    cluster.umount();
}
