//! Rehearsal for continual learning: which old samples are kept, and which are shown again.
//!
//! 1. A [`RehearsalBuffer`] is offered samples one by one, as they are read or listed. Its [`Policy`]
//!    (`policies`: `admits`, `victim`) decides whether a sample is kept, and which samples are given up for it.
//! 2. A trainer reports scores of samples ([`RehearsalBuffer::score`]), or features, from which [`scores`]
//!    are made. They count when samples are given up.
//! 3. Samples are shown again in four ways. [`EpochDraws`] are known ahead: a mix of new and old
//!    samples has them. A [`sleep_set`] is chosen at once. A [`Supply`] gives a sample to each reader that asks.
//!    [`Ordinals`] show each sample once it is ready.
//!
//! The buffers of several nodes are drawn from as one ([`join`]).
//!
//! All randomness is a function of the seed and the decision (`counter_rng.rs`). It does not depend on when
//! or how often a decision is asked for. The same seed and the same offers give the same buffer.

mod classes;
mod counter_rng;
mod draws;
mod features;
mod joint;
mod members;
mod ordinals;
mod policies;
mod rehearsal_buffer;
mod sleep;
mod supply;
#[cfg(test)]
mod tests;

pub use classes::{Classes, Labels, Pattern};
pub use draws::{EpochDraws, replay_count};
pub use features::{Feature, FeatureError, scores};
pub use joint::join;
pub use members::{Capacity, ClassId, Member, SampleId};
pub use ordinals::Ordinals;
pub use policies::Policy;
pub use rehearsal_buffer::{Candidate, OfferResult, RehearsalBuffer, Rules, UpdateError};
pub use sleep::{Chooser, SleepSet, sleep_set};
pub use supply::{AHEAD, Reservation, Supply};
