//! Compares each sampler with the output of its library. The order is a spec over a dataset of `n` files
//! whose names are in order.
//!
//! `tests/vectors` has a file for each library. Its cases have an order, `n`, and for each epoch the first
//! positions (`head`), the last ones (`tail`), their number (`len`) and a hash over all of them: `h = h *
//! 1000003 + x` modulo 2^64, from 0. What is not given is not compared. The name of a file of weights is a
//! number `m`: sample `i` has the weight `(7919 i + 1) mod m / m`.

#![expect(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::collections::BTreeSet;
use std::path::Path;

use belady::ids::FileId;
use belady::order::samplers::Sampler;
use belady::order::spec::SequenceSpec;
use belady::order::{Entry, Listing, OrderSpec};
use serde::Deserialize;

#[derive(Deserialize)]
struct Vectors {
    made_by: String,
    cases: Vec<Case>,
}

#[derive(Debug, Deserialize)]
struct Case {
    order: String,
    n: u32,
    epochs: Vec<Epoch>,
}

#[derive(Debug, Deserialize)]
struct Epoch {
    head: Vec<u32>,
    tail: Option<Vec<u32>>,
    len: Option<usize>,
    hash: Option<u64>,
}

/// The files that an order needs.
fn contents(spec: &OrderSpec, n: u32) -> Vec<Vec<u8>> {
    let weights = |name: &Path| {
        let m: u64 = name.to_str().unwrap().parse().unwrap();
        let weight = |i: u64| ((7919 * i + 1) % m) as f64 / m as f64;
        (0..n).map(|i| format!("{}\n", weight(i.into()))).collect::<String>().into_bytes()
    };
    spec.files_needed().into_iter().map(|(name, _)| weights(name)).collect()
}

/// Compares the cases of a library with the orders of their specs.
fn check(text: &str, at_least: usize) {
    let Vectors { made_by, cases } = serde_json::from_str(text).unwrap();
    assert!(cases.len() >= at_least, "{} cases of {made_by}", cases.len());
    let most = cases.iter().map(|case| case.n).max().unwrap_or(0);
    let names: Vec<String> = (0..most).map(|at| format!("{at:08}")).collect();
    for Case { order: text, n, epochs } in cases {
        let entries = names.iter().zip(0..n).map(|(name, at)| Entry {
            path: name.as_bytes(),
            file: FileId(at),
            size: 1,
        });
        let spec: OrderSpec = text.parse().unwrap();
        let contents = contents(&spec, n);
        let contents: Vec<&[u8]> = contents.iter().map(Vec::as_slice).collect();
        let order = spec.resolve(&Listing::new(entries.collect()), &contents).unwrap();
        for ((k, expected), found) in (0..).zip(epochs).zip(order.epochs(0)) {
            let words = format!("{text} over {n} by {made_by}, epoch {k}");
            let Epoch { head, tail, len, hash } = expected;
            let hashed = |h: u64, x: &u32| h.wrapping_mul(1_000_003).wrapping_add((*x).into());
            assert_eq!(&found[..head.len()], head, "{words}");
            assert!(tail.is_none_or(|tail| found.ends_with(&tail)), "{words}");
            assert!(len.is_none_or(|len| found.len() == len), "{words}");
            assert!(hash.is_none_or(|hash| found.iter().fold(0, hashed) == hash), "{words}");
            assert_eq!(found.len(), order.epoch_len(k) as usize, "{words}");
        }
    }
}

macro_rules! libraries {
    ($($name:ident: $least:literal,)*) => {
        $(#[test]
        fn $name() {
            check(include_str!(concat!("vectors/", stringify!($name), ".json")), $least);
        })*

        /// Each sampler is compared with a library at least once.
        #[test]
        fn every_sampler_has_a_vector() {
            let mut seen = BTreeSet::from(["sequential"]);
            $(let text = include_str!(concat!("vectors/", stringify!($name), ".json"));
            let vectors: Vectors = serde_json::from_str(text).unwrap();
            for case in vectors.cases {
                let spec: OrderSpec = case.order.parse().unwrap();
                if let SequenceSpec::Sampler(sampler) = spec.sequence {
                    seen.insert(sampler.name());
                }
            })*
            for sampler in Sampler::all() {
                assert!(seen.contains(sampler.name()), "{} has no vector", sampler.name());
            }
        }
    };
}

libraries! {
    torch: 121,
    timm: 10,
    huggingface: 22,
    numpy: 100,
    python: 90,
    libstdcxx: 20,
    tensorflow: 20,
    dali: 7,
    dlio: 10,
}
