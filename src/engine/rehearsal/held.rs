//! One rehearsal buffer with its bytes: what it decides, in memory, and its journal on the disk.
//!
//! Everything that happens to the buffer is a record of the journal, written before anybody sees
//! what came of it. At the next mount the records are lived through again: the buffer, being a
//! function of its seed and of what it was told, is what it was. The first record is the buffer as
//! it was when the journal was begun. A sample counts as held only with its bytes: one whose bytes
//! were on their way when the daemon died is given up.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::Hasher;
use std::io::{Error, ErrorKind, Result};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use siphasher::sip::SipHasher24;

use super::answers::Refusals;
use super::record::{Exemplar, Names, Record, Replay};
use crate::cache::store::disk::Disk;
use crate::cache::{Journal, Pinned};
use crate::config::RehearsalSettings;
use crate::fs::views::{Access, Sample};
use crate::rehearsal::{
    Buffer, Candidate, ClassId, Feature, Labels, Refused, SampleId, SleepSet, sleep_set,
};

/// Bytes of the journal beyond twice what is held, before it is rewritten.
const DEAD_BYTES: u64 = 64 << 20;

/// Samples larger than this are never kept: they are read and served in one piece.
pub(super) const SAMPLE_BYTES_MAX: u64 = 256 << 20;

/// What came of an offer to a buffer.
pub(super) enum Taken {
    /// It is of no class, or not to be offered, or was offered before.
    NotOffered,
    /// It was passed over.
    Passed,
    /// It is kept, and its bytes are wanted.
    Wanted(SampleId),
}

/// A buffer and what belongs to it.
pub(super) struct Held {
    pub(super) settings: RehearsalSettings,
    labels: Labels,
    pub(super) buffer: Buffer,
    classes: Names,
    offered: HashSet<u64>,
    exemplars: BTreeMap<SampleId, Exemplar>,
    by_hash: HashMap<u64, SampleId>,
    journal: Journal,
    pub(super) task: u32,
    /// The files and directories of the task; none: all that is offered.
    pub(super) files: Vec<String>,
    /// Scores that were taken in this mount, and what was not.
    pub(super) scored: u64,
    pub(super) refused: Refusals,
    /// The length of the journal at which it is looked how much of it is dead.
    length_max: u64,
    /// The disk does not take what is written: nothing is offered until it does.
    failing: bool,
}

/// The number that stands for a path.
fn hash_of(path: &[u8]) -> u64 {
    let mut hasher = SipHasher24::new();
    hasher.write(path);
    hasher.finish()
}

impl Held {
    /// Opens a buffer that lies on `disk`, or begins one. Where its rules are others than
    /// before, what it held is offered to a new one by these.
    ///
    /// # Errors
    /// Where the disk does not do what is needed, or the journal is not one that this version wrote.
    pub(super) fn open(
        settings: RehearsalSettings,
        labels: Labels,
        disk: Arc<dyn Disk>,
    ) -> Result<Self> {
        let rules = settings.rules;
        let mut found: Option<Replay> = None;
        let mut wrong = false;
        let journal = Journal::open(disk, |text, pinned| {
            let record = serde_json::from_slice(text);
            let begun = found.get_or_insert_with(|| Replay::new(Buffer::new(rules)));
            wrong |= record.is_err();
            if let Ok(record) = record {
                begun.apply(record, pinned);
            }
        })?;
        if wrong {
            let message = "a record of the buffer's journal cannot be understood";
            return Err(Error::new(ErrorKind::InvalidData, message));
        }
        let is_new = found.is_none();
        let replay = found.unwrap_or_else(|| Replay::new(Buffer::new(rules)));
        let mut held = Held {
            settings,
            labels,
            offered: replay.offered,
            by_hash: HashMap::new(),
            exemplars: replay.exemplars,
            buffer: replay.buffer,
            classes: replay.classes,
            journal,
            task: replay.task,
            files: replay.files,
            scored: 0,
            refused: Refusals::default(),
            length_max: 0,
            failing: false,
        };
        held.give_up_unpinned();
        let reformed = *held.buffer.rules() != rules;
        if reformed {
            held.reform();
        }
        held.by_hash = held.exemplars.iter().map(|(sample, e)| (e.hash, *sample)).collect();
        if is_new || reformed {
            held.rewrite()?;
        }
        held.journal.write()?;
        Ok(held)
    }

    /// Gives up what has no bytes.
    fn give_up_unpinned(&mut self) {
        let pinned = |sample: &SampleId| {
            self.exemplars.get(sample).is_some_and(|exemplar| exemplar.pinned.is_some())
        };
        let samples = self.buffer.members().map(|member| member.sample);
        let without: Vec<SampleId> = samples.filter(|sample| !pinned(sample)).collect();
        without.into_iter().for_each(|sample| self.lose(sample));
    }

    /// Offers what is held, in the order in which it came, to a buffer of the rules in force.
    fn reform(&mut self) {
        let before = std::mem::replace(&mut self.buffer, Buffer::new(self.settings.rules));
        let mut exemplars = std::mem::take(&mut self.exemplars);
        for member in before.members() {
            let candidate =
                Candidate { class: member.class, task: member.task, bytes: member.bytes };
            let Some(offered) = self.buffer.offer(candidate) else { break };
            for gone in offered.evicted {
                self.exemplars.remove(&gone);
            }
            if let Some(exemplar) = exemplars.remove(&member.sample).filter(|_| offered.kept) {
                self.exemplars.insert(offered.sample, exemplar);
            }
        }
    }

    /// Where the bytes are; none where they are more than a record can have.
    fn record(&mut self, record: &Record, bytes: &[u8]) -> Option<Pinned> {
        // Only numbers, texts and buffers: they have a text.
        let text = serde_json::to_vec(record).unwrap_or_default();
        self.journal.append(&text, bytes).ok()
    }

    /// The class of a file that is to be offered.
    fn class_to_offer<'a>(&'a self, path: &'a Path, hash: u64) -> Option<&'a [u8]> {
        let rate = self.settings.offer_rate;
        let within = path.starts_with(&self.settings.root);
        // By the path, so that a file is always offered or never.
        let chosen = (hash as f64) < rate * 2_f64.powi(64);
        if !within || !chosen {
            return None;
        }
        self.class_of(path)
    }

    /// The class of a file; none where it is of none, or of one that no directory can be named after.
    pub(super) fn class_of<'a>(&'a self, path: &'a Path) -> Option<&'a [u8]> {
        let class = self.settings.classes.of(path.as_os_str().as_bytes(), &self.labels)?;
        (![b".".as_slice(), b".."].contains(&class)).then_some(class)
    }

    /// Offers a file of so many bytes, once. One that a user names is offered whatever the rate.
    pub(super) fn offer(
        &mut self,
        path: &Path,
        (bytes, access): (u64, Access),
        named: bool,
    ) -> Taken {
        let hash = hash_of(path.as_os_str().as_bytes());
        if self.failing || bytes == 0 || bytes > SAMPLE_BYTES_MAX || self.offered.contains(&hash) {
            return Taken::NotOffered;
        }
        let class = if named { self.class_of(path) } else { self.class_to_offer(path, hash) };
        let Some(class) = class else { return Taken::NotOffered };
        let class = String::from_utf8_lossy(class).into_owned();
        let id = self.classes.id(&class);
        let candidate = Candidate { class: id, task: self.task, bytes };
        let Some(offered) = self.buffer.offer(candidate) else { return Taken::NotOffered };
        let path = path.to_string_lossy().into_owned();
        self.offered.insert(hash);
        self.record(
            &Record::Offered { path: path.clone(), hash, access, class, task: self.task, bytes },
            &[],
        );
        offered.evicted.into_iter().for_each(|gone| self.forget(gone));
        if !offered.kept {
            return Taken::Passed;
        }
        self.exemplars.insert(offered.sample, Exemplar { path, hash, access, pinned: None });
        self.by_hash.insert(hash, offered.sample);
        Taken::Wanted(offered.sample)
    }

    fn forget(&mut self, sample: SampleId) {
        if let Some(exemplar) = self.exemplars.remove(&sample) {
            self.by_hash.remove(&exemplar.hash);
        }
    }

    /// Pins the bytes of a sample, if it is still held.
    pub(super) fn pin(&mut self, sample: SampleId, bytes: &[u8]) {
        let Some(member) = self.buffer.get(sample) else { return };
        if member.bytes != bytes.len() as u64 {
            return self.lose(sample);
        }
        let Some(exemplar) = self.exemplars.get(&sample) else { return };
        let record = exemplar.record(sample);
        let pinned = self.record(&record, bytes);
        if let Some(exemplar) = self.exemplars.get_mut(&sample) {
            exemplar.pinned = pinned;
        }
    }

    /// Gives up a sample whose bytes cannot be had; it may be offered again.
    pub(super) fn lose(&mut self, sample: SampleId) {
        if self.buffer.remove(sample) {
            if let Some(exemplar) = self.exemplars.get(&sample) {
                self.offered.remove(&exemplar.hash);
            }
            self.record(&Record::Lost { sample }, &[]);
            self.forget(sample);
        }
    }

    /// The sample that a path of the dataset is, if it is held.
    pub(super) fn sample(&self, path: &str) -> Option<SampleId> {
        self.by_hash.get(&hash_of(path.as_bytes())).copied()
    }

    /// Takes what the trainer says of a sample.
    ///
    /// # Errors
    /// As of [`Buffer::score`].
    pub(super) fn score(
        &mut self,
        sample: SampleId,
        score: f32,
    ) -> std::result::Result<(), Refused> {
        self.buffer.score(sample, score)?;
        self.record(&Record::Scored { sample, score }, &[]);
        Ok(())
    }

    /// Takes features of samples, and notes the scores that follow.
    ///
    /// # Errors
    /// As of [`Buffer::feed`].
    pub(super) fn feed(&mut self, list: &[Feature]) -> std::result::Result<(), Refused> {
        self.buffer.feed(list)?;
        for sample in list.iter().filter_map(|feature| feature.sample) {
            if let Some(score) = self.buffer.get(sample).and_then(|member| member.score) {
                self.record(&Record::Scored { sample, score }, &[]);
            }
        }
        Ok(())
    }

    /// A sample was shown again.
    pub(super) fn shown(&mut self, sample: SampleId) {
        // One that is of an older epoch may be held no more.
        if self.buffer.replayed(sample).is_ok() {
            self.record(&Record::Shown { sample }, &[]);
        }
    }

    /// What is offered from now on is of this task, whose samples are these files and directories.
    pub(super) fn begin_task(&mut self, task: u32, files: Vec<String>) {
        (self.task, self.files) = (task, files.clone());
        self.record(&Record::Task { task, files }, &[]);
    }

    /// Writes what happened to the disk; rewrites the journal where most of it is dead.
    pub(super) fn write(&mut self) {
        let result = self.journal.write().and_then(|()| self.leave_dead_bytes());
        self.settle(result);
    }

    /// Rewrites the journal if it may be mostly dead, and is.
    fn leave_dead_bytes(&mut self) -> Result<()> {
        if self.journal.length() <= self.length_max {
            return Ok(());
        }
        let live: u64 = self.buffer.members().map(|member| member.bytes).sum();
        let length_max = 2 * live + DEAD_BYTES;
        if self.journal.length() > length_max {
            self.rewrite()?;
        }
        self.length_max = length_max;
        Ok(())
    }

    /// Whether more should be written before anything else happens.
    pub(super) fn is_full(&self) -> bool {
        self.journal.is_full()
    }

    /// Makes what was written last.
    pub(super) fn sync(&mut self) {
        let result = self.journal.write().and_then(|()| self.journal.sync());
        self.settle(result);
    }

    fn settle(&mut self, result: Result<()>) {
        if let Err(error) = &result
            && !self.failing
        {
            let name = &self.settings.name;
            tracing::warn!(name, %error, "a rehearsal buffer cannot be written; it takes no offers");
        }
        self.failing = result.is_err();
    }

    /// Begins the journal anew with what is held.
    fn rewrite(&mut self) -> Result<()> {
        let begun = Record::Begun {
            buffer: Box::new(self.buffer.clone()),
            classes: self.classes.names.clone(),
            offered: self.offered.iter().copied().collect(),
            task: self.task,
            files: self.files.clone(),
        };
        let exemplars = &self.exemplars;
        let (moved, unread) = self.journal.rewrite(|journal| {
            journal.append(&serde_json::to_vec(&begun)?, &[])?;
            let (mut moved, mut unread) = (Vec::new(), Vec::new());
            for (sample, exemplar) in exemplars {
                let Some(pinned) = &exemplar.pinned else { continue };
                let Ok(bytes) = pinned.read() else {
                    unread.push(*sample);
                    continue;
                };
                let record = exemplar.record(*sample);
                moved.push((*sample, journal.append(&serde_json::to_vec(&record)?, &bytes)?));
                if journal.is_full() {
                    journal.write()?;
                }
            }
            Ok((moved, unread))
        })?;
        for (sample, pinned) in moved {
            if let Some(exemplar) = self.exemplars.get_mut(&sample) {
                exemplar.pinned = Some(pinned);
            }
        }
        for sample in unread {
            tracing::warn!(name = self.settings.name, "a sample of a rehearsal buffer is damaged");
            self.lose(sample);
        }
        Ok(())
    }

    /// The class of a sample, by name.
    pub(super) fn class(&self, class: ClassId) -> &str {
        self.classes.names.get(class.0 as usize).map_or("", String::as_str)
    }

    /// The path of a sample that is held.
    pub(super) fn path(&self, sample: SampleId) -> &str {
        self.exemplars.get(&sample).map_or("", |exemplar| &exemplar.path)
    }

    /// A sample that is held and whose bytes are here, as it is shown.
    pub(super) fn shows(&self, id: SampleId) -> Option<Sample> {
        let Exemplar { path, access, pinned, .. } = self.exemplars.get(&id)?;
        let (source, access) = (path.clone(), *access);
        Some(Sample { id, source, access, pinned: pinned.clone()? })
    }

    /// A sleep set of what is held.
    pub(super) fn sleep(&self, set: &SleepSet) -> Vec<SampleId> {
        sleep_set(self.buffer.members(), set)
    }
}
