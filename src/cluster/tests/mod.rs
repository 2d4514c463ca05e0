//! Plans of clusters of all kinds.

mod keeping;
mod searches;

use std::collections::HashSet;
use std::sync::Arc;

use super::*;

/// Hashes of so many samples, which have so many bytes each.
fn dataset(count: u32, bytes: u32) -> (Vec<u64>, Vec<u32>) {
    let hashes = (0..count).map(|nth| mix(u64::from(nth) + 1_000_000)).collect();
    (hashes, vec![bytes; count as usize])
}

fn view(capacities: &[u64], groups: u32) -> View {
    let member = |(nth, capacity): (usize, &u64)| Member {
        id: mix(nth as u64 + 1),
        capacity: *capacity,
        disk: 0,
        seed: 0,
        group: nth as u32 % groups,
    };
    View::new(capacities.iter().enumerate().map(member).collect())
}

/// Bytes at each member.
fn loads(plan: &Plan, view: &View, samples: Samples<'_>) -> Vec<u64> {
    let mut loads = vec![0; view.members().len()];
    for sample in 0..samples.hashes.len() as u32 {
        let (home, second) = (plan.home(sample), plan.second_home(sample));
        assert!(second.is_none() || home.is_some() && home != second);
        for member in home.into_iter().chain(second) {
            loads[usize::from(member.0)] += u64::from(samples.bytes[sample as usize]);
        }
    }
    loads
}

fn count_covered(plan: &Plan, samples: Samples<'_>) -> usize {
    (0..samples.hashes.len() as u32).filter(|sample| plan.home(*sample).is_some()).count()
}

#[test]
fn nothing_is_held_twice_before_all_is_held_once_and_no_member_is_overfull() {
    let (hashes, _) = dataset(20_000, 0);
    let bytes: Vec<u32> = hashes.iter().map(|hash| 1 + (hash >> 40) as u32 % 200_000).collect();
    let samples = Samples { hashes: &hashes, bytes: &bytes };
    let all: u64 = bytes.iter().map(|bytes| u64::from(*bytes)).sum();
    for weights in [&[1_u64, 1, 1, 1][..], &[1, 3, 1, 3], &[0, 1, 1, 1, 0, 9], &[1]] {
        for share in [0.1, 0.5, 1.0, 1.03, 1.5, 2.0, 4.0] {
            let sum: u64 = weights.iter().sum();
            let capacity = |weight: &u64| (all as f64 * share * *weight as f64 / sum as f64) as u64;
            let capacities: Vec<u64> = weights.iter().map(capacity).collect();
            let view = view(&capacities, 1);
            let plan = Plan::new(&view, samples);
            let loads = loads(&plan, &view, samples);
            let mut used = 0;
            for (member, load) in view.members().iter().zip(&loads) {
                assert!(*load <= member.capacity + member.capacity / 50);
                used += load;
            }
            let covered = count_covered(&plan, samples);
            let has_second = (0..20_000).any(|sample| plan.second_home(sample).is_some());
            assert!(!has_second || covered == 20_000);
            let usable = view.capacity() as u64;
            // The second home of a sample at a large member is at a small one, which may be full.
            let has_large = weights.iter().any(|weight| 2 * weight > sum);
            let wanted = if has_large { usable.min(all) } else { usable.min(2 * all) };
            assert!(
                used <= usable && used as f64 >= 0.99 * wanted as f64,
                "{weights:?} {share}: {used} of {wanted}"
            );
        }
    }
}

#[test]
fn all_members_find_the_same_plan_however_they_number_samples_and_members() {
    let (hashes, bytes) = dataset(5_000, 1000);
    let samples = Samples { hashes: &hashes, bytes: &bytes };
    let members = view(&[900_000, 1_300_000, 700_000], 2).members().to_vec();
    let plan = Plan::new(&View::new(members.clone()), samples);
    let mut turned = members.clone();
    turned.reverse();
    turned.push(members[0]);
    let reversed: Vec<u64> = hashes.iter().rev().copied().collect();
    let other = Plan::new(&View::new(turned), Samples { hashes: &reversed, bytes: &bytes });
    for sample in 0..5_000 {
        assert_eq!(plan.home(sample), other.home(4_999 - sample));
    }
}

#[test]
fn small_changes_of_capacity_move_nothing_and_a_view_is_told_by_its_number() {
    let capacities = [500 << 20, (500 << 20) + 1, (500 << 20) + (900 << 10)];
    let (one, other) = (view(&capacities, 1), view(&[500 << 20; 3], 1));
    assert_eq!((&one, one.id()), (&other, other.id()));
    let empty = View::new(Vec::new());
    let others = [view(&[501 << 20; 3], 1), view(&[500 << 20; 4], 1), view(&[500 << 20; 3], 2)];
    others.iter().chain([&empty]).for_each(|view| assert_ne!(view.id(), one.id()));
    assert_ne!(
        View::new(vec![Member { id: 0, capacity: 0, disk: 0, seed: 0, group: 0 }]).id(),
        empty.id()
    );
    assert_eq!(empty.capacity(), 0);
}

/// Of equal members with room, one goes, and comes back.
#[test]
fn a_member_that_goes_moves_only_its_own_share() {
    let (hashes, bytes) = dataset(16_000, 1000);
    let samples = Samples { hashes: &hashes, bytes: &bytes };
    let all = view(&[2_000_000; 16], 1);
    let fewer = View::new(all.members()[1..].to_vec());
    let (before, after) = (Plan::new(&all, samples), Plan::new(&fewer, samples));
    let id = |view: &View, member: Option<MemberNo>| member.map(|member| view.member(member).id);
    let moved = (0..16_000)
        .filter(|sample| id(&all, before.home(*sample)) != id(&fewer, after.home(*sample)));
    let lost = (0..16_000).filter(|sample| before.home(*sample) == Some(MemberNo(0)));
    assert_eq!(moved.count(), lost.count());
}

#[test]
fn second_homes_are_in_other_groups_first() {
    let (hashes, bytes) = dataset(10_000, 1000);
    let samples = Samples { hashes: &hashes, bytes: &bytes };
    let view = view(&[2_000_000; 8], 4);
    let plan = Plan::new(&view, samples);
    let group = |member: Option<MemberNo>| member.map(|member| view.member(member).group);
    let seconds = (0..10_000).filter(|sample| plan.second_home(*sample).is_some()).count();
    assert!((5_900..=6_000).contains(&seconds), "{seconds}");
    let near =
        (0..10_000).filter(|sample| group(plan.home(*sample)) == group(plan.second_home(*sample)));
    assert!(near.count() < 100);
}

#[test]
fn a_sample_goes_to_its_next_reader_if_there_is_room_and_else_stays_near() {
    let (hashes, bytes) = dataset(8_000, 1000);
    let samples = Samples { hashes: &hashes, bytes: &bytes };
    // Two groups of two, and one member has nothing to give.
    let view = view(&[0, 4_200_000, 4_200_000, 4_200_000], 2);
    let reader = |sample: u32| Some(MemberNo((hashes[sample as usize] >> 20) as u16 % 4));
    let plan = Plan::for_readers(&view, samples, reader);
    assert_eq!(count_covered(&plan, samples), 8_000);
    for sample in 0..8_000 {
        let (home, reader) = (plan.home(sample).unwrap(), reader(sample).unwrap());
        match view.member(reader).capacity {
            0 => assert_eq!(view.member(home).group, view.member(reader).group),
            _ => assert_eq!(home, reader),
        }
    }
    let small = self::view(&[500_000; 4], 1);
    let plan = Plan::for_readers(&small, samples, reader);
    let local = (0..8_000).filter(|sample| plan.home(*sample) == reader(*sample)).count();
    let covered = count_covered(&plan, samples);
    assert!(covered >= 1_980 && local as f64 > 0.95 * covered as f64, "{local} of {covered}");
    loads(&plan, &small, samples).iter().for_each(|load| assert!(*load <= 515_000));
}

#[test]
fn samples_of_all_sizes_find_room() {
    let (hashes, _) = dataset(2_000, 0);
    // Some have a third of a member, and one is larger than all members.
    let size = |nth: usize| match nth % 50 {
        0 => 330_000_000,
        _ => 100_000,
    };
    let mut bytes: Vec<u32> = (0..2_000).map(size).collect();
    bytes[7] = u32::MAX;
    let samples = Samples { hashes: &hashes, bytes: &bytes };
    let view = view(&[1_000_000_000; 20], 1);
    let plan = Plan::new(&view, samples);
    assert_eq!((count_covered(&plan, samples), plan.home(7)), (1_999, None));
    let loads = loads(&plan, &view, samples);
    assert!(loads.iter().all(|load| *load <= 1_020_000_000), "{loads:?}");
}

#[test]
fn extremes_are_no_panic() {
    let (hashes, _) = dataset(100, 0);
    for bytes in [0, 1, u32::MAX] {
        let bytes = vec![bytes; 100];
        let samples = Samples { hashes: &hashes, bytes: &bytes };
        for capacities in [&[][..], &[0], &[0, u64::MAX], &[u64::MAX; 3]] {
            let view = view(capacities, 2);
            let reader = |sample: u32| (sample.is_multiple_of(2)).then_some(MemberNo(0));
            for plan in [Plan::new(&view, samples), Plan::for_readers(&view, samples, |_| None)] {
                let all = capacities.contains(&u64::MAX) || bytes[0] == 0 && !capacities.is_empty();
                assert_eq!(count_covered(&plan, samples) == 100, all && view.capacity() > 0);
            }
            if !capacities.is_empty() {
                Plan::for_readers(&view, samples, reader);
            }
        }
    }
    let many =
        (0..70_000).map(|id| Member { id, capacity: 1, disk: 0, seed: 0, group: 0 }).collect();
    assert_eq!(View::new(many).members().len(), 65_535);
    let one = |capacity| Member { id: 5, capacity, disk: 0, seed: 0, group: 0 };
    assert_eq!(View::new(vec![one(9), one(4)]).members(), [one(4)]);
}

#[test]
fn disks_count_if_memory_does_not_suffice_and_they_hold_much_more() {
    let member =
        |id: u64, disk: u64, seed: u64| Member { id, capacity: 100 << 20, disk, seed, group: 0 };
    let with = |disks: [u64; 2]| View::new(vec![member(1, disks[0], 7), member(2, disks[1], 8)]);
    let (large, small) = (with([1 << 30, 0]), with([40 << 20, 1 << 20]));
    let more = 201 << 20;
    let (view, on_disks) = large.for_bytes(more);
    assert!(on_disks && view.capacity() > 1 << 30);
    assert_eq!(view.members()[1].capacity, 100 << 20, "without a disk its memory is as it was");
    // In all of these cases disks make no difference, not even to the number of the view.
    let memory = with([0, 0]).for_bytes(0).0;
    for (view, bytes) in [(&large, 200 << 20), (&small, more), (&with([0, 0]), more)] {
        assert_eq!(view.for_bytes(bytes), (memory.clone(), false));
    }
    let alone = View::new(vec![member(1, 1 << 30, 7)]);
    assert!(!alone.for_bytes(more).1);
    assert_eq!(view.for_bytes(u128::MAX), (view.clone(), false), "it has its disks already");
}

/// A node that comes back is another member. The samples on its disk are of use only if it has the same homes.
#[test]
fn members_with_the_same_seeds_have_the_same_homes() {
    let (hashes, bytes) = dataset(2_000, 1000);
    let samples = Samples { hashes: &hashes, bytes: &bytes };
    let homes = |ids: [u64; 3]| {
        let member =
            |(id, seed): (u64, u64)| Member { id, capacity: 1_500_000, disk: 0, seed, group: 0 };
        let view = View::new(ids.into_iter().zip([5, 6, 7]).map(member).collect());
        let plan = Plan::new(&view, samples);
        let seed = |home: Option<MemberNo>| home.map(|home| view.member(home).seed);
        let both = |nth: u32| [seed(plan.home(nth)), seed(plan.second_home(nth))];
        (0..2_000).map(both).collect::<Vec<_>>()
    };
    assert_eq!(homes([1, 2, 3]), homes([30, 1, 9]));
}

/// Members of one cluster may be of different builds, on different machines. They have to agree.
#[test]
fn a_plan_is_the_same_everywhere() {
    let (hashes, _) = dataset(3_000, 0);
    let bytes: Vec<u32> =
        hashes.iter().map(|hash| 50_000 + (hash >> 40) as u32 % 100_000).collect();
    let samples = Samples { hashes: &hashes, bytes: &bytes };
    let view = view(&[40_000_000, 120_000_000, 77_000_000, 205_000_000, 0], 2);
    let reader = |sample: u32| Some(MemberNo((hashes[sample as usize] >> 50) as u16 % 5));
    let digest = |plan: &Plan| {
        let number = |member: Option<MemberNo>| member.map_or(9, |member| u64::from(member.0));
        let places = (0..3_000).flat_map(|nth| [plan.home(nth), plan.second_home(nth)]);
        places.fold(0, |digest, place| mix(digest ^ number(place)))
    };
    let plans = [Plan::new(&view, samples), Plan::for_readers(&view, samples, reader)];
    let found = [view.id(), digest(&plans[0]), digest(&plans[1])];
    let known = [11_591_993_738_766_823_741, 4_275_939_041_546_976_634, 6_757_017_168_448_881_918];
    assert_eq!(found, known);
}
