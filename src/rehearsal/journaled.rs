//! One rehearsal buffer: its decisions in memory, and its journal on the cache disk.
//!
//! Every event is a record of the journal, and the state in memory is the result of all records (`record`). A
//! sample that is kept and those that are given up for it are one record. A sample is shown only once it is
//! written.

use std::hash::Hasher;
use std::io::{Error, ErrorKind, Result};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use siphasher::sip::SipHasher24;

use super::bindings::{Bindings, BindingsInUse};
use super::joint::Task;
use super::record::{BufferState, Origin, Record};
use crate::buffer::{
    Candidate, ClassId, Labels, RehearsalBuffer, Rules, SampleId, SleepSet, UpdateError, sleep_set,
};
use crate::config::RehearsalSettings;
use crate::disk::Disk;
use crate::disk::journal::{CompactingJournal, Journal, LiveState};
use crate::rehearsal::views::{KeptSample, SampleBytes};

/// Larger samples are never kept: a sample is read and served in one piece.
pub(super) const SAMPLE_BYTES_MAX: u64 = 256 << 20;

pub(super) struct OfferedSample {
    pub(super) hash: u64,
    pub(super) class: String,
    /// Size of the encoded file in bytes.
    pub(super) bytes: u64,
    pub(super) origin: Origin,
}

pub(super) struct JournaledBuffer {
    pub(super) settings: RehearsalSettings,
    labels: Labels,
    state: BufferState,
    disk: Arc<dyn Disk>,
    compacting: CompactingJournal,
    bindings: BindingsInUse,
    /// Whether the disk had room when that was last asked.
    had_room: bool,
    /// A warning was logged that the disk takes no writes, and it still takes none.
    warned: bool,
    /// The last sync failed, so the disk may have lost what was written before it.
    sync_failed: bool,
    /// Counts changes of the shown samples, for the views.
    pub(super) changes: Arc<AtomicU64>,
}

pub(super) fn hash_of(path: &[u8]) -> u64 {
    let mut hasher = SipHasher24::new();
    hasher.write(path);
    hasher.finish()
}

impl JournaledBuffer {
    /// Opens the buffer on `disk`, or begins one. If the policy or the seed has changed, the held samples are
    /// offered to a new buffer. If the disk takes no writes, records wait for it.
    ///
    /// # Errors
    /// If the disk cannot be read, or if the journal is not one of this version.
    pub(super) fn open(
        settings: RehearsalSettings,
        labels: Labels,
        disk: Arc<dyn Disk>,
        min_free: u64,
    ) -> Result<Self> {
        let rules = settings.rules;
        let mut state = BufferState::new(RehearsalBuffer::new(rules));
        let mut applied = Ok(());
        let journal = Journal::open(Arc::clone(&disk), |text, pinned| {
            if applied.is_ok() {
                let record = serde_json::from_slice(text).map_err(Error::from);
                applied = record.and_then(|record| state.apply(record, pinned));
            }
        })?;
        applied.map_err(|error| {
            let message = format!("a record of the buffer's journal cannot be understood: {error}");
            Error::new(ErrorKind::InvalidData, message)
        })?;
        let before = *state.buffer.rules();
        let is_new = journal.length() == 0;
        let mut buffer = JournaledBuffer {
            settings,
            labels,
            compacting: CompactingJournal::new(journal, &state, min_free),
            state,
            disk,
            bindings: BindingsInUse::default(),
            had_room: true,
            warned: false,
            sync_failed: false,
            changes: Arc::default(),
        };
        let has_bytes = |sample: &SampleId| buffer.state.held.contains_key(sample);
        let samples = buffer.state.buffer.members().map(|member| member.sample);
        let without: Vec<SampleId> = samples.filter(|sample| !has_bytes(sample)).collect();
        without.into_iter().for_each(|sample| buffer.commit(Record::Lost { sample }, &[]));
        let capacity = rules.capacity;
        if is_new || before != (Rules { capacity: before.capacity, ..rules }) {
            buffer.commit(Record::Ruled { rules }, &[]);
            buffer.end_streams();
        } else if before.capacity != capacity {
            buffer.commit(Record::Resized { capacity }, &[]);
        }
        let _ = buffer.write();
        Ok(buffer)
    }

    pub(super) fn buffer(&self) -> &RehearsalBuffer {
        &self.state.buffer
    }

    /// A number that changes with each sample that is shown or offered.
    pub(super) fn progress(&self) -> u64 {
        let buffer = &self.state.buffer;
        let replays: u64 = buffer.members().map(|member| u64::from(member.replays)).sum();
        (u64::from(buffer.offers()) << 32).wrapping_add(replays)
    }

    pub(super) fn task(&self) -> u32 {
        self.state.task
    }

    /// The task as other nodes know it.
    pub(super) fn task_of_cluster(&self) -> Task {
        Task::new(self.state.task, &self.state.files)
    }

    /// How often a sample was added or removed.
    pub(super) fn changes(&self) -> u64 {
        self.state.changes
    }

    /// The files and directories of the task. None: all offered files.
    pub(super) fn files(&self) -> &[String] {
        &self.state.files
    }

    /// Adds a record to the journal and applies it to the state.
    fn commit(&mut self, record: Record, bytes: &[u8]) {
        let text = serde_json::to_vec(&record).map_err(Error::from);
        let committed = text.and_then(|text| {
            let pinned = self.compacting.journal.append(&text, bytes)?;
            self.state.apply(record, (!bytes.is_empty()).then_some(pinned))
        });
        self.changes.store(self.state.changes, Ordering::Release);
        // This does not happen: texts are bounded, and bytes by `SAMPLE_BYTES_MAX`.
        if let Err(error) = committed {
            tracing::error!(%error, "a record of a rehearsal buffer was not taken");
        }
    }

    /// Whether a file is to be offered. A file that a user names may be anywhere.
    pub(super) fn accepts(&self, path: &Path, bytes: u64, named: bool) -> bool {
        let hash = hash_of(path.as_os_str().as_bytes());
        let rate = self.settings.offer_rate;
        // By the hash, so that a file is offered in every mount or in none.
        let chosen = || (hash as f64) < rate * 2_f64.powi(64);
        let wanted = named || path.starts_with(&self.settings.root) && chosen();
        let fits = (1..=SAMPLE_BYTES_MAX).contains(&bytes);
        wanted && fits && !self.state.offered.contains(&hash) && self.class_of(path).is_some()
    }

    /// The class of a file. None if it has none, or if no directory can have that name.
    pub(super) fn class_of(&self, path: &Path) -> Option<String> {
        let class = self.settings.classes.of(path.as_os_str().as_bytes(), &self.labels)?;
        (![b".".as_slice(), b".."].contains(&class))
            .then(|| String::from_utf8_lossy(class).into_owned())
    }

    /// Whether a sample may be kept after `ahead` other offers. If `ahead` is 0, false is certain.
    pub(super) fn may_keep(&self, sample: &OfferedSample, ahead: u32) -> bool {
        let candidate = |class| Candidate { class, task: self.state.task, bytes: sample.bytes };
        let class = self.state.classes.get(&sample.class);
        // A new class changes the share of each.
        class.is_none_or(|class| self.state.buffer.may_keep(candidate(class), ahead))
    }

    /// Offers a sample and records that, with its bytes if it [may be kept](Self::may_keep).
    pub(super) fn record_offer(&mut self, sample: OfferedSample, bytes: &[u8]) {
        let may_keep = self.may_keep(&sample, 0);
        let OfferedSample { hash, class, bytes: length, origin } = sample;
        let origin = may_keep.then_some(origin);
        let record = Record::Offered { hash, class, bytes: length, origin };
        self.commit(record, if may_keep { bytes } else { &[] });
    }

    /// Gives a sample up if it is damaged. It may be offered again. Blocks.
    pub(super) fn check_sample(&mut self, sample: SampleId) {
        if let Some(Err(error)) = self.state.held.get(&sample).map(|held| held.bytes.read())
            && error.kind() == ErrorKind::InvalidData
        {
            self.give_up(sample);
        }
    }

    fn give_up(&mut self, sample: SampleId) {
        let (name, path) = (&self.settings.name, self.path(sample));
        tracing::warn!(name, path, "a sample of a rehearsal buffer is damaged and given up");
        self.commit(Record::Lost { sample }, &[]);
    }

    pub(super) fn sample_at(&self, path: &str) -> Option<SampleId> {
        self.state.by_hash.get(&hash_of(path.as_bytes())).copied()
    }

    pub(super) fn was_offered(&self, path: &str) -> bool {
        self.state.offered.contains(&hash_of(path.as_bytes()))
    }

    /// The ID of a file's class, if a file of the class was offered.
    pub(super) fn class_id(&self, path: &Path) -> Option<ClassId> {
        self.state.classes.get(&self.class_of(path)?)
    }

    pub(super) fn score(
        &mut self,
        sample: SampleId,
        score: f32,
    ) -> std::result::Result<(), UpdateError> {
        if !score.is_finite() {
            return Err(UpdateError::NotFinite);
        }
        self.state.buffer.get(sample).ok_or(UpdateError::NotHeld)?;
        self.commit(Record::Scored { sample, score }, &[]);
        Ok(())
    }

    /// Counts a replay, unless the disk takes no writes.
    pub(super) fn count_replay(&mut self, sample: SampleId) {
        // A view may show a sample that has left the buffer.
        if self.state.buffer.get(sample).is_some() && self.ensure_room() {
            self.commit(Record::Shown { sample }, &[]);
        }
    }

    /// Begins a task, to which later offers belong. Returns whether it differs from the one before.
    pub(super) fn begin_task(&mut self, task: u32, files: Vec<String>) -> bool {
        let is_other = (task, &files) != (self.state.task, &self.state.files);
        self.commit(Record::Task { task, files }, &[]);
        if is_other {
            self.end_streams();
        }
        is_other
    }

    /// The bindings of an epoch's stream. If it has none, it begins with the held samples. None if nothing is
    /// held or the disk takes no writes.
    pub(super) fn bindings(&mut self, epoch: u64) -> Option<Arc<Bindings>> {
        let samples = &self.state.held;
        let held = |sample| samples.contains_key(&SampleId(sample));
        let bindings = match self.bindings.take_up(&*self.disk, epoch, held) {
            Ok(None) => self.begin_stream(epoch),
            found => found,
        };
        bindings.unwrap_or_else(|error| {
            let name = &self.settings.name;
            tracing::warn!(name, %error, "what a stream binds is not kept for the next mount");
            None
        })
    }

    fn begin_stream(&mut self, epoch: u64) -> Result<Option<Arc<Bindings>>> {
        if !self.ensure_room() {
            return Err(Error::from(ErrorKind::StorageFull));
        }
        // A sample that is lost in a crash would leave its number to another one.
        self.sync()?;
        let set: Vec<u32> = self.state.held.keys().map(|sample| sample.0).collect();
        let disk = &*self.disk;
        (!set.is_empty()).then(|| self.bindings.begin(disk, epoch, &set)).transpose()
    }

    /// Forgets all streams: further epochs have other samples.
    fn end_streams(&mut self) {
        if let Err(error) = self.bindings.clear(&*self.disk) {
            let name = &self.settings.name;
            tracing::warn!(name, %error, "streams of before may be taken up by the next mount");
        }
    }

    /// Makes room for further records by writing those that wait. Returns whether there is room: not if the
    /// disk takes no writes, or if other programs need its space.
    pub(super) fn ensure_room(&mut self) -> bool {
        if self.compacting.journal.has_many_pending() {
            let _ = self.write();
        }
        let has_room = self.compacting.claim_room(0);
        if self.had_room && !has_room {
            let name = &self.settings.name;
            tracing::warn!(
                name,
                "there is no room for a rehearsal buffer on its disk; the buffer stays as it is"
            );
        }
        self.had_room = has_room;
        // A record behind a gap would be lost with the gap.
        has_room && !self.sync_failed && !self.compacting.journal.has_many_pending()
    }

    /// Writes the records that wait, and rewrites the journal if most of it is dead. Records stay if they
    /// cannot be written.
    ///
    /// # Errors
    /// The disk's. Only the first of several in a row is logged.
    pub(super) fn write(&mut self) -> Result<()> {
        let result = self.write_journal();
        // After a failed sync, a successful write proves nothing.
        if result.is_err() || !self.sync_failed {
            self.note_result(&result);
        }
        result
    }

    fn write_journal(&mut self) -> Result<()> {
        self.compacting.journal.write()?;
        match self.compacting.rewrite_if_mostly_dead(&self.state) {
            Ok(saved) => saved.into_iter().for_each(|saved| self.repin(saved)),
            Err(error) if self.had_room => {
                let name = &self.settings.name;
                tracing::warn!(name, %error, "the journal of a rehearsal buffer cannot be rewritten");
            }
            // The missing room was logged.
            Err(_) => {}
        }
        Ok(())
    }

    /// Writes the records that wait, and syncs the journal and the streams.
    pub(super) fn sync(&mut self) -> Result<()> {
        let result = self.write_journal().and_then(|()| {
            let synced = self.sync_journal();
            self.sync_failed = synced.is_err();
            synced
        });
        self.note_result(&result);
        self.bindings.sync(&self.settings.name);
        result
    }

    /// Syncs the journal. If the disk lost a part, the journal is begun anew with the rest.
    fn sync_journal(&mut self) -> Result<()> {
        while let Some(saved) = self.compacting.sync(&self.state)? {
            self.repin(saved);
            self.compacting.journal.write()?;
        }
        Ok(())
    }

    fn note_result(&mut self, result: &Result<()>) {
        if let Err(error) = result
            && !self.warned
        {
            let name = &self.settings.name;
            tracing::warn!(name, %error, "a rehearsal buffer cannot be written; it takes no offers");
        }
        if self.warned && result.is_ok() {
            // Samples that waited to be written are shown now.
            self.count_change();
        }
        self.warned = result.is_err();
    }

    /// Counts a change for which no sample came or went.
    fn count_change(&mut self) {
        self.state.changes += 1;
        self.changes.store(self.state.changes, Ordering::Release);
    }

    /// Whether all records and bindings are synced.
    pub(super) fn lasts(&self) -> bool {
        self.compacting.journal.is_durable() && self.bindings.lasts()
    }

    /// Takes what was saved: the new places of samples, and the samples that are damaged.
    fn repin(&mut self, (moved, damaged): <BufferState as LiveState>::Saved) {
        for (sample, pinned) in moved {
            if let Some(held) = self.state.held.get_mut(&sample) {
                Arc::make_mut(held).bytes = SampleBytes::Pinned(pinned);
            }
        }
        // A view of the old places keeps the old journal on the disk.
        self.count_change();
        damaged.into_iter().for_each(|sample| self.give_up(sample));
    }

    pub(super) fn class_name(&self, class: ClassId) -> &str {
        self.state.classes.names.get(class.0 as usize).map_or("", String::as_str)
    }

    pub(super) fn path(&self, sample: SampleId) -> &str {
        self.state.held.get(&sample).map_or("", |held| &held.source)
    }

    pub(super) fn held_sample(&self, id: SampleId) -> Option<Arc<KeptSample>> {
        self.state.held.get(&id).cloned()
    }

    pub(super) fn written_sample(&self, id: SampleId) -> Option<Arc<KeptSample>> {
        self.held_sample(id).filter(|sample| sample.bytes.is_written())
    }

    /// The written sample whose path has this hash.
    pub(super) fn sample_of(&self, hash: u64) -> Option<Arc<KeptSample>> {
        self.written_sample(*self.state.by_hash.get(&hash)?)
    }

    /// Chooses a sleep set among the written samples, with their classes.
    pub(super) fn sleep_set(&self, set: &SleepSet) -> Vec<(ClassId, Arc<KeptSample>)> {
        let chosen = sleep_set(self.state.buffer.members(), set);
        // There may be millions, which are found faster in the order of their numbers.
        let mut indices: Vec<(SampleId, usize)> = chosen.into_iter().zip(0..).collect();
        indices.sort_unstable();
        let mut found = vec![None; indices.len()];
        for (id, index) in indices {
            let class = self.state.buffer.get(id).map(|member| member.class);
            found[index] = class.zip(self.written_sample(id));
        }
        found.into_iter().flatten().collect()
    }
}
