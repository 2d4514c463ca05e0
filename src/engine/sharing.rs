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

/// When blocks are removed that nobody asks for any more, and how often: members that come and go within this time move
/// nothing.
const SWEEP_AFTER: Duration = Duration::from_secs(60);

/// When a full shard also gives up what is still at its earlier home, and how often.
const FULL_SWEEP_AFTER: Duration = Duration::from_secs(10);
const FULL_SWEEP_AGAIN: Duration = Duration::from_secs(600);

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
        let mut keeper = Keeper { core, times, shards, placed, asked, sweeps: Sweeps::new() };
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
}

/// When this node's shard is swept.
struct Sweeps {
    /// When members came or went last.
    moved: Instant,
    /// Whether homes or files have changed since the last sweep.
    is_due: bool,
    tried: Option<Instant>,
    fully_tried: Option<Instant>,
}

impl Sweeps {
    fn new() -> Self {
        Sweeps { moved: Instant::now(), is_due: false, tried: None, fully_tried: None }
    }

    /// Members have come or gone.
    fn move_on(&mut self) {
        *self = Sweeps { is_due: true, ..Sweeps::new() };
    }

    /// Whether a sweep is due. If so, whether what is at its earlier home is removed, too.
    fn next(&mut self, now: Instant, is_full: bool) -> Option<bool> {
        let age = now - self.moved;
        let rested = |tried: Option<Instant>, pause: Duration| {
            tried.is_none_or(|tried| now - tried >= pause)
        };
        let fully =
            is_full && age >= FULL_SWEEP_AFTER && rested(self.fully_tried, FULL_SWEEP_AGAIN);
        let is_due = self.is_due && age >= SWEEP_AFTER && rested(self.tried, SWEEP_AFTER);
        if !fully && !is_due {
            return None;
        }
        self.tried = Some(now);
        if fully {
            self.fully_tried = Some(now);
        }
        Some(fully)
    }
}

struct Keeper {
    core: Arc<Core>,
    times: Arc<SourceTimes>,
    shards: Arc<dyn Shards>,
    placed: Option<Placed>,
    /// Bytes that the source had been asked for at the last look at that, and when it was.
    asked: (u64, Instant),
    sweeps: Sweeps,
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
        // A catalog that is being checked may lack files that others have given.
        if state != CatalogState::Checking {
            self.sweep();
        }
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
        let short = self.sweeps.moved.elapsed() < SWEEP_AFTER;
        let is_same = before.is_some_and(|before| before.view().id() == membership.view.id());
        let homes = match before {
            Some(before) => before.followed_by(&membership.view, samples, short),
            None => Homes::new(membership.own, &membership.view, samples),
        };
        self.sweeps.is_due = true;
        if !is_same {
            self.sweeps.move_on();
        }
        let homes = Arc::new(homes);
        tracing::debug!(members = membership.view.members().len(), "homes of blocks are known");
        self.core.cache.set_homes(Some((Arc::clone(&membership), Arc::clone(&homes))));
        self.shards.note_homes(membership.view.id(), blocks.digest);
        let took = since.elapsed();
        self.placed = Some(Placed { membership, homes, layout, since, took });
    }

    /// Forgets the homes before, if that was long ago.
    fn settle(&mut self) {
        let Some(placed) = &mut self.placed else { return };
        if placed.homes.is_moving() && self.sweeps.moved.elapsed() >= REMEMBERED {
            placed.homes = Arc::new(placed.homes.settled());
            self.sweeps.is_due = true;
            let known = (Arc::clone(&placed.membership), Arc::clone(&placed.homes));
            self.core.cache.set_homes(Some(known));
        }
    }

    /// Removes what is to be removed from this node's shard.
    fn sweep(&mut self) {
        let Some(placed) = &self.placed else { return };
        // Files that the homes do not have yet are wanted, too.
        if self.core.catalog.layout().is_later(&placed.layout) {
            return;
        }
        let Some(fully) = self.sweeps.next(Instant::now(), self.shards.is_full()) else { return };
        let wanted = wanted(&self.core, placed, fully);
        match self.shards.sweep(&|key| wanted.contains(&key)) {
            Ok(removed) => {
                self.sweeps.is_due = false;
                tracing::debug!(removed, "blocks have left the shard");
            }
            Err(why) => tracing::debug!(%why, "the shard is not swept"),
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shard_is_swept_after_changes_and_again_while_it_is_full() {
        let mut sweeps = Sweeps::new();
        let start = sweeps.moved;
        let mut next = |s: u64, is_full: bool| sweeps.next(start + Duration::from_secs(s), is_full);
        assert_eq!(next(100, false), None, "nothing has changed");
        assert_eq!(next(5, true), None, "members may come back");
        assert_eq!(next(10, true), Some(true));
        assert_eq!(next(300, true), None);
        assert_eq!(next(610, true), Some(true), "it is full again");
        sweeps.move_on();
        let start = sweeps.moved;
        let mut next = |s: u64| sweeps.next(start + Duration::from_secs(s), false);
        assert_eq!((next(59), next(60)), (None, Some(false)));
        assert_eq!((next(119), next(120)), (None, Some(false)), "it has failed");
        sweeps.is_due = false;
        assert_eq!(sweeps.next(start + Duration::from_secs(999), false), None);
    }
}
