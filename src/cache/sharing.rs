//! The shards of a cluster, as a place that has blocks.
//!
//! 1. A block that the local store lacks is looked for at the members that may have it ([`Search`]).
//! 2. If none has it, the source is asked. If a reader waits and a member takes longer than usual, the source is asked
//!    as well ([`Cache::pass_over`](super::Cache::pass_over)).
//! 3. Bytes that surely are those of the version are given to the homes that lack them ([`Gift`]). If the size of a file
//!    was not known before, and it has a block or more, all of its bytes are given by the name of its first block. So other
//!    members know the size with the bytes. This is not done if disks hold blocks, or if members keep only what is worth it:
//!    they count by blocks.
//! 4. If blocks move to who reads them next, one moves on with its first fetch in an epoch in which this node reads it
//!    ([`Moved`]). If RAM has the block, it moves on shortly before the read ([`Sharing::move_on`]).
//!
//! Which members may have a block is found out apart, and read here.

use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::memory::{Arrival, Memory};
use crate::catalog::Located;
use crate::cluster::{EpochHomes, Holder, Homes, Question, Role, Search, Worth};
use crate::disk::Buffer;
use crate::ids::BlockId;
use crate::peers::{Answer, Ask, Give, Key, Membership, Shards};
use crate::source::{Pool, Urgency, User};
use crate::sync::RwLock;

/// Answers of members that are landed at once for prefetches, and further ones for readers.
const LANDINGS: usize = 4;

/// A reader waits at least so long for a member before the source is asked as well, or so many times as long as members
/// usually take.
const PATIENCE_MIN: Duration = Duration::from_millis(20);
const PATIENCE: u32 = 4;

/// The shortest lease, and how many times as long it is as the source usually takes.
const LEASE_MIN: Duration = Duration::from_millis(200);
const LEASE: u32 = 8;

/// The members' homes, as far as they are known.
#[derive(Clone)]
struct Placed {
    membership: Arc<Membership>,
    homes: Arc<Homes>,
    moved: Arc<Moved>,
}

/// The gift of a block to members.
#[derive(Debug, Default)]
pub(super) struct Gift {
    /// Those that are given it.
    pub(super) to: Vec<u64>,
    /// The one that it leaves.
    pub(super) left: Option<u64>,
}

impl Gift {
    pub(super) fn is_empty(&self) -> bool {
        self.to.is_empty() && self.left.is_none()
    }
}

/// What has come of lending a block to other members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lent {
    /// It is in this node's own shard.
    Given,
    /// Memory or the shard has no room for it, or the disk is not to be used at this moment.
    Refused,
    /// The store does not have it.
    Missing,
}

/// Hears what has come of lending a block. If it is dropped, the block was refused.
pub struct Lending(Option<Box<dyn FnOnce(Lent) + Send>>);

impl Lending {
    pub fn new(hear: impl FnOnce(Lent) + Send + 'static) -> Self {
        Lending(Some(Box::new(hear)))
    }

    pub(super) fn end(mut self, lent: Lent) {
        if let Some(hear) = self.0.take() {
            hear(lent);
        }
    }
}

impl Drop for Lending {
    fn drop(&mut self) {
        if let Some(hear) = self.0.take() {
            hear(Lent::Refused);
        }
    }
}

/// Blocks that move on at once without a flight.
const MOVING_MOST: usize = 32;

/// Which reads of this node have moved their blocks on: by epoch, the homes of that epoch, and a bit for each block.
#[derive(Default)]
struct Moved(BTreeMap<u32, (Arc<EpochHomes>, Arc<[AtomicU64]>)>);

impl Moved {
    /// The same for other homes. If an epoch has others, nothing has moved on in it.
    fn followed_by(&self, homes: &Homes) -> Self {
        let Some(moves) = homes.moves() else { return Moved::default() };
        let bits = |(epoch, homes): (u32, &Arc<EpochHomes>)| {
            let same = self.0.get(&epoch).filter(|(known, _)| Arc::ptr_eq(known, homes));
            let words = homes.samples().div_ceil(64);
            let new = || (0..words).map(|_| AtomicU64::new(0)).collect();
            let bits = same.map_or_else(new, |(_, bits)| Arc::clone(bits));
            (epoch, (Arc::clone(homes), bits))
        };
        Moved(moves.moving().map(bits).collect())
    }

    /// The epoch from which the block moves on with a read of this node. From then on it has.
    fn take(&self, block: BlockId) -> Option<u32> {
        let (word, bit) = (block.index() / 64, 1 << (block.index() % 64));
        let is_first = |bits: &[AtomicU64]| bits[word].fetch_or(bit, Ordering::Relaxed) & bit == 0;
        let mut epochs = self.0.iter();
        let moving =
            epochs.find(|(_, (homes, bits))| homes.is_read_here(block.0) && is_first(bits));
        moving.map(|(epoch, _)| *epoch)
    }
}

pub(super) struct Sharing {
    shards: Arc<dyn Shards>,
    placed: RwLock<Option<Placed>>,
    /// Decides which members are given a block, and since when it is known; `None`: they are given all that they lack.
    worth: RwLock<Option<(Arc<Worth>, Instant)>>,
    /// How long the source usually takes, in microseconds, and how much longer to make a sample.
    source_us: AtomicU64,
    making_us: AtomicU64,
    landing: Arc<Pool>,
    /// The user of this process. Members are asked for no file that the user may not read.
    user: User,
    /// Blocks that move on without a flight at this moment.
    moving: AtomicUsize,
}

impl Sharing {
    pub(super) fn new(shards: Arc<dyn Shards>) -> Self {
        let landing = Pool::new("belady-landing", LANDINGS, LANDINGS).into();
        let (placed, worth) = (RwLock::default(), RwLock::default());
        Sharing {
            shards,
            placed,
            worth,
            source_us: AtomicU64::new(0),
            making_us: AtomicU64::new(0),
            landing,
            user: User::own(),
            moving: AtomicUsize::new(0),
        }
    }

    pub(super) fn set_homes(&self, placed: Option<(Arc<Membership>, Arc<Homes>)>) {
        let mut known = self.placed.write();
        let before = known.take().map(|before| before.moved).unwrap_or_default();
        *known = placed.map(|(membership, homes)| {
            let moved = before.followed_by(&homes).into();
            Placed { membership, homes, moved }
        });
    }

    pub(super) fn set_worth(&self, worth: Option<Worth>) {
        *self.worth.write() = worth.map(|worth| (Arc::new(worth), Instant::now()));
    }

    /// Whether a member would keep a block.
    fn is_worth(&self, block: BlockId, member: u64) -> bool {
        let worth = self.worth.read().clone();
        worth.is_none_or(|(worth, since)| {
            worth.is_kept(block.0, member, since.elapsed().as_secs_f32())
        })
    }

    /// Sets how long the source takes at most, but for one read in a hundred, and how much longer to make a sample.
    pub(super) fn set_source_wait(&self, us: u64, making_us: u64) {
        self.source_us.store(us, Ordering::Relaxed);
        self.making_us.store(making_us, Ordering::Relaxed);
    }

    /// How long the source takes for a block at most, but for one in a hundred.
    fn source_wait(&self, at: &Located) -> Duration {
        let read_us = self.source_us.load(Ordering::Relaxed);
        let making_us = self.making_us.load(Ordering::Relaxed);
        Duration::from_micros(if at.version_has_size { read_us } else { read_us + making_us })
    }

    /// How long the right to bring a block lasts.
    fn lease(&self, at: &Located) -> Duration {
        LEASE_MIN.max(LEASE * self.source_wait(at))
    }

    /// How long a reader waits for a member that makes a sample before it is made here as well.
    pub(super) fn patience_for_making(&self) -> Duration {
        let us = [&self.source_us, &self.making_us].map(|us| us.load(Ordering::Relaxed));
        self.patience().max(Duration::from_micros(2 * us.iter().sum::<u64>()))
    }

    /// Whether members are given whole files.
    pub(super) fn gives_files(&self) -> bool {
        let on_disks =
            self.placed.read().as_ref().is_some_and(|placed| placed.homes.are_on_disks());
        !on_disks && self.worth.read().is_none()
    }

    /// What members are asked for.
    fn wanted(&self, membership: &Membership, at: &Located) -> Wanted {
        Wanted { key: key(membership, at), length: length_of(at), lease: self.lease(at) }
    }

    /// How long a reader waits for a member before the source is asked as well.
    pub(super) fn patience(&self) -> Duration {
        PATIENCE_MIN.max(PATIENCE * self.shards.usual_wait())
    }

    /// Counts blocks for which the source is asked as well.
    pub(super) fn note_passed_over(&self, blocks: u64) {
        if blocks > 0 {
            self.shards.note_passed_over(blocks);
        }
    }

    /// The homes, if a block may come from members.
    fn placed_for(&self, at: &Located) -> Option<Placed> {
        let may_come = at.may_have_copies() && self.user.may_read(at.rights);
        self.placed.read().clone().filter(|_| may_come)
    }

    /// A search for a block; `None` if no member may have it.
    pub(super) fn search(
        &self,
        block: BlockId,
        at: &Located,
        urgency: Urgency,
    ) -> Option<(Search, Wanted)> {
        let Placed { membership, homes, moved } = self.placed_for(at)?;
        let holders = homes.holders(block.0, moved.take(block));
        if holders.is_empty() {
            return None;
        }
        let patience = match urgency {
            Urgency::Demand => PATIENCE_MIN.max(PATIENCE * self.source_wait(at)),
            // The lease of a holder that is gone ends by then.
            Urgency::Prefetch => 2 * self.lease(at),
        };
        Some((Search::new(holders, patience), self.wanted(&membership, at)))
    }

    /// Whether a member may have a block.
    pub(super) fn may_have(&self, block: BlockId, at: &Located) -> bool {
        let placed = self.placed_for(at);
        placed.is_some_and(|placed| !placed.homes.holders(block.0, None).is_empty())
    }

    /// Asks a member. If it has the block, `deliver` is called by a thread that may block.
    pub(super) fn ask(
        &self,
        Question { member, lease, load, after }: Question,
        wanted: &Wanted,
        urgency: Urgency,
        deliver: impl FnOnce(Answer) + Send + 'static,
    ) {
        let landing = Arc::clone(&self.landing);
        let land = move |answer| match answer {
            Answer::Found(_) => landing.submit(urgency, move || deliver(answer)),
            Answer::Lacks(_) => deliver(answer),
        };
        let Wanted { key, length, lease: lasts } = *wanted;
        let (lease, deliver) = (lease.then_some(lasts), Box::new(land));
        self.shards.ask(Ask { member, key, length, lease, load, after, deliver });
    }

    /// Has a block that is read here move on to its next home, if it has not done so. If many are under way, it stays.
    pub(super) fn move_on(self: &Arc<Self>, block: BlockId, at: &Located, memory: &Memory) {
        let Some(Placed { membership, homes, moved }) = self.placed_for(at) else { return };
        if homes.moves().is_none() || self.moving.load(Ordering::Relaxed) >= MOVING_MOST {
            return;
        }
        let Some(epoch) = moved.take(block) else { return };
        let holders = homes.holders(block.0, Some(epoch));
        let Some(Holder { id: member, role: Role::Left }) = holders.first().copied() else {
            return;
        };
        let is_home = |holder: &&Holder| holder.role == Role::Home;
        let to = holders.iter().find(is_home).map(|home| home.id).into_iter().collect();
        let gift = Gift { to, left: Some(member) };
        let (sharing, memory, at) = (Arc::clone(self), memory.clone(), at.clone());
        let wanted = self.wanted(&membership, &at);
        self.moving.fetch_add(1, Ordering::Relaxed);
        self.ask(Question::for_bytes(member), &wanted, Urgency::Prefetch, move |answer| {
            sharing.moving.fetch_sub(1, Ordering::Relaxed);
            let Answer::Found(bytes) = answer else { return };
            if let Some(arrival) = memory.arrival(at.node, &Arc::new(Buffer::from(bytes))) {
                sharing.give(block, &gift, &at, &arrival);
            }
        });
    }

    /// Gives a block to members. When it is there, it leaves the member that it is to leave.
    pub(super) fn give(&self, block: BlockId, gift: &Gift, at: &Located, arrival: &Arrival) {
        let Some(Placed { membership, homes, .. }) = self.placed.read().clone() else { return };
        let (key, tells) = (key(&membership, at), homes.are_on_disks());
        if gift.to.is_empty() {
            return gift.left.into_iter().for_each(|member| self.shards.remove(member, key));
        }
        for member in gift.to.iter().filter(|member| self.is_worth(block, **member)) {
            let (member, bytes, held) = (*member, Arc::clone(&arrival.bytes), arrival.clone());
            let (left, done) = (gift.left, Box::new(move |_| drop(held)));
            self.shards.give(Give { member, key, bytes, done, left, tells });
        }
    }

    /// Nothing comes of a gift: others may bring the block.
    pub(super) fn give_up(&self, gift: &Gift, at: &Located) {
        if let Some(Placed { membership, .. }) = self.placed.read().clone() {
            let key = key(&membership, at);
            gift.to.iter().for_each(|member| self.shards.remove(*member, key));
        }
    }

    /// Puts a block into this node's own shard.
    pub(super) fn lend(
        &self,
        name: Key,
        at: &Located,
        bytes: Buffer,
        memory: &Memory,
        lending: Lending,
    ) {
        let placed = self.placed.read().clone();
        let placed = placed.filter(|placed| key(&placed.membership, at) == name);
        let Some(Placed { membership, .. }) = placed else { return lending.end(Lent::Missing) };
        let bytes = Arc::new(bytes);
        let Some(held) = memory.arrival(at.node, &bytes) else {
            return lending.end(Lent::Refused);
        };
        let done = move |is_stored: bool| {
            drop(held);
            lending.end(if is_stored { Lent::Given } else { Lent::Refused });
        };
        let (member, key, done) = (membership.own, name, Box::new(done));
        self.shards.give(Give { member, key, bytes, done, left: None, tells: false });
    }

    /// Asks this node's own shard for a block. If it has the block, `deliver` is called by a thread that may block.
    pub(super) fn ask_own(&self, at: &Located, deliver: impl FnOnce(Vec<u8>) + Send + 'static) {
        let Some(Placed { membership, .. }) = self.placed_for(at) else { return };
        let (member, at) = (membership.own, at.clone());
        let wanted = self.wanted(&membership, &at);
        self.ask(Question::for_bytes(member), &wanted, Urgency::Prefetch, move |answer| {
            if let Answer::Found(bytes) = answer
                && at.may_have(bytes.len())
            {
                deliver(bytes);
            }
        });
    }
}

/// What a member is asked for.
#[derive(Clone, Copy)]
pub(super) struct Wanted {
    key: Key,
    /// The bytes of the block, if they are known.
    length: Option<usize>,
    /// How long a lease lasts.
    lease: Duration,
}

/// The length of a block, if it is known.
fn length_of(at: &Located) -> Option<usize> {
    at.is_sized.then_some(at.length)
}

fn key(membership: &Membership, at: &Located) -> Key {
    let path = at.path.as_os_str().as_bytes();
    membership.keys.key(path, at.copied_version().lasting(), at.offset)
}
