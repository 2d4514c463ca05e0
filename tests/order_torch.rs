//! The samplers against the torch that is installed, element by element.

#![expect(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::process::Command;

use belady::order::samplers::{Distributed, Random, Sampler};
use serde_json::{Value, json};

const PYTHON: &str = "/usr/bin/python3";

/// Reads cases from its argument and prints the list of positions of each.
const SCRIPT: &str = r#"
import json, sys
import torch
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

def distributed(c):
    sampler = DistributedSampler(range(c["n"]), num_replicas=c["world"], rank=c["rank"],
                                 shuffle=c["shuffle"], seed=c["seed"], drop_last=c["drop_last"])
    sampler.set_epoch(c["epoch"])
    return [list(sampler)]

def loader(c):
    g = torch.Generator()
    g.manual_seed(c["seed"])
    persistent = c["persistent_workers"]
    data = DataLoader(list(range(c["n"])), batch_size=c["batch"], shuffle=True, generator=g,
                      num_workers=int(persistent), persistent_workers=persistent)
    return [[int(i) for batch in data for i in batch] for _ in range(c["epochs"])]

cases = json.loads(sys.argv[1])
print(json.dumps([distributed(c) if "world" in c else loader(c) for c in cases]))
"#;

/// What torch answers to the cases: for each the positions of its epochs.
fn ask_torch(cases: &[Value]) -> Vec<Vec<Vec<u32>>> {
    let output = Command::new(PYTHON)
        .args(["-c", SCRIPT, &json!(cases).to_string()])
        .output()
        .unwrap_or_else(|error| panic!("{PYTHON} does not start ({error}): install python3"));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "this test compares with the real torch: install python3-torch for {PYTHON}\n{stderr}"
    );
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Numbers to choose cases by: splitmix64, the same in every run.
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
}

#[test]
fn distributed_sampler_agrees_with_torch() {
    let mut choice = Choice(1);
    let mut samplers = Vec::new();
    for i in 0..40 {
        let world = 1 + choice.below(17) as u32;
        let sampler = Distributed {
            // Seeds beyond 32 bits now and then.
            seed: if i % 4 == 0 { choice.next() >> 2 } else { choice.below(10_000) },
            epoch: choice.below(100),
            world,
            rank: choice.below(world.into()) as u32,
            drop_last: choice.below(2) == 0,
            shuffle: choice.below(5) != 0,
            set_epoch: true,
        };
        // Some datasets are smaller than the world, so that the padding goes round them.
        let n = if i % 3 == 0 { 1 + choice.below(20) } else { 1 + choice.below(5_000) };
        samplers.push((sampler, n as u32));
    }
    let case = |(s, n): &(Distributed, u32)| {
        json!({
            "seed": s.seed, "epoch": s.epoch, "world": s.world, "rank": s.rank,
            "drop_last": s.drop_last, "shuffle": s.shuffle, "n": n,
        })
    };
    let answers = ask_torch(&samplers.iter().map(case).collect::<Vec<_>>());
    assert_eq!(answers.len(), samplers.len());
    for ((sampler, n), answer) in samplers.iter().zip(answers) {
        assert_eq!(answer, [sampler.epoch(*n, 0)], "{sampler:?} over {n}");
    }
}

#[test]
fn loader_with_a_generator_agrees_with_torch() {
    let mut choice = Choice(2);
    let mut samplers = Vec::new();
    for i in 0..24 {
        let seed = if i % 4 == 0 { choice.next() >> 1 } else { choice.below(10_000) };
        let sampler = Random { persistent_workers: i % 8 == 7, ..Random::new(seed) };
        let n = if i % 6 == 0 { 1 + i / 6 } else { 1 + choice.below(3_000) };
        samplers.push((sampler, n as u32, 1 + choice.below(64)));
    }
    let case = |(s, n, batch): &(Random, u32, u64)| {
        json!({
            "seed": s.seed, "persistent_workers": s.persistent_workers, "n": n, "batch": batch,
            "epochs": 4,
        })
    };
    let answers = ask_torch(&samplers.iter().map(case).collect::<Vec<_>>());
    assert_eq!(answers.len(), samplers.len());
    for ((sampler, n, _), answer) in samplers.iter().zip(answers) {
        let epochs: Vec<_> = Sampler::TorchRandom(*sampler).epochs(*n, 0).take(4).collect();
        assert_eq!(answer, epochs, "{sampler:?} over {n}");
        let late = Random { epoch: 3, ..*sampler };
        assert_eq!(late.start(*n).next_epoch(), answer[3], "{late:?} over {n}");
    }
}
