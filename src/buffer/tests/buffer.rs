//! Tests of what holds for every policy.

use proptest::prelude::*;

use super::*;

#[derive(Clone, Debug)]
enum Step {
    Offer { class: u32, bytes: u64 },
    Score { sample: u32, score: f32 },
    Replay { sample: u32 },
    Lose { sample: u32 },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        8 => (0..5_u32, 1..200_u64).prop_map(|(class, bytes)| Step::Offer { class, bytes }),
        2 => (0..300_u32, -9.0..9.0_f32).prop_map(|(sample, score)| Step::Score { sample, score }),
        1 => (0..300_u32).prop_map(|sample| Step::Replay { sample }),
        1 => (0..300_u32).prop_map(|sample| Step::Lose { sample }),
    ];
    prop::collection::vec(step, 1..300)
}

fn apply(buffer: &mut RehearsalBuffer, step: &Step) -> Option<OfferResult> {
    match *step {
        Step::Offer { class, bytes } => buffer.offer(candidate(class, bytes)),
        Step::Score { sample, score } => {
            let held = buffer.get(SampleId(sample)).is_some();
            assert_eq!(buffer.score(SampleId(sample), score).is_ok(), held);
            None
        }
        Step::Replay { sample } => {
            let _ = buffer.replayed(SampleId(sample));
            None
        }
        Step::Lose { sample } => {
            buffer.remove(SampleId(sample));
            None
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 64, ..ProptestConfig::default() })]

    /// The buffer never exceeds its capacity and reports which samples came and went. Serialized at any
    /// moment, it continues as if it had not been.
    #[test]
    fn a_buffer_says_what_it_does_and_can_be_written_down(
        policy in prop::sample::select(&Policy::ALL[..]),
        bytes in prop::bool::ANY,
        limit in 0..40_u64,
        steps in steps(),
        cut in 0..300_usize,
    ) {
        let capacity = if bytes { Capacity::Bytes(limit * 60) } else { Capacity::Samples(limit) };
        let mut buffer = buffer_of(policy, capacity, 9);
        let mut copy = None;
        let mut held = std::collections::BTreeSet::new();
        for (at, step) in steps.iter().enumerate() {
            if at == cut {
                let text = serde_json::to_string(&buffer).unwrap();
                let read: RehearsalBuffer = serde_json::from_str(&text).unwrap();
                prop_assert_eq!(&read, &buffer);
                copy = Some(read);
            }
            let may_be_kept = |class, bytes| {
                let met = buffer.classes().any(|met| met == ClassId(class));
                met.then(|| buffer.may_keep(candidate(class, bytes), 0))
            };
            let foreseen = match *step {
                Step::Offer { class, bytes } => may_be_kept(class, bytes),
                _ => None,
            };
            let offered = apply(&mut buffer, step);
            if let (Some(may_keep), Some(offered)) = (foreseen, &offered) {
                let is_exact = matches!(capacity, Capacity::Samples(_));
                prop_assert!(may_keep == offered.kept || may_keep && !is_exact);
            }
            if let Some(copy) = &mut copy {
                prop_assert_eq!(&apply(copy, step), &offered);
            }
            if let Some(OfferResult { sample, kept, evicted }) = offered {
                for gone in evicted {
                    prop_assert!(held.remove(&gone));
                }
                prop_assert!(!kept || held.insert(sample));
            } else if let Step::Lose { sample } = step {
                held.remove(&SampleId(*sample));
            }
            prop_assert!(buffer.members().map(|member| member.sample).eq(held.iter().copied()));
            let share = |member: &Member| capacity.share(member.bytes);
            prop_assert_eq!(buffer.used(), buffer.members().map(share).sum::<u64>());
            prop_assert!(buffer.used() <= capacity.limit());
        }
        if let Some(copy) = copy {
            prop_assert_eq!(copy, buffer);
        }
    }
}

#[test]
fn room_is_filled_before_anybody_goes() {
    for policy in Policy::ALL.into_iter().filter(|policy| *policy != Policy::Gdumb) {
        let mut buffer = buffer_of(policy, Capacity::Samples(40), 1);
        fill(&mut buffer, &[(0, 30), (1, 10)]);
        assert_eq!(buffer.len(), 40, "{policy:?}");
        fill(&mut buffer, &[(2, 400)]);
        assert_eq!(buffer.len(), 40, "{policy:?}");
    }
}

#[test]
fn a_sample_larger_than_the_buffer_evicts_no_other() {
    for policy in Policy::ALL {
        let mut buffer = offer_all(policy, Capacity::Bytes(100), 1, &[10; 10]);
        let offered = buffer.offer(candidate(7, 101)).unwrap();
        assert_eq!((offered.kept, offered.evicted.len(), buffer.len()), (false, 0, 10));
    }
}

/// After shrinking, a buffer is as if it had never had more room, unless its policy depends on the past.
/// After growing, it continues with what it has.
#[test]
fn a_buffer_of_another_size_knows_what_it_knew() {
    for policy in Policy::ALL {
        let mut buffer = buffer_of(policy, Capacity::Samples(40), 1);
        fill(&mut buffer, &[(0, 90), (1, 30), (2, 8)]);
        let held: Vec<SampleId> = buffer.members().map(|member| member.sample).collect();
        for sample in &held {
            buffer.score(*sample, sample.0 as f32).unwrap();
            buffer.replayed(*sample).unwrap();
        }
        let (offers, before) = (buffer.offers(), buffer.len());
        let evicted = buffer.resize(Capacity::Samples(12));
        assert_eq!(
            (buffer.len(), buffer.used(), evicted.len()),
            (12, 12, before - 12),
            "{policy:?}"
        );
        assert_eq!((buffer.offers(), buffer.rules().capacity), (offers, Capacity::Samples(12)));
        for member in buffer.members() {
            assert!(held.contains(&member.sample) && !evicted.contains(&member.sample));
            assert_eq!((member.score, member.replays), (Some(member.sample.0 as f32), 1));
        }
        if matches!(policy, Policy::Reservoir | Policy::Ring) {
            let mut small = buffer_of(policy, Capacity::Samples(12), 1);
            fill(&mut small, &[(0, 90), (1, 30), (2, 8)]);
            let kept =
                |buffer: &RehearsalBuffer| buffer.members().map(|m| m.sample).collect::<Vec<_>>();
            assert_eq!(kept(&small), kept(&buffer), "{policy:?}");
        }
        let counts: Vec<usize> = buffer.classes().map(|class| buffer.count(class)).collect();
        if policy == Policy::MaxLoss || policy == Policy::ClassBalanced {
            assert_eq!(counts, [4, 4, 4], "{policy:?}");
        }
        let text = serde_json::to_string(&buffer).unwrap();
        assert_eq!(serde_json::from_str::<RehearsalBuffer>(&text).unwrap(), buffer);
        assert_eq!(buffer.resize(Capacity::Bytes(20)), [], "{policy:?}");
        (0..400).for_each(|n| drop(buffer.offer(candidate(n % 3, 1))));
        assert_eq!((buffer.len(), buffer.used()), (20, 20), "{policy:?}");
        assert_eq!(buffer.resize(Capacity::Samples(0)).len(), 20);
    }
}

#[test]
fn seeds_are_apart_and_each_is_the_same_again() {
    for policy in Policy::ALL.into_iter().filter(|policy| *policy != Policy::Ring) {
        let of = |seed| offer_all(policy, Capacity::Samples(20), seed, &[1; 400]);
        let kept = |buffer: RehearsalBuffer| buffer.members().map(|m| m.sample).collect::<Vec<_>>();
        assert_eq!(of(1), of(1), "{policy:?}");
        // GDumb keeps the first samples of a single class, whatever the seed.
        assert!(policy == Policy::Gdumb || kept(of(1)) != kept(of(2)), "{policy:?}");
    }
}

#[test]
fn an_impossible_state_is_refused() {
    let buffer = offer_all(Policy::Reservoir, Capacity::Samples(3), 1, &[1; 9]);
    let text = serde_json::to_string(&buffer).unwrap();
    for (from, to) in [("\"offers\":9", "\"offers\":1"), ("\"samples\":3", "\"samples\":2")] {
        let wrong = text.replace(from, to);
        assert_ne!(wrong, text);
        assert!(serde_json::from_str::<RehearsalBuffer>(&wrong).is_err(), "{to}");
    }
}

/// The cost of an offer hardly depends on the size of the buffer: no offer scans it.
#[test]
fn a_large_buffer_takes_many_offers() {
    for policy in Policy::ALL {
        let mut buffer = buffer_of(policy, Capacity::Samples(20_000), 1);
        for n in 0..60_000 {
            drop(buffer.offer(candidate(n % 100, 1)));
        }
        assert_eq!(buffer.len(), 20_000, "{policy:?}");
    }
}

/// With a capacity in bytes, a large newcomer may need the room of several samples. Either all of them go for
/// it, or none.
#[test]
fn no_sample_leaves_for_a_refused_newcomer() {
    let (mut refused, mut kept) = (0, 0);
    for (policy, seed) in Policy::ALL.into_iter().flat_map(|of| (0..40).map(move |seed| (of, seed)))
    {
        let mut buffer = buffer_of(policy, Capacity::Bytes(1000), seed);
        (0..10).for_each(|n| drop(buffer.offer(candidate(n % 2, 100))));
        for large in 0..4 {
            let before: Vec<Member> = buffer.members().copied().collect();
            let offered = buffer.offer(candidate(large % 3, 450)).unwrap();
            let after: Vec<Member> = buffer.members().copied().collect();
            if offered.kept {
                kept += 1;
                assert!(!offered.evicted.is_empty() && buffer.used() <= 1000);
            } else {
                refused += 1;
                assert!(offered.evicted.is_empty(), "{policy:?}, {seed}");
                assert!(after == before, "{policy:?}, {seed}");
            }
        }
    }
    println!("{kept} were kept and {refused} were not");
    assert!(kept > 100 && refused > 100);
}
