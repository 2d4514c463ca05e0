//! Which members of the cluster hold which blocks: a thread keeps that up to date.
//!
//! 1. The homes of all blocks are computed when all files are known, and again if members come or go, or files change
//!    ([`Homes`]). Until then nobody is asked.
//! 2. The homes before are remembered for a while. Blocks that are still there are found.
//! 3. If all nodes together have a limit for the source, each one's share follows what the others ask for.
//! 4. Blocks that this node's shard is not to hold any more are removed a while later. If the shard is full, so are
//!    those that are still at their earlier homes.

use std::collections::HashSet;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use super::Core;
use crate::cache::{Operation, SourceTimes};
use crate::catalog::CatalogState;
use crate::cluster::{Demand, Homes, Samples, mix, share};
use crate::config::Settings;
use crate::ids::BlockId;
use crate::peers::{Key, Keys, Membership, Shards};
use crate::plan::Layout;
use crate::sync::lower_priority;

const LOOK_EVERY: Duration = Duration::from_secs(1);

/// How often this node's share of the source is computed: as often as members tell of themselves.
const SHARE_EVERY: Duration = Duration::from_secs(3);

/// Homes are computed again no sooner than after this multiple of the time that it takes.
const REST: u32 = 10;

/// How long the homes before are remembered.
const REMEMBERED: Duration = Duration::from_secs(3600);

/// When blocks are removed that nobody asks for any more: members that come and go within this time move nothing.
const SWEEP_AFTER: Duration = Duration::from_secs(60);
const FULL_SWEEP_AFTER: Duration = Duration::from_secs(10);

/// The thread does not compete with readers for processors.
const NICE: u32 = 10;

/// The bytes a second that the source may be asked for until this node's share is known.
pub(super) fn first_rate(settings: &Settings) -> Option<u64> {
    let limit = settings.cluster.as_ref().and_then(|cluster| cluster.source_rate);
    settings.prefetch.rate.into_iter().chain(limit).min()
}

/// Starts the thread. It ends with the engine.
pub(super) fn start(core: &Arc<Core>, times: &Arc<SourceTimes>, shards: Arc<dyn Shards>) {
    core.cache.share(Arc::clone(&shards));
    let (core, times) = (Arc::clone(core), Arc::clone(times));
    let keep = move || {
        lower_priority(NICE);
        let (placed, asked) = (None, (times.demand().0, Instant::now()));
        let mut keeper = Keeper { core, times, shards, placed, asked };
        while keeper.core.stop.pause(LOOK_EVERY) {
            keeper.look();
        }
    };
    if let Err(error) = thread::Builder::new().name("belady-homes".into()).spawn(keep) {
        tracing::warn!(%error, "no sample is asked of other nodes");
    }
}

/// Homes that are in force.
struct Placed {
    membership: Arc<Membership>,
    homes: Arc<Homes>,
    layout: Arc<Layout>,
    since: Instant,
    /// How long it took to compute them.
    took: Duration,
    /// Whether what is asked for no more was removed, and whether earlier homes were given up for that.
    swept: bool,
    fully_swept: bool,
}

struct Keeper {
    core: Arc<Core>,
    times: Arc<SourceTimes>,
    shards: Arc<dyn Shards>,
    placed: Option<Placed>,
    /// Bytes that the source had been asked for at the last look at that, and when it was.
    asked: (u64, Instant),
}

impl Keeper {
    fn look(&mut self) {
        self.share_source();
        self.core.cache.set_source_wait(self.times.latencies(Operation::Read).p99_us);
        let state = self.core.catalog.state();
        let membership = self.shards.membership();
        let membership = membership.filter(|_| state != CatalogState::Scanning);
        let Some(membership) = membership else {
            if self.placed.take().is_some() {
                self.core.cache.set_homes(None);
            }
            return;
        };
        let layout = self.core.catalog.layout();
        if self.is_due(&membership, &layout) {
            self.place(membership, layout);
        }
        self.settle();
        self.sweep();
    }

    /// Keeps to this node's share of what all nodes may ask the source for.
    fn share_source(&mut self) {
        let (before, since) = self.asked;
        if since.elapsed() < SHARE_EVERY {
            return;
        }
        let (asked, wants_more) = self.times.demand();
        let bytes = (asked - before) as f64 / since.elapsed().as_secs_f64();
        self.asked = (asked, Instant::now());
        let own = Demand { asked: bytes as u64, wants_more };
        let others = self.shards.exchange_demands(own);
        let settings = &self.core.settings;
        let limit = settings.cluster.as_ref().and_then(|cluster| cluster.source_rate);
        if let Some(limit) = limit {
            let share = share(limit, own, &others);
            self.times.set_rate(settings.prefetch.rate.map_or(share, |rate| rate.min(share)));
        }
    }

    fn is_due(&self, membership: &Membership, layout: &Layout) -> bool {
        let Some(placed) = &self.placed else { return true };
        let same_members = placed.membership.own == membership.own
            && placed.homes.view().id() == membership.view.id();
        let same = same_members && !layout.is_later(&placed.layout);
        !same && placed.since.elapsed() >= REST * placed.took
    }

    /// Computes the homes.
    fn place(&mut self, membership: Arc<Membership>, layout: Arc<Layout>) {
        let since = Instant::now();
        let blocks = Blocks::of(&self.core, &layout, &membership.keys);
        let samples = Samples { hashes: &blocks.hashes, bytes: &blocks.bytes };
        let before = self.placed.as_ref().map(|placed| &placed.homes);
        let before = before.filter(|homes| homes.own() == membership.own);
        let homes = match before {
            Some(before) => before.followed_by(&membership.view, samples),
            None => Homes::new(membership.own, &membership.view, samples),
        };
        let homes = Arc::new(homes);
        tracing::debug!(members = membership.view.members().len(), "homes of blocks are known");
        self.core.cache.set_homes(Some((Arc::clone(&membership), Arc::clone(&homes))));
        self.shards.note_homes(membership.view.id(), blocks.digest);
        let took = since.elapsed();
        let (swept, fully_swept) = (false, false);
        let placed = Placed { membership, homes, layout, since, took, swept, fully_swept };
        self.placed = Some(placed);
    }

    /// Forgets the homes before, if that was long ago.
    fn settle(&mut self) {
        let Some(placed) = &mut self.placed else { return };
        if placed.homes.is_moving() && placed.since.elapsed() >= REMEMBERED {
            placed.homes = Arc::new(placed.homes.settled());
            placed.swept = false;
            let known = (Arc::clone(&placed.membership), Arc::clone(&placed.homes));
            self.core.cache.set_homes(Some(known));
        }
    }

    /// Removes what is to be removed from this node's shard.
    fn sweep(&mut self) {
        let Some(placed) = &mut self.placed else { return };
        let age = placed.since.elapsed();
        let fully = !placed.fully_swept && age >= FULL_SWEEP_AFTER && self.shards.is_full();
        if !fully && (placed.swept || age < SWEEP_AFTER) {
            return;
        }
        let wanted = wanted(&self.core, placed, fully);
        match self.shards.sweep(&|key| wanted.contains(&key)) {
            Ok(0) => {}
            Ok(removed) => tracing::debug!(removed, "blocks have left the shard"),
            Err(why) => tracing::debug!(%why, "the shard is not swept"),
        }
        placed.swept = true;
        placed.fully_swept |= fully;
    }
}

/// The keys of all blocks that this node's shard is to hold. Unless `strictly`, what it was to hold before is wanted, too.
fn wanted(core: &Core, placed: &Placed, strictly: bool) -> HashSet<Key> {
    let Placed { membership, homes, layout, .. } = placed;
    let mut wanted = HashSet::new();
    core.catalog.for_each_file(|path, file, stat| {
        if file.index() >= layout.files() {
            return;
        }
        let version = stat.fingerprint();
        for block in layout.blocks_of(file) {
            if homes.is_held_here(block.0) || !strictly && homes.was_held_here(block.0) {
                let offset = layout.range(block).0;
                wanted.insert(membership.keys.key(bytes_of(path), version.lasting(), offset));
            }
        }
    });
    wanted
}

/// All blocks, as samples that members hold.
struct Blocks {
    /// By number. Blocks that are gone have no bytes.
    hashes: Vec<u64>,
    bytes: Vec<u32>,
    /// The same for all nodes that have the same files.
    digest: u64,
}

impl Blocks {
    fn of(core: &Core, layout: &Layout, keys: &Keys) -> Self {
        let count = layout.blocks();
        let mut blocks = Blocks { hashes: vec![0; count], bytes: vec![0; count], digest: 0 };
        core.catalog.for_each_file(|path, file, stat| {
            // A file may have come meanwhile.
            if file.index() < layout.files() {
                let version = keys.key(bytes_of(path), stat.fingerprint().lasting(), 0);
                blocks.digest = blocks.digest.wrapping_add(version.upper());
                let first = keys.key(bytes_of(path), b"", 0).upper();
                for (nth, block) in layout.blocks_of(file).enumerate() {
                    blocks.put(block, mix(first.wrapping_add(nth as u64)), layout.range(block).1);
                }
            }
        });
        blocks
    }

    fn put(&mut self, block: BlockId, hash: u64, bytes: u64) {
        self.hashes[block.index()] = hash;
        self.bytes[block.index()] = bytes as u32;
    }
}

fn bytes_of(path: &Path) -> &[u8] {
    path.as_os_str().as_bytes()
}
