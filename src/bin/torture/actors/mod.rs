//! The actors, which use the mount and change the source. Each has its own thread and random numbers.

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

use crate::belady::Belady;
use crate::plan::{Kind, mix};
use crate::stage::Stage;
pub(crate) use mapping::map_for_ever;
pub(crate) use reading::{Way, attempt};
pub(crate) use victims::read_for_ever;

/// How often the status of a mount is requested.
const ASK: Duration = Duration::from_millis(1500);

/// Starts all actors of an episode.
///
/// # Errors
/// If no thread can be started.
pub(crate) fn start(stage: &Arc<Stage>) -> io::Result<Vec<JoinHandle<()>>> {
    let readers = stage.plan.readers.clone();
    let mut cast = Cast { stage, threads: Vec::new() };
    for nth in 0..readers.random {
        // Half of the readers read only files that no fault holds. Otherwise all would wait for the same.
        let is_careful = nth % 2 == 0;
        cast.act("reader", move |stage, random| reading::act(stage, random, is_careful))?;
    }
    for _ in 0..readers.mappers {
        cast.act("mapper", mapping::act)?;
    }
    for _ in 0..readers.walkers {
        cast.act("walker", walking::act)?;
    }
    for workers in readers.loaders {
        let loader = Arc::new(loading::Loader::default());
        for _ in 0..workers {
            let loader = Arc::clone(&loader);
            cast.act("worker", move |stage, random| loader.act(stage, random))?;
        }
    }
    for _ in 0..readers.victims {
        cast.act("victims", victims::act)?;
    }
    if readers.edit_every_ms > 0 {
        cast.act("editor", editing::act)?;
    }
    if stage.plan.kind == Kind::Faults {
        cast.act("asker", |stage, _| {
            while stage.may_go_on() {
                Belady::status(&stage.ground, &stage.watch, &stage.points[0]);
                stage.sleep(ASK);
            }
        })?;
    }
    Ok(cast.threads)
}

/// The actors that were started.
struct Cast<'s> {
    stage: &'s Arc<Stage>,
    threads: Vec<JoinHandle<()>>,
}

impl Cast<'_> {
    fn act(
        &mut self,
        name: &str,
        act: impl FnOnce(&Stage, &mut ChaCha8Rng) + Send + 'static,
    ) -> io::Result<()> {
        let stage = Arc::clone(self.stage);
        let seed = mix(stage.plan.seed, self.threads.len() as u64);
        let thread = thread::Builder::new().name(name.to_owned()).spawn(move || {
            act(&stage, &mut ChaCha8Rng::seed_from_u64(seed));
        })?;
        self.threads.push(thread);
        Ok(())
    }
}
