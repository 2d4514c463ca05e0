//! One string that names an order, the same on the command line and in a configuration.
//!
//! ```text
//! torch-distributed:seed=3,world=2,rank=1,index=imagefolder,root=train,count=1281167
//! torch-random:seed=42,index=path,ext=.jpg,.png
//! sequential:index=manifest:lists/train.csv,column=file
//! torch-weighted:seed=42,weights=lists/weights.txt,index=imagefolder
//! accelerate:seed=7,world=8,rank=3,batch_size=32,split=train_test_split:42:0.1:train
//! file:orders/run7.txt
//! orders/run7.txt,index=imagefolder,root=train
//! ```
//!
//! The sampler or the order file comes first, then keys. A string is the path of an order file if the part
//! before its first comma holds a `/`, or a dot and no colon. Paths hold no commas.
//!
//! Samplers and their keys are those of [`Sampler::all`]; [`help`] lists them. Keys of all orders, with their
//! defaults:
//!
//! - `index` (`path`; `keras` and `dali` have their own): how the files are numbered. It is a [`Sorting`] or
//!   `manifest:FILE`, or a [`Container`] such as `npy` or `hdf5:images`: then samples inside large files are
//!   [numbered].
//! - `column`: where the path [stands](crate::order::index::Manifest::column) in an entry of the manifest.
//! - `root` (the source): the dataset's directory.
//! - `ext` (the index order's own): endings of the names of its files.
//! - `count`: how many samples the dataset must have.
//! - `split`: the part of the dataset that the sampler draws from, as one or more [`Split`]s.
//! - `whole_batches`: the batch size of a loader that reads only whole batches, whatever the sampler does.
//!   Torch's `DataLoader(batch_size=64, drop_last=True)` is `whole_batches=64`.
//!
//! Each rank of a distributed job has an order of its own.

mod help;
mod parse;

pub use help::help;

use std::fmt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::containers::{Container, Numbered, numbered};
use super::index::{Filter, Format, IndexOrder, Manifest, Sorting, index_order};
use super::samplers::Sampler;
use super::{Listing, Order, SampleTable, Split, file, grouped};
use crate::error::{Error, ErrorKind, Result};
use crate::ids::FileId;

/// An order as a person names it. Its string form is shown and stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct OrderSpec {
    pub sequence: SequenceSpec,
    /// How files are numbered.
    pub index: IndexSpec,
    /// Which files are numbered.
    pub filter: Filter,
    /// How many samples the index must have. For an order file: each of its epochs.
    pub count: Option<u64>,
    /// The parts taken of the index, one after the other. The sampler draws from the last.
    pub splits: Vec<Split>,
    /// The batch size of a loader that [reads only whole batches](Order::in_whole_batches). Not 0.
    pub whole_batches: Option<u32>,
}

/// Where the sequence of an order comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SequenceSpec {
    /// A sampler draws it.
    Sampler(Sampler),
    /// An [order file](mod@crate::order::file) lists it.
    File(PathBuf),
}

/// An [`IndexOrder`] whose manifest is not read yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IndexSpec {
    /// [`IndexOrder::Sorted`]
    Sorted(Sorting),
    /// [`IndexOrder::Manifest`] in this file.
    Manifest {
        /// Its name tells the format.
        file: PathBuf,
        /// [`Manifest::column`]
        column: Option<String>,
    },
    /// The samples inside files of this format.
    Samples(Container),
}

/// The purpose of a file that an order needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FilePurpose {
    Order,
    /// A list that numbers the files.
    Manifest,
    /// The weights of the samples.
    Weights,
}

impl OrderSpec {
    /// Whether a line is meant as a spec, right or wrong, and not as the path of a sample. It is if it parses
    /// or begins with a sampler's name.
    pub fn is_spec(line: &str) -> bool {
        let name = line.split(':').next().unwrap_or(line);
        Sampler::named(name).is_some() || line.parse::<OrderSpec>().is_ok()
    }

    /// The order in which `sampler` draws from the same index.
    pub fn with_sampler(&self, sampler: Sampler) -> OrderSpec {
        OrderSpec { sequence: SequenceSpec::Sampler(sampler), ..self.clone() }
    }

    /// The order that reads the files of a filter in sequence, without shuffling.
    pub fn sequential(sorting: Sorting, filter: Filter) -> OrderSpec {
        OrderSpec {
            sequence: SequenceSpec::Sampler(Sampler::SEQUENTIAL),
            index: IndexSpec::Sorted(sorting),
            filter,
            count: None,
            splits: Vec::new(),
            whole_batches: None,
        }
    }

    /// Whether it is known from the names of the dataset alone, without bytes of any file.
    pub fn needs_names_only(&self) -> bool {
        self.files_needed().is_empty() && !matches!(self.index, IndexSpec::Samples(_))
    }

    /// The files whose contents [`OrderSpec::resolve`] needs, in the order it takes them.
    pub fn files_needed(&self) -> Vec<(&Path, FilePurpose)> {
        let sequence = match &self.sequence {
            SequenceSpec::File(path) => Some((path.as_path(), FilePurpose::Order)),
            SequenceSpec::Sampler(sampler) => {
                sampler.weights().map(|weights| (weights.file.as_path(), FilePurpose::Weights))
            }
        };
        let manifest = match &self.index {
            IndexSpec::Manifest { file, .. } => Some((file.as_path(), FilePurpose::Manifest)),
            IndexSpec::Sorted(_) | IndexSpec::Samples(_) => None,
        };
        sequence.into_iter().chain(manifest).collect()
    }

    /// The paths of those files, mutable.
    pub fn file_paths_mut(&mut self) -> Vec<&mut PathBuf> {
        let sequence = match &mut self.sequence {
            SequenceSpec::File(path) => Some(path),
            SequenceSpec::Sampler(sampler) => {
                sampler.weights_mut().map(|weights| &mut weights.file)
            }
        };
        let manifest = match &mut self.index {
            IndexSpec::Manifest { file, .. } => Some(file),
            IndexSpec::Sorted(_) | IndexSpec::Samples(_) => None,
        };
        sequence.into_iter().chain(manifest).collect()
    }

    /// The order over this dataset. `contents` are those of [`OrderSpec::files_needed`].
    ///
    /// # Errors
    /// When the dataset has another number of samples than `count`, or no sample. When an epoch is empty or
    /// has no whole batch. When a named file is wrong (with its path and line).
    pub fn resolve(&self, listing: &Listing<'_>, contents: &[&[u8]]) -> Result<Order> {
        let needed = self.files_needed().len();
        if contents.len() != needed {
            let message = format!("'{self}' needs {needed} files, not {}", contents.len());
            return Err(Error::new(ErrorKind::Internal, message));
        }
        let order = self.resolve_uncut(listing, contents)?;
        match self.whole_batches {
            Some(batch) => order.in_whole_batches(batch),
            None => Ok(order),
        }
    }

    /// The order before its epochs are cut to whole batches.
    fn resolve_uncut(&self, listing: &Listing<'_>, contents: &[&[u8]]) -> Result<Order> {
        // The manifest is the last file.
        let index = || self.resolve_index(listing, contents.last().copied());
        match &self.sequence {
            SequenceSpec::Sampler(sampler) => {
                let (index, samples) = self.resolve_samples(listing, contents.last().copied())?;
                self.check_count(index.len() as u64)?;
                let splits = self.splits.iter().map(|split| format!(", {split}"));
                let name = format!("{} order{}", self.index.name(), splits.collect::<String>());
                let mut sampler = sampler.clone();
                if let Some(weights) = sampler.weights_mut() {
                    *weights = weights.read(contents[0])?;
                }
                Order::drawn_of(sampler, self.apply_splits(index)?.into(), samples, &name)
            }
            SequenceSpec::File(path) => {
                let index = || self.apply_splits(index()?);
                let name = format!("order file {}", path.display());
                let parsed = file::parse(contents[0], listing, index, self.count);
                let parsed = parsed.map_err(|error| error.context(&name))?;
                Order::listed(&name, parsed.epochs, parsed.samples)
            }
        }
    }

    /// What the sampler's positions stand for, as rows of a table.
    fn resolve_samples(
        &self,
        listing: &Listing<'_>,
        manifest: Option<&[u8]>,
    ) -> Result<(Vec<u32>, SampleTable)> {
        if let IndexSpec::Samples(container) = &self.index {
            let Numbered { table, index } = numbered(listing, &self.filter, container)?;
            return Ok((index, SampleTable::Ranges(table)));
        }
        let files = self.resolve_index(listing, manifest)?;
        Ok((files.into_iter().map(|file| file.0).collect(), SampleTable::Files))
    }

    fn resolve_index(&self, listing: &Listing<'_>, manifest: Option<&[u8]>) -> Result<Vec<FileId>> {
        match &self.index {
            IndexSpec::Sorted(sorting) => {
                index_order(listing, IndexOrder::Sorted(*sorting), &self.filter)
            }
            IndexSpec::Manifest { file, column } => {
                let format = Format::of_name(&file.to_string_lossy());
                let text = manifest.unwrap_or_default();
                let manifest = Manifest { text, format, column: column.as_deref() };
                index_order(listing, IndexOrder::Manifest(manifest), &self.filter)
                    .map_err(|error| error.context(format_args!("manifest {}", file.display())))
            }
            IndexSpec::Samples(_) => {
                let message =
                    "the numbers of an order file stand for files, not for samples in them";
                Err(Error::new(ErrorKind::Order, message)
                    .hint("list the samples as ranges: PATH, offset and length, with tabs between"))
            }
        }
    }

    /// What the splits leave of the index.
    fn apply_splits<T: Copy>(&self, index: Vec<T>) -> Result<Vec<T>> {
        self.splits.iter().try_fold(index, |index, split| {
            let n = u32::try_from(index.len());
            let n = n.map_err(|_| {
                Error::new(ErrorKind::Order, "a split is of less than 2^32 samples")
            })?;
            Ok(split.positions(n)?.iter().map(|&at| index[at as usize]).collect())
        })
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
            (_, IndexSpec::Manifest { .. }) => "is it the list of another part of the dataset?",
            (true, IndexSpec::Sorted(Sorting::ImageFolder | Sorting::Keras | Sorting::Dali)) => {
                "are files missing from the source, outside of class directories, or not images \
                 by name?"
            }
            (_, IndexSpec::Samples(_)) => {
                "are files missing, or are there files that the job does not read?"
            }
            (true, _) => "are files missing, or does root= or ext= leave some out?",
            (false, _) => {
                "are there files that the job does not read? root= (such as root=train) and ext= \
                 (such as ext=.jpg) leave files out"
            }
        };
        Err(Error::new(ErrorKind::Order, message).hint(hint))
    }
}

impl SequenceSpec {
    /// The sorting of the index order if the spec names none.
    fn sorting(&self) -> Sorting {
        match self {
            SequenceSpec::Sampler(sampler) => sampler.sorting(),
            SequenceSpec::File(_) => Sorting::Path,
        }
    }
}

impl IndexSpec {
    /// How it is written in a spec, without a file.
    fn name(&self) -> String {
        match self {
            IndexSpec::Sorted(sorting) => sorting.name().to_owned(),
            IndexSpec::Manifest { .. } => "manifest".to_owned(),
            IndexSpec::Samples(container) => container.to_string(),
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
    /// The string form, without keys that have their default.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut keys = Vec::new();
        let mut key = |name: &str, value: &dyn fmt::Display, default: bool| {
            if !default {
                keys.push(format!("{name}={value}"));
            }
        };
        if let SequenceSpec::Sampler(sampler) = &self.sequence {
            for (name, value) in sampler.shown_keys() {
                key(name, &value, false);
            }
        }
        match &self.index {
            IndexSpec::Manifest { file, column } => {
                key("index", &format_args!("manifest:{}", file.display()), false);
                key("column", &column.as_deref().unwrap_or(""), column.is_none());
            }
            IndexSpec::Sorted(sorting) => {
                key("index", &sorting.name(), *sorting == self.sequence.sorting());
            }
            IndexSpec::Samples(container) => key("index", container, false),
        }
        key("root", &self.filter.root, self.filter.root.is_empty());
        key("ext", &self.filter.ext.join(","), self.filter.ext.is_empty());
        key("count", &self.count.unwrap_or(0), self.count.is_none());
        let splits: Vec<_> = self.splits.iter().map(Split::to_string).collect();
        key("split", &splits.join("/"), splits.is_empty());
        key("whole_batches", &self.whole_batches.unwrap_or(0), self.whole_batches.is_none());
        let head = match &self.sequence {
            SequenceSpec::Sampler(sampler) => sampler.name().to_owned(),
            SequenceSpec::File(path) => format!("file:{}", path.display()),
        };
        // `file:` already has the colon.
        let colon = if matches!(self.sequence, SequenceSpec::File(_)) { "," } else { ":" };
        let separator = if keys.is_empty() { "" } else { colon };
        write!(f, "{head}{separator}{}", keys.join(","))
    }
}

#[cfg(test)]
mod tests;
