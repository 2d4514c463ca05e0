//! The search for the seed of a permutation of which a few elements have been seen.
//!
//! `torch.randperm` draws its first element from the first output alone, and an output needs a
//! fraction of the state. So all 2^32 seeds can be tried: one pass leaves those whose element at one
//! place is right, one in `n`, and of these the elements after it are compared.

mod kernel;
mod mt;
#[cfg(test)]
mod tests;

use std::ops::Range;

use kernel::{Plan, Test};
use mt::{OUTPUTS_MAX, Outputs};

/// How many elements after the first are compared.
const COMPARED: usize = 3;

/// From so many elements on `torch.randperm` has another rule.
const N_MAX: u32 = u32::MAX / 20;

/// The instructions that a search is done with. All find the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Path {
    /// Those that every processor of this kind has.
    Baseline,
    /// 8 seeds a vector.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// 16 seeds a vector.
    #[cfg(target_arch = "x86_64")]
    Avx512,
}

impl Path {
    /// All that there are for this kind of processor, the slowest first.
    pub const ALL: &[Path] = &[
        Path::Baseline,
        #[cfg(target_arch = "x86_64")]
        Path::Avx2,
        #[cfg(target_arch = "x86_64")]
        Path::Avx512,
    ];

    /// Whether this very processor has it: exactly the features that its functions are compiled for.
    pub fn is_here(self) -> bool {
        match self {
            Path::Baseline => true,
            #[cfg(target_arch = "x86_64")]
            Path::Avx2 => is_x86_feature_detected!("avx2"),
            #[cfg(target_arch = "x86_64")]
            Path::Avx512 => is_x86_feature_detected!("avx512f"),
        }
    }

    /// The fastest that this processor has.
    pub fn best() -> Self {
        Path::ALL.iter().copied().rfind(|path| path.is_here()).unwrap_or(Path::Baseline)
    }

    /// Its name in lower case.
    pub fn name(self) -> &'static str {
        match self {
            Path::Baseline => "baseline",
            #[cfg(target_arch = "x86_64")]
            Path::Avx2 => "avx2",
            #[cfg(target_arch = "x86_64")]
            Path::Avx512 => "avx512",
        }
    }
}

/// What one reader's first opens say if it began at a certain place of a permutation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// How many elements are permuted.
    pub n: u32,
    /// Outputs of the generator before the permutation's first: 0, or 2 where the loader draws its
    /// base seed from the same generator.
    pub skip: u32,
    /// The place of the first element.
    pub place: u32,
    /// The elements in the order in which they were opened; more than four are not looked at.
    pub elements: Vec<u32>,
    /// How many places there may be from one of them to the next. One open may have been missed.
    pub reach: u32,
}

impl Target {
    /// The test of the first element, and of which output.
    ///
    /// At a later place the element may have been moved there by an earlier swap, in `place` of `n`
    /// cases; such a seed is missed.
    fn test(&self, number: u32) -> Option<(u32, Test)> {
        let modulus = self.n.checked_sub(self.place).filter(|left| *left > 1)?;
        let residue = self.elements.first()?.checked_sub(self.place)?;
        let output = self.skip.checked_add(self.place)?;
        let fits = self.n < N_MAX && residue < modulus && self.elements.len() > 1;
        fits.then(|| (output, Test::new(modulus, residue, number)))
    }

    /// Whether the seed's permutation has the elements one after the other: at least two, or all
    /// where there are fewer, after the first.
    pub fn fits(&self, seed: u32) -> bool {
        let count = self.elements.len().saturating_sub(1).min(COMPARED);
        let most = u64::from(self.place) + 1 + u64::from(self.reach) * count as u64;
        let most =
            most.min(u64::from(self.n)).min(u64::from(OUTPUTS_MAX - self.skip.min(OUTPUTS_MAX)));
        let mut head = Head::new(seed, self.skip, self.n, most as u32);
        let place = self.place as usize;
        if count == 0 || head.get(place) != self.elements.first().copied() {
            return false;
        }
        let (mut at, mut gap, mut found) = (place, 0, 0);
        for element in &self.elements[1..=count] {
            gap += self.reach as usize;
            if let Some(next) = (at + 1..=at + gap).find(|&at| head.get(at) == Some(*element)) {
                (at, gap) = (next, 0);
                found += 1;
            }
        }
        found >= count.min(2)
    }
}

/// The first elements of a permutation, made as they are asked for.
struct Head {
    outputs: Outputs,
    skip: u32,
    n: u32,
    /// How many elements it may have.
    most: u32,
    elements: Vec<u32>,
    /// What the swaps so far have left at the places that they chose.
    moved: Vec<(u32, u32)>,
}

impl Head {
    fn new(seed: u32, skip: u32, n: u32, most: u32) -> Self {
        let elements = Vec::with_capacity(32);
        Head { outputs: Outputs::new(seed), skip, n, most, elements, moved: Vec::with_capacity(32) }
    }

    fn at(&self, place: u32) -> u32 {
        self.moved.iter().rev().find(|moved| moved.0 == place).map_or(place, |moved| moved.1)
    }

    /// The element at a place; `None` from `most` on.
    fn get(&mut self, place: usize) -> Option<u32> {
        while self.elements.len() <= place {
            let next = self.elements.len() as u32;
            if next >= self.most {
                return None;
            }
            let left = self.n - next;
            // The last element is not drawn.
            let chosen = if left == 1 { 0 } else { self.outputs.get(self.skip + next) % left };
            let element = self.at(next + chosen);
            let own = self.at(next);
            self.elements.push(element);
            self.moved.push((next + chosen, own));
        }
        Some(self.elements[place])
    }
}

/// A seed that gives what was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Hit {
    pub seed: u32,
    /// The number of the target that it fits.
    pub target: u32,
}

/// A search for the seeds that fit any of some targets.
#[derive(Clone, Debug)]
pub struct SeedSearch {
    targets: Vec<Target>,
    plan: Plan,
}

impl SeedSearch {
    /// A search for these targets, many in one pass. Those that no seed can be found for are never
    /// hit: of one element only, or too far from the permutation's start.
    pub fn new(targets: Vec<Target>) -> Self {
        let numbered = (0u32..).zip(&targets);
        let tests: Vec<_> = numbered.filter_map(|(number, target)| target.test(number)).collect();
        SeedSearch { plan: Plan::new(&tests), targets }
    }

    pub fn targets(&self) -> &[Target] {
        &self.targets
    }

    /// The seeds of the range that fit, ascending, with the fastest instructions there are.
    pub fn run(&self, seeds: Range<u64>) -> Vec<Hit> {
        self.run_on(Path::best(), seeds)
    }

    /// The same with the instructions of a path; with the baseline where this processor lacks them.
    pub fn run_on(&self, path: Path, seeds: Range<u64>) -> Vec<Hit> {
        let count = seeds.end.min(1 << 32).saturating_sub(seeds.start);
        self.hits(path, count, |at| (seeds.start + at) as u32)
    }

    /// Those of these seeds that fit, ascending.
    pub(super) fn among(&self, seeds: &[u32]) -> Vec<Hit> {
        let seed = |at| seeds.get(at as usize).copied().unwrap_or_default();
        self.hits(Path::best(), seeds.len() as u64, seed)
    }

    /// The numbers are those below `count`; `seed` is also asked for a few beyond.
    fn hits(&self, path: Path, count: u64, seed: impl Fn(u64) -> u32) -> Vec<Hit> {
        let mut found = Vec::new();
        self.plan.run(path, count, seed, &mut found);
        found.retain(|&(seed, target)| self.targets[target as usize].fits(seed));
        found.sort_unstable();
        found.into_iter().map(|(seed, target)| Hit { seed, target }).collect()
    }
}
