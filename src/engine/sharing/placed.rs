//! The homes that are in force.

use std::collections::{HashMap, HashSet};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Core;
use super::drain::{OwnBlock, OwnBlocks};
use super::job_orders::{JobOrders, NextReaders};
use super::keeping::Keeping;
use crate::catalog::with_listing;
use crate::cluster::{EpochHomes, Homes, Job, Moves, Samples, ToldHomes, View, mix};
use crate::error::{Error, Result};
use crate::ids::BlockId;
use crate::peers::{Key, Keys, Membership};
use crate::plan::Layout;

/// Homes are computed again no sooner than after this multiple of the time that it takes.
const REST: u32 = 10;

/// Homes that were in force for less than this time have few blocks.
const SHORT: Duration = Duration::from_secs(60);

/// The bytes that a block counts for if other nodes may not know its size.
const UNKNOWN_BYTES: u64 = 128 << 10;

/// All that homes follow from.
pub(super) struct Wanted {
    pub(super) membership: Arc<Membership>,
    pub(super) layout: Arc<Layout>,
    /// The jobs that read.
    pub(super) jobs: Vec<Job>,
    /// The epoch in which this node reads for the first of them.
    pub(super) epoch: u32,
}

/// Homes, and who reads.
pub(super) struct Placed {
    pub(super) wanted: Wanted,
    pub(super) homes: Arc<Homes>,
    pub(super) blocks: Blocks,
    /// The next reader of each block, if blocks move to their next readers.
    next_readers: Option<NextReaders>,
    /// The jobs that ask for the same blocks, if shards cannot hold all of these.
    pub(super) keeping: Option<Keeping>,
    since: Instant,
    /// How long it took to compute them.
    took: Duration,
    /// When such homes came into force first, and how many blocks this node had given before. Those of a job's next epoch
    /// go on with what the ones before hold.
    begun: Instant,
    given: u64,
    /// The homes before, as members that join are told of them.
    earlier: Option<ToldHomes>,
    /// Whether another member has told of these: they were in force before this node joined.
    is_told: bool,
}

impl Placed {
    /// Computes homes, when this node has given so many blocks.
    pub(super) fn new(core: &Core, wanted: Wanted, before: Option<Placed>, given: u64) -> Self {
        let since = Instant::now();
        let Wanted { membership, layout, jobs, epoch } = &wanted;
        let own = membership.own;
        let same_files = before.as_ref().is_some_and(|before| before.has_files(layout));
        let same_jobs = same_files
            && before.as_ref().is_some_and(|it| it.has(membership) && it.wanted.jobs == *jobs);
        let earlier = before.as_ref().map(|before| {
            let is_worth = before.is_worth_remembering(&wanted, given);
            (Arc::clone(&before.homes), is_worth)
        });
        let told =
            before.as_ref().and_then(|before| match before.is_worth_remembering(&wanted, given) {
                true => Some(before.describe()),
                false => before.earlier.clone(),
            });
        let continued = before.as_ref().filter(|before| before.go_on_as(&wanted));
        let (begun, given) =
            continued.map_or((since, given), |before| (before.begun, before.given));
        let (blocks, next_readers, keeping) = match before {
            Some(before) => (Some(before.blocks), before.next_readers, before.keeping),
            None => (None, None, None),
        };
        let blocks = blocks.filter(|_| same_files);
        let blocks = blocks.unwrap_or_else(|| Blocks::of(core, layout, &membership.keys));
        let (view, on_disks) = &membership.view.for_bytes(blocks.all);
        let (mut next_readers, mut keeping) = match same_jobs {
            _ if *on_disks => (None, None),
            true => (next_readers, keeping),
            false => readers(core, &wanted, &blocks, view),
        };
        let samples = blocks.samples();
        let known = earlier.as_ref().filter(|_| same_jobs).and_then(|(homes, _)| homes.moves());
        let homes = match &mut next_readers {
            _ if *on_disks => Homes::on_disks(own, view, samples),
            Some(readers) => {
                let of_epoch = |epoch| {
                    let readers = readers.in_epoch(epoch);
                    EpochHomes::new(own, view, samples, |block| readers[block as usize])
                };
                let moves = Moves::from(*epoch, known, of_epoch);
                let is_here = jobs.first().is_some_and(|job| job.has_rank_at(own));
                Homes::moving(own, view, if is_here { moves } else { moves.of_others() })
            }
            None if keeping.is_some() => Homes::of_all(own, view, samples),
            None => Homes::new(own, view, samples),
        };
        let homes = match earlier.filter(|(earlier, _)| earlier.own() == own) {
            Some((earlier, is_worth)) => homes.after(&earlier, is_worth),
            None => homes,
        };
        if let Some(keeping) = &mut keeping {
            let is_own = |block: BlockId| homes.is_held_here(block.0);
            let mut keys = HashMap::new();
            for_each_key(core, &wanted, is_own, |block, key| {
                keys.insert(key, (block.0, blocks.bytes[block.index()]));
            });
            keeping.set_own(keys, capacity_of(own, view));
        }
        let (homes, took, is_told) = (Arc::new(homes), since.elapsed(), false);
        let earlier = told.filter(|_| homes.has_earlier());
        Placed {
            wanted,
            homes,
            blocks,
            next_readers,
            keeping,
            since,
            took,
            begun,
            given,
            earlier,
            is_told,
        }
    }

    /// The homes that others have told of, for this member. It need not be in their view.
    pub(super) fn told(core: &Core, told: &ToldHomes, wanted: &Wanted) -> Option<Self> {
        let Membership { own, keys, .. } = &*wanted.membership;
        let membership = Membership { own: *own, view: told.view(), keys: keys.clone() };
        let before = Wanted {
            membership: Arc::new(membership),
            layout: Arc::clone(&wanted.layout),
            jobs: told.jobs()?,
            epoch: told.epoch(),
        };
        Some(Placed { is_told: true, ..Placed::new(core, before, None, 0) })
    }

    /// These homes, as members that join are told of them.
    fn describe(&self) -> ToldHomes {
        let epoch = self.moves_in().unwrap_or(self.wanted.epoch);
        // With disks, jobs move nothing.
        let jobs: &[Job] = if self.homes.are_on_disks() { &[] } else { &self.wanted.jobs };
        ToldHomes::new(self.homes.view(), jobs, epoch)
    }

    /// The blocks that this node is to hold for others, or was to hold before, if disks hold any.
    pub(super) fn own_on_disk(&self, core: &Core) -> Option<OwnBlocks> {
        if !self.homes.are_on_disks() {
            return None;
        }
        let (homes, mut blocks) = (&self.homes, HashMap::new());
        let is_asked = |block: BlockId| homes.is_held_here(block.0) || homes.was_held_here(block.0);
        for_each_key(core, &self.wanted, is_asked, |block, key| {
            blocks.insert(key, OwnBlock { block, is_at_home: homes.is_held_here(block.0) });
        });
        let Membership { own, view, .. } = &*self.wanted.membership;
        Some(OwnBlocks { blocks, room: capacity_of(*own, view) })
    }

    /// The homes by which a member that joins finds blocks of the others. This node has given so many blocks.
    pub(super) fn for_those_who_join(&self, given: u64) -> Option<ToldHomes> {
        let share = self.blocks.bytes.len() / self.wanted.membership.view.members().len().max(1);
        // Homes that are new have few blocks: most are still at those before.
        let has_many = given.saturating_sub(self.given) >= share as u64 / 2;
        let earlier = self.earlier.clone().filter(|_| self.homes.has_earlier() && !has_many);
        let is_old = self.begun.elapsed() >= SHORT;
        earlier.or_else(|| (has_many || is_old).then(|| self.describe()))
    }

    /// Whether blocks may be found at these homes after they have changed. If they were in force for a short time, there are
    /// more at those before them, or hardly any at all.
    fn is_worth_remembering(&self, wanted: &Wanted, given: u64) -> bool {
        let has_some = given > self.given && !self.homes.has_earlier();
        let has_any = has_some || self.begun.elapsed() >= SHORT;
        self.is_told || !self.go_on_as(wanted) && has_any
    }

    /// Whether blocks are at the homes that are wanted once they have been read: these are the same ones, or those of
    /// another epoch of the job.
    fn go_on_as(&self, wanted: &Wanted) -> bool {
        self.has(&wanted.membership)
            && (self.wanted.jobs == wanted.jobs
                || self.moves_in().is_none() && wanted.jobs.is_empty())
    }

    /// Whether these are the homes that are wanted. Without moves the epoch does not matter.
    pub(super) fn is(&self, wanted: &Wanted) -> bool {
        // With disks, jobs move nothing.
        self.has(&wanted.membership)
            && self.has_files(&wanted.layout)
            && (self.homes.are_on_disks() || self.wanted.jobs == wanted.jobs)
            && self.moves_in().is_none_or(|first| first == wanted.epoch)
    }

    pub(super) fn has(&self, membership: &Membership) -> bool {
        // Disks do not matter if memory suffices.
        let (view, _) = membership.view.for_bytes(self.blocks.all);
        self.wanted.membership.own == membership.own && self.homes.view().id() == view.id()
    }

    fn has_files(&self, layout: &Layout) -> bool {
        !layout.is_later(&self.wanted.layout)
    }

    pub(super) fn is_resting(&self) -> bool {
        self.since.elapsed() < REST * self.took
    }

    /// The epoch of this node, if blocks move.
    pub(super) fn moves_in(&self) -> Option<u32> {
        self.homes.moves().map(Moves::first)
    }

    /// The homes, as the cache knows them.
    pub(super) fn known(&self) -> (Arc<Membership>, Arc<Homes>) {
        (Arc::clone(&self.wanted.membership), Arc::clone(&self.homes))
    }

    /// The keys of all blocks that this node's shard is to hold. Unless `strictly`, what it was to hold before is wanted,
    /// too.
    pub(super) fn keys_of_own(&self, core: &Core, strictly: bool) -> HashSet<Key> {
        let homes = &self.homes;
        let is_held = |block: BlockId| {
            homes.is_held_here(block.0) || !strictly && homes.was_held_here(block.0)
        };
        let mut keys = HashSet::new();
        for_each_key(core, &self.wanted, is_held, |_, key| {
            keys.insert(key);
        });
        self.for_each_whole_key(core, is_held, |key| {
            keys.insert(key);
        });
        keys
    }

    /// Calls `each` with the names by which whole files are known before their sizes are. They are where their first blocks
    /// are.
    fn for_each_whole_key(
        &self,
        core: &Core,
        is_wanted: impl Fn(BlockId) -> bool,
        mut each: impl FnMut(Key),
    ) {
        if core.settings.derived.is_empty() {
            return;
        }
        let Wanted { membership, layout, .. } = &self.wanted;
        core.catalog.for_each_file(|path, file, stat| {
            if stat.version_has_size || file.index() >= layout.files() {
                return;
            }
            if layout.blocks_of(file).next().is_some_and(&is_wanted) {
                each(membership.keys.key(bytes_of(path), stat.first_version().lasting(), 0));
            }
        });
    }
}

/// The bytes that a member holds.
fn capacity_of(id: u64, view: &View) -> u64 {
    let own = view.members().iter().find(|member| member.id == id);
    own.map_or(0, |member| member.capacity)
}

/// Calls `each` with all blocks that are wanted, and their keys.
fn for_each_key(
    core: &Core,
    wanted: &Wanted,
    is_wanted: impl Fn(BlockId) -> bool,
    mut each: impl FnMut(BlockId, Key),
) {
    let Wanted { membership, layout, .. } = wanted;
    core.catalog.for_each_file(|path, file, stat| {
        if file.index() >= layout.files() {
            return;
        }
        let version = stat.copied_version();
        for block in layout.blocks_of(file).filter(|block| is_wanted(*block)) {
            let offset = layout.range(block).0;
            each(block, membership.keys.key(bytes_of(path), version.lasting(), offset));
        }
    });
}

/// Finds out who reads what.
fn readers(
    core: &Core,
    wanted: &Wanted,
    blocks: &Blocks,
    view: &View,
) -> (Option<NextReaders>, Option<Keeping>) {
    let Wanted { layout, jobs, .. } = wanted;
    if jobs.is_empty() {
        return (None, None);
    }
    let orders = with_listing(&core.catalog, &[], None, |listing| {
        let of = |job: &Job| JobOrders::of(job, listing, layout);
        jobs.iter().map(of).collect::<Vec<Result<JobOrders>>>()
    });
    let known = |(job, orders): (&Job, Result<JobOrders>)| {
        let tell =
            |error: &Error| tracing::info!(%error, "an order of the cluster is not known here");
        Some((job.clone(), orders.inspect_err(tell).ok()?))
    };
    let largest = &jobs[0];
    let mut jobs: Vec<(Job, JobOrders)> = jobs.iter().zip(orders).filter_map(known).collect();
    if jobs.first().is_none_or(|(job, _)| job != largest) {
        return (None, None);
    }
    let (job, orders) = jobs.remove(0);
    match NextReaders::of(&job, orders, jobs.iter().map(|(_, orders)| orders), view) {
        Ok(next) => (Some(next), None),
        Err(orders) => {
            jobs.insert(0, (job, orders));
            let is_too_much = blocks.all > view.capacity();
            (None, is_too_much.then(|| Keeping::of(jobs, blocks.bytes.len())).flatten())
        }
    }
}

/// All blocks, as samples that members hold.
pub(super) struct Blocks {
    /// By number. Blocks that are gone have no bytes.
    pub(super) hashes: Vec<u64>,
    pub(super) bytes: Vec<u32>,
    /// The bytes of all.
    all: u128,
    /// The same for all nodes that have the same files.
    pub(super) digest: u64,
}

impl Blocks {
    fn of(core: &Core, layout: &Layout, keys: &Keys) -> Self {
        let (count, unlisted) = (layout.blocks(), core.cache.source().unlisted());
        let (hashes, bytes) = (vec![0; count], vec![0; count]);
        let mut blocks = Blocks { hashes, bytes, all: 0, digest: 0 };
        core.catalog.for_each_file(|path, file, stat| {
            // A file may have come meanwhile.
            if file.index() < layout.files() {
                // Not all nodes know the sizes of all files.
                let version = keys.key(bytes_of(path), stat.first_version().lasting(), 0);
                // Other nodes may have other unlisted files.
                if !unlisted.is_some_and(|name| path.starts_with(name)) {
                    blocks.digest = blocks.digest.wrapping_add(version.upper());
                }
                let first = keys.key(bytes_of(path), b"", 0).upper();
                for (nth, block) in layout.blocks_of(file).enumerate() {
                    let bytes = match stat.version_has_size {
                        true => layout.range(block).1,
                        false => UNKNOWN_BYTES,
                    };
                    blocks.put(block, mix(first.wrapping_add(nth as u64)), bytes);
                }
            }
        });
        blocks
    }

    fn samples(&self) -> Samples<'_> {
        Samples { hashes: &self.hashes, bytes: &self.bytes }
    }

    fn put(&mut self, block: BlockId, hash: u64, bytes: u64) {
        self.hashes[block.index()] = hash;
        self.bytes[block.index()] = bytes as u32;
        self.all += u128::from(bytes);
    }
}

fn bytes_of(path: &Path) -> &[u8] {
    path.as_os_str().as_bytes()
}
