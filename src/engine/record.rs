//! Writes what loaders have read as order files.

use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::orders::Orders;
use crate::catalog::Catalog;
use crate::error::{Error, ErrorKind, Result};
use crate::ids::FileId;
use crate::learn::{self, Epoch, Record};
use crate::learning::Named;
use crate::order::file::write_sample;

/// Samples that are written in one call.
const CHUNK: usize = 4096;

/// The loader and the epochs of which an order file is wanted.
#[derive(Clone, Copy, Debug, Default)]
pub struct RecordSelection {
    pub loader: Option<u32>,
    /// The process that the loader reads for.
    pub process: Option<u64>,
    /// The number of the latest epochs; `None` for all that are remembered.
    pub epochs: Option<u32>,
}

/// An epoch of an order file.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct RecordedEpoch {
    /// Its number, from 0 for the first epoch that was seen of the loader.
    pub epoch: u32,
    pub samples: u32,
    /// Whether its order was learnt; else the samples are in the order of their first opens.
    pub learnt: bool,
    /// Whether it is whole: it is over, or its order was learnt.
    pub whole: bool,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct RecordSummary {
    pub loader: u32,
    /// The process that the loader reads for, or has read for.
    pub process: u64,
    /// Name of that process's program.
    pub program: String,
    pub epochs: Vec<RecordedEpoch>,
}

pub struct Recording {
    catalog: Arc<Catalog>,
    epochs: Vec<Epoch>,
    pub summary: RecordSummary,
}

impl Recording {
    pub(super) fn of(
        selection: &RecordSelection,
        orders: &Orders,
        catalog: &Arc<Catalog>,
    ) -> Result<Self> {
        let Some(learning) = &orders.learning else {
            let message = "nothing is observed here: order.learn is off, or nothing is read ahead";
            return Err(Error::new(ErrorKind::Order, message));
        };
        let (record, program) = choose(learning.records()?, selection).map_err(|error| {
            let hint =
                "`belady order show` writes an order that was told, whether it is read or not";
            if orders.has_told_order() { error.hint(hint) } else { error }
        })?;
        let Record { loader, group, mut epochs } = record;
        let whole = |epoch: &Epoch| epoch.is_over || epoch.is_learnt;
        if epochs.iter().any(whole) {
            epochs.retain(whole);
        }
        let most = selection.epochs.map_or(usize::MAX, |epochs| epochs as usize);
        epochs.drain(..epochs.len().saturating_sub(most));
        let recorded = |epoch: &Epoch| RecordedEpoch {
            epoch: epoch.number,
            samples: epoch.len(),
            learnt: epoch.is_learnt,
            whole: whole(epoch),
        };
        let summary = RecordSummary {
            loader: loader.0,
            process: group,
            program,
            epochs: epochs.iter().map(recorded).collect(),
        };
        Ok(Recording { catalog: Arc::clone(catalog), epochs, summary })
    }

    /// Writes the order file. Files that are gone from the source are left out, and a comment says how many.
    ///
    /// # Errors
    /// If a path cannot stand in an order file, or `out` cannot be written to.
    pub fn write(self, out: &mut dyn Write) -> Result<()> {
        let RecordSummary { loader, process, program, .. } = &self.summary;
        let head =
            format!("# as read by {} (pid {process}), loader {loader}\n", program.escape_debug());
        put(out, head.as_bytes())?;
        for (epoch, samples) in self.epochs.iter().zip(learn::samples(&self.epochs)) {
            let how = if epoch.is_learnt { "order learnt" } else { "in order of first opens" };
            put(out, format!("# epoch {}\n# {how}\n", epoch.number).as_bytes())?;
            let mut gone = 0;
            for ids in samples.chunks(CHUNK) {
                let mut text = Vec::new();
                for &id in ids {
                    match self.catalog.path_of(FileId(id)) {
                        Some(path) => write_sample(&mut text, path.as_os_str().as_bytes(), None)?,
                        None => gone += 1,
                    }
                }
                put(out, &text)?;
            }
            if gone > 0 {
                put(out, format!("# {gone} files are gone from the source\n").as_bytes())?;
            }
        }
        Ok(())
    }
}

/// Finds the one loader that is selected.
fn choose(records: Vec<Named>, selection: &RecordSelection) -> Result<Named> {
    let is_selected = |(record, _): &Named| {
        !record.epochs.is_empty()
            && selection.loader.is_none_or(|loader| loader == record.loader.0)
            && selection.process.is_none_or(|process| process == record.group)
    };
    let mut found: Vec<Named> = records.into_iter().filter(is_selected).collect();
    match (found.pop(), found.len()) {
        (Some(only), 0) => Ok(only),
        (Some(last), _) => {
            found.push(last);
            let words = |(record, program): &Named| {
                let (loader, process) = (record.loader.0, record.group);
                let (epochs, longest) = (record.epochs.len(), record.epochs.iter().map(Epoch::len));
                let most = longest.max().unwrap_or(0);
                format!(
                    "{loader}: {program} (pid {process}), epochs: {epochs} of up to {most} samples"
                )
            };
            let all: Vec<String> = found.iter().map(words).collect();
            let message = format!("several loaders have read here\n    {}", all.join("\n    "));
            Err(Error::new(ErrorKind::Order, message).hint("give one by --loader or --process"))
        }
        (None, _) if selection.loader.is_some() || selection.process.is_some() => {
            Err(Error::new(ErrorKind::Order, "no such loader has read anything here")
                .hint("`belady order status` lists loaders"))
        }
        (None, _) => Err(Error::new(ErrorKind::Order, "no loader has been seen to read here yet")),
    }
}

fn put(out: &mut dyn Write, text: &[u8]) -> Result<()> {
    let failed = |error| Error::new(ErrorKind::Internal, format!("cannot be sent: {error}"));
    out.write_all(text).map_err(failed)
}
