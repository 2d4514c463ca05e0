//! Tests of the learner against simulated loaders.

mod lists;
mod ranks;
mod runs;
mod scenes;
mod seeded;
mod shell;
mod sim;
mod told;
mod trials;
mod twins;
mod words;
