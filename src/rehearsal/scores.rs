//! Scores that a trainer gives to samples, by their paths.
//!
//! A trainer cannot know what the buffer holds at this moment, so scores of other files of the dataset are
//! passed over. A line is refused if its path is of no file, or if it has no score.

use std::path::{Component, Path, PathBuf};

use nix::errno::Errno;
use serde_json::{Value, json};

use super::answers::{FULL, Refusals};
use super::owner::Owner;
use crate::buffer::SampleId;
use crate::catalog::NodeId;
use crate::source::Kind;

/// Why a line is refused if no file has its path.
pub(super) const UNKNOWN: &str = "is no file of the dataset or of a view";

/// Why a path in a view of another buffer is refused.
pub(super) fn elsewhere(other: &str) -> String {
    format!("is of the rehearsal buffer `{other}`, which takes its scores")
}

/// The meaning of a path.
pub(super) enum Meant {
    Held(SampleId),
    /// A file of the dataset that is not held, by its path.
    Other(String),
    /// A file in a view of the buffer that has this name.
    Elsewhere(String),
}

#[derive(Default)]
pub(super) struct Came {
    pub(super) taken: u64,
    /// Lines of samples that are not held.
    pub(super) passed: u64,
    pub(super) refused: Refusals,
    /// The disk takes no writes.
    full: bool,
}

impl Came {
    /// The error for the writer, if lines were refused.
    pub(super) fn why(&self) -> Option<Errno> {
        let errno = if self.full { Errno::ENOSPC } else { Errno::EINVAL };
        (self.refused.count > 0).then_some(errno)
    }

    /// Adds further lines. The latest refusals are named.
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
    /// The path within the dataset, if this is an absolute path below a place where the dataset is seen.
    fn within(&self, path: &str) -> Option<String> {
        let path = Path::new(path);
        let points = self.around.points.lock();
        let below = points.iter().filter(|_| path.is_absolute());
        let found = below.filter_map(|point| path.strip_prefix(point).ok()).next()?;
        Some(found.to_str()?.to_owned())
    }

    pub(super) fn find(&self, path: &Path) -> Option<NodeId> {
        let mut parts = path.components().filter(|part| *part != Component::CurDir);
        parts.try_fold(NodeId::ROOT, |parent, part| {
            Some(self.catalog().lookup(parent, part.as_os_str(), true)?.ok()?.node)
        })
    }

    /// The node of a path, and the path that the catalog knows it by: a path can be written in many ways, and
    /// a file can have several names.
    pub(super) fn known_as(&self, path: &str) -> Option<(NodeId, PathBuf)> {
        let within = self.within(path);
        let node = self.find(Path::new(within.as_deref().unwrap_or(path)))?;
        Some((node, self.catalog().path(node).ok()?))
    }

    /// The meaning of a path. None if there neither is nor was such a file.
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
        // Most paths are known as they are written.
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

    /// Takes lines `path score`. A path may have spaces. It is within the dataset, or of a file of a view.
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
