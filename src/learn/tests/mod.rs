//! Tests of the learner against simulated loaders.

mod runs;
mod scenes;
mod shell;
mod sim;
mod trials;
