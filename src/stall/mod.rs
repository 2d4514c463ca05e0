//! Why a training job is slow: what its loader and its trainer were seen to do, and what follows from that.
//!
//! A *trainer* is the process of a job that takes batches. Its *workers* are processes that make batches for it.
//!
//! 1. Each worker and each trainer is looked at many times a second. A look finds the task in a [`State`]: it runs, it
//!    waits for a file, it waits for work, or it sleeps elsewhere.
//! 2. A [`Watched`] sums the looks at one worker, with the processor time that the kernel has counted for it.
//! 3. An [`Epoch`] is what all workers of a trainer did. It goes from the start of the first worker to the end of the last, or
//!    to the next epoch of the order that they read.
//! 4. [`Loader`] is the loader in virtual time. Its workers make batches in their order, a limited number ahead of the
//!    trainer. It is filled with what was measured. It has to take as long as the epoch took.
//! 5. [`Finding`] asks the model what the epoch would take without files, without preparation, and without steps. The part
//!    that would save most is the bottleneck.
//!
//! DS-Analyzer (Mohan et al., "Analyzing and Mitigating Data Stalls in DNN Training", VLDB 2021) finds the same three parts
//! by three runs of a changed script. Here one run is looked at from outside.

mod epoch;
mod finding;
mod lane;
mod loader;
mod series;
mod state;
mod watched;

pub use epoch::{Epoch, Kind, LANES_MAX, Looks, Meters, Place, TrainerLooks, TrainerState};
pub use finding::{Bottleneck, Finding, Gains, Model, Parts};
pub use lane::{Lane, ToldLane};
pub use loader::{AHEAD, Loader, Run};
pub use series::{Point, Series};
pub use state::State;
pub use watched::{Counters, Watched};

#[cfg(test)]
mod tests;
