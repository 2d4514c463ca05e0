//! What searches find: orders that are believed, or kept until more speaks for them.

use std::sync::Arc;

use super::event::{Decision, Rung};
use super::evidence::{Weight, weigh};
use super::indexes::Indexes;
use super::ladder::{Purpose, Running, Stage};
use super::loader::{Loader, SURE};
use super::origin::{Law, Origin, Outputs};
use super::search::Finding;
use super::shared::Shared;
use super::suspect::{Suspect, sequence_of};

/// How many findings are kept that have not enough evidence yet, and of how many samples in all.
const LEADS_MAX: usize = 64;
const LEADS_SAMPLES_MAX: usize = 1 << 22;

/// What a search found, and what is asked of it.
#[derive(Debug)]
pub(super) struct Lead {
    /// The bits that spoke for it when it was found.
    bits: f64,
    suspect: Suspect,
    /// On what it rests, and the bits that are asked for.
    need: (Rung, f64),
}

impl Lead {
    /// The numbering that it is over.
    pub(super) fn index(&self) -> Option<usize> {
        self.suspect.index
    }

    /// Whether as much speaks for it as is asked for.
    fn is_sure(&self) -> bool {
        self.bits >= self.need.1
    }
}

/// Keeps those for which most speaks, the best first.
fn keep_best(leads: &mut Vec<Lead>) {
    leads.sort_by(|one, other| other.bits.total_cmp(&one.bits));
    leads.truncate(LEADS_MAX);
}

impl Loader {
    /// Keeps what a search found until more speaks for it, or for another.
    fn keep_lead(&mut self, lead: Lead, n: u32) {
        let most = (LEADS_SAMPLES_MAX / n.max(1) as usize).clamp(1, LEADS_MAX);
        let at = self.leads.partition_point(|kept| kept.bits >= lead.bits);
        self.leads.insert(at, lead);
        self.leads.truncate(most);
    }

    /// The lead for which most speaks, of those for which as much does as is asked for.
    pub(super) fn best_lead(&self, indexes: &Indexes) -> Option<(&Suspect, Weight, (Rung, f64))> {
        let read = self.attempt.log().len() as u32;
        let leads = self.leads.iter().filter(|lead| !self.has_diverged(&lead.suspect));
        let weighed = leads.map(|Lead { suspect, need, .. }| {
            (suspect, suspect.weigh(self.attempt.samples(), read, indexes), *need)
        });
        let sure = weighed.filter(|(_, weight, (_, needed))| weight.bits >= *needed);
        sure.max_by(|(_, one, _), (_, other, _)| one.bits.total_cmp(&other.bits))
    }

    /// Takes what a search found at once. Says whether that ends the search.
    pub(super) fn find(
        &mut self,
        running: &Running,
        findings: &[Finding],
        shared: &mut Shared,
        out: &mut Vec<Decision>,
    ) -> bool {
        for finding in findings {
            if let (Finding::Output { seed, at, after }, Purpose::Default) =
                (finding, &running.purpose)
            {
                let outputs = Outputs { seed: *seed, from: at + 1, values: Arc::clone(after) };
                self.defaults.push((outputs, running.epoch));
                self.suspects = None;
            }
        }
        if let Purpose::Split { wholes } = &running.purpose {
            self.split(wholes, findings, shared, out);
        }
        let mut leads: Vec<Lead> = Vec::new();
        for finding in findings {
            leads.extend(self.lead(running, finding, shared).filter(|lead| lead.bits > 0.0));
            // In a small dataset thousands fit by chance, and each has all samples of an epoch.
            if leads.len() >= 2 * LEADS_MAX {
                keep_best(&mut leads);
            }
        }
        keep_best(&mut leads);
        leads.iter_mut().for_each(|lead| lead.suspect.law.settle());
        if let Some(best) = leads.first().filter(|lead| lead.is_sure()) {
            let twins = best.suspect.twins(&shared.indexes).into_iter();
            let twins = twins.filter_map(|told| self.lead_of(running, told, best.need.1, shared));
            let better = twins.filter(|twin| twin.is_sure() && twin.bits > best.bits);
            let better = better.max_by(|one, other| one.bits.total_cmp(&other.bits));
            leads.splice(0..0, better);
        }
        leads.into_iter().any(|lead| self.try_lead(running, lead, shared, out))
    }

    /// What a finding is worth to the loader.
    fn lead(&self, running: &Running, finding: &Finding, shared: &Shared) -> Option<Lead> {
        let Purpose::Epoch { keys, hypotheses, .. } = &running.purpose else { return None };
        let told = match finding {
            Finding::Seed { seed, target } => {
                let &(index, skip) = keys.get(*target as usize)?;
                (index, Origin::Draw { seed: *seed, skip }, Law::Unknown)
            }
            Finding::Drawn { seed, target, default, at, outputs } => {
                let &(index, skip) = keys.get(*target as usize)?;
                let outputs = Outputs { seed: *default, from: 0, values: Arc::clone(outputs) };
                (index, Origin::Draw { seed: *seed, skip }, Law::Drawn { outputs, at: *at })
            }
            Finding::Library { sampler, epoch, view } => {
                let &(index, _) = keys.get(*view as usize)?;
                let n = shared.indexes.get(index)?.sequence.len();
                let (origin, law) = Origin::of(sampler, *epoch, n, &shared.generators);
                // The first permutation of a seed may be that of any of torch's samplers.
                let any = *epoch == 0 && matches!(origin, Origin::Draw { .. });
                (index, origin, if any { Law::Unknown } else { law })
            }
            Finding::Output { .. } | Finding::Split { .. } => return None,
        };
        self.lead_of(running, told, SURE + hypotheses, shared)
    }

    fn lead_of(
        &self,
        running: &Running,
        (index, origin, law): (usize, Origin, Law),
        needed: f64,
        shared: &Shared,
    ) -> Option<Lead> {
        let Purpose::Epoch { readers, read, stage, .. } = &running.purpose else { return None };
        let sequence = sequence_of(&origin, index, shared)?;
        let place = |sample| sequence.place(sample);
        // The opens that are weighed were made before most of the log.
        let unread = sequence.len().saturating_sub(*read);
        let weight = if self.is_here(running) {
            weigh(self.attempt.samples(), unread, place)
        } else {
            weigh(readers.iter().map(Vec::as_slice), unread, place)
        };
        let rung = if *stage == Stage::All { Rung::Cracked } else { Rung::Dictionary };
        let suspect = Suspect::whole(Some(index), origin, law, sequence);
        if self.is_here(running) && self.has_diverged(&suspect) {
            return None;
        }
        Some(Lead { bits: weight.bits, suspect, need: (rung, needed) })
    }

    /// Whether what is searched for is what the loader reads now.
    fn is_here(&self, running: &Running) -> bool {
        running.serial == self.seeking.serial && self.follow.is_none()
    }

    /// Believes a lead for which enough speaks, else keeps it. Says whether that ends the search.
    fn try_lead(
        &mut self,
        running: &Running,
        lead: Lead,
        shared: &mut Shared,
        out: &mut Vec<Decision>,
    ) -> bool {
        let Some(sequence) = lead.suspect.sequence(shared) else { return false };
        let here = self.is_here(running);
        let n = sequence.len();
        let Suspect { index, origin, law, .. } = &lead.suspect;
        if !lead.is_sure() {
            if here {
                self.keep_lead(lead, n);
            }
            return false;
        }
        if here {
            let told = (*index, origin.clone(), law.clone());
            let grounds = (lead.need.0, lead.bits, lead.need.1);
            let begun = self.commit(sequence, told, grounds, shared, out);
            if !begun {
                self.keep_lead(lead, n);
            }
            return begun;
        }
        if self.follow.is_none() {
            // Of an epoch that is over by now; the next ones may follow from it.
            let (index, origin) = (*index, origin.clone());
            let law = match law {
                Law::Unknown => self.infer(index, &origin, running.epoch, shared),
                law => law.clone(),
            };
            self.understand((index, origin, law), running.epoch, shared);
            self.scope = Some(sequence);
            self.suspects = None;
            self.reconsider(shared, out);
            if self.follow.is_none() {
                self.ask_default(shared, out);
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::super::event::LoaderId;
    use super::super::sequence::Sequence;
    use super::*;
    use crate::learn::shared::Open;
    use crate::learn::{Candidate, Settings};
    use crate::order::SampleTable;

    #[test]
    fn each_lead_has_its_own_need() {
        let n = 100_000;
        let all = Candidate { name: "path".into(), samples: (0..n).collect(), spec: None };
        let mut shared = Shared::new(Settings::default(), vec![all], SampleTable::Files);
        let (mut loader, mut out) = (Loader::new(LoaderId(0), 1), Vec::new());
        let order: Vec<u32> = (0..n).map(|place| (place * 31_337 + 11) % n).collect();
        let sequence = Arc::new(Sequence::new(order.clone().into()));
        let lead = |bits, needed| {
            let origin = Origin::Draw { seed: 7, skip: 0 };
            let suspect = Suspect::whole(Some(0), origin, Law::Unknown, Arc::clone(&sequence));
            Lead { bits, suspect, need: (Rung::Cracked, needed) }
        };
        for sample in &order[..4] {
            let open = Open { at_ms: 0, reader: 1, sample: *sample, exact: true };
            loader.wonder(&open, &mut shared, &mut out);
        }
        out.clear();
        loader.keep_lead(lead(40.0, 90.0), n);
        loader.keep_lead(lead(1.0, 999.0), n);
        loader.reconsider(&mut shared, &mut out);
        assert!(out.is_empty(), "{out:?}");
        loader.keep_lead(lead(1.0, 37.0), n);
        loader.reconsider(&mut shared, &mut out);
        assert!(matches!(out.as_slice(), [Decision::Committed(_), ..]), "{out:?}");
    }
}
