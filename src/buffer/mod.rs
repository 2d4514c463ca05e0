//! Rehearsal for continual learning: which old samples are kept, and which are shown again.
//!
//! 1. A [`Buffer`] is offered samples one by one, as they are read or as somebody lists them. Its
//!    [`Policy`] says whether a sample is kept, and which must go for it.
//! 2. A trainer gives scores of samples back ([`Buffer::score`]), or features, of which [`scores`]
//!    are made. They count when the next sample must go.
//! 3. [`Draws`] of an epoch are known ahead, so they are fetched like all samples whose order is
//!    known. [`Mix`] spreads them among new samples. [`sleep_set`] chooses many at once. A
//!    [`Supply`] has one for each reader that asks. [`Ordinals`] show each sample once it is ready.
//!
//! All chance is a function of the seed and of what is decided (`counter_rng.rs`), never of when or how
//! often it is asked: the same seed and the same offers give the same buffer.

mod classes;
mod counter_rng;
mod draws;
mod features;
mod kept;
mod members;
mod mix;
mod ordinals;
mod policies;
mod sleep;
mod supply;
#[cfg(test)]
mod tests;

pub use classes::{Classes, Labels, Pattern};
pub use draws::Draws;
pub use features::{Feature, scores};
pub use kept::{Buffer, Candidate, Offered, Refused, Rules};
pub use members::{Capacity, ClassId, Member, SampleId};
pub use mix::{Mix, Part};
pub use ordinals::Ordinals;
pub use policies::Policy;
pub use sleep::{Chooser, SleepSet, sleep_set};
pub use supply::{AHEAD, Deal, Supply};
