//! The jobs whose ranks read on the members of a cluster.
//!
//! Members tell each other which orders their readers follow ([`Report`]). Orders that differ in their ranks only are those
//! of one job. If it is known which rank reads a sample, so is the member. If several readers read the same samples, nobody
//! is the next reader of them.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::budget::Demand;
use super::told_homes::ToldHomes;
use super::uses::Front;
use crate::order::OrderSpec;
use crate::order::spec::SequenceSpec;

/// The report of a member to the others, on its readers and on the samples that it keeps for all.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    pub demand: Demand,
    pub streams: Vec<Stream>,
    /// In so many seconds from now a sample has to be asked for again, or the member does not keep it. `None` if it has room
    /// for all.
    pub horizon_s: Option<f32>,
    /// Bytes of samples that its disk holds for all, if memory does not suffice.
    pub disk: u64,
    /// [`Member::seed`](super::Member::seed)
    pub seed: u64,
    /// The homes at which blocks may be that were given before a member joins. `None` if there is hardly any.
    pub homes: Option<ToldHomes>,
    /// About how many seconds ago it was so.
    pub age_s: f32,
}

impl Report {
    /// The streams, about where their readers are by now.
    pub fn streams_now(&self) -> Vec<Stream> {
        let now = |stream: &Stream| {
            let read = (stream.rate * self.age_s) as u32;
            Stream { position: stream.position.saturating_add(read), ..stream.clone() }
        };
        self.streams.iter().map(now).collect()
    }
}

/// An order that is followed, and where its readers are.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Stream {
    /// The [`OrderSpec`], as text. It names no files.
    pub spec: String,
    /// The epoch, from 0, and the position in it from which on nothing is fetched yet.
    pub epoch: u32,
    pub position: u32,
    /// Positions of an epoch.
    pub length: u32,
    /// Positions a second, of late.
    pub rate: f32,
}

/// The streams of members, which are named by their ids.
pub type Streams = [(u64, Vec<Stream>)];

/// A job with ranks on members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    /// The order of its first rank.
    pub first: OrderSpec,
    /// Their orders differ in the rank only.
    pub ranks: Vec<Rank>,
}

/// No reader comes to this epoch. A number beyond it is an error of who tells it.
pub(super) const EPOCH_MOST: u32 = 1 << 20;

/// Readers of one order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rank {
    pub order: OrderSpec,
    /// The ids of the members that have them, sorted.
    pub members: Vec<u64>,
}

/// Orders that differ in their ranks only.
struct Group {
    first: OrderSpec,
    ranks: BTreeMap<String, Rank>,
    samples: u64,
}

impl Job {
    /// The jobs of all members. The one that reads most samples in an epoch is the first.
    pub fn all(streams: &Streams) -> Vec<Job> {
        let mut groups: BTreeMap<String, Group> = BTreeMap::new();
        for (member, stream) in each(streams) {
            let Some((order, rankless)) = parse(stream) else { continue };
            let group = groups.entry(rankless.to_string());
            let new = || Group { first: rankless, ranks: BTreeMap::new(), samples: 0 };
            let group = group.or_insert_with(new);
            let rank = group.ranks.entry(order.to_string()).or_insert_with(|| {
                group.samples += u64::from(stream.length);
                Rank { order, members: Vec::new() }
            });
            rank.members.push(member);
        }
        // Of equal ones, the first by name.
        let mut groups: Vec<Group> = groups.into_values().collect();
        groups.sort_by_key(|group| Reverse(group.samples));
        let job = |group: Group| {
            let mut ranks: Vec<Rank> = group.ranks.into_values().collect();
            ranks.iter_mut().for_each(|rank| rank.members.sort_unstable());
            Job { first: group.first, ranks }
        };
        groups.into_iter().map(job).collect()
    }

    /// Whether no order has more than one reader.
    pub fn is_dealt(&self) -> bool {
        self.ranks.iter().all(|rank| rank.members.len() == 1)
    }

    /// Whether a member has a rank of the job.
    pub fn has_rank_at(&self, member: u64) -> bool {
        self.ranks.iter().any(|rank| rank.members.contains(&member))
    }

    /// The epoch in which the slowest rank of a member is; of all members, if it has no rank.
    pub fn epoch(&self, member: u64, streams: &Streams) -> u32 {
        let slowest = |fronts: &mut dyn Iterator<Item = Front>| fronts.map(|it| it.epoch).min();
        let fronts = self.fronts(member, streams);
        let own = slowest(&mut fronts.iter().flatten().filter(|front| front.is_own).copied());
        own.or_else(|| slowest(&mut fronts.iter().flatten().copied())).unwrap_or_default()
    }

    /// The progress of the readers of each rank, as a member sees it.
    pub fn fronts(&self, own: u64, streams: &Streams) -> Vec<Vec<Front>> {
        let of = |rank: &Rank| {
            let spec = rank.order.to_string();
            let readers = each(streams).filter(|(_, stream)| stream.spec == spec);
            let front = |(member, stream): (u64, &Stream)| {
                let Stream { epoch, position, length, rate, .. } = *stream;
                Front { epoch, position, length, rate, is_own: member == own }
            };
            readers.map(front).collect()
        };
        self.ranks.iter().map(of).collect()
    }
}

fn each(streams: &Streams) -> impl Iterator<Item = (u64, &Stream)> {
    streams.iter().flat_map(|(member, streams)| streams.iter().map(|stream| (*member, stream)))
}

/// The order of a stream, and the same order of rank 0. `None` if others cannot know it.
fn parse(stream: &Stream) -> Option<(OrderSpec, OrderSpec)> {
    let spec: OrderSpec = stream.spec.parse().ok().filter(|_| stream.epoch <= EPOCH_MOST)?;
    let SequenceSpec::Sampler(sampler) = &spec.sequence else { return None };
    if !spec.needs_names_only() {
        return None;
    }
    let mut first = sampler.clone();
    if let Some(rank) = first.keys().iter_mut().find(|key| key.name == "rank") {
        rank.set("0").ok()?;
    }
    let rankless = spec.with_sampler(first);
    Some((spec, rankless))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stream(spec: &str, epoch: u32, length: u32) -> Stream {
        Stream { spec: spec.to_owned(), epoch, length, ..Stream::default() }
    }

    fn rank(rank: u32, epoch: u32) -> Stream {
        let key = if rank == 0 { String::new() } else { format!(",rank={rank}") };
        stream(&format!("torch-distributed:seed=3,world=3{key},index=imagefolder"), epoch, 100)
    }

    #[test]
    fn streams_that_differ_in_their_ranks_are_a_job() {
        let validation = || stream("sequential:root=val", 0, 150);
        let mut streams = vec![
            (7, vec![rank(1, 4), validation()]),
            (5, vec![validation(), rank(0, 5)]),
            (6, vec![rank(2, 5), stream("file:orders/a.txt", 0, 999), stream("no order", 0, 999)]),
        ];
        let jobs = Job::all(&streams);
        let [training, validating] = &jobs[..] else { panic!("{jobs:?}") };
        let members: Vec<&[u64]> = training.ranks.iter().map(|rank| &rank.members[..]).collect();
        assert_eq!(members, [&[5][..], &[7], &[6]]);
        assert_eq!(validating.ranks[0].members, [5, 7]);
        assert_eq!(training.first.to_string(), rank(0, 0).spec);
        assert!(training.is_dealt() && !validating.is_dealt());
        assert_eq!([5, 6, 7, 8].map(|member| training.epoch(member, &streams)), [5, 5, 4, 4]);
        let own: Vec<usize> = training
            .fronts(6, &streams)
            .iter()
            .map(|fronts| fronts.iter().filter(|front| front.is_own).count())
            .collect();
        assert_eq!(own, [0, 0, 1]);
        streams.reverse();
        assert_eq!(Job::all(&streams), jobs);
        assert_eq!((Job::all(&[]), Job::all(&[(1, Vec::new())])), (Vec::new(), Vec::new()));
    }
}
