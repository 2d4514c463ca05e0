//! What the cache asks of the shards of a cluster.

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use super::status::ClusterStatus;
use super::values::{Key, Keys};
use crate::cluster::{Lack, Report, View};
use crate::disk::Buffer;

/// The members of a cluster, as one of them knows them.
#[derive(Clone, Debug)]
pub struct Membership {
    /// The id of this member.
    pub own: u64,
    pub view: View,
    pub keys: Keys,
}

/// What a member answers.
#[derive(Debug)]
pub enum Answer {
    /// The bytes of the block, compared with their checksum.
    Found(Vec<u8>),
    Lacks(Lack),
}

/// A question to a member for a block.
pub struct Ask {
    /// The id of the member.
    pub member: u64,
    pub key: Key,
    /// Bytes of the block. A value of another length is none.
    pub length: usize,
    /// For how long the block is leased to this member if it is not there; `None` for no lease.
    pub lease: Option<Duration>,
    /// The pause before the member is asked.
    pub after: Duration,
    /// Takes the answer. It must not block.
    pub deliver: Box<dyn FnOnce(Answer) + Send>,
}

/// A block that a member is to store.
pub struct Give {
    /// The id of the member.
    pub member: u64,
    pub key: Key,
    pub bytes: Arc<Buffer>,
    /// Is dropped when the bytes are not needed any more.
    pub held: Box<dyn Any + Send + Sync>,
    /// The member that then removes it, if it has been stored.
    pub left: Option<u64>,
}

/// The shards of a cluster. No call but `sweep` blocks.
pub trait Shards: Send + Sync + 'static {
    /// `None` as long as this node is no member.
    fn membership(&self) -> Option<Arc<Membership>>;

    /// Asks a member for a block. After the pause there is an answer within two seconds.
    fn ask(&self, ask: Ask);

    /// Has a member store a block. If it cannot, it does not.
    fn give(&self, give: Give);

    /// Has a member remove a block. If it cannot, it does not.
    fn remove(&self, member: u64, key: Key);

    /// What is known of the cluster, for people.
    fn status(&self) -> ClusterStatus;

    /// The time that an answer takes at most, but for one in a hundred.
    fn usual_wait(&self) -> Duration;

    /// Whether this node's own shard has hardly any room left.
    fn is_full(&self) -> bool;

    /// Removes the blocks from this node's own shard that are not wanted, and returns how many were removed. Blocks.
    ///
    /// # Errors
    /// If the shard does not answer.
    fn sweep(&self, is_wanted: &dyn Fn(Key) -> bool) -> Result<u64, String>;

    /// Notes by which view this node knows the homes of its blocks, the digest of its catalog, and the epoch of its readers
    /// if blocks move to who reads them next. Members with another digest share little.
    fn note_homes(&self, view: u64, digest: u64, moves_in: Option<u32>);

    /// Has the other members told what this node's readers do. Returns what the others have told, by their ids.
    fn exchange(&self, own: Report) -> Vec<(u64, Report)>;
}
