//! The workers. They use the mount and change the source. Each has its own thread and random numbers.

mod editing;
mod loading;
mod mapping;
mod reading;
mod victims;
mod walking;

use std::io;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rand::SeedableRng;
use rand::rngs::ChaCha8Rng;

use crate::belady::check_status;
use crate::plan::{Kind, mix};
use crate::scenario::Scenario;
pub(crate) use mapping::map_for_ever;
pub(crate) use reading::{Way, check_once};
pub(crate) use victims::read_for_ever;

/// How often the status of a mount is requested.
const STATUS_INTERVAL: Duration = Duration::from_millis(1500);

/// Starts all workers of a scenario.
///
/// # Errors
/// If no thread can be started.
pub(crate) fn start(scenario: &Arc<Scenario>) -> io::Result<Vec<JoinHandle<()>>> {
    let readers = scenario.plan.readers.clone();
    let mut workers = Workers { scenario, threads: Vec::new() };
    for nth in 0..readers.random {
        // Half of the readers read only files that no fault holds. Otherwise all would wait for the same files.
        let is_careful = nth % 2 == 0;
        workers.start("reader", move |scenario, random| {
            reading::run(scenario, random, is_careful);
        })?;
    }
    for _ in 0..readers.mappers {
        workers.start("mapper", mapping::run)?;
    }
    for _ in 0..readers.walkers {
        workers.start("walker", walking::run)?;
    }
    for count in readers.loaders {
        let loader = Arc::new(loading::Loader::default());
        for _ in 0..count {
            let loader = Arc::clone(&loader);
            workers.start("loader", move |scenario, random| loader.run(scenario, random))?;
        }
    }
    for _ in 0..readers.victims {
        workers.start("victims", victims::run)?;
    }
    if readers.edit_every_ms > 0 {
        workers.start("editor", editing::run)?;
    }
    if scenario.plan.kind == Kind::Faults {
        workers.start("status", |scenario, _| {
            while scenario.wait_while_paused() {
                check_status(&scenario.workspace, &scenario.watch, &scenario.points[0]);
                scenario.sleep(STATUS_INTERVAL);
            }
        })?;
    }
    Ok(workers.threads)
}

/// The workers that were started.
struct Workers<'s> {
    scenario: &'s Arc<Scenario>,
    threads: Vec<JoinHandle<()>>,
}

impl Workers<'_> {
    fn start(
        &mut self,
        name: &str,
        work: impl FnOnce(&Scenario, &mut ChaCha8Rng) + Send + 'static,
    ) -> io::Result<()> {
        let scenario = Arc::clone(self.scenario);
        let seed = mix(scenario.plan.seed, self.threads.len() as u64);
        let thread = thread::Builder::new().name(name.to_owned()).spawn(move || {
            work(&scenario, &mut ChaCha8Rng::seed_from_u64(seed));
        })?;
        self.threads.push(thread);
        Ok(())
    }
}
