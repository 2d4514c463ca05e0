use super::*;
use crate::order::samplers::torch::{generator, randperm};

/// What `count` opens of a reader are that began at `place`, `stride` apart.
fn target(seed: u32, n: u32, skip: u32, place: u32, stride: u32, count: u32) -> Target {
    let mut rng = generator(u64::from(seed));
    (0..skip).for_each(|_| _ = rng.next_u32());
    let perm = randperm(n, &mut rng);
    let elements = (0..count).map(|i| perm[(place + i * stride) as usize]).collect();
    Target { n, skip, place, elements, reach: stride.max(8) }
}

fn paths() -> impl Iterator<Item = Path> {
    Path::ALL.iter().copied().filter(|path| path.is_here())
}

/// A range around the seed that begins and ends at no multiple of anything.
fn around(seed: u32) -> Range<u64> {
    let seed = u64::from(seed);
    seed.saturating_sub(7_001)..(seed + 5_003).min(1 << 32)
}

#[test]
fn a_seed_is_found_on_every_path() {
    let cases = [
        (0, 50_000, 0, 0, 1),
        (42, 1_281_167, 0, 0, 1),
        (4_294_967_295, 65_536, 0, 0, 1),
        (2_147_483_648, 48, 0, 0, 1),
        (3_735_928_559, 5_000, 2, 0, 1),
        (123_456_789, 200_000, 0, 3, 8),
        (7, 1_000_000, 0, 63, 64),
        (987_654_321, 3, 0, 0, 1),
    ];
    for (seed, n, skip, place, stride) in cases {
        let search = SeedSearch::new(vec![target(seed, n, skip, place, stride, 3.min(n))]);
        for path in paths() {
            let hits = search.run_on(path, around(seed));
            assert!(hits.contains(&Hit { seed, target: 0 }), "{path:?} {seed} {n}: {hits:?}");
        }
    }
}

#[test]
fn all_paths_find_the_same() {
    // Small permutations, so that there is much to be found, of odd, even and round sizes.
    let sizes = [2, 3, 7, 8, 20, 31, 64, 96, 100, 127, 200];
    let targets = sizes.iter().enumerate().flat_map(|(number, &n)| {
        let number = number as u32;
        [target(number, n, 0, 0, 1, 3.min(n)), target(number, n, 2, 1, 1, 2.min(n - 1))]
    });
    let search = SeedSearch::new(targets.collect());
    let whole = search.run_on(Path::Baseline, 3..30_011);
    assert!(whole.len() > 1_000, "{}", whole.len());
    // Those that this processor does not have are the baseline.
    for &path in Path::ALL {
        assert_eq!(search.run_on(path, 3..30_011), whole, "{path:?}");
    }
    let mut parts = search.run(9_999..30_011);
    parts.splice(0..0, search.run(3..9_999));
    assert_eq!(parts, whole, "slices are put together again");
}

#[test]
fn what_is_found_is_what_fits() {
    let target = target(5, 40, 0, 0, 1, 4);
    let search = SeedSearch::new(vec![target.clone()]);
    let expected: Vec<u32> = (0..60_000).filter(|&seed| target.fits(seed)).collect();
    let hits: Vec<u32> = search.run(0..60_000).iter().map(|hit| hit.seed).collect();
    assert_eq!(hits, expected);
    assert!(hits.contains(&5) && hits.len() > 1);
}

#[test]
fn one_open_may_be_missing() {
    let mut missing = target(1234, 50_000, 0, 0, 1, 5);
    missing.elements.remove(2);
    assert!(missing.fits(1234));
    missing.elements.remove(2);
    missing.elements.truncate(3);
    let foreign = Target { elements: vec![missing.elements[0], 1, 2, 3], ..missing };
    assert!(!foreign.fits(1234));
}

#[test]
fn targets_that_say_nothing_are_never_hit() {
    let empty = Target { n: 0, skip: 0, place: 0, elements: vec![], reach: 8 };
    let targets = vec![
        empty.clone(),
        Target { n: 10, elements: vec![3], ..empty.clone() },
        Target { n: 10, place: 10, elements: vec![1, 2], ..empty.clone() },
        Target { n: 10, elements: vec![99, 2], ..empty.clone() },
        Target { n: u32::MAX, elements: vec![1, 2], ..empty.clone() },
        Target { n: 10_000, place: 9_000, elements: vec![9_100, 2], ..empty.clone() },
        Target { n: 10, skip: u32::MAX, elements: vec![1, 2], ..empty.clone() },
    ];
    let search = SeedSearch::new(targets.clone());
    assert!(search.run(0..5_000).is_empty());
    assert!(search.run(10..10).is_empty());
    for target in targets {
        assert!(!(0..100).any(|seed| target.fits(seed)), "{target:?}");
    }
}

#[test]
fn of_a_list_those_that_fit_are_found() {
    let target = target(5, 40, 0, 0, 1, 4);
    let search = SeedSearch::new(vec![target.clone()]);
    for many in [0, 1, 15, 300, 5_000] {
        let seeds: Vec<u32> = (0..many).map(|at: u32| at.wrapping_mul(0x9e37_79b9)).collect();
        let mut expected: Vec<u32> =
            seeds.iter().copied().filter(|&seed| target.fits(seed)).collect();
        expected.sort_unstable();
        let hits: Vec<u32> = search.among(&seeds).iter().map(|hit| hit.seed).collect();
        assert_eq!(hits, expected, "{many}");
    }
}
