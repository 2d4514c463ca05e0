//! When each sample is asked for next, by the readers of all jobs.
//!
//! If several jobs read the same samples, and members cannot hold all of them, each member keeps those that are asked for
//! soonest (Bélády 1966). All know the orders of all ranks ([`Places`]), and from the records of members where the ranks
//! are and how fast they go ([`Front`]). So all find about the same times, without asking each other.
//!
//! A rank fetches samples ahead of its reads. Its front is where it fetches, and a use is a fetch.

use std::sync::Arc;

/// No rank.
const NONE: u16 = u16::MAX;

/// The reads of one epoch of a job: for each sample, its rank and its position among the reads of that rank.
#[derive(Clone, Debug)]
pub struct Places {
    ranks: Vec<u16>,
    positions: Vec<u32>,
}

impl Places {
    /// Places of so many samples. `reads` are the sample, its rank and its position, in any order. If a sample is read
    /// twice, the first one counts.
    pub fn new(samples: usize, reads: impl Iterator<Item = (usize, u16, u32)>) -> Self {
        let mut places = Places { ranks: vec![NONE; samples], positions: vec![0; samples] };
        for (sample, rank, position) in reads {
            if places.ranks.get(sample) == Some(&NONE) {
                (places.ranks[sample], places.positions[sample]) = (rank, position);
            }
        }
        places
    }

    fn of(&self, sample: usize) -> Option<(u16, u32)> {
        let rank = *self.ranks.get(sample)?;
        (rank != NONE).then(|| (rank, self.positions[sample]))
    }
}

/// The progress of one reader in its order.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Front {
    /// The epoch, from 0, and the position in it that is fetched next. It may lie past the end of the epoch.
    pub epoch: u32,
    pub position: u32,
    /// Positions of an epoch.
    pub length: u32,
    /// Positions a second.
    pub rate: f32,
    /// Whether this member fetches for it.
    pub is_own: bool,
}

impl Front {
    /// The seconds until the rank is at a position of an epoch. Negative if it has been there.
    fn seconds_to(&self, epoch: u32, position: u32) -> f32 {
        let epochs = i64::from(epoch) - i64::from(self.epoch);
        let ahead =
            epochs * i64::from(self.length) + i64::from(position) - i64::from(self.position);
        ahead as f32 / self.rate.max(RATE_MIN)
    }
}

/// A rank that stands still counts as one that goes so many positions a second.
const RATE_MIN: f32 = 0.1;

/// The orders of a job's ranks.
#[derive(Clone, Debug)]
pub struct JobUses {
    /// The number of the first epoch that is known, and the places in it and those after it.
    pub first: u32,
    pub epochs: Vec<Arc<Places>>,
    /// The progress of the readers of each rank.
    pub fronts: Vec<Vec<Front>>,
}

/// The orders of all jobs.
#[derive(Clone, Debug, Default)]
pub struct Uses(pub Vec<JobUses>);

impl Uses {
    /// The seconds until a sample is asked for next, counted from when the fronts were as they are; infinite if nobody asks
    /// for it. A use before `now` is past, and one by this member before `own`: the sample is being fetched for it.
    pub fn next(&self, sample: u32, now: f32, own: f32) -> f32 {
        let jobs = self.0.iter().filter_map(|job| job.next(sample as usize, now, own));
        jobs.fold(f32::INFINITY, f32::min)
    }
}

impl JobUses {
    fn next(&self, sample: usize, now: f32, own: f32) -> Option<f32> {
        let places = self.epochs.iter().zip(self.first..);
        let uses = places.filter_map(|(places, epoch)| {
            let (rank, position) = places.of(sample)?;
            let fronts = self.fronts.get(usize::from(rank))?;
            let at = |front: &Front| (front.seconds_to(epoch, position), front.is_own);
            let coming =
                |(at, is_own): &(f32, bool)| *at >= if *is_own { own.max(now) } else { now };
            fronts.iter().map(at).filter(coming).map(|(at, _)| at).min_by(f32::total_cmp)
        });
        uses.min_by(f32::total_cmp)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::mix;

    const SAMPLES: u32 = 40;
    const RANKS: u32 = 2;

    fn order(job: u32, epoch: u32) -> Vec<u32> {
        let mut order: Vec<u32> = (0..SAMPLES).collect();
        order.sort_by_key(|sample| {
            mix(u64::from(*sample) << 20 ^ u64::from(job) << 10 ^ u64::from(epoch))
        });
        order
    }

    fn places(job: u32, epoch: u32) -> Places {
        let reads = order(job, epoch).into_iter().zip(0..);
        let reads = reads.map(|(sample, at)| (sample as usize, (at % RANKS) as u16, at / RANKS));
        Places::new(SAMPLES as usize, reads)
    }

    fn front(epoch: u32, position: u32, is_own: bool) -> Front {
        Front { epoch, position, length: SAMPLES / RANKS, rate: 2.0, is_own }
    }

    fn job(number: u32, fronts: Vec<Vec<Front>>) -> JobUses {
        let epochs = (3..6).map(|epoch| Arc::new(places(number, epoch))).collect();
        JobUses { first: 3, epochs, fronts }
    }

    #[test]
    fn the_next_use_is_the_nearest_one_of_all_ranks_and_jobs() {
        // One rank is in the next epoch already, and two readers have the second rank of the other job.
        let fronts = [
            vec![vec![front(3, 7, false)], vec![front(4, 1, true)]],
            vec![vec![front(3, 0, false)], vec![front(3, 18, false), front(5, 19, false)]],
        ];
        let uses = Uses(
            fronts.iter().zip(0..).map(|(fronts, number)| job(number, fronts.clone())).collect(),
        );
        for (now, own) in [(0.0, 0.0), (3.0, 3.0), (0.0, 4.0)] {
            for sample in 0..SAMPLES {
                let mut expected = f32::INFINITY;
                for (fronts, number) in fronts.iter().zip(0..) {
                    for epoch in 3..6 {
                        let at = order(number, epoch).iter().position(|it| *it == sample).unwrap()
                            as u32;
                        for front in &fronts[(at % RANKS) as usize] {
                            let places = 20 * (epoch as i32 - front.epoch as i32)
                                + (at / RANKS) as i32
                                - front.position as i32;
                            let seconds = places as f32 / 2.0;
                            if seconds >= if front.is_own { own } else { now } {
                                expected = expected.min(seconds);
                            }
                        }
                    }
                }
                assert_eq!(uses.next(sample, now, own), expected, "{sample}");
            }
        }
        assert_eq!(uses.next(SAMPLES, 0.0, 0.0), f32::INFINITY, "it is not known");
    }

    #[test]
    fn a_rank_that_stands_still_asks_for_nothing_soon() {
        let still = Front { rate: 0.0, ..front(3, 0, false) };
        let uses = Uses(vec![job(0, vec![vec![still], vec![still]])]);
        let soonest = (0..SAMPLES).map(|sample| uses.next(sample, 0.0, 0.0));
        assert!(soonest.filter(|seconds| *seconds < 100.0).count() < SAMPLES as usize);
        assert!((0..SAMPLES).all(|sample| uses.next(sample, 0.0, 0.0).is_finite()));
        // Without readers nobody asks.
        let none = Uses(vec![job(0, vec![Vec::new(), Vec::new()])]);
        assert_eq!(
            (none.next(0, 0.0, 0.0), Uses::default().next(0, 0.0, 0.0)),
            (f32::INFINITY, f32::INFINITY)
        );
    }
}
