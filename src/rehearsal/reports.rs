//! Reports about buffers, for commands. A daemon and a command of different versions understand each other: an
//! unknown field is ignored, a missing one has its default, and a policy is text.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::buffer::Capacity;

/// How many refused lines an answer names.
const NAMED_MAX: usize = 5;

/// Refused lines: how many, and why the first ones.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Refusals {
    #[serde(rename = "refused")]
    pub count: u64,
    pub why: Vec<String>,
}

impl Refusals {
    pub(super) fn note(&mut self, what: &str, why: &str) {
        self.count += 1;
        if self.why.len() < NAMED_MAX {
            self.why.push(format!("{what}: {why}"));
        }
    }
}

/// How full a buffer is, with counts of its offers, replays, scores and codes.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct BufferReport {
    pub name: String,
    /// Warnings about its settings.
    pub doubts: Vec<String>,
    pub policy: String,
    pub capacity: Option<Capacity>,
    /// How many samples are held, and their bytes.
    pub samples: usize,
    pub bytes: u64,
    pub offered: u32,
    /// Offers that are not decided yet.
    pub waiting: usize,
    pub missed: MissedNotes,
    pub task: u32,
    /// How many samples of each class and of each task are held.
    pub classes: BTreeMap<String, usize>,
    pub tasks: BTreeMap<String, u64>,
    /// How often the held samples were shown again.
    pub replays: u64,
    /// Scores of this mount: taken ones, and those of samples that were not held.
    pub scored: u64,
    pub passed: u64,
    #[serde(flatten)]
    pub refused: Refusals,
    /// The age of the held samples in offers.
    pub age_median: Option<u32>,
    pub age_max: Option<u32>,
    /// The codes beside the buffer, if it has any.
    pub latent: Option<CodeReport>,
    /// The buffers of all nodes of a cluster, if there are others and this buffer is shared with them.
    pub joint: Option<JointReport>,
}

/// The buffers of all nodes, as this one knows them, and its reads from the others.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct JointReport {
    /// How many nodes said what they hold when a view was made last, this one, too; and how many samples these were.
    pub nodes: usize,
    pub samples: usize,
    /// Samples of other nodes that were read from these in this mount, and from the source in their place.
    pub read: u64,
    pub read_from_source: u64,
}

/// How many notes of all buffers were dropped in this mount.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct MissedNotes {
    pub reads: u64,
    pub openings: u64,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct CodeReport {
    pub codes: usize,
    pub bytes_each: usize,
    pub bytes_on_disk: u64,
    /// How many codes were taken in this mount.
    pub appended: u64,
    #[serde(flatten)]
    pub refused: Refusals,
}

/// What is known of a held sample.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct SampleReport {
    pub path: String,
    pub class: String,
    pub task: u32,
    pub bytes: u64,
    /// How many offers came since its own, including that one.
    pub age: u32,
    /// How often it was shown again.
    pub replays: u32,
    pub score: Option<f32>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct OfferReport {
    pub offered: u64,
    #[serde(flatten)]
    pub refused: Refusals,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ExportReport {
    pub copied: u64,
    #[serde(flatten)]
    pub refused: Refusals,
}

/// A sleep set: the name of its view, and the paths of its samples in their order.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct SleepReport<'a> {
    pub view: String,
    pub samples: Vec<Cow<'a, str>>,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_report_of_another_version_is_understood() {
        let told = json!({ "name": "old", "capacity": { "bytes": 7 }, "refused": 2, "later": {} });
        let report: BufferReport = serde_json::from_value(told).unwrap();
        assert_eq!((report.name.as_str(), report.capacity), ("old", Some(Capacity::Bytes(7))));
        assert_eq!((report.refused.count, report.samples, report.missed.reads), (2, 0, 0));
        let refused = Refusals { count: 1, why: vec!["x: y".to_owned()] };
        let expected = json!({ "offered": 3, "refused": 1, "why": ["x: y"] });
        assert_eq!(json!(OfferReport { offered: 3, refused }), expected);
    }
}
