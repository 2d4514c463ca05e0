//! Which sample is shown when: rounds, distances and probabilities, whatever readers and the buffer do.

use super::super::tests::chi_square::uniform;
use super::*;

fn supply(n: u32, distance: usize) -> Supply {
    let mut supply = Supply::new(3, 0, distance);
    supply.renew((0..n).map(SampleId));
    supply
}

fn take(supply: &mut Supply) -> u32 {
    let reservation = supply.reserve().unwrap();
    supply.take(reservation);
    reservation.sample.0
}

#[test]
fn each_round_takes_every_sample_once() {
    for (n, distance) in [(50, 20), (50, 50), (50, 1), (50, 0), (50, 200), (1, 5)] {
        let mut supply = supply(n, distance);
        for _ in 0..20 {
            let mut round: Vec<u32> = (0..n).map(|_| take(&mut supply)).collect();
            round.sort_unstable();
            assert!(round.into_iter().eq(0..n), "{n} {distance}");
        }
    }
    assert_eq!(supply(0, 3).reserve(), None);
}

/// Every taking was drawn ahead, even if names are looked up twice. The first takings of a round are
/// exceptions.
#[test]
fn takings_are_known_ahead() {
    for (n, distance) in [(200, 20), (40, 40)] {
        let (mut supply, mut ahead) = (supply(n, distance), HashSet::new());
        let mut unforeseen = 0;
        for _ in 0..10 * n {
            let looked = supply.reserve().unwrap();
            let found = supply.reserve().unwrap();
            supply.release(looked);
            supply.take(found);
            unforeseen += u32::from(!ahead.contains(&found.sample));
            ahead = supply.upcoming().collect();
        }
        assert!(unforeseen <= 40, "{unforeseen} of {}", 10 * n);
    }
}

/// Readers look names up and open what they find much later, or never.
#[test]
fn nothing_repeats_within_the_distance_whatever_readers_do() {
    for (n, distance, readers) in [(137, 64, 16), (40, 20, 8), (20, 12, 7), (9, 4, 4)] {
        let mut supply = supply(n, distance);
        let mut rng = CounterRng::new(1, Purpose::Offer, 9);
        let (mut held, mut last) = (Vec::new(), HashMap::new());
        for _ in 0..20_000 {
            if held.len() < readers {
                held.push(supply.reserve().unwrap());
            }
            let reservation: Reservation = held.swap_remove(rng.index(held.len()));
            match rng.below(4) {
                0 => supply.release(reservation),
                1 => held.push(reservation),
                _ => {
                    supply.take(reservation);
                    let now = supply.takings;
                    let gap = last
                        .insert(reservation.sample, now)
                        .map_or(u64::MAX, |before| now - before);
                    assert!(gap >= distance as u64, "{n} {distance}: {gap}");
                }
            }
        }
    }
}

/// All samples are taken equally often, although many are reserved and released. The first taking of a supply
/// is uniform.
#[test]
fn no_sample_is_favoured() {
    let mut counts = vec![0; 30];
    let mut supply = supply(30, 10);
    for turn in 0..60_000 {
        let reserved: Vec<Reservation> = (0..3).map(|_| supply.reserve().unwrap()).collect();
        counts[reserved[turn % 3].sample.0 as usize] += 1;
        for (at, reservation) in reserved.into_iter().enumerate() {
            if at == turn % 3 { supply.take(reservation) } else { supply.release(reservation) }
        }
    }
    let (most, least) = (*counts.iter().max().unwrap(), *counts.iter().min().unwrap());
    // A sample may be missed several times, but gets only one extra taking.
    assert!(most - least <= 20, "{counts:?}");
    let mut first = vec![0; 10];
    for number in 0..5000 {
        let mut supply = Supply::new(7, number, 4);
        supply.renew((0..10).map(SampleId));
        first[take(&mut supply) as usize] += 1;
    }
    uniform("the first of ten", &first);
}

#[test]
fn a_buffer_that_changes_is_followed() {
    let mut supply = supply(10, 3);
    for _ in 0..5 {
        take(&mut supply);
    }
    let held = supply.reserve().unwrap();
    supply.renew((5..20).map(SampleId));
    supply.take(held);
    let mut seen: Vec<u32> = (0..40).map(|_| take(&mut supply)).collect();
    assert!(seen.iter().all(|sample| (5..20).contains(sample)));
    seen.sort_unstable();
    seen.dedup();
    assert_eq!((seen.len(), supply.all.len()), (15, 15));
    supply.renew([]);
    assert_eq!((supply.reserve(), supply.is_empty()), (None, true));
    // All samples are reserved, but every reader gets one.
    supply.renew([SampleId(1)]);
    let reserved = [supply.reserve().unwrap(), supply.reserve().unwrap()];
    assert_eq!(reserved.map(|reservation| reservation.sample.0), [1, 1]);
    supply.take(reserved[0]);
    supply.release(reserved[1]);
    assert_eq!(take(&mut supply), 1);
}

/// Names that readers look up. As with the kernel, a sample that was found behind a name and not taken stays
/// reserved until the name is looked up again. Then the name is looked up twice.
struct Names {
    supply: Supply,
    found: Vec<Option<Reservation>>,
    /// Whether the first reservation is released only after the second look.
    late: bool,
}

impl Names {
    fn new(supply: Supply, names: usize, late: bool) -> Names {
        Names { supply, found: vec![None; names], late }
    }

    fn look(&mut self, name: usize) -> Reservation {
        if let Some(before) = self.found[name].take() {
            let first = self.supply.reserve().unwrap();
            let unused = [before, first];
            if !self.late {
                unused.into_iter().for_each(|reservation| self.supply.release(reservation));
            }
            self.found[name] = self.supply.reserve();
            if self.late {
                unused.into_iter().for_each(|reservation| self.supply.release(reservation));
            }
        } else {
            self.found[name] = self.supply.reserve();
        }
        self.found[name].unwrap()
    }

    /// Gives back the samples behind names.
    fn give_up(&mut self) {
        let found = self.found.iter_mut().filter_map(Option::take);
        found.for_each(|reservation| self.supply.release(reservation));
    }

    /// A sample that is opened stays behind the name, too.
    fn open(&mut self, name: usize) -> u32 {
        let found = self.look(name);
        self.supply.take(found);
        found.sample.0
    }
}

/// Opens few names many times. Each sample must be found equally often, and repeat only after nearly all
/// others.
#[track_caller]
fn open_few(mut names: Names, held: std::ops::Range<u32>) {
    let n = held.len();
    let (mut counts, mut last) = (HashMap::<u32, u32>::new(), HashMap::new());
    for turn in 0..100 * n {
        let sample = names.open(turn % 8);
        *counts.entry(sample).or_default() += 1;
        let gap = last.insert(sample, turn).map_or(usize::MAX, |before| turn - before);
        // The reader has one more sample.
        assert!(gap >= n - 2, "{sample} of {n} after {gap}");
    }
    let (most, least) = (counts.values().max().unwrap(), counts.values().min().unwrap());
    assert!(counts.keys().all(|sample| held.contains(sample)), "{counts:?}");
    assert!(counts.len() == n && most - least <= 5, "{counts:?}");
}

/// More names than samples. All names are looked up, then few of them are opened: all samples that can be
/// found are found. At last the samples that were never opened are released.
#[test]
fn samples_that_were_never_opened_are_drawn_like_the_rest() {
    for (n, late) in [(50, false), (50, true), (30, false), (30, true), (63, true)] {
        let mut names = Names::new(supply(n, 64), 64, late);
        (0..64).for_each(|name| _ = names.look(name));
        let found: HashSet<u32> = (0..2 * n as usize).map(|turn| names.open(turn % 8)).collect();
        assert!(found.len() + 1 >= n as usize, "{found:?} of {n}");
        names.give_up();
        open_few(names, 0..n);
    }
}

/// Half of the samples that were reserved and not taken are replaced by other samples.
#[test]
fn samples_that_left_the_buffer_are_not_reserved() {
    for late in [false, true] {
        let mut names = Names::new(supply(50, 64), 64, late);
        (0..64).for_each(|name| _ = names.look(name));
        names.supply.renew((25..75).map(SampleId));
        assert!((0..200).all(|turn| (25..75).contains(&names.open(turn % 8))));
        names.give_up();
        open_few(names, 25..75);
    }
}

/// A sample is taken after it was released, or two readers take the same sample.
#[test]
fn a_taking_counts_whoever_comes() {
    let mut supply = supply(10, 10);
    let late = supply.reserve().unwrap();
    supply.release(late);
    supply.take(late);
    assert!((0..9).all(|_| take(&mut supply) != late.sample.0), "it was taken");
    let mut one = Supply::new(3, 0, 2);
    one.renew((0..3).map(SampleId));
    let reserved: Vec<Reservation> = (0..4).map(|_| one.reserve().unwrap()).collect();
    assert_eq!(reserved[0].sample, reserved[3].sample, "the one that waits for the longest");
    one.take(reserved[0]);
    one.take(reserved[1]);
    one.take(reserved[3]);
    one.release(reserved[2]);
    assert_eq!(take(&mut one), reserved[2].sample.0);
    let others = HashSet::from([take(&mut one), take(&mut one)]);
    assert_eq!(others, HashSet::from([reserved[0].sample.0, reserved[1].sample.0]));
}

/// New samples have their chance in the round in which they come.
#[test]
fn newcomers_are_taken_in_proportion_to_what_is_left_of_the_round() {
    let mut counts = [0; 2];
    for number in 0..2000 {
        let mut supply = Supply::new(5, number, 1);
        supply.renew((0..8).map(SampleId));
        for _ in 0..4 {
            take(&mut supply);
        }
        supply.renew((0..9).map(SampleId));
        let left = supply.next.len() + supply.open.len();
        assert!(left == 4 || left == 5);
        counts[left - 4] += 1;
    }
    uniform("half a round is left", &counts);
}
