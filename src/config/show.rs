//! Shows a configuration as text: with its origins, or as the commented file of defaults.

use std::fmt::Write;

use toml::{Table, Value};

use super::entries;
use super::keys::{KEYS, Key, REHEARSAL, REHEARSAL_KEYS, STREAM, STREAM_KEYS, sections};
use super::layers::Origins;
use super::schema::{Config, RehearsalConfig};

const REHEARSAL_EXAMPLE: &str = "
# A buffer of old samples that are shown again, for continual learning; one [rehearsal.NAME] each.
# It is kept in cache.dir.
# [rehearsal.old]
";

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
    let values = values(&Config::default());
    let help = |out: &mut String, key: &Key, mark: &str| {
        for line in key.help.lines() {
            let _ = writeln!(out, "{mark}# {line}");
        }
    };
    for section in sections().into_iter().filter(|section| ![REHEARSAL, STREAM].contains(section)) {
        let _ = write!(out, "\n[{section}]\n");
        for key in KEYS.iter().filter(|key| key.section() == section) {
            help(&mut out, key, "");
            let value = values.iter().find(|(name, _)| name == key.name);
            let _ = writeln!(out, "{} = {}", key.leaf(), value.map_or("", |(_, value)| value));
        }
    }
    out.push_str(REHEARSAL_EXAMPLE);
    let buffer = entries::table(&RehearsalConfig::default()).unwrap_or_default();
    for key in REHEARSAL_KEYS {
        help(&mut out, key, "# ");
        let value = buffer.get(key.leaf()).filter(|_| key.leaf() != "size");
        let _ =
            writeln!(out, "# {} = {}", key.leaf(), value.map_or("5000".into(), Value::to_string));
    }
    out.push('\n');
    out.push_str(STREAM_EXAMPLE);
    out
}

/// Every key in order with its value as TOML.
fn values(config: &Config) -> Vec<(String, String)> {
    // Only a path that is not UTF-8 has no table, and such a path cannot have been written.
    let table = entries::table(config).unwrap_or_default();
    let text = |table: Option<&Table>, leaf: &str| {
        table.and_then(|table| table.get(leaf)).map_or(String::new(), Value::to_string)
    };
    let section = |name: &str| table.get(name).and_then(Value::as_table);
    let mut values: Vec<_> = KEYS
        .iter()
        .map(|key| (key.name.to_owned(), text(section(key.section()), key.leaf())))
        .collect();
    let buffers = section(REHEARSAL).into_iter().flatten();
    for (name, buffer) in buffers {
        values.extend(REHEARSAL_KEYS.iter().map(|key| {
            (format!("{REHEARSAL}.{name}.{}", key.leaf()), text(buffer.as_table(), key.leaf()))
        }));
    }
    let streams = table.get(STREAM).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    for (index, stream) in streams.iter().enumerate() {
        for leaf in STREAM_KEYS {
            let key = format!("{STREAM}[{index}].{leaf}");
            values.push((key, text(stream.as_table(), leaf)));
        }
    }
    values
}
