//! Access orders: which sample a job reads when.
//!
//! An [`Order`] is one stream's sequence of samples over all its epochs, known before the first read. It is
//! made in these steps:
//!
//! 1. A person names the order in one string, and [`OrderSpec`] parses it ([`spec`]).
//! 2. The engine or a command lists the dataset ([`Listing`]) and reads the files that the spec names.
//! 3. The [index order](index) numbers the files as the job's dataset class does, or the samples inside
//!    [large files](containers). [`Split`]s select and reorder the part that the job reads.
//! 4. A [sampler](samplers) repeats the framework's random draws and gives positions in that numbering. With an
//!    [order file](mod@crate::order::file) there are no draws: the file lists the samples.
//! 5. [`Order::epoch`] gives any epoch as an array of sample ids. [`SampleTable`] gives the file and byte range of
//!    an id.
//!
//! Nothing here reads a file, waits or locks. The same inputs give the same order on every machine.

pub mod containers;
pub mod file;
pub mod index;
mod listing;
mod sample;
pub mod samplers;
pub mod spec;
mod split;
mod suggest;

pub use containers::Container;
pub use listing::{Entry, FileSamples, FindSamples, Listing, ReadEach};
pub use sample::{FileRange, Sample, SampleTable};
pub use spec::OrderSpec;
pub use split::{Length, Split, TrainTestPart};

use std::sync::Arc;

use crate::error::{Error, ErrorKind, Result};
use crate::ids::FileId;
use samplers::{Sampler, SamplerEpochs};

/// One stream's access order over all epochs. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Order {
    title: String,
    epochs: Epochs,
    samples: Arc<SampleTable>,
    permutation: bool,
    /// Whether nothing is known of the epochs after the listed ones.
    ends: bool,
    /// Batch size: only whole batches of an epoch are read.
    batch: u32,
}

#[derive(Clone, Debug)]
enum Epochs {
    /// Positions drawn by a sampler. `index` gives the sample at each position. `all` stands before the first
    /// epoch, so that the draws up to there are made once.
    Drawn { sampler: Sampler, all: SamplerEpochs, index: Arc<[u32]> },
    /// Listed epochs, at least one. After the last comes the first.
    Listed(Arc<[Arc<[u32]>]>),
}

impl Order {
    /// The order in which `sampler` draws whole files. `index` gives the file at each position, and
    /// `index_name` names that index order in a few words.
    ///
    /// # Errors
    /// When [`Sampler::check`] refuses the number of files, or the dataset has 2^32 samples or more.
    pub fn drawn(sampler: Sampler, index: &[FileId], index_name: &str) -> Result<Self> {
        let index = index.iter().map(|file| file.0).collect();
        Self::drawn_of(sampler, index, SampleTable::Files, index_name)
    }

    /// The same of any samples: `index` gives the row of `samples` at each position.
    ///
    /// # Errors
    /// As [`Order::drawn`].
    pub fn drawn_of(
        sampler: Sampler,
        index: Arc<[u32]>,
        samples: SampleTable,
        index_name: &str,
    ) -> Result<Self> {
        let n = u32::try_from(index.len())
            .map_err(|_| Error::new(ErrorKind::Order, "an order holds fewer than 2^32 samples"))?;
        sampler.check(n)?;
        let what = if samples == SampleTable::Files { "files" } else { "samples" };
        Ok(Order {
            title: format!("{sampler} over {} {what} in {index_name}", grouped(n.into())),
            permutation: !sampler.repeats(n) && sample::are_unique([&*index]),
            epochs: Epochs::Drawn { all: sampler.epochs(n), sampler, index },
            samples: Arc::new(samples),
            ends: false,
            batch: 1,
        })
    }

    /// A listed order: the sample ids of each epoch, as rows of `samples`. `name` says where it comes from.
    /// After the last epoch comes the first again.
    ///
    /// # Errors
    /// When there is no epoch or an epoch is empty.
    pub fn listed(name: &str, epochs: Vec<Arc<[u32]>>, samples: SampleTable) -> Result<Self> {
        if epochs.is_empty() || epochs.iter().any(|epoch| epoch.is_empty()) {
            return Err(Error::new(ErrorKind::Order, "the order is empty"));
        }
        let (shortest, longest) = epochs.iter().fold((usize::MAX, 0), |(low, high), epoch| {
            (low.min(epoch.len()), high.max(epoch.len()))
        });
        let plural = if epochs.len() == 1 { "epoch" } else { "epochs" };
        let mut title = format!("{name}: {} {plural} of ", grouped(epochs.len() as u64));
        if shortest < longest {
            title += &format!("{} to ", grouped(shortest as u64));
        }
        title += &format!("{} samples", grouped(longest as u64));
        Ok(Order {
            title,
            permutation: sample::are_unique(epochs.iter().map(|epoch| &**epoch)),
            epochs: Epochs::Listed(epochs.into()),
            samples: Arc::new(samples),
            ends: false,
            batch: 1,
        })
    }

    /// The same order as read by a loader that takes only whole batches of `batch` samples: torch's
    /// `DataLoader(drop_last=True)`. The rest of an epoch is not read.
    ///
    /// # Errors
    /// When an epoch has no whole batch.
    pub fn in_whole_batches(self, batch: u32) -> Result<Self> {
        let title = format!("{}, whole batches of {}", self.title, grouped(batch.into()));
        let order = Order { batch: batch.max(1), title, ..self };
        let epochs = 0..order.epochs_listed().unwrap_or(1);
        if epochs.into_iter().any(|k| order.epoch_len(k) == 0) {
            let message = format!("an epoch has no whole batch: {}", order.title);
            return Err(Error::new(ErrorKind::Order, message)
                .hint("whole_batches= is the batch size of this process, in samples"));
        }
        Ok(order)
    }

    /// The same order with empty epochs after its last listed one: nothing is known of what is read then. An
    /// order drawn by a sampler does not end.
    pub fn ending(self) -> Self {
        let ends = matches!(self.epochs, Epochs::Listed(_));
        Order { ends, ..self }
    }

    /// Whether nothing is known of the epochs after the [listed](Self::epochs_listed) ones.
    pub fn ends(&self) -> bool {
        self.ends
    }

    /// The sample ids of epoch `k`, in the order in which they are read. `k` counts from the stream's first
    /// epoch. Listed orders wrap around after their last epoch, unless they [end](Self::ending).
    ///
    /// Costs one permutation of the dataset. If one generator draws all epochs, it costs one for every epoch
    /// up to `k`. Use [`Order::epochs`] to go through them.
    pub fn epoch(&self, k: u32) -> Arc<[u32]> {
        self.epochs(k).step()
    }

    /// The epochs from `from` on, each as [`Order::epoch`] gives it, without end.
    pub fn epochs(&self, from: u32) -> EpochIter {
        let drawn = match &self.epochs {
            Epochs::Drawn { sampler: Sampler::Sequential(_), .. } | Epochs::Listed(_) => None,
            Epochs::Drawn { all, .. } => Some(all.clone().skip_epochs(from)),
        };
        let (epochs, ends, batch) = (self.epochs.clone(), self.ends, self.batch);
        EpochIter { epochs, drawn, next: from, ends, batch }
    }

    /// How many samples epoch `k` reads, without making the epoch.
    pub fn epoch_len(&self, k: u32) -> u32 {
        let uncut = match &self.epochs {
            Epochs::Drawn { sampler, index, .. } => sampler.epoch_len(index.len() as u32, k),
            Epochs::Listed(epochs) if self.ends && k as usize >= epochs.len() => 0,
            Epochs::Listed(epochs) => epochs[k as usize % epochs.len()].len() as u32,
        };
        uncut - uncut % self.batch
    }

    /// The sampler that draws it, and the sample at each of its positions. `None` if its epochs are listed.
    pub fn drawn_by(&self) -> Option<(&Sampler, &Arc<[u32]>)> {
        match &self.epochs {
            Epochs::Drawn { sampler, index, .. } => Some((sampler, index)),
            Epochs::Listed(_) => None,
        }
    }

    /// The order in which another sampler draws from the same samples. `None` if no sampler draws this one.
    ///
    /// # Errors
    /// When the sampler is refused, as by [`Order::drawn`].
    pub fn redrawn(&self, sampler: Sampler) -> Option<Result<Self>> {
        let Epochs::Drawn { sampler: before, index, .. } = &self.epochs else { return None };
        let n = index.len() as u32;
        if let Err(error) = sampler.check(n) {
            return Some(Err(error));
        }
        let title = self.title.replacen(&before.to_string(), &sampler.to_string(), 1);
        let permutation = self.permutation && !sampler.repeats(n);
        let (index, all) = (Arc::clone(index), sampler.epochs(n));
        let epochs = Epochs::Drawn { sampler, all, index };
        Some(Ok(Order { title, epochs, permutation, ..self.clone() }))
    }

    /// Every sample id that an epoch may read. An id may occur repeatedly.
    pub fn ids(&self) -> impl Iterator<Item = u32> + '_ {
        let lists: &[Arc<[u32]>] = match &self.epochs {
            Epochs::Drawn { index, .. } => std::slice::from_ref(index),
            Epochs::Listed(epochs) => epochs,
        };
        lists.iter().flat_map(|list| list.iter().copied())
    }

    /// What the sample ids stand for.
    pub fn samples(&self) -> &SampleTable {
        &self.samples
    }

    /// Whether every epoch reads each sample at most once.
    pub fn is_permutation(&self) -> bool {
        self.permutation
    }

    /// How many epochs are listed. `None` if a sampler draws them, without end.
    pub fn epochs_listed(&self) -> Option<u32> {
        match &self.epochs {
            Epochs::Drawn { .. } => None,
            Epochs::Listed(epochs) => Some(epochs.len() as u32),
        }
    }

    /// The order in plain words, as `status` shows it:
    /// `torch-distributed seed 3 world 2 rank 1 over 5,000 files in imagefolder order`.
    pub fn describe(&self) -> &str {
        &self.title
    }
}

/// The epochs of an [`Order`] one after another: see [`Order::epochs`].
#[derive(Clone, Debug)]
pub struct EpochIter {
    epochs: Epochs,
    /// The epochs still to come. `None` if epochs need not be drawn.
    drawn: Option<SamplerEpochs>,
    next: u32,
    ends: bool,
    batch: u32,
}

impl EpochIter {
    fn step(&mut self) -> Arc<[u32]> {
        let k = self.next;
        self.next = k.wrapping_add(1);
        let uncut = match &self.epochs {
            Epochs::Listed(epochs) if self.ends && k as usize >= epochs.len() => Arc::default(),
            Epochs::Listed(epochs) => Arc::clone(&epochs[k as usize % epochs.len()]),
            Epochs::Drawn { index, .. } => match self.drawn.as_mut().and_then(Iterator::next) {
                Some(positions) => positions.iter().map(|&at| index[at as usize]).collect(),
                None => Arc::clone(index),
            },
        };
        match uncut.len() % self.batch as usize {
            0 => uncut,
            rest => uncut[..uncut.len() - rest].into(),
        }
    }
}

impl Iterator for EpochIter {
    type Item = Arc<[u32]>;

    /// The next epoch. Never `None`.
    fn next(&mut self) -> Option<Arc<[u32]>> {
        Some(self.step())
    }
}

/// A number with commas between the thousands.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::samplers::{Distributed, Random};
    use super::*;

    fn files(ids: &[u32]) -> Vec<FileId> {
        ids.iter().copied().map(FileId).collect()
    }

    #[test]
    fn positions_go_through_the_index() {
        let sampler = Sampler::TorchDistributed(Distributed::default());
        let ids: Vec<_> = (0..10).map(|i| 100 + i).collect();
        let order = Order::drawn(sampler, &files(&ids), "path order").unwrap();
        // torch.randperm(10) of seed 0 is 4 1 7 5 3 9 0 8 6 2.
        assert_eq!(*order.epoch(0), [104, 101, 107, 105, 103, 109, 100, 108, 106, 102]);
        assert_eq!(order.samples().get(104), Sample::whole(FileId(104)));
        assert!(order.is_permutation());
        assert_eq!(order.epochs_listed(), None);
        assert_eq!(order.epoch_len(3), 10);
        let words = "torch-distributed seed 0 over 10 files in path order";
        assert_eq!(order.describe(), words);
    }

    #[test]
    fn going_through_epochs_is_the_same_as_asking_for_each() {
        for sampler in [Sampler::SEQUENTIAL, Sampler::TorchRandom(Random::new(7))] {
            let order = Order::drawn(sampler, &files(&[5, 3, 9, 8]), "path order").unwrap();
            for (k, epoch) in (2..6).zip(order.epochs(2)) {
                assert_eq!(epoch, order.epoch(k));
            }
        }
    }

    #[test]
    fn another_rank_draws_from_the_same_samples() {
        let rank = |rank: u32| {
            let sampler = Distributed { world: 2, rank, ..Distributed::default() };
            Sampler::TorchDistributed(sampler)
        };
        let ids = files(&(100..110).collect::<Vec<u32>>());
        let drawn = |nth: u32| Order::drawn(rank(nth), &ids, "path order").unwrap();
        let batches = |order: Order| order.in_whole_batches(2).unwrap();
        let redrawn = batches(drawn(0)).redrawn(rank(1)).unwrap().unwrap();
        let expected = batches(drawn(1));
        assert_eq!(
            (redrawn.epoch(3), redrawn.describe()),
            (expected.epoch(3), expected.describe())
        );
        assert!(drawn(0).redrawn(rank(2)).unwrap().is_err());
        let listed = Order::listed("o", vec![Arc::from([1])], SampleTable::Files).unwrap();
        assert!(listed.redrawn(rank(0)).is_none());
    }

    #[test]
    fn a_file_that_stands_twice_in_the_index_makes_no_permutation() {
        let order = Order::drawn(Sampler::SEQUENTIAL, &files(&[1, 2, 1]), "manifest").unwrap();
        assert!(!order.is_permutation());
    }

    #[test]
    fn listed_orders_wrap_around() {
        let epochs = vec![Arc::from([2, 1]), Arc::from([1, 2, 0])];
        let order = Order::listed("order file o", epochs, SampleTable::Files).unwrap();
        assert_eq!(order.epochs_listed(), Some(2));
        assert_eq!(*order.epoch(2), [2, 1]);
        assert_eq!(order.epoch_len(5), 3);
        assert_eq!(order.describe(), "order file o: 2 epochs of 2 to 3 samples");
        assert_eq!(order.epochs(1).nth(2), Some(order.epoch(1)));
    }

    #[test]
    fn an_order_that_ends_has_empty_epochs_after_its_last() {
        let order = Order::listed("o", vec![Arc::from([2, 1])], SampleTable::Files).unwrap();
        let order = order.ending();
        let lengths: Vec<usize> = order.epochs(0).take(3).map(|epoch| epoch.len()).collect();
        assert_eq!((lengths, order.epoch_len(1), order.ends()), (vec![2, 0, 0], 0, true));
        let drawn = Order::drawn(Sampler::SEQUENTIAL, &files(&[1, 2]), "path order").unwrap();
        assert_eq!(drawn.ending().epoch_len(7), 2);
    }

    #[test]
    fn a_loader_of_whole_batches_leaves_the_rest_of_an_epoch() {
        let drawn = Order::drawn(Sampler::SEQUENTIAL, &files(&[7, 8, 9]), "path order").unwrap();
        let drawn = drawn.in_whole_batches(2).unwrap();
        assert_eq!((&*drawn.epoch(3), drawn.epoch_len(3)), ([7, 8].as_slice(), 2));
        assert!(drawn.describe().ends_with("path order, whole batches of 2"));
        assert!(drawn.is_permutation());
        let epochs = || vec![Arc::from([2, 1]), Arc::from([1, 2, 0, 4, 3])];
        let listed = Order::listed("o", epochs(), SampleTable::Files).unwrap();
        let lengths: Vec<usize> = listed
            .clone()
            .in_whole_batches(2)
            .unwrap()
            .epochs(0)
            .take(3)
            .map(|e| e.len())
            .collect();
        assert_eq!(lengths, [2, 4, 2]);
        let error = listed.in_whole_batches(3).unwrap_err();
        assert!(error.message().contains("no whole batch"), "{error}");
    }

    #[test]
    fn empty_orders_are_refused() {
        assert!(Order::drawn(Sampler::SEQUENTIAL, &[], "path").is_err());
        assert!(Order::listed("o", vec![], SampleTable::Files).is_err());
        let sampler = Distributed { world: 4, drop_last: true, ..Distributed::default() };
        assert!(Order::drawn(Sampler::TorchDistributed(sampler), &files(&[1]), "path").is_err());
    }

    #[test]
    fn a_million_entries_take_four_bytes_each() {
        let ids: Arc<[u32]> = (0..1_000_000).rev().collect();
        let order = Order::listed("o", vec![Arc::clone(&ids)], SampleTable::Files).unwrap();
        assert!(Arc::ptr_eq(&ids, &order.epoch(1)), "an epoch is shared, not copied");
        assert_eq!(size_of_val(&*order.epoch(0)), 4_000_000);
    }

    #[test]
    fn numbers_are_grouped() {
        let shown = [0, 999, 1000, 1_281_167].map(grouped);
        assert_eq!(shown, ["0", "999", "1,000", "1,281,167"]);
    }
}
