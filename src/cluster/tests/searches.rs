//! Searches of many nodes in virtual time, while members are slow, lose messages, die, or know other members.
//!
//! Goal: each search ends with the bytes of its version, however members behave. Without faults each sample leaves the
//! source once. If samples move to who reads them next, each reader finds them on its own node. Method: each node reads
//! samples, one after the other. Messages take a time that is drawn, or are lost. A shard refuses what it has no room for.
//! Some shards have disks, which take what shards cannot hold, and may lose it. All draws follow from a seed.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, HashMap};
use std::time::Duration;

use super::*;

const SAMPLES: u32 = 60;
const BYTES: u64 = 1000;

/// A question is given up after this time. A lease lasts, and a reader of a leased sample waits, for others.
const ANSWER_MS: u64 = 1000;
const LEASE_MS: u64 = 200;
const PATIENCE_MS: u64 = 400;

/// No search takes longer: four members do not answer, and a lease is waited for.
const LONGEST_MS: u64 = 4 * ANSWER_MS + PATIENCE_MS + 20 * ANSWER_MS;

#[derive(Clone, Copy, Debug)]
struct Faults {
    /// One in so many messages is lost; 0: none.
    lost: u64,
    /// The longest time of a message and of a read from the source.
    message_ms: u64,
    source_ms: u64,
    /// Whether members die, nodes see other members, and disks lose samples.
    dying: bool,
    differing: bool,
    losing: bool,
}

/// Nothing goes wrong.
const NONE: Faults =
    Faults { lost: 0, message_ms: 3, source_ms: 20, dying: false, differing: false, losing: false };

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Happens {
    /// A node takes up its next read.
    Read(usize),
    /// A member gets a question, or one that was lost is given up.
    Asked {
        node: usize,
        question: Question,
        is_lost: bool,
    },
    /// The daemon of a member is asked for a sample that its disk has.
    Loads {
        member: u64,
        sample: u32,
        version: u64,
    },
    /// A node has bytes from the source.
    Brought(usize),
    /// A member gets a sample.
    Given {
        member: u64,
        sample: u32,
        version: u64,
        left: Option<u64>,
    },
    /// A sample leaves a member.
    Removed {
        member: u64,
        sample: u32,
        version: u64,
    },
    Dies(u64),
}

enum Value {
    Sample(u64),
    LeasedUntil(u64),
    OnDisk,
}

/// A shard: by sample and version.
#[derive(Default)]
struct Shard {
    values: HashMap<(u32, u64), Value>,
    room: u64,
    disk: BTreeSet<(u32, u64)>,
    disk_room: u64,
    is_dead: bool,
}

impl Shard {
    fn used(&self) -> u64 {
        let samples = self.values.values().filter(|value| matches!(value, Value::Sample(_)));
        samples.count() as u64 * BYTES
    }

    /// Copies samples to the disk, and has those leave that the disk has, as long as there is little room.
    fn drain(&mut self) {
        let held = self.values.iter().filter(|(_, value)| matches!(value, Value::Sample(_)));
        let mut held: Vec<(u32, u64)> = held.map(|(key, _)| *key).collect();
        held.sort_unstable();
        for key in held {
            let has_room = (self.disk.len() as u64 + 1) * BYTES <= self.disk_room;
            if !self.disk.contains(&key) && has_room {
                self.disk.insert(key);
            }
            if self.disk.contains(&key) && self.used() > self.room / 4 * 3 {
                self.values.insert(key, Value::OnDisk);
            }
        }
    }
}

struct Reader {
    homes: Homes,
    /// The reads that are left in this epoch: samples and versions. The last one is next.
    left: Vec<(u32, u64)>,
    /// The later epochs, the next one last.
    later: Vec<(Homes, Vec<(u32, u64)>)>,
    search: Option<Search>,
    began: u64,
}

struct World {
    random: u64,
    faults: Faults,
    now: u64,
    /// When each happens, and its number.
    events: BinaryHeap<Reverse<(u64, u64)>>,
    happens: HashMap<u64, Happens>,
    number: u64,
    nodes: Vec<Reader>,
    shards: HashMap<u64, Shard>,
    source_reads: HashMap<(u32, u64), u64>,
    /// Reads that have ended, by node, and whether nodes wait for each other.
    ended: Vec<usize>,
    in_step: bool,
    /// Reads that found their samples on their own nodes, and on others, by epoch.
    found: BTreeMap<u32, (u64, u64)>,
}

impl World {
    fn new(seed: u64, count: usize, faults: Faults) -> Self {
        let hashes: Vec<u64> = (0..SAMPLES).map(|nth| mix(u64::from(nth) + 1)).collect();
        let bytes = vec![BYTES as u32; SAMPLES as usize];
        let samples = Samples { hashes: &hashes, bytes: &bytes };
        let mut world = World {
            random: mix(seed),
            faults,
            now: 0,
            events: BinaryHeap::new(),
            happens: HashMap::new(),
            number: 0,
            nodes: Vec::new(),
            shards: HashMap::new(),
            source_reads: HashMap::new(),
            ended: vec![0; count],
            in_step: false,
            found: BTreeMap::new(),
        };
        // Some clusters hold less than the data, others more than twice as much.
        let capacity = BYTES * u64::from(SAMPLES) * (1 + world.below(30)) / 10 / count as u64;
        let id = |node: usize| mix(node as u64 + 9);
        let member = |node: usize| Member {
            id: id(node),
            capacity,
            disk: 0,
            seed: 0,
            group: node as u32 % 2,
        };
        for node in 0..count {
            let room = capacity + capacity / SPARE;
            let shard = Shard { room, ..Shard::default() };
            world.shards.insert(id(node), shard);
        }
        for node in 0..count {
            let known =
                |other: &usize| *other == node || !faults.differing || other % 3 != node % 3;
            let view = |all: &mut dyn Iterator<Item = usize>| View::new(all.map(member).collect());
            let earlier = view(&mut (0..count).filter(|other| *other == node || other % 2 == 0));
            let earlier = Homes::new(id(node), &earlier, samples);
            let homes = Homes::new(id(node), &view(&mut (0..count).filter(known)), samples);
            let homes = homes.after(&earlier, true);
            let mut left: Vec<(u32, u64)> = (0..SAMPLES).map(|sample| (sample, 0)).collect();
            // The catalogs of some nodes have another version of some samples.
            let version = |sample: u32| {
                u64::from(faults.differing && (sample + node as u32).is_multiple_of(5))
            };
            left.iter_mut().for_each(|(sample, of)| *of = version(*sample));
            left.sort_by_key(|(sample, _)| mix(u64::from(*sample) ^ world.random ^ node as u64));
            let reader = Reader { homes, left, later: Vec::new(), search: None, began: 0 };
            world.nodes.push(reader);
            world.after(0, Happens::Read(node));
        }
        if faults.dying {
            for node in 0..count / 2 {
                let at = world.below(40 * faults.source_ms.max(1));
                world.after(at, Happens::Dies(id(node)));
            }
        }
        world
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.random = mix(self.random.wrapping_add(0x9e37_79b9_7f4a_7c15));
        self.random % bound.max(1)
    }

    fn after(&mut self, ms: u64, event: Happens) {
        self.number += 1;
        self.events.push(Reverse((self.now + ms, self.number)));
        self.happens.insert(self.number, event);
    }

    fn is_lost(&mut self) -> bool {
        let lost = self.faults.lost;
        lost > 0 && self.below(lost) == 0
    }

    fn run(&mut self) {
        while let Some(Reverse((at, number))) = self.events.pop() {
            self.now = at;
            match self.happens.remove(&number).unwrap() {
                Happens::Read(node) => self.read(node),
                Happens::Asked { node, question, is_lost } => self.asked(node, question, is_lost),
                Happens::Loads { member, sample, version } => self.load(member, (sample, version)),
                Happens::Brought(node) => self.brought(node),
                Happens::Given { member, sample, version, left } => {
                    self.given(member, (sample, version), left);
                }
                Happens::Removed { member, sample, version } => {
                    self.shards.get_mut(&member).unwrap().values.remove(&(sample, version));
                }
                Happens::Dies(member) => {
                    let shard = self.shards.get_mut(&member).unwrap();
                    (shard.is_dead, shard.values) = (true, HashMap::new());
                    shard.disk.clear();
                }
            }
            for shard in self.shards.values() {
                assert!(shard.used() <= shard.room, "{} of {}", shard.used(), shard.room);
                assert!(shard.disk.len() as u64 * BYTES <= shard.disk_room);
            }
        }
        let left = |node: &Reader| node.left.is_empty() && node.later.is_empty();
        assert!(self.nodes.iter().all(left), "searches have not ended");
    }

    fn read(&mut self, node: usize) {
        let now = self.now;
        let reader = &mut self.nodes[node];
        if reader.left.is_empty() {
            let Some((homes, left)) = reader.later.pop() else { return };
            (reader.homes, reader.left) = (homes, left);
        }
        let Some(&(sample, _)) = reader.left.last() else {
            return self.after(0, Happens::Read(node));
        };
        let slowest = self.ended.iter().min().copied().unwrap_or_default();
        if self.in_step && self.ended[node] > slowest {
            return self.after(1, Happens::Read(node));
        }
        reader.began = now;
        let moves = reader.homes.moves();
        let this = moves.and_then(|moves| moves.moving().next());
        let epoch = this.filter(|(_, homes)| homes.is_read_here(sample)).map(|(epoch, _)| epoch);
        let holders = reader.homes.holders(sample, epoch);
        let search = |holders| Search::new(holders, Duration::from_millis(PATIENCE_MS));
        reader.search = Some(holders).filter(|holders| !holders.is_empty()).map(search);
        let step = reader.search.as_mut().map_or(Step::AskSource, Search::begin);
        self.step(node, step);
    }

    fn step(&mut self, node: usize, step: Step) {
        match step {
            Step::AskMember(question) => {
                let Question { member, load, after, .. } = question;
                if load && !self.is_lost() {
                    let (sample, version) = *self.nodes[node].left.last().unwrap();
                    let takes = self.below(self.faults.message_ms);
                    self.after(takes, Happens::Loads { member, sample, version });
                }
                let is_lost = self.is_lost();
                let takes = if is_lost { ANSWER_MS } else { self.below(self.faults.message_ms) };
                let event = Happens::Asked { node, question, is_lost };
                self.after(after.as_millis() as u64 + takes, event);
            }
            Step::AskSource => {
                let takes = 1 + self.below(self.faults.source_ms);
                let read = *self.nodes[node].left.last().unwrap();
                *self.source_reads.entry(read).or_default() += 1;
                self.after(takes, Happens::Brought(node));
            }
        }
    }

    /// The disk of a member may have a sample, and its shard may have room for that.
    fn load(&mut self, member: u64, (sample, version): (u32, u64)) {
        let is_lost = self.faults.losing && self.below(4) == 0;
        let shard = self.shards.get_mut(&member).unwrap();
        let key = (sample, version);
        if is_lost {
            shard.disk.remove(&key);
        }
        match shard.disk.contains(&key) {
            true if shard.used() + BYTES <= shard.room => {
                shard.values.insert(key, Value::Sample(version));
                shard.drain();
                // The one that asks for it finds it there.
                shard.values.insert(key, Value::Sample(version));
            }
            true => {}
            false => drop(shard.values.remove(&key)),
        }
    }

    fn asked(&mut self, node: usize, question: Question, is_lost: bool) {
        let Question { member, lease, .. } = question;
        let read = *self.nodes[node].left.last().unwrap();
        let shard = self.shards.get_mut(&member).unwrap();
        let is_full = shard.used() + BYTES > shard.room;
        let lack = match shard.values.get(&read) {
            _ if is_lost || shard.is_dead => Lack::Silent,
            Some(Value::Sample(version)) => {
                assert_eq!(*version, read.1, "bytes of another version");
                return self.found(node, member);
            }
            Some(Value::LeasedUntil(until)) if *until > self.now => Lack::Leased,
            Some(Value::OnDisk) => Lack::OnDisk,
            _ if lease && is_full => Lack::Silent,
            _ => {
                if lease {
                    let until = self.now + LEASE_MS;
                    shard.values.insert(read, Value::LeasedUntil(until));
                }
                Lack::Missing
            }
        };
        let search = self.nodes[node].search.as_mut().unwrap();
        let step = search.lacks(lack);
        self.step(node, step);
    }

    fn brought(&mut self, node: usize) {
        let (sample, version) = *self.nodes[node].left.last().unwrap();
        let lacking = self.nodes[node].search.as_ref().map_or(Vec::new(), |s| s.lacking().to_vec());
        assert!(lacking.len() <= 2);
        self.give(&lacking, (sample, version), None);
        self.end(node);
    }

    fn give(&mut self, members: &[u64], (sample, version): (u32, u64), left: Option<u64>) {
        for &member in members {
            if !self.is_lost() {
                let takes = self.below(self.faults.message_ms);
                self.after(takes, Happens::Given { member, sample, version, left });
            }
        }
    }

    /// The member that was asked last has the sample.
    fn found(&mut self, node: usize, member: u64) {
        let reader = &mut self.nodes[node];
        let (sample, version) = *reader.left.last().unwrap();
        let epoch = reader.homes.moves().map_or(0, Moves::first);
        let is_here = reader.homes.own() == member;
        let search = reader.search.as_mut().unwrap();
        let (left, lacking) = (search.found(), search.lacking().to_vec());
        let counts = self.found.entry(epoch).or_default();
        *(if is_here { &mut counts.0 } else { &mut counts.1 }) += 1;
        self.give(&lacking, (sample, version), left);
        self.end(node);
    }

    fn given(&mut self, member: u64, (sample, version): (u32, u64), left: Option<u64>) {
        let shard = self.shards.get_mut(&member).unwrap();
        let is_there = matches!(shard.values.get(&(sample, version)), Some(Value::Sample(_)));
        if shard.is_dead || !is_there && shard.used() + BYTES > shard.room {
            return;
        }
        shard.values.insert((sample, version), Value::Sample(version));
        shard.drain();
        if let Some(member) = left.filter(|_| !self.is_lost()) {
            let takes = self.below(self.faults.message_ms);
            self.after(takes, Happens::Removed { member, sample, version });
        }
    }

    fn end(&mut self, node: usize) {
        let took = self.now - self.nodes[node].began;
        assert!(took <= LONGEST_MS, "a search took {took} ms");
        self.nodes[node].left.pop();
        self.nodes[node].search = None;
        self.ended[node] += 1;
        self.after(0, Happens::Read(node));
    }
}

/// Samples in the order of an epoch, which ranks take in turn.
fn order(epoch: u32, seed: u64) -> Vec<u32> {
    let mut order: Vec<u32> = (0..SAMPLES).collect();
    order.sort_by_key(|sample| mix(u64::from(*sample) << 20 ^ u64::from(epoch) ^ seed));
    order
}

/// A cluster that holds all samples, or `share` per cent of them. Each is read by one node in each epoch, and moves to its
/// next reader. Before that, samples have homes by their hashes for an epoch.
fn moving(seed: u64, count: usize, faults: Faults, share: u64, epochs: u32) -> World {
    let mut world = World::new(seed, count, faults);
    let hashes: Vec<u64> = (0..SAMPLES).map(|nth| mix(u64::from(nth) + 1)).collect();
    let bytes = vec![BYTES as u32; SAMPLES as usize];
    let samples = Samples { hashes: &hashes, bytes: &bytes };
    // Small shards are seldom filled evenly.
    let capacity = 3 * BYTES + BYTES * u64::from(SAMPLES) * share / 100 / count as u64;
    world.shards.values_mut().for_each(|shard| shard.room = capacity + 8 * BYTES);
    let id = |node: usize| mix(node as u64 + 9);
    let member = |node: usize| Member { id: id(node), capacity, disk: 0, seed: 0, group: 0 };
    let view = View::new((0..count).map(member).collect());
    let number = |node: usize| view.numbers().find(|it| view.member(*it).id == id(node));
    for node in 0..count {
        let reads = |epoch: u32| {
            let own = order(epoch, seed).into_iter().skip(node).step_by(count);
            let mut reads: Vec<_> = own.map(|sample| (sample, 0)).collect();
            reads.reverse();
            reads
        };
        let fixed = Homes::new(id(node), &view, samples);
        let mut turns = Vec::new();
        let mut before = fixed.clone();
        for epoch in 1..epochs {
            let moves = Moves::from(epoch, before.moves(), |epoch| {
                let mut readers = vec![None; SAMPLES as usize];
                for (nth, sample) in order(epoch, seed).into_iter().enumerate() {
                    readers[sample as usize] = number(nth % count);
                }
                let reader = |sample: u32| readers[sample as usize];
                EpochHomes::new(id(node), &view, samples, reader)
            });
            let is_first = before.moves().is_none();
            before = Homes::moving(id(node), &view, moves).after(&before, is_first);
            turns.push((before.clone(), reads(epoch)));
        }
        turns.reverse();
        let reader = &mut world.nodes[node];
        (reader.homes, reader.left, reader.later) = (fixed, reads(0), turns);
    }
    world
}

#[test]
fn readers_find_samples_that_move_on_their_own_nodes() {
    for seed in 0..200 {
        let faults = Faults { message_ms: 2, ..NONE };
        let count = 2 + (seed % 5) as usize;
        let mut world = moving(seed, count, faults, 100, 6);
        world.in_step = true;
        world.run();
        let reads: u64 = world.source_reads.values().sum();
        // A sample that is on its way to its next reader may be missed.
        assert!(reads <= u64::from(SAMPLES) * 11 / 10, "seed {seed}: {reads} reads of the source");
        let later: Vec<_> = world.found.range(3..).map(|(_, found)| *found).collect();
        let (here, others) = later.iter().fold((0, 0), |sum, it| (sum.0 + it.0, sum.1 + it.1));
        assert!(here * 10 >= (here + others) * 9, "seed {seed}: {here} here, {others} elsewhere");
    }
}

/// Faults that are drawn, of nodes that know the same members.
fn drawn(draw: impl Fn(u64, u64) -> u64) -> Faults {
    Faults {
        lost: [0, 3, 10, 100][draw(0, 4) as usize],
        message_ms: [1, 5, 300][draw(1, 3) as usize],
        source_ms: [1, 20, 500][draw(2, 3) as usize],
        dying: draw(3, 2) == 0,
        differing: false,
        losing: draw(7, 2) == 0,
    }
}

#[test]
fn samples_that_move_are_never_wrong_whatever_members_do() {
    for seed in 0..1000 {
        let draw = |nth: u64, bound: u64| mix(seed * 8 + nth) % bound;
        let nodes = 3 + draw(5, 6) as usize;
        moving(seed, nodes, drawn(draw), 20 + draw(6, 120), 5).run();
    }
}

#[test]
fn each_search_ends_with_the_bytes_of_its_version() {
    for seed in 0..1000 {
        let draw = |nth: u64, bound: u64| mix(seed * 8 + nth) % bound;
        let faults = Faults { differing: draw(4, 2) == 0, ..drawn(draw) };
        let nodes = 3 + draw(5, if seed % 50 == 0 { 62 } else { 6 }) as usize;
        World::new(seed, nodes, faults).run();
    }
}

/// A cluster whose shards hold `share` per cent of all samples, and its disks `on_disk` per cent. All nodes read all samples
/// three times. Every third node has no disk.
fn with_disks(seed: u64, count: usize, faults: Faults, share: u64, on_disk: u64) -> World {
    let mut world = World::new(seed, count, faults);
    let hashes: Vec<u64> = (0..SAMPLES).map(|nth| mix(u64::from(nth) + 1)).collect();
    let bytes = vec![BYTES as u32; SAMPLES as usize];
    let samples = Samples { hashes: &hashes, bytes: &bytes };
    let all = BYTES * u64::from(SAMPLES);
    let disks = (0..count).filter(|node| node % 3 != 2).count() as u64;
    let (capacity, disk) = (all * share / 100 / count as u64, all * on_disk / 100 / disks);
    let id = |node: usize| mix(node as u64 + 9);
    let member = |node: usize| {
        let disk = if node % 3 == 2 { 0 } else { disk };
        Member { id: id(node), capacity, disk, seed: 0, group: 0 }
    };
    let view = View::new((0..count).map(member).collect());
    let (view, _) = view.for_bytes(all.into());
    for node in 0..count {
        let shard = world.shards.get_mut(&id(node)).unwrap();
        // There is room for samples on their way.
        (shard.room, shard.disk_room) = (capacity + 4 * BYTES, member(node).disk);
        let homes = Homes::on_disks(id(node), &view, samples);
        let reader = &mut world.nodes[node];
        let left = std::mem::take(&mut reader.left);
        let turns = vec![(homes.clone(), left.clone()); 2];
        (reader.homes, reader.left, reader.later) = (homes, left, turns);
    }
    world
}

#[test]
fn what_shards_cannot_hold_is_read_from_the_source_once_and_then_from_disks() {
    for seed in 0..200 {
        let faults = Faults { message_ms: 3, ..NONE };
        let mut world = with_disks(seed, 2 + (seed % 6) as usize, faults, 40, 120);
        world.run();
        let reads: u64 = world.source_reads.values().sum();
        let (all, few) = (u64::from(SAMPLES), u64::from(SAMPLES) / 6);
        assert!((all..=all + few).contains(&reads), "seed {seed}: {reads} reads of the source");
        assert!(world.shards.values().any(|shard| !shard.disk.is_empty()));
    }
}

#[test]
fn samples_on_disks_are_never_wrong_whatever_members_do() {
    for seed in 0..1000 {
        let draw = |nth: u64, bound: u64| mix(seed * 8 + nth) % bound;
        let nodes = 2 + draw(5, 6) as usize;
        with_disks(seed, nodes, drawn(draw), 10 + draw(6, 100), 10 + draw(4, 120)).run();
    }
}

/// All nodes read all samples, in different orders.
#[test]
fn without_faults_a_sample_that_has_a_home_leaves_the_source_once() {
    for seed in 0..200 {
        let faults = Faults { message_ms: 3, ..NONE };
        let mut world = World::new(seed, 3 + (seed % 6) as usize, faults);
        let homes: HashSet<u32> = (0..SAMPLES)
            .filter(|sample| !world.nodes[0].homes.holders(*sample, None).is_empty())
            .collect();
        world.run();
        let nodes = world.nodes.len() as u64;
        for ((sample, _), reads) in &world.source_reads {
            let is_held = homes.contains(sample);
            assert!(*reads <= if is_held { 2 } else { nodes }, "{sample}: {reads} reads");
        }
        let held: u64 = world
            .source_reads
            .iter()
            .filter(|((sample, _), _)| homes.contains(sample))
            .map(|(_, reads)| *reads)
            .sum();
        assert!(held <= homes.len() as u64 + 2, "{held} reads of {} samples", homes.len());
    }
}
