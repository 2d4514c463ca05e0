//! Merges the layers of written settings, and notes the origin of each value.
//!
//! Flags are the strongest layer, then variables, files and defaults. Of several files or flags, the later
//! one is stronger; `--set` is a flag like any other. A layer that names streams replaces all streams of
//! weaker layers: an order is never a mixture. The same holds for derived samples.

use std::collections::BTreeMap;
use std::fmt;

use toml::{Table, Value};

use super::entries::{self, Entries, Entry};
use super::keys::{self, LISTS, REHEARSAL, STREAM};
use super::schema::{Config, KEYS};
use crate::error::{Error, ErrorKind, Result};

/// Variables that begin with `BELADY_` and set no key: the log filter and the file's name.
const NOT_KEYS: [&str; 2] = ["BELADY_LOG", "BELADY_CONFIG"];

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Origin {
    #[default]
    Default,
    File {
        /// The file's name as the caller gave it.
        name: String,
        line: usize,
    },
    /// An environment variable, by name.
    Env(String),
    /// A flag of the command line, with its dashes.
    Flag(String),
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Origins(BTreeMap<String, Origin>);

/// The written settings. [`Layers::build`] checks and merges them.
#[derive(Clone, Debug, Default)]
pub struct Layers {
    files: Vec<(String, String)>,
    env: Vec<(String, String)>,
    flags: Vec<FlagArgument>,
    streams: Vec<(String, String, String)>,
}

#[derive(Clone, Debug)]
enum FlagArgument {
    Set(String),
    Flag { key: String, value: String, flag: String },
}

impl Origin {
    /// The origin at the beginning of an error: `belady.toml:3`, `BELADY_CACHE_RAM`, `--ram`.
    pub(super) fn place(&self) -> String {
        match self {
            Origin::Default => "default".to_owned(),
            Origin::File { name, line } => format!("{name}:{line}"),
            Origin::Env(name) | Origin::Flag(name) => name.clone(),
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Default => f.write_str("default"),
            Origin::File { .. } => write!(f, "file {}", self.place()),
            Origin::Env(_) => write!(f, "env {}", self.place()),
            Origin::Flag(_) => write!(f, "flag {}", self.place()),
        }
    }
}

impl Origins {
    /// The origin of a key such as `cache.ram` or `stream[0].order`.
    pub fn of(&self, key: &str) -> Origin {
        self.0.get(key).cloned().unwrap_or_default()
    }
}

impl Layers {
    pub fn new() -> Layers {
        Layers::default()
    }

    /// Adds the text of a file, stronger than the files before it. `name` is for errors and origins.
    pub fn file(mut self, name: impl Into<String>, text: impl Into<String>) -> Layers {
        self.files.push((name.into(), text.into()));
        self
    }

    /// Adds environment variables. Those that are not settings of belady are ignored.
    pub fn env<N, V>(mut self, variables: impl IntoIterator<Item = (N, V)>) -> Layers
    where
        N: Into<String>,
        V: Into<String>,
    {
        self.env.extend(variables.into_iter().map(|(name, value)| (name.into(), value.into())));
        self
    }

    /// Adds the argument of a `--set`, such as `cache.ram="4GiB"`. The quotes may be left out.
    pub fn set(mut self, assignment: impl Into<String>) -> Layers {
        self.flags.push(FlagArgument::Set(assignment.into()));
        self
    }

    /// Adds a flag that sets `key`. `flag` is its name with dashes.
    pub fn flag(
        mut self,
        key: impl Into<String>,
        value: impl Into<String>,
        flag: impl Into<String>,
    ) -> Layers {
        let (key, value, flag) = (key.into(), value.into(), flag.into());
        self.flags.push(FlagArgument::Flag { key, value, flag });
        self
    }

    /// Adds a stream from flag `flag`. Streams from flags replace all others.
    pub fn stream(
        mut self,
        name: impl Into<String>,
        order: impl Into<String>,
        flag: impl Into<String>,
    ) -> Layers {
        self.streams.push((name.into(), order.into(), flag.into()));
        self
    }

    /// Merges the layers.
    ///
    /// # Errors
    /// [`ErrorKind::Config`] if a text is not TOML, a key does not exist, or a value has the wrong type, even
    /// if a stronger layer sets the same key. [`ErrorKind::Usage`] for a `--set` without `=`. The message
    /// begins with the file and line, the variable or the flag.
    pub fn build(self) -> Result<(Config, Origins)> {
        let mut merge = Merge { table: entries::defaults()?, origins: Origins::default() };
        for (name, text) in &self.files {
            merge.apply(Entries::of_file(name, text)?)?;
        }
        for (name, value) in &self.env {
            if let Some(key) = key_of_variable(name)? {
                merge.apply(Entries::of_text(&key, value, &Origin::Env(name.clone()))?)?;
            }
        }
        for given in &self.flags {
            merge.apply(given.entries()?)?;
        }
        if !self.streams.is_empty() {
            merge.apply(streams(&self.streams))?;
        }
        let config = merge.table.try_into().map_err(|error: toml::de::Error| {
            // Each leaf was checked alone, so the user cannot have caused this.
            Error::new(ErrorKind::Internal, format!("merged configuration: {}", error.message()))
        })?;
        Ok((config, merge.origins))
    }
}

impl FlagArgument {
    fn entries(&self) -> Result<Entries> {
        match self {
            FlagArgument::Flag { key, value, flag } => {
                Entries::of_text(key, value, &Origin::Flag(flag.clone()))
            }
            FlagArgument::Set(assignment) => {
                let (key, value) = assignment.split_once('=').ok_or_else(|| {
                    let shown = assignment.escape_debug();
                    Error::new(ErrorKind::Usage, format!("--set: `{shown}` has no value"))
                        .hint("write it like --set cache.ram=4GiB")
                })?;
                Entries::of_text(key.trim(), value.trim(), &Origin::Flag("--set".to_owned()))
            }
        }
    }
}

fn streams(given: &[(String, String, String)]) -> Entries {
    let leaf = |index: usize, key: &str, text: &String, flag: &String| Entry {
        key: format!("{STREAM}[{index}].{key}"),
        value: Value::String(text.clone()),
        origin: Origin::Flag(flag.clone()),
    };
    let leaves = given.iter().enumerate().flat_map(|(index, (name, order, flag))| {
        [leaf(index, "name", name, flag), leaf(index, "order", order, flag)]
    });
    Entries { leaves: leaves.collect(), lists: vec![(STREAM, given.len())] }
}

/// The key that a variable sets; `None` if the variable belongs to no section of belady.
fn key_of_variable(name: &str) -> Result<Option<String>> {
    let Some(rest) = name.strip_prefix("BELADY_").filter(|_| !NOT_KEYS.contains(&name)) else {
        return Ok(None);
    };
    if let Some(key) = KEYS.iter().find(|key| key.env() == name) {
        return Ok(Some(key.name()));
    }
    let lower = rest.to_lowercase();
    let Some((section, leaf)) = lower.split_once('_') else { return Ok(None) };
    let lists = LISTS.iter().map(|list| (list.name, list.what, format!("[[{}]]", list.name)));
    let buffers = (REHEARSAL, "buffers", "[rehearsal.NAME]".to_owned());
    for (named, what, header) in lists.chain([buffers]) {
        if section == named {
            let message = format!("{what} cannot be set by variables");
            return Err(Error::new(ErrorKind::Config, message)
                .context(name)
                .hint(format!("write {header} in a file")));
        }
    }
    if keys::leaves(section).is_empty() {
        return Ok(None);
    }
    Err(keys::unknown_key(&format!("{section}.{}", leaf.replace('_', "-"))).context(name))
}

struct Merge {
    table: Table,
    origins: Origins,
}

impl Merge {
    /// Checks a layer and writes it over the weaker ones.
    fn apply(&mut self, layer: Entries) -> Result<()> {
        layer.check()?;
        for (list, count) in layer.lists {
            self.origins.0.retain(|key, _| keys::list_of(key).is_none_or(|of| of.name != list));
            let empty = vec![Value::Table(Table::new()); count];
            self.table.insert(list.to_owned(), Value::Array(empty));
        }
        for Entry { key, value, origin } in layer.leaves {
            if let (Some(section), Some((_, leaf))) = (self.section(&key), key.rsplit_once('.')) {
                section.insert(leaf.to_owned(), value);
                self.origins.0.insert(key, origin);
            }
        }
        Ok(())
    }

    /// The table that holds `key`: a section, a buffer, or a table of a list.
    fn section(&mut self, key: &str) -> Option<&mut Table> {
        let (section, _) = key.rsplit_once('.')?;
        if let Some((REHEARSAL, name)) = section.split_once('.') {
            let buffers = self.table.get_mut(REHEARSAL)?.as_table_mut()?;
            let buffer = buffers.entry(name).or_insert_with(|| Value::Table(Table::new()));
            return buffer.as_table_mut();
        }
        let Some((list, index)) = section.split_once('[') else {
            return self.table.get_mut(section)?.as_table_mut();
        };
        let index: usize = index.strip_suffix(']')?.parse().ok()?;
        self.table.get_mut(list)?.as_array_mut()?.get_mut(index)?.as_table_mut()
    }
}
