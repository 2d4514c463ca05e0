//! One loader: takes its opens and what searches find for it, and follows the order that it reads.

use std::sync::Arc;

use super::attempt::Attempt;
use super::candidate::{Candidate, Sought};
use super::event::{Basis, Decision, LoaderId, Why};
use super::evidence::{Evidence, weigh};
use super::explanations::Explanations;
use super::follow::{FollowedOrder, Seen};
use super::history::Record;
use super::hypothesis::Facts;
use super::origin::{EpochOrder, Origin, Outputs};
use super::parts::{Parts, add_sides};
use super::past::Past;
use super::reading::{Open, Reading};
use super::report::known;
use super::search::Finding;
use super::shared::{Purpose, Running, Shared};
use super::stages::Stages;

/// How many opens in a row that an order does not have next raise the question whether it is over.
const STREAK_MIN: u32 = 3;

/// Up to how many unexplained opens of an epoch each one is compared with all hypotheses.
const EACH_MAX: u32 = 64;

/// A recorded epoch this short says nothing about the next.
const RECORDED_MIN: usize = 16;

/// What is known of one loader.
#[derive(Debug)]
pub(super) struct Loader {
    pub(super) reading: Reading,
    /// Whether its process has ended.
    pub(super) ended: bool,
    pub(super) follow: Option<FollowedOrder>,
    /// The evidence for the order that is followed.
    pub(super) evidence: Evidence,
    /// Opens since the last one that the order had next.
    streak: u32,
    pub(super) past: Past,
    explanations: Explanations,
    pub(super) stages: Stages,
    parts: Parts,
    /// Opens until the order of the last epoch was known, and how many epochs had been foreseen.
    pub(super) known_after: Option<u32>,
    pub(super) foreseen: u32,
}

impl Loader {
    pub(super) fn new(id: LoaderId, group: u64) -> Self {
        Loader {
            reading: Reading::new(id, group),
            ended: false,
            follow: None,
            evidence: Evidence { basis: Basis::Unread, bits: 0.0, needed: 0.0 },
            streak: 0,
            past: Past::default(),
            explanations: Explanations::default(),
            stages: Stages::default(),
            parts: Parts::default(),
            known_after: None,
            foreseen: 0,
        }
    }

    /// How many opens are known of its epoch.
    pub(super) fn opens(&self) -> u32 {
        self.reading.attempt.opens() + self.follow.as_ref().map_or(0, FollowedOrder::matched)
    }

    /// The numberings that it reads in, has read in last or may be reading in.
    pub(super) fn indexes(&self) -> impl Iterator<Item = usize> {
        let follow = self.follow.as_ref().and_then(|follow| follow.index);
        let past = self.past.understood.as_ref().and_then(|past| past.order.index);
        follow.into_iter().chain(past).chain(self.explanations.indexes())
    }

    /// What is remembered of the loader; `None` if it only looks around.
    pub(super) fn record(&self, shared: &Shared) -> Option<Record> {
        let Reading { loader, group, epoch, attempt, .. } = &self.reading;
        self.reading.has_reads().then(|| {
            let history = &self.past.history;
            let epochs = history.with_current(*epoch, self.follow.as_ref(), attempt, shared);
            Record { loader: *loader, group: *group, epochs }
        })
    }

    /// Whether it is about to end an epoch, or has begun one that is not explained.
    pub(super) fn is_at_border(&self) -> bool {
        match &self.follow {
            Some(follow) => self.streak > 0 || follow.is_at_end(),
            None => self.reading.attempt.opens() <= EACH_MAX,
        }
    }

    /// Takes an open if the loader is followed in an order that has it next.
    pub(super) fn take_next(&mut self, open: &Open) -> bool {
        let Some(follow) = &mut self.follow else { return false };
        let next = follow.see(open.reader, open.sample) == Seen::Next;
        let attempt = &mut self.reading.attempt;
        if next {
            self.streak = 0;
            self.reading.latest = Some(*open);
        }
        // Opens in between say nothing: other tasks of the process looked at something.
        if next && follow.is_found_again() {
            match follow.index {
                Some(_) => *attempt = Attempt::default(),
                // An order of arrival may lack what was not seen before.
                None => attempt.forget_all(),
            }
        } else if next && !attempt.is_empty() {
            attempt.forget(open.reader);
        }
        if !next && let Some(sample) = follow.take_back(open.reader) {
            self.reading.note(&Open { sample, ..*open });
        }
        next
    }

    /// Says the order anew if it has shown that the loader reads a share of it in blocks.
    pub(super) fn narrow(&mut self, shared: &mut Shared) {
        let Some(follow) = &mut self.follow else { return };
        if !follow.narrow() {
            return;
        }
        self.past.share = Some((follow.sequence.len(), follow.share()));
        shared.news += 1;
        shared.decisions.extend(known(self, shared).map(Decision::Committed));
    }

    /// Takes an open that no order has next.
    pub(super) fn take_unexplained(&mut self, open: &Open, shared: &mut Shared) {
        self.reading.latest = Some(*open);
        if let Some(follow) = &mut self.follow {
            follow.note_lack(open.sample);
        }
        let over = self.reading.note(open);
        if let (Some(over), None) = (over, &self.follow) {
            self.end_unknown_epoch(&over, shared);
        }
        self.streak = self.streak.saturating_add(1);
        if self.is_time() && self.reading.has_reads() {
            self.reconsider(shared);
        }
        self.give_up(shared);
        self.search(shared);
        let is_known = self.follow.is_some() || self.past.understood.is_some();
        if !is_known && self.reading.has_reads() {
            self.parts.consider_side(&self.reading, shared);
        }
    }

    /// An epoch in an unknown order is over.
    fn end_unknown_epoch(&mut self, over: &Attempt, shared: &mut Shared) {
        let is_whole = self.reading.is_whole;
        let is_record = is_whole && over.log().len() >= RECORDED_MIN;
        let before = self.past.recorded.take_if(|_| is_record);
        self.past.history.unknown_ended(self.reading.epoch, over.log());
        shared.news += 1;
        self.begin_epoch();
        if is_whole && self.past.understood.is_none() {
            self.parts.consider_epoch(over, before.as_deref(), &self.reading, shared);
        }
        if is_record {
            self.past.recorded = Some(over.sequence());
        }
    }

    /// Whether to compare the opens with all hypotheses. A few opens that a followed order lacks are no reason.
    fn is_time(&self) -> bool {
        let opens = match self.follow {
            Some(_) if self.streak < STREAK_MIN => return false,
            Some(_) => self.streak,
            None => self.reading.attempt.opens(),
        };
        let seldom = opens <= 1_024 && opens.is_multiple_of(64) || opens.is_multiple_of(1_024);
        opens <= EACH_MAX || seldom
    }

    fn begin_epoch(&mut self) {
        self.reading.epoch += 1;
        self.reading.is_whole = true;
        self.explanations.refuted.clear();
        self.begin_attempt();
    }

    fn begin_attempt(&mut self) {
        self.explanations.begin_attempt();
        self.stages.begin_attempt();
        self.parts.begin_attempt();
    }

    /// Compares the opens with all hypotheses, and with the orders that searches found.
    fn reconsider(&mut self, shared: &mut Shared) {
        let epoch = self.reading.epoch + u32::from(self.follow.is_some());
        let facts = Facts { shared, loader: self.reading.loader, past: &self.past, epoch };
        self.explanations.update(&facts);
        let may_begin = |order: &EpochOrder| self.may_begin(order, shared);
        let found = self.explanations.sufficient(&self.reading.attempt, may_begin, shared);
        for candidate in found {
            if self.commit(&candidate, shared) {
                return;
            }
        }
    }

    /// Whether the loader may have begun an epoch of this order. It has not begun the order that it is followed
    /// in again while most unexplained samples are still to be read. If it is followed in another order, its
    /// process may be looking at samples while the workers wait. So it may have begun only the epoch that follows
    /// by the law, or any one if the epoch before is at its end or half given up.
    fn may_begin(&self, order: &EpochOrder, shared: &Shared) -> bool {
        let Some(follow) = &self.follow else { return true };
        let is_same_index = follow.index == order.index;
        if is_same_index && follow.origin == order.origin {
            let log = self.reading.attempt.log();
            let again = log.iter().filter(|sample| follow.has_read(**sample)).count();
            return 4 * again >= 3 * log.len();
        }
        let is_next = || {
            let n = shared.indexes[follow.index?].sequence.len();
            Some(follow.origin.after(&follow.law, n)?.0 == order.origin)
        };
        is_same_index && is_next() == Some(true) || follow.is_half_lost() || follow.is_at_end()
    }

    /// Follows the loader in this order from here on, if it may be followed yet.
    fn commit(&mut self, candidate: &Candidate, shared: &mut Shared) -> bool {
        let Some(mut follow) = self.try_follow(candidate) else { return false };
        let sequence = &candidate.sequence;
        shared.news += 1;
        let goes_on = self.follow.is_some();
        if let Some(over) = &self.follow {
            let log = self.reading.attempt.log();
            self.past.history.follow_ended(self.reading.epoch, over, log, shared);
            self.reading.epoch += 1;
            self.explanations.refuted.clear();
        }
        let epoch = self.reading.epoch;
        self.known_after = Some(self.reading.attempt.opens());
        self.foreseen += u32::from(self.past.has_foreseen(&candidate.order, epoch, shared));
        let order = self.past.with_law(&candidate.order, epoch, shared);
        follow.law = order.law.clone();
        self.past.follow(order.clone(), (sequence, follow.share()), epoch, shared);
        self.follow = Some(follow);
        self.evidence = candidate.evidence;
        self.reading.is_proven = true;
        self.reading.attempt = Attempt::default();
        self.begin_attempt();
        self.stages.finish(shared);
        shared.note_order(self.reading.loader, order, Arc::clone(sequence));
        let say = if goes_on { Decision::EpochBegan } else { Decision::Committed };
        shared.decisions.extend(known(self, shared).map(say));
        self.ask_default(shared);
        true
    }

    /// Follows a candidate through the attempt. `None` if the loader's share is not known yet, or if the readers
    /// do not read what comes next.
    fn try_follow(&self, candidate: &Candidate) -> Option<FollowedOrder> {
        let Candidate { order: EpochOrder { index, origin, law }, sequence, .. } = candidate;
        let attempt = &self.reading.attempt;
        let unread = sequence.len().saturating_sub(attempt.log().len() as u32);
        let weight = weigh(attempt.samples(), unread, |sample| sequence.place(sample));
        let order = (*index, origin.clone(), law.clone());
        let mut follow = FollowedOrder::new(Arc::clone(sequence), order, attempt, &weight);
        match self.past.share.filter(|share| share.0 == sequence.len()) {
            Some((_, share)) => follow.inherit(share),
            None if !follow.knows_share() => return None,
            None => {}
        }
        if origin.is_as_seen() && !follow.is_together(attempt) {
            return None;
        }
        let goes_on =
            || self.past.understood.as_ref().is_some_and(|past| past.order.origin == *origin);
        let is_read =
            *origin != Origin::Sequential || goes_on() || follow.is_dense(attempt, &weight);
        is_read.then_some(follow)
    }

    /// Stops following an order that is not read any more.
    fn give_up(&mut self, shared: &mut Shared) {
        let Some(follow) = self.follow.take_if(|follow| follow.is_lost()) else { return };
        let why = match () {
            () if follow.is_surpassed() => Why::Surpassed,
            () if follow.is_over() => Why::EpochOver,
            () => Why::Diverged,
        };
        shared.decisions.push(Decision::Withdrawn { loader: self.reading.loader, why });
        if why == Why::EpochOver {
            let log = self.reading.attempt.log();
            self.past.history.follow_ended(self.reading.epoch, &follow, log, shared);
            self.begin_epoch();
            return;
        }
        self.past.lose(&follow);
        // An order that is not drawn may be read part by part: a directory's files, say.
        if follow.origin.is_drawn() || why == Why::Surpassed {
            self.explanations.refute(follow.index, follow.origin);
        }
        self.begin_attempt();
        self.reading.is_whole = false;
    }

    pub(super) fn leave(&mut self, reader: u32) {
        self.reading.attempt.leave(reader);
        if let Some(follow) = &mut self.follow {
            follow.leave(reader);
        }
    }

    /// Asks for the next search, if one is due.
    pub(super) fn search(&mut self, shared: &mut Shared) {
        self.stages.end_old(self.past.understood.is_some(), shared);
        if self.follow.is_none() && self.reading.has_reads() && self.reading.attempt.is_ripe() {
            self.stages.search(&self.reading, &self.past, shared);
        }
    }

    fn ask_default(&mut self, shared: &mut Shared) {
        self.stages.ask_default(&self.reading, &self.past, shared);
    }

    /// There is something new about a numbering. If the loader may read in it, searches begin again.
    pub(super) fn search_in(&mut self, index: usize, shared: &mut Shared) {
        let Some(new) = shared.indexes.get(index) else { return };
        if self.follow.is_none() && !self.ended && new.has_most(self.reading.attempt.log()) {
            self.search_again(shared);
        }
    }

    fn search_again(&mut self, shared: &mut Shared) {
        self.stages.start_over(shared);
        self.search(shared);
    }

    /// Takes what a search found at once. Says whether that ends the search.
    pub(super) fn take_findings(
        &mut self,
        running: &Running,
        findings: &[Finding],
        shared: &mut Shared,
    ) -> bool {
        match &running.purpose {
            Purpose::Default { epoch } => {
                findings.iter().for_each(|finding| self.take_outputs(finding, *epoch));
                false
            }
            Purpose::Split { wholes } => {
                for finding in findings {
                    if add_sides(finding, wholes, shared) {
                        self.search_again(shared);
                    }
                }
                false
            }
            Purpose::Epoch(sought) => {
                let now = (&self.reading.attempt, &self.explanations);
                let now = self.is_now(sought).then_some(now);
                let found = sought.candidates(findings, now, shared);
                found.into_iter().any(|one| self.take_candidate(sought, one, shared))
            }
        }
    }

    /// A default generator gives the seed of an epoch.
    fn take_outputs(&mut self, finding: &Finding, epoch: u32) {
        if let Finding::Output { seed, at, after } = finding {
            let outputs = Outputs { seed: *seed, from: at + 1, values: Arc::clone(after) };
            self.past.defaults.push((outputs, epoch));
            self.explanations.hypotheses = None;
        }
    }

    /// Whether the loader still reads what is searched for.
    fn is_now(&self, sought: &Sought) -> bool {
        sought.attempt == self.stages.attempt && self.follow.is_none()
    }

    /// Follows a candidate with enough evidence, else keeps it. Says whether that ends the search.
    fn take_candidate(
        &mut self,
        sought: &Sought,
        candidate: Candidate,
        shared: &mut Shared,
    ) -> bool {
        let is_enough = candidate.evidence.is_enough();
        if self.is_now(sought) {
            let begun = is_enough && self.commit(&candidate, shared);
            if !begun {
                self.explanations.keep(candidate);
            }
            return begun;
        }
        if is_enough && self.follow.is_none() {
            // The epoch is over, but the next ones may follow from it.
            let order = self.past.with_law(&candidate.order, sought.epoch, shared);
            self.past.understand(order, sought.epoch, shared);
            self.past.scope = Some(candidate.sequence);
            self.explanations.hypotheses = None;
            self.reconsider(shared);
            if self.follow.is_none() {
                self.ask_default(shared);
            }
        }
        is_enough
    }
}

#[cfg(test)]
mod tests {
    use super::super::event::LoaderId;
    use super::super::origin::Law;
    use super::*;
    use crate::learn::{Numbering, Settings};
    use crate::order::SampleTable;
    use crate::track::Sequence;

    #[test]
    fn each_candidate_has_its_own_need() {
        let n = 100_000;
        let all = Numbering { name: "path".into(), samples: (0..n).collect(), spec: None };
        let mut shared = Shared::new(Settings::default(), vec![all], SampleTable::Files);
        let mut loader = Loader::new(LoaderId(0), 1);
        let samples: Vec<u32> = (0..n).map(|place| (place * 31_337 + 11) % n).collect();
        let sequence = Arc::new(Sequence::new(samples.clone()));
        let candidate = |bits, needed| {
            let origin = Origin::Draw { seed: 7, skip: 0 };
            let order = EpochOrder { index: Some(0), origin, law: Law::Unknown };
            let evidence = Evidence { basis: Basis::Cracked, bits, needed };
            Candidate { order, sequence: Arc::clone(&sequence), evidence }
        };
        for sample in &samples[..4] {
            let open = Open { at_ms: 0, reader: 1, sample: *sample, exact: true };
            loader.take_unexplained(&open, &mut shared);
        }
        shared.decisions.clear();
        loader.explanations.keep(candidate(40.0, 90.0));
        loader.explanations.keep(candidate(1.0, 999.0));
        loader.reconsider(&mut shared);
        assert!(shared.decisions.is_empty(), "{:?}", shared.decisions);
        loader.explanations.keep(candidate(1.0, 37.0));
        loader.reconsider(&mut shared);
        assert!(
            matches!(shared.decisions[..], [Decision::Committed(_), ..]),
            "{:?}",
            shared.decisions
        );
    }
}
