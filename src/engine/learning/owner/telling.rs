//! What is said of loaders: to the planner again, and in `status`.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use super::{IDLE_MAX, Owner, TOLD_AGAIN_EVERY};
use crate::engine::learning::groups::{program, runs};
use crate::engine::learning::{LoaderStatus, Told};
use crate::engine::lock;
use crate::engine::planning::Published;
use crate::learn::{Belief, Learner, Observation};

impl Owner {
    pub(super) fn beliefs(&self) -> Vec<Belief> {
        self.learner.iter().flat_map(Learner::beliefs).collect()
    }

    /// Does nothing more for loaders of processes that have ended.
    pub(super) fn end_groups(&mut self) {
        let beliefs = self.beliefs();
        let groups = beliefs.iter().map(|belief| belief.group).chain(self.spent.keys().copied());
        let groups: BTreeSet<u64> = groups.collect();
        for group in groups.into_iter().filter(|group| !runs(*group)) {
            self.observe(Observation::Ended { group });
            self.spent.remove(&group);
        }
    }

    /// Lets the planner forget who has long read nothing, and follow again who reads and is not
    /// followed there.
    pub(super) fn tell_again(&mut self, published: &Published) {
        for belief in self.beliefs() {
            let Some(loader) = self.loaders.get_mut(&belief.loader) else { continue };
            let read = self.started + Duration::from_millis(belief.last_ms);
            let progress = loader.stream.and_then(|stream| published.progress(stream));
            let lost = !loader.followed || progress.is_some_and(|progress| !progress.following);
            let idle = read.elapsed() > IDLE_MAX;
            if idle && loader.followed {
                self.withdraw(belief.loader);
            } else if lost
                && !idle
                && read > loader.told
                && loader.told.elapsed() > TOLD_AGAIN_EVERY
            {
                loader.told = Instant::now();
                let known = self.learner.as_ref().and_then(|learner| learner.known(belief.loader));
                known.into_iter().for_each(|known| self.follow(known));
            }
        }
    }

    /// Publishes what is known of each loader. Those that the learner has forgotten are forgotten.
    pub(super) fn tell(&mut self) {
        let beliefs = self.beliefs();
        let learner = self.learner.as_ref();
        self.loaders.retain(|id, _| learner.is_some_and(|learner| learner.has(*id)));
        let status = |belief: Belief| {
            let loader = self.loaders.entry(belief.loader).or_default();
            if loader.program.is_empty() {
                loader.program = program(belief.group);
            }
            LoaderStatus {
                loader: belief.loader.0,
                process: belief.group,
                program: loader.program.clone(),
                epoch: belief.epoch,
                belief: belief.text,
                followed: loader.followed,
                since_s: loader.since.elapsed().as_secs(),
                bits: belief.bits,
                needed: belief.needed,
                known_after: belief.known_after,
                epochs_foreseen: belief.foreseen,
                searching: self.searches.runs_for(belief.loader),
                search_cpu_s: loader.cpu.as_secs_f64(),
                diverged: loader.diverged,
                progress: None,
                stream: loader.stream.filter(|_| loader.followed),
            }
        };
        let loaders = beliefs.into_iter().map(status).collect();
        *lock(&self.told) = Told { loaders, journal: self.kept.words() };
    }
}
