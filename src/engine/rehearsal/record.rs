//! What is written of a buffer, and how it is lived through again.

use std::collections::{BTreeMap, HashMap, HashSet};

use serde::{Deserialize, Serialize};

use crate::cache::Pinned;
use crate::fs::views::Access;
use crate::rehearsal::{Buffer, Candidate, ClassId, SampleId};

/// What happened.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Record {
    /// The journal begins.
    Begun {
        buffer: Box<Buffer>,
        classes: Vec<String>,
        offered: Vec<u64>,
        task: u32,
        #[serde(default)]
        files: Vec<String>,
    },
    /// A sample was offered for the first time.
    Offered { path: String, hash: u64, access: Access, class: String, task: u32, bytes: u64 },
    /// The bytes of a sample that is held are pinned with this record.
    Pinned { sample: SampleId, path: String, hash: u64, access: Access },
    /// The trainer said something of a sample.
    Scored { sample: SampleId, score: f32 },
    /// A sample was shown again.
    Shown { sample: SampleId },
    /// A sample's bytes could not be had.
    Lost { sample: SampleId },
    /// A task has begun, of these files and directories; none: all.
    Task {
        task: u32,
        #[serde(default)]
        files: Vec<String>,
    },
}

/// What is known of a sample that is held.
pub(super) struct Exemplar {
    pub(super) path: String,
    pub(super) hash: u64,
    pub(super) access: Access,
    /// None as long as its bytes are on their way.
    pub(super) pinned: Option<Pinned>,
}

impl Exemplar {
    /// What is recorded with its bytes.
    pub(super) fn record(&self, sample: SampleId) -> Record {
        let Exemplar { path, hash, access, .. } = self;
        Record::Pinned { sample, path: path.clone(), hash: *hash, access: *access }
    }
}

/// The names of classes, in the order in which they were met.
#[derive(Default)]
pub(super) struct Names {
    pub(super) names: Vec<String>,
    ids: HashMap<String, ClassId>,
}

impl Names {
    /// The number of a class, which it gets when it is first met.
    pub(super) fn id(&mut self, class: &str) -> ClassId {
        if let Some(id) = self.ids.get(class) {
            return *id;
        }
        let id = ClassId(self.names.len() as u32);
        self.names.push(class.to_owned());
        self.ids.insert(class.to_owned(), id);
        id
    }
}

/// A buffer while its journal is lived through again.
pub(super) struct Replay {
    pub(super) buffer: Buffer,
    pub(super) classes: Names,
    pub(super) offered: HashSet<u64>,
    pub(super) exemplars: BTreeMap<SampleId, Exemplar>,
    pub(super) task: u32,
    pub(super) files: Vec<String>,
}

impl Replay {
    pub(super) fn new(buffer: Buffer) -> Self {
        let (classes, offered, exemplars, files) = Default::default();
        Replay { buffer, classes, offered, exemplars, task: 0, files }
    }

    pub(super) fn apply(&mut self, record: Record, pinned: Option<Pinned>) {
        match record {
            Record::Begun { buffer, classes, offered, task, files } => {
                *self = Replay { task, files, ..Replay::new(*buffer) };
                for class in &classes {
                    self.classes.id(class);
                }
                self.offered = offered.into_iter().collect();
            }
            Record::Offered { path, hash, access, class, task, bytes } => {
                let class = self.classes.id(&class);
                let candidate = Candidate { class, task, bytes };
                let Some(offered) = self.buffer.offer(candidate) else { return };
                self.offered.insert(hash);
                for gone in offered.evicted {
                    self.exemplars.remove(&gone);
                }
                if offered.kept {
                    self.exemplars
                        .insert(offered.sample, Exemplar { path, hash, access, pinned: None });
                }
            }
            Record::Pinned { sample, path, hash, access } => {
                if self.buffer.get(sample).is_some() {
                    self.exemplars.insert(sample, Exemplar { path, hash, access, pinned });
                }
            }
            Record::Scored { sample, score } => drop(self.buffer.score(sample, score)),
            Record::Shown { sample } => drop(self.buffer.replayed(sample)),
            Record::Lost { sample } => {
                if let Some(exemplar) = self.exemplars.remove(&sample) {
                    self.offered.remove(&exemplar.hash);
                }
                self.buffer.remove(sample);
            }
            Record::Task { task, files } => (self.task, self.files) = (task, files),
        }
    }
}
