//! `belady order`: show, check and set access orders.

use std::borrow::Cow;
use std::collections::HashMap;
use std::io::Write;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use clap::Subcommand;
use serde_json::Value;

use super::settings::absolute_order;
use super::status::{self, orders_for_people, orders_of};
use super::{say, say_json};
use crate::catalog::Catalog;
use crate::control::{self, Request};
use crate::engine::{resolve_order, with_listing};
use crate::error::{Error, ErrorKind, Result};
use crate::ids::FileId;
use crate::mount::absolute;
use crate::order::Order;
use crate::order::file::write_text;
use crate::order::spec::help;
use crate::source::PosixSource;

#[derive(Debug, Subcommand)]
pub(super) enum Verb {
    /// Print an order as an order file
    #[command(after_long_help = help())]
    Show {
        /// The order: a file, or a sampler as `torch-distributed:seed=0,index=imagefolder`; --help
        /// lists the samplers
        order: String,
        /// The dataset: a source or a mount
        dataset: PathBuf,
        /// Epochs to print
        #[arg(long, default_value_t = 1)]
        epochs: u32,
        /// First epoch to print
        #[arg(long, default_value_t = 0)]
        from: u32,
        /// Write the order file here instead
        #[arg(long, short, value_name = "FILE")]
        output: Option<PathBuf>,
    },
    /// Check an order against a dataset
    Check {
        /// The order
        order: String,
        /// The dataset: a source or a mount
        dataset: PathBuf,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
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
    /// Show the orders of running mounts: those given, and what was found out of the others
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
        Verb::Show { order, dataset, epochs, from, output } => {
            let text = listed(order, dataset, *from, *epochs)?;
            match output {
                Some(file) => write(file, &text),
                None => print(&text),
            }
        }
        Verb::Check { order, dataset, json } => check(order, dataset, *json),
        Verb::Set { mountpoint, order, stream } => {
            let (stream, order) = (stream.clone(), absolute_order(order)?);
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

/// Threads that list a dataset.
const SCAN_THREADS: usize = 16;

/// Resolves an order over a dataset and hands over the order and the path of each file.
fn resolved(text: &str, dataset: &Path) -> Result<(Order, HashMap<FileId, Vec<u8>>)> {
    let root = absolute(dataset);
    let source = Arc::new(PosixSource::open(&root, 1)?);
    let catalog = Catalog::scan(source, SCAN_THREADS, None, &AtomicU64::new(0));
    let catalog = catalog.map_err(|(path, errno)| {
        let at = root.join(path);
        Error::new(ErrorKind::Source, format!("cannot read {}: {}", at.display(), errno.desc()))
    })?;
    let order = with_listing(&catalog, &[root], |listing| resolve_order(text, listing))?;
    let mut paths = HashMap::new();
    catalog.for_each_file(|path, file, _| {
        paths.insert(file, path.as_os_str().to_os_string().into_vec());
    });
    Ok((order, paths))
}

/// The text of an order file with these epochs.
fn listed(text: &str, dataset: &Path, from: u32, epochs: u32) -> Result<Vec<u8>> {
    let (order, paths) = resolved(text, dataset)?;
    let path = |file: FileId| Cow::Borrowed(paths.get(&file).map_or(&b""[..], Vec::as_slice));
    write_text(&order, from..from.saturating_add(epochs), path)
}

fn write(file: &Path, text: &[u8]) -> Result<()> {
    std::fs::write(file, text).map_err(|error| {
        Error::new(ErrorKind::Order, format!("cannot write {}: {error}", file.display()))
    })
}

fn print(text: &[u8]) -> Result<()> {
    let mut stdout = std::io::stdout().lock();
    match stdout.write_all(text).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(Error::new(ErrorKind::Internal, format!("stdout: {error}")))
        }
        _ => Ok(()),
    }
}

fn check(text: &str, dataset: &Path, json: bool) -> Result<()> {
    let (order, paths) = resolved(text, dataset)?;
    let (samples, repeats) = (order.epoch_len(0), !order.is_permutation());
    if json {
        say_json(&serde_json::json!({
            "order": order.describe(),
            "files": paths.len(),
            "samples": samples,
            "repeats": repeats,
            "epochs": order.epochs_listed(),
        }));
    } else {
        say(format!("ok: {}", order.describe()));
        say(format!(
            "  {} files in the dataset, {samples} samples in the first epoch{}",
            paths.len(),
            if repeats { ", some of them several times" } else { ", none twice" },
        ));
    }
    Ok(())
}
