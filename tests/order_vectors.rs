//! The samplers against vectors that torch 1.13.1 itself made; torch 2.15.0 gives the same.
//!
//! `hash` is over the whole list: `h = h * 1000003 + x` modulo 2^64, from 0. `head` are the first
//! elements and `tail` the last four.

#![expect(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use belady::order::samplers::torch::{generator, randperm};
use belady::order::samplers::{Distributed, Random, Sampler};
use serde_json::Value;

fn vectors() -> Value {
    serde_json::from_str(include_str!("vectors/torch113.json")).unwrap()
}

fn cases<'v>(vectors: &'v Value, name: &str) -> &'v Vec<Value> {
    vectors[name].as_array().unwrap()
}

fn number(case: &Value, key: &str) -> u64 {
    case[key].as_u64().unwrap()
}

fn list(case: &Value, key: &str) -> Vec<u32> {
    serde_json::from_value(case[key].clone()).unwrap()
}

/// Compares a list with its head, its hash and, where it is given, its tail.
fn check(positions: &[u32], expected: &Value) {
    let hash = |h: u64, x: &u32| h.wrapping_mul(1_000_003).wrapping_add(u64::from(*x));
    assert!(positions.starts_with(&list(expected, "head")), "{expected}");
    assert_eq!(positions.iter().fold(0, hash), number(expected, "hash"), "{expected}");
    if expected.get("tail").is_some() {
        assert!(positions.ends_with(&list(expected, "tail")), "{expected}");
    }
}

#[test]
fn randperm_gives_torchs_permutations() {
    let vectors = vectors();
    let cases = cases(&vectors, "randperm");
    for case in cases {
        let n = number(case, "n") as u32;
        check(&randperm(n, &mut generator(number(case, "seed"))), case);
    }
    assert!(cases.len() > 30, "{} cases", cases.len());
}

#[test]
fn distributed_gives_every_ranks_share() {
    let vectors = vectors();
    let cases = cases(&vectors, "distributed");
    for case in cases {
        let sampler = Distributed {
            seed: number(case, "seed"),
            epoch: number(case, "epoch"),
            world: number(case, "world") as u32,
            rank: number(case, "rank") as u32,
            drop_last: case["drop_last"].as_bool().unwrap(),
            shuffle: case["shuffle"].as_bool().unwrap(),
            set_epoch: true,
        };
        let n = number(case, "n") as u32;
        assert_eq!(u64::from(sampler.epoch_len(n)), number(case, "len"), "{case}");
        check(&sampler.epoch(n, 0), case);
        if sampler.epoch > 0 {
            let earlier = Distributed { epoch: sampler.epoch - 1, ..sampler };
            check(&earlier.epoch(n, 1), case);
        }
    }
    assert!(cases.len() > 20, "{} cases", cases.len());
}

#[test]
fn random_gives_every_epoch_of_a_loader_with_a_generator() {
    let vectors = vectors();
    let loaders = cases(&vectors, "loader").iter();
    let mut checked = 0;
    for case in loaders.filter(|case| case["kind"] == "explicit_generator") {
        let sampler = Sampler::TorchRandom(Random::new(number(case, "seed")));
        let n = number(case, "n") as u32;
        for (k, (expected, positions)) in
            (0..).zip(cases(case, "epochs").iter().zip(sampler.epochs(n, 0)))
        {
            // With drop_last the samples beyond the last whole batch are drawn and not read.
            let batch = number(case, "batch") as usize;
            let dropped = if case["drop_last"] == true { positions.len() % batch } else { 0 };
            check(&positions[..positions.len() - dropped], expected);
            assert_eq!(sampler.epochs(n, k).next().unwrap(), positions);
            checked += 1;
        }
    }
    assert!(checked >= 16, "{checked} epochs");
}
