//! What is known of one loader, and what is done to know more.

use std::collections::VecDeque;
use std::sync::Arc;

use super::attempt::Attempt;
use super::event::{Decision, LoaderId, Rung, Why};
use super::evidence::weigh;
use super::follow::{Follow, Seen};
use super::history::History;
use super::indexes::Index;
use super::ladder::Seeking;
use super::leads::Lead;
use super::origin::{Law, Origin, Outputs};
use super::parts::PartsAsked;
use super::past::Past;
use super::sequence::Sequence;
use super::share::Share;
use super::shared::{Open, Shared};
use super::suspect::{Other, Sources, Suspect, best};

/// Bits of evidence for an order beyond those that say which of all orders tried it is: one loader
/// in a million is followed in an order that it does not read.
pub(super) const SURE: f64 = 20.0;

/// How many opens have to have asked for bytes before a loader is first followed: who only looks
/// around reads nothing.
const EXACT_MIN: u32 = 4;

/// How many opens in a row that an order does not have next raise the question whether it is over.
const STREAK_MIN: u32 = 3;

/// As long as an epoch has no more unexplained opens, each is compared with all suspects.
const EACH_MAX: u32 = 64;

/// A recorded epoch this short says nothing about the next.
const RECORDED_MIN: usize = 16;

/// How many orders that turned out to be wrong are remembered for their epoch.
const DIVERGED_MAX: usize = 16;

/// What is known of one loader.
#[derive(Debug)]
pub(super) struct Loader {
    pub(super) id: LoaderId,
    pub(super) group: u64,
    /// Whether its process has ended.
    pub(super) ended: bool,
    /// What has been opened and is not explained.
    pub(super) attempt: Attempt,
    pub(super) follow: Option<Follow>,
    /// The last epoch that was understood.
    pub(super) past: Option<Past>,
    /// The samples of the loader, once it has been understood.
    pub(super) scope: Option<Arc<Sequence>>,
    recorded: Option<Arc<Sequence>>,
    pub(super) history: History,
    /// Whether the attempt began with its epoch.
    whole: bool,
    /// The share of an order of so many samples, once it is known.
    share: Option<(u32, Share)>,
    /// Outputs of the default generator after a seed of the epoch with the number.
    pub(super) defaults: Vec<(Outputs, u32)>,
    /// What is compared with the attempt, and of which state of the knowledge about others it is.
    pub(super) suspects: Option<(Vec<Suspect>, u32)>,
    /// The orders of this epoch that were followed and turned out to be wrong, or to be a part of it,
    /// the latest: none that may be read part by part.
    diverged: VecDeque<(Option<usize>, Origin)>,
    /// What searches have found for the attempt, what spoke for most first.
    pub(super) leads: Vec<Lead>,
    pub(super) epoch: u32,
    /// When it opened something last, and what.
    pub(super) last_ms: u64,
    pub(super) latest: Option<u32>,
    /// Opens since the last that was where the order has it.
    streak: u32,
    pub(super) seeking: Seeking,
    pub(super) parts_asked: PartsAsked,
    /// Whether its opens are known to be reads.
    proven: bool,
    /// On what the order that is followed rests: the bits for it, and those needed.
    pub(super) grounds: (Rung, f64, f64),
    /// Opens until the order of the last epoch was known, and how many had been foretold.
    pub(super) known_after: Option<u32>,
    pub(super) foreseen: u32,
}

impl Loader {
    pub(super) fn new(id: LoaderId, group: u64) -> Self {
        Loader {
            id,
            group,
            ended: false,
            attempt: Attempt::default(),
            follow: None,
            past: None,
            scope: None,
            recorded: None,
            history: History::default(),
            whole: true,
            share: None,
            defaults: Vec::new(),
            suspects: None,
            diverged: VecDeque::new(),
            leads: Vec::new(),
            epoch: 0,
            last_ms: 0,
            latest: None,
            streak: 0,
            seeking: Seeking::default(),
            parts_asked: PartsAsked::default(),
            proven: false,
            grounds: (Rung::Unread, 0.0, 0.0),
            known_after: None,
            foreseen: 0,
        }
    }

    /// Number of the current epoch.
    pub(super) fn epoch(&self) -> u32 {
        self.epoch
    }

    /// How many opens are known of its epoch.
    pub(super) fn opens(&self) -> u32 {
        self.attempt.opens() + self.follow.as_ref().map_or(0, Follow::matched)
    }

    /// The numberings of the orders that it reads, has read last or may be reading.
    pub(super) fn indexes(&self) -> impl Iterator<Item = usize> {
        let follow = self.follow.as_ref().and_then(|follow| follow.index);
        let past = self.past.as_ref().and_then(|past| past.index);
        follow.into_iter().chain(past).chain(self.leads.iter().filter_map(Lead::index))
    }

    /// Whether it may be worth a search: somebody reads, not just looks around.
    pub(super) fn reads(&self) -> bool {
        self.proven || self.attempt.exact() >= EXACT_MIN
    }

    /// Takes an open if the loader is followed and has it next.
    pub(super) fn follows(&mut self, open: &Open) -> bool {
        let Some(follow) = &mut self.follow else { return false };
        let next = follow.see(open.reader, open.sample) == Seen::Next;
        if next {
            self.streak = 0;
            (self.last_ms, self.latest) = (open.at_ms, Some(open.sample));
        }
        if next && follow.is_found_again() {
            // What others of the process looked at was nothing to go by.
            // Of an order of arrival it may be what was not seen before.
            match follow.index {
                Some(_) => self.attempt = Attempt::default(),
                None => self.attempt.forget_all(),
            }
        } else if next && !self.attempt.is_empty() {
            // What it opened in between was nothing to go by.
            self.attempt.forget(open.reader);
        }
        if !next && let Some(sample) = follow.take_back(open.reader) {
            self.attempt.note(open.at_ms, open.reader, sample, open.exact);
        }
        next
    }

    /// Says the order anew where it has shown that the loader reads a share of it in blocks.
    pub(super) fn narrow(&mut self, shared: &mut Shared, out: &mut Vec<Decision>) {
        let Some(follow) = &mut self.follow else { return };
        if !follow.narrow() {
            return;
        }
        self.share = Some((follow.sequence.len(), follow.share()));
        shared.news += 1;
        out.extend(self.known(shared).map(Decision::Committed));
    }

    /// Whether a sample may be one of the loader's.
    pub(super) fn has(&self, sample: u32) -> bool {
        self.scope.as_ref().is_none_or(|scope| scope.place(sample).is_some())
    }

    /// Takes an open that no order explains.
    pub(super) fn wonder(&mut self, open: &Open, shared: &mut Shared, out: &mut Vec<Decision>) {
        (self.last_ms, self.latest) = (open.at_ms, Some(open.sample));
        if let Some(follow) = &mut self.follow {
            follow.note_lack(open.sample);
        }
        let over = self.attempt.note(open.at_ms, open.reader, open.sample, open.exact);
        if let (Some(over), None) = (over, &self.follow) {
            let whole = self.whole;
            let before = self.recorded.take_if(|_| whole && over.log().len() >= RECORDED_MIN);
            self.history.seen(self.epoch, over.log());
            shared.news += 1;
            self.begin_epoch();
            if whole {
                self.consider_parts(&over, before.as_deref(), shared, out);
            }
            if whole && over.log().len() >= RECORDED_MIN {
                self.recorded = Some(over.sequence());
            }
        }
        self.streak = self.streak.saturating_add(1);
        if self.is_time() && self.reads() {
            self.reconsider(shared, out);
        }
        self.give_up(shared, out);
        self.seek(shared, out);
        self.consider_side(shared, out);
    }

    /// Whether to compare what was opened with all suspects: at first at each open. While an order
    /// is followed, some single opens that are not of it are no reason.
    fn is_time(&self) -> bool {
        let opens = if self.follow.is_some() { self.streak } else { self.attempt.opens() };
        if self.follow.is_some() && opens < STREAK_MIN {
            return false;
        }
        let seldom = opens <= 1_024 && opens.is_multiple_of(64) || opens.is_multiple_of(1_024);
        opens <= EACH_MAX || seldom
    }

    /// Whether it is about to end an epoch, or has begun one that is not explained.
    pub(super) fn is_at_border(&self) -> bool {
        match &self.follow {
            Some(follow) => self.streak > 0 || follow.is_at_end(),
            None => self.attempt.opens() <= EACH_MAX,
        }
    }

    fn begin_epoch(&mut self) {
        self.epoch += 1;
        self.whole = true;
        self.diverged.clear();
        self.begin_attempt();
    }

    fn begin_attempt(&mut self) {
        self.suspects = None;
        self.leads.clear();
        self.seeking.begin_attempt();
        self.parts_asked.begin_attempt();
    }

    /// Compares what was opened with what searches found, and with all orders that cost nothing.
    pub(super) fn reconsider(&mut self, shared: &mut Shared, out: &mut Vec<Decision>) {
        let version = shared.version;
        let suspects = match self.suspects.take() {
            Some((suspects, made)) if made == version => suspects,
            _ => self.sources(shared).suspects(),
        };
        let read = self.attempt.log().len() as u32;
        let readers = || self.attempt.samples();
        let needed = SURE + (suspects.len().max(1) as f64).log2();
        let may_be = suspects.iter().filter(|suspect| !self.has_diverged(suspect));
        let derived = best(may_be, &shared.indexes, read, readers)
            .map(|(suspect, weight)| (suspect, weight, (suspect.rung, needed)));
        let derived = derived.filter(|(_, weight, (_, needed))| weight.bits >= *needed);
        let lead = self.best_lead(&shared.indexes);
        let found = derived.into_iter().chain(lead);
        let found = found.filter(|(found, ..)| self.may_begin(found.index, &found.origin, shared));
        let found: Vec<_> = found
            .filter_map(|(found, weight, (rung, needed))| {
                let told = (found.index, found.origin.clone(), found.law.clone());
                Some((found.sequence(shared)?, told, (rung, weight.bits, needed)))
            })
            .collect();
        for (sequence, told, grounds) in found {
            if self.commit(sequence, told, grounds, shared, out) {
                return;
            }
        }
        self.suspects = Some((suspects, version));
    }

    /// Whether the loader may have begun an epoch of this origin. If it is followed in just that,
    /// not while most of what is unexplained is still to be read. If it is followed in another, its
    /// process may be looking at some samples itself while the workers wait: then only with the
    /// epoch that follows by the law, or where the one before is at its end or half given up.
    fn may_begin(&self, index: Option<usize>, origin: &Origin, shared: &Shared) -> bool {
        let Some(follow) = &self.follow else { return true };
        if follow.index == index && follow.origin == *origin {
            let log = self.attempt.log();
            let again = log.iter().filter(|sample| follow.has_read(**sample)).count();
            return 4 * again >= 3 * log.len();
        }
        let next = || {
            let n = shared.indexes[index?].sequence.len();
            Some(follow.origin.after(&follow.law, n)?.0)
        };
        follow.index == index && next().as_ref() == Some(origin)
            || follow.is_half_lost()
            || follow.is_at_end()
    }

    /// Whether the order turned out to be wrong in this epoch.
    pub(super) fn has_diverged(&self, suspect: &Suspect) -> bool {
        let is_it = |(index, origin): &(_, _)| (*index, origin) == (suspect.index, &suspect.origin);
        self.diverged.iter().any(is_it)
    }

    fn sources<'s>(&'s self, shared: &'s Shared) -> Sources<'s> {
        Sources {
            indexes: &shared.indexes,
            generators: &shared.generators,
            samplers: &shared.settings.samplers,
            others: &shared.others,
            loader: self.id,
            past: self.past.as_ref(),
            epoch: self.epoch + u32::from(self.follow.is_some()),
            recorded: self.recorded.as_ref(),
            defaults: &self.defaults,
            journal: &shared.journal,
            told: &shared.told,
        }
    }

    /// From here on the loader is followed in this order; not yet, if its share is not known.
    pub(super) fn commit(
        &mut self,
        sequence: Arc<Sequence>,
        (index, origin, law): (Option<usize>, Origin, Law),
        grounds: (Rung, f64, f64),
        shared: &mut Shared,
        out: &mut Vec<Decision>,
    ) -> bool {
        let unread = sequence.len().saturating_sub(self.attempt.log().len() as u32);
        let weight = weigh(self.attempt.samples(), unread, |sample| sequence.place(sample));
        let told = (index, origin.clone(), law.clone());
        let mut follow = Follow::new(Arc::clone(&sequence), told, &self.attempt, &weight);
        match self.share.filter(|share| share.0 == sequence.len()) {
            Some((_, share)) => follow.inherit(share),
            None if !follow.knows_share() => return false,
            None => {}
        }
        if origin.is_as_seen() && !follow.is_together(&self.attempt) {
            return false;
        }
        let goes_on = self.past.as_ref().is_some_and(|past| past.origin == origin);
        if origin == Origin::Sequential && !goes_on && !follow.is_dense(&self.attempt, &weight) {
            return false;
        }
        let goes_on = self.follow.is_some();
        shared.news += 1;
        if let Some(over) = &self.follow {
            self.history.follow_ended(self.epoch, over, self.attempt.log(), shared);
        }
        if goes_on {
            self.epoch += 1;
            self.diverged.clear();
        }
        self.known_after = Some(self.attempt.opens());
        self.foreseen += u32::from(self.was_foretold(index, &origin, shared));
        let law = match law {
            Law::Unknown => self.infer(index, &origin, self.epoch, shared),
            law => law,
        };
        follow.law = law.clone();
        if law != Law::Unknown {
            self.defaults.clear();
        }
        self.share = Some((sequence.len(), follow.share()));
        self.follow = Some(follow);
        self.grounds = grounds;
        self.understand((index, origin.clone(), law.clone()), self.epoch, shared);
        self.scope = Some(self.scope_of(index, &sequence, shared));
        self.recorded = index.is_none().then(|| Arc::clone(&sequence));
        self.proven = true;
        self.seeking.failed = 0;
        self.attempt = Attempt::default();
        self.begin_attempt();
        if let Some(id) = self.seeking.running.take() {
            shared.searches.remove(&id);
            out.push(Decision::SearchOver { id });
        }
        let first = shared.others.iter().find(|other| other.loader == self.id);
        let first = first.map_or((index, origin.clone()), |other| other.first.clone());
        shared.note(Other { loader: self.id, first, now: (index, origin, law), sequence });
        let say = if goes_on { Decision::EpochBegan } else { Decision::Committed };
        out.extend(self.known(shared).map(say));
        self.ask_default(shared, out);
        true
    }

    /// Whether the epoch before said that this one's origin would be this.
    fn was_foretold(&self, index: Option<usize>, origin: &Origin, shared: &Shared) -> bool {
        let Some(past) = &self.past else { return false };
        let n = index.map_or(0, |index| shared.indexes[index].sequence.len());
        past.index == index
            && past.epoch + 1 == self.epoch
            && past.origin.after(&past.law, n).is_some_and(|(next, _)| next == *origin)
    }

    /// The samples of a loader with this order: of a record, which may lack some, those of the
    /// smallest index that has it all.
    fn scope_of(
        &self,
        index: Option<usize>,
        sequence: &Arc<Sequence>,
        shared: &Shared,
    ) -> Arc<Sequence> {
        let has_all = |index: &&Index| {
            sequence.samples().iter().all(|&sample| index.sequence.place(sample).is_some())
        };
        let found = shared.indexes.values().filter(|_| index.is_none()).find(has_all);
        found.map_or_else(|| Arc::clone(sequence), |index| Arc::clone(&index.sequence))
    }

    /// What the law is, now that this epoch's origin is known too.
    pub(super) fn infer(
        &self,
        index: Option<usize>,
        origin: &Origin,
        epoch: u32,
        shared: &Shared,
    ) -> Law {
        let n = index.map_or(0, |index| shared.indexes[index].sequence.len());
        let past = self.past.as_ref().filter(|past| past.index == index);
        let epochs = past.map_or(0, |past| epoch.saturating_sub(past.epoch));
        let leads_here = |past: &Past, law: &Law| {
            let then = past.origin.after_epochs(law, n, epochs);
            epochs > 0 && then.is_some_and(|(then, _)| then == *origin)
        };
        let laws = past.map(|past| past.origin.laws(n)).unwrap_or_default();
        let found = laws.into_iter().find(|law| past.is_some_and(|past| leads_here(past, law)));
        found.unwrap_or(Law::Unknown)
    }

    /// Stops following an order that is not read any more.
    fn give_up(&mut self, shared: &Shared, out: &mut Vec<Decision>) {
        let Some(follow) = self.follow.take_if(|follow| follow.is_lost()) else { return };
        let why = match () {
            () if follow.is_surpassed() => Why::Surpassed,
            () if follow.is_over() => Why::EpochOver,
            () => Why::Diverged,
        };
        out.push(Decision::Withdrawn { loader: self.id, why });
        if why == Why::EpochOver {
            self.history.follow_ended(self.epoch, &follow, self.attempt.log(), shared);
            self.begin_epoch();
        } else {
            self.history.leave(&follow);
            // Parts of what is not drawn may be read one by one: a directory's files, say.
            if follow.origin.is_drawn() || why == Why::Surpassed {
                self.diverged.truncate(DIVERGED_MAX - 1);
                self.diverged.push_front((follow.index, follow.origin.clone()));
            }
            if let Some(past) = &mut self.past {
                past.law = Law::Unknown;
            }
            self.begin_attempt();
            self.whole = false;
            self.share = None;
        }
    }

    /// A reader has ended.
    pub(super) fn leave(&mut self, reader: u32) {
        self.attempt.leave(reader);
        if let Some(follow) = &mut self.follow {
            follow.leave(reader);
        }
    }
}
