//! A block on its way.

use std::sync::Arc;

use super::attempts::Route;
use super::on_drop::NotifyOnDrop;
use super::{Cache, Waiter};
use crate::catalog::NodeId;
use crate::disk::Buffer;
use crate::ids::{BlockId, PageRange};

/// What a flight brings: a block of one version of its file, or some of its pages. Bytes of two versions
/// never meet.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Key {
    pub(super) block: BlockId,
    pub(super) node: NodeId,
    /// Which pages it brings; none: all of them.
    pub(super) pages: Option<PageRange>,
}

impl Key {
    pub(super) fn whole(block: BlockId, node: NodeId) -> Self {
        Key { block, node, pages: None }
    }
}

/// A block on its way. At most one flight brings a block of a version.
pub(super) enum Flight {
    /// Nothing has arrived yet.
    Fetching(Fetching),
    /// The bytes are here and being pushed.
    Pushing(Arc<Buffer>),
}

/// What waits for a block's bytes.
pub(super) struct Fetching {
    pub(super) waiters: Vec<Waiter>,
    /// Whether the bytes are to go to RAM; what readers wait for always is.
    pub(super) to_ram: bool,
    /// What the planner is owed for a copy in the local store that it wants.
    pub(super) placed: Option<NotifyOnDrop>,
    /// Where the bytes are asked for.
    pub(super) route: Route,
}

impl Fetching {
    /// A reader waits.
    pub(super) fn for_reader(waiter: Waiter) -> Self {
        Fetching { waiters: vec![waiter], ..Fetching::for_ram() }
    }

    /// Somebody waits for bytes that are not to be pushed: the kernel keeps what a reader of some pages is
    /// answered, and of what nobody reads it is to keep nothing.
    pub(super) fn for_reader_alone(waiter: Waiter) -> Self {
        Fetching { to_ram: false, ..Fetching::for_reader(waiter) }
    }

    /// The planner wants the block in RAM.
    pub(super) fn for_ram() -> Self {
        Fetching { waiters: Vec::new(), to_ram: true, placed: None, route: Route::default() }
    }

    /// The planner wants a copy in the local store alone.
    pub(super) fn for_store(placed: NotifyOnDrop) -> Self {
        Fetching { to_ram: false, placed: Some(placed), ..Fetching::for_ram() }
    }

    /// The bytes are to go to RAM, too. Whether that is news.
    pub(super) fn go_to_ram(&mut self) -> bool {
        !std::mem::replace(&mut self.to_ram, true)
    }
}

impl Cache {
    /// The bytes of a flight are here: what waits for them. Where they go to RAM, the flight goes on.
    pub(super) fn take_off(&self, key: Key, bytes: &Arc<Buffer>) -> Option<Fetching> {
        let mut flights = self.lock();
        match flights.remove(&key)? {
            Flight::Fetching(fetching) => {
                if fetching.to_ram {
                    flights.insert(key, Flight::Pushing(Arc::clone(bytes)));
                }
                Some(fetching)
            }
            // Only one job brings the bytes of a flight.
            pushing @ Flight::Pushing(_) => {
                flights.insert(key, pushing);
                None
            }
        }
    }
}
