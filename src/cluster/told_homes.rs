//! Which homes a member goes by, as it tells the others. A member that joins finds what they hold by that.

use serde::{Deserialize, Serialize};

use super::job::{EPOCH_MOST, Job, Rank};
use super::view::{Member, View};
use crate::order::OrderSpec;
use crate::order::spec::SequenceSpec;

/// All that homes follow from, beside the files.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ToldHomes {
    /// The id, the capacity with the part of its disk that counts, and the group of each member.
    members: Vec<(u64, u64, u32)>,
    /// The seed of each member, if it has one.
    seeds: Vec<u64>,
    /// The jobs: the orders of their ranks as text, with the ids of the members that have them.
    jobs: Vec<Vec<(String, Vec<u64>)>>,
    /// The epoch of the first job.
    epoch: u32,
}

impl ToldHomes {
    /// The homes in a view while these jobs read.
    pub fn new(view: &View, jobs: &[Job], epoch: u32) -> Self {
        let member = |member: &Member| (member.id, member.capacity, member.group);
        let rank = |rank: &Rank| (rank.order.to_string(), rank.members.clone());
        let job = |job: &Job| job.ranks.iter().map(rank).collect();
        let members = view.members().iter().map(member).collect();
        let seeds = view.members().iter().map(|member| member.seed).collect();
        ToldHomes { members, seeds, jobs: jobs.iter().map(job).collect(), epoch }
    }

    pub fn view(&self) -> View {
        let seeds = self.seeds.iter().copied().chain(std::iter::repeat(0));
        let member = |((id, capacity, group), seed): (&(u64, u64, u32), u64)| Member {
            id: *id,
            capacity: *capacity,
            disk: 0,
            seed,
            group: *group,
        };
        View::new(self.members.iter().zip(seeds).map(member).collect())
    }

    /// The jobs. None if this node cannot know one of their orders, or no reader comes to the epoch.
    pub fn jobs(&self) -> Option<Vec<Job>> {
        let job = |ranks: &Vec<(String, Vec<u64>)>| {
            let rank = |(order, members): &(String, Vec<u64>)| {
                let order: OrderSpec = order.parse().ok()?;
                let is_drawn = matches!(order.sequence, SequenceSpec::Sampler(_));
                let is_known = is_drawn && order.needs_names_only();
                is_known.then(|| Rank { order, members: members.clone() })
            };
            let ranks: Vec<Rank> = ranks.iter().map(rank).collect::<Option<_>>()?;
            let first: OrderSpec = ranks.first()?.order.clone();
            Some(Job { first, ranks })
        };
        let jobs = || self.jobs.iter().map(job).collect();
        (self.epoch <= EPOCH_MOST).then(jobs)?
    }

    pub fn epoch(&self) -> u32 {
        self.epoch
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::Stream;

    #[test]
    fn homes_are_understood_as_they_are_told() {
        let member = |id| Member { id, capacity: 1_000_003 * id, disk: 0, seed: 9, group: 7 };
        let view = View::new((1..4).map(member).collect());
        let stream = |rank: u64| {
            let spec = format!("torch-distributed:seed=3,world=2,rank={rank}");
            (rank + 1, vec![Stream { spec, length: 10, ..Stream::default() }])
        };
        let jobs = Job::all(&[stream(0), stream(1)]);
        assert_eq!(jobs[0].ranks.len(), 2);
        let told = ToldHomes::new(&view, &jobs, 5);
        let text = serde_json::to_string(&told).unwrap();
        let read: ToldHomes = serde_json::from_str(&text).unwrap();
        assert_eq!((read.view().id(), read.epoch()), (view.id(), 5));
        let understood = read.jobs().unwrap();
        assert_eq!(understood[0].ranks, jobs[0].ranks);
        // What is told may be of another version, or wrong.
        for order in ["no-such-order:", "torch-weighted:weights=w.txt,", "file:"] {
            let unknown = text.replace("torch-distributed:", order);
            assert_eq!(
                serde_json::from_str::<ToldHomes>(&unknown).unwrap().jobs(),
                None,
                "{order}"
            );
        }
        assert_eq!(ToldHomes { epoch: EPOCH_MOST + 1, ..read }.jobs(), None);
        assert_eq!(ToldHomes::default().jobs(), Some(Vec::new()));
    }
}
