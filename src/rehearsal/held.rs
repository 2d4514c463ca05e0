//! One rehearsal buffer with its bytes: what it decides, in memory, and its journal on the disk.
//!
//! Everything that happens to the buffer is a record of the journal; what is in memory is what the
//! records come to (`record`), in this life and in the next one. A sample that is kept and those that
//! go for it are one record, with the bytes of the one that is kept. What is shown is only what has
//! been written.

use std::hash::Hasher;
use std::io::{Error, ErrorKind, Result};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use siphasher::sip::SipHasher24;

use super::record::{Origin, Record, State};
use super::scores::Came;
use super::streams::Streams;
use crate::buffer::{
    Buffer, Candidate, ClassId, Labels, Refused, Rules, SampleId, SleepSet, sleep_set,
};
use crate::config::RehearsalSettings;
use crate::disk::Disk;
use crate::disk::journal::{Alive, Journal, Kept};
use crate::rehearsal::Bindings;
use crate::rehearsal::views::Sample;

/// Samples larger than this are never kept: they are read and served in one piece.
pub(super) const SAMPLE_BYTES_MAX: u64 = 256 << 20;

/// A sample that may be kept.
pub(super) struct Newcomer {
    pub(super) hash: u64,
    pub(super) class: String,
    /// Size of the encoded file in bytes.
    pub(super) bytes: u64,
    pub(super) origin: Origin,
}

/// A buffer and what belongs to it.
pub(super) struct Held {
    pub(super) settings: RehearsalSettings,
    labels: Labels,
    state: State,
    disk: Arc<dyn Disk>,
    kept: Kept,
    streams: Streams,
    /// What came of the scores of this mount.
    pub(super) scores: Came,
    /// Others had left space on the disk when that was asked last.
    is_left: bool,
    /// It was said that the disk does not take what is written.
    warned: bool,
    /// The disk may have lost what was written last.
    sync_failed: bool,
    /// Counts the changes of what is shown, for those who look at it.
    pub(super) changes: Arc<AtomicU64>,
}

/// The number that stands for a path.
pub(super) fn hash_of(path: &[u8]) -> u64 {
    let mut hasher = SipHasher24::new();
    hasher.write(path);
    hasher.finish()
}

impl Held {
    /// Opens a buffer that lies on `disk`, or begins one. Where its policy or seed are others than
    /// before, what it held is offered to a new one by these. A disk that takes nothing is no error:
    /// what is to be written waits for it.
    ///
    /// # Errors
    /// Where the disk cannot be read, or the journal is not one that this version wrote.
    pub(super) fn open(
        settings: RehearsalSettings,
        labels: Labels,
        disk: Arc<dyn Disk>,
        min_free: u64,
    ) -> Result<Self> {
        let rules = settings.rules;
        let mut state = State::new(Buffer::new(rules));
        let mut lived = Ok(());
        let journal = Journal::open(Arc::clone(&disk), |text, pinned| {
            if lived.is_ok() {
                let record = serde_json::from_slice(text).map_err(Error::from);
                lived = record.and_then(|record| state.apply(record, pinned));
            }
        })?;
        lived.map_err(|error| {
            let message = format!("a record of the buffer's journal cannot be understood: {error}");
            Error::new(ErrorKind::InvalidData, message)
        })?;
        let before = *state.buffer.rules();
        let is_new = journal.length() == 0;
        let mut held = Held {
            settings,
            labels,
            kept: Kept::new(journal, &state, min_free),
            state,
            disk,
            streams: Streams::default(),
            scores: Came::default(),
            is_left: true,
            warned: false,
            sync_failed: false,
            changes: Arc::default(),
        };
        let held_with_bytes = |sample: &SampleId| held.state.exemplars.contains_key(sample);
        let samples = held.buffer().members().map(|member| member.sample);
        let without: Vec<SampleId> = samples.filter(|sample| !held_with_bytes(sample)).collect();
        without.into_iter().for_each(|sample| held.commit(Record::Lost { sample }, &[]));
        let capacity = rules.capacity;
        if is_new || before != (Rules { capacity: before.capacity, ..rules }) {
            held.commit(Record::Ruled { rules }, &[]);
            held.end_streams();
        } else if before.capacity != capacity {
            held.commit(Record::Resized { capacity }, &[]);
        }
        let _ = held.write();
        Ok(held)
    }

    /// What is held.
    pub(super) fn buffer(&self) -> &Buffer {
        &self.state.buffer
    }

    /// A number that is another one after each sample that was shown or offered.
    pub(super) fn drawn(&self) -> u64 {
        let buffer = self.buffer();
        let replays: u64 = buffer.members().map(|member| u64::from(member.replays)).sum();
        (u64::from(buffer.offers()) << 32).wrapping_add(replays)
    }

    /// The task of this time.
    pub(super) fn task(&self) -> u32 {
        self.state.task
    }

    /// The files and directories of the task; none: all that is offered.
    pub(super) fn files(&self) -> &[String] {
        &self.state.files
    }

    /// Lets something happen: it is added to the journal, and lived through.
    fn commit(&mut self, record: Record, bytes: &[u8]) {
        let text = serde_json::to_vec(&record).map_err(Error::from);
        let committed = text.and_then(|text| {
            let pinned = self.kept.journal.append(&text, bytes)?;
            self.state.apply(record, (!bytes.is_empty()).then_some(pinned))
        });
        self.changes.store(self.state.changes, Ordering::Release);
        // Texts are of bounded paths and numbers, bytes of at most `SAMPLE_BYTES_MAX`.
        if let Err(error) = committed {
            tracing::error!(%error, "a record of a rehearsal buffer was not taken");
        }
    }

    /// Whether a file is to be offered. One that a user names is, wherever it is.
    pub(super) fn takes(&self, path: &Path, bytes: u64, named: bool) -> bool {
        let hash = hash_of(path.as_os_str().as_bytes());
        let rate = self.settings.offer_rate;
        // By the path, so that a file is always offered or never.
        let chosen = || (hash as f64) < rate * 2_f64.powi(64);
        let wanted = named || path.starts_with(&self.settings.root) && chosen();
        let fits = (1..=SAMPLE_BYTES_MAX).contains(&bytes);
        wanted && fits && !self.state.offered.contains(&hash) && self.class_of(path).is_some()
    }

    /// The class of a file; none where it is of none, or of one that no directory can be named after.
    pub(super) fn class_of(&self, path: &Path) -> Option<String> {
        let class = self.settings.classes.of(path.as_os_str().as_bytes(), &self.labels)?;
        (![b".".as_slice(), b".."].contains(&class))
            .then(|| String::from_utf8_lossy(class).into_owned())
    }

    /// Whether a sample may be kept that is offered after so many others. Where there are no others
    /// and this is false, it is not kept.
    pub(super) fn may_keep(&self, sample: &Newcomer, ahead: u32) -> bool {
        let candidate = |class| Candidate { class, task: self.state.task, bytes: sample.bytes };
        let class = self.state.classes.get(&sample.class);
        // A class that is new changes what is due to each.
        class.is_none_or(|class| self.buffer().may_keep(candidate(class), ahead))
    }

    /// Offers a sample, with its bytes if it [may be kept](Self::may_keep).
    pub(super) fn offer(&mut self, sample: Newcomer, bytes: &[u8]) {
        let may_keep = self.may_keep(&sample, 0);
        let Newcomer { hash, class, bytes: length, origin } = sample;
        let origin = may_keep.then_some(origin);
        let record = Record::Offered { hash, class, bytes: length, origin };
        self.commit(record, if may_keep { bytes } else { &[] });
    }

    /// Gives up a sample if its bytes are damaged; it may be offered again. Blocks.
    pub(super) fn examine(&mut self, sample: SampleId) {
        let exemplar = self.state.exemplars.get(&sample);
        let Some(Err(error)) = exemplar.map(|exemplar| exemplar.sample.pinned.read()) else {
            return;
        };
        if error.kind() == ErrorKind::InvalidData {
            self.lose(sample);
        }
    }

    fn lose(&mut self, sample: SampleId) {
        let (name, path) = (&self.settings.name, self.path(sample));
        tracing::warn!(name, path, "a sample of a rehearsal buffer is damaged and given up");
        self.commit(Record::Lost { sample }, &[]);
    }

    /// The sample that a path of the dataset is, if it is held.
    pub(super) fn sample(&self, path: &str) -> Option<SampleId> {
        self.state.by_hash.get(&hash_of(path.as_bytes())).copied()
    }

    /// Whether the file of this path was offered, held or not.
    pub(super) fn was_offered(&self, path: &str) -> bool {
        self.state.offered.contains(&hash_of(path.as_bytes()))
    }

    /// The number of the class of a file, if anything of it was offered.
    pub(super) fn class_number(&self, path: &Path) -> Option<ClassId> {
        self.state.classes.get(&self.class_of(path)?)
    }

    /// Takes what the trainer says of a sample.
    pub(super) fn score(
        &mut self,
        sample: SampleId,
        score: f32,
    ) -> std::result::Result<(), Refused> {
        if !score.is_finite() {
            return Err(Refused::NotFinite);
        }
        self.buffer().get(sample).ok_or(Refused::NotHeld)?;
        self.commit(Record::Scored { sample, score }, &[]);
        Ok(())
    }

    /// A sample was shown again. That is not noted while the disk takes nothing.
    pub(super) fn shown(&mut self, sample: SampleId) {
        // One that is of an older epoch may be held no more.
        if self.buffer().get(sample).is_some() && self.make_room() {
            self.commit(Record::Shown { sample }, &[]);
        }
    }

    /// What is offered from now on is of this task, whose samples are these files and directories. Says
    /// whether it is another one than before.
    pub(super) fn begin_task(&mut self, task: u32, files: Vec<String>) -> bool {
        let is_other = (task, &files) != (self.state.task, &self.state.files);
        self.commit(Record::Task { task, files }, &[]);
        if is_other {
            self.end_streams();
        }
        is_other
    }

    /// What is bound of the stream of an epoch, which begins with what is held where nothing is; none
    /// where the disk does not take it.
    pub(super) fn bindings(&mut self, epoch: u64) -> Option<Arc<Bindings>> {
        let exemplars = &self.state.exemplars;
        let held = |sample| exemplars.contains_key(&SampleId(sample));
        let bindings = match self.streams.take_up(&*self.disk, epoch, held) {
            Ok(None) => self.begin_stream(epoch),
            found => found,
        };
        bindings.unwrap_or_else(|error| {
            let name = &self.settings.name;
            tracing::warn!(name, %error, "what a stream binds is not kept for the next mount");
            None
        })
    }

    /// Begins the stream of an epoch with what is held, if anything is.
    fn begin_stream(&mut self, epoch: u64) -> Result<Option<Arc<Bindings>>> {
        if !self.make_room() {
            return Err(Error::from(ErrorKind::StorageFull));
        }
        // A sample that does not last would leave its number to another one.
        self.sync()?;
        let set: Vec<u32> = self.state.exemplars.keys().map(|sample| sample.0).collect();
        let disk = &*self.disk;
        (!set.is_empty()).then(|| self.streams.begin(disk, epoch, &set)).transpose()
    }

    /// Epochs have other samples from now on.
    fn end_streams(&mut self) {
        if let Err(error) = self.streams.end(&*self.disk) {
            let name = &self.settings.name;
            tracing::warn!(name, %error, "streams of before may be taken up by the next mount");
        }
    }

    /// Makes room for what may happen next, by writing what waits. There is none if the disk does not
    /// take that, or if others need the space of the disk.
    pub(super) fn make_room(&mut self) -> bool {
        if self.kept.journal.is_full() {
            let _ = self.write();
        }
        let is_left = self.kept.check_room(0);
        if self.is_left && !is_left {
            let name = &self.settings.name;
            tracing::warn!(
                name,
                "others need the space of a rehearsal buffer's disk; it stays as it is"
            );
        }
        self.is_left = is_left;
        // What comes behind something that the disk has lost would be lost with it.
        is_left && !self.sync_failed && !self.kept.journal.is_full()
    }

    /// Writes what happened to the disk; rewrites the journal where most of it is dead. What could
    /// not be written waits.
    ///
    /// # Errors
    /// The disk's, of which is said once that they are there.
    pub(super) fn write(&mut self) -> Result<()> {
        let result = self.put();
        // That it is taken does not mean that the disk has it.
        if result.is_err() || !self.sync_failed {
            self.settle(&result);
        }
        result
    }

    fn put(&mut self) -> Result<()> {
        self.kept.journal.write()?;
        match self.kept.leave_dead_bytes(&self.state) {
            Ok(saved) => saved.into_iter().for_each(|saved| self.begun_anew(saved)),
            Err(error) if self.is_left => {
                let name = &self.settings.name;
                tracing::warn!(name, %error, "the journal of a rehearsal buffer cannot be rewritten");
            }
            // That there is no room has been said.
            Err(_) => {}
        }
        Ok(())
    }

    /// Writes what happened, and makes what was written last.
    pub(super) fn sync(&mut self) -> Result<()> {
        let result = self.put().and_then(|()| {
            let synced = self.sync_journal();
            self.sync_failed = synced.is_err();
            synced
        });
        self.settle(&result);
        self.streams.sync(&self.settings.name);
        result
    }

    /// Makes the journal last, or what its disk has left of it.
    fn sync_journal(&mut self) -> Result<()> {
        while let Some(saved) = self.kept.sync(&self.state)? {
            self.begun_anew(saved);
            self.kept.journal.write()?;
        }
        Ok(())
    }

    fn settle(&mut self, result: &Result<()>) {
        if let Err(error) = result
            && !self.warned
        {
            let name = &self.settings.name;
            tracing::warn!(name, %error, "a rehearsal buffer cannot be written; it takes no offers");
        }
        if self.warned && result.is_ok() {
            // What was held before it was written is shown from now on.
            self.change();
        }
        self.warned = result.is_err();
    }

    /// What is shown has changed although no sample has come or gone.
    fn change(&mut self) {
        self.state.changes += 1;
        self.changes.store(self.state.changes, Ordering::Release);
    }

    /// Whether everything that happened has been written and lasts.
    pub(super) fn lasts(&self) -> bool {
        self.kept.journal.lasts() && self.streams.last()
    }

    /// The journal has begun anew with what is held.
    fn begun_anew(&mut self, (moved, damaged): <State as Alive>::Saved) {
        for (sample, pinned) in moved {
            if let Some(exemplar) = self.state.exemplars.get_mut(&sample) {
                Arc::make_mut(&mut exemplar.sample).pinned = pinned;
            }
        }
        // Whoever shows bytes of the old journal keeps it from being given back.
        self.change();
        damaged.into_iter().for_each(|sample| self.lose(sample));
    }

    /// The class of a sample, by name.
    pub(super) fn class(&self, class: ClassId) -> &str {
        self.state.classes.names.get(class.0 as usize).map_or("", String::as_str)
    }

    /// The path of a sample that is held.
    pub(super) fn path(&self, sample: SampleId) -> &str {
        self.state.exemplars.get(&sample).map_or("", |exemplar| &exemplar.sample.source)
    }

    /// A sample that is held, as it is shown once it has been written.
    pub(super) fn holds(&self, id: SampleId) -> Option<Arc<Sample>> {
        self.state.exemplars.get(&id).map(|exemplar| Arc::clone(&exemplar.sample))
    }

    /// A sample that is held and has been written, as it is shown.
    pub(super) fn shows(&self, id: SampleId) -> Option<Arc<Sample>> {
        self.holds(id).filter(|sample| sample.pinned.is_written())
    }

    /// A sleep set of what is held and has been written, with the class of each sample.
    pub(super) fn sleep(&self, set: &SleepSet) -> Vec<(ClassId, Arc<Sample>)> {
        let chosen = sleep_set(self.buffer().members(), set);
        // There may be millions: neighbours are found faster one after the other.
        let mut places: Vec<(SampleId, usize)> = chosen.into_iter().zip(0..).collect();
        places.sort_unstable();
        let mut found = vec![None; places.len()];
        for (id, place) in places {
            let class = self.buffer().get(id).map(|member| member.class);
            found[place] = class.zip(self.shows(id));
        }
        found.into_iter().flatten().collect()
    }
}
