//! Limiters against models of sources, in virtual time.
//!
//! A model is a chain: a latency with jitter and a tail, metadata servers, slots, and a shared link. A client has
//! as many requests under way as its limit allows. A limiter is compared with the best fixed limit.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use rand::rngs::ChaCha8Rng;
use rand::{RngExt, SeedableRng};

use super::concurrency::seconds;
use super::*;

#[derive(Clone, Copy, Debug)]
struct Model {
    latency: f64,
    /// The spread of the logarithm of the latency.
    jitter: f64,
    /// The share of requests that take longer, and how many times as long.
    tail: (f64, f64),
    /// Seconds at one of eight metadata servers.
    metadata: f64,
    /// How many requests are served at once, 0 for all, and the seconds of each.
    slots: usize,
    seek: f64,
    /// Growth of these seconds for each request beyond twice the slots, times twice the slots.
    thrash: f64,
    /// Bytes a second of the link.
    link: f64,
    bytes: f64,
    /// Whether all answers have so many bytes.
    is_even: bool,
    /// So many first requests take two thirds of the latency: the client of the source has a part of it in memory.
    in_memory: usize,
    /// The mean of the seconds until a request begins that a limiter allows. A latency does not have them in it.
    pause: f64,
}

const MODEL: Model = Model {
    latency: 0.0,
    jitter: 0.05,
    tail: (0.0, 1.0),
    metadata: 0.0,
    slots: 0,
    seek: 0.0,
    thrash: 0.0,
    link: 0.0,
    bytes: 110e3,
    is_even: false,
    in_memory: 0,
    pause: 0.0,
};

/// Files of 20 KB behind 100 ms and 200 Mb/s.
const WAN: Model = Model { latency: 0.1, link: 25e6, bytes: 20e3, ..MODEL };
const WAN_TAIL: Model = Model { tail: (0.01, 10.0), ..WAN };
const FAR: Model = Model { latency: 0.15, link: 100e6, ..MODEL };
/// A parallel filesystem that others use, too.
const BUSY: Model =
    Model { latency: 0.0035, metadata: 0.0002, slots: 16, seek: 0.004, link: 200e6, ..MODEL };
const SLOW: Model = Model {
    latency: 0.013,
    metadata: 0.0004,
    slots: 8,
    seek: 0.01,
    link: 60e6,
    tail: (0.01, 20.0),
    ..MODEL
};
/// The more is asked of it at once, the slower it is.
const THRASH: Model =
    Model { latency: 0.003, slots: 16, seek: 0.005, thrash: 0.5, link: 400e6, ..MODEL };
const OBJECTS: Model =
    Model { latency: 0.03, jitter: 0.3, tail: (0.02, 6.0), link: 300e6, ..MODEL };

const MODELS: [(&str, Model); 7] = [
    ("wan", WAN),
    ("wan with a tail", WAN_TAIL),
    ("far", FAR),
    ("busy", BUSY),
    ("slow", SLOW),
    ("thrash", THRASH),
    ("objects", OBJECTS),
];

const SEEDS: u64 = 5;

/// The parts of a model that have queues.
/// The link is number 2.
const METADATA: usize = 0;
const SLOT: usize = 1;
const DONE: usize = 3;

#[derive(Clone, Copy, Debug)]
struct Request {
    client: usize,
    began_us: u64,
    bytes: f64,
}

/// A request enters or leaves a station.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Passage {
    at_us: u64,
    /// Orders passages of the same time.
    number: usize,
    request: usize,
    station: usize,
    leaves: bool,
}

/// A queue in front of servers.
#[derive(Debug, Default)]
struct Station {
    servers: usize,
    busy: usize,
    waiting: VecDeque<usize>,
}

enum Limit {
    Fixed(u32),
    Found(Box<Limiter>),
}

impl Limit {
    fn number(&self) -> u32 {
        match self {
            Limit::Fixed(number) => *number,
            Limit::Found(limiter) => limiter.limit(),
        }
    }
}

struct Client {
    limit: Limit,
    in_flight: u32,
    in_flight_max: u32,
    /// When answers came, with their bytes.
    answers: Vec<(u64, f64)>,
    /// Requests a second, if it does not ask for as many as it may.
    demand: Option<f64>,
    asked: u64,
}

impl Client {
    fn new(limit: Limit) -> Self {
        Client {
            limit,
            in_flight: 0,
            in_flight_max: 0,
            answers: Vec::new(),
            demand: None,
            asked: 0,
        }
    }

    /// Bytes a second between two times in seconds.
    fn rate(&self, from: f64, to: f64) -> f64 {
        let within = |&&(at, _): &&(u64, f64)| (from..to).contains(&seconds(at));
        self.answers.iter().filter(within).map(|&(_, bytes)| bytes).sum::<f64>() / (to - from)
    }
}

/// A job whose nodes wait for each other after each batch.
#[derive(Clone, Copy)]
struct Job {
    /// How many samples each node reads, and how many at most before the slowest one has read as many.
    samples: u64,
    ahead: u64,
    /// The seconds from the start of a node to that of the next one.
    apart: f64,
}

struct World {
    model: Model,
    random: ChaCha8Rng,
    now_us: u64,
    events: BinaryHeap<Reverse<Passage>>,
    count: usize,
    requests: Vec<Request>,
    inside: usize,
    stations: [Station; 3],
    clients: Vec<Client>,
    /// If the clients are nodes of one job.
    job: Option<Job>,
}

impl World {
    fn new(model: Model, limits: impl IntoIterator<Item = Limit>, seed: u64) -> Self {
        let servers = |servers| Station { servers, ..Station::default() };
        World {
            model,
            random: ChaCha8Rng::seed_from_u64(seed),
            now_us: 0,
            events: BinaryHeap::new(),
            count: 0,
            requests: Vec::new(),
            inside: 0,
            stations: [servers(8), servers(model.slots), servers(1)],
            clients: limits.into_iter().map(Client::new).collect(),
            job: None,
        }
    }

    fn gauss(&mut self) -> f64 {
        let (a, b): (f64, f64) = (self.random.random(), self.random.random());
        (-2.0 * (1.0 - a).ln()).sqrt() * (b * std::f64::consts::TAU).cos()
    }

    fn schedule(&mut self, after: f64, request: usize, station: usize, leaves: bool) {
        self.count += 1;
        let at_us = self.now_us + (after * 1e6) as u64;
        let number = self.count;
        self.events.push(Reverse(Passage { at_us, number, request, station, leaves }));
    }

    /// Seconds until a client begins a request that it may make. Others never pause.
    fn pause(&mut self, client: usize) -> f64 {
        match self.clients[client].limit {
            Limit::Found(_) if self.model.pause > 0.0 => {
                -(1.0 - self.random.random::<f64>()).ln() * self.model.pause
            }
            _ => 0.0,
        }
    }

    /// A client sends what it may.
    fn send(&mut self, client: usize) {
        let slowest = self.clients.iter().map(|client| client.answers.len()).min().unwrap_or(0);
        let most = self.job.map(|Job { samples, ahead, apart }| {
            let begins = self.now_us >= (apart * client as f64 * 1e6) as u64;
            if begins { samples.min(slowest as u64 + ahead) } else { 0 }
        });
        loop {
            let sender = &mut self.clients[client];
            let due = sender.demand.map(|demand| (demand * seconds(self.now_us)) as u64);
            let wants = due.is_none_or(|due| sender.asked < due + 400)
                && most.is_none_or(|most| sender.asked < most);
            if sender.in_flight >= sender.limit.number() || !wants {
                return;
            }
            sender.in_flight += 1;
            sender.asked += 1;
            sender.in_flight_max = sender.in_flight_max.max(sender.in_flight);
            let spread = (0.4 * self.gauss() - 0.08).exp();
            let bytes = self.model.bytes * if self.model.is_even { 1.0 } else { spread };
            let pause = self.pause(client);
            let began_us = self.now_us + (pause * 1e6) as u64;
            let request = Request { client, began_us, bytes };
            let mut latency = self.model.latency * (self.model.jitter * self.gauss()).exp();
            if self.requests.len() < self.model.in_memory {
                latency *= 2.0 / 3.0;
            }
            if self.random.random::<f64>() < self.model.tail.0 {
                latency *= self.model.tail.1;
            }
            self.inside += 1;
            self.requests.push(request);
            self.schedule(pause + latency, self.requests.len() - 1, METADATA, false);
        }
    }

    fn service(&self, request: usize, station: usize) -> f64 {
        let model = &self.model;
        let many =
            self.inside.saturating_sub(2 * model.slots) as f64 / (2 * model.slots.max(1)) as f64;
        match station {
            METADATA => model.metadata,
            SLOT => model.seek * (1.0 + model.thrash * many),
            _ => self.requests[request].bytes / model.link,
        }
    }

    fn serve(&mut self, request: usize, station: usize) {
        self.stations[station].busy += 1;
        let service = self.service(request, station);
        self.schedule(service, request, station, true);
    }

    fn enter(&mut self, request: usize, station: usize) {
        if station == DONE {
            return self.answer(request);
        }
        let Station { servers, busy, .. } = self.stations[station];
        match servers {
            0 => self.enter(request, station + 1),
            _ if busy < servers => self.serve(request, station),
            _ => self.stations[station].waiting.push_back(request),
        }
    }

    fn leave(&mut self, request: usize, station: usize) {
        self.stations[station].busy -= 1;
        if let Some(next) = self.stations[station].waiting.pop_front() {
            self.serve(next, station);
        }
        self.enter(request, station + 1);
    }

    fn answer(&mut self, request: usize) {
        let Request { client, began_us, bytes } = self.requests[request];
        self.inside -= 1;
        let (at_us, latency_us) = (self.now_us, self.now_us - began_us);
        let sender = &mut self.clients[client];
        let in_flight = sender.in_flight;
        sender.in_flight -= 1;
        sender.answers.push((at_us, bytes));
        if let Limit::Found(limiter) = &mut sender.limit {
            let bytes = bytes as u64;
            limiter.answered(&Answer { at_us, latency_us, bytes, in_flight, requests: 1 });
        }
        match self.job {
            Some(_) => (0..self.clients.len()).for_each(|client| self.send(client)),
            None => self.send(client),
        }
    }

    fn run(&mut self, until: f64) {
        (0..self.clients.len()).for_each(|client| self.send(client));
        let until_us = (until * 1e6) as u64;
        while let Some(&Reverse(next)) = self.events.peek()
            && next.at_us <= until_us
        {
            self.events.pop();
            self.now_us = next.at_us;
            match next.leaves {
                true => self.leave(next.request, next.station),
                false => self.enter(next.request, next.station),
            }
        }
        self.now_us = until_us;
    }
}

fn found(manners: Manners) -> Limit {
    Limit::Found(Box::new(Limiter::new(1024, manners)))
}

/// The best rate of a fixed limit.
fn best(model: Model) -> f64 {
    let limits = [1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 160, 192, 256, 384, 512];
    let rate = |limit| {
        let mut world = World::new(model, [Limit::Fixed(limit)], 1);
        world.run(6.0);
        world.clients[0].rate(2.0, 6.0)
    };
    limits.map(rate).into_iter().fold(0.0, f64::max)
}

/// Checks that a limiter reaches this share of the best fixed limit on each model in the mean of all seeds, and
/// within four seconds with each.
fn check_models(manners: Manners, share: f64) {
    let mut failed = Vec::new();
    for (name, model) in MODELS {
        let best = best(model);
        let mut sum = 0.0;
        for seed in 1..=SEEDS {
            let mut world = World::new(model, [found(manners)], seed);
            world.run(25.0);
            let client = &world.clients[0];
            let reached = client.rate(10.0, 25.0) / best;
            let soon = (0..96).map(f64::from).map(|quarter| quarter / 4.0);
            let mut soon = soon.filter(|&at| client.rate(at, at + 1.0) >= share * best);
            let within = soon.next().unwrap_or(f64::INFINITY);
            println!(
                "{name:16} {reached:.3} of the best after {within} s, {}",
                client.limit.number()
            );
            if within > 4.0 {
                failed.push((name, seed, within));
            }
            sum += reached;
        }
        let mean = sum / SEEDS as f64;
        if mean < share {
            failed.push((name, 0, mean));
        }
    }
    assert!(failed.is_empty(), "{manners:?}: {failed:?}");
}

#[test]
fn a_fair_limiter_reaches_the_best_fixed_limit() {
    check_models(Manners::Fair, 0.95);
}

#[test]
fn a_polite_limiter_reaches_nearly_the_best_fixed_limit() {
    check_models(Manners::Polite, 0.9);
}

/// The rate of eight readers of another job beside a limit, in the mean of all seeds: from the start, and later.
fn others_beside(model: Model, limit: impl Fn() -> Limit) -> [f64; 2] {
    let mut sums = [0.0; 2];
    for seed in 1..=SEEDS {
        let mut world = World::new(model, [Limit::Fixed(8), limit()], seed);
        world.run(30.0);
        let others = &world.clients[0];
        sums[0] += others.rate(1.0, 10.0);
        sums[1] += others.rate(10.0, 30.0);
    }
    sums
}

#[test]
fn a_polite_limiter_leaves_others_most_of_what_they_had() {
    for model in [BUSY, SLOW] {
        let alone = others_beside(model, || Limit::Fixed(0));
        let polite = others_beside(model, || found(Manners::Polite));
        let fixed = others_beside(model, || Limit::Fixed(32));
        let [early, later] = [0, 1].map(|at| polite[at] / alone[at]);
        let fixed = fixed[1] / alone[1];
        println!(
            "others keep {early:.2}, {later:.2} beside a polite limiter, {fixed:.2} beside 32 requests"
        );
        assert!(early >= 0.82 && later >= 0.86, "{early}, {later}");
    }
}

/// A machine that is busy begins a request a while after the answer that allows it. So fewer are under way than the
/// limit. With 1.2 ms, the model gives what a mount with a loader on two processors gave.
#[test]
fn a_polite_limiter_alone_takes_nearly_as_long_as_the_link() {
    let (model, epoch) = (Model { pause: 0.0012, ..BUSY }, 5000);
    let link_s = epoch as f64 * model.bytes / model.link;
    let taken = |seed| {
        let mut world = World::new(model, [found(Manners::Polite)], seed);
        world.run(2.0 * link_s);
        seconds(world.clients[0].answers[epoch - 1].0) / link_s
    };
    let mean = (1..=20).map(taken).sum::<f64>() / 20.0;
    println!("an epoch takes {mean:.3} of the link's time");
    assert!(mean < 1.065, "{mean}");
}

/// Nodes of one job, which wait for each other after each batch.
#[test]
fn polite_limiters_of_one_job_take_nearly_as_long_as_the_link() {
    let (model, nodes, epoch) = (Model { pause: 0.0012, ..BUSY }, 4, 5000);
    let link_s = epoch as f64 * model.bytes / model.link;
    let taken = |seed, apart: f64| {
        let mut world = World::new(model, (0..nodes).map(|_| found(Manners::Polite)), seed);
        world.job = Some(Job { samples: epoch / nodes, ahead: 150, apart });
        (1..nodes).for_each(|node| world.run(apart * node as f64));
        world.run(4.0 * link_s);
        assert!(world.clients.iter().all(|client| client.answers.len() as u64 == epoch / nodes));
        let ends = world.clients.iter().filter_map(|client| client.answers.last());
        seconds(ends.map(|&(at_us, _)| at_us).max().unwrap_or(0)) / link_s
    };
    for apart in [0.0, 0.02, 0.05, 0.1] {
        let all: Vec<f64> = (1..=20).map(|seed| taken(seed, apart)).collect();
        let mean = all.iter().sum::<f64>() / 20.0;
        let worst = all.iter().copied().fold(0.0, f64::max);
        println!("{apart} s apart an epoch takes {mean:.3} of the link's time, at most {worst:.3}");
        assert!(mean < 1.045 && worst < 1.1, "{mean}, {worst}");
    }
}

fn of_one_read(at_us: u64, latency_us: u64, in_flight: u32) -> Answer {
    Answer { at_us, latency_us, bytes: 20_000, in_flight, requests: 1 }
}

#[test]
fn the_first_answer_over_a_long_link_raises_the_limit_at_once() {
    for (latency_us, expected) in [(5_000, 8), (100_000, 32)] {
        let mut limiter = Limiter::new(512, Manners::Polite);
        limiter.answered(&of_one_read(latency_us, latency_us, 8));
        assert_eq!(limiter.limit(), expected);
    }
    let mut capped = Limiter::new(8, Manners::Polite);
    for nth in 1..=100 {
        let at_us = nth * 100_000;
        capped.answered(&of_one_read(at_us, 100_000, 8));
    }
    assert!(capped.limit() == 8 && capped.rate() > 0.0);
}

#[test]
fn the_limit_follows_the_capacity_down_and_up() {
    for manners in [Manners::Fair, Manners::Polite] {
        let mut world = World::new(WAN, [found(manners)], 1);
        world.run(15.0);
        world.model.link /= 10.0;
        world.run(25.0);
        world.model.link *= 10.0;
        world.run(40.0);
        let client = &world.clients[0];
        let (before, less) = (client.rate(10.0, 15.0), client.rate(17.0, 25.0));
        assert!(less >= 0.75 * before / 10.0, "{manners:?}: {less} of {before} a tenth");
        let again = client.rate(30.0, 31.0);
        assert!(again >= 0.9 * before, "{manners:?}: {again} of {before} five seconds later");
    }
}

/// The client of a filesystem may have the first files in memory.
#[test]
fn a_source_that_answers_more_slowly_than_before_is_not_taken_for_a_queue() {
    for manners in [Manners::Fair, Manners::Polite] {
        for (_, model) in MODELS {
            let best = best(model);
            let fast = Model { latency: 0.0002, seek: 0.0002, ..model };
            let reached = |seed| {
                let mut world = World::new(fast, [found(manners)], seed);
                let at = 3.0 + 0.37 * seed as f64;
                world.run(at);
                world.model = model;
                world.run(at + 25.0);
                world.clients[0].rate(at + 10.0, at + 25.0) / best
            };
            let reached = (1..=5).map(reached).sum::<f64>() / 5.0;
            println!("{manners:?}: {reached:.3} of the best");
            assert!(reached >= 0.9, "{manners:?}, {model:?}: {reached}");
        }
    }
}

/// A file takes three operations of 100 ms. The link is full with 375 requests.
const THREE: Model = Model { latency: 0.3, tail: (0.03, 4.0), jitter: 0.02, is_even: true, ..WAN };

#[test]
fn a_queue_that_the_ramp_has_made_soon_ends_it() {
    for manners in [Manners::Fair, Manners::Polite] {
        for seed in 1..=SEEDS {
            let mut world = World::new(THREE, [found(manners)], seed);
            world.run(6.0);
            let most = world.clients[0].in_flight_max;
            assert!((375..=825).contains(&most), "{manners:?}, {seed}: {most}");
        }
    }
}

#[test]
fn fast_first_answers_do_not_end_the_ramp() {
    for (in_memory, tail) in [(32, 0.03), (64, 0.0), (64, 0.03), (200, 0.0), (200, 0.03)] {
        let model = Model { in_memory, tail: (tail, 4.0), ..THREE };
        for seed in 1..=SEEDS {
            let mut world = World::new(model, [found(Manners::Polite)], seed);
            world.run(16.0);
            let reached = world.clients[0].rate(5.0, 16.0) / model.link;
            assert!(reached > 0.8, "{in_memory}, {tail}, {seed}: {reached:.3}");
        }
    }
}

#[test]
fn little_demand_changes_nothing() {
    let mut world = World::new(WAN, [found(Manners::Fair)], 1);
    let mut limits = Vec::new();
    world.clients[0].demand = Some(0.6 * WAN.link / WAN.bytes);
    for second in 10..30 {
        world.run(f64::from(second));
        limits.push(world.clients[0].limit.number());
    }
    limits.dedup();
    assert_eq!(limits.len(), 1, "{limits:?}");
}

#[test]
fn an_overloaded_source_is_asked_for_less() {
    let mut limiter = Limiter::new(1024, Manners::Fair);
    (0..16).for_each(|number| limiter.answered(&of_one_read(number * 1000, 1000, 16)));
    limiter.overloaded(20_000);
    let once = limiter.limit();
    assert!(once < 16, "{once}");
    limiter.overloaded(20_001);
    assert_eq!(limiter.limit(), once, "the answers to what was asked before");
}

#[test]
fn a_source_that_is_overloaded_by_a_higher_limit_is_asked_for_less_at_once() {
    let mut limiter = Limiter::new(1024, Manners::Fair);
    (0..17).for_each(|number| limiter.answered(&of_one_read(number * 1000, 1000, 16)));
    let higher = limiter.limit();
    limiter.overloaded(17_000);
    assert_eq!((higher, limiter.limit()), (16, 11));
}

#[test]
fn the_cap_is_never_exceeded() {
    for most in [1, 2, 20] {
        let mut world =
            World::new(WAN, [Limit::Found(Box::new(Limiter::new(most, Manners::Fair)))], 1);
        world.run(5.0);
        assert!(world.clients[0].in_flight_max <= most);
    }
}

/// Calls for the attributes of one name: no bytes that a link would bound.
const STAT: Model = Model { bytes: 1.0, is_even: true, link: f64::INFINITY, ..MODEL };

/// With the seconds of a run: what answers faster is simulated for less long.
const STATS: [(&str, Model, f64); 4] = [
    // Two processors.
    ("local", Model { slots: 2, seek: 0.00002, ..STAT }, 1.0),
    ("parallel", Model { latency: 0.0001, slots: 64, seek: 0.0004, ..STAT }, 1.5),
    ("far", Model { latency: 0.05, ..STAT }, 20.0),
    ("thrash", Model { latency: 0.003, slots: 16, seek: 0.005, thrash: 0.5, ..STAT }, 20.0),
];

/// The most threads of a scan.
const STATS_MAX: u32 = 128;

#[test]
fn stats_come_as_fast_as_with_the_best_fixed_number_on_each_source() {
    let mut failed = Vec::new();
    for (name, model, length) in STATS {
        let rate = |limit: Limit, from: f64| {
            let mut world = World::new(model, [limit], 1);
            world.run(length);
            world.clients[0].rate(from * length, length)
        };
        let fixed = [2, 8, 16, 32, 64, 128].map(|limit| rate(Limit::Fixed(limit), 0.5));
        let best = fixed.into_iter().fold(0.0, f64::max);
        for manners in [Manners::Fair, Manners::Polite] {
            let limiter = Limiter::of_metadata(STATS_MAX, manners);
            let reached = rate(Limit::Found(Box::new(limiter)), 0.5);
            println!("{name:10} {manners:?}: {:.3} of the best", reached / best);
            if reached < 0.9 * best {
                failed.push((name, manners, reached / best));
            }
        }
    }
    assert!(failed.is_empty(), "{failed:?}");
}

#[test]
fn a_scan_over_a_long_link_is_not_kept_waiting_for_the_limit() {
    let (_, far, _) = STATS[2];
    for manners in [Manners::Fair, Manners::Polite] {
        let limiter = Limiter::of_metadata(STATS_MAX, manners);
        let mut world = World::new(far, [Limit::Found(Box::new(limiter))], 1);
        world.run(1.0);
        assert_eq!(world.clients[0].in_flight_max, STATS_MAX, "{manners:?}");
    }
}

/// Gives a limiter calls for so many names of 1 ms each, as many at once as it allows.
fn after_calls_for(names: impl Fn(u64) -> u32) -> Limiter {
    let mut limiter = Limiter::of_metadata(STATS_MAX, Manners::Polite);
    let mut at_us = 1_000_000;
    for number in 0..20_000 {
        let (names, in_flight) = (names(number), limiter.limit());
        let latency_us = 1000 * u64::from(names);
        at_us += latency_us / u64::from(in_flight);
        let bytes = u64::from(names);
        limiter.answered(&Answer { at_us, latency_us, bytes, in_flight, requests: names });
    }
    limiter
}

#[test]
fn calls_for_few_names_and_for_many_are_one_source() {
    let few = after_calls_for(|_| 4).limit();
    let many = after_calls_for(|_| 64).limit();
    let mixed = after_calls_for(|number| if number / 1000 % 2 == 0 { 4 } else { 60 }).limit();
    // A probe down may be under way.
    let least = STATS_MAX * 3 / 4;
    assert!(few.min(many).min(mixed) >= least, "{few}, {many}, {mixed}");
}

#[test]
fn metadata_is_asked_for_as_before_until_something_is_known() {
    let start = |most, manners| Limiter::of_metadata(most, manners).limit();
    assert_eq!([start(128, Manners::Polite), start(1, Manners::Fair)], [16, 1]);
    assert_eq!(start(128, Manners::Off), 128, "a fixed number");
}

/// Fetches that have no room in the window are never under way, so the limiter could not learn that fewer are enough.
#[test]
fn no_more_is_asked_for_than_has_room() {
    let limit = |bytes: u64, room: u64| {
        let (mut meter, mut at_us) = (Meter::new(1_024, Manners::Fair).within(room), 0);
        for _ in 0..50_000 {
            // Nothing queues, so the rate grows with the limit.
            let in_flight = meter.limits().fetches;
            at_us += 50_000 / u64::from(in_flight);
            meter.answered(&Answer { at_us, latency_us: 50_000, bytes, in_flight, requests: 1 });
        }
        meter.limits().fetches
    };
    assert_eq!(limit(1 << 20, 128 << 20), 64);
    assert_eq!(limit(1 << 20, 1 << 20), 32, "some in any case");
    assert!(limit(100 << 10, 128 << 20) > 64);
    assert!(limit(1 << 20, u64::MAX) > 64);
}
