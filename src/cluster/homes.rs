//! Where one member looks for samples, and which of them its own shard is to hold.

use std::sync::Arc;

use super::moves::Moves;
use super::plan::{Plan, Samples};
use super::search::{Holder, Role};
use super::view::{MemberNo, View};

/// The homes of samples in a view, and those before.
#[derive(Clone, Debug)]
pub struct Homes {
    /// The id of the member that this is.
    own: u64,
    now: Arc<Placed>,
    before: Option<Earlier>,
}

/// Samples may still be at the homes that they had before.
#[derive(Clone, Debug)]
struct Earlier {
    placed: Arc<Placed>,
    /// The epoch in which none is there any more, if samples move now.
    until: u32,
}

#[derive(Debug)]
struct Placed {
    view: View,
    placing: Placing,
}

/// How samples are placed.
#[derive(Debug)]
enum Placing {
    /// Each has its home.
    Fixed(Plan),
    /// The same, and members hold samples on their disks, too.
    OnDisks(Plan),
    /// Each has its home, and members choose what they keep.
    All(Plan),
    /// They move to who reads them next.
    Moving(Moves),
}

impl Placed {
    fn id(&self, member: MemberNo) -> u64 {
        self.view.member(member).id
    }

    /// The members that may have a sample, for a read of this epoch by the member itself.
    fn holders(&self, own: u64, sample: u32, epoch: Option<u32>) -> Vec<Holder> {
        match &self.placing {
            Placing::Fixed(plan) | Placing::OnDisks(plan) | Placing::All(plan) => {
                self.fixed_holders(plan, own, sample)
            }
            Placing::Moving(moves) => moves.holders(sample, epoch, |member| self.id(member)),
        }
    }

    /// The nearer one of two homes is first.
    fn fixed_holders(&self, plan: &Plan, own: u64, sample: u32) -> Vec<Holder> {
        let holder = |home: Option<MemberNo>, role: Role| {
            home.map(|home| Holder { id: self.id(home), role })
        };
        let home = holder(plan.home(sample), Role::Home);
        let second = holder(plan.second_home(sample), Role::Second);
        let mut holders: Vec<Holder> = home.into_iter().chain(second).collect();
        if let [home, second] = holders[..] {
            let group = |id: u64| self.group(id);
            let is_near = |id: u64| group(id) == group(own) && group(home.id) != group(own);
            if second.id == own || home.id != own && is_near(second.id) {
                holders.reverse();
            }
        }
        holders
    }

    fn holds(&self, member: u64, sample: u32) -> bool {
        let is_it = |home: MemberNo| self.id(home) == member;
        match &self.placing {
            Placing::Fixed(plan) | Placing::OnDisks(plan) | Placing::All(plan) => {
                [plan.home(sample), plan.second_home(sample)].into_iter().flatten().any(is_it)
            }
            Placing::Moving(moves) => moves.homes(sample).any(is_it),
        }
    }

    fn group(&self, id: u64) -> Option<u32> {
        self.view.members().iter().find(|member| member.id == id).map(|member| member.group)
    }
}

impl Homes {
    /// The homes of samples in a view. `own` is the id of the member that asks.
    pub fn new(own: u64, view: &View, samples: Samples<'_>) -> Self {
        Homes::placed(own, view, Placing::Fixed(Plan::new(view, samples)))
    }

    /// The homes of samples in a view [with disks](View::for_bytes).
    pub fn on_disks(own: u64, view: &View, samples: Samples<'_>) -> Self {
        Homes::placed(own, view, Placing::OnDisks(Plan::new(view, samples)))
    }

    /// The homes of all samples, whether there is room for them or not.
    pub fn of_all(own: u64, view: &View, samples: Samples<'_>) -> Self {
        Homes::placed(own, view, Placing::All(Plan::of_all(view, samples)))
    }

    /// The homes of samples that move to who reads them next.
    pub fn moving(own: u64, view: &View, moves: Moves) -> Self {
        Homes::placed(own, view, Placing::Moving(moves))
    }

    fn placed(own: u64, view: &View, placing: Placing) -> Self {
        let now = Arc::new(Placed { view: view.clone(), placing });
        Homes { own, now, before: None }
    }

    /// These homes, after those of `earlier`. A sample has the same number in both. The earlier homes are remembered if that
    /// is worth it, and else those before them. If samples move, all that this member's ranks read have left earlier homes
    /// after two epochs.
    #[must_use]
    pub fn after(self, earlier: &Homes, is_worth: bool) -> Self {
        let epoch = self.moves().and_then(Moves::own_epoch);
        let until = epoch.map_or(u32::MAX, |epoch| epoch + 2);
        let before = match is_worth {
            true => Some(Earlier { placed: Arc::clone(&earlier.now), until }),
            false => {
                let before = earlier.before.clone();
                before.map(|before| Earlier { until: before.until.min(until), ..before })
            }
        };
        let is_over = |before: &Earlier| epoch.is_some_and(|epoch| epoch >= before.until);
        Homes { before: before.filter(|before| !is_over(before)), ..self }
    }

    /// The same homes, without earlier ones.
    #[must_use]
    pub fn settled(&self) -> Self {
        Homes { before: None, ..self.clone() }
    }

    pub fn own(&self) -> u64 {
        self.own
    }

    pub fn view(&self) -> &View {
        &self.now.view
    }

    /// The moves of samples to who reads them next; `None` if each stays at its home.
    pub fn moves(&self) -> Option<&Moves> {
        match &self.now.placing {
            Placing::Fixed(_) | Placing::OnDisks(_) | Placing::All(_) => None,
            Placing::Moving(moves) => Some(moves),
        }
    }

    /// Whether members hold samples on their disks, too.
    pub fn are_on_disks(&self) -> bool {
        matches!(self.now.placing, Placing::OnDisks(_))
    }

    /// Whether samples may still be at earlier homes.
    pub fn has_earlier(&self) -> bool {
        self.before.is_some()
    }

    /// The members that may have a sample, in the order in which they are asked; none if nobody holds it. `epoch` is that
    /// of the member's read, if the sample moves on with it.
    pub fn holders(&self, sample: u32, epoch: Option<u32>) -> Vec<Holder> {
        let mut holders = self.now.holders(self.own, sample, epoch);
        if holders.is_empty() {
            return holders;
        }
        let earlier = self.before.iter();
        let earlier = earlier.flat_map(|it| it.placed.holders(self.own, sample, None));
        let role = if epoch.is_some() { Role::Left } else { Role::Before };
        for Holder { id, role: was } in earlier {
            // Earlier second homes keep copies of what homes have.
            if was != Role::Second && !holders.iter().any(|holder| holder.id == id) {
                holders.push(Holder { id, role });
            }
        }
        holders
    }

    /// Whether this member's shard is to hold a sample.
    pub fn is_held_here(&self, sample: u32) -> bool {
        self.now.holds(self.own, sample)
    }

    /// Whether it was to hold the sample before, and members may still ask it for that.
    pub fn was_held_here(&self, sample: u32) -> bool {
        let is_earlier = |before: &Earlier| before.placed.holds(self.own, sample);
        let is_past = |home: MemberNo| self.now.id(home) == self.own;
        self.before.as_ref().is_some_and(is_earlier)
            || self.moves().and_then(|moves| moves.past(sample)).is_some_and(is_past)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::{EpochHomes, Member, mix};

    const COUNT: u32 = 4000;

    fn view(capacities: &[(u64, u64, u32)]) -> View {
        let member = |(id, capacity, group): &(u64, u64, u32)| Member {
            id: *id,
            capacity: *capacity,
            disk: 0,
            seed: 0,
            group: *group,
        };
        View::new(capacities.iter().map(member).collect())
    }

    fn with_samples<T>(then: impl FnOnce(Samples<'_>) -> T) -> T {
        let hashes: Vec<u64> = (0..COUNT).map(|nth| mix(u64::from(nth) + 7)).collect();
        then(Samples { hashes: &hashes, bytes: &vec![1000; COUNT as usize] })
    }

    /// The ids of those with a role.
    fn with(homes: &Homes, sample: u32, role: Role) -> Vec<u64> {
        let holders = homes.holders(sample, None).into_iter();
        holders.filter(|holder| holder.role == role).map(|holder| holder.id).collect()
    }

    fn home(homes: &Homes, sample: u32) -> u64 {
        with(homes, sample, Role::Home)[0]
    }

    #[test]
    fn a_home_is_asked_and_then_the_one_before() {
        let (two, three) =
            (view(&[(1, 3 << 20, 0), (2, 3 << 20, 0)]), view(&[(1, 2 << 20, 0), (3, 2 << 20, 0)]));
        let (earlier, homes) = with_samples(|samples| {
            let new = |view: &View| Homes::new(1, view, samples);
            let earlier = new(&two);
            let homes = new(&three).after(&earlier, true);
            // Other files, and a member that comes right after another one, change nothing of that.
            let homes = new(&three).after(&homes, false);
            let one = new(&view(&[(1, 2 << 20, 0)])).after(&homes, false);
            (earlier, new(&three).after(&one, false))
        });
        assert!(homes.has_earlier() && !homes.settled().has_earlier());
        let mut moved = 0;
        for sample in 0..COUNT {
            let (was, is) = (home(&earlier, sample), home(&homes, sample));
            assert!(is == 1 || is == 3);
            let second = with(&homes, sample, Role::Second);
            let expected = Some(was).filter(|was| *was != is && !second.contains(was));
            assert_eq!(with(&homes, sample, Role::Before), Vec::from_iter(expected));
            assert_eq!(with(&homes.settled(), sample, Role::Before), [0_u64; 0]);
            moved += u32::from(expected.is_some());
        }
        assert!(moved > COUNT / 3, "{moved}");
        // More samples than before: the new ones have no earlier home.
        let few = Samples { hashes: &[mix(7), mix(8)], bytes: &[1000, 1000] };
        let more = with_samples(|samples| {
            Homes::new(1, &three, samples).after(&Homes::new(1, &two, few), true)
        });
        assert_eq!(with(&more, COUNT - 1, Role::Before), [0_u64; 0]);
    }

    #[test]
    fn the_nearer_one_of_two_homes_is_asked_first() {
        let view = view(&[(1, 6 << 20, 0), (2, 6 << 20, 0), (3, 6 << 20, 1), (4, 6 << 20, 1)]);
        let all = with_samples(|samples| [1, 2, 3, 4].map(|own| Homes::new(own, &view, samples)));
        for homes in &all {
            let (own, mut here) = (homes.own(), 0);
            let group = |id: u64| u32::from(id > 2);
            for sample in 0..COUNT {
                let holders = homes.holders(sample, None);
                let [asked, other] = holders[..] else { panic!("{holders:?}") };
                assert!(group(asked.id) == group(own) && group(other.id) != group(own));
                let mut roles = [asked.role, other.role];
                roles.sort_by_key(|role| *role != Role::Home);
                assert_eq!(roles, [Role::Home, Role::Second]);
                let is_here = [asked.id, other.id].contains(&own);
                assert_eq!((homes.is_held_here(sample), asked.id == own), (is_here, is_here));
                here += u32::from(is_here);
            }
            assert!((1800..2200).contains(&here), "{here}");
        }
    }

    /// Who reads a sample in an epoch.
    fn reader(view: &View, sample: u32, epoch: u32) -> MemberNo {
        let draw = mix(u64::from(sample) << 32 | u64::from(epoch));
        MemberNo((draw % view.members().len() as u64) as u16)
    }

    fn moving(
        own: u64,
        view: &View,
        samples: Samples<'_>,
        first: u32,
        known: Option<&Homes>,
    ) -> Homes {
        let known = known.and_then(Homes::moves);
        let moves = Moves::from(first, known, |epoch| {
            EpochHomes::new(own, view, samples, |sample| Some(reader(view, sample, epoch)))
        });
        Homes::moving(own, view, moves)
    }

    #[test]
    fn a_sample_moves_to_who_reads_it_next() {
        let view = view(&[(1, 2 << 20, 0), (2, 2 << 20, 0), (3, 2 << 20, 0)]);
        with_samples(|samples| {
            let homes = moving(1, &view, samples, 5, None);
            let id = |sample: u32, epoch: u32| view.member(reader(&view, sample, epoch)).id;
            for sample in 0..COUNT {
                let moving = homes.moves().unwrap().moving();
                let reads = moving.filter(|(_, homes)| homes.is_read_here(sample));
                let reads: Vec<u32> = reads.map(|(epoch, _)| epoch).collect();
                let expected: Vec<u32> = (5..7).filter(|epoch| id(sample, *epoch) == 1).collect();
                assert_eq!(reads, expected);
                assert_eq!(homes.is_held_here(sample), (5..8).any(|epoch| id(sample, epoch) == 1));
                for epoch in reads {
                    let holders = homes.holders(sample, Some(epoch));
                    let next = id(sample, epoch + 1);
                    let role = if next == 1 { Role::Home } else { Role::Left };
                    assert_eq!(holders[0], Holder { id: 1, role }, "its reader has it");
                    assert!(holders.contains(&Holder { id: next, role: Role::Home }));
                }
                // A reader of another job leaves it where it is.
                let holders = homes.holders(sample, None);
                assert_eq!(holders[0].id, id(sample, 5));
                assert!(holders.iter().all(|holder| holder.role != Role::Left));
            }
        });
    }

    #[test]
    fn earlier_homes_are_left_and_forgotten_after_two_epochs() {
        let view = view(&[(1, 2 << 20, 0), (2, 2 << 20, 0), (3, 2 << 20, 0)]);
        with_samples(|samples| {
            let fixed = Homes::new(1, &view, samples);
            let begun = moving(1, &view, samples, 0, None).after(&fixed, true);
            let later = moving(1, &view, samples, 1, Some(&begun)).after(&begun, false);
            let last = moving(1, &view, samples, 2, Some(&later)).after(&later, false);
            assert!(begun.has_earlier() && later.has_earlier() && !last.has_earlier());
            let (_, first) = begun.moves().unwrap().moving().next().unwrap();
            let is_read = |sample: &u32| first.is_read_here(*sample);
            for sample in (0..COUNT).filter(is_read) {
                let holders = begun.holders(sample, Some(0));
                let was = home(&fixed, sample);
                assert!(holders.iter().any(|holder| holder.id == was), "{holders:?}");
            }
            // One that was not read where it was to be read is found there in the next epoch, and removed by a sweep.
            let stayed = (0..COUNT).filter(|sample| {
                let past = view.member(reader(&view, *sample, 1)).id;
                let holders = last.holders(*sample, None);
                holders.iter().any(|holder| holder.id == past)
            });
            assert_eq!(stayed.count(), COUNT as usize);
            // They stay where they are if the job ends.
            let ended = Homes::new(1, &view, samples).after(&last, true);
            assert!(ended.has_earlier());
            // A member without a rank hears of epochs late.
            let of_others = |epoch| {
                let moves = moving(1, &view, samples, epoch, None).moves().unwrap().clone();
                Homes::moving(1, &view, moves.of_others())
            };
            let left = of_others(0).after(&last, true);
            assert!(of_others(2).after(&left, false).has_earlier());
        });
    }
}
