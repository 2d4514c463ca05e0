//! Checks after all faults that every file can be read and is as in the source.

use std::thread;
use std::time::Duration;

use rand::SeedableRng;
use rand::rngs::ChaCha8Rng;

use crate::clock::{Nanos, now};
use crate::scenario::Scenario;
use crate::stats::Failure;
use crate::workers::{Way, check_once};

/// How many files are read at once.
const READERS: usize = 4;

/// The pause before a file is tried again.
const PAUSE: Duration = Duration::from_millis(50);

/// Reads every file until it is right, or must have been right by now.
pub(crate) fn check_all_files(scenario: &Scenario) {
    let until = now() + scenario.history.staleness.longest_delay() + scenario.watch.limit();
    thread::scope(|scope| {
        for first in 0..READERS {
            scope.spawn(move || {
                let random = &mut ChaCha8Rng::seed_from_u64(first as u64);
                let files = scenario.history.files.len();
                for number in (first..files).step_by(READERS) {
                    if !scenario.watch.has_hung() {
                        check_file(scenario, number, until, random);
                    }
                }
            });
        }
    });
}

fn check_file(scenario: &Scenario, number: usize, until: Nanos, random: &mut ChaCha8Rng) {
    let file = &scenario.history.files[number];
    loop {
        let way = Way::Whole { drop_pages: false };
        let Err(found) = check_once(scenario, number, file, way, random) else { return };
        if now() > until {
            let all = file.permitted(&scenario.history.staleness, 0, now()).describe();
            let what = format!(
                "{} is not right after all faults are over: {found}; it may be {all}",
                file.name
            );
            return scenario.watch.report(Failure::Error, &what);
        }
        if scenario.watch.has_hung() {
            return;
        }
        thread::sleep(PAUSE);
    }
}
