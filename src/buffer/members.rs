//! Indexes of the samples that a buffer holds, for what policies ask: any sample, any sample of a class, the
//! highest rank, the largest class. Each answer and each change takes O(log n).

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::counter_rng::CounterRng;

/// A sample that was offered: the number of its offer, from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct SampleId(pub u32);

/// A class of samples. Dense from 0, in the order in which classes were first offered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ClassId(pub u32);

/// How much a buffer holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Capacity {
    Samples(u64),
    /// Bytes of encoded files.
    Bytes(u64),
}

impl Capacity {
    /// The limit, in samples or bytes.
    pub fn limit(self) -> u64 {
        match self {
            Capacity::Samples(limit) | Capacity::Bytes(limit) => limit,
        }
    }

    /// What a sample of `bytes` uses of the capacity.
    pub fn share(self, bytes: u64) -> u64 {
        match self {
            Capacity::Samples(_) => 1,
            Capacity::Bytes(_) => bytes,
        }
    }
}

/// A sample in a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Member {
    pub sample: SampleId,
    pub class: ClassId,
    /// The task during which it was offered.
    pub task: u32,
    /// Size of the encoded file in bytes.
    pub bytes: u64,
    /// The trainer's last score of it. The policy decides what it means.
    pub score: Option<f32>,
    /// How often it was shown again.
    pub replays: u32,
}

/// A member and its positions in the indexes.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct IndexedMember {
    pub(super) member: Member,
    rank: u64,
    at: usize,
    /// Index in its class.
    at_class: usize,
}

#[derive(Clone, Debug, Default, PartialEq)]
struct Class {
    samples: Vec<SampleId>,
    /// What its samples use of the capacity.
    used: u64,
}

/// The samples of a buffer.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Members {
    pub(super) capacity: Capacity,
    /// Whether ranks are compared within a class. Otherwise they are compared among all samples.
    by_class: bool,
    by_id: BTreeMap<SampleId, IndexedMember>,
    all: Vec<SampleId>,
    /// Every class that was ever offered.
    classes: BTreeMap<ClassId, Class>,
    by_rank: BTreeSet<(ClassId, u64, SampleId)>,
    by_count: BTreeSet<(usize, Reverse<ClassId>)>,
    used: u64,
}

impl Members {
    pub(super) fn new(capacity: Capacity, by_class: bool) -> Self {
        Members {
            capacity,
            by_class,
            by_id: BTreeMap::new(),
            all: Vec::new(),
            classes: BTreeMap::new(),
            by_rank: BTreeSet::new(),
            by_count: BTreeSet::new(),
            used: 0,
        }
    }

    /// Changes the capacity. All members stay, even if they exceed it.
    pub(super) fn resize(&mut self, capacity: Capacity) {
        self.capacity = capacity;
        self.used = 0;
        self.classes.values_mut().for_each(|class| class.used = 0);
        for IndexedMember { member, .. } in self.by_id.values() {
            let share = capacity.share(member.bytes);
            self.used += share;
            if let Some(class) = self.classes.get_mut(&member.class) {
                class.used += share;
            }
        }
    }

    /// The group within which the ranks of this class are compared.
    fn group(&self, class: ClassId) -> ClassId {
        if self.by_class { class } else { ClassId(0) }
    }

    /// Notes that a class was offered. It counts as a class even while none of its samples is held.
    pub(super) fn add_class(&mut self, class: ClassId) {
        self.classes.entry(class).or_default();
    }

    /// Whether a sample of `bytes` fits beside the members.
    pub(super) fn fits(&self, bytes: u64) -> bool {
        self.capacity.share(bytes) <= self.capacity.limit().saturating_sub(self.used)
    }

    pub(super) fn insert(&mut self, member: Member, rank: u64) {
        let Member { sample, class, bytes, .. } = member;
        self.remove(sample);
        let share = self.capacity.share(bytes);
        let held = self.classes.entry(class).or_default();
        self.by_count.remove(&(held.samples.len(), Reverse(class)));
        let indexed =
            IndexedMember { member, rank, at: self.all.len(), at_class: held.samples.len() };
        held.samples.push(sample);
        held.used += share;
        self.by_count.insert((held.samples.len(), Reverse(class)));
        self.used += share;
        self.all.push(sample);
        self.by_rank.insert((self.group(class), rank, sample));
        self.by_id.insert(sample, indexed);
    }

    pub(super) fn remove(&mut self, sample: SampleId) -> Option<Member> {
        self.take(sample).map(|indexed| indexed.member)
    }

    /// Takes a member out, with its positions.
    pub(super) fn take(&mut self, sample: SampleId) -> Option<IndexedMember> {
        let indexed = self.by_id.remove(&sample)?;
        let IndexedMember { member, rank, at, at_class } = indexed;
        let class = member.class;
        let share = self.capacity.share(member.bytes);
        self.used -= share;
        self.by_rank.remove(&(self.group(class), rank, sample));
        self.all.swap_remove(at);
        if let Some(moved) = self.all.get(at).and_then(|moved| self.by_id.get_mut(moved)) {
            moved.at = at;
        }
        if let Some(held) = self.classes.get_mut(&class) {
            self.by_count.remove(&(held.samples.len(), Reverse(class)));
            held.used -= share;
            held.samples.swap_remove(at_class);
            if let Some(moved) = held.samples.get(at_class).and_then(|s| self.by_id.get_mut(s)) {
                moved.at_class = at_class;
            }
            if !held.samples.is_empty() {
                self.by_count.insert((held.samples.len(), Reverse(class)));
            }
        }
        Some(indexed)
    }

    /// Puts back the member that was taken out last, and restores all positions.
    pub(super) fn put_back(&mut self, indexed: IndexedMember) {
        let IndexedMember { member: Member { sample, class, .. }, rank, at, at_class } = indexed;
        self.insert(indexed.member, rank);
        // The sample that moved to its position goes back to the end.
        let swap = |list: &mut Vec<SampleId>, at: usize| {
            let last = list.len().checked_sub(1)?;
            list.swap(at.min(last), last);
            list.get(last).copied().map(|moved| (moved, last))
        };
        let moved = swap(&mut self.all, at);
        let own = self.classes.get_mut(&class).map(|class| &mut class.samples);
        let moved_of_class = own.and_then(|own| swap(own, at_class));
        if let Some((moved, last)) = moved
            && let Some(moved) = self.by_id.get_mut(&moved)
        {
            moved.at = last;
        }
        if let Some((moved, last)) = moved_of_class
            && let Some(moved) = self.by_id.get_mut(&moved)
        {
            moved.at_class = last;
        }
        if let Some(own) = self.by_id.get_mut(&sample) {
            (own.at, own.at_class) = (at, at_class);
        }
    }

    /// Changes what is known of a member, and so its rank.
    pub(super) fn update(
        &mut self,
        sample: SampleId,
        change: impl FnOnce(&mut Member),
        rank: impl FnOnce(&Member) -> u64,
    ) -> bool {
        let Some(indexed) = self.by_id.get_mut(&sample) else { return false };
        let (class, before) = (indexed.member.class, indexed.rank);
        change(&mut indexed.member);
        indexed.rank = rank(&indexed.member);
        let after = indexed.rank;
        let group = self.group(class);
        self.by_rank.remove(&(group, before, sample));
        self.by_rank.insert((group, after, sample));
        true
    }

    pub(super) fn get(&self, sample: SampleId) -> Option<&Member> {
        Some(&self.by_id.get(&sample)?.member)
    }

    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    pub(super) fn used(&self) -> u64 {
        self.used
    }

    /// What the samples of a class use of the capacity.
    pub(super) fn used_by(&self, class: ClassId) -> u64 {
        self.classes.get(&class).map_or(0, |class| class.used)
    }

    pub(super) fn count(&self, class: ClassId) -> usize {
        self.classes.get(&class).map_or(0, |class| class.samples.len())
    }

    pub(super) fn classes(&self) -> impl ExactSizeIterator<Item = ClassId> {
        self.classes.keys().copied()
    }

    /// The class with the most samples, and their number. Of equal classes, the first.
    pub(super) fn largest(&self) -> Option<(ClassId, usize)> {
        self.by_count.last().map(|(count, Reverse(class))| (*class, *count))
    }

    /// The sample of the highest rank in the group of `class`.
    pub(super) fn last(&self, class: ClassId) -> Option<(u64, SampleId)> {
        let group = self.group(class);
        let range = (group, 0, SampleId(0))..=(group, u64::MAX, SampleId(u32::MAX));
        self.by_rank.range(range).next_back().map(|(_, rank, sample)| (*rank, *sample))
    }

    pub(super) fn any(&self, rng: &mut CounterRng) -> Option<SampleId> {
        self.all.get(rng.index(self.all.len())).copied()
    }

    pub(super) fn of_class(&self, class: ClassId, index: usize) -> Option<SampleId> {
        self.classes.get(&class)?.samples.get(index).copied()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Member> {
        self.by_id.values().map(|indexed| &indexed.member)
    }

    /// All members in the order in which [`Members::any`] counts them, each with its index in its class.
    /// Equal members can be rebuilt from these.
    pub(super) fn ordered(&self) -> impl Iterator<Item = (Member, usize)> {
        let indexed = self.all.iter().filter_map(|sample| self.by_id.get(sample));
        indexed.map(|indexed| (indexed.member, indexed.at_class))
    }

    /// Sorts the samples of each class by these indices.
    pub(super) fn reorder(&mut self, indices: &BTreeMap<SampleId, usize>) {
        for class in self.classes.values_mut() {
            class.samples.sort_by_key(|sample| indices.get(sample));
            for (at, sample) in class.samples.iter().enumerate() {
                if let Some(own) = self.by_id.get_mut(sample) {
                    own.at_class = at;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::counter_rng::Purpose;
    use super::*;

    fn member(sample: u32, class: u32, bytes: u64) -> Member {
        let (sample, class) = (SampleId(sample), ClassId(class));
        Member { sample, class, task: 0, bytes, score: None, replays: 0 }
    }

    /// Every answer equals that of a plain list of the members, after any changes.
    #[test]
    fn the_answers_are_those_of_a_plain_list() {
        let mut rng = CounterRng::new(5, Purpose::Offer, 0);
        let mut members = Members::new(Capacity::Bytes(1 << 20), true);
        let mut list: Vec<(Member, u64)> = Vec::new();
        for sample in 0..2000 {
            if rng.below(5) < 3 {
                let new = member(sample, rng.below(7) as u32, 1 + rng.below(100));
                let rank = rng.below(50);
                members.insert(new, rank);
                list.push((new, rank));
            } else if let Some(gone) = members.any(&mut rng) {
                let before = members.clone();
                let mut taken = Vec::new();
                for _ in 0..1 + rng.index(3) {
                    taken.extend(members.any(&mut rng).and_then(|sample| members.take(sample)));
                }
                taken.into_iter().rev().for_each(|indexed| members.put_back(indexed));
                assert!(members == before, "who was taken and put back has never been away");
                assert_eq!(members.remove(gone).map(|member| member.sample), Some(gone));
                assert_eq!(members.remove(gone), None);
                list.retain(|(member, _)| member.sample != gone);
            }
            assert_eq!((members.len(), members.iter().count()), (list.len(), list.len()));
            assert_eq!(members.used(), list.iter().map(|(m, _)| m.bytes).sum::<u64>());
            let counts = (0..7).map(|class| {
                let held = list.iter().filter(|(m, _)| m.class.0 == class);
                let count = held.clone().count();
                let last = held.map(|(m, rank)| (*rank, m.sample)).max();
                assert_eq!(members.count(ClassId(class)), count);
                assert_eq!(members.last(ClassId(class)), last);
                let found = (0..count).filter_map(|at| members.of_class(ClassId(class), at));
                assert!(
                    found.map(|s| members.get(s)).all(|m| m.is_some_and(|m| m.class.0 == class))
                );
                (count, Reverse(class))
            });
            let largest = counts.max().filter(|(count, _)| *count > 0);
            let largest = largest.map(|(count, Reverse(class))| (ClassId(class), count));
            assert_eq!(members.largest(), largest);
        }
        assert!(list.len() > 100);
    }
}
