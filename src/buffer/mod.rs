//! Rehearsal for continual learning: which old samples are kept, and which are shown again.
//!
//! 1. A [`Buffer`] is offered samples one by one, as they are read or listed. Its [`Policy`] decides whether
//!    a sample is kept, and which samples are given up for it.
//! 2. A trainer reports scores of samples ([`Buffer::score`]), or features, from which [`scores`] are made.
//!    They count when samples are given up.
//! 3. Samples are shown again in four ways. The [`Draws`] of an epoch are known ahead, so they are prefetched
//!    like any known order, and [`Mix`] spreads them among new samples. A [`sleep_set`] is chosen at once. A
//!    [`Supply`] gives a sample to each reader that asks. [`Ordinals`] show each sample once it is ready.
//!
//! All randomness is a function of the seed and the decision (`counter_rng.rs`). It does not depend on when
//! or how often a decision is asked for. The same seed and the same offers give the same buffer.

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
