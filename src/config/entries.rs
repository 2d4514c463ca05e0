//! Takes one written source of settings apart into entries, and checks them one by one.
//!
//! A text is parsed, its tables are walked, and each leaf becomes an [`Entry`] with its place. A leaf is then
//! checked alone, by deserialising a [`Config`] that holds nothing else. So the struct decides which values
//! are right, and the error is about this key.

use std::collections::BTreeMap;

use serde::Serialize;
use toml::de::{DeTable, DeValue};
use toml::{Table, Value};

use super::keys::{self, Key, ListOfTables, REHEARSAL};
use super::layers::Origin;
use super::schema::{Config, RehearsalConfig};
use super::units::shown;
use crate::error::{Error, ErrorKind, Result};

/// toml's errors for a value that is not text although one of several names is needed.
const NOT_A_NAME: [&str; 2] = ["expected string only", "wanted exactly 1 element"];

/// One leaf: `cache.ram`, `rehearsal.old.size` or `stream[0].order`.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) key: String,
    pub(super) value: Value,
    pub(super) origin: Origin,
}

/// The leaves of one source of settings, and the number of tables in each list that it names.
#[derive(Debug, Default)]
pub(super) struct Entries {
    pub(super) leaves: Vec<Entry>,
    pub(super) lists: Vec<(&'static str, usize)>,
}

impl Entries {
    pub(super) fn of_file(name: &str, text: &str) -> Result<Entries> {
        let syntax = |error: toml::de::Error| {
            let line = error.span().map_or(1, |span| line(text, span.start));
            let message = error.message().replace('\n', " ");
            // For `ram = 4GiB` toml proposes a literal string, although either kind of string would do.
            let message = message.trim_end_matches(", expected literal string");
            Error::new(ErrorKind::Config, message).context(format!("{name}:{line}"))
        };
        let lines = lines(text, DeTable::parse(text).map_err(syntax)?.get_ref());
        let table: Table = text.parse().map_err(syntax)?;
        let origin = |key: &str| Origin::File {
            name: name.to_owned(),
            line: lines.get(key).copied().unwrap_or(1),
        };
        let mut entries = flatten(table, &origin)?;
        // Tables come sorted by name, but the first error must be the first in the file.
        entries.leaves.sort_by_key(|entry| lines.get(&entry.key).copied());
        Ok(entries)
    }

    /// The entries of one key given as text on the command line or in the environment.
    pub(super) fn of_text(key: &str, text: &str, origin: &Origin) -> Result<Entries> {
        if keys::sections().contains(&key) {
            let table = Table::from_iter([(key.to_owned(), value_or_text(text))]);
            return flatten(table, &|_| origin.clone());
        }
        if let Some(ListOfTables { name, what, example, .. }) = keys::list_of(key) {
            return Err(Error::new(ErrorKind::Config, format!("{what} are set as a whole"))
                .context(origin.place())
                .hint(format!("write [[{name}]] in a file, or {name}=[{example}]")));
        }
        let value =
            typed(key, text)?.ok_or_else(|| keys::unknown_key(key).context(origin.place()))?;
        let entry = Entry { key: key.to_owned(), value, origin: origin.clone() };
        Ok(Entries { leaves: vec![entry], ..Entries::default() })
    }

    /// Checks each key and value. The first wrong one is the error.
    pub(super) fn check(&self) -> Result<()> {
        self.leaves.iter().try_for_each(|entry| {
            entry.check().map_err(|error| error.context(entry.origin.place()))
        })
    }
}

impl Entry {
    fn check(&self) -> Result<()> {
        let key = keys::find(&self.key).ok_or_else(|| keys::unknown_key(&self.key))?;
        let Err(error) = config_of_one(key, self.value.clone()) else { return Ok(()) };
        let mut message = error.message().to_owned();
        if NOT_A_NAME.iter().any(|words| message.contains(words)) {
            // Ask again with a text: only then does serde list the names that it knows.
            if let Err(error) = config_of_one(key, Value::String(shown(&self.value))) {
                message = error.message().to_owned();
            }
        }
        let message = reword(&self.value, &message);
        Err(Error::new(ErrorKind::Config, format!("{}: {message}", self.key)))
    }
}

/// A configuration in which only `key` is written.
fn config_of_one(key: &Key, value: Value) -> std::result::Result<Config, toml::de::Error> {
    let section = Value::Table(Table::from_iter([(key.leaf(), value)]));
    let section = match key.section {
        name if keys::list_of(name).is_some() => Value::Array(vec![section]),
        REHEARSAL => Value::Table(Table::from_iter([("name".to_owned(), section)])),
        _ => section,
    };
    Table::from_iter([(key.section.to_owned(), section)]).try_into()
}

/// Translates serde's message about a value for people.
fn reword(value: &Value, message: &str) -> String {
    let Some((_, expected)) = message.split_once(", expected ") else {
        return message.to_owned();
    };
    let expected = match expected {
        "u32" if value.is_integer() => "a whole number from 0 to 4294967295",
        "u32" => "a whole number",
        "f64" => "a number",
        "a boolean" => "true or false",
        "a sequence" => "a list like [\"a\", \"b\"]",
        "path string" => "a path in quotes",
        "a string" => "text in quotes",
        other => other,
    };
    format!("{} is not accepted; expected {expected}", shown(value))
}

/// The leaves of a document. `origin` says where a dotted key stands in it.
fn flatten(table: Table, origin: &dyn Fn(&str) -> Origin) -> Result<Entries> {
    let mut entries = Entries::default();
    for (name, value) in table {
        check_unquoted(&name, &name, origin)?;
        let leaves = keys::leaves(&name);
        let refuse =
            |message: String| Error::new(ErrorKind::Config, message).context(origin(&name).place());
        if let Some(ListOfTables { name, what, example, .. }) = keys::list_of(&name) {
            let Value::Array(tables) = value else {
                return Err(refuse(format!("`{name}` is a list of {what}"))
                    .hint(format!("begin each of them with [[{name}]]")));
            };
            entries.lists.push((name, tables.len()));
            for (index, table) in tables.into_iter().enumerate() {
                let Value::Table(table) = table else {
                    return Err(refuse(format!("{name}[{index}] is not a table"))
                        .hint(format!("write it like {example}")));
                };
                push(&mut entries, &format!("{name}[{index}]"), table, origin)?;
            }
            continue;
        }
        match value {
            Value::Table(buffers) if name == REHEARSAL => {
                for (buffer, value) in buffers {
                    let key = format!("{REHEARSAL}.{buffer}");
                    check_unquoted(&buffer, &key, origin)?;
                    match value {
                        Value::Table(leaves) if !leaves.is_empty() => {
                            push(&mut entries, &key, leaves, origin)?;
                        }
                        _ => {
                            return Err(refuse(format!("`{key}` is not a buffer with a size"))
                                .hint("begin each buffer with [rehearsal.NAME]"));
                        }
                    }
                }
            }
            Value::Table(section) => push(&mut entries, &name, section, origin)?,
            _ if leaves.is_empty() => push_leaf(&mut entries, name, value, origin),
            _ => {
                return Err(refuse(format!("`{name}` is a section, not a key"))
                    .hint(format!("its keys are {}", leaves.join(", "))));
            }
        }
    }
    Ok(entries)
}

/// Refuses a quoted name such as `"cache.ram"`, which would pass for the key `cache.ram`.
fn check_unquoted(name: &str, key: &str, origin: &dyn Fn(&str) -> Origin) -> Result<()> {
    if !name.contains(['.', '[']) {
        return Ok(());
    }
    let message = format!("unknown key `{}`", key.escape_debug());
    Err(Error::new(ErrorKind::Config, message)
        .context(origin(key).place())
        .hint("a name in quotes is one name: write [section] and key without quotes"))
}

fn push(
    entries: &mut Entries,
    section: &str,
    table: Table,
    origin: &dyn Fn(&str) -> Origin,
) -> Result<()> {
    if table.is_empty() && keys::leaves(section).is_empty() && keys::list_of(section).is_none() {
        // An empty section holds no key that could be refused, so the section itself is refused.
        push_leaf(entries, section.to_owned(), Value::Table(table), origin);
        return Ok(());
    }
    for (leaf, value) in table {
        let key = format!("{section}.{leaf}");
        check_unquoted(&leaf, &key, origin)?;
        push_leaf(entries, key, value, origin);
    }
    Ok(())
}

fn push_leaf(entries: &mut Entries, key: String, value: Value, origin: &dyn Fn(&str) -> Origin) {
    let origin = origin(&key);
    entries.leaves.push(Entry { key, value, origin });
}

/// The line of each key of a document, by its dotted name.
fn lines(text: &str, table: &DeTable<'_>) -> BTreeMap<String, usize> {
    let mut lines = BTreeMap::new();
    let mut add = |prefix: &str, table: &DeTable<'_>| {
        for (key, _) in table {
            let name = format!("{prefix}{}", key.get_ref());
            lines.insert(name, line(text, key.span().start));
        }
    };
    add("", table);
    for (name, value) in table {
        match value.get_ref() {
            DeValue::Table(section) => {
                add(&format!("{}.", name.get_ref()), section);
                for (buffer, value) in section.iter().filter(|_| name.get_ref() == REHEARSAL) {
                    if let DeValue::Table(leaves) = value.get_ref() {
                        add(&format!("{REHEARSAL}.{}.", buffer.get_ref()), leaves);
                    }
                }
            }
            DeValue::Array(items) => {
                for (index, item) in items.iter().enumerate() {
                    if let DeValue::Table(item) = item.get_ref() {
                        add(&format!("{}[{index}].", name.get_ref()), item);
                    }
                }
            }
            _ => {}
        }
    }
    lines
}

/// The line, from 1, of a byte offset.
fn line(text: &str, offset: usize) -> usize {
    let before = text.as_bytes().iter().take(offset);
    before.filter(|byte| **byte == b'\n').count() + 1
}

/// A text as a TOML value, or else the text itself: `"4GiB"` and `4GiB` are the same.
fn value_or_text(text: &str) -> Value {
    text.parse().unwrap_or_else(|_| Value::String(text.to_owned()))
}

/// A text as the value of `key`; `None` if there is no such key.
///
/// The type of the default decides how a bare text is read. So a directory called `1` or `true` remains a
/// text, and a list may be written `a,b`.
fn typed(key: &str, text: &str) -> Result<Option<Value>> {
    let Some(key) = keys::find(key) else { return Ok(None) };
    let section = match key.section {
        REHEARSAL => Some(Value::Table(table(&RehearsalConfig::default())?)),
        section => defaults()?.remove(section),
    };
    let default = section.as_ref().and_then(|section| section.get(key.leaf()));
    let bare = || Value::String(text.to_owned());
    Ok(default.map(|default| match (default, value_or_text(text)) {
        (Value::String(_), value) if !value.is_str() => bare(),
        (Value::Array(_), value) if !value.is_array() => {
            let items = text.split(',').map(str::trim).filter(|item| !item.is_empty());
            Value::Array(items.map(|item| Value::String(item.to_owned())).collect())
        }
        (_, value) => value,
    }))
}

pub(super) fn defaults() -> Result<Table> {
    table(&Config::default())
}

/// A configuration, or a section of one, as a TOML table.
///
/// # Errors
/// [`ErrorKind::Config`] for a path that is not UTF-8, which TOML cannot hold.
pub(super) fn table(config: &impl Serialize) -> Result<Table> {
    Table::try_from(config).map_err(|error| Error::new(ErrorKind::Config, error.to_string()))
}
