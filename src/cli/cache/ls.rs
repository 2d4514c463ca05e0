//! `belady cache ls`: lists the stores.

use std::path::Path;
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};

use super::super::{say, say_json};
use super::{age, human, source};
use crate::disk::Directory;
use crate::error::Result;
use crate::store::directory::{self, StoreInfo};
use crate::store::{StoreCounts, count};

pub(super) fn ls(dir: &Path, json: bool) -> Result<()> {
    let mut rows = Vec::new();
    for store in directory::stores(dir)? {
        let counted = Directory::open(&store.path, false).and_then(|disk| count(&disk));
        rows.push((counted, store));
    }
    if json {
        let row = |(counted, store): &(std::io::Result<StoreCounts>, StoreInfo)| {
            let (count, error) = (counted.as_ref().ok(), counted.as_ref().err());
            json!({
                "store": store.name, "source": source(store), "in_use": store.in_use,
                "used": store.used.and_then(|used| used.duration_since(SystemTime::UNIX_EPOCH).ok())
                    .map(|used| used.as_secs()),
                "pid": store.owner.as_ref().filter(|_| store.in_use).map(|owner| owner.pid),
                "samples": count.map(|count| count.samples),
                "bytes": count.map(|count| count.bytes),
                "large_files": count.map(|count| count.large_files),
                "disk_bytes": store.disk_bytes, "error": error.map(ToString::to_string),
            })
        };
        say_json(&rows.iter().map(row).collect::<Vec<Value>>());
        return Ok(());
    }
    if rows.is_empty() {
        say(format!("{} holds no stores", dir.display()));
        return Ok(());
    }
    say(format!(
        "{:16}  {:>10}  {:>6}  {:>10}  {:>10}  {:12}  source",
        "store", "samples", "large", "bytes", "disk", "used"
    ));
    for (counted, store) in &rows {
        let used = match store.in_use {
            true => "now".into(),
            false => age(store).map_or("unknown".into(), ago),
        };
        let [samples, large, bytes] = match counted {
            Ok(count) => {
                [count.samples.to_string(), count.large_files.to_string(), human(count.bytes)]
            }
            Err(_) => [const { String::new() }; 3],
        };
        let (name, disk, source) = (&store.name, human(store.disk_bytes), source(store));
        say(format!(
            "{name:16}  {samples:>10}  {large:>6}  {bytes:>10}  {disk:>10}  {used:12}  {source}"
        ));
        if let Err(error) = counted {
            say(format!("  cannot be read: {error}"));
        }
    }
    Ok(())
}

fn ago(age: Duration) -> String {
    match age.as_secs() / 3600 {
        0 => format!("{} min ago", age.as_secs() / 60),
        hours @ 1..48 => format!("{hours} h ago"),
        hours => format!("{} days ago", hours / 24),
    }
}
