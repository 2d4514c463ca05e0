//! Snapshots: the files of one view, fixed when it is made.

use std::sync::Arc;

use super::SampleBytes;
use super::node::{CLASSES_MAX, FILES_MAX, IDS_MAX};
use crate::buffer::SampleId;
use crate::fs::Access;
use crate::rehearsal::Bindings;

/// A sample that a buffer has kept. It may have left the buffer since.
#[derive(Clone, Debug)]
pub struct KeptSample {
    pub id: SampleId,
    /// The hash of its path.
    pub hash: u64,
    /// Its path within the dataset.
    pub source: String,
    /// Who could read it when it was offered.
    pub access: Access,
    pub bytes: SampleBytes,
}

#[derive(Clone, Debug)]
pub enum Content {
    Sample(Arc<KeptSample>),
    /// A link to this file of the dataset.
    Link(String),
}

#[derive(Clone, Debug)]
pub struct SnapshotFile {
    pub name: String,
    pub content: Content,
}

impl SnapshotFile {
    /// The sample, unless it is a link.
    pub fn sample(&self) -> Option<&Arc<KeptSample>> {
        match &self.content {
            Content::Sample(sample) => Some(sample),
            Content::Link(_) => None,
        }
    }
}

/// Classes and their files, sorted by name. A loader takes them for a dataset.
#[derive(Clone, Default)]
pub struct Snapshot {
    pub classes: Vec<(String, Vec<SnapshotFile>)>,
    /// The bindings of a stream, if the disk takes them.
    pub bindings: Option<Arc<Bindings>>,
}

impl Snapshot {
    /// Whether each class and each file has a node, if the snapshot gets this ID.
    pub(super) fn has_nodes(&self, id: usize) -> bool {
        id < IDS_MAX
            && self.classes.len() <= CLASSES_MAX
            && self.classes.iter().all(|(_, files)| files.len() as u64 <= FILES_MAX)
    }
}

/// Streams are in a directory of their own.
pub(super) const STREAMS: &str = "stream/";

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum View {
    /// `epoch-K`: the samples that were held when epoch K began, or when the view was first looked at.
    Epoch(u64),
    /// `mix-K`: the samples of the task, with the draws of epoch K.
    Mix(u64),
    /// `mix`: the same for the whole task.
    TaskMix,
    /// `sleep-N`: a sleep set of this mount.
    Sleep(u64),
    /// `stream/K`: the samples that were held when the view was first looked at, each under the ordinal that
    /// it gets when that is looked up.
    Stream(u64),
}

/// A number in a name: decimal, without leading zeros.
pub(super) fn number(text: &str) -> Option<u64> {
    text.parse().ok().filter(|number: &u64| number.to_string() == text)
}

impl View {
    /// The view that has this name in the directory of its buffer.
    pub fn parse(name: &str) -> Option<View> {
        let number = |prefix: &str| name.strip_prefix(prefix).and_then(number);
        match name {
            "mix" => Some(View::TaskMix),
            _ => (number("epoch-").map(View::Epoch))
                .or_else(|| number("mix-").map(View::Mix))
                .or_else(|| number("sleep-").map(View::Sleep))
                .or_else(|| number(STREAMS).map(View::Stream)),
        }
    }

    pub fn name(self) -> String {
        match self {
            View::Epoch(number) => format!("epoch-{number}"),
            View::Mix(number) => format!("mix-{number}"),
            View::TaskMix => "mix".to_owned(),
            View::Sleep(number) => format!("sleep-{number}"),
            View::Stream(number) => format!("{STREAMS}{number}"),
        }
    }

    /// Whether it shows the samples of a task.
    pub(in crate::rehearsal) fn is_mix(self) -> bool {
        matches!(self, View::Mix(_) | View::TaskMix)
    }

    /// Whether it shows the samples of all nodes of a cluster.
    pub(super) fn shows_all_nodes(self) -> bool {
        matches!(self, View::Epoch(_)) || self.is_mix()
    }

    /// The epoch whose draws a mix has, in a task.
    pub(in crate::rehearsal) fn epoch_of_mix(self, task: u32) -> u64 {
        match self {
            View::Mix(epoch) => epoch,
            _ => task.into(),
        }
    }

    /// Whether both are of one kind.
    pub(super) fn is_like(self, other: View) -> bool {
        std::mem::discriminant(&self) == std::mem::discriminant(&other)
    }
}
