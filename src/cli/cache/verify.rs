//! `belady cache verify`: checks that stored samples are unchanged.

use std::path::Path;
use std::sync::Arc;

use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};

use super::super::{say, say_json};
use super::{all_of, cannot, limits, select, source};
use crate::disk::Directory;
use crate::error::{Error, ErrorKind, Result};
use crate::store::directory::{self, StoreInfo};
use crate::store::{Key, Losses, Store};

#[derive(Default)]
struct Checked {
    /// All samples, including the lost ones.
    samples: usize,
    /// The places of damaged and lost samples.
    places: Vec<String>,
    losses: Losses,
    /// The error that ended the check early.
    failed: Option<std::io::Error>,
}

pub(super) fn verify(dir: &Path, name: Option<&str>, json: bool) -> Result<()> {
    let names: Vec<String> = name.map(str::to_owned).into_iter().collect();
    let mut failed = Vec::new();
    let selected = select(dir, &names, &mut failed)?;
    let mut rows = Vec::new();
    for listed in &selected.stores {
        match check(dir, listed) {
            Ok(checked) => {
                failed.extend(checked.verdict().err());
                failed.extend(checked.failed.as_ref().map(|error| cannot(listed, error)));
                rows.push((listed, Ok(checked)));
            }
            Err(error) => {
                rows.push((listed, Err(error.message().to_owned())));
                failed.push(error);
            }
        }
    }
    if json {
        let skipped = selected
            .skipped
            .iter()
            .map(|store| json!({ "store": store.name, "source": source(store), "in_use": true }));
        let rows = rows.iter().map(|(store, checked)| row(store, checked));
        say_json(&rows.chain(skipped).collect::<Vec<Value>>());
    } else {
        for (store, checked) in &rows {
            if let Ok(checked) = checked {
                checked.say(store);
            }
        }
        selected.say_skipped();
    }
    // If there is damage, its error decides the exit code, whatever else went wrong.
    failed.sort_by_key(|error| error.kind() != ErrorKind::Cache);
    all_of(failed)
}

fn check(dir: &Path, listed: &StoreInfo) -> Result<Checked> {
    let _store_dir = directory::claim_existing(dir, listed)?;
    try_check(listed).map_err(|error| cannot(listed, &error))
}

fn try_check(listed: &StoreInfo) -> std::io::Result<Checked> {
    let disk = Directory::open(&listed.path, true)?;
    let Some((store, mut losses)) = Store::open_found(Arc::new(disk), limits())? else {
        return Ok(Checked::default());
    };
    let places = std::mem::take(&mut losses.samples);
    let mut checked = Checked { samples: places.len(), places, losses, failed: None };
    // Losses that the opening has found are reported in any case: they may be found only once.
    checked.failed = checked.read(&store).err();
    Ok(checked)
}

fn row(store: &StoreInfo, checked: &std::result::Result<Checked, String>) -> Value {
    let Checked { samples, places, losses, failed } = match checked {
        Ok(checked) => checked,
        Err(error) => {
            return json!({ "store": store.name, "source": source(store), "error": error });
        }
    };
    let unopened: u64 = losses.closed.iter().map(|(_, samples)| samples).sum();
    let mut row = json!({ "store": store.name, "source": source(store), "checked": samples,
        "damaged": places.len(), "places": places, "damaged_indexes": losses.indexes,
        "damaged_records": losses.records, "not_opened": unopened });
    if let Some(error) = failed {
        row["error"] = cannot(store, error).message().into();
    }
    row
}

impl Checked {
    /// Reads all stored samples and drops the damaged ones.
    fn read(&mut self, store: &Store) -> std::io::Result<()> {
        let keys = store.keys();
        let style = ProgressStyle::with_template("checking {bar} {pos} of {len}");
        let bar = ProgressBar::new(keys.len() as u64)
            .with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        let damaged = store.verify(&mut bar.wrap_iter(keys.iter().copied()));
        bar.finish_and_clear();
        let (damaged, places): (Vec<Key>, Vec<String>) = damaged?.into_iter().unzip();
        self.samples += keys.len();
        self.places.extend(places);
        store.remove(&damaged);
        if self.losses.records > 0 {
            // Otherwise they would be found again.
            store.compact()?;
        }
        store.sync()
    }

    fn say(&self, store: &StoreInfo) {
        let (name, source, damaged) = (&store.name, source(store), self.places.len());
        say(format!("{name}  {} samples checked, {damaged} damaged  {source}", self.samples));
        self.places.iter().for_each(|place| say(format!("  damaged: {place}")));
        self.losses.indexes.iter().for_each(|index| say(format!("  damaged: {index}")));
        if self.losses.records > 0 {
            say(format!("  damaged: {} records of the index", self.losses.records));
        }
        for (segment, samples) in &self.losses.closed {
            say(format!("  cannot be opened: {segment}, {samples} samples"));
        }
    }

    /// Returns an error if anything is damaged or lost.
    fn verdict(&self) -> Result<()> {
        let (damaged, records) = (self.places.len(), self.losses.records);
        let unopened: u64 = self.losses.closed.iter().map(|(_, samples)| samples).sum();
        let mut said = Vec::new();
        if damaged > 0 {
            said.push(format!("{damaged} samples were damaged and are dropped"));
        }
        if records > 0 || !self.losses.indexes.is_empty() {
            said.push("the index was damaged, and what it does not know is lost".into());
        }
        if unopened > 0 {
            said.push(format!("{unopened} samples are in segments that cannot be opened"));
        }
        if damaged == 0 && unopened == 0 && !self.losses.is_some() {
            return Ok(());
        }
        Err(Error::new(ErrorKind::Cache, said.join(", ")).hint(
            "they are read from the source again; a disk that damages more should be replaced",
        ))
    }
}
