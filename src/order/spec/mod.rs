//! One string that names an order, the same on the command line and in a configuration.
//!
//! ```text
//! torch-distributed:seed=3,world=2,rank=1,index=imagefolder,root=train,count=1281167
//! torch-random:seed=42,index=path,ext=.jpg,.png
//! sequential:index=manifest:lists/train.txt
//! file:orders/run7.txt
//! orders/run7.txt,index=imagefolder,root=train
//! ```
//!
//! First the sampler or the order file, then keys. A string that holds a `/`, or a dot and no
//! colon, before its first comma is the path of an order file; paths hold no commas. Keys of all
//! orders, with their defaults:
//!
//! - `index` (`path`): how the files are numbered, [`imagefolder`, `path` or `manifest:FILE`
//!   ](crate::order::index::IndexOrder);
//! - `root` (the source): the dataset's directory; `ext` (see there): endings of its files' names;
//! - `count`: how many samples the dataset has; another number is refused.
//!
//! Keys of `torch-distributed`: `seed` (0), `epoch` (0), `world` (1), `rank` (0), `drop_last`
//! (false), `shuffle` (true), and `set_epoch` (true), whether the script calls it. Keys of
//! `torch-random`: `seed`, which must be given, `epoch` (0), `persistent_workers` (false).
//! `sequential` and files have none of their own. In a world of several ranks each is an order by
//! itself.

mod parse;

use std::fmt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::index::{Filter, IndexOrder, index_order};
use super::samplers::{Distributed, Random, Sampler};
use super::{Listing, Order, file, grouped};
use crate::error::{Error, ErrorKind, Result};
use crate::ids::FileId;

/// An order as a person names it; its string form is the way it is shown and stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct OrderSpec {
    /// Where the sequence comes from.
    pub source: Source,
    /// How positions and numbers stand for files.
    pub index: IndexSpec,
    /// Which files the index takes.
    pub filter: Filter,
    /// How many samples the index has to have; of an order file, each of its epochs.
    pub count: Option<u64>,
}

/// Where the sequence of an order comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A sampler draws it.
    Sampler(Sampler),
    /// An [order file](mod@crate::order::file) lists it.
    File(PathBuf),
}

/// An [`IndexOrder`] whose manifest is still a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IndexSpec {
    /// [`IndexOrder::ImageFolder`]
    ImageFolder,
    /// [`IndexOrder::Path`]
    Path,
    /// [`IndexOrder::Manifest`] in this file.
    Manifest(PathBuf),
}

impl OrderSpec {
    /// The files whose contents [`OrderSpec::resolve`] needs, in the order it takes them.
    pub fn files_needed(&self) -> Vec<&Path> {
        let order = match &self.source {
            Source::File(path) => Some(path.as_path()),
            Source::Sampler(_) => None,
        };
        let manifest = match &self.index {
            IndexSpec::Manifest(path) => Some(path.as_path()),
            IndexSpec::ImageFolder | IndexSpec::Path => None,
        };
        order.into_iter().chain(manifest).collect()
    }

    /// The order over this dataset.
    ///
    /// `contents` are those of [`OrderSpec::files_needed`].
    ///
    /// # Errors
    /// When the dataset has another number of samples than `count` says, the index or an epoch is
    /// empty, or a named file is wrong (with its path and line).
    pub fn resolve(&self, listing: &Listing<'_>, contents: &[&[u8]]) -> Result<Order> {
        let needed = self.files_needed().len();
        if contents.len() != needed {
            let message = format!("'{self}' needs {needed} files, not {}", contents.len());
            return Err(Error::new(ErrorKind::Internal, message));
        }
        // The manifest is the last of them.
        let index = || self.resolve_index(listing, contents.last().copied());
        match &self.source {
            Source::Sampler(sampler) => {
                let index = index()?;
                self.check_count(index.len() as u64)?;
                Order::drawn(*sampler, &index, self.index.name())
            }
            Source::File(path) => {
                let name = format!("order file {}", path.display());
                let parsed = file::parse(contents[0], listing, index, self.count);
                let parsed = parsed.map_err(|error| error.context(&name))?;
                Order::listed(&name, parsed.epochs, parsed.samples)
            }
        }
    }

    fn resolve_index(&self, listing: &Listing<'_>, manifest: Option<&[u8]>) -> Result<Vec<FileId>> {
        match &self.index {
            IndexSpec::ImageFolder => index_order(listing, IndexOrder::ImageFolder, &self.filter),
            IndexSpec::Path => index_order(listing, IndexOrder::Path, &self.filter),
            IndexSpec::Manifest(path) => {
                let text = IndexOrder::Manifest(manifest.unwrap_or_default());
                index_order(listing, text, &self.filter)
                    .map_err(|error| error.context(format_args!("manifest {}", path.display())))
            }
        }
    }

    fn check_count(&self, found: u64) -> Result<()> {
        let Some(count) = self.count.filter(|count| *count != found) else { return Ok(()) };
        let message = format!(
            "the {} index has {} samples and count says {}",
            self.index.name(),
            grouped(found),
            grouped(count)
        );
        let hint = match (found < count, &self.index) {
            (_, IndexSpec::Manifest(_)) => "is it the list of another part of the dataset?",
            (true, IndexSpec::ImageFolder) => {
                "are files missing from the source, outside of class directories, or not images \
                 by name?"
            }
            (true, IndexSpec::Path) => "are files missing, or does root= or ext= leave some out?",
            (false, _) => {
                "are there files that the job does not read? root= (such as root=train) and ext= \
                 (such as ext=.jpg) leave files out"
            }
        };
        Err(Error::new(ErrorKind::Order, message).hint(hint))
    }
}

impl IndexSpec {
    /// The word for it in a spec, without the file.
    fn name(&self) -> &'static str {
        match self {
            IndexSpec::ImageFolder => IndexOrder::ImageFolder.name(),
            IndexSpec::Path => IndexOrder::Path.name(),
            IndexSpec::Manifest(_) => IndexOrder::Manifest(&[]).name(),
        }
    }
}

impl From<OrderSpec> for String {
    fn from(spec: OrderSpec) -> Self {
        spec.to_string()
    }
}

impl TryFrom<String> for OrderSpec {
    type Error = Error;

    fn try_from(text: String) -> Result<Self> {
        text.parse()
    }
}

impl fmt::Display for OrderSpec {
    /// The string form, without the keys that have their defaults.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut keys = Vec::new();
        let mut key = |name: &str, value: &dyn fmt::Display, default: bool| {
            if !default {
                keys.push(format!("{name}={value}"));
            }
        };
        match &self.source {
            Source::Sampler(Sampler::TorchDistributed(s)) => {
                let Distributed { seed, epoch, world, rank, drop_last, shuffle, set_epoch } = s;
                key("seed", seed, false);
                key("epoch", epoch, *epoch == 0);
                key("world", world, *world == 1);
                key("rank", rank, *world == 1);
                key("drop_last", drop_last, !drop_last);
                key("shuffle", shuffle, *shuffle);
                key("set_epoch", set_epoch, *set_epoch);
            }
            Source::Sampler(Sampler::TorchRandom(s)) => {
                let Random { seed, epoch, persistent_workers } = s;
                key("seed", seed, false);
                key("epoch", epoch, *epoch == 0);
                key("persistent_workers", persistent_workers, !persistent_workers);
            }
            Source::Sampler(Sampler::Sequential) | Source::File(_) => {}
        }
        match &self.index {
            IndexSpec::Manifest(path) => {
                key("index", &format_args!("manifest:{}", path.display()), false);
            }
            index => key("index", &index.name(), matches!(index, IndexSpec::Path)),
        }
        key("root", &self.filter.root, self.filter.root.is_empty());
        key("ext", &self.filter.ext.join(","), self.filter.ext.is_empty());
        key("count", &self.count.unwrap_or(0), self.count.is_none());
        let head = match &self.source {
            Source::Sampler(sampler) => parse::name(sampler).to_owned(),
            Source::File(path) => format!("file:{}", path.display()),
        };
        // A file already has its colon.
        let colon = if matches!(self.source, Source::File(_)) { "," } else { ":" };
        let separator = if keys.is_empty() { "" } else { colon };
        write!(f, "{head}{separator}{}", keys.join(","))
    }
}

#[cfg(test)]
mod tests;
