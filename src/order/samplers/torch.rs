//! PyTorch's samplers on the CPU, as `torch.utils.data` of 1.13 to 2.x draws them.
//!
//! All randomness is mt19937 (Matsumoto and Nishimura 1998), seeded with the low 32 bits of the
//! seed. [`randperm`] is `torch.randperm` (ATen's `randperm_cpu`): a Fisher-Yates shuffle that
//! walks forward, one draw a step, reduced by plain modulo. The samplers differ only in which
//! generator the permutation comes from:
//!
//! - [`Distributed`] seeds a new generator with `seed + epoch` for every epoch;
//! - [`Random`] draws all epochs from one generator, which the loader itself uses as well.

use rand_mt::Mt;

/// From this many elements on `torch.randperm` shuffles by its second rule: UINT32_MAX / 20.
const LARGE: u32 = u32::MAX / 20;

/// Draws of the 64-bit base seed that a `DataLoader` takes for its workers.
const BASE_SEED_DRAWS: u64 = 2;

/// The generator that `torch.Generator().manual_seed(seed)` is on the CPU.
///
/// Only the low 32 bits of the seed count: 42 and 2^32 + 42 are the same.
pub fn generator(seed: u64) -> Mt {
    Mt::new(seed as u32)
}

/// `torch.randperm(n, generator=rng)`: a permutation of `0..n`; consumes [`randperm_draws`].
///
/// From 214,748,364 elements on this is the rule of torch since pytorch/pytorch#143682 (the end of
/// 2024); versions before it, 1.13 among them, shuffle any number by the rule for fewer.
pub fn randperm(n: u32, rng: &mut Mt) -> Vec<u32> {
    if n < LARGE { forward(n, rng) } else { inside_out(n, rng) }
}

/// How many 32-bit outputs of the generator [`randperm`] of `n` consumes.
pub fn randperm_draws(n: u32) -> u64 {
    if n < LARGE { u64::from(n.saturating_sub(1)) } else { 2 * u64::from(n) }
}

/// The rule for fewer than [`LARGE`] elements: step `i` swaps element `i` with one not before it.
fn forward(n: u32, rng: &mut Mt) -> Vec<u32> {
    let mut perm: Vec<u32> = (0..n).collect();
    let mut rest = perm.as_mut_slice();
    while rest.len() > 1 {
        let chosen = rng.next_u32() % rest.len() as u32;
        rest.swap(0, chosen as usize);
        rest = &mut rest[1..];
    }
    perm
}

/// The rule for [`LARGE`] elements and more: Fisher-Yates inside out with 64-bit draws, so that
/// the modulo stays close to uniform.
fn inside_out(n: u32, rng: &mut Mt) -> Vec<u32> {
    let mut perm: Vec<u32> = Vec::with_capacity(n as usize);
    for i in 0..n {
        // The first draw is the high word.
        let chosen = (rng.next_u64() % (u64::from(i) + 1)) as usize;
        perm.push(i);
        perm.swap(i as usize, chosen);
    }
    perm
}

/// `torch.utils.data.DistributedSampler` with what it was constructed with.
///
/// Epoch `k` is a permutation seeded with `seed + epoch + k`, filled up with its own beginning
/// (or, with `drop_last`, cut) to a multiple of `world`, of which the rank takes every
/// `world`-th from `rank` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Distributed {
    /// The sampler's `seed`; torch's default is 0.
    pub seed: u64,
    /// What the first epoch of the stream gives `set_epoch`.
    pub epoch: u64,
    /// The sampler's `num_replicas`: processes that share the epoch. Not 0.
    pub world: u32,
    /// The process of this stream, below `world`.
    pub rank: u32,
    /// Cut the epoch to a multiple of `world` instead of filling it up.
    pub drop_last: bool,
    /// Whether the sampler shuffles at all.
    pub shuffle: bool,
    /// Whether the script calls `set_epoch`; one that does not repeats its first epoch for ever.
    pub set_epoch: bool,
}

impl Default for Distributed {
    /// torch's defaults, in a world of one, with `set_epoch` called.
    fn default() -> Self {
        Distributed {
            seed: 0,
            epoch: 0,
            world: 1,
            rank: 0,
            drop_last: false,
            shuffle: true,
            set_epoch: true,
        }
    }
}

impl Distributed {
    /// How many positions the rank gets in an epoch over `n` samples; 0 when `drop_last` leaves
    /// nothing of a dataset smaller than the world.
    pub fn epoch_len(&self, n: u32) -> u32 {
        if self.drop_last { n / self.world } else { n.div_ceil(self.world) }
    }

    /// The rank's positions in the stream's epoch `k` over `n` samples: `epoch_len(n)` numbers
    /// below `n`, none twice.
    pub fn epoch(&self, n: u32, k: u32) -> Vec<u32> {
        // The padding goes round the permutation as often as it must, so the element at a place
        // beyond the end is the one at that place modulo n.
        let (n64, world) = (u64::from(n), u64::from(self.world));
        let places =
            (0..u64::from(self.epoch_len(n))).map(|i| (u64::from(self.rank) + i * world) % n64);
        if !self.shuffle {
            return places.map(|place| place as u32).collect();
        }
        let later = if self.set_epoch { u64::from(k) } else { 0 };
        let seed = self.seed.wrapping_add(self.epoch).wrapping_add(later);
        let perm = randperm(n, &mut generator(seed));
        if self.world == 1 {
            return perm;
        }
        places.map(|place| perm[place as usize]).collect()
    }
}

/// `DataLoader(shuffle=True, generator=torch.Generator().manual_seed(seed))`.
///
/// The loader, its `RandomSampler` and all epochs draw from this one generator. Every epoch has to
/// be read to its end: a loop that breaks off early draws less and shifts the epochs after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Random {
    /// What the generator was seeded with.
    pub seed: u64,
    /// Epochs that the generator has given before the stream's first, in the same process.
    pub epoch: u32,
    /// Whether the loader keeps its workers: it then draws their base seed once, not every epoch.
    pub persistent_workers: bool,
}

impl Random {
    /// A loader with this seed, from its first epoch on, without persistent workers.
    pub fn new(seed: u64) -> Self {
        Random { seed, epoch: 0, persistent_workers: false }
    }

    /// The loader over `n` samples, before the stream's first epoch.
    pub fn start(&self, n: u32) -> Loader {
        let mut loader = Loader { rng: generator(self.seed), n, random: *self, started: false };
        for _ in 0..self.epoch {
            loader.skip_epoch();
        }
        loader
    }
}

/// A running [`Random`]: the generator after some epochs.
#[derive(Clone, Debug)]
pub struct Loader {
    rng: Mt,
    n: u32,
    random: Random,
    started: bool,
}

impl Loader {
    /// The next epoch: a permutation of `0..n`.
    ///
    /// In the order of the draws: the base seed of the workers, the permutation, and at the end of
    /// the epoch another permutation of which `RandomSampler` uses nothing.
    pub fn next_epoch(&mut self) -> Vec<u32> {
        self.draw_base_seed();
        let perm = randperm(self.n, &mut self.rng);
        self.discard(randperm_draws(self.n));
        perm
    }

    /// Goes past the next epoch without making it.
    pub fn skip_epoch(&mut self) {
        self.draw_base_seed();
        self.discard(2 * randperm_draws(self.n));
    }

    fn draw_base_seed(&mut self) {
        if !self.started || !self.random.persistent_workers {
            self.discard(BASE_SEED_DRAWS);
        }
        self.started = true;
    }

    fn discard(&mut self, draws: u64) {
        for _ in 0..draws {
            self.rng.next_u32();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn randperm_is_torchs() {
        assert_eq!(randperm(10, &mut generator(0)), [4, 1, 7, 5, 3, 9, 0, 8, 6, 2]);
        assert_eq!(randperm(10, &mut generator(1)), [5, 6, 1, 2, 0, 8, 9, 3, 7, 4]);
        assert!(randperm(0, &mut generator(0)).is_empty());
        assert_eq!(randperm(1, &mut generator(0)), [0]);
    }

    #[test]
    fn randperm_consumes_what_it_says() {
        for n in [0, 1, 2, 1000] {
            let (mut a, mut b) = (generator(5), generator(5));
            randperm(n, &mut a);
            (0..randperm_draws(n)).for_each(|_| _ = b.next_u32());
            assert_eq!(a, b, "{n}");
        }
    }

    #[test]
    fn the_large_rule_is_atens_loop() {
        // r[i] = i; r[i] = r[z]; r[z] = i, as ATen writes it over an uninitialised array.
        let mut rng = generator(9);
        let mut expected = vec![u32::MAX; 500];
        for i in 0..expected.len() {
            let (high, low) = (u64::from(rng.next_u32()), u64::from(rng.next_u32()));
            let z = ((high << 32 | low) % (i as u64 + 1)) as usize;
            expected[i] = i as u32;
            expected[i] = expected[z];
            expected[z] = i as u32;
        }
        assert_eq!(inside_out(500, &mut generator(9)), expected);
        assert_eq!(LARGE, 214_748_364);
        assert_eq!(randperm_draws(LARGE), 2 * 214_748_364);
    }

    #[test]
    fn padding_goes_round_a_dataset_smaller_than_the_world() {
        let ranks: Vec<_> = (0..8)
            .map(|rank| Distributed { world: 8, rank, shuffle: false, ..Distributed::default() })
            .collect();
        let read: Vec<_> = ranks.iter().flat_map(|s| s.epoch(3, 0)).collect();
        assert_eq!(read, [0, 1, 2, 0, 1, 2, 0, 1]);
        let none = Distributed { drop_last: true, ..ranks[0] };
        assert!(none.epoch(3, 0).is_empty());
    }

    #[test]
    fn without_set_epoch_every_epoch_is_the_first() {
        let sampler = Distributed { set_epoch: false, epoch: 3, ..Distributed::default() };
        assert_eq!(sampler.epoch(100, 5), sampler.epoch(100, 0));
        let calling = Distributed { set_epoch: true, ..sampler };
        assert_eq!(sampler.epoch(100, 0), calling.epoch(100, 0));
        assert_ne!(calling.epoch(100, 1), calling.epoch(100, 0));
    }
}
