//! The journal of what loaders have read, kept from learner to learner, and in the store from mount to mount.
//!
//! Samples get other numbers when files are added. So the file numbers them by the sorted paths of the
//! dataset, and has a hash of all paths. If the hash is another one by now, lists of samples mean nothing any
//! more, and only what samplers draw is remembered.
//!
//! A thread of its own writes the file: a disk may take seconds, and the learner would hear no open meanwhile.

use std::hash::Hasher;
use std::io;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use siphasher::sip128::{Hasher128, SipHasher24};

use super::journal_file::{read, replace};
use crate::disk::AtomicFile;
use crate::learn::{JOURNAL_BYTES_MAX, Journal, Record};
use crate::order::Listing;

/// The least time between two writes, and how many times the duration of a write it is.
const WRITE_EVERY: Duration = Duration::from_secs(5);
const WRITE_TIMES: u32 = 50;

/// The pause after a failed write.
const AGAIN_AFTER: Duration = Duration::from_secs(60);

/// The samples of a dataset by their sorted paths.
pub(super) struct PathOrder {
    hash: u128,
    /// By place of the path, the sample.
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

/// A write under way, by a thread that gives the duration.
struct Writing {
    journal: Journal,
    thread: JoinHandle<io::Result<Duration>>,
}

/// The journal, and its file.
pub(super) struct SavedJournal {
    pub(super) content: Journal,
    paths: Option<Arc<PathOrder>>,
    /// Set if there is a store.
    file: Option<AtomicFile>,
    /// What was found in the file, and the hash of its paths, until the paths of the dataset are known.
    found: Option<(Journal, u128)>,
    written: Journal,
    writing: Option<Writing>,
    pub(super) is_behind: bool,
    due: Instant,
    /// What was found in the file.
    pub(super) words: Option<String>,
}

impl SavedJournal {
    /// Reads the file.
    pub(super) fn open(file: Option<AtomicFile>) -> Self {
        let mut kept = SavedJournal {
            content: Journal::default(),
            paths: None,
            found: None,
            written: Journal::default(),
            writing: None,
            is_behind: false,
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

    /// From here on these are the paths of the dataset. Takes over what was found in the file, once.
    pub(super) fn renumber(&mut self, paths: PathOrder) {
        if let Some((found, hash)) = self.found.take() {
            let same = hash == paths.hash;
            let before = found.len();
            let sample = |place: u32| paths.samples.get(place as usize).copied();
            self.content = found.renumbered(|place| sample(place).filter(|_| same));
            let lost = before - self.content.len();
            if lost > 0 {
                let more = format!("; {lost} of them forgotten, as the dataset has other files");
                self.words.get_or_insert_default().push_str(&more);
            }
            self.written = self.content.clone();
        }
        self.paths = Some(Arc::new(paths));
    }

    /// Adds what loaders have read, with `partial` also of epochs that are not over.
    pub(super) fn add(&mut self, records: impl Iterator<Item = Record>, partial: bool) {
        records.for_each(|record| self.content.add(&record, partial));
    }

    /// Takes note of a write that has ended.
    pub(super) fn note_end(&mut self) {
        let ended = self.writing.take_if(|writing| writing.thread.is_finished());
        ended.into_iter().for_each(|writing| self.settle(writing));
    }

    pub(super) fn is_due(&self) -> bool {
        self.writing.is_none() && Instant::now() >= self.due
    }

    /// Begins to write the journal, if there is a store that has another one. While a write is under way, the
    /// store falls behind.
    pub(super) fn write(&mut self) {
        self.is_behind = self.writing.is_some();
        if self.is_behind {
            return;
        }
        self.due = self.due.max(Instant::now() + WRITE_EVERY);
        let Some((journal, write)) = self.task() else { return };
        match Builder::new().name("belady-journal".into()).spawn(write) {
            Ok(thread) => self.writing = Some(Writing { journal, thread }),
            Err(error) => self.failed(&error),
        }
    }

    /// The journal to be written, and the function that does.
    fn task(
        &self,
    ) -> Option<(Journal, impl FnOnce() -> io::Result<Duration> + Send + use<> + 'static)> {
        let (file, paths) = (self.file.clone()?, Arc::clone(self.paths.as_ref()?));
        let mut journal = self.content.clone();
        journal.detach();
        let shown = (journal != self.written).then(|| journal.clone())?;
        let write = move || {
            let began = Instant::now();
            let places = paths.places();
            let place = |sample: u32| places.get(sample as usize).copied().flatten();
            replace(&file, &shown.renumbered(place).encode(paths.hash))?;
            Ok(began.elapsed())
        };
        Some((journal, write))
    }

    fn failed(&mut self, error: &io::Error) {
        self.is_behind = true;
        self.due = Instant::now() + AGAIN_AFTER;
        tracing::warn!(%error, "the journal cannot be written");
    }

    /// Waits for a write.
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

    /// Begins a write that hangs until the sender is gone, and then fails.
    #[cfg(test)]
    pub(super) fn hang(&mut self) -> std::sync::mpsc::Sender<()> {
        let (sender, hangs) = std::sync::mpsc::channel();
        let fail = move || hangs.recv().map_err(io::Error::other).map(|()| Duration::ZERO);
        let (journal, thread) = (self.content.clone(), std::thread::spawn(fail));
        self.writing = Some(Writing { journal, thread });
        sender
    }

    /// Writes all of it, and waits for that.
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

impl Drop for SavedJournal {
    fn drop(&mut self) {
        // The next user of the store writes there.
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

    fn path_order(paths: &[(&'static str, u32)]) -> PathOrder {
        let entry = |(path, row): &(&'static str, u32)| Entry {
            path: path.as_bytes(),
            file: FileId(*row),
            size: 1,
        };
        PathOrder::of(&Listing::new(paths.iter().map(entry).collect()))
    }

    #[test]
    fn samples_are_counted_by_their_paths() {
        let first = path_order(&[("b/x", 3), ("a", 1), ("c", 7)]);
        let later = path_order(&[("a", 4), ("c", 5), ("b/x", 6)]);
        assert_eq!(first.hash, later.hash);
        assert_eq!(
            (first.samples.as_slice(), later.samples.as_slice()),
            (&[1, 3, 7][..], &[4, 6, 5][..])
        );
        assert_eq!(first.places()[3], Some(1));
        assert_eq!((first.places()[2], first.places().len()), (None, 8));
        assert_ne!(first.hash, path_order(&[("a", 1), ("b", 2), ("c", 3)]).hash);
    }
}
