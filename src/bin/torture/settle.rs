//! After all faults, checks that every file can be read and is as in the source.

use std::thread;
use std::time::Duration;

use rand::SeedableRng;
use rand::rngs::ChaCha8Rng;

use crate::actors::{Way, attempt};
use crate::clock::{Nanos, now};
use crate::stage::Stage;
use crate::tally::Wrong;

/// How many files are read at once.
const READERS: usize = 4;

/// The pause before a file is tried again.
const PAUSE: Duration = Duration::from_millis(50);

/// Reads every file until it is right, or must have been right by now.
pub(crate) fn settle(stage: &Stage) {
    let patience = stage.shadow.promise.delay() + stage.watch.limit();
    let until = now() + patience;
    thread::scope(|scope| {
        for first in 0..READERS {
            scope.spawn(move || {
                let random = &mut ChaCha8Rng::seed_from_u64(first as u64);
                let files = stage.shadow.files.len();
                for number in (first..files).step_by(READERS) {
                    if !stage.watch.has_hung() {
                        settle_file(stage, number, until, random);
                    }
                }
            });
        }
    });
}

fn settle_file(stage: &Stage, number: usize, until: Nanos, random: &mut ChaCha8Rng) {
    let file = &stage.shadow.files[number];
    loop {
        let way = Way::Whole { forget: false };
        let Err(said) = attempt(stage, number, file, way, random) else { return };
        if now() > until {
            let all = file.permitted(&stage.shadow.promise, 0, now()).describe();
            let what = format!(
                "{} is not right after all faults are over: {said}; it may be {all}",
                file.name
            );
            return stage.watch.wrong(Wrong::Error, &what);
        }
        if stage.watch.has_hung() {
            return;
        }
        thread::sleep(PAUSE);
    }
}
