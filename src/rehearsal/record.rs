//! What is written of a buffer, and what it comes to.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::{ErrorKind, Result};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::buffer::{Buffer, Candidate, Capacity, ClassId, Rules, SampleId};
use crate::disk::journal::{Alive, Journal, Pinned};
use crate::fs::Access;
use crate::rehearsal::views::Sample;

/// What happened.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Record {
    /// The journal begins anew with a buffer as it is. Pinned with it are the hashes of all that was
    /// offered, 8 bytes each, the lowest first.
    Begun { buffer: Box<Buffer>, classes: Vec<String>, task: u32, files: Vec<String> },
    /// The bytes of a sample that the buffer held when the journal began are pinned with this.
    Pinned { sample: SampleId, hash: u64, origin: Origin },
    /// Other rules are in force: what is held is offered to a buffer of these.
    Ruled { rules: Rules },
    /// The same rules are in force, with more room or less.
    Resized { capacity: Capacity },
    /// A sample was offered. Its bytes are pinned with this, unless it was passed over.
    Offered { hash: u64, class: String, bytes: u64, origin: Option<Origin> },
    /// The trainer said something of a sample.
    Scored { sample: SampleId, score: f32 },
    /// A sample was shown again.
    Shown { sample: SampleId },
    /// A sample's bytes are damaged.
    Lost { sample: SampleId },
    /// A task has begun, of these files and directories; none: all.
    Task { task: u32, files: Vec<String> },
}

/// Where a sample is from.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct Origin {
    /// Its path within the dataset.
    pub(super) path: String,
    /// Who may read it there.
    pub(super) access: Access,
}

/// What is known of a sample that is held.
pub(super) struct Exemplar {
    pub(super) hash: u64,
    /// As it is shown: all that show it share it.
    pub(super) sample: Arc<Sample>,
}

impl Exemplar {
    pub(super) fn origin(&self) -> Origin {
        Origin { path: self.sample.source.clone(), access: self.sample.access }
    }
}

/// The names of classes, in the order in which they were met.
#[derive(Default)]
pub(super) struct Names {
    pub(super) names: Vec<String>,
    ids: HashMap<String, ClassId>,
}

impl Names {
    /// The number of a class that was met.
    pub(super) fn get(&self, class: &str) -> Option<ClassId> {
        self.ids.get(class).copied()
    }

    /// The number of a class, which it gets when it is first met.
    fn id(&mut self, class: String) -> ClassId {
        let next = ClassId(self.names.len() as u32);
        *self.ids.entry(class).or_insert_with_key(|class| {
            self.names.push(class.clone());
            next
        })
    }
}

/// What the records of a journal come to: a buffer, and what is known of its samples.
pub(super) struct State {
    pub(super) buffer: Buffer,
    pub(super) classes: Names,
    /// Hashes of the paths of all that was offered.
    pub(super) offered: HashSet<u64>,
    pub(super) exemplars: BTreeMap<SampleId, Exemplar>,
    pub(super) by_hash: HashMap<u64, SampleId>,
    pub(super) task: u32,
    /// The files and directories of the task; none: all that is offered.
    pub(super) files: Vec<String>,
    /// How often a sample has come or gone.
    pub(super) changes: u64,
}

impl State {
    pub(super) fn new(buffer: Buffer) -> Self {
        let (classes, offered, exemplars, by_hash, files) = Default::default();
        State { buffer, classes, offered, exemplars, by_hash, task: 0, files, changes: 0 }
    }

    /// Lives through a record, whether it has just been made or is read again.
    ///
    /// # Errors
    /// Where what is pinned with it is needed and cannot be read.
    pub(super) fn apply(&mut self, record: Record, pinned: Option<Pinned>) -> Result<()> {
        match record {
            Record::Begun { buffer, classes, task, files } => {
                *self = State { task, files, ..State::new(*buffer) };
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
            Record::Ruled { rules } => self.reform(rules),
            Record::Resized { capacity } => {
                self.buffer.resize(capacity).into_iter().for_each(|gone| drop(self.forget(gone)));
            }
            Record::Offered { hash, class, bytes, origin } => {
                let class = self.classes.id(class);
                self.offered.insert(hash);
                let candidate = Candidate { class, task: self.task, bytes };
                self.offer(candidate, hash, origin.zip(pinned));
            }
            Record::Scored { sample, score } => drop(self.buffer.score(sample, score)),
            Record::Shown { sample } => drop(self.buffer.replayed(sample)),
            Record::Lost { sample } => {
                self.buffer.remove(sample);
                if let Some(exemplar) = self.forget(sample) {
                    self.offered.remove(&exemplar.hash);
                }
            }
            Record::Task { task, files } => (self.task, self.files) = (task, files),
        }
        Ok(())
    }

    fn offer(&mut self, candidate: Candidate, hash: u64, found: Option<(Origin, Pinned)>) {
        let Some(offered) = self.buffer.offer(candidate) else { return };
        offered.evicted.into_iter().for_each(|gone| drop(self.forget(gone)));
        match found {
            Some(found) if offered.kept => self.hold(offered.sample, hash, found),
            // A sample counts as held only with its bytes.
            None if offered.kept => drop(self.buffer.remove(offered.sample)),
            _ => {}
        }
    }

    /// Offers what is held, in the order in which it came, to a buffer of other rules.
    fn reform(&mut self, rules: Rules) {
        let before = std::mem::replace(&mut self.buffer, Buffer::new(rules));
        let mut exemplars = std::mem::take(&mut self.exemplars);
        self.by_hash.clear();
        for member in before.members() {
            let candidate =
                Candidate { class: member.class, task: member.task, bytes: member.bytes };
            let exemplar = exemplars.remove(&member.sample);
            let hash = exemplar.as_ref().map_or(0, |exemplar| exemplar.hash);
            let found = exemplar.map(|found| (found.origin(), found.sample.pinned.clone()));
            self.offer(candidate, hash, found);
        }
    }

    fn hold(&mut self, id: SampleId, hash: u64, (origin, pinned): (Origin, Pinned)) {
        let Origin { path: source, access } = origin;
        let sample = Arc::new(Sample { id, source, access, pinned });
        self.changes += 1;
        self.by_hash.insert(hash, id);
        self.exemplars.insert(id, Exemplar { hash, sample });
    }

    fn forget(&mut self, sample: SampleId) -> Option<Exemplar> {
        let exemplar = self.exemplars.remove(&sample)?;
        self.changes += 1;
        self.by_hash.remove(&exemplar.hash);
        Some(exemplar)
    }
}

impl Alive for State {
    /// Where the bytes of samples are then, and whose are damaged.
    type Saved = (Vec<(SampleId, Pinned)>, Vec<SampleId>);

    /// Those of what is held, and of the hashes of what was offered.
    fn bytes(&self) -> u64 {
        let bytes: u64 = self.buffer.members().map(|member| member.bytes).sum();
        bytes + 8 * self.offered.len() as u64
    }

    fn save(&self, journal: &mut Journal) -> Result<Self::Saved> {
        let (buffer, classes) = (Box::new(self.buffer.clone()), self.classes.names.clone());
        let (task, files) = (self.task, self.files.clone());
        let begun = serde_json::to_vec(&Record::Begun { buffer, classes, task, files })?;
        let hashes: Vec<u8> = self.offered.iter().flat_map(|hash| hash.to_le_bytes()).collect();
        journal.append(&begun, &hashes)?;
        let (mut moved, mut damaged) = (Vec::new(), Vec::new());
        for (sample, exemplar) in &self.exemplars {
            let bytes = match exemplar.sample.pinned.read() {
                Ok(bytes) => bytes,
                Err(error) if error.kind() == ErrorKind::InvalidData => {
                    damaged.push(*sample);
                    continue;
                }
                Err(error) => return Err(error),
            };
            let (sample, hash, origin) = (*sample, exemplar.hash, exemplar.origin());
            let text = serde_json::to_vec(&Record::Pinned { sample, hash, origin })?;
            moved.push((sample, journal.append(&text, &bytes)?));
            if journal.is_full() {
                journal.write()?;
            }
        }
        Ok((moved, damaged))
    }
}
