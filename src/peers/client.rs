//! Asks the shards of the members for blocks, and gives them blocks.
//!
//! There is one connection to each member, which many questions share. A member that does not answer within a second is
//! left alone for a while ([`Breaker`]): it lacks every block meanwhile. Here values are
//! protected, and taken only if they are not damaged.

use std::collections::HashMap;
use std::future::Future;
use std::net::SocketAddr;
use std::num::NonZero;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};

use super::breaker::Breaker;
use super::connection::Endpoint;
use super::pipeline::{Pipeline, Reply, Request};
use super::shard::key;
use super::shards::{Answer, Ask, Give, Membership, Note};
use super::status::TrafficStatus;
use super::values::{Key, Keys, LEASE, ON_DISK, Seal};
use super::wants::{self, List, ListPlace};
use crate::cluster::Lack;
use crate::disk::Buffer;
use crate::sync::Mutex;

/// Of so many processors one is used to send questions and take answers apart, up to a number of them. A processor
/// brings about a gigabyte a second.
const PROCESSORS: usize = 4;
const THREADS_MOST: usize = 4;

/// How long an answer may take, and the connection before it.
pub(super) const ANSWER: Duration = Duration::from_secs(1);

/// Blocks that one member is given at once.
const GIVEN_AT_ONCE: usize = 8;

/// After so many seconds a list is gone whose node does not take messages any more.
const LIST_EXPIRES_S: &str = "60";

/// The longest latency that is told apart, in microseconds: no answer takes longer.
const LATENCY_US_MAX: u64 = 2_000_000;

/// Where a member is asked.
#[derive(Clone, PartialEq)]
pub(super) struct Reached {
    pub(super) id: u64,
    pub(super) endpoint: Endpoint,
    pub(super) tag: String,
}

/// How members store blocks.
#[derive(Clone)]
pub(super) struct Terms {
    pub(super) seal: Seal,
    /// After so many seconds without a read a block is gone. None: a block stays until a member removes it.
    pub(super) expires_s: Option<u64>,
}

/// What was asked and given since the start.
#[derive(Default)]
struct Traffic {
    found_here: AtomicU64,
    found_bytes_here: AtomicU64,
    found: AtomicU64,
    found_bytes: AtomicU64,
    missing: AtomicU64,
    from_disks: AtomicU64,
    waited: AtomicU64,
    silent: AtomicU64,
    passed_over: AtomicU64,
    damaged: AtomicU64,
    given: AtomicU64,
    given_bytes: AtomicU64,
    refused: AtomicU64,
    moved: AtomicU64,
}

fn add(counter: &AtomicU64, count: u64) {
    counter.fetch_add(count, Ordering::Relaxed);
}

struct Link {
    reached: Reached,
    terms: Terms,
    connection: tokio::sync::Mutex<Option<Arc<Pipeline>>>,
    breaker: Mutex<Breaker>,
    gives: Semaphore,
    limit: Duration,
}

/// All that is needed to ask the members of a cluster.
pub(super) struct Reach {
    /// `None` as long as this node has no tag.
    pub(super) membership: Option<Membership>,
    pub(super) members: Vec<Reached>,
    pub(super) terms: Terms,
    /// The nodes whose daemons can be asked, this one, too, and their lists.
    pub(super) nodes: HashMap<u64, List>,
}

/// The members that can be asked.
#[derive(Default)]
struct Known {
    membership: Option<Arc<Membership>>,
    seal: Option<Seal>,
    links: HashMap<u64, Arc<Link>>,
    nodes: HashMap<u64, List>,
}

struct Shared {
    known: Mutex<Known>,
    traffic: Traffic,
    /// `None` if there is no memory.
    latencies: Option<Mutex<Histogram<u64>>>,
}

/// The connections to all members.
pub(super) struct Client {
    /// `None` while it is dropped.
    runtime: Option<Runtime>,
    shared: Arc<Shared>,
    /// How long an answer may take.
    limit: Duration,
}

impl Drop for Client {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl Client {
    /// A client that gives each member so much time for an answer.
    ///
    /// # Errors
    /// If its threads cannot be started.
    pub(super) fn new(limit: Duration) -> std::io::Result<Self> {
        let mut builder = Builder::new_multi_thread();
        let processors = std::thread::available_parallelism().map_or(1, NonZero::get);
        let threads = (processors / PROCESSORS).clamp(1, THREADS_MOST);
        builder.worker_threads(threads).thread_name("belady-members").enable_all();
        let latencies = Histogram::new_with_bounds(1, LATENCY_US_MAX, 2).ok().map(Mutex::new);
        let shared = Shared { known: Mutex::default(), traffic: Traffic::default(), latencies };
        Ok(Client { runtime: Some(builder.build()?), shared: Arc::new(shared), limit })
    }

    /// From now on nobody is asked.
    pub(super) fn clear(&self) {
        let before = std::mem::take(&mut *self.shared.known.lock());
        // Under no lock: connections end.
        drop(before);
    }

    /// From now on these are the members. Without a membership nobody is asked.
    pub(super) fn set(&self, reach: Reach) {
        let Reach { membership, members, terms, nodes } = reach;
        let mut known = self.shared.known.lock();
        let before = std::mem::take(&mut known.links);
        let link = |reached: Reached| {
            let same = before.get(&reached.id).filter(|link| link.reached == reached).cloned();
            (reached.id, same.unwrap_or_else(|| Link::new(reached, &terms, self.limit).into()))
        };
        known.links = members.into_iter().map(link).collect();
        known.membership = membership.map(Arc::new);
        (known.seal, known.nodes) = (Some(terms.seal.clone()), nodes);
        let is_new = |link: &&Arc<Link>| !before.contains_key(&link.reached.id);
        let new: Vec<Arc<Link>> = known.links.values().filter(is_new).cloned().collect();
        drop(known);
        // Under no lock: connections end.
        drop(before);
        // The first question does not wait for a connection then.
        for link in new {
            self.spawn(async move { drop(link.request(Request::new(&[b"PING"])).await) });
        }
    }

    pub(super) fn membership(&self) -> Option<Arc<Membership>> {
        self.shared.known.lock().membership.clone()
    }

    /// How values are named and protected.
    pub(super) fn keys(&self) -> Option<(Keys, Seal)> {
        let known = self.shared.known.lock();
        let keys = known.membership.as_ref()?.keys.clone();
        known.seal.clone().map(|seal| (keys, seal))
    }

    /// The nodes whose daemons can be asked, this one, too.
    pub(super) fn nodes(&self) -> Vec<u64> {
        self.shared.known.lock().nodes.keys().copied().collect()
    }

    /// The addresses of the members that are left alone because they did not answer.
    pub(super) fn left_alone(&self) -> Vec<SocketAddr> {
        let links: Vec<_> = self.shared.known.lock().links.values().cloned().collect();
        let left = links.into_iter().filter(|link| link.breaker.lock().is_open());
        left.map(|link| link.reached.endpoint.address).collect()
    }

    fn spawn(&self, future: impl Future<Output = ()> + Send + 'static) {
        if let Some(runtime) = &self.runtime {
            runtime.spawn(future);
        }
    }

    /// The connection to a member that is to be asked.
    fn link(&self, member: u64) -> Option<Arc<Link>> {
        let link = self.shared.known.lock().links.get(&member).cloned();
        link.filter(|link| link.breaker.lock().may_ask(Instant::now()))
    }

    pub(super) fn ask(&self, ask: Ask) {
        let Some(link) = self.link(ask.member) else {
            add(&self.shared.traffic.silent, 1);
            return (ask.deliver)(Answer::Lacks(Lack::Silent));
        };
        let shared = Arc::clone(&self.shared);
        let Ask { key, length, lease, load, after, deliver, .. } = ask;
        self.spawn(async move {
            if load {
                add(&shared.traffic.from_disks, 1);
                link.send(Note::Asked(key)).await;
            }
            if !after.is_zero() {
                sleep(after).await;
            }
            let answer = link.answer((key, length), lease, &shared).await;
            shared.count(&link, &answer);
            let is_found = matches!(answer, Answer::Found(_));
            deliver(answer);
            if is_found {
                link.keep(key).await;
            }
        });
    }

    pub(super) fn give(&self, give: Give) {
        let shared = Arc::clone(&self.shared);
        let Some(link) = self.link(give.member) else {
            add(&shared.traffic.refused, 1);
            return (give.done)(false);
        };
        let left = give.left.and_then(|left| self.link(left));
        let Give { key, bytes, done, tells, .. } = give;
        self.spawn(async move {
            let stored = link.store(key, &bytes).await == Some(Reply::Done);
            match stored {
                true => {
                    add(&shared.traffic.given, 1);
                    add(&shared.traffic.given_bytes, bytes.len() as u64);
                    if tells {
                        link.send(Note::Given(key)).await;
                    }
                    if let Some(left) = left {
                        left.remove(key, &shared).await;
                    }
                }
                false => add(&shared.traffic.refused, 1),
            }
            drop(bytes);
            done(stored);
        });
    }

    /// Makes requests to the shard that has the list of a node, one after the other, until it refuses one or does not
    /// answer. Then calls `done` with whether it has done all of them. `requests` makes them for the place of
    /// the list.
    pub(super) fn send<R: Iterator<Item = Request> + Send + 'static>(
        &self,
        node: u64,
        requests: impl FnOnce(&ListPlace) -> R,
        done: impl FnOnce(bool) + Send + 'static,
    ) {
        let list = self.shared.known.lock().nodes.get(&node).cloned();
        let at = list.and_then(|list| Some((self.link(list.shard)?, list.name)));
        let (Some((link, list)), Some((keys, seal))) = (at, self.keys()) else {
            return done(false);
        };
        let place = ListPlace { tag: link.reached.tag.clone(), list, keys, seal };
        let requests = requests(&place);
        self.spawn(async move {
            for request in requests {
                if link.request(request).await != Some(Reply::Done) {
                    return done(false);
                }
            }
            done(true);
            if link.terms.expires_s.is_some() {
                // The node may be gone, and nobody else removes its list.
                let name = key(&place.tag, &place.list);
                let words = [b"EXPIRE", name.as_bytes(), LIST_EXPIRES_S.as_bytes()];
                drop(link.request(Request::new(&words)).await);
            }
        });
    }

    /// Calls `what` after a pause.
    pub(super) fn after(&self, pause: Duration, what: impl FnOnce() + Send + 'static) {
        self.spawn(async move {
            sleep(pause).await;
            what();
        });
    }

    pub(super) fn remove(&self, member: u64, key: Key) {
        let Some(link) = self.link(member) else { return };
        let shared = Arc::clone(&self.shared);
        self.spawn(async move { link.remove(key, &shared).await });
    }

    /// Counts blocks for which the source was asked as well.
    pub(super) fn note_passed_over(&self, blocks: u64) {
        add(&self.shared.traffic.passed_over, blocks);
    }

    /// The time that 99 of 100 answers did not exceed.
    pub(super) fn usual_wait(&self) -> Duration {
        let latencies = self.shared.latencies.as_ref();
        let us = latencies.map_or(0, |latencies| latencies.lock().value_at_quantile(0.99));
        Duration::from_micros(us)
    }

    pub(super) fn traffic(&self) -> TrafficStatus {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let traffic = &self.shared.traffic;
        TrafficStatus {
            found_here: count(&traffic.found_here),
            found_bytes_here: count(&traffic.found_bytes_here),
            found: count(&traffic.found),
            found_bytes: count(&traffic.found_bytes),
            missing: count(&traffic.missing),
            from_disks: count(&traffic.from_disks),
            waited: count(&traffic.waited),
            silent: count(&traffic.silent),
            passed_over: count(&traffic.passed_over),
            damaged: count(&traffic.damaged),
            given: count(&traffic.given),
            given_bytes: count(&traffic.given_bytes),
            refused: count(&traffic.refused),
            moved: count(&traffic.moved),
            p99_us: self.usual_wait().as_micros() as u64,
        }
    }
}

impl Shared {
    fn count(&self, link: &Link, answer: &Answer) {
        let known = self.known.lock().membership.clone();
        let is_own = known.is_some_and(|known| known.own == link.reached.id);
        let traffic = &self.traffic;
        match answer {
            Answer::Found(bytes) if is_own => {
                add(&traffic.found_here, 1);
                add(&traffic.found_bytes_here, bytes.len() as u64);
            }
            Answer::Found(bytes) => {
                add(&traffic.found, 1);
                add(&traffic.found_bytes, bytes.len() as u64);
            }
            Answer::Lacks(Lack::Missing) => add(&traffic.missing, 1),
            Answer::Lacks(Lack::Leased) => add(&traffic.waited, 1),
            Answer::Lacks(Lack::Silent) => add(&traffic.silent, 1),
            Answer::Lacks(Lack::OnDisk) => {}
        }
    }

    fn note(&self, asked: Instant) {
        if let Some(latencies) = &self.latencies {
            latencies.lock().saturating_record(asked.elapsed().as_micros() as u64);
        }
    }
}

impl Link {
    fn new(reached: Reached, terms: &Terms, limit: Duration) -> Self {
        Link {
            reached,
            terms: terms.clone(),
            connection: tokio::sync::Mutex::default(),
            breaker: Mutex::default(),
            gives: Semaphore::new(GIVEN_AT_ONCE),
            limit,
        }
    }

    async fn store(&self, key: Key, block: &Arc<Buffer>) -> Option<Reply> {
        let _turn = timeout(self.limit, self.gives.acquire()).await.ok()?;
        let (value, name) = (self.terms.seal.close(key, block)?, key.at(&self.reached.tag));
        self.request(Request::storing(&name, value, self.terms.expires_s)).await
    }

    /// Has a block that was read stay for its whole time again.
    async fn keep(&self, key: Key) {
        if let Some(seconds) = self.terms.expires_s {
            let (name, seconds) = (key.at(&self.reached.tag), seconds.to_string());
            let words = [b"EXPIRE", name.as_bytes(), seconds.as_bytes()];
            drop(self.request(Request::new(&words)).await);
        }
    }

    /// Sends a note to the member's daemon. If it is lost, the sender notices nothing.
    async fn send(&self, note: Note) {
        drop(self.request(wants::noting(&self.reached.tag, note)).await);
    }

    async fn remove(&self, key: Key, shared: &Shared) {
        let name = key.at(&self.reached.tag);
        let removed = self.request(Request::new(&[b"UNLINK", name.as_bytes()])).await;
        if removed == Some(Reply::Done) {
            add(&shared.traffic.moved, 1);
        }
    }

    /// Asks for a block of this key, and of this length if that is known.
    async fn answer(
        &self,
        (key, length): (Key, Option<usize>),
        lease: Option<Duration>,
        shared: &Shared,
    ) -> Answer {
        let (name, asked) = (key.at(&self.reached.tag), Instant::now());
        let get = || Request::new(&[b"GET", name.as_bytes()]);
        let request = lease.map_or_else(get, |time| lease_or_get(&name, time));
        let (mut reply, mut takes) = (self.request(request).await, true);
        if lease.is_some() && matches!(reply, Some(Reply::Refused(_))) {
            // A shard that is full, or cut off from most others, gives no lease. It still has what it has.
            takes = false;
            reply = self.request(get()).await;
        }
        let Some(reply) = reply else { return Answer::Lacks(Lack::Silent) };
        shared.note(asked);
        match reply {
            Reply::Nil if takes => Answer::Lacks(Lack::Missing),
            Reply::Value(value) if value == LEASE => Answer::Lacks(Lack::Leased),
            Reply::Value(value) if value == ON_DISK => Answer::Lacks(Lack::OnDisk),
            Reply::Value(value) => match self.terms.seal.open(key, length, value) {
                Some(bytes) => Answer::Found(bytes),
                None => {
                    add(&shared.traffic.damaged, 1);
                    // It is stored anew.
                    Answer::Lacks(Lack::Missing)
                }
            },
            _ => Answer::Lacks(Lack::Silent),
        }
    }

    /// Makes a request. `None` if the member does not answer: then it is left alone for a while. A refusal is an answer,
    /// too.
    async fn request(&self, request: Request) -> Option<Reply> {
        let asked = Instant::now();
        let ask = async { self.connected().await?.ask(request).await };
        let reply = timeout(self.limit, ask).await.ok().flatten();
        if reply.is_some() {
            self.breaker.lock().answered(Instant::now());
            return reply;
        }
        let is_left_alone = self.breaker.lock().failed(asked, Instant::now());
        // The next connection is made anew. If somebody holds the lock, it is being made.
        if is_left_alone && let Ok(mut connection) = self.connection.try_lock() {
            *connection = None;
        }
        None
    }

    async fn connected(&self) -> Option<Arc<Pipeline>> {
        let mut slot = self.connection.lock().await;
        if let Some(connection) = slot.as_ref().filter(|connection| !connection.has_ended()) {
            return Some(Arc::clone(connection));
        }
        let endpoint = &self.reached.endpoint;
        let connected = Pipeline::connect(endpoint).await;
        let failed = |error: &std::io::Error| {
            tracing::debug!(%error, address = %endpoint.address, "a member cannot be asked");
        };
        let connection = Arc::new(connected.inspect_err(failed).ok()?);
        Some(Arc::clone(slot.insert(connection)))
    }
}

/// Reads a key. If there is no value, it is leased for this time.
fn lease_or_get(key: &str, time: Duration) -> Request {
    let time = time.as_millis().max(1).to_string();
    Request::new(&[b"SET", key.as_bytes(), LEASE, b"NX", b"GET", b"PX", time.as_bytes()])
}
