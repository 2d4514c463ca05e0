//! What a node says of its cluster.

use serde::{Deserialize, Serialize};

/// What `belady status` and `belady cluster ls` show.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ClusterStatus {
    /// Why this node is no member at this moment; `None` if it is one.
    pub why: Option<String>,
    /// The server program, with its version.
    pub server: Option<String>,
    /// Where the other nodes reach this one.
    pub address: Option<String>,
    /// A number that is the same for all nodes that see the same members with the same capacities.
    pub view: Option<String>,
    /// The view by which samples are looked for at the nodes.
    pub placed: Option<String>,
    /// Whether nodes hold samples on their disks, too.
    pub on_disks: bool,
    /// The epoch of this node's readers, from 0, if samples move to the nodes that read them next.
    pub moves_in: Option<u32>,
    /// By address. All nodes of the cluster that are known, this one, too; or else the servers of others that nodes use.
    pub members: Vec<MemberStatus>,
    /// The nodes, if the members are servers that others administer.
    pub nodes: Option<NodesStatus>,
    pub traffic: TrafficStatus,
}

/// By what a node knows the homes of its blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HomesStatus {
    /// The id of the view.
    pub view: u64,
    /// The digest of its catalog. Members with another one share little.
    pub digest: u64,
    /// The epoch of its readers, if blocks move to who reads them next.
    pub moves_in: Option<u32>,
    /// Whether members hold blocks on their disks, too.
    pub on_disks: bool,
}

/// Counts of blocks that this node has asked shards for, and has given to them, since the mount.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TrafficStatus {
    /// Blocks that were found in this node's own shard.
    pub found_here: u64,
    pub found_bytes_here: u64,
    /// Blocks that were found in the shards of others.
    pub found: u64,
    pub found_bytes: u64,
    /// Questions for blocks that were not there.
    pub missing: u64,
    /// How often members were asked to bring a block from their disks.
    pub from_disks: u64,
    /// Questions for blocks that another node was bringing.
    pub waited: u64,
    /// Questions that were not answered, or not asked since the member had not answered before.
    pub silent: u64,
    /// Blocks for which the source was asked as well, since a reader had waited long for a member.
    pub passed_over: u64,
    /// Values that were not what had been stored.
    pub damaged: u64,
    /// Blocks that shards have taken from this node, and those that were refused.
    pub given: u64,
    pub given_bytes: u64,
    pub refused: u64,
    /// Blocks that this node has removed from shards, since they moved on to who reads them next.
    pub moved: u64,
    /// Microseconds that 99 of 100 answers did not exceed.
    pub p99_us: u64,
}

/// The nodes that use servers of others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct NodesStatus {
    /// All nodes that are known, this one, too.
    pub count: u64,
    /// Those whose catalogs have other files than this node's, or other numbers or times of files.
    pub differing: u64,
}

/// A node, as this one sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct MemberStatus {
    pub address: String,
    pub state: MemberState,
    pub group: String,
    /// Bytes of samples that its shard holds at most, and bytes that the shard takes.
    pub capacity: u64,
    pub used: u64,
    /// Bytes of samples that its disk holds at most, if the shards cannot hold all.
    pub disk: u64,
    /// Why it does not answer, if it does not.
    pub why: Option<String>,
    /// Whether its catalog has other files than this node's, or other numbers or times of files.
    pub differs: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MemberState {
    /// The node that was asked.
    Here,
    /// It is there.
    Member,
    /// Its shard is there, and it has not said anything of itself yet.
    Joining,
    /// It does not answer this node.
    Silent,
    /// Most nodes agree that it does not answer.
    Failed,
    /// It is in the list of nodes, and has not answered yet.
    #[default]
    #[serde(other)]
    Missing,
}

impl MemberState {
    pub fn is_there(self) -> bool {
        matches!(self, MemberState::Here | MemberState::Member)
    }

    /// The word that is shown.
    pub fn word(self) -> &'static str {
        match self {
            MemberState::Here => "here",
            MemberState::Member => "member",
            MemberState::Joining => "joining",
            MemberState::Silent => "silent",
            MemberState::Failed => "failed",
            MemberState::Missing => "missing",
        }
    }
}

impl ClusterStatus {
    /// How many nodes of belady are known, those that are missing, too.
    pub fn nodes_known(&self) -> u64 {
        self.nodes.map_or(self.members.len() as u64, |nodes| nodes.count)
    }

    /// How many nodes or servers are members, and how many are known.
    pub fn counts(&self) -> (usize, usize) {
        let there = self.members.iter().filter(|member| member.state.is_there());
        (there.count(), self.members.len())
    }
}
