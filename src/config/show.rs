//! Shows a configuration as text: with its origins, or as the commented file of defaults.

use std::fmt::Write;

use toml::Value;

use super::entries;
use super::keys::{Key, LISTS, REHEARSAL};
use super::layers::Origins;
use super::schema::{Config, DERIVED_KEYS, DerivedConfig, KEYS, REHEARSAL_KEYS, RehearsalConfig};

/// A section that is no default, but shown as a comment.
struct Example {
    section: &'static str,
    title: &'static str,
    /// Its values that are not the defaults.
    needs: &'static [(&'static str, &'static str)],
}

const EXAMPLES: [Example; 2] = [
    Example {
        section: "rehearsal",
        title: "
# A buffer of old samples that are shown again, for continual learning; one [rehearsal.NAME] each.
# It is kept in cache.dir.
# [rehearsal.old]
",
        needs: &[("size", "5000")],
    },
    Example {
        section: "derived",
        title: "
# Samples that are made from samples, each once for all jobs and epochs; one [[derived]] each.
# [[derived]]
",
        needs: &[("name", "\"256\""), ("resize", "256")],
    },
];

const STREAM_EXAMPLE: &str = "\
# A reader whose order is known beforehand; one [[stream]] each.
# The order of a loader with batch_size=64 and drop_last=True ends in whole_batches=64.
# [[stream]]
# name = \"train\"
# order = \"torch-distributed:seed=0,world=1,rank=0,index=imagefolder\"
";

/// A longer value, such as an order, does not widen the column of values. Its origin follows it directly.
const ALIGNED_VALUE_CHARS_MAX: usize = 32;

/// The configuration, aligned, one line for each key. `with_origin` adds where each value came from.
///
/// A line reads `cache.ram = "16GiB"   (flag --ram)`. Buffers and streams come last.
pub fn render_show(config: &Config, origins: &Origins, with_origin: bool) -> String {
    let lines = values(config);
    let key_width = lines.iter().map(|(key, _)| key.len()).max().unwrap_or(0);
    let widths = lines.iter().map(|(_, value)| value.chars().count());
    let value_width = widths.filter(|width| *width <= ALIGNED_VALUE_CHARS_MAX).max().unwrap_or(0);
    let mut out = String::new();
    for (key, value) in lines {
        // Writing to a String cannot fail.
        let _ = if with_origin {
            let origin = origins.of(&key);
            writeln!(out, "{key:key_width$} = {value:value_width$}   ({origin})")
        } else {
            writeln!(out, "{key:key_width$} = {value}")
        };
    }
    out
}

/// The defaults as a configuration file, each key under its help.
pub fn default_toml() -> String {
    let mut out = String::from(
        "# The defaults of belady. Every key may be left out; what is left out is as here.\n\
         # Sizes: \"64GiB\" (binary), \"500MB\" (decimal), \"25%\", \"auto\". Durations: \"200ms\", \"60s\".\n",
    );
    let buffer = ("old".to_owned(), RehearsalConfig::default());
    let derived = vec![DerivedConfig::default()];
    let values = values(&Config { rehearsal: [buffer].into(), derived, ..Config::default() });
    let mut section = "";
    for (key, (_, value)) in KEYS.iter().chain(REHEARSAL_KEYS).chain(DERIVED_KEYS).zip(values) {
        let leaf = key.leaf();
        let example = EXAMPLES.iter().find(|example| example.section == key.section);
        if section != key.section {
            section = key.section;
            out += &match example {
                Some(example) => example.title.to_owned(),
                None => format!("\n[{section}]\n"),
            };
        }
        let mark = if example.is_some() { "# " } else { "" };
        // The example sets some values.
        let needed = example.and_then(|example| example.needs.iter().find(|(of, _)| *of == leaf));
        let value = needed.map_or(value.as_str(), |(_, value)| value);
        key.help.iter().for_each(|line| out += &format!("{mark}#{line}\n"));
        out += &format!("{mark}{leaf} = {value}\n");
    }
    out + "\n" + STREAM_EXAMPLE
}

/// Every key in order with its value as TOML.
fn values(config: &Config) -> Vec<(String, String)> {
    // Only a path that is not UTF-8 has no table, and such a path cannot have been written.
    let table = entries::table(config).unwrap_or_default();
    let mut values = Vec::new();
    let mut add = |prefix: &str, table: Option<&Value>, key: &Key| {
        let leaf = key.leaf();
        let value =
            table.and_then(|table| table.get(&leaf)).map_or(String::new(), Value::to_string);
        values.push((format!("{prefix}.{leaf}"), value));
    };
    for key in KEYS {
        add(key.section, table.get(key.section), key);
    }
    for (name, buffer) in table.get(REHEARSAL).and_then(Value::as_table).into_iter().flatten() {
        REHEARSAL_KEYS
            .iter()
            .for_each(|key| add(&format!("{REHEARSAL}.{name}"), Some(buffer), key));
    }
    for list in &LISTS {
        let tables = table.get(list.name).and_then(Value::as_array);
        for (index, table) in tables.into_iter().flatten().enumerate() {
            let name = format!("{}[{index}]", list.name);
            list.keys.iter().for_each(|key| add(&name, Some(table), key));
        }
    }
    values
}
