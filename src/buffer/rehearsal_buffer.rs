//! A rehearsal buffer: samples are offered to it, and it keeps or gives up each.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::counter_rng::{CounterRng, Purpose};
use super::members::{Capacity, ClassId, Member, Members, SampleId};
use super::policies::{LowestEvicted, Newcomer, OfferContext, Policy, Retention, Victim};

/// The rules that a buffer decides by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Rules {
    pub policy: Policy,
    pub capacity: Capacity,
    /// The seed of all random decisions.
    pub seed: u64,
}

impl Rules {
    fn rank(&self, member: &Member) -> u64 {
        let rng = CounterRng::new(self.seed, Purpose::Rank, u64::from(member.sample.0)).next();
        self.policy.retention().rank(member, rng)
    }
}

/// A sample that is offered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Candidate {
    pub class: ClassId,
    /// The task during which it is offered.
    pub task: u32,
    /// Size of the encoded file in bytes.
    pub bytes: u64,
}

/// The result of an offer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OfferResult {
    /// The number of the sample, kept or not.
    pub sample: SampleId,
    pub kept: bool,
    /// The samples given up for it.
    pub evicted: Vec<SampleId>,
}

/// Why a buffer does not take a score or a replay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UpdateError {
    /// The buffer does not hold the sample.
    NotHeld,
    /// The score is not a finite number.
    NotFinite,
}

/// A buffer of samples.
///
/// An offer takes O(log n). Each sample must be offered only once. A sample is known by the number of its
/// offer, so the caller must know which samples were offered already.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "State", into = "State")]
pub struct RehearsalBuffer {
    rules: Rules,
    offers: u32,
    members: Members,
    evicted: LowestEvicted,
}

/// The serialized form of a buffer.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct State {
    rules: Rules,
    offers: u32,
    classes: Vec<ClassId>,
    members: Vec<(Member, usize)>,
    evicted: LowestEvicted,
}

impl From<RehearsalBuffer> for State {
    fn from(buffer: RehearsalBuffer) -> State {
        State {
            rules: buffer.rules,
            offers: buffer.offers,
            classes: buffer.members.classes().collect(),
            members: buffer.members.ordered().collect(),
            evicted: buffer.evicted,
        }
    }
}

impl TryFrom<State> for RehearsalBuffer {
    type Error = String;

    fn try_from(state: State) -> Result<RehearsalBuffer, String> {
        let mut buffer = RehearsalBuffer::new(state.rules);
        buffer.offers = state.offers;
        buffer.evicted = state.evicted;
        state.classes.into_iter().for_each(|class| buffer.members.add_class(class));
        let mut indices = BTreeMap::new();
        for (member, at_class) in state.members {
            let sample = member.sample;
            if sample.0 >= buffer.offers || indices.insert(sample, at_class).is_some() {
                return Err(format!("sample {} was never offered, or is held twice", sample.0));
            }
            if !buffer.members.fits(member.bytes) {
                return Err("more is held than the buffer can hold".to_owned());
            }
            let rank = buffer.rules.rank(&member);
            buffer.members.insert(member, rank);
        }
        buffer.members.reorder(&indices);
        Ok(buffer)
    }
}

impl RehearsalBuffer {
    pub fn new(rules: Rules) -> RehearsalBuffer {
        let members = Members::new(rules.capacity, rules.policy.retention().by_class());
        RehearsalBuffer { rules, offers: 0, members, evicted: LowestEvicted::default() }
    }

    fn retention(&self) -> &'static dyn Retention {
        self.rules.policy.retention()
    }

    /// Offers a sample. `None` after 2^32 offers, because then all numbers are used.
    pub fn offer(&mut self, candidate: Candidate) -> Option<OfferResult> {
        let Candidate { class, bytes, .. } = candidate;
        let sample = SampleId(self.offers);
        self.offers = self.offers.checked_add(1)?;
        self.members.add_class(class);
        let newcomer = self.newcomer(sample, candidate);
        let mut offered = OfferResult { sample, kept: false, evicted: Vec::new() };
        let capacity = self.rules.capacity;
        let mut rng = CounterRng::new(self.rules.seed, Purpose::Offer, u64::from(sample.0));
        let retention = self.retention();
        if capacity.share(bytes) > capacity.limit()
            || !retention.admits(&self.context(&newcomer), &mut rng)
        {
            return Some(offered);
        }
        let mut victims = Vec::new();
        while !self.members.fits(bytes) {
            let victim = retention.victim(&self.context(&newcomer), &mut rng);
            let Victim::Held(victim) = victim else { break };
            let Some(victim) = self.members.take(victim) else { break };
            let lowest = self.evicted.note(victim.member.class, self.rules.rank(&victim.member));
            victims.push((victim, lowest));
        }
        if self.members.fits(bytes) {
            self.members.insert(newcomer.member, newcomer.rank);
            offered.kept = true;
            offered.evicted.extend(victims.iter().map(|(victim, _)| victim.member.sample));
        } else {
            // The newcomer does not come, so the victims stay.
            for (victim, lowest) in victims.into_iter().rev() {
                self.evicted.take_back(victim.member.class, lowest);
                self.members.put_back(victim);
            }
            self.evicted.note(class, newcomer.rank);
        }
        Some(offered)
    }

    /// Whether a sample may be kept if `ahead` other offers come first. Something of its class must have been
    /// offered before. With `ahead` 0, false is certain. True is certain if the capacity is in samples.
    pub fn may_keep(&self, candidate: Candidate, ahead: u32) -> bool {
        let Some(number) = self.offers.checked_add(ahead) else { return false };
        let newcomer = self.newcomer(SampleId(number), candidate);
        let mut rng = CounterRng::new(self.rules.seed, Purpose::Offer, u64::from(number));
        let (retention, capacity) = (self.retention(), self.rules.capacity);
        let offer = self.context(&newcomer);
        capacity.share(candidate.bytes) <= capacity.limit()
            && retention.admits(&offer, &mut rng)
            && (self.members.fits(candidate.bytes)
                || retention.victim(&offer, &mut rng) != Victim::Newcomer)
    }

    fn context<'a>(&'a self, newcomer: &'a Newcomer) -> OfferContext<'a> {
        OfferContext { held: &self.members, evicted: &self.evicted, newcomer }
    }

    fn newcomer(&self, sample: SampleId, candidate: Candidate) -> Newcomer {
        let Candidate { class, task, bytes } = candidate;
        let member = Member { sample, class, task, bytes, score: None, replays: 0 };
        Newcomer { member, rank: self.rules.rank(&member) }
    }

    /// Changes the capacity. If the buffer holds more, it gives up the samples that the policy can spare
    /// first, and returns them. New room is for new offers.
    pub fn resize(&mut self, capacity: Capacity) -> Vec<SampleId> {
        self.rules.capacity = capacity;
        self.members.resize(capacity);
        let mut rng = CounterRng::new(self.rules.seed, Purpose::Resize, u64::from(self.offers));
        let mut evicted = Vec::new();
        while self.members.used() > capacity.limit()
            && let Some(victim) = self.retention().shrink_victim(&self.members, &mut rng)
            && let Some(evictee) = self.members.remove(victim)
        {
            self.evicted.note(evictee.class, self.rules.rank(&evictee));
            evicted.push(victim);
        }
        if evicted.is_empty() {
            // There is room, so samples given up for want of room must not keep others out.
            self.evicted = LowestEvicted::default();
        }
        evicted
    }

    /// Takes a score that the trainer found for a sample. The policy decides what it means.
    ///
    /// # Errors
    /// If the score is not finite or the sample is not in the buffer. Nothing changes then.
    pub fn score(&mut self, sample: SampleId, score: f32) -> Result<(), UpdateError> {
        if !score.is_finite() {
            return Err(UpdateError::NotFinite);
        }
        self.update(sample, |member| member.score = Some(score))
    }

    /// Notes that a sample was shown again.
    ///
    /// # Errors
    /// If the sample is not in the buffer.
    pub fn replayed(&mut self, sample: SampleId) -> Result<(), UpdateError> {
        self.update(sample, |member| member.replays = member.replays.saturating_add(1))
    }

    fn update(
        &mut self,
        sample: SampleId,
        change: impl FnOnce(&mut Member),
    ) -> Result<(), UpdateError> {
        let rules = self.rules;
        let updated = self.members.update(sample, change, |member| rules.rank(member));
        updated.then_some(()).ok_or(UpdateError::NotHeld)
    }

    /// Gives up a sample whose bytes are lost. Returns whether the sample was there.
    pub fn remove(&mut self, sample: SampleId) -> bool {
        self.members.remove(sample).is_some()
    }

    pub fn rules(&self) -> &Rules {
        &self.rules
    }

    /// How many samples were offered. The age of a member is this minus its number.
    pub fn offers(&self) -> u32 {
        self.offers
    }

    /// How many samples are held.
    pub fn len(&self) -> usize {
        self.members.len()
    }

    pub fn is_empty(&self) -> bool {
        self.members.len() == 0
    }

    /// How much of the capacity is used: samples or bytes.
    pub fn used(&self) -> u64 {
        self.members.used()
    }

    pub fn get(&self, sample: SampleId) -> Option<&Member> {
        self.members.get(sample)
    }

    /// All samples held, by the number of their offer.
    pub fn members(&self) -> impl Iterator<Item = &Member> {
        self.members.iter()
    }

    /// How many samples of a class are held.
    pub fn count(&self, class: ClassId) -> usize {
        self.members.count(class)
    }

    /// Every class with an offered sample.
    pub fn classes(&self) -> impl ExactSizeIterator<Item = ClassId> {
        self.members.classes()
    }
}
