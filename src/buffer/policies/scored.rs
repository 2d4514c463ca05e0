//! Policies by scores of the trainer. From the largest class, the sample whose replay promises least is given
//! up. A sample without a score stays until all others are gone. Ties are random.

use super::{Member, Retention};

/// Keeps the samples of the smallest `sign * score`. With 1 these are a margin, a distance from the mean, a
/// place in an order of herding; with -1 a loss, the growth of a loss.
pub(super) struct ByScore {
    pub(super) sign: f32,
}

/// Keeps the samples that were shown again least often.
pub(super) struct MinReplay;

/// The rank of a sample. `spared` tells how well it can be spared, if that is known.
fn rank(spared: Option<u32>, rng: u64) -> u64 {
    match spared {
        None => rng >> 1,
        Some(spared) => 1 << 63 | u64::from(spared) << 31 | rng >> 33,
    }
}

/// Maps a score to an integer with the same order.
fn ordered(score: f32) -> u32 {
    let bits = score.to_bits();
    if bits >> 31 == 1 { !bits } else { bits | 1 << 31 }
}

impl Retention for ByScore {
    fn rank(&self, member: &Member, rng: u64) -> u64 {
        rank(member.score.map(|score| ordered(self.sign * score)), rng)
    }
}

impl Retention for MinReplay {
    fn rank(&self, member: &Member, rng: u64) -> u64 {
        rank(Some(member.replays), rng)
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::tests::{buffer_of, candidate, fill};
    use super::super::super::{Capacity, Policy, RehearsalBuffer, SampleId, UpdateError};
    use super::*;

    #[test]
    fn scores_keep_their_order_as_ranks() {
        let scores = [f32::MIN, -2.0, -1e-30, 0.0, 1e-30, 0.5, 7.0, f32::MAX];
        assert!(scores.windows(2).all(|pair| ordered(pair[0]) < ordered(pair[1])));
        assert!(rank(None, u64::MAX) < rank(Some(0), 0));
        assert!(rank(Some(1), u64::MAX) < rank(Some(2), 0));
        assert!(rank(Some(1), 0) < rank(Some(1), u64::MAX));
    }

    /// Ten samples of each of two classes, of scores 0 to 9 in some order.
    fn scored(policy: Policy) -> RehearsalBuffer {
        let mut buffer = buffer_of(policy, Capacity::Samples(20), 3);
        fill(&mut buffer, &[(0, 10), (1, 10)]);
        for sample in 0..20 {
            let score = (sample * 7 % 10) as f32;
            assert_eq!(buffer.score(SampleId(sample), score), Ok(()));
        }
        buffer
    }

    fn scores(buffer: &RehearsalBuffer, class: u32) -> Vec<f32> {
        let own = buffer.members().filter(|member| member.class.0 == class);
        let mut scores: Vec<f32> = own.filter_map(|member| member.score).collect();
        scores.sort_by(f32::total_cmp);
        scores
    }

    #[test]
    fn the_sample_goes_whose_replay_promises_least() {
        for (policy, stay) in [
            (Policy::MaxLoss, [5.0, 6.0, 7.0, 8.0, 9.0]),
            (Policy::Mir, [5.0, 6.0, 7.0, 8.0, 9.0]),
            (Policy::MinMargin, [0.0, 1.0, 2.0, 3.0, 4.0]),
            (Policy::Prototypical, [0.0, 1.0, 2.0, 3.0, 4.0]),
            (Policy::Herding, [0.0, 1.0, 2.0, 3.0, 4.0]),
        ] {
            let mut buffer = scored(policy);
            // A third class takes a third of the room. The new samples of the first class have no score.
            fill(&mut buffer, &[(2, 6)]);
            fill(&mut buffer, &[(0, 2)]);
            assert_eq!(buffer.len(), 20, "{policy:?}");
            assert_eq!(scores(&buffer, 0), stay, "{policy:?}");
            assert_eq!(scores(&buffer, 1).len(), 7, "{policy:?}");
        }
    }

    #[test]
    fn the_sample_shown_most_often_goes_first() {
        let mut buffer = buffer_of(Policy::MinReplay, Capacity::Samples(10), 3);
        fill(&mut buffer, &[(0, 10)]);
        for sample in 0..10 {
            (0..sample).for_each(|_| assert_eq!(buffer.replayed(SampleId(sample)), Ok(())));
        }
        for evicted in (7..10).rev() {
            let offered = buffer.offer(candidate(0, 1)).unwrap();
            assert_eq!((offered.kept, offered.evicted), (true, vec![SampleId(evicted)]));
        }
    }

    #[test]
    fn a_refused_score_changes_nothing() {
        let mut buffer = scored(Policy::MaxLoss);
        let before = buffer.clone();
        assert_eq!(buffer.score(SampleId(3), f32::NAN), Err(UpdateError::NotFinite));
        assert_eq!(buffer.score(SampleId(3), f32::INFINITY), Err(UpdateError::NotFinite));
        assert_eq!(buffer.score(SampleId(99), 1.0), Err(UpdateError::NotHeld));
        assert_eq!(buffer.replayed(SampleId(99)), Err(UpdateError::NotHeld));
        assert_eq!(buffer, before);
    }
}
