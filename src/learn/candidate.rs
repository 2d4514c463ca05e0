//! Orders that a search finds for an epoch.

use std::sync::Arc;

use super::attempt::Attempt;
use super::event::Basis;
use super::evidence::{Evidence, SURE, weigh};
use super::explanations::Explanations;
use super::origin::{EpochOrder, Law, Origin, Outputs};
use super::sampler::origin_of;
use super::search::Finding;
use super::shared::Shared;
use super::stages::Stage;
use crate::track::Sequence;

/// How many candidates are kept.
pub(super) const CANDIDATES_MAX: usize = 64;

/// A whole order that a loader may be reading.
#[derive(Clone, Debug)]
pub(super) struct Candidate {
    pub(super) order: EpochOrder,
    pub(super) sequence: Arc<Sequence>,
    pub(super) evidence: Evidence,
}

/// What a search for the order of an epoch looks for.
#[derive(Debug)]
pub(super) struct Sought {
    pub(super) stage: Stage,
    pub(super) attempt: u32,
    pub(super) epoch: u32,
    /// By target, the index and the number of outputs that are skipped.
    pub(super) keys: Vec<(usize, u64)>,
    /// The logarithm to base 2 of how many orders are tried.
    pub(super) tried: f64,
    /// The first samples that each reader had opened, and how many samples had been opened in all.
    pub(super) readers: Vec<Vec<u32>>,
    pub(super) read: u32,
}

impl Sought {
    /// The orders of findings that the opens speak for, the best first: the opens of `now`, the attempt of the
    /// epoch, or if that is over, those that the search was made for.
    pub(super) fn candidates(
        &self,
        findings: &[Finding],
        now: Option<(&Attempt, &Explanations)>,
        shared: &Shared,
    ) -> Vec<Candidate> {
        let weighed = |order| self.weighed(order, now, shared);
        let mut found: Vec<Candidate> = Vec::new();
        for finding in findings {
            let candidate = self.order(finding, shared).and_then(weighed);
            found.extend(candidate.filter(|candidate| candidate.evidence.bits > 0.0));
            // In a small dataset thousands fit by chance, and each has all samples of an epoch.
            if found.len() >= 2 * CANDIDATES_MAX {
                keep_best(&mut found);
            }
        }
        keep_best(&mut found);
        found.iter_mut().for_each(|candidate| candidate.order.law.trim());
        if let Some(best) = found.first().filter(|best| best.evidence.is_enough()) {
            let twins = shared.indexes.twins(&best.order).into_iter().filter_map(weighed);
            let bits = |candidate: &Candidate| candidate.evidence.bits;
            let better = twins.filter(|twin| twin.evidence.is_enough() && bits(twin) > bits(best));
            let better = better.max_by(|one, other| bits(one).total_cmp(&bits(other)));
            found.splice(0..0, better);
        }
        found
    }

    fn order(&self, finding: &Finding, shared: &Shared) -> Option<EpochOrder> {
        let key = |number: u32| self.keys.get(number as usize).copied();
        let (index, origin, law) = match finding {
            Finding::Seed { seed, target } => {
                let (index, skip) = key(*target)?;
                (index, Origin::Draw { seed: *seed, skip }, Law::Unknown)
            }
            Finding::Drawn { seed, target, default, at, outputs } => {
                let (index, skip) = key(*target)?;
                let outputs = Outputs { seed: *default, from: 0, values: Arc::clone(outputs) };
                (index, Origin::Draw { seed: *seed, skip }, Law::Drawn { outputs, at: *at })
            }
            Finding::Library { sampler, epoch, view } => {
                let (index, _) = key(*view)?;
                let n = shared.indexes.get(index)?.sequence.len();
                let (origin, law) = origin_of(sampler, *epoch, n, &shared.generators);
                // The first permutation of a seed may be that of any of torch's samplers.
                let any = *epoch == 0 && matches!(origin, Origin::Draw { .. });
                (index, origin, if any { Law::Unknown } else { law })
            }
            Finding::Output { .. } | Finding::Split { .. } => return None,
        };
        Some(EpochOrder { index: Some(index), origin, law })
    }

    fn weighed(
        &self,
        order: EpochOrder,
        now: Option<(&Attempt, &Explanations)>,
        shared: &Shared,
    ) -> Option<Candidate> {
        if now.is_some_and(|(_, explanations)| explanations.is_refuted(&order)) {
            return None;
        }
        let sequence = shared.sequence_of(order.index?, &order.origin)?;
        let place = |sample| sequence.place(sample);
        // The opens that are weighed were made before most of the log.
        let unread = sequence.len().saturating_sub(self.read);
        let weight = match now {
            Some((attempt, _)) => weigh(attempt.samples(), unread, place),
            None => weigh(self.readers.iter().map(Vec::as_slice), unread, place),
        };
        let all = self.stage == Stage::All;
        let basis = if all { Basis::Cracked } else { Basis::Dictionary };
        let evidence = Evidence { basis, bits: weight.bits, needed: SURE + self.tried };
        Some(Candidate { order, sequence, evidence })
    }
}

/// Keeps the candidates with the most evidence, the best first.
fn keep_best(candidates: &mut Vec<Candidate>) {
    candidates.sort_by(|one, other| other.evidence.bits.total_cmp(&one.evidence.bits));
    candidates.truncate(CANDIDATES_MAX);
}
