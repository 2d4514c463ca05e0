//! Loaders of random worlds, looked at as the profiler looks at them.
//!
//! A world has workers whose batches take random times. Each worker and the trainer is looked at every 20 ms. The truth is
//! what the same world gives if a part of it takes no time.

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::{Bottleneck, Epoch, Finding, Loader, Looks, State, TrainerLooks};

const LOOK_EVERY: f64 = 0.02;

/// When a worker's states end, in their order.
type Ends = Vec<(f64, State)>;

/// The times of each batch.
struct World {
    workers: usize,
    starting: f64,
    /// Preparation and fetch of each batch.
    work: Vec<(f64, f64)>,
    step: f64,
}

impl World {
    fn random(rng: &mut StdRng) -> Self {
        let mut spread = |low: f64, high: f64| low * (high / low).powf(rng.random::<f64>());
        let (preparation, fetch, step) = (spread(0.02, 2.0), spread(0.02, 2.0), spread(0.01, 1.0));
        let workers = spread(1.0, 8.99) as usize;
        let (batches, starting) = (spread(30.0, 200.0) as usize, spread(0.1, 0.3));
        // A batch is the sum of many samples, so it is seldom far from the mean.
        let mut vary = |mean: f64| mean * (0.8 + 0.4 * rng.random::<f64>());
        let work = (0..batches).map(|_| (vary(preparation), vary(fetch))).collect();
        World { workers, starting, work, step }
    }

    fn loader(&self) -> Loader {
        let (workers, batches) = (self.workers, self.work.len());
        Loader {
            workers,
            batches,
            starting: self.starting,
            work: 0.0,
            spread: 0.0,
            step: self.step,
        }
    }

    /// The epoch if preparation, fetch and step took these shares of their times.
    fn seconds(&self, preparation: f64, fetch: f64, step: f64) -> f64 {
        let loader = Loader { step: self.step * step, ..self.loader() };
        let work = |batch: usize| self.work[batch].0 * preparation + self.work[batch].1 * fetch;
        loader.run_with(work).seconds
    }

    /// The bottleneck, and by how much its gain leads.
    fn truth(&self) -> (Bottleneck, f64) {
        let whole = self.seconds(1.0, 1.0, 1.0);
        let gain = |seconds: f64| 1.0 - seconds / whole;
        let mut gains = [
            (gain(self.seconds(1.0, 0.0, 1.0)), Bottleneck::Fetch),
            (gain(self.seconds(0.0, 1.0, 1.0)), Bottleneck::Processor),
            (gain(self.seconds(1.0, 1.0, 0.0)), Bottleneck::Gpu),
        ];
        gains.sort_by(|a, b| b.0.total_cmp(&a.0));
        (gains[0].1, gains[0].0 - gains[1].0)
    }

    /// What each worker does from when to when, and when the trainer waits.
    fn timeline(&self) -> (Vec<Ends>, Vec<(f64, f64)>) {
        let mut workers = vec![vec![(self.starting, State::Runs)]; self.workers];
        let mut taken = vec![0.0_f64; self.work.len()];
        let (mut trainer, mut waits) = (0.0_f64, Vec::new());
        for (batch, (preparation, fetch)) in self.work.iter().enumerate() {
            let granted = batch.checked_sub(2 * self.workers).map_or(0.0, |before| taken[before]);
            let ends = &mut workers[batch % self.workers];
            let begin = ends.last().unwrap().0.max(granted);
            let ready = begin + fetch + preparation;
            let next =
                [(begin, State::HasNoWork), (begin + fetch, State::Fetches), (ready, State::Runs)];
            ends.extend(next);
            waits.push((trainer, ready));
            taken[batch] = trainer.max(ready);
            trainer = taken[batch] + self.step;
        }
        workers.iter_mut().for_each(|ends| ends.push((trainer, State::HasNoWork)));
        (workers, waits)
    }

    fn epoch(&self, rng: &mut StdRng) -> Epoch {
        let (workers, waits) = self.timeline();
        let seconds = workers[0].last().unwrap().0;
        let mut looks = Looks::default();
        for ends in &workers {
            let mut now = LOOK_EVERY * rng.random::<f64>();
            let mut at = 0;
            while now < seconds {
                while ends[at].0 <= now {
                    at += 1;
                }
                looks.add(ends[at].1, LOOK_EVERY);
                now += LOOK_EVERY;
            }
        }
        let mut trainer_looks = TrainerLooks::default();
        let mut now = LOOK_EVERY * rng.random::<f64>();
        while now < seconds {
            let is_wait = waits.iter().any(|(from, to)| (*from..*to).contains(&now));
            trainer_looks.waits += if is_wait { LOOK_EVERY } else { 0.0 };
            trainer_looks.all += LOOK_EVERY;
            now += LOOK_EVERY;
        }
        let first = waits[0].1;
        let starting_s = self.starting * self.workers as f64;
        let run_s = self.work.iter().map(|(preparation, _)| preparation).sum::<f64>() + starting_s;
        Epoch {
            is_over: true,
            is_whole: true,
            seconds,
            workers: self.workers as u32,
            workers_s: seconds * self.workers as f64,
            run_s,
            starting_s,
            looks,
            trainer_looks,
            first_looks: TrainerLooks {
                waits: first,
                all: first,
                count: 50,
                ..TrainerLooks::default()
            },
            read_bytes: Some(1 << 30),
            batches: Some(self.work.len() as u64),
            ..Epoch::default()
        }
    }
}

#[test]
fn random_worlds_get_the_right_verdict_and_their_own_time() {
    let mut rng = StdRng::seed_from_u64(25);
    let (mut right, mut near) = (0, 0);
    for number in 0..200 {
        let world = World::random(&mut rng);
        let (truth, lead) = world.truth();
        let finding = Finding::of(&world.epoch(&mut rng));
        let is_right = finding.bottleneck == Some(truth);
        assert!(is_right || lead < 0.1, "world {number}: {truth:?} by {lead}, {finding:?}");
        right += u32::from(is_right);
        let error = finding.model.map_or(1.0, |model| model.error.abs());
        near += u32::from(error <= 0.03);
        assert!(error < 0.05, "world {number}: {finding:?}");
    }
    assert!(right >= 190 && near >= 190, "{right} verdicts are right, {near} times are near");
}

/// A batch in twenty takes forty times as long as others: those behind it wait, and a mean does not tell how long.
#[test]
fn a_loader_that_sleeps_at_random_gets_no_promise() {
    let mut rng = StdRng::seed_from_u64(26);
    for _ in 0..20 {
        let mut work = vec![(0.2, 0.05); 100];
        for twenty in work.chunks_mut(20) {
            twenty[rng.random_range(0..20)].0 = 8.0;
        }
        let world = World { workers: 4, starting: 0.1, work, step: 0.05 };
        let finding = Finding::of(&world.epoch(&mut rng));
        assert!(finding.gains.is_none() && finding.cap_s.is_none(), "{finding:?}");
    }
}

#[test]
fn an_epoch_has_the_samples_that_were_made_meanwhile() {
    let then = super::Meters { made: 5, making_s: 0.5, ..Default::default() };
    let now = super::Meters { made: 12, making_s: 2.0, ..Default::default() };
    let since = now.since(&then);
    assert_eq!((since.made, since.making_s), (7, 1.5));
}
