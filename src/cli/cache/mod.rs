//! `belady cache`: shows, checks and deletes what a cache directory holds, without a mount.
//!
//! An error of one store does not affect the others: each verb goes on, prints what it has done, and fails at
//! the end.

mod ls;
mod verify;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::Subcommand;
use serde_json::json;

use super::{apart, say, say_json};
use crate::config::{Bytes, Period};
use crate::disk::Directory;
use crate::error::{Error, ErrorKind, Result};
use crate::mount::absolute;
use crate::store::directory::{self, StoreInfo};
use crate::store::{Limits, Store, fresh_secret};

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
    /// Read every sample and compare checksums; damaged samples are dropped
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
        /// Delete stores that were not opened for this time, as 30d
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
    let (Verb::Ls { dir, .. }
    | Verb::Verify { dir, .. }
    | Verb::Gc { dir, .. }
    | Verb::Rm { dir, .. }) = verb;
    apart::run(dir, || run_here(verb))
}

fn run_here(verb: &Verb) -> Result<()> {
    match verb {
        Verb::Ls { dir, json } => ls::ls(&absolute(dir), *json),
        Verb::Verify { dir, store, json } => {
            verify::verify(&absolute(dir), store.as_deref(), *json)
        }
        Verb::Gc { dir, unused, json } => gc(&absolute(dir), unused.map(|unused| unused.0), *json),
        Verb::Rm { dir, stores, all, json } => rm(&absolute(dir), stores, *all, *json),
    }
}

fn source(store: &StoreInfo) -> String {
    store.owner.as_ref().map_or("unknown".into(), |owner| owner.source.display().to_string())
}

fn human(bytes: u64) -> String {
    Bytes(bytes).human()
}

fn cannot(store: &StoreInfo, error: &std::io::Error) -> Error {
    let message = format!("the store {}: {error}", store.path.display());
    Error::new(ErrorKind::Cache, message).hint(directory::advice(error))
}

/// How long a store has not been used.
fn age(store: &StoreInfo) -> Option<Duration> {
    // A time in the future comes from a clock that was wrong.
    Some(store.used?.elapsed().unwrap_or_default())
}

/// The stores that a verb works on, and those that it skips because they are in use.
#[derive(Default)]
struct Selected {
    stores: Vec<StoreInfo>,
    skipped: Vec<StoreInfo>,
}

impl Selected {
    fn say_skipped(&self) {
        for store in &self.skipped {
            say(format!("skipped {}, which is in use  {}", store.name, source(store)));
        }
    }

    fn skipped_names(&self) -> Vec<&str> {
        self.skipped.iter().map(|store| store.name.as_str()).collect()
    }
}

/// Selects the stores by name or source, or else all that are not in use. A source may have several stores:
/// one that was formatted anew has another store than before.
fn select(dir: &Path, names: &[String], failed: &mut Vec<Error>) -> Result<Selected> {
    let all = directory::stores(dir)?;
    if names.is_empty() {
        let (skipped, stores) = all.into_iter().partition(|store| store.in_use);
        return Ok(Selected { stores, skipped });
    }
    let mut selected = Selected::default();
    for name in names {
        let path = absolute(Path::new(name));
        let owned = |store: &StoreInfo| store.owner.as_ref().is_some_and(|o| o.source == path);
        let mut found = all.iter().filter(|store| store.name == *name || owned(store)).peekable();
        if found.peek().is_none() {
            let message = format!("there is no store '{name}' in {}", dir.display());
            failed.push(
                Error::new(ErrorKind::Usage, message)
                    .hint(format!("`belady cache ls {}` lists them", dir.display())),
            );
        }
        for store in found {
            if selected.stores.iter().all(|other| other.path != store.path) {
                selected.stores.push(store.clone());
            }
        }
    }
    Ok(selected)
}

/// Joins all errors to one, of the kind of the first.
fn all_of(failed: Vec<Error>) -> Result<()> {
    match <[Error; 1]>::try_from(failed) {
        Ok([only]) => Err(only),
        Err(failed) => {
            let messages: Vec<&str> = failed.iter().map(Error::message).collect();
            let joined = messages.join("; ");
            failed.first().map_or(Ok(()), |first| Err(Error::new(first.kind(), joined)))
        }
    }
}

/// The verbs write nothing beyond what there is, so nothing limits them.
fn limits() -> Limits {
    Limits::new(u64::MAX, 0)
}

fn gc(dir: &Path, unused: Option<Duration>, json: bool) -> Result<()> {
    let is_old = |store: &StoreInfo| {
        unused.is_some_and(|unused| age(store).is_some_and(|age| age >= unused))
    };
    let (mut deleted, mut failed) = (Vec::new(), Vec::new());
    let mut selected = select(dir, &[], &mut failed)?;
    let (old, kept): (Vec<StoreInfo>, Vec<StoreInfo>) =
        std::mem::take(&mut selected.stores).into_iter().partition(is_old);
    for listed in old {
        match delete(dir, &listed) {
            Ok(()) => deleted.push(listed.name),
            Err(error) => failed.push(error),
        }
    }
    // First: on a full disk, compacting the other stores needs this space.
    let mut bytes = directory::reclaim(dir).unwrap_or_else(|error| {
        failed.push(error);
        0
    });
    for listed in kept {
        failed.extend(compact(dir, &listed).err());
        bytes += listed.disk_bytes.saturating_sub(directory::disk_bytes(&listed.path));
    }
    if json {
        let skipped = selected.skipped_names();
        say_json(&json!({ "bytes": bytes, "deleted": deleted, "skipped": skipped }));
    } else {
        deleted.iter().for_each(|name| say(format!("deleted {name}")));
        selected.say_skipped();
        say(format!("{} given back", human(bytes)));
    }
    all_of(failed)
}

fn compact(dir: &Path, listed: &StoreInfo) -> Result<()> {
    let _store_dir = directory::claim_existing(dir, listed)?;
    let compacted = Directory::open(&listed.path, true)
        .and_then(|disk| Store::open(Arc::new(disk), limits(), fresh_secret())?.compact());
    compacted.map_err(|error| cannot(listed, &error))
}

fn delete(dir: &Path, listed: &StoreInfo) -> Result<()> {
    directory::discard(dir, directory::claim_existing(dir, listed)?)
}

fn rm(dir: &Path, names: &[String], all: bool, json: bool) -> Result<()> {
    let mut failed = Vec::new();
    let mut selected = select(dir, if all { &[] } else { names }, &mut failed)?;
    selected.stores.retain(|store| match delete(dir, store) {
        Ok(()) => true,
        Err(error) => {
            failed.push(error);
            false
        }
    });
    failed.extend(directory::reclaim(dir).err());
    if json {
        let deleted: Vec<&str> = selected.stores.iter().map(|store| store.name.as_str()).collect();
        say_json(&json!({ "deleted": deleted, "skipped": selected.skipped_names() }));
    } else {
        for store in &selected.stores {
            let (name, bytes) = (&store.name, human(store.disk_bytes));
            say(format!("deleted {name}  {bytes}  {}", source(store)));
        }
        selected.say_skipped();
    }
    all_of(failed)
}
