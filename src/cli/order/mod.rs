//! `belady order`: show, check, set, record and edit access orders.

mod edit;
mod output;
mod record;

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use clap::Subcommand;
use output::Target;
use serde_json::Value;

use super::scan::await_scan;
use super::settings::{Shown, absolute_order, source_settings};
use super::status::{self, orders_for_people, orders_of};
use super::{say, say_json};
use crate::catalog::Catalog;
use crate::catalog::with_listing;
use crate::config::View;
use crate::control::{self, Request};
use crate::engine::{resolve_order, tell_unreadable};
use crate::error::{Error, ErrorKind, Result};
use crate::ids::FileId;
use crate::mount::absolute;
use crate::order::Order;
use crate::order::file::write_text;
use crate::order::spec::help;
use crate::plan::Layout;
use crate::source::{Location, Opening};

#[derive(Debug, Subcommand)]
pub(super) enum Verb {
    /// Print an order as an order file
    #[command(after_long_help = help())]
    Show {
        /// The order: a file, or a sampler as `torch-distributed:seed=0,index=imagefolder`; --help
        /// lists the samplers
        order: String,
        /// The dataset: a source, which may be a URL, or a mount
        dataset: PathBuf,
        /// Epochs to print
        #[arg(long, default_value_t = 1)]
        epochs: u32,
        /// First epoch to print
        #[arg(long, default_value_t = 0)]
        from: u32,
        #[command(flatten)]
        shown: Shown,
        #[command(flatten)]
        target: Target,
    },
    /// Check an order against a dataset
    Check {
        /// The order
        order: String,
        /// The dataset: a source, which may be a URL, or a mount
        dataset: PathBuf,
        #[command(flatten)]
        shown: Shown,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Write what a loader read as an order file: in the order that was learnt, or else in that of
    /// the first opens
    Record(record::Args),
    /// Make one order file of several: of ranks, or of epochs
    Merge(edit::Merge),
    /// Take epochs, samples or a rank's part out of an order file
    Cut(edit::Cut),
    /// Give a running mount an order
    Set {
        /// Where it is mounted
        mountpoint: PathBuf,
        /// The order
        order: String,
        /// The reader that it is for
        #[arg(long, default_value = "default")]
        stream: String,
    },
    /// Show the orders of running mounts: those told, and those found out
    Status {
        /// Where it is mounted; all mounts if left out
        mountpoint: Option<PathBuf>,
        /// Print JSON: an object for one mount, a list for all
        #[arg(long)]
        json: bool,
    },
    /// Take a running mount's order away
    Withdraw {
        /// Where it is mounted
        mountpoint: PathBuf,
        /// The reader that it is for
        #[arg(long, default_value = "default")]
        stream: String,
    },
}

pub(super) fn run(verb: &Verb) -> Result<()> {
    match verb {
        Verb::Show { order, dataset, epochs, from, shown, target } => {
            let text = order_text(order, (dataset.as_path(), shown.view), *from, *epochs)?;
            target.fill(|out| out.write_all(&text).map_err(|error| target.cannot_write(&error)))
        }
        Verb::Record(args) => record::run(args),
        Verb::Merge(args) => edit::merge(args),
        Verb::Cut(args) => edit::cut(args),
        Verb::Check { order, dataset, shown, json } => {
            check(order, (dataset.as_path(), shown.view), *json)
        }
        Verb::Set { mountpoint, order, stream } => {
            let (stream, order) = (stream.clone(), absolute_order(order)?);
            await_scan(&absolute(mountpoint), None)?;
            let words = ask(mountpoint, &Request::SetOrder { stream, order })?;
            say(format!("order set: {}", words.as_str().unwrap_or_default()));
            Ok(())
        }
        Verb::Status { mountpoint, json } => {
            status::show(mountpoint.as_deref(), *json, orders_of, orders_for_people)
        }
        Verb::Withdraw { mountpoint, stream } => {
            ask(mountpoint, &Request::WithdrawOrder { stream: stream.clone() }).map(|_| ())
        }
    }
}

fn ask(mountpoint: &Path, request: &Request) -> Result<Value> {
    control::ask(&absolute(mountpoint), request)
}

const SCAN_THREADS: usize = 16;

pub(super) struct Resolved {
    pub(super) order: Order,
    /// The path of each file, and of each link that leads out of the dataset.
    paths: HashMap<FileId, Vec<u8>>,
    files: HashSet<FileId>,
    pub(super) layout: Arc<Layout>,
}

/// An order over what is shown of a dataset.
pub(super) fn resolved(text: &str, (dataset, view): (&Path, View)) -> Result<Resolved> {
    let location = Location::parse(dataset, &source_settings())?;
    let source = Opening::for_names(view, &AtomicU64::new(0)).open(&location)?;
    let root = location.name().to_owned();
    let catalog = Catalog::scan(source, SCAN_THREADS, None);
    let catalog = catalog.map_err(|(path, errno)| {
        let at = root.join(path);
        Error::new(ErrorKind::Source, format!("cannot read {}: {}", at.display(), errno.desc()))
    })?;
    let points = std::slice::from_ref(&root);
    let found = with_listing(&catalog, points, None, |listing| {
        let known = listing.entries().iter().map(|entry| (entry.file, entry.path.to_vec()));
        resolve_order(text, listing).map(|order| (order, known.collect::<HashMap<_, _>>()))
    });
    let (order, mut paths) =
        found.map_err(|error| tell_unreadable(&catalog, &root, text, error))?;
    let mut files = HashSet::new();
    catalog.for_each_file(|path, file, _| {
        // A file's own name replaces those of links to it.
        paths.insert(file, path.as_os_str().to_os_string().into_vec());
        files.insert(file);
    });
    Ok(Resolved { order, paths, files, layout: catalog.layout() })
}

/// The text of an order file with these epochs.
fn order_text(text: &str, dataset: (&Path, View), from: u32, epochs: u32) -> Result<Vec<u8>> {
    let Resolved { order, paths, .. } = resolved(text, dataset)?;
    let path = |file: FileId| Cow::Borrowed(paths.get(&file).map_or(&b""[..], Vec::as_slice));
    write_text(&order, from..from.saturating_add(epochs), path)
}

fn check(text: &str, dataset: (&Path, View), json: bool) -> Result<()> {
    let Resolved { order, paths, files, .. } = resolved(text, dataset).inspect_err(|error| {
        if json {
            say_json(&serde_json::json!({ "ok": false, "reason": error.message() }));
        }
    })?;
    let (samples, repeats) = (order.epoch_len(0), !order.is_permutation());
    let mut unread = files.clone();
    for id in order.epoch(0).iter() {
        unread.remove(&order.samples().get(*id).file);
    }
    if json {
        say_json(&serde_json::json!({
            "ok": true,
            "order": order.describe(),
            "files": files.len(),
            "samples": samples,
            "repeats": repeats,
            "unread": unread.len(),
            "epochs": order.epochs_listed(),
        }));
    } else {
        say(format!("ok: {}", order.describe()));
        say(format!(
            "  {} files in the dataset, {samples} samples in the first epoch{}",
            files.len(),
            if repeats { ", some of them several times" } else { ", none twice" },
        ));
        if let Some(path) = unread.iter().filter_map(|file| paths.get(file)).min() {
            let (count, path) = (unread.len(), String::from_utf8_lossy(path));
            say(format!("  {count} files are not read in it, such as {}", path.escape_debug()));
        }
    }
    Ok(())
}
