//! Homes of samples.

use super::draw::Draw;
use super::mix;
use super::view::{Member, MemberNo, View};

/// For so many bytes of its capacity, a member has room for one more. A sample may arrive before another one has left,
/// and chance gives some members more than others.
pub const SPARE: u64 = 50;

/// No member.
const NONE: u16 = u16::MAX;

/// The samples of a dataset. Both lists have one length.
#[derive(Clone, Copy, Debug)]
pub struct Samples<'a> {
    /// The hash of each sample, the same for all members.
    pub hashes: &'a [u64],
    /// The bytes of each sample.
    pub bytes: &'a [u32],
}

/// Which members hold each sample. Samples have their places in [`Samples`] as numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    homes: Vec<u16>,
    second_homes: Vec<u16>,
}

/// Room that is left at members.
struct Room<'a> {
    view: &'a View,
    /// By member.
    left: Vec<u64>,
    /// Bytes that may still be used of all.
    all: u128,
    /// Bytes of the smallest sample.
    least: u32,
}

impl<'a> Room<'a> {
    fn of(view: &'a View, samples: Samples<'_>) -> Self {
        let left = view.members().iter().map(|member| room_of(member.capacity)).collect();
        let least = samples.bytes.iter().copied().min().unwrap_or_default();
        Room { view, left, all: view.capacity(), least }
    }

    fn has(&self, member: MemberNo, bytes: u32) -> bool {
        self.left[usize::from(member.0)] >= u64::from(bytes)
    }

    fn take(&mut self, member: MemberNo, bytes: u32) {
        self.left[usize::from(member.0)] -= u64::from(bytes);
        self.all = self.all.saturating_sub(u128::from(bytes));
    }

    /// A draw of all members, by their capacity.
    fn draw(&self) -> Draw {
        Draw::new(self.view.numbers().map(|number| {
            let Member { id, seed, capacity, .. } = *self.view.member(number);
            (number, if seed == 0 { id } else { seed }, capacity)
        }))
    }

    fn group(&self, member: MemberNo) -> u32 {
        self.view.member(member).group
    }

    /// Gives a sample to the winner among those that `may` have it and have room for it. A member that has no room for
    /// any sample takes no part any more.
    fn give(
        &mut self,
        draw: &mut Draw,
        (hash, bytes): (u64, u32),
        may: impl Fn(MemberNo) -> bool,
    ) -> Option<MemberNo> {
        let first = draw.winner(hash, &may)?;
        let winner = match self.has(first, bytes) {
            true => first,
            false => draw.winner(hash, |member| may(member) && self.has(member, bytes))?,
        };
        self.take(winner, bytes);
        if !self.has(winner, self.least) {
            draw.remove(winner);
        }
        Some(winner)
    }
}

impl Plan {
    /// The plan of a view if nobody knows who reads a sample next.
    pub fn new(view: &View, samples: Samples<'_>) -> Self {
        let covered = covered(view, samples);
        let mut plan = Plan::empty(samples);
        let mut room = Room::of(view, samples);
        let mut draw = room.draw();
        for sample in &covered {
            let home = room.give(&mut draw, samples.get(*sample), |_| true);
            plan.homes[*sample as usize] = number(home);
        }
        if covered.len() == samples.hashes.len() {
            plan.add_second_homes(&covered, samples, &mut room, &mut draw);
        }
        plan
    }

    /// A number that two equal plans have, and hardly two different ones.
    pub fn digest(&self) -> u64 {
        let homes = self.homes.iter().chain(&self.second_homes);
        homes.fold(0, |digest, home| mix(digest ^ u64::from(*home)))
    }

    /// The plan of a view if members choose what they keep: each sample has one home, whether there is room or not.
    pub fn of_all(view: &View, samples: Samples<'_>) -> Self {
        let (mut plan, draw) = (Plan::empty(samples), Room::of(view, samples).draw());
        for (home, hash) in plan.homes.iter_mut().zip(samples.hashes) {
            *home = number(draw.winner(*hash, |_| true));
        }
        plan
    }

    /// The plan of a view if it is known who reads each sample next: a member of the view. A reader that has no room
    /// leaves its samples to others, of its own group first. No sample has a second home.
    pub fn for_readers(
        view: &View,
        samples: Samples<'_>,
        reader: impl Fn(u32) -> Option<MemberNo>,
    ) -> Self {
        let mut plan = Plan::empty(samples);
        let (mut room, mut left) = (Room::of(view, samples), Vec::new());
        for sample in covered(view, samples) {
            let (_, bytes) = samples.get(sample);
            match reader(sample).filter(|reader| room.has(*reader, bytes)) {
                Some(reader) => {
                    room.take(reader, bytes);
                    plan.homes[sample as usize] = reader.0;
                }
                None => left.push(sample),
            }
        }
        let mut draw = room.draw();
        for sample in left {
            let group = reader(sample).map(|reader| room.group(reader));
            let is_near = |number| Some(view.member(number).group) == group;
            let near = room.give(&mut draw, samples.get(sample), is_near);
            let home = near.or_else(|| room.give(&mut draw, samples.get(sample), |_| true));
            plan.homes[sample as usize] = number(home);
        }
        plan
    }

    /// No sample has a home.
    fn empty(samples: Samples<'_>) -> Self {
        let none = vec![NONE; samples.hashes.len()];
        Plan { homes: none.clone(), second_homes: none }
    }

    /// Gives samples a second home as long as there is room, in another group if there is one.
    fn add_second_homes(
        &mut self,
        covered: &[u32],
        samples: Samples<'_>,
        room: &mut Room<'_>,
        draw: &mut Draw,
    ) {
        let view = room.view;
        for sample in covered {
            let (hash, bytes) = samples.get(*sample);
            if room.all < u128::from(bytes) {
                return;
            }
            let Some(home) = self.home(*sample) else { continue };
            let is_far = |number| view.member(number).group != view.member(home).group;
            let far = room.give(draw, (hash, bytes), is_far);
            let second = far.or_else(|| room.give(draw, (hash, bytes), |number| number != home));
            self.second_homes[*sample as usize] = number(second);
        }
    }

    /// The member that holds a sample; `None` if it is not covered, or unknown.
    pub fn home(&self, sample: u32) -> Option<MemberNo> {
        self.homes.get(sample as usize).copied().and_then(member)
    }

    /// Another member that holds it, too.
    pub fn second_home(&self, sample: u32) -> Option<MemberNo> {
        self.second_homes.get(sample as usize).copied().and_then(member)
    }
}

impl Samples<'_> {
    fn get(&self, sample: u32) -> (u64, u32) {
        (self.hashes[sample as usize], self.bytes[sample as usize])
    }
}

fn number(member: Option<MemberNo>) -> u16 {
    member.map_or(NONE, |member| member.0)
}

fn member(number: u16) -> Option<MemberNo> {
    (number != NONE).then_some(MemberNo(number))
}

/// The room of a member with this capacity.
fn room_of(capacity: u64) -> u64 {
    capacity.saturating_add(capacity / SPARE)
}

/// The samples that members hold, in the order of their hashes: as many as fit. One that fits nowhere is left out.
fn covered(view: &View, samples: Samples<'_>) -> Vec<u32> {
    let mut sorted: Vec<(u64, u32, u32)> = Vec::with_capacity(samples.hashes.len());
    let all = samples.hashes.iter().zip(samples.bytes).zip(0..);
    sorted.extend(all.map(|((hash, bytes), sample)| (*hash, *bytes, sample)));
    sorted.sort_unstable();
    let most = view.members().iter().map(|member| room_of(member.capacity)).max();
    let has_room = |bytes: u32| most.is_some_and(|most| u64::from(bytes) <= most);
    let mut left = view.capacity();
    let fits = |(_, bytes, _): &(u64, u32, u32)| {
        let fits = u128::from(*bytes) <= left;
        left = left.saturating_sub(u128::from(*bytes));
        fits
    };
    let small = sorted.into_iter().filter(|(_, bytes, _)| has_room(*bytes));
    small.take_while(fits).map(|(_, _, sample)| sample).collect()
}
