//! The learner's input ([`Observation`]) and output ([`Decision`], [`Belief`]).

use std::fmt;
use std::sync::Arc;

use super::search::{Finding, Search};
use crate::order::samplers::Sampler;
use crate::order::{Order, OrderSpec};

/// A loader: all tasks that read one dataset in one order for one process. Dense from 0, never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LoaderId(pub u32);

/// A search that is wanted or under way. Dense from 0, never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SearchId(pub u32);

/// Something that was seen, or that a search found.
#[derive(Clone, Debug)]
pub enum Observation {
    /// A task opened a sample.
    Opened {
        /// When, in milliseconds from any fixed moment.
        at_ms: u64,
        /// The thread: the id that the kernel gives with a request.
        task: u32,
        process: u64,
        /// The process that the task reads for. A worker reads for its parent, if that runs the same
        /// program (the same command line, or Python's `multiprocessing`). Other tasks read for their
        /// own process.
        group: u64,
        /// The sample: a file's number, or the row in the samples of a dataset of ranges.
        sample: u32,
        /// Whether its bytes were asked for. Else the task may only have looked at its name or
        /// attributes, and a second observation may still show that it read.
        exact: bool,
    },
    /// A task has ended. If its process goes on, another task may take its place within the epoch.
    Left { task: u32 },
    /// A process whose tasks have read, a loader's worker say, has ended with all its tasks.
    Exited { process: u64 },
    /// A process has ended with all loaders that read for it. Their epochs are remembered.
    Ended { group: u64 },
    /// Some units of a search gave these findings.
    Found { search: SearchId, findings: Vec<Finding> },
    /// All units of a search have been gone through, after the last [`Observation::Found`].
    Searched { search: SearchId },
    /// Nothing more is searched for the loaders of this process: they have used up their time.
    Spent { group: u64 },
    /// How fast all threads together search seeds on this machine.
    Speed { seeds_per_second: u64 },
    /// Whether everything is cached, so that nothing needs to be searched for.
    Cached { all: bool },
}

/// Something to do, or something that has become known.
#[derive(Clone, Debug)]
pub enum Decision {
    /// All units of this are to be searched, in slices, with what the machine has to spare.
    SearchWanted {
        id: SearchId,
        loader: LoaderId,
        group: u64,
        search: Arc<Search>,
    },
    /// The findings of the search are not needed any more.
    SearchOver {
        id: SearchId,
    },
    /// A loader reads in this order. It replaces an order for the same epoch that was known less well.
    Committed(Known),
    /// A loader that is followed has begun its next epoch, in an order that follows from the last.
    EpochBegan(Known),
    Withdrawn {
        loader: LoaderId,
        why: Why,
    },
}

/// The order of a loader.
#[derive(Clone, Debug)]
pub struct Known {
    pub loader: LoaderId,
    pub group: u64,
    /// Number of its current epoch, from 0 for the first that was seen.
    pub epoch: u32,
    /// Its epoch 0 is the rest of the current epoch, from the place of the reader on. Whole epochs follow,
    /// and then the order [ends](Order::ends).
    pub order: Order,
    /// How many epochs follow: 0 or 1. The next comes with [`Decision::EpochBegan`].
    pub foreseen: u32,
}

/// Why an order is withdrawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// The reader opens something else.
    Diverged,
    /// It was a record of an earlier epoch, and this epoch has other samples, or more.
    Surpassed,
    /// The epoch is over, and the next one's order does not follow from it.
    EpochOver,
    /// The reader has ended, or other loaders have taken its place in memory.
    Gone,
}

/// How an order became known, or what little is known instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Basis {
    Told,
    /// An earlier run read it, or it follows from what that run read.
    Replayed,
    /// It follows from an earlier epoch or from another loader, or it needs no seed.
    Derived,
    /// Its seed is a small or popular one.
    Dictionary,
    /// A search of all seeds found its seed.
    Cracked,
    /// The order is unknown, and no sample was read twice in an epoch so far.
    Unread,
    /// The order is unknown, and samples repeat.
    Unknown,
}

impl fmt::Display for Basis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Basis::Told => "as it was told",
            Basis::Replayed => "known from an earlier run",
            Basis::Derived => "derived",
            Basis::Dictionary => "found among popular seeds",
            Basis::Cracked => "found by searching all seeds",
            Basis::Unread => "each sample once an epoch, in an unknown order",
            Basis::Unknown => "samples repeat in an unknown order",
        })
    }
}

/// What the learner believes of a loader, and why.
#[derive(Clone, Debug, PartialEq)]
pub struct Belief {
    pub loader: LoaderId,
    pub group: u64,
    /// Number of its current epoch, from 0.
    pub epoch: u32,
    /// When it opened something last, on the clock of [`Observation::Opened`].
    pub last_ms: u64,
    pub basis: Basis,
    /// The logarithm to base 2 of how much likelier the opens are in the order than in none.
    pub bits: f64,
    /// Bits that are asked for, since many orders were tried.
    pub needed: f64,
    /// How many opens had been seen when the order of an epoch became known, the last that did.
    pub known_after: Option<u32>,
    /// How many epochs have begun in the very order that had been foreseen for them.
    pub foreseen: u32,
    /// The order as an order spec, if it can be told.
    pub spec: Option<OrderSpec>,
    /// The epoch of that spec that is read, from 0, and how many samples of it the loader reads.
    pub spec_epoch: u32,
    pub length: u32,
    /// The same in a sentence.
    pub text: String,
}

/// How the learner goes about it.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Whether all 2^32 seeds may be searched.
    pub crack: bool,
    /// The fewest samples for which that is worth it.
    pub crack_from: u32,
    /// How many seeds a second all threads go through, as far as known before the first search.
    pub seeds_per_second: u64,
    /// How many small seeds are tried at once.
    pub small_seeds: u64,
    /// How far popular seeds of torch's default generator are followed, in outputs.
    pub default_outputs: u64,
    /// Samplers whose epochs need no seed, to be tried as they are.
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
