//! The orders that may explain what a loader reads.

use std::collections::VecDeque;

use super::attempt::Attempt;
use super::candidate::{CANDIDATES_MAX, Candidate};
use super::evidence::{Evidence, SURE};
use super::hypothesis::{Facts, Hypothesis, weigh_whole};
use super::origin::{EpochOrder, Origin};
use super::shared::Shared;

/// How many times the evidence of an earlier hypothesis a later one needs. The order of a whole dataset is
/// the same within the part that a job reads, and has more bits for each open.
const CLEARLY: f64 = 2.0;

/// How many samples all candidates that are kept may have.
const SAMPLES_MAX: usize = 1 << 22;

/// How many refuted orders are remembered.
const REFUTED_MAX: usize = 16;

#[derive(Debug, Default)]
pub(super) struct Explanations {
    /// Hypotheses about the epoch, and the version of the knowledge that they follow from.
    pub(super) hypotheses: Option<(Vec<Hypothesis>, u32)>,
    /// What searches have found for the attempt, the best first.
    candidates: Vec<Candidate>,
    /// Orders of this epoch that were followed and turned out to be wrong, the latest first.
    pub(super) refuted: VecDeque<(Option<usize>, Origin)>,
}

impl Explanations {
    pub(super) fn begin_attempt(&mut self) {
        self.hypotheses = None;
        self.candidates.clear();
    }

    /// Makes the hypotheses anew if they do not follow from the latest knowledge.
    pub(super) fn update(&mut self, facts: &Facts<'_>) {
        let version = facts.shared.version;
        if self.hypotheses.as_ref().is_none_or(|(_, made)| *made != version) {
            self.hypotheses = Some((facts.hypotheses(), version));
        }
    }

    pub(super) fn refute(&mut self, index: Option<usize>, origin: Origin) {
        self.refuted.truncate(REFUTED_MAX - 1);
        self.refuted.push_front((index, origin));
    }

    pub(super) fn is_refuted(&self, order: &EpochOrder) -> bool {
        self.refuted.iter().any(|(index, origin)| (index, origin) == (&order.index, &order.origin))
    }

    /// Keeps a candidate until there is enough evidence for it, or for another order.
    pub(super) fn keep(&mut self, candidate: Candidate) {
        let most = SAMPLES_MAX / candidate.sequence.len().max(1) as usize;
        let bits = candidate.evidence.bits;
        let at = self.candidates.partition_point(|kept| kept.evidence.bits >= bits);
        self.candidates.insert(at, candidate);
        self.candidates.truncate(most.clamp(1, CANDIDATES_MAX));
    }

    pub(super) fn indexes(&self) -> impl Iterator<Item = usize> {
        self.candidates.iter().filter_map(|candidate| candidate.order.index)
    }

    /// The orders with enough evidence that may begin: the best hypothesis, then the best candidate.
    pub(super) fn sufficient(
        &self,
        attempt: &Attempt,
        may_begin: impl Fn(&EpochOrder) -> bool,
        shared: &Shared,
    ) -> Vec<Candidate> {
        let hypothesis = self.best_hypothesis(attempt, shared);
        let hypothesis = hypothesis.filter(|(hypothesis, _)| may_begin(&hypothesis.order));
        let candidate = self.best_candidate(attempt).filter(|best| may_begin(&best.order));
        let found = hypothesis.and_then(|(hypothesis, evidence)| {
            let (order, sequence) = (hypothesis.order.clone(), hypothesis.sequence(shared)?);
            Some(Candidate { order, sequence, evidence })
        });
        found.into_iter().chain(candidate).collect()
    }

    /// The hypothesis with the most evidence, if that is enough.
    fn best_hypothesis(
        &self,
        attempt: &Attempt,
        shared: &Shared,
    ) -> Option<(&Hypothesis, Evidence)> {
        let (hypotheses, _) = self.hypotheses.as_ref()?;
        let needed = SURE + (hypotheses.len().max(1) as f64).log2();
        let mut best: Option<(&Hypothesis, Evidence)> = None;
        for hypothesis in hypotheses.iter().filter(|one| !self.is_refuted(&one.order)) {
            let bits = hypothesis.weigh(attempt, &shared.indexes);
            if best.is_none_or(|(_, best)| bits > CLEARLY * best.bits.max(1.0)) {
                best = Some((hypothesis, Evidence { basis: hypothesis.basis, bits, needed }));
            }
        }
        best.filter(|(_, evidence)| evidence.is_enough())
    }

    /// The candidate with the most evidence now, of those that have enough.
    fn best_candidate(&self, attempt: &Attempt) -> Option<Candidate> {
        let may_be = self.candidates.iter().filter(|candidate| !self.is_refuted(&candidate.order));
        let weighed = may_be.map(|candidate| {
            let Candidate { order, sequence, evidence } = candidate;
            let bits = weigh_whole(&order.origin, sequence, attempt);
            (candidate, Evidence { bits, ..*evidence })
        });
        let enough = weighed.filter(|(_, evidence)| evidence.is_enough());
        let best = enough.max_by(|(_, one), (_, other)| one.bits.total_cmp(&other.bits));
        best.map(|(candidate, evidence)| Candidate { evidence, ..candidate.clone() })
    }
}
