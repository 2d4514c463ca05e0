//! The keys of a configuration: how they are named, and which key was meant by a wrong name.

use std::fmt::Write;

use super::schema::{KEYS, REHEARSAL_KEYS, STREAM_KEYS};
use crate::error::{Error, ErrorKind};

pub(super) const REHEARSAL: &str = "rehearsal";
pub(super) const STREAM: &str = "stream";

#[derive(Clone, Copy, Debug)]
pub struct Key {
    /// The section of the key, `cache`.
    pub section: &'static str,
    /// The field of the section's struct, `large_file`.
    pub(super) field: &'static str,
    /// What it does, for people, in lines that begin with a space.
    pub help: &'static [&'static str],
}

impl Key {
    /// The full name, `cache.large-file`.
    pub fn name(&self) -> String {
        format!("{}.{}", self.section, self.leaf())
    }

    /// The name within the section, `large-file`.
    pub fn leaf(&self) -> String {
        self.field.replace('_', "-")
    }

    /// The environment variable that sets the key, `BELADY_CACHE_LARGE_FILE`.
    pub fn env(&self) -> String {
        format!("BELADY_{}_{}", self.section, self.field).to_ascii_uppercase()
    }
}

/// The key that an entry sets: `cache.ram`, `rehearsal.NAME.size` or `stream[0].order`.
pub(super) fn find(entry: &str) -> Option<&'static Key> {
    let (keys, leaf) = if entry.starts_with("stream[") {
        (STREAM_KEYS, entry.rsplit_once('.')?.1)
    } else if let Some(leaf) = leaf_of_buffer(entry) {
        (REHEARSAL_KEYS, leaf)
    } else {
        return KEYS.iter().find(|key| key.name() == entry);
    };
    keys.iter().find(|key| key.leaf() == leaf)
}

/// The leaf of a key `rehearsal.NAME.leaf`.
fn leaf_of_buffer(key: &str) -> Option<&str> {
    let (name, leaf) = key.strip_prefix(REHEARSAL)?.strip_prefix('.')?.split_once('.')?;
    (!name.is_empty() && !leaf.contains('.')).then_some(leaf)
}

/// The sections. Those whose tables have names come last.
pub(super) fn sections() -> Vec<&'static str> {
    let mut sections: Vec<_> = KEYS.iter().map(|key| key.section).collect();
    sections.dedup();
    sections.extend([REHEARSAL, STREAM]);
    sections
}

pub(super) fn leaves(section: &str) -> Vec<String> {
    let keys = [KEYS, REHEARSAL_KEYS, STREAM_KEYS].into_iter().flatten();
    keys.filter(|key| key.section == section).map(Key::leaf).collect()
}

/// The error for a key that does not exist, with the key that was probably meant.
pub(super) fn unknown_key(name: &str) -> Error {
    let mut message = format!("unknown key `{}`", name.escape_debug());
    let error = |message| Error::new(ErrorKind::Config, message);
    if let Some(meant) = closest_key(name) {
        // Writing to a String cannot fail.
        let _ = write!(message, "; did you mean `{meant}`?");
        return error(message);
    }
    let section = name.split(['.', '[']).next().unwrap_or_default();
    let leaves = leaves(section);
    if leaves.is_empty() {
        return error(message).hint(format!("the sections are {}", sections().join(", ")));
    }
    error(message).hint(format!("the keys of {section} are {}", leaves.join(", ")))
}

/// The key that was probably meant by `name`: a letter or two are wrong, or the section is missing or wrong.
fn closest_key(name: &str) -> Option<String> {
    // Names are short, so no slip is this long. The distance takes quadratic time.
    if name.len() > 64 {
        return None;
    }
    let (section, leaf) = name.rsplit_once('.').unwrap_or(("", name));
    let distance = |a: &str, b: &str| strsim::osa_distance(&a.replace('_', "-"), b);
    let within = |keys: &[Key], leaf: &str| {
        let near = keys.iter().map(Key::leaf).find(|key| distance(leaf, key) <= 2)?;
        Some(format!("{section}.{near}"))
    };
    if section.starts_with("stream[") {
        return within(STREAM_KEYS, leaf);
    }
    if let Some(leaf) = leaf_of_buffer(name) {
        return within(REHEARSAL_KEYS, leaf);
    }
    let closest =
        KEYS.iter().map(|key| (distance(name, &key.name()), key)).min_by_key(|(far, _)| *far);
    let slip = closest.filter(|(far, key)| *far <= 2.min(key.field.len() - 1)).map(|(_, key)| key);
    let moved =
        || KEYS.iter().find(|key| distance(leaf, &key.leaf()) <= usize::from(leaf.len() > 3));
    slip.or_else(moved).map(Key::name)
}
