//! Features of samples. The asking thread makes scores of them, since that takes long. The owner finds the
//! samples, and takes the scores.

use std::path::Path;

use serde_json::{Value, json};

use super::Rehearsal;
use super::answers::usage;
use super::owner::Owner;
use super::scores::{Came, Meant, UNKNOWN, elsewhere};
use crate::buffer::{self, ClassId, Feature, Policy, Refused};
use crate::error::{Error, Result};

/// How many words of a path may look like numbers.
const PATH_NUMBERS_MAX: usize = 4;

/// Features with their samples.
struct Told {
    policy: Policy,
    features: Vec<Feature>,
    came: Came,
}

impl Rehearsal {
    /// Takes lines `path feature feature ...`. A line without features, or of an unknown path, is refused. If
    /// a feature is not finite, or has another dimension than the first, no line is taken. Features of
    /// samples that are not held count for the mean of their class. Blocks, perhaps for long.
    pub(super) fn feed(&self, buffer: String, lines: String) -> Result<Value> {
        let name = buffer.clone();
        let told = self.owner(move |owner| owner.told(&name, &lines))??;
        let Told { policy, features, came } = told;
        let scores = buffer::scores(policy, &features).map_err(refused)?;
        self.owner(move |owner| {
            let at = owner.named(&buffer)?;
            let held = owner.writable(at)?;
            for (sample, score) in scores {
                // A sample that has left the buffer needs no score.
                let _ = held.score(sample, score);
            }
            Ok(came.told())
        })?
    }
}

fn refused(why: Refused) -> Error {
    usage(match why {
        Refused::NotFinite => "a feature is not a finite number; none was taken".to_owned(),
        Refused::Dimension { found, expected } => {
            format!("a feature has {found} numbers where the first has {expected}; none was taken")
        }
        Refused::NotHeld => "a sample is not in the buffer".to_owned(),
    })
}

impl Owner {
    /// Reads lines, and finds the sample of each.
    fn told(&mut self, name: &str, lines: &str) -> Result<Told> {
        self.decide();
        let buffer = self.named(name)?;
        let policy = self.places[buffer].held.buffer().rules().policy;
        if !policy.goes_by_features() {
            let message =
                format!("the policy {} of the buffer does not go by features", json!(policy));
            return Err(usage(message).hint("`herding` and `prototypical` do"));
        }
        self.writable(buffer)?;
        let (mut features, mut came) = (Vec::new(), Came::default());
        for line in lines.lines().map(str::trim).filter(|line| !line.is_empty()) {
            let (ends, values) = numbers(line);
            let Some(shortest) = ends.first() else {
                came.refused.note(line, "has no feature, or one that is not of numbers");
                continue;
            };
            let known = |(of_path, end): (usize, &usize)| {
                Some((self.meant(buffer, &line[..*end])?, values[of_path..].to_vec()))
            };
            let mut paths = ends.iter().enumerate().take(1 + PATH_NUMBERS_MAX);
            let held = &self.places[buffer].held;
            let (sample, class, values) = match paths.find_map(known) {
                None => {
                    came.refused.note(&line[..*shortest], UNKNOWN);
                    continue;
                }
                Some((Meant::Elsewhere(other), _)) => {
                    came.refused.note(&line[..*shortest], &elsewhere(&other));
                    continue;
                }
                Some((Meant::Held(sample), values)) => {
                    let member = held.buffer().get(sample);
                    (Some(sample), member.map_or(ClassId(0), |member| member.class), values)
                }
                Some((Meant::Other(path), values)) => {
                    came.passed += 1;
                    let Some(class) = held.class_number(Path::new(&path)) else { continue };
                    (None, class, values)
                }
            };
            came.taken += u64::from(sample.is_some());
            features.push(Feature { sample, class, values });
        }
        Ok(Told { policy, features, came })
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
