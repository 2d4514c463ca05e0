//! What a directory of a view shows.

use std::sync::Arc;

use crate::buffer::SampleId;
use crate::disk::journal::Pinned;
use crate::fs::Access;
use crate::rehearsal::Bindings;

/// A sample that is held.
#[derive(Clone, Debug)]
pub struct Sample {
    /// Its number in the buffer.
    pub id: SampleId,
    /// Its path within the dataset.
    pub source: String,
    /// Who may read it.
    pub access: Access,
    pub pinned: Pinned,
}

/// What a file of a display shows.
#[derive(Clone, Debug)]
pub enum Content {
    Held(Arc<Sample>),
    /// A file of the dataset, by its path: a link to it.
    Link(String),
}

/// A file of a display.
#[derive(Clone, Debug)]
pub struct Exhibit {
    pub name: String,
    pub content: Content,
}

impl Exhibit {
    /// The sample that it shows, if it is held.
    pub fn sample(&self) -> Option<&Arc<Sample>> {
        match &self.content {
            Content::Held(sample) => Some(sample),
            Content::Link(_) => None,
        }
    }
}

/// Classes and their files, sorted by name: what a loader takes for a dataset.
#[derive(Clone, Debug, Default)]
pub struct Display {
    /// The classes that have files.
    pub classes: Vec<(String, Vec<Exhibit>)>,
    /// What is bound of it, where it is that of a stream and the disk takes it.
    pub bindings: Option<Arc<Bindings>>,
}

/// The beginning of the names of streams: they are in a directory of their own.
pub(super) const STREAMS: &str = "stream/";

/// Which display of a buffer it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum View {
    /// `epoch-K`: what was held when epoch K began, or when it was first looked at.
    Epoch(u64),
    /// `mix-K`: the samples of the task with draws of epoch K.
    Mix(u64),
    /// `mix`: the same for the whole task.
    TaskMix,
    /// `sleep-N`: sleep set N of this mount.
    Sleep(u64),
    /// `stream/K`: what was held when epoch K was first looked at, each sample under the ordinal that
    /// it gets when that is looked up.
    Stream(u64),
}

/// A number as it is written in a name: in decimal, without leading zeros.
fn number(text: &str) -> Option<u64> {
    text.parse().ok().filter(|number: &u64| number.to_string() == text)
}

impl View {
    /// The view of a name in the directory of its buffer. Each has one name only.
    pub fn of(name: &str) -> Option<View> {
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

    /// Whether another is of the same kind: they are kept together.
    pub(super) fn is_like(self, other: View) -> bool {
        std::mem::discriminant(&self) == std::mem::discriminant(&other)
    }
}
