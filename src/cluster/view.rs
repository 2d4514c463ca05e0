//! The members of a cluster.

use super::mix;

/// A capacity is rounded down to this many binary digits. So a small change of it seldom moves homes.
const DIGITS: u32 = 9;

/// A node of the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    /// A number that tells it from all others, the same for all members.
    pub id: u64,
    /// Bytes that it holds for all. It has room for a fiftieth more.
    pub capacity: u64,
    /// The number of its rack, or of another set of members that are near to each other.
    pub group: u32,
}

/// The place of a member in a view.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MemberNo(pub u16);

/// Members, the same for all who know the same ones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View {
    /// Sorted by their ids. Their capacities are rounded.
    members: Vec<Member>,
}

impl View {
    /// The view of these members, in any order. Of two with one id, the smaller one counts. Those beyond the first
    /// 65,535 ids are left out.
    pub fn new(mut members: Vec<Member>) -> Self {
        members.sort_unstable_by_key(|member| (member.id, member.capacity, member.group));
        members.dedup_by_key(|member| member.id);
        members.truncate(usize::from(u16::MAX));
        members.iter_mut().for_each(|member| member.capacity = rounded(member.capacity));
        View { members }
    }

    pub fn members(&self) -> &[Member] {
        &self.members
    }

    pub fn member(&self, number: MemberNo) -> &Member {
        &self.members[usize::from(number.0)]
    }

    /// The numbers of all members.
    pub fn numbers(&self) -> impl Iterator<Item = MemberNo> {
        (0..self.members.len() as u16).map(MemberNo)
    }

    /// Bytes that all members hold.
    pub fn capacity(&self) -> u128 {
        self.members.iter().map(|member| u128::from(member.capacity)).sum()
    }

    /// A number that tells it from other views.
    pub fn id(&self) -> u64 {
        let parts = |member: &Member| [member.id, member.capacity, u64::from(member.group)];
        let parts = self.members.iter().flat_map(parts);
        let count = self.members.len() as u64 + 1;
        parts.fold(count, |id, part| mix(id.rotate_left(1) ^ mix(part)))
    }
}

fn rounded(capacity: u64) -> u64 {
    let unit = 1 << (u64::BITS - capacity.leading_zeros()).saturating_sub(DIGITS);
    capacity / unit * unit
}
