//! Finds out in which order a loader reads that nobody has told.
//!
//! Training jobs shuffle with few generators: `torch` permutes with one of 2^32 seeds. So a handful of opens
//! shows which permutation it is, if it is one of these, and then all opens to come are known. In the order
//! in which it happens:
//!
//! 1. Opens come in as [`Observation`]s. Those for one process are a *group*, and those of a group that go
//!    through one dataset are of one *loader*. What each *reader* opens is kept apart (`attempt`), as each
//!    worker goes forward by itself. Threads that are made for each batch are readers in turn (`tasks`).
//! 2. The opens are compared with *hypotheses*, which cost nothing (`hypothesis`): told orders
//!    (`told_orders`), one sample after the other, the epoch before, what follows from its seed, and what
//!    other loaders and earlier runs read (`journal`).
//! 3. If no hypothesis explains the opens, searches are asked for in *stages* (`stages`, `search`, [`crack`]):
//!    samplers with a told seed, popular seeds of torch and of other libraries (`libraries`), then all seeds
//!    of torch. The shell runs them. Their findings come back as observations, and become *candidates*
//!    (`candidate`). A whole epoch shows the samples of a loader that has a part of the dataset (`parts`).
//! 4. An order is believed if the opens are likelier in it than in no order by more bits than it takes to tell
//!    all orders tried apart, and 20 more (`evidence`).
//! 5. From then on the loader is followed in it (`follow`), which [`Decision::Committed`] says. As soon as two
//!    epochs show how one follows from the other (`origin`, `past`), the next epoch is said, too. An order
//!    that is not read any more is withdrawn. A known order can be told to another job (`sampler`).
//!
//! Everything here is values: no file, clock, thread or lock. [`Learner::apply`] takes a microsecond as a rule,
//! and some 50 milliseconds a million samples where an epoch begins: best on a thread of its own.

mod attempt;
mod candidate;
pub mod crack;
mod event;
mod evidence;
mod explanations;
mod follow;
mod history;
mod hypothesis;
mod indexes;
mod journal;
mod learner;
mod libraries;
mod loader;
mod origin;
mod parts;
mod past;
mod reading;
mod report;
mod sampler;
mod search;
mod share;
mod shared;
mod stages;
mod tasks;
#[cfg(test)]
mod tests;
mod told_orders;

pub use event::{Basis, Belief, Decision, Known, LoaderId, Observation, SearchId, Settings, Why};
pub use history::{Epoch, Record, Samples, samples};
pub use indexes::Numbering;
pub use journal::{BYTES_MAX as JOURNAL_BYTES_MAX, Journal};
pub use learner::Learner;
pub use search::{Finding, Search};
