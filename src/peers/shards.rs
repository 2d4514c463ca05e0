//! What the cache asks of the shards of a cluster.

use std::sync::Arc;
use std::time::Duration;

use super::status::{ClusterStatus, HomesStatus};
use super::values::{Key, Keys};
use crate::cluster::{Lack, Report, View};
use crate::disk::Buffer;
use crate::ids::BLOCK_BYTES;

/// The members of a cluster, as a node knows them.
#[derive(Clone, Debug)]
pub struct Membership {
    /// The id of this node. If it has a shard, it is a member of the view. Else it uses servers of others, which are.
    pub own: u64,
    pub view: View,
    pub keys: Keys,
}

impl Membership {
    /// Whether this node has a shard of its own.
    pub fn has_shard(&self) -> bool {
        self.view.members().iter().any(|member| member.id == self.own)
    }
}

/// What a member answers.
#[derive(Debug)]
pub enum Answer {
    /// The bytes of the block, compared with their checksum.
    Found(Vec<u8>),
    Lacks(Lack),
}

/// The longest copy that shards have, in bytes: of a block, or of a file that is shared as a whole.
pub const COPY_MOST: u64 = 4 * BLOCK_BYTES;

/// A question to a member for a block.
pub struct Ask {
    /// The id of the member.
    pub member: u64,
    pub key: Key,
    /// Bytes of the block, if it is known how many. Then a value of another length is none.
    pub length: Option<usize>,
    /// For how long the block is leased to this member if it is not there; `None` for no lease.
    pub lease: Option<Duration>,
    /// Whether its daemon is asked before the pause to bring the block from its disk.
    pub load: bool,
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
    /// Is called with whether the member has stored it, when the bytes are not needed any more. It must not block.
    pub done: Box<dyn FnOnce(bool) + Send>,
    /// The member that then removes it, if it has been stored.
    pub left: Option<u64>,
    /// Whether the member's daemon is told.
    pub tells: bool,
}

/// What daemons are told in a few words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Note {
    /// This node's shard has been given a block.
    Given(Key),
    /// A member asks for a block that this node's disk has.
    Asked(Key),
}

/// Takes notes. It must not block.
pub type TakeNote = Box<dyn Fn(Note) + Send + Sync>;

/// The value of a block in this node's own shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Listed {
    /// So many bytes of the block.
    Bytes(u32),
    /// A mark: the disk has it.
    Mark,
}

/// The shards of a cluster. No call blocks, but those that say so.
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

    /// Counts blocks for which the source was asked as well, since a reader had waited long for a member.
    fn note_passed_over(&self, blocks: u64);

    /// Whether this node's own shard has hardly any room left.
    fn is_full(&self) -> bool;

    /// Removes the blocks from this node's own shard that are not wanted, and returns how many were removed. Blocks.
    ///
    /// # Errors
    /// If the shard does not answer.
    fn sweep(&self, is_wanted: &dyn Fn(Key) -> bool) -> Result<u64, String>;

    /// Has the notes taken that other members send to this one.
    fn take_notes(&self, take: TakeNote);

    /// Lists what this node's own shard has. A block may be listed twice. Blocks.
    ///
    /// # Errors
    /// If the shard does not answer.
    fn list(&self, each: &mut dyn FnMut(Key, Listed)) -> Result<(), String>;

    /// Puts a mark into this node's own shard for each of these blocks: the disk has them. If they are new, whatever the
    /// shard has of them stays. Else the mark takes the place of the bytes. Blocks.
    ///
    /// # Errors
    /// If the shard does not answer.
    fn mark_on_disk(&self, blocks: &[Key], are_new: bool) -> Result<(), String>;

    /// Removes blocks from this node's own shard. Blocks.
    ///
    /// # Errors
    /// If the shard does not answer.
    fn forget(&self, blocks: &[Key]) -> Result<(), String>;

    /// Has the homes shown by which this node goes.
    fn note_homes(&self, homes: HomesStatus);

    /// Has the other members told what this node's readers do. Returns what the others have told, by their ids.
    fn exchange(&self, own: Report) -> Vec<(u64, Report)>;
}
