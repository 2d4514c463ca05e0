//! Features of samples. The buffer thread finds the samples, and takes scores. The asking thread makes the
//! scores, since that takes long.

use std::path::Path;

use serde_json::json;

use super::answers::usage;
use super::open_buffer::OpenBuffer;
use super::paths::{PathMeaning, Paths};
use super::scores::{ScoreCounts, UNKNOWN, of_other_buffer};
use crate::buffer::{self, ClassId, Feature, FeatureError, Policy, SampleId};
use crate::error::Result;

/// How many words of a path may look like numbers.
const PATH_NUMBERS_MAX: usize = 4;

/// Features whose samples were found.
pub(super) struct KnownFeatures {
    policy: Policy,
    features: Vec<Feature>,
    pub(super) counts: ScoreCounts,
}

impl KnownFeatures {
    /// Reads lines `path feature feature ...`, and finds the sample of each. A line without features, or of
    /// an unknown path, is refused. Features of samples that are not held count for the mean of their class.
    ///
    /// # Errors
    /// If the policy of the buffer does not go by features, or if its disk takes no writes.
    pub(super) fn read(buffer: &mut OpenBuffer, paths: &Paths, lines: &str) -> Result<Self> {
        let policy = buffer.journaled.buffer().rules().policy;
        if !policy.goes_by_features() {
            let message =
                format!("the policy {} of the buffer does not go by features", json!(policy));
            return Err(usage(message).hint("`herding` and `prototypical` do"));
        }
        buffer.writable()?;
        let (features, counts) = Default::default();
        let mut known = KnownFeatures { policy, features, counts };
        for line in lines.lines().map(str::trim).filter(|line| !line.is_empty()) {
            known.read_line(buffer, paths, line);
        }
        Ok(known)
    }

    fn read_line(&mut self, buffer: &OpenBuffer, paths: &Paths, line: &str) {
        let counts = &mut self.counts;
        let (ends, values) = numbers(line);
        let Some(shortest) = ends.first().map(|end| &line[..*end]) else {
            return counts.refused.note(line, "has no feature, or one that is not of numbers");
        };
        let meaning = |(of_path, end): (usize, &usize)| {
            Some((paths.meaning(buffer, &line[..*end])?, values[of_path..].to_vec()))
        };
        let (sample, class, values) =
            match ends.iter().enumerate().take(1 + PATH_NUMBERS_MAX).find_map(meaning) {
                None => return counts.refused.note(shortest, UNKNOWN),
                Some((PathMeaning::OtherBuffer(other), _)) => {
                    return counts.refused.note(shortest, &of_other_buffer(&other));
                }
                Some((PathMeaning::Held(sample), values)) => {
                    counts.taken += 1;
                    let member = buffer.journaled.buffer().get(sample);
                    (Some(sample), member.map_or(ClassId(0), |member| member.class), values)
                }
                Some((PathMeaning::NotHeld(path), values)) => {
                    counts.passed += 1;
                    let Some(class) = buffer.journaled.class_id(Path::new(&path)) else { return };
                    (None, class, values)
                }
            };
        self.features.push(Feature { sample, class, values });
    }

    /// Makes scores. Blocks, perhaps for long.
    ///
    /// # Errors
    /// If a feature is not finite, or has another dimension than the first.
    pub(super) fn scores(&self) -> Result<Vec<(SampleId, f32)>> {
        buffer::scores(self.policy, &self.features).map_err(|why| {
            usage(match why {
                FeatureError::NotFinite => {
                    "a feature is not a finite number; none was taken".to_owned()
                }
                FeatureError::Dimension { found, expected } => format!(
                    "a feature has {found} numbers where the first has {expected}; none was taken"
                ),
            })
        })
    }
}

/// The numbers at the end of a line, and where the text before each of them ends.
fn numbers(line: &str) -> (Vec<usize>, Vec<f32>) {
    let (mut rest, mut ends, mut values) = (line, Vec::new(), Vec::new());
    while let Some((before, word)) = rest.rsplit_once(char::is_whitespace)
        && let Ok(value) = word.parse()
    {
        rest = before.trim_end();
        ends.push(rest.len());
        values.push(value);
    }
    ends.reverse();
    values.reverse();
    (ends, values)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stand_behind_a_path() {
        let line = "a b/1 2.jpg  0.5\t-1e3";
        assert_eq!(numbers(line), (vec![11, 16], vec![0.5, -1000.0]));
        assert_eq!(numbers("img 5 0.25"), (vec![3, 5], vec![5.0, 0.25]));
        for line in ["", "path", "path x", "1.0"] {
            assert_eq!(numbers(line), (vec![], vec![]), "{line}");
        }
    }
}
