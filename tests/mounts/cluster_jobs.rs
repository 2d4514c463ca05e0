//! Nodes of a cluster that know who reads which sample next.
//!
//! Goal: if one job reads, a rank finds its samples on its own node after the first epoch, and the source is not read. A
//! reader that no order tells of, a shard that is killed, and orders that end do no harm. If several jobs read more than
//! shards hold, these hold no more than they may. Method: mounts over one slow filesystem, each told the orders of ranks. The
//! test reads what the orders say, and empties page caches. Nothing is fetched ahead.

use belady::order::samplers::Distributed;
use nix::sys::signal::Signal;

use crate::fixture::{content, wait_until};
use crate::loader::EPOCHS_MAX;
use crate::programs::{Program, signal};
use crate::sharing::{ALL, Cluster, FILES, NEVER_CHANGES, check, keys_and_lengths};

const RANKS: u32 = 3;

/// Samples of an epoch that may be elsewhere than where they should be.
const FEW: u64 = 6;

/// A job with a rank on each node of a cluster.
struct Job(Cluster);

impl Job {
    fn new() -> Self {
        let options = |rank: usize| {
            let order = format!("torch-distributed:seed=5,world={RANKS},rank={rank}");
            let options = [&NEVER_CHANGES[..], &["--order", &order]].concat();
            options.into_iter().map(str::to_owned).collect()
        };
        let job = Job(Cluster::with(RANKS as usize, options));
        job.await_moves(0);
        job
    }

    /// Waits until all nodes know who reads which sample from an epoch on.
    fn await_moves(&self, epoch: u64) {
        wait_until("all know who reads next", || {
            let status = self.0.nodes.iter().map(|node| node.mounted.status());
            status.into_iter().all(|status| status["cluster"]["moves_in"] == epoch)
        });
    }

    /// The samples of a rank in an epoch.
    fn samples(epoch: u32, rank: u32) -> Vec<u32> {
        let sampler = Distributed { seed: 5, world: RANKS, rank, ..Distributed::default() };
        sampler.epoch(FILES as u32, epoch)
    }

    /// The ranks read an epoch in step.
    fn read(&self, epoch: u32) {
        let parts: Vec<Vec<u32>> = (0..RANKS).map(|rank| Self::samples(epoch, rank)).collect();
        for nth in 0..parts[0].len() {
            for (node, part) in self.0.nodes.iter().zip(&parts) {
                check(&node.mounted, part[nth].into(), part[nth].into());
            }
        }
        self.0.evict();
    }

    /// Reads an epoch, and waits until its samples are where they are read next. Returns how many were found on other
    /// nodes than their readers'.
    fn read_and_await(&self, epoch: u32) -> u64 {
        let counts = || ["found", "given"].map(|name| self.0.traffic(name));
        let [found, given] = counts();
        let moving = (0..RANKS).map(|rank| {
            let next = Self::samples(epoch + 1, rank);
            let stay = Self::samples(epoch, rank).into_iter().filter(|it| next.contains(it));
            FILES / u64::from(RANKS) - stay.count() as u64
        });
        let moving: u64 = moving.sum();
        self.read(epoch);
        // A sample that is still in a page cache is not fetched, and stays.
        let may_stay = || FEW + self.0.late();
        wait_until("samples move", || self.0.traffic("given") + may_stay() >= given + moving);
        counts()[0] - found
    }
}

#[test]
fn samples_move_to_who_reads_them_next() {
    let job = Job::new();
    job.read_and_await(0);
    job.0.assert_source_gave(ALL);
    let mut elsewhere = 0;
    for epoch in 1..5 {
        elsewhere += job.read_and_await(epoch);
        job.await_moves(u64::from(epoch) + 1);
    }
    job.0.assert_source_gave(ALL);
    let few = 4 * FEW + job.0.late();
    assert!(elsewhere <= few, "{elsewhere} of {} samples were elsewhere", 4 * FILES);
    assert!(job.0.traffic("moved") >= FILES, "{}", job.0.traffic("moved"));
    // Readers of whom no order tells find all samples, too, and take none away.
    for node in &job.0.nodes {
        (0..FILES).for_each(|number| check(&node.mounted, number, number));
    }
    job.0.assert_source_gave(ALL);
    job.0.umount();
}

#[test]
fn a_shard_that_is_killed_takes_only_its_samples_along() {
    let job = Job::new();
    job.read_and_await(0);
    job.read_and_await(1);
    signal(job.0.server(1), Signal::SIGKILL);
    for epoch in 2..6 {
        job.read(epoch);
    }
    job.0.umount();
}

#[test]
fn samples_have_homes_again_if_a_job_ends() {
    let job = Job::new();
    job.read_and_await(0);
    job.read_and_await(1);
    for node in &job.0.nodes {
        let point = node.mounted.point.to_str().unwrap();
        node.fixture.run(0, &["order", "withdraw", point]);
    }
    wait_until("samples stay", || {
        let status = job.0.nodes.iter().map(|node| node.mounted.status());
        status.into_iter().all(|status| status["cluster"]["moves_in"].is_null())
    });
    for epoch in 2..4 {
        job.read(epoch);
    }
    job.0.assert_source_gave(ALL);
    job.0.umount();
}

/// Reads whole epochs of a rank through torch, one for each line of its input.
const RANK: &str = r#"
import os, sys
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

top, rank, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])

class Files:
    names = sorted(os.listdir(top))

    def __len__(self):
        return len(self.names)

    def __getitem__(self, number):
        with open(os.path.join(top, self.names[number]), "rb") as file:
            return len(file.read())

sampler = DistributedSampler(Files(), num_replicas=2, rank=rank, seed=seed)
loader = DataLoader(Files(), batch_size=16, sampler=sampler, num_workers=1)
print("ready", flush=True)
for epoch, _ in enumerate(sys.stdin):
    sampler.set_epoch(epoch)
    print(epoch, sum(len(lengths) for lengths in loader), flush=True)
"#;

#[test]
fn samples_move_if_the_orders_of_all_ranks_have_been_found_out() {
    let options = |_| {
        // Nothing is found out if nothing may be fetched ahead.
        let learn = ["prefetch.enabled=true", "order.learn=no-crack", "order.learn-nice=0"];
        let learn = learn.iter().flat_map(|set| ["--set", *set]);
        NEVER_CHANGES.into_iter().chain(learn).map(str::to_owned).collect()
    };
    let cluster = Cluster::over((2000, 200), 2, options);
    let mut ranks: Vec<Program> = (0..2)
        .zip(&cluster.nodes)
        .map(|(rank, node): (u32, _)| {
            let top = node.mounted.path("d");
            let words = [top.to_str().unwrap(), &rank.to_string(), "3"];
            let mut program = Program::python(RANK, &words);
            assert_eq!(program.line(), "ready");
            program
        })
        .collect();
    let mut epochs = 0;
    let mut read = || {
        ranks.iter_mut().for_each(|rank| rank.tell(""));
        ranks.iter_mut().for_each(|rank| assert_eq!(rank.line(), format!("{epochs} 1000")));
        epochs += 1;
        assert!(epochs < EPOCHS_MAX, "not found out: {}", cluster.nodes[0].mounted.status());
    };
    let are_known = || {
        let status = cluster.nodes.iter().map(|node| node.mounted.status());
        status.into_iter().all(|status| !status["cluster"]["moves_in"].is_null())
    };
    wait_until("all know who reads next", || {
        read();
        are_known()
    });
    let moved = cluster.traffic("moved");
    wait_until("samples move", || {
        cluster.evict();
        read();
        cluster.traffic("moved") > moved
    });
    ranks.into_iter().for_each(|rank| drop(rank.finish()));
    cluster.umount();
}

/// The order of one rank is told to its node. The other node is told nothing, and tries no seed that is not popular.
#[test]
fn an_order_that_one_node_knows_is_found_out_at_another_one() {
    let options = |rank: usize| {
        let learn = ["prefetch.enabled=true", "order.learn=no-crack", "order.learn-nice=0"];
        let learn = learn.iter().flat_map(|set| ["--set", *set]);
        let told = ["--order", "torch-distributed:seed=987654321,world=2,rank=0"];
        let told = told.into_iter().filter(|_| rank == 0);
        NEVER_CHANGES.into_iter().chain(learn).chain(told).map(str::to_owned).collect()
    };
    let cluster = Cluster::over((2000, 200), 2, options);
    let top = cluster.nodes[1].mounted.path("d");
    let mut rank = Program::python(RANK, &[top.to_str().unwrap(), "1", "987654321"]);
    assert_eq!(rank.line(), "ready");
    let mut epochs = 0;
    wait_until("the order is found out", || {
        rank.tell("");
        assert_eq!(rank.line(), format!("{epochs} 1000"));
        epochs += 1;
        let loaders = cluster.nodes[1].mounted.status()["loaders"].to_string();
        loaders.contains("seed=987654321")
    });
    drop(rank.finish());
    cluster.umount();
}

/// Two jobs read 60 MB, and two shards hold half of that.
#[test]
fn shards_keep_what_several_jobs_read_soonest() {
    const MANY: u32 = 300;
    const LARGE: usize = 200_000;
    let options = |rank: usize| {
        let order = |seed: u32| format!("torch-distributed:seed={seed},world=2,rank={rank}");
        let orders =
            ["--order".to_owned(), order(0), "--stream".to_owned(), format!("b={}", order(1))];
        NEVER_CHANGES.iter().map(ToString::to_string).chain(orders).collect()
    };
    let cluster = Cluster::over((MANY.into(), LARGE), 2, options);
    let epochs = |seed: u64, rank: u32| -> Vec<u32> {
        let sampler = Distributed { seed, world: 2, rank, ..Distributed::default() };
        (0..4).flat_map(|epoch| sampler.epoch(MANY, epoch)).collect()
    };
    let orders = [0, 1].map(|rank| [0, 1].map(|seed| epochs(seed, rank)));
    // The second job is half an epoch behind the first.
    let behind = MANY as usize / 4;
    let (mut reads, mut before) = (0, 0);
    for nth in 0..orders[0][0].len() {
        if nth == MANY as usize {
            (reads, before) = (0, cluster.source_bytes());
        }
        for (node, [first, second]) in cluster.nodes.iter().zip(&orders) {
            let second = nth.checked_sub(behind).map(|nth| second[nth]);
            for sample in [Some(first[nth]), second].into_iter().flatten() {
                let bytes = std::fs::read(node.mounted.path(format!("d/{sample:04}"))).unwrap();
                assert!(bytes == content(sample.into(), LARGE), "{sample} has other bytes");
                reads += 1;
            }
        }
        if nth % 5 == 0 {
            cluster.evict();
        }
    }
    let missed = (cluster.source_bytes() - before) / LARGE as u64;
    let missed = missed.saturating_sub(cluster.late());
    assert!(missed * 10 < reads * 9, "{missed} of {reads} reads needed the source");
    // A shard that has taken too much is trimmed within seconds.
    wait_until("shards hold no more than they may", || {
        (0..2).all(|node| {
            let held = keys_and_lengths(&cluster, node);
            held.iter().map(|(_, length)| length).sum::<usize>() < 17 << 20
        })
    });
    assert!(cluster.traffic("given") > 0);
    cluster.umount();
}
