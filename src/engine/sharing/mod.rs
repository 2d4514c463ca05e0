//! Which members of the cluster hold which blocks: a thread keeps that up to date.
//!
//! 1. The homes of all blocks are computed when all files are known, and again if members come or go, or files change
//!    ([`Homes`]). Until then nobody is asked. If the orders of all readers tell who reads a block next, it moves there:
//!    then homes are computed in each epoch ([`Moves`]).
//! 2. The homes before are remembered for a while. Blocks that are still there are found. A node that joins learns from the
//!    others by which homes they went before it came.
//! 3. If all nodes together have a limit for the source, each one's share follows what the others ask for.
//! 4. If several jobs read the same blocks, and shards cannot hold all, each shard keeps what is asked for soonest
//!    (`keeping`).
//! 5. If the shards of all nodes cannot hold all blocks, their disks hold some, too (`drain`).
//! 6. Blocks that this node's shard is not to hold any more are removed a while later (`sweeps`). If the shard is full, so
//!    are those that are still at their earlier homes.

mod drain;
mod job_orders;
mod keeping;
mod paces;
mod placed;
mod sweeps;

use std::collections::HashSet;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use super::budgets::Budgets;
use super::orders::Orders;
use super::{Core, STORE_TIER};
use crate::cache::{Operation, SourceTimes};
use crate::catalog::CatalogState;
use crate::cluster::{Demand, Job, Report, Stream, Streams, ToldHomes, Worth, share};
use crate::config::Settings;
use crate::peers::{HomesStatus, Membership, Shards};
use crate::plan::{Event, Published};
use crate::source::DerivedStatus;
use crate::sync::{Mutex, lower_priority};
use drain::Drain;
use paces::Paces;
use placed::{Placed, Wanted};
use sweeps::Sweeps;

const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Over this time it is measured what this node asks the source for: as often as members tell of themselves.
const SHARE_EVERY: Duration = Duration::from_secs(3);

/// After this time each node knows what the others ask for: it is measured over three seconds, written every three seconds,
/// and read as often.
const HEARD_AFTER: Duration = Duration::from_secs(9);

/// A disk that is down for this time holds nothing for others any more.
const DOWN_FOR: Duration = Duration::from_secs(10);

/// The learner is told of so many jobs of others at most.
const SUGGESTED_MOST: usize = 256;

/// The thread does not compete with readers for processors.
const NICE: u32 = 10;

/// The bytes a second that the source may be asked for until this node's share is known.
pub(super) fn first_rate(settings: &Settings) -> Option<u64> {
    let limit = settings.cluster.as_ref().and_then(|cluster| cluster.source_rate);
    settings.prefetch.rate.into_iter().chain(limit).min()
}

/// Starts the thread. It ends with the engine.
pub(super) fn start(
    orders: &Arc<Orders>,
    published: &Arc<Mutex<Published>>,
    times: &Arc<SourceTimes>,
    budgets: &Arc<Budgets>,
    shards: Arc<dyn Shards>,
) {
    let core = Arc::clone(orders.core());
    core.cache.share(Arc::clone(&shards));
    let (orders, published, times) = (Arc::clone(orders), Arc::clone(published), Arc::clone(times));
    let uses_disk = core.settings.cluster.as_ref().is_some_and(|cluster| cluster.disk);
    let disk = core.cache.store().filter(|_| uses_disk).and_then(|_| {
        let drain = Drain::start(Arc::clone(&core), Arc::clone(&shards), NICE);
        let tell = |error: &std::io::Error| {
            tracing::warn!(%error, "the cache disk holds nothing for other nodes");
        };
        let (drain, budgets) = (drain.inspect_err(tell).ok()?, Arc::clone(budgets));
        Some(OwnDisk { drain, budgets, was_up: Instant::now() })
    });
    let keep = move || {
        lower_priority(NICE);
        let asked = (times.demand().0, Instant::now());
        let mut keeper = Keeper {
            core,
            orders,
            published,
            times,
            shards,
            suggested: HashSet::new(),
            paces: Paces::default(),
            placed: None,
            knows_earlier: false,
            told: Report::default(),
            heard: Vec::new(),
            nodes: 0,
            active_since: Instant::now(),
            asked,
            sweeps: Sweeps::new(),
            disk,
        };
        while keeper.core.stop.pause(LOOK_EVERY) {
            keeper.look();
        }
    };
    if let Err(error) = thread::Builder::new().name("belady-homes".into()).spawn(keep) {
        tracing::warn!(%error, "no sample is asked of other nodes");
    }
}

struct Keeper {
    core: Arc<Core>,
    orders: Arc<Orders>,
    published: Arc<Mutex<Published>>,
    times: Arc<SourceTimes>,
    shards: Arc<dyn Shards>,
    /// Jobs of others that this node's learner has been told of, by their orders.
    suggested: HashSet<String>,
    paces: Paces,
    placed: Option<Placed>,
    /// Whether the others have told where samples were before this node joined, or it has given some since.
    knows_earlier: bool,
    /// The reports of this node and of the others.
    told: Report,
    heard: Vec<(u64, Report)>,
    /// How many nodes the cluster has, those that are missing, too.
    nodes: u64,
    /// Since when this node has asked the source for more than a little, and the cluster has had so many nodes.
    active_since: Instant,
    /// Bytes that the source had been asked for at the last look at that, and when it was.
    asked: (u64, Instant),
    sweeps: Sweeps,
    /// `None` if this node has no disk for others.
    disk: Option<OwnDisk>,
}

/// This node's disk, which holds blocks for others.
struct OwnDisk {
    drain: Drain,
    budgets: Arc<Budgets>,
    /// When it could be used last.
    was_up: Instant,
}

impl Keeper {
    fn look(&mut self) {
        let followed = self.orders.followed(&self.published.lock().clone());
        self.told.streams = self.paces.measure(followed, Instant::now());
        self.share_source();
        let state = self.core.catalog.state();
        self.tell_of_disk(state);
        let given = self.shards.status().traffic.given;
        let placed = self.placed.as_ref();
        self.told.homes = placed.and_then(|placed| placed.for_those_who_join(given));
        self.heard = self.shards.exchange(self.told.clone());
        self.core
            .cache
            .set_source_wait(self.times.latencies(Operation::Read).p99_us, self.making_us());
        let membership = self.shards.membership();
        let membership = membership.filter(|_| state != CatalogState::Scanning);
        let Some(membership) = membership else {
            if self.placed.take().is_some() {
                self.core.cache.set_homes(None);
                self.core.cache.set_worth(None);
                // The disk keeps the blocks of others: this node may soon be a member again.
                self.disk.iter().for_each(|disk| disk.drain.set_own(None));
            }
            return;
        };
        let streams = self.streams(membership.own);
        self.place(&membership, &streams);
        self.keep(membership.own, &streams);
        self.settle();
        // A catalog that is being checked may lack files that others have given.
        if membership.has_shard() && state != CatalogState::Checking {
            self.sweep();
        }
    }

    /// Tells the learner which jobs others have ranks of, each once. This node may have further ranks of them.
    fn suggest(&mut self, jobs: &[Job], own: u64) {
        for job in jobs.iter().filter(|job| !job.has_rank_at(own)) {
            let spec = job.first.to_string();
            if self.suggested.len() < SUGGESTED_MOST && !self.suggested.contains(&spec) {
                self.orders.suggest(&job.first);
                self.suggested.insert(spec);
            }
        }
    }

    /// Keeps to this node's share of what all nodes may ask the source for.
    fn share_source(&mut self) {
        self.measure_demand();
        let settings = &self.core.settings;
        let limit = settings.cluster.as_ref().and_then(|cluster| cluster.source_rate);
        let Some(limit) = limit else { return };
        let nodes = self.shards.status().nodes_known().max(1);
        let Demand { asked, wants_more } = self.told.demand;
        let is_active = wants_more || asked > limit / nodes / 2;
        if nodes != self.nodes || !is_active {
            (self.nodes, self.active_since) = (nodes, Instant::now());
        }
        let others: Vec<Demand> = self.heard.iter().map(|(_, report)| report.demand).collect();
        let share = match self.active_since.elapsed() < HEARD_AFTER {
            // All may have begun at once, and nobody knows yet what the others want.
            true => (limit / nodes).max(1),
            false => share(limit, self.told.demand, &others),
        };
        self.times.set_rate(settings.prefetch.rate.map_or(share, |rate| rate.min(share)));
    }

    /// What this node has asked the source for, of late.
    fn measure_demand(&mut self) {
        let (before, since) = self.asked;
        if since.elapsed() >= SHARE_EVERY {
            let (asked, wants_more) = self.times.demand();
            let bytes = (asked - before) as f64 / since.elapsed().as_secs_f64();
            self.asked = (asked, Instant::now());
            self.told.demand = Demand { asked: bytes as u64, wants_more };
        }
    }

    /// How long it takes to make a sample of what was read, by the slowest recipe.
    fn making_us(&self) -> u64 {
        let recipes = self.core.cache.source().derived();
        let seconds = recipes.iter().map(DerivedStatus::seconds_each).fold(0.0, f64::max);
        (seconds * 1e6) as u64
    }

    /// Computes the homes, if members came or went, files changed, or a job has begun, ended, or come to another epoch.
    fn place(&mut self, membership: &Arc<Membership>, streams: &Streams) {
        let follows = self.core.settings.cluster.as_ref().is_some_and(|cluster| cluster.follow);
        let jobs = if follows { Job::all(streams) } else { Vec::new() };
        self.suggest(&jobs, membership.own);
        // Samples stay at their homes if nobody has a shard of its own.
        let jobs = if membership.has_shard() { jobs } else { Vec::new() };
        let epoch = jobs.first().map_or(0, |job| job.epoch(membership.own, streams));
        let wanted = Wanted {
            membership: Arc::clone(membership),
            layout: self.core.catalog.layout(),
            jobs,
            epoch,
        };
        let given = self.shards.status().traffic.given;
        let learns = !self.knows_earlier && given == 0 && self.told_homes().is_some();
        let stays =
            |placed: &Placed| placed.has(membership) && placed.is_resting() || placed.is(&wanted);
        if let Some(placed) = self.placed.as_ref().filter(|placed| stays(placed) && !learns) {
            return self.note(placed, membership);
        }
        let told = learns.then(|| Placed::told(&self.core, self.told_homes()?, &wanted)).flatten();
        self.knows_earlier |= learns || given > 0;
        let before = told.or(self.placed.take());
        let same_members = before.as_ref().is_some_and(|before| before.has(membership));
        let placed = Placed::new(&self.core, wanted, before, given);
        self.sweeps.go_on(same_members);
        let (members, moves_in) = (membership.view.members().len(), placed.moves_in());
        let on_disks = placed.homes.are_on_disks();
        tracing::debug!(members, moves_in, on_disks, "homes of blocks are known");
        self.core.cache.set_homes(Some(placed.known()));
        self.note(&placed, membership);
        self.use_disk(&placed);
        self.placed = Some(placed);
    }

    /// Has it shown that homes are known in this view.
    fn note(&self, placed: &Placed, membership: &Membership) {
        if placed.has(membership) {
            self.shards.note_homes(HomesStatus {
                view: membership.view.id(),
                digest: placed.blocks.digest,
                moves_in: placed.moves_in(),
                on_disks: placed.homes.are_on_disks(),
            });
        }
    }

    /// Tells how much this node's disk holds for all.
    fn tell_of_disk(&mut self, state: CatalogState) {
        let Some(disk) = self.disk.as_mut().filter(|_| state != CatalogState::Scanning) else {
            return;
        };
        let ram_bytes = self.core.settings.cluster.as_ref().map_or(0, |cluster| cluster.ram_bytes);
        let bytes = disk.budgets.disk_for_all(ram_bytes);
        if bytes > 0 {
            disk.was_up = Instant::now();
        }
        // A disk that is down for a moment moves no homes.
        if bytes > 0 || disk.was_up.elapsed() >= DOWN_FOR {
            self.told.disk = bytes;
        }
        self.told.seed = self.core.cache.store().map_or(0, |store| store.id());
    }

    /// Has this node's disk hold blocks for others, if disks do so.
    fn use_disk(&self, placed: &Placed) {
        let Some(OwnDisk { drain, .. }) = &self.disk else { return };
        let own = placed.own_on_disk(&self.core).filter(|_| self.told.disk > 0);
        let blocks = own.iter().flat_map(|own| own.blocks.values());
        let blocks = blocks.filter(|own| own.is_at_home).map(|own| own.block).collect();
        self.core.inbox.put(Event::Homed { tier: STORE_TIER, blocks }, None);
        drain.set_own(own);
    }

    /// The homes by which the others went before this node joined.
    fn told_homes(&self) -> Option<&ToldHomes> {
        self.heard.iter().find_map(|(_, report)| report.homes.as_ref())
    }

    /// The streams of all members.
    fn streams(&self, own: u64) -> Vec<(u64, Vec<Stream>)> {
        let heard = self.heard.iter().map(|(id, report)| (*id, report.streams_now()));
        heard.chain([(own, self.told.streams.clone())]).collect()
    }

    /// Keeps in this node's shard what is asked for soonest, if it cannot keep all.
    fn keep(&mut self, own: u64, streams: &Streams) {
        let keeping = self.placed.as_mut().and_then(|placed| placed.keeping.as_mut());
        let Some(keeping) = keeping else {
            self.told.horizon_s = None;
            return self.core.cache.set_worth(None);
        };
        let uses = keeping.uses(own, streams);
        match keeping.trim(&*self.shards, &uses) {
            Ok(horizon) => self.told.horizon_s = Some(horizon).filter(|it| it.is_finite()),
            Err(why) => tracing::debug!(%why, "the shard is not trimmed"),
        }
        let others = self.heard.iter().map(|(id, report)| (*id, report.horizon_s));
        let horizons = others.chain([(own, self.told.horizon_s)]);
        let horizons = horizons.filter_map(|(id, horizon)| Some((id, horizon?))).collect();
        self.core.cache.set_worth(Some(Worth { uses, horizons }));
    }

    /// Forgets the homes before, if that was long ago.
    fn settle(&mut self) {
        let Some(placed) = self.placed.as_mut().filter(|_| self.sweeps.are_old()) else { return };
        if placed.homes.has_earlier() {
            placed.homes = Arc::new(placed.homes.settled());
            self.sweeps.go_on(true);
            self.core.cache.set_homes(Some(placed.known()));
        }
    }

    /// Removes what is to be removed from this node's shard.
    fn sweep(&mut self) {
        let Some(placed) = &self.placed else { return };
        // Files that the homes do not have yet are wanted, too.
        if self.core.catalog.layout().is_later(&placed.wanted.layout) {
            return;
        }
        // Each sample is read once before its earlier homes are given up.
        let waits = placed.moves_in().is_some() && placed.homes.has_earlier();
        let trims = placed.keeping.is_some() && !placed.homes.has_earlier();
        let is_full = self.shards.is_full() && !waits && !trims;
        let Some(fully) = self.sweeps.next(Instant::now(), is_full) else { return };
        let wanted = placed.keys_of_own(&self.core, fully);
        match self.shards.sweep(&|key| wanted.contains(&key)) {
            Ok(removed) => {
                self.sweeps.are_done();
                tracing::debug!(removed, "blocks have left the shard");
            }
            Err(why) => tracing::debug!(%why, "the shard is not swept"),
        }
    }
}
