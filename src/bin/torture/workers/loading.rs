//! Loaders: workers that read all files in shuffled epochs.

use std::sync::{Mutex, PoisonError};

use rand::rngs::ChaCha8Rng;
use rand::seq::SliceRandom;

use super::reading::{Way, read};
use crate::scenario::Scenario;

/// The rest of an epoch, shared by the workers of a loader.
#[derive(Debug, Default)]
pub(super) struct Loader(Mutex<Vec<usize>>);

impl Loader {
    /// The next file. A new epoch begins after the last.
    fn next(&self, files: usize, random: &mut ChaCha8Rng) -> usize {
        let mut left = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if left.is_empty() {
            left.extend(0..files);
            left.shuffle(random);
        }
        left.pop().unwrap_or(0)
    }

    /// Reads file after file until the scenario ends.
    pub(super) fn run(&self, scenario: &Scenario, random: &mut ChaCha8Rng) {
        while scenario.wait_while_paused() {
            let file = &scenario.history.files[self.next(scenario.history.files.len(), random)];
            read(scenario, 0, file, Way::Whole { drop_pages: false }, random);
        }
    }
}
