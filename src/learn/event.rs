//! The learner's language: what it is told, and what it says.

use std::fmt;
use std::sync::Arc;

use super::search::{Finding, Search};
use crate::order::samplers::Sampler;
use crate::order::{Order, OrderSpec};

/// A loader as the learner tells them apart: those who read one dataset in one order for one
/// process. Dense from 0, never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LoaderId(pub u32);

/// A search that is wanted or under way. Dense from 0, never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SearchId(pub u32);

/// Something that was seen, or was found.
#[derive(Clone, Debug)]
pub enum Observation {
    /// A task opened a sample.
    Opened {
        /// When, in milliseconds from any fixed moment.
        at_ms: u64,
        /// The thread that did: the id that the kernel gives with a request.
        task: u32,
        /// The process that the task is of.
        process: u64,
        /// The process that the task reads for. Of a loader's worker that is the process which
        /// started it: the parent, if that runs the same program (the same command line, or
        /// Python's `multiprocessing`). Of everyone else it is the own process.
        group: u64,
        /// The sample: a file's number, or the row in the samples of a dataset of ranges.
        sample: u32,
        /// Whether its bytes were asked for; else it may have been only looked at, by name or for
        /// its attributes, or what it is may be told by a second observation of the same open.
        exact: bool,
    },
    /// A task has ended. If its process goes on, others may come in its place within an epoch.
    Left { task: u32 },
    /// A process has ended of which tasks have read, a loader's worker say, and with it these.
    Exited { process: u64 },
    /// A process has ended, and with it all loaders that read for it: what they have read is still
    /// remembered.
    Ended { group: u64 },
    /// Units of a search were gone through, and this is what they gave: in any number of parts.
    Found { search: SearchId, findings: Vec<Finding> },
    /// All units of a search have been gone through, and [`Observation::Found`] was told before.
    Searched { search: SearchId },
    /// Searches for the loaders of a process have taken all the time that they may: from here on
    /// nothing is searched for them.
    Spent { group: u64 },
    /// How fast seeds are being searched, on all threads, as it goes on this machine now.
    Speed { seeds_per_second: u64 },
    /// Whether everything is cached anyway: then nothing is searched for.
    Cached { all: bool },
}

/// What is to be done, or has become known.
#[derive(Clone, Debug)]
pub enum Decision {
    /// This is to be searched, all of its units, in slices, with what the machine has to spare.
    SearchWanted {
        /// Its name from here on.
        id: SearchId,
        /// The loader whose order is searched for.
        loader: LoaderId,
        /// The process that it reads for.
        group: u64,
        search: Arc<Search>,
    },
    /// What the search would find is not needed any more.
    SearchOver { id: SearchId },
    /// A loader reads in this order, beyond reasonable doubt. Also said when it is known better
    /// later in the same epoch; then this order takes the place of that before.
    Committed(Known),
    /// A loader that is followed has begun its next epoch, in an order that follows from the last.
    EpochBegan(Known),
    /// What was said of the loader's order is not true any more.
    Withdrawn { loader: LoaderId, why: Why },
}

/// The order of a loader.
#[derive(Clone, Debug)]
pub struct Known {
    pub loader: LoaderId,
    /// The process that it reads for.
    pub group: u64,
    /// Number of its current epoch, from 0 for the first that was seen of it.
    pub epoch: u32,
    /// Its epoch 0 is what is left to read of the current one: it begins where the reader is.
    /// After it come whole epochs; past the last of these nothing is known, and it
    /// [ends](Order::ends).
    pub order: Order,
    /// How many epochs after the current one are in the order: 0 or 1. The one after that follows
    /// with the next [`Decision::EpochBegan`].
    pub foreseen: u32,
}

/// Why an order is withdrawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// The reader opens something else.
    Diverged,
    /// It was a record of an earlier epoch, and this one has other samples, or more.
    Surpassed,
    /// The epoch is over, and the next one's order does not follow from it.
    EpochOver,
    /// The reader has ended, or is forgotten for others.
    Gone,
}

/// On what an order rests, or the lack of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rung {
    Told,
    /// An earlier run read so, or it follows from what that read.
    Replayed,
    /// It follows from an earlier epoch, from another loader, or needs no seed.
    Derived,
    /// Its seed is a small or popular one.
    Dictionary,
    /// Its seed is one of all there are.
    Cracked,
    /// Unknown, but no sample was read twice in an epoch so far.
    Unread,
    /// Unknown, and samples repeat.
    Unknown,
}

impl fmt::Display for Rung {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Rung::Told => "as it was told",
            Rung::Replayed => "known from an earlier run",
            Rung::Derived => "derived",
            Rung::Dictionary => "found among popular seeds",
            Rung::Cracked => "found by searching all seeds",
            Rung::Unread => "each sample once an epoch, in an unknown order",
            Rung::Unknown => "samples repeat in an unknown order",
        })
    }
}

/// What the learner believes of a loader, and why.
#[derive(Clone, Debug, PartialEq)]
pub struct Belief {
    pub loader: LoaderId,
    /// The process that it reads for.
    pub group: u64,
    /// Number of its current epoch, from 0.
    pub epoch: u32,
    /// When it opened something last, on the clock of [`Observation::Opened`].
    pub last_ms: u64,
    /// On what the belief rests.
    pub rung: Rung,
    /// How many bits of evidence there are for the order: the logarithm to base 2 of how much
    /// likelier the opens are in it than in none. 0 where none is believed.
    pub bits: f64,
    /// How many are asked for, since so many orders were tried.
    pub needed: f64,
    /// Opens of the epoch that had been seen when its order became known, of the last epoch for
    /// which it did; none if there was no such epoch.
    pub known_after: Option<u32>,
    /// How many epochs have begun in the very order that had been foretold for them.
    pub foreseen: u32,
    /// The order as somebody would tell it, if it can be told.
    pub spec: Option<OrderSpec>,
    /// The same in a sentence.
    pub text: String,
}

/// How the learner goes about it.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Whether all 2^32 seeds may be searched.
    pub crack: bool,
    /// From how many samples on that is worth it.
    pub crack_from: u32,
    /// How many seeds a second the shell goes through, on all of its threads, as far as that is
    /// known before the first search.
    pub seeds_per_second: u64,
    /// How many small seeds are tried at once.
    pub small_seeds: u64,
    /// How far popular seeds of torch's default generator are followed, in outputs.
    pub default_outputs: u64,
    /// Samplers whose epochs are known without any seed, to be tried as they are.
    pub samplers: Vec<Sampler>,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            crack: true,
            crack_from: 2_000,
            seeds_per_second: 40_000_000,
            small_seeds: 1 << 20,
            default_outputs: 1 << 26,
            samplers: Vec::new(),
        }
    }
}
