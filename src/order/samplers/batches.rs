//! Which worker of a `DataLoader` reads what, and in which order.

/// How a `torch.utils.data.DataLoader` divides an epoch among its workers.
///
/// The epoch is cut into batches. Batch `i` goes to worker `i % workers`, which reads its batches in sequence
/// (`in_order=True`, the default).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Workers {
    /// Samples in a batch. Not 0.
    pub batch_size: u32,
    /// `num_workers`, or 1 if the process itself reads. Not 0.
    pub workers: u32,
    /// Whether a last batch that is not full is never read.
    pub drop_last: bool,
    /// Batches that each worker gets before the first is consumed.
    pub prefetch_factor: u32,
}

impl Workers {
    /// How many places of an epoch of `len` positions are read.
    pub fn read(&self, len: u32) -> u32 {
        if self.drop_last { len - len % self.batch_size } else { len }
    }

    /// The worker that reads the position at this place of the epoch.
    pub fn worker_of(&self, place: u32) -> u32 {
        place / self.batch_size % self.workers
    }

    /// The places that a worker reads in an epoch of `len` positions, in its order.
    pub fn places_of(&self, worker: u32, len: u32) -> impl Iterator<Item = u32> + use<> {
        let (batch, workers) = (u64::from(self.batch_size), u64::from(self.workers));
        let read = u64::from(self.read(len));
        (0..read)
            .map(move |i| (i / batch * workers + u64::from(worker)) * batch + i % batch)
            .take_while(move |place| *place < read)
            .map(|place| place as u32)
    }

    /// How many opens may come at once when an epoch of `len` positions begins: those of the batches that are
    /// given out before the first is consumed.
    pub fn burst(&self, len: u32) -> u32 {
        let ahead = u64::from(self.workers) * u64::from(self.prefetch_factor);
        (ahead * u64::from(self.batch_size)).min(self.read(len).into()) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_go_round_the_workers() {
        let loader = Workers { batch_size: 2, workers: 3, drop_last: false, prefetch_factor: 1 };
        let of = |worker| loader.places_of(worker, 13).collect::<Vec<_>>();
        assert_eq!(of(0), [0, 1, 6, 7, 12]);
        assert_eq!(of(1), [2, 3, 8, 9]);
        assert_eq!(of(2), [4, 5, 10, 11]);
        assert!((0..13).all(|place| of(loader.worker_of(place)).contains(&place)));
        assert_eq!((loader.burst(13), loader.burst(4)), (6, 4));
        let dropping = Workers { drop_last: true, ..loader };
        assert_eq!(dropping.read(13), 12);
        assert_eq!(dropping.places_of(0, 13).collect::<Vec<_>>(), [0, 1, 6, 7]);
        let huge = Workers { batch_size: u32::MAX, workers: u32::MAX, ..loader };
        assert_eq!(huge.places_of(0, 3).count() + huge.places_of(u32::MAX - 1, 3).count(), 3);
    }
}
