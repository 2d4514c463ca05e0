//! Several jobs read the same samples, of which members hold a part, in virtual time.
//!
//! Goal: shards that each keep what is asked for soonest do nearly as well as one cache of their size that knows all.
//! Method: jobs somewhere in their epochs; what members know of each other is up to three seconds old, and they look at
//! their shards once a second.

use super::*;

/// Seconds of an epoch.
const EPOCH_S: u32 = 60;

/// How often records are written, in seconds.
const TOLD_EVERY: u32 = 3;

struct Jobs {
    samples: u32,
    offsets: Vec<u32>,
    orders: Vec<Vec<Vec<u32>>>,
}

impl Jobs {
    fn new(samples: u32, jobs: u32, epochs: u32, seed: u64) -> Self {
        let order = |job: u32, epoch: u32| {
            let mut order: Vec<u32> = (0..samples).collect();
            let salt = mix(seed << 16 ^ u64::from(job) << 8 ^ u64::from(epoch));
            order.sort_by_key(|sample| mix(u64::from(*sample) ^ salt));
            order
        };
        let orders = |job: u32| (0..epochs).map(|epoch| order(job, epoch)).collect();
        let offset = |job: u32| (mix(seed ^ u64::from(job)) % u64::from(samples)) as u32;
        Jobs {
            samples,
            offsets: (0..jobs).map(offset).collect(),
            orders: (0..jobs).map(orders).collect(),
        }
    }

    /// Samples that a job has read at a time, over all epochs.
    fn read(&self, job: usize, second: u32) -> u32 {
        self.offsets[job] + second * self.samples / EPOCH_S
    }

    /// The orders of all jobs, as the reader of one of them knows them, and where they were at a time.
    fn uses(&self, told: u32, own: usize) -> Uses {
        let job = |job: usize| {
            let read = self.read(job, told);
            let (epoch, position) = (read / self.samples, read % self.samples);
            let places = |epoch: u32| {
                let order = self.orders[job].get(epoch as usize).into_iter().flatten();
                let reads = order.zip(0..).map(|(sample, at)| (*sample as usize, 0, at));
                Arc::new(Places::new(self.samples as usize, reads))
            };
            let rate = self.samples as f32 / EPOCH_S as f32;
            let front = Front { epoch, position, length: self.samples, rate, is_own: job == own };
            JobUses {
                first: epoch,
                epochs: (epoch..epoch + 3).map(places).collect(),
                fronts: vec![vec![front]],
            }
        };
        Uses((0..self.offsets.len()).map(job).collect())
    }

    /// The share of reads that are hits, if members hold this share of the samples together.
    fn run(&self, members: u32, held: f64, epochs: u32) -> f64 {
        let capacity = (f64::from(self.samples) * held / f64::from(members)) as u64;
        let home = |sample: u32| (mix(u64::from(sample) + 77) % u64::from(members)) as usize;
        let mut shards = vec![HashSet::new(); members as usize];
        let mut horizons = vec![f32::INFINITY; members as usize];
        let (mut hits, mut all) = (0_u32, 0_u32);
        let mut told_at = 0;
        let known = |told: u32| -> Vec<Uses> {
            (0..self.offsets.len()).map(|own| self.uses(told, own)).collect()
        };
        let mut uses = known(0);
        let mut told_horizons = horizons.clone();
        for second in 0..epochs * EPOCH_S {
            if second % TOLD_EVERY == 0 {
                (told_at, uses) = (second, known(second));
                told_horizons.clone_from(&horizons);
            }
            let now = (second - told_at) as f32;
            for (job, uses) in uses.iter().enumerate() {
                for nth in self.read(job, second)..self.read(job, second + 1) {
                    let sample = self.orders[job][(nth / self.samples) as usize]
                        [(nth % self.samples) as usize];
                    let shard = home(sample);
                    let is_hit = shards[shard].contains(&sample);
                    if second >= (epochs - 2) * EPOCH_S {
                        (hits, all) = (hits + u32::from(is_hit), all + 1);
                    }
                    let horizons = told_horizons.iter().copied().zip(0..);
                    let horizons = horizons.map(|(horizon, member)| (member, horizon)).collect();
                    let worth = Worth { uses: uses.clone(), horizons };
                    if worth.is_kept(sample, shard as u64, now) {
                        shards[shard].insert(sample);
                    }
                }
            }
            for (shard, horizon) in shards.iter_mut().zip(&mut horizons) {
                let list: Vec<(u32, u32)> = shard.iter().map(|sample| (*sample, 1)).collect();
                let kept = Kept::of(&list, &uses[0], now + 1.0, capacity);
                shard.retain(|sample| !kept.dropped.contains(sample));
                *horizon = kept.horizon - now - 1.0;
            }
        }
        f64::from(hits) / f64::from(all)
    }
}

#[test]
fn shards_that_keep_what_is_asked_for_soonest_do_as_well_as_one_cache() {
    let mut sum = 0.0;
    for seed in 0..4 {
        sum += Jobs::new(4096, 3, 8, seed).run(8, 0.2, 6) / 4.0;
    }
    // One cache of that size that knows all has .49, and shards that hold the same samples all the time have .2.
    assert!(sum > 0.47, "{sum}");
}
