//! What nodes tell each other of their buffers.

use std::hash::Hasher;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use siphasher::sip::SipHasher24;

use crate::disk::journal::Pinned;
use crate::fs::{Access, NAME_MAX};
use crate::rehearsal::journaled::SAMPLE_BYTES_MAX;
use crate::rehearsal::views::KeptSample;

/// A question of one node to another one. `buffer` is the name of a buffer.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Question {
    /// What the buffer holds. The asker knows what it held after so many changes.
    Holds { buffer: String, known: Option<u64> },
    /// The samples of a view, for a node with this task.
    Draw { buffer: String, view: String, task: Task },
    /// The bytes of a sample.
    Bytes { buffer: String, hash: u64, checksum: u32 },
    /// A sample was shown. Nobody waits for the answer.
    Shown { buffer: String, hash: u64 },
}

/// A task, the same for all nodes that were told the same files, in whatever order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(in crate::rehearsal) struct Task {
    number: u32,
    /// A hash of the paths of its files and directories; `None` if it has no list of these.
    files: Option<u64>,
}

impl Task {
    pub(in crate::rehearsal) fn new(number: u32, files: &[String]) -> Self {
        let (mut hasher, mut files) = (SipHasher24::new(), files.to_vec());
        files.sort_unstable();
        files.dedup();
        for file in &files {
            hasher.write(file.as_bytes());
            hasher.write(&[0]);
        }
        Task { number, files: (!files.is_empty()).then(|| hasher.finish()) }
    }

    pub(super) fn has_files(self) -> bool {
        self.files.is_some()
    }
}

/// A sample that a node keeps.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::rehearsal) struct Listed {
    /// The hash of its path.
    pub(in crate::rehearsal) hash: u64,
    pub(in crate::rehearsal) class: String,
    /// Its path within the dataset.
    pub(in crate::rehearsal) source: String,
    pub(in crate::rehearsal) access: Access,
    pub(in crate::rehearsal) length: u32,
    /// The CRC-32C of its bytes.
    pub(in crate::rehearsal) checksum: u32,
}

impl Listed {
    pub(super) fn of(class: &str, sample: &KeptSample) -> Option<Self> {
        let pinned = sample.bytes.pinned()?;
        Some(Listed {
            hash: sample.hash,
            class: class.to_owned(),
            source: sample.source.clone(),
            access: sample.access,
            length: pinned.length(),
            checksum: pinned.checksum(),
        })
    }

    /// Whether a sample of this node has the same bytes.
    pub(super) fn is(&self, kept: &KeptSample) -> bool {
        let has_bytes =
            |pinned: &Pinned| (pinned.length(), pinned.checksum()) == (self.length, self.checksum);
        kept.bytes.pinned().is_some_and(has_bytes)
    }

    /// Whether its class and file can have a name in a view, and its bytes be read. Another node may be of another version.
    pub(super) fn can_be_shown(&self) -> bool {
        let is_name = |name: &str| {
            !["", ".", ".."].contains(&name) && !name.contains(['/', '\0']) && name.len() < NAME_MAX
        };
        let file = self.source.rsplit('/').next().unwrap_or_default();
        let is_kept = (1..=SAMPLE_BYTES_MAX).contains(&u64::from(self.length));
        is_name(&self.class) && is_name(file) && is_kept
    }
}

/// What a buffer holds.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Listing {
    pub(super) changes: u64,
    /// `None` if the asker knows them: there were no changes.
    pub(super) samples: Option<Vec<Listed>>,
}

/// What the buffers of all nodes hold.
#[derive(Clone, Debug, Default)]
pub(in crate::rehearsal) struct Joined {
    /// How many nodes have said what they hold, the asker, too.
    pub(in crate::rehearsal) nodes: usize,
    /// Each sample once, by hash, with the id of a node that keeps it.
    pub(in crate::rehearsal) samples: Vec<(u64, Listed)>,
}

/// How many nodes have said what they hold, and how many samples these are.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(in crate::rehearsal) struct Counts {
    pub(in crate::rehearsal) nodes: usize,
    pub(in crate::rehearsal) samples: usize,
}

impl Joined {
    pub(in crate::rehearsal) fn counts(&self) -> Counts {
        Counts { nodes: self.nodes, samples: self.samples.len() }
    }
}

/// The samples of a view, of all nodes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(in crate::rehearsal) struct Draft {
    pub(in crate::rehearsal) task: Task,
    /// What all nodes held.
    pub(in crate::rehearsal) counts: Counts,
    /// Each with the id of a node that keeps it.
    pub(in crate::rehearsal) samples: Vec<(u64, Listed)>,
    /// The draws of a mix in their order: places in `samples`. `None` for a view that shows each sample once.
    pub(in crate::rehearsal) draws: Option<Vec<u32>>,
}

impl Draft {
    /// The view that shows each sample once.
    pub(super) fn of_all(task: Task, joined: Joined) -> Self {
        Draft { task, counts: joined.counts(), samples: joined.samples, draws: None }
    }

    /// Whether all of it can be shown.
    pub(super) fn can_be_shown(&self) -> bool {
        let is_there = |draw: &u32| (*draw as usize) < self.samples.len();
        self.samples.iter().all(|(_, listed)| listed.can_be_shown())
            && self.draws.iter().flatten().all(is_there)
    }
}

/// The answer to [`Question::Draw`].
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Drawn {
    Draft(Draft),
    /// The node has another task at this moment.
    OtherTask,
    /// The view cannot be made: an error number.
    Refused(i32),
}

pub(super) fn to_text(message: &impl Serialize) -> String {
    serde_json::to_string(message).unwrap_or_default()
}

pub(super) fn parse<T: DeserializeOwned>(text: &[u8]) -> Option<T> {
    serde_json::from_slice(text).ok()
}
