//! Samplers compared with the installed torch, numpy and Python, over many seeds and numbers of samples.

#![expect(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::path::Path;
use std::process::Command;

use belady::ids::FileId;
use belady::order::{Entry, Listing, OrderSpec};
use serde_json::{Value, json};

const PYTHON: &str = "/usr/bin/python3";

/// Reads `[spec, n, epochs]` cases. For each epoch it prints the number of positions, the first ones, and a
/// hash over all.
const SCRIPT: &str = include_str!("order_libraries.py");

fn ask(cases: &[Value]) -> Vec<Vec<Summary>> {
    let output = Command::new(PYTHON)
        .args(["-c", SCRIPT, &json!(cases).to_string()])
        .output()
        .unwrap_or_else(|error| panic!("{PYTHON} does not start ({error}): install python3"));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "this test compares with the real libraries: install python3-torch and python3-numpy for \
         {PYTHON}\n{stderr}"
    );
    let answers: Vec<Vec<Summary>> = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(answers.len(), cases.len());
    answers
}

/// The parts of an epoch that are compared.
type Summary = (usize, Vec<u32>, u64);

fn summary(epoch: &[u32]) -> Summary {
    let hash = |h: u64, x: &u32| h.wrapping_mul(1_000_003).wrapping_add(u64::from(*x));
    (epoch.len(), epoch.iter().take(8).copied().collect(), epoch.iter().fold(0, hash))
}

/// A file of weights, whose name is a number. The script makes the same weights.
fn weights(name: &Path, n: u32) -> Vec<u8> {
    let m: u64 = name.to_str().unwrap().parse().unwrap();
    let weight = |i: u64| ((7919 * i + 1) % m) as f64 / m as f64;
    (0..n).map(|i| format!("{}\n", weight(i.into()))).collect::<String>().into_bytes()
}

/// Compares the epochs of these specs. Each is over `n` files whose names are in order.
fn compare(cases: &[(String, u32, u32)]) {
    let asked: Vec<_> = cases.iter().map(|(spec, n, epochs)| json!([spec, n, epochs])).collect();
    let most = cases.iter().map(|(_, n, _)| *n).max().unwrap_or(0);
    let names: Vec<String> = (0..most).map(|at| format!("{at:08}")).collect();
    for ((text, n, _), expected) in cases.iter().zip(ask(&asked)) {
        let spec: OrderSpec = text.parse().unwrap();
        let entries = names.iter().zip(0..*n).map(|(name, at)| Entry {
            path: name.as_bytes(),
            file: FileId(at),
            size: 1,
        });
        let contents: Vec<_> =
            spec.files_needed().into_iter().map(|(name, _)| weights(name, *n)).collect();
        let contents: Vec<&[u8]> = contents.iter().map(Vec::as_slice).collect();
        let Ok(order) = spec.resolve(&Listing::new(entries.collect()), &contents) else {
            assert!(expected.iter().all(|(length, ..)| *length == 0), "{text} over {n}");
            continue;
        };
        for (k, (found, expected)) in order.epochs(0).zip(expected).enumerate() {
            assert_eq!(summary(&found), expected, "{text} over {n}, epoch {k}");
        }
    }
}

/// A generator of numbers to choose cases by: splitmix64, the same in every run.
struct Choice(u64);

impl Choice {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// A seed that is usually small, and sometimes longer than 32 bits.
    fn seed(&mut self) -> u64 {
        if self.below(4) == 0 { self.next() >> 2 } else { self.below(10_000) }
    }

    fn boolean(&mut self) -> bool {
        self.below(2) == 0
    }
}

const SIZES: [u32; 12] = [1, 2, 3, 4, 5, 31, 1000, 1001, 4096, 65_535, 65_536, 70_000];

#[test]
fn distributed_sampler_agrees_with_torch() {
    let mut choice = Choice(1);
    let cases: Vec<_> = (0..48)
        .map(|i| {
            let (seed, epoch, world) = (choice.seed(), choice.below(100), 1 + choice.below(17));
            let rank = choice.below(world);
            let (drop_last, shuffle) = (choice.boolean(), choice.below(5) != 0);
            let spec = format!(
                "torch-distributed:seed={seed},epoch={epoch},world={world},rank={rank},\
                 drop_last={drop_last},shuffle={shuffle}"
            );
            let n = if i % 3 == 0 { 1 + choice.below(20) as u32 } else { SIZES[i % SIZES.len()] };
            (spec, n, 2)
        })
        .collect();
    compare(&cases);
}

#[test]
fn loaders_agree_with_torch() {
    let mut choice = Choice(2);
    let mut cases = Vec::new();
    for (i, n) in SIZES.into_iter().cycle().take(24).enumerate() {
        let (seed, replacement) = (choice.seed(), i % 3 == 2);
        let persistent = i % 8 == 7;
        cases.push((
            format!(
                "torch-random:seed={seed},persistent_workers={persistent},replacement={replacement}"
            ),
            n.min(3000),
            4,
        ));
        let (position, stride) = (3 + choice.below(50), 4 + choice.below(20));
        cases.push((
            format!("torch-default:seed={seed},position={position},stride={stride},replacement={replacement}"),
            n,
            3,
        ));
        cases.push((format!("torch-subset-random:seed={seed}"), n, 3));
        cases.push((format!("torch-subset-random:seed={seed},position=0,gap=0"), n, 3));
    }
    compare(&cases);
}

#[test]
fn weighted_samplers_agree_with_torch() {
    let mut choice = Choice(5);
    let mut cases = Vec::new();
    for n in SIZES {
        for (m, places) in [(101, ""), (65_537, ",position=0,gap=0"), (1_000_003, "")] {
            let seed = choice.seed();
            let (more, some) = (2 + choice.below(2 * u64::from(n)), n.div_ceil(2));
            let spec = format!("torch-weighted:seed={seed},weights={m}{places}");
            cases.push((spec.clone(), n, 3));
            cases.push((format!("{spec},num_samples={more}"), n, 3));
            cases.push((format!("{spec},num_samples={some},replacement=false"), n, 3));
            cases.push((format!("{spec},num_samples=1,replacement=false"), n, 3));
        }
    }
    for replacement in [true, false] {
        let keys = format!("num_samples=500,gap=0,replacement={replacement}");
        cases.push((format!("torch-weighted:seed=3,weights=101,{keys}"), 1000, 3));
    }
    compare(&cases);
}

#[test]
fn loaders_of_whole_batches_agree_with_torch() {
    let mut choice = Choice(4);
    let mut cases = Vec::new();
    for n in [4, 31, 1000, 1001, 4096] {
        for batch in [1, 4, 1 + choice.below(n), n] {
            let (seed, world) = (choice.seed(), 1 + choice.below(n / batch));
            let (rank, drop_last) = (choice.below(world), choice.boolean());
            for spec in [
                "sequential:".to_owned(),
                format!("torch-random:seed={seed},"),
                format!("torch-random:seed={seed},replacement=true,"),
                format!("torch-random:seed={seed},persistent_workers=true,"),
                format!("torch-default:seed={seed},"),
                format!("torch-subset-random:seed={seed},"),
                format!("torch-subset-random:seed={seed},position=0,gap=0,"),
                format!("torch-weighted:seed={seed},weights=101,"),
                format!(
                    "torch-distributed:seed={seed},world={world},rank={rank},drop_last={drop_last},"
                ),
            ] {
                cases.push((format!("{spec}whole_batches={batch}"), n as u32, 3));
            }
        }
    }
    compare(&cases);
}

#[test]
fn splits_agree_with_torch() {
    let mut cases = Vec::new();
    for (seed, n, lengths, parts) in [
        (42, 1000, "0.8+0.2", 2),
        (7, 1001, "0.5+0.3+0.2", 3),
        (1, 11, "0.25+0.25+0.25+0.25", 4),
        (3, 70_000, "60000+10000", 2),
        (4, 5, "2+2+1", 3),
    ] {
        for part in 0..parts {
            let split = format!("split=random_split:{seed}:{lengths}:{part}");
            cases.push((format!("sequential:{split}"), n, 1));
            cases.push((format!("torch-random:seed=5,{split}"), n, 3));
            cases.push((format!("torch-distributed:seed=5,world=3,rank=1,{split}"), n, 2));
        }
    }
    compare(&cases);
}

#[test]
fn shuffles_agree_with_numpy_and_python() {
    let mut choice = Choice(3);
    let mut cases = Vec::new();
    for n in SIZES {
        for epochs in ["same", "reseed", "fresh", "again"] {
            let (small, seed) = (choice.below(1 << 32), choice.seed());
            cases.push((format!("numpy-random-state:seed={small},epochs={epochs}"), n, 3));
            cases.push((format!("numpy-generator:seed={seed},epochs={epochs}"), n, 3));
            cases.push((format!("python-random:seed={seed},epochs={epochs}"), n, 3));
            if epochs != "again" {
                let sample = 1 + choice.below(n.into()) / [1, 3, 200][n as usize % 3];
                let spec = format!("python-random:seed={seed},epochs={epochs},sample={sample}");
                cases.push((spec, n, 3));
            }
        }
        for text in ["", "0", "42", "a longer seed", "s\u{e9}ed"] {
            cases.push((format!("python-random:seed='{text}',epochs=fresh"), n.min(2000), 2));
        }
    }
    for seed in [0, 1, u64::from(u32::MAX), 1 << 32, u64::MAX] {
        cases.push((format!("numpy-generator:seed={seed}"), 1000, 2));
        cases.push((format!("python-random:seed={seed}"), 1000, 2));
    }
    compare(&cases);
}
