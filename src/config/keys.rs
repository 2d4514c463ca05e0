//! The keys of a configuration: how they are named, and which key was meant by a wrong name.

use std::fmt::Write;

use super::schema::{DERIVED_KEYS, KEYS, REHEARSAL_KEYS, STREAM_KEYS};
use crate::error::{Error, ErrorKind};

pub(super) const REHEARSAL: &str = "rehearsal";
pub(super) const STREAM: &str = "stream";
pub(super) const DERIVED: &str = "derived";

/// A section of which there may be several, as a list of tables.
pub(super) struct ListOfTables {
    pub(super) name: &'static str,
    /// What the tables are, for people.
    pub(super) what: &'static str,
    pub(super) keys: &'static [Key],
    /// One of them, in a line.
    pub(super) example: &'static str,
}

pub(super) const LISTS: [ListOfTables; 2] = [
    ListOfTables {
        name: STREAM,
        what: "streams",
        keys: STREAM_KEYS,
        example: "{ name = \"train\", order = \"...\" }",
    },
    ListOfTables {
        name: DERIVED,
        what: "derived samples",
        keys: DERIVED_KEYS,
        example: "{ name = \"256\", resize = 256 }",
    },
];

/// The list of which a name such as `stream`, `stream[0]` or `stream[0].order` is a part.
pub(super) fn list_of(name: &str) -> Option<&'static ListOfTables> {
    let section = name.split(['.', '[']).next()?;
    LISTS.iter().find(|list| list.name == section)
}

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
    let (keys, leaf) = if let Some(list) = list_of(entry) {
        (list.keys, entry.rsplit_once("].")?.1)
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
    sections.push(REHEARSAL);
    sections.extend(LISTS.map(|list| list.name));
    sections
}

pub(super) fn leaves(section: &str) -> Vec<String> {
    let lists = LISTS.iter().flat_map(|list| list.keys);
    let keys = KEYS.iter().chain(REHEARSAL_KEYS).chain(lists);
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
    if let Some(list) = list_of(section) {
        return within(list.keys, leaf);
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
