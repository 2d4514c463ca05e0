//! Searches that take longer than an observation may. Other threads run them, slice by slice.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use super::crack::{Hit, SeedSearch, Target};
use super::evidence::weigh;
use super::libraries::{lists, samplers};
use super::origin::{Generators, Origin};
use super::share::RANKS_MAX;
use super::told_orders::{self, ToldOrder};
use crate::order::samplers::Sampler;
use crate::order::samplers::torch::generator;
use crate::track::Sequence;

/// Seeds that scripts set, besides small ones.
const POPULAR: [u32; 40] = [
    64, 66, 69, 77, 99, 100, 101, 111, 123, 128, 200, 222, 233, 256, 314, 321, 333, 404, 420, 512,
    555, 666, 777, 888, 999, 1000, 1024, 1111, 1234, 1337, 2048, 3407, 4242, 9999, 12345, 31415,
    54321, 65536, 123456, 1234567,
];

/// How many small seeds are popular, and which years.
const SMALL: u32 = 50;
const YEARS: Range<u32> = 2015..2031;

/// More seeds for torch's default generator. They cost a thousandth of what they would in other libraries.
const FURTHER: [u32; 19] = [
    110, 122, 150, 300, 400, 500, 520, 600, 700, 800, 900, 1009, 1314, 2000, 2333, 5555, 7777,
    10_000, 19_260_817,
];
const FURTHER_SMALL: u32 = 100;
const FURTHER_YEARS: Range<u32> = 1990..2015;

/// How many outputs of the default generator may be the first epoch's seed. A script that makes its model on
/// the processor draws millions before it.
const DRAWN: usize = 4096;

/// How many outputs are given after one that is found: as a rule the seeds of a thousand epochs.
const AFTER: usize = 4096;

/// Bits of evidence that make a sampler's epoch a finding.
const FITS: f64 = 16.0;

/// Bits of evidence for a split beyond those that tell all splits apart.
const SPLITS: f64 = 20.0;

/// The usual shares that a side has of a list, in hundredths.
const SHARES: [u64; 19] = [1, 2, 5, 10, 15, 20, 25, 30, 40, 50, 60, 70, 75, 80, 85, 90, 95, 98, 99];

/// How many epochs of a generator are tried, and how many samples they may have together.
const FIRST_MAX: u32 = 8;
const SAMPLES_MAX: u64 = 1 << 28;

/// How many samples are drawn and compared in a slice: less than a tenth of a second on one core.
const SLICE_SAMPLES: u64 = 2_000_000;

/// Words of a generator's state.
const WORDS: usize = 624;
const MIDDLE: usize = 397;

/// A search through many units, each of which can be searched by itself.
///
/// [`Search::run`] on slices of [`Search::units`], on any threads and in any order, finds the same as one run
/// over all. Nothing is kept between runs.
#[derive(Clone, Debug)]
pub struct Search {
    kind: Kind,
    units: u64,
}

#[derive(Clone, Debug)]
enum Kind {
    /// Seeds whose epoch begins as the targets say.
    Beginning(SeedSearch),
    /// Seeds whose epoch has the elements of a target anywhere in it.
    Anywhere(Vec<Target>),
    /// Samplers with one of these epochs as the views read it.
    Library { samplers: Arc<[Sampler]>, epochs: Vec<u32>, views: Vec<View> },
    /// The same of the seeds that torch's default generator draws first, with these seeds of its own.
    Drawn(SeedSearch, Arc<[u32]>),
    /// Shuffled lists in which what the views read lies side by side, if `is_beginning` with more of it to come.
    Split { lists: Arc<[Sampler]>, views: Vec<View>, is_beginning: bool },
    /// Which of the first `outputs` outputs of torch's default generator are `value`.
    Output { value: u32, outputs: u64 },
}

/// What readers opened, as positions of one index.
#[derive(Clone, Debug)]
pub(super) struct View {
    /// Samples of the index.
    pub(super) n: u32,
    /// By reader, the positions that it opened; beyond `n` for samples that are not in the index.
    pub(super) readers: Vec<Vec<u32>>,
}

/// What a search found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finding {
    /// A seed fits a target.
    Seed { seed: u32, target: u32 },
    /// A seed that torch's default generator draws fits a target.
    Drawn {
        seed: u32,
        target: u32,
        /// The seed of the default generator.
        default: u32,
        /// Which of its outputs the seed is, counted from 0.
        at: u64,
        /// Its first outputs. The findings of a generator share them: in a small dataset thousands of
        /// seeds fit by chance.
        outputs: Arc<[u32]>,
    },
    /// An epoch of a sampler fits a view.
    Library { sampler: Sampler, epoch: u32, view: u32 },
    /// A view read this part of a shuffled list.
    Split { list: Sampler, view: u32, part: Range<u32> },
    /// Torch's default generator gives the value.
    Output {
        /// The seed of the default generator.
        seed: u32,
        /// Which of its outputs the value is, counted from 0.
        at: u64,
        /// The outputs after it.
        after: Arc<[u32]>,
    },
}

impl Search {
    /// For seeds below `seeds` whose epoch begins as one of the targets.
    pub(super) fn beginning(targets: Vec<Target>, seeds: u64) -> Self {
        Search { kind: Kind::Beginning(SeedSearch::new(targets)), units: seeds.min(1 << 32) }
    }

    /// For such seeds among the first that torch's default generator draws.
    pub(super) fn drawn(targets: Vec<Target>, orders: &[ToldOrder]) -> Self {
        // Of a seed torch takes the low half.
        let seeds = told_orders::seeds(orders).into_iter();
        let mut seeds: Vec<u32> = seeds.map(|seed| seed as u32).collect();
        seeds.extend(seeds_of_scripts());
        let units = seeds.len() as u64;
        Search { kind: Kind::Drawn(SeedSearch::new(targets), seeds.into()), units }
    }

    /// For seeds below `seeds` whose epoch has a target's elements one after the other, at any place.
    pub(super) fn anywhere(targets: Vec<Target>, seeds: u64) -> Self {
        Search { kind: Kind::Anywhere(targets), units: seeds.min(1 << 32) }
    }

    /// For samplers of other libraries than torch, with popular seeds, in one of these epochs.
    pub(super) fn library(views: Vec<View>, epochs: Vec<u32>) -> Self {
        Search::samplers(samplers(&popular()), epochs, views)
    }

    /// For samplers that these told orders may have meant, in one of these epochs or the first ones, of which a
    /// job may have left some out. `None` if there are no such samplers.
    pub(super) fn meant_by(
        orders: &[ToldOrder],
        epochs: BTreeSet<u32>,
        views: Vec<View>,
    ) -> Option<Self> {
        let meant = told_orders::meant(orders);
        let first = 0..epochs_within(meant.len(), &views, FIRST_MAX);
        let epochs: BTreeSet<u32> = epochs.into_iter().chain(first).collect();
        let epochs = epochs.into_iter().collect();
        (!meant.is_empty()).then(|| Search::samplers(meant, epochs, views))
    }

    /// For later epochs than the first of torch's samplers that draw all epochs from one generator.
    pub(super) fn later(orders: &[ToldOrder], views: Vec<View>) -> Self {
        let popular = popular().into_iter().map(u64::from);
        let seeds = told_orders::seeds(orders).into_iter().chain(popular);
        let seeds = seeds.take(epochs_within(4, &views, u32::MAX) as usize);
        let samplers: Vec<Sampler> = seeds.flat_map(told_orders::of_one_generator).collect();
        let epochs = (1..=epochs_within(samplers.len(), &views, FIRST_MAX)).collect();
        Search::samplers(samplers, epochs, views)
    }

    fn samplers(samplers: Vec<Sampler>, epochs: Vec<u32>, views: Vec<View>) -> Self {
        let units = samplers.len() as u64;
        Search { kind: Kind::Library { samplers: samplers.into(), epochs, views }, units }
    }

    /// For lists, shuffled with popular seeds, of which the views have read a part: all of it, or if
    /// `is_beginning`, some of a part of a usual size.
    pub(super) fn split(views: Vec<View>, is_beginning: bool) -> Self {
        let lists: Arc<[Sampler]> = lists(&popular()).into();
        let units = lists.len() as u64;
        Search { kind: Kind::Split { lists, views, is_beginning }, units }
    }

    /// For a value among the first `outputs` outputs of torch's default generator, with popular seeds.
    pub(super) fn output(value: u32, outputs: u64) -> Self {
        Search { kind: Kind::Output { value, outputs }, units: popular().len() as u64 }
    }

    /// How many units there are. A unit is a seed, a sampler, or a popular seed with its outputs.
    pub fn units(&self) -> u64 {
        self.units
    }

    /// How many units from this one on to search through at once: a tenth of a second on one core, or one unit
    /// if that takes longer, as a late epoch of a sampler does that draws all epochs before it. The first seeds
    /// are the likeliest and come in small slices, so that they are found at once.
    pub fn slice(&self, from: u64) -> u64 {
        match &self.kind {
            Kind::Beginning(_) => from.clamp(1 << 10, 1 << 20),
            Kind::Anywhere(targets) => {
                let samples: u64 = targets.iter().map(|target| u64::from(target.n)).sum();
                (20_000_000 / samples.max(1)).max(1)
            }
            Kind::Library { samplers, epochs, views } => {
                let mut left = SLICE_SAMPLES;
                let fits = |sampler: &&Sampler| {
                    let rest = left.checked_sub(drawn_of(sampler, epochs, views));
                    left = rest.unwrap_or(0);
                    rest.is_some()
                };
                let samplers = samplers.iter().skip(from as usize);
                samplers.take_while(fits).count().max(1) as u64
            }
            Kind::Split { views, .. } => {
                let samples: u64 = views.iter().map(|view| u64::from(view.n)).sum();
                (SLICE_SAMPLES / samples.max(1)).max(1)
            }
            Kind::Drawn(..) => 64,
            Kind::Output { .. } => 4,
        }
    }

    pub(super) fn orders_a_unit(&self) -> u64 {
        match &self.kind {
            Kind::Library { epochs, .. } => epochs.len() as u64,
            Kind::Drawn(..) => DRAWN as u64,
            _ => 1,
        }
    }

    /// Whether it goes through all seeds.
    pub fn is_of_all_seeds(&self) -> bool {
        matches!(self.kind, Kind::Beginning(_)) && self.units == 1 << 32
    }

    /// Searches through some of the units. The findings are in ascending order.
    pub fn run(&self, units: Range<u64>) -> Vec<Finding> {
        let units = units.start..units.end.min(self.units);
        match &self.kind {
            Kind::Beginning(search) => {
                let hits = search.run(units);
                let finding = |Hit { seed, target }| Finding::Seed { seed, target };
                hits.into_iter().map(finding).collect()
            }
            Kind::Anywhere(targets) => {
                let mut found = Vec::new();
                for unit in units {
                    anywhere(targets, unit as u32, &mut found);
                }
                found
            }
            Kind::Library { samplers, epochs, views } => {
                let samplers = samplers.iter().skip(units.start as usize).take(units.count());
                let all = samplers.flat_map(|sampler| epochs.iter().map(move |&k| (sampler, k)));
                all.flat_map(|(sampler, epoch)| fitting(sampler, epoch, views)).collect()
            }
            Kind::Split { lists, views, is_beginning } => {
                let tried = lists.len() * views.len();
                let some = lists.iter().skip(units.start as usize).take(units.count());
                some.flat_map(|list| splits(list, views, tried, *is_beginning)).collect()
            }
            Kind::Drawn(search, seeds) => {
                let seeds = seeds.iter().skip(units.start as usize).take(units.count());
                seeds.flat_map(|seed| drawn(search, *seed)).collect()
            }
            Kind::Output { value, outputs } => {
                let mut found = Vec::new();
                for seed in popular().into_iter().skip(units.start as usize).take(units.count()) {
                    for at in outputs_that_are(*value, seed, *outputs) {
                        let mut rng = generator(u64::from(seed));
                        (0..=at).for_each(|_| _ = rng.next_u32());
                        let after = (0..AFTER).map(|_| rng.next_u32()).collect();
                        found.push(Finding::Output { seed, at, after });
                    }
                }
                found
            }
        }
    }
}

/// How many first epochs of this many samplers are tried, at most `most`.
fn epochs_within(samplers: usize, views: &[View], most: u32) -> u32 {
    let samples: u64 = views.iter().map(|view| u64::from(view.n)).sum();
    let each = samples.saturating_mul(samplers as u64).max(1);
    (SAMPLES_MAX / each).clamp(1, most.into()) as u32
}

pub(super) fn popular() -> Vec<u32> {
    (0..SMALL).chain(YEARS).chain(POPULAR).collect()
}

/// All seeds that scripts are likely to give to torch's default generator.
fn seeds_of_scripts() -> BTreeSet<u32> {
    (0..FURTHER_SMALL).chain(FURTHER_YEARS).chain(FURTHER).chain(popular()).collect()
}

/// The seeds among the first outputs of the default generator that fit a target.
fn drawn(search: &SeedSearch, default: u32) -> Vec<Finding> {
    let mut rng = generator(u64::from(default));
    let outputs: Arc<[u32]> = (0..DRAWN + AFTER).map(|_| rng.next_u32()).collect();
    let finding = |Hit { seed, target }| {
        let at = outputs.iter().position(|output| *output == seed)? as u64;
        Some(Finding::Drawn { seed, target, default, at, outputs: Arc::clone(&outputs) })
    };
    search.among(&outputs[..DRAWN]).into_iter().filter_map(finding).collect()
}

/// Adds the targets whose elements come one after the other in the seed's permutation.
fn anywhere(targets: &[Target], seed: u32, found: &mut Vec<Finding>) {
    let mut made: Option<(u32, u32, Vec<u32>)> = None;
    for (number, target) in targets.iter().enumerate() {
        // Targets of the same permutation stand together.
        if made.as_ref().is_none_or(|(n, skip, _)| (*n, *skip) != (target.n, target.skip)) {
            let origin = Origin::Draw { seed, skip: u64::from(target.skip) };
            let positions = origin.positions(target.n, &Generators::default()).unwrap_or_default();
            made = Some((target.n, target.skip, positions));
        }
        let Some((_, _, positions)) = &made else { continue };
        if follow_each_other(positions, target) {
            found.push(Finding::Seed { seed, target: number as u32 });
        }
    }
}

/// Whether three of the elements are within reach one after the other, or at equal distances: of very many
/// ranks.
fn follow_each_other(positions: &[u32], target: &Target) -> bool {
    let Some(&first) = target.elements.first() else { return false };
    let Some(at) = positions.iter().position(|&element| element == first) else { return false };
    let reach = target.reach as usize * target.elements.len();
    let after = &positions[at + 1..];
    let near = &after[..after.len().min(reach)];
    let mut from = 0;
    let mut found = 0;
    for element in &target.elements[1..] {
        if let Some(next) = near[from..].iter().position(|other| other == element) {
            from += next + 1;
            found += 1;
        }
    }
    found >= 2 || is_in_steps(after, &target.elements[1..])
}

/// Whether the first two of the elements come at equal distances.
fn is_in_steps(after: &[u32], elements: &[u32]) -> bool {
    let [first, second, ..] = elements else { return false };
    let ranks = &after[..after.len().min(RANKS_MAX as usize)];
    let step = ranks.iter().position(|other| other == first);
    step.is_some_and(|step| after.get(2 * step + 1) == Some(second))
}

/// How many samples are drawn to compare a sampler's epochs with the views.
fn drawn_of(sampler: &Sampler, epochs: &[u32], views: &[View]) -> u64 {
    let views = views.iter().filter(|view| sampler.check(view.n).is_ok());
    let pairs = views.flat_map(|view| epochs.iter().map(|epoch| (view.n, *epoch)));
    let drawn = pairs.map(|(n, epoch)| sampler.draws_before(n, epoch).saturating_add(n.into()));
    drawn.fold(0, u64::saturating_add)
}

/// The views that a sampler's epoch fits, as findings.
fn fitting(sampler: &Sampler, epoch: u32, views: &[View]) -> Vec<Finding> {
    let fits = |view: &View| {
        let epochs = sampler.check(view.n).ok().map(|()| sampler.epochs(view.n).skip_epochs(epoch));
        let samples = epochs.and_then(|mut epochs| epochs.next());
        let sequence = Sequence::new(samples.unwrap_or_default());
        let readers = view.readers.iter().map(Vec::as_slice);
        weigh(readers, sequence.len(), |position| sequence.place(position)).bits >= FITS
    };
    let views = (0..).zip(views).filter(|(_, view)| fits(view));
    views.map(|(view, _)| Finding::Library { sampler: sampler.clone(), epoch, view }).collect()
}

/// The parts of a list that the views have read. `tried` pairs of a list and a view are looked at in all.
fn splits(list: &Sampler, views: &[View], tried: usize, is_beginning: bool) -> Vec<Finding> {
    let parts = |view: &View| -> Vec<Range<u32>> {
        let Some(positions) = list.epochs(view.n).next() else { return Vec::new() };
        let sequence = Sequence::new(positions);
        let places = || view.readers.iter().flatten().filter_map(|at| sequence.place(*at));
        let (Some(least), Some(most)) = (places().min(), places().max()) else { return Vec::new() };
        let read = least..most + 1;
        let (parts, among) = match is_beginning {
            true => (usual_parts(&read, view.n), 2 * SHARES.len()),
            false => (vec![read.clone()], (view.n - read.len() as u32 + 1) as usize),
        };
        // Samples that are drawn from the whole list are all of such a part by one chance in 2^bits.
        let bits = |len: usize| places().count() as f64 * (f64::from(view.n) / len as f64).log2();
        let needed = SPLITS + (tried as f64 * among as f64).log2();
        parts.into_iter().filter(|part| bits(part.len()) >= needed).collect()
    };
    let found =
        (0..).zip(views).flat_map(|(view, of)| parts(of).into_iter().map(move |p| (view, p)));
    found.map(|(view, part)| Finding::Split { list: list.clone(), view, part }).collect()
}

/// The smallest parts of a usual size, at either end of a list of `n`, that have all that was read. Some
/// scripts round the size down, others up.
fn usual_parts(read: &Range<u32>, n: u32) -> Vec<Range<u32>> {
    let sizes = |share: u64| {
        let hundredfold = u64::from(n) * share;
        let down = (hundredfold / 100) as u32;
        let up = hundredfold.div_ceil(100) as u32;
        std::iter::once(down).chain((up != down).then_some(up))
    };
    let has_all = |part: &Range<u32>| part.start <= read.start && read.end <= part.end;
    let of_share = |share| -> Vec<Range<u32>> {
        sizes(share).flat_map(|size| [0..size, n - size..n]).filter(has_all).collect()
    };
    SHARES.into_iter().map(of_share).find(|parts| !parts.is_empty()).unwrap_or_default()
}

/// The outputs of a seed's generator, of the first `count`, that are `value`. Whole states are made, and
/// compared before they are tempered, so that both loops are vectorised.
fn outputs_that_are(value: u32, seed: u32, count: u64) -> Vec<u64> {
    let mut rng = generator(u64::from(seed));
    let mut words = [0; WORDS];
    words.fill_with(|| untemper(rng.next_u32()));
    let wanted = untemper(value);
    let mut found = Vec::new();
    let mut from = 0;
    while from < count {
        if words.contains(&wanted) {
            let ats = (from..count).zip(&words).filter(|(_, word)| **word == wanted);
            found.extend(ats.map(|(at, _)| at));
        }
        twist(&mut words);
        from += WORDS as u64;
    }
    found
}

/// The next state of mt19937.
fn twist(words: &mut [u32; WORDS]) {
    let mix = |first: u32, second: u32, middle: u32| {
        let mixed = first & 1 << 31 | second & !(1 << 31);
        middle ^ mixed >> 1 ^ (second & 1).wrapping_neg() & 0x9908_b0df
    };
    let left = WORDS - MIDDLE;
    for at in 0..left {
        words[at] = mix(words[at], words[at + 1], words[at + MIDDLE]);
    }
    for at in left..WORDS - 1 {
        words[at] = mix(words[at], words[at + 1], words[at - left]);
    }
    words[WORDS - 1] = mix(words[WORDS - 1], words[0], words[MIDDLE - 1]);
}

/// The word of the state that an output was made from.
fn untemper(output: u32) -> u32 {
    let mut word = output ^ output >> 18;
    word ^= word << 15 & 0xefc6_0000;
    let mut whole = word;
    for _ in 0..4 {
        whole = word ^ whole << 7 & 0x9d2c_5680;
    }
    let mut out = whole;
    for _ in 0..2 {
        out = whole ^ out >> 11;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::order::samplers::torch::{Random, randperm};

    #[test]
    fn outputs_of_the_default_generator_are_found() {
        let mut rng = generator(1234);
        let outputs: Vec<u32> = (0..5_000).map(|_| rng.next_u32()).collect();
        for at in [0, 3, 623, 624, 4_999] {
            let value = outputs[at as usize];
            let search = Search::output(value, 5_000);
            let mut found = search.run(0..20);
            found.extend(search.run(20..u64::MAX));
            assert_eq!(found, search.run(0..search.units()));
            let next = (at + 1 < 5_000).then(|| outputs[at as usize + 1]);
            let is_it = |found: &Finding| match found {
                Finding::Output { seed: 1234, at: found, after } => {
                    *found == at && next.is_none_or(|next| after[0] == next)
                }
                _ => false,
            };
            assert!(found.iter().any(is_it), "{at}");
        }
        assert!(outputs_that_are(outputs[4_000], 1234, 4_000).is_empty());
    }

    #[test]
    fn the_beginning_of_a_side_shows_the_split() {
        let n = 1_003;
        let list = randperm(n, &mut generator(42));
        for (side, read) in [(0..802, &list[..802]), (0..803, &list[..803]), (802..n, &list[802..])]
        {
            let view = View { n, readers: vec![read.iter().step_by(5).copied().collect()] };
            let search = Search::split(vec![view], true);
            let found = search.run(0..search.units());
            let is_it =
                |found: &Finding| matches!(found, Finding::Split { part, .. } if *part == side);
            assert!(found.iter().any(is_it) && found.len() <= 2, "{side:?}: {found:?}");
        }
        let all = View { n, readers: vec![(0..200).map(|at| at * 5).collect()] };
        let search = Search::split(vec![all], true);
        assert_eq!(search.run(0..search.units()), []);
    }

    #[test]
    fn a_slice_is_short_where_much_has_to_be_drawn_first() {
        let one = Random::new(7);
        let samplers = vec![Sampler::TorchRandom(one); 100];
        let slice = |epoch, from| {
            let view = View { n: 10_000, readers: Vec::new() };
            Search::samplers(samplers.clone(), vec![epoch], vec![view]).slice(from)
        };
        assert_eq!([slice(0, 0), slice(0, 70), slice(0, 100)], [100, 30, 1]);
        assert_eq!((slice(5_000, 0), slice(u32::MAX, 99)), (1, 1));
        assert!((2..50).contains(&slice(4, 0)), "{}", slice(4, 0));
    }

    #[test]
    fn what_fits_by_chance_shares_the_outputs_of_its_generator() {
        let target = Target { n: 20, skip: 0, place: 0, elements: vec![3, 7], reach: 8 };
        let search = Search::drawn(vec![target], &[]);
        let found = search.run(0..search.units());
        assert!(found.len() > 1_000, "{}", found.len());
        let outputs = found.iter().map(|finding| match finding {
            Finding::Drawn { outputs, .. } => outputs.as_ptr(),
            other => panic!("{other:?}"),
        });
        assert_eq!(outputs.collect::<BTreeSet<_>>().len() as u64, search.units());
    }

    #[test]
    fn a_seed_is_found_from_the_middle_of_its_epoch() {
        let origin = Origin::Draw { seed: 42, skip: 2 };
        let elements =
            origin.positions(3_000, &Generators::default()).unwrap()[1_700..1_704].to_vec();
        let target =
            |skip| Target { n: 3_000, skip, place: 0, elements: elements.clone(), reach: 8 };
        let search = Search::anywhere(vec![target(0), target(2)], 100);
        assert_eq!(search.run(0..100), [Finding::Seed { seed: 42, target: 1 }]);
        assert!(search.run(50..90).is_empty());
    }
}
