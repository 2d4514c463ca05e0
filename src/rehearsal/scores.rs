//! Scores that a trainer gives to samples, by their paths.
//!
//! A trainer cannot know what the buffer holds at this moment, so scores of other files of the dataset are
//! passed over. A line is refused if its path is of no file, or if it has no score.

use nix::errno::Errno;
use serde::{Deserialize, Serialize};

use super::Refusals;
use super::open_buffer::{FULL, OpenBuffer};
use super::paths::{PathMeaning, Paths};

/// Why a line is refused if no file has its path.
pub(super) const UNKNOWN: &str = "is no file of the dataset or of a view";

/// Why a path in a view of another buffer is refused.
pub(super) fn of_other_buffer(other: &str) -> String {
    format!("is of the rehearsal buffer `{other}`, which takes its scores")
}

/// How many lines were taken, passed over and refused.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ScoreCounts {
    pub taken: u64,
    /// Lines of samples that are not held.
    pub passed: u64,
    #[serde(flatten)]
    pub refused: Refusals,
    /// The disk takes no writes.
    #[serde(skip)]
    is_full: bool,
}

impl ScoreCounts {
    /// The error for the writer, if lines were refused.
    pub(super) fn errno(&self) -> Option<Errno> {
        let errno = if self.is_full { Errno::ENOSPC } else { Errno::EINVAL };
        (self.refused.count > 0).then_some(errno)
    }

    /// Adds further lines. The latest refusals are named.
    fn add(&mut self, other: &ScoreCounts) {
        self.taken += other.taken;
        self.passed += other.passed;
        if other.refused.count > 0 {
            self.refused.count += other.refused.count;
            self.refused.why.clone_from(&other.refused.why);
        }
    }
}

/// Takes lines `path score`. A path may have spaces. It is within the dataset, or of a file of a view.
pub(super) fn take_scores(buffer: &mut OpenBuffer, paths: &Paths, lines: &str) -> ScoreCounts {
    let has_room = buffer.journaled.ensure_room();
    let mut counts = ScoreCounts { is_full: !has_room, ..ScoreCounts::default() };
    for line in lines.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let Some((path, score)) = line.rsplit_once(char::is_whitespace) else {
            counts.refused.note(line, "is not of the form `path score`");
            continue;
        };
        let Ok(score) = score.parse::<f32>() else {
            counts.refused.note(line, "has no number at its end");
            continue;
        };
        let path = path.trim_end();
        match paths.meaning(buffer, path) {
            _ if !has_room => counts.refused.note(path, FULL),
            None => counts.refused.note(path, UNKNOWN),
            Some(PathMeaning::OtherBuffer(other)) => {
                counts.refused.note(path, &of_other_buffer(&other));
            }
            _ if !score.is_finite() => {
                counts.refused.note(path, "has a score that is not a finite number");
            }
            Some(PathMeaning::Held(sample)) if buffer.journaled.score(sample, score).is_ok() => {
                counts.taken += 1;
            }
            Some(_) => counts.passed += 1,
        }
    }
    buffer.scores.add(&counts);
    counts
}
