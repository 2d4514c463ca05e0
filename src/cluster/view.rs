//! The members of a cluster.

use super::mix;

/// A capacity is rounded down to this many binary digits. So a small change of it seldom moves homes. The room on a disk
/// follows what others write there.
const DIGITS: u32 = 9;
const DISK_DIGITS: u32 = 6;

/// The part of its memory that a member with a disk uses for samples that the disk does not have. The rest is for those on
/// their way to the disk and from it.
pub const BESIDE_DISK: (u64, u64) = (3, 4);

/// A node of the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    /// A number that tells it from all others, the same for all members.
    pub id: u64,
    /// Bytes that it holds for all. It has room for a fiftieth more.
    pub capacity: u64,
    /// Bytes that its disk holds for all, if memory does not suffice.
    pub disk: u64,
    /// The number by which the homes of samples are drawn. It lasts as long as the samples on the member's disk. 0: its id.
    pub seed: u64,
    /// The number of its rack, or of another set of members that are near to each other.
    pub group: u32,
}

/// The place of a member in a view.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MemberNo(pub u16);

/// Members, the same for all who know the same ones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View {
    /// Sorted by their ids. Their capacities and disks are rounded.
    members: Vec<Member>,
}

impl View {
    /// The view of these members, in any order. Of two with one id, the smaller one counts. Those beyond the first
    /// 65,535 ids are left out.
    pub fn new(mut members: Vec<Member>) -> Self {
        members.sort_unstable_by_key(|it| (it.id, it.capacity, it.disk, it.seed, it.group));
        members.dedup_by_key(|member| member.id);
        members.truncate(usize::from(u16::MAX));
        for member in &mut members {
            member.capacity = rounded(member.capacity, DIGITS);
            member.disk = rounded(member.disk, DISK_DIGITS);
        }
        View { members }
    }

    /// The view by which samples of so many bytes have their homes, and whether members hold some of them on their disks.
    /// They do if memory does not suffice, disks hold much more, and there is another member.
    pub fn for_bytes(&self, bytes: u128) -> (View, bool) {
        let in_memory = self.with(|member| member.capacity);
        let on_disks = self.with(|member| {
            let beside = member.capacity / BESIDE_DISK.1 * BESIDE_DISK.0;
            member.capacity.max(beside + member.disk)
        });
        let is_worth = on_disks.capacity() >= in_memory.capacity() / 8 * 9;
        match self.members.len() > 1 && bytes > in_memory.capacity() && is_worth {
            true => (on_disks, true),
            false => (in_memory, false),
        }
    }

    /// The same members without disks, with these capacities.
    fn with(&self, capacity: impl Fn(&Member) -> u64) -> View {
        let member = |member: &Member| Member { capacity: capacity(member), disk: 0, ..*member };
        View::new(self.members.iter().map(member).collect())
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
        let parts = |member: &Member| {
            let Member { id, capacity, disk, seed, group } = *member;
            [id, capacity, disk, seed, u64::from(group)]
        };
        let parts = self.members.iter().flat_map(parts);
        let count = self.members.len() as u64 + 1;
        parts.fold(count, |id, part| mix(id.rotate_left(1) ^ mix(part)))
    }
}

fn rounded(bytes: u64, digits: u32) -> u64 {
    let unit = 1 << (u64::BITS - bytes.leading_zeros()).saturating_sub(digits);
    bytes / unit * unit
}
