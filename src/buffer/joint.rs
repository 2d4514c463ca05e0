//! The buffers of several nodes, drawn from as if they were one.
//!
//! All nodes put the samples of all buffers in one list, each sample once, however many nodes keep it. Draws are from this
//! list ([`EpochDraws`](super::EpochDraws)), so they do not depend on which node keeps what, or how full its buffer is.
//! Neomem (Bouvier et al., "Efficient Data-Parallel Continual Learning with Asynchronous Distributed Rehearsal Buffers")
//! chooses a node first and then a sample: there, the samples of nearly empty buffers are drawn more often.

use super::counter_rng::{CounterRng, Purpose};

/// Joins what nodes keep. Each part is a node with its samples; `hash` names a sample, alike on all nodes. Returns each
/// sample once, by hash, with a node that keeps it. If several nodes do, they have equal shares of these.
pub fn join<T>(
    parts: impl IntoIterator<Item = (u64, Vec<T>)>,
    hash: impl Fn(&T) -> u64,
) -> Vec<(u64, T)> {
    let of_part = |(node, samples): (u64, Vec<T>)| samples.into_iter().map(move |it| (node, it));
    let mut all: Vec<(u64, T)> = parts.into_iter().flat_map(of_part).collect();
    all.sort_by_key(|(node, sample)| (hash(sample), *node));
    let mut joined: Vec<(u64, T)> = Vec::with_capacity(all.len());
    let mut keepers = 0;
    for (node, sample) in all {
        match joined.last_mut() {
            Some((keeper, last)) if hash(last) == hash(&sample) => {
                keepers += 1;
                // The keeper is one of all that were seen so far, each as likely.
                let mut rng = CounterRng::new(hash(&sample), Purpose::Keeper, node);
                if rng.index(keepers) == 0 {
                    (*keeper, *last) = (node, sample);
                }
            }
            _ => {
                keepers = 1;
                joined.push((node, sample));
            }
        }
    }
    joined
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::super::tests::chi_square::uniform;
    use super::super::{EpochDraws, SampleId};
    use super::*;

    /// Buffers of these sizes, each with samples of its own.
    fn buffers(sizes: &[u64]) -> Vec<(u64, Vec<u64>)> {
        let mut next = 0;
        let buffer = |(node, size): (u64, &u64)| {
            next += size;
            (node, (next - size..next).collect())
        };
        (0..).zip(sizes).map(buffer).collect()
    }

    #[test]
    fn each_sample_is_there_once_and_its_keepers_share_it() {
        let all: Vec<u64> = (0..4000).collect();
        let parts = [(3, all.clone()), (1, all.clone()), (2, all[..1000].to_vec())];
        let joined = join(parts.clone(), |hash| *hash);
        let hashes: Vec<u64> = joined.iter().map(|(_, hash)| *hash).collect();
        assert_eq!(hashes, all);
        let mut counts = HashMap::<u64, u64>::new();
        joined.iter().for_each(|(node, _)| *counts.entry(*node).or_default() += 1);
        assert!((250..420).contains(&counts[&2]), "{counts:?}");
        assert!(counts[&1].abs_diff(counts[&3]) < 300, "{counts:?}");
        let reversed = join(parts.into_iter().rev(), |hash| *hash);
        assert_eq!(reversed, joined, "all nodes find the same");
        assert_eq!(join(Vec::<(u64, Vec<u64>)>::new(), |hash| *hash), []);
    }

    /// Four buffers with 10, 20, 30 and 40 samples, from which a node was drawn first, give counts of 4 to 1.
    #[test]
    fn draws_do_not_depend_on_how_full_buffers_are() {
        let joined = join(buffers(&[10, 20, 30, 40]), |hash| *hash);
        let mut draws = EpochDraws::new(5, 0, (0..joined.len() as u32).map(SampleId), 7);
        let mut counts = vec![0_u64; joined.len()];
        for k in 0..1_000_000 {
            counts[draws.at(k).unwrap().0 as usize] += 1;
        }
        let (most, least) = (counts.iter().max().unwrap(), counts.iter().min().unwrap());
        assert!(counts.len() == 100 && *most as f64 <= 1.1 * *least as f64, "{most} {least}");
    }

    /// The first draw of an epoch is any sample of any node.
    #[test]
    fn each_sample_of_each_node_is_as_likely_at_each_place() {
        let joined = join(buffers(&[1, 2, 3, 4]), |hash| *hash);
        for place in [0, 3, 9, 12] {
            let mut counts = vec![0; joined.len()];
            for epoch in 0..5000 {
                let mut draws = EpochDraws::new(5, epoch, (0..10).map(SampleId), 6);
                counts[draws.at(place).unwrap().0 as usize] += 1;
            }
            uniform(&format!("draw {place} of four buffers"), &counts);
        }
    }
}
