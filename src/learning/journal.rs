//! What loaders have read, kept from learner to learner, and with the store from mount to mount.
//!
//! Samples have other numbers where files were added. In the file they are counted through the
//! dataset's paths in their order, with a hash of all of these: where that is another one by now,
//! lists of samples mean nothing any more, and only what samplers draw is remembered.
//!
//! The file is written on a thread of its own: a disk may take seconds, and the learner would hear
//! of no open meanwhile.

use std::hash::Hasher;
use std::io;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use siphasher::sip128::{Hasher128, SipHasher24};

use super::saved::{read, replace};
use crate::disk::AtomicFile;
use crate::learn::{JOURNAL_BYTES_MAX, Journal, Record};
use crate::order::Listing;

/// How often it is written at most, and how many times as long as that took.
const WRITE_EVERY: Duration = Duration::from_secs(5);
const WRITE_TIMES: u32 = 50;

/// When it is tried again after it could not be written.
const AGAIN_AFTER: Duration = Duration::from_secs(60);

/// How the samples of a dataset are counted.
pub(super) struct PathOrder {
    hash: u128,
    /// By place among the paths, the sample.
    samples: Vec<u32>,
}

impl PathOrder {
    pub(super) fn of(listing: &Listing<'_>) -> Self {
        let entries = listing.entries().iter();
        let mut paths: Vec<(&[u8], u32)> = entries.map(|e| (e.path, e.file.0)).collect();
        paths.sort_unstable();
        let mut hasher = SipHasher24::new();
        for (path, _) in &paths {
            hasher.write(path);
            hasher.write(&[0]);
        }
        let samples = paths.into_iter().map(|(_, sample)| sample).collect();
        PathOrder { hash: hasher.finish128().as_u128(), samples }
    }

    /// By sample, its place.
    fn places(&self) -> Vec<Option<u32>> {
        let count = self.samples.iter().max().map_or(0, |&most| most as usize + 1);
        let mut places = vec![None; count];
        for (place, &sample) in (0..).zip(&self.samples) {
            places[sample as usize] = Some(place);
        }
        places
    }
}

/// A journal that is being written, by a thread that says how long it took.
struct Writing {
    journal: Journal,
    thread: JoinHandle<io::Result<Duration>>,
}

/// What is remembered.
pub(super) struct Kept {
    journal: Journal,
    numbering: Option<Arc<PathOrder>>,
    /// Where it is kept, if there is a store.
    file: Option<AtomicFile>,
    /// What was found there and how its samples are counted, until it is known how ours are.
    found: Option<(Journal, u128)>,
    written: Journal,
    writing: Option<Writing>,
    /// Whether there is something that could not be written when it was to be.
    missed: bool,
    due: Instant,
    /// What was found, in words.
    words: Option<String>,
}

impl Kept {
    /// Reads what the directory of a store has.
    pub(super) fn open(file: Option<AtomicFile>) -> Self {
        let mut kept = Kept {
            journal: Journal::default(),
            numbering: None,
            found: None,
            written: Journal::default(),
            writing: None,
            missed: false,
            due: Instant::now(),
            words: None,
            file,
        };
        let Some(file) = &kept.file else { return kept };
        let decode = |bytes: Option<Vec<u8>>| bytes.map(|bytes| Journal::decode(&bytes));
        match read(file, JOURNAL_BYTES_MAX).and_then(|bytes| decode(bytes).transpose()) {
            Ok(found) => {
                let count = found.as_ref().map_or(0, |(journal, _)| journal.len());
                kept.words = (count > 0).then(|| format!("{count} earlier runs remembered"));
                kept.found = found;
            }
            Err(error) => {
                tracing::warn!(error, "the journal is ignored");
                kept.words = Some(format!("ignored: {error}"));
            }
        }
        kept
    }

    /// What was found in the directory, in words; none where there is nothing to say.
    pub(super) fn words(&self) -> Option<String> {
        self.words.clone()
    }

    pub(super) fn journal(&self) -> Journal {
        self.journal.clone()
    }

    /// From here on samples are counted so; what was found is taken over, once.
    pub(super) fn number(&mut self, numbering: PathOrder) {
        if let Some((found, hash)) = self.found.take() {
            let same = hash == numbering.hash;
            let before = found.len();
            let sample = |place: u32| numbering.samples.get(place as usize).copied();
            self.journal = found.renumbered(|place| sample(place).filter(|_| same));
            let lost = before - self.journal.len();
            if lost > 0 {
                let more = format!("; {lost} of them forgotten, as the dataset has other files");
                self.words.get_or_insert_default().push_str(&more);
            }
            self.written = self.journal.clone();
        }
        self.numbering = Some(Arc::new(numbering));
    }

    /// Adds what loaders of this learner have read; with `partial` also of epochs not over.
    pub(super) fn add(&mut self, records: impl Iterator<Item = Record>, partial: bool) {
        records.for_each(|record| self.journal.add(&record, partial));
    }

    /// The learner is another one from here on.
    pub(super) fn detach(&mut self) {
        self.journal.detach();
    }

    /// Takes note of a writing that has ended.
    pub(super) fn note_end(&mut self) {
        let ended = self.writing.take_if(|writing| writing.thread.is_finished());
        ended.into_iter().for_each(|writing| self.settle(writing));
    }

    /// Whether it is time to write it again.
    pub(super) fn is_due(&self) -> bool {
        self.writing.is_none() && Instant::now() >= self.due
    }

    /// Whether there is something that could not be written when it was to be.
    pub(super) fn is_behind(&self) -> bool {
        self.missed
    }

    /// Has it written where a store is, if it is another one than there. While it is being written
    /// nothing else is: it is behind then.
    pub(super) fn write(&mut self) {
        self.missed = self.writing.is_some();
        if self.missed {
            return;
        }
        self.due = self.due.max(Instant::now() + WRITE_EVERY);
        let Some((journal, write)) = self.task() else { return };
        match Builder::new().name("belady-journal".into()).spawn(write) {
            Ok(thread) => self.writing = Some(Writing { journal, thread }),
            Err(error) => self.failed(&error),
        }
    }

    /// What is to be written, and how; none where nothing is.
    fn task(
        &self,
    ) -> Option<(Journal, impl FnOnce() -> io::Result<Duration> + Send + use<> + 'static)> {
        let (file, numbering) = (self.file.clone()?, Arc::clone(self.numbering.as_ref()?));
        let mut journal = self.journal.clone();
        journal.detach();
        let shown = (journal != self.written).then(|| journal.clone())?;
        let write = move || {
            let began = Instant::now();
            let places = numbering.places();
            let place = |sample: u32| places.get(sample as usize).copied().flatten();
            replace(&file, &shown.renumbered(place).encode(numbering.hash))?;
            Ok(began.elapsed())
        };
        Some((journal, write))
    }

    fn failed(&mut self, error: &io::Error) {
        self.missed = true;
        self.due = Instant::now() + AGAIN_AFTER;
        tracing::warn!(%error, "the journal cannot be written");
    }

    /// Waits until what is being written is.
    fn settle(&mut self, writing: Writing) {
        let panicked = |_| Err(io::Error::other("the thread that wrote it panicked"));
        match writing.thread.join().unwrap_or_else(panicked) {
            Ok(took) => {
                self.written = writing.journal;
                self.due = self.due.max(Instant::now() + took * WRITE_TIMES);
            }
            Err(error) => self.failed(&error),
        }
    }

    /// From here on it is being written until the sender is gone, to a disk that then fails.
    #[cfg(test)]
    pub(super) fn hang(&mut self) -> std::sync::mpsc::Sender<()> {
        let (sender, hangs) = std::sync::mpsc::channel();
        let fail = move || hangs.recv().map_err(io::Error::other).map(|()| Duration::ZERO);
        let (journal, thread) = (self.journal.clone(), std::thread::spawn(fail));
        self.writing = Some(Writing { journal, thread });
        sender
    }

    /// Waits until all of it is written.
    pub(super) fn finish(&mut self) {
        if let Some(writing) = self.writing.take() {
            self.settle(writing);
        }
        if let Some((journal, write)) = self.task() {
            match write() {
                Ok(_) => self.written = journal,
                Err(error) => self.failed(&error),
            }
        }
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        // Whoever has the store next writes there.
        if let Some(writing) = self.writing.take() {
            self.settle(writing);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::FileId;
    use crate::order::Entry;

    fn numbering(paths: &[(&'static str, u32)]) -> PathOrder {
        let entry = |(path, row): &(&'static str, u32)| Entry {
            path: path.as_bytes(),
            file: FileId(*row),
            size: 1,
        };
        PathOrder::of(&Listing::new(paths.iter().map(entry).collect()))
    }

    #[test]
    fn samples_are_counted_by_their_paths() {
        let first = numbering(&[("b/x", 3), ("a", 1), ("c", 7)]);
        let later = numbering(&[("a", 4), ("c", 5), ("b/x", 6)]);
        assert_eq!(first.hash, later.hash);
        assert_eq!(
            (first.samples.as_slice(), later.samples.as_slice()),
            (&[1, 3, 7][..], &[4, 6, 5][..])
        );
        assert_eq!(first.places()[3], Some(1));
        assert_eq!((first.places()[2], first.places().len()), (None, 8));
        assert_ne!(first.hash, numbering(&[("a", 1), ("b", 2), ("c", 3)]).hash);
    }
}
