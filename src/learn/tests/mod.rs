//! Tests of the learner against simulated loaders.

mod lists;
mod parts;
mod ranks;
mod runs;
mod scenes;
mod seeded;
mod shards;
mod shell;
mod sim;
mod threads;
mod told;
mod trials;
mod twins;
mod words;
