//! Tests of the learner against simulated loaders.

mod scenes;
mod shell;
mod sim;
mod trials;
