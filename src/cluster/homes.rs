//! Where one member looks for samples, and which of them its own shard is to hold.

use super::plan::{Plan, Samples};
use super::search::Holders;
use super::view::{MemberNo, View};

/// The plan of a view, and the one before.
#[derive(Debug)]
pub struct Homes {
    /// The id of the member that this is.
    own: u64,
    now: Placed,
    /// Samples may still be at the homes that they had before.
    before: Option<Placed>,
}

#[derive(Clone, Debug)]
struct Placed {
    view: View,
    plan: Plan,
}

impl Placed {
    fn new(view: &View, samples: Samples<'_>) -> Self {
        Placed { view: view.clone(), plan: Plan::new(view, samples) }
    }

    fn id(&self, member: MemberNo) -> u64 {
        self.view.member(member).id
    }

    fn home(&self, sample: u32) -> Option<u64> {
        self.plan.home(sample).map(|home| self.id(home))
    }

    fn second_home(&self, sample: u32) -> Option<u64> {
        self.plan.second_home(sample).map(|home| self.id(home))
    }

    fn holds(&self, member: u64, sample: u32) -> bool {
        [self.home(sample), self.second_home(sample)].contains(&Some(member))
    }

    fn group(&self, id: u64) -> Option<u32> {
        self.view.members().iter().find(|member| member.id == id).map(|member| member.group)
    }
}

impl Homes {
    /// The homes of samples in a view. `own` is the id of the member that asks.
    pub fn new(own: u64, view: &View, samples: Samples<'_>) -> Self {
        Homes { own, now: Placed::new(view, samples), before: None }
    }

    /// The homes in a later view, or of more samples. A sample keeps its number. The homes that it has now are its
    /// earlier ones then. If they were its homes only for a `short` time, or the view is the same, its earlier homes
    /// stay those that they are.
    pub fn followed_by(&self, view: &View, samples: Samples<'_>, short: bool) -> Self {
        let is_same = self.now.view == *view;
        let before = match short && self.is_moving() || is_same {
            true => self.before.clone(),
            false => Some(self.now.clone()),
        };
        Homes { before, ..Homes::new(self.own, view, samples) }
    }

    /// The same homes, without earlier ones.
    pub fn settled(&self) -> Self {
        Homes { own: self.own, now: self.now.clone(), before: None }
    }

    pub fn own(&self) -> u64 {
        self.own
    }

    pub fn view(&self) -> &View {
        &self.now.view
    }

    /// Whether samples may still be at earlier homes.
    pub fn is_moving(&self) -> bool {
        self.before.is_some()
    }

    /// Which members may have a sample; `None` if nobody holds it.
    pub fn holders(&self, sample: u32) -> Option<Holders> {
        let (home, second) = (self.now.home(sample)?, self.now.second_home(sample));
        // The nearer one of two homes is asked first.
        let group = |id: u64| self.now.group(id);
        let is_near = |id: u64| group(id) == group(self.own) && group(home) != group(self.own);
        let first = second.filter(|id| *id == self.own || home != self.own && is_near(*id));
        let second = second.filter(|_| first.is_none());
        let is_new = |id: &u64| *id != home && Some(*id) != first && Some(*id) != second;
        let before = self.before.as_ref().and_then(|before| before.home(sample)).filter(is_new);
        Some(Holders { home, first, second, before })
    }

    /// Whether this member's shard is to hold a sample.
    pub fn is_held_here(&self, sample: u32) -> bool {
        self.now.holds(self.own, sample)
    }

    /// Whether it was to hold the sample before, and members may still ask it for that.
    pub fn was_held_here(&self, sample: u32) -> bool {
        self.before.as_ref().is_some_and(|before| before.holds(self.own, sample))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::{Member, mix};

    const COUNT: u32 = 4000;

    fn view(capacities: &[(u64, u64, u32)]) -> View {
        let member = |(id, capacity, group): &(u64, u64, u32)| Member {
            id: *id,
            capacity: *capacity,
            group: *group,
        };
        View::new(capacities.iter().map(member).collect())
    }

    fn with_samples<T>(then: impl FnOnce(Samples<'_>) -> T) -> T {
        let hashes: Vec<u64> = (0..COUNT).map(|nth| mix(u64::from(nth) + 7)).collect();
        then(Samples { hashes: &hashes, bytes: &vec![1000; COUNT as usize] })
    }

    #[test]
    fn a_home_is_asked_and_then_the_one_before() {
        let (two, three) =
            (view(&[(1, 3 << 20, 0), (2, 3 << 20, 0)]), view(&[(1, 2 << 20, 0), (3, 2 << 20, 0)]));
        let (earlier, homes) = with_samples(|samples| {
            let earlier = Homes::new(1, &two, samples);
            let homes = earlier.followed_by(&three, samples, false);
            // Other files, and a member that comes right after another one, change nothing of that.
            let homes = homes.followed_by(&three, samples, false);
            let one = view(&[(1, 2 << 20, 0)]);
            let homes = homes.followed_by(&one, samples, true).followed_by(&three, samples, true);
            (earlier, homes)
        });
        assert!(homes.is_moving() && !homes.settled().is_moving());
        let mut moved = 0;
        for sample in 0..COUNT {
            let (was, is) = (earlier.holders(sample).unwrap(), homes.holders(sample).unwrap());
            assert!(is.home == 1 || is.home == 3);
            let expected = Some(was.home).filter(|was| *was != is.home);
            let second = [is.first, is.second].into_iter().flatten().next();
            assert_eq!(is.before, expected.filter(|was| Some(*was) != second));
            assert_eq!(homes.settled().holders(sample).unwrap().before, None);
            moved += u32::from(is.before.is_some());
        }
        assert!(moved > COUNT / 3, "{moved}");
        // More samples than before: the new ones have no earlier home.
        let few = Samples { hashes: &[mix(7), mix(8)], bytes: &[1000, 1000] };
        let more =
            with_samples(|samples| Homes::new(1, &two, few).followed_by(&three, samples, false));
        assert_eq!(more.holders(COUNT - 1).unwrap().before, None);
    }

    #[test]
    fn the_nearer_one_of_two_homes_is_asked_first() {
        let view = view(&[(1, 6 << 20, 0), (2, 6 << 20, 0), (3, 6 << 20, 1), (4, 6 << 20, 1)]);
        let all = with_samples(|samples| [1, 2, 3, 4].map(|own| Homes::new(own, &view, samples)));
        for homes in &all {
            let (own, mut here) = (homes.own(), 0);
            let group = |id: u64| u32::from(id > 2);
            for sample in 0..COUNT {
                let Holders { home, first, second, before } = homes.holders(sample).unwrap();
                let other = first.or(second).unwrap();
                assert!(group(other) != group(home) && before.is_none());
                let asked = first.unwrap_or(home);
                assert_eq!(group(asked), group(own), "{own} asks {asked} of {home} and {other}");
                let is_here = [home, other].contains(&own);
                assert_eq!((homes.is_held_here(sample), asked == own), (is_here, is_here));
                here += u32::from(is_here);
            }
            assert!((1800..2200).contains(&here), "{here}");
        }
    }
}
