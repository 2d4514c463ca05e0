//! The shards of a cluster, as a place that has blocks.
//!
//! 1. A block that the local store lacks is looked for at the members that may have it ([`Search`]).
//! 2. If none has it, the source is asked. If a reader waits and a member takes longer than usual, the source is asked
//!    as well ([`Cache::pass_over`](super::Cache::pass_over)).
//! 3. Bytes that surely are those of the version are given to the homes that lack them.
//!
//! Which members may have a block is found out apart, and read here.

use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::memory::Arrival;
use crate::catalog::Located;
use crate::cluster::{Homes, Search};
use crate::ids::BlockId;
use crate::peers::{Answer, Ask, Give, Key, Membership, Shards};
use crate::source::{Pool, Urgency};
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
pub(super) struct Placed {
    membership: Arc<Membership>,
    homes: Arc<Homes>,
}

pub(super) struct Sharing {
    shards: Arc<dyn Shards>,
    placed: RwLock<Option<Placed>>,
    /// How long the source usually takes, in microseconds.
    source_us: AtomicU64,
    landing: Arc<Pool>,
}

impl Sharing {
    pub(super) fn new(shards: Arc<dyn Shards>) -> Self {
        let landing = Pool::new("belady-landing", LANDINGS, LANDINGS).into();
        Sharing { shards, placed: RwLock::default(), source_us: AtomicU64::new(0), landing }
    }

    pub(super) fn set_homes(&self, placed: Option<(Arc<Membership>, Arc<Homes>)>) {
        let placed = placed.map(|(membership, homes)| Placed { membership, homes });
        *self.placed.write() = placed;
    }

    /// Sets how long the source takes at most, but for one read in a hundred.
    pub(super) fn set_source_wait(&self, us: u64) {
        self.source_us.store(us, Ordering::Relaxed);
    }

    fn source_wait(&self) -> Duration {
        Duration::from_micros(self.source_us.load(Ordering::Relaxed))
    }

    /// How long the right to bring a block lasts.
    fn lease(&self) -> Duration {
        LEASE_MIN.max(LEASE * self.source_wait())
    }

    /// How long a reader waits for a member before the source is asked as well.
    pub(super) fn patience(&self) -> Duration {
        PATIENCE_MIN.max(PATIENCE * self.shards.usual_wait())
    }

    /// A search for a block; `None` if no member may have it.
    pub(super) fn search(
        &self,
        block: BlockId,
        at: &Located,
        urgency: Urgency,
    ) -> Option<(Search, Key)> {
        let Placed { membership, homes } = self.placed.read().clone().filter(|_| at.is_sized)?;
        let holders = homes.holders(block.0)?;
        let patience = match urgency {
            Urgency::Demand => PATIENCE_MIN.max(PATIENCE * self.source_wait()),
            // The lease of a holder that is gone ends by then.
            Urgency::Prefetch => 2 * self.lease(),
        };
        Some((Search::new(holders, patience), key(&membership, at)))
    }

    /// Asks a member. If it has the block, `deliver` is called by a thread that may block.
    pub(super) fn ask(
        &self,
        (member, lease, after): (u64, bool, Duration),
        (key, length): (Key, usize),
        urgency: Urgency,
        deliver: impl FnOnce(Answer) + Send + 'static,
    ) {
        let landing = Arc::clone(&self.landing);
        let land = move |answer| match answer {
            Answer::Found(_) => landing.submit(urgency, move || deliver(answer)),
            Answer::Lacks(_) => deliver(answer),
        };
        let (lease, deliver) = (lease.then(|| self.lease()), Box::new(land));
        self.shards.ask(Ask { member, key, length, lease, after, deliver });
    }

    /// Gives a block to members.
    pub(super) fn give(&self, members: &[u64], at: &Located, arrival: &Arrival) {
        let Some(Placed { membership, .. }) = self.placed.read().clone() else { return };
        let key = key(&membership, at);
        for member in members {
            let (bytes, held) = (Arc::clone(&arrival.bytes), Box::new(arrival.clone()));
            self.shards.give(Give { member: *member, key, bytes, held });
        }
    }
}

fn key(membership: &Membership, at: &Located) -> Key {
    let path = at.path.as_os_str().as_bytes();
    membership.keys.key(path, at.fingerprint.lasting(), at.offset)
}
