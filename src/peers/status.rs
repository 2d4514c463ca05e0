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
    /// By address. All nodes of the cluster that are known, this one, too.
    pub members: Vec<MemberStatus>,
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
    /// Why it does not answer, if it does not.
    pub why: Option<String>,
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
    /// How many nodes are members, and how many are known.
    pub fn counts(&self) -> (usize, usize) {
        let there = self.members.iter().filter(|member| member.state.is_there());
        (there.count(), self.members.len())
    }
}
