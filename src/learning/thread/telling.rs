//! What is said of loaders: to the planner again, and in `status`.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use super::{IDLE_MAX, Owner, Received, TOLD_AGAIN_EVERY};
use crate::learn::{Belief, Learner, Observation};
use crate::learning::groups::{program, runs};
use crate::learning::{LoaderStatus, Told};
use crate::plan::Published;

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
                && !loader.told_of
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
        let fix = |told: &Received| Some((told.stream, self.fix(told, &beliefs)?));
        let fixes = self.received.iter().filter_map(fix).collect();
        let told: Vec<bool> = beliefs.iter().map(|one| self.reads_told(one.loader)).collect();
        let status = |(belief, reads_told): (Belief, bool)| {
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
                spec: belief.spec.map(|spec| spec.to_string()),
                followed: loader.followed,
                reads_told,
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
        let loaders = beliefs.into_iter().zip(told).map(status).collect();
        *self.told.lock() = Told { loaders, fixes, journal: self.kept.words() };
    }

    /// What to tell of a stream whose reader does not read what was told.
    fn fix(&self, told: &Received, beliefs: &[Belief]) -> Option<String> {
        let learner = self.learner.as_ref().filter(|_| !told.followed)?;
        let reads =
            |belief: &&Belief| learner.latest(belief.loader).is_some_and(|sample| told.has(sample));
        let readers = || beliefs.iter().filter(reads);
        let known = readers().find_map(|belief| belief.spec.as_ref());
        let part = known.or_else(|| readers().find_map(|one| learner.within(one.loader)))?;
        let given = self.spec_of(told.stream);
        if known == given.as_ref() {
            return None;
        }
        let (root, before) =
            (part.filter.directory(), given.as_ref().map(|g| g.filter.directory()));
        let outside = (!root.is_empty() && before.is_some_and(|before| before != root))
            .then(|| format!("nothing outside {root}/ is read: root={root}"));
        let reads = known.map(|spec| format!("what is read is {spec}"));
        let words: Vec<String> = outside.into_iter().chain(reads).collect();
        (!words.is_empty()).then(|| words.join("; "))
    }
}
