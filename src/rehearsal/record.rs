//! The records of a buffer's journal, and the state that they add up to. A record is applied in the same way
//! when it is made and when it is read again.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::{ErrorKind, Result};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::buffer::{Candidate, Capacity, ClassId, RehearsalBuffer, Rules, SampleId};
use crate::disk::journal::{Journal, LiveState, Pinned};
use crate::fs::Access;
use crate::rehearsal::views::{KeptSample, SampleBytes};

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Record {
    /// The journal begins anew with the present state. Pinned with it are the hashes of the paths of all
    /// offered files: 8 bytes each, little-endian, ascending.
    Begun { buffer: Box<RehearsalBuffer>, classes: Vec<String>, task: u32, files: Vec<String> },
    /// A sample of that state. Its bytes are pinned with the record.
    Pinned { sample: SampleId, hash: u64, origin: Origin },
    /// The rules changed: all held samples are offered to a new buffer with these.
    Ruled { rules: Rules },
    /// Only the capacity changed.
    Resized { capacity: Capacity },
    /// A sample was offered. If it may be kept, its origin is here and its bytes are pinned with the record.
    Offered { hash: u64, class: String, bytes: u64, origin: Option<Origin> },
    /// The trainer gave a score.
    Scored { sample: SampleId, score: f32 },
    /// A sample was shown again.
    Shown { sample: SampleId },
    /// The bytes of a sample are damaged or missing. It is given up, and may be offered again.
    Lost { sample: SampleId },
    /// A task has begun. Without `files` all offered files belong to it.
    Task { task: u32, files: Vec<String> },
}

#[derive(Clone, Serialize, Deserialize)]
pub(super) struct Origin {
    pub(super) path: String,
    /// Who could read the file when it was offered.
    pub(super) access: Access,
}

impl Origin {
    fn of(sample: &KeptSample) -> Origin {
        Origin { path: sample.source.clone(), access: sample.access }
    }
}

/// The names of classes. A class's ID is its index here.
#[derive(Default)]
pub(super) struct ClassNames {
    pub(super) names: Vec<String>,
    ids: HashMap<String, ClassId>,
}

impl ClassNames {
    pub(super) fn get(&self, class: &str) -> Option<ClassId> {
        self.ids.get(class).copied()
    }

    /// The ID of a class. A new class gets the next one.
    fn id(&mut self, class: String) -> ClassId {
        let next = ClassId(self.names.len() as u32);
        *self.ids.entry(class).or_insert_with_key(|class| {
            self.names.push(class.clone());
            next
        })
    }
}

/// The state of a buffer, after all records of its journal.
pub(super) struct BufferState {
    pub(super) buffer: RehearsalBuffer,
    pub(super) classes: ClassNames,
    /// Hashes of the paths of all offered files.
    pub(super) offered: HashSet<u64>,
    /// The held samples. Views that show one share it.
    pub(super) held: BTreeMap<SampleId, Arc<KeptSample>>,
    pub(super) by_hash: HashMap<u64, SampleId>,
    pub(super) task: u32,
    /// The files and directories of the task. None: all offered files.
    pub(super) files: Vec<String>,
    /// How often a sample was added or removed.
    pub(super) changes: u64,
}

impl BufferState {
    pub(super) fn new(buffer: RehearsalBuffer) -> Self {
        let (classes, offered, held, by_hash, files) = Default::default();
        BufferState { buffer, classes, offered, held, by_hash, task: 0, files, changes: 0 }
    }

    /// Applies a record.
    ///
    /// # Errors
    /// If pinned bytes are needed and cannot be read.
    pub(super) fn apply(&mut self, record: Record, pinned: Option<Pinned>) -> Result<()> {
        match record {
            Record::Begun { buffer, classes, task, files } => {
                *self = BufferState { task, files, ..BufferState::new(*buffer) };
                for class in classes {
                    self.classes.id(class);
                }
                let hashes = pinned.map_or(Ok(Vec::new()), |pinned| pinned.read())?;
                self.offered =
                    hashes.as_chunks().0.iter().map(|hash| u64::from_le_bytes(*hash)).collect();
            }
            Record::Pinned { sample, hash, origin } => {
                if let (Some(pinned), Some(_)) = (pinned, self.buffer.get(sample)) {
                    self.hold(sample, hash, (origin, pinned));
                }
            }
            Record::Ruled { rules } => self.change_rules(rules),
            Record::Resized { capacity } => {
                self.buffer
                    .resize(capacity)
                    .into_iter()
                    .for_each(|evicted| drop(self.forget(evicted)));
            }
            Record::Offered { hash, class, bytes, origin } => {
                let class = self.classes.id(class);
                self.offered.insert(hash);
                let candidate = Candidate { class, task: self.task, bytes };
                self.apply_offer(candidate, hash, origin.zip(pinned));
            }
            Record::Scored { sample, score } => drop(self.buffer.score(sample, score)),
            Record::Shown { sample } => drop(self.buffer.replayed(sample)),
            Record::Lost { sample } => {
                self.buffer.remove(sample);
                if let Some(held) = self.forget(sample) {
                    self.offered.remove(&held.hash);
                }
            }
            Record::Task { task, files } => (self.task, self.files) = (task, files),
        }
        Ok(())
    }

    fn apply_offer(&mut self, candidate: Candidate, hash: u64, found: Option<(Origin, Pinned)>) {
        let Some(offered) = self.buffer.offer(candidate) else { return };
        offered.evicted.into_iter().for_each(|evicted| drop(self.forget(evicted)));
        match found {
            Some(found) if offered.kept => self.hold(offered.sample, hash, found),
            // A sample without its bytes is not held.
            None if offered.kept => drop(self.buffer.remove(offered.sample)),
            _ => {}
        }
    }

    /// Offers the held samples, the oldest first, to a new buffer.
    fn change_rules(&mut self, rules: Rules) {
        let before = std::mem::replace(&mut self.buffer, RehearsalBuffer::new(rules));
        let mut held = std::mem::take(&mut self.held);
        self.by_hash.clear();
        for member in before.members() {
            let candidate =
                Candidate { class: member.class, task: member.task, bytes: member.bytes };
            let held = held.remove(&member.sample);
            let hash = held.as_ref().map_or(0, |held| held.hash);
            let found =
                held.and_then(|held| Some((Origin::of(&held), held.bytes.pinned()?.clone())));
            self.apply_offer(candidate, hash, found);
        }
    }

    fn hold(&mut self, id: SampleId, hash: u64, (origin, pinned): (Origin, Pinned)) {
        let Origin { path: source, access } = origin;
        self.changes += 1;
        self.by_hash.insert(hash, id);
        let bytes = SampleBytes::Pinned(pinned);
        self.held.insert(id, Arc::new(KeptSample { id, hash, source, access, bytes }));
    }

    fn forget(&mut self, sample: SampleId) -> Option<Arc<KeptSample>> {
        let held = self.held.remove(&sample)?;
        self.changes += 1;
        self.by_hash.remove(&held.hash);
        Some(held)
    }
}

impl LiveState for BufferState {
    /// The new places of samples, and the samples that are damaged.
    type Saved = (Vec<(SampleId, Pinned)>, Vec<SampleId>);

    fn bytes(&self) -> u64 {
        let bytes: u64 = self.buffer.members().map(|member| member.bytes).sum();
        bytes + 8 * self.offered.len() as u64
    }

    fn save(&self, journal: &mut Journal) -> Result<Self::Saved> {
        let (buffer, classes) = (Box::new(self.buffer.clone()), self.classes.names.clone());
        let (task, files) = (self.task, self.files.clone());
        let begun = serde_json::to_vec(&Record::Begun { buffer, classes, task, files })?;
        let mut hashes: Vec<u64> = self.offered.iter().copied().collect();
        hashes.sort_unstable();
        let hashes: Vec<u8> = hashes.into_iter().flat_map(u64::to_le_bytes).collect();
        journal.append(&begun, &hashes)?;
        let (mut moved, mut damaged) = (Vec::new(), Vec::new());
        for (sample, held) in &self.held {
            let bytes = match held.bytes.read() {
                Ok(bytes) => bytes,
                Err(error) if error.kind() == ErrorKind::InvalidData => {
                    damaged.push(*sample);
                    continue;
                }
                Err(error) => return Err(error),
            };
            let (sample, hash, origin) = (*sample, held.hash, Origin::of(held));
            let text = serde_json::to_vec(&Record::Pinned { sample, hash, origin })?;
            moved.push((sample, journal.append(&text, &bytes)?));
            if journal.has_many_pending() {
                journal.write()?;
            }
        }
        Ok((moved, damaged))
    }
}
