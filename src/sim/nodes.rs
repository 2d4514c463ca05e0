//! Epochs of a job on the nodes of a cluster: where each read finds its sample.
//!
//! Each node has one rank. Rank `r` of `N` reads the positions `r`, `r + N` ... of an epoch, as torch's
//! `DistributedSampler` has it, and all read in step. Samples have one size. Nothing takes time.

use std::collections::VecDeque;
use std::sync::Arc;

use serde::Serialize;

use crate::cluster::{MemberNo, Plan, SPARE, Samples, View, mix};

/// Samples of a node that may wait for room at their next homes: so many, or one in so many of its room.
const WINDOW: usize = 40;
const WINDOW_SHARE: usize = 8;

/// How samples are placed on the nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Placing {
    /// Each node keeps a fixed part for itself (MinIO, of CoorDL: Mohan et al., VLDB 2021).
    Alone,
    /// The samples are dealt out to the nodes. What room is left has copies at random (the partitioned cache of CoorDL).
    Dealt,
    /// Each node keeps what it reads most often in the epochs after the first (NoPFS: Dryden et al., SC 2021).
    MostRead,
    /// [`Plan::new`].
    Homes,
    /// [`Plan::for_readers`]: a sample moves to its next reader when it is read. Besides its capacity, a node has room
    /// for a fiftieth more, and for the samples that wait.
    NextReader,
}

impl Placing {
    pub const ALL: [Placing; 5] =
        [Placing::Alone, Placing::Dealt, Placing::MostRead, Placing::Homes, Placing::NextReader];
}

/// Where reads found their samples. Each figure is a share of the reads after the first epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Shares {
    /// At the reader's own node, at another one, at the source.
    pub local: f64,
    pub remote: f64,
    pub source: f64,
    /// Of the remote ones, those in the reader's group.
    pub near: f64,
    /// Samples that moved to another node, in epochs after which it is known who reads next.
    pub moved: f64,
}

/// A job on a cluster.
pub struct Job<'a> {
    pub view: &'a View,
    pub samples: Samples<'a>,
    /// The samples of each epoch in their order: at least two epochs.
    pub epochs: &'a [Arc<[u32]>],
}

impl Job<'_> {
    /// Reads all epochs.
    pub fn run(&self, placing: Placing) -> Shares {
        match placing {
            Placing::Alone => self.alone(),
            Placing::Dealt => self.dealt(),
            Placing::MostRead => self.most_read(),
            Placing::Homes => self.homes(),
            Placing::NextReader => HandOver::new(self).run(),
        }
    }

    fn nodes(&self) -> usize {
        self.view.members().len()
    }

    fn count(&self) -> usize {
        self.samples.hashes.len()
    }

    /// How many samples a node has room for.
    fn room(&self, node: usize) -> usize {
        let bytes = self.samples.bytes.first().copied().unwrap_or(1).max(1);
        (self.view.members()[node].capacity / u64::from(bytes)) as usize
    }

    fn group(&self, node: usize) -> u32 {
        self.view.members()[node].group
    }

    /// Whether a node draws a sample, if it draws `some` of `all` at random.
    fn is_drawn(&self, node: usize, sample: u32, some: usize, all: usize) -> bool {
        let salt = self.view.members()[node].id.rotate_left(17);
        let drawn = mix(self.samples.hashes[sample as usize] ^ salt);
        u128::from(drawn) * (all as u128) < (some as u128) << 64
    }

    /// Reads all epochs but the first, while what nodes hold stays as it is.
    fn read_held(&self, find: impl Fn(usize, u32) -> Found) -> Shares {
        let mut counts = Counts::default();
        for epoch in &self.epochs[1..] {
            for (nth, sample) in epoch.iter().enumerate() {
                counts.add(find(nth % self.nodes(), *sample));
            }
        }
        counts.shares()
    }

    fn alone(&self) -> Shares {
        self.read_held(|node, sample| {
            let keeps = self.is_drawn(node, sample, self.room(node), self.count());
            if keeps { Found::Local } else { Found::Source }
        })
    }

    /// What a reader finds at the nodes that hold a sample.
    fn find_at(&self, reader: usize, holders: impl IntoIterator<Item = usize>) -> Found {
        let mut found = Found::Source;
        for holder in holders {
            found = match found {
                _ if holder == reader => return Found::Local,
                Found::Near => Found::Near,
                _ if self.group(holder) == self.group(reader) => Found::Near,
                _ => Found::Far,
            };
        }
        found
    }

    /// Other nodes ask the home of a sample, and not those that have a copy of it.
    fn dealt(&self) -> Shares {
        let nodes = self.nodes();
        let mut shuffled: Vec<u32> = (0..self.count() as u32).collect();
        shuffled.sort_unstable_by_key(|sample| self.samples.hashes[*sample as usize]);
        let mut left: Vec<usize> = (0..nodes).map(|node| self.room(node)).collect();
        let mut homes = vec![None; self.count()];
        for (nth, sample) in shuffled.into_iter().enumerate() {
            let home = nth % nodes;
            if left[home] > 0 {
                left[home] -= 1;
                homes[sample as usize] = Some(home);
            }
        }
        let others = self.count() * (nodes - 1) / nodes;
        self.read_held(|node, sample| {
            let has_copy = left[node] > 0 && self.is_drawn(node, sample, left[node], others);
            self.find_at(node, homes[sample as usize].into_iter().chain(has_copy.then_some(node)))
        })
    }

    fn most_read(&self) -> Shares {
        let nodes = self.nodes();
        let (mut holders, mut held_by) = (vec![Vec::new(); self.count()], Vec::new());
        for node in 0..nodes {
            let mut times = vec![0_u32; self.count()];
            for epoch in &self.epochs[1..] {
                let read = epoch.iter().skip(node).step_by(nodes);
                read.for_each(|sample| times[*sample as usize] += 1);
            }
            let salted = |sample: u32| mix(self.samples.hashes[sample as usize] ^ node as u64);
            held_by.clear();
            held_by.extend(0..self.count() as u32);
            held_by.sort_unstable_by_key(|sample| {
                (u32::MAX - times[*sample as usize], salted(*sample))
            });
            let room = self.room(node);
            held_by.iter().take(room).for_each(|sample| holders[*sample as usize].push(node));
        }
        self.read_held(|node, sample| self.find_at(node, holders[sample as usize].iter().copied()))
    }

    fn homes(&self) -> Shares {
        let plan = Plan::new(self.view, self.samples);
        self.read_held(|node, sample| {
            let homes = plan.home(sample).into_iter().chain(plan.second_home(sample));
            self.find_at(node, homes.map(|home| usize::from(home.0)))
        })
    }
}

/// Where a read finds its sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    Local,
    /// At another node of the reader's group.
    Near,
    Far,
    Source,
}

#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    local: u64,
    near: u64,
    far: u64,
    source: u64,
    moved: u64,
    /// Reads after which samples may have moved.
    moving: u64,
}

impl Counts {
    fn add(&mut self, found: Found) {
        match found {
            Found::Local => self.local += 1,
            Found::Near => self.near += 1,
            Found::Far => self.far += 1,
            Found::Source => self.source += 1,
        }
    }

    fn shares(self) -> Shares {
        let Counts { local, near, far, source, moved, moving } = self;
        let all = (local + near + far + source).max(1) as f64;
        let share = |count: u64| count as f64 / all;
        Shares {
            local: share(local),
            remote: share(near + far),
            source: share(source),
            near: share(near),
            moved: moved as f64 / moving.max(1) as f64,
        }
    }
}

/// Where a sample is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Nowhere,
    /// It uses room there.
    At(u16),
    /// On its way from there.
    From(u16),
}

/// Samples move to their next readers.
struct HandOver<'a> {
    job: &'a Job<'a>,
    places: Vec<Place>,
    /// By node: room for samples, and samples that wait for room at their next homes.
    left: Vec<usize>,
    waiting: Vec<VecDeque<u32>>,
    /// Whether another epoch comes.
    is_moving: bool,
    counts: Counts,
}

impl<'a> HandOver<'a> {
    fn new(job: &'a Job<'a>) -> Self {
        let nodes = job.nodes();
        let room = |node| job.room(node).saturating_add(job.room(node) / SPARE as usize);
        let left = (0..nodes).map(room).collect();
        HandOver {
            job,
            places: vec![Place::Nowhere; job.count()],
            left,
            waiting: vec![VecDeque::new(); nodes],
            is_moving: true,
            counts: Counts::default(),
        }
    }

    fn run(mut self) -> Shares {
        let (nodes, mut plan) = (self.job.nodes(), None);
        for (nth, epoch) in self.job.epochs.iter().enumerate() {
            let next = self.job.epochs.get(nth + 1);
            // After the last epoch nobody reads, and nothing has to move.
            self.is_moving = next.is_some();
            plan = next.map(|next| self.plan_for(next)).or(plan);
            let Some(plan) = &plan else { break };
            for step in epoch.chunks(nodes) {
                step.iter().enumerate().for_each(|(node, sample)| self.read(node, *sample, plan));
                (0..nodes).for_each(|node| self.send(node, plan));
            }
            if nth == 0 {
                self.counts = Counts::default();
            }
        }
        self.counts.shares()
    }

    /// The plan for an epoch that comes next.
    fn plan_for(&self, next: &[u32]) -> Plan {
        let (nodes, mut readers) = (self.job.nodes(), vec![None; self.job.count()]);
        for (nth, sample) in next.iter().enumerate() {
            readers[*sample as usize] = Some(MemberNo((nth % nodes) as u16));
        }
        Plan::for_readers(self.job.view, self.job.samples, |sample| readers[sample as usize])
    }

    fn read(&mut self, node: usize, sample: u32, plan: &Plan) {
        let place = self.places[sample as usize];
        let holder = match place {
            Place::At(at) | Place::From(at) => Some(usize::from(at)),
            Place::Nowhere => None,
        };
        self.counts.add(self.job.find_at(node, holder));
        self.counts.moving += u64::from(self.is_moving);
        match place {
            Place::At(at) => self.left[usize::from(at)] += 1,
            Place::From(at) => self.waiting[usize::from(at)].retain(|waiting| *waiting != sample),
            Place::Nowhere => {}
        }
        if plan.home(sample).is_some() {
            self.places[sample as usize] = Place::From(node as u16);
            self.waiting[node].push_back(sample);
        } else {
            self.places[sample as usize] = Place::Nowhere;
        }
    }

    /// Sends the samples of a node whose next homes have room. If too many wait, the oldest one stays. If there is no room
    /// for it, it goes to the node that has most.
    fn send(&mut self, node: usize, plan: &Plan) {
        let mut waiting = std::mem::take(&mut self.waiting[node]);
        waiting.retain(|sample| match plan.home(*sample) {
            Some(home) => !self.put(node, usize::from(home.0), *sample),
            None => {
                self.places[*sample as usize] = Place::Nowhere;
                false
            }
        });
        let window = WINDOW.min(self.job.room(node) / WINDOW_SHARE);
        while waiting.len() > window {
            let oldest = waiting.pop_front();
            let most = (0..self.left.len()).max_by_key(|node| self.left[*node]);
            let Some(sample) = oldest else { break };
            let is_put = self.put(node, node, sample)
                || most.is_some_and(|most| self.put(node, most, sample));
            if !is_put {
                self.places[sample as usize] = Place::Nowhere;
            }
        }
        self.waiting[node] = waiting;
    }

    /// Puts a sample of a node at another one, if there is room.
    fn put(&mut self, from: usize, to: usize, sample: u32) -> bool {
        if self.left[to] == 0 {
            return false;
        }
        self.left[to] -= 1;
        self.places[sample as usize] = Place::At(to as u16);
        self.counts.moved += u64::from(self.is_moving && from != to);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::Member;

    /// Shares of a job whose epochs are permutations, on nodes that hold `held` of the data together, by weight.
    fn shares(placing: Placing, weights: &[u64], held: f64, epochs: u64) -> Shares {
        shares_of_groups(placing, weights, held, epochs, 1)
    }

    fn shares_of_groups(
        placing: Placing,
        weights: &[u64],
        held: f64,
        epochs: u64,
        groups: u32,
    ) -> Shares {
        let count = 512 * weights.len() as u32;
        let hashes: Vec<u64> = (0..count).map(|nth| mix(u64::from(nth) + 1)).collect();
        let bytes = vec![1_000_000; count as usize];
        let sum: u64 = weights.iter().sum();
        let capacity =
            |weight: u64| (f64::from(count) * 1e6 * held * weight as f64 / sum as f64) as u64;
        let member = |(nth, weight): (usize, &u64)| Member {
            id: mix(nth as u64 + 99),
            capacity: capacity(*weight),
            disk: 0,
            seed: 0,
            group: nth as u32 % groups,
        };
        let view = View::new(weights.iter().enumerate().map(member).collect());
        let epoch = |epoch: u64| {
            let mut order: Vec<u32> = (0..count).collect();
            order.sort_by_key(|sample| mix(hashes[*sample as usize] ^ mix(epoch)));
            order.into()
        };
        let epochs: Vec<_> = (0..epochs).map(epoch).collect();
        let samples = Samples { hashes: &hashes, bytes: &bytes };
        Job { view: &view, samples, epochs: &epochs }.run(placing)
    }

    #[track_caller]
    fn check(shares: Shares, local: f64, source: f64) {
        let is_near = |a: f64, b: f64| (a - b).abs() < 0.015;
        assert!(is_near(shares.local, local) && is_near(shares.source, source), "{shares:?}");
        assert!((shares.local + shares.remote + shares.source - 1.0).abs() < 1e-9);
        assert!(shares.near <= shares.remote);
    }

    /// The figures that theory gives: each sample is read by a random node.
    #[test]
    fn shares_are_those_of_theory() {
        for held in [0.25, 0.8, 1.0, 2.0] {
            let (covered, each) = (1_f64.min(held), held / 8.0);
            let run = |placing| shares(placing, &[1; 8], held, 4);
            check(run(Placing::Alone), each, 1.0 - each);
            check(run(Placing::Dealt), each, 1.0 - covered);
            check(run(Placing::Homes), each, 1.0 - covered);
            let next = run(Placing::NextReader);
            check(next, covered, 1.0 - covered);
            assert!((next.moved - covered * 7.0 / 8.0).abs() < 0.015, "{next:?}");
        }
    }

    #[test]
    fn what_is_read_most_often_leaves_much_to_the_source() {
        let most = shares(Placing::MostRead, &[1; 16], 1.0, 30);
        assert!(
            (0.25..0.32).contains(&most.source) && (0.13..0.19).contains(&most.local),
            "{most:?}"
        );
    }

    /// Every second copy is in the other group, so that all reads stay in theirs.
    #[test]
    fn second_homes_save_reads_of_other_groups() {
        let near = |held| {
            let found = shares_of_groups(Placing::Homes, &[1; 8], held, 4, 2);
            found.near / found.remote
        };
        let (once, twice) = (near(1.0), near(2.0));
        // At home, three other nodes of seven are in the reader's group.
        assert!((0.40..0.46).contains(&once) && twice > 0.97, "{once} {twice}");
    }

    /// A node that holds less than it reads leaves the rest to the others.
    #[test]
    fn unequal_nodes_hold_as_much_together_as_equal_ones() {
        for (weights, local) in [(&[1, 3, 1, 3, 1, 3, 1, 3][..], 0.75), (&[0, 1, 1, 1], 0.75)] {
            check(shares(Placing::NextReader, weights, 1.0, 4), local, 0.0);
            let homes = shares(Placing::Homes, weights, 1.0, 4);
            assert!(homes.source < 0.005, "{homes:?}");
            assert!(shares(Placing::Dealt, weights, 1.0, 4).source > 0.2);
        }
    }
}
