//! `belady cache`: what a cache directory holds, without a mount.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use clap::Subcommand;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};

use super::{say, say_json};
use crate::cache::store::disk::Directory;
use crate::cache::store::home::{self, Found as Listed};
use crate::cache::store::{Count, Key, Limits, Store, count};
use crate::config::{Bytes, Period};
use crate::error::{Error, ErrorKind, Result};
use crate::mount::absolute;

#[derive(Debug, Subcommand)]
pub(super) enum Verb {
    /// List the stores, one for each source
    Ls {
        /// The cache directory
        dir: PathBuf,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Read every sample and compare checksums; what is damaged is dropped
    Verify {
        /// The cache directory
        dir: PathBuf,
        /// A store by its name or its source; all that are not in use if left out
        store: Option<String>,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Give space back that no sample needs
    Gc {
        /// The cache directory
        dir: PathBuf,
        /// Delete stores that were not opened for so long, as 30d
        #[arg(long, value_name = "TIME")]
        unused: Option<Period>,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Delete stores; the source is not touched
    Rm {
        /// The cache directory
        dir: PathBuf,
        /// Stores by name or source
        #[arg(required_unless_present = "all")]
        stores: Vec<String>,
        /// All stores that are not in use
        #[arg(long, conflicts_with = "stores")]
        all: bool,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

pub(super) fn run(verb: &Verb) -> Result<()> {
    match verb {
        Verb::Ls { dir, json } => ls(&absolute(dir), *json),
        Verb::Verify { dir, store, json } => verify(&absolute(dir), store.as_deref(), *json),
        Verb::Gc { dir, unused, json } => gc(&absolute(dir), unused.map(|unused| unused.0), *json),
        Verb::Rm { dir, stores, all, json } => rm(&absolute(dir), stores, *all, *json),
    }
}

fn source(store: &Listed) -> String {
    store.owner.as_ref().map_or("unknown".into(), |owner| owner.source.display().to_string())
}

fn human(bytes: u64) -> String {
    Bytes(bytes).human()
}

fn cannot(store: &Listed, error: &std::io::Error) -> Error {
    Error::new(ErrorKind::Cache, format!("the store {}: {error}", store.path.display()))
}

fn ls(dir: &Path, json: bool) -> Result<()> {
    let mut rows = Vec::new();
    for store in home::stores(dir)? {
        let counted = Directory::open(&store.path, false).and_then(|disk| count(&disk));
        rows.push((counted, store));
    }
    if json {
        let row = |(counted, store): &(std::io::Result<Count>, Listed)| {
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

/// For how long a store has not been used.
fn age(store: &Listed) -> Option<Duration> {
    // A time to come is one of a clock that was wrong.
    Some(store.used?.elapsed().unwrap_or_default())
}

fn ago(age: Duration) -> String {
    match age.as_secs() / 3600 {
        0 => format!("{} min ago", age.as_secs() / 60),
        hours @ 1..48 => format!("{hours} h ago"),
        hours => format!("{} days ago", hours / 24),
    }
}

/// The stores of these names or sources; of all of them those that are not in use.
fn chosen(dir: &Path, names: &[String]) -> Result<Vec<Listed>> {
    let stores = home::stores(dir)?;
    if names.is_empty() {
        return Ok(stores.into_iter().filter(|store| !store.in_use).collect());
    }
    let find = |name: &String| {
        let path = absolute(Path::new(name));
        let owned = |store: &Listed| store.owner.as_ref().is_some_and(|o| o.source == path);
        let found = stores.iter().find(|store| store.name == *name || owned(store));
        found.cloned().ok_or_else(|| {
            let message = format!("there is no store '{name}' in {}", dir.display());
            Error::new(ErrorKind::Usage, message)
                .hint(format!("`belady cache ls {}` lists them", dir.display()))
        })
    };
    names.iter().map(find).collect()
}

fn open(store: &Listed) -> Result<Store> {
    let opened = Directory::open(&store.path, true)
        .and_then(|disk| Store::open(Arc::new(disk), Limits::new(u64::MAX, 0), 0));
    opened.map_err(|error| cannot(store, &error))
}

fn verify(dir: &Path, name: Option<&str>, json: bool) -> Result<()> {
    let names: Vec<String> = name.map(str::to_owned).into_iter().collect();
    let mut rows = Vec::new();
    let mut all_damaged = 0;
    for listed in chosen(dir, &names)? {
        let _home = home::claim_found(dir, &listed)?;
        let store = open(&listed)?;
        let keys = store.keys();
        let style = ProgressStyle::with_template("checking {bar} {pos} of {len}");
        let bar = ProgressBar::new(keys.len() as u64)
            .with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        let damaged = store.verify(&mut bar.wrap_iter(keys.iter().copied()));
        bar.finish_and_clear();
        let damaged = damaged.map_err(|error| cannot(&listed, &error))?;
        store.remove(&damaged.iter().map(|(key, _)| *key).collect::<Vec<Key>>());
        store.sync().map_err(|error| cannot(&listed, &error))?;
        all_damaged += damaged.len();
        let places: Vec<String> = damaged.into_iter().map(|(_, place)| place).collect();
        rows.push((listed, keys.len(), places));
    }
    if json {
        let row = |(store, checked, places): &(Listed, usize, Vec<String>)| {
            json!({ "store": store.name, "source": source(store), "checked": checked,
                "damaged": places.len(), "places": places })
        };
        say_json(&rows.iter().map(row).collect::<Vec<Value>>());
    } else {
        for (store, checked, places) in &rows {
            let (name, source, damaged) = (&store.name, source(store), places.len());
            say(format!("{name}  {checked} samples checked, {damaged} damaged  {source}"));
            places.iter().for_each(|place| say(format!("  damaged: {place}")));
        }
    }
    if all_damaged == 0 {
        return Ok(());
    }
    Err(Error::new(ErrorKind::Cache, format!("{all_damaged} samples were damaged and are dropped"))
        .hint("they are read from the source again; a disk that damages more should be replaced"))
}

fn gc(dir: &Path, unused: Option<Duration>, json: bool) -> Result<()> {
    let is_old =
        |store: &Listed| unused.is_some_and(|unused| age(store).is_some_and(|age| age >= unused));
    let (old, kept): (Vec<Listed>, Vec<Listed>) = chosen(dir, &[])?.into_iter().partition(is_old);
    let (mut deleted, mut failed) = (Vec::new(), Vec::new());
    for listed in old {
        match home::claim_found(dir, &listed).and_then(|home| home::discard(dir, home)) {
            Ok(()) => deleted.push(listed.name),
            Err(error) => failed.push(error),
        }
    }
    // First: on a full disk the others need this space to become smaller.
    let mut bytes = home::reclaim(dir)?;
    for listed in kept {
        failed.extend(compact(dir, &listed).err());
        bytes += listed.disk_bytes.saturating_sub(home::disk_bytes(&listed.path));
    }
    if json {
        say_json(&json!({ "bytes": bytes, "deleted": deleted }));
    } else {
        deleted.iter().for_each(|name| say(format!("deleted {name}")));
        say(format!("{} given back", human(bytes)));
    }
    let Some(first) = failed.first() else { return Ok(()) };
    let messages: Vec<&str> = failed.iter().map(Error::message).collect();
    Err(Error::new(first.kind(), messages.join("; ")))
}

fn compact(dir: &Path, listed: &Listed) -> Result<()> {
    let _home = home::claim_found(dir, listed)?;
    open(listed)?.compact().map_err(|error| cannot(listed, &error))
}

fn rm(dir: &Path, names: &[String], all: bool, json: bool) -> Result<()> {
    let stores = if all { chosen(dir, &[])? } else { chosen(dir, names)? };
    for store in &stores {
        home::discard(dir, home::claim_found(dir, store)?)?;
    }
    home::reclaim(dir)?;
    if json {
        say_json(&json!({ "deleted": stores.iter().map(|s| &s.name).collect::<Vec<_>>() }));
        return Ok(());
    }
    for store in &stores {
        say(format!("deleted {}  {}  {}", store.name, human(store.disk_bytes), source(store)));
    }
    Ok(())
}
