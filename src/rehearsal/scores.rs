//! What a trainer says of samples, by the paths that it knows them by.
//!
//! A trainer cannot know what the buffer holds at this moment: what it says of another sample of the
//! dataset is passed over. Refused is what is of no sample, or says nothing.

use std::path::{Component, Path, PathBuf};

use nix::errno::Errno;
use serde_json::{Value, json};

use super::answers::{FULL, Refusals};
use super::owner::Owner;
use crate::buffer::SampleId;
use crate::catalog::NodeId;
use crate::source::Kind;

/// Why a line is refused whose path is that of nothing.
pub(super) const UNKNOWN: &str = "is no file of the dataset or of a view";

/// Why what a view of another buffer shows is refused.
pub(super) fn elsewhere(other: &str) -> String {
    format!("is of the rehearsal buffer `{other}`, which takes its scores")
}

/// What a path means.
pub(super) enum Meant {
    Held(SampleId),
    /// A file of the dataset that is not, with its path there.
    Other(String),
    /// What a view of another buffer shows, whose name is this.
    Elsewhere(String),
}

/// What came of the lines of a trainer.
#[derive(Default)]
pub(super) struct Came {
    pub(super) taken: u64,
    /// They were of samples that are not held.
    pub(super) passed: u64,
    pub(super) refused: Refusals,
    /// The disk had no room for any.
    full: bool,
}

impl Came {
    /// Why any were refused, for who wrote them.
    pub(super) fn why(&self) -> Option<Errno> {
        let errno = if self.full { Errno::ENOSPC } else { Errno::EINVAL };
        (self.refused.count > 0).then_some(errno)
    }

    /// Counts further lines; what was refused last is named.
    fn add(&mut self, other: &Came) {
        self.taken += other.taken;
        self.passed += other.passed;
        if other.refused.count > 0 {
            self.refused.count += other.refused.count;
            self.refused.why.clone_from(&other.refused.why);
        }
    }

    pub(super) fn told(&self) -> Value {
        let Refusals { count, why } = &self.refused;
        json!({ "taken": self.taken, "passed": self.passed, "refused": count, "why": why })
    }
}

impl Owner {
    /// A path as it is within the dataset, where it is an absolute one below a place that the dataset
    /// is seen at.
    fn within(&self, path: &str) -> Option<String> {
        let path = Path::new(path);
        let points = self.around.points.lock();
        let below = points.iter().filter(|_| path.is_absolute());
        let found = below.filter_map(|point| path.strip_prefix(point).ok()).next()?;
        Some(found.to_str()?.to_owned())
    }

    /// The node of a path within the dataset.
    pub(super) fn find(&self, path: &Path) -> Option<NodeId> {
        let mut parts = path.components().filter(|part| *part != Component::CurDir);
        parts.try_fold(NodeId::ROOT, |parent, part| {
            Some(self.catalog().lookup(parent, part.as_os_str(), true)?.ok()?.node)
        })
    }

    /// A file or directory of the dataset, with the path that it is known by: that may be written in
    /// many ways, and a file have several names.
    pub(super) fn known_as(&self, path: &str) -> Option<(NodeId, PathBuf)> {
        let within = self.within(path);
        let node = self.find(Path::new(within.as_deref().unwrap_or(path)))?;
        Some((node, self.catalog().path(node).ok()?))
    }

    /// What a path within the dataset or of a file of a view means; none where there is no such file,
    /// and was none.
    pub(super) fn meant(&self, buffer: usize, path: &str) -> Option<Meant> {
        let held = &self.places.get(buffer)?.held;
        let within = self.within(path);
        let path = within.as_deref().unwrap_or(path);
        let known = |path: &str| match held.sample(path) {
            Some(sample) => Some(Meant::Held(sample)),
            None => held.was_offered(path).then(|| Meant::Other(path.to_owned())),
        };
        let there = |path: &str| {
            let (node, path) = self.known_as(path)?;
            let is_file = || Some(self.catalog().getattr(node).ok()?.stat.kind == Kind::File);
            let path = path.to_str()?;
            known(path).or_else(|| is_file()?.then(|| Meant::Other(path.to_owned())))
        };
        // Most are known, and written as they are known.
        let shown = || self.around.views.source(buffer, path);
        known(path).or_else(|| there(path)).or_else(|| {
            let named = self.around.views.buffer_of(path);
            if let Some(other) = named.filter(|name| *name != held.settings.name) {
                return Some(Meant::Elsewhere(other.to_owned()));
            }
            let source = shown()?;
            known(&source).or_else(|| there(&source))
        })
    }

    /// Takes lines `path score`. A path, which may have spaces in it, is within the dataset or that
    /// of a file of a view.
    pub(super) fn score(&mut self, buffer: usize, lines: &str) -> Came {
        let has_room = self.places.get_mut(buffer).is_some_and(|place| place.held.make_room());
        let mut came = Came { full: !has_room, ..Came::default() };
        for line in lines.lines().map(str::trim).filter(|line| !line.is_empty()) {
            let Some((path, score)) = line.rsplit_once(char::is_whitespace) else {
                came.refused.note(line, "is not of the form `path score`");
                continue;
            };
            let Ok(value) = score.parse::<f32>() else {
                came.refused.note(line, "has no number at its end");
                continue;
            };
            let path = path.trim_end();
            let meant = self.meant(buffer, path);
            let Some(place) = self.places.get_mut(buffer) else { continue };
            match meant {
                _ if !has_room => came.refused.note(path, FULL),
                None => came.refused.note(path, UNKNOWN),
                Some(Meant::Elsewhere(other)) => came.refused.note(path, &elsewhere(&other)),
                _ if !value.is_finite() => {
                    came.refused.note(path, "has a score that is not a finite number");
                }
                Some(Meant::Held(sample)) if place.held.score(sample, value).is_ok() => {
                    came.taken += 1;
                }
                Some(_) => came.passed += 1,
            }
        }
        if let Some(place) = self.places.get_mut(buffer) {
            place.held.scores.add(&came);
        }
        came
    }
}
