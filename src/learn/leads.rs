//! What searches find: orders that are believed, or kept until more speaks for them.

use std::sync::Arc;

use super::event::{Decision, Rung};
use super::evidence::{Weight, weigh};
use super::ladder::{Purpose, Running, Stage};
use super::loader::{Loader, SURE};
use super::origin::{Law, Origin, Outputs};
use super::search::Finding;
use super::sequence::Index;
use super::shared::Shared;
use super::suspect::{Past, Suspect, sequence_of};

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

impl Loader {
    /// Keeps what a search found until more speaks for it, or for another.
    fn keep_lead(&mut self, lead: Lead, n: u32) {
        let most = (LEADS_SAMPLES_MAX / n.max(1) as usize).clamp(1, LEADS_MAX);
        let at = self.leads.partition_point(|kept| kept.bits >= lead.bits);
        self.leads.insert(at, lead);
        self.leads.truncate(most);
    }

    /// The lead for which most speaks, of those for which as much does as is asked for.
    pub(super) fn best_lead(&self, indexes: &[Index]) -> Option<(&Suspect, Weight, (Rung, f64))> {
        let read = self.attempt.log().len() as u32;
        let weighed = self.leads.iter().map(|Lead { suspect, need, .. }| {
            (suspect, suspect.weigh(self.attempt.samples(), read, indexes), *need)
        });
        let sure = weighed.filter(|(_, weight, (_, needed))| weight.bits >= *needed);
        sure.max_by(|(_, one, _), (_, other, _)| one.bits.total_cmp(&other.bits))
    }

    /// Takes what a search found. Says whether that ends the search.
    pub(super) fn find(
        &mut self,
        running: &Running,
        finding: &Finding,
        shared: &mut Shared,
        out: &mut Vec<Decision>,
    ) -> bool {
        match (finding, &running.purpose) {
            (Finding::Output { seed, at, after }, Purpose::Default) => {
                let outputs = Outputs { seed: *seed, from: at + 1, values: Arc::clone(after) };
                self.defaults.push((outputs, running.epoch));
                self.suspects = None;
                false
            }
            (Finding::Seed { seed, target }, Purpose::Epoch { keys, hypotheses, .. }) => {
                let Some(&(index, skip)) = keys.get(*target as usize) else { return false };
                let origin = Origin::Draw { seed: *seed, skip };
                let told = (index, origin, Law::Unknown);
                self.try_origin(running, told, SURE + hypotheses, shared, out)
            }
            (
                Finding::Drawn { seed, target, default, at, after },
                Purpose::Epoch { keys, hypotheses, .. },
            ) => {
                let Some(&(index, skip)) = keys.get(*target as usize) else { return false };
                let origin = Origin::Draw { seed: *seed, skip };
                let values = Arc::clone(after);
                let law = Law::Drawn { outputs: Outputs { seed: *default, from: at + 1, values } };
                self.try_origin(running, (index, origin, law), SURE + hypotheses, shared, out)
            }
            (
                Finding::Library { sampler, epoch, view },
                Purpose::Epoch { keys, hypotheses, .. },
            ) => {
                let Some(&(index, _)) = keys.get(*view as usize) else { return false };
                let origin = Origin::Sampler { sampler: sampler.clone(), epoch: *epoch };
                let told = (index, origin, Law::Sampler);
                self.try_origin(running, told, SURE + hypotheses, shared, out)
            }
            _ => false,
        }
    }

    fn try_origin(
        &mut self,
        running: &Running,
        (index, origin, law): (usize, Origin, Law),
        needed: f64,
        shared: &mut Shared,
        out: &mut Vec<Decision>,
    ) -> bool {
        let Purpose::Epoch { readers, read, stage, .. } = &running.purpose else { return false };
        let Some(sequence) = sequence_of(&origin, index, shared) else { return false };
        let here = running.serial == self.serial && self.follow.is_none();
        let place = |sample| sequence.place(sample);
        let unread = |read: u32| sequence.len().saturating_sub(read);
        let weight = if here {
            // The opens that are weighed were made before most of the log.
            weigh(self.attempt.samples(), unread(*read), place)
        } else {
            weigh(readers.iter().map(Vec::as_slice), unread(*read), place)
        };
        let rung = if *stage == Stage::All { Rung::Cracked } else { Rung::Dictionary };
        if weight.bits < needed {
            if here && weight.bits > 0.0 {
                let n = sequence.len();
                let suspect = Suspect::whole(Some(index), origin, law, sequence);
                let need = (rung, needed);
                self.keep_lead(Lead { bits: weight.bits, suspect, need }, n);
            }
            return false;
        }
        if here {
            let told = (Some(index), origin.clone(), law.clone());
            let grounds = (rung, weight.bits, needed);
            if !self.commit(Arc::clone(&sequence), told, grounds, shared, out) {
                let suspect = Suspect::whole(Some(index), origin, law, Arc::clone(&sequence));
                let need = (rung, needed);
                self.keep_lead(Lead { bits: weight.bits, suspect, need }, sequence.len());
                return false;
            }
        } else if self.follow.is_none() {
            // Of an epoch that is over by now; the next ones may follow from it.
            let law = match law {
                Law::Unknown => self.infer(Some(index), &origin, shared),
                law => law,
            };
            self.past = Some(Past { index: Some(index), origin, law, epoch: running.epoch });
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
        let all = Candidate { name: "path".into(), samples: (0..n).collect() };
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
            let open = Open { at_ms: 0, task: 1, sample: *sample, exact: true };
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
